"""The demo through real Airflow and real Ray: every input accounted for, and the same release after a kill."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demo.run import BATCH, environment
from demo.servers import REPOSITORY, find_servers
from smalti.images.buckets import Bucket, bucket_of
from smalti.images.encode import quality_tables, read_tables
from smalti.images.resize import fit_to
from smalti.lake import Lake
from smalti.objects import list_names, list_objects, local_path, read_bytes
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.summary import summary
from smalti.shards import mds
from tests.e2e.conftest import Demo, ids, our_processes, run_demo


def stored(demo: Demo) -> dict[str, dict[str, mds.Value]]:
    """Every sample of the demo's part, by id."""
    found = {}
    for shard in list_objects(demo.lake.parts("demo")):
        if shard.uri.endswith(".mds"):
            columns, samples = mds.read_shard(read_bytes(shard.uri), shard.uri)
            for raw in samples:
                sample = mds.decode_sample(columns, raw)
                found[str(sample["id"])] = dict(sample)
    return found


def test_the_shard_job_was_killed_and_airflow_tried_again(demo: Demo) -> None:
    assert demo.killed
    assert "source_demo.shard: up_for_retry" in demo.output


def test_progress_is_visible_and_the_end_says_what_a_person_wants_to_know(demo: Demo) -> None:
    for task in ("stage", "ingest", "fingerprint", "caption", "classify", "index", "shard"):
        assert f"source_demo.{task}: success" in demo.output
    for task in ("curate", "assemble", "verify", "publish"):
        assert f"release_demo.{task}: success" in demo.output
    assert str(local_path(demo.manifest)) in demo.output
    assert len(re.findall(r"^  demo/\S+ +\d+x\d+  \S", demo.output, re.MULTILINE)) == 5
    assert re.search(r"user admin, password \S+", demo.output)


def test_every_input_ended_as_it_was_planted(demo: Demo) -> None:
    found = summary(demo.manifest)
    assert set(found.kept_ids) == ids(demo, "kept")
    dropped = {each.id: each.reason for each in found.dropped}
    expected = {
        f"demo/{e.file}": e.outcome.partition(":")[2] for e in demo.truth.inputs if e.outcome[:3] in ("rej", "dro")
    }
    assert dropped == expected
    skipped = {each.id: str(reason) for reason, group in found.skipped.items() for each in group}
    assert skipped == {f"demo/{e.file}": e.outcome.partition(":")[2] for e in demo.truth.with_outcome("skipped")}
    assert len(found.kept_ids) + len(dropped) + len(skipped) == len(demo.truth.inputs)


def test_of_copies_the_largest_is_kept(demo: Demo) -> None:
    copies = {each.id: each.duplicate_of for each in summary(demo.manifest).skipped["duplicate"]}  # type: ignore[index]
    assert copies == {f"demo/{e.file}": f"demo/{e.twin}" for e in demo.truth.with_outcome("skipped:duplicate")}
    pixels = {f"demo/{e.file}": e.width * e.height for e in demo.truth.inputs}
    assert all(pixels[copy] <= pixels[kept] for copy, kept in copies.items() if kept)


def test_awkward_pictures_are_upright_and_in_their_colours(demo: Demo) -> None:
    samples, checked = stored(demo), 0
    for each in demo.truth.inputs:
        if not each.reference:
            continue
        bucket = bucket_of(each.width, each.height)
        assert isinstance(bucket, Bucket)
        right = fit_to(Image.open(demo.truth.directory / each.reference).convert("RGB"), bucket)
        data = samples[f"demo/{each.file}"]["image"]
        assert isinstance(data, bytes)
        shown = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.int16)
        difference = float(np.abs(shown - np.asarray(right, np.int16)).mean())
        assert difference <= each.tolerance + 2.0, f"{each.file} differs by {difference:.1f}"  # 2: JPEG 92 itself
        checked += 1
    assert checked >= 4


def test_every_stored_picture_has_its_bucket_s_shape_and_the_tables_of_92(demo: Demo) -> None:
    for name, sample in stored(demo).items():
        data = sample["image"]
        assert isinstance(data, bytes)
        bucket = bucket_of(int(sample["original_width"]), int(sample["original_height"]))
        assert isinstance(bucket, Bucket), name
        assert Image.open(io.BytesIO(data)).size == (bucket.width, bucket.height) == (sample["width"], sample["height"])
        assert read_tables(data) == quality_tables(92), name


def test_an_unmodified_streamingdataset_reads_part_and_tree(demo: Demo) -> None:
    """In a process of its own: that is how a trainer has it. The tutorial's test reads what was pulled."""
    part = demo.lake.part("demo", list_names(demo.lake.parts("demo"))[0])
    manifest = read_manifest(demo.manifest)
    counts = {
        local_path(part): manifest.accounting.samples,
        local_path(demo.lake.tree("demo", manifest.version)): manifest.accounting.kept,
    }
    script = (
        "import sys; from pathlib import Path; from streaming import StreamingDataset\n"
        "for root in sys.argv[1:]:\n"
        "    ids = [s['id'] for d in sorted(Path(root).glob('*/*/index.json'))\n"
        "           for s in StreamingDataset(local=str(d.parent), batch_size=1, validate_hash='sha256')]\n"
        "    print(len(ids), len(set(ids)), root)\n"
    )
    command = [sys.executable, "-c", script, *map(str, counts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert {Path(root): int(n) for n, _, root in lines} == counts
    assert all(n == unique for n, unique, _ in lines)


def test_the_loader_serves_each_kept_sample_once_and_no_other_to_two_workers(demo: Demo) -> None:
    """Without workers the tutorial's test does it."""
    script = (
        "import sys, json; from torch.utils.data import DataLoader; from smalti.loader import ReleaseDataset\n"
        "data = ReleaseDataset(sys.argv[1], batch_size=4, shuffle=True)\n"
        "loader = DataLoader(data, batch_size=4, num_workers=2, collate_fn=lambda s: [x['id'] for x in s])\n"
        "print(json.dumps([i for batch in loader for i in batch]))\n"
    )
    command = [sys.executable, "-c", script, str(local_path(demo.manifest))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    served = Counter(json.loads(done.stdout.splitlines()[-1]))
    assert set(served) == ids(demo, "kept")
    assert set(served.values()) == {1}


def test_a_killed_run_ends_in_the_digest_of_an_undisturbed_one_without_airflow(demo: Demo, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "undisturbed"))
    env = os.environ | {"SMALTI_LAKE": lake.root, "SMALTI_DEMO_SOURCE": demo.truth.source.as_uri()}
    for arguments in (["source", "run", "demo", "--batch", "demo"], ["release", "build", "demo"]):
        command = [sys.executable, "-m", "smalti.cli", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    assert manifest_of(lake, "v1").digest == read_manifest(demo.manifest).digest


def manifest_of(lake: Lake, version: str) -> Manifest:
    return read_manifest(lake.manifest("demo", version))


def everything(lake: Lake) -> dict[str, object]:
    """Every object but what runs write about themselves -> its generation."""
    return {each.uri: each.generation for each in list_objects(lake.root) if "/runs/" not in each.uri}


def test_the_same_batch_and_the_same_release_again_change_nothing(demo: Demo) -> None:
    """The source's stages without Airflow, which has run them; then its asset's news once more, and the release that it starts."""
    before, digest = everything(demo.lake), read_manifest(demo.manifest).digest
    env = os.environ | environment(demo.home)
    command = [sys.executable, "-m", "smalti.cli", "source", "run", "demo", "--batch", BATCH]
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert again.returncode == 0, again.stderr[-2000:]
    servers = find_servers(demo.home)
    assert servers is not None
    assert servers.airflow is not None
    with servers.airflow.api() as api:
        known = {run["dag_run_id"] for run in api.runs("release_demo")}
        [run] = [run["dag_run_id"] for run in api.runs("source_demo")]
        done = {"dry_run": False, "dag_run_id": run, "task_ids": ["done"], "only_failed": False}
        api.call("POST", "dags/source_demo/clearTaskInstances", done)
        release = api.wait_for_run("release_demo", known)
        assert api.wait("release_demo", release) == "success"
        assert api.xcom("release_demo", release, "assemble")["manifest"] == demo.manifest
    assert everything(demo.lake) == before
    assert f"digest    {digest}" in demo.output
    assert read_manifest(demo.manifest).digest == digest


@pytest.mark.prove
def test_the_demo_again_changes_nothing(demo: Demo) -> None:
    """As a person does it: all stages through Airflow, and the digest printed. The test above is the short form."""
    before = everything(demo.lake)
    code, output, _, _, _ = run_demo(demo.home)
    assert code == 0, output[-4000:]
    assert f"digest    {read_manifest(demo.manifest).digest}" in output
    assert everything(demo.lake) == before


def test_stop_ends_all_of_it(demo: Demo) -> None:
    """Last: it ends the servers."""
    running = our_processes(demo.home)
    assert running
    command = [sys.executable, "-m", "demo.stop"]
    stopped = subprocess.run(
        command,
        env=os.environ | {"SMALTI_DEMO_HOME": str(demo.home)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.match(r"ended \d+ processes", stopped.stdout.splitlines()[-1])
    assert [pid for pid in running if alive(pid)] == []
    assert find_servers(demo.home) is None


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
