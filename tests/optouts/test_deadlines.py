"""Which requests are late, and what of them an alert and a page say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from smalti.optouts.deadlines import counts, due, overdue, render, say_overdue, say_soon, soon
from smalti.optouts.request import Action
from smalti.optouts.status import ENDED, Standing, State

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def standing(
    state: State = State.HANDED_IN, action: Action = Action.EXCLUDE, hours: float = 0, **more: Any
) -> Standing:
    """A request that was handed in so many hours ago."""
    known: dict[str, Any] = {
        "id": "0123456789abcdef",
        "reference": "T-7",
        "submitted_by": "cli:ada",
        "keys": 3,
        "rejected": 1,
    }
    return Standing(state=state, action=action, submitted=NOW - timedelta(hours=hours), **(known | more))


@pytest.mark.parametrize("state", State)
def test_a_request_is_late_a_day_after_it_was_handed_in_unless_nothing_more_is_to_be_done(state: State) -> None:
    late = [standing(state, hours=24.1)]
    assert overdue(late, NOW) == ([] if state in ENDED else late)
    assert overdue([standing(state, hours=23.9)], NOW) == []


def test_to_erase_is_to_exclude_within_a_day_and_to_erase_within_thirty() -> None:
    assert overdue([standing(State.CONFIRMED, Action.ERASE, 25)], NOW) != []
    assert overdue([standing(State.RESOLVED, Action.ERASE, 25)], NOW) != [], "not proved to be excluded"
    assert overdue([standing(State.EXCLUDED, Action.ERASE, 25)], NOW) == []
    assert overdue([standing(State.EXCLUDED, Action.ERASE, 24 * 30 + 1)], NOW) != []


def test_somebody_is_warned_while_a_quarter_of_the_time_is_left() -> None:
    assert soon([standing(State.WAITS, hours=17.9)], NOW) == []
    close = standing(State.WAITS, hours=18.1)
    assert soon([close], NOW) == [close]
    assert soon([standing(State.WAITS, hours=24.1)], NOW) == [], "it is overdue"
    assert soon([standing(State.PROVEN, hours=18.1)], NOW) == []
    assert soon([standing(State.EXCLUDED, Action.ERASE, 24 * 22)], NOW) == []
    assert len(soon([standing(State.EXCLUDED, Action.ERASE, 24 * 23)], NOW)) == 1
    said = say_soon([close], NOW)
    assert said.startswith("1 opt-outs will be overdue soon, it is 2026-11-30 12:00 UTC: 0123456789abcdef (T-7: waits")
    assert "Overdue soon" in render([close], NOW)


def test_the_latest_comes_first() -> None:
    found = [standing(hours=hours, id=f"{hours:016d}") for hours in (30, 90, 60)]
    assert [each.id[-2:] for each in overdue(found, NOW)] == ["90", "60", "30"]


def test_an_alert_names_ten_and_counts_all() -> None:
    found = [standing(hours=30 + number, id=f"{number:016d}", reference=f"T-{number}") for number in range(12)]
    said = say_overdue(overdue(found, NOW), NOW)
    assert said.startswith("12 opt-outs are overdue at 2026-11-30 12:00 UTC: 0000000000000011 (T-11: handed in, due")
    assert said.endswith("and 2 more")
    assert said.count("due 2026-") == 10


def test_every_state_is_counted() -> None:
    found = counts([standing(State.PROVEN), standing(State.PROVEN), standing(State.WAITS)])
    assert found == {state.name.lower(): {State.PROVEN: 2, State.WAITS: 1}.get(state, 0) for state in State}


def test_the_page_lists_by_state_and_takes_texts_as_texts() -> None:
    found = [standing(State.WAITS, hours=25, reference="<script>"), standing(State.PROVEN, id="f" * 16)]
    page = render(found, NOW)
    assert "<script>" not in page
    assert page.index("Overdue") < page.index("Waits for confirmation") < page.index("Proven")
    assert f"{due(found[0]):%Y-%m-%d %H:%M}" in page
    assert page.count("f" * 16) == 1
