"""Arguments of ReleaseDataset that cannot be meant, one line each."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from smalti.errors import InputError
from smalti.loader.position import Position
from smalti.loader.small import SmallStreams
from smalti.objects import local_path
from smalti.release.optouts import NOTES, lake_of

_OURS = ("keep_zip", "remote", "split", "stream_config", "stream_name", "streams", "validate_hash")
"""Arguments of StreamingDataset that a release decides."""


def is_where_it_lies(uri: str, local: Path) -> bool:
    """Whether `local` is the lake, or the pulled copy, that the manifest stands in."""
    root = local_path(lake_of(uri).root)
    return root is not None and root.resolve() == local.resolve()


def check_arguments(
    uri: str, local: str | None, small: str, batch_size: int, max_age: timedelta | None, streaming: dict[str, Any]
) -> None:
    if type(batch_size) is not int or batch_size < 1:
        raise InputError(f"batch_size={batch_size!r} is no size", uri, "Use at least 1")
    if local is not None and not isinstance(local, str | os.PathLike):
        raise InputError(f"local={local!r} is no directory", uri, "Pass its path")
    if max_age is not None and not isinstance(max_age, timedelta):
        raise InputError(f"max_optout_age={max_age!r} is no age", uri, "Pass a datetime.timedelta, or None")
    taken = sorted(set(_OURS) & set(streaming))
    if taken:
        raise InputError(f"ReleaseDataset takes no {', '.join(taken)}", uri, "Leave it away: the release decides it")
    if small not in get_args(SmallStreams):
        raise InputError(
            f"small_streams={small!r} is no choice", uri, f"Use one of {', '.join(get_args(SmallStreams))}"
        )
    if local is None and local_path(uri) is None:
        raise InputError("no directory is named for the shards", uri, "Pass local=DIRECTORY")
    if local is not None and streaming.get("cache_limit") and (Path(local) / NOTES).is_dir():
        raise InputError("a pulled copy is not evicted from", str(local), "Pass another directory, or no cache_limit")
    if local is None and streaming.get("cache_limit"):
        raise InputError(
            "a release that is read in place is not evicted from", uri, "Pass local=DIRECTORY, or no cache_limit"
        )


def check_choice(uri: str, given: dict[str, Any], optouts: Position) -> None:
    for name, values in given.items():
        kind = int if name == "tiers" else str
        if isinstance(values, str | int):
            raise InputError(f"{name}={values!r} is no list", uri, f"Write {name}=[{values!r}]")
        odd = [each for each in values or () if not isinstance(each, kind)]
        if odd:
            raise InputError(f"{name}: {odd[0]!r} is of the wrong kind", uri, f"Give {name} as {kind.__name__}")
    if optouts != "newest" and not (type(optouts) is int and optouts >= 0):
        raise InputError(f"optouts={optouts!r} is no position", uri, "Pass 'newest', or a number from 0")
