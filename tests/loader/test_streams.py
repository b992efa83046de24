"""A trainer's own Stream class under SkipStreamMixin."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import pytest
from streaming import Stream
from torch.utils.data import DataLoader

from smalti.errors import InputError
from smalti.lake import Lake
from smalti.loader import ReleaseDataset, SkipStream, SkipStreamMixin
from smalti.loader.fetch import fetch
from smalti.loader.streams import KeptReader
from tests.loader.releases import Release, build, opt_out, stand_in
from tests.loader.serving import BATCH, METHODS, SKIPS, flat, ids, ours, plain


class PatchedStream(Stream):
    """As trainers have them: attributes of its own, another way to look for shards, another index."""

    def __init__(self, *, latents: bool = False, **stream: Any) -> None:
        super().__init__(**stream)
        self.latents = latents

    def get_shards(self, world: Any, allow_unsafe_types: bool) -> list[Any]:
        raise AssertionError("it would find an index that nobody wrote")

    def title(self) -> str:
        return f"latents: {self.latents}"


class UpperReader(KeptReader):
    def decode_sample(self, data: bytes) -> dict[str, Any]:
        sample: dict[str, Any] = super().decode_sample(data)
        return sample | {"caption": sample["caption"].upper()}


class OurStream(SkipStreamMixin, PatchedStream):
    reader_class = UpperReader
    fetched: list[str] = []  # noqa: RUF012  # of all streams

    def __init__(self, **stream: Any) -> None:
        super().__init__(latents=True, **stream)

    def fetch_shard(self, uri: str, path: Path, sha256: str) -> None:
        self.fetched.append(uri)
        fetch(uri, path, sha256)


@pytest.mark.parametrize("method", METHODS)
def test_it_is_served_the_same_samples_in_the_same_order(releases: dict[str, Release], method: str) -> None:
    release = releases["much"]
    mine = ours(release, batching_method=method, stream_class=OurStream)
    assert ids(mine) == ids(plain(release, batching_method=method))
    assert {stream.title() for stream in mine.streams} == {"latents: True"}


def test_its_own_reader_and_transport_are_used(lake: Lake, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS["much"])
    OurStream.fetched.clear()
    dataset = ours(release, local=str(tmp_path / "cache"), stream_class=OurStream)
    loader: Any = DataLoader(dataset, batch_size=BATCH, collate_fn=list)
    samples = [sample for batch in loader for sample in batch]
    assert sorted(each["id"] for each in samples) == sorted(release.all_kept)
    assert all(each["caption"] == f"CAPTION OF {each['id'].upper()}" for each in samples)
    shards = sum(bool(ids) for each in release.shards.values() for ids in each)
    assert len(set(OurStream.fetched)) == len(OurStream.fetched) == shards


def test_it_resumes_and_exchanges_what_was_opted_out(lake: Lake) -> None:
    release = build(lake, skips=SKIPS["a tenth"])
    first = ours(release, stream_class=OurStream)
    whole = ids(first)
    state = first.state_dict(BATCH, from_beginning=True)
    gone = set(release.all_kept[::3])
    opt_out(lake, 1, gone)
    resumed = ReleaseDataset(release.uri, batch_size=BATCH, shuffle=True, stream_class=OurStream)
    resumed.load_state_dict(state)
    assert flat(ids(resumed)) == [stand_in(release, gone, s) if s in gone else s for s in flat(whole[1:])]
    assert {stream.title() for stream in resumed.streams} == {"latents: True"}


class IndexStream(Stream):
    """A constructor of positional arguments, names of its own that a release's stream might use, another transport."""

    def __init__(self, index_file: str = "index.json", *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.index_file, self.name = index_file, "mine"
        self._source = self._parts = self._served = self._readers = self._here = self._in_place = None

    def get_shards(self, world: Any, allow_unsafe_types: bool) -> list[Any]:
        raise AssertionError("it would look for its index")

    def prepare_shard(self, shard: Any) -> int:
        raise AssertionError("it would bring shards from nowhere")

    def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
        raise AssertionError("so would this")


class Extended(SkipStreamMixin, IndexStream):  # type: ignore[override]  # both have a name
    """What is added after what the release decides."""

    prepared: list[str] = []  # noqa: RUF012  # of all streams

    def get_shards(self, world: Any, allow_unsafe_types: bool) -> list[Any]:
        shards = super().get_shards(world, allow_unsafe_types)
        for shard in shards:
            shard.visits = getattr(shard, "visits", 0) + 1
        return shards

    def prepare_shard(self, shard: Any) -> int:
        added = super().prepare_shard(shard)
        self.prepared.extend([shard.raw_data.basename] if added else [])
        return added


@pytest.mark.parametrize("method", METHODS)
def test_its_constructor_and_its_names_do_not_disturb(
    releases: dict[str, Release], method: str, tmp_path: Path
) -> None:
    release = releases["much"]
    made = functools.partial(Extended, index_file="filtered.json")
    mine = ours(release, batching_method=method, stream_class=made, local=str(tmp_path))
    assert ids(mine) == ids(plain(release, batching_method=method))
    assert {(stream.index_file, stream.name) for stream in mine.streams} == {("filtered.json", "mine")}
    assert {shard.visits for shard in mine.shards} == {1}


def test_what_it_adds_to_getting_a_shard_is_done(lake: Lake, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS["much"])
    Extended.prepared.clear()
    dataset = ours(release, local=str(tmp_path), stream_class=Extended)
    assert sorted(flat(ids(dataset))) == sorted(release.all_kept)
    assert sorted(Extended.prepared) == sorted(shard.raw_data.basename for shard in dataset.shards)


def test_a_transport_that_is_not_used_is_named(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    class Late(SkipStream):
        def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
            raise AssertionError

    release = build(lake)
    for given, says in (
        (
            Extended,
            ["IndexStream.prepare_shard, IndexStream._download_file: not called for a release; override fetch_shard"],
        ),
        (Late, ["Late._download_file: not called for a release; override fetch_shard"]),
        (OurStream, []),
        (SkipStream, []),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "smalti"):
            ours(release, stream_class=given)
        assert [record.message for record in caplog.records] == says


class Reversed(PatchedStream, SkipStreamMixin):
    pass


class Forgetful(SkipStreamMixin, PatchedStream):
    def __init__(self, *, proportion: float | None = None, **stream: Any) -> None:
        super().__init__(**stream)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            PatchedStream,
            r"stream_class=PatchedStream is no stream of a release\. Write class Ours\(SkipStreamMixin, Patched",
        ),
        (Reversed, "stream_class=Reversed has SkipStreamMixin after its Stream. Name SkipStreamMixin first"),
        (Forgetful, "Forgetful does not hand its proportion on to Stream"),
        (lambda **_: PatchedStream(local="/nowhere"), "stream_class made a PatchedStream"),
    ],
)
def test_a_class_that_will_not_do_is_one_line(lake: Lake, given: Any, says: str) -> None:
    release = build(lake, groups={"alpha": "a", "beta": "b"})
    with pytest.raises(InputError, match=says):
        ours(release, stream_class=given)


def test_its_shards_can_be_asked_for_again(lake: Lake) -> None:
    release = build(lake, skips=SKIPS["much"])
    dataset = ours(release)
    again = [shard for stream in dataset.streams for shard in stream.get_shards(dataset._unique_rank_world, False)]
    assert again == dataset.shards
