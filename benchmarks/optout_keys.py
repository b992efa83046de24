"""A hundred thousand keys of all kinds from each kind of file: seconds of one CPU, parsed, made a request, stored and read again.

python -m benchmarks.optout_keys [COUNT]
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.optouts import request as requests
from smalti.optouts.keys import KeyKind
from smalti.optouts.parse import parse
from smalti.release import skips

T = TypeVar("T")


def rows(count: int) -> list[tuple[str, str]]:
    """Kinds in turn."""
    makers: dict[KeyKind, Callable[[int], str]] = {
        KeyKind.ID: lambda n: f"cats/photo-{n}",
        KeyKind.URL: lambda n: f"https://Img{n % 97}.example.org/photos/{n}/a%20b.jpg?size=large",
        KeyKind.OWNER: lambda n: f"Owner Nr. {n}",
        KeyKind.SHA256: lambda n: hashlib.sha256(b"%d" % n).hexdigest(),
        KeyKind.IMAGE: lambda n: hashlib.sha256(b"image %d" % n).hexdigest(),
        KeyKind.PREFIX: lambda n: f"https://www{n % 97}.example.org/users/{n}/",
        KeyKind.DOMAIN: lambda n: f"photos-{n}.example.org",
    }
    kinds = list(makers)
    return [(kind.value, makers[kind](n)) for n in range(count) for kind in (kinds[n % len(kinds)],)]


def files(keys: list[tuple[str, str]]) -> dict[str, bytes]:
    """The same keys in every form."""
    table, parquet = io.StringIO(newline=""), io.BytesIO()
    csv.writer(table).writerows([("kind", "value"), *keys])
    pq.write_table(pa.table({"kind": [kind for kind, _ in keys], "value": [value for _, value in keys]}), parquet)
    return {
        "keys.csv": table.getvalue().encode(),
        "keys.txt": "\n".join(f"{kind} {value}" for kind, value in keys).encode(),
        "keys.jsonl": "\n".join(json.dumps({"kind": kind, "value": value}) for kind, value in keys).encode(),
        "keys.parquet": parquet.getvalue(),
    }


def timed(what: str, work: Callable[[], T]) -> T:
    started = time.process_time()
    found = work()
    print(f"{what:<16}{time.process_time() - started:6.2f} s", flush=True)
    return found


def main(count: int) -> None:
    keys = rows(count)
    parsed = [timed(name, lambda d=data, n=name: parse(d, n)) for name, data in files(keys).items()]  # type: ignore[misc]
    assert all(each.keys == parsed[0].keys and not each.rejected for each in parsed)
    assert len(parsed[0].keys) == count
    request = timed("request", lambda: requests.Request(
        id="0" * 16, action=requests.Action.EXCLUDE, reference="T", submission="s", submitted=datetime.now(UTC),
        keys=tuple(requests.ordered(parsed[0].keys)),
    ))  # fmt: skip
    stored = timed("encoded", request.encode)
    again = timed("read again", lambda: skips.parse(requests.Request, skips.decompress(stored, "it"), "it"))
    assert again == request
    print(f"stored{len(stored):>16,} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
