"""How far each request is, told from the objects of the ledger alone. Nothing of a request's keys is in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import AwareDatetime, BaseModel, ValidationError

from smalti import objects
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.objects import join_uri
from smalti.optouts.request import Action, read_answer, request_ids
from smalti.release.skips import damaged, decompress

_STEP = re.compile(r"\d{8}\.json\.gz")
_READERS = 16


class State(StrEnum):
    """In the order in which a request goes through them."""

    HANDED_IN = "handed in"
    WAITS = "waits for confirmation"
    REFUSED = "refused"
    CONFIRMED = "confirmed"
    RESOLVED = "resolved"
    EXCLUDED = "excluded, to be erased"
    PROVEN = "proven"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class Standing:
    """One request and how far it is.

    keys, rejected: how many. position: where it was resolved, or has taken back the other one. withdraws: that other one. withdrawn: where it was
    taken back itself.
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

    @property
    def shown(self) -> str:
        """The state for a person."""
        if self.state == State.WITHDRAWN:
            return f"{self.state} at position {self.withdrawn}"
        return f"{self.state} at position {self.position}" if self.state == State.RESOLVED else self.state.value


class _Head(BaseModel):
    """What is read of a request: its keys are not looked at."""

    id: str
    action: Action
    reference: str
    submitted: AwareDatetime
    submitted_by: str
    keys: list[Any]
    rejected: int
    withdraws: str | None = None


class _Step(BaseModel):
    """What is read of a resolution: what it matched is not looked at."""

    position: int
    requests: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    withdrawals: tuple[str, ...] = ()


def standings(lake: Lake, requests: Iterable[str] | None = None) -> list[Standing]:
    """Every request, or these, the one that was handed in first first.

    Raises:
        InputError: there is no request of such an id.
        CorruptError: an object of the ledger is damaged.
    """
    wanted = request_ids(lake) if requests is None else list(requests)
    with ThreadPoolExecutor(_READERS) as pool:
        steps = pool.map(lambda name: _read(_Step, join_uri(lake.optout_resolutions(), name)), _steps(lake))
        resolved, withdrawn = _positions(steps)
        found = list(pool.map(lambda request: _standing(lake, request, resolved, withdrawn), wanted))
    return sorted(found, key=lambda each: (each.submitted, each.id))


def _steps(lake: Lake) -> list[str]:
    return [name for name in objects.list_names(lake.optout_resolutions()) if _STEP.fullmatch(name)]


def _positions(steps: Iterable[_Step]) -> tuple[dict[str, int], dict[str, int]]:
    """Request -> where it was resolved; request -> where it was taken back."""
    resolved: dict[str, int] = {}
    withdrawn: dict[str, int] = {}
    for step in steps:
        resolved |= dict.fromkeys([*step.requests, *step.withdrawals], step.position)
        withdrawn |= dict.fromkeys(step.withdrawn, step.position)
    return resolved, withdrawn


def _standing(lake: Lake, request: str, resolved: Mapping[str, int], withdrawn: Mapping[str, int]) -> Standing:
    uri = lake.optout_request(request)
    try:
        head = _read(_Head, uri)
    except MissingObject:
        raise InputError("there is no such request", uri, "`smalti optout status` lists those that there are") from None
    return Standing(
        id=request,
        state=_state(lake, request, head.action, resolved, withdrawn),
        action=head.action,
        reference=head.reference,
        submitted=head.submitted,
        submitted_by=head.submitted_by,
        keys=len(head.keys),
        rejected=head.rejected,
        position=resolved.get(request),
        withdraws=head.withdraws,
        withdrawn=withdrawn.get(request),
    )


def _state(
    lake: Lake, request: str, action: Action, resolved: Mapping[str, int], withdrawn: Mapping[str, int]
) -> State:
    if request in withdrawn:
        return State.WITHDRAWN
    if objects.exists(lake.optout_receipt(request, action.value)):
        return State.PROVEN
    if action == Action.ERASE and objects.exists(lake.optout_receipt(request, Action.EXCLUDE.value)):
        return State.EXCLUDED
    if request in resolved:
        return State.RESOLVED
    answer = read_answer(lake, request)
    if answer is not None:
        return State.CONFIRMED if answer.apply else State.REFUSED
    return State.WAITS if objects.exists(lake.optout_preview(request)) else State.HANDED_IN


R = TypeVar("R", bound=BaseModel)


def _read(model: type[R], uri: str) -> R:
    """Some fields of an object. Raises MissingObject, CorruptError."""
    content = decompress(objects.read_bytes(uri), uri)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise damaged(uri, f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
