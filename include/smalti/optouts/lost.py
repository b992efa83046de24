"""Requests that wait for nothing but time: their run was lost, or failed, or a grace is over, and nobody has to be asked.

A run of the DAG takes a request from its keys to the last receipt. A run may be deleted or killed, and whoever cleared the red task may
have gone home. So each state has a time after which another run goes on; all that such a run does a second time changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from smalti.lake import Lake
from smalti.objects import ObjectInfo
from smalti.optouts.erasing import read_erasing
from smalti.optouts.request import Action, read_request
from smalti.optouts.status import ANSWER, PREVIEW, Standing, State, Survey, survey
from smalti.settings import OptoutRun

_DAYS = float(OptoutRun.model_fields["grace_days"].default)


@dataclass(frozen=True)
class Lost:
    """A request that another run is to go on with.

    Attributes:
        grace_days: that the run waits for: as was asked for with the request; None: nobody said.
        removes: what the run begins with reads and writes whole parts, or the whole lake.
    """

    request: str
    grace_days: float | None = None
    removes: bool = False


def lost(lake: Lake, now: datetime, *, own_run: timedelta, own_removal: timedelta) -> list[Lost]:
    """Every request that should have gone on by now, and has not; the one that was handed in first first.

    Args:
        now: aware.
        own_run: time that the run which did one step has for the next one.
        own_removal: the same where parts are written anew, or bytes removed.
    Raises:
        CorruptError: an object of the ledger is damaged.
    """
    looked = survey(lake)
    found: list[Lost] = []
    for each in looked.standings:
        if each.state == State.EXCLUDED:
            grace = read_request(lake, each.id).grace_days
            if _may_go_on(lake, looked, each, grace) + own_removal < now:
                found.append(Lost(each.id, grace, removes=True))
        elif (since := _since(looked, each)) is not None and since + own_run < now:
            grace = read_request(lake, each.id).grace_days if each.action == Action.ERASE else None
            found.append(Lost(each.id, grace))
    return found


def _since(looked: Survey, each: Standing) -> datetime | None:
    """When a request came into the state that it is in; None: it waits for a person, or for nothing."""
    folder = looked.folders[each.id]
    if each.state == State.HANDED_IN:
        return each.submitted
    if each.state == State.LOOKED_AT:
        return _newest([info for name, info in folder.items() if PREVIEW.fullmatch(name)])
    if each.state == State.CONFIRMED:
        return _newest([info for name, info in folder.items() if ANSWER.fullmatch(name)])
    if each.state == State.RESOLVED and each.position in looked.steps:
        return _newest([looked.steps[each.position]])
    return None


def _may_go_on(lake: Lake, looked: Survey, each: Standing, grace: float | None) -> datetime:
    """When the next step of what is excluded and to be erased could begin."""
    erasing = read_erasing(lake, each.id)
    if erasing is None:
        return _newest([looked.receipts[each.id][f"{Action.EXCLUDE}.json"]])
    return erasing.erased + timedelta(days=_DAYS if grace is None else grace)


def _newest(infos: list[ObjectInfo]) -> datetime:
    return datetime.fromtimestamp(max(info.written for info in infos), UTC)
