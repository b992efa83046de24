"""Bring a release to a machine: shards, indices, skip files and manifest, in the layout of the lake.

    DIR/releases/<dataset>/<version>/{manifest.json,streams/...}
    DIR/releases/<dataset>/skips/<sha256>.json.gz
    DIR/parts/<source>/<part>/<tier>/<ar>/shard.NNNNN.mds
    DIR/optouts/snapshots/<position>.json.gz      the newest there was, and what earlier pulls brought
    DIR/.smalti/optouts.json                      when it was the newest

Of versions that this one succeeds: manifest, indices, skip files, tombstone, and DIR/parts/<source>/replacements: checkpoints of them
go on with this one (smalti.loader.successors). Of a version that was given up since it was pulled: its tombstone and the log.

`ReleaseDataset(DIR/releases/.../manifest.json)` reads it in place. Versions share DIR/parts, so that a newer version fetches
what is new only. Each shard is checked against its sha256 before it appears; DIR/.smalti/verified.jsonl remembers size and
time of what was checked, so that the next pull need not read thirty terabytes again; a file whose size or time
differs is hashed, and fetched anew if it is damaged. manifest.json comes last.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from smalti.accounting import Report
from smalti.errors import ConflictError, CorruptError, InputError, LakeError
from smalti.lake import Lake
from smalti.loader.fetch import fetch, file_sha256
from smalti.loader.skips import ServedShard, served_shards
from smalti.loader.successors import check_not_succeeded
from smalti.objects import ATTEMPT_PREFIX, file_uri, join_uri, local_path, normalise_uri, read_bytes
from smalti.release import materialize as trees
from smalti.release import succession
from smalti.release.manifest import (
    Manifest,
    parse_manifest,
    parts_uri,
    read_manifest,
)
from smalti.release.notes import Notes
from smalti.release.optouts import (
    NOTES,
    OptoutCheck,
    check_not_behind,
    check_of,
    decode_snapshot,
    lake_of,
    newest_position,
    write_check,
)

log = logging.getLogger("smalti")

THREADS = 8
"""Shards at once."""

MAX_AGE = timedelta(days=7)
"""Of a copy that a tree may be made of, as the loader's default."""

_MATERIALIZE_THREADS = 4
"""Fewer: each holds a shard twice."""

_NOTE_EVERY = 5.0
"""Seconds between two lines of progress."""

_STALE = 3600.0
"""Seconds after which an uncommitted write of a process that was killed is removed."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class PullReport(Report):
    """Attributes:
    manifest: what to give to ReleaseDataset; with `materialize`, the folder of the tree.
    shards, bytes: what the release has of the chosen tiers.
    fetched, fetched_bytes: shards that were not here, and all bytes that were transferred.
    optouts: position of the opt-outs that are known here now; with `materialize`, of those that the tree leaves out.
    """

    manifest: str
    shards: int
    bytes: int
    fetched: int
    fetched_bytes: int
    optouts: int


def pull(
    manifest_uri: str,
    directory: str | Path,
    tiers: Iterable[int] | None = None,
    materialize: bool = False,
    *,
    threads: int = THREADS,
    recheck: bool = False,
    refresh_optouts: bool = False,
    positions: Iterable[int] = (),
) -> PullReport:
    """Bring a release, or what is missing of it, into a directory, with the opt-outs that are known by now.

    Args:
        tiers: only these; empty: all. More can be pulled later.
        materialize: write DIR/<tier>/<ar>/{index.json,shards} for an unmodified StreamingDataset instead.
        threads: shards fetched at once.
        recheck: read what is here, with `materialize` too, even if its size and time are those of the last check.
        refresh_optouts: bring the opt-outs only, and what became of versions that are here: four requests and a small object, or less,
            and one a version and dataset; of versions that were given up also one a part.
        positions: older positions of opt-outs to bring too, for checkpoints that were made with them elsewhere.
    Raises:
        InputError: a tier that the release has not, another pull in the directory, too little room, nothing to refresh, or a version
            that was given up.
        MissingObject, LakeError: the source cannot be read, or the directory not read or written.
        CorruptError: an object of the source is not what was recorded about it; nothing of it appears here.
        ConflictError: the directory holds another release of this name, or a directory in the place of a file.
    """
    started = time.monotonic()
    uri, folder = normalise_uri(str(manifest_uri)), Path(directory).absolute()
    _refuse_lake(uri, folder)
    if refresh_optouts:
        _refuse_nothing(folder)
    with _one_line(folder), _locked(folder):
        if not refresh_optouts:
            check_not_succeeded(uri, read_manifest(uri))
        if materialize:
            _refuse_stale(uri)
            written = trees.materialize(
                uri,
                file_uri(folder),
                tiers,
                optouts=newest_position(lake_of(uri)),
                run=_in_threads(min(threads, _MATERIALIZE_THREADS)),
                notes=Notes(folder / NOTES / "verified.jsonl", recheck),
            )
            return PullReport(
                stage="pull",
                seconds=time.monotonic() - started,
                manifest=str(folder),
                shards=written.shards,
                bytes=written.bytes,
                fetched=written.new,
                fetched_bytes=written.new_bytes,
                optouts=written.optouts,
            )
        mirror = _Mirror(uri, folder, recheck)
        check = mirror.optouts(positions)
        left_behind = {*check.left_behind, *succession.tombstones(uri, folder, mirror.copy)}
        write_check(folder, check.model_copy(update={"left_behind": tuple(sorted(left_behind))}))
        report = (
            mirror.report([], 0)
            if refresh_optouts
            else mirror.pull(None if tiers is None else tuple(tiers), _in_threads(threads))
        )
    return report.model_copy(update={"seconds": time.monotonic() - started})


def _refuse_lake(uri: str, folder: Path) -> None:
    """A lake that took a pull would be taken for a copy ever after."""
    source = local_path(lake_of(uri).root)
    if (source is not None and source.resolve() == folder.resolve()) or (folder / "tables").is_dir():
        raise InputError("there is a lake in this directory", str(folder), "Name another directory")


def _refuse_nothing(folder: Path) -> None:
    """Where no release was pulled there is nothing to renew, and a mistyped name must not pass for done."""
    if not any((folder / "releases").glob("*/*/manifest.json")):
        raise InputError(
            "no release was pulled into this directory",
            str(folder),
            "Check its name; `smalti pull MANIFEST DIR` brings the opt-outs too, and a tree is written anew instead",
        )


def _refuse_stale(uri: str) -> None:
    """A tree that is made of an old copy would hold what was opted out since."""
    check = check_of(uri)
    if check is not None and check.is_older(MAX_AGE):
        raise InputError(
            f"the opt-outs of this copy were last checked on {check.checked:%Y-%m-%d}",
            lake_of(uri).root,
            "Run `smalti pull MANIFEST DIR --refresh-optouts` from the lake first",
        )


class _Mirror:
    """One pull into one directory."""

    def __init__(self, uri: str, folder: Path, recheck: bool) -> None:
        self.uri = uri
        self.data = read_bytes(uri)
        self.manifest = parse_manifest(self.data, uri)
        self.parts = folder / "parts"
        local = local_path(Lake.at(str(folder)).manifest(self.manifest.dataset, self.manifest.version))
        assert local is not None
        self.local = local
        self.folder = folder
        self.notes = Notes(folder / NOTES / "verified.jsonl", recheck)
        self.fetched_bytes = 0
        self.position = 0

    def optouts(self, positions: Iterable[int]) -> OptoutCheck:
        """Bring the newest snapshot. What is here is never replaced.

        Returns: that and when it was the newest. A copy that is pulled from is as old as its own check.
        """
        lake, here = lake_of(self.uri), Lake.at(str(self.folder))
        check = check_of(self.uri) or OptoutCheck(position=newest_position(lake), checked=datetime.now(UTC))
        known = newest_position(here)
        if check.position < known:
            raise InputError(
                f"opt-outs are known up to position {check.position} there, and up to {known} here",
                lake.optout_snapshots(),
                "Pull from the lake itself; or restore optouts/snapshots there",
            )
        check_not_behind(check.position, self.manifest.optouts, lake.optout_snapshots())
        for position in sorted({*positions, check.position} - {0}):
            path = local_path(here.optout_snapshot(position))
            assert path is not None
            if path.exists() and path.read_bytes() != read_bytes(lake.optout_snapshot(position)):
                raise ConflictError(
                    f"the directory has other opt-outs of position {position}: a damaged object, or another lake's",
                    str(path),
                    "Pull into another directory; or remove the file if all in here is of this lake",
                )
            self.copy(lake.optout_snapshot(position), path, partial(decode_snapshot, position))
        self.position = check.position
        return check

    def pull(self, tiers: Collection[int] | None, run: trees.Runner) -> PullReport:
        self._refuse_another()
        _sweep(self.parts)
        streams = self.manifest.select(tiers)
        for stream in streams:
            succession.small_files(self.uri, self.local, stream, self.copy)
        shards = [shard for stream in streams for shard in served_shards(file_uri(self.local), stream)]
        if self.manifest.succeeds is not None:
            known = {shard.basename for shard in shards}
            more = succession.of_checkpoints(self.uri, self.manifest, self.folder, tiers, self.position, self.copy)
            shards += [shard for shard in more if shard.basename not in known]
        missing = [shard for shard, here in zip(shards, run(self._is_here, shards), strict=True) if not here]
        self._fetch(shards, missing, run)
        if not self.local.exists():
            self._write(self.local, self.data)
        return self.report(shards, len(missing))

    def report(self, shards: Sequence[ServedShard], fetched: int) -> PullReport:
        return PullReport(
            stage="pull",
            manifest=str(self.local),
            shards=len(shards),
            bytes=sum(shard.bytes for shard in shards),
            fetched=fetched,
            fetched_bytes=self.fetched_bytes,
            optouts=self.position,
        )

    def _refuse_another(self) -> None:
        """A manifest is never changed, so what is here under its name is the same, damaged, or of another lake."""
        if not self.local.exists():
            return
        try:
            found = self.local.read_bytes()
            there: Manifest | None = parse_manifest(found, str(self.local))
        except (CorruptError, PermissionError):
            found, there = b"", None
        if found == self.data:
            return
        if there is not None and there.digest != self.manifest.digest:
            raise ConflictError(
                f"the directory holds another {there.dataset} {there.version} ({there.digest[:12]})",
                str(self.local),
                "Pull into another directory",
            )
        log.warning("%s is damaged and is fetched anew", self.local)
        self.local.unlink()

    def copy(self, uri: str, path: Path, check: Callable[[bytes, str], object]) -> None:
        """Unless it is here: an object that `check` accepts, else it raises CorruptError."""
        with contextlib.suppress(FileNotFoundError, PermissionError, CorruptError):
            check(path.read_bytes(), str(path))
            return
        data = read_bytes(uri)
        check(data, uri)
        self._write(path, data)

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        attempt = path.with_name(f"{ATTEMPT_PREFIX}{path.name}")  # one pull a directory: the name is ours
        attempt.write_bytes(data)
        attempt.replace(path)
        self.fetched_bytes += len(data)

    def _is_here(self, shard: ServedShard) -> bool:
        path = self.parts / shard.basename
        return self.notes.holds(shard.basename, path, shard.bytes, shard.sha256, file_sha256)

    def _fetch(self, shards: Sequence[ServedShard], missing: Sequence[ServedShard], run: trees.Runner) -> None:
        """Download, check, and note each shard that is missing."""
        total = sum(shard.bytes for shard in missing)
        log.info("pull: %d of %d shards are here; %s to fetch", len(shards) - len(missing), len(shards), _gb(total))
        room = shutil.disk_usage(self.parts.parent).free
        if total > room:
            raise InputError(
                f"{_gb(total)} are to be fetched, and there is room for {_gb(room)}",
                str(self.parts.parent),
                "Make room, choose tiers, or use another disk",
            )
        root, began, noted, done = parts_uri(self.uri, self.manifest), time.monotonic(), time.monotonic(), 0

        def bring(shard: ServedShard) -> int:
            path = self.parts / shard.basename
            fetch(join_uri(root, shard.basename), path, shard.sha256)
            self.notes.note(shard.basename, path, shard.sha256)
            return shard.bytes

        for number, size in enumerate(run(bring, missing), 1):
            done += size
            self.fetched_bytes += size
            now = time.monotonic()
            if now - noted >= _NOTE_EVERY or number == len(missing):
                rate = done / max(now - began, 1e-3)
                log.info(
                    "pull: %d of %d shards, %s of %s, %s/s", number, len(missing), _gb(done), _gb(total), _gb(rate)
                )
                noted = now


def _in_threads(threads: int) -> trees.Runner:
    """A runner of plain threads: a pull is run where no Ray is. A long list is never all waiting."""

    def run(function: Callable[[Item], Outcome], items: Sequence[Item]) -> Iterator[Outcome]:
        waiting: deque[Future[Outcome]] = deque()
        pool = ThreadPoolExecutor(threads)
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 4 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return run


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """What the file system refuses, as one clear line."""
    try:
        yield
    except IsADirectoryError as error:
        raise ConflictError(
            "there is a directory in the place of a file",
            str(error.filename2 or error.filename or folder),
            "Remove it, or pull into another directory",
        ) from error
    except OSError as error:
        raise LakeError(
            error.strerror or str(error),
            str(error.filename2 or error.filename or folder),
            "Check what lies there, whose it is, and that the disk has room",
        ) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One pull a directory."""
    try:
        (folder / NOTES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"this cannot be written ({error.strerror})", str(folder), "Name a directory of yours"
        ) from error
    with (folder / NOTES / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("another pull is at work in this directory", str(folder), "Wait for it to end") from None
        yield


def _sweep(parts: Path) -> None:
    """Remove what killed writers left. A training run may be fetching into the same directory: young ones stay."""
    for path in parts.rglob(f"{ATTEMPT_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _STALE:
                os.unlink(path)


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"
