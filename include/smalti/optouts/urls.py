"""Hosts and URLs of samples, compared with keys in the spelling of keys. Keys are only ever compared: none becomes a pattern.

Samples have their URLs as the source wrote them. Most are spelled as a key would be, which one fixed expression tells of a column at a
time (_PLAIN_URL); the others are spelled one by one. What cannot be spelled as a key is compared as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from smalti.optouts.keys import KeyKind, spelled

_PLAIN_HOST = r"^[a-z0-9_]+(?:[.-]+[a-z0-9_]+)*$"

_PLAIN_URL = (
    r"^https?://[a-z0-9_]+(?:[.-]+[a-z0-9_]+)*"  # no port
    r"(?:/(?:[A-Za-z0-9_~$&+,=@!'()*-][A-Za-z0-9_.~$&+,=@!'()*-]*)?)+"  # no step begins with a dot
    r"(?:\?[A-Za-z0-9_.~$&+,/=@-]+)?$"
)
"""URLs that `normalise` leaves as they are, whatever else it leaves so. tests/optouts/test_urls.py holds it to that."""

_SPLIT = "/?#"
"""Where a URL may be cut by a prefix."""

_DEEP = 16
"""Separators of a prefix up to which samples are cut at their separators; beyond it at its length."""


def host_of(key: str) -> str:
    """The host of a key of a URL or prefix, as `spelled_hosts` spells it."""
    return spelled(KeyKind.DOMAIN, urlsplit(key).hostname or "")


def spelled_hosts(hosts: Any) -> Any:
    """A polars frame of the distinct hosts of a column: host, spelled."""
    frame = hosts.drop_nulls().unique().alias("host").to_frame()
    return _with_spelled(KeyKind.DOMAIN, frame, "host", _PLAIN_HOST)


def spelled_urls(frame: Any) -> Any:
    """The frame with `spelled` of its column `url`, which has no null; its rows in another order."""
    return _with_spelled(KeyKind.URL, frame, "url", _PLAIN_URL)


def _with_spelled(kind: KeyKind, frame: Any, column: str, plain: str) -> Any:
    import polars as pl

    is_plain = frame[column].str.contains(plain)
    same, odd = frame.filter(is_plain), frame.filter(~is_plain)
    texts = pl.Series([spelled(kind, each) for each in odd[column]], dtype=pl.String)
    return pl.concat([same.with_columns(spelled=column), odd.with_columns(spelled=texts)])


def below(hosts: Any, domains: Any) -> Any:
    """Which hosts are domains, or below one. hosts: frame host, spelled; domains: polars Series. Returns a frame: host, value (the domain)."""
    import polars as pl

    frame, found = hosts.select("host", value="spelled"), []
    while frame.height:
        found.append(frame.filter(pl.col("value").is_in(domains.implode())))
        frame = frame.with_columns(value=pl.col("value").str.splitn(".", 2).struct.field("field_1")).drop_nulls()
    return pl.concat(found) if found else frame


WHITE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
"""What `str.strip` takes away."""

_NO_PATH = "^[^/]*//[^/?#]*(?:[?#]|$)"
"""URLs whose host is followed by a query, or by nothing."""

_TAIL = 16
"""Characters at the end of a URL by which most others are told apart from a key: `/123456.jpg`, and something of what comes before."""


@dataclass(frozen=True)
class Tails:
    """Which URLs, as sources write them, may be one of some keys: it is cheaper to ask than to spell them.

    A path and a query are spelled as they are written, but for a fragment, white space and a bare `?` at the end; and no path is `/`.

    Attributes:
        values: the ends of the keys, by how long they are.
        bare: whether a key has the path `/`.
    """

    values: tuple[tuple[int, Any], ...]
    bare: bool

    @classmethod
    def of(cls, keys: Iterable[str]) -> Tails:
        by_length: dict[int, set[str]] = {}
        bare = False
        for key in keys:
            path = key[key.find("/", key.find("://") + 3) :]
            bare |= path[1:2] in ("", "?")
            length = min(_TAIL, len(path))
            by_length.setdefault(length, set()).add(path[-length:])
        return cls(tuple((length, _texts(some)) for length, some in sorted(by_length.items())), bare)

    def among(self, urls: Any) -> Any:
        """Those of some URLs, as sources write them, that may be one of the keys. urls: frame with `url`."""
        import polars as pl

        url = pl.col("url").str.strip_chars_end(WHITE)
        found = url.str.ends_with("?") | url.str.contains("#", literal=True)
        for length, values in self.values:
            found |= url.str.tail(length).is_in(values.implode())
        if self.bare:
            found |= url.str.contains(_NO_PATH)
        return urls.filter(found)


@dataclass(frozen=True)
class Prefixes:
    """Keys of kind prefix, grouped by where they cut a URL.

    A prefix matches if the URL ends with it or goes on with one of `/?#`, or if the prefix ends in `/` itself.
    """

    values: tuple[str, ...]

    @cached_property
    def _texts(self) -> tuple[Any, Any]:
        """What a URL, however it is spelled, has somewhere if a prefix is its own: one of the hosts, unless it is an address or not ASCII;
        and one of the paths, None if a prefix has none. `normalise` changes the letters of hosts alone."""
        hosts = {host_of(value) for value in self.values}
        paths = {value[value.find("/", value.find("://") + 3) :] for value in self.values}
        paths = {path.removeprefix("/") if path[1:2] in ("", "?") else path for path in paths}
        return _texts(hosts), None if "" in paths else _texts(paths)

    def among(self, urls: Any) -> Any:
        """Those of some URLs, as sources write them, that may have one of the prefixes. urls: frame with `url`."""
        import polars as pl

        if not self.values:
            return urls.clear()
        url, (hosts, paths) = pl.col("url"), self._texts
        odd = (url.str.len_bytes() != url.str.len_chars()) | url.str.contains("[", literal=True)
        has_host = odd | url.str.contains_any(hosts.implode(), ascii_case_insensitive=True)
        if paths is None:
            return urls.filter(has_host)
        has_path = url.str.contains_any(paths.implode())
        first, second = (has_path, has_host) if len(paths) <= len(hosts) else (has_host, has_path)
        return urls.filter(first).filter(second)  # few texts are looked for in all, many in what is left

    @cached_property
    def _groups(self) -> list[tuple[Any, bool, Any]]:
        """(expression that cuts the column `spelled`, whether a boundary must follow, prefixes)."""
        import polars as pl

        by_cut: dict[tuple[int, bool, int], list[str]] = {}
        for value in dict.fromkeys(self.values):
            depth = sum(value.count(each) for each in _SPLIT) - 2
            length = len(value) if depth > _DEEP else 0
            by_cut.setdefault((min(depth, _DEEP + 1), value.endswith("/"), length), []).append(value)
        groups = []
        for (depth, slash, length), values in sorted(by_cut.items()):
            cut = pl.col("spelled").str.head(length) if length else pl.col("spelled").str.extract(_cut(depth, slash), 1)
            groups.append((cut, bool(length and not slash), _texts(values)))
        return groups

    def find(self, urls: Any) -> Any:
        """Which URLs have which prefix. urls: frame row, spelled. Returns a frame: row, value (the prefix)."""
        import polars as pl

        found = [pl.DataFrame(schema={"row": pl.Int64, "value": pl.String})]
        for cut, bounded, values in self._groups:
            some = urls.select("row", "spelled", value=cut).filter(pl.col("value").is_in(values.implode()))
            if bounded:
                after = pl.col("spelled").str.slice(pl.col("value").str.len_chars(), 1)
                some = some.filter(after.is_in(["", *_SPLIT]))
            found.append(some.select("row", "value"))
        return pl.concat(found)


def _cut(depth: int, slash: bool) -> str:
    """What of a URL goes up to its so-manieth separator after the host: the steps before the next one, or up to a slash itself."""
    start = r"^([a-z][a-z0-9+.-]*://[^/?#]*(?:[/?#][^/?#]*)"
    return f"{start}{{{depth - 1}}}/)" if slash else f"{start}{{{depth}}})"


def _texts(values: Iterable[str]) -> Any:
    import polars as pl

    return pl.Series(sorted(values), dtype=pl.String)
