"""The log of parts with erasures in it: what is in sight, what counts, and who holds what is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from smalti import objects
from smalti.lake import Lake
from smalti.shards.replacements import Log, Step, append_step, read_log

A, B, C, D, E = (f"0000{n}-0123456789ab" for n in range(1, 6))


def erased(old: str, new: str | None, *indices: int) -> Step:
    return Step(
        why="erased", replaces=(old,), by=new, erased={f"demo/{old}/512/1.000/shard.00000.mds": indices or (0,)}
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(str(tmp_path))


def append(lake: Lake, *steps: Step) -> list[bool]:
    return [append_step(lake, "demo", step) for step in steps]


def test_of_a_part_in_sight_the_new_one_is_in_sight(lake: Lake) -> None:
    assert append(lake, erased(A, B)) == [True]
    log = read_log(lake, "demo")
    assert (set(log.hidden), set(log.made), {log.holder(A), log.holder(B)}) == ({A}, {B}, {B})
    assert append(lake, erased(B, C), Step(why="rewritten", replaces=(C,), by=D)) == [True, True]
    log = read_log(lake, "demo")
    assert (set(log.hidden), set(log.made)) == ({A, B, C}, {B, C, D})
    assert {log.holder(name) for name in (A, B, C, D)} == {D}


@pytest.mark.parametrize("why", ["rewritten", "merged"])
def test_of_a_hidden_part_the_new_one_is_hidden_for_the_same_reason(lake: Lake, why: str) -> None:
    hiding = Step(why=why, replaces=(A,), by=B)
    assert append(lake, hiding, erased(A, C), erased(C, D)) == [True] * 3
    log = read_log(lake, "demo")
    assert {name: step.why for name, step in log.hidden.items()} == {A: "erased", C: "erased", D: why}
    assert log.made == {B, C, D}, "releases may use all of them"
    assert {log.holder(name) for name in (A, B, C, D)} == {B}
    assert append(lake, erased(B, E)) == [True]
    assert {read_log(lake, "demo").holder(name) for name in (A, B, C, D, E)} == {E}


def test_of_a_superseded_part_the_new_one_is_superseded(lake: Lake) -> None:
    assert append(lake, Step(why="superseded", replaces=(A,)), erased(A, B)) == [True, True]
    log = read_log(lake, "demo")
    assert (log.hidden[B].why, log.holder(A), log.holder(B)) == ("superseded", None, None)


def test_nothing_left_needs_no_part(lake: Lake) -> None:
    assert append(lake, erased(A, None)) == [True]
    log = read_log(lake, "demo")
    assert (log.holder(A), set(log.erased)) == (None, {A})
    assert not log.made


def test_an_erasure_is_refused_only_of_what_was_erased(lake: Lake) -> None:
    assert append(lake, erased(A, B), erased(A, B), erased(A, C), erased(A, B, 1)) == [True, True, False, False]
    assert append(lake, Step(why="merged", replaces=(A, D), by=E), Step(why="superseded", replaces=(A,))) == [False] * 2
    assert append(lake, Step(why="rewritten", replaces=(D,), by=E), erased(D, C)) == [True, True]
    assert append(lake, Step(why="rewritten", replaces=(C,), by="00009-0123456789ab")) == [False], "it is out of sight"


def test_a_new_part_that_was_given_up_never_counts(lake: Lake) -> None:
    assert append(lake, Step(why="abandoned", replaces=(B,)), erased(A, B)) == [True, False]
    assert read_log(lake, "demo").holder(A) == A


def test_steps_are_read_as_they_were_written(lake: Lake) -> None:
    steps = (erased(A, B, 2, 5), Step(why="superseded", replaces=(B,)))
    append(lake, *steps)
    assert read_log(lake, "demo") == Log(steps)
    assert b"erased" not in objects.read_bytes(lake.replacement("demo", 2)), (
        "other steps are spelled as they always were"
    )


@pytest.mark.parametrize(
    "step",
    [
        {"why": "rewritten", "replaces": [A], "by": B, "erased": {f"demo/{A}/512/1.000/shard.00000.mds": [0]}},
        {"why": "erased", "replaces": [A, C], "by": B},
        {"why": "erased", "replaces": [A], "by": A},
        {"why": "erased", "replaces": [A], "by": B, "erased": {f"demo/{C}/512/1.000/shard.00000.mds": [0]}},
        {"why": "erased", "replaces": [A], "by": B, "erased": {f"demo/{A}/512/1.000/shard.00000.mds": [1, 0]}},
        {"why": "erased", "replaces": [A], "by": B, "erased": {f"demo/{A}/512/1.000/shard.00000.mds": []}},
        {"why": "erased", "replaces": [A], "by": B, "gone": [f"demo/{A}/512/1.000/shard.00000.mds"]},
    ],
)
def test_no_step_says_what_cannot_be(step: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Step.model_validate(step)
