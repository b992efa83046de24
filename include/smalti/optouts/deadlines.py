"""Which requests are late: a person was promised a time, and somebody is to be told before it is forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from html import escape

from smalti.optouts.request import Action
from smalti.optouts.status import ENDED, Standing, State
from smalti.page import document, figure, number, table

LIMITS = {
    Action.QUERY: timedelta(days=30),
    Action.EXCLUDE: timedelta(hours=24),
    Action.WITHDRAW: timedelta(hours=24),
    Action.ERASE: timedelta(days=30),
}
"""From being handed in to the receipt. A request to erase is excluded within the limit of that, too: see `due`."""


def due(standing: Standing) -> datetime:
    """When a request has to have its next effect: what is erased is to be excluded as fast as what only is excluded.

    Of what came into the lake again after it was removed the time is counted from when it was found.
    """
    return (standing.again or standing.submitted) + _limit(standing)


def _limit(standing: Standing) -> timedelta:
    if standing.action == Action.ERASE and standing.state != State.EXCLUDED:
        return LIMITS[Action.EXCLUDE]
    return LIMITS[standing.action]


def overdue(standings: Iterable[Standing], now: datetime) -> list[Standing]:
    """Requests that are late, the latest first."""
    late = [each for each in standings if each.state not in ENDED and due(each) < now]
    return sorted(late, key=lambda each: (due(each), each.id))


def soon(standings: Iterable[Standing], now: datetime) -> list[Standing]:
    """Requests that are not late yet and will be within a quarter of their time, so that somebody can still see to it; the first first."""
    late = [each for each in standings if each.state not in ENDED and now <= due(each) < now + _limit(each) / 4]
    return sorted(late, key=lambda each: (due(each), each.id))


def counts(standings: Iterable[Standing]) -> dict[str, int]:
    """State -> requests; every state is named."""
    found = Counter(each.state for each in standings)
    return {state.name.lower(): found[state] for state in State}


def say_overdue(late: Sequence[Standing], now: datetime) -> str:
    """One line for an alert. Of a request its id and the requester's reference, nothing else."""
    return f"{len(late)} opt-outs are overdue at {now:%Y-%m-%d %H:%M} UTC: {_named(late)}"


def say_soon(soon: Sequence[Standing], now: datetime) -> str:
    """The same of those for which there is still time."""
    return f"{len(soon)} opt-outs will be overdue soon, it is {now:%Y-%m-%d %H:%M} UTC: {_named(soon)}"


def _named(standings: Sequence[Standing]) -> str:
    named = "; ".join(
        f"{each.id} ({each.reference}: {each.shown}, due {due(each):%Y-%m-%d %H:%M} UTC)" for each in standings[:10]
    )
    return f"{named}, and {len(standings) - 10} more" if len(standings) > 10 else named


def render(standings: Sequence[Standing], now: datetime) -> str:
    """A page: every request by state, those that are late first."""
    late, close = overdue(standings, now), soon(standings, now)
    by_state = counts(standings)
    head = (
        f"<p class=over>Opt-outs, {now:%Y-%m-%d %H:%M} UTC</p><h1>Requests</h1>"
        '<div class="figures">'
        + figure(number(len(standings)), "requests")
        + figure(number(by_state[State.PROVEN.name.lower()]), "with a receipt")
        + figure(number(by_state[State.WAITS.name.lower()]), "wait for a person")
        + figure(number(len(late)), "overdue")
        + "</div>"
    )
    sections = [_section(title, found) for title, found in (("Overdue", late), ("Overdue soon", close)) if found]
    for state in State:
        found = [each for each in standings if each.state == state]
        if found:
            sections.append(_section(state.value.capitalize(), found))
    return document("Opt-outs", [head, *sections])


def _section(title: str, standings: Sequence[Standing]) -> str:
    rows = [
        (
            f"<code>{escape(each.id)}</code>",
            escape(each.action),
            escape(each.reference),
            escape(each.shown),
            f"{each.submitted:%Y-%m-%d %H:%M}",
            "" if each.state in ENDED else f"{due(each):%Y-%m-%d %H:%M}",
            number(each.keys),
            number(each.rejected),
        )
        for each in standings
    ]
    head = ("request", "action", "reference", "state", "handed in, UTC", "due, UTC", "keys", "rejected rows")
    return f"<section><h2>{escape(title)}</h2>{table(head, rows, right=(6, 7))}</section>"
