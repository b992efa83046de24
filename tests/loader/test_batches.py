"""Arguments, checkpoints and the sizes of batches: what does not fit is said before the first one."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from streaming.base.batching import generate_work
from streaming.base.world import World

from smalti.errors import InputError
from smalti.lake import Lake
from smalti.loader import ReleaseDataset
from smalti.loader.batching import Epoch
from tests.loader.releases import Release, Shards, build
from tests.loader.serving import METHODS, flat, ids, ours, plain


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


GROUPS: Shards = {
    "a": {"1": {(512, "1.000"): (40,), (512, "0.778"): (30,), (1024, "1.000"): (2,)}},
    "b": {"1": {(512, "1.000"): (3,), (512, "0.778"): (20,), (1024, "2.000"): (2,)}},
}
"""Of b, the square ones fit into a's stream; both have one of another shape that fits nowhere."""


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
def test_small_streams_are_put_together_with_another_group_of_their_shape(
    lake: Lake, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    mixing = {"a": 1.0, "b": 0.6}
    release = build(lake, shards=GROUPS, groups={"a": "a", "b": "b"}, mixing=mixing)
    dataset = ours(release, batching_method=method, small_streams="merge")

    assert [stream.name for stream in dataset.streams] == ["a/512/0.778", "a+b/512/1.000", "b/512/0.778"]
    assert "stream b/512/1.000: its" in caplog.text
    assert "put together with a/512/1.000" in caplog.text
    assert "stream a/1024/1.000: its" in caplog.text
    assert "left out; no stream of another group has its shape" in caplog.text
    shares = {stream.name: stream.proportion for stream in dataset.streams}
    assert shares["a+b/512/1.000"] == pytest.approx(1 / 1.6 * 40 / 70 + 0.6 / 1.6 * 3 / 23)
    served = [batch for _ in range(4) for batch in ids(dataset)]
    assert all(len({"/".join(each.split("/")[2:4]) for each in batch}) == 1 for batch in served)
    assert {each for each in flat(served) if each.startswith("b/1/512/1.000")} == set(release.kept["b/512/1.000"])

    state = dataset.state_dict(0, True)
    with pytest.raises(InputError, match="`small_streams`"):
        ours(release, batching_method=method).load_state_dict(state)


def test_small_streams_can_be_refused(lake: Lake) -> None:
    release = build(lake, shards=GROUPS)
    assert ours(release, small_streams="refuse").size == 97  # random batches know no streams
    with pytest.raises(InputError, match=r"stream main/1024/1\.000: its 2 samples fill no batch of 6 \(per_stream\)"):
        ours(release, batching_method="per_stream", small_streams="refuse")
    with pytest.raises(InputError, match=r"small_streams='drop' is no choice\. .*Use one of leave_out, merge, refuse"):
        ours(release, small_streams="drop")


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
