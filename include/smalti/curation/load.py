"""The samples of every committed part of a dataset's sources, as one table."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from smalti import objects
from smalti.config import expand
from smalti.curation.record import Denylist
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.shards.part import Part, batch_orders, committed_parts, read_samples_bytes
from smalti.shards.samples import decode_samples


def parts_of(lake: Lake, sources: Sequence[str]) -> tuple[list[Part], list[str]]:
    """Every committed part, by source and sequence; and the sources that have none.

    Raises:
        InputError: none of them has any.
    """
    parts, missing = [], []
    for source in sorted(sources):
        found = committed_parts(lake, source)
        parts += found
        if not found:
            missing.append(source)
    if not parts:
        raise InputError(
            f"no part is there to release of {', '.join(missing)}", lake.parts_root(), "Run the sources' DAGs first"
        )
    return parts, missing


def load_samples(lake: Lake, parts: Sequence[Part]) -> Any:
    """A polars frame with the columns of samples.parquet and `order`: of two samples of an id the larger one is newer."""
    import polars as pl

    frames = []
    for places, part in zip(batch_orders(parts), parts, strict=True):
        uri = lake.samples(part.source, part.name)
        table = decode_samples(read_samples_bytes(lake, part), uri)
        order = pl.col("batch").replace_strict(places, return_dtype=pl.Int64)
        frames.append(pl.from_arrow(table).with_columns(order=order))
    return pl.concat(frames)


def load_denylists(uris: Sequence[str], dataset: str) -> tuple[frozenset[str], tuple[Denylist, ...]]:
    """Sample ids that must not be served, one a line, and what the lists were.

    Raises:
        InputError: a list is not there or is not text.
    """
    denied: set[str] = set()
    read = []
    for written in uris:
        uri = objects.normalise_uri(expand(written, f"dataset {dataset}, drops.denylist"))
        try:
            data = objects.read_bytes(uri)
            ids = {line.strip() for line in data.decode("utf-8").split("\n")} - {""}
        except (MissingObject, UnicodeDecodeError) as error:
            raise InputError(
                f"the denylist cannot be read ({type(error).__name__})",
                uri,
                f"Write a text file with one sample id a line, or take it out of dataset {dataset}",
            ) from error
        odd = sorted(each for each in ids if "/" not in each)
        if odd:
            raise InputError(
                f"{odd[0]!r} is not a sample id", uri, "Write <source>/<key>, one a line, and nothing else"
            )
        denied |= ids
        read.append(Denylist(uri=written, sha256=hashlib.sha256(data).hexdigest(), ids=len(ids)))
    return frozenset(denied), tuple(read)
