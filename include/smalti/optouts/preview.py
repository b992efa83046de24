"""The dry run of a request: what it would match, before anything is done. A person confirms what is wide or matches much."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.accounting import Report
from smalti.lake import Lake
from smalti.optouts.ledger import all_parts
from smalti.optouts.reached import Reached, store_reached
from smalti.optouts.request import Action, Request, has_turn, read_answer, read_request, refuse_forgotten
from smalti.release.latest import live_versions
from smalti.release.skips import Model, canonical_json, compress, decompress, parse, sha256
from smalti.settings import OptoutRun

if TYPE_CHECKING:
    from smalti.optouts.everywhere import Everywhere

log = logging.getLogger("smalti")

LISTED = 1000
"""Matched samples that a preview names; it counts all."""


class Listed(Model):
    """A sample that is matched, or nearly so."""

    id: str
    how: Literal["key", "copy", "near"]
    key: int = Field(description="index of the request's key that reached it")
    part: str = Field(description="<source>/<part>; empty: it is in the source's table only")
    shard: str | None = None
    index: int | None = None


class Preview(Model):
    """What a request would do. The first one of a turn counts: a person confirms what they have seen, by its digest."""

    version: Literal[1] = 1
    request: str
    made: AwareDatetime
    keys: int
    kinds: dict[str, int] = Field(description="kind of key -> keys")
    matched: int = Field(description="places in parts: a sample in two parts is two")
    samples: int = Field(description="ids, in parts or in tables")
    by_key: int = Field(description="of `matched`, those that a key names; the others are their copies")
    sources: dict[str, int] = Field(description="source -> places")
    parts: dict[str, int] = Field(description="<source>/<part> -> places")
    tables: dict[str, int] = Field(description="source -> rows of its table")
    releases: dict[str, tuple[str, ...]] = Field(description="dataset -> live versions that are made of such parts")
    near: int = Field(description="look-alikes that would stay")
    unmatched: int = Field(description="keys that match nothing")
    shown: tuple[Listed, ...] = Field(description="the first matches, those that keys name before copies")
    shown_near: tuple[Listed, ...] = ()
    near_unseen: int = Field(0, description="samples of a hash as near that were not looked at: there were too many")
    was: str = Field(
        "", description="digest of what it was before ids of erased samples were taken out; empty: none were"
    )
    reached: Reached | None = Field(None, description="what it is applied from; of a query, or once outdated, nothing")

    def encode(self) -> bytes:
        """The object's content."""
        unused = {name for name in ("near_unseen", "was", "reached") if not getattr(self, name)}
        return canonical_json(self.model_dump(mode="json", exclude=unused))

    def digest(self) -> str:
        """What `Answer.preview_sha256` says: of the content that a person has seen."""
        return self.was or sha256(self.encode())

    def without(self, names: Callable[[str], bool], mark: str) -> Preview:
        """With a mark in place of the ids that `names` something. Counts, and the digest, stay what they were."""

        def kept(listed: Sequence[Listed]) -> tuple[Listed, ...]:
            nothing = {"id": mark, "shard": None, "index": None}
            return tuple(each.model_copy(update=nothing) if names(each.id) else each for each in listed)

        shown, near = kept(self.shown), kept(self.shown_near)
        if (shown, near) == (self.shown, self.shown_near):
            return self
        return self.model_copy(update={"shown": shown, "shown_near": near, "was": self.digest(), "reached": None})


class PreviewReport(Report):
    """What the DAG goes on with."""

    request: str
    action: str
    reference: str
    keys: int
    rejected: int
    matched: int
    samples: int
    by_key: int
    near: int
    unmatched: int
    sources: dict[str, int]
    digest: str = Field(description="of the preview: what a person confirms")
    ask: str = Field(description="why a person is to confirm; empty: nobody needs to, or one has")
    page: str


def preview(lake: Lake, run: OptoutRun) -> PreviewReport:
    """Match a request against everything and write down what was found, once a turn (`look_again`); nothing is applied.

    Raises:
        InputError: there is no such request.
    """
    began = time.monotonic()
    request = read_request(lake, run.request)
    refuse_forgotten(request)
    turn = max(1, turns(lake, request.id))
    found = _stored(lake, request, turn)
    answer = read_answer(lake, request.id)
    why = "" if answer is not None and answer.apply else why_ask(request, found.matched)
    log.info("opt-out %s: %d places match, %d nearly", request.id, found.matched, found.near)
    return PreviewReport(
        stage="optout_preview",
        seconds=round(time.monotonic() - began, 3),
        warnings=_warnings(request, found),
        request=request.id,
        action=request.action,
        reference=request.reference,
        keys=found.keys,
        rejected=request.rejected,
        matched=found.matched,
        samples=found.samples,
        by_key=found.by_key,
        near=found.near,
        unmatched=found.unmatched,
        sources=found.sources,
        digest=found.digest(),
        ask=why,
        page=lake.optout_preview_page(request.id, turn),
    )


def why_ask(request: Request, matched: int) -> str:
    """Why a person is to confirm; empty if nobody needs to. To be told what is held changes nothing, and needs nobody.

    Args:
        matched: places that its preview has counted.
    """
    if request.action == Action.QUERY:
        return ""
    if request.is_wide:
        return "it names a domain or a prefix"
    if request.action == Action.WITHDRAW:
        return "it lets pictures be served again"
    if matched > request.confirm_above:
        return f"it matches {matched} places, more than {request.confirm_above}"
    return ""


def turns(lake: Lake, request: str) -> int:
    """How often a request was looked at; the last preview is the one to answer."""
    turn = 0
    while has_turn(lake, request, turn + 1):
        turn += 1
    return turn


def read_preview(lake: Lake, request: str, turn: int | None = None) -> Preview | None:
    """A preview that was made, the newest unless `turn` says which; None: there is none yet. Raises CorruptError."""
    uri = lake.optout_preview(request, turn or max(1, turns(lake, request)))
    found = objects.read_versioned(uri)
    return None if found is None else parse(Preview, decompress(found[0], uri), uri)


def look_again(lake: Lake, request: Request, turn: int) -> str:
    """Make the preview of a turn, or find it: from then on the request waits for an answer to it. Returns its page."""
    _stored(lake, request, turn)
    return lake.optout_preview_page(request.id, turn)


def _stored(lake: Lake, request: Request, turn: int) -> Preview:
    """The preview of a turn, and its page: made of what is stored, as another run may have stored another one first;
    or made again, as a removal may have taken it."""
    found = read_preview(lake, request.id, turn) or _make(lake, request, turn)
    page = lake.optout_preview_page(request.id, turn)
    if not objects.exists(page):
        objects.create_bytes(page, page_of(lake, request, found))
    return found


def page_of(lake: Lake, request: Request, found: Preview) -> bytes:
    """The page that a preview is confirmed by."""
    from smalti.optouts.preview_page import render

    return render(lake, request, found).encode()


def _make(lake: Lake, request: Request, turn: int) -> Preview:
    from smalti.optouts.everywhere import match_everywhere

    seen = match_everywhere(lake, all_parts(lake), request)
    made = _preview(lake, request, seen)
    if request.action != Action.QUERY:
        reached = store_reached(lake, seen.reached, seen.parts, seen.versions, seen.unmatched)
        made = made.model_copy(update={"reached": reached})
    objects.create_bytes(lake.optout_preview(request.id, turn), compress(made.encode()))
    found = read_preview(lake, request.id, turn)
    assert found is not None
    return found


def _preview(lake: Lake, request: Request, found: Everywhere) -> Preview:
    rows = found.rows
    by_part = _counts(rows["part"])
    ids = pa.chunked_array([*rows["id"].chunks, *found.tables["id"].chunks], pa.string())
    kinds = Counter(str(key.kind) for key in request.keys)
    return Preview(
        request=request.id,
        made=datetime.now(UTC),
        keys=len(request.keys),
        kinds=dict(sorted(kinds.items())),
        matched=rows.num_rows,
        samples=pc.count_distinct(ids).as_py(),
        by_key=pc.sum(pc.equal(rows["how"], "key")).as_py() or 0,
        sources=_counts(rows["source"]),
        parts=by_part,
        tables=_counts(found.tables["source"]),
        releases=releases_with(lake, set(by_part)),
        near=found.near_found,
        unmatched=len(found.unmatched),
        shown=_listed(rows),
        shown_near=_listed(found.near),
        near_unseen=found.near_unseen,
    )


def releases_with(lake: Lake, parts: set[str]) -> dict[str, tuple[str, ...]]:
    """Live versions that some of these parts (<source>/<part>) are in."""
    from smalti.release.manifest import read_manifest

    found = {}
    for dataset in objects.list_names(lake.releases()) if parts else ():
        versions = [
            version
            for version in live_versions(lake, dataset)
            if any(
                f"{source.name}/{part.name}" in parts
                for source in read_manifest(lake.manifest(dataset, version)).sources
                for part in source.parts
            )
        ]
        if versions:
            found[dataset] = tuple(versions)
    return found


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    return dict(sorted((each["values"], each["counts"]) for each in pc.value_counts(column).to_pylist()))


def _listed(rows: pa.Table) -> tuple[Listed, ...]:
    first = pa.concat_tables([rows.filter(pc.equal(rows["how"], "key")), rows.filter(pc.not_equal(rows["how"], "key"))])
    columns = first.select(list(Listed.model_fields)).slice(0, LISTED)
    return tuple(Listed(**row) for row in columns.to_pylist())


def _warnings(request: Request, found: Preview) -> tuple[str, ...]:
    said: list[Any] = []
    if request.rejected:
        said.append(f"{request.rejected} rows of request {request.id} are no keys: see optouts/rejected")
    if found.unmatched:
        said.append(f"{found.unmatched} of {found.keys} keys of request {request.id} match nothing")
    if found.near_unseen:
        said.append(
            f"{found.near_unseen} samples may look like what request {request.id} names, and were not looked at"
        )
    return tuple(said)
