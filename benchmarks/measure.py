"""Time two ways of doing the same work, alternately, and state their ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """One line of the result.

    Attributes:
        name: what was compared.
        unit: of `ours` and `theirs`, both rates: more is better.
        ours, theirs: median rates.
        ratio: median of the rounds' ratios ours / theirs; low, high: the extreme rounds.
    """

    name: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float

    def line(self) -> str:
        return (
            f"{self.name:<60} {self.ours:>10.1f} {self.theirs:>10.1f} {self.unit:<12} "
            f"ratio {self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"
        )


def compare(
    name: str, unit: str, amount: float, ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 5
) -> Comparison:
    """Run both `rounds` times, in turns, after one warm-up each.

    Args:
        amount: units of work in one call of either.
    """
    rates: tuple[list[float], list[float]] = ([], [])
    ours()
    theirs()
    for number in range(rounds):
        order = ((0, ours), (1, theirs)) if number % 2 else ((1, theirs), (0, ours))
        for side, work in order:
            started = time.perf_counter()
            work()
            rates[side].append(amount / (time.perf_counter() - started))
    ratios = [a / b for a, b in zip(*rates, strict=True)]
    return Comparison(
        name,
        unit,
        statistics.median(rates[0]),
        statistics.median(rates[1]),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )
