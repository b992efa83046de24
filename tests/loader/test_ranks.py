"""Several ranks as processes, with workers: the same samples as from a rewritten tree, through resumes and opt-outs."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import shutil
from collections import Counter
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

from smalti.errors import CorruptError, InputError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.loader import ReleaseDataset, SkipStream
from smalti.release.materialize import materialize
from smalti.release.pull import pull
from tests.loader.ranks import Group, Ranks, World
from tests.loader.releases import Bucket, Release, build, opt_out, skip_share, stand_in
from tests.loader.serving import METHODS, flat, ids, path_of

WORLDS = [World(nodes, ranks) for nodes, ranks in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1))]
SHORT, LONG = 4, 75
"""Examples of each method."""

FEW = 2
"""Samples left to a rank, up to which StreamingDataset may repeat others than in the whole epoch (partition/orig.py)."""

OURS = ("release", "selection", "optouts")
"""What ReleaseDataset adds to a state."""

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

    def plain() -> StreamingDataset:
        return StreamingDataset(streams=[Stream(local=f"{tree}/{n.split('/', 1)[1]}") for n in names], **options)

    ours, theirs = ([ids(each, case.workers, case.batch) for _ in range(case.epochs)] for each in (dataset, plain()))
    first, state = interrupt(ReleaseDataset(uri, **options), case, possible(case, ours[0]))
    resumed = ReleaseDataset(uri, **options)
    resumed.load_state_dict(state)
    rest = ids(resumed, case.workers, case.batch)
    found = {"streams": names, "ours": ours, "theirs": theirs, "first": first, "state": state, "rest": rest}
    if len(flat(rest)) <= FEW and method == "random":
        tail = plain()
        tail.load_state_dict({name: value for name, value in state.items() if name not in OURS})
        found["their rest"] = ids(tail, case.workers, case.batch)
    return found


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
        check_rest(each["rest"], each["ours"][0][done:], each.get("their rest"), outcomes)
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
        for expected, found in zip([before["rest"], *before["ours"][1:]], epochs, strict=True):
            assert found == [[stand_in(release, gone, s) if s in gone else s for s in batch] for batch in expected]
            assert not set(flat(found)) & gone
        assert state["optouts"] == 0  # the order is still the checkpoint's


def check_rest(
    rest: list[list[str]], expected: list[list[str]], theirs: list[list[str]] | None, outcomes: list[dict[str, Any]]
) -> None:
    """A resume is exact, but for this: so that each rank has as many samples, StreamingDataset repeats some of the last; with `random`
    some of those that are left, which are others if hardly any is left. Then a rewritten tree has the same.
    """
    if theirs is not None:
        assert rest == theirs
        served = Counter(sample for each in outcomes for sample in flat(each["ours"][0]))
        if rest != expected:
            assert served[expected[-1][-1]] > 1  # it was a repetition
            assert [*flat(rest)[:-1], ""] == [*flat(expected)[:-1], ""]
            return
    assert rest == expected


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

END = Case(World(2, 2), 2, layout=2, share=0.95, whole=0.0, batch=1, shuffle=True, done=2, optouts=0.5, seed=11)
"""One sample is left to each node of two ranks."""


def campaign(method: str, pool: Ranks, folder: Path, profile: settings) -> None:
    @profile
    @example(END if method == "random" else CROWD)
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
        assert "2 ranks cannot talk to each other" in str(error)
        assert "torchrun" in str(error)


def test_a_stream_of_which_nothing_is_left_ends_every_rank(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    case = replace(CROWD, world=World(1, 2), workers=0, done=0)
    state = ReleaseDataset(release.uri, **arguments(case, "random")).state_dict(0, True)
    opt_out(lake, 1, release.kept["main/1024/1.286"])
    for error in ranks.run(case.world, tmp_path, run_on, release.uri, state, case, "random"):
        assert isinstance(error, InputError)
        assert "everything that the checkpoint serves of stream main/1024/1.286 was opted out since" in str(error)


# What one rank runs into


def only(rank: int, uri: str, here: dict[str, Any], environment: dict[str, str], **others: Any) -> int:
    """A dataset on every rank; one rank has other arguments and another environment. {node} in them is the rank's node."""
    node, mine = str(int(os.environ["RANK"]) // int(os.environ["LOCAL_WORLD_SIZE"])), int(os.environ["RANK"]) == rank
    options: dict[str, Any] = {"batch_size": 1, "uri": uri} | others | (here if mine else {})
    options = {name: v.replace("{node}", node) if isinstance(v, str) else v for name, v in options.items()}
    os.environ.update(environment if mine else {})  # the next run sets them anew
    return int(ReleaseDataset(options.pop("uri"), **options).size)


def refused(outcomes: list[Any], says: str, kind: type[Exception] = InputError) -> None:
    """Every rank has ended, with one and the same line."""
    assert {type(each) for each in outcomes} == {kind}, outcomes
    assert len({str(each) for each in outcomes}) == 1
    assert re.search(says, str(outcomes[0])), outcomes[0]


@pytest.mark.parametrize("world", [World(1, 2), World(2, 1, "environment")])
def test_a_shard_that_the_lake_has_not_ends_every_rank_once(
    world: World, ranks: Ranks, lake: Lake, tmp_path: Path
) -> None:
    release = build(lake)
    shard = path_of(lake.shard("beta", "00001-cccccccccccc", 512, "1.000", 1))
    shard.chmod(0o644)
    local = {"local": str(tmp_path / "cache{node}")}
    assert set(ranks.run(world, tmp_path, functools.partial(only, 0, release.uri, {}, {}, **local))) == {118}
    shard.write_bytes(shard.read_bytes()[:-1])
    cut = ranks.run(world, tmp_path, functools.partial(only, 0, release.uri, {}, {}, **local))
    refused(cut, rf"^file://{shard}: the shard has \d+ bytes instead of", CorruptError)
    shard.unlink()
    gone = ranks.run(world, tmp_path, functools.partial(only, 0, release.uri, {}, {}, **local))
    refused(gone, rf"^file://{shard}: the shard is not there", MissingObject)


def test_what_only_another_node_has_to_fetch_is_looked_for(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release, world = build(lake), World(2, 1)
    pull(release.uri, tmp_path / "cache0")
    name = "beta/00001-cccccccccccc/512/1.000/shard.00001.mds"
    path_of(f"{lake.parts_root()}/{name}").unlink()
    both = functools.partial(only, 0, release.uri, {}, {}, local=str(tmp_path / "cache{node}"))
    refused(ranks.run(world, tmp_path, both), f"{name}: the shard is not there", MissingObject)
    shutil.copytree(tmp_path / "cache0" / "parts", tmp_path / "cache1" / "parts")
    assert ranks.run(world, tmp_path, both) == [118, 118]


def test_what_is_wrong_with_the_copy_of_one_node_ends_every_rank(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release, world = build(lake), World(2, 2)
    opt_out(lake, 3, release.all_kept[:2])
    for node in ("0", "1"):
        pull(release.uri, tmp_path / node)
    run = functools.partial(only, 0, f"{tmp_path}/{{node}}/releases/demo/v1/manifest.json", {}, {})
    assert ranks.run(world, tmp_path, run) == [116] * 4
    check = tmp_path / "1" / ".smalti" / "optouts.json"
    note = check.read_text()
    check.write_text(json.dumps(json.loads(note) | {"checked": "2020-01-01T00:00:00Z"}))
    refused(ranks.run(world, tmp_path, run), r"^rank 2 \(.+\), .*/1: the opt-outs of this copy were last compared")
    check.write_text(note)
    snapshot = path_of(Lake.at(str(tmp_path / "1")).optout_snapshot(3))
    snapshot.rename(tmp_path / "aside")
    refused(ranks.run(world, tmp_path, run), r"^rank 2 .*the opt-outs of position 3 are not here", MissingObject)
    snapshot.write_bytes((tmp_path / "aside").read_bytes())
    next((tmp_path / "1" / "parts").rglob("shard.00001.mds")).unlink()
    refused(ranks.run(world, tmp_path, run), r"^rank 2 .*shard\.00001\.mds: the shard is not here", MissingObject)


@pytest.mark.parametrize(
    ("here", "environment", "says"),
    [
        ({"batch_size": 0}, {}, r"^rank 1 \(.+\), .*batch_size=0 is no size"),
        ({"batch_size": 2}, {}, "rank 1 has another batch_size than rank 0"),
        ({"shuffle": True, "shuffle_seed": 5}, {}, "rank 1 has another shuffle than rank 0"),
        ({"tiers": [512]}, {}, "rank 1 has another choice of streams than rank 0"),
        ({"optouts": 0}, {}, r"rank 1 has another optouts than rank 0 \(0, not 3\)"),
        ({"local": "/tmp/elsewhere"}, {}, "ranks of one node have several local: /tmp/elsewhere, None"),
        ({"uri": "of another version"}, {}, "rank 1 has another release than rank 0"),
        ({}, {"LOCAL_WORLD_SIZE": "1"}, "rank 1 has LOCAL_WORLD_SIZE=1, rank 0 2, of 2 ranks"),
        ({}, {"RANK": "0"}, "rank 1 of 2 of the process group has RANK=0 and WORLD_SIZE=2"),
        ({}, {"WORLD_SIZE": "1", "RANK": "0"}, "rank 1 of 2 of the process group has RANK=0 and WORLD_SIZE=1"),
    ],
)
def test_a_rank_that_was_started_otherwise_ends_every_rank(
    here: dict[str, Any], environment: dict[str, str], says: str, ranks: Ranks, lake: Lake, tmp_path: Path
) -> None:
    release = build(lake)
    opt_out(lake, 3, release.all_kept[:2])
    if "uri" in here:
        here = {"uri": build(lake, version="v2", skips=skip_share(0.1)).uri}
    refused(ranks.run(World(1, 2), tmp_path, functools.partial(only, 1, release.uri, here, environment)), says)


class Refuses(SkipStream):
    def __init__(self, **stream: Any) -> None:
        if os.environ["RANK"] == "1":
            raise ValueError("no such disk")
        super().__init__(**stream)


def other_errors(uri: str) -> str:
    try:
        ReleaseDataset(uri, batch_size=1, stream_class=Refuses)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "opened"


def test_an_error_of_no_kind_of_ours_reaches_every_rank_too(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    first, second = ranks.run(World(1, 2), tmp_path, other_errors, build(lake).uri)
    assert re.fullmatch(r"RuntimeError: rank 1 \(.+\): ValueError: no such disk", first)
    assert second == "ValueError: no such disk"


def resumed(uris: list[str], states: list[Any]) -> int:
    rank = int(os.environ["RANK"])
    dataset = ReleaseDataset(uris[rank % len(uris)], batch_size=1)
    dataset.load_state_dict(states[rank % len(states)])
    return dataset.optouts


def test_a_checkpoint_that_one_rank_refuses_ends_every_rank(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release, world = build(lake), World(2, 1)
    opt_out(lake, 1, release.all_kept[:2])
    state = ReleaseDataset(release.uri, batch_size=1).state_dict(0, True)
    opt_out(lake, 2, release.all_kept[:5])
    uris = [pull(release.uri, tmp_path / node, positions=[1]).manifest for node in ("0", "1")]
    assert ranks.run(world, tmp_path, resumed, uris, [state]) == [1, 1]
    refused(ranks.run(world, tmp_path, resumed, uris, [state, None]), "rank 1 .*a NoneType is no checkpoint's state")
    newer = state | {"optouts": 2}
    refused(ranks.run(world, tmp_path, resumed, uris, [state, newer]), "rank 1 has another position of opt-outs")
    path_of(Lake.at(str(tmp_path / "1")).optout_snapshot(1)).unlink()
    outcomes = ranks.run(world, tmp_path, resumed, uris, [state])
    refused(outcomes, r"^rank 1 .*the opt-outs of position 1 are not here", MissingObject)


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
