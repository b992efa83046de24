"""A watch says of a row what the ledger's rules say: which key names it, and of which picture it is a copy."""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti import objects
from smalti.curation.copies import ratios_close
from smalti.errors import CorruptError
from smalti.images.fingerprint import RECOMMENDED_DISTANCE, Fingerprint, same_picture
from smalti.lake import Lake
from smalti.optouts.keys import Key, KeyKind, Print, key_of, normalise
from smalti.optouts.ledger_rows import write_matched
from smalti.optouts.matched import MATCHED
from smalti.optouts.request import Action, Answer, Request, ordered, request_id, submit, write_answer
from smalti.optouts.resolution import Resolution
from smalti.optouts.watch import PRINTS, Watch, load_watch
from smalti.shards.samples import THUMBNAIL

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
ROW = {"id": "s/a.jpg", "sha256": "a" * 64, "url": None, "url_host": None, "owner": None}


def asked(key: Key, **row: Any) -> bool:
    if "url" in row and "url_host" not in row:
        row["url_host"] = urlsplit(row["url"]).hostname
    schema = pa.schema([(name, pa.string()) for name in ROW])
    other = {**ROW, "id": "s/other.jpg", "sha256": "b" * 64}
    found = Watch.of([key]).asks(pa.Table.from_pylist([other, {**ROW, **row}], schema))
    assert found[0] is False
    return found[1]


@pytest.mark.parametrize(
    ("kind", "value", "row"),
    [
        ("id", "s/a.jpg", {}),
        ("sha256", "A" * 64, {}),
        ("image", "a" * 64, {}),
        ("owner", " Ann O'Hara; DROP TABLE ", {"owner": "Ann O'Hara; DROP TABLE"}),
        ("url", "HTTPS://A.org/x.jpg#top", {"url": "https://a.ORG/x.jpg#bottom"}),
        ("url", "https://a.org:8/x?q=%", {"url": "https://a.org:8/x?q=%"}),
        ("prefix", "https://a.org/me", {"url": "https://a.org/me"}),
        ("prefix", "https://a.org/me", {"url": "https://A.org/me/1.jpg"}),
        ("prefix", "https://a.org/me", {"url": "https://a.org/me?page=2"}),
        ("prefix", "https://a.org/me/", {"url": "https://a.org/me/1.jpg"}),
        ("prefix", "https://a.org", {"url": "https://a.org/me/1.jpg"}),
        ("prefix", "https://a.org/me", {"url": "https://a.org/me/" + "x/" * 3000}),
        ("domain", "a.org", {"url": "https://a.org/1.jpg"}),
        ("domain", "*.a.org", {"url": "https://img.cdn.A.org/1.jpg"}),
        ("domain", "bücher.example", {"url": "https://www.bücher.example/1.jpg"}),
        ("domain", "bücher.example", {"url": "https://www.xn--bcher-kva.example/1.jpg"}),
    ],
)
def test_a_row_that_a_key_names_is_asked_for(kind: str, value: str, row: dict[str, str]) -> None:
    assert asked(key_of(kind, value), **row)


@pytest.mark.parametrize(
    ("kind", "value", "row"),
    [
        ("id", "s/%", {}),
        ("id", "s/A.jpg", {}),
        ("owner", "ann", {"owner": "Ann"}),
        ("owner", "s/a.jpg", {}),
        ("url", "https://a.org/x", {"url": "https://a.org/x/"}),
        ("url", "https://a.org/x", {"url": "https://a.org/X"}),
        ("url", "https://a.org/x", {"url": "http://a.org/x"}),
        ("prefix", "https://a.org/me", {"url": "https://a.org/menu"}),
        ("prefix", "https://a.org", {"url": "https://a.org.evil.net/x"}),
        ("prefix", "https://a.org/me/", {"url": "https://a.org/me"}),
        ("domain", "a.org", {"url": "https://ba.org/1.jpg"}),
        ("domain", "a.org", {"url": "https://a.org.evil.net/1.jpg"}),
        ("domain", "img.a.org", {"url": "https://a.org/1.jpg"}),
        ("domain", "a.org", {}),
    ],
)
def test_its_neighbour_is_not(kind: str, value: str, row: dict[str, str]) -> None:
    assert not asked(key_of(kind, value), **row)


urls = st.builds(
    lambda path, query: f"https://a.org{path}{query}",
    st.text(alphabet="/abA%'*.", max_size=8).map(lambda text: "/" + text if text else ""),
    st.sampled_from(["", "?a", "?a/b", "?a?b"]),
)


@given(urls, urls)
def test_a_prefix_ends_at_a_boundary(prefix: str, url: str) -> None:
    prefix, spelled = normalise(KeyKind.PREFIX, prefix), normalise(KeyKind.URL, url)
    rest = spelled[len(prefix) :]
    expected = spelled.startswith(prefix) and (not rest or rest[0] in "/?#" or prefix.endswith("/"))
    assert asked(key_of("prefix", prefix), url=url) == expected


def fingerprint_of(bits: int, shade: int = 100, flat: bool = False) -> Fingerprint:
    return Fingerprint(bits, bytes([shade] * THUMBNAIL), flat, 0)


pictures = st.tuples(
    st.builds(
        fingerprint_of,
        st.sets(st.sampled_from([0, 1, 2, 30, 61, 63]), max_size=4).map(lambda bits: sum(1 << bit for bit in bits)),
        st.sampled_from([100, 101, 140]),
        st.sampled_from([False, False, False, True]),
    ),
    st.sampled_from([(400, 300), (1200, 903), (300, 400)]),
)


def matched(*found: tuple[Fingerprint, tuple[int, int]]) -> pa.Table:
    rows = [
        {"id": f"s/{n}", "sha256": f"{n:064x}", "width": w, "height": h}
        | {"phash": f.phash, "colour": f.colour, "flat": f.flat}
        for n, (f, (w, h)) in enumerate(found)
    ]
    return pa.Table.from_pylist(rows, PRINTS)


@given(st.lists(pictures, max_size=12), pictures)
def test_a_copy_is_known_by_the_rule_of_dedup(
    held: list[tuple[Fingerprint, tuple[int, int]]], new: tuple[Fingerprint, tuple[int, int]]
) -> None:
    picture, size = new
    expected = any(
        same_picture(picture, each, RECOMMENDED_DISTANCE) and ratios_close(*size, *other) for each, other in held
    )
    watch = Watch.of([], matched(*held))
    assert watch.knows(picture, *size) == expected
    assert watch.knows_of(matched((fingerprint_of(1 << 50), (9, 9)), new, *held[:1]))[1] == expected
    unknown = matched(new).set_column(2, "phash", pa.nulls(1, pa.uint64()))
    assert not watch.knows_of(unknown).any()


def test_many_of_one_hash_are_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.optouts.watch._PAIRS", 2)
    held = [(fingerprint_of(7, shade), (400, 300)) for shade in (10, 60, 110, 160, 210)]
    watch = Watch.of([], matched(*held))
    asked = [fingerprint_of(7, shade) for shade in (210, 10, 200)]
    assert [watch.knows(each, 400, 300) for each in asked] == [True, True, False]
    monkeypatch.setattr("smalti.optouts.watch._LISTED", 3)
    assert list(watch.knows_of(matched(*((each, (400, 300)) for each in asked)))) == [True, True, False]


def test_a_matched_sample_is_asked_for_by_its_id_and_its_bytes_whatever_its_fingerprint() -> None:
    rows = matched((fingerprint_of(1, flat=True), (400, 300))).set_column(2, "phash", pa.nulls(1, pa.uint64()))
    watch = Watch.of([], rows)
    row = {**ROW, "id": "s/0"}, {**ROW, "sha256": f"{0:064x}"}, ROW
    assert watch.asks(pa.Table.from_pylist(list(row))) == [True, True, False]
    assert not watch.knows(fingerprint_of(1), 400, 300)


def test_an_image_is_known_by_its_fingerprint_and_holds_no_key_in_plain() -> None:
    shown = Print(phash=9, colour="64" * THUMBNAIL, flat=False, width=800, height=600)
    watch = Watch.of([Key(kind=KeyKind.IMAGE, value="c" * 64, fingerprint=shown), key_of("owner", "Ann")])
    assert watch.knows(fingerprint_of(9), 400, 300)
    assert not watch.knows(fingerprint_of(9 ^ 7), 400, 300)
    assert b"Ann" not in watch.digests.tobytes()


def ask(lake: Lake, action: Action, *keys: Key, apply: bool | None = True, withdraws: str | None = None) -> str:
    """Hand in a request and, unless `apply` is None, answer it."""
    name = request_id(action, "ref", keys, withdraws, "test", None)
    request = Request(
        id=name, action=action, reference="ref", submission="test", submitted=NOW, keys=tuple(ordered(keys)), withdraws=withdraws
    )  # fmt: skip
    submit(lake, request)
    if apply is not None:
        write_answer(lake, Answer(request=name, apply=apply, by="me", answered=NOW, preview_sha256=""))
    return name


def resolve(lake: Lake, name: str, *rows: dict[str, Any]) -> None:
    """What a step of the ledger writes of its matches."""
    known = {**matched((fingerprint_of(5), (400, 300))).to_pylist()[0], "request": name, "key": 0, "how": "key"}
    known |= {"source": "s", "part": "s/p", "shard": "s/p/512/1.000/shard.00000.mds"}
    table = pa.Table.from_pylist([{**known, "index": index, **each} for index, each in enumerate(rows)], schema=MATCHED)
    step = Resolution(position=1, requests=(name,), matched=write_matched(lake, table), resolved=NOW)
    objects.create_bytes(lake.optout_resolution(1), step.encode())


def spy_on_objects(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Function and URI of each read of an object from here on."""
    calls: list[tuple[str, str]] = []

    def spied(name: str, real: Any) -> Any:
        def call(uri: str) -> Any:
            calls.append((name, uri))
            return real(uri)

        return call

    for name in ("list_names", "read_bytes", "read_versioned", "open_binary", "stat"):
        monkeypatch.setattr(objects, name, spied(name, getattr(objects, name)))
    return calls


def row_of(sample: str) -> pa.Table:
    return pa.Table.from_pylist([{**ROW, "id": sample}])


def test_a_lake_of_which_nobody_asked_anything_has_no_watch_and_costs_a_listing(
    any_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = spy_on_objects(monkeypatch)
    assert load_watch(any_lake) is None
    assert calls == [("list_names", any_lake.optout_requests())]


@pytest.mark.parametrize(
    ("action", "apply", "watched"),
    [
        (Action.EXCLUDE, True, True),
        (Action.ERASE, True, True),
        (Action.QUERY, True, False),
        (Action.EXCLUDE, False, False),
        (Action.EXCLUDE, None, False),
    ],
)
def test_what_is_in_force_is_watched(lake: Lake, action: Action, apply: bool | None, watched: bool) -> None:
    ask(lake, action, key_of("id", "s/x"), apply=apply)
    watch = load_watch(lake)
    assert (watch is not None) == watched
    if watch is not None:
        assert watch.asks(row_of("s/x")) == [True]


def test_what_was_taken_back_is_not_and_neither_is_what_it_had_matched(lake: Lake) -> None:
    first = ask(lake, Action.EXCLUDE, key_of("id", "s/x"))
    ask(lake, Action.EXCLUDE, key_of("id", "s/y"))
    resolve(lake, first, {"id": "s/copy"})
    watch = load_watch(lake)
    assert watch is not None
    assert [watch.asks(row_of(each))[0] for each in ("s/x", "s/y", "s/copy")] == [True, True, True]
    assert watch.knows(fingerprint_of(5), 400, 300)
    ask(lake, Action.WITHDRAW, withdraws=first)
    watch = load_watch(lake)
    assert watch is not None
    assert [watch.asks(row_of(each))[0] for each in ("s/x", "s/y", "s/copy")] == [False, True, False]
    assert not watch.knows(fingerprint_of(5), 400, 300)


def test_copies_that_were_matched_are_watched(lake: Lake) -> None:
    name = ask(lake, Action.EXCLUDE, key_of("id", "s/x"))
    resolve(lake, name, {"id": "s/copy", "how": "copy", "phash": 1 << 40})
    watch = load_watch(lake)
    assert watch is not None
    assert watch.asks(row_of("s/copy")) == [True]
    assert watch.knows(fingerprint_of(1 << 40), 400, 300)
    assert not watch.knows(fingerprint_of(0b111 << 20), 400, 300)


def test_what_another_delivery_of_an_id_shows_is_asked_for_by_its_id_alone(lake: Lake) -> None:
    """A stand-in, perhaps, that a thousand ids have: what is served already with it stays, and so does what comes."""
    name = ask(lake, Action.EXCLUDE, key_of("owner", "Ann"))
    stand_in = {"id": "s/x", "how": "copy", "sha256": "d" * 64, "phash": 1 << 40}
    resolve(lake, name, {"id": "s/x"}, stand_in, {"id": "s/copy", "how": "copy", "sha256": "e" * 64, "phash": 3 << 50})
    watch = load_watch(lake)
    assert watch is not None
    assert [watch.asks(row_of(each))[0] for each in ("s/x", "s/copy")] == [True, True]
    assert [watch.asks(pa.Table.from_pylist([{**ROW, "sha256": each * 64}]))[0] for each in ("d", "e")] == [False, True]
    assert not watch.knows(fingerprint_of(1 << 40), 400, 300)
    assert watch.knows(fingerprint_of(3 << 50), 400, 300)
    assert watch.knows(fingerprint_of(5), 400, 300)


def test_a_damaged_ledger_lets_nothing_through(lake: Lake) -> None:
    name = ask(lake, Action.EXCLUDE, key_of("id", "s/x"))
    objects.create_bytes(lake.optout_matched("0" * 64), b"PAR1 no more")
    step = Resolution(position=1, requests=(name,), matched="0" * 64, resolved=NOW)
    objects.create_bytes(lake.optout_resolution(1), step.encode())
    with pytest.raises(CorruptError, match="not those that the ledger names"):
        load_watch(lake)
    other = Lake.at(f"{lake.root}/other")
    objects.create_bytes(other.optout_answer(name), objects.read_bytes(lake.optout_answer(name)))
    objects.create_bytes(other.optout_request(name), b"x")
    with pytest.raises(CorruptError):
        load_watch(other)


def test_the_digests_of_many_keys_are_found_each() -> None:
    ids = [f"s/{n}" for n in range(3000)]
    watch = Watch.of([key_of("id", each) for each in ids[::2]])
    rows = pa.Table.from_pylist([{**ROW, "id": each} for each in ids])
    assert np.flatnonzero(watch.asks(rows)).tolist() == list(range(0, 3000, 2))
