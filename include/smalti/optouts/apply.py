"""The stages after a preview: apply a request that may be applied, and prove what became of it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pydantic import Field

from smalti.accounting import Report
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.optouts.ledger import TooMany, resolve, settle
from smalti.optouts.preview import Preview, look_again, read_preview, turns, why_ask
from smalti.optouts.proof import prove as prove_request
from smalti.optouts.receipt import KIND
from smalti.optouts.request import Action, Answer, Request, read_answer, read_request, write_answer
from smalti.optouts.statement import state_answer
from smalti.settings import OptoutRun

LIMIT = "limit"
"""Who answered where nobody had to."""


class ApplyReport(Report):
    """Attributes:
    position: of the ledger; a training run that starts now applies everything up to it.
    succeeded: `<dataset>/<version>` whose tree held samples -> the version in its place; empty: nothing was left for one.
    """

    request: str
    action: str
    position: int
    succeeded: dict[str, str] = Field({})


class ProveReport(Report):
    """What became of a request."""

    request: str
    effective: bool = Field(description="nobody is served what it names; of a query: it was answered")
    receipt: str = Field(description="empty: there is none yet, see the warnings")
    page: str


def apply(lake: Lake, run: OptoutRun) -> ApplyReport:
    """Let a request take effect; a second time nothing changes.

    Parts may have come since it was looked at. If it now matches more than may be applied without asking, and more than its preview said,
    nothing is applied: it has another preview then, and waits for an answer to that.

    Training runs leave out what the snapshot names. Trees are read without it, so a live version whose tree holds any of it is
    succeeded by one without.

    Raises:
        InputError: a person has refused it, or has not confirmed what needs it.
        CorruptError: the snapshot is in force, but a successor of a version with a tree does not verify.
    """
    began = time.monotonic()
    request = read_request(lake, run.request)
    if request.action == Action.QUERY:
        raise InputError(
            f"request {request.id} only asks what is held", "opt-outs", "Hand in another one, with exclude or erase"
        )
    answer = read_answer(lake, request.id) or _answer(lake, request, run)
    if not answer.apply:
        raise InputError(f"request {request.id} was refused", "opt-outs", "Hand it in again if that was wrong")
    turn = turns(lake, request.id)
    seen = read_preview(lake, request.id, turn) if turn else None
    limits = {request.id: max(request.confirm_above, 0 if seen is None else seen.matched)}
    looked = {} if seen is None or seen.reached is None else {request.id: seen.reached}
    try:
        resolve(lake, [request.id], limits=limits, looked=looked)
    except TooMany as error:
        before = "its preview is lost" if seen is None else f"{seen.matched} when it was looked at"
        page = look_again(lake, request, turn + 1)
        raise InputError(
            f"request {request.id} waits for a person: it matches {error.matched} places now, and {before}",
            page,
            "Look at its new page and confirm it: clear the run from `preview` on, or `smalti optout apply REQUEST --yes`",
        ) from error
    position = settle(lake)
    from smalti.release.successors import SUCCEEDED, succeed  # the DAG's file imports this module at every parse

    done = succeed(lake, why=SUCCEEDED)
    return ApplyReport(
        stage="optout_apply",
        seconds=round(time.monotonic() - began, 3),
        request=request.id,
        action=request.action,
        position=position,
        succeeded={f"{each.dataset}/{each.old}": each.new or "" for each in done},
        warnings=tuple(
            f"nothing is left of {each.dataset} {each.old}: it is served no more, and nothing is in its place"
            for each in done
            if each.new is None
        ),
    )


def refuse(lake: Lake, request: str, by: str) -> Answer:
    """Record that a person does not want a request applied. The first answer counts."""
    turn = max(1, turns(lake, request))
    found = _seen(lake, read_request(lake, request), turn)
    said = Answer(
        request=request, apply=False, by=by, answered=datetime.now(UTC), preview_sha256=found.digest() if found else ""
    )
    return write_answer(lake, said, turn)


def prove(lake: Lake, run: OptoutRun) -> ProveReport:
    """Read back what is served and write the receipt; of a query and a withdrawal, say what is held and what was done.

    Raises:
        CorruptError: something that the request names is served.
    """
    began = time.monotonic()
    request = read_request(lake, run.request)
    kind, warnings = request.action.value, []
    if request.action in (Action.QUERY, Action.WITHDRAW):
        state_answer(lake, request.id)
    else:
        kind = KIND
        receipt = prove_request(lake, request.id)
        if receipt.effective is None:
            warnings = [
                f"request {request.id} is not in effect: {each.where}: {each.why}" for each in receipt.unreachable
            ]
    return ProveReport(
        stage="optout_prove",
        seconds=round(time.monotonic() - began, 3),
        warnings=tuple(warnings),
        request=request.id,
        effective=not warnings,
        receipt="" if warnings else lake.optout_receipt(request.id, kind),
        page="" if warnings else lake.optout_receipt_page(request.id, kind),
    )


def _answer(lake: Lake, request: Request, run: OptoutRun) -> Answer:
    turn = max(1, turns(lake, request.id))
    found = _seen(lake, request, turn)
    why = why_ask(request, found.matched if found else 0)
    was_seen = run.seen is None or found is None or run.seen == found.digest()
    if why and not (run.confirmed_by and was_seen):
        raise InputError(
            f"request {request.id} waits for a person: {why}",
            lake.optout_preview_page(request.id, turn),
            "Look at its page, and confirm it in Airflow or with `smalti optout apply REQUEST --yes`",
        )
    said = Answer(
        request=request.id,
        apply=True,
        by=run.confirmed_by or LIMIT,
        answered=datetime.now(UTC),
        preview_sha256=found.digest() if found else "",
    )
    return write_answer(lake, said, turn)


def _seen(lake: Lake, request: Request, turn: int) -> Preview | None:
    """The preview that an answer is about; a request that takes another one back has none."""
    found = read_preview(lake, request.id, turn)
    if found is None and request.action != Action.WITHDRAW:
        raise InputError(f"request {request.id} has no preview", "opt-outs", "Run its preview first")
    return found
