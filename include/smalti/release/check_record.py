"""What verify looks at beside what is served: the claim, what verify noted before, the curation, and what the manifest names elsewhere."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping

from smalti import objects
from smalti.curation.record import Curation, check_rows, read_curation
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.release.collect import streams_of
from smalti.release.latest import is_gone
from smalti.release.manifest import Manifest, beside
from smalti.release.optouts import lake_of
from smalti.release.skips import canonical_json, nonzero
from smalti.shards.part import Part

log = logging.getLogger("smalti")


def encode_claim(digest: str, parent: str | None, succeeds: str | None) -> bytes:
    """claim.json."""
    said = {"digest": digest, "parent": parent}
    return canonical_json(said | {"succeeds": succeeds} if succeeds else said)


def claim_faults(uri: str, manifest: Manifest) -> Iterator[str]:
    """The claim stays for ever, so that no other content gets the name of the version."""
    where = beside(uri, "claim.json")
    succeeds = manifest.succeeds.version if manifest.succeeds else None
    expected = encode_claim(manifest.digest, manifest.parent, succeeds)
    found = objects.read_versioned(where)
    if found is None:
        yield f"claim.json: there is no such object ({where}): restore it, as {expected.decode()}"
    elif found[0] != expected:
        yield f"claim.json: it is not the claim of this version ({where}): restore it, as {expected.decode()}"


def elsewhere_faults(uri: str, manifest: Manifest) -> Iterator[str]:
    """Objects of parts and of the curation that the manifest names by the digest of their bytes."""
    lake = lake_of(uri)
    for name, digest in sorted(manifest.provenance.elsewhere.items()):
        where = objects.join_uri(lake.root, name)
        try:
            found = hashlib.sha256(objects.read_bytes(where)).hexdigest()
        except MissingObject:
            if not (where.startswith(lake.curations(manifest.dataset)) and _is_gone(uri, manifest)):
                yield f"{name}: there is no such object ({where}): restore it"
            continue
        if found != digest:
            yield f"{name}: it has the sha256 {found}, the manifest says {digest} ({where}): restore it"


def curation_faults(uri: str, manifest: Manifest, parts: Mapping[str, Part]) -> Iterator[str]:
    """What curate decided, against its own digests, the manifest, and the indices and skip files made from it.

    Args:
        parts: those of the manifest that can be read, by `<source>/<part>`.
    """
    if manifest.provenance.curation is None:
        return
    lake, where = lake_of(uri), beside(uri, manifest.provenance.curation)
    try:
        curation = read_curation(where)
        check_rows(lake, curation)
    except InputError as error:  # an older smalti wrote it
        log.info("verify: %s", error)
        return
    except MissingObject as error:
        if not _is_gone(uri, manifest):
            yield f"curation: {error.what} ({error.where}): restore it; no version that counts loses it to `smalti gc`"
        return
    except CorruptError as error:
        yield f"curation: {error.what} ({error.where}): restore it"
        return
    said, found = _said(curation), _manifest_says(manifest)
    wrong = [name for name in said if said[name] != found[name]]
    if wrong:
        yield f"curation: it says something else of {', '.join(wrong)} than the manifest ({where}): restore the manifest's"
    if all(f"{part.source}/{part.name}" in parts for part in curation.parts):
        yield from _stream_faults(lake, manifest, curation, parts)


def _said(curation: Curation) -> dict[str, object]:
    return {
        "the dataset": curation.dataset,
        "parts": sorted((part.source, part.name, part.digest, part.samples) for part in curation.parts),
        "reasons": curation.reasons,
        "reason sets": ((), *curation.reason_sets),
        "reasons not applied": curation.without,
        "opt-outs": curation.optouts,
        "samples": curation.samples,
        "kept samples": curation.kept,
        "skipped samples": nonzero(curation.skipped),
    }


def _manifest_says(manifest: Manifest) -> dict[str, object]:
    return {
        "the dataset": manifest.dataset,
        "parts": sorted((s.name, part.name, part.digest, part.samples) for s in manifest.sources for part in s.parts),
        "reasons": manifest.reasons,
        "reason sets": manifest.reason_sets,
        "reasons not applied": manifest.without,
        "opt-outs": manifest.optouts,
        "samples": manifest.accounting.samples,
        "kept samples": manifest.accounting.kept,
        "skipped samples": nonzero(manifest.accounting.skipped),
    }


def _stream_faults(lake: Lake, manifest: Manifest, curation: Curation, parts: Mapping[str, Part]) -> Iterator[str]:
    """The streams are made once more: their indices and skip files must come out the same."""
    groups = {source.name: source.group for source in manifest.sources}
    curated = [parts[f"{part.source}/{part.name}"] for part in curation.parts]
    for part, of in zip(curated, curation.parts, strict=True):
        if part.samples_sha256 != of.samples_sha256:
            yield f"part {part.source}/{part.name}: curate saw another samples.parquet: restore part.json"
    made = {stream.entry.name: stream.entry for stream in streams_of(lake, curation, curated, groups)}
    there = {stream.name: stream for stream in manifest.streams}
    for name in sorted({*made, *there}):
        if name not in made or name not in there:
            yield f"stream {name}: the {'manifest' if name in made else 'curation'} does not have it"
            continue
        one, other = made[name].model_dump(), there[name].model_dump()
        for what in one:
            if one[what] != other[what]:
                yield f"stream {name}: {what} is {other[what]} in the manifest, the curation comes to {one[what]}"


def _is_gone(uri: str, manifest: Manifest) -> bool:
    """Whether the version was given up: garbage collection may have taken what it names outside its own folder."""
    return is_gone(lake_of(uri), manifest.dataset, manifest.version)
