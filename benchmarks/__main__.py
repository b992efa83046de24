"""`make bench`: each comparison in one run, printed and written to .cache/bench.json.

docs/performance.md shows the figures of a run, with the machine they are of.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import images, loader, pipeline, shards
from benchmarks.measure import Comparison

SUITES: tuple[Callable[[Path], Iterator[Comparison]], ...] = (
    images.compare_all,
    shards.compare_all,
    loader.compare_all,
    pipeline.compare_all,
)


def main() -> None:
    """Run every suite."""
    print(
        f"{platform.machine()}, Python {platform.python_version()}; columns: ours, theirs, unit, ratio (extreme rounds)"
    )
    found = []
    with tempfile.TemporaryDirectory(prefix="smalti-bench-") as folder:
        for suite in SUITES:
            for comparison in suite(Path(folder)):
                print(comparison.line(), flush=True)
                found.append(dataclasses.asdict(comparison))
    out = Path(".cache/bench.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    main()
