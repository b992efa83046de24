"""Small sources, on disk or on a GCS: pictures of a few hundred bytes, tables of any format, and runs over them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from smalti import objects
from smalti.config import Columns, Engine, Source
from smalti.lake import Lake
from smalti.objects import join_uri, local_path
from smalti.settings import SourceRun

CAPTIONER = Engine(name="rules", role="captioner", kind="rules", batch_size=3)
CLASSIFIER = Engine(name="rules-minilm", role="classifier", kind="rules", batch_size=4)


def picture(number: int, width: int = 500, height: int = 400, kind: str = "JPEG") -> bytes:
    """A gradient that no other number gives."""
    rng = np.random.default_rng(number)
    small = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(out, kind)
    return out.getvalue()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, **options)
    return out.getvalue()


@dataclass
class Made:
    """A source of format files below `root`, whose table is written anew by `table`."""

    root: str
    config: dict[str, Any] = field(default_factory=dict)
    name: str = "made"

    def put(self, name: str, data: bytes) -> str:
        """Write or replace an object as its owner would."""
        uri = join_uri(self.root, quote(name) if self.root.startswith("file://") else name)
        before = objects.read_versioned(uri)
        assert objects.swap_bytes(uri, data, before[1] if before else None)
        return uri

    def table(self, rows: list[dict[str, Any]], kind: str = "csv") -> None:
        encode = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet}[kind]
        self.put(f"table.{kind}", encode(rows))
        self.config["table"] = f"table.{kind}"

    def source(self, **changes: Any) -> Source:
        columns = Columns(key="file", caption="caption")
        config = {"format": "files", "uri": self.root, "images": "images", "columns": columns, **self.config, **changes}
        return Source(name=self.name, **config)

    def run(self, batch: str = "b1", limit: int | None = None, **changes: Any) -> SourceRun:
        source = self.source(**changes)
        return SourceRun(source=source, batch=batch, captioner=CAPTIONER, classifier=CLASSIFIER, limit=limit)

    def remove(self, name: str) -> None:
        path = local_path(join_uri(self.root, name))
        assert path is not None
        path.unlink()


def simple(root: str, count: int = 4) -> Made:
    """Pictures p0.jpg, p1.jpg, ..., each with a row and a caption."""
    made = Made(root)
    for number in range(count):
        made.put(f"images/p{number}.jpg", picture(number))
    made.table([{"file": f"p{n}.jpg", "caption": f"picture {n}"} for n in range(count)])
    return made


def rows_of(lake: Lake, source: str, *columns: str) -> list[dict[str, Any]]:
    """The table's rows, by batch and id."""
    import lance

    uri = lake.table(source)
    table = lance.dataset(uri, storage_options=objects.lance_options(uri))
    rows: list[dict[str, Any]] = table.to_table(columns=["batch", "id", *columns]).to_pylist()
    return sorted(rows, key=lambda row: (row["batch"], row["id"]))


def rejects_of(lake: Lake, source: str, batch: str) -> list[tuple[str, str]]:
    """(key, reason) of what an ingest has rejected."""
    table = pq.read_table(pa.BufferReader(objects.read_bytes(lake.rejects(source, batch))))
    return [(row["key"], row["reason"]) for row in table.to_pylist()]
