"""A Ray head's Jobs API with a memory: what tests of the client, the operator and the trigger talk to.

It answers as Ray 2.60 does (tests/integration/test_airflow_ray.py holds the same client against a real head): 404 for a job it
does not know, 500 for one it knows and is asked to submit again, the whole log each time, a token in a header. A job
lives through the states it is given, one step for each look. Faults can be put into the way of any request.
"""

from __future__ import annotations

import json
import shlex
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from smalti.accounting import Report
from smalti.jobs.spec import read_spec, report_uri
from smalti.objects import create_bytes

TOKEN = "canary-9f6c1d"
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
HELD = "RUNNING..."
"""In a job's states: runs until it is stopped or let go."""


@dataclass
class FakeJob:
    """One job: the body it was submitted with, and what is still to come."""

    body: dict[str, Any]
    states: deque[str]
    log: str = "Running entrypoint\n"
    message: str = ""
    exit_code: int | None = None
    report: bool = True
    state: str = "PENDING"
    stops: int = 0

    def step(self) -> None:
        """Go on to the next state, as time passes between two looks."""
        if self.state in ENDED or not self.states or self.states[0] == HELD:
            self.state = "RUNNING" if self.states and self.states[0] == HELD else self.state
            return
        self.state = self.states.popleft()
        if self.state == "SUCCEEDED":
            self.exit_code = 0
            if self.report:
                write_report(self.body["entrypoint"])

    def answer(self) -> dict[str, Any]:
        return {
            "type": "SUBMISSION",
            "submission_id": self.body["submission_id"],
            "status": self.state,
            "message": self.message,
            "driver_exit_code": self.exit_code,
            "entrypoint": self.body["entrypoint"],
        }


def write_report(entrypoint: str) -> str:
    """Write the report that the job of this command would."""
    words = shlex.split(entrypoint)
    spec = read_spec(words[words.index("--spec") + 1])
    uri = report_uri(spec, int(words[words.index("--attempt") + 1]))
    create_bytes(uri, Report(stage=spec.stage, seconds=1.5).model_dump_json().encode())
    return uri


@dataclass
class FakeRay:
    """The head.

    Attributes:
        jobs: by submission id, in the order in which they were accepted.
        lives: what the next submitted jobs go through; the last one is kept for all that follow.
        prepare: called with each new job.
        faults: the next requests of a kind ("GET", "POST", "STOP", "LOGS") meet these instead of their answer: a status
            code, "drop" (the connection ends), "garbage", or "accept+..." for one that is done and then answered so.
        requests: kinds of the requests, in order.
    """

    url: str = ""
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    lives: deque[Sequence[str]] = field(default_factory=lambda: deque([("RUNNING", "SUCCEEDED")]))
    prepare: Callable[[FakeJob], None] = lambda job: None
    faults: dict[str, deque[str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    log_delay: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def fail(self, kind: str, *faults: str) -> None:
        self.faults.setdefault(kind, deque()).extend(faults)

    def restart(self) -> None:
        """The head is replaced: it knows no job."""
        with self.lock:
            self.jobs.clear()

    def submit(self, body: dict[str, Any]) -> tuple[int, Any]:
        submission = body["submission_id"]
        if submission in self.jobs:
            return 500, f"ValueError: Job with submission_id {submission} already exists."
        life = self.lives.popleft() if len(self.lives) > 1 else self.lives[0]
        job = FakeJob(body, deque(life))
        self.prepare(job)
        self.jobs[submission] = job
        return 200, {"submission_id": submission, "job_id": submission}

    def handle(self, kind: str, submission: str, body: dict[str, Any]) -> tuple[int, Any]:
        if kind == "POST":
            return self.submit(body)
        job = self.jobs.get(submission)
        if job is None:
            return 404, f"Job {submission} does not exist"
        if kind == "GET":
            job.step()
            return 200, job.answer()
        if kind == "LOGS":
            return 200, {"logs": job.log}
        job.stops += 1
        if job.state not in ENDED:
            job.state, job.states = "STOPPED", deque()
        return 200, {"stopped": True}

    def live(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.state not in ENDED]


def _handler(ray: FakeRay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.respond("LOGS" if self.path.endswith("/logs") else "GET")

        def do_POST(self) -> None:
            self.respond("STOP" if self.path.endswith("/stop") else "POST")

        def respond(self, kind: str) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.send(401, "Unauthorized: Missing authentication token")
                return
            submission = unquote(self.path.removeprefix("/api/jobs/").split("/")[0])
            with ray.lock:
                ray.requests.append(kind)
                fault = ray.faults[kind].popleft() if ray.faults.get(kind) else ""
                done, _, fault_after = fault.partition("+") if "+" in fault else ("", "", fault)
                status, answer = (200, {}) if fault and not done else ray.handle(kind, submission, body)
            if kind == "LOGS" and ray.log_delay:
                time.sleep(ray.log_delay)
            if not fault_after:
                self.send(status, answer)
            elif fault_after == "drop":
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
            elif fault_after == "garbage":
                self.send(200, "<html>a proxy's page</html>")
            else:
                self.send(int(fault_after), "Traceback: the agent is not there")

        def send(self, status: int, answer: Any) -> None:
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serve_fake_ray() -> Iterator[FakeRay]:
    """A head on a port of its own."""
    ray = FakeRay()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(ray))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    ray.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield ray
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
