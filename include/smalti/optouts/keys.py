"""Keys: what a request names its pictures by. Text in, one spelling out; nothing is ever interpreted as a pattern, SQL or a path."""

from __future__ import annotations

import functools
import ipaddress
import re
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from smalti.strict import NAME, Strict

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


HANDED_IN_AGAIN = "Withdraw the request and hand it in again: its pictures were fingerprinted by an older smalti"


class Print(Strict):
    """What a picture is recognised by (`smalti.images.fingerprint`), as the ledger keeps it."""

    phash: int = Field(ge=0, lt=1 << 64)
    colour: str = Field(pattern="^[0-9a-f]{198}$", description="thumbnail, hex")
    flat: bool
    width: int = Field(gt=0, description="px, upright")
    height: int = Field(gt=0)

    @field_validator("colour", mode="before")
    @classmethod
    def _of_this_layout(cls, colour: Any) -> Any:
        if isinstance(colour, str) and len(colour) == 2 * 192:
            raise ValueError("the picture was fingerprinted by an older smalti: hand it in again")
        return colour


class Key(Strict):
    """One key in its one spelling.

    `value` of an image is the sha256 of its file; its pixels are never kept.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    kind: KeyKind
    value: str = Field(min_length=1, max_length=LONGEST)
    fingerprint: Print | None = Field(None, description="of an image; None: the file could be hashed, not decoded")

    @model_validator(mode="after")
    def _in_its_spelling(self) -> Key:
        if normalise(self.kind, self.value) != self.value:
            raise ValueError(f"a key of kind {self.kind} is not spelled like this")
        if self.fingerprint is not None and self.kind != KeyKind.IMAGE:
            raise ValueError("only an image has a fingerprint")
        return self


def key_of(kind: str, value: str) -> Key:
    """A key as a person wrote it.

    Raises:
        ValueError: no such kind, or not a key of it; the message says what would be one, and never what was written.
    """
    found = kind_of(kind)
    if found is None:
        raise ValueError(f"no such kind of key: use one of {', '.join(KeyKind)}")
    return Key.model_construct(kind=found, value=normalise(found, value), fingerprint=None)


def kind_of(name: str) -> KeyKind | None:
    """The kind of that name, in whatever case; None: there is none."""
    return _KINDS.get(name.strip().lower())


_KINDS = {kind.value: kind for kind in KeyKind}


def normalise(kind: KeyKind, value: str) -> str:
    """The one spelling of a key. What cannot be a key of its kind is refused; what can be one matches what is equal to it.

    Normalised twice it is the same. Both sides of a comparison are spelled by it, the key and what a row says:

    - id: as it is. Anything may follow the first slash.
    - url, prefix: scheme and host in lower case, a host that is not ASCII as DNS spells it, without the dot at its end, without the port
      that the scheme has anyway; without user and password, which name nobody's picture and are never kept; without fragment. No path
      is the path `/`. Path and query stay as they are, percent signs included: servers tell those apart. `http` and `https` are two.
    - domain: a host, as above; `*.` in front of it and a dot behind it are left away, as hosts below it are meant anyway.
    - owner: as it is, upper and lower case apart.
    - sha256, image: 64 hexadecimal digits in lower case.

    White space around a key is left away.

    Raises:
        ValueError: it cannot be one; the message says what would be, and never what was written: it may stand in logs.
    """
    value = value.strip()
    if not value or len(value) > LONGEST:
        raise ValueError(f"a key has 1 to {LONGEST} characters, this one has {len(value)}")
    if _UNFIT.search(value):
        raise ValueError("a key is text without line breaks and other control characters")
    found = _NORMALISE[kind](value)
    if len(found) > LONGEST:
        raise ValueError(f"a key has 1 to {LONGEST} characters, and {len(found)} as it is compared")
    return found


def spelled(kind: KeyKind, text: str) -> str:
    """What a row says, as a key would be spelled. What could be no key is left as it is, but for white space around it."""
    try:
        return normalise(kind, text)
    except ValueError:
        return text.strip()


_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and halves of characters, which UTF-8 cannot spell."""

_SOURCE, _SHA256 = re.compile(NAME), re.compile("[0-9a-f]{64}")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")


def _id(value: str) -> str:
    source, slash, key = value.partition("/")
    if not (slash and key and _SOURCE.fullmatch(source)):
        raise ValueError("no sample id: write <source>/<key>")
    return value


_PORTS = {"http": 80, "https": 443}


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        host, port = _url_host(parts.netloc.rpartition("@")[2], parts.hostname or ""), parts.port
    except ValueError:
        raise ValueError("no URL: write https://host/path") from None
    if not parts.scheme:
        raise ValueError("no URL: write https://host/path")
    shown = "" if port is None or port == _PORTS.get(parts.scheme) else f":{port}"
    query = parts.query.rstrip()
    path = parts.path if query else parts.path.rstrip()
    return f"{parts.scheme}://{host}{shown}{path or '/'}{'?' if query else ''}{query}"


def _url_host(spelled: str, host: str) -> str:
    return f"[{_address(host)}]" if spelled.startswith("[") else _host(host)


def _address(value: str) -> str:
    try:
        found = ipaddress.IPv6Address(value)
    except ValueError:
        raise ValueError("no host name: write example.org") from None
    if found.scope_id is not None:
        raise ValueError("no host name: write example.org")
    return found.compressed


def _owner(value: str) -> str:
    return value


def _sha256(value: str) -> str:
    value = value.lower()
    if not _SHA256.fullmatch(value):
        raise ValueError("no sha256: write its 64 hexadecimal digits")
    return value


def _domain(value: str) -> str:
    if ":" in value:  # an address is no domain, but it is the host of a URL, which is compared as one
        return _address(value)
    found = _host(value.removeprefix("*."))
    if "." not in found:
        raise ValueError("no domain: write example.org")
    return found


@functools.lru_cache(1 << 14)  # Python takes 0.1 ms for a name that is not ASCII
def _host(value: str) -> str:
    """Lower case, names that are not ASCII as DNS spells them, without the dot at the end; at most 253 characters (RFC 1035)."""
    try:
        found = value.encode("idna").decode("ascii").lower() if not value.isascii() else value.lower()
    except UnicodeError:
        raise ValueError("no host name: write example.org") from None
    found = found.removesuffix(".")
    if len(found) > 253 or not _HOST.fullmatch(found) or ".." in found:
        raise ValueError("no host name: write example.org")
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
