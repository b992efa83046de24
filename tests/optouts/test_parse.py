"""What people hand in: every key comes out once, in its one spelling, or stands among the rejected rows with its number."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from smalti.errors import InputError
from smalti.images.fingerprint import RECOMMENDED_DISTANCE, Fingerprint, same_picture
from smalti.optouts.keys import KeyKind, Print, normalise
from smalti.optouts.parse import parse, parse_text
from smalti.optouts.rows import Parsed

SHA = "0123456789abcdef" * 4


def keys(parsed: Parsed) -> list[tuple[str, str]]:
    return [(key.kind.value, key.value) for key in parsed.keys]


def rejected(parsed: Parsed) -> list[tuple[int, str]]:
    return [(each.row, each.reason) for each in parsed.rejected]


def csv_of(*rows: tuple[str, ...]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


def parquet_of(**columns: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


# Typed text


def test_a_line_is_a_kind_and_a_value_or_a_value_that_tells_its_kind() -> None:
    found = parse_text(
        f"\ufeffowner Jane O'Neil, Ltd.\r\nDomain,A.org\n\n  {SHA.upper()}\rhttps://A.org/a b,c.jpg\ncats/1 2/x.jpg\nid,cats/2\nimage {SHA}"
    )
    assert found.rejected == ()
    assert keys(found) == [
        ("owner", "Jane O'Neil, Ltd."),
        ("domain", "a.org"),
        ("sha256", SHA),
        ("url", "https://a.org/a b,c.jpg"),
        ("id", "cats/1 2/x.jpg"),
        ("id", "cats/2"),
        ("image", SHA),
    ]


@pytest.mark.parametrize(
    "line", ["jane", "example.org", "example.org/1.jpg", "ftp://a.org/x", "owner", "Owner: Jane", "Jane Doe/1", "*", "../../etc/passwd"]
)  # fmt: skip
def test_a_line_that_may_be_several_things_is_rejected_with_what_to_write(line: str) -> None:
    found = parse_text(f"\n{line}\ncats/1")
    assert keys(found) == [("id", "cats/1")]
    assert rejected(found)[0][0] == 2
    assert "write the kind before it, for instance `owner NAME`" in rejected(found)[0][1]


def test_a_line_ends_where_editors_end_it_and_nowhere_else() -> None:
    found = parse_text("owner a\u2028b\nowner c\x85d\nowner e\x0bf\nowner g")
    assert keys(found) == [("owner", "a\u2028b"), ("owner", "c\x85d"), ("owner", "g")]
    assert rejected(found) == [(3, "a key is text without line breaks and other control characters")]


# CSV


def test_a_csv_with_kinds_and_values() -> None:
    data = b"\xef\xbb\xbf" + csv_of(
        ("Kind", " value"), ("url", "https://a.org/a,b.jpg"), (), ("OWNER", 'Jane "J" Doe'), ("", ""), ("id", "cats/1")
    )
    assert keys(parse(data, "x.CSV")) == [("url", "https://a.org/a,b.jpg"), ("owner", 'Jane "J" Doe'), ("id", "cats/1")]


def test_each_cell_below_a_kind_is_a_key() -> None:
    found = parse(
        b"url,owner,,\r\nhttps://a.org/1,Jane,,\r\n , \r\n,Joe\r\nhttps://a.org/2\r\nnothing,Jim\r\n", "x.csv"
    )
    assert keys(found) == [
        ("url", "https://a.org/1"), ("owner", "Jane"), ("owner", "Joe"), ("url", "https://a.org/2"), ("owner", "Jim")
    ]  # fmt: skip
    assert rejected(found) == [(6, "url: no URL: write https://host/path")]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_spreadsheet_may_write_other_separators(separator: str) -> None:
    data = f'value{separator}kind\r\n"https://a.org/x,y;z"{separator}url\r\n'.encode()
    assert keys(parse(data, "x.csv")) == [("url", "https://a.org/x,y;z")]


def test_rejected_rows_are_counted_as_a_spreadsheet_counts_them() -> None:
    lines = [
        "kind,value",  # 1
        "owner,one",
        "",  # 3
        "owner,a,b",  # 4: more cells
        'owner,"a"b',  # 5: quotes
        "owner",  # 6: no value
        "email,x@y.z",  # 7
        ",cats/1",  # 8
        "owner,nul\x00",  # 9
        'owner,"two\r\nlines"',  # 10: one row, two lines
        "owner," + "x" * 200_000,  # 11: longer than the csv module reads
        "owner," + "y" * 5000,  # 12
        "owner,last",  # 13
    ]
    found = parse("\r\n".join(lines).encode(), "x.csv")
    assert keys(found) == [("owner", "one"), ("owner", "last")]
    assert [row for row, _ in rejected(found)] == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert all(len(each.value) <= 81 for each in found.rejected)
    reasons = dict(rejected(found))
    assert "more cells than there are columns" in reasons[4]
    assert "quotes do not pair" in reasons[5]
    assert "use one of id, url, owner" in reasons[7]


def test_a_quote_that_is_never_closed_costs_its_own_row_alone() -> None:
    data = b'owner\n"Jane\nJoe\n"Jim"\n"Jack\nJill\n'
    found = parse(data, "x.csv")
    assert keys(found) == [("owner", "Joe"), ("owner", "Jim"), ("owner", "Jill")]
    assert [row for row, _ in rejected(found)] == [2, 5]


def test_a_quoted_cell_over_several_lines_is_one_rejected_row_and_no_key() -> None:
    found = parse(b'owner\n"Jane\nDoe"\nJoe\n', "x.csv")
    assert keys(found) == [("owner", "Joe")]
    assert rejected(found) == [(2, "a key is text without line breaks and other control characters")]


@pytest.mark.parametrize(
    "header", ["https://a.org/1.jpg", "kind,vlaue", "url,ownr", "url,url", "kind,value,note", "", "\n\n", "kind"]
)
def test_a_csv_without_a_header_that_is_known_is_refused(header: str) -> None:
    with pytest.raises(
        InputError, match=r"^x\.csv: its first row is no header\. Name the columns kind and value, or by"
    ) as caught:
        parse(f"{header}\nhttps://a.org/2.jpg,\n".encode() if header.strip() else header.encode(), "x.csv")
    assert "a.org" not in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused() -> None:
    for name in ("x.csv", "x.jsonl", "x.txt"):
        with pytest.raises(InputError, match=rf"^{name}: it is not UTF-8 \(byte 14\)\. Save it as UTF-8"):
            parse("owner\nJane Bücher".encode("latin-1").replace(b"\n", b"\n\n"), name)
    with pytest.raises(InputError, match=r"not UTF-8|no header"):
        parse("kind,value\nowner,Jane".encode("utf-16"), "x.csv")


# JSON Lines


def test_json_lines() -> None:
    lines = [
        '{"kind": "url", "value": "https://a.org/\\u00fc"}',  # 1
        "",
        '{"url": "https://a.org/2", "owner": 12345678901234567890, "id": null}',  # 3
        '{"owner": 1.5}',  # 4
        '{"owner": true}',
        '{"owner": ["a", "b"]}',
        '{"owner": {"kind": "owner", "value": "a"}}',
        '{"owner": "a", "owner": "b"}',  # 8
        '{"email": "a"}',
        '["owner", "a"]',
        '"cats/1"',
        "{}",
        '{"owner": null}',
        '{"kind": null, "value": "x"}',
        '{"kind": "owner"}',
        '{"owner": "x"',
        '{"owner": NaN}',
        '{"owner": "\\ud800"}',
        '{"owner": "\\u0000"}',
        "[" * 100_000,  # 20
        '{"owner": ' + "9" * 5000 + "}",
        '{"owner": "last"}',  # 22
    ]
    found = parse("\r\n".join(lines).encode(), "x.jsonl")
    assert keys(found) == [
        ("url", "https://a.org/ü"), ("url", "https://a.org/2"), ("owner", "12345678901234567890"), ("owner", "last")
    ]  # fmt: skip
    assert [row for row, _ in rejected(found)] == list(range(4, 22))
    found.encode_rejected().decode("ascii")


# Parquet


def test_parquet_columns_of_text_and_numbers() -> None:
    data = parquet_of(
        url=pa.array(["https://a.org/1", None, "nothing"]).dictionary_encode(),
        owner=pa.array([1, None, 3], pa.int64()),
        id=pa.array([None, None, None]),
    )
    found = parse(data, "x.parquet")
    assert keys(found) == [("url", "https://a.org/1"), ("owner", "1"), ("owner", "3")]
    assert rejected(found) == [(3, "url: no URL: write https://host/path")]


def test_parquet_text_that_is_not_utf8_is_one_rejected_row() -> None:
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"Jane"]).buffers())
    found = parse(parquet_of(kind=["owner", "owner"], value=broken), "x.parquet")
    assert keys(found) == [("owner", "Jane")]
    assert rejected(found) == [(1, "it is not UTF-8")]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no Parquet file"),
        (b"PAR1" * 10, "no Parquet file"),
        (parquet_of(url=["x"])[:-9] + b"\xff" * 9, "no Parquet file"),
        (parquet_of(url=["x"], note=["x"]), "these are not its columns. Name the columns kind and value"),
        (parquet_of(owner=[1.5]), "a column is of the type double"),
        (parquet_of(owner=[["a", "b"]]), "a column is of the type list"),
        (parquet_of(sha256=[b"\x00" * 32]), "a column is of the type binary"),
    ],
)
def test_a_parquet_file_that_is_none_or_another(data: bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(data, "x.parquet")
    assert str(caught.value).startswith("x.parquet: ")
    assert said in str(caught.value)


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_parquet_file_is_an_input_error_or_keys(data: st.DataObject) -> None:
    good = bytearray(_SOME_PARQUET)
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse(bytes(good), "x.parquet")
    except InputError:
        return
    assert all(normalise(key.kind, key.value) == key.value for key in found.keys)


_SOME_PARQUET = parquet_of(kind=["owner", "url"] * 20, value=["Jane", "https://a.org/x"] * 20)


# Pictures


def picture(kind: str, **options: object) -> bytes:
    cells = Image.fromarray(np.random.default_rng(7).integers(0, 255, (6, 8, 3), np.uint8))
    out = io.BytesIO()
    cells.resize((320, 240), Image.Resampling.BICUBIC).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "kind"), [("a.png", "png"), ("a.JPG", "jpeg"), ("a.webp", "webp"), ("a.bmp", "bmp"), ("x.tif", "gif")]
)
def test_a_picture_is_its_sha256_and_its_fingerprint(name: str, kind: str) -> None:
    data = picture(kind)
    found = parse(data, name)
    [key] = found.keys
    assert (key.kind, key.value) == (KeyKind.IMAGE, hashlib.sha256(data).hexdigest())
    assert (found.rejected, found.notes) == ((), ())
    assert key.fingerprint is not None
    assert (key.fingerprint.width, key.fingerprint.height) == (320, 240)
    original = parse(picture("png"), "a.png").keys[0].fingerprint
    assert original is not None
    if kind != "gif":  # whose few colours make another picture of this one
        assert same_picture(of(original), of(key.fingerprint), RECOMMENDED_DISTANCE)


def of(found: Print) -> Fingerprint:
    return Fingerprint(found.phash, bytes.fromhex(found.colour), found.flat, 0)


@pytest.mark.parametrize("data", [b"<html>", picture("png")[:200], b"\0"])
def test_a_picture_that_cannot_be_decoded_is_its_sha256_and_that_is_said(data: bytes) -> None:
    found = parse(data, "a.png")
    assert [(key.kind, key.value, key.fingerprint) for key in found.keys] == [
        (KeyKind.IMAGE, hashlib.sha256(data).hexdigest(), None)
    ]
    assert "cannot be decoded" in found.notes[0]


def test_an_empty_picture_is_rejected_and_a_flat_one_says_that_it_is() -> None:
    found = parse(b"", "a.heic")
    assert (found.keys, rejected(found)) == ((), [(1, "the file is empty")])
    out = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(out, "png")
    assert "too little in the picture" in parse(out.getvalue(), "a.png").notes[0]


@pytest.mark.parametrize("name", ["keys", "keys.json", "keys.xlsx", "keys.zip", ".csv", "x.csv.gz"])
def test_a_file_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"what is in it cannot be told\. Let its name end in \.csv, \.jsonl"):
        parse(b"url\nhttps://a.org\n", name)


# Whatever stands there


HOSTILE = st.sampled_from(
    ["'; DROP TABLE samples; --", "%' OR '1'='1", "../../../etc/passwd", "cats/../../x", "https://a.org/*", "*", "?", "[a-z]*", "{}", "$(id)",
     "`id`", "=cmd|' /C calc'!A0", "https://a.org/\"'<script>", "\u202egpj.elif", "🐈/🐈", "cats/🐈‍⬛", "\ud800", "NULL", "None", "-0", "nan", "\\", "\\N",
     "file:///etc/passwd", "https://a.org/%00", "a\tb", "kind", "value", "url", "id"]
)  # fmt: skip
TEXTS = st.one_of(
    HOSTILE,
    st.text(max_size=60),
    st.builds("https://a.org/{}".format, st.text(max_size=40)),
    st.builds("cats/{}".format, st.text(max_size=40)),
)
FORMATS: dict[str, Callable[[list[tuple[str, str]]], bytes]] = {
    "x.csv": lambda rows: csv_of(("kind", "value"), *rows),
    "x.jsonl": lambda rows: "\n".join(json.dumps({"kind": k, "value": v}) for k, v in rows).encode(),
    "x.parquet": lambda rows: parquet_of(kind=[k for k, _ in rows], value=[v for _, v in rows]),
    "x.txt": lambda rows: "\n".join(f"{k} {v}" for k, v in rows).encode(),
}


def spellable(rows: list[tuple[str, str]], name: str) -> bool:
    """Whether the format can hold these texts as they are."""
    if name != "x.jsonl" and any("\ud800" <= each <= "\udfff" for _, v in rows for each in v):
        return False
    return name != "x.txt" or not any(each in v for _, v in rows for each in "\r\n")


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(st.sampled_from([k.value for k in KeyKind]), TEXTS), max_size=6),
)
@example("x.csv", [("owner", 'a"\r\n"b'), ("owner", "\n"), ("owner", "\r")])
@example("x.csv", [("owner", "\x1c"), ("owner", "a\x00")])
@example("x.txt", [("owner", ", x"), ("owner", ",")])
def test_any_text_is_one_key_in_its_spelling_or_one_rejected_row(name: str, rows: list[tuple[str, str]]) -> None:
    if not spellable(rows, name):
        return
    first = 2 if name == "x.csv" else 1
    expected: dict[tuple[str, str], None] = {}
    bad = []
    for number, (kind, value) in enumerate(rows, first):
        text = value
        if name == "x.txt":  # what stands between is left away
            text = value.strip().lstrip(",").strip() if value.strip().startswith(",") else value
        try:
            expected[kind, normalise(KeyKind(kind), text)] = None
        except ValueError:
            bad.append(number)
    found = parse(FORMATS[name](rows), name)
    assert keys(found) == list(expected)
    assert [row for row, _ in rejected(found)] == bad


@given(
    st.sampled_from(["x.csv", "x.jsonl", "x.parquet", "x.txt", "x.png", "x.tiff"]),
    st.one_of(st.binary(max_size=200), TEXTS.map(lambda t: t.encode(errors="replace"))),
)
def test_any_bytes_are_keys_rejected_rows_or_an_input_error(name: str, data: bytes) -> None:
    try:
        found = parse(data, name)
    except InputError:
        return
    assert all(normalise(key.kind, key.value) == key.value for key in found.keys)
    assert all(each.row >= 1 for each in found.rejected)
    assert len({(key.kind, key.value) for key in found.keys}) == len(found.keys)


@given(st.lists(TEXTS.filter(lambda t: not any("\ud800" <= c <= "\udfff" for c in t)), max_size=5))
def test_typed_text_opens_no_file(lines: list[str]) -> None:
    with (
        mock.patch("builtins.open", side_effect=AssertionError),
        mock.patch("io.open", side_effect=AssertionError),
        mock.patch("os.open", side_effect=AssertionError),
    ):
        found = parse_text("\n".join(lines))
    assert all(normalise(key.kind, key.value) == key.value for key in found.keys)


def test_a_key_that_stands_twice_is_one() -> None:
    found = parse_text("url HTTPS://a.org/1\nhttps://A.org/1#x\nurl https://a.org:443/1")
    assert keys(found) == [("url", "https://a.org/1")]


def test_no_reason_repeats_the_key_and_no_value_a_password() -> None:
    lines = [
        "url https://jane:sesame@:x/",
        "domain sesame",
        "sesame",
        "sha256 sesame",
        "id sesame",
        "https://jane:sesame@a b/",
    ]
    found = parse_text("\n".join(lines))
    assert len(found.rejected) == len(lines)
    assert "sesame" not in "".join(each.reason for each in found.rejected)
    assert [each.value for each in found.rejected if "jane" in each.value] == []
    assert "sesame" not in found.rejected[0].value + found.rejected[-1].value


def test_many_keys_take_seconds_and_many_broken_rows_no_longer() -> None:
    """No step is quadratic; benchmarks/optout_keys.py has the figures."""
    good = [("url", f"https://img{n % 97}.example.org/photos/{n}.jpg?size=large") for n in range(20_000)]
    started = time.process_time()
    assert len(parse(csv_of(("kind", "value"), *good), "x.csv").keys) == 20_000
    assert len(parse(b"owner\n" + b'"Jane\n' * 20_001, "x.csv").rejected) == 20_001
    assert time.process_time() - started < 20
