"""Fingerprint: which bucket a picture goes to, or why to none, and what its copies are found by.

Size and ratio decide first, without a look at the picture; only what has a bucket is decoded, once.
"""

from __future__ import annotations

import collections
import logging
import time

import pyarrow.compute as pc
from pydantic import Field

from smalti.accounting import Accounted
from smalti.images.buckets import bucket_of
from smalti.images.decode import DecodeError, decode
from smalti.images.fingerprint import fingerprint as fingerprint_of
from smalti.lake import Lake
from smalti.reasons import DropReason
from smalti.settings import SourceRun
from smalti.table.columns import Chunk, Filling, Results, backfill
from smalti.table.schema import FINGERPRINT
from smalti.table.target import batch_table

log = logging.getLogger("smalti")

PROFILE = "v2"
"""Of the fingerprint's definition: another one gets checkpoints of its own."""


class FingerprintReport(Accounted):
    """rows_in: the batch's rows in the table; rows_out: those with a bucket; dropped: DropReasons."""

    computed: int = Field(ge=0, description="rows that this run looked at")
    tiers: dict[str, int] = Field({}, description="tier -> rows")


def fingerprint(lake: Lake, run: SourceRun) -> FingerprintReport:
    """Fingerprint the batch's rows that are not yet; a second run finds nothing to do and reports the same."""
    began = time.monotonic()
    filled = backfill(
        lake,
        run.source.name,
        run.batch,
        Filling(
            stage="fingerprint",
            profile=PROFILE,
            digest=f"fingerprint {PROFILE}",
            outputs=FINGERPRINT,
            marker="tier",
            inputs=("width", "height"),
            eligible=lambda rows: pc.is_valid(rows["id"]),
            compute=fingerprint_chunk,
            settings=run.source.max_pixels,
            chunk_rows=lambda rows: min(512, max(16, -(-rows // 16))),
        ),
    )
    rows = batch_table(lake.table(run.source.name), run.batch, ["tier", "drop"])
    tiers = collections.Counter(rows["tier"].to_pylist() if rows else ())
    dropped = collections.Counter(rows["drop"].drop_null().to_pylist() if rows else ())
    report = FingerprintReport(
        stage="fingerprint",
        seconds=round(time.monotonic() - began, 3),
        rows_in=rows.num_rows if rows else 0,
        rows_out=sum(count for tier, count in tiers.items() if tier),
        dropped=dict(sorted(dropped.items())),
        computed=filled.computed,
        tiers={str(tier): tiers[tier] for tier in sorted(tier for tier in tiers if tier)},
    )
    log.info("fingerprint: %d rows in, %d eligible, dropped %s", report.rows_in, report.rows_out, report.dropped)
    return report


def fingerprint_chunk(chunk: Chunk, max_pixels: int) -> Results:
    """The columns of FINGERPRINT for a chunk of rows with width and height."""
    buckets = [bucket_of(w, h) for w, h in zip(*(chunk.rows[c].to_pylist() for c in ("width", "height")), strict=True)]
    results: Results = {name: [None] * len(buckets) for name in FINGERPRINT.names}

    def drop(index: int, reason: DropReason) -> None:
        results["tier"][index], results["drop"][index] = 0, reason.value

    eligible = []
    for index, bucket in enumerate(buckets):
        if isinstance(bucket, DropReason):
            drop(index, bucket)
        else:
            eligible.append(index)
            results["tier"][index], results["ar"][index] = bucket.tier, bucket.ar
    for index, data in chunk.images(eligible):
        try:
            found = fingerprint_of(decode(data, max_pixels))
        except DecodeError as error:
            log.info("fingerprint: %s: %s", chunk.rows["id"][index], error)
            results["ar"][index] = None
            drop(index, DropReason.DECODE_FAILED)
            continue
        for name in ("phash", "colour", "flat", "unstable"):
            results[name][index] = getattr(found, name)
    return results
