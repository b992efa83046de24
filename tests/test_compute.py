"""A value that tasks share travels once, not with each of them; threads that wait for a store wait together."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from smalti import compute
from smalti.compute import map_threads, share


def test_without_ray_a_shared_value_is_the_value_itself() -> None:
    value = {"x": 1}
    assert share(value).get() is value


def test_with_ray_a_task_carries_a_reference_and_a_worker_fetches_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[bytes] = []

    class Ref(bytes):
        def binary(self) -> bytes:
            return bytes(self)

    store: dict[bytes, Any] = {}

    def put(value: Any) -> Ref:
        ref = Ref(len(store).to_bytes(2, "big"))
        store[ref] = value
        return ref

    def get(ref: Ref) -> Any:
        fetched.append(bytes(ref))
        return store[ref]

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True, put=put, get=get))
    monkeypatch.setattr(compute, "_GOT", {})
    one, other = share([0] * 100_000), share("other")
    assert one.value is None
    assert one.ref is not None
    assert len(pickle.dumps((one.value, bytes(one.ref)))) < 200
    assert one.get() is one.get()
    assert other.get() == "other"
    assert len(fetched) == 2
    assert len(compute._GOT) == 1  # a worker that goes on to another run keeps nothing of the first


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
