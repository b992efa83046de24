"""A value that tasks share travels once, not with each of them."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from smalti import compute
from smalti.compute import share


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
