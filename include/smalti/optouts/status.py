"""How far each request is, told from the objects of the ledger alone. Nothing of a request's keys is in it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import BaseModel

from smalti import objects
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.objects import ObjectInfo
from smalti.optouts.heads import Head, condense, read_blocks, read_heads, read_some
from smalti.optouts.preview import read_preview, why_ask
from smalti.optouts.request import READERS, Action, read_answer, read_request
from smalti.optouts.resolution import BLOCK

PREVIEW = re.compile(r"preview(?:-(\d+))?\.json\.gz")
ANSWER = re.compile(r"answer(?:-(\d+))?\.json")
"""Names in a request's folder: of the first turn, or of a later one."""

ERASING = re.compile(r"erasing(?:-(\d+))?\.json")
ERASE_RECEIPT = re.compile(r"erase(?:-(\d+))?\.json")
"""The same of what was erased, in a request's folder, and of its removals, among its receipts."""

log = logging.getLogger("smalti")

_STEP = re.compile(r"(block-)?(\d{8})\.json\.gz")


class State(StrEnum):
    """In the order in which a request goes through them. LOOKED_AT: it has a preview, and nobody needs to be asked."""

    HANDED_IN = "handed in"
    LOOKED_AT = "looked at"
    WAITS = "waits for confirmation"
    REFUSED = "refused"
    CONFIRMED = "confirmed"
    RESOLVED = "resolved"
    EXCLUDED = "excluded, to be erased"
    PROVEN = "proven"
    WITHDRAWN = "withdrawn"


ENDED = frozenset({State.PROVEN, State.REFUSED, State.WITHDRAWN})
"""Nothing more is to be done; what was refused was decided by a person."""

_WAITING = frozenset({State.HANDED_IN, State.LOOKED_AT, State.WAITS})
"""Nobody has answered yet."""


@dataclass(frozen=True)
class Standing:
    """One request and how far it is.

    keys, rejected: how many. position: where it was resolved, or has taken back the other one. withdraws: that other one. withdrawn: where it was
    taken back itself. again: when more of it was erased, after a removal that was proven.
    """

    id: str
    state: State
    action: Action
    reference: str
    submitted: datetime
    submitted_by: str
    keys: int
    rejected: int
    position: int | None = None
    withdraws: str | None = None
    withdrawn: int | None = None
    again: datetime | None = None

    @property
    def shown(self) -> str:
        """The state for a person."""
        if self.state == State.WITHDRAWN:
            return f"{self.state} at position {self.withdrawn}"
        return f"{self.state} at position {self.position}" if self.state == State.RESOLVED else self.state.value


class _Step(BaseModel):
    """What is read of a resolution: what it matched is not looked at."""

    position: int
    requests: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    withdrawals: tuple[str, ...] = ()


class _Block(BaseModel):
    """The same of a block of them: request -> step."""

    position: int
    requests: dict[str, int]
    withdrawn: dict[str, int]
    withdrawals: dict[str, int]


Objects = dict[str, ObjectInfo]
"""name -> object"""


@dataclass(frozen=True)
class Survey:
    """One look at the ledger: a listing of each of its folders, and of what is past a few objects that say it of many.

    Attributes:
        standings: the one that was handed in first first.
        folders, receipts: request -> what lies in its folder, and among its receipts.
        steps: position -> the step's object.
    """

    standings: list[Standing]
    folders: dict[str, Objects]
    receipts: dict[str, Objects]
    steps: dict[int, ObjectInfo]

    def condense(self, lake: Lake) -> int:
        """See to it that the next survey reads less. Returns how many objects that made."""
        return condense(lake, [_head(each) for each in self.standings if each.state not in _WAITING])


def survey(lake: Lake, requests: Iterable[str] | None = None) -> Survey:
    """Look at every request, or at these.

    Raises:
        InputError: there is no request of such an id.
        CorruptError: an object of the ledger is damaged.
    """
    wanted = None if requests is None else list(requests)
    folders = _folders(lake.optout_requests(), lake.optout_folder, wanted)
    receipts = _folders(lake.optout_receipts_root(), lake.optout_receipts, wanted)
    steps, resolved, withdrawn = _positions(lake)
    heads = read_heads(lake, folders, read_blocks(lake) if wanted is None else {})

    def look(request: str) -> Standing:
        head = heads[request]
        there, again = receipts.get(request, {}), None
        state = _state(lake, head, folders[request].keys(), there.keys(), request in resolved, request in withdrawn)
        if state == State.PROVEN and head.action == Action.ERASE:
            again = _erased_again(folders[request], there)
        return Standing(
            id=request,
            state=state if again is None else State.EXCLUDED,
            action=head.action,
            reference=head.reference,
            submitted=head.submitted,
            submitted_by=head.submitted_by,
            keys=head.keys,
            rejected=head.rejected,
            position=resolved.get(request),
            withdraws=head.withdraws,
            withdrawn=withdrawn.get(request),
            again=again,
        )

    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(look, folders))
    return Survey(sorted(found, key=lambda each: (each.submitted, each.id)), folders, receipts, steps)


def standings(lake: Lake, requests: Iterable[str] | None = None) -> list[Standing]:
    """Every request, or these, the one that was handed in first first. Raises as `survey` does."""
    return survey(lake, requests).standings


def _folders(root: str, folder: Callable[[str], str], requests: Sequence[str] | None) -> dict[str, Objects]:
    """Request -> what lies in its folder."""
    if requests is not None:
        return {
            each: {info.uri.removeprefix(folder(each) + "/"): info for info in objects.list_objects(folder(each))}
            for each in requests
        }
    found: dict[str, Objects] = {}
    for info in objects.list_objects(root):
        request, _, name = info.uri.removeprefix(f"{root}/").partition("/")
        found.setdefault(request, {})[name] = info
    return found


def _positions(lake: Lake) -> tuple[dict[int, ObjectInfo], dict[str, int], dict[str, int]]:
    """The steps; request -> where it was resolved; request -> where it was taken back."""
    steps: dict[int, ObjectInfo] = {}
    blocks: dict[int, ObjectInfo] = {}
    for info in objects.list_objects(lake.optout_resolutions()):
        name = _STEP.fullmatch(info.uri.rpartition("/")[2])
        if name:
            (blocks if name[1] else steps)[int(name[2])] = info
    covered = {position for last in blocks for position in range(last - BLOCK + 1, last + 1)}
    resolved: dict[str, int] = {}
    withdrawn: dict[str, int] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for block in pool.map(lambda last: read_some(_Block, blocks[last].uri), sorted(blocks)):
            resolved |= block.requests | block.withdrawals
            withdrawn |= block.withdrawn
        for step in pool.map(lambda each: read_some(_Step, steps[each].uri), sorted(steps.keys() - covered)):
            resolved |= dict.fromkeys([*step.requests, *step.withdrawals], step.position)
            withdrawn |= dict.fromkeys(step.withdrawn, step.position)
    return steps, resolved, withdrawn


def _state(
    lake: Lake, head: Head, folder: Collection[str], receipts: Collection[str], is_resolved: bool, is_withdrawn: bool
) -> State:
    if is_withdrawn:
        return State.WITHDRAWN
    if f"{head.action}.json" in receipts:
        return State.PROVEN
    if head.action == Action.ERASE and f"{Action.EXCLUDE}.json" in receipts:
        return State.EXCLUDED
    if is_resolved:
        return State.RESOLVED
    if head.refused:
        return State.REFUSED
    answer = read_answer(lake, head.id) if "answer.json" in folder else None
    if answer is not None:
        return State.CONFIRMED if answer.apply else State.REFUSED
    return _unanswered(lake, head.id, folder)


def _erased_again(folder: Objects, receipts: Objects) -> datetime | None:
    """When more of a request was erased than its receipts are about; None: nothing was."""
    erased = [info.written for name, info in folder.items() if ERASING.fullmatch(name)]
    proven = max(info.written for name, info in receipts.items() if ERASE_RECEIPT.fullmatch(name))
    return datetime.fromtimestamp(max(erased), UTC) if erased and max(erased) > proven else None


def _unanswered(lake: Lake, request: str, folder: Iterable[str]) -> State:
    """Of a request without an answer to its newest preview: whether that is to be answered by a person.

    A preview that is damaged is one for a person, too: how far the others are must not hang on it.
    """
    turns = [int(name[1] or 1) for name in map(PREVIEW.fullmatch, folder) if name]
    try:
        found = read_preview(lake, request, max(turns)) if turns else None
    except CorruptError as error:
        log.warning("%s", error)
        return State.WAITS
    if found is None:
        return State.HANDED_IN
    return State.WAITS if why_ask(read_request(lake, request), found.matched) else State.LOOKED_AT


def _head(standing: Standing) -> Head:
    same = {name: getattr(standing, name) for name in Head.model_fields if name != "refused"}
    return Head(**same, refused=standing.state == State.REFUSED)
