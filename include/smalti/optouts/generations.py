"""What a bucket keeps of objects that were replaced or deleted, and what of it can be removed.

A bucket with versioning keeps noncurrent generations: they are read, and removed where they hold what was erased. What its soft delete
keeps nobody can read or remove before its time: it is counted, and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.needles import Seeker
from smalti.optouts.remove_small import is_allowed
from smalti.optouts.scan import look_into
from smalti.threads import map_threads


@dataclass
class Kept:
    """Attributes:
    looked_at: noncurrent generations that there were.
    removed: of these, those that went.
    forbidden: of these, those that a policy of the bucket keeps.
    soft_deleted: generations that the bucket keeps after their deletion; until: when the last of them goes.
    """

    looked_at: int = 0
    removed: int = 0
    forbidden: int = 0
    soft_deleted: int = 0
    until: datetime | None = None


def remove_generations(lake: Lake, seeker: Seeker, folders: Iterable[str], kept: frozenset[str] = frozenset()) -> Kept:
    """Remove what the store keeps of objects that held what was erased.

    Args:
        folders: below these everything that is noncurrent goes unread.
        kept: objects of them whose generations are looked at like others.
    """
    below = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    found = Kept()
    until = 0.0

    def remove(each: objects.Generation) -> bool | None:
        """Whether it went; None: it may stay."""
        if is_allowed(lake, each.uri):
            return None
        if not each.uri.startswith(below) or each.uri in kept:
            data = objects.read_generation(each.uri, each.generation)
            if data is None or not look_into(seeker, each.uri, data):
                return None
        return objects.delete_generation(each.uri, each.generation)

    noncurrent = [each for each in objects.list_generations(lake.root) if not each.soft_deleted]
    went = Counter(map_threads(remove, noncurrent))
    found.looked_at, found.removed, found.forbidden = len(noncurrent), went[True], went[False]
    for each in objects.list_generations(lake.root):  # also what has just become one
        if each.soft_deleted:
            found.soft_deleted += 1
            until = max(until, each.until)
    found.until = datetime.fromtimestamp(until, UTC) if until else None
    return found
