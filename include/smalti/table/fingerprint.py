"""Fingerprint: which bucket a picture goes to, or why to none, and what its copies are found by.

What its owner reserved or asked back is dropped first, then size and ratio decide, without a look at the picture; only what is left is
decoded, once, and compared with the pictures that were asked back. What was fingerprinted before a request came is left out by the caption
stage (`smalti.table.asked_back`); what was captioned before stays, and the ledger matches it in its part.
"""

from __future__ import annotations

import collections
import logging
import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from smalti.accounting import Accounted
from smalti.compute import Shared, share
from smalti.images.buckets import bucket_of
from smalti.images.decode import DecodeError, decode
from smalti.images.fingerprint import fingerprint as fingerprint_of
from smalti.lake import Lake
from smalti.optouts.watch import KEY_COLUMNS, Watch, load_watch
from smalti.reasons import DropReason
from smalti.settings import SourceRun
from smalti.table.columns import Chunk, Filling, Results, backfill
from smalti.table.schema import FINGERPRINT, RESERVED
from smalti.table.target import batch_table

log = logging.getLogger("smalti")

PROFILE = "v3"
"""Of the fingerprint's definition: another one gets checkpoints of its own."""


class FingerprintReport(Accounted):
    """rows_in: the batch's rows in the table; rows_out: those with a bucket; dropped: DropReasons."""

    computed: int = Field(ge=0, description="rows that this run looked at")
    tiers: dict[str, int] = Field({}, description="tier -> rows")
    reserved: dict[str, int] = Field(
        {}, description="rows dropped as `optout` because the source's table reserves them: who -> rows"
    )


@dataclass(frozen=True)
class FingerprintSettings:
    """What a task needs besides its rows. `max_pixels`: of a source picture; `watch`: what is asked back, None: nothing."""

    max_pixels: int
    watch: Shared[Watch] | None = None


def fingerprint(lake: Lake, run: SourceRun) -> FingerprintReport:
    """Fingerprint the batch's rows that are not yet; a second run finds nothing to do and reports the same."""
    began = time.monotonic()
    watch = load_watch(lake)
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
            inputs=("width", "height", RESERVED.name, *(KEY_COLUMNS if watch else ())),
            eligible=lambda rows: pc.is_valid(rows["id"]),
            compute=fingerprint_chunk,
            settings=FingerprintSettings(run.source.max_pixels, share(watch) if watch else None),
            chunk_rows=lambda rows: min(512, max(16, -(-rows // 16))),
        ),
    )
    rows = batch_table(lake.table(run.source.name), run.batch, ["tier", "drop", RESERVED.name])
    tiers = collections.Counter(rows["tier"].to_pylist() if rows else ())
    dropped = collections.Counter(rows["drop"].drop_null().to_pylist() if rows else ())
    reserved = collections.Counter(_reserved_of(rows) if rows else ())
    report = FingerprintReport(
        stage="fingerprint",
        seconds=round(time.monotonic() - began, 3),
        rows_in=rows.num_rows if rows else 0,
        rows_out=sum(count for tier, count in tiers.items() if tier),
        dropped=dict(sorted(dropped.items())),
        computed=filled.computed,
        tiers={str(tier): tiers[tier] for tier in sorted(tier for tier in tiers if tier)},
        reserved=dict(sorted(reserved.items())),
    )
    log.info("fingerprint: %d rows in, %d eligible, dropped %s", report.rows_in, report.rows_out, report.dropped)
    return report


def fingerprint_chunk(chunk: Chunk, settings: FingerprintSettings) -> Results:
    """The columns of FINGERPRINT for a chunk of rows with width, height, RESERVED and, where something is asked back, KEY_COLUMNS."""
    watch = settings.watch.get() if settings.watch else None
    sizes = list(zip(*(chunk.rows[name].to_pylist() for name in ("width", "height")), strict=True))
    results: Results = {name: [None] * len(sizes) for name in FINGERPRINT.names}

    def drop(index: int, reason: DropReason) -> None:
        results["tier"][index], results["ar"][index], results["drop"][index] = 0, None, reason.value

    eligible = []
    for index, is_asked in enumerate(_asked(chunk, watch)):
        bucket = DropReason.OPTOUT if is_asked else bucket_of(*sizes[index])
        if isinstance(bucket, DropReason):
            drop(index, bucket)
        else:
            eligible.append(index)
            results["tier"][index], results["ar"][index] = bucket.tier, bucket.ar
    for index, data in chunk.images(eligible):
        try:
            found = fingerprint_of(decode(data, settings.max_pixels))
        except DecodeError as error:
            log.info("fingerprint: a picture does not decode: %s", error)  # the table says which
            drop(index, DropReason.DECODE_FAILED)
            continue
        for name in ("phash", "colour", "flat", "unstable"):
            results[name][index] = getattr(found, name)
        if watch and watch.knows(found, *sizes[index]):
            drop(index, DropReason.OPTOUT)  # the fingerprint stays: an erasure finds the row by it
    return results


def _asked(chunk: Chunk, watch: Watch | None) -> list[bool]:
    """Which rows of a chunk are reserved or asked back by a key."""
    reserved = pc.is_valid(chunk.rows[RESERVED.name]).to_pylist()
    if watch is None:
        return list(reserved)
    return [one or other for one, other in zip(reserved, watch.asks(chunk.rows), strict=True)]


def _reserved_of(rows: pa.Table) -> list[str]:
    """Who reserves the rows that were dropped for it."""
    return list(rows.filter(pc.equal(rows["drop"], DropReason.OPTOUT.value))[RESERVED.name].drop_null().to_pylist())
