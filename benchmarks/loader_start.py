"""How long until a run over a very large release knows its first samples, and what memory that takes.

    python -m benchmarks.loader_start [--shards 100000] [--rounds 2] [--requests 10000]

Makes manifest, indices and skip files of a release whose shards are empty files of the right size (1,000 samples each, 10 % skipped
at random), and the indices that a rewritten tree would have. Then, each time in a fresh process: ReleaseDataset over the one, StreamingDataset over
the other, `random`, one rank, from the constructor until this worker has its sample numbers of the first epoch. The import
of streaming is not counted, and is the same. With `--requests` a third kind, `opted out`, is the same release with a ledger of so many past requests, each of
which has taken ten samples that lie anywhere; it is compared with ours without them. Part of ours is to look whether the lake has the shards (`presence`); what that takes where
they are on GCS is measured by itself, against a server that answers list requests as GCS does, 50 ms each.
"""

from __future__ import annotations

import argparse
import copy
import http.server
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from smalti.images.buckets import TIERS, buckets_of
from smalti.lake import Lake, stream_index
from smalti.objects import create_bytes, local_path
from smalti.reasons import SkipReason
from smalti.release.manifest import (
    Accounting,
    Manifest,
    PartEntry,
    Provenance,
    SourceEntry,
    StreamEntry,
    encode_stream_index,
)
from smalti.release.optouts import OptoutSnapshot
from smalti.release.skips import compress, sha256
from smalti.shards import mds
from tests.loader.releases import COLUMNS, picture

SAMPLES, SKIPPED = 1000, 100
BYTES = 1 << 27
PAGE, DELAY = 1000, 0.05


def fabricate(folder: Path, shards: int) -> str:
    """Write the release and the tree's indices. Returns the URI of the manifest."""
    lake, rng = Lake.at(str(folder / "lake")), np.random.default_rng(0)
    buckets = [(tier, bucket.ar) for tier in TIERS for bucket in buckets_of(tier)]
    sample: dict[str, mds.Value] = {
        "image": picture("x"),
        "caption": "x",
        "id": "x",
        "source": "s",
        "width": 8,
        "height": 8,
    }
    entry = mds.shard_entry("x", mds.encode_shard(COLUMNS, [sample]))
    streams, total = [], 0
    for number, (tier, ar) in enumerate(buckets):
        count = shards // len(buckets) + (number < shards % len(buckets))
        total += count
        streams.append(_stream(lake, folder, tier, ar, count, entry, rng))
    kept = {
        "samples": total * SAMPLES,
        "kept": total * (SAMPLES - SKIPPED),
        "skipped": {SkipReason.TEXT: total * SKIPPED},
    }
    part = PartEntry(name="00001-x", digest="0" * 64, samples=total * SAMPLES)
    manifest = Manifest(
        dataset="large",
        version="v1",
        digest="0" * 64,
        streams=tuple(streams),
        mixing={"main": 1.0},
        captions={"caption": 1.0},
        sources=(SourceEntry(name="s", group="main", parts=(part,), **kept),),
        reasons=tuple(SkipReason),
        settings={"name": "large"},
        accounting=Accounting(**kept),
        provenance=Provenance(created="2026-01-01T00:00:00Z", smalti="benchmark"),
    ).with_digest()
    create_bytes(lake.claim("large", "v1"), b"{}")
    create_bytes(lake.manifest("large", "v1"), manifest.encode())
    return lake.manifest("large", "v1")


def _stream(
    lake: Lake, folder: Path, tier: int, ar: str, count: int, entry: dict[str, Any], rng: np.random.Generator
) -> StreamEntry:
    entries = []
    for number in range(count):
        each = copy.deepcopy(entry)
        each["samples"] = SAMPLES
        each["raw_data"] |= {"basename": f"s/00001-x/{tier}/{ar}/shard.{number:05d}.mds", "bytes": BYTES}
        entries.append(each)
        _hollow(folder / "lake" / "parts" / each["raw_data"]["basename"])
    index = encode_stream_index(entries)
    skipped = np.sort(np.argpartition(rng.random((count, SAMPLES)), SKIPPED, axis=1)[:, :SKIPPED], axis=1).tolist()
    said = {
        each["raw_data"]["basename"]: {"samples": SAMPLES, "skip": {"text": indices}}
        for each, indices in zip(entries, skipped, strict=True)
    }
    skips = json.dumps({"shards": said, "version": 1}, sort_keys=True, separators=(",", ":")).encode()
    create_bytes(lake.skip_file("large", sha256(skips)), compress(skips))
    create_bytes(f"{lake.release('large', 'v1')}/{stream_index('main', tier, ar)}", compress(index))
    for each in entries:
        each["samples"] = SAMPLES - SKIPPED
        each["raw_data"]["basename"] = each["raw_data"]["basename"].rsplit("/", 1)[1]
    tree = folder / "tree" / str(tier) / ar
    tree.mkdir(parents=True)
    (tree / "index.json").write_bytes(mds.encode_index(entries))
    return StreamEntry(
        group="main",
        tier=tier,
        ar=ar,
        width=tier,
        height=tier,
        samples=count * SAMPLES,
        kept=count * (SAMPLES - SKIPPED),
        skipped={SkipReason.TEXT: count * SKIPPED},
        bytes=count * BYTES,
        index=stream_index("main", tier, ar),
        index_sha256=sha256(index),
        skip_file=sha256(skips),
    )


def _hollow(path: Path) -> None:
    """A file that has a size and takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(BYTES)


def fabricate_requests(folder: Path, shards: int, count: int) -> None:
    """A lake that differs by the snapshots of so many requests alone, as their ledger would have left them."""
    whole, lake = folder / "lake", Lake.at(str(folder / "asked"))
    (folder / "asked").mkdir()
    for each in whole.iterdir():
        (folder / "asked" / each.name).symlink_to(each)
    names = sorted(str(each.relative_to(whole / "parts")) for each in (whole / "parts").rglob("*.mds"))
    assert len(names) == shards
    rng, gone = np.random.default_rng(1), dict[str, set[int]]()
    for shard, index in zip(rng.integers(shards, size=10 * count), rng.integers(SAMPLES, size=10 * count), strict=True):
        gone.setdefault(names[shard], set()).add(int(index))
    Path(str(local_path(lake.optout_snapshots()))).mkdir(parents=True)
    empty = OptoutSnapshot(position=1, shards={}).encode()
    for position in range(1, count):  # nobody reads these
        Path(str(local_path(lake.optout_snapshot(position)))).write_bytes(empty)
    last = OptoutSnapshot(position=count, shards={name: tuple(sorted(gone[name])) for name in sorted(gone)})
    create_bytes(lake.optout_snapshot(count), last.encode())


class _Lists(http.server.BaseHTTPRequestHandler):
    """Answers list requests: `names`, sorted, from startOffset to endOffset, a page at a time."""

    protocol_version = "HTTP/1.1"
    names: list[str] = []  # noqa: RUF012  # of the one server
    pages = multiprocessing.Value("i", 0)

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        start = bisect_left(self.names, query.get("pageToken") or query["startOffset"])
        end = bisect_left(self.names, query["endOffset"])
        answer: dict[str, Any] = {
            "items": [{"name": name, "size": str(BYTES)} for name in self.names[start : min(end, start + PAGE)]]
        }
        if start + PAGE < end:
            answer["nextPageToken"] = self.names[start + PAGE]
        body = json.dumps(answer).encode()
        with self.pages.get_lock():
            self.pages.value += 1
        time.sleep(DELAY)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def listing(shards: int) -> dict[str, float]:
    """What it takes to look whether so many shards are on GCS: seconds, and requests."""
    from smalti.loader.presence import fault_of_shards

    names = [f"parts/s/00001-x/512/{ar}/shard.{n:05d}.mds" for ar in ("0.778", "1.000") for n in range(shards // 2)]
    _Lists.names = sorted(names)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Lists)
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{server.server_port}"
    wanted = [(name.removeprefix("parts/"), BYTES) for name in names]
    began, cpu = time.perf_counter(), time.process_time()
    fault = fault_of_shards("gs://bucket/parts", wanted)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    process.terminate()
    process.join()
    assert fault is None, fault
    return {"shards": len(names), "seconds": seconds, "cpu_seconds": used, "requests": _Lists.pages.value}


def start(kind: str, folder: Path) -> dict[str, float]:
    """In a fresh process: seconds and bytes."""
    from streaming import Stream, StreamingDataset

    from smalti.loader import ReleaseDataset, presence

    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options: dict[str, Any] = {"batch_size": 32, "shuffle": True, "batching_method": "random"}
    began, cpu = time.perf_counter(), time.process_time()
    dataset: Any
    looked: list[float] = []
    patch = pytest.MonkeyPatch()
    if kind != "plain":
        look = presence.fault_of_shards

        def timed(*arguments: Any) -> Any:
            before = time.perf_counter()
            fault = look(*arguments)
            looked.append(time.perf_counter() - before)
            return fault

        patch.setattr("smalti.loader.plan.fault_of_shards", timed)
        manifest = f"{folder}/{'lake' if kind == 'ours' else 'asked'}/releases/large/v1/manifest.json"
        dataset = ReleaseDataset(manifest, local=str(folder / "cache"), **options)
    else:
        folders = sorted(path.parent for path in (folder / "tree").rglob("index.json"))
        dataset = StreamingDataset(streams=[Stream(local=str(each)) for each in folders], **options)
    made = time.perf_counter()
    dataset._unique_worker_world = dataset._unique_rank_world.detect_workers()
    dataset._parallel_worker_world = dataset._parallel_rank_world.detect_workers()
    numbers = dataset._get_work(*dataset._resume_incr_epoch())
    known = time.perf_counter()
    used = time.process_time() - cpu
    assert len(numbers) >= dataset.size > 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "samples": float(dataset.size),
        "constructor": made - began,
        "presence": sum(looked),
        "work": known - made,
        "seconds": known - began,
        "cpu_seconds": used,
        "peak_gb": peak * 1024 / 1e9,
        "imported_gb": imported * 1024 / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=0, help="past requests of a third kind")
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--listing", action="store_true", help="only what it takes to look whether GCS has the shards")
    arguments = parser.parse_args()
    if arguments.listing:
        print("listing", listing(arguments.shards), flush=True)
        return
    if arguments.start:
        from tests.loader.serving import apart

        with tempfile.TemporaryDirectory() as own, apart(Path(own)):
            print(json.dumps(start(arguments.start[0], Path(arguments.start[1]))), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="smalti-start-") as name:
        fabricate(Path(name), arguments.shards)
        kinds = ["plain", "ours"]
        if arguments.requests:
            fabricate_requests(Path(name), arguments.shards, arguments.requests)
            kinds.append("opted out")
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for number in range(arguments.rounds):
            for kind in reversed(kinds) if number % 2 else kinds:
                command = [sys.executable, "-m", "benchmarks.loader_start", "--start", kind, name]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found[kind].append(json.loads(out.splitlines()[-1]))
                print(kind, found[kind][-1], flush=True)
        for kind, other in zip(kinds[1:], kinds, strict=False):
            for field in ("seconds", "cpu_seconds", "peak_gb"):
                ratios = [a[field] / b[field] for a, b in zip(found[kind], found[other], strict=True)]
                print(f"{field}: {kind} / {other} {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
