"""Keys: one spelling for what is equal, and nothing in a key is ever more than text."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from smalti.optouts.keys import LONGEST, Key, KeyKind, key_of, normalise

REFUSALS = {
    "a key has N to N characters, this one has N",
    "a key has N to N characters, and N as it is compared",
    "a key is text without line breaks and other control characters",
    "no sample id: write <source>/<key>",
    "no URL: write https://host/path",
    "no host name: write example.org",
    "no domain: write example.org",
    "no shaN: write its N hexadecimal digits",
}
HOSTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["a.org", "A.ORG.", "bücher.de", "a.org:80", "u:p@a.org", "[::1]", "*.a.org"])
)
URLS = st.builds(
    lambda *parts: "".join(parts),
    st.sampled_from(["http", "https", "HTTPS", "ftp", ""]),
    st.just("://"),
    HOSTS,
    st.text(st.sampled_from("/?# :@%2F.\xa0é;[]\\"), max_size=12),
)


def outcome(kind: KeyKind, text: str) -> tuple[str | None, str]:
    try:
        return normalise(kind, text), ""
    except ValueError as error:
        return None, re.sub(r"\d+", "N", str(error))


@given(st.sampled_from(KeyKind), st.one_of(st.text(max_size=80), URLS))
@example(KeyKind.URL, "https://a.org/x #f")
@example(KeyKind.URL, "https://a.org/x? #f")
@example(KeyKind.URL, "https://a.org/\xa0?#")
@example(KeyKind.DOMAIN, "*.*.a.org")
@example(KeyKind.DOMAIN, "a.org。")
@example(KeyKind.PREFIX, "http://[::1%25eth0]/")
def test_a_key_is_refused_or_has_one_spelling(kind: KeyKind, text: str) -> None:
    found, refusal = outcome(kind, text)
    if found is None:
        assert refusal in REFUSALS, "nothing of the key is in it: it may stand in logs"
        return
    assert normalise(kind, found) == found
    assert 0 < len(found) <= LONGEST
    assert found == found.strip()
    found.encode()
    assert Key(kind=kind, value=found) == key_of(kind, text)


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        ("HTTPS://A.Org/Me/1.JPG", "https://a.org/Me/1.JPG"),
        ("https://a.org", "https://a.org/"),
        ("https://a.org?x=1", "https://a.org/?x=1"),
        ("https://a.org/x?", "https://a.org/x"),
        ("https://a.org/x#top", "https://a.org/x"),
        ("http://a.org:80/x", "http://a.org/x"),
        ("https://a.org:0443/x", "https://a.org/x"),
        ("https://a.org:80/x", "https://a.org:80/x"),
        ("https://a.org:/x", "https://a.org/x"),
        ("https://a.org./x", "https://a.org/x"),
        ("https://jane:secret@a.org/x", "https://a.org/x"),
        ("https://bücher.de/ü", "https://xn--bcher-kva.de/ü"),
        ("https://a.org/%7Eme/%2f%2F", "https://a.org/%7Eme/%2f%2F"),
        ("https://a.org/my pic.jpg", "https://a.org/my pic.jpg"),
        ("https://a.org//x/../y", "https://a.org//x/../y"),
        ("https://[2001:DB8:0::1]:443/x", "https://[2001:db8::1]/x"),
        ("gs://bucket/x*.jpg", "gs://bucket/x*.jpg"),
    ],
)
def test_how_a_url_is_spelled(written: str, spelled: str) -> None:
    assert normalise(KeyKind.URL, written) == normalise(KeyKind.PREFIX, written) == spelled


@pytest.mark.parametrize(
    "text",
    ["a.org/x", "//a.org/x", "https:///x", "https://a.org:x/", "https://a.org:99999/", "https://a b/", "https://%61.org/",
     "https://[::1/", "https://[fe80::1%eth0]/", "https://[a.org]/", "file:///etc/passwd", "data:image/png;base64,AAAA", "https://.a.org/", "https://*/x"],
)  # fmt: skip
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(ValueError, match=r"^no (URL|host name): write"):
        normalise(KeyKind.URL, text)


@pytest.mark.parametrize(
    ("kind", "written", "spelled"),
    [
        ("DOMAIN", "*.Example.ORG.", "example.org"),
        ("domain", "BÜCHER.de", "xn--bcher-kva.de"),
        ("domain", "2001:DB8:0::1", "2001:db8::1"),
        (" owner ", "  Jane O'Neil; DROP TABLE x  ", "Jane O'Neil; DROP TABLE x"),
        ("id", "cats/../../etc/passwd", "cats/../../etc/passwd"),
        ("id", "cats/https://a.org/%_*?#", "cats/https://a.org/%_*?#"),
        ("sha256", "AB" * 32, "ab" * 32),
    ],
)
def test_how_other_keys_are_spelled(kind: str, written: str, spelled: str) -> None:
    assert key_of(kind, written).value == spelled


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("id", "cats", "no sample id"),
        ("id", "cats/", "no sample id"),
        ("id", "/x", "no sample id"),
        ("id", "Not a source/x", "no sample id"),
        ("domain", "org", "no domain"),
        ("domain", "https://a.org", "no host name"),
        ("domain", "a.org/me", "no host name"),
        ("domain", "*.", "no host name"),
        ("domain", "a.org:80", "no host name"),
        ("sha256", "g" * 64, "no sha256"),
        ("owner", " ", "1 to 4096 characters"),
        ("owner", "x" * 4097, "1 to 4096 characters, this one has 4097"),
        ("owner", "a\x00b", "control characters"),
        ("owner", "a\nb", "control characters"),
        ("owner", "\ud800", "control characters"),
        ("url", "https://" + "é.a" * 1361 + ".de", "no URL"),
        ("url", "https://a.org" + "?" + "x" * 4082, "and 4097 as it is compared"),
        ("email", "a@b.c", "no such kind of key: use one of id, url, owner"),
    ],
)
def test_what_is_no_key_is_refused_with_what_would_be_one(kind: str, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        key_of(kind, text)
    assert caught.value.__cause__ is None, "what a library says of it would name the key"


def test_a_stored_key_in_another_spelling_is_an_error_that_does_not_name_it() -> None:
    with pytest.raises(ValidationError, match="not spelled like this") as caught:
        Key(kind=KeyKind.URL, value="https://A.org/secret")
    assert "secret" not in str(caught.value)
