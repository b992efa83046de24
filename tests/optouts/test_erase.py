"""Erasing: parts, then versions, then what is written down; over a lake with live releases, with the matcher itself where it says so."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from smalti import cli, objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.optouts import erase as module
from smalti.optouts.erase import EraseReport, erase
from smalti.optouts.erase_parts import left_over
from smalti.optouts.erasing import Erasing, add_erasing, pixels_of, read_erasing
from smalti.optouts.ledger import resolve, the_matcher
from smalti.optouts.reach import Matcher
from smalti.optouts.request import Action
from smalti.release import verify as verify_module
from smalti.release.latest import is_gone, live_versions
from smalti.release.manifest import read_manifest
from smalti.release.publish import rollback
from smalti.release.successors import Succeeded, succeed
from smalti.settings import OptoutRun
from smalti.shards import mds
from smalti.shards.part import committed_parts
from smalti.shards.replacements import read_log
from smalti.shards.stage import shard
from tests.maintenance.conftest import Died, content, dying_after, release, served
from tests.optouts.conftest import DEMO, RELEASE, deliver_run
from tests.optouts.lakes import ask, match, take_back
from tests.release.conftest import build
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, stored


@pytest.fixture(autouse=True)
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing streaming takes many seconds; the proof and the loader have tests with it."""
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)


@pytest.fixture(scope="module")
def live(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two live versions; the older one has no part of `demo`'s last batch."""
    folder = tmp_path_factory.mktemp("live") / "lake"
    shutil.copytree(sharded, folder)
    lake = Lake.at(str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "read_ids", kept_ids)
        release(lake, RELEASE)
        deliver_run(lake, DEMO.model_copy(update={"batch": "b3"}), [Row("12.jpg", stored(picture(12)))])
        release(lake, RELEASE)
    return folder


@pytest.fixture
def copies(live: Path, tmp_path: Path) -> Callable[[str], Lake]:
    def copy(name: str) -> Lake:
        shutil.copytree(live, tmp_path / name)
        return Lake.at(str(tmp_path / name))

    return copy


@pytest.fixture
def lake(copies: Callable[[str], Lake]) -> Lake:
    return copies("lake")


def asked(lake: Lake, *keys: str, action: Action = Action.ERASE, by: Matcher = match) -> OptoutRun:
    """A request that is in force."""
    request = ask(lake, *(("id", each) for each in keys), action=action)
    resolve(lake, [request], match=by)
    return OptoutRun(request=request)


def erased(lake: Lake, run: OptoutRun) -> EraseReport:
    return erase(lake, run, match=match)


def everything(lake: Lake) -> dict[str, object]:
    return {each.uri: each for each in objects.list_objects(lake.root)}


def test_every_live_version_is_exchanged_and_what_must_go_is_written_down(lake: Lake) -> None:
    """With the matcher itself."""
    old = {version: read_manifest(lake.manifest("set", version)) for version in live_versions(lake, "set")}
    before = {version: served(lake, each) for version, each in old.items()}
    parts = {part.name: part for part in committed_parts(lake, "demo")}
    [first] = [name for name, part in parts.items() if part.batch == "b1"]
    [other] = committed_parts(lake, "other")
    run = asked(lake, "demo/1.jpg", by=the_matcher())
    report = erase(lake, run)
    assert set(report.parts) == {f"demo/{first}", f"other/{other.name}"}
    assert set(report.versions) == {f"set/{version}" for version in old}
    assert all(report.versions.values())
    assert report.ids == 2
    for version, manifest in old.items():
        assert is_gone(lake, "set", version)
        new = read_manifest(lake.manifest("set", report.versions[f"set/{version}"]))
        wanted = {name: data for name, data in before[version].items() if name not in ("demo/1.jpg", "other/copy.jpg")}
        assert served(lake, new) == wanted
        used = {f"{source.name}/{part.name}" for source in new.sources for part in source.parts}
        assert not used & report.parts.keys()
        assert len(used) == sum(len(source.parts) for source in manifest.sources)
        with pytest.raises(InputError, match=report.versions[f"set/{version}"]):
            rollback(lake, "set", version)
    assert [report.versions[f"set/{version}"] for version in old] == list(live_versions(lake, "set"))

    said = read_erasing(lake, run.request)
    assert said is not None
    assert (said.parts, said.position, said.ids) == (report.parts, report.position, ("demo/1.jpg", "other/copy.jpg"))
    assert {(each.version, each.successor) for each in said.versions} == {
        (name.partition("/")[2], new) for name, new in report.versions.items()
    }
    files = [stored(picture(1)), stored(picture(1, 500, 500))]
    kept = [kept_picture(lake, f"demo/{first}", 1), kept_picture(lake, f"other/{other.name}", 0)]
    assert set(said.files) == {hashlib.sha256(data).hexdigest() for data in files}
    assert set(said.pictures) == {hashlib.sha256(data).hexdigest() for data in kept}
    assert set(said.pixels) == {pixels_of(data) for data in (*files, *kept)}
    before_again = everything(lake)
    assert erase(lake, run).model_copy(update={"seconds": report.seconds}) == report
    assert everything(lake) == before_again, "a second time nothing changes"


def kept_picture(lake: Lake, part: str, index: int) -> bytes:
    columns, samples = mds.read_shard(objects.read_bytes(f"{lake.parts_root()}/{part}/512/1.000/shard.00000.mds"))
    image = mds.decode_sample(columns, samples[index])["image"]
    assert isinstance(image, bytes)
    return image


def test_only_what_was_asked_applied_and_not_taken_back_is_erased(lake: Lake) -> None:
    waits = ask(lake, ("id", "demo/2.jpg"), action=Action.ERASE)
    back = asked(lake, "demo/3.jpg")
    resolve(lake, [take_back(lake, back.request)], match=match)
    before = everything(lake)
    for run, why in (
        (asked(lake, "demo/1.jpg", action=Action.EXCLUDE), "does not ask to erase"),
        (OptoutRun(request=waits), "was not applied"),
        (back, "was taken back"),
        (OptoutRun(request="0" * 16), "there is no such request"),
    ):
        with pytest.raises(InputError, match=why):
            erased(lake, run)
    assert {uri for uri in everything(lake).keys() - before.keys() if "/parts/" in uri or "/releases/" in uri} == set()


def test_a_version_that_was_never_published_is_given_up(lake: Lake) -> None:
    made = build(lake, RELEASE.model_copy(update={"dataset": RELEASE.dataset.model_copy(update={"name": "draft"})}))
    report = erased(lake, asked(lake, "demo/1.jpg"))
    assert report.versions[f"draft/{made.version}"] == ""
    assert is_gone(lake, "draft", made.version)


def test_what_comes_later_is_added_and_the_grace_begins_anew(lake: Lake) -> None:
    run = asked(lake, "demo/1.jpg")
    first = erased(lake, run)
    deliver_run(lake, DEMO.model_copy(update={"batch": "b9"}), [Row("again.jpg", stored(picture(1, 600, 600)))])
    [late] = [part for part in committed_parts(lake, "demo") if part.batch == "b9"]
    report = erased(lake, run)
    assert report.parts == {**first.parts, f"demo/{late.name}": ""}
    assert report.erased > first.erased
    assert report.ids == 3
    said = read_erasing(lake, run.request)
    assert said is not None
    assert len(said.pictures) == 3
    assert not left_over(lake)
    assert objects.exists(lake.optout_erasing(run.request, 2))
    assert not objects.exists(lake.optout_erasing(run.request, 3))


def test_another_encoding_of_a_batch_brings_nothing_back_for_good(lake: Lake) -> None:
    """Sharded anew from the table, whose rows are there until the grace is over."""
    run = asked(lake, "demo/1.jpg")
    erased(lake, run)
    again = DEMO.model_copy(
        update={
            "source": DEMO.source.model_copy(
                update={"encoding": DEMO.source.encoding.model_copy(update={"quality": 93})}
            )
        }
    )
    name = shard(lake, again).part
    report = erased(lake, run)
    assert f"demo/{name}" in report.parts
    manifest = release(lake, RELEASE)
    assert "demo/1.jpg" not in served(lake, manifest)
    assert "demo/2.jpg" in served(lake, manifest)


def test_a_sample_of_two_requests_is_old_for_both(lake: Lake) -> None:
    one = asked(lake, "demo/1.jpg")
    first = erased(lake, one)
    two = asked(lake, "demo/1.jpg", "demo/2.jpg")
    second = erased(lake, two)
    [old] = [key for key in first.parts if key.startswith("demo/")]
    assert {old, first.parts[old]} <= second.parts.keys(), "the oldest part still holds both"
    said = read_erasing(lake, two.request)
    assert said is not None
    assert len(said.pictures) == 3
    assert erased(lake, one).parts.keys() == first.parts.keys()


def test_killed_the_next_run_ends_in_the_same(
    copies: Callable[[str], Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At some of its changes: each of those to parts has a test of its own, and so have those to versions."""
    origin = copies("origin")
    run = asked(origin, "demo/1.jpg", "demo/5.jpg")

    def copy(name: str) -> Lake:
        shutil.copytree(tmp_path / "origin", tmp_path / name)
        return Lake.at(str(tmp_path / name))

    undisturbed = copy("undisturbed")
    wanted_parts = erased(undisturbed, run)
    wanted = {name: data for name, data in content(undisturbed).items() if "/parts/" in name}
    for changes in (8, 22, 36):
        other = copy(f"after{changes}")
        revive = dying_after(monkeypatch, changes)
        with pytest.raises(Died):
            erased(other, run)
        revive()
        report = erased(other, run)
        assert (report.parts, report.versions) == (wanted_parts.parts, wanted_parts.versions)
        assert {name: data for name, data in content(other).items() if "/parts/" in name} == wanted


def test_digests_are_known_though_the_old_parts_are_gone_before_they_are_written_down(
    copies: Callable[[str], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the last step, and not run again until maintenance has collected what was replaced."""
    undisturbed = copies("undisturbed")
    wanted = read_erasing(undisturbed, erased(undisturbed, asked(undisturbed, "demo/1.jpg")).request)
    lake = copies("killed")
    run = asked(lake, "demo/1.jpg")
    with monkeypatch.context() as patch:
        patch.setattr(module, "written_down", lambda *_: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            erased(lake, run)
    for source in ("demo", "other"):
        for name in read_log(lake, source).erased:
            shutil.rmtree(str(objects.local_path(lake.part(source, name))))
    erased(lake, run)
    found = read_erasing(lake, run.request)
    assert found is not None
    assert wanted is not None
    assert len(found.pictures) == 2
    assert (found.pictures, found.pixels) == (wanted.pictures, wanted.pixels)


def test_a_part_that_comes_while_versions_are_exchanged_is_erased_too(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(lake: Lake, **more: Any) -> tuple[Succeeded, ...]:
        monkeypatch.setattr(module, "succeed", succeed)
        deliver_run(lake, DEMO.model_copy(update={"batch": "b9"}), [Row("again.jpg", stored(picture(1, 600, 600)))])
        return succeed(lake, **more)

    monkeypatch.setattr(module, "succeed", slow)
    report = erased(lake, asked(lake, "demo/1.jpg"))
    assert len(report.parts) == 3
    assert not left_over(lake)


def test_the_command_line_erases(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asked(lake, "demo/1.jpg")
    monkeypatch.setattr("sys.argv", ["smalti", "optout", "erase", run.request, "--lake", lake.root, "--json"])
    assert cli.run() == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ids"], len(said["parts"]), len(said["versions"])) == (2, 2, 2)
    monkeypatch.setattr("sys.argv", ["smalti", "optout", "erase", "0" * 16, "--lake", lake.root])
    assert cli.run() == 2


def test_what_is_written_down_once_is_not_written_again(tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path))
    fields: dict[str, Any] = {
        "request": "0" * 16,
        "position": 1,
        "versions": (),
        "files": (),
        "pictures": (),
        "pixels": (),
    }
    first = Erasing(erased=datetime(2026, 11, 30, 12, tzinfo=UTC), parts={"s/a": "s/b"}, ids=("s/1",), **fields)
    later = first.model_copy(update={"erased": first.erased.replace(hour=13), "ids": ("s/2",)})
    assert read_erasing(lake, first.request) is None
    assert add_erasing(lake, first) == first == add_erasing(lake, first.model_copy(update={"erased": later.erased}))
    both = add_erasing(lake, later)
    assert (both.ids, both.erased, both.parts) == (("s/1", "s/2"), later.erased, {"s/a": "s/b"})
    assert read_erasing(lake, first.request) == both == add_erasing(lake, later)
    assert len(list(objects.list_objects(lake.root))) == 2


def test_pixels_are_those_of_the_picture_however_it_is_packed() -> None:
    image, out = picture(3), io.BytesIO()
    image.save(out, "WEBP", lossless=True)
    assert pixels_of(stored(image, "PNG")) == pixels_of(out.getvalue()) == pixels_of(stored(image, "BMP"))
    assert pixels_of(stored(image.transpose(Image.Transpose.ROTATE_90), "PNG")) != pixels_of(stored(image, "PNG"))
    assert pixels_of(b"no picture") is None
