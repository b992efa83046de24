"""What a bucket keeps of what was replaced or deleted goes with it, or is named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.generations import remove_generations
from smalti.optouts.needles import Removing, Seeker, needle_of
from tests.optouts.overlap import most_at_once
from tests.support.gcs import Gcs
from tests.support.pictures import picture, stored

PICTURE = stored(picture(1, 300, 300))
SEEKER = Seeker(
    Removing(
        request="a" * 16,
        begun=datetime(2026, 1, 1, tzinfo=UTC),
        ids=("s/p1.jpg",),
        pictures=(needle_of(PICTURE, "source"),),
    )
)


@pytest.fixture
def lake(gcs: Gcs, gcs_lake: Lake) -> Lake:
    """Objects that were replaced or deleted; the bucket's name is that of the lake."""
    return gcs_lake


def keep(gcs: Gcs, lake: Lake, *what: str) -> None:
    gcs.front.keeps[lake.root.split("/")[2]] = set(what)


def fill(lake: Lake) -> None:
    log, table = lake.run_object("d", "r", "t", "driver.log"), f"{lake.table('s')}/data/x.lance"
    for uri, data in (
        (log, b"s/p1.jpg: odd"),
        (table, b"anything"),
        (lake.run_object("d", "r", "t", "other.log"), b"fine"),
    ):
        objects.create_bytes(uri, data)
        found = objects.read_versioned(uri)
        assert found is not None
        assert objects.swap_bytes(uri, b"new", found[1])
    page = f"{lake.root}/progress/s/page.bin"
    objects.create_bytes(page, b"begun " + PICTURE)
    objects.delete_object(page)
    answered = lake.optout_request("a" * 16)
    objects.create_bytes(answered, b"s/p1.jpg")
    objects.delete_object(answered)


def test_generations_are_read_side_by_side(gcs: Gcs, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(gcs, lake, "noncurrent")
    fill(lake)
    most = most_at_once(monkeypatch, "read_generation")
    remove_generations(lake, SEEKER, [])
    assert most[0] > 1


def test_noncurrent_generations_go_where_they_hold_it_and_others_stay(gcs: Gcs, lake: Lake) -> None:
    keep(gcs, lake, "noncurrent")
    fill(lake)
    found = remove_generations(lake, SEEKER, [lake.table("s")])
    assert (found.looked_at, found.removed, found.forbidden, found.soft_deleted) == (5, 3, 0, 0)
    left = [each.uri.removeprefix(lake.root) for each in objects.list_generations(lake.root)]
    assert left == ["/runs/d/r/t/other.log", "/optouts/requests/aaaaaaaaaaaaaaaa/request.json.gz"]
    again = remove_generations(lake, SEEKER, [lake.table("s")])
    assert (again.looked_at, again.removed) == (2, 0)


def test_what_soft_delete_keeps_is_counted_with_its_last_day(gcs: Gcs, lake: Lake) -> None:
    keep(gcs, lake, "noncurrent", "soft")
    fill(lake)
    found = remove_generations(lake, SEEKER, [lake.table("s")])
    assert (found.removed, found.soft_deleted, found.until) == (3, 3, datetime(2026, 1, 8, tzinfo=UTC))


def test_what_a_policy_of_the_bucket_keeps_is_said(gcs: Gcs, lake: Lake) -> None:
    keep(gcs, lake, "noncurrent", "held")
    fill(lake)
    found = remove_generations(lake, SEEKER, [lake.table("s")])
    assert (found.removed, found.forbidden) == (0, 3)


def test_a_bucket_that_keeps_nothing_has_nothing(lake: Lake) -> None:
    fill(lake)
    assert remove_generations(lake, SEEKER, [lake.table("s")]).looked_at == 0
