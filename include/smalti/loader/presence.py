"""Whether the lake has the shards that will have to be fetched: looked up once, by one rank, before the first batch.

On GCS a listing names a thousand objects a request, so that a hundred thousand shards are about a hundred requests: names are
cut, in their order, into runs of a few pages, which are listed side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from smalti.errors import CorruptError, LakeError, MissingObject, SmaltiError
from smalti.objects import join_uri, sizes_of

log = logging.getLogger("smalti")

_LISTERS = 16

_RUN = 4_900
"""Shards a listing: five pages, if some other objects (index.json, part.json) lie between."""

_FIX = "Restore it, or use another version; `smalti verify` names everything that is wrong with a release"


def fault_of_shards(root: str, shards: Sequence[tuple[str, int]]) -> SmaltiError | None:
    """What is wrong with the shards of a lake, the first of them and how many more; None: all are there.

    Args:
        root: URI of parts/.
        shards: basename relative to it, and bytes.
    Returns:
        MissingObject or CorruptError (another size), not raised: every rank is to raise it.
    """
    ordered = sorted(shards)
    runs = [ordered[start : start + _RUN] for start in range(0, len(ordered), _RUN)]
    try:
        with ThreadPoolExecutor(_LISTERS) as pool:
            found = list(pool.map(lambda run: sizes_of(root, [name for name, _ in run]), runs))
    except LakeError as error:
        # Who may read objects and not list them can train: each shard is checked when it is fetched, as always.
        log.warning("%s: it was not looked up whether all shards are there: %s", root, error.what)
        return None
    wrong = [
        (name, there, size)
        for run, sizes in zip(runs, found, strict=True)
        for (name, size), there in zip(run, sizes, strict=True)
        if there != size
    ]
    if not wrong:
        return None
    (name, there, size), more = wrong[0], f" (and {len(wrong) - 1} more shards)" if len(wrong) > 1 else ""
    if there is None:
        return MissingObject(f"the shard is not there{more}", join_uri(root, name), _FIX)
    return CorruptError(f"the shard has {there} bytes instead of {size}{more}", join_uri(root, name), _FIX)
