"""What a person hands in, typed or as a file: keys out, and the rows that are none with what is wrong with them.

What a file is called says what it is. Its text is data and nothing else: no pattern, no query, no path is made of it.
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import PurePosixPath

from smalti.errors import InputError
from smalti.optouts.keys import Key, KeyKind, Print, kind_of, normalise
from smalti.optouts.rows import Parsed, RejectedRow, Rows, as_text
from smalti.optouts.tabular import parse_csv, parse_jsonl, parse_parquet

IMAGES = frozenset({
    ".apng", ".avif", ".bmp", ".dng", ".gif", ".heic", ".heif", ".ico", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpf", ".jpg", ".jxl",
    ".png", ".psd", ".svg", ".tif", ".tiff", ".webp",
})  # fmt: skip
"""What names of pictures end in; of those that are not decoded here, the sha256 alone is compared."""

_BARE = "what kind of key this is cannot be told: write the kind before it, for instance `owner NAME`, `domain a.org` or `url https://a.org/1.jpg`"


def parse(data: bytes, name: str, where: str = "") -> Parsed:
    """The keys of a file.

    Args:
        name: what it is called; the ending decides how it is read.
        where: what an error names; default: the name.
    Raises:
        InputError: it is not what its name says, or nothing that is read here.
    """
    where, suffix = where or name, PurePosixPath(name).suffix.lower()
    if suffix in IMAGES:
        return parse_image(data)
    if suffix == ".csv":
        return parse_csv(data, where)
    if suffix in (".jsonl", ".ndjson"):
        return parse_jsonl(data, where)
    if suffix == ".parquet":
        return parse_parquet(data, where)
    if suffix == ".txt":
        return parse_text(as_text(data, where), where)
    raise InputError(
        "what is in it cannot be told",
        where,
        "Let its name end in .csv, .jsonl, .parquet, .txt, or as pictures' do: .jpg, .png, ...",
    )


def parse_text(text: str, where: str = "the text") -> Parsed:
    """One key a line: `kind value` or `kind,value`; or only the value where it tells its kind: a sha256, a URL with its scheme, a sample id.

    A line ends with \\n, \\r\\n or \\r.

    Raises:
        InputError: too many keys.
    """
    rows = Rows(where)
    for row, line in enumerate(io.StringIO(text.removeprefix("\ufeff"), newline=""), 1):
        line = line.strip()
        if not line:
            continue
        first, value = _split(line)
        kind = kind_of(first)
        if kind is not None:
            rows.add(row, kind, value)
            continue
        kind = _recognised(line)
        if kind is None:
            rows.reject(row, line, _BARE)
        else:
            rows.add(row, kind, line)
    return rows.parsed()


def _split(line: str) -> tuple[str, str]:
    """What stands before and after the first comma or white space."""
    found = re.match(r"([A-Za-z0-9]+)(?:\s*,\s*|\s+)(.*)", line, re.DOTALL)
    return (found[1], found[2]) if found else ("", "")


def _recognised(line: str) -> KeyKind | None:
    """The kind that a value alone tells; None: it may be several: `a.org/1.jpg` is a URL that lost its scheme, or a sample."""
    if re.match("https?://", line, re.IGNORECASE):
        return KeyKind.URL
    if "." in line.partition("/")[0]:
        return None
    for kind in (KeyKind.SHA256, KeyKind.ID):
        try:
            normalise(kind, line)
        except ValueError:
            continue
        return kind
    return None


def parse_image(data: bytes) -> Parsed:
    """A picture: its sha256, and its fingerprint if it can be decoded. Its pixels are kept nowhere."""
    from smalti.images.decode import DecodeError, decode
    from smalti.images.fingerprint import fingerprint

    if not data:
        return Parsed(rejected=(RejectedRow(1, "", "the file is empty"),))
    digest = hashlib.sha256(data).hexdigest()
    try:
        picture = decode(data)
    except DecodeError as error:
        note = f"the picture cannot be decoded ({error.reason.value}): only the very same file is found, by its sha256"
        return Parsed((Key(kind=KeyKind.IMAGE, value=digest, fingerprint=None),), notes=(note,))
    found = fingerprint(picture)
    shown = Print(
        phash=found.phash,
        colour=found.colour.hex(),
        flat=found.flat,
        width=picture.width,
        height=picture.height,
    )
    note = "there is too little in the picture to tell it apart: only the very same file is found, by its sha256"
    return Parsed((Key(kind=KeyKind.IMAGE, value=digest, fingerprint=shown),), notes=(note,) if found.flat else ())
