"""The assemble stage: a version of a dataset from committed parts and what curate decided of them.

The content digest is known before anything is written. A version that is committed with the same digest is returned as it
is; otherwise the next version number is claimed by one create-only object that names the digest, everything is written, and
manifest.json comes last. Who dies in between is continued by whoever assembles the same content.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from pydantic import Field

import smalti
from smalti import objects
from smalti.accounting import Accounted
from smalti.config import Dataset
from smalti.curation.inputs import NothingLeft, ablated
from smalti.curation.record import Curation, create_named, read_curation
from smalti.errors import ConflictError, CorruptError, InputError, MissingObject
from smalti.lake import BESIDE_VERSIONS, PARTS_FROM_RELEASE, Lake
from smalti.maintenance.marks import refuse_doomed
from smalti.release.captions import empty_columns, refuse_missing_columns
from smalti.release.check_record import encode_claim
from smalti.release.collect import (
    Stream,
    Tally,
    engines_of,
    read_parts,
    source_entries,
    streams_of,
    tally,
    upstream_of,
)
from smalti.release.diff import MOST, Diff, diff_manifests
from smalti.release.latest import is_gone, read_latest
from smalti.release.manifest import Accounting, Manifest, Provenance, Succeeds, beside, read_manifest
from smalti.release.report import render
from smalti.release.skips import nonzero, sha256
from smalti.release.streams_yaml import streams_yaml
from smalti.settings import ReleaseRun
from smalti.shards.part import Part, read_part

log = logging.getLogger("smalti")


class AssembleReport(Accounted):
    """Attributes:
    manifest: URI of manifest.json.
    version, digest: of the release.
    streams: how many there are.
    page: URI of report.html.
    parent: the version that was LATEST before it.
    gained, lost: samples that it serves and the parent did not, and the other way round, by the reason of the other.
    """

    manifest: str
    version: str
    digest: str
    streams: int
    page: str
    parent: str | None = None
    gained: dict[str, int] = Field({})
    lost: dict[str, int] = Field({})

    @property
    def samples(self) -> int:
        return self.rows_in

    @property
    def kept(self) -> int:
        return self.rows_out


@dataclass(frozen=True)
class Claim:
    """A version that content has been promised to."""

    version: str
    digest: str
    parent: str | None
    succeeds: str | None = None


def assemble(lake: Lake, run: ReleaseRun) -> AssembleReport:
    """Write a version, or return the one that has this content already.

    Raises:
        InputError: no curation is named, it is another dataset's, nothing is left, a part lacks a column that `captions` weighs, or the
            version holds other content.
        CorruptError: a part is not what was curated, or the accounting does not balance.
    """
    started = time.monotonic()
    if not run.curation:
        raise InputError("no curation is named", f"dataset {run.dataset.name}", "Run curate, and pass what it reports")
    curation = read_curation(run.curation)
    if curation.dataset != run.dataset.name:
        raise InputError(
            f"the curation is of dataset {curation.dataset}", run.curation, f"Run curate for {run.dataset.name}"
        )
    dataset = run.dataset
    if curation.base:
        dataset = ablated(lake, dataset.name, curation.base)
    if curation.settings["drops"] != dataset.drops.model_dump(mode="json"):
        raise InputError(
            "what was curated had other `drops` than the dataset has now", run.curation, "Curate again, then assemble"
        )
    groups = {source.name: source.group for source in dataset.sources}
    unknown = sorted({part.source for part in curation.parts} - set(groups))
    if unknown:
        raise InputError(
            f"the dataset has no source {unknown[0]}", run.curation, "Curate again with the dataset as it is"
        )
    parts = read_parts(lake, curation)
    streams = streams_of(lake, curation, parts, groups)
    counted = tally(lake, curation, parts, groups)
    refuse_missing_columns(dataset.name, dataset.captions, parts, counted)
    manifest = _manifest(lake, dataset, curation, parts, streams, counted).with_digest()
    manifest.check_balance()
    if manifest.accounting.kept == 0:
        raise NothingLeft(
            f"all of {manifest.accounting.samples} samples are left out",
            run.curation,
            f"Loosen `drops` of dataset {run.dataset.name}, or add sources",
        )
    wanted, old = run.version, read_manifest(run.succeeds) if run.succeeds else None
    if curation.base and not wanted:
        wanted = "-".join((curation.base, "without", *curation.without))
    claim = claim_version(
        lake,
        run.dataset.name,
        manifest.digest,
        wanted,
        curation.base,
        numbered=not run.version,
        succeeds=old.version if old else None,
    )
    uri = lake.manifest(run.dataset.name, claim.version)
    warnings = list(manifest.warnings)
    if wanted and not claim.version.startswith(wanted):
        warnings.append(f"{claim.version} has this content already; {wanted} was not made")
    succeeds = Succeeds(version=old.version, digest=old.digest) if old else None
    manifest = manifest.model_copy(update={"version": claim.version, "parent": claim.parent, "succeeds": succeeds})
    parent, most = (_parent(lake, manifest), MOST) if old is None else (old, 0)  # what is gone is named nowhere
    if not objects.exists(uri):
        log.info("assemble: writing %s %s", run.dataset.name, claim.version)
        _refuse_what_goes(lake, curation, parts, streams)
        _write(lake, manifest, streams)
        changes = _changes(lake, parent, manifest, most)
        files = {
            lake.streams_yaml(manifest.dataset, manifest.version): streams_yaml(manifest, uri),
            lake.release_report(manifest.dataset, manifest.version): render(lake, manifest, parent, changes, counted),
        }
        _commit(uri, with_elsewhere(lake, with_files(manifest, files), curation))
        if is_gone(lake, run.dataset.name, claim.version):  # the run took longer than a grace
            raise ConflictError("the version was given up while it was written", uri, "Curate and assemble again")
    else:
        changes = _changes(lake, parent, manifest, most)
        log.info("assemble: %s %s has this content already", run.dataset.name, claim.version)
    return AssembleReport(
        stage="assemble",
        rows_in=manifest.accounting.samples,
        rows_out=manifest.accounting.kept,
        dropped={str(reason): count for reason, count in manifest.accounting.skipped.items()},
        warnings=tuple(warnings),
        seconds=time.monotonic() - started,
        manifest=uri,
        version=claim.version,
        digest=manifest.digest,
        streams=len(streams),
        page=lake.release_report(run.dataset.name, claim.version),
        parent=claim.parent,
        gained=changes.gained if changes else {},
        lost=changes.lost if changes else {},
    )


def _changes(lake: Lake, parent: Manifest | None, manifest: Manifest, most: int) -> Diff | None:
    if parent is None:
        return None
    if manifest.succeeds is None:
        return diff_manifests(lake, parent, manifest, most)
    with suppress(MissingObject):  # its parts may be gone by now
        return diff_manifests(lake, parent, manifest, most)
    return None


def _parent(lake: Lake, manifest: Manifest) -> Manifest | None:
    """The version before, to compare with; None: there is none, or it was given up and collected since."""
    with suppress(MissingObject):
        return read_manifest(lake.manifest(manifest.dataset, manifest.parent)) if manifest.parent else None
    return None


def claim_version(
    lake: Lake,
    dataset: str,
    digest: str,
    wanted: str | None,
    base: str | None = None,
    *,
    numbered: bool = False,
    succeeds: str | None = None,
) -> Claim:
    """The version of this content: one that is committed or claimed, or else a new claim.

    Args:
        wanted: its name; empty: the next number.
        base: its parent; empty: the version that it succeeds, or else the one that is served.
        numbered: if the name is taken, by a version that was given up for instance, take `<wanted>-2` or so.
        succeeds: a successor has a version of its own, even where another has the same content: it alone says whose checkpoints
            it resumes.
    Raises:
        InputError: the wanted version holds or is promised to other content, or cannot be a version's name.
    """
    if wanted in BESIDE_VERSIONS:
        raise InputError(f"a version cannot be called {wanted}", f"dataset {dataset}", "Choose another name")
    while True:
        claims = _claims(lake, dataset)
        same = [claim for claim in claims if claim.digest == digest and succeeds in (None, claim.succeeds)]
        same = [claim for claim in same if not is_gone(lake, dataset, claim.version)]
        committed = [claim for claim in same if objects.exists(lake.manifest(dataset, claim.version))]
        if committed or same:
            return (committed or same)[0]
        taken = {claim.version for claim in claims}
        if wanted in taken and numbered:
            free = next(number for number in count(2) if f"{wanted}-{number}" not in taken)
            wanted = f"{wanted}-{free}"
        if wanted in taken:
            raise InputError(
                f"version {wanted} of {dataset} has other content",
                lake.release(dataset, str(wanted)),
                "Versions never change: choose another name, or leave it empty for the next number",
            )
        version = wanted or f"v{1 + max((_number(name) for name in taken), default=0)}"
        latest = read_latest(lake, dataset)
        claim = Claim(version, digest, base or succeeds or (latest.version if latest else None), succeeds)
        if objects.create_bytes(lake.claim(dataset, version), encode_claim(digest, claim.parent, succeeds)):
            return claim  # otherwise somebody was faster: look again


def _refuse_what_goes(lake: Lake, curation: Curation, parts: Sequence[Part], streams: Sequence[Stream]) -> None:
    """After the claim, which keeps it from then on: all that the manifest will name is there, and nobody deletes it.

    Raises:
        ConflictError: it is being collected as garbage.
        MissingObject: it was.
    """
    skips = [lake.skip_file(curation.dataset, each.entry.skip_file) for each in streams if each.entry.skip_file]
    record = lake.curation(curation.dataset, curation.digest())
    refuse_doomed(lake, [record, *skips, *(lake.part(part.source, part.name) for part in parts)])
    for part in parts:
        read_part(lake, part.source, part.name)
    if not objects.exists(record):
        raise MissingObject("the curation was collected as garbage", record, "Curate again")


def claimed_versions(lake: Lake, dataset: str) -> list[str]:
    """Every name that is or may become a version, the oldest number first."""
    names = [name for name in objects.list_names(lake.versions(dataset)) if name not in BESIDE_VERSIONS]
    return sorted(names, key=lambda name: (_number(name), name))


def _claims(lake: Lake, dataset: str) -> list[Claim]:
    claims = []
    for version in claimed_versions(lake, dataset):
        found = objects.read_versioned(lake.claim(dataset, version))
        if found is not None:
            try:
                said = json.loads(found[0])
                claims.append(Claim(version, said["digest"], said["parent"], said.get("succeeds")))
            except (ValueError, KeyError, TypeError) as error:
                where = lake.claim(dataset, version)
                raise CorruptError("this is not the claim of a version", where, "Restore it") from error
    return claims


def _number(version: str) -> int:
    """3 of v3; 0 of a name that people gave."""
    match = re.fullmatch(r"v([1-9]\d{0,8})", version)
    return int(match[1]) if match else 0


def _manifest(
    lake: Lake, dataset: Dataset, curation: Curation, parts: Sequence[Part], streams: Sequence[Stream], counted: Tally
) -> Manifest:
    """Everything but the version, its parent and the digest."""
    skipped = {reason: sum(each[reason] for each in counted.skipped.values()) for reason in curation.reasons}
    groups = {source.name: source.group for source in dataset.sources if any(p.source == source.name for p in parts)}
    present = {stream.entry.group for stream in streams}
    return Manifest(
        dataset=dataset.name,
        version="v0",
        without=curation.without,
        digest="0" * 64,
        publish=dataset.publish,
        parts=PARTS_FROM_RELEASE,
        streams=tuple(stream.entry for stream in streams),
        mixing={group: weight for group, weight in dataset.groups.items() if group in present},
        captions=dataset.captions,
        sources=source_entries(parts, counted, groups),
        engines=engines_of(parts),
        reasons=curation.reasons,
        reason_sets=((), *curation.reason_sets),
        settings=dataset.model_dump(mode="json"),
        accounting=Accounting(
            samples=sum(counted.samples.values()),
            kept=sum(counted.kept.values()),
            skipped=nonzero(skipped),
            upstream=upstream_of(lake, parts),
        ),
        licences=dict(sorted(counted.licences.items())),
        optouts=curation.optouts,
        warnings=(*curation.warnings, *empty_columns(dataset.captions, counted)),
        provenance=Provenance(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            smalti=smalti.__version__,
            git=_git(),
            table_versions={
                f"{part.source}/{part.name}": int(part.provenance["table_version"])
                for part in parts
                if "table_version" in part.provenance
            },
            curation=f"../curations/{curation.digest()}.json.gz",
        ),
    )


def _write(lake: Lake, manifest: Manifest, streams: Sequence[Stream]) -> None:
    """All that the manifest names. Whatever an earlier attempt has written stays."""
    uri = lake.manifest(manifest.dataset, manifest.version)
    for stream in streams:
        create_named(beside(uri, stream.entry.index), stream.index, stream.entry.index_sha256)
        if stream.entry.skip_file:
            create_named(
                lake.skip_file(manifest.dataset, stream.entry.skip_file), stream.skips.encode(), stream.entry.skip_file
            )


def with_files(manifest: Manifest, files: Mapping[str, str]) -> Manifest:
    """Create what lies beside the manifest (URI -> text), and let the manifest name it by its sha256.

    An earlier attempt, perhaps of another version of this package, may have written another text, which then stays.
    """
    found = {}
    for uri, text in files.items():
        data = text.encode() if objects.create_bytes(uri, text.encode()) else objects.read_bytes(uri)
        found[uri.rpartition("/")[2]] = sha256(data)
    provenance = manifest.provenance.model_copy(update={"files": found})
    return manifest.model_copy(update={"provenance": provenance})


def with_elsewhere(lake: Lake, manifest: Manifest, curation: Curation) -> Manifest:
    """Let the manifest name, by the sha256 of their bytes, what it uses outside its folder and nothing else names so."""
    digest = curation.digest()
    uris = [lake.part_commit(part.source, part.name) for part in curation.parts]
    uris += [lake.curation(curation.dataset, digest), lake.curation_rows(curation.dataset, digest)]
    if curation.clusters:
        uris.append(lake.quarantine_page(curation.dataset, digest))
    found = {uri[len(lake.root) + 1 :]: sha256(objects.read_bytes(uri)) for uri in uris}
    return manifest.model_copy(update={"provenance": manifest.provenance.model_copy(update={"elsewhere": found})})


def _commit(uri: str, manifest: Manifest) -> None:
    """Create manifest.json, or find that another attempt has committed the same content."""
    if not objects.create_bytes(uri, manifest.encode()) and read_manifest(uri).digest != manifest.digest:
        raise ConflictError("the version has other content", uri, "Remove nothing; assemble under another version")


def _git() -> str | None:
    """The commit of this checkout, if it is one and git is there."""
    root = Path(smalti.__file__).resolve().parents[2]
    if (root / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10, check=True
            )
            return done.stdout.strip()
    return None
