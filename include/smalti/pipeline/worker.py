"""One engine at work: many rows at a time, whole chunks in and checkpoints out.

The engine lives in an event loop of its own. Threads bring chunks; each waits until its rows are answered, writes their
checkpoint and brings the next, so that the engine always has as many rows as its profile's `concurrency` while there are any.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from smalti import objects
from smalti.config import Engine
from smalti.engines.asking import Answered, answer
from smalti.engines.base import AsyncEngine, Question, open_engine
from smalti.errors import EngineError
from smalti.pipeline.control import BEAT, Beat
from smalti.reasons import Unanswered
from smalti.sources.inventory import parquet_bytes

log = logging.getLogger("smalti")

Opener = Callable[[Engine], Awaitable[AsyncEngine]]

REFUSED = 8
"""Rows that an engine must have refused, and none answered, before it is the engine that counts as wrong and not the rows."""

CLOSING = 60.0
"""Seconds that an engine has to close."""


@dataclass(frozen=True)
class Prepared:
    """A chunk that can be asked about.

    Attributes:
        checkpoint: URI.
        ids, sha256: of its rows.
        questions: one a row; None where `answered` says what became of the row already.
        answered: index -> rows that nobody is asked about, for instance since their picture cannot be decoded.
    """

    checkpoint: str
    ids: Sequence[str]
    sha256: Sequence[str]
    questions: Sequence[Question | None]
    answered: dict[int, Answered] = field(default_factory=dict)


class Done(NamedTuple):
    """What a worker says of one chunk, small enough to send around. Times are UNIX seconds.

    Attributes:
        checkpoint: URI; the answers are there.
        rows, failed, tokens: of this chunk, as this worker had them answered; 0 if the checkpoint was there already.
        engine: who.
        opened: when the engine was started to be loaded; its GPUs are held from then on.
        first: when it was first asked; 0.0 if it was not.
        now: when this was said.
        busy: seconds from `first` to `now`, each weighed by the share of the engine's slots that were taken.
        stopped: nothing was asked, since the driver wants engines to stop.
    """

    checkpoint: str
    rows: int
    failed: int
    tokens: int
    engine: str
    opened: float
    first: float
    now: float
    busy: float
    stopped: bool


Columns = Callable[[Sequence[Answered]], dict[str, list[Any]]]
"""From the answers of a chunk to the lists of the target's outputs, and of what else the checkpoint keeps."""


class Worker:
    """An engine with its event loop. `work` may be called from many threads.

    Args:
        profile: of the engine.
        outputs: the columns of the checkpoints, beside id and sha256.
        columns: from answers to these columns.
        beat: tells the driver of this engine (its name, a Beat) once a second, and returns whether to stop.
        answered_before: rows of this batch and profile have answers from earlier runs.
        opener: makes the engine.
    """

    def __init__(
        self,
        profile: Engine,
        outputs: pa.Schema,
        columns: Columns,
        beat: Callable[[str, Beat], bool] = lambda engine, beat: False,
        opener: Opener = open_engine,
        answered_before: bool = False,
    ) -> None:
        self._profile, self._outputs, self._columns, self._beat = profile, outputs, columns, beat
        self.name = uuid.uuid4().hex[:12]
        self._opened = time.time()
        self._slots = _Slots(profile.concurrency)
        self._stopping = threading.Event()
        self._at_work = threading.Condition()
        self._chunks = 0
        self._answered_once = answered_before
        self._refused = 0
        self._closing = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name=f"engine {self.name}")
        self._thread.start()
        self._engine: AsyncEngine | None = None
        self._opening = asyncio.run_coroutine_threadsafe(self._open(opener), self._loop)
        threading.Thread(target=self._keep_beating, daemon=True, name=f"beat {self.name}").start()

    def work(self, chunk: Prepared) -> Done:
        """Have a chunk answered and write its checkpoint. One that is there already is left as it is.

        Raises:
            SmaltiError: the engine cannot be opened or cannot answer at all; the lake cannot be written.
        """
        self._opening.result()
        with self._at_work:
            if self._stopping.is_set():  # said only when nothing is being answered any more: then the driver may leave
                self._at_work.wait_for(lambda: self._chunks == 0)
                return self._done(chunk, (), stopped=True)
            self._chunks += 1
        try:
            return self._done(chunk, self._answer_and_keep(chunk) or ())
        finally:
            with self._at_work:
                self._chunks -= 1
                self._at_work.notify_all()

    def close(self) -> None:
        """Close the engine and end its loop."""
        self._closing.set()
        if self._engine is not None:
            asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result(CLOSING)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSING)

    async def _open(self, opener: Opener) -> None:
        self._engine = await opener(self._profile)

    def _answer_and_keep(self, chunk: Prepared) -> list[Answered] | None:
        answers = asyncio.run_coroutine_threadsafe(self._answer(chunk), self._loop).result()
        if answers is None:
            return None
        self._refuse_if_never_answered(chunk, answers)
        results = self._columns(answers)
        columns = {"id": pa.array(chunk.ids, pa.string()), "sha256": pa.array(chunk.sha256, pa.string())}
        for output in self._outputs:
            columns[output.name] = pa.array(results[output.name], output.type)
        for name in results.keys() - columns.keys():
            columns[name] = pa.array(results[name], pa.string())
        objects.create_bytes(chunk.checkpoint, parquet_bytes(pa.table(columns), {}))  # of two at once the first counts
        return answers

    def _refuse_if_never_answered(self, chunk: Prepared, answers: Sequence[Answered]) -> None:
        """Raise EngineError where an engine has refused all it was asked, many rows: it is not they that are wrong."""
        asked = [each for each, question in zip(answers, chunk.questions, strict=True) if question is not None]
        errors = [each for each in asked if each.reason == Unanswered.ERROR]
        with self._at_work:
            self._answered_once = self._answered_once or len(errors) < len(asked)
            if self._answered_once:
                return
            self._refused += len(errors)
        if errors and self._refused >= REFUSED:
            raise EngineError(
                f"it has answered none of the {self._refused} rows that it was asked about ({errors[0].detail})",
                f"engines/{self._profile.name}.yaml",
                "Mend the profile or the server, then run the stage again",
            )

    async def _answer(self, chunk: Prepared) -> list[Answered] | None:
        """The answers; None if the checkpoint is there already. Looked at when the first row's turn has come, for another
        driver or a repeated task may have written it while the chunk waited."""
        async with self._slots:
            if await asyncio.to_thread(objects.exists, chunk.checkpoint):
                return None
        answers = dict(chunk.answered)

        async def one(index: int, question: Question) -> None:
            assert self._engine is not None
            async with self._slots:
                answers[index] = await answer(self._engine, self._profile, question)

        asked = [(index, question) for index, question in enumerate(chunk.questions) if question is not None]
        tasks = [asyncio.create_task(one(index, question)) for index, question in asked]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # after an error of the engine: the chunk has no checkpoint, nobody needs the others
                task.cancel()
        return [answers[index] for index in range(len(chunk.ids))]

    def _done(self, chunk: Prepared, answers: Sequence[Answered], *, stopped: bool = False) -> Done:
        first, busy = self._slots.busy()
        return Done(
            checkpoint=chunk.checkpoint,
            rows=len(answers),
            failed=sum(each.status != "ok" for each in answers),
            tokens=sum(each.tokens for each in answers),
            engine=self.name,
            opened=self._opened,
            first=first,
            now=time.time(),
            busy=busy,
            stopped=stopped,
        )

    def _keep_beating(self) -> None:
        while True:
            try:
                first, busy = self._slots.busy()
                if self._beat(self.name, Beat(self._opened, first, busy, time.time())):
                    self._stopping.set()
            except Exception as error:  # the driver's end is away for a moment, or for good; then Ray ends this process
                log.debug("engine %s: no beat: %s", self.name, error)
            if self._closing.wait(BEAT):
                return


class _Slots:
    """As many places as rows may be in the engine at once, and how much they were taken over time."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._free = asyncio.Semaphore(places)
        self._lock = threading.Lock()
        self._taken = 0
        self._first = 0.0
        self._since = 0.0
        self._busy = 0.0

    async def __aenter__(self) -> None:
        await self._free.acquire()
        self._count(1)

    async def __aexit__(self, *_: object) -> None:
        self._count(-1)
        self._free.release()

    def busy(self) -> tuple[float, float]:
        """When the first place was taken (0.0: never), and the seconds since, weighed by the share of places taken."""
        self._count(0)
        return self._first, self._busy

    def _count(self, change: int) -> None:
        with self._lock:
            now = time.time()
            if self._first:
                self._busy += (now - self._since) * self._taken / self._places
            elif change > 0:
                self._first = now
            self._since = now
            self._taken += change
