"""Long-lived processes of our own: started in a session of their own, found again by another process, ended completely.

A pid alone may have been given to another program since; pid and start time together name one process for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smalti.errors import SmaltiError

Say = Callable[[str], None]
"""Where progress goes, a line at a time."""

FIRST_PORT, LAST_PORT = 20000, 32000  # below the range the kernel hands out (net.ipv4.ip_local_port_range)
TERM_SECONDS = 8.0  # the interpreters of Airflow spend most of it on tearing themselves down
KILL_SECONDS = 10.0


class ServerError(SmaltiError):
    """A server did not start, or died."""


@dataclass(frozen=True)
class Process:
    """One process, and by its session all of its descendants.

    `started` is its start in clock ticks since boot, from /proc/<pid>/stat.
    """

    pid: int
    started: int
    log: str

    @property
    def alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state != "Z"


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    session: int
    started: int


def spawn(command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> Process:
    """Start `command` as the leader of a new session, its output appended to `log`; it outlives us."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env), cwd=cwd, start_new_session=True
        )
    stat = _stat(child.pid)
    if stat is None:  # only if it was reaped, and nobody else waits for our child
        raise ServerError(f"{command[0]} was gone at once", str(log), "Read the log")
    return Process(child.pid, stat.started, str(log))


def family(leaders: Iterable[Process]) -> dict[int, int]:
    """All living processes that belong to `leaders`, pid -> start time.

    A member of a leader's session is ours, whatever became of the leader: the kernel reuses no pid that still names a
    session. So is every descendant of those, also one that opened a session of its own (a Ray job's driver).
    """
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None and stat.state != "Z"}
    sessions = {p.pid for p in leaders if (leader := stats.get(p.pid)) is None or leader.started == p.started}
    found = {pid for pid, stat in stats.items() if stat.session in sessions}
    while more := {pid for pid, stat in stats.items() if stat.parent in found} - found:
        found |= more
    return {pid: stats[pid].started for pid in found}


def end(leaders: Sequence[Process]) -> int:
    """End `leaders` and all that is theirs: TERM, wait, KILL. Gives the number of processes ended.

    Raises:
        ServerError: something survived SIGKILL.
    """
    known: dict[int, int] = {}
    asked: set[int] = set()
    began = time.monotonic()
    while True:
        # Asked anew each time: those that die leave children to init, and some start more on their way out.
        known |= family(leaders)
        living = {pid for pid, started in known.items() if _lives(pid, started)}
        _reap(leaders)
        waited = time.monotonic() - began
        if not living:
            return len(known)
        if waited > TERM_SECONDS + KILL_SECONDS:
            raise ServerError(f"processes {sorted(living)} survived SIGKILL", "stop", "Look at them with ps")
        if waited > TERM_SECONDS:
            _signal(living, signal.SIGKILL)
            time.sleep(0.5)
        else:
            _signal(living - asked, signal.SIGTERM)
            asked |= living
            time.sleep(0.1)


def memory(leaders: Iterable[Process]) -> dict[int, int]:
    """Proportional set size in bytes of each process of `leaders`: shared pages are divided among their users."""
    sizes = {}
    for pid in family(leaders):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    sizes[pid] = int(line.split()[1]) * 1024
    return sizes


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now.

    They lie outside the range from which the kernel gives ports to clients, and two calls start at different places,
    so that two sets of servers started at once are unlikely to meet.
    """
    ports: list[int] = []
    span = LAST_PORT - FIRST_PORT
    start = int.from_bytes(os.urandom(4), "big")
    for offset in range(span):
        if len(ports) == count:
            return ports
        port = FIRST_PORT + (start + offset) % span
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))  # on every address: Ray's own servers listen on all
            ports.append(port)
    raise ServerError(f"no {count} free ports", f"{FIRST_PORT}-{LAST_PORT}", "End something that listens there")


@dataclass(frozen=True)
class Waiting:
    """For a server to be ready: `ready` gives None then, and before that a text that says what is still missing."""

    name: str
    process: Process
    ready: Callable[[], str | None]
    seconds: float


def wait_until_ready(servers: Sequence[Waiting], say: Say = print) -> None:
    """Wait for all of them together, saying what each is waiting for when that changes.

    Raises:
        ServerError: one died, or its time is over; the message holds the tail of its log.
    """
    began = time.monotonic()
    shown: dict[str, str] = {}
    waiting = list(servers)
    while waiting:
        for each in list(waiting):
            missing = each.ready()
            waited = time.monotonic() - began
            if missing is None:
                say(f"  {each.name}: ready after {waited:.0f} s")
                waiting.remove(each)
            elif not each.process.alive:
                what = f"{each.name} ended while starting: {tail(each.process.log)}"
                raise ServerError(what, each.process.log, "Read the log")
            elif waited > each.seconds:
                what = f"{each.name} is not ready after {each.seconds:.0f} s ({missing}): {tail(each.process.log)}"
                raise ServerError(what, each.process.log, "Read the log")
            elif shown.get(each.name) != missing:
                say(f"  {each.name}: {missing} ({waited:.0f} s)")
                shown[each.name] = missing
        time.sleep(0.3)


def tail(log: str, lines: int = 15) -> str:
    """The last lines of a log that say something."""
    try:
        text = Path(log).read_bytes()[-20_000:].decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may itself hold blanks and parentheses; the numbers come after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(state=fields[0], parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def _lives(pid: int, started: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat.started == started and stat.state != "Z"


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _reap(leaders: Iterable[Process]) -> None:
    """Whoever started a leader is its parent, and a dead child stays until its parent has asked for its status."""
    for leader in leaders:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(leader.pid, os.WNOHANG)
