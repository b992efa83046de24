"""What a release consists of: manifest.json, stream indices and skip files, as models.

The manifest names everything by digest, so that whoever holds it can check every byte of the release. Imports stay light
(pydantic and this package's core): training runs read these files too.

    releases/<dataset>/<version>/manifest.json                  Manifest
    releases/<dataset>/<version>/streams/<group>/<tier>/<ar>/index.json.gz   shards of a stream, see `encode_stream_index`
    releases/<dataset>/skips/<sha256>.json.gz                   SkipFile
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from smalti.errors import CorruptError, InputError
from smalti.lake import stream_index
from smalti.objects import read_bytes
from smalti.reasons import SkipReason, set_name
from smalti.release.skips import Model, SkipFile, canonical_json, damaged, decompress, nonzero, parse, sha256

_SHA256 = r"^[0-9a-f]{64}$"
_BLANK = "0" * 64
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+:@=-]*"
_BASENAME = re.compile(rf"{_NAME}(/{_NAME}){{4}}")


class StreamEntry(Model):
    """One (mix group, tier, ar) of a release."""

    group: str = Field(pattern=rf"^{_NAME}$")
    tier: int = Field(gt=0)
    ar: str = Field(pattern=r"^\d\.\d{3}$")
    width: int = Field(gt=0, description="pixels of every image of the stream")
    height: int = Field(gt=0)
    samples: int = Field(ge=0, description="in its shards, skipped ones too")
    kept: int = Field(ge=0)
    skipped: dict[SkipReason, int] = Field({}, description="reason -> samples, each counted under its first reason")
    kept_without: dict[str, int] = Field({}, description="reason set, as `nsfw+text` -> samples kept if it is lifted")
    bytes: int = Field(ge=0, description="of its shards")
    index: str = Field(description="path of the merged index, relative to the manifest")
    index_sha256: str = Field(pattern=_SHA256, description="of the index, uncompressed")
    skip_file: str | None = Field(None, pattern=_SHA256, description="empty: nothing is skipped")

    @property
    def name(self) -> str:
        return f"{self.group}/{self.tier}/{self.ar}"

    def kept_if(self, lifted: Collection[SkipReason]) -> int:
        """Samples that are served if these reasons are lifted, a set that the release declares."""
        return self.kept_without[set_name(lifted)] if lifted else self.kept

    @model_validator(mode="after")
    def _index_is_where_the_lake_has_it(self) -> StreamEntry:
        if self.index != stream_index(self.group, self.tier, self.ar):
            raise ValueError(f"`index` of stream {self.name} must be {stream_index(self.group, self.tier, self.ar)}")
        return self


class PartEntry(Model):
    name: str = Field(pattern=rf"^{_NAME}$")
    digest: str = Field(pattern=_SHA256, description="of the part's plan: settings and samples")
    samples: int = Field(ge=0)


class SourceEntry(Model):
    """What one source gave: its parts, and what became of their samples."""

    name: str
    group: str
    parts: tuple[PartEntry, ...]
    samples: int = Field(ge=0)
    kept: int = Field(ge=0)
    skipped: dict[SkipReason, int] = Field({})
    captioners: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = ()
    curators: tuple[str, ...] = Field((), description="what whoever made the collection already did to it")


class Count(Model):
    """A stage before the release, as its own report stated it."""

    what: str = Field(description="for instance `demo, batch 2026-01-01, ingest`")
    rows_in: int = Field(ge=0)
    rows_out: int = Field(ge=0)
    dropped: dict[str, int] = Field({})


class Accounting(Model):
    """Samples of all parts = kept + skipped, counted over samples and not over streams."""

    samples: int = Field(ge=0)
    kept: int = Field(ge=0)
    skipped: dict[SkipReason, int] = Field({})
    upstream: tuple[Count, ...] = ()


class Provenance(Model):
    """How this version came about; outside the content digest."""

    created: str = Field(description="UTC, ISO 8601")
    smalti: str = Field(description="version of this package")
    git: str | None = None
    table_versions: dict[str, int] = Field({})
    curation: str | None = Field(None, description="what curate decided, relative to the manifest")
    files: dict[str, str] = Field({}, description="beside the manifest, for people and trainers: name -> sha256")
    elsewhere: dict[str, str] = Field(
        {}, description="part.json of its parts and what curate wrote, from the lake's root -> sha256 of the bytes"
    )
    more: dict[str, JsonValue] = Field({})


class Succeeds(Model):
    """A version that another one took the place of."""

    version: str = Field(pattern=rf"^{_NAME}$")
    digest: str = Field(pattern=_SHA256)


class Manifest(Model):
    """manifest.json: one version of a dataset."""

    schema_version: Literal[1] = 1
    dataset: str = Field(pattern=rf"^{_NAME}$")
    version: str = Field(pattern=rf"^{_NAME}$")
    parent: str | None = Field(
        None, description="the version that was LATEST when this one was assembled, or that an ablation differs from"
    )
    without: tuple[SkipReason, ...] = Field(
        (), description="of an ablation of the parent: reasons that were not applied; it is never LATEST"
    )
    succeeds: Succeeds | None = Field(
        None, description="the version that this one took the place of because samples of it were opted out"
    )
    digest: str = Field(pattern=_SHA256, description="content digest, see content_digest()")
    checksum: str | None = Field(
        None, pattern=_SHA256, description="sha256 of this file with zeros here; only in files, see Manifest.encode"
    )
    publish: Literal["streams", "tree"] = "streams"
    parts: Literal["../../../parts"] = "../../../parts"  # relative to the manifest, like smalti.lake.PARTS_FROM_RELEASE
    streams: tuple[StreamEntry, ...]
    mixing: dict[str, float] = Field(description="mix group -> proportion")
    captions: dict[str, float] = Field(description="caption column -> weight")
    sources: tuple[SourceEntry, ...]
    engines: tuple[dict[str, JsonValue], ...] = Field((), description="the profiles that made captions and labels")
    reasons: tuple[SkipReason, ...] = Field((), description="reasons that this release can skip for")
    reason_sets: tuple[tuple[SkipReason, ...], ...] = Field(
        ((),), description="sets that ReleaseDataset(without=...) may lift"
    )
    settings: dict[str, JsonValue] = Field(description="the dataset file")
    accounting: Accounting
    licences: dict[str, int] = Field({}, description="licence -> kept samples; `` where none is stated")
    optouts: int = Field(0, ge=0, description="position in the ledger of opt-outs up to which they are skipped")
    warnings: tuple[str, ...] = ()
    provenance: Provenance

    @model_validator(mode="after")
    def _names_fit(self) -> Manifest:
        names = [stream.name for stream in self.streams]
        if len(set(names)) != len(names):
            raise ValueError("a stream is listed twice")
        missing = {stream.group for stream in self.streams} - set(self.mixing)
        if missing:
            raise ValueError(f"`mixing` lacks {', '.join(sorted(missing))}")
        undeclared = {reason for stream in self.streams for reason in stream.skipped} - set(self.reasons)
        if undeclared:
            raise ValueError(f"`reasons` lacks {', '.join(sorted(undeclared))}")
        sets = {set_name(each) for each in self.reason_sets if each}
        for stream in self.streams:
            if set(stream.kept_without) != sets:
                raise ValueError(f"`kept_without` of stream {stream.name} does not count each of `reason_sets`")
        return self

    def content_digest(self) -> str:
        """sha256 over what a training run would see: samples, captions, skips and the settings that chose them.

        Version, parent, what it succeeds, provenance, engines, URIs, counts that follow from the rest and settings that change nothing
        in the samples (description, schedule, expected shares) are left out.
        """
        chosen = ("sources", "groups", "drops", "captions")
        ablation = {"without": sorted(self.without)} if self.without else {}
        return sha256(
            canonical_json({
                **ablation,
                "schema_version": self.schema_version,
                "dataset": self.dataset,
                "publish": self.publish,
                "streams": [
                    stream.model_dump(
                        mode="json", exclude={"index"} | (set() if stream.kept_without else {"kept_without"})
                    )
                    for stream in sorted(self.streams, key=lambda each: each.name)
                ],
                "mixing": self.mixing,
                "captions": self.captions,
                "parts": sorted([source.name, p.name, p.digest] for source in self.sources for p in source.parts),
                "reasons": sorted(self.reasons),
                "reason_sets": sorted(sorted(each) for each in self.reason_sets),
                "settings": {key: self.settings.get(key) for key in chosen},
            })
        )

    def with_digest(self) -> Manifest:
        """This manifest with its content digest filled in."""
        return self.model_copy(update={"digest": self.content_digest()})

    def imbalances(self) -> list[str]:
        """Everything that does not add up, one line each; empty for a manifest that may be published."""
        wrong = [
            f"{what}: {samples} samples, but {kept} kept + {sum(skipped.values())} skipped"
            for what, samples, kept, skipped in (
                ("release", self.accounting.samples, self.accounting.kept, self.accounting.skipped),
                *((f"stream {s.name}", s.samples, s.kept, s.skipped) for s in self.streams),
                *((f"source {s.name}", s.samples, s.kept, s.skipped) for s in self.sources),
            )
            if samples != kept + sum(skipped.values())
        ]
        total = (self.accounting.samples, self.accounting.kept, nonzero(self.accounting.skipped))
        for what, entries in (("streams", self.streams), ("sources", self.sources)):
            skipped: Counter[SkipReason] = Counter()
            for entry in entries:
                skipped.update(entry.skipped)
            summed = (sum(e.samples for e in entries), sum(e.kept for e in entries), nonzero(skipped))
            if summed != total:
                wrong.append(f"{what} add up to {_counts(*summed)}, the release to {_counts(*total)}")
        wrong += [
            f"source {s.name}: {s.samples} samples, but {sum(p.samples for p in s.parts)} in its parts"
            for s in self.sources
            if s.samples != sum(p.samples for p in s.parts)
        ]
        wrong += [
            f"{c.what}: {c.rows_in} rows in, but {c.rows_out} out + {sum(c.dropped.values())} dropped"
            for c in self.accounting.upstream
            if c.rows_in != c.rows_out + sum(c.dropped.values())
        ]
        if self.licences and sum(self.licences.values()) != self.accounting.kept:
            wrong.append(f"licences: {sum(self.licences.values())} samples, but {self.accounting.kept} are kept")
        return wrong

    def check_balance(self) -> None:
        """Raises CorruptError unless every count adds up."""
        wrong = self.imbalances()
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise CorruptError(
                f"the accounting does not balance: {wrong[0]}{more}",
                f"{self.dataset} {self.version}",
                "Do not publish it; find the stage that lost rows, and assemble anew",
            )

    def select(
        self,
        tiers: Iterable[int] | None = None,
        groups: Iterable[str] | None = None,
        lifted: Collection[SkipReason] = (),
    ) -> list[StreamEntry]:
        """Streams of these tiers and groups that keep any sample if `lifted` is, in the order of the manifest.

        Raises:
            InputError: a tier or group that the release does not have, or nothing is left.
        """
        where = f"{self.dataset} {self.version}"
        tiers = None if tiers is None else set(tiers)
        groups = None if groups is None else set(groups)
        _known("tier", map(str, sorted(tiers or ())), {str(stream.tier) for stream in self.streams}, where)
        _known("group", sorted(groups or ()), {stream.group for stream in self.streams}, where)
        chosen = [
            stream
            for stream in self.streams
            if stream.kept_if(lifted)
            and (tiers is None or stream.tier in tiers)
            and (groups is None or stream.group in groups)
        ]
        if not chosen:
            raise InputError("no sample is left", where, "Choose other tiers, groups or another version")
        return chosen

    def encode(self) -> bytes:
        """manifest.json, for people too.

        The content digest leaves out what is no content (provenance, warnings, versions). The checksum covers every byte, so
        that no reader takes a damaged file for a whole one. Files from before it was there have none.
        """
        said = self.model_dump(mode="json") | {"checksum": _BLANK}
        data = (json.dumps(said, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
        return data.replace(_checksum_line(_BLANK), _checksum_line(sha256(data)))


def encode_stream_index(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """A stream's merged index: shards in the order of source, part and name. It is stored through `skips.compress`.

    Args:
        entries: of index.json of the parts, with basenames relative to parts/ (see `rebase`).
    """
    ordered = sorted(entries, key=lambda entry: entry["raw_data"]["basename"].split("/"))
    return canonical_json({"version": 2, "shards": ordered})


def decode_stream_index(data: bytes, where: str, digest: str | None = None) -> list[dict[str, Any]]:
    """The shards of a stored (gzip) merged index.

    Raises:
        CorruptError: it is damaged, not what the digest promises, or names files outside parts/.
    """
    content = decompress(data, where, digest)
    try:
        index = json.loads(content)
        shards = list(index["shards"])
        names = [shard["raw_data"]["basename"] for shard in shards]
        if index["version"] != 2 or not all(_BASENAME.fullmatch(name) for name in names):
            raise ValueError("version or basenames")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(where, f"this is not a stream's index ({error})") from error
    return shards


def rebase(entry: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """An index entry whose basename is relative to a folder further up: `shard.00000.mds` -> `<folder>/shard.00000.mds`."""
    raw = entry["raw_data"]
    return {**entry, "raw_data": {**raw, "basename": f"{folder}/{raw['basename']}"}}


def read_manifest(uri: str) -> Manifest:
    """Read and check a manifest.

    Raises:
        MissingObject, CorruptError
    """
    return parse_manifest(read_bytes(uri), uri)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """A manifest from its bytes. Raises CorruptError if they are damaged or the digest is not that of the content."""
    manifest = parse(Manifest, data, where)
    if manifest.digest != manifest.content_digest():
        raise damaged(where, f"the content has the digest {manifest.content_digest()}, not {manifest.digest}")
    if manifest.checksum is not None:
        blank = data.replace(_checksum_line(manifest.checksum), _checksum_line(_BLANK))
        if blank == data or sha256(blank) != manifest.checksum:
            raise damaged(where, f"the file has the checksum {sha256(blank)}, not {manifest.checksum}")
    return manifest.model_copy(update={"checksum": None})


def beside(manifest_uri: str, relative: str) -> str:
    """The URI of something that the manifest names by a path relative to itself."""
    scheme, _, path = manifest_uri.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))}"


def parts_uri(manifest_uri: str, manifest: Manifest) -> str:
    """The folder that the basenames of stream indices are relative to."""
    return beside(manifest_uri, manifest.parts)


def skip_file_uri(manifest_uri: str, digest: str) -> str:
    """Where a skip file is, as every reader of a manifest finds it."""
    return beside(manifest_uri, f"../skips/{digest}.json.gz")


def read_stream_index(manifest_uri: str, stream: StreamEntry) -> list[dict[str, Any]]:
    """The shards of a stream, checked against the manifest."""
    uri = beside(manifest_uri, stream.index)
    return decode_stream_index(read_bytes(uri), uri, stream.index_sha256)


def read_skip_file(manifest_uri: str, stream: StreamEntry) -> SkipFile:
    """What a stream leaves out, checked against the manifest."""
    if stream.skip_file is None:
        return SkipFile(shards={})
    uri = skip_file_uri(manifest_uri, stream.skip_file)
    return SkipFile.decode(read_bytes(uri), uri, stream.skip_file)


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schemas of the files that other programs may read."""
    from smalti.release.optouts import OptoutSnapshot  # it finds a lake by its manifests

    models: dict[str, type[Model]] = {"manifest": Manifest, "skips": SkipFile, "optouts": OptoutSnapshot}
    return {name: model.model_json_schema() for name, model in models.items()}


def _checksum_line(checksum: str) -> bytes:
    return f'"checksum": "{checksum}"'.encode()


def _known(what: str, wanted: Iterable[str], there: set[str], where: str) -> None:
    for each in wanted:
        if each not in there:
            known = ", ".join(sorted(there, key=lambda name: (len(name), name)))
            raise InputError(f"the release has no {what} {each}", where, f"Use {known}")


def _counts(samples: int, kept: int, skipped: Mapping[SkipReason, int]) -> str:
    reasons = "".join(f", {n} {reason}" for reason, n in sorted(skipped.items()))
    return f"{samples} samples ({kept} kept{reasons})"
