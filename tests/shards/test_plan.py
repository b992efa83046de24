"""Plans: the same rows give the same part, whatever order they arrive in and wherever they lie in the table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from smalti.config import Encoding
from smalti.errors import InputError
from smalti.images.buckets import TIERS, buckets_of
from smalti.shards.plan import COLUMNS, ROW, PartPlan, PlanSettings, estimated_bytes, plan_part

SCHEMA = pa.schema([*COLUMNS, (ROW, pa.uint64())])


def settings(**encoding: Any) -> PlanSettings:
    return PlanSettings(
        source="demo", batch="b1", captioner="rules", classifier="rules-minilm", encoding=Encoding(**encoding)
    )


def row(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"demo/{number}",
        "sha256": f"{number:064x}",
        "width": 600,
        "height": 600,
        "tier": 512,
        "ar": "1.000",
        "caption": "a room",
        "caption_ok": True,
        "label": "visual",
        "phash": number,
        "colour": b"\1\2",
        "flat": False,
        "unstable": 0,
        "owner": None,
        "url": None,
        "url_host": None,
        "licence": "CC0",
        ROW: number,
    } | fields


def plan(rows: list[dict[str, Any]], **encoding: Any) -> PartPlan:
    return plan_part(pa.Table.from_pylist(rows, schema=SCHEMA), settings(**encoding))


BUCKETS = [(bucket.tier, bucket.ar) for tier in TIERS[:2] for bucket in buckets_of(tier)]
ROWS = st.lists(
    st.builds(
        lambda number, bucket, caption, owner: row(
            number, tier=bucket[0], ar=bucket[1], caption=caption, caption_ok=bool(caption), owner=owner
        ),
        st.integers(0, 10**6),
        st.sampled_from(BUCKETS),
        st.text(max_size=20),
        st.none() | st.text(max_size=3),
    ),
    unique_by=lambda each: each["id"],
    max_size=60,
)


@tried(deadline=None, max_examples=40)
@given(ROWS, st.randoms(use_true_random=False), st.integers(1 << 16, 1 << 19))
def test_order_and_address_of_rows_decide_nothing(rows: list[dict[str, Any]], random: Any, target: int) -> None:
    first = plan(rows, shard_bytes=target)
    moved = [each | {ROW: random.randrange(1 << 40)} for each in rows]
    random.shuffle(moved)
    second = plan(moved, shard_bytes=target)
    assert second.digest == first.digest
    assert second.shards == first.shards
    assert second.rows.drop([ROW]).equals(first.rows.drop([ROW]))


@tried(deadline=None, max_examples=40)
@given(ROWS, st.integers(1 << 16, 1 << 20))
def test_every_row_is_in_one_shard_of_its_own_bucket_and_no_shard_is_planned_too_large(
    rows: list[dict[str, Any]], target: int
) -> None:
    made = plan(rows, shard_bytes=target)
    sizes = estimated_bytes(made.rows, Encoding(shard_bytes=target))
    assert [shard.start for shard in made.shards] == [0, *(shard.stop for shard in made.shards)][: len(made.shards)]
    assert sum(shard.stop - shard.start for shard in made.shards) == len(rows)
    seen: dict[tuple[int, str], int] = {}
    for shard in made.shards:
        taken = made.rows.slice(shard.start, shard.stop - shard.start).to_pylist()
        bucket = (shard.bucket.tier, shard.bucket.ar)
        assert {(each["tier"], each["ar"]) for each in taken} == {bucket}
        assert [each["id"] for each in taken] == sorted(each["id"] for each in taken)
        assert shard.number == seen.get(bucket, 0)
        seen[bucket] = shard.number + 1
        assert len(taken) == 1 or sizes[shard.start : shard.stop].sum() <= target


@pytest.mark.parametrize("field", [name for name in COLUMNS.names if name not in ("tier", "ar")])
def test_whatever_ends_up_in_the_part_changes_the_digest(field: str) -> None:
    other = {
        "id": "demo/7",
        "sha256": "f" * 64,
        "caption_ok": False,
        "flat": True,
        "colour": b"\1",
        "label": None,
        "unstable": None,
    }.get(field, 601 if field in ("width", "height", "phash") else "other")
    assert plan([row(0), row(1, **{field: other})]).digest != plan([row(0), row(1)]).digest


def test_text_cannot_move_from_one_row_to_the_next_unseen() -> None:
    one = plan([row(0, caption="ab"), row(1, caption="c")])
    other = plan([row(0, caption="a"), row(1, caption="bc")])
    assert one.digest != other.digest
    assert plan([row(0, owner=None)]).digest != plan([row(0, owner="")]).digest


def test_settings_change_the_digest() -> None:
    rows = [row(number) for number in range(3)]
    digests = {
        plan(rows, **encoding).digest
        for encoding in ({}, {"quality": 90}, {"chroma": "444"}, {"fit": "stretch"}, {"format": "png"})
    }
    assert len(digests) == 5


def test_a_row_larger_than_a_shard_gets_one_of_its_own() -> None:
    made = plan([row(number, tier=4096) for number in range(3)], shard_bytes=1 << 16)
    assert [(shard.start, shard.stop, shard.basename) for shard in made.shards] == [
        (0, 1, "shard.00000.mds"),
        (1, 2, "shard.00001.mds"),
        (2, 3, "shard.00002.mds"),
    ]


def test_an_id_that_stands_twice_is_named() -> None:
    with pytest.raises(InputError, match=r"1 sample ids stand more than once in the batch, among them 'demo/1'"):
        plan([row(1), row(2), row(1, sha256="0" * 64)])


def test_nothing_makes_an_empty_plan() -> None:
    assert plan([]).shards == ()


def test_png_is_estimated_larger_than_jpeg_and_better_quality_larger_than_worse() -> None:
    rows = pa.Table.from_pylist([row(0)], schema=SCHEMA)
    sizes = [
        int(estimated_bytes(rows, Encoding(**each))[0])
        for each in ({"quality": 75}, {}, {"chroma": "444"}, {"format": "png"})
    ]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4


def test_without_extra_captions_the_digest_is_the_one_of_before_there_were_any() -> None:
    """As the code of commit c2bd662 computes it: parts that are there must not be written again."""
    found = plan([row(1), row(2, owner="x", tier=1024, caption="")]).digest
    assert found == "fc52fca7ed0ca25262c29de08bf467ab4079e96c19877140a5c329cd1431199c"
