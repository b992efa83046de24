"""Where chunks are prepared and asked about: on a Ray cluster with Ray Data, or in threads of this process."""

from __future__ import annotations

import concurrent.futures
import logging
import math
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from smalti.compute import ray_is_up
from smalti.config import Engine
from smalti.engines.base import open_engine
from smalti.errors import SmaltiError
from smalti.pipeline.control import Beat, Control, Seen
from smalti.pipeline.plan import Chunk
from smalti.pipeline.wire import (
    chunk_from_arrow,
    chunk_to_arrow,
    done_from_arrow,
    done_to_arrow,
    prepared_from_arrow,
    prepared_to_arrow,
)
from smalti.pipeline.worker import Columns, Done, Opener, Prepared, Worker
from smalti.table.target import FOLD_CPUS

log = logging.getLogger("smalti")

TASK_CHUNKS = 16
"""Chunks that one preparation task works through: it hands each on when it is prepared, and between two tasks a CPU waits
for the driver."""

TASKS_A_CPU = 4
"""Tasks that a small plan is cut into for each CPU, so that all of them have something to do until the end."""

SMALL = 16
"""CPUs below which a fraction of one is worth the care."""

AHEAD = 2
"""Chunks that wait at an engine beside those that its threads are at."""


@dataclass(frozen=True)
class EngineWork:
    """How an engine's stage works on its chunks. Picklable: the functions are at the top of modules.

    Attributes:
        profile: of the engines.
        prepare: from (chunk, settings) to what can be asked.
        columns, outputs: see Worker.
        opener: makes an engine.
        answered_before: see Worker.
    """

    profile: Engine
    prepare: Callable[[Chunk, Any], Prepared]
    settings: Any
    columns: Columns
    outputs: pa.Schema
    opener: Opener = open_engine
    answered_before: bool = False

    @property
    def threads(self) -> int:
        """Chunks that one engine has at once: twice its slots, since those of a chunk end at different times."""
        return 2 * math.ceil(self.profile.concurrency / self.profile.batch_size) + 1


class Running:
    """An execution: iterate over what is done; ask who is there; tell the engines to stop; close it at the end."""

    def __init__(self, done: Generator[Done], stop: Callable[[], None], seen: Callable[[], Seen]) -> None:
        self._done, self.stop, self.seen = done, stop, seen

    def __iter__(self) -> Iterator[Done]:
        return self._done

    def close(self) -> None:
        """End the engines, if the execution has not ended by itself."""
        self._done.close()


def engines_for(profile: Engine) -> int:
    """How many engines the cluster is to run: what the profile says, else one for the GPUs of each, at least one."""
    if profile.engines is not None:
        return profile.engines
    if not (ray_is_up() and profile.gpus):
        return 1
    import ray

    return max(1, int(ray.cluster_resources().get("GPU", 0)) // profile.gpus)


def execute(work: EngineWork, chunks: Sequence[Chunk]) -> Running:
    """Start: with Ray initialised on its cluster, otherwise here."""
    return _on_ray(work, chunks) if ray_is_up() else _here(work, chunks)


# Here


def _here(work: EngineWork, chunks: Sequence[Chunk]) -> Running:
    control = Control()
    return Running(_run_here(work, chunks, control), control.stop, control.seen)


def _run_here(work: EngineWork, chunks: Sequence[Chunk], control: Control) -> Generator[Done]:
    """One engine. Threads prepare, as many at a time as there are CPUs, and bring it what they have prepared."""
    worker = Worker(work.profile, work.outputs, work.columns, control.beat, work.opener, work.answered_before)
    cpus = threading.BoundedSemaphore(os.cpu_count() or 1)

    def one(chunk: Chunk) -> Done:
        with cpus:
            prepared = work.prepare(chunk, work.settings)
        return worker.work(prepared)

    pool = concurrent.futures.ThreadPoolExecutor(work.threads)
    waiting: set[concurrent.futures.Future[Done]] = set()
    try:
        for chunk in chunks:
            waiting.add(pool.submit(one, chunk))
            if len(waiting) > work.threads + AHEAD:
                done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                yield from (each.result() for each in done)
        for each in concurrent.futures.as_completed(waiting):
            yield each.result()
    finally:
        pool.shutdown(cancel_futures=True)
        try:
            worker.close()
        except Exception as error:  # what was answered is kept; an error of the engine's must not be hidden by this one
            log.warning("the engine did not close: %s: %s", type(error).__name__, error)


# On Ray


def _on_ray(work: EngineWork, chunks: Sequence[Chunk]) -> Running:
    import ray

    engines = engines_for(work.profile)
    control: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Control).remote()
    done = _run_on_ray(work, chunks, engines, control)
    return Running(done, lambda: ray.get(control.stop.remote()), lambda: ray.get(control.seen.remote()))


def _run_on_ray(work: EngineWork, chunks: Sequence[Chunk], engines: int, control: Any) -> Generator[Done]:
    """Ray Data: tasks prepare, a pool of actors asks; what is prepared waits in the object store, and Ray bounds it."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False  # the meter's lines say more
    context.issue_detectors_config.detectors = []  # advice on memory that an engine's profile cannot take
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context.target_max_block_size = (
        1  # a chunk is one row, and so one block: it goes to an engine as soon as it is prepared
    )
    size = max(1, min(TASK_CHUNKS, len(chunks) // int(TASKS_A_CPU * max(1, ray.cluster_resources().get("CPU", 1)))))
    blocks = [
        pa.concat_tables(chunk_to_arrow(chunk) for chunk in chunks[at : at + size])
        for at in range(0, len(chunks), size)
    ]
    threads, profile = work.threads, work.profile
    dataset = (
        ray.data
        .from_arrow(blocks)
        .map_batches(
            _prepare, batch_size=None, batch_format="pyarrow", fn_args=(work,), num_cpus=_prepare_cpus(profile, engines)
        )
        .map_batches(
            _EngineActor,
            batch_size=1,
            batch_format="pyarrow",
            fn_constructor_args=(work, control),
            num_cpus=profile.cpus,
            num_gpus=profile.gpus or None,
            compute=ActorPoolStrategy(
                size=engines,
                max_tasks_in_flight_per_actor=threads + AHEAD,
                max_concurrent_calls_per_actor=threads,
                enable_true_multi_threading=True,
            ),
        )
    )
    try:
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from done_from_arrow(batch)
    except Exception as error:
        raise _ours(error) from error


def _prepare_cpus(profile: Engine, engines: int) -> float:
    """CPUs of a preparation task: about one, so that a whole number of tasks fits beside the engines and a fold.

    Where engines take 0.1 of two CPUs, a task that asks for one whole would leave nine tenths of a CPU idle; of one CPU, it
    would never start.
    """
    import ray

    left = float(ray.cluster_resources().get("CPU", 0)) - engines * profile.cpus - FOLD_CPUS
    if left <= 0:
        log.warning(
            "the engines take all CPUs that the cluster has now; preparation waits until it grows. Lower `cpus` of %s otherwise",
            profile.name,
        )
        return 1.0
    return math.floor(100 * left / math.ceil(left)) / 100 if left < SMALL else 1.0


def _prepare(batch: pa.Table, work: EngineWork) -> Iterator[pa.Table]:
    """Each chunk of a block as it is prepared. A thread is at the next one while the last is handed on, which is copying."""
    chunks = [chunk_from_arrow(batch.slice(at, 1)) for at in range(batch.num_rows)]
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        coming = thread.submit(work.prepare, chunks[0], work.settings)
        for at in range(len(chunks)):
            prepared = coming.result()
            if at + 1 < len(chunks):
                coming = thread.submit(work.prepare, chunks[at + 1], work.settings)
            yield prepared_to_arrow(prepared)


class _EngineActor:
    """A Worker in an actor. What goes wrong when it is made is said when it is first asked: Ray then hands it on."""

    def __init__(self, work: EngineWork, control: Any) -> None:
        import ray

        def beat(engine: str, beat: Beat) -> bool:
            return bool(ray.get(control.beat.remote(engine, beat)))

        self._worker = Worker(work.profile, work.outputs, work.columns, beat, work.opener, work.answered_before)

    def __call__(self, batch: pa.Table) -> pa.Table:
        return done_to_arrow(self._worker.work(prepared_from_arrow(batch)))


def _ours(error: BaseException) -> BaseException:
    """The error of ours that Ray has wrapped, or the error as it is."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, SmaltiError):
            return seen
        cause = getattr(seen, "cause", None)
        if isinstance(cause, SmaltiError):
            return cause
        seen = seen.__cause__ or (cause if isinstance(cause, BaseException) else None)
    return error
