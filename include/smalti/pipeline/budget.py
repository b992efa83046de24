"""GPU hours that a batch's rows may cost, over all runs that work on them.

Each driver notes what its engines have cost so far, now and then, as an object of its own; a later run adds up the last note of
each. What is lost with a driver is what it had not noted yet.
"""

from __future__ import annotations

import json
import uuid

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.pipeline.plan import Place


class Ledger:
    """The notes of one driver, beside those of earlier ones.

    Attributes:
        before: GPU seconds that earlier drivers have noted.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._me = uuid.uuid4().hex[:12]
        self._number = 0
        self._noted = 0.0
        self.before = _spent(place)

    def note(self, gpu_seconds: float) -> None:
        """Note what this driver's engines have cost up to now."""
        if gpu_seconds <= self._noted:
            return
        self._number += 1
        self._noted = gpu_seconds
        uri = self._place.spent_note(f"{self._me}-{self._number:06d}")
        objects.create_bytes(uri, (json.dumps({"gpu_seconds": round(gpu_seconds, 3)}) + "\n").encode())


def used_up(place: Place, limit: float, spent: float, rows: int) -> InputError:
    """The budget's end, as the line that the alert shows. Exit code 2: trying again would not help.

    Args:
        limit: hours.
        spent: seconds.
        rows: that still wait.
    """
    return InputError(
        f"the budget of {limit:g} GPU hours is used up ({spent / 3600:.3f} spent), {rows} rows wait; all answers are kept",
        f"{place.target.stage} of {place.source}, batch {place.batch}, profile {place.target.profile}",
        "Start a run of the same batch with a larger max_gpu_hours: it goes on where this one stopped",
    )


def _spent(place: Place) -> float:
    """GPU seconds: the last note of each driver."""
    last: dict[str, str] = {}
    for info in objects.list_objects(place.spent):
        driver = info.uri.rsplit("/", 1)[1].split("-")[0]
        last[driver] = max(last.get(driver, ""), info.uri)
    total = 0.0
    for uri in last.values():
        try:
            total += float(json.loads(objects.read_bytes(uri))["gpu_seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"this is no note of GPU seconds ({error})", uri, "Remove it") from error
    return total
