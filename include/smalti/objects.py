"""Objects in a lake or a source, by URI: ``file:///...`` and ``gs://bucket/...`` alike.

Writes are create-only and whole: an object appears with all its bytes or not at all, and is never overwritten. The one
exception is `swap_bytes`, which replaces an object only if it is still the generation that was read (releases/<dataset>/LATEST).
Only the collection of garbage deletes (smalti.maintenance).
On a file system a write goes to an attempt name in the same directory and is linked into place, which fails if the name is
taken; on GCS it is one request with ``ifGenerationMatch=0``. What a killed writer leaves is an attempt nobody lists.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote, unquote, urlsplit

from smalti.errors import ConflictError, InputError, LakeError, MissingObject

ATTEMPT_PREFIX = ".attempt-"
"""File names with this prefix are uncommitted writes: never listed, collected by maintenance."""


@dataclass(frozen=True, order=True)
class ObjectInfo:
    """One object as a listing shows it.

    Attributes:
        uri: full URI.
        generation: what pins the bytes: GCS's generation, or mtime in ns on a file system.
        size: bytes.
        crc32c: base64 of the big-endian checksum, as GCS writes it; "" where the listing does not know it (file://).
        written: when these bytes were written, seconds since 1970, by the store's clock.
    """

    uri: str
    generation: str
    size: int
    crc32c: str = ""
    written: float = 0.0


def join_uri(root: str, *names: str) -> str:
    """Put names below a URI."""
    return "/".join((root.rstrip("/"), *names))


def normalise_uri(uri: str) -> str:
    """A path or URI as ``file:///abs`` or ``gs://bucket/prefix`` without a slash at its end.

    Raises:
        InputError: another scheme, or a bucket without a name.
    """
    if "://" not in uri:
        return "file://" + quote(os.path.abspath(uri))
    scheme, netloc = urlsplit(uri)[:2]
    if scheme == "file" and netloc in ("", "localhost"):
        return "file://" + quote(os.path.abspath(unquote(uri.split("://", 1)[1].removeprefix("localhost"))))
    if scheme == "gs" and netloc:
        return uri.rstrip("/")
    raise InputError("this is not a URI that smalti can read", uri, "Use file:///directory or gs://bucket/prefix")


def local_path(uri: str) -> Path | None:
    """The path of a file:// URI; None for gs://."""
    return Path(unquote(uri[len("file://") :])) if uri.startswith("file://") else None


def file_uri(path: Path | str) -> str:
    """The file:// URI of a path."""
    return normalise_uri(str(path)) if "://" in str(path) else "file://" + quote(os.path.abspath(path))


def create_bytes(uri: str, data: bytes) -> bool:
    """Create an object. Returns False, and changes nothing, if one is there already."""
    return _store(uri).create(uri, data)


def create_same(uri: str, data: bytes) -> bool:
    """Create an object, or find it there with the same bytes.

    Returns: whether this call created it.
    Raises:
        ConflictError: it is there with other bytes.
    """
    if create_bytes(uri, data):
        return True
    if read_bytes(uri) != data:
        raise ConflictError(
            "the object exists with other content",
            uri,
            "Objects are never overwritten: find out which of the two runs is wrong, and write under another name",
        )
    return False


def read_bytes(uri: str) -> bytes:
    """The whole object. Raises MissingObject."""
    return _store(uri).read(uri)


def open_binary(uri: str) -> IO[bytes]:
    """The object as a file that can seek; on GCS a range is fetched at a time. Raises MissingObject."""
    return _store(uri).open(uri)


def read_versioned(uri: str) -> tuple[bytes, str] | None:
    """The object and its generation, read together; None if there is none."""
    return _store(uri).read_versioned(uri)


def swap_bytes(uri: str, data: bytes, expected: str | None) -> bool:
    """Replace an object if its generation is still `expected` (None: if there is none). Returns whether it was done."""
    return _store(uri).swap(uri, data, expected)


def stat(uri: str) -> ObjectInfo | None:
    """Generation and size of an object; None if there is none."""
    return _store(uri).stat(uri)


def exists(uri: str) -> bool:
    return stat(uri) is not None


def list_objects(prefix: str) -> Iterator[ObjectInfo]:
    """Every committed object below a prefix (a directory), in order of URI. A prefix that is not there lists nothing."""
    return _store(prefix).walk(prefix)


def sizes_of(root: str, names: Sequence[str]) -> list[int | None]:
    """Bytes of these objects below a root, None for those that are not there.

    On GCS the names, which are to be sorted, are found by listing from the first to the last: a thousand objects a request,
    those that lie between included.
    """
    return _store(root).sizes(root, names) if names else []


def list_attempts(prefix: str) -> Iterator[ObjectInfo]:
    """What killed writers left below a prefix, in order of URI. Nothing on GCS: there an object appears whole or not at all."""
    return _store(prefix).attempts(prefix)


def delete_object(uri: str) -> bool:
    """Remove an object, for ever. Returns whether it was there; of a directory nothing is removed."""
    return _store(uri).delete(uri)


def list_names(prefix: str) -> list[str]:
    """Names directly below a prefix, objects and directories alike, sorted."""
    return _store(prefix).names(prefix)


def download(uri: str, path: Path) -> None:
    """Copy an object to a local file, which appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    attempt = path.with_name(f"{ATTEMPT_PREFIX}{path.name}-{uuid.uuid4().hex}")
    try:
        with attempt.open("wb") as out:
            _store(uri).download(uri, out)
        attempt.replace(path)
    finally:
        attempt.unlink(missing_ok=True)


def copy_object(source: str, target: str) -> bool:
    """Create `target` with the bytes of `source`, inside the store where both are in one. False if it is there already."""
    if _store(source) is _store(target):
        return _store(source).copy(source, target)
    return create_bytes(target, read_bytes(source))


def crc32c(data: bytes) -> str:
    """The checksum as GCS states it: base64 of 4 big-endian bytes."""
    import google_crc32c

    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def lance_options(uri: str) -> dict[str, str]:
    """`storage_options` for Lance. Empty but for an emulator, whose key file Lance must be given by hand."""
    if uri.startswith("gs://") and os.environ.get("STORAGE_EMULATOR_HOST"):
        return {"google_service_account": os.environ["GOOGLE_APPLICATION_CREDENTIALS"], "allow_http": "true"}
    return {}


class _Files:
    """A local or mounted file system."""

    def create(self, uri: str, data: bytes) -> bool:
        path = _path(uri)
        with _lake_errors(uri), _attempt(path, data) as attempt:
            try:
                os.link(attempt, path)
            except FileExistsError:
                return False
            _sync_directory(path.parent)
        return True

    def read(self, uri: str) -> bytes:
        with _lake_errors(uri):
            return _path(uri).read_bytes()

    def open(self, uri: str) -> IO[bytes]:
        with _lake_errors(uri):
            return _path(uri).open("rb")

    def read_versioned(self, uri: str) -> tuple[bytes, str] | None:
        with _lake_errors(uri):
            try:
                with _path(uri).open("rb") as file:
                    return file.read(), str(os.fstat(file.fileno()).st_mtime_ns)
            except FileNotFoundError:
                return None

    def swap(self, uri: str, data: bytes, expected: str | None) -> bool:
        path = _path(uri)
        with _lake_errors(uri), _attempt(path, data) as attempt, (path.parent / ".swap-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
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
        with _lake_errors(uri):
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
        with _lake_errors(root):
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

    def _walk(self, prefix: str, wanted: Callable[[str], bool]) -> Iterator[ObjectInfo]:
        with _lake_errors(prefix):
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

    def delete(self, uri: str) -> bool:
        path = _path(uri)
        with _lake_errors(uri):
            try:
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
        with _lake_errors(prefix):
            try:
                names = os.listdir(_path(prefix))
            except FileNotFoundError:
                return []
            return sorted(n for n in names if not n.startswith((ATTEMPT_PREFIX, ".swap-lock")))

    def download(self, uri: str, out: IO[bytes]) -> None:
        with _lake_errors(uri), _path(uri).open("rb") as source:
            shutil.copyfileobj(source, out, 1 << 20)

    def copy(self, source: str, target: str) -> bool:
        return self.create(target, self.read(source))


class _Gcs:
    """Google Cloud Storage, or what STORAGE_EMULATOR_HOST names."""

    @functools.cached_property
    def client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        if os.environ.get("STORAGE_EMULATOR_HOST"):
            return storage.Client(project="smalti", credentials=AnonymousCredentials())
        return storage.Client()

    def _blob(self, uri: str) -> Any:
        bucket, _, name = uri[len("gs://") :].partition("/")
        return self.client.bucket(bucket).blob(name)

    def create(self, uri: str, data: bytes) -> bool:
        return self.swap(uri, data, None)

    def swap(self, uri: str, data: bytes, expected: str | None) -> bool:
        from google.api_core.exceptions import PreconditionFailed

        with _lake_errors(uri):
            try:
                self._blob(uri).upload_from_string(
                    data,
                    content_type="application/octet-stream",
                    if_generation_match=int(expected or 0),
                    checksum="crc32c",
                )
            except PreconditionFailed:
                return False  # also when a request that was sent again meets what its first try made: compare the bytes
        return True

    def read(self, uri: str) -> bytes:
        with _lake_errors(uri):
            return bytes(self._blob(uri).download_as_bytes(checksum="crc32c"))

    def open(self, uri: str) -> IO[bytes]:
        info = self.stat(uri)
        if info is None:
            raise MissingObject(
                "there is no such object", uri, "Check the name, and that the run that makes it is done"
            )
        bucket, _, name = uri[len("gs://") :].partition("/")
        blob = self.client.bucket(bucket).blob(name, generation=int(info.generation))
        return cast(IO[bytes], blob.open("rb", chunk_size=1 << 22))

    def read_versioned(self, uri: str) -> tuple[bytes, str] | None:
        from google.api_core.exceptions import PreconditionFailed

        while (info := self.stat(uri)) is not None:
            try:
                with _lake_errors(uri):
                    data = self._blob(uri).download_as_bytes(if_generation_match=int(info.generation))
            except (PreconditionFailed, MissingObject):
                continue  # replaced or removed between the two requests: look again
            return bytes(data), info.generation
        return None

    def stat(self, uri: str) -> ObjectInfo | None:
        bucket, _, name = uri[len("gs://") :].partition("/")
        with _lake_errors(uri):
            blob = self.client.bucket(bucket).get_blob(name)
        return None if blob is None else _blob_info(bucket, blob)

    def walk(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, _, name = prefix[len("gs://") :].partition("/")
        with _lake_errors(prefix):
            for blob in self.client.list_blobs(bucket, prefix=name.rstrip("/") + "/" if name else None):
                if not blob.name.endswith("/"):
                    yield _blob_info(bucket, blob)

    def sizes(self, root: str, names: Sequence[str]) -> list[int | None]:
        bucket, _, name = root[len("gs://") :].partition("/")
        start = name.rstrip("/") + "/" if name else ""
        with _lake_errors(root):
            listing = self.client.list_blobs(
                bucket,
                prefix=start or None,
                start_offset=start + names[0],
                end_offset=start + names[-1] + " ",  # the offset itself is left out, and no name goes on with a blank
                fields="items(name,size),nextPageToken",
            )
            found = {blob.name[len(start) :]: int(blob.size) for blob in listing}
        return [found.get(each) for each in names]

    def attempts(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, uri: str) -> bool:
        with _lake_errors(uri):
            try:
                self._blob(uri).delete()
            except _not_found():
                return False  # also when a request that was sent again meets what its first try did
        return True

    def names(self, prefix: str) -> list[str]:
        bucket, _, name = prefix[len("gs://") :].partition("/")
        start = name.rstrip("/") + "/" if name else ""
        with _lake_errors(prefix):
            listing = self.client.list_blobs(bucket, prefix=start, delimiter="/")
            objects = [blob.name for blob in listing]
            return sorted({n[len(start) :].rstrip("/") for n in (*objects, *listing.prefixes)} - {""})

    def download(self, uri: str, out: IO[bytes]) -> None:
        with _lake_errors(uri):
            self._blob(uri).download_to_file(out, checksum="crc32c")

    def copy(self, source: str, target: str) -> bool:
        from google.api_core.exceptions import PreconditionFailed

        with _lake_errors(target):
            try:
                token = None
                while True:
                    token, _, _ = self._blob(target).rewrite(self._blob(source), token=token, if_generation_match=0)
                    if token is None:
                        return True
            except PreconditionFailed:
                return False


def _blob_info(bucket: str, blob: Any) -> ObjectInfo:
    written = blob.updated.timestamp() if blob.updated else 0.0
    return ObjectInfo(f"gs://{bucket}/{blob.name}", str(blob.generation), blob.size, blob.crc32c or "", written)


def _not_found() -> type[Exception]:
    from google.api_core.exceptions import NotFound

    return cast(type[Exception], NotFound)


_FILES = _Files()
_GCS = _Gcs()


def forget_clients() -> None:
    """Connect anew at the next request: for tests that move to another server, and after a fork."""
    _GCS.__dict__.pop("client", None)


os.register_at_fork(after_in_child=forget_clients)  # two processes on one TLS connection corrupt each other's answers


def _store(uri: str) -> _Files | _Gcs:
    if uri.startswith("file://"):
        return _FILES
    if uri.startswith("gs://"):
        return _GCS
    raise InputError("this is not a URI that smalti can read", uri, "Use file:///directory or gs://bucket/prefix")


def _path(uri: str) -> Path:
    path = local_path(uri)
    assert path is not None  # _store chose _Files
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


def _sync_directory(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextlib.contextmanager
def _lake_errors(uri: str) -> Iterator[None]:
    """Turn what a store raises into one clear line."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingObject(
            "there is no such object", uri, "Check the name, and that the run that makes it is done"
        ) from error
    except OSError as error:
        raise LakeError(
            f"{error.strerror or error}", uri, "Check that the place exists, has room and may be written"
        ) from error
    except Exception as error:
        clear = _from_google(uri, error)
        if clear is None:
            raise
        raise clear from error


def _from_google(uri: str, error: Exception) -> Exception | None:
    if not type(error).__module__.startswith(("google.", "requests")):
        return None
    from google.api_core import exceptions as google
    from google.auth.exceptions import DefaultCredentialsError

    if isinstance(error, DefaultCredentialsError):
        return LakeError(
            "there are no Google credentials on this machine",
            uri,
            "Set GOOGLE_APPLICATION_CREDENTIALS to a key file or a workload identity configuration, or run "
            "`gcloud auth application-default login` (docs/how-to/train-on-a-release.md)",
        )
    if isinstance(error, google.PreconditionFailed):  # an outcome, handled by who asked for it
        return None
    if isinstance(error, google.NotFound):
        return MissingObject(
            "there is no such object or bucket", uri, "Check the name, and that the run that makes it is done"
        )
    if isinstance(error, google.Forbidden | google.Unauthorized):
        return LakeError(
            "Google Cloud Storage refused access", uri, "Give the service account storage.objects rights on the bucket"
        )
    return LakeError(
        f"Google Cloud Storage failed: {error}", uri, "Try again; if it stays, check the network and the bucket"
    )
