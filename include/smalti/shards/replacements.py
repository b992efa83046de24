"""What maintenance has put in the place of which parts: a numbered log of a source, one create-only object a step.

    parts/<source>/replacements/000001.json, 000002.json, ...

A new part is written whole under its own name first, part.json included, and counts from the moment a step names it. A step
takes the next free number, which only one writer can create, and only after its writer has read all the steps before: so no
part is ever replaced twice, and who was slower finds out and leaves what it wrote for the collection of garbage. Nobody is
made to wait, and a killed writer blocks nobody.

A step keeps what is needed of the parts that it takes out of sight after their objects are gone: the plans that shard runs
made them of (so that a shard run that is repeated finds its work done) and their accounting.

What opt-outs erase is erased of parts that are out of sight as well, because releases may use them. Such a part's new one is out of
sight for the reason that the old one was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from smalti import objects
from smalti.accounting import Accounted
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.strict import Strict

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
    """Parts that went out of sight together. Releases that use them keep using them.

    A step that erases names one part, which may be out of sight already, and what of it the new part lacks. Samples that it keeps are
    in the shards of the same numbers, in the same order.
    """

    why: Literal["rewritten", "merged", "superseded", "abandoned", "erased"]
    replaces: tuple[str, ...] = Field(min_length=1)
    by: str | None = Field(None, description="the part that holds their samples now; empty: none is needed")
    origins: tuple[Origin, ...] = ()
    erased: dict[str, tuple[int, ...]] = Field({}, description="shard relative to parts/ -> indices in it, ascending")
    gone: tuple[str, ...] = Field((), description="shards of which nothing is left")

    @model_validator(mode="after")
    def _erases_of_one_part(self) -> Step:
        if self.why != "erased":
            if self.erased or self.gone:
                raise ValueError("only a step that erases names samples")
            return self
        if len(self.replaces) != 1 or self.by == self.replaces[0]:
            raise ValueError("a step erases samples of one part, and another one takes its place")
        if any(shard.split("/")[1:2] != [self.replaces[0]] for shard in self.erased):
            raise ValueError("it names a shard of another part")
        if any(list(each) != sorted({*each}) or not each or each[0] < 0 for each in self.erased.values()):
            raise ValueError("indices are to ascend")
        if not self.erased.keys() >= {*self.gone}:
            raise ValueError("a shard is gone of which nothing was erased")
        return self

    def encode(self) -> bytes:
        """Without the fields of erasures where there is none: such a step is spelled as it always was."""
        said = {"erased", "gone"} if self.why != "erased" else set()
        return (self.model_dump_json(indent=1, exclude=said) + "\n").encode()


@dataclass(frozen=True)
class Log:
    """The steps of a source, the first one first."""

    steps: tuple[Step, ...]

    @cached_property
    def hidden(self) -> dict[str, Step]:
        """Name of a part that is out of sight -> the step that says so.

        A part of which samples were erased is so by that step, whatever hid it before; what hid it hides the part in its place.
        """
        found: dict[str, Step] = {}
        for step in self.steps:
            for name in step.replaces:
                before = found.get(name)
                if step.why == "erased" and step.by is not None and before is not None:
                    found[step.by] = before
                found[name] = step
        return found

    @cached_property
    def erased(self) -> dict[str, Step]:
        """Name of a part of which samples were erased -> the step that did it."""
        return {name: step for step in self.steps if step.why == "erased" for name in step.replaces}

    @cached_property
    def made(self) -> frozenset[str]:
        """Parts that maintenance wrote, or erasures, and that count."""
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

    What is out of sight is taken by nobody again; but samples may be erased of it, once of each part.

    Returns: whether that is so now. False: another step had one of them first, and nothing was changed.
    """
    while True:
        log = read_log(lake, source)
        if step in log.steps:
            return True
        taken = log.erased if step.why == "erased" else log.hidden
        if any(name in taken for name in step.replaces) or step.by in log.hidden or step.by in log.made:
            return False
        if objects.create_bytes(lake.replacement(source, len(log.steps) + 1), step.encode()):
            return True  # otherwise somebody took the number: look again
