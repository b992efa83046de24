"""The whole line, killed at random moments and started again, ends in the bytes of an undisturbed run."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from smalti.lake import Lake
from smalti.objects import list_objects, read_bytes
from smalti.release.manifest import read_manifest

SOURCE = """\
format: files
uri: ${KILLED_SOURCE}
table: captions.csv
columns: { key: file, caption: caption }
encoding: { shard_bytes: 65536 }
"""
DATASET = "sources: [{ name: killed }]\npublish: tree\nexpected: { duplicate: { high: 50 } }\n"
STEPS = (
    ("source", "run", "killed", "--batch", "b1"),
    ("release", "build", "killed"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configuration and a source of ten pictures, two of them copies and one broken."""
    root = tmp_path_factory.mktemp("kills")
    for folder in ("sources", "datasets", "engines"):
        (root / "config" / folder).mkdir(parents=True)
    (root / "config/sources/killed.yaml").write_text(SOURCE)
    (root / "config/datasets/killed.yaml").write_text(DATASET)
    engines = Path(__file__).resolve().parents[2] / "include/engines"
    for name in ("rules.yaml", "rules-minilm.yaml"):
        (root / "config/engines" / name).write_text(
            (engines / name).read_text().replace("batch_size: 16", "batch_size: 2")
        )
    images = root / "source"
    images.mkdir()
    lines = ["file,caption"]
    for number, picture in enumerate(_photographs(7)):
        picture.save(images / f"{number}.jpg", quality=95)
        lines.append(f"{number}.jpg,A room with furniture.")
        if number < 2:
            picture.save(images / f"copy{number}.png")
            lines.append(f"copy{number}.png,A copy of a room.")
    (images / "broken.jpg").write_bytes((images / "0.jpg").read_bytes()[:5000])
    lines.append("broken.jpg,Half a room.")
    (images / "captions.csv").write_text("\n".join(lines) + "\n")
    return root


def _photographs(count: int) -> list[Image.Image]:
    import interior_photos

    paths = sorted((Path(interior_photos.__file__).parent / "images").glob("*.jpg"))[:count]
    return [Image.open(path).convert("RGB").resize((600, 480 + 16 * n)) for n, path in enumerate(paths)]


def run_step(place: Path, lake: Lake, step: tuple[str, ...], kill_after: float | None = None) -> bool:
    """Run a command; SIGKILL it after so many seconds. Returns whether it ended by itself, in success."""
    env = os.environ | {
        "SMALTI_LAKE": lake.root,
        "SMALTI_CONFIG": str(place / "config"),
        "KILLED_SOURCE": (place / "source").as_uri(),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "smalti.cli", *step], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, errors = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return False
    assert process.returncode == 0, errors.decode()[-2000:]
    return True


def bytes_of(lake: Lake) -> dict[str, str]:
    """sha256 of everything that is served or decides what is; manifests are compared by content digest."""
    roots = (lake.staging(), lake.parts_root(), lake.releases())
    return {
        o.uri.removeprefix(lake.root): hashlib.sha256(
            read_bytes(o.uri).replace(lake.root.encode(), b"LAKE")
        ).hexdigest()
        for root in roots
        for o in list_objects(root)
        if not o.uri.endswith(("manifest.json", "part.json", "report.html", "ingest.json"))
    }


def campaign(place: Path, kills: int, seed: int) -> int:
    """Kill the line `kills` times, let it end, compare. Returns how many kills were given."""
    reference, lake = Lake.at(str(place / f"reference{seed}")), Lake.at(str(place / f"killed{seed}"))
    took = {}
    for step in STEPS:
        started = time.monotonic()
        assert run_step(place, reference, step)
        took[step] = time.monotonic() - started
    chance, given = random.Random(seed), 0
    share = {STEPS[0]: kills - kills // 3, STEPS[1]: kills // 3}
    for step in STEPS:
        for _ in range(share[step]):
            given += not run_step(place, lake, step, chance.uniform(0.1, 1.0) * took[step])
        assert run_step(place, lake, step)
    assert bytes_of(lake) == bytes_of(reference)
    digests = {read_manifest(each.manifest("killed", "v1")).digest for each in (reference, lake)}
    assert len(digests) == 1
    return given


def test_a_few_kills_change_no_byte(place: Path) -> None:
    assert campaign(place, kills=3, seed=1) >= 1


@pytest.mark.prove
def test_thirty_kills_change_no_byte(place: Path) -> None:
    given = campaign(place, kills=30, seed=2)
    print(f"\n{given} of 30 runs were killed before they ended; the bytes are those of an undisturbed run")
    assert given >= 15
