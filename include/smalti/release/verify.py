"""The verify stage: trust nothing, read everything.

Manifest, indices, skip files, samples.parquet and shards are compared with each other and with their digests; every picture's
shape and quality is looked at; then the release is read back once through the loader that training uses. What was found of
exactly these bytes of the manifest is kept beside it (verified.json): publish asks for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from smalti import objects
from smalti.accounting import Report
from smalti.compute import map_tasks
from smalti.errors import ConflictError, CorruptError, InputError, MissingObject, SmaltiError
from smalti.lake import Lake
from smalti.reasons import reason_set
from smalti.release.check_record import claim_faults, curation_faults, elsewhere_faults
from smalti.release.check_sets import SetCheck
from smalti.release.check_tree import tree_faults
from smalti.release.checks import Expected, ShardCheck, check_shard
from smalti.release.collect import shard_starts
from smalti.release.manifest import (
    Manifest,
    StreamEntry,
    beside,
    parse_manifest,
    parts_uri,
    read_manifest,
    read_skip_file,
    read_stream_index,
)
from smalti.release.optouts import NOTES, is_in_lake, lake_of, read_snapshot
from smalti.release.skips import Model, SkipFile, canonical_json, nonzero, parse
from smalti.release.tombstones import refuse_succeeded
from smalti.settings import ReleaseRun
from smalti.shards.part import Part, read_part, read_samples_bytes
from smalti.shards.samples import decode_samples, extra_columns

log = logging.getLogger("smalti")

_NOTE_EVERY = 10.0
"""Seconds between two lines of progress."""


class VerifyReport(Report):
    """Attributes:
    manifest, dataset, version, digest: what was verified.
    samples, kept, shards, bytes: what was looked at.
    faults: everything that is wrong, one line each.
    """

    manifest: str
    dataset: str
    version: str
    digest: str
    samples: int
    kept: int
    shards: int
    bytes: int
    faults: tuple[str, ...] = ()


class Verified(Model):
    """verified.json."""

    digest: str
    manifest_sha256: str
    samples: int
    kept: int


def verify(lake: Lake | None, run: ReleaseRun) -> VerifyReport:
    """Verify the manifest that the settings name, and note it beside the manifest.

    Raises:
        InputError: no manifest is named, or there is none.
        CorruptError: something is wrong; every fault is logged, the error names the first and the count.
    """
    if not run.manifest:
        raise InputError("no manifest is named", f"dataset {run.dataset.name}", "Pass the URI that assemble reports")
    report = verify_manifest(run.manifest)
    raise_faults(report)
    note_verified(report)
    return report


def raise_faults(report: VerifyReport) -> None:
    """Raises CorruptError if there are faults, naming the first and their number."""
    for fault in report.faults:
        log.error("verify: %s", fault)
    if report.faults:
        more = f" (and {len(report.faults) - 1} more faults)" if len(report.faults) > 1 else ""
        raise CorruptError(
            f"{report.faults[0]}{more}",
            report.manifest,
            "Do not publish or train on it; the log lists every fault: restore what is damaged, or assemble anew",
        )


def note_verified(report: VerifyReport) -> None:
    """Create verified.json beside the manifest of a report without faults."""
    uri = beside(report.manifest, "verified.json")
    try:
        objects.create_same(uri, _note(report.digest, objects.read_bytes(report.manifest), report.samples, report.kept))
    except ConflictError as error:
        raise CorruptError(
            "the manifest is not the one that was verified before", report.manifest, "Restore it, or assemble anew"
        ) from error


def _note(digest: str, manifest: bytes, samples: int, kept: int) -> bytes:
    """The bytes of verified.json."""
    sha256 = hashlib.sha256(manifest).hexdigest()
    found = Verified(digest=digest, manifest_sha256=sha256, samples=samples, kept=kept)
    return canonical_json(found.model_dump(mode="json")) + b"\n"


def read_verified(manifest_uri: str) -> Verified | None:
    """What verify noted of this manifest; None: it has not been verified without fault."""
    uri = beside(manifest_uri, "verified.json")
    found = objects.read_versioned(uri)
    return None if found is None else parse(Verified, found[0], uri)


def verify_manifest(uri: str) -> VerifyReport:
    """Look at every byte of a release. Faults are in the report; nothing is written.

    Raises:
        InputError: there is no manifest, it lies in a pulled copy, or another version took its place: what it used may be gone.
    """
    started = time.monotonic()
    uri = objects.normalise_uri(uri)
    refuse_succeeded(uri)
    try:
        data = objects.read_bytes(uri)
    except MissingObject as error:
        raise InputError("there is no manifest", uri, "Check its name; `smalti lake ls` shows the releases") from error
    _refuse_copy(uri)
    try:
        manifest = parse_manifest(data, uri)
    except CorruptError as error:
        broken = {"dataset": "", "version": "", "digest": "", "samples": 0, "kept": 0, "shards": 0, "bytes": 0}
        return VerifyReport(stage="verify", manifest=uri, faults=(f"manifest.json: {error.what} ({uri})",), **broken)
    work = _Work(uri, manifest)
    noted, counts = objects.read_versioned(beside(uri, "verified.json")), manifest.accounting
    if noted is not None and noted[0] != _note(manifest.digest, data, counts.samples, counts.kept):
        work.faults.append(
            f"verified.json: the manifest is not the one that was verified before, or this file is damaged "
            f"({beside(uri, 'verified.json')}): restore the manifest; if it is whole, remove this file and verify again"
        )
    work.look()
    return VerifyReport(
        stage="verify",
        seconds=time.monotonic() - started,
        manifest=uri,
        dataset=manifest.dataset,
        version=manifest.version,
        digest=manifest.digest,
        samples=manifest.accounting.samples,
        kept=manifest.accounting.kept,
        shards=work.shards,
        bytes=work.bytes,
        faults=tuple(work.faults),
    )


def _refuse_copy(uri: str) -> None:
    """A copy has what is needed to train, and that pull has checked. In a lake a claim that is gone is a fault among others."""
    root = lake_of(uri).root
    noted = objects.exists(objects.join_uri(root, NOTES, "verified.jsonl"))
    if noted or not (is_in_lake(uri) or _has_parts(uri)):
        raise InputError(
            "this is a pulled copy", uri, "Pull again with --recheck to hash it; verify the release in its lake"
        )


def _has_parts(uri: str) -> bool:
    """Whether parts lie where a lake has them, with their part.json; a damaged manifest names none."""
    lake = lake_of(uri)
    with contextlib.suppress(CorruptError):
        parts = [(source.name, part.name) for source in read_manifest(uri).sources for part in source.parts]
        return any(objects.exists(lake.part_commit(*part)) for part in parts)
    return True


@dataclass
class _Work:
    """One look at one release. `kept` collects, by mix group, the ids that must be served."""

    uri: str
    manifest: Manifest
    faults: list[str] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, tuple[Expected, ...]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    shards: int = 0
    bytes: int = 0

    def look(self) -> None:
        self.faults += self.manifest.imbalances() + chain_faults(self.manifest)
        for name, digest in sorted(self.manifest.provenance.files.items()):
            with self._fault_of(name):
                self._file(name, digest)
        with self._fault_of("what the manifest names"):
            self.faults += claim_faults(self.uri, self.manifest)
            self.faults += elsewhere_faults(self.uri, self.manifest)
        for source in self.manifest.sources:
            for entry in source.parts:
                with self._fault_of(f"part {source.name}/{entry.name}"):
                    self._part(source.name, entry.name, entry.digest, entry.samples)
        for stream in self.manifest.streams:
            with self._fault_of(f"stream {stream.name}"):
                self._stream(stream)
        with self._fault_of("curation"):
            self.faults += curation_faults(self.uri, self.manifest, self.parts)
        ids = Counter(self._all_kept())
        with self._fault_of("reason sets"):
            self.faults += self._sets.faults(ids)
        self.faults += [f"{name}: kept {count} times" for name, count in sorted(ids.items()) if count > 1]
        for name in sorted(self.rows):  # streams have taken out what they name
            self.faults.append(f"{name}: no stream names it")
        if not self.faults:
            with self._fault_of("reading back"):
                self._read_back()
        with self._fault_of("tree"):
            self.faults += tree_faults(self.uri, self.manifest, ids)

    def _all_kept(self) -> Iterator[str]:
        for ids in self.kept.values():
            yield from ids

    @contextlib.contextmanager
    def _fault_of(self, what: str) -> Iterator[None]:
        """An object that is missing or damaged is a fault like any other."""
        try:
            yield
        except (CorruptError, MissingObject) as error:
            self.faults.append(f"{what}: {error.what} ({error.where})")

    def _file(self, name: str, digest: str) -> None:
        found = hashlib.sha256(objects.read_bytes(beside(self.uri, name))).hexdigest()
        if found != digest:
            self.faults.append(f"{name}: it has the sha256 {found}, the manifest says {digest}")

    def _part(self, source: str, name: str, digest: str, samples: int) -> None:
        lake = lake_of(self.uri)
        part = read_part(lake, source, name)
        if (part.digest, part.samples) != (digest, samples):
            self.faults.append(f"part {source}/{name}: part.json has another digest or number of samples")
        for bucket in part.buckets:
            index = lake.bucket_index(source, name, bucket.tier, bucket.ar)
            if hashlib.sha256(objects.read_bytes(index)).hexdigest() != bucket.index_sha256:
                self.faults.append(f"{index}: the file is not the one that part.json records")
        extra = extra_columns(part.columns)
        table = decode_samples(read_samples_bytes(lake, part), lake.samples(source, name), extra)
        if table.num_rows != samples:
            self.faults.append(f"part {source}/{name}: samples.parquet has {table.num_rows} rows, not {samples}")
        columns = [table[column].to_pylist() for column in Expected._fields if column != "extra_ok"]
        flags = zip(*(table[f"{column}_ok"].to_pylist() for column in extra), strict=True)
        columns.append(list(flags) if extra else [()] * table.num_rows)
        for shard, start, count in shard_starts(table):
            self.rows[shard] = tuple(map(Expected, *(column[start : start + count] for column in columns)))
        self.parts[f"{source}/{name}"] = part

    def _stream(self, stream: StreamEntry) -> None:
        entries = read_stream_index(self.uri, stream)
        skips = read_skip_file(self.uri, stream)
        self.faults += count_faults(stream, entries, skips)
        root = parts_uri(self.uri, self.manifest)
        checks = []
        for entry in entries:
            name = entry["raw_data"]["basename"]
            rows = self.rows.pop(name, None)
            source, part_name = name.split("/")[:2]
            part = self.parts.get(f"{source}/{part_name}")
            if part is None:
                self.faults.append(f"{name}: its part is not in the manifest")
                continue
            quality = part.encoding.quality if part.encoding.format == "jpeg" else None
            uri, extra = objects.join_uri(root, name), extra_columns(part.columns)
            checks.append(ShardCheck(uri, name, entry, source, stream.width, stream.height, quality, rows, extra))
            out = skips.shards[name].left_out() if name in skips.shards else set()
            self.faults += self._sets.shard_faults(name, stream.tier, rows or (), skips.shards.get(name))
            self.kept.setdefault(stream.group, []).extend(
                row.id for index, row in enumerate(rows or ()) if index not in out
            )
        noted = time.monotonic()
        for check, faults in zip(checks, map_tasks(check_shard, checks), strict=True):
            self.faults += faults
            self.shards += 1
            self.bytes += int(check.entry["raw_data"]["bytes"])
            if time.monotonic() - noted >= _NOTE_EVERY:
                log.info("verify: %d shards, %d faults", self.shards, len(self.faults))
                noted = time.monotonic()

    @cached_property
    def _sets(self) -> SetCheck:
        return SetCheck(self.manifest, read_snapshot(lake_of(self.uri), self.manifest.optouts))

    def _read_back(self) -> None:
        """Every kept id comes out of the loader once, no other does."""
        log.info("verify: reading back through ReleaseDataset")
        for group in sorted(group for group, ids in self.kept.items() if ids):
            wanted, served = Counter(self.kept[group]), Counter(read_ids(self.uri, group, self.manifest.optouts))
            self.faults += [f"{name}: kept, and not served" for name in sorted(wanted - served)]
            self.faults += [f"{name}: served, and not kept or not once" for name in sorted(served - wanted)]


def chain_faults(manifest: Manifest) -> list[str]:
    """Rows that got lost between two stages: what ingest put into the table, shard must have found there."""
    counts = {count.what: count for count in manifest.accounting.upstream}
    faults = []
    for what, count in counts.items():
        batch, is_shard, _ = what.rpartition(", shard ")
        ingest = counts.get(f"{batch}, ingest")
        if is_shard and ingest is not None and ingest.rows_out != count.rows_in:
            faults.append(f"{what}: {count.rows_in} rows in, but ingest put {ingest.rows_out} into the table")
    return faults


def count_faults(stream: StreamEntry, entries: Sequence[dict[str, Any]], skips: SkipFile) -> list[str]:
    """What the manifest counts of a stream against its index and skip file."""
    sizes = {entry["raw_data"]["basename"]: entry["samples"] for entry in entries}
    faults = [
        f"stream {stream.name}: the skip file names {name} with {skip.samples} samples, the index {sizes.get(name)}"
        for name, skip in skips.shards.items()
        if sizes.get(name) != skip.samples
    ]
    skipped = skips.counts()
    samples = sum(sizes.values())
    without = {
        name: samples - sum(len(shard.left_out(reason_set(name))) for shard in skips.shards.values())
        for name in stream.kept_without
    }
    told = (stream.samples, stream.kept, nonzero(stream.skipped), stream.kept_without, stream.bytes)
    found = (samples, samples - sum(skipped.values()), skipped, without, sum(e["raw_data"]["bytes"] for e in entries))
    for what, a, b in zip(("samples", "kept", "skipped", "kept_without", "bytes"), told, found, strict=True):
        if a != b:
            faults.append(f"stream {stream.name}: {what} is {a} in the manifest, {b} by index and skip file")
    return faults


def read_ids(manifest_uri: str, group: str, optouts: int = 0) -> Iterator[str]:
    """Ids that the training loader serves of one mix group, each picture decoded. Imports streaming (seconds).

    Args:
        optouts: position of the release itself: what was opted out since is no fault of it.
    """
    from smalti.loader import ReleaseDataset

    with contextlib.ExitStack() as stack:
        local = None
        if objects.local_path(manifest_uri) is None:
            local = stack.enter_context(tempfile.TemporaryDirectory(prefix="smalti-verify-"))
        try:
            dataset = ReleaseDataset(
                manifest_uri,
                local=local,
                groups=(group,),
                optouts=optouts,
                max_optout_age=None,
                batch_size=1,
                num_canonical_nodes=1,
                cache_limit="8gb" if local else None,
            )
            for sample in dataset:
                yield str(sample["id"])
        except SmaltiError:
            raise
        except (RuntimeError, OSError, ValueError) as error:  # what streaming raises
            raise CorruptError(
                f"the loader cannot read it ({error})", manifest_uri, "Restore what is damaged"
            ) from error
