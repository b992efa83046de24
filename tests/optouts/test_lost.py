"""Which requests another run goes on with, because nobody else does."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

import pytest

from smalti.lake import Lake
from smalti.optouts import apply as module
from smalti.optouts import remove as remove_module
from smalti.optouts.apply import apply, prove
from smalti.optouts.erase import erase
from smalti.optouts.lost import Lost, lost
from smalti.optouts.preview import preview
from smalti.optouts.proof import prove as prove_request
from smalti.optouts.request import Action, Answer, write_answer
from smalti.optouts.status import State, standings
from smalti.release import verify as verify_module
from smalti.settings import OptoutRun
from tests.optouts.lakes import ask
from tests.optouts.test_apply import asked
from tests.optouts.test_proof import selected
from tests.release.test_verify import kept_ids

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(autouse=True)
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prove_request", functools.partial(prove_request, read=selected))
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)


def found(lake: Lake, after: timedelta) -> list[Lost]:
    return lost(lake, datetime.now(UTC) + after, own_run=HOUR, own_removal=2 * DAY)


def state_of(lake: Lake, run: OptoutRun) -> State:
    return standings(lake, [run.request])[0].state


def test_each_state_in_which_nobody_has_to_be_asked_goes_on_after_an_hour(released: Lake) -> None:
    run = OptoutRun(request=ask(released, ("id", "demo/1.jpg"), apply=None))
    expected = [Lost(run.request)]
    assert (state_of(released, run), found(released, timedelta(0))) == (State.HANDED_IN, expected), "in October"
    preview(released, run)
    assert (state_of(released, run), found(released, HOUR / 2)) == (State.LOOKED_AT, [])
    assert found(released, 2 * HOUR) == expected
    answer = Answer(request=run.request, apply=True, by="me", answered=datetime.now(UTC), preview_sha256="")
    write_answer(released, answer)
    assert (state_of(released, run), found(released, HOUR / 2)) == (State.CONFIRMED, [])
    assert found(released, 2 * HOUR) == expected
    apply(released, run)
    assert (state_of(released, run), found(released, HOUR / 2)) == (State.RESOLVED, [])
    assert found(released, 2 * HOUR) == expected
    prove(released, run)
    assert (state_of(released, run), found(released, 100 * DAY)) == (State.PROVEN, [])


def test_what_waits_for_a_person_waits(released: Lake) -> None:
    run = asked(released, "domain example.org")
    assert (state_of(released, run), found(released, 100 * DAY)) == (State.WAITS, [])
    query = asked(released, "domain example.org", Action.QUERY)
    assert state_of(released, query) == State.LOOKED_AT, "to say what is held, nobody is asked"
    assert found(released, 2 * HOUR) == [Lost(query.request)]


def test_what_is_to_be_erased_goes_on_when_its_grace_is_over(released: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run = asked(released, "id demo/1.jpg", Action.ERASE, grace_days=30)
    apply(released, run)
    prove(released, run)
    expected = [Lost(run.request, 30, removes=True)]
    assert state_of(released, run) == State.EXCLUDED
    assert found(released, DAY) == [], "its own run is at it"
    assert found(released, 3 * DAY) == expected, "its run was lost before it had erased anything"
    erase(released, run)
    assert found(released, 31 * DAY) == [], "its own run removes"
    assert found(released, 33 * DAY) == expected
    monkeypatch.setattr(remove_module, "_waiting", lambda *_: ["a writer has not committed"])
    assert not remove_module.remove(released, run, now=lambda: datetime.now(UTC) + 31 * DAY).removed
    assert found(released, 33 * DAY) == expected, "a removal that waits is somebody's job"
    monkeypatch.undo()
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    assert remove_module.remove(released, run, now=lambda: datetime.now(UTC) + 31 * DAY).removed
    assert found(released, 100 * DAY) == []


def test_of_a_request_from_before_graces_were_kept_the_default_counts(released: Lake) -> None:
    run = asked(released, "id demo/1.jpg", Action.ERASE)
    apply(released, run)
    prove(released, run)
    erase(released, run)
    assert found(released, 8 * DAY) == []
    assert found(released, 10 * DAY) == [Lost(run.request, None, removes=True)]
