"""What releases serve, asked of the training loader in a process of its own: importing it takes seconds, and a run that starts is one.

python -m tests.integration.served < readings.json > answers.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smalti.objects import local_path

ORDER: dict[str, Any] = {"batch_size": 1, "num_canonical_nodes": 1, "shuffle": True}
"""An epoch of it is every sample once."""


def read(readings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each reading the ids in the order of an epoch, and the state of the run after half of it.

    Args:
        readings: `release`: URI of a manifest, with `arguments` of ReleaseDataset and a `state` to resume; or `tree`: URI of a
            tree that an unmodified StreamingDataset reads.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.served"],
        input=json.dumps(readings),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _release(reading: dict[str, Any]) -> dict[str, Any]:
    from smalti.loader import ReleaseDataset

    dataset = ReleaseDataset(reading["release"], **ORDER, **reading.get("arguments", {}))
    if "state" in reading:
        dataset.load_state_dict(reading["state"])
        return {"ids": [str(sample["id"]) for sample in dataset]}
    epoch = iter(dataset)
    first = next(epoch)
    state = dataset.state_dict(dataset.size // 2, from_beginning=True)
    return {"ids": [str(sample["id"]) for sample in (first, *epoch)], "state": state}


def _tree(uri: str) -> dict[str, Any]:
    from streaming import Stream, StreamingDataset

    root = local_path(uri)
    assert root is not None
    streams = [Stream(local=str(index.parent)) for index in sorted(root.glob("*/*/index.json"))]
    return {"ids": [str(sample["id"]) for sample in StreamingDataset(streams=streams, **ORDER)]}


def main() -> None:
    """Answer what is read from standard input."""
    from tests.loader.serving import apart, close_all

    answers = []
    with TemporaryDirectory() as folder, apart(Path(folder)):
        for reading in json.load(sys.stdin):
            answers.append(_release(reading) if "release" in reading else _tree(reading["tree"]))
            close_all()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
