"""Where a shard's samples are after any chain of erasures, against lists that are really cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from smalti.lake import Lake
from smalti.shards.erasures import Erasures, Moved
from smalti.shards.replacements import Step, append_step

REST = "512/1.000/shard.00003.mds"


def part(number: int) -> str:
    return f"{number:05d}-0123456789ab"


def step(number: int, indices: tuple[int, ...], *, gone: bool = False, last: bool = False) -> Step:
    shard = f"demo/{part(number)}/{REST}"
    return Step(
        why="erased",
        replaces=(part(number),),
        by=None if last else part(number + 1),
        erased={shard: indices} if indices else {},
        gone=(shard,) if gone else (),
    )


@given(st.integers(1, 12), st.lists(st.sets(st.integers(0, 11)), max_size=5))
def test_a_chain_of_erasures_is_told_in_the_indices_of_the_first_shard(size: int, cuts: list[set[int]]) -> None:
    held, steps = [*range(size)], {}
    for number, wanted in enumerate(cuts, 1):
        indices = tuple(sorted(index for index in wanted if index < len(held)))
        held = [each for place, each in enumerate(held) if place not in indices]
        steps[f"demo/{part(number)}"] = step(number, indices, gone=bool(indices) and not held)
        if not held:
            break
    found = Erasures(steps).place(f"demo/{part(1)}/{REST}")
    assert [each for each in range(size) if each not in found.erased] == held
    assert list(found.erased) == sorted(set(range(size)) - set(held))
    assert found.shard == (f"demo/{part(len(steps) + 1)}/{REST}" if held else None)


def test_they_are_read_from_the_logs_of_the_sources(tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path))
    append_step(lake, "demo", Step(why="rewritten", replaces=(part(1),), by=part(9)))
    for each in (step(1, (0, 2)), step(2, (), gone=False), step(3, (0,))):
        assert append_step(lake, "demo", each)
    assert append_step(lake, "other", step(7, (0,), gone=True, last=True).model_copy(update={"erased": {}, "gone": ()}))
    found = Erasures.read(lake, ["demo", "other"])
    assert found.part(f"demo/{part(1)}") == f"demo/{part(4)}"
    assert found.part(f"demo/{part(9)}") == f"demo/{part(9)}", "rewriting is no erasure: releases keep the old part"
    assert found.part(f"other/{part(7)}") == ""
    assert found.place(f"demo/{part(1)}/{REST}") == Moved(f"demo/{part(4)}/{REST}", (0, 1, 2))
    whole = f"demo/{part(2)}/2048/0.500/shard.00000.mds"
    assert found.place(whole) == Moved(whole.replace(part(2), part(4)), ()), "it lost nothing"
    untouched = f"third/{part(1)}/{REST}"
    assert found.place(untouched) == Moved(untouched, ())
    assert Erasures.read(lake, []).place(f"demo/{part(1)}/{REST}").erased == ()


def test_a_training_run_can_import_it() -> None:
    script = "import smalti.shards.erasures, sys; print([m for m in ('yaml', 'pyarrow', 'polars', 'lance') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
