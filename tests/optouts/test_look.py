"""After a removal was proven: what is in the lake again is found, erased and removed once more, with a receipt of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from smalti import objects
from smalti.config import Columns
from smalti.lake import Lake
from smalti.optouts import remove as remove_module
from smalti.optouts.answers import LONGEST, answered_since, removed_of
from smalti.optouts.deadlines import due
from smalti.optouts.erase import erase
from smalti.optouts.look import look
from smalti.optouts.lost import lost
from smalti.optouts.receipt_erase import read_erase_receipts
from smalti.optouts.remove import remove
from smalti.optouts.status import State, standings
from smalti.optouts.tables import Tables
from smalti.optouts.views import pages_of, show
from smalti.release.manifest import read_manifest
from smalti.settings import LakeRun, OptoutRun, SourceRun
from smalti.shards.stage import shard
from smalti.sources.inventory import stage
from smalti.table import ingest as ingest_module
from smalti.table.fingerprint import fingerprint
from smalti.table.ingest import ingest
from smalti.table.store import open_table
from tests.conftest import snapshot
from tests.optouts import line
from tests.optouts.line import COPIES, ERASED, ORIGINAL, pictures
from tests.optouts.searching import ALLOWED, Search
from tests.sources.making import Made
from tests.support.pictures import picture, stored

ANY = LakeRun()
COPY = stored(picture(1, 700, 700), "PNG")


@dataclass(frozen=True)
class Line:
    """A lake before and after the removal, and its sources' runs."""

    before: Path
    after: Path
    run: OptoutRun
    sources: tuple[SourceRun, ...]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Line:
    folder = tmp_path_factory.mktemp("look")
    lake = Lake.at(str(folder / "before"))
    with pytest.MonkeyPatch.context() as patch:
        sources = line.make(f"file://{folder}/sources", lake, patch)
        run = line.ask(lake)
        line.exclude(lake, run)
        erase(lake, run)
        shutil.copytree(folder / "before", folder / "after")
        assert remove(Lake.at(str(folder / "after")), run).removed
    return Line(folder / "before", folder / "after", run, sources)


@pytest.fixture
def lake(made: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    line.patch(monkeypatch)
    shutil.copytree(made.after, tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


def found(lake: Lake) -> set[str]:
    """Outside the ledger and the receipts."""
    root = objects.local_path(lake.root)
    assert root is not None
    every = Search(root, {*ERASED, "made/again.png"}, {*(pictures()[name] for name in ERASED), COPY}).everything()
    return {path for path in every if not ALLOWED.fullmatch(path)}


def late_part(lake: Lake, made: Line, tmp_path: Path) -> None:
    """Of a shard run that had read its rows before the removal."""
    shutil.copytree(made.before, tmp_path / "early")
    early = Lake.at(str(tmp_path / "early"))
    run = made.sources[0]
    other = run.source.encoding.model_copy(update={"quality": 93})
    report = shard(early, run.model_copy(update={"source": run.source.model_copy(update={"encoding": other})}))
    assert report.part is not None
    there = early.part("made", report.part).removeprefix("file://")
    shutil.copytree(there, lake.part("made", report.part).removeprefix("file://"))


def deliver(lake: Lake, tmp_path: Path, key: str, data: bytes) -> SourceRun:
    source = Made(f"file://{tmp_path}/late")
    source.put(f"images/{key}", data)
    source.table([{"file": key, "caption": "late", "url": f"https://b.org/{key}"}])
    source.config["columns"] = Columns(key="file", caption="caption", url="url")
    run = source.run(batch="b3")
    stage(lake, run)
    return run


def late_ingest(lake: Lake, tmp_path: Path, key: str, data: bytes) -> None:
    """Of an ingest that had loaded what is asked for before the request came."""
    run = deliver(lake, tmp_path, key, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_module, "load_watch", lambda *_: None)
        assert ingest(lake, run).rows_out == 1
    fingerprint(lake, run)


def late_version(lake: Lake, made: Line, _: Path) -> None:
    """Of a build that had chosen its parts before the erasure."""
    early = Lake.at(f"file://{made.before}")
    manifest = read_manifest(early.manifest("plain", "v1")).model_copy(update={"version": "v9"})
    objects.create_bytes(lake.claim("plain", "v9"), objects.read_bytes(early.claim("plain", "v1")))
    objects.create_bytes(lake.manifest("plain", "v9"), manifest.encode())


def late_answer(lake: Lake, made: Line, _: Path) -> None:
    """Of an engine that had been asked before the removal."""
    early = Lake.at(f"file://{made.before}")
    said = objects.read_bytes(early.answer("made", "caption", "vlm", "0" * 64, "b1", "one"))
    objects.create_bytes(lake.answer("made", "caption", "vlm", "0" * 64, "b1", "late"), said)


def late_pilot(lake: Lake, _: Line, __: Path) -> None:
    page = lake.pilot_page("made", "caption", "vlm", "0" * 64, "b1", "e" * 64)
    objects.create_bytes(page, f"<small>{COPIES[1].replace('&', '&amp;')}: 600 x 600</small>".encode())


Comes = Callable[[Lake, Line, Path], None]

BACK: dict[str, tuple[Comes, str]] = {
    "part": (late_part, "1 parts, the first is made/"),
    "version": (late_version, "1 versions use a part that was erased, the first is file:"),
    "answer": (late_answer, "answers of engines"),
    "pilot": (late_pilot, "answers of engines"),
    "copy": (lambda lake, _, folder: late_ingest(lake, folder, "again.png", COPY), "rows of tables"),
    "same id": (lambda lake, _, folder: late_ingest(lake, folder, "p1.jpg", pictures()[ORIGINAL]), "rows of tables"),
}


@pytest.mark.parametrize("name", BACK)
def test_what_comes_back_is_found_and_removed_and_has_a_receipt_of_its_own(
    name: str, lake: Lake, made: Line, tmp_path: Path
) -> None:
    comes, what = BACK[name]
    run = made.run
    comes(lake, made, tmp_path)
    assert found(lake) or name == "version", "as long as nobody looks"
    report = look(lake, ANY)
    assert report.looked == 1
    assert report.again.keys() == {run.request}
    assert report.again[run.request].startswith(what)

    first = snapshot(lake.optout_receipts(run.request))
    erase(lake, run)
    [standing] = standings(lake)
    assert standing.state == State.EXCLUDED, "it is not true any more that it is gone"
    assert due(standing) > datetime.now(UTC) + timedelta(days=29), "counted from when it was found"
    assert look(lake, ANY).again == {}, "its run is at it"
    assert lost(lake, datetime.now(UTC) + timedelta(days=10), own_run=timedelta(0), own_removal=timedelta(days=2))
    removed = remove(lake, run)
    assert removed.receipt == lake.optout_receipt(run.request, "erase-2")
    assert found(lake) == set()
    assert standings(lake)[0].state == State.PROVEN
    assert {each: data for each, data in snapshot(lake.optout_receipts(run.request)).items() if each in first} == first
    one, two = read_erase_receipts(lake, run.request)
    assert (one.number, two.number, two.erased > one.erased) == (1, 2, True)
    assert two.tables == Tables.open(lake).versions, "as long as these are the newest, no table is looked at"
    assert b"This is receipt 2" in show(lake, run.request, pages_of(lake, run.request)[-1], "me", page=True)

    before = snapshot(lake.root)
    assert look(lake, ANY).again == {}
    erase(lake, run)
    assert remove(lake, run).receipt == removed.receipt
    assert snapshot(lake.root) == before, "a third time there is nothing to do"


def test_what_erased_nothing_new_changes_nothing(lake: Lake, made: Line) -> None:
    before = snapshot(lake.root)
    assert (look(lake, ANY).looked, look(lake, ANY).again) == (1, {})
    erase(lake, made.run)
    remove(lake, made.run)
    assert snapshot(lake.root) == before


def test_a_copy_that_is_delivered_afterwards_leaves_nothing(lake: Lake, tmp_path: Path) -> None:
    """At another size, in another format, under another name."""
    run = deliver(lake, tmp_path, "again.png", COPY)
    assert ingest(lake, run).dropped == {"optout": 1}
    fingerprint(lake, run)
    assert found(lake) <= {"staging/made/b3/inventory.parquet"}
    assert look(lake, ANY).again == {}


def test_answers_are_looked_at_as_long_as_a_run_may_have_begun_before(lake: Lake, made: Line, tmp_path: Path) -> None:
    late_answer(lake, made, tmp_path)
    [receipt] = read_erase_receipts(lake, made.run.request)
    removed = {made.run.request: removed_of(receipt, frozenset(ERASED))}
    assert answered_since(lake, removed, receipt.proved + LONGEST - timedelta(seconds=1)) == [made.run.request]
    assert answered_since(lake, removed, receipt.proved + LONGEST) == []
    behind = {name: replace(each, began=each.began + timedelta(minutes=50)) for name, each in removed.items()}
    assert answered_since(lake, behind, receipt.proved) == [made.run.request], "the worker's clock was ahead"


def test_where_nobody_asked_to_erase_nothing_is_read(tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path))
    assert look(lake, ANY).looked == 0
    assert snapshot(lake.root) == {}


def test_a_further_removal_that_was_killed_goes_on(
    lake: Lake, made: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are gone by then, and still there is no receipt: it is not taken for done."""
    late_ingest(lake, tmp_path, "p1.jpg", pictures()[ORIGINAL])
    erase(lake, made.run)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(remove_module, "scan", dies)
        with pytest.raises(KeyboardInterrupt):
            remove(lake, made.run)
    table = open_table(lake.table("made"))
    assert not table.count_rows(f"id = '{ORIGINAL}'")
    assert remove(lake, made.run).receipt == lake.optout_receipt(made.run.request, "erase-2")
    assert found(lake) == set()
