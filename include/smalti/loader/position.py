"""Up to which opt-out a run leaves samples out: found once, and the same on every rank."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

from streaming.base.distributed import get_rank, get_world_size, maybe_init_dist
from torch import distributed as dist

from smalti.errors import InputError, SmaltiError
from smalti.lake import Lake
from smalti.release.manifest import Manifest
from smalti.release.optouts import check_not_behind, check_of, lake_of, newest_position

log = logging.getLogger("smalti")

Position = int | Literal["newest"]


@contextlib.contextmanager
def connected(wanted: Position) -> Iterator[None]:
    """See to it that ranks can ask each other, if they have to, while a dataset is set up.

    A process group is made from the environment where there is none, as StreamingDataset itself makes one.

    Raises:
        InputError: there are several ranks, and no process group can be made.
    """
    ours = False
    if wanted == "newest" and get_world_size() > 1:
        try:
            if not dist.is_available():
                raise RuntimeError("this torch has no torch.distributed")
            ours = maybe_init_dist()
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{get_world_size()} ranks cannot agree on the opt-outs that apply ({str(error).splitlines()[0]})",
                "ReleaseDataset",
                "Start them with torchrun, or set MASTER_ADDR and MASTER_PORT; or pass the same optouts=<position> to each",
            ) from error
    try:
        yield
    finally:
        if ours:
            dist.destroy_process_group()


def resolve(manifest_uri: str, manifest: Manifest, wanted: Position, max_age: timedelta | None) -> int:
    """The position of the opt-outs that apply.

    Raises:
        InputError: the position is none, is behind the release's own, or a pulled copy was checked too long ago or lost its notes.
        MissingObject, LakeError: the snapshots cannot be listed.
    """
    lake = lake_of(manifest_uri)
    if wanted != "newest" and (type(wanted) is not int or wanted < 0):
        raise InputError(f"optouts={wanted!r} is no position", manifest_uri, "Pass a number from 0 on, or 'newest'")
    _refuse_old(manifest_uri, max_age)
    if wanted == "newest":
        position = _agreed(lake)
    else:
        position = wanted
        _warn_of_newer(lake, position)
    check_not_behind(position, manifest.optouts, lake.optout_snapshots())
    return position


def _agreed(lake: Lake) -> int:
    """The newest position as rank 0 sees it. A snapshot may appear while ranks start: they must not each look."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return newest_position(lake)
    found: list[int | SmaltiError | None] = [None]
    if dist.get_rank() == 0:
        try:
            found[0] = newest_position(lake)
        except SmaltiError as error:  # every rank ends with it, instead of waiting for ever
            found[0] = error
    dist.broadcast_object_list(found, src=0)
    if isinstance(found[0], SmaltiError):
        raise found[0]
    assert found[0] is not None  # rank 0 has put one of the two in
    return found[0]


def _warn_of_newer(lake: Lake, position: int) -> None:
    if get_rank() == 0:
        with contextlib.suppress(SmaltiError):
            newest = newest_position(lake)
            if newest > position:
                log.warning(
                    "opt-outs are known up to position %d, and those after %d are not applied", newest, position
                )


def _refuse_old(manifest_uri: str, max_age: timedelta | None) -> None:
    check = check_of(manifest_uri)
    if check is not None and max_age is not None and check.is_older(max_age):
        when = f"at {check.checked:%Y-%m-%d %H:%M} UTC" if check.checked.year > 1970 else "never"
        raise InputError(
            f"the opt-outs of this copy were last compared with the lake's {when}; an age of {max_age} is allowed",
            lake_of(manifest_uri).root,
            "Run `smalti pull MANIFEST DIR --refresh-optouts`, or pass another max_optout_age",
        )
