"""Whether a store is asked for several things at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from smalti import objects


def most_at_once(monkeypatch: pytest.MonkeyPatch, read: str) -> list[int]:
    """The most objects that were read at once by this function of `smalti.objects`, from here on."""
    plain, lock, now, most = getattr(objects, read), threading.Lock(), [0], [0]

    def slowly(*what: str) -> Any:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        try:
            return plain(*what)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(objects, read, slowly)
    return most
