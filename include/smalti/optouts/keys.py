"""Keys: what a request names its pictures by. Text in, one spelling out; nothing is ever interpreted as a pattern, SQL or a path."""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from smalti.strict import Strict

LONGEST = 4096
"""Characters of a key: longer than any URL that servers take."""


class KeyKind(StrEnum):
    """What a key is compared with."""

    ID = "id"  # sample id, "<source>/<key>"
    URL = "url"  # of the picture
    OWNER = "owner"
    SHA256 = "sha256"  # of the picture's bytes as delivered
    IMAGE = "image"  # a picture: its sha256 and its fingerprint
    PREFIX = "prefix"  # of the URL, at a boundary: `https://a.org/me` is one of `https://a.org/me/1.jpg`, not of `https://a.org/menu`
    DOMAIN = "domain"  # host of the URL, and every host below it


WIDE = frozenset({KeyKind.PREFIX, KeyKind.DOMAIN})
"""Kinds of which one key may match any number of pictures: a person always confirms them."""


class Print(Strict):
    """What a picture is recognised by (`smalti.images.fingerprint`), as the ledger keeps it."""

    phash: int = Field(ge=0, lt=1 << 64)
    colour: str = Field(pattern="^[0-9a-f]{384}$", description="thumbnail, hex")
    flat: bool
    width: int = Field(gt=0, description="px, upright")
    height: int = Field(gt=0)


class Key(Strict):
    """One key in its one spelling.

    `value` of an image is the sha256 of its file; its pixels are never kept.
    """

    kind: KeyKind
    value: str = Field(min_length=1, max_length=LONGEST)
    fingerprint: Print | None = Field(None, description="of an image; None: the file could be hashed, not decoded")

    @model_validator(mode="after")
    def _in_its_spelling(self) -> Key:
        if normalise(self.kind, self.value) != self.value:
            raise ValueError(f"{self.value!r} is not how a key of kind {self.kind} is spelled")
        if self.fingerprint is not None and self.kind != KeyKind.IMAGE:
            raise ValueError("only an image has a fingerprint")
        return self


def key_of(kind: str, value: str) -> Key:
    """A key as a person wrote it.

    Raises:
        ValueError: no such kind, or not a key of it; the message says what would be one.
    """
    try:
        found = KeyKind(kind.strip().lower())
    except ValueError as error:
        raise ValueError(f"{kind!r} is no kind of key: use one of {', '.join(KeyKind)}") from error
    return Key(kind=found, value=normalise(found, value))


def normalise(kind: KeyKind, value: str) -> str:
    """The one spelling of a key. What cannot be a key of its kind is refused; what can be one matches what is equal to it.

    Raises:
        ValueError: it cannot be one; the message says what would be.
    """
    value = value.strip()
    if not value or len(value) > LONGEST:
        raise ValueError(f"a key has 1 to {LONGEST} characters, this one has {len(value)}")
    if any(each < " " or each == "\x7f" for each in value):
        raise ValueError("a key has no control characters")
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError("a key is text that UTF-8 can spell")
    return _NORMALISE[kind](value)


def _id(value: str) -> str:
    source, slash, key = value.partition("/")
    if not (source and slash and key):
        raise ValueError(f"{value!r} is no sample id: write <source>/<key>")
    return value


def _url(value: str) -> str:
    """Scheme and host in lower case, no fragment; path and query as they are: servers tell those apart."""
    try:
        parts = urlsplit(value)
        host = _host(parts.hostname or "")
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError as error:
        raise ValueError(f"{value!r} is no URL: write https://host/path") from error
    if not parts.scheme or not host:
        raise ValueError(f"{value!r} is no URL: write https://host/path")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme.lower()}://{host}{port}{parts.path}{query}"


def _owner(value: str) -> str:
    return value


def _sha256(value: str) -> str:
    value = value.lower()
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(f"{value[:80]!r} is no sha256: write its 64 hexadecimal digits")
    return value


def _domain(value: str) -> str:
    found = _host(value.removeprefix("*.").rstrip("."))
    if "." not in found:
        raise ValueError(f"{value!r} is no domain: write example.org")
    return found


def _host(value: str) -> str:
    """Lower case, names that are not ASCII as DNS spells them."""
    try:
        found = value.encode("idna").decode("ascii").lower() if not value.isascii() else value.lower()
    except UnicodeError as error:
        raise ValueError(f"{value!r} is no host name") from error
    if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", found) or ".." in found:
        raise ValueError(f"{value!r} is no host name")
    return found


_NORMALISE = {
    KeyKind.ID: _id,
    KeyKind.URL: _url,
    KeyKind.OWNER: _owner,
    KeyKind.SHA256: _sha256,
    KeyKind.IMAGE: _sha256,
    KeyKind.PREFIX: _url,
    KeyKind.DOMAIN: _domain,
}
