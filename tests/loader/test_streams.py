"""A trainer's own Stream class under SkipStreamMixin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streaming import Stream
from torch.utils.data import DataLoader

from smalti.lake import Lake
from smalti.loader import ReleaseDataset, SkipStreamMixin
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
