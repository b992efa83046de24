"""A ledger of ten thousand requests: what its state, an idle build and one more request cost. The figures are printed (-s)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.ledger import complete, resolve, settle, state
from smalti.optouts.ledger_rows import write_matched
from smalti.optouts.matched import MATCHED
from smalti.optouts.request import Request
from smalti.optouts.resolution import BLOCK, Ledger, Resolution
from smalti.release.optouts import OptoutSnapshot, read_snapshot
from smalti.shards.part import Part
from tests.optouts.lakes import NOW, SHARD, Matched, Sample, add_part, ask

STEPS = 10_000


def row(request: str, part: str, number: int) -> pa.Table:
    sample = Sample(str(number), number)
    shard = f"{part}/512/1.000/shard.{number // SHARD:05d}.mds"
    values = {
        "request": request, "key": 0, "how": "key", "source": "a", "part": part, "id": f"a/{number}", "sha256": sample.sha256,
        "phash": number, "flat": False, "width": 520, "height": 520, "tier": 512, "ar": "1.000", "shard": shard, "index": number % SHARD,
    }  # fmt: skip
    return pa.Table.from_pylist([values], MATCHED)


def fill(lake: Lake, steps: int) -> None:
    """A ledger of so many requests for one sample each, a step for each, as `resolve` would have written it.

    Of the snapshots only the last one is whole: nobody reads the others here, and they would take most of the time.
    """
    part = add_part(lake, "a", 1, [Sample(str(number), number) for number in range(steps)])

    def write(position: int) -> Resolution:
        request = ask(lake, ("id", f"a/{position - 1}"))
        rows = row(request, part, position - 1)
        step = Resolution(
            position=position,
            requests=(request,),
            parts=(part,) if position == 1 else (),
            matched=write_matched(lake, rows),
            places={request: {rows["shard"][0].as_py(): (rows["index"][0].as_py(),)}},
            ids={request: (f"a/{position - 1}",)},
            unmatched={request: ()},
            resolved=NOW,
        )
        objects.create_bytes(lake.optout_resolution(position), step.encode())
        if position < steps:
            objects.create_bytes(lake.optout_snapshot(position), OptoutSnapshot(position=position, shards={}).encode())
        return step

    ledger = Ledger()
    with ThreadPoolExecutor(16) as pool:
        for step in pool.map(write, range(1, steps + 1)):
            ledger.add(step.as_block())
            if step.position % BLOCK == 0 or step.position == steps:
                complete(lake, ledger)


def plainly(uri: str, data: bytes) -> bool:
    """Create a file without waiting for the disk: fifty thousand are made."""
    path = objects.local_path(uri)
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return False
    path.write_bytes(data)
    return True


def nothing(lake: Lake, parts: Sequence[Part], requests: Sequence[Request], known: pa.Table | None = None) -> Matched:
    """Matching has benchmarks of its own."""
    return Matched(MATCHED.empty_table(), {})


@pytest.mark.prove
def test_ten_thousand_requests_are_read_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    with monkeypatch.context() as patched:
        patched.setattr(objects, "create_bytes", plainly)
        fill(lake, STEPS)
    seconds = {}

    def timed(what: str, work: Callable[[], object]) -> None:
        started = time.monotonic()
        work()
        seconds[what] = round(time.monotonic() - started, 2)

    timed("state", lambda: state(lake))
    timed("snapshot", lambda: read_snapshot(lake, STEPS))
    timed("settle, nothing new", lambda: settle(lake, match=nothing))
    timed("resolve one", lambda: resolve(lake, [ask(lake, ("id", "a/1"), submission="more")], match=nothing))
    add_part(lake, "a", 2, [Sample("new", 1)])
    timed("settle, a new part", lambda: settle(lake, match=nothing))
    print(seconds)
    assert len(state(lake).in_force) == STEPS + 1
    assert max(seconds.values()) < 10
