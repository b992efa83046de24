"""Run the same work on a Ray cluster or in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def connect_ray() -> bool:
    """Join the Ray cluster that started this driver, or that RAY_ADDRESS names. Returns whether there is one."""
    if not (os.environ.get("RAY_ADDRESS") or os.environ.get("RAY_JOB_ID")):
        return False
    import ray

    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=True, logging_level="WARNING")
    return True


def map_tasks(
    function: Callable[[Item], Outcome], items: Sequence[Item], *, cpus: float = 1.0, inflight: int = 64
) -> Iterator[Outcome]:
    """Outcomes of function(item), in the order of the items.

    With Ray initialised each item is a Ray task (at most `inflight` at once, so that a long list is never all in
    memory); otherwise the items run here, one after another. The first error is raised; what has already been
    yielded stays done, and no task that is still waiting is started.
    """
    if not ray_is_up():
        yield from map(function, items)
        return
    import ray
    from ray.exceptions import RayTaskError

    def call(item: Item) -> Outcome:  # Ray takes functions only, not partials or bound methods
        return function(item)

    remote = ray.remote(num_cpus=cpus, max_retries=3)(call)
    waiting: list[Any] = []
    try:
        for item in items:
            waiting.append(remote.remote(item))
            if len(waiting) >= inflight:
                yield ray.get(waiting.pop(0))
        while waiting:
            yield ray.get(waiting.pop(0))
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from error
    finally:
        for task in waiting:
            ray.cancel(task)


def ray_is_up() -> bool:
    """Without importing Ray where nobody has."""
    import sys

    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
