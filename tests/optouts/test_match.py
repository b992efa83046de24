"""Matching: what a key reaches and where it ends."""

from __future__ import annotations

import polars as pl  # noqa: TID253
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from smalti.curation.readers import PartReader
from smalti.errors import CorruptError, MissingObject
from smalti.lake import Lake
from smalti.objects import delete_object, local_path, read_bytes
from smalti.optouts.match import match_parts
from smalti.optouts.matched import MATCHED
from smalti.optouts.nodes import Nodes
from smalti.optouts.pictures import NEAR_LOOKED, Pictures
from smalti.optouts.preview import preview
from smalti.optouts.prints import Prints
from smalti.optouts.request import submit
from smalti.settings import OptoutRun
from tests.optouts.making import Sample, brighter, image_key, named, put_part, request

ODD = [
    "'",
    "' OR 1=1 --",
    "%",
    "_",
    "*",
    "../../x",
    "a%",
    "[a-z]+",
    ".*",
    "\\",
    '"; DROP TABLE x',
    "{}",
    "$(id)",
    "ü",
    "x/y/z",
]


@pytest.mark.parametrize("kind", ["id", "owner", "url", "prefix"])
def test_signs_that_mean_something_elsewhere_are_nothing_but_themselves(lake: Lake, kind: str) -> None:
    texts = [*ODD, "a", "ab", "plain"]
    rows = [
        Sample(f"k{n}" if kind != "id" else text, n, owner=text, url=f"https://a.org/{text}")
        for n, text in enumerate(texts)
    ]
    part = put_part(lake, "s1", 1, rows)
    written = {"id": "s1/{}", "owner": "{}", "url": "https://a.org/{}", "prefix": "https://a.org/{}"}[kind]
    asked = [request((kind, written.replace("{}", text)), name=f"r{n}") for n, text in enumerate(texts)]
    found = match_parts(lake, [part], asked)
    ids = {f"s1/{row.key}": row.owner for row in rows}
    for text, each in zip(texts, asked, strict=True):
        got = {ids[row["id"]] for row in found.rows.to_pylist() if row["request"] == each.id}
        assert got == {text}
        assert found.unmatched[each.id] == ()


def test_copies_are_followed_over_chains_sources_and_parts_and_ids_over_deliveries(lake: Lake) -> None:
    chain = [Sample(f"k{n}", n, phash=(1 << 2 * n) - 1, colour=brighter(n)) for n in range(4)]
    one = put_part(lake, "s1", 1, [chain[0], Sample("other", "o", phash=0xFF << 40)])
    two = put_part(lake, "s2", 2, [chain[1], chain[3], Sample("k9", "stand-in", phash=0xFF << 50)])
    three = put_part(lake, "s2", 3, [Sample("k1", "stand-in", phash=0xFF << 50), chain[2]])
    asked = request(("id", "s1/k0"))
    found = match_parts(lake, [three, one, two], [asked])
    assert named(found.rows, "id", "part", "how") == {
        ("s1/k0", f"s1/{one.name}", "key"),
        ("s2/k1", f"s2/{two.name}", "copy"),
        ("s2/k1", f"s2/{three.name}", "copy"),  # what another delivery of it shows has copies of its own: they stay
        ("s2/k2", f"s2/{three.name}", "copy"),
        ("s2/k3", f"s2/{two.name}", "copy"),
    }
    assert found.rows.schema.equals(MATCHED)
    alone = match_parts(lake, [one, two], [asked])  # without k2 the chain ends
    assert named(alone.rows, "id") == {"s1/k0", "s2/k1"}
    later = match_parts(lake, [three], [asked], alone.rows)
    assert named(later.rows, "id", "part") == {("s2/k1", f"s2/{three.name}"), ("s2/k2", f"s2/{three.name}")}
    again = match_parts(lake, [one, two, three], [asked], pa.concat_tables([alone.rows, later.rows]))
    assert named(again.rows, "id", "part") == {("s2/k3", f"s2/{two.name}")}


def test_a_picture_finds_what_was_encoded_again_and_a_flat_one_its_bytes_alone(lake: Lake) -> None:
    part = put_part(
        lake,
        "s1",
        1,
        [
            Sample("same", 1, phash=3),
            Sample("again", 2, phash=0, colour=brighter(1)),
            Sample("wide", 3, phash=3, size=(800, 600)),
            Sample("page", 4, phash=0xFF00, flat=True),
            Sample("another-page", 5, phash=0xFF00, flat=True),
        ],
    )
    photo, page = (
        request(image_key(Sample("", 1, phash=3)), name="a"),
        request(image_key(Sample("", 4, phash=0xFF00, flat=True)), name="b"),
    )
    new = request(image_key(Sample("", "never seen", phash=3)), image_key(Sample("", "nor this")), name="c")
    found = match_parts(lake, [part], [photo, page, new])
    assert named(found.rows, "request", "id", "how") == {
        (photo.id, "s1/same", "key"),
        (photo.id, "s1/again", "key"),
        (page.id, "s1/page", "key"),
        (new.id, "s1/same", "key"),
        (new.id, "s1/again", "key"),
    }
    nor = next(at for at, key in enumerate(new.keys) if key.fingerprint is None)
    assert found.unmatched == {photo.id: (), page.id: (), new.id: (nor,)}
    assert named(found.near, "request", "id", "how") == {
        (photo.id, "s1/wide", "near"),
        (page.id, "s1/another-page", "near"),
        (new.id, "s1/wide", "near"),
    }
    assert found.near_found == {each.id: 1 for each in (photo, page, new)}


def test_many_pictures_of_what_many_samples_show_are_gone_through_in_pieces(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is no product of the two; every key that is shown counts, also one that is never the first of a row."""
    monkeypatch.setattr("smalti.optouts.spread._PAIRS", 16)
    part = put_part(lake, "s1", 1, [Sample(f"k{n}", n, phash=n % 2, size=(600, 600 + n % 2)) for n in range(12)])
    many = [image_key(Sample("", f"a{n}", phash=n % 2, size=(600, 600 + n % 3))) for n in range(9)]
    others = [image_key(Sample("", f"b{n}", phash=0, colour=brighter(50), size=(600, 600))) for n in range(2)]
    far = [image_key(Sample("", "c", phash=1, size=(900, 600)))]
    asked = [request(*many, *others, name="a"), request(*many[3:5], *far, name="b")]
    reader = PartReader(lake, (part,))
    nothing = pl.DataFrame(pl.from_arrow(MATCHED.empty_table()))
    nodes = Nodes.of(reader, Prints.read(reader), nothing)
    hits = Pictures.of_keys(asked).find(nodes)
    assert hits.height <= 2 * 12 + len(many) + 2
    found = match_parts(lake, [part], asked)
    assert named(found.rows, "request", "id") == {(each.id, f"s1/k{n}") for each in asked for n in range(12)}
    for each, without in zip(asked, ({key.value for key in others}, {key.value for key in far}), strict=True):
        assert {each.keys[at].value for at in found.unmatched[each.id]} == without
        first = min({*range(len(each.keys))} - {*found.unmatched[each.id]})
        assert named(found.rows.filter(pc.equal(found.rows["request"], each.id)), "key", "how") == {(first, "key")}


def test_near_ones_are_bounded_and_said_to_be(lake: Lake) -> None:
    crowd = [Sample(f"k{n}", n, phash=7, colour=brighter(5)) for n in range(NEAR_LOOKED + 40)]
    part = put_part(lake, "s1", 1, [Sample("it", "it", phash=0), *crowd], shard=100)
    asked = request(("id", "s1/it"))
    found = match_parts(lake, [part], [asked], near=10)
    assert (found.rows.num_rows, found.near.num_rows) == (1, 10)
    assert (found.near_found, found.near_unseen) == ({asked.id: NEAR_LOOKED}, {asked.id: 40})
    assert match_parts(lake, [part], [asked], near=0).near.num_rows == 0

    submit(lake, asked)
    report = preview(lake, OptoutRun(request=asked.id))
    assert report.warnings == (f"40 samples may look like what request {asked.id} names, and were not looked at",)
    assert "40 more are as near by their hashes" in read_bytes(report.page).decode()


def test_a_lake_without_parts_leaves_every_key_unmatched(lake: Lake) -> None:
    asked = request(("id", "s1/a"), ("owner", "ann"), image_key(Sample("", 1, phash=3)))
    found = match_parts(lake, [], [asked])
    assert (found.rows.num_rows, found.unmatched) == (0, {asked.id: (0, 1, 2)})
    part = put_part(lake, "s1", 1, [Sample("x", 1)])
    assert match_parts(lake, [part], []).rows.num_rows == 0


def test_a_file_that_is_gone_or_damaged_is_said_so(lake: Lake) -> None:
    part = put_part(lake, "s1", 1, [Sample("a", 1)])
    uri = lake.samples("s1", part.name)
    path = local_path(uri)
    assert path is not None
    path.write_bytes(b"no parquet")
    with pytest.raises(CorruptError, match=r"samples\.parquet"):
        match_parts(lake, [part], [request(("owner", "ann"))])
    delete_object(uri)
    with pytest.raises(MissingObject):
        match_parts(lake, [part], [request(("owner", "ann"))])
