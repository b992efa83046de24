"""Threads that wait for a store wait together, and no more is taken than they can work on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from smalti.threads import map_threads


def test_threads_work_on_some_items_at_once_and_their_outcomes_come_in_order() -> None:
    together, taken = threading.Barrier(3), []

    def items() -> Iterator[int]:
        for number in range(9):
            taken.append(number)
            yield number

    def work(number: int) -> int:
        together.wait(30)  # nobody goes on alone
        return number * number

    outcomes = map_threads(work, items(), threads=3)
    assert next(outcomes) == 0
    assert len(taken) <= 2 * 3, "the rest is not even taken yet"
    assert [*outcomes] == [number * number for number in range(1, 9)]


def test_the_first_error_of_threads_is_raised_and_what_waits_is_not_begun() -> None:
    begun = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise ValueError("one")
        return number

    outcomes = map_threads(work, iter(range(100)), threads=1)
    assert next(outcomes) == 0
    with pytest.raises(ValueError, match="one"):
        next(outcomes)
    assert len(begun) < 10
