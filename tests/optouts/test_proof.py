"""The proof: it passes for what is in force, and says what is not; receipts are made once and hold nothing of who asked."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.loader.skips import served_shards
from smalti.optouts import proof_releases, readback
from smalti.optouts.ledger import resolve
from smalti.optouts.proof import prove
from smalti.optouts.readback import Reading
from smalti.optouts.receipt import Receipt, read_receipt
from smalti.optouts.receipt_page import render
from smalti.optouts.request import Action, Request
from smalti.release.latest import move_latest
from smalti.release.manifest import read_manifest
from smalti.release.materialize import materialize
from smalti.release.optouts import OptoutSnapshot, newest_position, read_snapshot
from smalti.release.summary import samples_of
from smalti.shards.part import Part
from tests.maintenance.conftest import release
from tests.optouts.conftest import RUN
from tests.optouts.lakes import Matched, ask, match, take_back
from tests.release.conftest import build
from tests.support.pictures import Row, picture, source_run, stored, write_table


def selected(reading: Reading) -> Iterator[str]:
    """What the loader would serve of a reading, without the loader."""
    manifest = read_manifest(reading.manifest)
    ids = {(shard, index): name for name, shard, index, _ in samples_of(reading.manifest, manifest)}
    optouts = read_snapshot(Lake(reading.manifest.split("/releases/")[0]), reading.optouts).shards
    for entry in manifest.streams:
        if (entry.group, entry.tier) == (reading.group, reading.tier):
            for shard in served_shards(reading.manifest, entry, (), optouts):
                if reading.is_whole or shard.basename in reading.chosen:
                    yield from (ids[shard.basename, index] for index in shard.kept_indices())


def in_force(lake: Lake, *keys: tuple[str, str]) -> str:
    request = ask(lake, *keys)
    resolve(lake, [request], match=match)
    return request


def proved(lake: Lake, request: str) -> Receipt:
    return prove(lake, request, match=match, read=selected)


def test_what_the_loader_serves_is_read_back(released: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one test with the loader itself; importing it takes seconds. A stream is read whole, or the shard concerned."""
    uri = released.manifest("set", "v1")
    before = list(readback.read_ids(Reading(uri, "main", 512, 0, 7, ())))
    assert sorted(before) == [f"demo/{n}.jpg" for n in range(6)]
    request = in_force(released, ("id", "demo/1.jpg"), ("id", "demo/unknown.jpg"))

    receipt = prove(released, request, match=match)

    written = objects.stat(released.optout_snapshot(1))
    assert written is not None
    assert receipt.effective == datetime.fromtimestamp(written.written, UTC)
    assert receipt.submitted < receipt.resolved <= receipt.effective <= receipt.proved
    assert (receipt.position, receipt.snapshot, receipt.keys, receipt.unmatched) == (1, 1, 2, 1)
    assert [(each.id, each.how) for each in receipt.samples] == [("demo/1.jpg", "key"), ("other/copy.jpg", "copy")]
    assert (receipt.ids, receipt.found) == (2, 2)
    (found,) = receipt.releases
    assert (found.version, found.samples, found.skipped, found.since) == ("v1", 2, 1, 1)
    assert found.streams == ("extra/512/1.000", "main/512/1.000")
    assert found.digest == read_manifest(uri).digest
    checks = receipt.checks
    assert (checks.parts, checks.rows, checks.releases, checks.streams, checks.places) == (2, 9, 1, 2, 2)
    assert (checks.shards, checks.shards_read, checks.samples_read) == (1, 1, 5 + 1)
    for module in (proof_releases, readback):
        monkeypatch.setattr(module, "EPOCH", 2)  # larger streams are read by shards
    shard = receipt.samples[0].shard
    assert sorted(readback.read_ids(Reading(uri, "main", 512, 1, 5, (shard,)))) == sorted(set(before) - {"demo/1.jpg"})
    assert list(readback.read_ids(Reading(uri, "main", 512, 1, 5, ()))) == []


def test_a_receipt_is_made_once(released: Lake) -> None:
    request = in_force(released, ("id", "demo/1.jpg"))
    first = proved(released, request)
    in_force(released, ("id", "demo/2.jpg"))
    assert proved(released, request) == first == read_receipt(released, request)
    path = objects.local_path(released.optout_receipt_page(request, "exclude"))
    assert path is not None
    assert path.read_text() == render(first)
    path.unlink()
    proved(released, request)
    assert path.read_text() == render(first)


def test_a_receipt_and_its_page_have_no_key_and_no_owner_and_nothing_to_fetch(released: Lake) -> None:
    url = "https://example.org/3.jpg"
    request = ask(released, ("owner", "somebody"), ("url", url), action=Action.ERASE)
    resolve(released, [request], match=match)
    receipt = proved(released, request)
    assert receipt.found == 9
    texts = [receipt.encode().decode(), render(receipt)]
    for text in texts:
        assert not re.search("somebody|example.org|<img|<script|src=|href=", text)
        assert "ref-1" in text
        assert request in text
        assert "demo/3.jpg" in text
    HTMLParser().feed(texts[1])
    assert "a second receipt will say" in texts[1]
    assert json.loads(texts[0])["action"] == "erase"
    assert {"pulled copies", "where the pictures were delivered from"} <= {each.where for each in receipt.unreachable}


def test_what_a_step_failed_to_match_is_found_because_keys_are_matched_anew(released: Lake) -> None:
    """The ledger knows nothing of it, so that a search for what the ledger knows would pass."""

    def blind(lake: Lake, parts: Sequence[Part], requests: Sequence[Request], known: pa.Table | None = None) -> Matched:
        found = match(lake, parts, requests, known)
        return Matched(found.rows.filter(pc.not_equal(found.rows["id"], "demo/2.jpg")), found.unmatched)

    request = ask(released, ("url", "https://example.org/1.jpg"), ("url", "https://example.org/2.jpg"))
    table = objects.local_path(released.table("demo"))
    assert table is not None
    shutil.rmtree(table)  # tables know nothing of it, either
    resolve(released, [request], match=blind)
    with pytest.raises(CorruptError, match=r"a matched sample is in .* which snapshot 1 lacks"):
        proved(released, request)


def test_what_is_in_a_table_alone_is_counted_and_has_no_place(released: Lake) -> None:
    write_table(released, source_run("late"), [Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(99)))])
    receipt = proved(released, in_force(released, ("id", "late/a.jpg")))
    assert (receipt.ids, receipt.in_tables, receipt.found, receipt.unmatched) == (3, 1, 2, 0)
    assert {each.id for each in receipt.samples} == {"demo/1.jpg", "other/copy.jpg"}


def test_a_place_that_a_snapshot_lost_is_found_and_named(released: Lake) -> None:
    request = in_force(released, ("id", "demo/1.jpg"))
    snapshot = read_snapshot(released, 1)
    shards = {name: indices for name, indices in snapshot.shards.items() if not name.startswith("other/")}
    path = objects.local_path(released.optout_snapshot(1))
    assert path is not None
    path.write_bytes(OptoutSnapshot(position=1, shards=shards, ids=snapshot.ids).encode())
    with pytest.raises(CorruptError, match=r"a matched sample is in other/.* at 0, which snapshot 1 lacks"):
        proved(released, request)
    path.write_bytes(OptoutSnapshot(position=1, shards={}).encode())
    with pytest.raises(CorruptError, match=r"a matched sample is in .* \(and [1-9]\d* more\)"):
        proved(released, request)
    assert read_receipt(released, request) is None


def test_what_matching_missed_is_found(released: Lake) -> None:
    def careless(*arguments: object, **keywords: object) -> Matched:
        found = match(*arguments, **keywords)  # type: ignore[arg-type]
        wrong = [number for number, name in enumerate(found.rows["id"].to_pylist()) if name == "demo/1.jpg"]
        return Matched(found.rows.take([n for n in range(found.rows.num_rows) if n not in wrong[1:]]), found.unmatched)

    from tests.release.conftest import add
    from tests.support.pictures import Row, picture, stored

    add(released, [Row("1.jpg", stored(picture(77)))], batch="b2")  # delivered again
    request = ask(released, ("id", "demo/1.jpg"))
    resolve(released, [request], match=careless)
    with pytest.raises(CorruptError, match=r"a matched sample is in demo/00002-.* which snapshot 1 lacks"):
        proved(released, request)


def test_what_the_loader_serves_and_must_not_is_named(released: Lake) -> None:
    request = in_force(released, ("id", "demo/1.jpg"))

    def faulty(reading: Reading) -> Iterator[str]:
        yield from selected(reading)
        yield "demo/1.jpg"

    with pytest.raises(
        CorruptError,
        match=r"a matched sample \(sha256 of its id: [0-9a-f]{12}\.\.\.\) is served by .*/v1/manifest\.json from extra/512 \(and 1 more\)",
    ):
        prove(released, request, match=match, read=faulty)


def test_every_live_release_is_looked_at_and_what_it_leaves_out_itself_is_told(released: Lake) -> None:
    request = in_force(released, ("id", "demo/1.jpg"))
    release(released, RUN)
    found = {each.version: (each.samples, each.skipped, each.since) for each in proved(released, request).releases}
    assert found == {"v1": (2, 1, 1), "v2": (2, 2, 0)}


def test_a_tree_that_holds_it_keeps_it_from_being_in_effect_until_it_is_gone(released: Lake) -> None:
    uri = released.manifest("set", "v1")
    materialize(uri, released.tree("set", "v1"))
    request = in_force(released, ("id", "demo/1.jpg"))
    receipt = proved(released, request)
    assert receipt.effective is None
    assert [each.tree for each in receipt.releases] == [True]
    assert receipt.unreachable[0].where == "the tree of set v1"
    assert "holds 1 of these samples" in receipt.unreachable[0].why
    assert "not yet" in render(receipt)
    assert read_receipt(released, request) is None

    manifest = read_manifest(build(released, RUN).manifest)
    move_latest(released, "set", manifest.version, manifest.digest)
    materialize(released.manifest("set", "v2"), released.tree("set", "v2"))
    objects.create_bytes(released.release_tombstone("set", "v1"), b"{}")
    later = proved(released, request)
    assert later.effective is not None
    assert [(each.version, each.tree) for each in later.releases] == [("v2", False)]
    assert read_receipt(released, request) == later


def test_a_version_that_is_given_up_while_it_is_read_counts_no_more_and_its_successor_is_looked_at(
    released: Lake,
) -> None:
    """As when another request's tree is made anew: with opt-outs that are newer than what this proof began with."""
    request = in_force(released, ("id", "demo/1.jpg"))
    read = []

    def replaced(reading: Reading) -> Iterator[str]:
        read.append((reading.manifest.split("/")[-2], reading.optouts))
        if len(read) == 1:
            in_force(released, ("id", "demo/2.jpg"))
            release(released, RUN)
            objects.create_bytes(released.release_tombstone("set", "v1"), b"{}")
            raise InputError("it was given up", reading.manifest, "Use another")
        return selected(reading)

    receipt = prove(released, request, match=match, read=replaced)
    assert [(each.version, each.skipped, each.since) for each in receipt.releases] == [("v2", 2, 0)]
    assert (receipt.checks.releases, receipt.checks.places, receipt.snapshot) == (1, 2, 1)
    assert (read[0], {*read[1:]}) == (("v1", 1), {("v2", 2)})


def test_what_cannot_be_read_of_a_live_version_is_no_proof(released: Lake) -> None:
    request = in_force(released, ("id", "demo/1.jpg"))

    def fails(reading: Reading) -> Iterator[str]:
        raise CorruptError("the loader cannot read it", reading.manifest, "Restore it")

    with pytest.raises(CorruptError, match="cannot read it"):
        prove(released, request, match=match, read=fails)
    assert read_receipt(released, request) is None


def test_a_tree_of_other_tiers_or_of_a_later_position_does_not_hold_it(released: Lake) -> None:
    request = in_force(released, ("id", "demo/1.jpg"))
    materialize(released.manifest("set", "v1"), released.tree("set", "v1"), optouts=1)
    assert proved(released, request).effective is not None


def test_a_request_that_matches_nothing_has_a_receipt_too(released: Lake) -> None:
    receipt = proved(released, in_force(released, ("id", "demo/unknown.jpg")))
    assert (receipt.found, receipt.unmatched, receipt.releases) == (0, 1, ())
    assert receipt.checks.parts == 2
    assert "1 of 1 keys match nothing" in render(receipt)


def test_parts_that_came_since_are_compared_first(released: Lake) -> None:
    from tests.release.conftest import add
    from tests.support.pictures import Row, picture, stored

    request = in_force(released, ("id", "demo/1.jpg"))
    add(released, [Row("late.jpg", stored(picture(1, 640, 640)))], batch="b2")
    receipt = proved(released, request)
    assert newest_position(released) == receipt.snapshot == 2
    assert (receipt.position, receipt.found) == (1, 3)


def test_only_what_is_in_force_can_be_proved(released: Lake) -> None:
    with pytest.raises(InputError, match="there is no such request"):
        proved(released, "0" * 16)
    request = ask(released, ("id", "demo/1.jpg"))
    with pytest.raises(InputError, match="it was not applied"):
        proved(released, request)
    resolve(released, [request], match=match)
    resolve(released, [take_back(released, request)], match=match)
    with pytest.raises(InputError, match="it was taken back"):
        proved(released, request)


def test_of_many_shards_some_are_read_and_of_few_all() -> None:
    shards = tuple(f"s{n:03d}" for n in range(100))
    assert Reading("", "g", 512, 1, readback.EPOCH, shards).chosen == shards
    chosen = Reading("", "g", 512, 1, readback.EPOCH + 1, shards).chosen
    assert (len(chosen), chosen[0], len(set(chosen))) == (readback.SHARDS, "s000", readback.SHARDS)
    assert Reading("", "g", 512, 1, readback.EPOCH + 1, shards[:3]).chosen == shards[:3]
