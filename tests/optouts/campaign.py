"""A lake in which a lot happens at once, in processes that are killed; and what must be true of it afterwards.

Ten requests, each from its hand-in to its receipt; a release from its build to its publication; a part that arrives; and maintenance: a rewrite,
a merge of parts, a compaction of tables.
"""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.request import Action
from smalti.optouts.rows import Parsed
from smalti.settings import MaintenanceRun, OptoutRun
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table

RUN = release_run("demo:main", "other:extra", reason_sets=(("text",),))


@dataclass(frozen=True)
class Planted:
    """A row of a source's table. Equal numbers are pictures of one another, at the size that is named."""

    source: str
    batch: str
    key: str
    number: int
    size: int = 520
    label: str = "visual"
    owner: str = "somebody"
    url: str | None = None

    @property
    def id(self) -> str:
        return f"{self.source}/{self.key}"

    @property
    def row(self) -> Row:
        return Row(self.key, self.file, f"picture {self.number}", label=self.label, owner=self.owner, url=self.url)

    @property
    def file(self) -> bytes:
        return stored(picture(self.number, self.size, self.size))


def _planted() -> Iterator[Planted]:
    for day in (1, 2, 3):
        for n in range(6):
            yield Planted(
                "demo", f"b{day}", f"{day}-{n}.jpg", 100 * day + n, owner="carl" if (day, n) == (3, 0) else ""
            )
        yield Planted("demo", f"b{day}", f"{day}-text.jpg", 100 * day + 90, label="text")
    yield Planted("demo", "b3", "1-1.jpg", 310)  # delivered again: pictures of its own
    yield Planted("demo", "b3", "1-4.jpg", 311)
    yield Planted("other", "b1", "of101.jpg", 101, 500)
    yield Planted("other", "b1", "of202.jpg", 202, 600)
    yield Planted("other", "b1", "of203.jpg", 203, 520)
    yield Planted("other", "b1", "of301.jpg", 301, 560)
    yield Planted("other", "b1", "own.jpg", 601)
    yield Planted("other", "b1", "text.jpg", 602, label="text")
    yield Planted("other", "b2", "of310.jpg", 310, 480)
    yield Planted("other", "b2", "of601.jpg", 601, 560)
    yield Planted("other", "b2", "below.jpg", 701, url="https://img.domain.example/1.jpg")
    yield Planted("other", "b2", "beside.jpg", 702, url="https://notdomain.example/1.jpg")


FIRST = tuple(_planted())
"""What the first version has."""

LATE = (
    Planted("other", "late", "of204.jpg", 204, 600),
    Planted("other", "late", "of701.jpg", 701, 500),
    Planted("other", "late", "late.jpg", 801),
    Planted("other", "late", "carls.jpg", 802, owner="carl"),
    Planted("other", "late", "stays.jpg", 803),
)
"""Ingested, and not sharded yet."""

ALL = (*FIRST, *LATE)


def _row(name: str) -> Planted:
    return next(each for each in ALL if each.id == name)


Asked = Callable[[], Parsed]


def _typed(text: str) -> Parsed:
    from smalti.optouts.parse import parse_text

    return parse_text(text)


def _shown(data: bytes, name: str) -> Parsed:
    from smalti.optouts.parse import parse

    return parse(data, name)


def requests() -> tuple[tuple[Asked, frozenset[str]], ...]:
    """What is handed in, and the ids of the rows that it names."""
    typed = {
        "id demo/1-1.jpg": ["demo/1-1.jpg"],
        "url https://example.org/2-2.jpg": ["demo/2-2.jpg"],
        "owner carl": ["demo/3-0.jpg", "other/carls.jpg"],
        f"sha256 {_row('demo/2-3.jpg').row.as_dict(source_run())['sha256']}": ["demo/2-3.jpg", "other/of203.jpg"],
        "id demo/1-text.jpg": ["demo/1-text.jpg"],
        "id other/of301.jpg": ["other/of301.jpg"],
        "domain domain.example": ["other/below.jpg"],
        "id other/late.jpg\nid demo/nobody.jpg": ["other/late.jpg"],
    }
    found: list[tuple[Asked, frozenset[str]]] = [
        (functools.partial(_typed, text), frozenset(names)) for text, names in typed.items()
    ]
    handed_in = _row("demo/2-4.jpg").file, stored(picture(601, 640, 640), "WEBP", quality=80)
    for data, name, named in zip(handed_in, ("a.jpg", "a.webp"), ("demo/2-4.jpg", "other/own.jpg"), strict=True):
        found.append((functools.partial(_shown, data, name), frozenset({named})))
    return tuple(found)


def matched() -> frozenset[str]:
    """Ids that all requests together reach: pictures of what they name, whatever shows them."""
    names = frozenset[str]().union(*(names for _, names in requests()))
    numbers = {each.number for each in ALL if each.id in names}
    return frozenset(each.id for each in ALL if each.number in numbers)


def last() -> dict[str, Planted]:
    """id -> what was delivered last under it."""
    return {each.id: each for each in ALL}


def make(folder: Path) -> None:
    """A lake with the first version, and the rows of the batch that is late."""
    from tests.maintenance.conftest import release

    lake = Lake.at(str(folder))
    for (source, batch), rows in itertools.groupby(ALL, lambda each: (each.source, each.batch)):
        run = source_run(source, batch, shard_bytes=1 << 19)
        write_table(lake, run, [each.row for each in rows])
        if batch != "late":
            _shard(lake, source, batch)
    release(lake, RUN)


# What happens


def _shard(lake: Lake, source: str, batch: str) -> None:
    from smalti.shards.stage import shard

    shard(lake, source_run(source, batch, shard_bytes=1 << 19))


def _ask(lake: Lake, number: int) -> None:
    from smalti.optouts import apply as stages
    from smalti.optouts.preview import preview
    from smalti.optouts.submit import hand_in

    parsed = requests()[number][0]()
    request = hand_in(
        lake,
        action=Action.EXCLUDE,
        reference=f"R-{number}",
        parsed=parsed,
        submission=f"campaign {number}",
        submitted=datetime(2026, 11, 30, tzinfo=UTC),
    )
    run = OptoutRun(request=request.id, confirmed_by="Ada")
    for stage in (preview, stages.apply, stages.prove):
        stage(lake, run)


def publish_build(lake: Lake, name: str) -> str:
    """Build, verify and publish; returns the manifest's URI."""
    from smalti.curation.curate import curate
    from smalti.release.assemble import assemble
    from smalti.release.publish import publish
    from smalti.release.verify import verify

    run = RUN.model_copy(update={"build": name})
    run = run.model_copy(update={"curation": curate(lake, run).curation})
    run = run.model_copy(update={"manifest": assemble(lake, run).manifest})
    assert verify(lake, run).faults == ()
    publish(lake, run)
    return str(run.manifest)


def _maintain(lake: Lake, stage: str) -> None:
    from smalti.maintenance.merge import merge
    from smalti.maintenance.rewrite import rewrite

    {"rewrite": rewrite, "merge": merge}[stage](lake, MaintenanceRun(apply=True, skip_limit=0.05))


def _compact(lake: Lake, source: str) -> None:
    from smalti.table import index as module

    module.SMALL_FRAGMENTS = 2
    module.index(lake, source_run(source))


TASKS: dict[str, Callable[[Lake], object]] = {
    **{f"request {n}": functools.partial(_ask, number=n) for n in range(10)},
    "publish": functools.partial(publish_build, name="nightly"),
    "deliver": functools.partial(_shard, source="other", batch="late"),
    "rewrite": functools.partial(_maintain, stage="rewrite"),
    "merge": functools.partial(_maintain, stage="merge"),
    "merge again": functools.partial(_maintain, stage="merge"),
    "compact demo": functools.partial(_compact, source="demo"),
    "compact other": functools.partial(_compact, source="other"),
}


# Processes that are killed

HEAVY = (
    "lance",
    "polars",
    "smalti.curation.curate",
    "smalti.optouts.match",
    "smalti.release.verify",
    "tests.optouts.campaign",
)
"""Imported once, in the process from which the others are forked."""


@dataclass(frozen=True)
class Kill:
    """After so many changes of objects (0: never), before or after the last one; or after so many seconds."""

    changes: int = 0
    after: bool = False
    seconds: float = math.inf


def _process(root: str, task: str, kill: Kill, errors: str) -> None:
    """Do a task, and die in the middle."""
    left = [kill.changes]

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def change(*arguments: object) -> object:
            left[0] -= 1
            if left[0] == 0 and not kill.after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = real(*arguments)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return change

    if kill.changes:
        for name in ("create_bytes", "swap_bytes", "delete_object"):
            setattr(objects, name, dying(getattr(objects, name)))
    without_loader()
    try:
        TASKS[task](Lake.at(root))
    except BaseException:
        Path(errors).write_text(traceback.format_exc())
        raise


def without_loader() -> None:
    """Importing streaming takes seconds, and the loader has tests of its own: what it would serve is read from manifests."""
    from smalti.optouts import apply as stages
    from smalti.optouts.proof import prove
    from smalti.release import verify as verification
    from tests.optouts.test_proof import selected
    from tests.release.test_verify import kept_ids

    patched: Any = stages
    patched.prove_request = functools.partial(prove, read=selected)
    patched = verification
    patched.read_ids = kept_ids


def run(lake: Lake, chance: random.Random, kills: int) -> Counter[str]:
    """Start all tasks at once, and each again whenever it was killed, so many times; returns how often each was.

    Raises:
        AssertionError: a task failed, which no kill explains.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*HEAVY])
    path = objects.local_path(lake.root)
    assert path is not None
    deaths = {task: [*_deaths(chance, kills)] for task in TASKS}
    running: dict[str, tuple[multiprocessing.context.ForkServerProcess, float]] = {}
    killed: Counter[str] = Counter()

    def start(task: str) -> None:
        kill = deaths[task].pop() if deaths[task] else Kill()
        process = context.Process(target=_process, args=(lake.root, task, kill, f"{path}.{task}.txt"))
        process.start()
        running[task] = process, time.monotonic() + kill.seconds

    try:
        for task in chance.sample(sorted(TASKS), len(TASKS)):
            start(task)
        while running:
            now = time.monotonic()
            soon = min(5.0, *(at - now for _, at in running.values()))
            wait([process.sentinel for process, _ in running.values()], timeout=max(0.0, soon))
            for task, (process, at) in [*running.items()]:
                if process.is_alive():
                    if time.monotonic() > at:
                        process.kill()
                        running[task] = process, math.inf
                    continue
                del running[task]
                if process.exitcode != 0:
                    said = Path(f"{path}.{task}.txt")
                    assert process.exitcode == -signal.SIGKILL, f"{task}: {said.exists() and said.read_text()}"
                    killed[task] += 1
                    start(task)
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()
    return killed


def _deaths(chance: random.Random, kills: int) -> Iterator[Kill]:
    for _ in range(kills):
        if chance.random() < 0.7:
            yield Kill(changes=chance.randint(1, 9), after=chance.random() < 0.5)
        else:
            yield Kill(seconds=chance.uniform(0.05, 2))


def copy(folder: Path, place: Path) -> Lake:
    shutil.copytree(folder, place)
    return Lake.at(str(place))
