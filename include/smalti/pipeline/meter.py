"""How an engine's stage gets on, what it costs, and which side holds it up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from smalti.config import Engine
from smalti.pipeline.control import GONE, Beat, Seen
from smalti.pipeline.worker import Done

BUSY = 0.95
"""From this share of taken slots on, the engines are what the stage waits for."""


class EngineUse(BaseModel):
    """What the engines of one run did. Rates are of the whole pipeline, and say nothing of how fast a GPU could be.

    `busy` is the share of an engine's slots (its profile's concurrency) that were taken between its first question and its
    last answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engines: int = Field(ge=0, description="that answered anything")
    rows_per_second: float = Field(ge=0)
    tokens: int = Field(ge=0, description="of all answers, refused ones too")
    tokens_per_second: float = Field(ge=0)
    busy: float = Field(ge=0, le=1)
    bottleneck: Literal["engines", "preparation"] | None
    gpu_hours: float = Field(ge=0, description="of this run; an engine without a GPU counts its own hours")
    gpu_hours_before: float = Field(0.0, ge=0, description="of runs before this one, over the same rows and profile")
    cost: float | None = Field(None, description="of all these hours, at the profile's price")
    cost_per_1000: float | None = Field(None, description="of 1,000 rows of this run")


NO_BEAT = Beat(0.0, 0.0, 0.0, 0.0)


@dataclass
class _EngineState:
    opened: float
    first: float = 0.0
    now: float = 0.0
    busy: float = 0.0
    rows: int = 0
    stopped: bool = False
    beat: Beat = NO_BEAT  # its last; `now`, `first` and `busy` are those of its last answer
    alive: float = 0.0  # its last sign of life


@dataclass
class Meter:
    """Adds up what the workers say. May be used by two threads.

    Args:
        stage: for the lines.
        total: rows that are to be asked about.
        profile: of the engines.
        clock: UNIX seconds.
    """

    stage: str
    total: int
    profile: Engine
    clock: Callable[[], float] = time.time
    rows: int = 0
    failed: int = 0
    tokens: int = 0
    _engines: dict[str, _EngineState] = field(default_factory=dict)
    _last: tuple[float, int, int, float, float] = (0.0, 0, 0, 0.0, 0.0)

    def add(self, done: Done) -> None:
        """Count one chunk."""
        engine = self._engine(done.engine, done.opened, done.now)
        if done.now >= engine.now:
            engine.now, engine.first, engine.busy = done.now, done.first, done.busy
        engine.rows += done.rows
        engine.stopped = engine.stopped or done.stopped
        self.rows += done.rows
        self.failed += done.failed
        self.tokens += done.tokens

    def see(self, seen: Seen) -> None:
        """Note which engines are there."""
        for name, beat in seen.items():
            self._engine(name, beat.opened, beat.now).beat = beat

    @property
    def gpu_seconds(self) -> float:
        """GPUs times seconds, from the start of loading to the last sign of life, over all engines."""
        return max(1, self.profile.gpus) * sum(each.alive - each.opened for each in list(self._engines.values()))

    @property
    def all_stopped(self) -> bool:
        """Every engine that is there has nothing in it any more."""
        engines = list(self._engines.values())
        newest = max((engine.alive for engine in engines), default=0.0)
        return bool(engines) and all(engine.stopped for engine in engines if engine.alive > newest - GONE)

    def _engine(self, name: str, opened: float, alive: float) -> _EngineState:
        engine = self._engines.setdefault(name, _EngineState(opened))
        engine.alive = max(engine.alive, alive)
        return engine

    def line(self) -> str:
        """Where it stands, and its rates since the line before."""
        working, busy = self._working(live=True)
        now = self.clock()
        then, rows, tokens, worked, was_busy = self._last
        firsts = [first for each in list(self._engines.values()) if (first := each.first or each.beat.first)]
        if not self.rows and not firsts:
            return f"{self.stage}: 0 of {self.total} rows, the engines are starting"
        self._last = (now, self.rows, self.tokens, working, busy)
        start = then or min(firsts, default=now)
        seconds, share = max(now - start, 1e-3), _share(busy - was_busy, working - worked)
        speed = (self.rows - rows) / seconds
        engines = max(1, len([engine for engine in list(self._engines.values()) if engine.alive > now - GONE]))
        return (
            f"{self.stage}: {self.rows} of {self.total} rows ({100 * self.rows / max(self.total, 1):.1f} %), "
            f"{self.failed} failed; {engines} {'engine' if engines == 1 else 'engines'}, each {speed / engines:.1f} rows/s and "
            f"{(self.tokens - tokens) / seconds / engines:.0f} tokens/s, {100 * share:.0f} % busy "
            f"(waiting for {_bottleneck(share)}); {_left(self.total - self.rows, speed)}"
        )

    def use(self, before: float = 0.0) -> EngineUse:
        """The whole run. `before`: GPU seconds of earlier runs."""
        working, busy = self._working(live=False)
        firsts = [engine.first for engine in list(self._engines.values()) if engine.first]
        seconds = max(engine.now for engine in list(self._engines.values())) - min(firsts) if firsts else 0.0
        hours, price = self.gpu_seconds / 3600, self.profile.price
        share = _share(busy, working)
        return EngineUse(
            engines=sum(engine.rows > 0 for engine in list(self._engines.values())),
            rows_per_second=round(self.rows / seconds, 3) if seconds else 0.0,
            tokens=self.tokens,
            tokens_per_second=round(self.tokens / seconds, 1) if seconds else 0.0,
            busy=round(share, 4),
            bottleneck=_bottleneck(share) if self.rows else None,
            gpu_hours=round(hours, 6),
            gpu_hours_before=round(before / 3600, 6),
            cost=None if price is None else round((hours + before / 3600) * price, 4),
            cost_per_1000=None if price is None or not self.rows else round(1000 * hours * price / self.rows, 4),
        )

    def _working(self, *, live: bool) -> tuple[float, float]:
        """Seconds since the first question, and how busy they were, over all engines: until the last answer, or `live`: until
        the last sign of life, so that an engine that is long at its answers does not look idle."""
        said = [(each.now, each.first, each.busy) for each in list(self._engines.values())]
        if live:
            beats = [(each.beat.now, each.beat.first, each.beat.busy) for each in list(self._engines.values())]
            said = [max(pair) for pair in zip(said, beats, strict=True)]
        asked = [each for each in said if each[1]]
        return sum(now - first for now, first, _ in asked), sum(busy for _, _, busy in asked)


def estimate(stage: str, rows: int, engines: int, profile: Engine) -> str:
    """What a run will take, by the rate and price that the profile states."""
    who = f"{stage}: {rows} rows for {engines} {'engine' if engines == 1 else 'engines'} of {profile.name}"
    if profile.rate is None:
        return f"{who}; its profile states no rate, so nothing can be said of the time"
    seconds = rows / profile.rate / engines
    hours = max(1, profile.gpus) * engines * seconds / 3600
    cost = "" if profile.price is None else f", {hours * profile.price:.2f} at {profile.price:g} an hour"
    return f"{who}; at {profile.rate:g} rows/s each about {_duration(seconds)} and {hours:.2f} GPU hours{cost}, without loading"


def _share(busy: float, working: float) -> float:
    return min(1.0, busy / working) if working > 0 else 0.0


def _bottleneck(share: float) -> Literal["engines", "preparation"]:
    return "engines" if share >= BUSY else "preparation"


def _left(rows: int, speed: float) -> str:
    return f"done in about {_duration(rows / speed)}" if speed > 0 else "nothing was answered since the last line"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
