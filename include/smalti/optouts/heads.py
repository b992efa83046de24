"""What requests say of themselves, without their keys, and many of them in one object: to list them reads little.

    optouts/heads/000001.json.gz, ...    HeadBlock: BLOCK requests that were answered, create-only

What a block says is said by requests and answers, too: one that is lost costs time, nothing else. A request that waits for its answer
is in none, and is read itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from smalti import objects
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.objects import join_uri
from smalti.optouts.request import READERS, Action, read_forgotten
from smalti.release.skips import Model, canonical_json, compress, damaged, decompress, parse

BLOCK = 128
"""Requests in a block: ten thousand are read with at most 78 + 128 requests to the store, and those that wait."""

_NAME = re.compile(r"(\d{6})\.json\.gz")


class Head(Model):
    """A request without its keys."""

    id: str
    action: Action
    reference: str
    submitted: AwareDatetime
    submitted_by: str
    keys: int = Field(ge=0)
    rejected: int = Field(ge=0)
    withdraws: str | None = None
    refused: bool = Field(
        False, description="a person said no; that is for ever, a yes may be followed by another question"
    )


class HeadBlock(Model):
    """BLOCK of them."""

    version: Literal[1] = 1
    heads: tuple[Head, ...]


class _Asked(BaseModel):
    """What is read of a request itself: its keys are not looked at."""

    id: str
    action: Action
    reference: str
    submitted: AwareDatetime
    submitted_by: str
    keys: list[Any]
    rejected: int
    withdraws: str | None = None


def read_blocks(lake: Lake) -> dict[str, Head]:
    """Request -> what blocks say of it."""
    root = lake.optout_heads()
    uris = [join_uri(root, name) for name in objects.list_names(root) if _NAME.fullmatch(name)]

    def read(uri: str) -> HeadBlock:
        return parse(HeadBlock, decompress(objects.read_bytes(uri), uri), uri)

    with ThreadPoolExecutor(READERS) as pool:
        return {head.id: head for block in pool.map(read, uris) for head in block.heads}


def read_heads(lake: Lake, requests: Iterable[str], known: Mapping[str, Head]) -> dict[str, Head]:
    """Request -> its head, from what is known or from the request itself.

    Raises:
        InputError: there is no request of such an id.
        CorruptError: one is damaged.
    """
    wanted = list(requests)
    with ThreadPoolExecutor(READERS) as pool:
        heads = pool.map(lambda request: known.get(request) or read_head(lake, request), wanted)
        return dict(zip(wanted, heads, strict=True))


def read_head(lake: Lake, request: str) -> Head:
    """One, from the request itself. Raises InputError, CorruptError."""
    uri = lake.optout_request(request)
    try:
        asked = read_some(_Asked, uri)
    except MissingObject:
        over = read_forgotten(lake, request)
        if over is None:
            raise InputError(
                "there is no such request", uri, "`smalti optout status` lists those that there are"
            ) from None
        return Head(**over.model_dump(include=set(Head.model_fields)))
    return Head(**asked.model_dump(exclude={"keys"}), keys=len(asked.keys))


def condense(lake: Lake, heads: Iterable[Head]) -> int:
    """Put heads that are in no block yet into new ones, as far as they fill them. Returns how many blocks that made.

    Two that do this at once make the same block, or the slower one makes none.
    """
    known = read_blocks(lake)
    new = sorted((head for head in heads if head.id not in known), key=lambda head: head.id)
    names = [found for found in map(_NAME.fullmatch, objects.list_names(lake.optout_heads())) if found]
    first = max((int(found[1]) for found in names), default=0) + 1
    made = 0
    for number, start in enumerate(range(0, len(new) - BLOCK + 1, BLOCK), first):
        block = HeadBlock(heads=tuple(new[start : start + BLOCK]))
        made += objects.create_bytes(
            lake.optout_head_block(number), compress(canonical_json(block.model_dump(mode="json")))
        )
    return made


R = TypeVar("R", bound=BaseModel)


def read_some(model: type[R], uri: str) -> R:
    """Some fields of an object. Raises MissingObject, CorruptError."""
    content = decompress(objects.read_bytes(uri), uri)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise damaged(uri, f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
