"""Match opt-outs over fabricated samples: seconds, memory, and whether what was planted is what is found.

    python -m benchmarks.optouts                  100M samples
    python -m benchmarks.optouts 1000000          another size
    python -m benchmarks.optouts --only "one url" one case

The lake is that of benchmarks.dedup (its copies are what is planted here, too), with hosts and owners as the web has them: one host and those
below it have 1 % of all samples, the others and the owners follow Zipf's law; one URL in a thousand is not spelled as a key would be.
A key of each kind is asked for alone, then 100,000 keys of all kinds with the domain of 1 % among them: handed in, looked at as the DAG's
`preview` does, confirmed, and applied as `apply` does, after which it is effective. Each is a fresh process with an empty ledger, after the lake's pages
were dropped from the cache; the process's imports are in its seconds. It is checked that the samples of the keys, all their copies and nothing else
are in force.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.dedup import PART, SOURCES, Ints, Planted, in_a_process, make_lake, mix, share
from smalti.images.fingerprint import THUMBNAIL
from smalti.lake import Lake
from smalti.objects import local_path
from smalti.optouts.keys import Key, KeyKind, Print, key_of
from smalti.optouts.request import Action, ordered
from smalti.settings import OptoutRun

DISTANCE = 2
BIG, BIG_SHARE = "big.example.org", 0.01
HOSTS, OWNERS = 1_000_000, 10_000_000
KEYS = 100_000

Mask = npt.NDArray[np.bool_]


def make_tables(lake: Lake) -> None:
    """A table for each source with the columns that matching reads, as if what is in parts were all that it has, and its indices."""
    import lance
    import pyarrow.parquet as pq

    from smalti.optouts.table_reader import COLUMNS
    from smalti.shards.part import committed_parts
    from smalti.table.index import BTREE

    for source in (f"s{number}" for number in range(SOURCES)):
        path = str(local_path(lake.table(source)))
        for number, part in enumerate(committed_parts(lake, source)):
            rows = pq.read_table(str(local_path(lake.samples(source, part.name))), columns=list(COLUMNS))
            lance.write_dataset(rows, path, mode="append" if number else "create")
        for column in BTREE if committed_parts(lake, source) else ():
            lance.dataset(path).create_scalar_index(column, "BTREE")


def _rank(rows: Ints, salt: int, count: int) -> Ints:
    """1 to `count`, the k-th as often as 1/k."""
    return np.asarray(np.exp(share(rows, salt) * np.log(count)), np.int64)


def host_of(rows: Ints) -> Ints:
    """Number of a host; 0 is BIG itself, -1 one below it."""
    found = _rank(rows, 50, HOSTS)
    found[share(rows, 51) < BIG_SHARE] = 0
    return np.asarray(np.where((found == 0) & (rows % 3 == 0), -1, found), np.int64)


def owner_of(rows: Ints) -> Ints:
    return _rank(rows, 52, OWNERS)


def origin(rows: Ints) -> dict[str, Any]:
    """owner, url and url_host of samples."""
    import polars as pl

    frame = pl.DataFrame({
        "row": rows,
        "host": host_of(rows),
        "owner": owner_of(rows),
        "odd": mix(rows, 53) % np.uint64(1000) == 0,
    })
    host = pl.when(pl.col("host") > 0).then(pl.format("host{}.net", "host"))
    host = host.when(pl.col("host") == 0).then(pl.lit(BIG)).otherwise(pl.lit(f"img.{BIG}"))
    spelled = pl.when("odd").then(host.str.to_uppercase()).otherwise(host)
    number = pl.col("row").cast(pl.String).str.zfill(9)
    table = frame.select(
        owner=pl.format("owner{}", "owner"),
        url=pl.format("https://{}/u/owner{}/{}.jpg", spelled, "owner", number),
        url_host=host,
    ).to_arrow(compat_level=pl.CompatLevel.oldest())
    return {name: table[name] for name in table.column_names}


def _host_name(number: int) -> str:
    return f"host{number}.net" if number > 0 else BIG if number == 0 else f"img.{BIG}"


def _id(row: int) -> str:
    return f"s{row // PART % SOURCES}/{row:09d}.jpg"


def _url(row: int) -> str:
    at = np.array([row])
    return f"https://{_host_name(int(host_of(at)[0]))}/u/owner{int(owner_of(at)[0])}/{row:09d}.jpg"


def _sha256(row: int, total: int) -> str:
    content = Planted.rows(row, row + 1, total, DISTANCE).content
    return mix(content[:, None] * 4 + np.arange(4), 40).view(np.uint8).tobytes().hex()


def _image(row: int, total: int) -> Key:
    """The picture of a row, encoded once more: other bytes, a level's difference in some colours."""
    planted = Planted.rows(row, row + 1, total, DISTANCE)
    colour = np.minimum(planted.colour()[0] + (np.arange(THUMBNAIL) % 2 == 0), 255).astype(np.uint8)
    width, height = (int(each[0]) for each in planted.ratio())
    print_ = Print(
        phash=int(planted.phash(DISTANCE)[0]), colour=colour.tobytes().hex(), flat=False, width=width, height=height
    )
    return Key(kind=KeyKind.IMAGE, value=f"{row:064x}", fingerprint=print_)


class Case:
    """Keys, and the samples that have them."""

    def __init__(self, total: int, wanted: dict[KeyKind, int]) -> None:
        """wanted: keys of each kind."""
        self.total = total
        chance, originals = np.random.default_rng(7), total // 50

        def some(count: int, of: int, first: int) -> Ints:
            """Numbers below `of`; a single one is `first`."""
            return np.array([first]) if count == 1 else np.sort(chance.choice(of, min(count, of // 4), replace=False))

        texts = (KeyKind.ID, KeyKind.URL, KeyKind.SHA256)
        self.rows = {kind: some(wanted[kind], total, 350) for kind in texts if kind in wanted}  # row 350 has copies
        self.rows[KeyKind.IMAGE] = 50 * (
            2 + some(wanted.get(KeyKind.IMAGE, 0), originals - 2, 7)
        )  # original 1 has a thousandth of all
        owners, prefixes = wanted.get(KeyKind.OWNER, 0), wanted.get(KeyKind.PREFIX, 0)
        self.owners = (50_000 if owners == 1 else OWNERS // 20) + np.arange(owners)
        self.prefixes = 5_000 + np.arange(prefixes)  # of owners on the commonest host
        self.domains = np.arange(wanted.get(KeyKind.DOMAIN, 0)) * (HOSTS // 2000)  # the first of them is BIG

    def keys(self) -> list[Key]:
        found = [key_of("id", _id(int(row))) for row in self.rows.get(KeyKind.ID, ())]
        found += [key_of("url", _url(int(row))) for row in self.rows.get(KeyKind.URL, ())]
        found += [key_of("sha256", _sha256(int(row), self.total)) for row in self.rows.get(KeyKind.SHA256, ())]
        found += [_image(int(row), self.total) for row in self.rows[KeyKind.IMAGE]]
        found += [key_of("owner", f"owner{each}") for each in self.owners]
        found += [key_of("prefix", f"https://host1.net/u/owner{each}") for each in self.prefixes]
        found += [key_of("domain", _host_name(int(each))) for each in self.domains]
        return ordered(found)

    def expected(self) -> tuple[Mask, Mask]:
        """By row: whether a key has it; whether it or a copy of it is matched."""
        key, pictures = np.zeros(self.total, np.bool_), np.zeros(self.total, np.bool_)
        shown = np.zeros(self.total, np.bool_)
        shown[self.rows[KeyKind.IMAGE]] = True
        wanted = np.zeros(2 * self.total, np.bool_)
        for row in self.rows.get(KeyKind.SHA256, ()):
            wanted[Planted.rows(int(row), int(row) + 1, self.total, DISTANCE).content] = True
        for kind in (KeyKind.ID, KeyKind.URL):
            key[self.rows.get(kind, np.empty(0, np.int64))] = True
        for start in range(0, self.total, PART):
            planted = Planted.rows(start, min(start + PART, self.total), self.total, DISTANCE)
            rows, owner, host = planted.row, owner_of(planted.row), host_of(planted.row)
            key[rows] |= wanted[planted.content] | shown[planted.picture] | np.isin(owner, self.owners)
            key[rows] |= (host == 1) & np.isin(owner, self.prefixes)
            key[rows] |= np.isin(host, self.domains) | ((host == -1) & (0 in self.domains))
            pictures[planted.picture[key[rows]]] = True
        every = np.zeros(self.total, np.bool_)
        for start in range(0, self.total, PART):
            planted = Planted.rows(start, min(start + PART, self.total), self.total, DISTANCE)
            every[planted.row] = pictures[planted.picture]
        return key, every


def cases(total: int) -> dict[str, Case]:
    single = {f"one {kind}": Case(total, {kind: 1}) for kind in KeyKind if kind != KeyKind.DOMAIN}
    shares = {
        KeyKind.ID: 20_000, KeyKind.URL: 20_000, KeyKind.SHA256: 20_000, KeyKind.IMAGE: 10_000, KeyKind.OWNER: 15_000,
        KeyKind.PREFIX: 14_000, KeyKind.DOMAIN: 1_000,
    }  # fmt: skip
    assert sum(shares.values()) == KEYS
    return single | {"one domain, 1 %": Case(total, {KeyKind.DOMAIN: 1}), "100,000 keys": Case(total, shares)}


def inside(root: str, case: str, total: int, out: str) -> None:
    """The process that is measured."""
    keys = tuple(cases(total)[case].keys())
    began, used = time.perf_counter(), _cpu()
    import pyarrow.parquet as pq

    from smalti.optouts.apply import apply
    from smalti.optouts.ledger import read_step
    from smalti.optouts.ledger_rows import read_matched
    from smalti.optouts.matched import MATCHED
    from smalti.optouts.preview import preview
    from smalti.optouts.rows import Parsed
    from smalti.optouts.submit import hand_in

    lake, now = Lake(root), datetime(2026, 1, 1, tzinfo=UTC)
    request = hand_in(lake, action=Action.EXCLUDE, reference="r", parsed=Parsed(keys), submission=case, submitted=now)
    seen = preview(lake, OptoutRun(request=request.id))
    looked = time.perf_counter()
    applied = apply(lake, OptoutRun(request=request.id, seen=seen.digest, confirmed_by="benchmark"))
    seconds, cpu = time.perf_counter() - began, _cpu() - used
    step = read_step(lake, applied.position)
    rows = read_matched(lake, [step.matched] if step.matched else [], [request.id])
    pq.write_table((MATCHED.empty_table() if rows is None else rows).select(["id", "how"]), out)
    said = {"seconds": seconds, "looked": looked - began, "cpu": cpu, "keys": len(keys), "near": seen.near}
    print(json.dumps(said | {"unmatched": seen.unmatched}))


def _cpu() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def check(case: Case, out: Path) -> tuple[int, int, str]:
    """Rows of keys, rows of copies, and what is wrong with them."""
    import polars as pl

    frame = pl.read_parquet(out)
    rows = frame["id"].str.split("/").list.get(1).str.head(9).cast(pl.Int64).to_numpy()
    key, every = np.zeros(case.total, np.bool_), np.zeros(case.total, np.bool_)
    key[rows[(frame["how"] == "key").to_numpy()]] = True
    every[rows] = True
    planted = case.expected()
    wrong = [
        f"{name}: {int((found & ~wanted).sum())} too many, {int((wanted & ~found).sum())} missing"
        for name, found, wanted in (("keys", key, planted[0]), ("all", every, planted[1]))
        if (found != wanted).any()
    ]
    if len(rows) != int(every.sum()):
        wrong.append("a sample is there twice")
    return int(key.sum()), len(rows) - int(key.sum()), "; ".join(wrong) or "as planted"


def results(lake: Lake, folder: Path, total: int, only: str | None) -> Iterator[str]:
    """A line of the table for each case."""
    out = folder / "found.parquet"
    for name, case in cases(total).items():
        if only not in (None, name):
            continue
        shutil.rmtree(Path(str(local_path(lake.root))) / "optouts", ignore_errors=True)
        command = ["benchmarks.optouts", str(total), "--inside", lake.root, name, str(out)]
        found, peak = in_a_process(lake, command)
        by_key, copies, result = check(case, out)
        yield (
            f"| {total / 1e6:g}M | {name} | {found['looked']:.1f} | {found['seconds'] - found['looked']:.1f} | {found['seconds']:.1f} | "
            f"{found['cpu']:.0f} | {peak / 2**30:.2f} GiB | {by_key:,} | {copies:,} | {found['near']:,} | {result} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", nargs="?", type=int, default=100_000_000)
    parser.add_argument("--only", help="one case by its name")
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where the lake is made: 20 GB for 100M samples")
    parser.add_argument("--tables", action="store_true", help="the sources' tables, too, with as many rows")
    parser.add_argument("--lake", type=Path, help="one that was made before, with as many samples")
    asked = parser.parse_args()
    if asked.inside:
        root, case, out = asked.inside
        inside(root, case, asked.samples, out)
        return
    with tempfile.TemporaryDirectory(prefix="smalti-bench-", dir=asked.folder) as folder:
        made = Path(folder) / "lake"
        lake = Lake.at(str(asked.lake)) if asked.lake else make_lake(made, asked.samples, DISTANCE, origin)
        if asked.tables:
            make_tables(lake)
        print(
            "| samples | keys | looked at, s | applied, s | in all, s | CPU, s | memory | by a key | copies | near | result |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for line in results(lake, Path(folder), asked.samples, asked.only):
            print(line, flush=True)


if __name__ == "__main__":
    main()
