"""Which files of a directory were found to be right: DIR/.smalti/verified.jsonl, so that the next pull need not read them again.

One line a file: its name, the digest of what it was compared with, and its time then. The size is always compared. Lines are
appended as it goes; one that cannot be read says nothing, so that its file is looked at again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from smalti.errors import ConflictError

log = logging.getLogger("smalti")


class Notes:
    """The notes of one directory, for threads of one process.

    Args:
        recheck: know nothing, so that every file is read again.
    """

    def __init__(self, path: Path, recheck: bool = False) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, int]] = {}
        data = b"" if recheck or not path.is_file() else path.read_bytes()
        for line in data.splitlines():
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # half a line of a pull that was killed
                name, digest, mtime = json.loads(line)
                self._known[name] = (digest, mtime)

    def holds(self, name: str, path: Path, size: int, digest: str, found: Callable[[Path], str]) -> bool:
        """Whether a file is what it must be. What is not, or cannot be read, is to be written anew.

        Args:
            name: under which it is noted.
            size, digest: of what it must be.
            found: its digest, read from its bytes; asked only if nothing is noted.
        Raises:
            ConflictError: a directory is in its place.
        """
        try:
            if path.is_dir():
                raise ConflictError(
                    "there is a directory in the place of a shard", str(path), "Remove it, or use another directory"
                )
            stat = path.stat()
            if stat.st_size == size and (
                self._known.get(name) == (digest, stat.st_mtime_ns) or self._read(name, path, digest, found)
            ):
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("%s cannot be read (%s), and is fetched anew", path, error.strerror)
            return False
        log.warning("%s is not what the release has there, and is fetched anew", path)
        return False

    def _read(self, name: str, path: Path, digest: str, found: Callable[[Path], str]) -> bool:
        if found(path) != digest:
            return False
        self.note(name, path, digest)
        return True

    def note(self, name: str, path: Path, digest: str) -> None:
        """That this file was compared with this digest just now."""
        line = json.dumps([name, digest, path.stat().st_mtime_ns])
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")
