"""New data: what an opt-out in force asks for is known before its picture is captioned.

A `Watch` answers two questions of a row: does a key name it (before its picture is read), and does its picture look like one that was
asked for, or like one that a request has matched before (after it is decoded). It is asked in many tasks at once, so it is a few arrays:
16 bytes of a hash for each key, never the key, and 115 bytes for each picture.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smalti.curation.copies import ASPECT_TOLERANCE
from smalti.curation.near import Mask
from smalti.images.fingerprint import RECOMMENDED_DISTANCE, Recognisable, colours_agree_pairs
from smalti.lake import Lake
from smalti.optouts.keys import HANDED_IN_AGAIN, Key, KeyKind, spelled
from smalti.optouts.ledger import state
from smalti.optouts.ledger_rows import read_matched, shows_its_own
from smalti.optouts.neighbours import Neighbours
from smalti.optouts.request import READERS, Action, Request, read_answer, read_request, request_ids
from smalti.optouts.resolution import Ledger
from smalti.shards.samples import THUMBNAIL, check_thumbnails

KEY_COLUMNS = ("url", "url_host", "owner")
"""Columns of a source's table that keys are compared with, besides id and sha256."""

PRINTS = pa.schema([
    ("id", pa.string()),
    ("sha256", pa.string()),
    ("phash", pa.uint64()),
    ("colour", pa.binary(THUMBNAIL)),
    ("flat", pa.bool_()),
    ("width", pa.int32()),
    ("height", pa.int32()),
])
"""A sample that a request has matched. `phash`, `colour` and `flat` are null where it was never fingerprinted; so is `sha256` where the id alone
is asked for (`smalti.optouts.ledger_rows.shows_its_own`)."""

_PAIRS = 1 << 14
"""Pictures of one hash whose colours are compared at a time: 1.6 MiB."""

_LISTED = 1 << 20
"""Pairs that are listed at a time: 16 MiB; of one picture with all of a hash, more."""

_FLIPS = np.array(
    [
        sum(1 << bit for bit in bits)
        for count in range(RECOMMENDED_DISTANCE + 1)
        for bits in combinations(range(64), count)
    ],
    np.uint64,
)
"""All ways in which a hash may differ from that of a copy: 2081."""


@dataclass(frozen=True)
class Watch:
    """What is asked for.

    Attributes:
        kinds: kinds of the keys.
        digests: S16 (k,), ascending: of every key.
        phash: uint64 (n,), ascending: of every picture that is not flat.
        colour: uint8 (n, THUMBNAIL), its thumbnail.
        ratio: float64 (n,), log(width / height).
    """

    kinds: frozenset[KeyKind]
    digests: npt.NDArray[np.bytes_]
    phash: npt.NDArray[np.uint64]
    colour: npt.NDArray[np.uint8]
    ratio: npt.NDArray[np.float64]

    @classmethod
    def of(cls, keys: Iterable[Key], matched: pa.Table | None = None) -> Watch:
        """A watch over keys, and over the samples that they have matched (PRINTS)."""
        if matched is None:
            matched = PRINTS.empty_table()
        matched = matched.select(PRINTS.names)
        kinds = {KeyKind.ID, KeyKind.SHA256} if matched.num_rows else set()
        digests = [_digest(KeyKind.ID, each) for each in pc.unique(matched["id"]).to_pylist()]
        digests += [_digest(KeyKind.SHA256, each) for each in pc.unique(matched["sha256"].drop_null()).to_pylist()]
        shown = []
        for key in keys:
            kind = KeyKind.SHA256 if key.kind == KeyKind.IMAGE else key.kind
            kinds.add(kind)
            digests.append(_digest(kind, key.value))
            if key.fingerprint is not None:
                shown.append({**key.fingerprint.model_dump(), "colour": bytes.fromhex(key.fingerprint.colour)})
        prints = pa.concat_tables([_each_once(matched.filter(_is_told(matched))), pa.Table.from_pylist(shown, PRINTS)])
        prints = prints.filter(_is_told(prints))
        order = np.argsort(prints["phash"].to_numpy(), kind="stable")
        width, height = (prints[name].to_numpy()[order].astype(np.float64) for name in ("width", "height"))
        return cls(
            frozenset(kinds),
            np.unique(np.array(digests, "S16")),
            prints["phash"].to_numpy()[order],
            _thumbnails(prints["colour"])[order],
            np.log(width / height),
        )

    def asks(self, rows: pa.Table) -> list[bool]:
        """Which rows a key names.

        Args:
            rows: id, sha256 and KEY_COLUMNS.
        """
        digests: list[bytes] = []
        homes: list[int] = []
        for index, row in enumerate(rows.select(["id", "sha256", *KEY_COLUMNS]).to_pylist()):
            before = len(digests)
            digests += [digest for kind in self.kinds for digest in _DIGESTS_OF[kind](row)]
            homes += [index] * (len(digests) - before)
        asked = np.zeros(rows.num_rows, np.bool_)
        if digests:
            wanted = np.array(digests, "S16")
            at = np.minimum(np.searchsorted(self.digests, wanted), len(self.digests) - 1)
            asked[np.array(homes)[self.digests[at] == wanted]] = True
        return list(asked.tolist())

    def knows(self, found: Recognisable, width: int, height: int) -> bool:
        """Whether a picture is a copy of one that is asked for, by the rule of `smalti.curation.copies` at RECOMMENDED_DISTANCE.

        Args:
            found: its fingerprint.
            width, height: of the original, px.
        """
        if found.flat or not len(self.phash):
            return False
        hashes = np.uint64(found.phash) ^ _FLIPS
        starts = np.searchsorted(self.phash, hashes)
        starts = starts[self.phash[np.minimum(starts, len(self.phash) - 1)] == hashes]
        thumbnail = np.frombuffer(found.colour, np.uint8)[None]
        for start in starts.tolist():
            stop = int(np.searchsorted(self.phash, self.phash[start], side="right"))
            for at in range(start, stop, _PAIRS):
                some = slice(at, min(at + _PAIRS, stop))
                close = np.abs(self.ratio[some] - math.log(width / height)) <= ASPECT_TOLERANCE
                colour = self.colour[some][close]
                if colours_agree_pairs(colour, np.broadcast_to(thumbnail, colour.shape)).any():
                    return True
        return False

    def knows_of(self, rows: pa.Table) -> Mask:
        """The same of rows that have `phash`, `colour`, `flat`, `width` and `height`; those without a fingerprint are not known."""
        found = np.zeros(rows.num_rows, np.bool_)
        told = np.flatnonzero(_is_told(rows).combine_chunks().to_numpy(zero_copy_only=False))
        if not (len(told) and len(self.phash)):
            return found
        rows = rows.select(["phash", "colour", "width", "height"]).take(pa.array(told)).combine_chunks()
        colour = np.frombuffer(b"".join(rows["colour"].to_pylist()), np.uint8).reshape(-1, THUMBNAIL)
        ratio = np.log(rows["width"].to_numpy().astype(np.float64) / rows["height"].to_numpy())
        near = Neighbours.of(self.phash, RECOMMENDED_DISTANCE)
        place, value = near.pairs(rows["phash"].to_numpy())
        start = np.searchsorted(self.phash, near.values[value])
        size = np.searchsorted(self.phash, near.values[value], "right") - start
        for some in np.split(np.arange(len(place)), np.flatnonzero(np.diff(np.cumsum(size) // _LISTED)) + 1):
            some = some[~found[told[place[some]]]]
            one = np.repeat(place[some], size[some])
            other = np.arange(len(one)) + np.repeat(start[some] - np.cumsum(size[some]) + size[some], size[some])
            close = np.abs(self.ratio[other] - ratio[one]) <= ASPECT_TOLERANCE
            one, other = one[close], other[close]
            for at in range(0, len(one), _PAIRS):
                pairs = slice(at, at + _PAIRS)
                same = colours_agree_pairs(self.colour[other[pairs]], colour[one[pairs]])
                found[told[one[pairs][same]]] = True
        return found


def load_watch(lake: Lake, *actions: Action) -> Watch | None:
    """What is asked for now: keys of every request in force, and the samples that they have matched. None: nothing is.

    Where nobody ever asked, one listing is all that is read.

    Args:
        actions: only requests for one of these; none: all.
    Raises:
        CorruptError: an object of the ledger is damaged; nothing is let through for that.
    """
    requests = [each for each in in_force(lake) if not actions or each.action in actions]
    if not requests:
        return None
    keys = (key for request in requests for key in request.keys)
    return Watch.of(keys, _matched(lake, {request.id for request in requests}))


def in_force(lake: Lake) -> list[Request]:
    """Requests that are to be applied, or are, and were not taken back; sorted by id."""
    names = request_ids(lake)
    ledger = state(lake) if names else Ledger()
    names = [name for name in names if name not in ledger.withdrawn]

    def look(name: str) -> Request | None:
        answer = None if name in ledger.resolved else read_answer(lake, name)
        return read_request(lake, name) if name in ledger.resolved or (answer is not None and answer.apply) else None

    with ThreadPoolExecutor(READERS) as pool:
        applied = [each for each in pool.map(look, names) if each is not None]
    withdrawn = {each.withdraws for each in applied}
    return [each for each in applied if each.action in (Action.EXCLUDE, Action.ERASE) and each.id not in withdrawn]


def _matched(lake: Lake, requests: Collection[str]) -> pa.Table:
    """Samples that these requests have matched so far: PRINTS."""
    rows = read_matched(lake, state(lake).matched, requests)
    if rows is None:
        return PRINTS.empty_table()
    check_thumbnails(rows["colour"], lake.optout_requests(), HANDED_IN_AGAIN)
    own = shows_its_own(rows)
    prints = rows.select(PRINTS.names).cast(PRINTS)
    for name in ("sha256", "phash", "colour", "flat"):  # of the others the id alone counts
        value = pc.if_else(own, prints[name], pa.scalar(None, prints.schema.field(name).type))
        prints = prints.set_column(prints.schema.get_field_index(name), PRINTS.field(name), value)
    return prints


def _is_told(rows: pa.Table) -> pa.ChunkedArray:
    """Whose fingerprint tells them from others. Flat pictures are recognised by their bytes alone."""
    return pc.and_(pc.is_valid(rows["phash"]), pc.invert(pc.fill_null(rows["flat"], True)))


def _each_once(rows: pa.Table) -> pa.Table:
    """One row for each sha256: a picture stands in the ledger for every request and place."""
    _, first = np.unique(rows["sha256"].combine_chunks().dictionary_encode().indices.to_numpy(), return_index=True)
    return rows.take(first)


def _thumbnails(colours: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    """uint8 (n, THUMBNAIL) of n values without nulls."""
    found = [
        np.frombuffer(chunk.buffers()[1], np.uint8).reshape(-1, THUMBNAIL)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in colours.chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty((0, THUMBNAIL), np.uint8), *found])


def _digest(kind: KeyKind, value: str) -> bytes:
    """16 bytes of a hash: that two of a billion keys share them has a chance of 1e-21."""
    return hashlib.sha256(f"{kind.value}\0{value}".encode()).digest()[:16]


def _of_text(kind: KeyKind, column: str) -> Any:
    def digests(row: dict[str, Any]) -> Iterator[bytes]:
        if row[column] is not None:
            yield _digest(kind, row[column].strip())

    return digests


def _of_url(row: dict[str, Any]) -> Iterator[bytes]:
    if row["url"] is not None:
        yield _digest(KeyKind.URL, spelled(KeyKind.URL, row["url"]))


def _of_prefixes(row: dict[str, Any]) -> Iterator[bytes]:
    """Every text that the URL begins with up to a boundary: its end, before one of / ? #, or after a slash."""
    if row["url"] is None:
        return
    url = spelled(KeyKind.URL, row["url"])
    so_far = hashlib.sha256(f"{KeyKind.PREFIX.value}\0".encode())
    start = 0
    for at, each in enumerate(url):
        if each in "/?#":
            so_far.update(url[start:at].encode())
            yield so_far.digest()[:16]
            start = at
            if each == "/":
                so_far.update(b"/")
                yield so_far.digest()[:16]
                start = at + 1
    so_far.update(url[start:].encode())
    yield so_far.digest()[:16]


def _of_domains(row: dict[str, Any]) -> Iterator[bytes]:
    """The host, and every domain that it is below."""
    if row["url_host"] is None:
        return
    host = spelled(KeyKind.DOMAIN, row["url_host"])
    while host:
        yield _digest(KeyKind.DOMAIN, host)
        host = host.partition(".")[2]


_DIGESTS_OF = {
    KeyKind.ID: _of_text(KeyKind.ID, "id"),
    KeyKind.SHA256: _of_text(KeyKind.SHA256, "sha256"),
    KeyKind.OWNER: _of_text(KeyKind.OWNER, "owner"),
    KeyKind.URL: _of_url,
    KeyKind.PREFIX: _of_prefixes,
    KeyKind.DOMAIN: _of_domains,
}
"""Kind -> the digests of all keys of it that would name a row."""
