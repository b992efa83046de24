"""From what was handed in to a request of the ledger. The rows that are none are written first, so that no request names rows that nobody finds."""

from __future__ import annotations

import re
from datetime import datetime

from pydantic import ValidationError

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.optouts.request import CONFIRM_ABOVE, Action, Request, ordered, read_request, request_id, submit
from smalti.optouts.rows import Parsed
from smalti.optouts.salt import salt_of
from smalti.optouts.status import State, standings

NOTHING = Parsed()
"""What a withdrawal hands in."""


def hand_in(
    lake: Lake,
    *,
    action: Action,
    reference: str,
    reason: str = "",
    parsed: Parsed = NOTHING,
    submission: str,
    submitted: datetime,
    submitted_by: str = "",
    withdraws: str | None = None,
    confirm_above: int = CONFIRM_ABOVE,
    grace_days: float | None = None,
) -> Request:
    """Put what somebody asks for into the ledger, or find it there: the same keys from the same submission are one request.

    Args:
        reference: by which whoever asks knows it; it stands in logs and on screens, so what cannot be printed becomes blanks.
        submission: what was handed in: equal for two calls that hand in one thing, and another one for all else.
        submitted: aware. Of a request that is there already, what is there counts.
        withdraws: id of the request that is taken back; goes with Action.WITHDRAW.
        grace_days: of a request to erase: what no run of it goes below.
    Raises:
        InputError: no row of it is a key (the rejected rows are written all the same), a field is wrong, what is withdrawn cannot be, or
            the very request was refused or taken back before.
    """
    reference = " ".join("".join(each if each.isprintable() else " " for each in reference).split())
    if withdraws is not None:
        _check_can_be_withdrawn(lake, withdraws)
    keys = tuple(ordered(parsed.keys))
    name = request_id(action, reference, keys, withdraws, submission, salt_of(lake))
    _check_not_over(lake, name)
    try:
        request = Request(
            id=name,
            action=action,
            reference=reference,
            reason=reason.strip(),
            submission=submission,
            submitted=submitted,
            submitted_by=submitted_by,
            keys=keys,
            withdraws=withdraws,
            confirm_above=confirm_above,
            grace_days=grace_days if action == Action.ERASE else None,
            rejected=len(parsed.rejected),
        )
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        if keys or first["loc"] or action == Action.WITHDRAW:
            raise InputError(wrong.removeprefix(": "), f"request {name}", "Mend it, and hand it in again") from None
        request = None
    if parsed.rejected:
        objects.create_bytes(lake.optout_rejected(name), parsed.encode_rejected())
    if request is None:
        raise _no_key(lake, name, parsed)
    return submit(lake, request)


def _no_key(lake: Lake, name: str, parsed: Parsed) -> InputError:
    if not parsed.rejected:
        return InputError("there is no key in it", f"request {name}", "Write one key a line, or a row")
    first = parsed.rejected[0]
    return InputError(
        f"none of its {len(parsed.rejected):,} rows is a key; row {first.row}: {first.reason}",
        lake.optout_rejected(name),
        "Mend the rows that this file names, and hand them in again",
    )


def _check_not_over(lake: Lake, request: str) -> None:
    """What was refused or taken back is asked anew by another request: to find the old one would look as if it applied."""
    forgotten = objects.exists(lake.optout_forgotten(request))
    if not forgotten and not objects.exists(lake.optout_request(request)):
        return
    [standing] = standings(lake, [request])
    if forgotten or standing.state in (State.REFUSED, State.WITHDRAWN):
        raise InputError(
            f"the same was handed in under this reference before, and {standing.shown}"
            + (", and its keys were removed since" if forgotten else ""),
            f"request {request}",
            "Ask anew under another reference",
        )


def _check_can_be_withdrawn(lake: Lake, request: str) -> None:
    if not re.fullmatch("[0-9a-f]{16}", request):
        raise InputError("this is no id of a request", "the request to withdraw", "`smalti optout status` lists them")
    found = read_request(lake, request)
    if found.action in (Action.WITHDRAW, Action.QUERY):
        raise InputError(
            f"a request of the kind {found.action} cannot be withdrawn",
            f"request {request}",
            "Withdraw one that excludes or erases; what was withdrawn is asked for anew",
        )
