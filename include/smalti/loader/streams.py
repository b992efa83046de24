"""A stream of a release, for StreamingDataset: readers that show the kept samples only, and shards that are checked."""

from __future__ import annotations

import functools
import logging
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming import Stream
from streaming.base.format.base.reader import FileInfo
from streaming.base.format.mds import MDSReader
from streaming.base.world import World

from smalti.errors import CorruptError, InputError, LakeError, MissingObject
from smalti.loader.fetch import fetch
from smalti.loader.skips import ServedShard
from smalti.loader.small import stream_name
from smalti.objects import join_uri
from smalti.release.manifest import StreamEntry

log = logging.getLogger("smalti")


class KeptReader(MDSReader):  # type: ignore[misc]  # streaming is untyped
    """A shard that shows its kept samples only, numbered from 0.

    Attributes:
        unread: no sample of it is ever asked for: it is not looked for, and not fetched.
    """

    unread = False

    _before: array[int] | None = None
    """For each skipped sample, ascending: how many kept ones come before it. (bisect in it takes a fifth of np.searchsorted.)"""

    _erased: array[int] | None = None
    """Indices that the file has no more, ascending: those behind them have moved up."""

    @classmethod
    def of(cls, parts: str, shard: ServedShard, columns: dict[str, tuple[Any, ...]]) -> KeptReader:
        """The reader of a shard, like `from_json`.

        Args:
            columns: those of the readers made so far. Shards of a stream have the same: a hundred thousand share one list.
        """
        stored = shard.stored
        entry = shard.entry if stored is None or stored.entry is None else stored.entry
        if entry["version"] != 2 or entry["format"] != "mds":
            raise CorruptError(
                "the shard is no MDS shard of version 2", shard.basename, "Use another version of the dataset"
            )
        names = ("column_encodings", "column_names", "column_sizes")
        own = tuple(entry[name] for name in names)
        encodings, labels, sizes = columns.setdefault(str(own), own)
        zipped = entry["zip_data"]
        reader = cls(
            parts,
            None,
            encodings,
            labels,
            sizes,
            entry["compression"],
            entry["hashes"],
            FileInfo(**entry["raw_data"]),
            shard.samples,
            entry["size_limit"],
            FileInfo(**zipped) if zipped else None,
        )
        reader.leave_out(shard.left_out)
        reader.unread = shard.unread
        if stored is not None and len(stored.erased):
            reader._erased = array("i", stored.erased.astype(np.int32).tobytes())
        return reader

    def leave_out(self, indices: NDArray[np.int32]) -> None:
        """Hide these samples (ascending indices)."""
        self.samples -= len(indices)
        before = indices - np.arange(len(indices), dtype=np.int32)
        self._before = array("i", before.tobytes()) if len(indices) else None

    def get_sample_data(self, idx: int) -> bytes:
        if self._before is not None:
            idx += bisect_right(self._before, idx)
        if self._erased is not None:
            behind = bisect_left(self._erased, idx)
            if self._erased[behind : behind + 1] == array("i", [idx]):
                raise CorruptError(
                    f"sample {idx} of before was erased", self.raw_data.basename, "Report it: it has no substitute"
                )
            idx -= behind
        data: bytes = super().get_sample_data(idx)
        return data


class SkipStreamMixin:
    """What makes a Stream one of a release; put it before a trainer's own Stream class.

        class OurStream(SkipStreamMixin, PatchedStream): ...

        ReleaseDataset(manifest, stream_class=OurStream, ...)

    It decides which samples there are, where shards lie and how they come here (get_shards, set_up_local, prepare_shard,
    get_index_size): an override of one of these in the other class is not called, nor is one of _download_file. Everything else
    is the other class's. `reader_class` and `fetch_shard` are there to be overridden; get_shards and prepare_shard can be extended
    in the class that joins the two, with super().

    Args:
        entries: what the manifest says of it; several if streams of one bucket were put together.
        shards: what it serves.
        source: URI of parts/ of the release.
        parts: where shards lie, or are to lie, on this machine.
        in_place: `parts` is where the release itself is: nothing is fetched, nothing removed.
        **stream: of the other class.
    """

    reader_class: type[KeptReader] = KeptReader
    """A subclass may decode samples otherwise."""

    download_retry: int

    def __init__(
        self,
        *,
        entries: Sequence[StreamEntry],
        shards: Sequence[ServedShard],
        source: str,
        parts: Path,
        in_place: bool,
        **stream: Any,
    ) -> None:
        # Names of the other class's attributes are not known: what it must not touch is private (two underscores).
        self.entries = tuple(entries)
        self.kept = sum(shard.kept for shard in shards)
        self.__served = shards
        self.__readers: list[KeptReader] | None = None
        self.__here: NDArray[np.int64] | None = None
        self.__source = source
        self.__parts = str(parts)
        self.__in_place = in_place
        # StreamingDataset wants a directory a stream that no other stream uses, and takes it for a name only: all that
        # would be done in it is overridden below. No `remote`: it would have StreamingDataset refuse a second dataset
        # over one cache, also one whose process is long dead. Shards are immutable and appear whole, so sharing is safe.
        super().__init__(**{"local": os.path.join(self.__parts, ".streams", stream_name(entries))} | stream)

    @functools.cached_property  # not a property: the other class may set a name of its own
    def name(self) -> str:
        """As the manifest spells it: group/tier/ar; of several groups, a+b/tier/ar."""
        return stream_name(self.entries)

    def fetch_shard(self, uri: str, path: Path, sha256: str) -> None:
        """Bring an object here: whole, with these bytes, or not at all (CorruptError, LakeError: tried again)."""
        fetch(uri, path, sha256)

    def open(self) -> list[KeptReader]:
        """The readers, made once."""
        if self.__readers is None:
            columns: dict[str, tuple[Any, ...]] = {}
            self.__readers = [self.reader_class.of(self.__parts, shard, columns) for shard in self.__served]
            self.__served = ()  # the readers know it all; a hundred million samples are held once
        return self.__readers

    def look_around(self) -> NDArray[np.bool_]:
        """Note which shards are here; one of another size is removed. For one rank of each node, and before StreamingDataset
        begins: what is wrong here is to reach all ranks.

        Returns:
            which have to be fetched; shape (shards,). What is not read is not looked for either.
        Raises:
            MissingObject, CorruptError: the release is read in place, and a shard is not there, or is of another size.
            LakeError: something else lies in a shard's place.
        """
        readers = self.open()
        self.__here = np.zeros(len(readers), np.int64)
        needed = np.array([not shard.unread for shard in readers], bool)
        for number, shard in enumerate(readers):
            if shard.unread:
                continue
            path, size = os.path.join(self.__parts, shard.raw_data.basename), shard.raw_data.bytes
            try:
                there = _size_of(path)
                if there == size:
                    self.__here[number] = size
                elif self.__in_place:
                    raise _incomplete(path, size, there)
                elif there is not None:
                    log.warning("%s has %d bytes instead of %d and is fetched anew", path, there, size)
                    Path(path).unlink(missing_ok=True)  # another run with this directory may have been first
            except OSError as error:
                raise LakeError(
                    f"{error.strerror or error}", path, "Move it away, or pass another directory as `local`"
                ) from error
        needed &= self.__here == 0
        return needed

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[KeptReader]:
        for reader in self.open():
            reader.validate(allow_unsafe_types)
        return list(self.open())

    def set_up_local(self, shards: Sequence[KeptReader], cache_usage_per_shard: NDArray[np.int64]) -> None:
        """Say which shards are here. Called on one rank of each node."""
        if self.__here is None:
            self.look_around()
        cache_usage_per_shard[:] = self.__here

    def prepare_shard(self, shard: KeptReader) -> int:
        """Bring a shard here if it is not. Returns the bytes that were added."""
        info = shard.raw_data
        if shard.unread:
            raise CorruptError("a shard was asked for whose samples all have substitutes", info.basename, "Report it")
        path = Path(self.__parts, info.basename)
        if path.exists():
            return 0
        if self.__in_place:
            raise _incomplete(str(path), info.bytes, None)
        tries = 1 + self.download_retry
        for left in reversed(range(tries)):
            try:
                self.fetch_shard(join_uri(self.__source, info.basename), path, info.hashes["sha256"])
                break
            except (CorruptError, LakeError):
                if not left:
                    raise
        return int(info.bytes)

    def get_index_size(self) -> int:
        return 0  # indices are not cached


class SkipStream(SkipStreamMixin, Stream):  # type: ignore[misc]  # streaming is untyped
    """A stream of a release for those who have no Stream class of their own."""


_TRANSPORT = ("prepare_shard", "_prepare_shard_part", "_download_file", "_decompress_shard_part")
"""How a Stream brings shards here; `fetch_shard` takes the place of it."""


def check_stream_class(given: object, where: str) -> None:
    """Raises InputError if it is a class that cannot be a stream of a release. Another callable is looked at by what it makes."""
    if not isinstance(given, type):
        return
    if not issubclass(given, SkipStreamMixin) or not issubclass(given, Stream):
        raise InputError(
            f"stream_class={given.__name__} is no stream of a release",
            where,
            f"Write class Ours(SkipStreamMixin, {given.__name__}): ...",
        )
    if given.__mro__.index(Stream) < given.__mro__.index(SkipStreamMixin):
        raise InputError(
            f"stream_class={given.__name__} has SkipStreamMixin after its Stream", where, "Name SkipStreamMixin first"
        )


def unused_transport(cls: type) -> list[str]:
    """Overrides that bring shards in a way of their own, and are not called for a release: "PatchedStream._download_file"."""
    before, behind = [], list(cls.__mro__[: cls.__mro__.index(Stream)])
    while (each := behind.pop(0)) is not SkipStreamMixin:
        before.append(each)
    return [
        f"{each.__name__}.{name}"
        for classes, names in ((before, _TRANSPORT[1:]), (behind, _TRANSPORT))
        for each in classes
        for name in names
        if name in vars(each)
    ]


def _size_of(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _incomplete(path: str, size: int, there: int | None) -> MissingObject | CorruptError:
    if there is None:
        return MissingObject("the shard is not here", path, "Pull it, or choose tiers and groups that are here")
    return CorruptError(f"the shard has {there} bytes instead of {size}", path, "Pull it again")
