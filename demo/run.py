"""`make demo`: real photographs through the whole line, run by Airflow.

Makes a source with known awkward company, starts Ray and Airflow, triggers source_demo through Airflow's REST API, lets
its asset trigger release_demo, then shows what was left out and why, and reads samples of the release through
ReleaseDataset. Airflow stays up; `make stop` ends it. Run again it changes nothing and ends in the same digest.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from demo.airflow_api import AirflowApi
from demo.servers import REPOSITORY, Servers, start_servers
from demo.source import make_source
from smalti.errors import SmaltiError
from smalti.lake import Lake
from smalti.objects import file_uri, local_path, read_bytes
from smalti.reasons import DropReason, RejectReason, SkipReason
from smalti.release.summary import Summary, summary

BATCH = "demo"
SAMPLES = 5


def home() -> Path:
    """Where the demo keeps everything: SMALTI_DEMO_HOME, or .demo in the checkout."""
    return Path(os.environ.get("SMALTI_DEMO_HOME", REPOSITORY / ".demo")).resolve()


def environment(root: Path) -> dict[str, str]:
    """What DAGs and jobs must see."""
    return {
        "SMALTI_LAKE": file_uri(root / "lake"),
        "SMALTI_DEMO_SOURCE": file_uri(root / "source"),
        "HF_HUB_OFFLINE": "1",
    }


def start(root: Path) -> Servers:
    """Make the pictures while the servers come up."""
    failures: list[BaseException] = []

    def make() -> None:
        try:
            make_source(root / "source")
        except BaseException as error:
            failures.append(error)

    pictures = threading.Thread(target=make)
    pictures.start()
    try:
        return start_servers(root, environment(root))
    finally:
        pictures.join()
        if failures:
            raise failures[0]


def run_line(api: AirflowApi) -> None:
    """One run of source_demo, and the run of release_demo that its asset starts. Raises DemoFailed."""
    api.wait_for_dags(["source_demo", "release_demo"])
    known = {run["dag_run_id"] for run in api.runs("release_demo")}
    run = api.trigger("source_demo", partition_key=BATCH)
    print(f"\nsource_demo, batch {BATCH}: {api.url}/dags/source_demo/runs/{run}")
    wait(api, "source_demo", run)
    run = api.wait_for_run("release_demo", known)
    print(f"\nrelease_demo, started by the source's asset: {api.url}/dags/release_demo/runs/{run}")
    wait(api, "release_demo", run)


def wait(api: AirflowApi, dag: str, run: str) -> None:
    """Wait for a run with visible progress."""
    if api.wait(dag, run) != "success":
        raise DemoFailed(
            f"the run {run} failed:\n{api.failures(dag, run)}", dag, f"Look at {api.url}, then `make stop`"
        )


class DemoFailed(SmaltiError):
    """A run did not end in success. Its text has more than one line: the tasks' last words."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n{self.fix}"


def latest_manifest(lake: Lake) -> str:
    """URI of the manifest that LATEST names."""
    version = json.loads(read_bytes(lake.latest("demo")))["version"]
    return lake.manifest("demo", version)


def show_summary(found: Summary) -> None:
    """What became of every input."""
    inputs = found.samples + len(found.dropped)
    print(f"\n{inputs} inputs = {found.kept} served + {inputs - found.kept} left out:")
    for each in sorted(found.dropped, key=lambda each: (each.stage, each.reason, each.id)):
        meaning = _meaning(each.reason)
        print(f"  {each.stage:<11} {each.reason:<18} {each.id:<44} {each.detail or meaning}")
    for reason, skipped in found.skipped.items():
        for one in skipped:
            note = f"copy of {one.duplicate_of}" if one.duplicate_of else reason.meaning
            print(f"  {'release':<11} {reason:<18} {one.id:<44} {note}")


def _meaning(reason: str) -> str:
    known = {str(each): each.meaning for enum in (RejectReason, DropReason, SkipReason) for each in enum}
    return known.get(reason, "")


def show_samples(manifest: str) -> None:
    """Read a few samples the way a training run does."""
    print(f"\n{SAMPLES} samples through ReleaseDataset:")
    from smalti.loader import ReleaseDataset

    dataset = ReleaseDataset(manifest, batch_size=1, shuffle=True)
    for number, sample in enumerate(dataset):
        if number == SAMPLES:
            break
        caption = sample["caption"] if len(sample["caption"]) <= 96 else sample["caption"][:95] + "…"
        print(f"  {sample['id']:<44} {sample['image'].size[0]}x{sample['image'].size[1]}  {caption}")


def main() -> int:
    """The whole demo; returns the exit code."""
    began, root = time.monotonic(), home()
    print(f"smalti demo in {root}")
    try:
        servers = start(root)
        assert servers.airflow is not None
        with servers.airflow.api() as api:
            run_line(api)
        manifest = latest_manifest(Lake.at(environment(root)["SMALTI_LAKE"]))
        found = summary(manifest)
        show_summary(found)
        print(f"\nmanifest  {local_path(manifest)}\ndigest    {found.digest}")
        show_samples(manifest)
        print(f"\ndone in {time.monotonic() - began:.0f} s. Airflow stays up: {servers.airflow.url}")
        print(f"user {servers.airflow.user}, password {servers.airflow.password}. `make stop` ends it.")
    except SmaltiError as error:
        print(f"smalti: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
