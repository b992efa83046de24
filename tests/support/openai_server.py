"""A server that speaks OpenAI's chat completions, counts what it is asked about, and fails as it is told.

with serve_openai(lambda asked: f"A picture of {asked.row}.", faults=seeded(1, share=0.3)) as server:
    ...  # ask server.base_url, from this process or others
assert server.answered == {row: 1 for row in rows}
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        row: what it is about: the text that matched `rows`, else the picture's sha256, else the user's turn.
        text: the user's turn.
        sha256: of the JPEG, in hex; None without a picture.
        number: how often this row was asked about, from 1.
        body: the whole request, without the picture.
        headers: lower-case name -> value.
    """

    row: str
    text: str
    sha256: str | None
    number: int
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass(frozen=True)
class Fault:
    """What the server does instead of answering.

    Attributes:
        status, body, headers: what it sends.
        trick: "reset": closes with RST; "stall": says nothing until the server stops; "drip": a byte
            each 20 ms until then; "cut": promises more than it sends.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    trick: Literal["", "reset", "stall", "drip", "cut"] = ""


def refusal(status: int, message: str = "a planned fault", **headers: str) -> Fault:
    """An error as OpenAI words it. `Retry_After="1"` becomes that header."""
    body = json.dumps({"error": {"message": message, "type": "planned"}}).encode()
    return Fault(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


FAULTS: dict[str, Fault] = {
    "429": refusal(429),
    "429-after": refusal(429, Retry_After="1"),
    "500": refusal(500),
    "503": refusal(503),
    "503-after": refusal(503, Retry_After="1"),
    "reset": Fault(trick="reset"),
    "stall": Fault(trick="stall"),
    "html": Fault(body=b"<html><body>Bad gateway</body></html>"),
    "cut-json": Fault(body=b'{"choices": [{"message": {"content": "A pic'),
    "cut-body": Fault(body=b'{"choices": [{"message": {"content": "A pic', trick="cut"),
    "wrong-json": Fault(body=b'{"object": "list", "data": []}'),
}
"""Every fault that goes away when it is asked again."""

Faults = Callable[[Asked], Fault | None]


def seeded(seed: int, share: float, most: int = 3, kinds: Sequence[str] = tuple(FAULTS)) -> Faults:
    """A random mix, the same for a seed whatever the order: `share` of the first `most` requests about each row fail."""

    def fault(asked: Asked) -> Fault | None:
        chance = random.Random(f"{seed}/{asked.row}/{asked.number}")
        return FAULTS[chance.choice(kinds)] if asked.number <= most and chance.random() < share else None

    return fault


def planned(plan: Mapping[str, Sequence[Fault | str | None]]) -> Faults:
    """Row -> what happens at its first request, its second, ...; a fault's name or the fault; then it is answered."""

    def fault(asked: Asked) -> Fault | None:
        row = plan.get(asked.row, ())
        each = row[asked.number - 1] if asked.number <= len(row) else None
        return FAULTS[each] if isinstance(each, str) else each

    return fault


def always(fault: Fault | str) -> Faults:
    """One fault, for every request."""
    found = FAULTS[fault] if isinstance(fault, str) else fault
    return lambda _: found


class OpenAIServer(http.server.ThreadingHTTPServer):
    """What was asked and answered so far. `asked` and `answered` count by row, `faults` by row what failed."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self, port: int, caption: Callable[[Asked], str], rows: str, faults: Faults | None, delay: float
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.caption, self.rows, self.fault, self.delay = caption, re.compile(rows), faults, delay
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.last: deque[Asked] = deque(maxlen=1000)
        self.times: deque[tuple[float, str]] = deque(maxlen=10000)
        self.busy = self.busiest = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no trouble."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: OpenAIServer

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            return self._send(404, b'{"error": {"message": "no such path"}}', {})
        server = self.server
        with server.lock:
            server.busy += 1
            server.busiest = max(server.busiest, server.busy)
            asked = self._asked(body)
        try:
            self._do(asked)
        finally:
            with server.lock:
                server.busy -= 1

    def _asked(self, body: dict[str, Any]) -> Asked:
        text, digest = "", None
        content = body["messages"][-1]["content"]
        parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part["type"] == "text":
                text = part["text"]
            else:
                url = part["image_url"].pop("url")
                digest = hashlib.sha256(
                    base64.b64decode(url.removeprefix("data:image/jpeg;base64,"), validate=True)
                ).hexdigest()
        match = self.server.rows.search(text)
        row = match[0] if match else digest or text
        self.server.asked[row] += 1
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(row, text, digest, self.server.asked[row], body, headers)
        self.server.last.append(asked)
        self.server.times.append((time.monotonic(), row))
        return asked

    def _do(self, asked: Asked) -> None:
        server = self.server
        fault = server.fault(asked) if server.fault else None
        if fault is None:
            if server.delay:
                server.stopping.wait(server.delay)
            self._send(200, completion(server.caption(asked), str(asked.body.get("model"))), {})
            with server.lock:
                server.answered[asked.row] += 1
            return
        with server.lock:
            server.failed[asked.row] += 1
        if fault.trick == "stall":
            server.stopping.wait()
        if fault.trick == "reset":  # lingering for 0 s turns the FIN into a RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault.trick in ("stall", "reset"):
            self.close_connection = True
            self.connection.close()
            return
        if fault.trick == "drip":
            self._send(200, b" ", {}, more=1 << 20)
            while not server.stopping.wait(0.02):
                self.wfile.write(b" ")
            return
        self._send(fault.status, fault.body, dict(fault.headers), more=100 if fault.trick == "cut" else 0)

    def _send(self, status: int, body: bytes, headers: dict[str, str], more: int = 0) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + more))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.close_connection or more > 0


def completion(text: str | None, model: str = "m", finish: str = "stop", **fields: Any) -> bytes:
    """A chat completion's JSON; `tokens` are the text's words."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    usage = {"prompt_tokens": 1, "completion_tokens": len((text or "").split()), "total_tokens": 1}
    made = {"id": "c", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}
    return json.dumps(made | fields).encode()


@contextmanager
def serve_openai(
    caption: Callable[[Asked], str] = lambda asked: f"about {asked.row}",
    *,
    rows: str = r"row-\d+",
    faults: Faults | None = None,
    delay: float = 0.0,
    port: int = 0,
) -> Iterator[OpenAIServer]:
    """Serve on a free port of the loopback until the block ends; every request has a thread.

    Args:
        caption: from a request to its answer; called in the request's thread.
        rows: pattern of the part of the user's turn that names the row.
        faults: what goes wrong (`seeded`, `planned`, `always`, or a function); None: nothing.
        delay: seconds before each answer.
    """
    server = OpenAIServer(port, caption, rows, faults, delay)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
