"""What the ranks of a run do as one while a dataset is set up: each is told what the others found, and all go on or none.

A rank that raised by itself would leave the others waiting for it in the next collective. So whatever can fail on one machine
only (a copy that is too old, a shard that is missing, a wrong argument) happens inside `together`, and not between
StreamingDataset's own barriers.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from streaming.base.distributed import get_local_world_size, get_rank, get_world_size, maybe_init_dist
from torch import distributed as dist

from smalti.errors import InputError, SmaltiError

Told = TypeVar("Told")


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """See to it that ranks can talk to each other while a dataset is set up.

    A process group is made from the environment where there is none, as StreamingDataset itself makes one.

    Raises:
        InputError: there are several ranks, and no process group can be made.
    """
    ours = False
    if get_world_size() > 1 and dist.is_available():
        try:
            ours = maybe_init_dist()
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{get_world_size()} ranks cannot talk to each other ({str(error).splitlines()[0]})",
                "ReleaseDataset",
                "Start them with torchrun, or set MASTER_ADDR and MASTER_PORT",
            ) from error
    try:
        yield
    finally:
        if ours:
            dist.destroy_process_group()


def can_talk() -> bool:
    """Whether there are other ranks, and a process group to reach them."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def together(work: Callable[[], Told]) -> list[Told]:
    """Do something on every rank. Returns what each has to say of it, by rank; small, and able to be pickled.

    Raises:
        SmaltiError: it failed on some rank: the error of the lowest such rank, on every rank, with that rank's name unless
            all ran into the same.
        Exception: it failed with another error: that error on the rank itself, RuntimeError on the others.
    """
    said: Told | None = None
    failure: Exception | None = None
    try:
        said = work()
    except Exception as error:
        failure = error
    if not can_talk():
        if failure is not None:
            raise failure
        return [said]  # type: ignore[list-item]  # work returned it
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (said, _portable(failure)))
    failed = {rank: error for rank, (_, error) in enumerate(found) if error is not None}
    if not failed:
        return [each for each, _ in found]
    if failure is not None and not isinstance(failure, SmaltiError):
        raise failure
    first, (cause, host) = next(iter(failed.items()))
    everywhere = len(failed) == len(found) and len({str(each) for each, _ in failed.values()}) == 1
    raise (cause if everywhere else _of_rank(first, cause, host)) from failure


def _portable(error: Exception | None) -> tuple[Exception, str] | None:
    """The error for other processes, and the machine it happened on."""
    if error is None:
        return None
    plain = error if isinstance(error, SmaltiError) else RuntimeError(f"{type(error).__name__}: {error}")
    return plain, socket.gethostname()


def _of_rank(rank: int, error: Exception, host: str) -> Exception:
    if isinstance(error, SmaltiError):
        return type(error)(error.what, f"rank {rank} ({host}), {error.where}", error.fix)
    return RuntimeError(f"rank {rank} ({host}): {error}")


@dataclass(frozen=True)
class Place:
    """Which of the ranks a process takes itself for; from the variables that StreamingDataset reads."""

    rank: int
    ranks: int
    of_node: int

    @staticmethod
    def here() -> Place:
        return Place(get_rank(), get_world_size(), get_local_world_size())


def check_places(places: Sequence[Place]) -> None:
    """Raises InputError unless the ranks, in the order of the process group, take themselves for what they are.

    StreamingDataset believes the environment: four processes of which each takes itself for the only one would each
    serve all samples.
    """
    for number, place in enumerate(places):
        if (place.rank, place.ranks) != (number, len(places)):
            raise _wrong_world(
                f"rank {number} of {len(places)} of the process group has RANK={place.rank} and WORLD_SIZE={place.ranks}"
            )
        if place.of_node != places[0].of_node or place.of_node < 1 or len(places) % place.of_node:
            raise _wrong_world(
                f"rank {number} has LOCAL_WORLD_SIZE={place.of_node}, rank 0 {places[0].of_node}, of {len(places)} ranks"
            )


def _wrong_world(what: str) -> InputError:
    return InputError(
        what,
        "ReleaseDataset",
        "Start the ranks with torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; as many ranks on each node",
    )


def check_same(what: str, found: Sequence[object]) -> None:
    """Raises InputError unless every rank has found what rank 0 has."""
    for rank, each in enumerate(found):
        if each != found[0]:
            raise InputError(
                f"rank {rank} has another {what} than rank 0 ({each}, not {found[0]})",
                "ReleaseDataset",
                "Start every rank with the same arguments, over the same release; a pulled copy: pull it again on that node",
            )


@dataclass(frozen=True)
class Asked:
    """What a rank has been asked for, as it tells the others. position: None where rank 0 finds it."""

    place: Place
    release: str
    local: str
    position: int | None


def agreed(asked: Sequence[Asked]) -> int:
    """The position of the opt-outs, if the ranks have been asked for one thing."""
    if len(asked) > 1:
        check_places([each.place for each in asked])
    check_same("release", [each.release for each in asked])
    of_node = asked[0].place.of_node if len(asked) > 1 else 1
    for first in range(0, len(asked), of_node):  # StreamingDataset finds the memory of a node's ranks by it
        if len(here := {each.local for each in asked[first : first + of_node]}) > 1:
            raise InputError(
                f"ranks of one node have several local: {', '.join(sorted(here))}",
                "ReleaseDataset",
                "Pass the same one",
            )
    position = asked[0].position
    assert position is not None  # of rank 0
    check_same("optouts", [position if each.position is None else each.position for each in asked])
    return position
