from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from smalti.errors import ConflictError, CorruptError, InputError, LakeError, MissingObject, SmaltiError
from smalti.lake import Lake
from smalti.loader.skips import served_shards
from smalti.objects import create_bytes, file_uri, local_path
from smalti.release.manifest import read_manifest
from smalti.release.optouts import OptoutCheck, OptoutSnapshot, check_of, read_check
from smalti.release.pull import PullReport, pull
from smalti.release.verify import verify_manifest
from smalti.shards import mds
from tests.conftest import snapshot
from tests.loader.releases import SHARDS, Release, build, opt_out, skip_share

SKIPS = skip_share(0.2, shards=["alpha/00001-aaaaaaaaaaaa/512/1.000/1"], streams=["512/0.778"])


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "a disk"


def pulled(folder: Path) -> dict[str, str]:
    """Every file of the release in a directory; the pull's own notes left away."""
    return {name: digest for name, digest in snapshot(file_uri(folder)).items() if not name.startswith("/.smalti/")}


def served(release: Release) -> list[str]:
    """Shards of which anything is kept."""
    return sorted(
        shard.basename for stream in release.manifest.select() for shard in served_shards(release.uri, stream)
    )


def flip(path: Path) -> None:
    """Change a byte, and not the size."""
    os.chmod(path, 0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_pull_mirrors_what_the_lake_has_of_the_release(any_lake: Lake, disk: Path) -> None:
    release = build(any_lake, skips=SKIPS)

    report = pull(release.uri, disk)

    lake, here = snapshot(any_lake.root), pulled(disk)
    assert here.items() <= lake.items()
    assert sorted(name.removeprefix("/parts/") for name in here if name.startswith("/parts/")) == served(release)
    assert report.fetched == report.shards == len(served(release))
    assert report.fetched_bytes > report.bytes
    assert read_manifest(file_uri(report.manifest)) == release.manifest
    assert not list(disk.rglob(".attempt-*"))


def test_a_second_pull_transfers_nothing(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)
    first = pull(release.uri, disk)
    before = pulled(disk)

    second = pull(release.uri, disk)

    assert (second.fetched, second.fetched_bytes, second.shards) == (0, 0, first.shards)
    assert pulled(disk) == before


def test_a_second_pull_does_not_read_what_was_checked(lake: Lake, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk)
    monkeypatch.setattr("smalti.release.pull.file_sha256", lambda path: pytest.fail(f"{path} was read"))

    assert pull(release.uri, disk).fetched == 0


def test_tiers_can_be_pulled_one_by_one(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)

    small = pull(release.uri, disk, tiers=[512])
    assert not [name for name in pulled(disk) if "/1024/" in name]
    large = pull(release.uri, disk, tiers=[512, 1024])

    assert small.fetched + large.fetched == large.shards == len(served(release))
    with pytest.raises(InputError, match="no tier 2048"):
        pull(release.uri, disk, tiers=[2048])


def test_a_newer_version_fetches_only_what_is_new(lake: Lake, disk: Path) -> None:
    old = {"alpha": SHARDS["alpha"]}
    first = build(lake, shards=old, skips=SKIPS)
    pull(first.uri, disk)
    second = build(lake, version="v2", skips=SKIPS)

    report = pull(second.uri, disk)

    assert report.shards == len(served(second))
    assert report.fetched == len(set(served(second)) - set(served(first))) < report.shards
    assert {Path(p).parent.name for p in (report.manifest, pull(first.uri, disk).manifest)} == {"v1", "v2"}


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "flipped index", "flipped skips", "flipped manifest"])
def test_damaged_files_are_fetched_anew(lake: Lake, disk: Path, how: str) -> None:
    release = build(lake, skips=SKIPS)
    report = pull(release.uri, disk)
    before = pulled(disk)
    name = {
        "flipped index": "releases/demo/v1/streams/main/512/1.000/index.json.gz",
        "flipped skips": f"releases/demo/skips/{release.manifest.streams[1].skip_file}.json.gz",
        "flipped manifest": "releases/demo/v1/manifest.json",
    }.get(how, f"parts/{served(release)[0]}")
    path = disk / name
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "gone":
        path.unlink()
    else:
        flip(path)

    again = pull(release.uri, disk)

    assert pulled(disk) == before
    assert again.fetched == (0 if "flipped " in how else 1)
    assert 0 < again.fetched_bytes < report.fetched_bytes


def test_recheck_finds_damage_that_left_size_and_time_alone(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk)
    path = disk / "parts" / served(release)[0]
    stat = path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    assert pull(release.uri, disk).fetched == 0
    assert pull(release.uri, disk, recheck=True).fetched == 1


def test_a_killed_pull_goes_on_where_it_was(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)
    code = """if True:
        import os, signal, sys
        from smalti.release import pull
        fetch, fetched = pull.fetch, []
        def fetch_or_die(*args):
            if len(fetched) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            fetched.append(fetch(*args))
        pull.fetch = fetch_or_die
        pull.pull(sys.argv[1], sys.argv[2], threads=1)
    """
    killed = subprocess.run([sys.executable, "-c", code, release.uri, str(disk)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "/releases/demo/v1/manifest.json" not in pulled(disk)
    record = disk / ".smalti" / "verified.jsonl"
    record.write_text(record.read_text() + '["parts/half a li')

    report = pull(release.uri, disk)

    assert report.fetched == report.shards - 3
    assert sorted(n.removeprefix("/parts/") for n in pulled(disk) if n.startswith("/parts/")) == served(release)


@pytest.mark.parametrize("materialize", [False, True])
def test_notes_that_cannot_be_read_say_nothing(
    lake: Lake, disk: Path, materialize: bool, caplog: pytest.LogCaptureFixture
) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk, materialize=materialize)
    whole, notes = pulled(disk), disk / ".smalti/verified.jsonl"
    garbage = [b"\xff\xfe\x00", b"null", b'{"a": 1}', b'[["x"], 2, 3]', b"[" * 100_000, b'["a", "b"]', b"", b"\0\0\0"]
    notes.write_bytes(b"\n".join([*garbage, *notes.read_bytes().splitlines()[1:], *garbage]))
    shard = next(path for path in disk.rglob("*.mds"))
    flip(shard)

    again = pull(release.uri, disk, materialize=materialize)

    assert (again.fetched, pulled(disk)) == (1, whole)
    assert f"{shard} is not what the release has there" in caplog.text


IN_A_COPY = ["*.mds", "index.json.gz", "manifest.json", "verified.jsonl", "lock", "optouts.json"]
IN_A_TREE = ["*.mds", "index.json", "tree.json", "release.json", "verified.jsonl", "lock"]


@pytest.mark.parametrize(
    ("materialize", "name"), [*((False, each) for each in IN_A_COPY), *((True, each) for each in IN_A_TREE)]
)
def test_a_directory_in_the_place_of_a_file_is_one_clear_line(
    lake: Lake, disk: Path, materialize: bool, name: str
) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk, materialize=materialize)
    path = min(disk.rglob(name))
    path.unlink()
    path.mkdir()

    with pytest.raises(SmaltiError) as raised:
        pull(release.uri, disk, materialize=materialize)
    assert path.name in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("materialize", [False, True])
def test_what_may_not_be_read_is_fetched_anew_or_one_clear_line(
    lake: Lake, disk: Path, materialize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk, materialize=materialize)
    path = next(iter(sorted(disk.rglob("*.mds"))))
    whole, opened = pulled(disk), Path.open
    before = path.stat().st_ino

    def refused(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Tests may run as root, whom no mode stops."""
        if self == path and "r" in mode and self.stat().st_ino == before:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    if materialize:
        with pytest.raises(LakeError, match=rf"{path.name}: Permission denied"):
            pull(release.uri, disk, materialize=True, recheck=True)
    else:
        assert pull(release.uri, disk, recheck=True).fetched == 1
    monkeypatch.undo()
    assert pulled(disk) == whole


@pytest.mark.parametrize(
    "claim", [b"\xff\x00", b"", b"[]", b"[" * 100_000, b'{"optouts": Infinity}', b'{"optouts": "\xff"}']
)
def test_a_damaged_claim_of_a_tree_is_one_clear_line(lake: Lake, disk: Path, claim: bytes) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk, materialize=True)
    whole = pulled(disk)
    (disk / "release.json").write_bytes(claim)
    with pytest.raises(CorruptError, match=r"release\.json: this does not say what the place holds\. Remove it if"):
        pull(release.uri, disk, materialize=True)
    (disk / "release.json").unlink()
    assert pull(release.uri, disk, materialize=True).fetched == 0
    assert pulled(disk) == whole


@pytest.mark.parametrize("checked", ["2026-01-01T00:00:00", "2026-01-01", "now", "\udcff"])
def test_a_check_without_its_time_zone_is_damaged(lake: Lake, disk: Path, tmp_path: Path, checked: str) -> None:
    release = build(lake)
    manifest = pull(release.uri, disk).manifest
    note = disk / ".smalti/optouts.json"
    note.write_bytes(
        json.dumps({"position": 0, "checked": checked}, ensure_ascii=False).encode(errors="surrogateescape")
    )
    for materialize in (False, True):
        with pytest.raises(CorruptError, match=r"optouts\.json: .*pull it again"):
            pull(manifest, tmp_path / "second", materialize=materialize)
    pull(release.uri, disk, refresh_optouts=True)
    assert pull(manifest, tmp_path / "second").fetched > 0


@pytest.mark.parametrize("what", ["shard", "index", "skips", "manifest"])
def test_a_corrupt_source_is_named_and_nothing_of_it_appears(lake: Lake, disk: Path, what: str) -> None:
    release = build(lake, skips=SKIPS)
    stream = release.manifest.select()[0]
    uri = {
        "shard": f"{lake.parts_root()}/{served(release)[0]}",
        "index": f"{lake.release('demo', 'v1')}/{stream.index}",
        "skips": lake.skip_file("demo", str(stream.skip_file)),
        "manifest": release.uri,
    }[what]
    path = local_path(uri)
    assert path is not None
    flip(path)

    with pytest.raises(CorruptError, match=uri.replace(".", r"\.")):
        pull(release.uri, disk)

    assert uri.removeprefix(lake.root) not in pulled(disk)
    assert "/releases/demo/v1/manifest.json" not in pulled(disk)
    assert not list(disk.rglob(".attempt-*"))


def test_a_missing_shard_is_named(lake: Lake, disk: Path) -> None:
    release = build(lake)
    path = local_path(f"{lake.parts_root()}/{served(release)[0]}")
    assert path is not None
    path.unlink()
    with pytest.raises(MissingObject, match=served(release)[0]):
        pull(release.uri, disk)


def test_another_release_of_the_same_name_is_refused(lake: Lake, tmp_path: Path, disk: Path) -> None:
    pull(build(lake).uri, disk)
    other = build(Lake.at(str(tmp_path / "other lake")), skips=SKIPS)
    before = pulled(disk)

    with pytest.raises(ConflictError, match=r"holds another demo v1.*Pull into another directory"):
        pull(other.uri, disk)
    assert pulled(disk) == before


def test_two_pulls_into_one_directory_do_not_meet(lake: Lake, disk: Path) -> None:
    import fcntl

    release = build(lake)
    pull(release.uri, disk)
    with (disk / ".smalti" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another pull is at work"):
            pull(release.uri, disk)


def test_too_little_room_is_said_before_anything_is_fetched(
    lake: Lake, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = build(lake)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1000))
    with pytest.raises(InputError, match=r"MB are to be fetched, and there is room for 0\.00 MB"):
        pull(release.uri, disk)
    assert not (disk / "parts").exists()


def test_old_attempts_are_removed_and_young_ones_stay(lake: Lake, disk: Path) -> None:
    release = build(lake)
    pull(release.uri, disk)
    old, young = (disk / "parts" / "alpha" / f".attempt-{age}" for age in ("old", "young"))
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))

    pull(release.uri, disk)

    assert (old.exists(), young.exists()) == (False, True)


def test_progress_is_told(lake: Lake, disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    release = build(lake)
    with caplog.at_level(logging.INFO, "smalti"):
        pull(release.uri, disk)
    total = len(served(release))
    assert f"pull: 0 of {total} shards are here" in caplog.text
    assert f"pull: {total} of {total} shards, " in caplog.text


def materialized(report: PullReport) -> dict[str, list[str]]:
    """Bucket -> shards that its index lists."""
    return {
        str(path.parent.relative_to(report.manifest)): [
            entry["raw_data"]["basename"] for entry in json.loads(path.read_text())["shards"]
        ]
        for path in sorted(Path(report.manifest).rglob("index.json"))
    }


def test_materialized_pull_makes_plain_directories(any_lake: Lake, disk: Path) -> None:
    release = build(any_lake, skips=SKIPS)

    report = pull(release.uri, disk, materialize=True)

    names = ["shard.00000.mds", "shard.00001.mds", "shard.00002.mds", "shard.00003.mds", "shard.00004.mds"]
    assert materialized(report) == {"1024/1.000": names[:2], "1024/1.286": names[:3], "512/1.000": names}
    assert not (disk / "parts").exists()
    again = pull(release.uri, disk, materialize=True)
    assert (again.fetched, again.fetched_bytes, again.shards) == (0, 0, report.shards)


TREE_DAMAGE = ["gone", "cut", "flipped", "a flipped index", "another index", "no index", "a flipped tree.json", "no tree.json", "no release.json", "no notes"]  # fmt: skip


@pytest.mark.parametrize("how", TREE_DAMAGE)
def test_a_second_run_mends_a_pulled_tree(lake: Lake, disk: Path, how: str) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk, materialize=True)
    whole = pulled(disk)
    shard, index = disk / "1024/1.286/shard.00001.mds", disk / "1024/1.286/index.json"
    match how:
        case "gone":
            shard.unlink()
        case "cut":
            shard.write_bytes(shard.read_bytes()[:-1])
        case "flipped":
            flip(shard)
        case "a flipped index":
            flip(index)
        case "another index":  # what it says of a shard is not so, and nothing in the file tells
            index.write_text(
                index.read_text().replace('"raw"', '"rew"').replace('"size_limit": ', '"size_limit": 1', 1)
            )
        case "no index":
            index.unlink()
        case "a flipped tree.json":
            flip(disk / "tree.json")
        case "no notes":
            flip(shard)
            (disk / ".smalti/verified.jsonl").unlink()
        case _:
            (disk / how.removeprefix("no ")).unlink()
    damaged = pulled(disk)

    again = pull(release.uri, disk, materialize=True)

    assert damaged != whole
    assert pulled(disk) == whole
    assert again.fetched == {"a flipped index": 3, "no index": 3}.get(how, 0 if "json" in how else 1)
    assert pull(release.uri, disk, materialize=True).fetched == 0


def test_recheck_reads_a_tree_and_a_plain_second_run_does_not(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk, materialize=True)
    path = disk / "512/1.000/shard.00002.mds"
    whole, stat = pulled(disk), path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    assert pull(release.uri, disk, materialize=True).fetched == 0
    assert pull(release.uri, disk, materialize=True, recheck=True).fetched == 1
    assert pulled(disk) == whole


def test_a_directory_that_nobody_has_claimed_is_not_written_over(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)
    theirs = disk / "512/1.000/shard.00000.mds"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"somebody's")

    with pytest.raises(ConflictError, match=r"512/1\.000/shard\.00000\.mds: the object exists with other content"):
        pull(release.uri, disk, materialize=True)
    assert theirs.read_bytes() == b"somebody's"


def test_a_tree_without_its_claim_is_not_taken_for_that_of_newer_opt_outs(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk, materialize=True)
    opt_out(lake, 1, release.all_kept[:1])
    (disk / "release.json").unlink()
    with pytest.raises(ConflictError, match="up to position 0, and those up to 1 touch its samples"):
        pull(release.uri, disk, materialize=True)


def test_a_directory_can_be_pulled_from(lake: Lake, disk: Path, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS)
    first: Any = pull(release.uri, disk)

    second = pull(first.manifest, tmp_path / "second")

    assert pulled(tmp_path / "second") == pulled(disk)
    assert second.fetched == first.fetched


# Opt-outs


def checked(folder: Path) -> OptoutCheck:
    check = read_check(Lake.at(str(folder)))
    assert check is not None
    return check


def test_a_copy_brings_the_newest_opt_outs_and_when_they_were_that(any_lake: Lake, disk: Path) -> None:
    release = build(any_lake, skips=SKIPS)
    opt_out(any_lake, 3, release.all_kept[:2])
    opt_out(any_lake, 4, release.all_kept[:3])
    before = datetime.now(UTC)

    report = pull(release.uri, disk)

    assert [name for name in pulled(disk) if "optouts" in name] == ["/optouts/snapshots/00000004.json.gz"]
    assert report.optouts == checked(disk).position == 4
    assert before <= checked(disk).checked <= datetime.now(UTC)
    assert report.fetched == len(served(release))  # a checkpoint from before may need them all


def test_refreshing_brings_the_opt_outs_and_nothing_else(
    lake: Lake, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk)
    first, before = checked(disk), pulled(disk)
    opt_out(lake, 1, release.all_kept[:1])
    opt_out(lake, 2, release.all_kept[:2])
    monkeypatch.setattr("smalti.release.pull.fetch", lambda *_: pytest.fail("a shard was fetched"))
    monkeypatch.setattr("smalti.release.pull.served_shards", lambda *_: pytest.fail("an index was read"))

    report = pull(release.uri, disk, refresh_optouts=True)

    assert pulled(disk).items() - before.items() == {
        (name, digest) for name, digest in snapshot(lake.root).items() if name.endswith("00000002.json.gz")
    }
    assert (report.optouts, checked(disk).position, report.fetched) == (2, 2, 0)
    assert checked(disk).checked > first.checked
    again = pull(release.uri, disk, refresh_optouts=True, positions=[1])  # which a checkpoint names
    assert again.fetched_bytes > 0
    assert "/optouts/snapshots/00000001.json.gz" in pulled(disk)


def test_nothing_is_refreshed_where_nothing_was_pulled(lake: Lake, disk: Path, tmp_path: Path) -> None:
    release = build(lake)
    pull(release.uri, disk, materialize=True)
    (tmp_path / "empty").mkdir()
    for folder in (disk, tmp_path / "empty", tmp_path / "mistyped"):
        with pytest.raises(InputError, match=r"no release was pulled into this directory\. Check its name"):
            pull(release.uri, folder, refresh_optouts=True)
    assert not list((tmp_path / "empty").iterdir())
    assert not (tmp_path / "mistyped").exists()


def test_a_copy_of_a_copy_is_as_old_as_that_one(lake: Lake, disk: Path, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS)
    opt_out(lake, 2, release.all_kept[:2])
    first = pull(release.uri, disk)
    pull(first.manifest, tmp_path / "second")
    assert checked(tmp_path / "second") == checked(disk)
    opt_out(lake, 3, release.all_kept[:3])
    pull(release.uri, tmp_path / "second", refresh_optouts=True)
    with pytest.raises(InputError, match="up to position 2 there, and up to 3 here"):
        pull(first.manifest, tmp_path / "second", refresh_optouts=True)
    assert checked(tmp_path / "second").position == 3


def test_a_copy_that_lost_its_notes_is_not_taken_for_a_lake(lake: Lake, disk: Path, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS)
    manifest = pull(release.uri, disk).manifest
    pull(manifest, tmp_path / "renewed")
    shutil.rmtree(disk / ".smalti")

    for read in (
        lambda: pull(manifest, tmp_path / "second"),
        lambda: pull(manifest, tmp_path / "renewed", refresh_optouts=True),
        lambda: pull(manifest, tmp_path / "tree", materialize=True),
        lambda: check_of(file_uri(manifest)),
    ):
        with pytest.raises(InputError, match=r"neither a claim\.json.*nor \.smalti.*smalti pull MANIFEST DIR"):
            read()
    with pytest.raises(InputError, match="this is a pulled copy"):
        verify_manifest(manifest)
    assert pull(release.uri, disk).fetched == 0
    assert pull(manifest, tmp_path / "second").shards == len(served(release))


def test_a_damaged_snapshot_is_named_and_no_check_is_noted(lake: Lake, disk: Path) -> None:
    release = build(lake, skips=SKIPS)
    pull(release.uri, disk)
    before = checked(disk)
    create_bytes(lake.optout_snapshot(2), OptoutSnapshot(position=3, shards={}).encode())
    with pytest.raises(CorruptError, match=r"00000002\.json\.gz: it says that it is the snapshot of position 3"):
        pull(release.uri, disk, refresh_optouts=True)
    assert checked(disk) == before


def test_a_tree_leaves_out_what_is_opted_out_by_now(lake: Lake, disk: Path, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS)
    gone = {*release.all_kept[::4], *release.kept["main/1024/1.000"]}
    opt_out(lake, 5, gone)

    report = pull(release.uri, disk, materialize=True)

    assert report.optouts == 5
    assert not (disk / "1024/1.000").exists()
    found = []
    for path in disk.rglob("*.mds"):
        columns, raw = mds.read_shard(path.read_bytes())
        found += [str(mds.decode_sample(columns, each)["id"]) for each in raw]
    assert sorted(found) == sorted(set(release.all_kept) - gone)
    assert json.loads((disk / "release.json").read_text())["optouts"] == 5

    opt_out(lake, 6, gone | release.skipped)  # nothing that is served: the tree is good
    before = snapshot(file_uri(disk))
    assert pull(release.uri, disk, materialize=True).optouts == 5
    assert snapshot(file_uri(disk)) == before
    opt_out(lake, 7, gone | {min(found)})
    with pytest.raises(ConflictError, match=r"up to position 5, and those up to 7 touch its samples.*Remove it"):
        pull(release.uri, disk, materialize=True)
    assert snapshot(file_uri(disk)) == before
    assert pull(release.uri, tmp_path / "anew", materialize=True).optouts == 7


def test_a_lake_is_never_pulled_into(lake: Lake, disk: Path) -> None:
    release = build(lake)
    root = local_path(lake.root)
    assert root is not None
    with pytest.raises(InputError, match="there is a lake in this directory"):
        pull(release.uri, root)
    assert not (root / ".smalti").exists()
    (disk / "tables").mkdir(parents=True)
    with pytest.raises(InputError, match="there is a lake in this directory"):
        pull(release.uri, disk)


def test_opt_outs_of_another_lake_are_not_taken_for_ones_own(lake: Lake, disk: Path, tmp_path: Path) -> None:
    other = Lake.at(str(tmp_path / "other"))
    uris = []
    for number, (place, name) in enumerate(((lake, "a"), (other, "b"))):
        uris.append(build(place, dataset=name).uri)
        shard = "alpha/00001-aaaaaaaaaaaa/512/1.000/shard.00000.mds"
        create_bytes(place.optout_snapshot(1), OptoutSnapshot(position=1, shards={shard: (number,)}).encode())
    pull(uris[0], disk)
    with pytest.raises(ConflictError, match="the directory has other opt-outs of position 1"):
        pull(uris[1], disk)


def test_no_tree_is_made_of_a_copy_whose_opt_outs_are_old(lake: Lake, disk: Path, tmp_path: Path) -> None:
    copy = pull(build(lake).uri, disk).manifest
    note = disk / ".smalti" / "optouts.json"
    note.write_text(note.read_text().replace(note.read_text().split('"checked":"')[1][:4], "2020"))
    with pytest.raises(InputError, match="the opt-outs of this copy were last checked on 2020"):
        pull(copy, tmp_path / "tree", materialize=True)
