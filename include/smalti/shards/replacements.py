"""What maintenance has put in the place of which parts: a numbered log of a source, one create-only object a step.

    parts/<source>/replacements/000001.json, 000002.json, ...

A new part is written whole under its own name first, part.json included, and counts from the moment a step names it. A step
takes the next free number, which only one writer can create, and only after its writer has read all the steps before: so no
part is ever replaced twice, and who was slower finds out and leaves what it wrote for the collection of garbage. Nobody is
made to wait, and a killed writer blocks nobody.

A step keeps what is needed of the parts that it takes out of sight after their objects are gone: the plans that shard runs
made them of (so that a shard run that is repeated finds its work done) and their accounting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field, ValidationError

from smalti import objects
from smalti.accounting import Accounted
from smalti.config import Strict
from smalti.errors import CorruptError
from smalti.lake import Lake

Order = tuple[int, str, int, str]
"""(delivery, batch, sequence, name): of two samples of one id the one with the larger order is the newer."""


class Origin(Strict):
    """A part as a shard run wrote it, whatever has become of it since."""

    name: str
    batch: str
    sequence: int
    delivery: int
    digest: str = Field(description="of the plan")
    accounting: Accounted = Field(description="of the shard stage")

    @property
    def order(self) -> Order:
        return (self.delivery, self.batch, self.sequence, self.name)


class Step(Strict):
    """Parts that went out of sight together. Releases that use them keep using them."""

    why: Literal["rewritten", "merged", "superseded", "abandoned"]
    replaces: tuple[str, ...] = Field(min_length=1)
    by: str | None = Field(None, description="the part that holds their samples now; empty: none is needed")
    origins: tuple[Origin, ...] = ()

    def encode(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()


@dataclass(frozen=True)
class Log:
    """The steps of a source, the first one first."""

    steps: tuple[Step, ...]

    @cached_property
    def hidden(self) -> dict[str, Step]:
        """Name of a part that is out of sight -> the step that says so."""
        return {name: step for step in self.steps for name in step.replaces}

    @cached_property
    def made(self) -> frozenset[str]:
        """Parts that maintenance wrote, and that count."""
        return frozenset(step.by for step in self.steps if step.by is not None)

    def holder(self, name: str) -> str | None:
        """The part in sight that holds what is left of this one; None: none does."""
        now: str | None = name
        while now is not None and now in self.hidden:
            now = self.hidden[now].by
        return now

    def origins(self) -> Iterator[Origin]:
        for step in self.steps:
            yield from step.origins

    def last_sequence(self) -> int:
        """The largest number that a part of the log carries in its name."""
        names = [*self.hidden, *self.made]
        return max((int(name.partition("-")[0]) for name in names), default=0)


def read_log(lake: Lake, source: str) -> Log:
    """Every step. Raises CorruptError for a damaged or missing one."""
    names = objects.list_names(lake.replacements(source))
    steps = []
    for number in range(1, len(names) + 1):
        uri = lake.replacement(source, number)
        found = objects.read_versioned(uri)
        try:
            if found is None:
                raise ValueError("a step is missing")
            steps.append(Step.model_validate_json(found[0]))
        except (ValidationError, ValueError) as error:
            raise CorruptError("this is not a step of the log of parts", uri, "Restore it") from error
    return Log(tuple(steps))


def append_step(lake: Lake, source: str, step: Step) -> bool:
    """Take parts out of sight, and let the part that replaces them count.

    Returns: whether that is so now. False: another step had one of them first, and nothing was changed.
    """
    while True:
        log = read_log(lake, source)
        if step in log.steps:
            return True
        if any(name in log.hidden for name in (*step.replaces, *filter(None, [step.by]))):
            return False
        if objects.create_bytes(lake.replacement(source, len(log.steps) + 1), step.encode()):
            return True  # otherwise somebody took the number: look again
