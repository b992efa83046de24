"""A random number of the lake, made once, by which requests get their names.

    optouts/salt.json    Salt, create-only

A request is called by a hash of all that was handed in, its keys among it. Without the salt whoever sees the name in a log could try keys
until one fits, long after the keys themselves were removed. Whoever may read the salt still can: nobody needs that right who may not read
requests.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

from pydantic import Field

from smalti import objects
from smalti.lake import Lake
from smalti.release.skips import Model, parse


class Salt(Model):
    """Never removed: without it the same submission would become a second request."""

    version: Literal[1] = 1
    value: str = Field(pattern="^[0-9a-f]{64}$")
    unsalted: tuple[str, ...] = Field((), description="requests that were there before; they keep their names")

    def name_of(self, said: bytes) -> str:
        """16 hexadecimal digits: the same for the same bytes, and nobody without the salt can tell for which."""
        return hmac.digest(bytes.fromhex(self.value), said, "sha256").hex()[:16]


def salt_of(lake: Lake) -> Salt:
    """The lake's salt. The first one that asks makes it.

    Raises:
        CorruptError: it is damaged.
    """
    uri = lake.optout_salt()
    found = objects.read_versioned(uri)
    if found is None:
        before = objects.list_names(lake.optout_requests())
        made = Salt(value=secrets.token_hex(32), unsalted=tuple(sorted(before)))
        if objects.create_bytes(uri, made.model_dump_json().encode()):
            return made
        return parse(Salt, objects.read_bytes(uri), uri)
    return parse(Salt, found[0], uri)
