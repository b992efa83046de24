"""Run the same work on a Ray cluster or in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Value = TypeVar("Value")


def connect_ray() -> bool:
    """Join the Ray cluster that started this driver, or that RAY_ADDRESS names. Returns whether there is one."""
    if not (os.environ.get("RAY_ADDRESS") or os.environ.get("RAY_JOB_ID")):
        return False
    import ray

    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=True, logging_level="WARNING")
    return True


def map_tasks(
    function: Callable[[Item], Outcome], items: Iterable[Item], *, cpus: float = 1.0, inflight: int = 64
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


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value that many tasks read, in a form that is small in each of them; made by `share`."""

    value: Value | None = None
    ref: Any = None

    def get(self) -> Value:
        """The value. Its arrays are those of every task on the machine, and cannot be written."""
        if self.ref is None:
            assert self.value is not None
            return self.value
        import ray

        name = self.ref.binary()
        if name not in _GOT:
            _GOT.clear()  # one at a time: a worker process outlives the runs that it works for
            _GOT[name] = ray.get(self.ref)
        found: Value = _GOT[name]
        return found


_GOT: dict[bytes, Any] = {}


def share(value: Value) -> Shared[Value]:
    """Put a value where every task of this driver can read it: with Ray once on each machine, otherwise it stays where it is."""
    if not ray_is_up():
        return Shared(value)
    import ray

    return Shared(None, ray.put(value))


def ray_is_up() -> bool:
    """Without importing Ray where nobody has."""
    import sys

    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
