"""One sample's story: every place that knows of it is asked, and a release says why it does not serve it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.config import Drops
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.objects import create_bytes
from smalti.reasons import SkipReason
from smalti.release.latest import move_latest
from smalti.release.optouts import OptoutSnapshot
from smalti.settings import ReleaseRun
from smalti.trace import trace
from tests.release.conftest import add, build, fill
from tests.support.pictures import Row, picture, release_run, stored


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two sources; version v1 is served, v2 keeps pages of text."""
    lake = Lake.at(str(tmp_path_factory.mktemp("trace") / "lake"))
    fill(lake)
    first = build(lake, run())
    move_latest(lake, "set", "v1", first.digest)
    build(lake, run(labels=("nsfw",)))
    return lake


def run(**drops: object) -> ReleaseRun:
    made = release_run("demo:main", "other:extra", groups={"main": 3.0, "extra": 1.0})
    dataset = made.dataset.model_copy(
        update={"drops": Drops.model_validate(drops), "reason_sets": ((SkipReason.DUPLICATE,),)}
    )
    return made.model_copy(update={"dataset": dataset})


def test_a_sample_that_is_served_is_told_from_delivery_to_shard(lake: Lake) -> None:
    told = trace(lake, "demo/1.jpg")
    (delivery,) = told.deliveries
    assert (delivery.batch, delivery.fell_out) == ("b1", None)
    assert delivery.captions == {"rules": "picture <1>"}
    assert delivery.labels == {"rules_minilm_of_rules": "visual"}
    assert delivery.facts["url"] == "https://example.org/1.jpg"
    (place,) = told.places
    assert (place.tier, place.ar, place.opted_out) == (512, "1.000", False)
    assert place.shard.startswith(place.part)
    assert [(copy.id, copy.distance) for copy in told.copies] == [("other/copy.jpg", 0)]
    assert [(fate.release, fate.latest, fate.served) for fate in told.releases] == [
        ("set v1", True, True),
        ("set v2", False, True),
    ]


def test_a_copy_says_which_sample_is_served_instead_and_what_would_serve_it(lake: Lake) -> None:
    told = trace(lake, "other/copy.jpg")
    (first, _) = told.releases
    assert (first.served, first.reasons, first.copy_of) == (False, (SkipReason.DUPLICATE,), "demo/1.jpg")
    assert first.served_without == ("duplicate",)
    assert [copy.id for copy in told.copies] == ["demo/1.jpg"]


def test_releases_may_differ_about_a_sample(lake: Lake) -> None:
    fates = {fate.release: (fate.served, fate.reasons) for fate in trace(lake, "demo/text.jpg").releases}
    assert fates == {"set v1": (False, (SkipReason.TEXT,)), "set v2": (True, ())}


@pytest.mark.parametrize(
    ("sample", "fell_out"), [("demo/small.png", "fingerprint: too_small"), ("demo/truncated.jpg", "ingest: truncated")]
)
def test_what_never_reached_a_part_says_where_it_fell_out(lake: Lake, sample: str, fell_out: str) -> None:
    source, _, key = sample.partition("/")
    rejects = pa.table({"key": ["truncated.jpg"], "uri": ["x"], "reason": ["truncated"], "detail": ["damaged jpeg"]})
    out = pa.BufferOutputStream()
    pq.write_table(rejects, out)
    create_bytes(lake.rejects("demo", "b1"), out.getvalue().to_pybytes())
    told = trace(lake, sample)
    assert [each.fell_out for each in told.deliveries] == [fell_out]
    assert (told.places, told.copies, told.releases) == ((), (), ())
    assert (source, bool(key)) == ("demo", True)


def test_a_key_that_was_delivered_twice_has_both_pictures(tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    fill(lake)
    add(lake, [Row("1.jpg", stored(picture(40)))], batch="b2")
    build(lake, run())
    told = trace(lake, "demo/1.jpg")
    assert [each.batch for each in told.deliveries] == ["b1", "b2"]
    assert [place.batch for place in told.places] == ["b1", "b2"]
    assert [(fate.served, fate.reasons) for fate in told.releases] == [(False, (SkipReason.SUPERSEDED,)), (True, ())]


def test_an_opt_out_is_told_at_its_place(tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    fill(lake)
    place = trace(lake, "demo/1.jpg").places[0]
    snapshot = OptoutSnapshot(position=1, shards={place.shard: (place.index,)})
    create_bytes(lake.optout_snapshot(1), snapshot.encode())
    assert trace(lake, "demo/1.jpg").places[0].opted_out
    assert not trace(lake, "demo/2.jpg").places[0].opted_out


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ("1.jpg", "'1.jpg' is not a sample id. Write <source>/<key>"),
        ("demo/nobody.jpg", "nothing here is called demo/nobody.jpg"),
    ],
)
def test_what_was_never_here_is_one_line(lake: Lake, sample: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        trace(lake, sample)
