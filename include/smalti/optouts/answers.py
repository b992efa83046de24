"""What engines say of erased samples after their removal: a run that had planned its questions before goes on to answer them.

What it writes lies in progress/ and says what a picture shows, and a pilot's page shows it. Nothing of that gets into a table that
has not the row any more; so the table's own version does not tell.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from smalti import objects
from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.optouts.needles import Removing, Seeker
from smalti.optouts.receipt_erase import EraseReceipt
from smalti.threads import map_threads

LONGEST = timedelta(days=8)
"""How long after a removal a run may end that had begun before: a caption task has 7 days. A run that begins after it asks nothing about
what was asked back (`smalti.table.asked_back`)."""

_CLOCKS = timedelta(hours=1)
"""By how much those of the store and of a worker may differ. What is read too much has been cleaned by its removal."""


@dataclass(frozen=True)
class Removed:
    """What was removed for a request.

    Attributes:
        began: when the removal took down what it looks for: what was written before was cleaned by it.
        proved: when nothing was left.
        ids: of the samples.
    """

    began: datetime
    proved: datetime
    ids: frozenset[str]


def removed_of(receipt: EraseReceipt, ids: frozenset[str]) -> Removed:
    """As the receipt of a removal says."""
    return Removed(receipt.removing, receipt.proved, ids)


def answered_since(lake: Lake, removed: Mapping[str, Removed], now: datetime) -> list[str]:
    """Requests of whose samples something was written below progress/ since their removal, sorted.

    Reads the ids of what was written since the first removal that is no older than LONGEST, and nothing if there is none.

    Args:
        removed: by request.
    """
    recent = {name: each for name, each in removed.items() if now - each.proved < LONGEST}
    if not recent:
        return []
    first = (min(each.began for each in recent.values()) - _CLOCKS).timestamp()
    new = [info.uri for info in objects.list_objects(lake.progress()) if info.written >= first]
    found = set[str]().union(*map_threads(lambda uri: _named(uri, recent), new))
    return sorted(found)


def _named(uri: str, removed: Mapping[str, Removed]) -> set[str]:
    """Requests of whose samples an object says something: by its rows' ids, or anywhere on a page. What cannot be read is left to the
    next removal."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if uri.endswith(".html"):
            text = html.unescape(objects.read_bytes(uri).decode(errors="replace"))
            return {name for name, each in removed.items() if _is_on(text, name, each)}
        if not uri.endswith(".parquet"):
            return set()
        file = pq.ParquetFile(io.BytesIO(objects.read_bytes(uri)))
        ids = {*file.read(["id"])["id"].to_pylist()} if "id" in file.schema_arrow.names else set()
        return {name for name, each in removed.items() if not each.ids.isdisjoint(ids)}
    except (MissingObject, pa.ArrowException):
        return set()


def _is_on(text: str, request: str, removed: Removed) -> bool:
    looked_for = Removing(request=request, begun=removed.began, ids=tuple(sorted(removed.ids)))
    return any(True for _ in Seeker(looked_for).text(text))
