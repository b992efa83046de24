"""ReleaseDataset against an unmodified StreamingDataset over a tree from which the skipped samples were removed.

In one process; test_ranks.py has several, and workers.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from streaming import Stream, StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World
from torch.utils.data import DataLoader

from smalti.errors import InputError
from smalti.lake import Lake
from smalti.objects import read_bytes
from smalti.release.manifest import read_stream_index
from smalti.release.materialize import materialize
from smalti.shards import mds
from tests.loader.releases import COLUMNS, Release, Shards, build, kept, skip_share
from tests.loader.serving import BATCH, METHODS, SKIPS, close_all, flat, ids, ours, plain


@pytest.mark.parametrize(("method", "skipping"), product(METHODS, SKIPS))
def test_order_is_that_of_a_tree_without_the_skipped_samples(
    releases: dict[str, Release], method: str, skipping: str
) -> None:
    release = releases[skipping]
    with_skips, rewritten = (make(release, batching_method=method) for make in (ours, plain))

    for _ in range(2):  # epochs, which differ
        served = ids(with_skips)
        assert served == ids(rewritten)
        assert len(set(flat(served))) == len(flat(served))
        assert set(flat(served)) <= set(release.all_kept)
        if method == "random":
            assert sorted(flat(served)) == sorted(release.all_kept)


@pytest.mark.parametrize("method", METHODS)
def test_resume_in_the_middle_of_an_epoch_goes_on_exactly(releases: dict[str, Release], method: str) -> None:
    release = releases["much"]
    done = 3  # batches
    whole = ids(ours(release, batching_method=method))
    interrupted = ours(release, batching_method=method)
    loader: Any = iter(DataLoader(interrupted, batch_size=BATCH, collate_fn=list))
    first = [[sample["id"] for sample in next(loader)] for _ in range(done)]
    state = json.loads(json.dumps(interrupted.state_dict(done * BATCH, from_beginning=False)))

    resumed = ours(release, batching_method=method)
    resumed.load_state_dict(state)

    assert first == whole[:done]
    assert ids(resumed) == whole[done:]


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


def test_kept_everything_is_plain(lake: Lake) -> None:
    release = build(lake, skips=kept)
    assert all(stream.skip_file is None for stream in release.manifest.streams)
    assert ours(release).size == 118
