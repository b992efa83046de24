"""Objects in a lake or a source, by URI: ``file:///...`` and ``gs://bucket/...`` alike.

Writes are create-only and whole: an object appears with all its bytes or not at all, and is never overwritten. The one
exception is `swap_bytes`, which replaces an object only if it is still the generation that was read (releases/<dataset>/LATEST, and what
erased samples are taken out of). Only the collection of garbage deletes (smalti.maintenance), whoever has taken a file out of the opt-outs'
inbox, the removal of what opt-outs erase, and what forgets of opt-outs what has had its time (smalti.optouts.retention).
On a file system a write goes to an attempt name in the same directory and is linked into place, which fails if the name is
taken; on GCS it is one request with ``ifGenerationMatch=0``. What a killed writer leaves is an attempt nobody lists.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from smalti.errors import ConflictError, InputError
from smalti.stores.files import Files
from smalti.stores.gcs import Gcs
from smalti.stores.uris import ATTEMPT_PREFIX, Generation, ObjectInfo, file_uri, join_uri, local_path, normalise_uri

__all__ = [
    "ATTEMPT_PREFIX", "Generation", "ObjectInfo", "copy_object", "crc32c", "create_bytes", "create_same", "delete_generation", "delete_object",
    "download", "exists", "file_uri", "forget_clients", "join_uri", "lance_options", "list_attempts", "list_generations", "list_names",
    "list_objects", "local_path", "normalise_uri", "open_binary", "read_bytes", "read_generation", "read_versioned", "sizes_of", "stat", "swap_bytes",
]  # fmt: skip


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


def delete_object(uri: str, generation: str | None = None) -> bool:
    """Remove an object, for ever. Returns whether it was there; of a directory nothing is removed.

    Args:
        generation: only if it still is this one. On a file system another program that writes in the instant between look and removal
            is not seen; smalti's own swaps are.
    """
    return _store(uri).delete(uri, generation)


def list_generations(prefix: str) -> Iterator[Generation]:
    """What objects below a prefix held before, and the store still keeps: noncurrent generations, then soft-deleted ones.

    Nothing on a file system, which keeps nothing (what its snapshots and backups keep cannot be seen from here).
    """
    return _store(prefix).generations(prefix)


def read_generation(uri: str, generation: str) -> bytes | None:
    """The bytes of a noncurrent generation; None: it is gone."""
    return _store(uri).read_generation(uri, generation)


def delete_generation(uri: str, generation: str) -> bool:
    """Remove one generation of an object. False: a policy of the store forbids it."""
    return _store(uri).delete_generation(uri, generation)


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


_FILES = Files()
_GCS = Gcs()


def forget_clients() -> None:
    """Connect anew at the next request: for tests that move to another server, and after a fork."""
    _GCS.__dict__.pop("client", None)


os.register_at_fork(after_in_child=forget_clients)  # two processes on one TLS connection corrupt each other's answers


def _store(uri: str) -> Files | Gcs:
    if uri.startswith("file://"):
        return _FILES
    if uri.startswith("gs://"):
        return _GCS
    raise InputError("this is not a URI that smalti can read", uri, "Use file:///directory or gs://bucket/prefix")
