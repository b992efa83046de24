"""What is no longer needed of a request is removed, a stated time after its end (`smalti.config.Retention`).

    optouts/rejected/...                    rows and files as they were handed in
    requests/<request>/preview.json.gz, .html    with pictures
    requests/<request>/request.json.gz      of what was taken back, refused or only asked: forgotten.json takes its place

Keys of what is in force stay, because what arrives later is compared with them. So do steps, snapshots and receipts: they name samples, by
their ids, and no key.

A request ends with its last receipt, with a no, or when it is taken back; taken back once it never is in force again
(`smalti.optouts.ledger`). Nothing here is needed by a step: a call that is killed anywhere leaves the rest to the next one.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pydantic import Field

from smalti import objects
from smalti.accounting import Report
from smalti.config import Retention
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.objects import ObjectInfo
from smalti.optouts.ledger import read_step
from smalti.optouts.preview import read_preview
from smalti.optouts.request import Action, Forgotten, read_request
from smalti.optouts.status import ENDED, Standing, State, Survey, survey

log = logging.getLogger("smalti")

_PREVIEW = re.compile(r"preview(-\d+)?\.(?:json\.gz|html)")
"""Of the first turn, or of a later one."""

_ANSWER = re.compile(r"answer(-\d+)?\.json")

_REQUEST, _STAYS = "request.json.gz", "forgotten.json"
"""The second is there before the first goes: whoever looks in between finds either."""


class ForgetReport(Report):
    """What one call removed. Each is a count."""

    requests: int = Field(description="that the ledger has")
    ended: int = Field(description="of these, those of which nothing more is to be done")
    previews: int = Field(0, description="requests whose preview was removed")
    rejected: int = Field(0, description="lists of rejected rows")
    files: int = Field(0, description="rejected files")
    keys: int = Field(0, description="requests whose keys were removed")


def forget(lake: Lake, now: datetime, settings: Retention) -> ForgetReport:
    """Remove what has had its time. A second time there is nothing to do.

    Args:
        now: aware.
    Raises:
        CorruptError: an object of the ledger is damaged; nothing of it is removed.
        LakeError: the right to delete is missing.
    """
    began = time.monotonic()
    found = survey(lake)
    done: Counter[str] = Counter()
    rejected = {info.uri: info for info in objects.list_objects(lake.optout_rejected_root())}
    for standing in found.standings:
        mine = rejected.pop(lake.optout_rejected(standing.id), None)
        ended = _ended(found, standing)
        if ended is None:
            continue
        folder = found.folders[standing.id]
        if mine is not None and _is_over(now, settings.rejected_days, [ended, mine.written]):
            done["rejected"] += _remove([mine])
        shown = _previews(standing, folder)
        if shown and _is_over(now, settings.preview_days, [ended, *(each.written for each in shown)]):
            _remove_reached(lake, standing, folder)
            done["previews"] += bool(_remove(shown))
        if _REQUEST in folder and _keys_are_idle(standing) and _is_over(now, settings.keys_days, [ended]):
            if _STAYS not in folder:  # the first thing that a killed call has done
                stays = Forgotten.of(read_request(lake, standing.id), now)
                objects.create_bytes(lake.optout_forgotten(standing.id), stays.encode())
            done["keys"] += _remove([folder[_REQUEST]])
    left = [each for each in rejected.values() if _is_over(now, settings.rejected_days, [each.written])]
    lists = [each for each in left if each.uri.endswith(".jsonl") and "/rejected/files/" not in each.uri]
    done["rejected"] += _remove(lists)
    done["files"] += _remove([each for each in left if each not in lists])
    report = ForgetReport(
        stage="optout_forget",
        seconds=round(time.monotonic() - began, 3),
        requests=len(found.standings),
        ended=sum(each.state in ENDED for each in found.standings),
        **done,
    )
    log.info("opt-outs: removed %d previews, %d lists and %d files of rejected rows, keys of %d requests",
             report.previews, report.rejected, report.files, report.keys)  # fmt: skip
    return report


def _ended(found: Survey, standing: Standing) -> float | None:
    """Unix time since which nothing more is to be done for a request; None: something is."""
    if standing.state == State.WITHDRAWN and standing.withdrawn is not None:
        step = found.steps.get(standing.withdrawn)
        return None if step is None else step.written
    if standing.state == State.PROVEN:
        last = re.compile(rf"{standing.action}(-\d+)?\.json")
        return max(info.written for name, info in found.receipts[standing.id].items() if last.fullmatch(name))
    if standing.state == State.REFUSED:
        return max(info.written for name, info in found.folders[standing.id].items() if _ANSWER.fullmatch(name))
    return None


def _previews(standing: Standing, folder: Mapping[str, ObjectInfo]) -> list[ObjectInfo]:
    """Its previews and their pages, a page before its preview: one that was left behind would be taken for the page of the next preview.

    Of what was refused at a later turn the data of that turn stay: without them an answer to an earlier one would count.
    """
    found = {name: turn for name in folder if (turn := _PREVIEW.fullmatch(name))}
    stays = standing.state == State.REFUSED
    names = [name for name, turn in found.items() if not (stays and turn[1] and name.endswith(".gz"))]
    return [folder[name] for name in sorted(names, key=lambda name: name.endswith(".gz"))]


def _remove_reached(lake: Lake, standing: Standing, folder: Mapping[str, ObjectInfo]) -> None:
    """Rows that its previews have found and that are no step's. Rows name their request, so no other step can come to the same ones."""
    used = None if standing.position is None else read_step(lake, standing.position).matched
    for name in folder:
        turn = _PREVIEW.fullmatch(name)
        if turn is None or not name.endswith(".gz"):
            continue
        try:
            seen = read_preview(lake, standing.id, int((turn[1] or "-1")[1:]))
        except CorruptError:
            continue  # it says nothing of rows any more, and goes
        if seen is not None and seen.reached is not None and seen.reached.rows not in (None, used):
            objects.delete_object(lake.optout_matched(str(seen.reached.rows)))


def _keys_are_idle(standing: Standing) -> bool:
    """Whether nothing is compared with its keys any more; what takes another request back has none."""
    return standing.action != Action.WITHDRAW and (
        standing.state in (State.WITHDRAWN, State.REFUSED) or standing.action == Action.QUERY
    )


def _is_over(now: datetime, days: float, since: Iterable[float]) -> bool:
    return max(since) <= (now - timedelta(days=days)).timestamp()


def _remove(infos: Iterable[ObjectInfo]) -> int:
    """Only what was looked at: an object that was made anew meanwhile stays."""
    return sum(objects.delete_object(each.uri, each.generation) for each in infos)
