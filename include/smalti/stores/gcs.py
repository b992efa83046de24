"""Objects on Google Cloud Storage: each write is one request with a condition on the generation."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

from smalti.errors import MissingObject
from smalti.stores.faults import lake_errors
from smalti.stores.uris import Generation, ObjectInfo


class Gcs:
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

        with lake_errors(uri):
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
        with lake_errors(uri):
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
                with lake_errors(uri):
                    data = self._blob(uri).download_as_bytes(if_generation_match=int(info.generation))
            except (PreconditionFailed, MissingObject):
                continue  # replaced or removed between the two requests: look again
            return bytes(data), info.generation
        return None

    def stat(self, uri: str) -> ObjectInfo | None:
        bucket, _, name = uri[len("gs://") :].partition("/")
        with lake_errors(uri):
            blob = self.client.bucket(bucket).get_blob(name)
        return None if blob is None else _blob_info(bucket, blob)

    def walk(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, _, name = prefix[len("gs://") :].partition("/")
        with lake_errors(prefix):
            for blob in self.client.list_blobs(bucket, prefix=name.rstrip("/") + "/" if name else None):
                if not blob.name.endswith("/"):
                    yield _blob_info(bucket, blob)

    def sizes(self, root: str, names: Sequence[str]) -> list[int | None]:
        bucket, _, name = root[len("gs://") :].partition("/")
        start = name.rstrip("/") + "/" if name else ""
        with lake_errors(root):
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

    def generations(self, prefix: str) -> Iterator[Generation]:
        bucket, _, name = prefix[len("gs://") :].partition("/")
        start = name.rstrip("/") + "/" if name else None
        with lake_errors(prefix):
            for blob in self.client.list_blobs(bucket, prefix=start, versions=True):
                if blob.time_deleted is not None:
                    yield _generation(bucket, blob, soft_deleted=False)
            for blob in self.client.list_blobs(bucket, prefix=start, soft_deleted=True):
                yield _generation(bucket, blob, soft_deleted=True)

    def read_generation(self, uri: str, generation: str) -> bytes | None:
        from google.api_core.exceptions import NotFound

        bucket, _, name = uri[len("gs://") :].partition("/")
        with lake_errors(uri):
            try:
                return bytes(self.client.bucket(bucket).blob(name, generation=int(generation)).download_as_bytes())
            except NotFound:
                return None

    def delete_generation(self, uri: str, generation: str) -> bool:
        from google.api_core.exceptions import Forbidden, NotFound

        bucket, _, name = uri[len("gs://") :].partition("/")
        with lake_errors(uri):
            try:
                self.client.bucket(bucket).blob(name, generation=int(generation)).delete()
            except NotFound:
                return True
            except Forbidden:  # a retention policy, or a hold
                return False
        return True

    def delete(self, uri: str, generation: str | None = None) -> bool:
        from google.api_core.exceptions import NotFound, PreconditionFailed

        with lake_errors(uri):
            try:
                self._blob(uri).delete(if_generation_match=None if generation is None else int(generation))
            except (NotFound, PreconditionFailed):
                return False  # also when a request that was sent again meets what its first try did
        return True

    def names(self, prefix: str) -> list[str]:
        bucket, _, name = prefix[len("gs://") :].partition("/")
        start = name.rstrip("/") + "/" if name else ""
        with lake_errors(prefix):
            listing = self.client.list_blobs(bucket, prefix=start, delimiter="/")
            objects = [blob.name for blob in listing]
            return sorted({n[len(start) :].rstrip("/") for n in (*objects, *listing.prefixes)} - {""})

    def download(self, uri: str, out: IO[bytes]) -> None:
        with lake_errors(uri):
            self._blob(uri).download_to_file(out, checksum="crc32c")

    def copy(self, source: str, target: str) -> bool:
        from google.api_core.exceptions import PreconditionFailed

        with lake_errors(target):
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


def _generation(bucket: str, blob: Any, *, soft_deleted: bool) -> Generation:
    until = blob.hard_delete_time.timestamp() if soft_deleted and blob.hard_delete_time else 0.0
    return Generation(f"gs://{bucket}/{blob.name}", str(blob.generation), int(blob.size or 0), soft_deleted, until)
