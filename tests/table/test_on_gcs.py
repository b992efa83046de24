"""The stages of a source on GCS: inventory, table and checkpoints in buckets, pictures in another one."""

from __future__ import annotations

import hashlib

import pytest

from smalti.config import Columns
from smalti.lake import Lake
from smalti.objects import lance_options
from smalti.sources.inventory import read_inventory, stage
from smalti.table.fingerprint import fingerprint
from smalti.table.index import index
from smalti.table.ingest import ingest
from tests.sources.making import Made, as_parquet, picture, rejects_of, rows_of, simple
from tests.support.gcs import Gcs


@pytest.fixture
def made(gcs: Gcs) -> Made:
    """Four pictures and one that cannot be used, in a bucket of their own."""
    made = simple(f"{gcs.new_bucket()}/photos of 2024")
    made.put("images/ä b#1%20.jpg", picture(8))
    made.put("images/bad.jpg", b"no picture")
    names = [*(f"p{n}.jpg" for n in range(4)), "ä b#1%20.jpg", "bad.jpg"]
    made.table([{"file": name, "caption": name} for name in names])
    return made


def test_a_source_goes_from_its_bucket_into_the_lakes(gcs_lake: Lake, made: Made) -> None:
    import lance

    run = made.run()
    assert stage(gcs_lake, run).new == 7
    assert all(read_inventory(gcs_lake, "made", "b1").objects["crc32c"].to_pylist())
    first = ingest(gcs_lake, run)
    assert (first.rows_in, first.rows_out, first.dropped) == (6, 5, {"not_an_image": 1})
    assert rejects_of(gcs_lake, "made", "b1") == [("bad.jpg", "not_an_image")]
    assert fingerprint(gcs_lake, run).tiers == {"512": 5}
    assert index(gcs_lake, run).unindexed == 0
    uri = gcs_lake.table("made")
    table = lance.dataset(uri, storage_options=lance_options(uri))
    rows = table.scanner(columns=["sha256"], with_row_id=True).to_table()
    blobs = table.read_blobs("image", ids=rows["_rowid"], preserve_order=True)
    assert [hashlib.sha256(data).hexdigest() for _, data in blobs] == rows["sha256"].to_pylist()
    made.put("images/p1.jpg", picture(30))
    stage(gcs_lake, made.run("b2"))
    assert ingest(gcs_lake, made.run("b2")).rows_out == 1
    assert ingest(gcs_lake, run) == first


def test_rows_of_parquet_files_are_read_by_range(gcs_lake: Lake, made: Made) -> None:
    for name in ("a", "b"):
        rows = [{"key": f"{name}{n}", "image": {"bytes": picture(n)}} for n in range(3)]
        made.put(f"rows/{name}.parquet", as_parquet(rows, row_group_size=2))
    columns = Columns(key="key", image="image")
    run = made.run(format="parquet", table=None, images="", uri=f"{made.root}/rows", columns=columns)
    stage(gcs_lake, run)
    assert ingest(gcs_lake, run).rows_out == 6
    assert [row["id"] for row in rows_of(gcs_lake, "made")] == [f"made/{n}{i}" for n in "ab" for i in range(3)]
