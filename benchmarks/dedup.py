"""Curate over fabricated samples: seconds, memory, and whether what was planted is what was found.

    python -m benchmarks.dedup                        1M to 100M samples at distance 0, and 10M at distance 2
    python -m benchmarks.dedup 1000000 --distance 2   one size

A lake of samples.parquet files is written in the form that the shard stage gives them (ten sources, parts of at most 1M samples), its pages
are dropped from the cache, and `smalti.curation.curate.curate` runs over it in a fresh process. Planted: 5 % copies, half of them
with equal bytes, the others with another sha256 and noise in the thumbnail, in clusters from 2 to several hundred; one cluster of a
thousandth of all; 0.5 % that have another picture's hash and nothing else of it; 1 % flat pictures of one hash; labels.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.accounting import Accounted
from smalti.config import Columns, Dataset, Drops, Duplicates, Encoding, Source
from smalti.images.fingerprint import BITS, THUMBNAIL
from smalti.lake import Lake
from smalti.objects import create_bytes, local_path
from smalti.settings import ReleaseRun
from smalti.shards.part import Part

SIZES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
SOURCES, PART, SHARD = 10, 1_000_000, 10_000
LIMIT = 100

U64 = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


def mix(values: Any, salt: int) -> U64:
    """splitmix64 (Steele et al. 2014): as good as random, and the same in every process."""
    with np.errstate(over="ignore"):
        x = np.asarray(values).astype(np.uint64) + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


def share(values: Any, salt: int) -> npt.NDArray[np.float64]:
    return np.asarray(mix(values, salt) >> np.uint64(11)) / 2.0**53


@dataclass(frozen=True)
class Planted:
    """What some rows are: by row.

    Attributes:
        picture: rows of one picture are copies. content: rows of one content have equal bytes.
        hash_of: the picture whose hash a row has.
    """

    row: Ints
    picture: Ints
    content: Ints
    hash_of: Ints
    flat: npt.NDArray[np.bool_]
    pixels: Ints
    label: npt.NDArray[np.int8]  # 0 visual, 1 text, 2 nsfw

    @classmethod
    def rows(cls, start: int, stop: int, total: int, distance: int) -> Planted:
        row = np.arange(start, stop)
        kind = share(row, 1)
        kind[row % 50 == 0] = 1  # originals are nothing else
        copy, collides, flat = kind < 0.05, (kind >= 0.05) & (kind < 0.055), (kind >= 0.055) & (kind < 0.065)
        crowd = (kind >= 0.065) & (kind < 0.066)
        originals = total // 50
        original = (originals * share(row, 2) ** 1.5).astype(np.int64) * 50
        picture = np.where(copy, original, np.where(crowd, 50, row))
        again = (copy & (mix(row, 3) % np.uint64(2) == 0)) | crowd
        content = np.where(again, total + row, picture)
        hash_of = np.where(collides, original, picture)
        side = 150 + (mix(row, 4) % np.uint64(200)).astype(np.int64)
        side = np.where(content == picture, 150 + (mix(picture, 4) % np.uint64(200)).astype(np.int64), side)
        label = (row % 49 == 1).astype(np.int8) + 2 * (mix(row, 5) % np.uint64(1000) == 0)
        label[picture == 50] = 0  # the crowd is there to be set aside
        return cls(row, picture, content, hash_of, flat, side, np.minimum(label, 2).astype(np.int8))

    def phash(self, distance: int) -> U64:
        """Like those of pictures: 40 of the 64 bits are used, half of them are ones. Copies that were encoded again have up to
        `distance` bits flipped."""
        found, halves = np.zeros(len(self.row), np.uint64), _halves()
        for half, patterns in enumerate(halves):
            found |= patterns[(mix(self.hash_of, 8 + half) % np.uint64(len(patterns))).astype(np.int64)]
        for bit in range(distance // 2):  # two copies are then at most `distance` apart
            flips = _USED[(mix(self.content, 11 + bit) % np.uint64(len(_USED))).astype(np.int64)]
            found = np.where((self.content != self.picture) & (self.hash_of == self.picture), found ^ flips, found)
        return np.where(self.flat, np.uint64(0), found)

    def colour(self) -> npt.NDArray[np.uint8]:
        """Bytes without structure; those of a copy that was encoded again are up to 1 level away from its picture's."""
        levels, noise = _pools()
        colour = levels[(mix(self.picture, 20) % np.uint64(len(levels))).astype(np.int64)]
        again = np.flatnonzero(self.content != self.picture)
        colour[again] += noise[(mix(self.content[again], 21) % np.uint64(len(noise))).astype(np.int64)]
        return np.asarray(colour)

    def ratio(self) -> tuple[Ints, Ints]:
        wide, high = np.array([1, 4, 3, 16]), np.array([1, 3, 2, 9])
        which = (mix(self.picture, 30) % np.uint64(4)).astype(np.int64)
        return wide[which] * self.pixels, high[which] * self.pixels


_USED = np.uint64(1) << np.array([63 - place * 64 // BITS for place in range(BITS)], np.uint64)
"""The bits that a hash uses."""


@functools.cache
def _halves() -> tuple[U64, U64]:
    """Every pattern of the first and of the second half of the used bits, half of them ones: 35 bits of information, not 37."""
    half = BITS // 2
    few = np.arange(1 << half, dtype=np.uint32)
    few = few[np.bitwise_count(few) == half // 2]
    first, second = (
        sum((few >> np.uint32(bit) & np.uint32(1)).astype(np.uint64) * used[bit] for bit in range(half))
        for used in (_USED[:half], _USED[half:])
    )
    return np.asarray(first, np.uint64), np.asarray(second, np.uint64)


_HEX = np.array([list(f"{value:02x}".encode()) for value in range(256)], np.uint8)


@functools.cache
def _pools() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Every run of THUMBNAIL bytes of 64 MiB of levels 1 to 253 and of 16 MiB of noise 0 to 1: shape (.., THUMBNAIL), without copies."""
    chance = np.random.default_rng(0)
    levels, noise = chance.integers(1, 254, 1 << 26, np.uint8), chance.integers(0, 2, 1 << 24, np.uint8)
    view = np.lib.stride_tricks.sliding_window_view
    return view(levels, THUMBNAIL), view(noise, THUMBNAIL)


def _texts(data: npt.NDArray[np.uint8], kind: Any) -> Any:
    import pyarrow as pa

    count, width = data.shape
    offsets = (np.arange(count + 1) * width).astype(np.int32)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))])


Origin = Callable[[Ints], dict[str, Any]]
"""Row numbers -> owner, url and url_host of samples."""


def _one_origin(rows: Ints) -> dict[str, Any]:
    import pyarrow as pa

    said = {"owner": "somebody", "url": None, "url_host": "example.org"}
    return {name: pa.repeat(pa.scalar(value, pa.string()), len(rows)) for name, value in said.items()}


def _write(task: tuple[str, int, int, int, int], origin: Origin) -> None:
    """samples.parquet and part.json of rows start..stop."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    from smalti.shards.samples import KEYS, SCHEMA, stored

    root, number, start, stop, total = task[0], task[1], task[2], task[3], task[4] >> 3
    distance = task[4] & 7
    lake, source = Lake(root), f"s{number % SOURCES}"
    name = f"{number // SOURCES + 1:05d}-{number:012x}"
    planted = Planted.rows(start, stop, total, distance)
    width, height = planted.ratio()
    count = stop - start
    words = mix(planted.content[:, None] * 4 + np.arange(4), 40)
    sha256 = _HEX[words.view(np.uint8)].reshape(count, 64)
    places = np.arange(count)
    frame = pl.DataFrame({"row": planted.row, "shard": places // SHARD}).select(
        id=pl.format(f"{source}/{{}}.jpg", pl.col("row").cast(pl.String).str.zfill(9)),
        shard=pl.format(f"{source}/{name}/512/1.000/shard.{{}}.mds", pl.col("shard").cast(pl.String).str.zfill(5)),
    )
    frame = frame.to_arrow(compat_level=pl.CompatLevel.oldest())

    def same(value: Any, kind: Any) -> Any:
        return pa.repeat(pa.scalar(value, kind), count)

    labels = pa.DictionaryArray.from_arrays(planted.label, ["visual", "text", "nsfw"]).cast(pa.string())
    table = pa.table({
        "id": frame["id"], "source": same(source, pa.string()), "batch": same("b1", pa.string()),
        "sha256": _texts(sha256, pa.string()), "phash": planted.phash(distance), "colour": _texts(planted.colour(), pa.binary()),
        "flat": planted.flat, "unstable": np.zeros(count, np.int16), "width": width, "height": height,
        "tier": same(512, pa.int32()), "ar": same("1.000", pa.string()), "shard": frame["shard"], "index": places % SHARD,
        "label": labels, "caption_ok": same(True, pa.bool_()), "captioner": same("rules", pa.string()),
        "classifier": same("minilm", pa.string()), **origin(planted.row), "licence": same("CC0-1.0", pa.string()), "bytes": np.full(count, 100_000),
    })  # fmt: skip
    path = local_path(lake.samples(source, name))
    assert path is not None
    path.parent.mkdir(parents=True)
    few = [
        name for name in SCHEMA.names if name not in ("id", "sha256", "phash", "colour", *KEYS)
    ]  # others outgrow a dictionary
    table = stored(table.select(SCHEMA.names).cast(SCHEMA))
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 17, use_dictionary=few)
    part = Part(
        source=source, name=name, batch="b1", sequence=number // SOURCES + 1, digest="0" * 64, encoding=Encoding(), columns={},
        encoders={}, engines=(), buckets=(), samples=count, samples_sha256="0" * 64,
        accounting=Accounted(stage="shard", rows_in=count, rows_out=count),
    )  # fmt: skip
    create_bytes(lake.part_commit(source, name), part.encode())


def make_lake(folder: Path, total: int, distance: int, origin: Origin = _one_origin) -> Lake:
    """A lake of `total` samples; the fabricated part.json files name no true digest of a file, and nobody here assembles."""
    lake = Lake.at(str(folder))
    tasks = [
        (lake.root, number, start, min(start + PART, total), total << 3 | distance)
        for number, start in enumerate(range(0, total, PART))
    ]
    if len(tasks) == 1:
        _write(tasks[0], origin)
    else:
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            list(pool.map(functools.partial(_write, origin=origin), tasks))
    return lake


def release_run(distance: int) -> ReleaseRun:
    names = [f"s{number}" for number in range(SOURCES)]
    drops = Drops(duplicates=Duplicates(distance=distance, cluster_limit=LIMIT))
    dataset = Dataset.model_validate({
        "name": "bench",
        "sources": [{"name": n} for n in names],
        "drops": drops.model_dump(),
    })
    sources = tuple(
        Source(name=n, format="files", uri="file:///nowhere", table="t.csv", columns=Columns(key="file")) for n in names
    )
    return ReleaseRun(dataset=dataset, sources=sources)


def check(lake: Lake, curation_uri: str, total: int, distance: int) -> list[str]:
    """What differs from what was planted, one line each.

    Kept is one sample of each picture, of the most pixels; copies name a sample of their own picture; nothing else is left out.
    """
    import polars as pl

    from smalti.curation.record import check_rows, read_curation, read_rows

    curation = read_curation(curation_uri)
    check_rows(lake, curation)
    wrong = []
    picture = np.empty(total, np.int64)
    pixels, label, distinct = np.empty(total, np.int32), np.empty(total, np.int8), np.zeros(total, np.int64)
    spread = np.zeros(total, np.bool_)
    for start in range(0, total, PART):
        planted = Planted.rows(start, min(start + PART, total), total, distance)
        rows = slice(start, start + len(planted.row))
        picture[rows], pixels[rows], label[rows] = planted.picture, planted.pixels, planted.label
        spread[planted.picture[planted.label == 2]] = True
    nsfw = spread[picture]
    eligible = ~nsfw & (label != 1)
    left = np.flatnonzero(eligible)
    spread[:] = False
    for start in range(0, total, PART):  # equal bytes count once
        planted = Planted.rows(start, min(start + PART, total), total, distance)
        own = (planted.content != planted.picture) & eligible[start : start + PART]
        np.add.at(distinct, planted.picture[own], 1)
        plain = (planted.content == planted.picture) & eligible[start : start + PART]
        spread[planted.picture[plain]] = True  # now: a sample with the picture's own bytes is there
    distinct += spread
    aside = (distinct > LIMIT)[picture] & eligible
    bits = {str(reason): 1 << bit for bit, reason in enumerate(curation.reasons)}
    frame = pl.from_arrow(read_rows(lake, curation, ["id", "reasons", "copy_of"]))
    number = pl.all().str.split("/").list.get(1).str.head(9).cast(pl.Int64)
    at = frame.select("id").select(number)["id"].to_numpy()
    said = np.zeros(total, np.uint32)
    said[at] = frame["reasons"].to_numpy()
    for name, expected in (("nsfw", nsfw), ("text", label == 1)):
        if not (((said & bits[name]) > 0) == expected).all():
            wrong.append(f"{name}: {int(((said & bits[name]) > 0).sum())} samples, planted {int(expected.sum())}")
    kept = said == 0
    best = np.zeros(total, np.int32)
    np.maximum.at(best, picture[left], pixels[left])
    counts = np.bincount(picture[kept], minlength=total)
    wanted = np.bincount(picture[eligible & ~aside], minlength=total) > 0
    if not (counts == wanted).all():
        wrong.append(
            f"{int((counts > wanted).sum())} pictures are kept twice, {int((counts < wanted).sum())} not at all"
        )
    if not (pixels[kept] == best[picture[kept]]).all():
        wrong.append("a smaller copy was kept")
    duplicate, quarantined = (said & bits["duplicate"]) > 0, (said & bits["quarantine"]) > 0
    if not ((duplicate | quarantined) == (eligible & ~kept)).all() or not (quarantined <= aside).all():
        wrong.append("something else was left out as a copy or set aside")
    if int(quarantined.sum()) != int(distinct[distinct > LIMIT].sum()):
        wrong.append(f"{int(quarantined.sum())} set aside, planted {int(distinct[distinct > LIMIT].sum())}")
    twins = frame.select("id", "copy_of").drop_nulls().select(number)
    of, twin = twins["id"].to_numpy(), twins["copy_of"].to_numpy()
    if not (picture[of] == picture[twin]).all() or len(of) != int(duplicate.sum()):
        wrong.append("a copy names another picture")
    if not duplicate.sum() > 0.02 * total:
        wrong.append("hardly anything was planted")
    return wrong


def measure(lake: Lake, distance: int) -> dict[str, Any]:
    """curate in a fresh process: its wall seconds, and the peak of its anonymous memory (sampled four times a second), bytes."""
    command = ["benchmarks.dedup", "--inside", lake.root, "--distance", str(distance)]
    said, peak = in_a_process(lake, command)
    return said | {"peak": peak}


def in_a_process(lake: Lake, command: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Run a module with the lake's pages out of the cache: what its last line says as JSON, and the peak of its anonymous memory, bytes."""
    for folder, _, names in os.walk(str(local_path(lake.root))):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _anonymous(process.pid))
        time.sleep(0.25)
    assert process.stdout is not None
    said = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found, peak


def _anonymous(pid: int) -> int:
    """Memory of a process that no file backs; pages of the files it maps are the page cache's.

    From counters that the kernel keeps: to add up smaps_rollup, which walks all pages and holds the process's map meanwhile, took a core.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def inside(root: str, distance: int) -> None:
    """The process that is measured."""
    started = time.perf_counter()
    import smalti.curation.curate as stage
    import smalti.curation.decide as deciding

    marks: dict[str, float] = {}

    def mark(module: Any, name: str, when: str) -> None:
        function = vars(module)[name]

        def marked(*arguments: Any, **named: Any) -> Any:
            marks.setdefault(when, time.perf_counter() - started)
            return function(*arguments, **named)

        vars(module)[name] = marked

    mark(deciding, "scan", "begun")
    mark(deciding, "_candidates", "scanned")
    mark(stage, "rows_of", "decided")  # what comes after the decision: the rows of the record
    report = stage.curate(Lake(root), release_run(distance))
    seconds = time.perf_counter() - started
    high = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(
        json.dumps({
            "seconds": seconds,
            **marks,
            "cpu": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
            "resident": int(high.split()[1]) * 1024,
            "curation": report.curation,
            "samples": report.rows_in,
            "kept": report.rows_out,
            "dropped": report.dropped,
        })
    )


def run(total: int, distance: int, folder: Path) -> dict[str, Any]:
    """Make, measure, check and remove."""
    started = time.perf_counter()
    try:
        lake = make_lake(folder, total, distance)
        made = time.perf_counter() - started
        size = sum(f.stat().st_size for f in folder.rglob("*.parquet"))
        found = measure(lake, distance) | {"rows": total, "distance": distance, "size": size, "made": made}
        return found | {"wrong": check(lake, found["curation"], total, distance)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def line(found: dict[str, Any]) -> str:
    """A row of the table in docs/performance.md."""
    return (
        f"| {found['rows'] / 1e6:g}M | {found['distance']} | {found['size'] / 1e9:.2f} GB | {found['scanned'] - found['begun']:.1f} | {found['decided'] - found['scanned']:.1f} | {found['decided']:.1f} | "
        f"{found['seconds']:.1f} | {found['cpu']:.0f} | {found['peak'] / 2**30:.2f} GiB | {found['resident'] / 2**30:.2f} GiB | "
        f"{found['dropped'].get('duplicate', 0):,} | {found['dropped'].get('quarantine', 0):,} | "
        f"{'; '.join(found['wrong']) or 'as planted'} |"
    )


def results(sizes: list[tuple[int, int]], folder: Path) -> Iterator[dict[str, Any]]:
    for total, distance in sizes:
        yield run(total, distance, folder / f"lake-{total}-{distance}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", nargs="*", type=int)
    parser.add_argument("--distance", type=int, default=0)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where the lake is made: 15 GB for 100M samples")
    asked = parser.parse_args()
    if asked.inside:
        inside(asked.inside, asked.distance)
        return
    sizes = [(each, asked.distance) for each in asked.samples] or [*((each, 0) for each in SIZES), (10_000_000, 2)]
    print(
        "| samples | distance | files | scan, s | copies, s | decided after, s | in all, s | CPU, s | peak, anonymous | peak, resident | duplicates | set aside | result |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="smalti-dedup-", dir=asked.folder) as folder:
        for found in results(sizes, Path(folder)):
            print(line(found), flush=True)
            if found["wrong"]:
                sys.exit("the result is not what was planted")


if __name__ == "__main__":
    main()
