"""Where the bytes of a release lie, and what happens if they are not what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smalti.errors import CorruptError, InputError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.loader import ReleaseDataset
from smalti.release.pull import pull
from tests.conftest import snapshot
from tests.loader.releases import Release, build
from tests.loader.serving import BATCH, SKIPS, flat, ids, ours, path_of


def test_a_release_on_disk_is_read_in_place(releases: dict[str, Release]) -> None:
    release = releases["a tenth"]
    root = release.uri.split("/releases/")[0]
    before = snapshot(root)
    assert len(flat(ids(ours(release)))) == len(release.all_kept)
    assert snapshot(root) == before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_release_on_gcs_is_fetched_into_local(gcs_lake: Lake, tmp_path: Path, workers: int) -> None:
    release = build(gcs_lake, skips=SKIPS["much"])
    local = tmp_path / "cache"

    served = flat(ids(ours(release, local=str(local)), workers))

    assert sorted(served) == sorted(release.all_kept)
    fetched = {f"/parts/{p.relative_to(local / 'parts')}" for p in local.rglob("*") if p.is_file()}
    assert fetched <= snapshot(gcs_lake.root).keys()
    assert "/parts/alpha/00001-aaaaaaaaaaaa/512/1.000/shard.00001.mds" not in fetched


def test_what_was_fetched_is_not_fetched_again(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = str(tmp_path / "cache")
    first = build(lake, skips=SKIPS["a tenth"])
    second = build(lake, version="v2", skips=SKIPS["much"])
    alive = ours(first, local=local)
    assert len(flat(ids(alive))) == len(first.all_kept)
    monkeypatch.setattr("smalti.loader.streams.fetch", lambda *_: pytest.fail("a shard was fetched"))

    for release in (first, second):
        assert sorted(flat(ids(ours(release, local=local)))) == sorted(release.all_kept)


@pytest.mark.parametrize("given_as", ["manifest", "local"])
def test_a_pulled_directory_gives_the_same_streams_order_and_state(lake: Lake, tmp_path: Path, given_as: str) -> None:
    release = build(lake, skips=SKIPS["much"])
    report = pull(release.uri, tmp_path / "disk")
    before = snapshot(f"file://{tmp_path}/disk/parts")
    here = (
        ReleaseDataset(report.manifest, batch_size=BATCH, shuffle=True)
        if given_as == "manifest"
        else ours(release, local=str(tmp_path / "disk"))
    )
    there = ours(release)

    assert ids(here) == ids(there)
    assert here.state_dict(8, True) == there.state_dict(8, True)
    assert snapshot(f"file://{tmp_path}/disk/parts") == before


def test_a_tier_that_was_not_pulled_is_named(lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    report = pull(release.uri, tmp_path, tiers=[512])
    assert ReleaseDataset(report.manifest, tiers=[512], batch_size=BATCH).size == 81
    with pytest.raises(MissingObject, match=r"streams/main/1024/1\.000/index"):
        ReleaseDataset(report.manifest, batch_size=BATCH)


def test_a_full_cache_is_evicted_from_and_the_epoch_goes_on(lake: Lake, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS["a tenth"])
    limit = 50_000  # five of the largest shards; the release has 92 kB
    dataset = ours(release, local=str(tmp_path / "cache"), cache_limit=limit, predownload=BATCH, shuffle=False)

    assert flat(ids(dataset)) == release.all_kept
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds")) <= limit
    assert sum(stream.bytes for stream in release.manifest.streams) > 1.5 * limit


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("what", ["manifest", "index", "skips"])
def test_a_byte_that_differs_is_refused_before_the_first_batch(lake: Lake, what: str) -> None:
    release = build(lake, skips=SKIPS["a tenth"])
    stream = release.manifest.streams[0]
    uri = {
        "manifest": release.uri,
        "index": f"{lake.release('demo', 'v1')}/{stream.index}",
        "skips": lake.skip_file("demo", str(stream.skip_file)),
    }[what]
    damage(path_of(uri))
    with pytest.raises(CorruptError, match=rf"^{uri}: "):
        ours(release)


def test_a_shard_that_is_missing_or_cut_in_place_is_named_before_the_first_batch(lake: Lake) -> None:
    release = build(lake)
    shard = path_of(lake.shard("beta", "00001-cccccccccccc", 512, "1.000", 1))
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(CorruptError, match=rf"^{shard}: the shard has \d+ bytes instead of"):
        ours(release)
    shard.unlink()
    with pytest.raises(MissingObject, match=rf"^{shard}: the shard is not here"):
        ours(release)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_with_other_bytes_ends_the_run_by_name_and_is_not_kept(
    lake: Lake, tmp_path: Path, workers: int
) -> None:
    release = build(lake)
    name = "beta/00001-cccccccccccc/512/1.000/shard.00001.mds"
    damage(path_of(f"{lake.parts_root()}/{name}"))
    with pytest.raises((CorruptError, RuntimeError), match=r"1\.000/shard\.00001\.mds: the bytes have the sha256"):
        ids(ours(release, local=str(tmp_path / "cache")), workers)
    assert not (tmp_path / "cache" / "parts" / name).exists()


def test_a_cached_shard_of_another_size_is_fetched_anew(lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    ids(ours(release, local=str(tmp_path)))
    cached = tmp_path / "parts" / "beta/00001-cccccccccccc/512/1.000/shard.00001.mds"
    whole = cached.read_bytes()
    cached.write_bytes(whole[:-1])
    assert sorted(flat(ids(ours(release, local=str(tmp_path))))) == sorted(release.all_kept)
    assert cached.read_bytes() == whole


def test_a_lake_or_copy_that_is_named_as_local_is_read_in_place(lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    root = path_of(lake.root)
    shard = path_of(lake.shard("beta", "00001-cccccccccccc", 512, "1.000", 1))
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(CorruptError, match="bytes instead of"):
        ours(release, local=str(root))
    assert shard.exists()


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_run_that_cannot_get_a_shard_ends(lake: Lake, tmp_path: Path, how: str) -> None:
    """Both background threads may have failed, and the end of the epoch must not wait for them."""
    release = build(lake)
    shard = path_of(lake.shard("beta", "00001-cccccccccccc", 512, "1.000", 1))
    datasets = [ours(release, local=str(tmp_path / str(attempt))) for attempt in range(6)]
    shard.chmod(0o644)
    shard.unlink() if how == "missing" else damage(shard)
    for dataset in datasets:
        with pytest.raises((CorruptError, MissingObject, RuntimeError), match=r"shard\.00001\.mds"):
            ids(dataset)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tiers": 512}, r"tiers=512 is no list\. Write tiers=\[512\]"),
        ({"tiers": ["512"]}, "tiers: '512' is of the wrong kind"),
        ({"groups": "main"}, "groups='main' is no list"),
        ({"without": "text"}, "without='text' is no list"),
        ({"batch_size": 0}, "batch_size=0 is no size"),
        ({"optouts": -1}, "optouts=-1 is no position"),
        ({"optouts": None}, "optouts=None is no position"),
        ({"optouts": True}, "optouts=True is no position"),
        ({"batch_size": "2"}, "batch_size='2' is no size"),
        ({"batch_size": 2.0}, r"batch_size=2\.0 is no size"),
        ({"local": 5}, "local=5 is no directory"),
        ({"max_optout_age": 7}, "max_optout_age=7 is no age"),
        ({"captions": "source"}, "captions: 'source' is no caption column"),
        ({"captions": {"caption": 10**400}}, "is no weight of caption"),
    ],
)
def test_a_wrong_argument_is_one_line(lake: Lake, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ours(build(lake), **arguments)


def test_what_lies_in_a_shards_place_is_named_and_a_shard_that_another_run_has_removed_is_not(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, local = build(lake), tmp_path / "cache"
    name = "beta/00001-cccccccccccc/512/1.000/shard.00001.mds"
    place = local / "parts" / name
    place.mkdir(parents=True)
    with pytest.raises(LakeError, match=f"{name}: .*[Mm]ove it away"):
        ours(release, local=str(local))
    place.rmdir()
    place.write_bytes(b"cut")
    unlink = Path.unlink

    def late(path: Path, missing_ok: bool = False) -> None:
        unlink(path)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", late)
    assert ours(release, local=str(local)).size == len(release.all_kept)


def test_no_tiers_and_no_groups_are_all_of_them(lake: Lake) -> None:
    release = build(lake)
    assert ours(release, tiers=(), groups=()).size == len(release.all_kept)
    with pytest.raises(InputError, match="a NoneType is no checkpoint's state"):
        ours(release).load_state_dict(None)  # type: ignore[arg-type]
