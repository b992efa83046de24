"""Objects on a local or mounted file system: written under an attempt name, safely on disk, and linked into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from smalti.stores.faults import lake_errors
from smalti.stores.uris import ATTEMPT_PREFIX, Generation, ObjectInfo, file_uri, local_path


class Files:
    """A local or mounted file system."""

    def create(self, uri: str, data: bytes) -> bool:
        path = _path(uri)
        with lake_errors(uri), _attempt(path, data) as attempt:
            try:
                os.link(attempt, path)
            except FileExistsError:
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
                return False
            _sync_directory(path.parent)
        return True

    def read(self, uri: str) -> bytes:
        with _reading(uri):
            return _path(uri).read_bytes()

    def open(self, uri: str) -> IO[bytes]:
        with _reading(uri):
            return _path(uri).open("rb")

    def read_versioned(self, uri: str) -> tuple[bytes, str] | None:
        with lake_errors(uri):
            try:
                with _path(uri).open("rb") as file:
                    return file.read(), str(os.fstat(file.fileno()).st_mtime_ns)
            except _NOTHING:
                return None

    def swap(self, uri: str, data: bytes, expected: str | None) -> bool:
        path = _path(uri)
        with lake_errors(uri), _attempt(path, data) as attempt, _locked(path.parent):
            now = self.read_versioned(uri)
            if (now[1] if now else None) != expected:
                return False
            if expected is not None:  # mtime is the generation: it must move even on a coarse clock
                newer = max(attempt.stat().st_mtime_ns, int(expected) + 1)
                os.utime(attempt, ns=(newer, newer))
            os.replace(attempt, path)
            _sync_directory(path.parent)
        return True

    def stat(self, uri: str) -> ObjectInfo | None:
        path = _path(uri)
        with lake_errors(uri):
            try:
                found = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            if path.is_dir():
                return None
            return ObjectInfo(uri, str(found.st_mtime_ns), found.st_size, written=found.st_mtime)

    def sizes(self, root: str, names: Sequence[str]) -> list[int | None]:
        folder = _path(root)
        found: list[int | None] = []
        with lake_errors(root):
            for name in names:
                try:
                    found.append(os.stat(os.path.join(folder, name)).st_size)
                except (FileNotFoundError, NotADirectoryError):
                    found.append(None)
        return found

    def walk(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._walk(prefix, lambda name: not name.startswith((ATTEMPT_PREFIX, ".swap-lock")))

    def attempts(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._walk(prefix, lambda name: name.startswith(ATTEMPT_PREFIX))

    def generations(self, prefix: str) -> Iterator[Generation]:
        return iter(())

    def read_generation(self, uri: str, generation: str) -> bytes | None:
        return None

    def delete_generation(self, uri: str, generation: str) -> bool:
        return False

    def _walk(self, prefix: str, wanted: Callable[[str], bool]) -> Iterator[ObjectInfo]:
        with lake_errors(prefix):
            found = sorted(
                os.path.join(folder, name)
                for folder, folders, names in os.walk(_path(prefix), onerror=_raise_unless_missing)
                for name in names
                if wanted(name)
            )
        for path in found:
            info = self.stat(file_uri(path))
            if info is not None:
                yield info

    def delete(self, uri: str, generation: str | None = None) -> bool:
        path = _path(uri)
        with lake_errors(uri), contextlib.nullcontext() if generation is None else _locked(path.parent):
            try:
                if generation is not None and str(path.stat().st_mtime_ns) != generation:
                    return False
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return False
            except (IsADirectoryError, PermissionError):
                if path.is_dir():
                    return False
                raise
            _sync_directory(path.parent)
        return True

    def names(self, prefix: str) -> list[str]:
        with lake_errors(prefix):
            try:
                names = os.listdir(_path(prefix))
            except _NOTHING:
                return []
            return sorted(n for n in names if not n.startswith((ATTEMPT_PREFIX, ".swap-lock")))

    def download(self, uri: str, out: IO[bytes]) -> None:
        with _reading(uri), _path(uri).open("rb") as source:
            shutil.copyfileobj(source, out, 1 << 20)

    def copy(self, source: str, target: str) -> bool:
        return self.create(target, self.read(source))


_NOTHING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Where a directory lies in an object's place, or a file in a directory's, there is no such object: on GCS both can be."""


@contextlib.contextmanager
def _reading(uri: str) -> Iterator[None]:
    with lake_errors(uri):
        try:
            yield
        except _NOTHING as error:
            raise FileNotFoundError(str(error)) from error


def _path(uri: str) -> Path:
    path = local_path(uri)
    assert path is not None  # smalti.objects chose Files
    return path


@contextlib.contextmanager
def _attempt(path: Path, data: bytes) -> Iterator[Path]:
    """The bytes under an attempt name beside `path`, safely on disk; removed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f"{ATTEMPT_PREFIX}{path.name[:64]}-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other swap in this directory meanwhile. Nothing is locked where there is no directory."""
    try:
        lock = (folder / ".swap-lock").open("w")
    except _NOTHING:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync_directory(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
