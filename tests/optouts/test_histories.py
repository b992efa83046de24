"""Random histories of the ledger: requests, withdrawals and new parts side by side, each writer killed again and again."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.ledger import resolve, settle, state
from tests.maintenance.conftest import Died
from tests.optouts.lakes import Sample, add_part, ask, match, take_back
from tests.optouts.test_ledger import check, steps

PICTURES = 1 << 10
"""So many that a request reaches a few of the samples, and not all of them."""

Task = tuple[str, int, tuple[str, ...]]
"""What to do: `part` (its number), `resolve` (requests) or `settle`."""


def samples_of(number: int) -> list[Sample]:
    """What a part holds: some of it delivered before, some of it copies."""
    chance = random.Random(number)
    return [
        Sample(str(chance.randrange(40)), chance.randrange(PICTURES), f"o{chance.randrange(12)}", chance.randrange(2))
        for _ in range(6)
    ]


def plan(
    lake: Lake, chance: random.Random, writers: int, requests: int, parts: int
) -> tuple[list[list[Task]], set[str]]:
    """Tasks of each writer, and the requests that must be in force at the end."""
    names: list[str] = []
    tasks: list[Task] = []
    for number in range(requests):
        keys = [("id", f"a/{chance.randrange(40)}"), ("owner", f"o{chance.randrange(12)}")]
        names.append(ask(lake, *chance.sample(keys, chance.randint(1, 2)), submission=f"s{number}"))
    gone = chance.sample(names, requests // 4)
    tasks += [("resolve", 0, (take_back(lake, name, f"t{number}"),)) for number, name in enumerate(gone)]
    for _ in range(2):  # each is applied by two
        left = chance.sample(names, len(names))
        while left:
            count = chance.randint(1, 3)
            tasks.append(("resolve", 0, tuple(left[:count])))
            left = left[count:]
    tasks += [("part", number, ()) for number in range(10, 10 + parts)]
    tasks += [("settle", 0, ())] * 2
    chance.shuffle(tasks)
    return [tasks[n::writers] for n in range(writers)], set(names) - set(gone)


def do(lake: Lake, task: Task) -> None:
    what, number, requests = task
    if what == "part":
        add_part(lake, "ab"[number % 2], number, samples_of(number))
    elif what == "resolve":
        resolve(lake, requests, match=match)
    else:
        settle(lake, match=match)


def begin(root: str) -> Lake:
    lake = Lake.at(root)
    for number in (1, 2):
        add_part(lake, "ab"[number % 2], number, samples_of(number))
    return lake


def end(lake: Lake, expected: set[str]) -> None:
    """Whoever comes next finds everything done, or does it."""
    settle(lake, match=match)
    assert set(state(lake).in_force) == expected
    for earlier in steps(lake):
        assert not set(earlier.requests) & set(earlier.withdrawn)
    assert check(lake).shards


class Killed(threading.local):
    """How many writes this thread may still do, and whether it dies after the last one, or before it."""

    left: int | None = None
    after = False


def dying_threads(monkeypatch: pytest.MonkeyPatch) -> Killed:
    """From now on each thread dies when its writes are used up."""
    killed, real = Killed(), objects.create_bytes

    def create(uri: str, data: bytes) -> bool:
        if killed.left is None:
            return real(uri, data)
        killed.left -= 1
        if killed.left > 0:
            return real(uri, data)
        if killed.after:
            real(uri, data)
        raise Died

    monkeypatch.setattr(objects, "create_bytes", create)
    return killed


@pytest.mark.parametrize("seed", [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(4, 60))])
def test_threads_that_die_at_any_write_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    lake = begin(str(tmp_path / "lake"))
    plans, expected = plan(lake, chance, writers=4, requests=10, parts=6)
    killed = dying_threads(monkeypatch)
    done: Counter[str] = Counter()

    def writer(number: int) -> None:
        luck = random.Random(f"{seed} {number}")
        for task in plans[number]:
            while True:
                killed.left, killed.after = luck.choice([1, 2, 3, 4, 5, None, None]), luck.random() < 0.5
                try:
                    do(lake, task)
                    done["done"] += 1
                    break
                except Died:
                    done["killed"] += 1

    with ThreadPoolExecutor(len(plans)) as pool:
        list(pool.map(writer, range(len(plans))))
    end(lake, expected)
    assert done["killed"] >= 3


def _process(root: str, tasks: Sequence[Task], writes: int, after: bool) -> None:
    """Do the tasks, and die in the middle."""
    left, real = [writes], objects.create_bytes

    def create(uri: str, data: bytes) -> bool:
        left[0] -= 1
        if left[0] == 0 and not after:
            os._exit(9)
        found = real(uri, data)
        if left[0] == 0:
            os._exit(9)
        return found

    if writes:
        objects.create_bytes = create
    for task in tasks:
        do(Lake.at(root), task)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(4))
def test_ten_processes_that_are_killed_lose_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lake = begin(str(tmp_path / "lake"))
    plans, expected = plan(lake, chance, writers=10, requests=30, parts=12)
    spawn = multiprocessing.get_context("spawn")
    kills = 0
    for _ in range(5):
        running = [
            spawn.Process(target=_process, args=(lake.root, tasks, chance.randint(1, 12), chance.random() < 0.5))
            for tasks in plans
        ]
        _run(running)
        kills += sum(each.exitcode == 9 for each in running)
    last = [spawn.Process(target=_process, args=(lake.root, tasks, 0, False)) for tasks in plans]
    _run(last)
    assert [each.exitcode for each in last] == [0] * len(plans)
    print(f"{kills} processes died, {len(steps(lake))} steps")
    assert kills >= 10
    end(lake, expected)


def _run(processes: Sequence[multiprocessing.process.BaseProcess]) -> None:
    for each in processes:
        each.start()
    for each in processes:
        each.join()
