"""What the opt-out DAGs do on a worker themselves: keys go from the form straight into the ledger, past Ray's jobs and their specs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.observability import stats

from smalti.config import load_retention
from smalti.errors import InputError, LakeError, MissingObject, SmaltiError
from smalti.lake import Lake
from smalti.objects import create_bytes, normalise_uri, read_bytes
from smalti.optouts.deadlines import counts, overdue, render, say_overdue, say_soon, soon
from smalti.optouts.inbox import nameless, take_in
from smalti.optouts.lost import lost
from smalti.optouts.parse import parse, parse_text
from smalti.optouts.request import Action, Request, read_request
from smalti.optouts.retention import forget
from smalti.optouts.rows import Parsed
from smalti.optouts.status import State, standings, survey
from smalti.optouts.submit import NOTHING, hand_in

log = logging.getLogger("smalti")

T = TypeVar("T")

MAPPED = 500
"""Runs that one call starts. Airflow's own limit is 1024 (max_map_length)."""


def hand_in_form(params: Mapping[str, Any], dag_run: Any) -> dict[str, Any]:
    """A run's form as a request of the ledger.

    Returns (XCom): its id, action and counts; no key.
    """
    try:
        lake = Lake.from_environment()
        if params.get("request"):
            return _said(read_request(lake, params["request"]))
        return _said(_hand_in(lake, params, dag_run))
    except InputError as error:
        raise AirflowFailException(str(error)) from None
    except SmaltiError as error:
        raise AirflowException(str(error)) from None


def take_in_files() -> list[dict[str, Any]]:
    """Put what lies in the inbox into the ledger.

    Returns (XCom): every request that no run has gone on with, each as the `conf` of one. A run that was started for it already is
    found by its name, so that nothing is lost where a try was killed after it had emptied the inbox.
    """
    try:
        lake = Lake.from_environment()
        for each in take_in(lake):
            if each.fault:
                log.warning("%s", each.fault)
        waiting = [
            each
            for each in standings(lake)
            if each.state == State.HANDED_IN and not each.submitted_by.startswith(_OURS)
        ]
    except SmaltiError as error:
        raise AirflowException(str(error)) from None
    return [{"request": each.id} for each in _in_turn(waiting)]


def _in_turn(waiting: list[T]) -> list[T]:
    """At most MAPPED of them, others each time: Airflow refuses more in one go, and those of which no run comes must not be in the way."""
    if len(waiting) <= MAPPED:
        return waiting
    start = int(datetime.now(UTC).timestamp()) // 300 * MAPPED % len(waiting)
    return [*waiting[start:], *waiting[:start]][:MAPPED]


def forget_what_is_over() -> dict[str, Any]:
    """Remove rejected rows, previews and idle keys of requests that ended long enough ago.

    Returns (XCom): counts.
    """
    try:
        report = forget(Lake.from_environment(), datetime.now(UTC), load_retention())
    except SmaltiError as error:
        raise AirflowException(str(error)) from None
    return report.model_dump(mode="json")


def take_lost() -> list[dict[str, Any]]:
    """Requests that wait for nothing but time: their run was lost, a tree held them up, or their grace is over.

    Returns (XCom): each as the `conf` of a run that goes on, and that run's name: one an hour; one a day, where parts or the whole lake
    are read. Nobody is asked again, and nothing is applied twice.
    """
    now = datetime.now(UTC)
    try:
        found = lost(Lake.from_environment(), now, own_run=_OWN_RUN, own_removal=_OWN_REMOVAL)
    except SmaltiError as error:
        raise AirflowException(str(error)) from None
    return [
        {
            "conf": _conf(each.request, each.grace_days),
            "run": f"remove_{each.request}_{now:%Y%m%d}" if each.removes else f"prove_{each.request}_{now:%Y%m%dT%H}",
        }
        for each in _in_turn(found)
    ]


def erase_again(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Requests of which something is in the lake again.

    Args:
        report: of the stage optout_look.
    Returns (XCom): each as the `conf` of a run, and that run's name: one a day.
    """
    day = datetime.now(UTC)
    try:
        lake, again = Lake.from_environment(), _in_turn(sorted(report["again"]))
        graces = {each: read_request(lake, each).grace_days for each in again}
    except SmaltiError as error:
        raise AirflowException(str(error)) from None
    return [{"conf": _conf(each, graces[each]), "run": f"again_{each}_{day:%Y%m%d}"} for each in again]


def _conf(request: str, grace_days: float | None) -> dict[str, Any]:
    return {"request": request} | ({} if grace_days is None else {"grace_days": grace_days})


def watch_deadlines(dag_run: Any) -> dict[str, Any]:
    """Count requests by state, write their page, and fail if one is late, or will be soon: the notifier tells whoever is to know.

    Returns (XCom): the counts and the page.
    """
    now = datetime.now(UTC)
    try:
        lake = Lake.from_environment()
        looked = survey(lake)
        found = looked.standings
        looked.condense(lake)  # so that it and the inbox, every five minutes, read little
        page = lake.run_object(dag_run.dag_id, dag_run.run_id, "watch", f"requests-{now:%H%M%S}.html")
        create_bytes(page, render(found, now).encode())
    except SmaltiError as error:
        raise AirflowException(str(error)) from None
    late, close, by_state = overdue(found, now), soon(found, now), counts(found)
    for state, count in by_state.items():
        stats.gauge(f"smalti.optouts.{state}", count)
    stats.gauge("smalti.optouts.overdue", len(late))
    stats.gauge("smalti.optouts.overdue_soon", len(close))
    if late or close:
        said = [say_overdue(late, now)] if late else []
        said += [say_soon(close, now)] if close else []
        raise AirflowFailException(f"{'. '.join(said)}. Page: {page}")
    return {**by_state, "overdue": 0, "page": page}


_OURS = "airflow:"

_OWN_RUN = timedelta(hours=1)
"""Time in which the run that did one step of a request does the next one."""

_OWN_REMOVAL = timedelta(days=2)
"""The same of the stages that read or write every image: see `smalti_airflow.blocks.LONGER`."""


def _hand_in(lake: Lake, params: Mapping[str, Any], dag_run: Any) -> Request:
    keys, file = params.get("keys") or "", params.get("file") or ""
    if keys and file:
        raise InputError("there are both keys and a file", "the form", "Fill in one of the two")
    if not (params.get("reference") or "").strip():
        raise InputError("there is no reference", "the form", "Write by what whoever asks knows the request")
    action = Action(params["action"])
    parsed = NOTHING
    if action != Action.WITHDRAW:
        parsed = _read(file) if file else parse_text(keys, "the form")
    return hand_in(
        lake,
        action=action,
        reference=params["reference"].strip(),
        reason=params.get("reason") or "",
        parsed=parsed,
        submission=f"{_OURS}{dag_run.dag_id}/{dag_run.run_id}",
        submitted=dag_run.run_after,
        submitted_by=f"{_OURS}{dag_run.triggering_user_name or 'unknown'}",
        withdraws=params.get("withdraws") or None,
        confirm_above=int(params["ask_above"]),
        grace_days=float(params["grace_days"]),
    )


def _read(file: str) -> Parsed:
    where = "the form's file"  # its name stands in no log: people call files by what is in them
    try:
        uri = normalise_uri(file)
    except SmaltiError:
        raise InputError(
            "this is not a URI that smalti can read", where, "Use file:///directory/name or gs://bucket/name"
        ) from None
    try:
        return parse(read_bytes(uri), uri.rpartition("/")[2], where)
    except MissingObject:
        raise InputError("there is no such file", where, "Fill in the URI of a file that is there") from None
    except LakeError as error:
        what, at, fix = (
            nameless(each, uri, "/" + uri.partition("://")[2].partition("/")[2], where) for each in error.args
        )
        raise LakeError(what, at, fix) from None


def _said(request: Request) -> dict[str, Any]:
    return {
        "request": request.id,
        "action": request.action.value,
        "keys": len(request.keys),
        "rejected": request.rejected,
    }
