"""Bring a shard here, and let nothing but its own bytes appear under its name."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

from smalti.errors import CorruptError
from smalti.objects import ATTEMPT_PREFIX, download


def fetch(uri: str, path: Path, sha256: str) -> None:
    """Download an object under another name, check it, and put it in place.

    Raises:
        MissingObject, LakeError
        CorruptError: the bytes are not what was recorded; nothing appears at `path`.
    """
    attempt = path.with_name(f"{ATTEMPT_PREFIX}{path.name}-{uuid.uuid4().hex}")
    try:
        download(uri, attempt)
        found = file_sha256(attempt)
        if found != sha256:
            raise CorruptError(
                f"the bytes have the sha256 {found}, not {sha256}",
                uri,
                "Run smalti verify on the release; restore the object, or use another version",
            )
        attempt.replace(path)
    finally:
        attempt.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
