"""What requests match, pair by pair: slow and plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from smalti.images.fingerprint import Fingerprint, hamming
from smalti.optouts.keys import Key, KeyKind, normalise
from smalti.optouts.pictures import NEAR_COLOURS, NEAR_DISTANCE
from smalti.optouts.request import Request
from tests.curation.pairwise import Copy, is_copy
from tests.optouts.making import Sample

Place = tuple[str, int]
"""Part and number in it."""


def names(key: Key, source: str, sample: Sample) -> bool:
    """Whether a key names a sample itself."""
    match key.kind:
        case KeyKind.ID:
            return key.value == f"{source}/{sample.key}"
        case KeyKind.OWNER:
            return key.value == _spelled(KeyKind.OWNER, sample.owner)
        case KeyKind.SHA256:
            return key.value == sample.sha256
        case KeyKind.IMAGE:
            return key.value == sample.sha256 or _shows(key, sample)
        case KeyKind.URL:
            return key.value == _spelled(KeyKind.URL, sample.url)
        case KeyKind.PREFIX:
            url = _spelled(KeyKind.URL, sample.url) or ""
            after = url[len(key.value) :]
            return url.startswith(key.value) and (not after or after[0] in "/?#" or key.value.endswith("/"))
        case KeyKind.DOMAIN:
            host = _spelled(KeyKind.DOMAIN, _host(sample.url)) or ""
            return host == key.value or host.endswith("." + key.value)


def _host(url: str | None) -> str | None:
    try:
        return urlsplit(url).hostname if url else None
    except ValueError:
        return None


def _spelled(kind: KeyKind, value: str | None) -> str | None:
    try:
        return normalise(kind, value) if value else None
    except ValueError:
        return value and value.strip()


def _shows(key: Key, sample: Sample) -> bool:
    its = key.fingerprint
    if its is None:
        return False
    handed_in = Copy("", "", Fingerprint(its.phash, bytes.fromhex(its.colour), its.flat, 0), its.width, its.height)
    return is_copy(handed_in, _copy(sample), 2)


def _copy(sample: Sample) -> Copy:
    return Copy("", sample.sha256, sample.fingerprint, *sample.size)


def slowly(
    parts: Mapping[str, Sequence[Sample]], request: Request, known: Sequence[tuple[str, str, Sample]] = ()
) -> tuple[dict[Place, int], dict[Place, set[int]], set[int]]:
    """Places that keys name -> the first such key; other matched places -> keys that can have reached them; keys that name nothing.

    Args:
        parts: by "<source>/<part>".
        known: id, how and sample of what was matched before.
    """
    places = {(part, number): sample for part, samples in parts.items() for number, sample in enumerate(samples)}
    direct: dict[Place, list[int]] = {}
    for place, sample in places.items():
        found = [at for at, key in enumerate(request.keys) if names(key, place[0].split("/")[0], sample)]
        if found:
            direct[place] = found
    ids = {place: f"{place[0].split('/')[0]}/{sample.key}" for place, sample in places.items()}
    nodes = [*(_copy(each) for each in places.values()), *(_copy(sample) for _, _, sample in known)]
    keys = [set(direct.get(place, ())) for place in places]
    keys += [{at for at, _ in enumerate(request.keys)} if how == "key" else set() for _, how, _ in known]
    changed = True
    while changed:
        changed = False
        for one, ones in zip(nodes, keys, strict=True):
            for other, others in zip(nodes, keys, strict=True):
                if ones - others and is_copy(one, other, 2):
                    others |= ones
                    changed = True
    copies = {place: its for place, its in zip(places, keys, strict=False) if its and place not in direct}
    of_ids = {each for each, _, _ in known} | {ids[place] for place in [*direct, *copies]}
    every = set(range(len(request.keys)))
    copies |= {place: every for place in places if ids[place] in of_ids and place not in direct and place not in copies}
    named = {at for found in direct.values() for at in found}
    return {place: min(found) for place, found in direct.items()}, copies, every - named


def near(sample: Sample, other: Sample) -> bool:
    """Whether two pictures are for a person to look at."""
    if sample.phash is None or other.phash is None:
        return False
    bits = hamming(sample.phash, other.phash)
    close = bits == 0 if sample.flat or other.flat else bits <= NEAR_DISTANCE
    apart = sum(abs(a - b) for a, b in zip(sample.colour, other.colour, strict=True)) / len(sample.colour)
    return close and apart <= NEAR_COLOURS
