"""How far a request is, from what lies in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.optouts.parse import parse_text
from smalti.optouts.request import Action, Answer, write_answer
from smalti.optouts.status import standings
from smalti.optouts.submit import hand_in
from smalti.release.skips import canonical_json, compress


def handed(lake: Lake, hour: int, **changes: Any) -> str:
    fields: dict[str, Any] = {"action": Action.EXCLUDE, "parsed": parse_text("owner sesame\nnonsense")}
    return hand_in(
        lake,
        reference="T-1",
        submission=f"run {hour}",
        submitted=datetime(2026, 11, 30, hour, tzinfo=UTC),
        **(fields | changes),
    ).id


def answer(lake: Lake, request: str, apply: bool) -> None:
    said = {"request": request, "apply": apply, "by": "me", "answered": datetime.now(UTC), "preview_sha256": "0" * 64}
    write_answer(lake, Answer.model_validate(said))


def step(lake: Lake, position: int, **fields: Any) -> None:
    """As smalti.optouts.resolution writes one."""
    said = {
        "version": 1,
        "position": position,
        "parts": [],
        "places": {"x": {"s": [1]}},
        "resolved": "2026-11-30T12:00:00Z",
    }
    objects.create_same(lake.optout_resolution(position), compress(canonical_json(said | fields)))


def shown(lake: Lake) -> list[tuple[str, str]]:
    return [(each.id, each.shown) for each in standings(lake)]


def test_a_request_goes_through_its_states(any_lake: Lake) -> None:
    assert standings(any_lake) == []
    first, second = handed(any_lake, 2), handed(any_lake, 1, action=Action.ERASE)
    assert shown(any_lake) == [(second, "handed in"), (first, "handed in")], "the one that was handed in first first"
    objects.create_bytes(any_lake.optout_preview(first), b"")
    objects.create_bytes(any_lake.optout_preview(second), b"")
    assert shown(any_lake)[1] == (first, "waits for confirmation")
    answer(any_lake, first, True)
    answer(any_lake, second, False)
    assert shown(any_lake) == [(second, "refused"), (first, "confirmed")]
    step(any_lake, 1, requests=["0" * 16])
    step(any_lake, 2, requests=[first])
    objects.create_bytes(any_lake.optout_matched("0" * 64), b"")
    assert shown(any_lake)[1] == (first, "resolved at position 2")
    objects.create_bytes(any_lake.optout_receipt(first, "exclude"), b"{}")
    assert shown(any_lake)[1] == (first, "proven")
    [standing] = standings(any_lake, [first])
    assert (standing.keys, standing.rejected, standing.position, standing.action) == (1, 1, 2, Action.EXCLUDE)
    assert "sesame" not in repr(standing)


def test_an_erasure_is_proven_by_its_own_receipt(lake: Lake) -> None:
    request = handed(lake, 1, action=Action.ERASE)
    step(lake, 1, requests=[request])
    objects.create_bytes(lake.optout_receipt(request, "exclude"), b"{}")
    assert shown(lake) == [(request, "excluded, to be erased")]
    objects.create_bytes(lake.optout_receipt(request, "erase"), b"{}")
    assert shown(lake) == [(request, "proven")]


def test_what_was_taken_back_says_so_whatever_was_proven(lake: Lake) -> None:
    request = handed(lake, 1)
    taken = handed(lake, 2, action=Action.WITHDRAW, withdraws=request, parsed=parse_text(""))
    step(lake, 1, requests=[request])
    objects.create_bytes(lake.optout_receipt(request, "exclude"), b"{}")
    assert shown(lake) == [(request, "proven"), (taken, "handed in")]
    step(lake, 2, withdrawn=[request], withdrawals=[taken])
    assert shown(lake) == [(request, "withdrawn at position 2"), (taken, "resolved at position 2")]


def test_a_request_that_is_not_there_and_one_that_is_damaged(lake: Lake) -> None:
    for request in ("0" * 16, "../../x", "a/b", ""):
        with pytest.raises(InputError):
            standings(lake, [request])
    objects.create_bytes(lake.optout_request("0" * 16), compress(b'{"id": "sesame"}'))
    with pytest.raises(CorruptError) as caught:
        standings(lake)
    assert "sesame" not in str(caught.value)
