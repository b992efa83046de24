"""The tutorial, read aloud: its blocks are run in order over the lake that the demo left, and say what it says they do.

Its `make demo`, once and again, and its `make stop` are run by test_demo.py.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass

import pytest

from smalti.loader.skips import served_shards
from smalti.objects import list_objects, local_path, read_bytes
from smalti.release.manifest import read_manifest
from smalti.release.summary import samples_of
from smalti.shards import mds
from tests.conftest import snapshot
from tests.e2e.conftest import Demo, ids
from tests.e2e.tutorial import Block, Desk, blocks

TEXTS = {"demo/page-of-text.png", "demo/screenshot.png"}


@dataclass
class Read:
    """The tutorial after its last block.

    Attributes:
        killed: the first pull was killed after its first shard.
        releases: digests of the objects of releases/demo before version 2 was published, and after the rollback.
    """

    desk: Desk
    killed: bool
    releases: tuple[dict[str, str], dict[str, str]]


@pytest.fixture(scope="session")
def read(demo: Demo) -> Read:
    """Run the blocks. One that fails fails every test here."""
    desk = Desk(demo.home.parent, {**os.environ, "HF_HUB_OFFLINE": "1"})
    desk.sit_down()
    killed, releases = False, []
    for block in blocks():
        if not block.language or block.runs_make:
            continue
        if "smalti pull" in block.text and not killed:
            first = Block(block.section, "sh", block.text.splitlines()[0])
            killed = desk.kill_once_there_is(first, ".demo/pulled/parts/*/*/*/*/shard.*.mds")
        if "release publish" in block.text:
            releases.append(digests(demo))
        desk.run(block)
        if "release rollback" in block.text:
            releases.append(digests(demo))
    before, after = releases
    return Read(desk, killed, (before, after))


def digests(demo: Demo) -> dict[str, str]:
    """Of every object of the demo's releases but LATEST, which moves."""
    return {name: data for name, data in snapshot(demo.lake.releases()).items() if not name.endswith("/LATEST")}


def the_block(text: str) -> Block:
    [found] = [block for block in blocks() if text in block.text]
    return found


def samples_in(demo: Demo, version: str) -> dict[bytes, bool]:
    """Every sample in a version's shards, as it is stored -> whether the version serves it."""
    uri, found = demo.lake.manifest("demo", version), {}
    shards: dict[str, list[bytes]] = {}
    for _, shard, index, reasons in samples_of(uri, read_manifest(uri)):
        if shard not in shards:
            shards[shard] = mds.read_shard(read_bytes(f"{demo.lake.parts_root()}/{shard}"))[1]
        found[shards[shard][index]] = not reasons
    return found


def test_what_the_demo_is_said_to_print_it_prints(demo: Demo) -> None:
    printed = " ".join(demo.output.split())
    [shown] = [block for block in blocks() if not block.language]
    lines = [" ".join(line.removesuffix("...").split()) for line in shown.text.splitlines() if line.strip(" .")]
    assert len(lines) > 5
    assert [line for line in lines if line not in printed] == []


def test_what_was_made_is_shown(read: Read, demo: Demo) -> None:
    [text] = read.desk.said(3)
    inputs, kept = len(demo.truth.inputs), len(ids(demo, "kept"))
    assert f"lake: {demo.lake.root}" in text
    assert "datasets:\n  name=demo  versions=['v1']  latest=v1\n" in text
    assert f"rows: {inputs - len(ids(demo, 'rejected'))}\n" in text
    assert f"kept: {kept}\n" in text


def test_a_byte_that_is_changed_is_found_and_its_shard_named(read: Read, demo: Demo) -> None:
    [text] = read.desk.said(5)
    assert "faults: []" in text
    uris = [each.uri for each in list_objects(demo.lake.parts("demo")) if each.uri.endswith(".mds")]
    shard = local_path(min(uris))
    assert shard is not None
    data, stat = shard.read_bytes(), shard.stat()
    middle = len(data) // 2
    try:
        shard.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        code, text = read.desk.try_to(the_block("smalti verify"))
    finally:
        shard.write_bytes(data)
        os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert code != 0
    assert min(uris).removeprefix(f"{demo.lake.parts_root()}/") in text


def test_a_training_loop_is_served_what_is_kept_once(read: Read, demo: Demo) -> None:
    loop, _ = read.desk.said(6)
    assert Counter(re.findall(r"'(demo/[^']+)'", loop)) == Counter(ids(demo, "kept"))


def test_another_version_differs_by_its_texts_and_back_again_changes_no_byte(read: Read) -> None:
    build, diff, move, _, _ = read.desk.said(7)
    assert "version: v2\n" in build
    assert gained_and_lost(diff) == (TEXTS, set())
    assert "LATEST is v2" in move
    latest = json.loads(move.splitlines()[-1])
    assert latest["version"] == "v1"
    before, after = read.releases
    assert before.items() <= after.items()
    assert {name.split("/")[3] for name in set(after) - set(before)} == {"tree", "verified.json"}


def test_an_ablation_and_the_trace_of_a_picture(read: Read) -> None:
    *_, ablation, trace = read.desk.said(7)
    assert gained_and_lost(ablation) == (TEXTS, set())
    served = dict(re.findall(r"release=demo (\S+) .* served=(\w+) ", trace))
    assert served == {"v1": "False", "v2": "True", "v1-without-text": "True"}


def gained_and_lost(diff: str) -> tuple[set[str], set[str]]:
    gained, lost = diff.partition("gained samples:")[2].split("lost samples:")
    return set(re.findall(r"id=(\S+)", gained)), set(re.findall(r"id=(\S+)", lost))


def test_a_pull_that_was_killed_goes_on_and_the_next_version_brings_only_what_is_new(read: Read, demo: Demo) -> None:
    assert read.killed
    pulls, _ = read.desk.said(8)
    here = [int(count) for count in re.findall(r"pull: (\d+) of \d+ shards are here", pulls)]
    fetched = [int(count) for count in re.findall(r"^  fetched: (\d+)$", pulls, re.MULTILINE)]
    first, second = (shards_of(demo, version) for version in ("v1", "v2"))
    assert 0 < here[0] < len(first)
    assert fetched == [len(first) - here[0], len(second - first)]
    pulled = demo.home / "pulled" / "parts"
    assert {str(path.relative_to(pulled)) for path in pulled.rglob("*.mds")} == first | second
    assert all(
        (pulled / name).read_bytes() == read_bytes(f"{demo.lake.parts_root()}/{name}") for name in first | second
    )


def shards_of(demo: Demo, version: str) -> set[str]:
    uri = demo.lake.manifest("demo", version)
    return {shard.basename for stream in read_manifest(uri).streams for shard in served_shards(uri, stream)}


def test_plain_directories_hold_no_byte_of_what_is_skipped(read: Read, demo: Demo) -> None:
    """Read by the tutorial's StreamingDataset, which is not ours."""
    *_, printed = read.desk.said(8)
    assert f"{len(ids(demo, 'kept'))} samples; the page of text is not there" in printed
    written = b"".join(path.read_bytes() for path in sorted((demo.home / "tree").rglob("*.mds")))
    samples = samples_in(demo, "v1")
    assert Counter(samples.values()) == {True: len(ids(demo, "kept")), False: len(ids(demo, "skipped"))}
    assert [served for sample, served in samples.items() if (sample in written) != served] == []
