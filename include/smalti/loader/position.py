"""Up to which opt-out a run leaves samples out: found once, and the same on every rank."""

from __future__ import annotations

import contextlib
import logging
from datetime import timedelta
from typing import Literal

from streaming.base.distributed import get_rank, get_world_size

from smalti.errors import InputError, SmaltiError
from smalti.lake import Lake
from smalti.loader.together import can_talk
from smalti.release.manifest import Manifest
from smalti.release.optouts import check_not_behind, check_of, lake_of, newest_position

log = logging.getLogger("smalti")

Position = int | Literal["newest"]


def look_for(manifest_uri: str, manifest: Manifest, wanted: Position, max_age: timedelta | None) -> int | None:
    """The position of the opt-outs that apply, as this rank knows it; None: rank 0 finds the newest, and this is not rank 0.

    A snapshot may appear while ranks start: they must not each look for it.

    Raises:
        InputError: the position is behind the release's own, a pulled copy was checked too long ago or lost its
            notes, or there are other ranks, which cannot be asked.
        MissingObject, LakeError: the snapshots cannot be listed.
    """
    lake = lake_of(manifest_uri)
    _refuse_old(manifest_uri, max_age)
    if wanted == "newest":
        if get_world_size() > 1 and not can_talk():
            raise InputError(
                f"{get_world_size()} ranks cannot agree on the opt-outs that apply: they have no torch.distributed",
                "ReleaseDataset",
                "Pass the same optouts=<position> to each",
            )
        if get_rank() != 0:
            return None
        position = newest_position(lake)
    else:
        position = wanted
        _warn_of_newer(lake, position)
    check_not_behind(position, manifest.optouts, lake.optout_snapshots())
    return position


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
