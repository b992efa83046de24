"""What a source's columns say of reservations: yes, no, or what nobody can read, which counts as yes."""

from __future__ import annotations

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
    [("noai", "perhaps"), ("noai", "noindex, hm"), ("noai", ","), ("noai", "bot:"), ("tdm", "2"), ("ai.txt", "true")],
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


@given(st.sampled_from(sorted(KINDS)), st.text(alphabet="noaimgew ,;:1", max_size=20))
def test_a_reserving_word_beside_anything_reserves(kind: str, text: str) -> None:
    word = min(KINDS[kind].reserved)
    assert origin(kind, f"{text}, {word}") == kind
    assert origin(kind, f"{word};{text}") == kind


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
