"""A source's table as the stages before shard leave it, and small pictures to fill it with."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from smalti.config import Columns, Dataset, Encoding, Engine, Source
from smalti.images.buckets import Bucket, bucket_of
from smalti.images.decode import probe
from smalti.images.fingerprint import fingerprint
from smalti.lake import Lake
from smalti.objects import create_bytes, lance_options
from smalti.settings import ReleaseRun, SourceRun
from smalti.shards.samples import THUMBNAIL
from smalti.table.fragments import url_host
from smalti.table.schema import caption_columns, label_columns, table_schema
from smalti.table.store import STORAGE_VERSION

RULES = Engine(name="rules", role="captioner", kind="rules")
MINILM = Engine(name="rules-minilm", role="classifier", kind="rules")


def source_run(
    name: str = "demo", batch: str = "b1", *, extra_captions: Sequence[str] = (), **encoding: Any
) -> SourceRun:
    """Settings of a source whose table `write_table` makes."""
    source = Source(
        name=name,
        format="files",
        uri="file:///nowhere",
        table="table.csv",
        columns=Columns(key="file"),
        extra_captions=tuple(extra_captions),
        encoding=Encoding(**({"shard_bytes": 1 << 17} | encoding)),
    )
    extra = tuple(RULES.model_copy(update={"name": each}) for each in sorted(extra_captions) if each != "source")
    return SourceRun(source=source, batch=batch, captioner=RULES, classifier=MINILM, extra_captioners=extra)


def picture(seed: int, width: int = 520, height: int = 520) -> Image.Image:
    """Smooth, colourful, and like no other seed's; at another size its hash is the same."""
    return _coarse(seed).resize((width, height), Image.Resampling.BICUBIC)


@functools.cache
def _coarse(seed: int) -> Image.Image:
    """The first of many whose hash has no bit that a resized or re-encoded copy could lose."""
    for draw in itertools.count():
        pixels = np.random.default_rng((seed, draw)).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        if fingerprint(image.resize((256, 256), Image.Resampling.BICUBIC)).unstable == 0:
            return image
    raise AssertionError


def stored(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """An image file."""
    out = io.BytesIO()
    image.save(out, kind, **({"quality": 88} if kind == "JPEG" else {}) | options)
    return out.getvalue()


@dataclass(frozen=True)
class Row:
    """One row of a table; fields that are not given are what a picture without troubles has."""

    key: str
    image: bytes
    caption: str | None = "a picture"
    status: str | None = "ok"
    label: str | None = "visual"
    licence: str | None = "CC0-1.0"
    size: tuple[int, int] | None = None  # upright, px; else as the header says
    source_caption: str | None = None
    extra: tuple[tuple[str, str | None, str | None], ...] = ()  # profile, caption, status
    owner: str = "somebody"
    url: str | None = None  # default: https://example.org/<key>

    def as_dict(self, run: SourceRun) -> dict[str, Any]:
        width, height = self.size or probe(self.image)[1:]
        caption, status = caption_columns(run.captioner.name)[:2]
        label, score, labelled, *_ = label_columns(run.classifier.name, run.captioner.name)
        bucket = bucket_of(width, height)
        url = self.url or f"https://example.org/{self.key}"
        row = {
            "id": f"{run.source.name}/{self.key}",
            "source": run.source.name,
            "batch": run.batch,
            "uri": f"file:///nowhere/{self.key}",
            "format": "jpeg",
            "width": width,
            "height": height,
            "bytes": len(self.image),
            "sha256": hashlib.sha256(self.image).hexdigest(),
            "caption_source": self.source_caption,
            "owner": self.owner,
            "licence": self.licence,
            "url": url,
            "url_host": url_host(url),
            "metadata": "{}",
            caption: self.caption,
            status: self.status,
            label: self.label,
            score: 0.5,
            labelled: "ok" if self.label else None,
        }
        for profile, words, state in self.extra:
            row |= dict(zip(caption_columns(profile)[:2], (words, state), strict=True))
        if not isinstance(bucket, Bucket):
            return row | {"tier": 0, "drop": str(bucket), caption: None, status: None, label: None, labelled: None}
        try:
            with Image.open(io.BytesIO(self.image)) as image:
                print_ = fingerprint(image.convert("RGB"))
            marks = {"phash": print_.phash, "colour": print_.colour, "flat": print_.flat, "unstable": print_.unstable}
        except OSError:
            marks = {"phash": 1, "colour": bytes(THUMBNAIL), "flat": True, "unstable": 0}
        return row | marks | {"tier": bucket.tier, "ar": bucket.ar}


def write_table(lake: Lake, run: SourceRun, rows: Sequence[Row]) -> None:
    """Append a batch, all its columns filled in, and say that it was ingested."""
    import lance

    words = caption_columns(run.captioner.name).fields({})
    labels = label_columns(run.classifier.name, run.captioner.name).fields({})
    profiles = sorted({profile for row in rows for profile, *_ in row.extra})
    extra = [field for profile in profiles for field in caption_columns(profile).fields({})]
    schema = pa.schema([*table_schema(None), *words, *labels, *extra])
    values = [row.as_dict(run) for row in rows]
    columns = [
        lance.blob_array([row.image for row in rows])
        if field.name == "image"
        else pa.array([value.get(field.name) for value in values], field.type)
        for field in schema
    ]
    uri = lake.table(run.source.name)
    lance.write_dataset(
        pa.Table.from_arrays(columns, schema=schema),
        uri,
        mode="append",
        data_storage_version=STORAGE_VERSION,
        max_rows_per_file=7,
        storage_options=lance_options(uri),
    )
    report = {"stage": "ingest", "rows_in": len(rows), "rows_out": len(rows), "dropped": {}}
    create_bytes(lake.ingested(run.source.name, run.batch), json.dumps(report).encode())


def release_run(*sources: str, **dataset: Any) -> ReleaseRun:
    """Settings of a dataset of these sources (default: demo), each alone a name or `name:group`."""
    pairs = [(name, group or "main") for name, _, group in (each.partition(":") for each in sources or ("demo",))]
    settings = {
        "name": "set",
        "sources": tuple({"name": name, "group": group} for name, group in pairs),
        "groups": {group: 1.0 for _, group in pairs},
    }
    return ReleaseRun(
        dataset=Dataset.model_validate(settings | dataset),
        sources=tuple(source_run(name).source for name, _ in pairs),
        engines=(RULES, MINILM),
    )
