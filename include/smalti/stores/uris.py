"""URIs of objects, and what a listing says of one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes, urlsplit

from smalti.errors import InputError

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


@dataclass(frozen=True, order=True)
class Generation:
    """Bytes that an object no longer has and that the store keeps.

    Attributes:
        uri, generation, size: of the object that was.
        soft_deleted: nobody can read or delete it, until `until`; otherwise it is noncurrent, and can be both read and deleted.
        until: when the store deletes it by itself, seconds since 1970; 0: never.
    """

    uri: str
    generation: str
    size: int
    soft_deleted: bool
    until: float = 0.0


def join_uri(root: str, *names: str) -> str:
    """Put names below a URI."""
    return "/".join((root.rstrip("/"), *names))


def normalise_uri(uri: str) -> str:
    """A path or URI as ``file:///abs`` or ``gs://bucket/prefix`` without a slash at its end.

    Raises:
        InputError: another scheme, or a bucket without a name.
    """
    if "://" not in uri:
        return _spelled(uri)
    scheme, netloc = urlsplit(uri)[:2]
    if scheme == "file" and netloc in ("", "localhost"):
        return _spelled(_unquote(uri.split("://", 1)[1].removeprefix("localhost")))
    if scheme == "gs" and netloc:
        return uri.rstrip("/")
    raise InputError("this is not a URI that smalti can read", uri, "Use file:///directory or gs://bucket/prefix")


def local_path(uri: str) -> Path | None:
    """The path of a file:// URI; None for gs://."""
    return Path(_unquote(uri[len("file://") :])) if uri.startswith("file://") else None


def file_uri(path: Path | str) -> str:
    """The file:// URI of a path."""
    return normalise_uri(str(path)) if "://" in str(path) else _spelled(str(path))


def _spelled(path: str) -> str:
    """Byte for byte: a file's name need not be UTF-8."""
    return "file://" + quote(os.fsencode(os.path.abspath(path)))


def _unquote(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text))
