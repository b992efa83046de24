"""samples.parquet: what is written is what is read, by those who read it whole and by those who read its fingerprints."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti import objects
from smalti.accounting import Accounted
from smalti.config import Encoding
from smalti.curation import load
from smalti.curation.load import read_rows, read_thumbnails
from smalti.curation.readers import PartReader
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.shards.part import Part
from smalti.shards.samples import KEYS, SCHEMA, THUMBNAIL, decode_samples, encode_samples, keys_of

ROWS = 1000


def table(rows: int = ROWS, **more: list[Any]) -> pa.Table:
    """Every seventh sample has no fingerprint."""
    chance = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {
        "id": [f"s/{n}" for n in range(rows)],
        "sha256": [hashlib.sha256(b"%d" % (n // 2)).hexdigest() for n in range(rows)],
        "phash": [n if n % 7 else None for n in range(rows)],
        "colour": [chance.bytes(THUMBNAIL) if n % 7 else None for n in range(rows)],
        "index": list(range(rows)),
    }
    filled = {
        field.name: [{"string": "x", "bool": True}.get(str(field.type), 1)] * rows
        for field in SCHEMA
        if field.name not in columns
    }
    return pa.table({**filled, **columns, **more}).select(SCHEMA.names).cast(SCHEMA)


def reader(lake: Lake, *files: bytes) -> PartReader:
    """Parts of one source."""
    parts = []
    for number, data in enumerate(files, 1):
        name = f"{number:05d}-{number:012x}"
        objects.create_bytes(lake.samples("s", name), data)
        parts.append(
            Part(
                source="s",
                name=name,
                batch="b",
                sequence=number,
                digest="0" * 64,
                encoding=Encoding(),
                columns={},
                encoders={},
                engines=(),
                buckets=(),
                samples=ROWS,
                samples_sha256="0" * 64,
                accounting=Accounted(stage="shard", rows_in=ROWS, rows_out=ROWS),
            )
        )
    return PartReader(lake, tuple(parts))


def read(source: PartReader, columns: list[str], rows: list[int]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    read_rows(source, columns, np.array(rows), lambda _, __, frame: found.extend(frame.iter_rows()))
    return found


def test_rows_come_back_as_they_were_and_the_same_rows_are_the_same_bytes() -> None:
    data = encode_samples(table())
    assert decode_samples(data, "here").equals(table())
    assert data == encode_samples(table())


def test_the_keys_are_the_first_bytes_of_sha256() -> None:
    file = pq.read_table(pa.BufferReader(encode_samples(table())))
    keys = [file[name].to_pylist() for name in KEYS]
    whole = [bytes.fromhex(each) for each in file["sha256"].to_pylist()]
    assert keys == [
        [int.from_bytes(each[:8], "big") for each in whole],
        [int.from_bytes(each[8:16], "big") for each in whole],
    ]


@pytest.mark.parametrize("odd", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_what_is_no_digest_is_not_written(odd: str) -> None:
    with pytest.raises(ValueError, match="not 64 hexadecimal digits"):
        keys_of(pa.chunked_array([["0" * 64, odd]]))


def test_a_thumbnail_of_another_size_is_not_written() -> None:
    with pytest.raises(ValueError, match="99"):
        encode_samples(table(1, colour=[bytes(192)]))


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.shards.samples._ROW_GROUP", 130)
    monkeypatch.setattr(load, "ROWS", 300)


@pytest.mark.usefixtures("in_small_pieces")
def test_thumbnails_and_columns_of_some_rows(any_lake: Lake) -> None:
    """Over parts, chunks and row groups, from a path and from a file that is fetched in ranges."""
    other = table(colour=[bytes([n % 251]) * THUMBNAIL for n in range(ROWS)])
    source = reader(any_lake, encode_samples(table()), encode_samples(other))
    rows = np.flatnonzero(np.random.default_rng(1).random(2 * ROWS) < 0.1)
    whole = pa.concat_tables([table(), other])
    expected = whole.take(pa.array(rows))
    assert read(source, ["id", *KEYS[:1]], rows.tolist()) == list(
        zip(expected["id"].to_pylist(), keys_of(expected["sha256"])[0].tolist(), strict=True)
    )
    told = [place for place, colour in enumerate(expected["colour"].to_pylist()) if colour]
    found = read_thumbnails(source, rows)
    assert [found[place].tobytes() for place in told] == [expected["colour"][place].as_py() for place in told]
    assert len(found) == len(rows) > len(told)


def test_a_file_without_keys_is_read_as_one_with_them(any_lake: Lake) -> None:
    """Parts of the first versions of smalti have none, and their column of thumbnails has no width."""
    old = pa.BufferOutputStream()
    pq.write_table(table(), old)
    source = reader(any_lake, old.getvalue().to_pybytes(), encode_samples(table()))
    before, after = (read(source, ["index", *KEYS], list(range(start, start + ROWS))) for start in (0, ROWS))
    assert before == after
    rows = np.arange(ROWS)[np.arange(ROWS) % 7 > 0]
    assert (read_thumbnails(source, rows) == read_thumbnails(source, rows + ROWS)).all()


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(192)])
def test_a_file_that_an_older_smalti_fingerprinted_is_named(kind: pa.DataType, any_lake: Lake) -> None:
    """Its thumbnails were 8x8 cells of RGB: nothing is compared with them."""
    old = pa.BufferOutputStream()
    rows = table(colour=[bytes(192) if n % 7 else None for n in range(ROWS)])
    place = rows.schema.get_field_index("colour")
    pq.write_table(rows.set_column(place, "colour", rows["colour"].cast(kind)), old)
    source = reader(any_lake, old.getvalue().to_pybytes())
    with pytest.raises(InputError, match=r"00001-000000000001.*older smalti.*192 bytes.*99.*new lake"):
        read_thumbnails(source, np.array([5]))


@pytest.mark.parametrize("first", [0, 3])
def test_the_first_key_alone_is_the_first_of_both(first: int) -> None:
    """Of a column that does not begin at its buffer's start, too."""
    digests = [hashlib.sha256(bytes([number])).hexdigest() for number in range(20)]
    column = pa.chunked_array([digests[:7], digests[7:]]).slice(first)
    both = keys_of(column)
    assert [each.tolist() for each in keys_of(column, 1)] == [both[0].tolist()]
    assert both[0].tolist() == [int(digest[:16], 16) for digest in digests[first:]]
    assert both[1].tolist() == [int(digest[16:32], 16) for digest in digests[first:]]
