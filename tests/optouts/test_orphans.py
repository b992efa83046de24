"""Matched rows that nothing names go; what a step or a preview names, or is about to, stays."""

from __future__ import annotations

import os
import time

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.maintenance.garbage import GcReport, gc
from smalti.optouts import ledger
from smalti.optouts.ledger import resolve, state
from smalti.optouts.ledger_rows import OLD, read_matched
from smalti.optouts.orphans import unnamed_rows
from smalti.optouts.preview import preview
from smalti.optouts.proof import prove
from smalti.settings import MaintenanceRun, OptoutRun
from tests.optouts.lakes import Sample, add_part, ask, match

DAY = 86_400.0


class Killed(BaseException):
    pass


def orphaned(lake: Lake) -> str:
    """A writer was killed between the rows and their step. Returns its request."""
    add_part(lake, "a", 1, [Sample("1", 1, "ann"), Sample("2", 2, "bob")])
    request = ask(lake, ("owner", "ann"))

    def killed(uri: str, data: bytes) -> bool:
        if uri == lake.optout_resolution(1):
            raise Killed
        return real(uri, data)

    real = objects.create_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "create_bytes", killed)
        with pytest.raises(Killed):
            resolve(lake, [request], match=match)
    return request


def rows(lake: Lake) -> set[str]:
    return {each.uri for each in objects.list_objects(lake.optout_resolutions()) if each.uri.endswith(".parquet")}


def collect(lake: Lake, days: float, *, apply: bool = True, grace: float = 7.0) -> GcReport:
    return gc(lake, MaintenanceRun(apply=apply, grace_days=grace), time.time() + days * DAY)


def test_rows_of_a_step_that_never_was_go_and_those_of_steps_and_previews_stay(any_lake: Lake) -> None:
    orphan = orphaned(any_lake)
    [left] = rows(any_lake)
    other = ask(any_lake, ("owner", "bob"))
    resolve(any_lake, [other], match=match)
    seen = ask(any_lake, ("id", "a/2"), apply=None)
    preview(any_lake, OptoutRun(request=seen))
    before = rows(any_lake)
    assert len(before) == 3
    assert collect(any_lake, 6).deleted == {}
    report = collect(any_lake, 8, apply=False)
    assert (report.warnings, report.deleted, rows(any_lake)) == ((), {"matched rows": 1}, before)
    report = collect(any_lake, 8)
    assert report.deleted == {"matched rows": 1}
    assert "no step of the ledger names it" in report.shown[0]
    assert rows(any_lake) == before - {left}
    resolve(any_lake, [orphan], match=match)
    assert left in rows(any_lake)
    assert collect(any_lake, 80).deleted == {}
    assert prove(any_lake, orphan, match=match).found == 1


def test_rows_that_a_step_comes_to_name_meanwhile_are_not_those_that_were_looked_at(lake: Lake) -> None:
    orphan = orphaned(lake)
    [left] = rows(lake)
    path = objects.local_path(left)
    assert path is not None
    os.utime(path, (time.time() - 9 * DAY,) * 2)
    [found] = unnamed_rows(lake, time.time(), 7 * DAY)
    resolve(lake, [orphan], match=match)
    assert not objects.delete_object(found.uri, found.generation)
    kept = read_matched(lake, state(lake).matched, [orphan])
    assert kept is not None
    assert kept["id"].to_pylist() == ["a/1"]


def test_rows_are_garbage_no_sooner_than_whoever_finds_them_writes_them_anew(lake: Lake) -> None:
    orphaned(lake)
    now = time.time()
    assert unnamed_rows(lake, now + OLD, 0.0) == []
    assert collect(lake, 0.9, grace=0.0).deleted == {}
    assert collect(lake, 1.1, grace=0.0).deleted == {"matched rows": 1}


def test_what_cannot_be_read_keeps_all_of_them_and_nothing_else(lake: Lake) -> None:
    orphaned(lake)
    seen = ask(lake, ("id", "a/2"), apply=None)
    objects.create_bytes(lake.optout_preview(seen), b"damaged")
    report = collect(lake, 9)
    assert report.deleted == {}
    assert "matched rows of opt-outs are not looked at" in report.warnings[0]
    assert len(rows(lake)) == 1


@pytest.mark.parametrize("position", [1, 2])
def test_rows_of_a_step_that_was_lost_wait_until_it_is_restored(lake: Lake, position: int) -> None:
    add_part(lake, "a", 1, [Sample("1", 1, "ann"), Sample("2", 2, "bob")])
    for owner in ("ann", "bob"):
        resolve(lake, [ask(lake, ("owner", owner))], match=match)
    objects.delete_object(lake.optout_resolution(position))
    report = collect(lake, 9)
    assert (report.deleted, len(rows(lake))) == ({}, 2)
    assert "a step of the ledger of opt-outs is gone" in report.warnings[0]


def test_a_block_names_rows_too(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "BLOCK", 2)
    add_part(lake, "a", 1, [Sample("1", 1, "ann"), Sample("2", 2, "bob")])
    for owner in ("ann", "bob"):
        resolve(lake, [ask(lake, ("owner", owner))], match=match)
    assert (len(rows(lake)), collect(lake, 9).deleted) == (3, {})
