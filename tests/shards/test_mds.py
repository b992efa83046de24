from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from smalti.errors import CorruptError, InputError, SmaltiError
from smalti.shards import mds

COLUMNS = {"image": "jpeg", "caption": "str", "id": "str", "width": "int", "plan": "png"}
SAMPLE = st.fixed_dictionaries({
    "image": st.binary(min_size=1, max_size=60),
    "caption": st.text(st.characters(codec="utf-8"), max_size=30),
    "id": st.text("abc/0", min_size=1),
    "width": st.integers(-(2**63), 2**63 - 1),
    "plan": st.binary(max_size=9),
})
SAMPLES = st.lists(SAMPLE, min_size=1, max_size=12)
TWO: list[dict[str, Any]] = [
    {"image": b"one", "caption": "first", "id": "s/1", "width": 1, "plan": b""},
    {"image": b"another", "caption": "sécond", "id": "s/2", "width": -2, "plan": b"p"},
]


@pytest.fixture
def streaming_writer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """MDSWriter as it is, except that images are given as encoded bytes."""
    from streaming.base.format.mds import writer

    encode = writer.mds_encode
    monkeypatch.setattr(
        writer, "mds_encode", lambda kind, value: value if isinstance(value, bytes) else encode(kind, value)
    )
    return writer.MDSWriter


def written(out: Path, writer: Any, columns: dict[str, str], samples: list[dict[str, Any]]) -> tuple[bytes, bytes]:
    """The shard and the index that MDSWriter makes."""
    with writer(columns=columns, out=str(out), hashes=["sha256"], size_limit=mds.SIZE_LIMIT, exist_ok=True) as w:
        for sample in samples:
            w.write(sample)
    assert sorted(p.name for p in out.iterdir()) == ["index.json", "shard.00000.mds"]
    return (out / "shard.00000.mds").read_bytes(), (out / "index.json").read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=SAMPLES)
def test_shard_and_index_are_byte_for_byte_what_the_real_writer_makes(
    samples: list[dict[str, Any]], streaming_writer: Any, tmp_path: Path
) -> None:
    shard, index = written(tmp_path / "mds", streaming_writer, COLUMNS, samples)

    ours = mds.encode_shard(COLUMNS, samples)

    assert ours == shard
    assert mds.encode_index([mds.shard_entry("shard.00000.mds", ours)]) == index


def test_an_unmodified_dataset_reads_the_very_images_that_were_put_in(tmp_path: Path) -> None:
    from streaming import StreamingDataset

    encoded = []
    for quality in (92, 30):
        file = io.BytesIO()
        Image.effect_noise((48, 32), 60).convert("RGB").save(file, "JPEG", quality=quality)
        encoded.append(file.getvalue())
    columns = {"image": "jpeg", "caption": "str", "n": "int"}
    shard = mds.encode_shard(columns, [{"image": e, "caption": f"ü{n}", "n": n} for n, e in enumerate(encoded)])
    remote = tmp_path / "remote"
    remote.mkdir()
    (remote / "shard.00000.mds").write_bytes(shard)
    (remote / "index.json").write_bytes(mds.encode_index([mds.shard_entry("shard.00000.mds", shard)]))

    dataset = StreamingDataset(
        remote=str(remote), local=str(tmp_path / "local"), batch_size=1, validate_hash="sha256", shuffle=False
    )
    read = list(dataset)

    assert [(sample["caption"], sample["n"]) for sample in read] == [("ü0", 0), ("ü1", 1)]
    for sample, data in zip(read, encoded, strict=True):
        expected: Any = Image.open(io.BytesIO(data))
        assert sample["image"].quantization == expected.quantization
        assert sample["image"].tobytes() == expected.tobytes()


@given(SAMPLES)
def test_what_is_written_is_read_back(samples: list[dict[str, Any]]) -> None:
    columns, raw = mds.read_shard(mds.encode_shard(COLUMNS, samples))

    assert columns == COLUMNS
    assert list(columns) == sorted(COLUMNS)
    assert [mds.decode_sample(columns, each) for each in raw] == samples


@given(SAMPLES, st.data())
def test_a_rewritten_shard_is_the_shard_of_what_is_kept(samples: list[dict[str, Any]], data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, unique=True).map(sorted))

    rewritten = mds.rewrite_shard(mds.encode_shard(COLUMNS, samples), keep)

    assert rewritten == mds.encode_shard(COLUMNS, [samples[i] for i in keep])


@given(SAMPLES, st.data())
def test_a_shard_that_was_cut_short_is_refused(samples: list[dict[str, Any]], data: st.DataObject) -> None:
    shard = mds.encode_shard(COLUMNS, samples)
    size = data.draw(st.integers(0, len(shard) - 1))

    with pytest.raises(CorruptError, match="parts/x"):
        mds.read_shard(shard[:size], "parts/x")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_shard_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptError):
        mds.read_shard(data)


def test_a_sample_whose_lengths_do_not_add_up_is_refused() -> None:
    columns, raw = mds.read_shard(mds.encode_shard(COLUMNS, TWO))

    for damaged in (raw[0][:-1], raw[0] + b"x", b"", struct.pack("<4I", 9, 9, 9, 9)):
        with pytest.raises(CorruptError, match=r"shard 3, sample 0"):
            mds.decode_sample(columns, damaged, "shard 3, sample 0")


def test_entry_states_the_hash_and_the_size_limit_of_the_shard_itself() -> None:
    data = mds.encode_shard(COLUMNS, TWO, size_limit=1000, hashes=("md5", "sha256"))

    entry = mds.shard_entry("s/p/512/1.000/shard.00007.mds", data)

    assert entry["raw_data"] == {
        "basename": "s/p/512/1.000/shard.00007.mds",
        "bytes": len(data),
        "hashes": {"md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()},
    }
    assert (entry["samples"], entry["size_limit"], entry["zip_data"]) == (2, 1000, None)


def test_a_shard_beyond_32_bit_offsets_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mds, "_LARGEST", len(mds.encode_shard(COLUMNS, TWO)) - 1)

    with pytest.raises(InputError, match=r"2 samples.*32-bit.*Aim at fewer bytes"):
        mds.encode_shard(COLUMNS, TWO)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 2**63},
        {"width": "1"},
        {"caption": b"bytes"},
        {"image": "text"},
        {"more": 1},
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        mds.encode_shard(COLUMNS, [TWO[0] | wrong])


def test_nothing_is_made_of_nothing() -> None:
    shard = mds.encode_shard(COLUMNS, TWO)
    calls: list[Callable[[], bytes]] = [
        lambda: mds.encode_shard(COLUMNS, []),
        lambda: mds.encode_shard({}, [{}]),
        lambda: mds.encode_shard({"image": "pkl"}, [{"image": b""}]),
        lambda: mds.rewrite_shard(shard, []),
        lambda: mds.rewrite_shard(shard, [2]),
        lambda: mds.rewrite_shard(shard, [-1]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"sample|encoding"):
            call()


def test_another_format_is_refused_and_no_error_is_a_bare_one() -> None:
    shard = mds.encode_shard(COLUMNS, TWO)
    for old, new in ((b'"version": 2', b'"version": 3'), (b'"mds"', b'"xyz"'), (b": null", b": 1234")):
        with pytest.raises(SmaltiError):
            mds.read_shard(shard.replace(old, new))
    assert json.loads(mds.encode_index([]))["version"] == 2


def test_samples_of_several_shards_are_gathered_without_being_decoded() -> None:
    columns = {"id": "str", "image": "jpeg", "n": "int"}
    shards = {
        name: mds.encode_shard(columns, [{"id": f"{name}{n}", "image": b"\xff" * n, "n": n} for n in range(1, 4)])
        for name in "ab"
    }
    gathered = mds.gather_shard(shards, [("b", 2), ("a", 0), ("b", 0)])
    found = [mds.decode_sample(columns, raw)["id"] for raw in mds.read_shard(gathered)[1]]
    assert found == ["b3", "a1", "b1"]
    assert mds.gather_shard({"a": shards["a"]}, [("a", n) for n in range(3)]) == shards["a"]
    with pytest.raises(ValueError, match="a has samples 0 to 2; asked for 3"):
        mds.gather_shard(shards, [("a", 3)])
    other = mds.encode_shard({"id": "str"}, [{"id": "x"}])
    with pytest.raises(CorruptError, match="its columns are not those of a"):
        mds.gather_shard({"a": shards["a"], "c": other}, [("a", 0)])
