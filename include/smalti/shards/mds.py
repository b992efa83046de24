"""The MDS shard format, written and read as bytes.

Why not `streaming.MDSWriter`: importing streaming costs 11-15 s and 0.9 GB in every worker (it imports torch and
torchvision); MDSWriter encodes an in-memory image again at JPEG quality 75; and it leaves a valid-looking index behind
after a crash. Here encoded images pass through untouched, and what is returned is byte for byte what MDSWriter would
have written (tests/shards/test_mds.py), so that an unmodified StreamingDataset reads it.

A shard is, in this order (all integers little-endian)::

    u32                samples n
    u32 * (n + 1)      where each sample begins, and where the last one ends, from the start of the file
    JSON               the writer's configuration: columns, encodings, hashes, size limit
    n samples          u32 length of each column of variable size, then the columns, in order of their names
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from smalti.errors import CorruptError, InputError

Value = bytes | str | int
Sample = Mapping[str, Value]
Entry = dict[str, Any]

SIZE_LIMIT = 1 << 27
"""Bytes a shard aims at, as it is written into each shard's configuration; readers do not use it."""

HASHES = ("sha256",)

_SIZES: dict[str, int | None] = {"bytes": None, "int": 8, "jpeg": None, "png": None, "str": None}
"""Encoding -> bytes of a value; None: it varies. The encodings that smalti writes, all of them safe to read."""

_LARGEST = 0xFFFFFFFF


def encode_shard(
    columns: Mapping[str, str],
    samples: Sequence[Sample],
    *,
    hashes: Sequence[str] = HASHES,
    size_limit: int | None = SIZE_LIMIT,
) -> bytes:
    """The bytes of one shard.

    Args:
        columns: name -> encoding; `jpeg` and `png` take encoded bytes, which are stored as they are.
        samples: at least one, each with exactly these columns.
        hashes: algorithms that the index entry will state.
        size_limit: stated in the shard and its index entry; nothing is split here.
    Raises:
        InputError: the shard would be larger than its 32-bit offsets reach.
        ValueError: an encoding, a column or a type of value that does not fit.
    """
    if not samples:
        raise ValueError("a shard holds at least one sample")
    encodings = {name: columns[name] for name in sorted(columns)}
    unknown = sorted(set(encodings.values()) - set(_SIZES))
    if unknown or not encodings:
        raise ValueError(f"no such encoding: {', '.join(unknown) or '(no column)'}; there are {', '.join(_SIZES)}")
    return _pack(_config(encodings, hashes, size_limit), [_encode_sample(encodings, sample) for sample in samples])


def read_shard(data: bytes, where: str = "shard") -> tuple[dict[str, str], list[bytes]]:
    """Columns (name -> encoding, in the order of the file) and the samples as they are stored.

    Args:
        where: names the shard in an error.
    Raises:
        CorruptError: these are not the bytes of a whole shard.
    """
    config, _, bounds = _unpack(data, where)
    columns = dict(zip(config["column_names"], config["column_encodings"], strict=True))
    return columns, [data[begin:end] for begin, end in bounds]


def rewrite_shard(data: bytes, keep: Sequence[int], where: str = "shard") -> bytes:
    """The shard with only these samples, in this order: no image is decoded, and the configuration stays.

    Raises:
        CorruptError: these are not the bytes of a whole shard.
        ValueError: nothing is kept, or an index is outside the shard.
    """
    return gather_shard({where: data}, [(where, index) for index in keep])


def gather_shard(shards: Mapping[str, bytes], picks: Sequence[tuple[str, int]]) -> bytes:
    """One shard of samples of several, in the order of `picks`: no image is decoded, and the configuration stays.

    Args:
        shards: name -> bytes. All were written with one configuration; the name stands in errors.
        picks: name of a shard, and index of a sample in it.
    Raises:
        CorruptError: these are not the bytes of a whole shard, or their configurations differ.
        ValueError: nothing is picked, or an index is outside its shard.
    """
    if not picks:
        raise ValueError("a shard holds at least one sample")
    opened = {name: _unpack(data, name) for name, data in shards.items()}
    first = next(iter(opened))
    for name, (_, config, _) in opened.items():
        if config != opened[first][1]:
            raise CorruptError(f"its columns are not those of {first}", name, "Shard the batch again")
    samples = []
    for name, index in picks:
        bounds = opened[name][2]
        if not 0 <= index < len(bounds):
            raise ValueError(f"{name} has samples 0 to {len(bounds) - 1}; asked for {index}")
        samples.append(shards[name][slice(*bounds[index])])
    return _pack(opened[first][1], samples)


def decode_sample(columns: Mapping[str, str], raw: bytes, where: str = "sample") -> dict[str, Value]:
    """One stored sample as values; images stay encoded bytes.

    Args:
        columns: as `read_shard` returns them.
    Raises:
        CorruptError: the lengths do not add up, text is not UTF-8, or an encoding is not one that smalti writes.
    """
    try:
        return dict(_decode(columns, raw))
    except (KeyError, struct.error, UnicodeDecodeError, _LengthsDiffer) as error:
        raise CorruptError(
            f"the stored sample does not fit its columns ({error!r})", where, "Fetch or write the shard again"
        ) from error


def shard_entry(basename: str, data: bytes) -> Entry:
    """What index.json says of a shard; everything is read from the shard itself, so that the two cannot differ.

    Args:
        basename: path of the shard relative to the index.
    """
    config, _, bounds = _unpack(data, basename)
    hashes = {name: hashlib.new(name, data).hexdigest() for name in config["hashes"]}
    raw = {"basename": basename, "bytes": len(data), "hashes": hashes}
    return {"samples": len(bounds), "raw_data": raw, "zip_data": None} | config


def encode_index(entries: Sequence[Entry]) -> bytes:
    """index.json, as MDSWriter writes it."""
    return json.dumps({"version": 2, "shards": list(entries)}, sort_keys=True).encode()


class _LengthsDiffer(ValueError):
    pass


def _config(encodings: Mapping[str, str], hashes: Sequence[str], size_limit: int | None) -> bytes:
    config = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": list(hashes),
        "size_limit": size_limit,
        "column_names": list(encodings),
        "column_encodings": list(encodings.values()),
        "column_sizes": [_SIZES[encoding] for encoding in encodings.values()],
    }
    return json.dumps(config, sort_keys=True).encode()


def _encode_sample(encodings: Mapping[str, str], sample: Sample) -> bytes:
    if sample.keys() != encodings.keys():
        raise ValueError(f"a sample has the columns {sorted(sample)}, the shard {list(encodings)}")
    values = [_encode_value(name, encoding, sample[name]) for name, encoding in encodings.items()]
    sizes = [len(value) for value, encoding in zip(values, encodings.values(), strict=True) if _SIZES[encoding] is None]
    return b"".join((struct.pack(f"<{len(sizes)}I", *sizes), *values))


def _encode_value(name: str, encoding: str, value: Value) -> bytes:
    match encoding, value:
        case "int", int() if -(1 << 63) <= value < 1 << 63:
            return struct.pack("<q", value)
        case "str", str():
            return value.encode()
        case "bytes" | "jpeg" | "png", bytes():
            return value
    raise ValueError(f"column {name!r} holds {encoding}, not {type(value).__name__} {str(value)[:40]!r}")


def _pack(config: bytes, samples: Sequence[bytes]) -> bytes:
    end = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = [end, *((end := end + len(sample)) for sample in samples)]
    if end > _LARGEST:
        raise InputError(
            f"a shard of {len(samples)} samples and {end} bytes is larger than its 32-bit offsets reach",
            "encoding.shard_bytes",
            f"Aim at fewer bytes a shard; {SIZE_LIMIT} is usual",
        )
    return b"".join((struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets), config, *samples))


def _unpack(data: bytes, where: str) -> tuple[dict[str, Any], bytes, list[tuple[int, int]]]:
    """The configuration, its bytes, and where each sample begins and ends."""
    try:
        (count,) = struct.unpack_from("<I", data)
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        config_bytes = data[4 * (count + 2) : offsets[0]]
        config = json.loads(config_bytes)
        if config["format"] != "mds" or config["version"] != 2 or config["compression"] is not None:
            raise _LengthsDiffer("not an uncompressed MDS shard of version 2")
        if offsets[-1] != len(data) or any(a > b for a, b in pairwise(offsets)):
            raise _LengthsDiffer(f"{len(data)} bytes, of {offsets[-1]}")
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"these are not the bytes of a shard ({error})", where, "Fetch or write it again") from error
    return config, config_bytes, list(pairwise(offsets))


def _decode(columns: Mapping[str, str], raw: bytes) -> Iterator[tuple[str, Value]]:
    varying = sum(_SIZES[encoding] is None for encoding in columns.values())
    lengths = iter(struct.unpack_from(f"<{varying}I", raw))
    at = 4 * varying
    for name, encoding in columns.items():
        size = _SIZES[encoding]
        begin, at = at, at + (next(lengths) if size is None else size)
        value = raw[begin:at]
        if encoding == "int":
            yield name, struct.unpack("<q", value)[0]
        else:
            yield name, value.decode() if encoding == "str" else value
    if at != len(raw):
        raise _LengthsDiffer(f"{len(raw)} bytes, of {at}")
