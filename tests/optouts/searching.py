"""A search of every file of a lake for pictures and ids, that shares no code with `smalti.optouts.scan`.

It knows the pictures themselves, so it looks for their bytes at every offset, and for what looks like them by a plain difference.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import lance  # noqa: TID253
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lance.file import LanceFileReader  # noqa: TID253
from PIL import Image

from smalti.shards import mds

ALLOWED = re.compile(
    r"optouts/(requests/[^/]+/(request\.json\.gz|erasing(-\d+)?\.json|removing\.json)|(erased|resolved|snapshots|receipts)/.*)"
)
"""The ledger's and the receipts' mention of a request."""


def pixels_of(data: bytes) -> str:
    with Image.open(io.BytesIO(data)) as image:
        return hashlib.sha256(image.convert("RGB").tobytes() + bytes(str(image.size), "ascii")).hexdigest()


def small(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((12, 12), Image.Resampling.BOX)).astype(int)


class Search:
    """`pictures`: as they were delivered and as they were stored."""

    def __init__(self, root: Path, ids: set[str], pictures: set[bytes]) -> None:
        self.root, self.ids = root, ids
        self.pieces = {data[len(data) * n // 9 :][:24] for data in pictures for n in range(2, 9)}
        self.whole = {hashlib.sha256(data).hexdigest() for data in pictures}
        self.pixels = {pixels_of(data) for data in pictures}
        self.shown = [small(data) for data in pictures]
        self.seen: dict[str, set[str]] = {}

    def everything(self) -> dict[str, set[str]]:
        """Path below the root -> what was found there, of every file."""
        found: dict[str, set[str]] = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                what = {*self.raw(path.read_bytes()), *self.values(path, path.read_bytes())}
                if what:
                    found[str(path.relative_to(self.root))] = what
        for table in (self.root / "tables").glob("*.lance"):
            what = {*self.versions(table)}
            if what:
                found[f"tables/{table.name} (rows)"] = what
        return found

    def raw(self, data: bytes) -> Iterator[str]:
        if any(piece in data for piece in self.pieces):
            yield "bytes"
        if any(name.encode() in data for name in self.ids):
            yield "id"

    def values(self, path: Path, data: bytes) -> Iterator[str]:
        """What the file decodes to."""
        if path.name.startswith(".attempt-"):
            return
        if data[:2] == b"\x1f\x8b":
            yield from self.value(gzip.decompress(data))
        elif path.suffix == ".parquet":
            for column in pq.read_table(io.BytesIO(data)).columns:
                for each in column.to_pylist():
                    yield from self.value(each)
        elif path.suffix == ".mds":
            columns, samples = mds.read_shard(data, str(path))
            for raw in samples:
                yield from self.value(list(mds.decode_sample(columns, raw, str(path)).values()))
        elif path.suffix == ".lance":
            yield from self.lance_file(path)
        else:
            yield from self.value(data)

    def value(self, value: Any) -> Iterator[str]:
        if isinstance(value, list):
            for each in value:
                yield from self.value(each)
        elif isinstance(value, bytes):
            yield from self.raw(value)
            if hashlib.sha256(value).hexdigest() in self.whole:
                yield "bytes"
            if value[:2] == b"\xff\xd8" or value[:4] == b"\x89PNG":
                yield from self.picture(value)
            else:
                yield from self.text(value.decode(errors="replace"))
        elif isinstance(value, str):
            yield from self.text(value)

    def text(self, text: str) -> Iterator[str]:
        for spelled in (text, html.unescape(text), unquote(text)):
            if any(name in spelled for name in self.ids):
                yield "id"
            if any(digest in spelled for digest in self.whole):
                yield "sha256"
        for embedded in re.findall(r"base64,([A-Za-z0-9+/=]+)", text):
            yield from self.picture(base64.b64decode(embedded))

    def picture(self, data: bytes) -> Iterator[str]:
        if pixels_of(data) in self.pixels:
            yield "pixels"
        if any(np.abs(small(data) - each).mean() < 6 for each in self.shown):
            yield "looks"

    def lance_file(self, path: Path) -> Iterator[str]:
        """Every text and every bytes of a file, column by column where there are pictures in it."""
        from smalti.table.schema import table_schema

        for names in (None, *([each] for each in table_schema(None).names if each != "image")):
            try:
                table = LanceFileReader(str(path), columns=names).read_all().to_table()
            except (
                ValueError,
                RuntimeError,
            ):  # Lance 14 does not read every column of a file by itself: `versions` does
                continue
            for column in table.columns:
                if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                    yield from self.value(column.to_pylist())
            if names is None:
                return

    def versions(self, table: Path) -> Iterator[str]:
        """The values and the pictures of the rows of every version."""
        for each in lance.dataset(str(table)).versions():
            version = lance.dataset(str(table), version=each["version"])
            rows = version.to_table(columns=[name for name in version.schema.names if name != "image"])
            for column in rows.columns:
                yield from self.value(column.to_pylist())
            for at, sha256 in enumerate(rows["sha256"].to_pylist()):
                if sha256 not in self.seen:
                    self.seen[sha256] = {
                        *self.value([bytes(data) for _, data in version.read_blobs("image", indices=[at])])
                    }
                yield from self.seen[sha256]
