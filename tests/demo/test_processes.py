"""Processes are found and ended by pid and start time, with all that is theirs, and nobody else's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo import processes
from demo.processes import Process, ServerError, Waiting, end, family, free_ports, spawn, wait_until_ready


@pytest.fixture
def started() -> Iterator[list[Process]]:
    leaders: list[Process] = []
    yield leaders
    end(leaders)


def shell(started: list[Process], tmp_path: Path, script: str, members: int) -> Process:
    """A shell that runs `script`, once it and its children are `members` processes."""
    process = spawn(["sh", "-c", script], tmp_path / "log", os.environ, tmp_path)
    started.append(process)
    until = time.monotonic() + 20
    while len(family([process])) < members and time.monotonic() < until:
        time.sleep(0.02)
    assert len(family([process])) == members
    return process


def test_children_end_too_also_those_with_a_session_of_their_own(started: list[Process], tmp_path: Path) -> None:
    process = shell(started, tmp_path, "sleep 600 & setsid sleep 600 & wait", 3)
    members = family([process])
    assert end([process]) == 3
    assert not process.alive
    assert not any(Process(pid, started_at, "").alive for pid, started_at in members.items())


def test_children_of_a_leader_that_died_are_found(started: list[Process], tmp_path: Path) -> None:
    process = shell(started, tmp_path, "sleep 600 & sleep 600", 3)
    os.kill(process.pid, signal.SIGKILL)
    assert end([process]) >= 2
    assert family([process]) == {}


def test_what_ignores_term_is_killed(started: list[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.5)
    process = shell(started, tmp_path, "trap '' TERM; sleep 600 & wait; sleep 600", 2)
    end([process])
    assert not process.alive
    assert family([process]) == {}


def test_a_pid_that_was_given_to_another_process_is_left_alone(started: list[Process], tmp_path: Path) -> None:
    process = shell(started, tmp_path, "sleep 600 & wait", 2)
    former = replace(process, started=process.started - 1)
    assert not former.alive
    assert end([former]) == 0
    assert process.alive


def test_ports_are_free_and_each_is_given_once() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(processes.FIRST_PORT <= port < processes.LAST_PORT for port in ports)


def test_a_server_that_dies_while_starting_is_reported_with_its_last_words(
    started: list[Process], tmp_path: Path
) -> None:
    process = spawn(["sh", "-c", "echo no such module"], tmp_path / "log", os.environ, tmp_path)
    started.append(process)
    with pytest.raises(ServerError, match="Thing ended while starting: no such module") as caught:
        wait_until_ready([Waiting("Thing", process, lambda: "starting", 20)], lambda line: None)
    assert str(tmp_path / "log") in str(caught.value)


def test_waiting_has_an_end_and_shows_each_change_once(started: list[Process], tmp_path: Path) -> None:
    process = shell(started, tmp_path, "exec sleep 600", 1)
    answers = iter(["starting", "starting", "half", *["half"] * 100])
    said: list[str] = []
    with pytest.raises(ServerError, match=r"not ready after 1 s \(half\)"):
        wait_until_ready([Waiting("Thing", process, lambda: next(answers), 1.0)], said.append)
    assert [line.split(" (")[0] for line in said] == ["  Thing: starting", "  Thing: half"]
