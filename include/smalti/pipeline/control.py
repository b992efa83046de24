"""What engines and their driver tell each other while they run: who is there, since when, and whether to stop.

An engine's time costs from the moment its loading begins, also if it never answers anything; so engines are counted by their
beats and not by their answers.
"""

from __future__ import annotations

from typing import NamedTuple

BEAT = 1.0
"""Seconds between two beats of an engine, and between two looks of the driver."""

GONE = 15.0
"""Seconds after its last beat from which an engine is taken for dead; the driver's look goes on without it."""


class Beat(NamedTuple):
    """What an engine says of itself, once a second. Times are UNIX seconds.

    Attributes:
        opened: when it began to be loaded; its GPUs are held from then on.
        first: when it was first asked; 0.0 if it was not.
        busy: seconds since `first`, each weighed by the share of the engine's slots that were taken.
        now: when this was said.
    """

    opened: float
    first: float
    busy: float
    now: float


Seen = dict[str, Beat]
"""Engine -> its last beat."""


class Control:
    """One for a run: an object of this process, or an actor. An actor that was started anew only forgets."""

    def __init__(self) -> None:
        self._stop = False
        self._seen: Seen = {}

    def beat(self, engine: str, beat: Beat) -> bool:
        """An engine is there. Returns whether it is to stop."""
        self._seen[engine] = beat
        return self._stop

    def stop(self) -> None:
        """From now on engines are told to end what they have begun and to begin nothing."""
        self._stop = True

    def seen(self) -> Seen:
        return dict(self._seen)
