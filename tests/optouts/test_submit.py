"""From parsed rows to a request in the ledger: once, with its rejected rows beside it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.optouts.parse import parse_text
from smalti.optouts.request import Action, Forgotten, Request, ordered, read_request, request_id, request_ids, submit
from smalti.optouts.salt import Salt, salt_of
from smalti.optouts.submit import hand_in
from tests.conftest import snapshot

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def handed(lake: Lake, text: str = "owner Jane", **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "action": Action.EXCLUDE,
        "reference": "T-1",
        "submission": "run 1",
        "submitted": NOON,
        "submitted_by": "cli:me",
        "parsed": parse_text(text),
    }
    return hand_in(lake, **(fields | changes))


def test_one_submission_is_one_request_however_often_it_is_handed_in(any_lake: Lake) -> None:
    first = handed(any_lake, "owner Jane\nid cats/1")
    before = snapshot(any_lake.root)
    again = handed(
        any_lake, "cats/1\nowner Jane\nowner Jane", submitted=NOON + timedelta(days=1), submitted_by="cli:you"
    )
    assert again == first
    assert (again.submitted, again.submitted_by) == (NOON, "cli:me")
    assert snapshot(any_lake.root) == before
    assert read_request(any_lake, first.id) == first
    assert [key.value for key in first.keys] == ["cats/1", "Jane"]


@pytest.mark.parametrize(
    "change", [{"submission": "run 2"}, {"reference": "T-2"}, {"action": Action.ERASE}, {"text": "owner Joe"}]
)
def test_what_differs_is_another_request(lake: Lake, change: dict[str, Any]) -> None:
    assert handed(lake).id != handed(lake, **change).id
    assert len(request_ids(lake)) == 2


def test_nobody_without_the_salt_can_tell_the_keys_from_a_name(lake: Lake, tmp_path: Path) -> None:
    found = handed(lake)
    guessed = request_id(found.action, "T-1", found.keys, None, "run 1", None)
    assert found.id != guessed
    assert handed(Lake.at(str(tmp_path / "other"))).id not in (found.id, guessed)


def test_requests_that_were_there_before_the_salt_keep_their_names(any_lake: Lake) -> None:
    keys = tuple(ordered(parse_text("owner Jane").keys))
    old = Request(
        id=request_id(Action.EXCLUDE, "T-1", keys, None, "run 1", None),
        action=Action.EXCLUDE,
        reference="T-1",
        submission="run 1",
        submitted=NOON,
        keys=keys,
    )
    submit(any_lake, old)
    handed(any_lake, "owner Joe")
    assert handed(any_lake) == old
    objects.create_bytes(any_lake.optout_forgotten(old.id), Forgotten.of(old, NOON).encode())
    objects.delete_object(any_lake.optout_request(old.id))
    with pytest.raises(InputError, match="handed in under this reference before"):
        handed(any_lake)


def test_two_who_hand_in_at_once_hand_in_one_request(any_lake: Lake) -> None:
    """Nobody has asked this lake for its salt before."""
    barrier = threading.Barrier(4)

    def one(_: int) -> Request:
        barrier.wait()
        return handed(any_lake)

    with ThreadPoolExecutor(4) as pool:
        found = {each.id for each in pool.map(one, range(4))}
    assert [*found] == request_ids(any_lake)
    assert len(found) == 1


def test_the_salt_is_made_once_and_one_that_is_damaged_is_said_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = objects.list_names

    def slow(uri: str) -> list[str]:
        monkeypatch.undo()
        others.append(salt_of(lake))
        return real(uri)

    others: list[Salt] = []
    monkeypatch.setattr(objects, "list_names", slow)
    assert [salt_of(lake), salt_of(lake)] == [*others, *others], "that of whoever was first"
    objects.delete_object(lake.optout_salt())
    objects.create_bytes(lake.optout_salt(), b'{"version": 1, "value": ""}')
    with pytest.raises(CorruptError, match="value"):
        handed(lake)


def test_the_grace_of_a_request_to_erase_is_kept_with_it(any_lake: Lake) -> None:
    assert handed(any_lake, grace_days=30).grace_days is None, "what only excludes has none"
    found = handed(any_lake, action=Action.ERASE, grace_days=30)
    assert read_request(any_lake, found.id).grace_days == 30
    assert (found.grace(7), found.grace(40)) == (timedelta(days=30), timedelta(days=40)), "the larger counts"
    assert handed(any_lake, reference="T-3", action=Action.ERASE).grace(7) == timedelta(days=7)


def test_good_rows_apply_and_the_others_are_named_beside_the_request(any_lake: Lake) -> None:
    found = handed(any_lake, "owner Jane\n\nnonsense\nsha256 xyz")
    assert (len(found.keys), found.rejected) == (1, 2)
    lines = [json.loads(line) for line in objects.read_bytes(any_lake.optout_rejected(found.id)).splitlines()]
    assert [(line["row"], line["value"]) for line in lines] == [(3, "nonsense"), (4, "xyz")]
    assert "64 hexadecimal digits" in lines[1]["reason"]


def test_rejected_rows_are_there_before_the_request_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("smalti.optouts.submit.submit", killed)
    with pytest.raises(KeyboardInterrupt):
        handed(lake, "owner Jane\nnonsense")
    assert request_ids(lake) == []
    [rejected] = objects.list_objects(lake.optout_rejected_root())
    monkeypatch.undo()
    found = handed(lake, "owner Jane\nnonsense")
    assert lake.optout_rejected(found.id) == rejected.uri


def test_without_any_key_there_is_no_request_but_its_rejected_rows(any_lake: Lake) -> None:
    with pytest.raises(
        InputError, match=r"none of its 2 rows is a key; row 1: what kind of key .* Mend the rows"
    ) as caught:
        handed(any_lake, "sesame\nsha256 sesame")
    assert "sesame" not in str(caught.value)
    assert request_ids(any_lake) == []
    [rejected] = objects.list_objects(any_lake.optout_rejected_root())
    assert str(caught.value).startswith(rejected.uri)
    assert objects.read_bytes(rejected.uri).count(b"sesame") == 2
    with pytest.raises(InputError, match="there is no key in it"):
        handed(any_lake, "\n \n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reference": " "}, "reference: String should have at least 1 character"),
        ({"reference": "x" * 201}, "reference: String should have at most 200 characters"),
        ({"reason": "x" * 2001}, "reason: String should have at most 2000 characters"),
        ({"submitted": datetime(2026, 1, 1)}, "submitted: Input should have timezone info"),
        ({"confirm_above": -1}, "confirm_above: Input should be greater than or equal to 0"),
        ({"action": Action.WITHDRAW}, "`withdraws` goes with the action withdraw"),
    ],
)
def test_a_field_that_is_wrong_is_one_line_without_the_keys(lake: Lake, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        handed(lake, "owner sesame", **change)
    assert said in str(caught.value)
    assert "sesame" not in str(caught.value)
    assert [each.uri for each in objects.list_objects(lake.root)] == [lake.optout_salt()]


def test_a_reference_is_one_line(lake: Lake) -> None:
    assert handed(lake, reference=" T\n1\t2 ").reference == "T 1 2"


def test_a_withdrawal_names_a_request_that_can_be_withdrawn(lake: Lake) -> None:
    first = handed(lake)
    empty = parse_text("")
    taken = handed(lake, parsed=empty, action=Action.WITHDRAW, withdraws=first.id)
    assert (taken.withdraws, taken.keys) == (first.id, ())
    query = handed(lake, action=Action.QUERY)
    for target, said in [
        (taken.id, "of the kind withdraw cannot be withdrawn"),
        (query.id, "of the kind query cannot be withdrawn"),
        ("0" * 16, "there is no such request"),
        ("../../etc", "no id of a request"),
    ]:
        with pytest.raises(InputError, match=said):
            handed(lake, parsed=empty, action=Action.WITHDRAW, withdraws=target)
    with pytest.raises(InputError, match="a request has keys, or takes another one back"):
        handed(lake, action=Action.WITHDRAW, withdraws=first.id)
