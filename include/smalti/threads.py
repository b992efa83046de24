"""Work that waits for a store, some of it at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
"""Answers of a store that are waited for at once."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def map_threads(
    function: Callable[[Item], Outcome], items: Iterable[Item], *, threads: int = THREADS, ahead: int | None = None
) -> Iterator[Outcome]:
    """Outcomes of function(item), in the order of the items, of which some are worked on at once: for work that waits for a store.

    Args:
        ahead: items that are taken at most before an outcome is; empty: twice as many as threads. What is ready waits in memory.
    The first error is raised; what waits is not started then.
    """
    waiting: deque[Future[Outcome]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= (2 * threads if ahead is None else ahead):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
