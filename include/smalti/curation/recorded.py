"""What was decided for a version that is to be succeeded, so that its successor is decided in the same way.

Lists that people write may have changed since, or be gone, and sources may have another priority by now: a successor differs from the
version before in what was opted out, and in nothing else. The record of a curation has the priorities, the decisions of people and,
in its rows, which samples were denied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.config import expand
from smalti.curation.record import Curation, TextFile, read_curation, read_rows
from smalti.errors import InputError, MissingObject, SmaltiError
from smalti.lake import Lake
from smalti.reasons import SkipReason
from smalti.release.manifest import beside, read_manifest


@dataclass(frozen=True)
class Recorded:
    """The record of a version's curation, and its rows with what matters here."""

    curation: Curation
    rows: pa.Table

    @property
    def priorities(self) -> dict[str, int]:
        return dict(self.curation.settings["priorities"])

    @property
    def decided(self) -> dict[str, str]:
        """Cluster -> what a person had decided."""
        return {each.name: str(each.decided) for each in self.curation.clusters if each.decided}

    def renamed(self, names: Sequence[str], ids: Any, cluster: Any) -> dict[str, str]:
        """Cluster -> what a person had decided of it, for clusters that have another name since a sample went: the one that named it.

        Args:
            names: of the clusters now.
            ids, cluster: of samples, and the number of the cluster that each is in, or -1.
        """
        lost = [each for each in self.curation.clusters if each.decided and each.name not in names]
        if not lost:
            return {}
        wanted = {name for each in lost for name in each.examples}
        at = {name: int(cluster[place]) for place, name in enumerate(ids.to_list()) if name in wanted}
        found = {}
        for each in lost:
            for number in sorted({at[name] for name in each.examples if at.get(name, -1) >= 0}):
                found[names[number]] = str(each.decided)
        return found

    def denied(self) -> frozenset[str]:
        """Ids of samples that a denylist had."""
        if SkipReason.DENYLIST not in self.curation.reasons:
            return frozenset()
        bit = pa.scalar(1 << self.curation.reasons.index(SkipReason.DENYLIST), pa.uint32())
        marked = pc.greater(pc.bit_wise_and(self.rows["reasons"], bit), 0)
        return frozenset(self.rows.filter(marked)["id"].to_pylist())

    def copies_of(self, opted_out: frozenset[str]) -> frozenset[str]:
        """Ids of samples that were known to be copies of some of these, of which the bytes may be gone by now."""
        wanted, names = pa.array(sorted(opted_out), pa.large_string()), ("id", "copy_of", "spread_from")
        marked = [pc.is_in(self.rows[name], value_set=wanted) for name in names]
        rows = self.rows.filter(pc.or_(pc.or_(marked[0], marked[1]), marked[2]))
        return frozenset(each for name in names for each in rows[name].to_pylist() if each is not None)

    def notes(self) -> Iterator[str]:
        """A line for each list that is not what it was."""
        for what, files in (("denylist", self.curation.denylists), ("decided", self.curation.decisions)):
            for file in files:
                now = _sha256(file, self.curation.dataset)
                if now != file.sha256:
                    changed = "is not there any more" if now is None else "has changed"
                    yield f"{what}: {file.uri} {changed} since the version before was curated; what it said then holds"


def recorded(lake: Lake, manifest_uri: str) -> Recorded | None:
    """What curate decided for a version; None: that cannot be read any more.

    Raises:
        CorruptError: it is damaged.
    """
    uri = read_manifest(manifest_uri).provenance.curation
    if uri is None:
        return None
    try:
        curation = read_curation(beside(manifest_uri, uri))
        columns: Sequence[str] = ("id", "reasons", "copy_of", "spread_from")
        return Recorded(curation, read_rows(lake, curation, columns))
    except (InputError, MissingObject):
        return None


def _sha256(file: TextFile, dataset: str) -> str | None:
    try:
        uri = objects.normalise_uri(expand(file.uri, f"dataset {dataset}"))
        return hashlib.sha256(objects.read_bytes(uri)).hexdigest()
    except SmaltiError:
        return None
