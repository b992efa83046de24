"""ReleaseDataset against an unmodified StreamingDataset over a tree from which the skipped samples were removed."""

from __future__ import annotations

import io
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from streaming import Stream, StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World
from torch.utils.data import DataLoader

from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.loader import ReleaseDataset
from smalti.loader.batching import Epoch
from smalti.objects import local_path, read_bytes
from smalti.release.manifest import read_stream_index
from smalti.release.materialize import materialize
from smalti.release.pull import pull
from smalti.shards import mds
from tests.conftest import snapshot
from tests.loader.releases import COLUMNS, Release, Shards, Skips, build, kept, skip_share

METHODS = ("random", "stratified", "per_stream", "device_per_stream")
WHOLE_SHARD = "alpha/00001-aaaaaaaaaaaa/512/1.000/1"
SKIPS: dict[str, Skips] = {
    "a tenth": skip_share(0.1),
    "much": skip_share(0.45, shards=[WHOLE_SHARD, "beta/00001-cccccccccccc/1024/1.286/0"], streams=["1024/1.000"]),
}
BATCH = 6


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    """A release for each amount of skipping, in one lake, with its tree."""
    lake = Lake.at(str(tmp_path_factory.mktemp("lake")))
    made = {name: build(lake, version=f"v{n}", skips=skips) for n, (name, skips) in enumerate(SKIPS.items())}
    for release in made.values():
        materialize(release.uri, lake.tree("demo", release.manifest.version))
    return made


_OPEN: list[Callable[[], None]] = []


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """StreamingDataset keeps shared memory until the process ends, and lock files for ever.

    Each new one opens the memory of all others, so that some dozens exhaust the open files. `clean_stale_shared_memory`
    would take the memory from under other processes; this gives back what was opened here.
    """
    for module in ("streaming.base.dataset", "streaming.base.shared.prefix"):
        monkeypatch.setattr(f"{module}.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("streaming.base.shared.memory.atexit", SimpleNamespace(register=_OPEN.append))
    yield
    close_all()


def close_all() -> None:
    """What StreamingDataset would do at the end of the process, with every dataset so far."""
    while _OPEN:
        _OPEN.pop()()


def path_of(uri: str) -> Path:
    path = local_path(uri)
    assert path is not None
    return path


def ours(release: Release, **arguments: Any) -> ReleaseDataset:
    return ReleaseDataset(release.uri, **{"batch_size": BATCH, "shuffle": True} | arguments)


def plain(release: Release, **arguments: Any) -> StreamingDataset:
    """An unmodified StreamingDataset over the tree beside the manifest."""
    tree = path_of(release.uri).parent / "tree"
    folders = [tree / str(stream.tier) / stream.ar for stream in release.manifest.streams]
    streams = [Stream(local=str(folder)) for folder in folders if folder.exists()]
    return StreamingDataset(streams=streams, **{"batch_size": BATCH, "shuffle": True} | arguments)


def ids(dataset: StreamingDataset, workers: int = 0, batch_size: int = BATCH) -> list[list[str]]:
    """The ids of each batch of an epoch."""
    loader: Any = DataLoader(dataset, batch_size=batch_size, num_workers=workers, collate_fn=list)
    return [[sample["id"] for sample in batch] for batch in loader]


def flat(batches: Sequence[Sequence[str]]) -> list[str]:
    return [each for batch in batches for each in batch]


@pytest.mark.parametrize(("method", "skipping", "workers"), product(METHODS, SKIPS, (0, 2)))
def test_order_is_that_of_a_tree_without_the_skipped_samples(
    releases: dict[str, Release], method: str, skipping: str, workers: int
) -> None:
    release = releases[skipping]
    with_skips, rewritten = (make(release, batching_method=method) for make in (ours, plain))

    for _ in range(1 if workers else 2):  # epochs, which differ
        served = ids(with_skips, workers)
        assert served == ids(rewritten, workers)
        assert len(set(flat(served))) == len(flat(served))
        assert set(flat(served)) <= set(release.all_kept)
        if method == "random":
            assert sorted(flat(served)) == sorted(release.all_kept)


@pytest.mark.parametrize(("method", "workers"), product(METHODS, (0, 2)))
def test_resume_in_the_middle_of_an_epoch_goes_on_exactly(
    releases: dict[str, Release], method: str, workers: int
) -> None:
    release = releases["much"]
    done = 4 if workers else 3  # batches
    whole = ids(ours(release, batching_method=method), workers)
    interrupted = ours(release, batching_method=method)
    loader: Any = iter(DataLoader(interrupted, batch_size=BATCH, num_workers=workers, collate_fn=list))
    first = [[sample["id"] for sample in next(loader)] for _ in range(done)]
    state = json.loads(json.dumps(interrupted.state_dict(done * BATCH, from_beginning=False)))

    resumed = ours(release, batching_method=method)
    resumed.load_state_dict(state)

    assert first == whole[:done]
    assert ids(resumed, workers) == whole[done:]


def work(dataset: StreamingDataset, world: World, epoch: int, sample: int = 0) -> list[str | None]:
    """Ids in the order in which a world of this shape would get them; None: a gap."""
    dataset.num_canonical_nodes = world.num_nodes
    dataset.shuffle_block_size = dataset.shuffle_block_size or 1 << 18
    numbers = generate_work(dataset.batching_method, dataset, world, epoch, sample).flatten()
    return [None if number == -1 else dataset[int(number)]["id"] for number in numbers]


WORLDS = [(1, 1, 3), (1, 4, 2), (2, 2, 1), (4, 1, 2)]
"""nodes, ranks on each, workers of each"""


@pytest.mark.parametrize("method", METHODS)
def test_order_is_the_same_for_every_world_epoch_and_point_of_resume(releases: dict[str, Release], method: str) -> None:
    for release, (nodes, ranks, workers) in product(releases.values(), WORLDS):
        size = BATCH // (nodes * ranks) + 1
        world = World(nodes, ranks, workers, 0)
        pair = [make(release, batching_method=method) for make in (ours, plain)]
        for dataset in pair:
            dataset.batch_size = size
        for epoch, sample in ((0, 0), (1, 0), (1, 3 * size * nodes * ranks)):
            first, second = (work(dataset, world, epoch, sample) for dataset in pair)
            assert first == second
            assert set(first) - {None} <= set(release.all_kept)
        close_all()


LAYOUTS = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(
        st.sampled_from(["00001-x", "00002-y"]),
        st.dictionaries(
            st.sampled_from([(512, "1.000"), (512, "0.778"), (1024, "1.000")]),
            st.lists(st.integers(1, 9), min_size=1, max_size=3),
            min_size=1,
        ),
        min_size=1,
    ),
    min_size=1,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(layout=LAYOUTS, share=st.sampled_from([0.0, 0.1, 0.5, 0.9]), seed=st.integers(0, 999))
def test_order_is_the_same_for_any_layout_and_skips(
    layout: Shards, share: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = Lake.at(str(tmp_path_factory.mktemp("lake")))
    release = build(lake, shards=layout, skips=skip_share(share, seed=seed))
    if not release.all_kept:
        with pytest.raises(InputError, match="no sample is left"):
            ours(release)
        return
    materialize(release.uri, lake.tree("demo", "v1"))
    for shuffle in (True, False):
        served = flat(ids(ours(release, shuffle=shuffle)))
        assert served == flat(ids(plain(release, shuffle=shuffle)))
        assert sorted(served) == sorted(release.all_kept)
    close_all()


def test_without_shuffle_the_order_is_that_of_the_shards(releases: dict[str, Release]) -> None:
    for release in releases.values():
        assert flat(ids(ours(release, shuffle=False))) == release.all_kept


def test_a_sample_has_the_stored_picture_and_text(releases: dict[str, Release]) -> None:
    release = releases["a tenth"]
    dataset = ours(release, shuffle=False)
    sample = dataset[5]
    assert set(sample) == set(COLUMNS)
    stored: Any = Image.open(io.BytesIO(release.images[sample["id"]]))
    assert sample["image"].quantization == stored.quantization
    assert sample["image"].tobytes() == stored.tobytes()
    assert sample["caption"] == f"caption of {sample['id']}"
    assert isinstance(sample["caption"], str)


def test_tiers_and_groups_are_chosen(lake: Lake) -> None:
    release = build(lake, skips=skip_share(0.1), groups={"beta": "other"})
    chosen = flat(ids(ours(release, tiers=[1024], groups=["other"])))
    assert sorted(chosen) == sorted(release.kept["other/1024/1.286"])


def test_groups_are_mixed_by_their_proportions(lake: Lake, tmp_path: Path) -> None:
    """Like an unmodified dataset whose streams have these proportions."""
    release = build(lake, skips=skip_share(0.2), groups={"beta": "other"}, mixing={"main": 3.0, "other": 1.0})
    streams = []
    for stream in release.manifest.streams:
        folder, entries = tmp_path / stream.name, []
        folder.mkdir(parents=True)
        for number, entry in enumerate(read_stream_index(release.uri, stream)):
            name = entry["raw_data"]["basename"]
            keep = [int(each.rsplit("/", 1)[1]) for each in release.shards[stream.name][number]]
            data = mds.rewrite_shard(read_bytes(f"{lake.parts_root()}/{name}"), keep)
            (folder / f"shard.{number:05d}.mds").write_bytes(data)
            entries.append(mds.shard_entry(f"shard.{number:05d}.mds", data))
        (folder / "index.json").write_bytes(mds.encode_index(entries))
        in_group = sum(each.kept for each in release.manifest.streams if each.group == stream.group)
        share = {"main": 3.0, "other": 1.0}[stream.group] / 4.0 * stream.kept / in_group
        streams.append(Stream(local=str(folder), proportion=share))

    for method, size in product(("random", "device_per_stream"), (None, 60)):
        arguments = {"batch_size": 2, "shuffle": True, "batching_method": method, "epoch_size": size}
        mixed = ours(release, **arguments)
        served = flat(ids(mixed, batch_size=2))
        proportioned = StreamingDataset(streams=[copy_of(stream) for stream in streams], **arguments)
        assert served == flat(ids(proportioned, batch_size=2))
        counts = Counter(each.split("/")[0] for each in served)
        assert counts["alpha"] / counts.total() == pytest.approx(0.75, abs=0.04)


def copy_of(stream: Stream) -> Stream:
    return Stream(local=stream.local, proportion=stream._proportion)


# Where bytes lie


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
    monkeypatch.setattr("smalti.loader.dataset.fetch", lambda *_: pytest.fail("a shard was fetched"))

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


# Arguments and states that do not fit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tiers": [2048]}, r"no tier 2048\. Use 512, 1024"),
        ({"groups": ["x"]}, r"no group x\. Use main"),
        ({"without": ("text",)}, r"does not declare the set \(text\)"),
        ({"without": ("optout",)}, "never served"),
        ({"remote": "x", "split": "train"}, "takes no remote, split"),
        ({"validate_hash": "sha1"}, "takes no validate_hash"),
        ({"cache_limit": "1gb"}, "in place is not evicted from"),
        ({"batch_size": 99, "batching_method": "per_stream"}, "no stream fills a batch"),
    ],
)
def test_arguments_that_do_not_fit_are_one_clear_error(
    releases: dict[str, Release], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ours(releases["a tenth"], **arguments)


def test_gcs_without_a_local_directory_is_one_clear_error() -> None:
    with pytest.raises(InputError, match=r"Pass local=DIRECTORY"):
        ReleaseDataset("gs://bucket/lake/releases/demo/v1/manifest.json", batch_size=1)


def test_a_state_of_another_release_or_choice_is_refused(releases: dict[str, Release]) -> None:
    first, second = releases.values()
    state = ours(first).state_dict(0, True)
    assert state["release"] == first.manifest.digest

    with pytest.raises(InputError, match=rf"digest {first.manifest.digest}, not {second.manifest.digest}"):
        ours(second).load_state_dict(state)
    with pytest.raises(InputError, match="other tiers, groups"):
        ours(first, tiers=[512]).load_state_dict(state)
    with pytest.raises(InputError, match="digest None"):
        ours(first).load_state_dict(plain(first).state_dict(0, True))
    ours(first).load_state_dict(state)


# What is said before the first batch


@pytest.mark.parametrize("method", METHODS)
def test_epoch_size_and_losses_are_told_and_true(
    releases: dict[str, Release], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    release = releases["a tenth"]
    with caplog.at_level(logging.INFO, "smalti"):
        dataset = ours(release, batching_method=method)
    said = caplog.text
    assert f"an epoch draws {len(release.all_kept)} samples from 4 streams" in said

    served = Counter("/".join(each.split("/")[2:4]) for each in flat(ids(dataset)))
    for stream in release.manifest.streams:
        lost = stream.kept - served[f"{stream.tier}/{stream.ar}"]
        line = f"stream {stream.name}: {stream.kept} samples, {lost} ("
        assert (line in said) == (lost > 0)
    assert f"leave {len(release.all_kept) - served.total()} of them out" in said


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_stream_that_fills_no_batch_is_left_out_and_named(
    lake: Lake, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    shards: Shards = {"a": {"1": {(512, "1.000"): (40,), (512, "0.778"): (30,), (1024, "1.000"): (1,)}}}
    release = build(lake, shards=shards)
    with caplog.at_level(logging.WARNING, "smalti"):
        dataset = ours(release, batching_method=method)

    line = f"stream main/1024/1.000: its 1 samples fill no batch of 6 ({method}); left out"
    assert [record.message for record in caplog.records] == [line]
    served = set(flat(ids(dataset)))
    assert served
    assert not served & set(release.kept["main/1024/1.000"])
    caplog.clear()
    assert len(flat(ids(ours(release)))) == 71  # random batches know no streams


def epochs() -> Iterator[tuple[str, list[int], tuple[int, int, int], int]]:
    rng = random.Random(0)
    for method in METHODS[1:]:
        for _ in range(12):
            nodes, ranks, factor = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.choice([1, 2, 4])
            choose = [rng.randint(1, 90) for _ in range(rng.randint(1, 4))]
            yield method, choose, (nodes, ranks, nodes * factor), rng.choice([1, 2, 5])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("method", "choose", "world", "batch_size"), epochs())
def test_losses_are_those_of_the_work_that_streaming_hands_out(
    lake: Lake, method: str, choose: list[int], world: tuple[int, int, int], batch_size: int
) -> None:
    nodes, ranks, canonical = world
    buckets = [(512, "1.000"), (512, "0.778"), (1024, "1.000"), (1024, "1.286")]
    shards: Shards = {"a": {"1": {bucket: (n,) for bucket, n in zip(buckets, choose, strict=False)}}}
    release = build(lake, shards=shards)
    dataset = ours(release, batch_size=batch_size)
    dataset.num_canonical_nodes, dataset.shuffle_block_size = canonical, 1 << 18
    drawn = [stream.choose for stream in dataset.streams]
    epoch = Epoch(
        method=method,
        choose=drawn,
        proportions=[stream.proportion for stream in dataset.streams],
        nodes=nodes,
        ranks=ranks,
        canonical=canonical,
        batch_size=batch_size,
        shuffle_block=1 << 18,
    )
    try:
        numbers = generate_work(method, dataset, World(nodes, ranks, 2, 0), 0, 0)
    except ValueError:
        numbers = np.array([], np.int64)
    handed_out = numbers[numbers >= 0]
    streams = np.searchsorted(np.cumsum(drawn), handed_out, side="right")
    served = [int((streams == number).sum()) for number in range(len(drawn))]
    assert served == (epoch.served() if all(epoch.batches()) else [0] * len(drawn))


def test_kept_everything_is_plain(lake: Lake) -> None:
    release = build(lake, skips=kept)
    assert all(stream.skip_file is None for stream in release.manifest.streams)
    assert ours(release).size == 118
