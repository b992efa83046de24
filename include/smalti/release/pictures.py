"""A few samples of a release as small pictures that a page can hold."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from smalti import objects
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.release.collect import Shown
from smalti.shards import mds
from smalti.shards.samples import decode_samples

THUMBNAIL = 176
"""Longest side, px."""


@dataclass(frozen=True)
class Thumbnail:
    """What a page shows of a sample; `source` is a data: URI."""

    id: str
    caption: str
    source: str
    width: int
    height: int


def read_sample(lake: Lake, basename: str, index: int) -> dict[str, mds.Value]:
    """One sample of a shard, without reading the rest of it.

    Raises:
        MissingObject, CorruptError
    """
    uri = objects.join_uri(lake.parts_root(), basename)
    with objects.open_binary(uri) as shard:
        try:
            (count,) = struct.unpack("<I", shard.read(4))
            offsets = struct.unpack(f"<{count + 1}I", shard.read(4 * (count + 1)))
            config = json.loads(shard.read(offsets[0] - 4 * (count + 2)))
            columns = dict(zip(config["column_names"], config["column_encodings"], strict=True))
            shard.seek(offsets[index])
            raw = shard.read(offsets[index + 1] - offsets[index])
        except (struct.error, ValueError, KeyError, IndexError) as error:
            raise CorruptError("these are not the bytes of a shard", uri, "Restore the part, or shard again") from error
    return mds.decode_sample(columns, raw, uri)


def thumbnail(lake: Lake, shown: Shown) -> Thumbnail:
    """A sample as a small picture and its caption."""
    sample = read_sample(lake, shown.shard, shown.index)
    data = sample["image"]
    assert isinstance(data, bytes)
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (2 * THUMBNAIL, 2 * THUMBNAIL))  # JPEG: a fraction of the pixels is decoded
        small = image.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=78)
    encoded = base64.b64encode(out.getvalue()).decode()
    return Thumbnail(shown.id, str(sample["caption"]), f"data:image/jpeg;base64,{encoded}", *small.size)


def locate(lake: Lake, parts: Sequence[tuple[str, str]], ids: Collection[str]) -> dict[str, Shown]:
    """Where samples lie; of an id in several parts the last one.

    Args:
        parts: (source, name), in the order of their sequence.
    """
    found: dict[str, Shown] = {}
    wanted = sorted(ids)
    for source, name in parts if wanted else ():
        uri = lake.samples(source, name)
        table = decode_samples(objects.read_bytes(uri), uri).select(["sha256", "id", "shard", "index"])
        for row in table.filter(pc.is_in(table["id"], value_set=pa.array(wanted))).to_pylist():
            found[row["id"]] = Shown(**row)
    return found
