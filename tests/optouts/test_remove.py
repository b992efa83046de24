"""After a removal nothing in the lake shows what was erased, and the line goes on."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.maintenance.live import references
from smalti.optouts.apply import apply, refuse
from smalti.optouts.erase import erase
from smalti.optouts.erasing import read_erasing
from smalti.optouts.ledger import read_step, resolve
from smalti.optouts.needles import Removing, Seeker
from smalti.optouts.preview import look_again, preview, read_preview, turns
from smalti.optouts.receipt_erase import read_erase_receipt
from smalti.optouts.remove import RemoveReport, remove
from smalti.optouts.remove_small import remove_small
from smalti.optouts.request import Action, Answer, read_answer, read_request, write_answer
from smalti.optouts.scan import scan
from smalti.optouts.scan_tables import scan_table
from smalti.optouts.status import State, standings
from smalti.settings import OptoutRun, SourceRun
from smalti.shards import mds
from smalti.shards.part import part_names, read_part
from smalti.shards.replacements import Step, append_step, read_log
from smalti.sources.inventory import stage
from smalti.table.ingest import ingest
from tests.conftest import snapshot
from tests.maintenance.conftest import Died, dying_after
from tests.optouts import line
from tests.optouts.lakes import take_back
from tests.optouts.line import COPIES, ERASED, ORIGINAL, pictures
from tests.optouts.overlap import most_at_once
from tests.optouts.searching import ALLOWED, Search

Made = tuple[Path, OptoutRun, tuple[SourceRun, ...]]


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    line.patch(monkeypatch)
    return monkeypatch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A lake and its sources, with a query and an erased request about the same picture."""
    folder = tmp_path_factory.mktemp("line")
    lake = Lake.at(str(folder / "lake"))
    with pytest.MonkeyPatch.context() as patch:
        runs = line.make(f"file://{folder}/sources", lake, patch)
        line.ask(lake, Action.QUERY)
        run = line.ask(lake)
        line.exclude(lake, run)
        erase(lake, run)
    return folder, run, runs


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Callable[[str], Lake]:
    """Copies with the sources at their place: they are named in inventories."""

    def of(name: str) -> Lake:
        shutil.copytree(made[0] / "lake", tmp_path / name)
        return Lake.at(str(tmp_path / name))

    return of


@pytest.fixture
def lake(copy: Callable[[str], Lake]) -> Lake:
    return copy("lake")


@pytest.fixture
def run(made: Made) -> OptoutRun:
    return made[1]


@pytest.fixture
def runs(made: Made) -> tuple[SourceRun, ...]:
    return made[2]


@pytest.fixture
def search(made: Made) -> Callable[[Lake], dict[str, set[str]]]:
    """What is found outside the ledger and the receipts, by a search that knows the pictures."""
    stored = {*stored_pictures(Lake.at(str(made[0] / "lake")), made[1])}
    wanted = {pictures()[name] for name in ERASED} | stored
    assert len(wanted) == 6

    def of(lake: Lake) -> dict[str, set[str]]:
        root = objects.local_path(lake.root)
        assert root is not None
        found = Search(root, ERASED, wanted).everything()
        return {path: what for path, what in found.items() if not ALLOWED.fullmatch(path)}

    return of


def stored_pictures(lake: Lake, run: OptoutRun) -> Iterator[bytes]:
    for shard, indices in read_step(lake, 1).places[run.request].items():
        columns, samples = mds.read_shard(objects.read_bytes(f"{lake.parts_root()}/{shard}"), shard)
        for index in indices:
            image = mds.decode_sample(columns, samples[index], shard)["image"]
            assert isinstance(image, bytes)
            yield image


KINDS = {
    "gc/old/mark.json": {"id"},
    "optouts/rejected/": {"id"},
    "optouts/requests/": {"id", "looks"},
    "parts/made/00001-": {"id", "bytes", "pixels"},
    "parts/other/00001-": {"id", "bytes", "pixels"},
    "parts/made/00009-000000000009/512/1.000/.attempt-": {"bytes"},
    "progress/made/caption/rules/": {"id"},
    "progress/made/caption/vlm/": {"id"},
    "progress/made/classify/": {"id"},
    "progress/made/fingerprint/": {"id"},
    "releases/set/curations/": {"id", "looks"},
    "releases/plain/v1/tree/": {"id", "bytes", "pixels"},
    "releases/set/v1/report.html": {"id"},
    "runs/source_made/2026/ingest/driver.log": {"id"},
    "runs/source_made/2026/ingest/page.html": {"id"},
    "runs/source_made/2026/ingest/report.json": {"id"},
    "tables/made.lance/": {"id", "bytes"},
    "tables/other.lance (rows)": {"id", "bytes", "pixels"},
}
"""Of a lake from which nothing was removed yet: each of these kinds shows it."""


def test_before_the_removal_every_kind_of_object_shows_it(
    lake: Lake, search: Callable[[Lake], dict[str, set[str]]]
) -> None:
    found = search(lake)
    for start, what in KINDS.items():
        shown = set[str]().union(*(each for path, each in found.items() if path.startswith(start)))
        assert shown >= what, start


@pytest.fixture(scope="module")
def gone(made: Made, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, RemoveReport, str]:
    """A lake after the removal; what it did; what a report said before."""
    folder = tmp_path_factory.mktemp("gone") / "lake"
    shutil.copytree(made[0] / "lake", folder)
    lake = Lake.at(str(folder))
    uri = lake.run_object("source_made", "2026", "shard", "driver.log")
    objects.create_bytes(uri, OTHERS.encode())
    return lake, remove(lake, made[1]), OTHERS


OTHERS = f"{ORIGINAL}.png and x{ORIGINAL}1 and {COPIES[0]}0 and {COPIES[0]}-b"
"""Ids that begin or end like those that were erased."""


def test_afterwards_only_the_ledger_and_the_receipts_name_it(
    gone: tuple[Lake, RemoveReport, str], run: OptoutRun, search: Callable[[Lake], dict[str, set[str]]]
) -> None:
    lake, report, _ = gone
    assert search(lake).keys() <= {
        "runs/source_made/2026/shard/driver.log"
    }  # a search for parts of words finds the others there
    assert report.removed
    assert report.rows == len(ERASED)
    receipt = read_erase_receipt(lake, run.request)
    assert receipt is not None
    assert {place.where for place in receipt.places} >= {
        "gc", "optouts", "parts", "progress", "releases", "runs", "staging", "tables",
    }  # fmt: skip
    assert receipt.ids == len(ERASED)
    assert {(each.dataset, each.version) for each in receipt.releases} >= {("plain", "v1"), ("set", "v1")}
    assert all(each.successor for each in receipt.releases)
    page = objects.read_bytes(report.page).decode()
    assert not any(name in page for name in ERASED)
    assert standings(lake, [run.request])[0].state == State.PROVEN
    before = snapshot(lake.root)
    assert remove(lake, run).receipt == report.receipt
    assert snapshot(lake.root) == before


def test_what_names_others_as_well_keeps_what_it_says_of_them(gone: tuple[Lake, RemoveReport, str]) -> None:
    lake, _, others = gone
    told = json.loads(objects.read_bytes(lake.run_object("source_made", "2026", "ingest", "report.json")))
    assert told == {"stage": "ingest", "warnings": ["(erased)", "all is well"], "rows": 3, "per_row": {"(erased)": 2}}
    log = objects.read_bytes(lake.run_object("source_made", "2026", "ingest", "driver.log")).decode()
    assert log == "00:00 made/p2.jpg is fine\n(erased)\n00:02 done\n"
    assert objects.read_bytes(lake.run_object("source_made", "2026", "shard", "driver.log")).decode() == others
    rejected = objects.read_bytes(lake.optout_rejected("f" * 16)).decode().splitlines()
    assert rejected == ["(erased)", '{"row": 4, "reason": "empty", "value": ""}']
    answers = pq.read_table(
        io.BytesIO(objects.read_bytes(lake.answer("made", "caption", "vlm", "0" * 64, "b1", "all")))
    )
    assert answers["id"].to_pylist() == [f"made/p{n}.jpg" for n in (0, 2, 3, 4)]
    assert not objects.exists(lake.answer("made", "caption", "vlm", "0" * 64, "b1", "one"))
    listed = pq.read_table(io.BytesIO(objects.read_bytes(lake.inventory("made", "b1"))))["uri"].to_pylist()
    assert sum("p1.jpg" in each for each in listed) == 0
    assert len(listed) == 6


def test_the_stages_of_the_same_batch_run_again_and_bring_nothing_back(
    gone: tuple[Lake, RemoveReport, str],
    tmp_path: Path,
    run: OptoutRun,
    runs: tuple[SourceRun, ...],
    patched: pytest.MonkeyPatch,
    search: Callable[[Lake], dict[str, set[str]]],
) -> None:
    shutil.copytree(str(objects.local_path(gone[0].root)), tmp_path / "again")
    lake = Lake.at(str(tmp_path / "again"))
    for each in runs:
        line.source(lake, each)
    line.build(lake, quarantine=False)
    assert search(lake).keys() <= {"runs/source_made/2026/shard/driver.log"}
    # Its owner still delivers it: the next batch does not list it, and names it nowhere
    later = runs[0].model_copy(update={"batch": "b2"})
    assert stage(lake, later).new == 1, "the source's table"
    assert ingest(lake, later).dropped == {}
    assert search(lake).keys() <= {"runs/source_made/2026/shard/driver.log"}
    # Changed, it may be another picture: it is listed, and does not enter the table, because it has the id
    file = objects.local_path(f"{runs[0].source.location()}/images/{ORIGINAL.partition('/')[2]}")
    assert file is not None
    os.utime(file, ns=(1, 1))
    changed = runs[0].model_copy(update={"batch": "b3"})
    assert stage(lake, changed).new == 2
    assert ingest(lake, changed).dropped == {"optout": 1}
    assert search(lake).keys() <= {"runs/source_made/2026/shard/driver.log", "staging/made/b3/inventory.parquet"}
    # Taken back, it is as new as any other
    back = take_back(lake, run.request)
    resolve(lake, [back])
    assert stage(lake, runs[0].model_copy(update={"batch": "b4"})).new == 1, "b3 has listed it"
    objects.delete_object(lake.ingested("made", "b3"))
    assert stage(lake, runs[0].model_copy(update={"batch": "b5"})).new == 2


def test_killed_anywhere_the_next_run_ends_the_same(
    copy: Callable[[str], Lake],
    run: OptoutRun,
    monkeypatch: pytest.MonkeyPatch,
    search: Callable[[Lake], dict[str, set[str]]],
) -> None:
    changes, killed = 0, 0
    while True:
        lake = copy(f"after{changes}")
        revive = dying_after(monkeypatch, changes)
        try:
            remove(lake, run)
            break
        except Died:
            killed += 1
        finally:
            revive()
        assert not objects.exists(lake.optout_receipt(run.request, "erase")) or search(lake) == {}
        assert remove(lake, run).removed
        assert read_erase_receipt(lake, run.request) is not None
        assert search(lake) == {}
        changes += 20
    assert killed > 1


def test_objects_are_read_side_by_side(lake: Lake, run: OptoutRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones to be cleaned, and all of them for the proof: a store may take 50 ms for each."""
    seeker = Seeker(Removing(request=run.request, begun=datetime.now(UTC), ids=(ORIGINAL,), pictures=()))
    cleaned = most_at_once(monkeypatch, "read_versioned")
    remove_small(lake, seeker, references(lake))
    assert cleaned[0] > 2
    looked_at = most_at_once(monkeypatch, "read_bytes")
    scan(lake, seeker)
    assert looked_at[0] > 2
    looked_at[0] = 0
    assert [*scan_table(lake.table("made"), seeker)]
    assert looked_at[0] > 2, "what is beside a table's rows"


def test_the_grace_is_waited_for(lake: Lake, run: OptoutRun) -> None:
    before = snapshot(lake.root)
    week = run.model_copy(update={"grace_days": 7.0})
    with pytest.raises(InputError, match="its grace is not over"):
        remove(lake, week)
    assert snapshot(lake.root) == before
    assert remove(lake, week, now=lambda: datetime.now(UTC) + timedelta(days=8)).removed


def test_a_run_with_fewer_days_waits_for_the_grace_that_the_request_was_handed_in_with(
    lake: Lake, run: OptoutRun
) -> None:
    uri = lake.optout_request(run.request)
    asked = read_request(lake, run.request).model_copy(update={"grace_days": 30.0})
    objects.delete_object(uri)
    objects.create_bytes(uri, asked.encode())
    assert erase(lake, run).grace_days == 30, "so that the DAG waits for as long"
    with pytest.raises(InputError, match="its grace is not over"):
        remove(lake, run, now=lambda: datetime.now(UTC) + timedelta(days=29))
    assert remove(lake, run, now=lambda: datetime.now(UTC) + timedelta(days=31)).removed


def test_nothing_is_removed_as_long_as_something_uses_an_old_part(lake: Lake, run: OptoutRun) -> None:
    claimed = lake.claim("set", "v3")
    objects.create_bytes(claimed, b"{}")
    before = snapshot(lake.root)
    with pytest.raises(InputError, match="claimed and not assembled"):
        remove(lake, run)
    assert {name: each for name, each in snapshot(lake.root).items() if "removing.json" not in name} == before
    objects.delete_object(claimed)
    assert remove(lake, run).removed


def test_what_a_writer_has_not_committed_is_waited_for(lake: Lake, run: OptoutRun) -> None:
    """It may still commit; Lance takes it in time, and until then nothing is proved."""
    data = Path(lake.table("made").removeprefix("file://")) / "data"
    sha256 = hashlib.sha256(pictures()[ORIGINAL]).hexdigest().encode()
    holding = [path for path in data.glob("*.lance") if sha256 in path.read_bytes()]
    left = data / "left.lance"
    shutil.copy(holding[0], left)
    report = remove(lake, run)
    assert (report.removed, report.receipt, report.page) == (False, "", "")
    assert "1 files that a writer has not committed" in report.warnings[0]
    assert not objects.exists(lake.optout_receipt(run.request, "erase"))
    assert standings(lake, [run.request])[0].state == State.EXCLUDED
    then = (datetime.now(UTC) - timedelta(days=8)).timestamp()
    os.utime(left, (then, then))
    assert remove(lake, run).removed
    assert read_erase_receipt(lake, run.request) is not None
    assert not left.exists()


@pytest.mark.parametrize("how", ["killed", "overtaken", "hidden"])
def test_parts_that_never_counted_go_once_nobody_writes_to_them(lake: Lake, run: OptoutRun, how: str) -> None:
    """Those of which an erasure knows nothing: a shard run was killed, or a merge came too late."""
    old = next(name for name in part_names(lake, "made") if name.startswith("00001-"))
    name = "00003-" + "f" * 12
    shutil.copytree(lake.part("made", old).removeprefix("file://"), lake.part("made", name).removeprefix("file://"))
    commit = lake.part_commit("made", name)
    part = read_part(lake, "made", old)
    objects.delete_object(commit)
    if how != "killed":
        counts = {"rows_in": part.samples, "rows_out": part.samples, "dropped": {}}
        late = part.model_copy(
            update={
                "name": name,
                "replaces": (old,),
                "origins": (
                    part.sharded[0].model_copy(update={"accounting": part.accounting.model_copy(update=counts)}),
                ),
                "accounting": part.accounting.model_copy(update=counts),
            }
        )
        objects.create_bytes(commit, late.encode())
    if how == "hidden":  # a collection has marked it, and its grace is not over
        assert append_step(lake, "made", Step(why="abandoned", replaces=(name,), origins=part.sharded))
    erasing = read_erasing(lake, run.request)
    assert erasing is not None
    written = (erasing.erased + timedelta(hours=1)).timestamp()
    os.utime(lake.samples("made", name).removeprefix("file://"), (written, written))
    day = run.model_copy(update={"grace_days": 1.0})
    with pytest.raises(CorruptError, match="part that is being written"):
        remove(lake, day, now=lambda: erasing.erased + timedelta(days=1))
    assert objects.exists(lake.samples("made", name))
    assert remove(lake, day, now=lambda: erasing.erased + timedelta(days=2)).removed
    left = [info.uri for info in objects.list_objects(lake.part("made", name))]
    assert left == ([commit] if how == "killed" else []), "nobody can commit it any more"
    assert name in read_log(lake, "made").hidden


@pytest.mark.parametrize("what", ["inventory", "checkpoint", "other"])
def test_what_cannot_be_read_stays_and_is_named(lake: Lake, run: OptoutRun, what: str) -> None:
    damaged = b"PAR1 and no more than that PAR1"
    uri = {
        "inventory": lake.inventory("made", "b9"),
        "checkpoint": lake.checkpoint("made", "caption", "vlm", "b9-0"),
        "other": f"{lake.root}/progress/made/whatever.bin.gz",
    }[what]
    objects.create_bytes(uri, damaged if uri.endswith(".parquet") else b"\x1f\x8b" + damaged)
    with pytest.raises(CorruptError, match=f"{uri.rpartition('/')[2]}: it cannot be read: nothing shows whether"):
        remove(lake, run)
    assert objects.exists(uri)
    assert not objects.exists(lake.optout_receipt(run.request, "erase"))
    objects.delete_object(uri)
    assert remove(lake, run).removed


def test_turns_and_answers_of_other_requests_stay_what_they_were(lake: Lake, run: OptoutRun) -> None:
    """A no at a second turn stays a no, and who waits there still waits, with a page to answer by."""
    asked = {}
    for name in ("refused", "waits", "waits at once", "applied"):
        asked[name] = line.ask(lake, Action.EXCLUDE, name).request
        if name != "waits at once":
            write_answer(lake, said(asked[name], apply=True))
    for name in ("refused", "waits"):
        look_again(lake, read_request(lake, asked[name]), 2)
    refuse(lake, asked["refused"], "me")

    def told() -> dict[str, object]:
        return {
            name: (read_answer(lake, each), turns(lake, each), standings(lake, [each]), digest(lake, each))
            for name, each in asked.items()
        }

    before = told()
    assert before["refused"][:2] == (read_answer(lake, asked["refused"]), 2)  # type: ignore[index]
    assert remove(lake, run).removed
    assert told() == before
    for name, each in asked.items():
        turn = turns(lake, each)
        assert objects.exists(lake.optout_preview_page(each, turn)) == name.startswith("waits")
        assert not any(id in objects.read_bytes(page).decode() for page in pages(lake, each) for id in ERASED)
        found = read_preview(lake, each)
        assert found is not None
        assert {listed.id for listed in found.shown} == {"(erased)"}
    with pytest.raises(InputError, match="was refused"):
        apply(lake, OptoutRun(request=asked["refused"]))
    page = lake.optout_preview_page(asked["waits"], 2)
    objects.delete_object(page)
    seen = preview(lake, OptoutRun(request=asked["waits"]))
    assert (seen.page, seen.digest) == (page, digest(lake, asked["waits"]))
    assert objects.exists(page)
    line.exclude(lake, OptoutRun(request=asked["waits at once"]))


def said(request: str, *, apply: bool) -> Answer:
    return Answer(request=request, apply=apply, by="me", answered=datetime.now(UTC), preview_sha256="")


def digest(lake: Lake, request: str) -> str:
    found = read_preview(lake, request)
    assert found is not None
    return found.digest()


def pages(lake: Lake, request: str) -> list[str]:
    return [info.uri for info in objects.list_objects(lake.optout_folder(request)) if info.uri.endswith(".html")]


def test_a_request_that_does_not_erase_or_is_not_erased_yet_is_refused(lake: Lake, run: OptoutRun) -> None:
    query = next(each.id for each in standings(lake) if each.action == Action.QUERY)
    with pytest.raises(InputError, match="it asks to query"):
        remove(lake, OptoutRun(request=query))
    objects.delete_object(lake.optout_erasing(run.request, 1))
    with pytest.raises(InputError, match="its parts are not erased yet"):
        remove(lake, run)


def test_what_may_not_be_removed_is_named_and_nothing_is_proved(lake: Lake, run: OptoutRun) -> None:
    uri = f"{lake.optout_inbox()}/exclude/somebody/their.jpg"
    objects.create_bytes(uri, pictures()[ORIGINAL])
    with pytest.raises(CorruptError, match=r"their\.jpg: .* was found that may not be there"):
        remove(lake, run)
    assert not objects.exists(lake.optout_receipt(run.request, "erase"))
    objects.delete_object(uri)
    assert remove(lake, run).removed
