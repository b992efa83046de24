"""URLs and hosts by the column are what they are one by one."""

from __future__ import annotations

import polars as pl  # noqa: TID253
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smalti.optouts.keys import KeyKind, key_of, normalise
from smalti.optouts.urls import Prefixes, Tails, below, spelled_hosts, spelled_urls
from smalti.optouts.watch import Watch

PIECES = ["https://", "HTTP://", "ftp://", "a.org", "A.org", "b.a.org", ":443", ":80", "/", "//", "/.", "/..", "me", "%41", "%2F", "%2f",
          "?", "x=1", "&", "#", "ü", " ", "'", "%", "*", "\\", "a.org.", "..", "-", "_", "\t", "@", "user@", "~", "+", ";"]  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=6).map(lambda each: "https://a.org/" + "".join(each)),
    st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["https://", "HTTP://"]),
        st.sampled_from(["a.org", "A.org:443", "user@b.a.org", "[::1]"]),
        st.sampled_from(["", "", "/", "/me"]),
        st.sampled_from(["", "?", "?", "#"]),
        st.lists(st.sampled_from(["/", "?", "#", "u=", "me", "/..", " ", "%", "@"]), max_size=4).map("".join),
    ),
)


def one_by_one(kind: KeyKind, value: str) -> str:
    try:
        return normalise(kind, value)
    except ValueError:
        return value.strip()


@given(st.lists(TEXTS, max_size=20))
def test_a_column_is_spelled_as_its_texts_are(texts: list[str]) -> None:
    for kind, found in (
        (KeyKind.URL, spelled_urls(pl.DataFrame({"url": texts}, schema={"url": pl.String}))),
        (KeyKind.DOMAIN, spelled_hosts(pl.Series(texts, dtype=pl.String)).rename({"host": "value"})),
    ):
        assert dict(found.iter_rows()) == {each: one_by_one(kind, each) for each in texts}


@example(["https://a.org?u=/y"], "")  # no path, and a slash all the same
@given(st.lists(TEXTS, max_size=20), st.sampled_from(["", " ", "\x1f", "#x", "?", "? ", "\u2003"]))
def test_no_url_that_is_a_key_is_passed_over(texts: list[str], end: str) -> None:
    texts = [*texts, *(f"{each}{end}" for each in texts)]
    spelled = {each: one_by_one(KeyKind.URL, each) for each in texts}
    keys = {each for each in spelled.values() if _is_url(each)}
    for some in (keys, *({key} for key in keys)):  # beside others a key may be found by chance
        for looked in (Tails.of(some), Prefixes(tuple(some))):
            found = looked.among(pl.DataFrame({"url": texts}, schema={"url": pl.String}))
            assert {text for text in texts if spelled[text] in some} <= set(found["url"])


def test_what_cannot_be_spelled_has_a_prefix_for_parts_as_for_new_data() -> None:
    text = " https://a.org/me/\x01.jpg\t"
    [[_, found]] = spelled_urls(pl.DataFrame({"url": [text]})).iter_rows()
    assert in_column([found], ["https://a.org/me"]) == {(found, "https://a.org/me")}
    row = pa.table({
        "id": ["s/1"],
        "sha256": ["0" * 64],
        "url": [text],
        "url_host": pa.nulls(1, pa.string()),
        "owner": ["Jane"],
    })
    assert Watch.of([key_of("prefix", "https://a.org/me")]).asks(row) == [True]


def test_most_other_urls_are_passed_over() -> None:
    frame = pl.DataFrame({"url": [f"https://a.org/{n:09d}.jpg" for n in range(1000)]})
    found = Tails.of([f"https://a.org/{7:09d}.jpg", "https://a.org/b/c.html"]).among(frame)
    assert found["url"].to_list() == ["https://a.org/000000007.jpg"]


def in_column(urls: list[str], prefixes: list[str]) -> set[tuple[str, str]]:
    frame = pl.DataFrame(
        {"row": range(len(urls)), "spelled": [one_by_one(KeyKind.URL, url) for url in urls]},
        schema={"row": pl.Int64, "spelled": pl.String},
    )
    return {(urls[row], value) for row, value in Prefixes(tuple(prefixes)).find(frame).iter_rows()}


@given(st.lists(TEXTS, max_size=8), st.lists(TEXTS, max_size=8), st.integers(0, 30))
def test_prefixes_end_at_a_boundary(texts: list[str], more: list[str], deep: int) -> None:
    urls = [one_by_one(KeyKind.URL, each) for each in [*texts, *(f"{each}{'/a' * deep}" for each in more), *more]]
    prefixes = [each for each in urls if one_by_one(KeyKind.URL, each) == each and "://" in each and _is_url(each)]
    expected = {
        (url, prefix)
        for url in urls
        for prefix in prefixes
        if url.startswith(prefix)
        and (prefix.endswith("/") or url[len(prefix) : len(prefix) + 1] in ("", "/", "?", "#"))
    }
    assert in_column(urls, prefixes) == expected


@given(st.lists(TEXTS, max_size=20), st.integers(0, 12))
def test_no_url_that_has_a_prefix_is_passed_over(texts: list[str], length: int) -> None:
    spelled = {each: one_by_one(KeyKind.URL, each) for each in texts}
    cut = {each[:at] for each in spelled.values() for at in (len(each), len("https://a.org") + length)}
    prefixes = sorted({one_by_one(KeyKind.PREFIX, each) for each in cut if _is_url(each)})
    frame = pl.DataFrame({"url": texts}, schema={"url": pl.String})
    for some in (prefixes, *([prefix] for prefix in prefixes[:6])):
        found = Prefixes(tuple(some)).among(frame)["url"]
        expected = {url for url in texts if in_column([url], some)}
        assert expected <= set(found)


def test_most_urls_of_others_are_passed_over() -> None:
    urls = [f"https://{host}/{user}/{n}.jpg" for host in ("a.org", "b.org") for user in ("me", "you") for n in range(9)]
    for prefix, expected in (("https://a.org/me", urls[:9]), ("https://a.org/", urls[:18])):
        frame = Prefixes((prefix,)).among(pl.DataFrame({"url": urls}))
        assert frame["url"].to_list() == expected


def _is_url(text: str) -> bool:
    try:
        return bool(key_of("prefix", text))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        ("https://a.org/me", ["https://a.org/me", "https://a.org/me/1.jpg", "https://a.org/me?x"], ["https://a.org/menu", "http://a.org/me/1"]),
        ("https://a.org/me/", ["https://a.org/me/1.jpg", "https://a.org/me/"], ["https://a.org/me", "https://a.org/men/"]),
        ("https://a.org", ["https://a.org/x", "https://a.org", "https://a.org?x"], ["https://a.organic/x", "https://a.org.net/x", "https://a.org:8/x"]),
        ("https://a.org/%", ["https://a.org/%", "https://a.org/%/1"], ["https://a.org/me", "https://a.org/%25"]),
        ("https://a.org/.*", ["https://a.org/.*/x"], ["https://a.org/me", "https://a.org/.x"]),
        ("https://a.org/u?id=1", ["https://a.org/u?id=1/2"], ["https://a.org/u?id=1&b=2", "https://a.org/u?id=12"]),
    ],
)  # fmt: skip
def test_what_a_prefix_has(prefix: str, inside: list[str], outside: list[str]) -> None:
    prefix = normalise(KeyKind.PREFIX, prefix)
    assert in_column([*inside, *outside], [prefix]) == {(url, prefix) for url in inside}


def test_a_domain_has_what_is_below_it_and_nothing_that_ends_alike() -> None:
    hosts = pl.Series([
        "a.org",
        "b.a.org",
        "c.b.a.org",
        "ba.org",
        "a.org.net",
        "org",
        "A.ORG",
        "a.org.",
        "xn--bcher-kva.de",
        "x.bücher.de",
        None,
    ])
    domains = pl.Series(sorted(normalise(KeyKind.DOMAIN, each) for each in ("a.org", "*.bücher.de", "b.a.org")))
    found = {
        (host, domain) for host, domain in below(spelled_hosts(hosts), domains).select("host", "value").iter_rows()
    }
    assert found == {
        *((host, "a.org") for host in ("a.org", "b.a.org", "c.b.a.org", "A.ORG", "a.org.")),
        *((host, "b.a.org") for host in ("b.a.org", "c.b.a.org")),
        *((host, "xn--bcher-kva.de") for host in ("xn--bcher-kva.de", "x.bücher.de")),
    }
