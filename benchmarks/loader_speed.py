"""ReleaseDataset with skip lists against an unmodified StreamingDataset over the rewritten tree, 8 worker processes.

    python -m benchmarks.loader_speed streams       52 streams x 20 parts; 0, 1, 10 % skipped; local disk, and a store 50 ms away
    python -m benchmarks.loader_speed one           0, 1, 10 % skipped; one process asks both for the same 20 samples in turns, by CPU
    python -m benchmarks.loader_speed captions      as `one`: three weighed caption columns against the stored caption, over the same shards
    python -m benchmarks.loader_speed crossover     0 to 50 % skipped; local disk, and a store that hands out 10 MB/s

The store is fake-gcs-server behind a front that waits; both sides read it through the same Google client, into an empty
cache each time. Rates are of the epoch after its first batch (`crossover`: of all of it, for most is fetched before the first); on a machine that is busy with other things the
CPU that the workers used says more. Rounds alternate. `crossover` also writes docs/skip-or-rewrite.svg.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import tests.loader.releases as releases
from smalti.images.buckets import TIERS, buckets_of
from smalti.lake import Lake
from smalti.objects import forget_clients, join_uri, local_path
from smalti.release.materialize import materialize
from tests.loader.releases import Release, Shards, build, picture, skip_share
from tests.support.gcs import Gcs, environment, serve_gcs

BUCKETS = [(tier, bucket.ar) for tier in TIERS for bucket in buckets_of(tier)]
WORKERS, BATCH = 8, 16
THROTTLE = 10e6
"""Bytes a second."""


def layout(buckets: int, parts: int, samples: int) -> Shards:
    part = dict.fromkeys(BUCKETS[:buckets], (samples,))
    return {"s": {f"{number:05d}-x": part for number in range(parts)}}


class Store:
    """A store on this machine that answers late, or slowly."""

    def __init__(self, gcs: Gcs) -> None:
        self.delay, self.rate, self.fetched = 0.0, 0.0, 0
        self._line = threading.Lock()
        ask = gcs.front.ask

        def slow(method: str, path: str, *arguments: Any, **options: Any) -> Any:
            answer = ask(method, path, *arguments, **options)
            time.sleep(self.delay)
            if self.rate and method == "GET":
                with self._line:  # one line to the store, which all share
                    self.fetched += len(answer[2])
                    time.sleep(len(answer[2]) / self.rate)
            return answer

        gcs.front.ask = slow  # type: ignore[method-assign]


@contextlib.contextmanager
def store(folder: Path) -> Iterator[tuple[Lake, Store]]:
    with serve_gcs(folder) as gcs, environment(gcs.environment):
        forget_clients()
        yield Lake.at(f"{gcs.new_bucket()}/lake"), Store(gcs)
    forget_clients()


@dataclass(frozen=True)
class Rate:
    """Samples a second after the first batch, of the whole epoch, and the workers' CPU-seconds for a thousand samples."""

    wall: float
    whole: float
    cpu: float


def epoch(dataset: Any) -> Rate:
    from torch.utils.data import DataLoader

    started = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    loader = iter(DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=list))
    first = len(next(loader))
    began = time.perf_counter()
    count = sum(len(batch) for batch in loader)
    seconds = time.perf_counter() - began
    del loader  # the workers end, and what they used is known
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Rate(count / seconds, (first + count) / (began + seconds - started), 1000 * cpu / (first + count))


class Pair:
    """The two sides over one release."""

    def __init__(self, lake: Lake, release: Release, folder: Path) -> None:
        self.release, self.folder = release, folder
        self.tree = lake.tree("demo", release.manifest.version)
        self.caches = itertools.count()
        began = time.perf_counter()
        materialize(release.uri, self.tree)
        self.rewriting = time.perf_counter() - began

    @contextlib.contextmanager
    def cache(self) -> Iterator[str]:
        path = self.folder / f"cache{next(self.caches)}"
        yield str(path)
        shutil.rmtree(path, ignore_errors=True)

    def ours(self) -> Rate:
        from smalti.loader import ReleaseDataset

        with self.cache() as cache:
            local = None if local_path(self.release.uri) else cache
            return epoch(ReleaseDataset(self.release.uri, local=local, batch_size=BATCH, shuffle=True))

    def plain(self) -> Rate:
        from streaming import Stream, StreamingDataset

        with self.cache() as cache:
            streams = []
            for stream in self.release.manifest.select():
                name = f"{stream.tier}/{stream.ar}"
                here = local_path(join_uri(self.tree, name))
                streams.append(
                    Stream(local=str(here))
                    if here
                    else Stream(remote=join_uri(self.tree, name), local=f"{cache}/{name}", download_timeout=600)
                )
            with _own_connections():
                return epoch(StreamingDataset(streams=streams, batch_size=BATCH, shuffle=True))

    def compare(self, rounds: int, apart: Callable[[], Any], whole: bool = False) -> dict[str, float]:
        def rate(each: Rate) -> float:
            return each.whole if whole else each.wall

        rates: dict[str, list[Rate]] = {"ours": [], "plain": []}
        for number in range(rounds):
            for side in ("ours", "plain") if number % 2 else ("plain", "ours"):
                with apart():
                    rates[side].append(self.ours() if side == "ours" else self.plain())
        ratios = [rate(a) / rate(b) for a, b in zip(rates["ours"], rates["plain"], strict=True)]
        return {
            "ours": median(map(rate, rates["ours"])),
            "plain": median(map(rate, rates["plain"])),
            "ratio": median(ratios),
            "low": min(ratios),
            "high": max(ratios),
            "cpu": median(b.cpu / a.cpu for a, b in zip(rates["ours"], rates["plain"], strict=True)),
        }


@contextlib.contextmanager
def _own_connections() -> Iterator[None]:
    """Let each of plain's workers have a connection of its own to the store, and its shards appear whole.

    StreamingDataset makes its Google client before it forks, so that workers share a socket and, without TLS, get one another's answers: a shard
    with another one's bytes, and an IndexError in most runs. And the client writes a shard under its own name, which `get_item` takes for present.
    """
    from streaming.base.storage.download import GCSDownloader

    fetch, mine = GCSDownloader._download_file_impl, "_client_is_of"

    def own(self: Any, remote: str, local: str, timeout: float) -> None:
        if getattr(self, mine, None) != os.getpid():
            self._gcs_client = None
            setattr(self, mine, os.getpid())
        fetch(self, remote, f"{local}.whole", timeout)
        Path(f"{local}.whole").replace(local)

    GCSDownloader._download_file_impl = own
    try:
        yield
    finally:
        GCSDownloader._download_file_impl = fetch


def say(name: str, found: dict[str, float]) -> None:
    print(
        f"{name:<44} ours {found['ours']:8.0f}  plain {found['plain']:8.0f} samples/s  ratio {found['ratio']:.3f} "
        f"({found['low']:.3f} to {found['high']:.3f}), by the workers' CPU {found['cpu']:.3f}",
        flush=True,
    )


def streams(
    folder: Path, apart: Callable[[], Any], rounds: int, samples: int, where: str, skipped: Sequence[int]
) -> None:
    shards = layout(52, 20, samples)
    with contextlib.ExitStack() as stack:
        lake, slow = Lake.at(str(folder / "lake")), None
        if where == "store":
            lake, slow = stack.enter_context(store(folder))
        for percent in skipped:
            release = build(lake, version=f"v{percent}", shards=shards, skips=skip_share(percent / 100))
            pair = Pair(lake, release, folder)
            if slow:
                slow.delay = 0.05
            say(f"{where}, {percent} % skipped", pair.compare(rounds, apart))
            if slow:
                slow.delay = 0.0


def one(folder: Path, apart: Callable[[], Any]) -> None:
    from streaming import Stream, StreamingDataset

    from smalti.loader import ReleaseDataset

    lake, rng = Lake.at(str(folder / "lake")), random.Random(0)
    for percent in (0, 1, 10):
        release = build(lake, version=f"v{percent}", shards=layout(10, 4, 30), skips=skip_share(percent / 100))
        tree = lake.tree("demo", release.manifest.version)
        materialize(release.uri, tree)
        folders = [str(local_path(f"{tree}/{stream.tier}/{stream.ar}")) for stream in release.manifest.select()]
        with apart():
            ours = ReleaseDataset(release.uri, batch_size=BATCH)
            plain = StreamingDataset(streams=[Stream(local=each) for each in folders], batch_size=BATCH)
            ratios = []
            for number in range(1200):
                wanted = [rng.randrange(ours.size) for _ in range(20)]
                used = {}
                for dataset in (ours, plain) if number % 2 else (plain, ours):
                    began = time.process_time()
                    for each in wanted:
                        dataset[each]
                    used[dataset is ours] = time.process_time() - began
                ratios.append(used[False] / used[True])
        print(f"one process, {percent} % skipped: plain / ours {median(ratios[200:]):.3f} (median of 1000)", flush=True)


def captions(folder: Path, apart: Callable[[], Any]) -> None:
    """What drawing a caption costs: the same release twice, once by its weights, once with `caption` as it is stored."""
    from smalti.loader import ReleaseDataset

    weights = {"caption": 0.5, "caption_short": 0.3, "caption_source": 0.2}
    for size, rounds in ((8, 1000), (512, 60)):
        releases.picture = functools.partial(_coloured, size)
        release = build(
            Lake.at(str(folder / f"lake{size}")),
            shards=layout(10, 4, 30),
            captions=weights,
            words=lambda name: {"caption_short": f"short {name}", "caption_source": f"alt of {name}"},
        )
        rng, ratios, times = random.Random(0), [], []
        with apart():
            drawn = ReleaseDataset(release.uri, batch_size=BATCH)
            plain = ReleaseDataset(release.uri, batch_size=BATCH, captions="caption")
            for number in range(rounds + rounds // 5):
                wanted = [rng.randrange(drawn.size) for _ in range(20)]
                used = {}
                for dataset in (drawn, plain) if number % 2 else (plain, drawn):
                    began = time.process_time()
                    for each in wanted:
                        dataset[each]["image"].load()
                    used[dataset is drawn] = time.process_time() - began
                ratios.append(used[False] / used[True])
                times.append((20 / used[False], 20 / used[True]))
        stored, chosen = (median(each[side] for each in times[-rounds:]) for side in (0, 1))
        print(
            f"pictures of {size} x {size} px: drawn {chosen:.0f}, stored {stored:.0f} samples a CPU-second, "
            f"ratio {median(ratios[-rounds:]):.3f} (median of {rounds})",
            flush=True,
        )


@functools.cache
def coloured(size: int) -> bytes:
    """A JPEG of coloured patches, 4 px each."""
    import numpy as np
    from PIL import Image

    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size // 4, size // 4, 3), dtype=np.uint8))
    file = io.BytesIO()
    small.resize((size, size), Image.Resampling.BICUBIC).save(file, "JPEG", quality=92)
    return file.getvalue()


def _coloured(size: int, _: str) -> bytes:
    return coloured(size)


def crossover(folder: Path, apart: Callable[[], Any], rounds: int) -> None:
    padded = picture("x") + bytes(16_000)  # a decoder stops at the end of the picture
    releases.picture = lambda sample_id: padded
    shards, found = layout(4, 10, 64), {}
    for where in ("local disk", "throttled store"):
        with contextlib.ExitStack() as stack:
            lake, slow = Lake.at(str(folder / "local")), None
            if where == "throttled store":
                lake, slow = stack.enter_context(store(folder))
            for percent in (0, 10, 30, 50):
                release = build(lake, version=f"v{percent}", shards=shards, skips=skip_share(percent / 100))
                if slow:
                    slow.rate = THROTTLE
                pair = Pair(lake, release, folder)
                result = pair.compare(rounds, apart, whole=True) | {
                    "rewriting": pair.rewriting,
                    "kept": float(len(release.all_kept)),
                }
                if slow:
                    slow.rate = 0.0
                found[f"{where} {percent}"] = result
                say(f"{where}, {percent} % skipped", result)
    out = Path(".cache/crossover.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    plot(found)


def plot(found: dict[str, dict[str, float]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "smalti"
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for where in ("local disk", "throttled store"):
        points = {int(name.rsplit(" ", 1)[1]): each for name, each in found.items() if name.startswith(where)}
        left.errorbar(
            list(points),
            [each["ratio"] for each in points.values()],
            [
                [each["ratio"] - each["low"] for each in points.values()],
                [each["high"] - each["ratio"] for each in points.values()],
            ],
            marker="o",
            capsize=3,
            label=where,
        )
    shares = sorted({int(name.rsplit(" ", 1)[1]) for name in found})
    left.plot(shares, [1 - share / 100 for share in shares], "--", color="grey", label="kept share")
    left.axhline(1, color="grey", linewidth=0.5)
    left.set(xlabel="% skipped", ylabel="samples/s, skip list / rewritten", ylim=(0, 1.3))
    left.legend()
    epochs = {share: pays_after(found[f"throttled store {share}"]) for share in shares if share}
    right.plot(list(epochs), list(epochs.values()), marker="o", color="C1")
    right.set(xlabel="% skipped", ylabel="epochs from the throttled store\nuntil rewriting has paid", yscale="log")
    figure.savefig("docs/skip-or-rewrite.svg", metadata={"Date": None})
    print("epochs until rewriting has paid:", {share: round(n, 1) for share, n in epochs.items()})


def pays_after(found: dict[str, float]) -> float:
    """Epochs from the store whose savings are as long as the rewriting took; nan if there is no saving."""
    saved = found["kept"] / found["ours"] - found["kept"] / found["plain"]
    return found["rewriting"] / saved if saved > 0 else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "one", "captions", "crossover"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=24, help="of a shard")
    parser.add_argument("--skipped", type=int, nargs="*", default=[0, 1, 10], help="of `streams`: percent")
    parser.add_argument("--where", choices=["local", "store"], help="of `streams`; default: both")
    arguments = parser.parse_args()
    from tests.loader.serving import apart

    with tempfile.TemporaryDirectory(prefix="smalti-speed-") as name:
        numbers = itertools.count()

        def own() -> Any:
            folder = Path(name) / f"memory{next(numbers)}"
            folder.mkdir()
            return apart(folder)

        if arguments.what == "one":
            one(Path(name), own)
            return
        if arguments.what == "captions":
            captions(Path(name), own)
            return
        if arguments.what == "crossover":
            crossover(Path(name), own, arguments.rounds)
            return
        for where in [arguments.where] if arguments.where else ["local", "store"]:
            (Path(name) / where).mkdir()
            streams(Path(name) / where, own, arguments.rounds, arguments.samples, where, arguments.skipped)


if __name__ == "__main__":
    main()
