"""Matching over columns finds what a plain comparison of everything with everything finds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smalti.lake import Lake
from smalti.optouts.keys import Key, key_of
from smalti.optouts.match import match_parts
from smalti.optouts.matched import MATCHED
from smalti.optouts.request import Request
from smalti.shards.part import Part
from tests.optouts.making import Sample, brighter, image_key, named, put_part, request
from tests.optouts.slowly import near, slowly

HASHES = (0x0, 0x3, 0xF, 0x3F, 0xFF, 1 << 60, 0x1234_5678_9ABC_DEF0)
URLS = (
    "https://a.org/me", "https://a.org/me/1.jpg", "https://a.org/menu", "https://A.org/me?x=1", "https://a.org/me#top", "https://a.org/",
    "http://b.a.org/x", "http://b.a.org:80/x", "https://ba.org/x", "https://bücher.de/1", "https://xn--bcher-kva.de/1", "not a url",
    "https://a.org/%", "https://a.org/' OR 1=1 --", "https://a.org/../me", "https://[bad", "https://a.org", "https://a.org./me/2",
)  # fmt: skip
OWNERS = ("ann", " ann\t", "Ann", "%", "' OR ''='", "*", "../..")
KEYS = ("k1", "k2", "k3", "%", "'; DROP TABLE x; --", "../k1")


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Of few contents, so that much is alike; equal contents are mostly recognised by the same."""
    content = draw(st.integers(0, 12))
    of = content if draw(st.integers(0, 9)) else draw(st.integers(0, 12))
    hashed = {"phash": HASHES[of % 7], "colour": brighter(of % 3 + (40 if of > 9 else 0)), "flat": of in (5, 6)}
    if draw(st.integers(0, 9)) == 0:
        hashed = {"phash": None}
    return Sample(
        key=draw(st.sampled_from(KEYS)),
        content=content,
        size=draw(st.sampled_from([(600, 600), (600, 600), (1200, 1195), (800, 600)])),
        owner=draw(st.sampled_from([None, *OWNERS])),
        url=draw(st.sampled_from([None, *URLS])),
        **hashed,  # type: ignore[arg-type]
    )


def _keys(draw: st.DrawFn) -> Key:
    kind = draw(st.sampled_from(["id", "url", "owner", "sha256", "image", "prefix", "domain"]))
    if kind == "image":
        return image_key(draw(samples()), draw(st.booleans()))
    values = {
        "id": st.tuples(st.sampled_from(["s1", "s2"]), st.sampled_from(KEYS)).map("/".join),
        "sha256": samples().map(lambda each: each.sha256),
        "owner": st.sampled_from(OWNERS),
        "url": st.sampled_from([each for each in URLS if _is_url(each)]),
        "prefix": st.sampled_from([each for each in URLS if _is_url(each)]),
        "domain": st.sampled_from(["a.org", "b.a.org", "bücher.de", "org", "x.org"][:3]),
    }
    return key_of(kind, draw(values[kind]))


def _is_url(text: str) -> bool:
    try:
        return bool(key_of("url", text))
    except ValueError:
        return False


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    return [
        request(*(_keys(draw) for _ in range(draw(st.integers(1, 3)))), name=f"r{n}")
        for n in range(draw(st.integers(1, 3)))
    ]


PARTS = st.lists(
    st.tuples(st.sampled_from(["s1", "s2"]), st.lists(samples(), min_size=1, max_size=6)), min_size=1, max_size=4
)


def made(lake: Lake, parts: Sequence[tuple[str, Sequence[Sample]]]) -> tuple[list[Part], dict[str, Sequence[Sample]]]:
    committed = [put_part(lake, source, number, rows) for number, (source, rows) in enumerate(parts, 1)]
    return committed, {f"{part.source}/{part.name}": rows for part, (_, rows) in zip(committed, parts, strict=True)}


def check(
    rows: pa.Table, asked: Request, parts: dict[str, Sequence[Sample]], known: Sequence[tuple[str, str, Sample]] = ()
) -> set[int]:
    """Returns the keys that name nothing in these parts."""
    direct, copies, unmatched = slowly(parts, asked, known)
    found = {}
    for row in rows.to_pylist():
        if row["request"] == asked.id:
            place = (row["part"], 4 * int(row["shard"][-9:-4]) + row["index"])
            assert place not in found
            found[place] = (row["how"], row["key"])
            sample = parts[place[0]][place[1]]
            assert (row["id"], row["sha256"], row["phash"]) == (
                f"{row['source']}/{sample.key}",
                sample.sha256,
                sample.phash,
            )
            assert (row["colour"] or sample.colour, row["width"], row["height"]) == (sample.colour, *sample.size)
    assert {place for place, (how, _) in found.items() if how == "key"} == set(direct)
    assert {place for place, (how, _) in found.items() if how == "copy"} == set(copies)
    assert all(key == direct[place] for place, (how, key) in found.items() if how == "key")
    assert all(key in copies[place] for place, (how, key) in found.items() if how == "copy")
    return unmatched


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(PARTS, requests(), st.randoms())
def test_what_is_found_is_what_a_plain_comparison_finds(
    parts: list[tuple[str, list[Sample]]], asked: list[Request], random: object
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.at(folder)
        committed, by_part = made(lake, parts)
        found = match_parts(lake, committed, asked)
        for each in asked:
            assert set(found.unmatched[each.id]) == check(found.rows, each, by_part)
            _check_near(found.near, each, by_part, found.rows)
        random.shuffle(committed)  # type: ignore[attr-defined]
        again = match_parts(lake, committed, asked)
        assert again.rows.equals(found.rows)
        assert again.near.equals(found.near)


def _check_near(rows: pa.Table, asked: Request, parts: dict[str, Sequence[Sample]], matched: pa.Table) -> None:
    places = {
        (part, f"{part}/512/1.000/shard.{at // 4:05d}.mds", at % 4): sample
        for part, samples in parts.items()
        for at, sample in enumerate(samples)
    }
    reached = {(row["part"], row["shard"], row["index"]) for row in matched.to_pylist() if row["request"] == asked.id}
    of = [
        places[row["part"], row["shard"], row["index"]]
        for row in matched.to_pylist()
        if row["request"] == asked.id and row["how"] == "key"
    ]
    for key in asked.keys:
        if key.fingerprint is not None:
            its = key.fingerprint
            of.append(Sample("", "", its.phash, bytes.fromhex(its.colour), its.flat))
    expected = {
        place for place, sample in places.items() if place not in reached and any(near(one, sample) for one in of)
    }
    assert {
        (row["part"], row["shard"], row["index"]) for row in rows.to_pylist() if row["request"] == asked.id
    } == expected


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(PARTS, PARTS, requests())
def test_a_later_part_is_compared_with_what_was_matched_before(
    parts: list[tuple[str, list[Sample]]], later: list[tuple[str, list[Sample]]], asked: list[Request]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.at(folder)
        committed, by_part = made(lake, [*parts, *later])
        before, after = committed[: len(parts)], committed[len(parts) :]
        known = match_parts(lake, before, asked).rows
        new = match_parts(lake, after, asked, known)
        assert known.schema.equals(MATCHED)
        for each in asked:
            mine = [row for row in known.to_pylist() if row["request"] == each.id]
            told = [(r["id"], r["how"], by_part[r["part"]][4 * int(r["shard"][-9:-4]) + r["index"]]) for r in mine]
            check(new.rows, each, {f"{p.source}/{p.name}": by_part[f"{p.source}/{p.name}"] for p in after}, told)


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(PARTS, PARTS, requests())
def test_in_two_steps_it_is_what_it_is_in_one(
    parts: list[tuple[str, list[Sample]]], later: list[tuple[str, list[Sample]]], asked: list[Request]
) -> None:
    """A sample of the later parts may join two of the earlier ones."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.at(folder)
        committed, _ = made(lake, [*parts, *later])
        before, after = committed[: len(parts)], committed[len(parts) :]
        place = ("request", "how", "part", "shard", "index")
        known = match_parts(lake, before, asked).rows
        new = match_parts(lake, after, asked, known).rows
        more = match_parts(lake, committed, asked, pa.concat_tables([known, new])).rows
        assert not named(new, *place) & named(more, *place)
        new = pa.concat_tables([new, more])
        assert not named(known, *place) & named(new, *place)
        assert named(known, *place) | named(new, *place) == named(match_parts(lake, committed, asked).rows, *place)
