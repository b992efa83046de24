"""Several ranks as processes, with workers: the same samples as from a rewritten tree, through resumes and opt-outs."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st
from streaming import Stream, StreamingDataset
from torch import distributed as dist
from torch.utils.data import DataLoader

from smalti.errors import InputError, LakeError
from smalti.lake import Lake
from smalti.loader import ReleaseDataset
from smalti.release.materialize import materialize
from tests.loader.ranks import Group, Ranks, World
from tests.loader.releases import Bucket, Release, build, opt_out, skip_share, stand_in
from tests.loader.serving import METHODS, flat, ids, path_of

WORLDS = [World(nodes, ranks) for nodes, ranks in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1))]
SHORT, LONG = 4, 75
"""Examples of each method."""

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    pool = Ranks()
    yield pool
    pool.close()


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        layout: which shards there are.
        share: of the samples that are skipped; besides, each shard is skipped whole with probability `whole`, and each
            stream with a third of it.
        done: batches a worker has served when the run is interrupted.
        optouts: share of what is kept that is opted out in between.
    """

    world: World
    workers: int
    layout: int
    share: float
    whole: float
    batch: int
    shuffle: bool
    done: int
    optouts: float
    seed: int

    @property
    def epochs(self) -> int:
        return 1 if self.workers else 2  # eight workers take a second to start


CASES = st.builds(
    Case,
    world=st.sampled_from(WORLDS),
    workers=st.sampled_from([0, 0, 2]),
    layout=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.02, 0.3, 0.7, 0.95]) | st.floats(0, 0.95),
    whole=st.sampled_from([0.0, 0.3]),
    batch=st.integers(1, 3),
    shuffle=st.sampled_from([True, True, False]),
    done=st.integers(0, 3),
    optouts=st.sampled_from([0.05, 0.2, 0.5]),
    seed=st.integers(0, 99),
)


@functools.cache
def shards_of(layout: int) -> dict[str, dict[str, dict[Bucket, tuple[int, ...]]]]:
    rng = random.Random(f"layout {layout}")
    buckets = [(512, "1.000"), (512, "0.778"), (1024, "1.000")][: rng.randint(2, 3)]
    return {
        source: {
            part: {bucket: tuple(rng.randint(1, 30) for _ in range(rng.randint(1, 3))) for bucket in buckets}
            for part in ("00001-x", "00002-y")[: rng.randint(1, 2)]
        }
        for source in ("a", "b")
    }


def make(case: Case, folder: Path) -> tuple[Lake, Release]:
    lake, rng = Lake.at(str(folder / f"lake{case.layout}-{next(_NUMBERS)}")), random.Random(case.seed)
    layout = shards_of(case.layout)
    every = [
        f"{source}/{part}/{tier}/{ar}/{number}"
        for source, parts in layout.items()
        for part, buckets in parts.items()
        for (tier, ar), sizes in buckets.items()
        for number in range(len(sizes))
    ]
    whole = [shard for shard in every if rng.random() < case.whole]
    streams = {"/".join(shard.split("/")[2:4]) for shard in every}
    gone = [stream for stream in sorted(streams) if rng.random() < case.whole / 3]
    release = build(lake, shards=layout, skips=skip_share(case.share, seed=case.seed, shards=whole, streams=gone))
    return lake, release


# What a rank does


def arguments(case: Case, method: str) -> dict[str, Any]:
    return {"batch_size": case.batch, "shuffle": case.shuffle, "batching_method": method}


def interrupt(dataset: ReleaseDataset, case: Case, done: int) -> tuple[list[list[str]], dict[str, Any]]:
    """Some batches, and the state after them, as a trainer saves it."""
    first = []
    if done:
        loader: Any = iter(DataLoader(dataset, batch_size=case.batch, num_workers=case.workers, collate_fn=list))
        first = [[sample["id"] for sample in batch] for batch in itertools.islice(loader, done)]
        del loader
    state = dataset.state_dict(done * case.batch * case.world.size, from_beginning=False)
    return first, json.loads(json.dumps(state))


def possible(case: Case, epoch: list[list[str]]) -> int:
    """Batches before the interruption: the same on each rank and worker, and full ones."""
    full = [sum(len(batch) == case.batch for batch in epoch)] * case.world.size
    if case.world.size > 1:
        dist.all_gather_object(full, full[0])
    each = max(case.workers, 1)
    return min(case.done, min(full) // each) * each


def run_once(uri: str, tree: str, case: Case, method: str) -> dict[str, Any]:
    """Epochs from skip lists and from the tree, and a run that is interrupted and resumed."""
    options = arguments(case, method)
    dataset = ReleaseDataset(uri, **options)
    names = [stream.name for stream in dataset.streams]
    plain = StreamingDataset(streams=[Stream(local=f"{tree}/{n.split('/', 1)[1]}") for n in names], **options)
    ours, theirs = ([ids(each, case.workers, case.batch) for _ in range(case.epochs)] for each in (dataset, plain))
    first, state = interrupt(ReleaseDataset(uri, **options), case, possible(case, ours[0]))
    resumed = ReleaseDataset(uri, **options)
    resumed.load_state_dict(state)
    rest = ids(resumed, case.workers, case.batch)
    return {"streams": names, "ours": ours, "theirs": theirs, "first": first, "state": state, "rest": rest}


def run_on(uri: str, state: dict[str, Any], case: Case, method: str) -> tuple[list[list[list[str]]], dict[str, Any]]:
    """The rest of the epoch from a state, and what follows."""
    dataset = ReleaseDataset(uri, **arguments(case, method))
    dataset.load_state_dict(state)
    epochs = [ids(dataset, case.workers, case.batch) for _ in range(case.epochs)]
    return epochs, dataset.state_dict(0, from_beginning=True)


# What must hold


def check(case: Case, method: str, pool: Ranks, folder: Path) -> None:
    note(f"{case} {method}")
    lake, release = make(case, folder)
    tree = str(path_of(lake.tree("demo", "v1")))
    if not release.all_kept:
        return
    materialize(release.uri, lake.tree("demo", "v1"))
    outcomes = pool.run(case.world, folder, run_once, release.uri, tree, case, method)
    if isinstance(outcomes[0], InputError):  # no stream fills a batch: on each rank
        assert {str(each) for each in outcomes} == {str(outcomes[0])}
        assert "fills a batch" in str(outcomes[0])
        return
    done = len(outcomes[0]["first"])
    for each in outcomes:
        assert each["ours"] == each["theirs"]
        assert each["first"] == each["ours"][0][:done]
        assert each["rest"] == each["ours"][0][done:]
        assert not set(flat(flat(each["ours"]))) & release.skipped
        assert set(flat(flat(each["ours"]))) <= set(release.all_kept)
    if method == "random":
        assert {sample for each in outcomes for sample in flat(each["ours"][0])} == set(release.all_kept)

    gone = opted_out(case, release, outcomes[0]["streams"])
    opt_out(lake, 7, gone)
    later = pool.run(case.world, folder, run_on, release.uri, outcomes[0]["state"], case, method)
    if isinstance(later[0], InputError):  # what is left would not do for a run that starts: nothing is opened
        assert all("fills a batch" in str(each) for each in later)
        return
    for before, (epochs, state) in zip(outcomes, later, strict=True):
        for expected, found in zip([before["ours"][0][done:], *before["ours"][1:]], epochs, strict=True):
            assert found == [[stand_in(release, gone, s) if s in gone else s for s in batch] for batch in expected]
            assert not set(flat(found)) & gone
        assert state["optouts"] == 0  # the order is still the checkpoint's


def opted_out(case: Case, release: Release, streams: list[str]) -> set[str]:
    """Samples of all sorts, but never all of a stream that is served."""
    rng, gone = random.Random(case.seed + 1), {each for each in release.skipped if each.endswith("1")}
    for name, kept in release.kept.items():
        chosen = [each for each in kept if rng.random() < case.optouts]
        whole = [ids for ids in release.shards[name] if rng.random() < case.optouts / 3]
        chosen += flat(whole)
        if name in streams and len(set(chosen)) == len(kept):
            chosen.remove(next(iter(chosen)))
            chosen = [each for each in chosen if each != kept[0]]
        gone |= set(chosen)
    return gone


PROFILE = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
CROWD = Case(World(1, 4), 2, layout=1, share=0.3, whole=0.3, batch=2, shuffle=True, done=1, optouts=0.3, seed=3)


def campaign(method: str, pool: Ranks, folder: Path, profile: settings) -> None:
    @profile
    @example(CROWD)
    @given(CASES)
    def hold(case: Case) -> None:
        check(case, method, pool, folder)

    hold()


@pytest.mark.parametrize("method", METHODS)
def test_ranks_are_served_what_a_rewritten_tree_would_serve_them(method: str, ranks: Ranks, tmp_path: Path) -> None:
    campaign(method, ranks, tmp_path, settings(PROFILE, max_examples=SHORT, derandomize=True))


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_so_they_are_in_hundreds_of_runs(method: str, ranks: Ranks, tmp_path: Path) -> None:
    campaign(method, ranks, tmp_path, settings(PROFILE, max_examples=LONG))


# The position of the opt-outs


def position(uri: str, **arguments: Any) -> int:
    return ReleaseDataset(uri, batch_size=1, **arguments).optouts


def position_if_rank_0_fails(uri: str) -> int:
    def refuses(_: Lake) -> int:
        raise LakeError("the bucket refused", uri, "Ask its owner")

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 0:
            patch.setattr("smalti.loader.position.newest_position", refuses)
        return position(uri)


def position_seen_late(uri: str, late: int) -> int:
    """While ranks start a snapshot appears, that only the others would see."""
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank():
            patch.setattr("smalti.loader.position.newest_position", lambda _: late)
        return position(uri)


@pytest.mark.parametrize("group", ["made", "environment"])
def test_every_rank_takes_the_position_that_rank_0_finds(
    group: Group, ranks: Ranks, lake: Lake, tmp_path: Path
) -> None:
    release = build(lake)
    opt_out(lake, 3, release.all_kept[:2])
    assert ranks.run(World(1, 3, group), tmp_path, position, release.uri) == [3, 3, 3]
    if group == "made":
        assert ranks.run(World(2, 1), tmp_path, position_seen_late, release.uri, 9) == [3, 3]


def test_what_rank_0_ran_into_ends_every_rank(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    errors = ranks.run(World(1, 2), tmp_path, position_if_rank_0_fails, release.uri)
    assert [type(each) for each in errors] == [LakeError, LakeError]


def test_ranks_that_cannot_talk_do_not_guess(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    for error in ranks.run(World(1, 2, "none"), tmp_path, position, release.uri):
        assert isinstance(error, InputError)
        assert "2 ranks cannot agree on the opt-outs" in str(error)
        assert "optouts=<position>" in str(error)


def test_a_stream_of_which_nothing_is_left_ends_every_rank(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    case = replace(CROWD, world=World(1, 2), workers=0, done=0)
    state = ReleaseDataset(release.uri, **arguments(case, "random")).state_dict(0, True)
    opt_out(lake, 1, release.kept["main/1024/1.286"])
    for error in ranks.run(case.world, tmp_path, run_on, release.uri, state, case, "random"):
        assert isinstance(error, InputError)
        assert "everything that the checkpoint serves of stream main/1024/1.286 was opted out since" in str(error)


def captions_of(uri: str, workers: int) -> list[dict[str, str]]:
    """id -> caption, of this rank in two epochs."""
    dataset = ReleaseDataset(uri, batch_size=2, shuffle=True)
    loaded: Any = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=list)
    return [{sample["id"]: sample["caption"] for batch in loaded for sample in batch} for _ in range(2)]


def test_every_world_sees_the_same_captions(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    weights = {"caption": 1.0, "caption_source": 1.0}
    release = build(lake, captions=weights, words=lambda name: {"caption_source": f"alt of {name}"})
    seen: list[list[dict[str, str]]] = []
    for world, workers in ((World(), 0), (World(1, 3), 0), (World(2, 1), 2)):
        epochs: list[dict[str, str]] = [{}, {}]
        for of_rank in ranks.run(world, tmp_path, captions_of, release.uri, workers):
            for epoch, found in zip(epochs, of_rank, strict=True):
                epoch.update(found)
        seen.append(epochs)
    assert seen[0][0].keys() == set(release.all_kept)
    assert seen[0][0] != seen[0][1]
    assert seen[0] == seen[1] == seen[2]
