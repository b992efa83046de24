"""Fill in the columns of an engine's profile: ask about every row that waits, once, and fold the answers into the table.

Fragments are folded while the engines work, as soon as all of their rows are answered, so that little is left to do at the end
and a table that others read gains rows all the time.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import logging
import threading
import time
from dataclasses import dataclass

from smalti import objects
from smalti.pipeline.budget import Ledger, used_up
from smalti.pipeline.control import BEAT
from smalti.pipeline.executors import EngineWork, Running, engines_for, execute
from smalti.pipeline.meter import EngineUse, Meter, estimate
from smalti.pipeline.plan import Place, Plan, plan_chunks
from smalti.table import store
from smalti.table.target import check_profile, fold

log = logging.getLogger("smalti")

LINE_EVERY = 15.0
"""Seconds between two lines about how it gets on."""

NOTE_EVERY = 60.0
"""Seconds between two notes of what it costs, and between two folds."""


@dataclass(frozen=True)
class Filled:
    """Rows that this run had answered, and that it found answered; what the engines did, None if none was needed."""

    computed: int
    resumed: int
    use: EngineUse | None


def fill(
    place: Place, work: EngineWork, *, max_gpu_hours: float | None = None, only: frozenset[str] | None = None
) -> Filled:
    """Have the batch's eligible rows that lack the marker answered.

    Args:
        max_gpu_hours: of all runs over these rows together; None: no limit.
        only: ids; other rows are left for later, and nothing is folded.

    Raises:
        InputError: the columns were filled by a profile of this name that said something else; the budget is used up.
        EngineError: the engine cannot answer.
        ConflictError: other writers kept changing the table; the checkpoints stay.
    """
    table = store.open_table(place.table)
    if table is None:
        return Filled(0, 0, None)
    check_profile(table, place.target)
    plan = plan_chunks(place, table, work.profile.batch_size, only)
    folder = _Folder(place, plan, folds=only is None)
    resumed, meter = len(plan.answered), Meter(place.target.stage, plan.rows, work.profile)
    use = None
    if plan.chunks:
        use = _ask(place, work, plan, meter, folder, max_gpu_hours)
    folder.finish()
    return Filled(meter.rows, resumed, use)


def _ask(
    place: Place, work: EngineWork, plan: Plan, meter: Meter, folder: _Folder, max_gpu_hours: float | None
) -> EngineUse:
    """Run the engines until every chunk has its checkpoint or the budget is used up."""
    ledger, limit = Ledger(place), None if max_gpu_hours is None else 3600 * max_gpu_hours
    if limit is not None and ledger.before >= limit:
        folder.finish()
        raise used_up(place, limit / 3600, ledger.before, plan.rows)
    log.info("%s", estimate(place.target.stage, plan.rows, engines_for(work.profile), work.profile))
    running = execute(dataclasses.replace(work, answered_before=plan.answered_before), plan.chunks)
    folds = _Every(NOTE_EVERY)
    with _Watch(place, meter, running, ledger, limit) as watch:
        try:
            for done in running:
                meter.add(done)
                if not done.stopped:
                    folder.add(done.checkpoint)
                if watch.over and meter.all_stopped:
                    break
                if folds.due():
                    folder.start()
        finally:
            running.close()
    log.info("%s", meter.line())
    if watch.over:
        for info in objects.list_objects(place.answers):  # of an engine's last chunks the word may not have come yet
            folder.add(info.uri)
    if watch.over and folder.waiting:
        folder.finish()
        raise used_up(place, (limit or 0) / 3600, ledger.before + meter.gpu_seconds, folder.waiting)
    return meter.use(ledger.before)


class _Watch:
    """A thread beside the loop over answers, which may be long in coming: it counts engines, says how they get on, notes
    what they cost, and stops them when the budget is used up."""

    def __init__(self, place: Place, meter: Meter, running: Running, ledger: Ledger, limit: float | None) -> None:
        self._place, self._meter, self._running = place, meter, running
        self._ledger, self._limit = ledger, limit
        self._ended = threading.Event()
        self._lines, self._notes = _Every(LINE_EVERY), _Every(NOTE_EVERY)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.over = False

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._ledger.note(self._meter.gpu_seconds)

    def _watch(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                self._look()
            except Exception as error:  # the lake or Ray is away for a moment: the next look is a second later
                log.warning("%s: %s", self._place.target.stage, " ".join(str(error).split()))

    def _look(self) -> None:
        self._meter.see(self._running.seen())
        if self._limit is not None and self._ledger.before + self._meter.gpu_seconds >= self._limit:
            if not self.over:
                log.info("%s: the budget is used up; the engines end what they have begun", self._place.target.stage)
            self.over = True
            self._running.stop()  # each time: what it is said to may have been started anew
        if self._lines.due():
            log.info("%s", self._meter.line())
        if self._notes.due():
            self._ledger.note(self._meter.gpu_seconds)


class _Every:
    """True now and then. The first time after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, time.monotonic() + seconds

    def due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return True


class _Folder:
    """Folds fragments whose rows are all answered, one fold at a time, beside the engines; at the end, all that is left.

    Args:
        folds: False: the answers stay in their checkpoints, and the table as it is.
    """

    def __init__(self, place: Place, plan: Plan, *, folds: bool = True) -> None:
        self._place, self._folds = place, folds
        self._waiting = {chunk.checkpoint: chunk for chunk in plan.chunks}
        self._open = collections.Counter(chunk.fragment for chunk in plan.chunks)
        self._answered = dict(plan.answered)  # id -> checkpoint
        self._ready: dict[int, set[str]] = collections.defaultdict(set)  # fragment -> ids
        for row in plan.answered:
            self._ready[plan.fragments[row]].add(row)
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="fold")
        self._folding: concurrent.futures.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """Rows that are not answered."""
        return sum(chunk.rows.num_rows for chunk in self._waiting.values())

    def add(self, checkpoint: str) -> None:
        """A chunk is answered."""
        chunk = self._waiting.pop(checkpoint, None)
        if chunk is not None:  # a task that Ray repeats says it twice
            ids = chunk.rows["id"].to_pylist()
            self._answered.update(dict.fromkeys(ids, checkpoint))
            self._ready[chunk.fragment].update(ids)
            self._open[chunk.fragment] -= 1

    def start(self) -> None:
        """Fold the fragments that are complete, unless a fold is still going on."""
        if not self._folds:
            return
        complete = [number for number in self._ready if not self._open[number]]
        if not complete or (self._folding is not None and not self._folding.done()):
            return
        self._collect()
        checkpoints = {row: self._answered[row] for number in complete for row in self._ready.pop(number)}
        self._folding = self._pool.submit(self._fold, checkpoints, complete)

    def finish(self) -> None:
        """Fold all that is answered and not in the table, wherever compaction has put the rows meanwhile."""
        if not self._folds:
            return
        self._collect()
        self._pool.shutdown()
        self._fold(self._answered, None)

    def _fold(self, checkpoints: dict[str, str], fragments: list[int] | None) -> None:
        if not checkpoints:
            return
        # Columns are made when there is something to put in: an engine that cannot start leaves the table as it was.
        check_profile(store.ensure_columns(self._place.table, self._place.target.outputs), self._place.target)
        fold(self._place.table, self._place.batch, self._place.target, checkpoints, fragments)

    def _collect(self) -> None:
        """See how the last fold went. One that failed is made up for at the end; the engines are not stopped for it."""
        if self._folding is not None and (error := self._folding.exception()) is not None:
            log.warning("%s: a fold is put off to the end: %s", self._place.target.stage, error)
        self._folding = None
