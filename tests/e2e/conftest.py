"""The demo, run as a person runs it, with its shard job killed half-way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.processes import family, memory
from demo.run import environment, latest_manifest
from demo.servers import REPOSITORY, find_servers, stop_servers
from demo.source import Truth, load_truth
from smalti.lake import Lake
from smalti.objects import list_objects

DEMO_SECONDS = 1100.0


@dataclass(frozen=True)
class Demo:
    """A finished run of the demo."""

    home: Path
    lake: Lake
    output: str
    seconds: float
    peak: int
    killed: bool
    truth: Truth

    @property
    def manifest(self) -> str:
        return latest_manifest(self.lake)


def run_demo(home: Path, *, kill_shard: bool = False) -> tuple[int, str, float, int, bool]:
    """`python -m demo.run`: exit code, output, seconds, peak memory of the servers in bytes (PSS), whether the shard job was killed."""
    began, peak, killed = time.monotonic(), 0, False
    with (home.parent / f"{home.name}.out").open("w+") as out:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "demo.run"],
            env=os.environ | {"SMALTI_DEMO_HOME": str(home)},
            cwd=REPOSITORY,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        next_look = 0.0
        while process.poll() is None:
            if time.monotonic() - began > DEMO_SECONDS:
                process.kill()
            if kill_shard and not killed:
                killed = kill_half_way(home)
            if time.monotonic() > next_look:
                peak = max(peak, memory_of_servers(home))
                next_look = time.monotonic() + 2
            time.sleep(0.05)
        out.seek(0)
        return process.returncode, out.read(), time.monotonic() - began, peak, killed


def ids(demo: Demo, outcome: str) -> set[str]:
    """Of the inputs that must end so."""
    return {f"demo/{each.file}" for each in demo.truth.with_outcome(outcome)}


def kill_half_way(home: Path) -> bool:
    """SIGKILL the shard job's driver once its first shard is written. Returns whether that was done."""
    progress = home / "lake" / "progress" / "demo" / "shard"
    if not progress.exists() or next(list_objects(progress.as_uri()), None) is None:
        return False
    for pid in our_processes(home):
        words = cmdline(pid)
        if "smalti.jobs" in words and "shard" in words and "bash" not in words[0] and not words[0].endswith("sh"):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def our_processes(home: Path) -> Mapping[int, int]:
    servers = find_servers(home)
    return family(servers.processes) if servers else {}


def cmdline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1] or [""]
    except OSError:
        return [""]


def memory_of_servers(home: Path) -> int:
    """Bytes that the demo's servers and their jobs use, shared pages counted once (PSS)."""
    servers = find_servers(home)
    return sum(memory(servers.processes).values()) if servers else 0


@pytest.fixture(scope="session")
def demo() -> Generator[Demo]:
    """One run, its shard job killed; the servers stay up for the tests and are ended afterwards."""
    home = Path(tempfile.mkdtemp(prefix="smalti-e2e-")) / ".demo"
    home.mkdir()
    try:
        code, output, seconds, peak, killed = run_demo(home, kill_shard=True)
        print(output)
        assert code == 0, output[-4000:]
        lake = Lake.at(environment(home)["SMALTI_LAKE"])
        yield Demo(home, lake, output, seconds, peak, killed, load_truth(home / "source"))
    finally:
        stop_servers(home)
        shutil.rmtree(home.parent, ignore_errors=True)
