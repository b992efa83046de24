"""Requests: the immutable half of the ledger. One object a request, written once, and an answer to what it would do.

    optouts/requests/<request>/request.json.gz    what was asked
    optouts/requests/<request>/preview.json.gz    what it would do
    optouts/requests/<request>/answer.json        applied or refused, and by whom
    .../preview-2.json.gz, answer-2.json          the same once more, where it matched much more when it was to be applied
    optouts/requests/<request>/forgotten.json     in the place of request.json.gz, once its time is over: all but keys and reason

Names come from content and from where a request was handed in, so that handing it in twice is one request, and from the lake's salt, so
that nobody can tell the content from a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from smalti import objects
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts.keys import WIDE, Key
from smalti.optouts.salt import Salt
from smalti.release.skips import Model, canonical_json, compress, decompress, parse, sha256

READERS = 32
"""Objects of the ledger that are read at once: 50 ms each on GCS."""

CONFIRM_ABOVE = 1000
"""Matched samples above which a person confirms, unless the request says otherwise."""


class Action(StrEnum):
    """What a request asks for."""

    QUERY = "query"  # say what is held; nothing is applied
    EXCLUDE = "exclude"  # never serve it again
    ERASE = "erase"  # and remove the bytes
    WITHDRAW = "withdraw"  # take an earlier request back


class Request(Model):
    """What a person asked for. Of whoever asks only their own reference is kept.

    `id` says nothing of what is asked to anybody who does not know the lake's salt: it may stand in logs.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # keys stand in no traceback

    version: Literal[1] = 1
    id: str = Field(pattern="^[0-9a-f]{16}$")
    action: Action
    reference: str = Field(min_length=1, max_length=200, description="by which whoever asks knows the request")
    reason: str = Field("", max_length=2000)
    submission: str = Field(
        min_length=1, max_length=1000, description="the run, the file or the command that handed it in"
    )
    submitted: AwareDatetime
    submitted_by: str = Field("", max_length=200, description="who handed it in, as Airflow or the system knows them")
    keys: tuple[Key, ...] = Field((), description="sorted, each once")
    withdraws: str | None = Field(None, pattern="^[0-9a-f]{16}$", description="id of the request that is taken back")
    confirm_above: int = Field(CONFIRM_ABOVE, ge=0, description="matched samples above which a person confirms")
    rejected: int = Field(
        0, ge=0, description="rows of what was handed in that are no keys: optouts/rejected names them"
    )
    grace_days: float | None = Field(
        None,
        ge=0,
        description="erase: days between the erasure and the removal that were asked for with it; empty: nobody said",
    )
    forgotten: AwareDatetime | None = Field(
        None, description="when its keys were removed; such an object is not stored"
    )

    @model_validator(mode="after")
    def _asks_for_something(self) -> Request:
        if (self.action == Action.WITHDRAW) != (self.withdraws is not None):
            raise ValueError("`withdraws` goes with the action withdraw")
        if self.forgotten is None and (self.action == Action.WITHDRAW) == bool(self.keys):
            raise ValueError("a request has keys, or takes another one back")
        if list(self.keys) != ordered(self.keys):
            raise ValueError("the keys are not sorted, or one stands twice")
        return self

    def grace(self, days: float) -> timedelta:
        """The grace of a run that says so many days: never less than what was asked for with the request, which people were told."""
        return timedelta(days=max(days, self.grace_days or 0))

    @property
    def is_wide(self) -> bool:
        """Whether a person confirms it however little it matches."""
        return any(key.kind in WIDE for key in self.keys)

    def encode(self) -> bytes:
        """The object that is stored."""
        return compress(canonical_json(self.model_dump(mode="json", exclude={"forgotten"})))


class Forgotten(Model):
    """What stays of a request when nothing compares its keys with anything any more (`smalti.optouts.retention`)."""

    version: Literal[1] = 1
    id: str
    action: Action
    reference: str
    submitted: AwareDatetime
    submitted_by: str
    keys: int = Field(ge=0, description="how many it had")
    kinds: dict[str, int] = Field(description="kind of key -> keys")
    rejected: int = Field(ge=0)
    forgotten: AwareDatetime = Field(description="when its keys were removed")

    @classmethod
    def of(cls, request: Request, now: datetime) -> Forgotten:
        same = {
            name: getattr(request, name)
            for name in ("id", "action", "reference", "submitted", "submitted_by", "rejected")
        }
        kinds = Counter(str(key.kind) for key in request.keys)
        return cls(**same, keys=len(request.keys), kinds=dict(sorted(kinds.items())), forgotten=now)

    def encode(self) -> bytes:
        """The object that is stored."""
        return (self.model_dump_json(indent=1) + "\n").encode()

    def as_request(self) -> Request:
        """The request without its keys: for whoever asks what it was, and compares it with nothing."""
        same = {
            name: getattr(self, name)
            for name in ("id", "action", "reference", "submitted", "submitted_by", "rejected", "forgotten")
        }
        return Request(**same, submission="forgotten")


class Answer(Model):
    """That a request is to be applied, or never will be."""

    version: Literal[1] = 1
    request: str
    apply: bool
    by: str = Field(
        description="who confirmed or refused; `limit`: it matched no more than may be applied without asking"
    )
    answered: AwareDatetime
    preview_sha256: str = Field(description="of the preview's content that was looked at")


def ordered(keys: Iterable[Key]) -> list[Key]:
    """Sorted by kind and value, each once."""
    return [key for _, key in sorted({(key.kind.value, key.value): key for key in keys}.items())]


def request_id(
    action: Action, reference: str, keys: Iterable[Key], withdraws: str | None, submission: str, salt: Salt | None
) -> str:
    """The name of a request: the same for what is handed in twice, another one for the same keys from another submission.

    Args:
        salt: the lake's. None: as requests were called before lakes had one; those that are there keep such names.
    """
    said = {
        "action": action.value,
        "reference": reference,
        "keys": [[key.kind.value, key.value] for key in keys],
        "withdraws": withdraws,
        "submission": submission,
    }
    content = canonical_json(said)
    unsalted = sha256(content)[:16]
    return unsalted if salt is None or unsalted in salt.unsalted else salt.name_of(content)


def submit(lake: Lake, request: Request) -> Request:
    """Put a request into the ledger, or find it there: then what is there counts, with its times."""
    if objects.create_bytes(lake.optout_request(request.id), request.encode()):
        return request
    return read_request(lake, request.id)


def read_request(lake: Lake, request: str) -> Request:
    """A request of the ledger. One whose time is over has no keys any more, and says so (`forgotten`).

    Raises:
        InputError: there is none of that id.
        CorruptError: it is damaged.
    """
    uri = lake.optout_request(request)
    try:
        return parse(Request, decompress(objects.read_bytes(uri), uri), uri)
    except MissingObject as error:
        found = read_forgotten(lake, request)
        if found is not None:
            return found.as_request()
        raise InputError(
            "there is no such request", uri, "`smalti optout status` lists those that there are"
        ) from error


def read_forgotten(lake: Lake, request: str) -> Forgotten | None:
    """What stayed of a request whose time is over; None: it has all its keys, or there is none. Raises CorruptError."""
    uri = lake.optout_forgotten(request)
    found = objects.read_versioned(uri)
    return None if found is None else parse(Forgotten, found[0], uri)


def refuse_forgotten(request: Request) -> None:
    """Raises InputError for a request whose keys were removed: nothing can be looked up by it."""
    if request.forgotten is not None:
        raise InputError(
            f"its keys were removed {request.forgotten:%Y-%m-%d}, because its time was over",
            f"request {request.id}",
            "Ask anew under another reference",
        )


def request_ids(lake: Lake) -> list[str]:
    """Every request of the ledger, sorted."""
    return objects.list_names(lake.optout_requests())


def write_answer(lake: Lake, answer: Answer, turn: int = 1) -> Answer:
    """Record the answer to a preview, or find that there is one: the first one counts."""
    uri = lake.optout_answer(answer.request, turn)
    if objects.create_bytes(uri, answer.model_dump_json().encode()):
        return answer
    return parse(Answer, objects.read_bytes(uri), uri)


def read_answer(lake: Lake, request: str) -> Answer | None:
    """The answer to the newest preview of a request; None: it waits.

    A turn is one that has a preview, or an answer: previews have their time, and answers stay.
    """
    turn = 1
    while True:
        uri = lake.optout_answer(request, turn)
        found = objects.read_versioned(uri)
        if found is None:
            return None
        answer = parse(Answer, found[0], uri)
        if not answer.apply or not has_turn(lake, request, turn + 1):
            return answer
        turn += 1


def has_turn(lake: Lake, request: str, turn: int) -> bool:
    """Whether a request was looked at so often."""
    return objects.exists(lake.optout_preview(request, turn)) or objects.exists(lake.optout_answer(request, turn))
