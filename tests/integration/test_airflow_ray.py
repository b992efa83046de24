"""Airflow's own processes and a real Ray head: what tasks do when jobs fail, workers die and people interfere; maintenance; and opt-outs.

All tasks of one run are started at once, and each test looks at its own: starting Airflow and Ray costs more than the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.processes import family
from demo.servers import airflow_environment
from smalti.errors import InputError
from smalti.maintenance.garbage import gc
from smalti.objects import list_names, list_objects, read_bytes
from smalti.optouts.receipt_erase import read_erase_receipt
from smalti.release import verify as verify_module
from smalti.release.latest import read_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.publish import rollback
from smalti.release.verify import verify_manifest
from smalti.settings import MaintenanceRun
from smalti.shards.part import committed_parts
from tests.integration.asked import DATASET, RUN, TREES, Asked, Readers, copies, deliver_again, others, plant
from tests.integration.conftest import DAGS, World
from tests.maintenance.conftest import deliver, release, rows_of_a_day, served
from tests.optouts.searching import ALLOWED, Search
from tests.release.conftest import build
from tests.release.test_verify import kept_ids
from tests.support.pictures import release_run


@pytest.fixture(scope="module")
def interfered(world: World) -> World:
    """What people and chance do to the run while it is under way."""
    todo: dict[str, Callable[[], bool]] = {
        "adopted": lambda: kill_worker(world, "adopted"),
        "let go": lambda: let_go(world, "adopted"),
        "cleared": lambda: clear(world, "cleared"),
        "marked": lambda: mark(world, "marked", "deferred"),
        "marked_here": lambda: mark(world, "marked_here", "running"),
    }
    end = time.monotonic() + 600
    while todo:
        for name in [name for name, act in todo.items() if act()]:
            del todo[name]
        assert time.monotonic() < end, list(todo)
        time.sleep(0.5)
    return world


def kill_worker(world: World, name: str) -> bool:
    """SIGKILL to the process that runs a task, once its job runs."""
    assert world.servers.airflow is not None
    if "RUNNING" not in world.jobs(name).values():
        return False
    title = f"airflow worker -- {world.task(name)['id']}"
    for pid in family([world.servers.airflow.process]):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(title):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def let_go(world: World, name: str) -> bool:
    """Let the job end once the second try waits for it."""
    if world.task(name)["try_number"] != 2 or "taking it over" not in world.log(name, 2):
        return False
    (world.home / "go").touch()
    return True


def clear(world: World, name: str) -> bool:
    if world.task(name)["state"] != "deferred" or "RUNNING" not in world.jobs(name).values():
        return False
    body = {"dry_run": False, "dag_run_id": world.run, "task_ids": [name], "only_failed": False}
    world.api.call("POST", "dags/probe/clearTaskInstances", body)
    return True


def mark(world: World, name: str, state: str) -> bool:
    if world.task(name)["state"] != state or "RUNNING" not in world.jobs(name).values():
        return False
    world.api.call("PATCH", f"dags/probe/dagRuns/{world.run}/taskInstances/{name}", {"new_state": "failed"})
    return True


def test_a_task_is_its_job(interfered: World) -> None:
    assert interfered.ended("quick") == "success"
    assert interfered.jobs("quick") == {"1": "SUCCEEDED"}
    report = interfered.xcom("quick")
    assert report["stage"] == "probe"
    assert json.loads(read_bytes(report["report_uri"]))["stage"] == "probe"
    assert "| hello from the job" in interfered.log("quick")
    kept = read_bytes(interfered.lake.run_object("probe", "r1", "quick", "driver.log")).decode()
    assert "hello from the job" in kept
    link = interfered.api.call("GET", f"dags/probe/dagRuns/{interfered.run}/taskInstances/quick/links")
    assert "/#/jobs/smalti-probe-" in link["extra_links"]["Ray job"]


def test_a_deferred_task_is_its_job_too(interfered: World) -> None:
    assert interfered.ended("deferred") == "success"
    assert interfered.jobs("deferred") == {"1": "SUCCEEDED"}
    assert interfered.xcom("deferred")["stage"] == "probe"
    last = interfered.task("deferred")["try_number"]  # Airflow on SQLite may count a resumption as a try
    assert interfered.log("deferred", last).count("is SUCCEEDED") == 1  # said by the trigger, shown in the task's log


def test_a_mistake_fails_the_task_at_once_with_the_clear_line_first(interfered: World) -> None:
    assert interfered.ended("mistake") == "failed"
    assert interfered.task("mistake")["try_number"] == 1
    clear_line = "smalti: probe.yaml:7: the probe was told to find a mistake. Mend it."
    assert f"AirflowFailException: {clear_line}" in interfered.log("mistake")
    [alert] = [each for each in interfered.receiver.got if each["task"] == "mistake"]
    assert alert["error"].splitlines()[0] == clear_line
    assert alert["log"].startswith(interfered.api.url)


def test_a_retry_after_a_failure_is_a_second_job_and_no_alert(interfered: World) -> None:
    assert interfered.ended("once") == "success"
    assert interfered.jobs("once") == {"1": "FAILED", "2": "SUCCEEDED"}
    assert interfered.xcom("once")["report_uri"].endswith("/report.2.json")
    assert [each for each in interfered.receiver.got if each["task"] == "once"] == []


def test_a_retry_after_a_killed_worker_adopts_the_live_job(interfered: World) -> None:
    assert interfered.ended("adopted") == "success"
    assert interfered.task("adopted")["try_number"] == 2
    assert interfered.jobs("adopted") == {"1": "SUCCEEDED"}
    assert "is RUNNING already: taking it over" in interfered.log("adopted", 2)


def test_a_cleared_task_ends_in_success_although_its_old_job_is_stopped(interfered: World) -> None:
    assert interfered.ended("cleared") == "success"
    assert interfered.jobs("cleared") == {"1": "STOPPED", "2": "SUCCEEDED"}


@pytest.mark.parametrize("name", ["marked", "marked_here"])
def test_a_task_that_is_marked_failed_stops_its_job(interfered: World, name: str) -> None:
    assert interfered.ended(name) == "failed"
    interfered.until(lambda: interfered.jobs(name) == {"1": "STOPPED"}, 240)


def test_a_deferred_task_is_held_to_its_time(interfered: World) -> None:
    assert interfered.ended("late") == "failed"
    interfered.until(lambda: interfered.jobs("late") == {"1": "STOPPED"}, 240)
    assert "not done after 0:00:12" in interfered.log("late")
    assert [each["task"] for each in interfered.receiver.got].count("late") == 1


def test_releases_start_when_any_or_all_of_their_sources_have_news(interfered: World) -> None:
    api = interfered.api
    for name, partition in (("a", "2026-11-20"), ("b", None)):
        run = api.trigger(f"produce_{name}", partition_key=partition)
        assert api.wait(f"produce_{name}", run, seconds=400) == "success"
        if name == "a":
            first = api.wait_for_run("consume_any", set())
            assert api.wait("consume_any", first, seconds=400) == "success"
            assert api.xcom("consume_any", first, "parts") == ["of a"]
            assert api.runs("consume_all") == []
    both = api.wait_for_run("consume_all", set())
    assert api.wait("consume_all", both, seconds=400) == "success"
    assert api.xcom("consume_all", both, "parts") == ["of a", "of b"]
    second = api.wait_for_run("consume_any", {first})
    assert api.wait("consume_any", second, seconds=400) == "success"
    assert api.xcom("consume_any", second, "parts") == ["of b"]


def test_a_run_waits_for_a_person_and_does_as_it_is_told(world: World) -> None:
    api = world.api
    run = api.trigger("approve", run_id="a1")
    words = {"yes": "Approve", "no": "Reject"}

    def answered() -> bool:
        """Answers whoever asks."""
        now = world.states("approve", run)
        for name, word in words.items():
            if now.get(name) == "awaiting_input":
                asked = world.answer("approve", run, name, word)
                assert asked["subject"] == "Caption batch a1 of quick with p?"
                assert "2 of 9 rows were drawn" in asked["body"]
        return api.run("approve", run)["state"] in ("success", "failed")

    world.until(answered)
    assert world.states("approve", run) == {
        "report": "success",
        "yes": "success",
        "yes_after": "success",
        "no": "failed",
        "no_after": "upstream_failed",
        "unasked": "skipped",
        "unasked_approve": "skipped",
        "unasked_after": "success",
    }
    [alert] = [each for each in world.receiver.got if each["task"] == "no"][-1:]
    assert alert["error"].startswith("source quick, batch a1: admin rejected the pilot.")


def test_the_token_is_nowhere(interfered: World) -> None:
    """Not in a log, a rendered field, an XCom, a stored trigger, a spec."""
    assert interfered.servers.ray is not None
    token = interfered.servers.ray.token.encode()
    hook = interfered.receiver.url.encode()
    searched = 0
    for root in (interfered.home / "airflow", interfered.home / "lake", interfered.home / "airflow.log"):
        for path in [root] if root.is_file() else root.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert token not in data, path
                assert hook not in data, path
                searched += 1
    assert searched > 50
    assert list_names(interfered.lake.run("probe", "r1", "quick"))


def test_dag_test_runs_a_stage_and_its_trigger(world: World, tmp_path: Path) -> None:
    """`dag.test()`, with a database of its own."""
    assert world.servers.airflow is not None
    own = airflow_environment(tmp_path, {}, ray=world.servers.ray, dags=DAGS)
    env = {**os.environ, **world.servers.airflow.env, **own, "SMALTI_LAKE": str(tmp_path / "lake")}
    program = (
        "from airflow.dag_processing.dagbag import DagBag\n"
        f"run = DagBag({str(DAGS)!r}).dags['one'].test()\n"
        "import json\nprint('STATES', json.dumps({ti.task_id: str(ti.state) for ti in run.get_task_instances()}))\n"
    )
    airflow = Path(sys.executable).with_name("airflow")
    subprocess.run([airflow, "db", "migrate"], env=env, check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    [states] = [line for line in done.stdout.splitlines() if line.startswith("STATES")]
    assert json.loads(states.removeprefix("STATES ")) == {"deferred": "success", "quick": "success"}
    assert len(list((tmp_path / "lake" / "runs" / "one").glob("*/*/report.json"))) == 2


# Maintenance

DAYS = 3
AT_ONCE = {"grace_days": 0}
"""What an earlier run has marked goes, however short the time since."""


@pytest.fixture(scope="module")
def published(world: World) -> Manifest:
    """Three days of five pictures, each with a page of text; a version of them, and one that nobody wants, marked already."""
    for day in range(1, DAYS + 1):
        deliver(world.lake, f"b{day}", rows_of_a_day(day))
    manifest = release(world.lake)
    build(world.lake, release_run(drops={"labels": ["nsfw"]}).model_copy(update={"version": "trial"}))
    marked = gc(world.lake, MaintenanceRun(apply=True, grace_days=0))
    assert marked.given_up == (f"{manifest.dataset}/trial",)
    return manifest


def below_runs(world: World) -> dict[str, object]:
    """Everything in the lake but what the runs write about themselves: name -> generation."""
    return {each.uri: each.generation for each in list_objects(world.lake.root) if "/runs/" not in each.uri}


def report_of(world: World, run: str, task: str) -> dict[str, Any]:
    found: dict[str, Any] = world.api.xcom("maintenance", run, task)
    return found


def test_nobody_started_maintenance(world: World) -> None:
    """It is Sunday's: a new Airflow does not make up for the last one."""
    assert [run["run_type"] for run in world.api.runs("maintenance") if run["run_type"] != "manual"] == []


def test_maintenance_by_hand_says_what_it_would_do_and_does_nothing(world: World, published: Manifest) -> None:
    before = below_runs(world)
    run = world.api.trigger("maintenance", conf=AT_ONCE)
    assert world.api.wait("maintenance", run, seconds=600, say=lambda line: None) == "success"
    assert world.states("maintenance", run) == {
        "plan": "success",
        "approve": "skipped",
        "rewrite": "skipped",
        "merge": "skipped",
        "gc": "skipped",
    }
    said = report_of(world, run, "plan")
    assert len(said["rewrite"]["rewritten"]) == DAYS
    assert [len(names) for names in said["merge"]["merged"].values()] == [DAYS]
    assert sum(said["gc"]["deleted"].values()) > 0
    assert below_runs(world) == before


def test_a_person_is_shown_what_maintenance_would_do_and_it_is_done(
    world: World, published: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, manifest = world.lake, published
    before = served(lake, manifest)
    run = world.api.trigger("maintenance", conf={**AT_ONCE, "dry_run": False, "approve": True})
    world.until(lambda: world.states("maintenance", run).get("approve") == "awaiting_input", 600)
    assert world.states("maintenance", run)["rewrite"] is None, "nothing is done before the answer"
    state, asked = world.answer_until_ended("maintenance", run, "approve", "Approve")
    assert state == "success"
    assert asked["subject"] == "Rewrite, merge and collect as planned?"
    assert f"**Rewrite** {DAYS} parts: of {5 * DAYS} samples {4 * DAYS} stay." in asked["body"]
    assert f"**Merge** {DAYS} parts into 1." in asked["body"]
    assert "**give up** 0 versions." in asked["body"], "the trial was given up before"
    assert set(world.states("maintenance", run).values()) == {"success"}
    assert report_of(world, run, "gc")["deleted"] == report_of(world, run, "plan")["gc"]["deleted"]
    assert sum(report_of(world, run, "gc")["marked"].values()) > 0, "the parts between rewriting and merging"

    [merged] = committed_parts(lake, "demo")
    assert merged.samples == 4 * DAYS
    trial = {each.uri for each in list_objects(lake.release(manifest.dataset, "trial"))}
    assert trial == {lake.claim(manifest.dataset, "trial"), lake.release_tombstone(manifest.dataset, "trial")}
    assert len(before) == 4 * DAYS
    assert served(lake, manifest) == before
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)  # the loader is not what is tested here
    assert verify_manifest(lake.manifest(manifest.dataset, manifest.version)).faults == ()


# Opt-outs, over what maintenance has left


@pytest.fixture(scope="module")
def excluded(world: World, published: Manifest) -> str:
    """A sample that somebody asks to be left out, by its id, and a person confirms: the run."""
    form = {
        "action": "exclude",
        "reference": "T-7",
        "keys": f"id {wanted(world, published)}\nid demo/nobody.jpg\nwhat is this\n",
        "ask_above": 0,
    }
    run = world.api.trigger("optout", conf=form)
    world.until(lambda: world.states("optout", run).get("confirm") == "awaiting_input", 600)
    assert world.states("optout", run)["apply"] is None, "nothing is done before the answer"
    state, asked = world.answer_until_ended("optout", run, "confirm", "Approve")
    assert asked["body"].count("demo/1-") == 0, "no key is shown to whoever sees the run"
    assert re.search(r"2 keys match [1-9] places in parts \(demo [1-9]\)", asked["body"])
    assert state == "success"
    return run


def wanted(world: World, manifest: Manifest) -> str:
    """The smallest id that the release serves without opt-outs."""
    return min(without_optouts(world, manifest))


def without_optouts(world: World, manifest: Manifest) -> set[str]:
    uri = world.lake.manifest(manifest.dataset, manifest.version)
    return {name for source in manifest.sources for name in kept_ids(uri, source.group)}


def served_now(world: World, manifest: Manifest) -> set[str]:
    """By the training loader, in a process of its own."""
    script = (
        "import sys, json; from smalti.loader import ReleaseDataset\n"
        "print(json.dumps([sample['id'] for sample in ReleaseDataset(sys.argv[1], batch_size=1)]))\n"
    )
    uri = world.lake.manifest(manifest.dataset, manifest.version)
    done = subprocess.run([sys.executable, "-c", script, uri], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_what_was_opted_out_is_served_no_more_and_the_receipt_says_so(
    world: World, published: Manifest, excluded: str
) -> None:
    name = wanted(world, published)
    assert served_now(world, published) == without_optouts(world, published) - {name}
    said = world.api.xcom("optout", excluded, "prove")
    receipt = read_bytes(said["receipt"]).decode()
    assert said["effective"] is True
    assert {each["id"] for each in json.loads(receipt)["samples"]} == {name}
    assert json.loads(receipt)["unmatched"] == 1
    page = read_bytes(said["page"]).decode()
    assert "T-7" in page
    request = world.api.xcom("optout", excluded, "receive")["request"]
    [rejected] = read_bytes(world.lake.optout_rejected(request)).decode().splitlines()
    assert json.loads(rejected)["row"] == 3
    answer = json.loads(read_bytes(world.lake.optout_answer(request)))
    assert (answer["apply"], bool(answer["by"])) == (True, True)


def test_a_file_in_the_inbox_becomes_a_run_and_a_withdrawal_takes_a_request_back(
    world: World, published: Manifest, excluded: str
) -> None:
    first = world.api.xcom("optout", excluded, "receive")["request"]
    inbox = Path(world.lake.optout_inbox().removeprefix("file://")) / "query" / "T-8"
    inbox.mkdir(parents=True)
    (inbox / "keys.csv").write_text("kind,value\nid,demo/nobody.jpg\n")
    run = world.api.trigger("optout_inbox")
    back = world.api.trigger("optout", conf={"action": "withdraw", "reference": "T-9", "withdraws": first})
    assert world.api.wait("optout_inbox", run, seconds=600, say=lambda line: None) == "success"
    assert world.answer_until_ended("optout", back, "confirm", "Approve")[0] == "success"
    assert list(inbox.rglob("*.csv")) == []
    [query] = [each["dag_run_id"] for each in world.api.runs("optout") if each["dag_run_id"].startswith("request_")]
    assert world.api.wait("optout", query, seconds=600, say=lambda line: None) == "success"
    assert world.states("optout", query)["apply"] == "skipped", "a query applies nothing"
    assert served_now(world, published) == without_optouts(world, published), "until somebody asks again"


def test_late_requests_fail_the_watch(world: World, excluded: str) -> None:
    run = world.api.trigger("optout_watch")
    assert world.api.wait("optout_watch", run, seconds=600, say=lambda line: None) == "success"
    found = world.api.xcom("optout_watch", run, "watch")
    assert found["overdue"] == 0
    assert "T-7" in read_bytes(found["page"]).decode()


# Opt-outs by every kind of key, side by side


@dataclass(frozen=True)
class Planted:
    """Pictures, each with three copies in two other sources, and whoever reads the dataset before anything is asked."""

    asked: tuple[Asked, ...]
    readers: Readers


@pytest.fixture(scope="module")
def planted(world: World, excluded: str) -> Planted:
    asked, versions = plant(world.lake)
    return Planted(asked, Readers.start(world.lake, world.home / "readers", versions))


@pytest.fixture(scope="module")
def receipts(world: World, planted: Planted) -> dict[str, Any]:
    """Ask for all pictures at once, each by another kind of key; kind -> receipt."""
    runs = {each.kind: ask_by_form(world, each) for each in planted.asked if each.kind != "image"}
    runs["image"] = ask_by_inbox(world, next(each for each in planted.asked if each.kind == "image"))
    asked = world.answer_until_ended("optout", runs["domain"], "confirm", "Approve")[1]
    assert asked["subject"]
    for run in runs.values():
        assert world.api.wait("optout", run, seconds=600, say=lambda line: None) == "success"
    confirmed = {kind: world.states("optout", run)["confirm"] for kind, run in runs.items()}
    assert confirmed == {kind: "success" if kind == "domain" else "skipped" for kind in runs}
    said = {kind: world.api.xcom("optout", run, "prove") for kind, run in runs.items()}
    assert [each["effective"] for each in said.values()] == [True] * len(runs)
    return {kind: json.loads(read_bytes(each["receipt"])) for kind, each in said.items()}


def ask_by_form(world: World, asked: Asked) -> str:
    """Trigger a run; a picture is named by where it lies."""
    conf = {"action": "exclude", "reference": f"by {asked.kind}", "keys": asked.key}
    if not asked.key:
        file = world.home / f"{asked.kind}.webp"
        file.write_bytes(asked.encoded)
        conf = {"action": "exclude", "reference": f"by {asked.kind}", "file": file.as_uri()}
    return world.api.trigger("optout", conf=conf)


def ask_by_inbox(world: World, asked: Asked) -> str:
    """Drop the file; gives the run that it starts."""
    inbox = Path(world.lake.optout_inbox().removeprefix("file://")) / "exclude" / f"by {asked.kind}"
    inbox.mkdir(parents=True)
    (inbox / "mine.jpg").write_bytes(asked.file)
    known = {each["dag_run_id"] for each in world.api.runs("optout")}
    world.api.trigger("optout_inbox")

    def started() -> list[str]:
        runs = {each["dag_run_id"] for each in world.api.runs("optout")} - known
        return [each for each in runs if each.startswith("request_")]

    world.until(started)
    return started()[0]


def test_a_request_by_each_kind_of_key_reaches_the_picture_its_copies_and_no_other(
    planted: Planted, receipts: dict[str, Any]
) -> None:
    found = {kind: {sample["id"] for sample in receipt["samples"]} for kind, receipt in receipts.items()}
    assert found == {each.kind: each.ids for each in planted.asked}
    assert {kind: receipt["found"] for kind, receipt in receipts.items()} == dict.fromkeys(receipts, 4)
    hows = {kind: sorted(sample["how"] for sample in receipt["samples"]) for kind, receipt in receipts.items()}
    for kind in ("id", "url", "owner", "domain"):
        assert hows[kind] == ["copy", "copy", "copy", "key"]
    versions = {each.version for each in planted.readers.versions}
    for receipt in receipts.values():
        live = {(each["dataset"], each["version"]) for each in receipt["releases"]}
        assert {version for dataset, version in live if dataset == DATASET} == versions
        [tree] = [version for dataset, version in live if dataset == TREES.dataset.name]
        assert tree != "v1", "the tree was made anew"


def test_a_published_tree_is_made_anew_and_the_old_ones_cannot_be_rolled_back_to(
    world: World, read_again: Read
) -> None:
    latest = read_latest(world.lake, TREES.dataset.name)
    assert latest is not None
    stones = [each.version for each in latest.succeeded]
    assert stones[0] == "v1"
    assert latest.version not in stones
    for version in stones:
        with pytest.raises(InputError, match=r"succeeded|given up"):
            rollback(world.lake, TREES.dataset.name, version)


@dataclass(frozen=True)
class Read:
    """What readers were served after all requests, and the release that was built then."""

    fresh: list[list[str]]
    resumed: list[list[str]]
    steps: list[set[str]]
    following: Manifest
    kept: set[str]


def in_turn(planted: Planted, receipts: dict[str, Any]) -> list[Asked]:
    return sorted(planted.asked, key=lambda each: int(receipts[each.kind]["position"]))


@pytest.fixture(scope="module")
def read_again(world: World, planted: Planted, receipts: dict[str, Any]) -> Read:
    """Whatever comes after this may change the versions."""
    planted.readers.refresh()
    positions = [int(receipts[each.kind]["position"]) for each in in_turn(planted, receipts)]
    assert len(set(positions)) == len(positions)
    fresh, resumed, steps = planted.readers.after([positions[0] - 1, *positions])
    following = release(world.lake, RUN)
    return Read(fresh, resumed, steps, following, without_optouts(world, following))


def test_it_is_gone_for_runs_that_start_or_resume_from_copies_and_trees_and_from_the_next_release(
    planted: Planted, receipts: dict[str, Any], read_again: Read
) -> None:
    readers, gone = planted.readers, set[str]().union(*(each.ids for each in planted.asked))
    before = dict(zip(readers.names, (each["ids"] for each in readers.before), strict=True))
    assert set(before["v2 with duplicates"]) == gone | others()
    for name, ids in zip(readers.names, read_again.fresh, strict=True):
        assert len(ids) == len(set(ids))
        assert set(ids) == set(before[name]) - gone, name
    runs = [name for name in readers.names if not name.endswith("tree")]
    for name, ids in zip(runs, read_again.resumed, strict=True):
        rest = before[name][len(before[name]) // 2 :]
        assert set(rest) & gone, "something of it had been opted out"
        assert not set(ids) & gone, name
        assert [new for new, old in zip(ids, rest, strict=True) if old not in gone] == [
            old for old in rest if old not in gone
        ]
        assert set(ids) <= set(before[name])
    for each, earlier, later in zip(in_turn(planted, receipts), read_again.steps, read_again.steps[1:], strict=False):
        assert earlier - later == each.ids, each.kind
        assert later < earlier
    assert read_again.following.version == "v3"
    assert read_again.kept == others()


@pytest.fixture(scope="module")
def erased(world: World, planted: Planted, read_again: Read) -> str:
    """The first of the pictures, erased and removed; the request."""
    asked = planted.asked[0]
    before = found_in(world, asked, asked.ids)
    assert any(path.startswith("parts/") for path in before)
    form = {"action": "erase", "reference": "T-10", "keys": f"id {asked.id}", "grace_days": 0}
    run = world.api.trigger("optout", conf=form)
    assert world.api.wait("optout", run, seconds=900, say=lambda line: None) == "success"
    states = world.states("optout", run)
    assert states.pop("confirm") == "skipped"
    assert set(states.values()) == {"success"}
    return str(world.api.xcom("optout", run, "receive")["request"])


def found_in(world: World, asked: Asked, ids: Iterable[str]) -> dict[str, set[str]]:
    """Path in the lake -> what is found there of a picture, outside the ledger and the receipts."""
    root = Path(world.lake.root.removeprefix("file://"))
    found = Search(root, set(ids), {asked.file, *copies(asked.file)}).everything()
    return {path: what for path, what in found.items() if not ALLOWED.fullmatch(path)}


def test_what_is_erased_is_found_nowhere_in_the_lake(
    world: World, planted: Planted, read_again: Read, erased: str
) -> None:
    asked = planted.asked[0]
    assert "T-10" in read_bytes(world.lake.optout_receipt_page(erased, "erase")).decode()
    assert found_in(world, asked, asked.ids) == {}
    latest = read_latest(world.lake, read_again.following.dataset)
    assert latest is not None
    assert latest.version not in {"v1", "v2", "v3"}, "successors are in the place of what held it"
    uri = world.lake.manifest(read_again.following.dataset, latest.version)
    assert served_now(world, read_manifest(uri)) == others()


def test_what_comes_back_after_the_proof_is_seen_by_the_watch_and_erased_again(
    world: World, planted: Planted, erased: str
) -> None:
    asked = planted.asked[0]
    late = deliver_again(world.lake, asked)
    assert found_in(world, asked, [late])
    watch = world.api.trigger("optout_watch")
    assert world.api.wait("optout_watch", watch, seconds=600, say=lambda line: None) == "success"
    assert list(world.api.xcom("optout_watch", watch, "look")["again"]) == [erased]
    [again] = [each for each in (run["dag_run_id"] for run in world.api.runs("optout")) if each.startswith("again_")]
    assert world.api.wait("optout", again, seconds=900, say=lambda line: None) == "success"
    assert found_in(world, asked, [late, *asked.ids]) == {}
    assert read_erase_receipt(world.lake, erased, 2) is not None
    once_more = world.api.trigger("optout_watch")
    assert world.api.wait("optout_watch", once_more, seconds=600, say=lambda line: None) == "success"
    assert world.api.xcom("optout_watch", once_more, "look")["again"] == {}
