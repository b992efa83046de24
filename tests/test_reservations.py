"""What a source's columns say of reservations: yes, no, or what nobody can read, which counts as yes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from smalti.reservations import KINDS, Reservation, merged, unreadable_kinds, warnings_of


def origin(kind: str, value: str | None, **words: tuple[str, ...]) -> str | None:
    return Reservation.model_validate({"column": "c", "kind": kind, **words}).origins([value])[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("noai", "noai"),
        ("noai", "noindex, noimageai"),
        ("noai", "NOINDEX,NoAI"),
        ("noai", "noindex noimageai"),
        ("noai", "googlebot: noindex, noai; max-snippet: 5"),
        ("noai", "anybot: noimageai"),
        ("noai", "true"),
        ("noai", "max-snippet:-1 noai"),
        ("noai", "max-snippet: noai"),
        ("noai", "max-image-preview:large noai, index"),
        ("noai", "noai max-snippet:-1, all"),
        ("noai", "unavailable_after: 25 Jun 2030 15:00:00 PST noimageai"),
        ("noai", "noai: all"),
        ("noai", "noai googlebot: all"),
        ("noai", "index noml : max-snippet: 5"),
        ("tdm", "1: 0"),
        ("tdm", "1"),
        ("tdm", " True "),
        ("tdm", "tdm-reservation: 1"),
        ("tdm", "0, 1"),
        ("ai.txt", "Disallow"),
    ],
)
def test_a_value_that_reserves(kind: str, value: str) -> None:
    assert origin(kind, value) == kind


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("noai", None),
        ("noai", "  "),
        ("noai", "noindex, nofollow"),
        ("noai", "max-image-preview: large"),
        ("noai", "unavailable_after: 25 Jun 2030 15:00:00 PST, noindex"),
        ("noai", "unavailable_after: Friday 3rd May 2030 15:00 noindex"),
        ("noai", "unavailable_after: 2030-06-25T15:00:00+01:00"),
        ("noai", "index max-snippet:-1 max-image-preview : large nofollow, max-video-preview: 1"),
        ("noai", "googlebot: max-snippet: 5"),
        ("noai", "otherbot: none"),
        ("noai", "False"),
        ("tdm", "0"),
        ("tdm", "false"),
        ("ai.txt", "ALLOWED"),
    ],
)
def test_a_value_that_does_not(kind: str, value: str | None) -> None:
    assert origin(kind, value) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("noai", "perhaps"),
        ("noai", "noindex, hm"),
        ("noai", ","),
        ("noai", "bot:"),
        ("noai", "bot:: all"),
        ("noai", ": all"),
        ("noai", "hm bot: all"),
        ("noai", "max-snippet: hm"),
        ("noai", "max-snippet: 5 6"),
        ("noai", "unavailable_after: later, index"),
        ("tdm", "2"),
        ("tdm", "max-snippet: 5"),
        ("ai.txt", "true"),
    ],
)
def test_what_nobody_can_read_counts_as_reserved_and_says_so(kind: str, value: str) -> None:
    assert origin(kind, value) == f"{kind}?"


def test_a_file_s_own_words_take_the_place_of_the_kind_s() -> None:
    assert origin("artist", "All  Rights reserved", reserved=("all rights reserved",), free=("CC0",)) == "artist"
    assert origin("artist", "cc0", reserved=("all rights reserved",), free=("CC0",)) is None
    assert origin("artist", "1", reserved=("out",)) == "artist?"
    assert origin("tdm", "0", reserved=("0",)) == "tdm"
    assert origin("tdm", "1", reserved=("0",)) == "tdm?"
    assert origin("tdm", "unset", free=("0", "unset")) is None
    assert origin("tdm", "1", free=("0", "unset")) == "tdm"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "kind artist is not one of noai, tdm, ai.txt: say in `reserved`"),
        ({"reserved": ["out", " OUT "], "free": ["Out"]}, "'out' means reserved and free"),
        ({"reserved": ["out", " "]}, "an empty value never means anything"),
        ({"reserved": [False]}, "valid string"),
    ],
)
def test_words_that_cannot_be_right_are_refused(words: dict[str, list[str]], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Reservation.model_validate({"column": "c", "kind": "artist", **words})


@given(st.sampled_from(sorted(KINDS)), st.text())
def test_any_text_has_one_answer_and_blanks_alone_say_nothing(kind: str, text: str) -> None:
    assert origin(kind, text) in ((None,) if not text.split() else (None, kind, f"{kind}?"))


NOISE = [
    "max-snippet",
    "unavailable_after",
    "-1",
    "0",
    "1",
    "large",
    "jun",
    "bot",
    "all",
    "noindex",
    "no",
    "allow",
    "hm",
    "?",
    "\u00a0",
    "|",
]


def pieces(kind: str) -> st.SearchStrategy[list[str]]:
    words = [*sorted(KINDS[kind].reserved), *NOISE]
    return st.lists(st.sampled_from([*words, *map(str.upper, words), *",;: " * 8]), max_size=12)


@given(st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), pieces(kind))))
def test_a_reserving_word_reserves_wherever_it_stands(drawn: tuple[str, list[str]]) -> None:
    kind, some = drawn
    words = re.split(r"[\s,;:]+", "".join(some).lower())
    if any(word in KINDS[kind].reserved and not word.isdigit() for word in words):  # a number may be a value
        assert origin(kind, "".join(some)) == kind


FREE = sorted(KINDS["noai"].free)
SAID = {
    "free": [*FREE, "max-snippet:-1", "max-snippet: 1", "max-image-preview : large", "unavailable_after: 1 Jan 2030 01:00:00 Z", "bot: all"],
    "neither": ["hm", "bot:", "max-snippet:", "max-snippet: 5px", "all bot: all", "2", "noai|all", "x:noai-1", ": all", "max-snippet: 1 2"],
    "reserved": ["noai", "1", "bot: 1", "yes: all", "max-snippet: 5 1", "max-snippet: noml", "max-image-preview: 1", "unavailable_after: never 1"],
}  # fmt: skip
"""What one item says by itself. Beside others it says the same."""


@given(
    st.lists(st.sampled_from([(say, item) for say in SAID for item in SAID[say]]), min_size=1, max_size=5), st.data()
)
def test_a_value_is_free_only_if_each_item_is(items: list[tuple[str, str]], data: st.DataObject) -> None:
    ends = st.sampled_from([",", ";", " , ", ";;", ",\t"])
    text = "".join(item + data.draw(ends) for _, item in items)
    said = {say for say, _ in items}
    assert origin("noai", text) == ("noai" if "reserved" in said else "noai?" if "neither" in said else None)


def test_origins_of_a_row_are_told_together_and_what_was_read_stands_for_what_was_not() -> None:
    assert merged([None, None]) is None
    assert merged(["tdm", None, "noai", "tdm"]) == "noai+tdm"
    assert merged(["tdm?", "tdm", "ai.txt?"]) == "ai.txt?+tdm"
    assert unreadable_kinds("ai.txt?+tdm") == ["ai.txt"]


def test_a_warning_counts_what_could_not_be_read_and_says_where_to_look() -> None:
    columns = [Reservation(column=c, kind=k) for c, k in (("x", "tdm"), ("y", "noai"), ("z", "tdm"))]
    assert warnings_of(["noai", "tdm"], columns) == []
    (line,) = warnings_of(["tdm?", "noai+tdm?", "noai"], columns)
    assert line.startswith("2 rows count as reserved (tdm) because column 'x', 'z' says neither yes nor no")
