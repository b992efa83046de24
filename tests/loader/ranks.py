"""Ranks of a training run as processes, that talk through gloo.

`import streaming` takes more than ten seconds, so that the processes are forked once, from one that has it, and play the ranks
of one run after another. Nodes are told apart by their shared memory and temporary directory, which is all that
StreamingDataset has of a machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from torch import distributed as dist

from smalti.errors import SmaltiError
from tests.loader.serving import apart
from tests.support.gcs import free_port

MOST = 4
"""Ranks of the largest run."""

_PATIENCE = 180.0
"""Seconds until a rank that says nothing hangs. A busy machine is no fault of the code."""

Group = Literal["made", "environment", "none"]


@dataclass(frozen=True)
class World:
    """A topology.

    Attributes:
        group: who makes the process group: the trainer (`made`), StreamingDataset from the environment, or nobody can.
    """

    nodes: int = 1
    ranks: int = 1
    group: Group = "made"

    @property
    def size(self) -> int:
        return self.nodes * self.ranks

    def environment(self, rank: int, port: int) -> dict[str, str]:
        """What torchrun sets."""
        told = {"RANK": rank, "WORLD_SIZE": self.size, "LOCAL_RANK": rank % self.ranks, "LOCAL_WORLD_SIZE": self.ranks}
        meeting = {} if self.group == "none" else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return {name: str(value) for name, value in (told | meeting).items()}


class Ranks:
    """A pool of processes."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def run(self, world: World, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function on each rank at once. Returns what each returned; a SmaltiError is returned too."""
        if not self._processes:
            self._start()
        port, run = free_port(), folder / uuid.uuid4().hex
        pipes = self._pipes[: world.size]
        for rank, pipe in enumerate(pipes):
            pipe.send((world, rank, port, run, function, arguments))
        outcomes: dict[int, Any] = {}
        deadline = time.monotonic() + _PATIENCE
        while len(outcomes) < world.size:
            ready = wait([p for n, p in enumerate(pipes) if n not in outcomes], max(0, deadline - time.monotonic()))
            for rank, pipe in enumerate(pipes):
                if pipe not in ready:
                    continue
                kind, outcomes[rank] = pipe.recv()
                if kind == "raised":  # the others wait for it
                    self.close()
                    raise AssertionError(f"rank {rank} of {world}:\n{outcomes[rank]}")
            if not ready:
                self.close()
                raise AssertionError(f"{world} hangs; these have ended: {sorted(outcomes)}")
        for pipe in pipes:  # not before all are done: the leader takes the shared memory with it
            pipe.send("close")
        for pipe in pipes:
            assert pipe.recv() == "closed"
        return [outcomes[rank] for rank in range(world.size)]

    def _start(self) -> None:
        fork = multiprocessing.get_context("fork")
        for _ in range(MOST):
            here, there = fork.Pipe()
            process = fork.Process(target=_play, args=(there, os.getpid()))
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def close(self) -> None:
        """End the processes; the next run starts new ones."""
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []


def _end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _play(pipe: Connection, parent: int) -> None:
    """The life of one process."""
    _end_with(parent)
    with contextlib.suppress(EOFError):
        while True:
            world, rank, port, run, function, arguments = pipe.recv()
            node = run / f"node{rank // world.ranks}"
            node.mkdir(parents=True, exist_ok=True)
            outcome: tuple[str, Any]
            with apart(node), _rank(world, rank, port, run):
                try:
                    outcome = "returned", function(*arguments)
                except SmaltiError as error:
                    outcome = "returned", error
                except BaseException:
                    outcome = "raised", traceback.format_exc()
                pipe.send(outcome)
                assert pipe.recv() == "close"
            pipe.send("closed")


@contextlib.contextmanager
def _rank(world: World, rank: int, port: int, run: Path) -> Iterator[None]:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.pop("MASTER_ADDR", None)
    os.environ.pop("MASTER_PORT", None)
    os.environ.update(world.environment(rank, port))
    if world.group == "made" and world.size > 1:
        dist.init_process_group("gloo", init_method=f"file://{run}/group", rank=rank, world_size=world.size)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
