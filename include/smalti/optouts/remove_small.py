"""Removes what objects other than parts and tables say of erased samples: checkpoints, inventories, pages, reports, logs.

An object that holds other things, too, is replaced by one without the samples, if it is still the generation that was read. One that
is a page, or holds nothing else, is deleted.

| place | what is done |
|---|---|
| staging/, progress/: parquet | rows go that name a sample; a checkpoint without rows goes |
| staging/, progress/, runs/, gc/: json | values that name a sample say `(erased)` |
| runs/, optouts/rejected/: text, jsonl | lines that name a sample say `(erased)` |
| optouts/requests/*/preview.json.gz | ids say `(erased)`; counts and the digest stay, and so do the turns and answers that rest on it |
| optouts/requests/*/preview.html | the page goes; while its request waits for an answer, it is made anew without them |
| progress/**/pilot/, optouts/rejected/files/ | the object goes |
| releases/*/curations/ | the whole curation goes, if no version that counts uses it, nor one that is being built |
| versions that were given up | the object goes |
"""

from __future__ import annotations

import io
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from smalti import objects
from smalti.lake import LEDGER_AND_RECEIPTS, NO_SMALL_OBJECTS, SMALL_OBJECTS, Kind, Lake
from smalti.maintenance.garbage import sweep, write_mark
from smalti.maintenance.live import References
from smalti.maintenance.marks import Doomed, OpenCollection, read_mark
from smalti.optouts.needles import Ids, Seeker
from smalti.optouts.preview import Preview, page_of, read_preview, turns
from smalti.optouts.request import Action, read_answer, read_request
from smalti.optouts.scan import UNREADABLE, Finding, look_at, look_into, values_found
from smalti.release.latest import is_gone
from smalti.release.skips import compress, decompress, parse
from smalti.threads import map_threads

_DIGEST = re.compile(r"[0-9a-f]{64}")

ERASED = "(erased)"
"""Stands where something named a sample."""

TOPS = ("staging", "progress", "runs", "gc", "optouts", "releases")
"""Where such objects are."""


def is_allowed(lake: Lake, uri: str) -> bool:
    """Whether an object is the ledger's or a receipt: these name what was asked and what was done."""
    return LEDGER_AND_RECEIPTS.fullmatch(uri.removeprefix(f"{lake.root}/")) is not None


@dataclass
class Removed:
    """What became of the objects. `pages`: requests that lost a page of theirs."""

    objects: Counter[str] = field(default_factory=Counter)
    rewritten: Counter[str] = field(default_factory=Counter)
    pages: set[str] = field(default_factory=set)

    def gone(self, lake: Lake, uri: str) -> None:
        self.objects[_top(lake, uri)] += 1
        request = uri.removeprefix(f"{lake.optout_requests()}/").partition("/")[0]
        if uri.startswith(f"{lake.optout_folder(request)}/"):
            self.pages.add(request)

    def replaced(self, lake: Lake, uri: str) -> None:
        self.rewritten[_top(lake, uri)] += 1


def _top(lake: Lake, uri: str) -> str:
    return uri.removeprefix(f"{lake.root}/").split("/")[0]


def remove_small(lake: Lake, seeker: Seeker, refs: References) -> Removed:
    """Take the samples out of every such object. Killed at any line, the next run goes on."""
    removed = Removed()
    names = (uri for uri in small_objects(lake) if not is_allowed(lake, uri))

    def clean(uri: str) -> tuple[str, str]:
        return uri, _clean(lake, uri, seeker, refs)

    for uri, done in map_threads(clean, names):
        if done == "gone":
            removed.gone(lake, uri)
        elif done == "replaced":
            removed.replaced(lake, uri)
    _curations(lake, seeker, removed)
    for request in sorted(removed.pages):
        _page_again(lake, request, seeker)
    for info in objects.list_attempts(lake.root):
        if look_at(seeker, info.uri):  # what a killed writer left; one that lives fails, and does it again
            objects.delete_object(info.uri)
            removed.gone(lake, info.uri)
    return removed


def small_objects(lake: Lake) -> Iterator[str]:
    """URIs below everything but parts and tables; of datasets, what is beside curations, streams and trees."""
    for top in TOPS:
        for info in objects.list_objects(f"{lake.root}/{top}"):
            if not NO_SMALL_OBJECTS.fullmatch(info.uri.removeprefix(f"{lake.root}/")):
                yield info.uri


def _clean(lake: Lake, uri: str, seeker: Seeker, refs: References) -> Literal["kept", "gone", "replaced"]:
    while True:
        found = objects.read_versioned(uri)
        if found is None:
            return "kept"
        data, generation = found
        findings = look_into(seeker, uri, data)
        if not findings:
            return "kept"
        remedy = remedy_of(lake, uri, refs)
        if remedy is None or _is_dark(uri, findings, remedy) or (remedy != "object" and any(seeker.text(uri))):
            return "kept"  # the scan names it
        after = None if remedy == "object" else _WITHOUT[remedy](data, seeker)
        if after is None:
            if objects.delete_object(uri, generation):
                return "gone"
        elif after == data:
            return "kept"  # what was found is nothing that this can take out
        elif objects.swap_bytes(uri, after, generation):
            return "replaced"


def _is_dark(uri: str, findings: list[Finding], remedy: Kind) -> bool:
    """Whether nothing shows that an object names a sample, but that it cannot be read; or it cannot be, and holds rows of others."""
    return {each.what for each in findings} == {UNREADABLE} or (
        remedy in ("rows", "preview") and Finding(uri, "", UNREADABLE) in findings
    )


def remedy_of(lake: Lake, uri: str, refs: References) -> Kind | None:
    """What is done about an object that names a sample; None: nothing may be."""
    path = uri.removeprefix(f"{lake.root}/")
    for pattern, remedy in SMALL_OBJECTS:
        if re.fullmatch(pattern, path):
            return remedy
    steps = path.split("/")
    if steps[0] == "releases" and len(steps) > 3 and uri not in refs.files:
        kept = {lake.claim(steps[1], steps[2]), lake.release_tombstone(steps[1], steps[2])}
        if is_gone(lake, steps[1], steps[2]) and uri not in kept:
            return "object"
    return None


def _rows_without(data: bytes, seeker: Seeker) -> bytes | None:
    """A parquet file without the rows that name a sample; None: none is left."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(data))
    table = file.read()
    kept = [not _names(seeker, row) for row in table.to_pylist()]
    left = table.filter(pa.array(kept, pa.bool_()))
    if not left.num_rows and "id" in table.schema.names:
        return None  # a checkpoint: nobody misses one without rows
    out = io.BytesIO()
    pq.write_table(left.combine_chunks(), out, compression="zstd")
    return out.getvalue()


def _names(seeker: Seeker, row: dict[str, Any]) -> bool:
    return _says(seeker, list(row.values()), "value")


def _says(seeker: Seeker, value: Any, ids: Ids = "word") -> bool:
    return bool(values_found(seeker, value, ids) - {UNREADABLE})


def _json_without(data: bytes, seeker: Seeker) -> bytes | None:
    try:
        value = json.loads(data)
    except ValueError:
        return _lines_without(data, seeker)
    return (json.dumps(_plain(seeker, value), indent=1, ensure_ascii=False) + "\n").encode()


def _plain(seeker: Seeker, value: Any) -> Any:
    if isinstance(value, str):
        return ERASED if _says(seeker, value) else value
    if isinstance(value, dict):
        return {_plain(seeker, name): _plain(seeker, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(seeker, each) for each in value]
    return value


def _lines_without(data: bytes, seeker: Seeker) -> bytes | None:
    lines = data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    kept = [f"{ERASED}\n" if _says(seeker, line.rstrip("\n")) else line for line in lines]
    return "".join(kept).encode("utf-8", "surrogateescape")


def _preview_without(data: bytes, seeker: Seeker) -> bytes | None:
    seen = parse(Preview, decompress(data, "a preview"), "a preview")
    return compress(seen.without(lambda name: _says(seeker, name), ERASED).encode())


_WITHOUT = {"rows": _rows_without, "json": _json_without, "lines": _lines_without, "preview": _preview_without}


def _curations(lake: Lake, seeker: Seeker, removed: Removed) -> None:
    """Remove curations that name a sample, as a collection of garbage: whoever assembles from one meanwhile keeps it, or is told."""
    named: list[Doomed] = []
    for dataset in objects.list_names(lake.releases()):
        held: dict[str, list[objects.ObjectInfo]] = {}
        for info in objects.list_objects(lake.curations(dataset)):
            digest = _DIGEST.search(info.uri.rpartition("/")[2])
            held.setdefault(digest.group() if digest else info.uri, []).append(info)

        def names(infos: list[objects.ObjectInfo]) -> bool:
            found = ((each.uri, look_at(seeker, each.uri)) for each in infos)
            return any(what and not _is_dark(uri, what, "object") for uri, what in found)

        for infos, is_named in zip(held.values(), map_threads(names, held.values()), strict=True):
            if is_named:
                named += [
                    Doomed(kind="curation", uri=each.uri, why="it names what was erased", objects=1, bytes=each.size)
                    for each in infos
                ]
    if not named:
        return
    now = time.time()
    name = write_mark(lake, tuple(named), now).split("/")[-2]
    for item in sweep(lake, OpenCollection(name, frozenset()), read_mark(lake, name), now, grace=0.0):
        removed.objects["releases"] += len(item.deletes)


def _page_again(lake: Lake, request_id: str, seeker: Seeker) -> None:
    """Make the page of a request that waits for an answer: somebody is to look at it. Killed before, its preview makes it when it is run again."""
    request = read_request(lake, request_id)
    if request.action == Action.QUERY or read_answer(lake, request_id) is not None:
        return
    turn = max(1, turns(lake, request_id))
    seen, uri = read_preview(lake, request_id, turn), lake.optout_preview_page(request_id, turn)
    page = page_of(lake, request, seen) if seen else b""
    if page and not look_into(seeker, uri, page):
        objects.create_bytes(uri, page)
