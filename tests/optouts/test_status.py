"""How far a request is, from what lies in the ledger."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.optouts.heads import BLOCK as HEADS
from smalti.optouts.parse import parse_text
from smalti.optouts.preview import Preview
from smalti.optouts.request import Action, Answer, write_answer
from smalti.optouts.resolution import Block, Resolution
from smalti.optouts.status import standings, survey
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


def answer(lake: Lake, request: str, apply: bool, *, turn: int = 1) -> None:
    said = {"request": request, "apply": apply, "by": "me", "answered": datetime.now(UTC), "preview_sha256": "0" * 64}
    write_answer(lake, Answer.model_validate(said), turn)


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


def looked_at(lake: Lake, request: str, matched: int = 1001, turn: int = 1) -> None:
    """As smalti.optouts.preview writes it."""
    counts: dict[str, Any] = dict.fromkeys(("keys", "samples", "by_key", "near", "unmatched"), 0)
    counts |= {name: {} for name in ("kinds", "sources", "parts", "tables", "releases")}
    made = Preview(request=request, made=datetime.now(UTC), matched=matched, shown=(), shown_near=(), **counts)
    objects.create_bytes(lake.optout_preview(request, turn), compress(made.encode()))


def shown(lake: Lake) -> list[tuple[str, str]]:
    return [(each.id, each.shown) for each in standings(lake)]


def test_a_request_goes_through_its_states(any_lake: Lake) -> None:
    assert standings(any_lake) == []
    first, second = handed(any_lake, 2), handed(any_lake, 1, action=Action.ERASE)
    assert shown(any_lake) == [(second, "handed in"), (first, "handed in")], "the one that was handed in first first"
    looked_at(any_lake, first)
    looked_at(any_lake, second)
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


def test_a_preview_waits_for_a_person_only_if_somebody_is_to_be_asked(lake: Lake) -> None:
    request = handed(lake, 1)
    looked_at(lake, request, matched=1000)
    assert shown(lake) == [(request, "looked at")]
    looked_at(lake, request, turn=2)
    assert shown(lake) == [(request, "waits for confirmation")], "the newest counts"
    wide = handed(lake, 2, parsed=parse_text("domain example.org"))
    looked_at(lake, wide, matched=0)
    assert shown(lake)[1] == (wide, "waits for confirmation")
    assert survey(lake).condense(lake) == 0


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


class Counting:
    """The store, and how often it was asked."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self.store, name)


def past(lake: Lake, number: int) -> str:
    """A request that is long over: excluded, erased, asked or refused."""
    action = (Action.EXCLUDE, Action.ERASE, Action.QUERY, Action.EXCLUDE)[number % 4]
    said: dict[str, Any] = {
        "action": action,
        "reference": f"T-{number}",
        "submitted": f"2026-10-01T00:{number % 60:02d}:00Z",
    }
    request = f"{number:016x}"
    said |= {"id": request, "submission": "x", "submitted_by": "me", "reason": "", "keys": [1], "rejected": 0}
    objects.create_bytes(lake.optout_request(request), compress(canonical_json(said)))
    if number % 4 == 3:
        answer(lake, request, False)
    else:
        objects.create_bytes(lake.optout_receipt(request, action), b"{}")
    return request


def test_past_requests_cost_next_to_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 past requests in 512 steps, and three that wait."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 3,000 objects: nothing here is about power cuts
    ids = [past(lake, number) for number in range(1000)]
    steps = [
        Resolution(position=at, requests=(ids[at],), resolved=datetime(2026, 10, 1, tzinfo=UTC)) for at in range(1, 513)
    ]
    for each in steps:
        objects.create_bytes(lake.optout_resolution(each.position), each.encode())
    for last in (256, 512):
        some = {each.requests[0]: each.position for each in steps[last - 256 : last]}
        block = Block(first=last - 255, position=last, requests=some, withdrawn={}, withdrawals={}, parts=(), matched=(), places={}, ids={}, unmatched={})  # fmt: skip
        objects.create_bytes(lake.optout_block(last), block.encode())
    for hour in (1, 2, 3):
        handed(lake, hour)
    before = standings(lake)
    assert len(before) == 1003
    assert survey(lake).condense(lake) == 1000 // HEADS
    assert survey(lake).condense(lake) == 0, "what is in a block is in none again"
    store = Counting(objects._FILES)
    monkeypatch.setattr(objects, "_FILES", store)
    assert standings(lake) == before, "whoever reads blocks reads the same"
    tail = 1000 % HEADS
    assert store.asked["walk"] == 3, "requests, receipts, steps: on GCS a request for each thousand objects"
    assert store.asked["read"] <= 2 + 1000 // HEADS + tail + 3
    assert store.asked["read_versioned"] <= tail // 4 + 1, "answers of what was refused and is in no block yet"
    assert store.asked["names"] == 1
    assert store.asked.total() == sum(store.asked[name] for name in ("walk", "read", "read_versioned", "names"))
    assert store.asked.total() < 180, "and 5,000 before"


def test_what_a_block_says_stays_true_when_a_request_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    ids = [past(lake, number) for number in range(HEADS)]
    assert survey(lake).condense(lake) == 1
    assert dict(shown(lake))[ids[1]] == "proven"
    step(lake, 1, withdrawn=[ids[0]], withdrawals=[])
    assert dict(shown(lake))[ids[0]] == "withdrawn at position 1"
    objects.delete_object(lake.optout_head_block(1))
    assert dict(shown(lake))[ids[3]] == "refused", "a block that is lost is no loss"
    assert survey(lake).condense(lake) == 1


def test_a_block_of_heads_that_is_damaged_is_named(lake: Lake) -> None:
    handed(lake, 1)
    objects.create_bytes(lake.optout_head_block(1), compress(b'{"heads": ["sesame"]}'))
    with pytest.raises(CorruptError, match="heads") as caught:
        standings(lake)
    assert "sesame" not in str(caught.value)


def test_what_waits_a_second_time_says_so_though_it_was_confirmed_once(any_lake: Lake) -> None:
    request = handed(any_lake, 1)
    looked_at(any_lake, request)
    answer(any_lake, request, True)
    assert shown(any_lake) == [(request, "confirmed")]
    survey(any_lake).condense(any_lake)
    looked_at(any_lake, request, turn=2)
    assert shown(any_lake) == [(request, "waits for confirmation")]
    said = {"request": request, "apply": False, "by": "me", "answered": datetime.now(UTC), "preview_sha256": "0" * 64}
    write_answer(any_lake, Answer.model_validate(said), 2)
    assert shown(any_lake) == [(request, "refused")]
