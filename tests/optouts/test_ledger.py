"""The ledger: requests come in force in steps, parts are compared with them, and what is taken back is served again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smalti import objects
from smalti.errors import ConflictError, CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts import ledger as module
from smalti.optouts.ledger import all_parts, resolve, settle, state
from smalti.optouts.ledger_rows import in_order, read_matched
from smalti.optouts.proof import prove
from smalti.optouts.request import Action, read_request
from smalti.optouts.resolution import Ledger, Resolution
from smalti.release.optouts import OptoutSnapshot, newest_position, read_snapshot
from smalti.release.skips import decompress, parse
from tests.maintenance.conftest import Died, dying_after
from tests.optouts.lakes import NOW, Looked, Matched, Sample, add_part, ask, ledger_of, match, places_of, take_back


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two sources. `a/1` has a copy in `b` (one bit apart), and that one has another in `b`."""
    made = Lake.at(str(tmp_path / "lake"))
    add_part(made, "a", 1, [Sample("1", 0b0001), Sample("2", 0b11110000, "ann"), Sample("3", 0b10101010)])
    add_part(
        made,
        "b",
        1,
        [Sample("x", 0b0011), Sample("y", 0b0111, "bob"), *(Sample(f"f{n}", 0b11001100) for n in range(3))],
    )
    return made


def steps(lake: Lake) -> list[Resolution]:
    """The ledger, read one step after the other."""
    found: list[Resolution] = []
    for position in itertools.count(1):
        uri = lake.optout_resolution(position)
        if not objects.exists(uri):
            return found
        found.append(parse(Resolution, decompress(objects.read_bytes(uri), uri), uri))
    raise AssertionError


def check(lake: Lake) -> OptoutSnapshot:
    """Positions have no gaps, each snapshot follows from the steps before it, and the newest is what requests must reach."""
    made = steps(lake)
    assert newest_position(lake) == len(made)
    for position in range(1, len(made) + 1):
        assert read_snapshot(lake, position) == ledger_of(made[:position]).snapshot()
    ledger = state(lake)
    told = ledger_of(made)
    mine, theirs = (read_matched(lake, each.matched, ledger.in_force) for each in (ledger, told))
    assert (mine is None and theirs is None) or in_order(mine).equals(in_order(theirs))
    told.matched = ledger.matched  # blocks have the same rows in fewer files
    assert ledger == told
    parts = all_parts(lake)
    assert ledger.parts == parts.keys() or not ledger.in_force
    snapshot = read_snapshot(lake, len(made))
    expected = places_of(lake, [*parts.values()], [read_request(lake, name) for name in ledger.in_force])
    assert (snapshot.shards, snapshot.ids) == expected
    return snapshot


def test_a_request_is_in_force_with_all_copies_as_soon_as_its_snapshot_is_there(lake: Lake) -> None:
    request = ask(lake, ("id", "a/1"), ("id", "a/none"))
    step = resolve(lake, [request], match=match)
    assert step is not None
    assert (step.position, step.requests, step.unmatched) == (1, (request,), {request: (1,)})
    assert check(lake).ids == ("a/1", "b/x", "b/y")
    found = state(lake)
    assert (found.position, found.in_force) == (1, [request])
    assert found.unmatched == {request: (1,)}


def test_applying_twice_changes_nothing(lake: Lake) -> None:
    request = ask(lake, ("owner", "ann"))
    resolve(lake, [request], match=match)
    before = {each.uri for each in objects.list_objects(lake.root)}
    assert resolve(lake, [request, request], match=match) is None
    assert settle(lake, match=match) == 1
    assert {each.uri for each in objects.list_objects(lake.root)} == before


def test_a_lake_in_which_nothing_was_asked_is_left_as_it_is(lake: Lake) -> None:
    before = {each.uri for each in objects.list_objects(lake.root)}
    assert settle(lake, match=match) == 0
    assert state(lake) == Ledger()
    assert {each.uri for each in objects.list_objects(lake.root)} == before


def test_a_request_that_matches_nothing_is_in_force_for_what_comes(lake: Lake) -> None:
    request = ask(lake, ("owner", "carl"))
    resolve(lake, [request], match=match)
    assert check(lake).shards == {}
    add_part(lake, "a", 2, [Sample("9", 0b10011001, "carl")])
    assert settle(lake, match=match) == 2
    assert check(lake).ids == ("a/9",)


def test_new_parts_alone_are_compared(lake: Lake) -> None:
    request = ask(lake, ("id", "a/1"))
    resolve(lake, [request], match=match)
    name = add_part(lake, "b", 2, [Sample("z", 0b0011)])
    looked = Looked()
    assert settle(lake, match=looked) == 2
    assert looked.calls[0] == ((name,), (request,))
    check(lake)
    quiet = Looked()
    assert settle(lake, match=quiet) == 2
    assert quiet.calls == []


def test_what_a_new_part_brings_is_looked_for_in_old_parts_too(lake: Lake) -> None:
    """An owner's picture arrives, of which somebody else has delivered a copy before; and a chain gets its middle."""
    resolve(lake, [ask(lake, ("owner", "carl")), ask(lake, ("id", "a/3"))], match=match)
    assert check(lake).ids == ("a/3",)
    add_part(lake, "a", 2, [Sample("9", 0b11001101, "carl"), Sample("8", 0b10101000)])
    add_part(lake, "a", 3, [Sample("7", 0b10100000)])
    settle(lake, match=match)
    assert check(lake).ids == ("a/3", "a/7", "a/8", "a/9", "b/f0", "b/f1", "b/f2")


def test_a_sample_that_is_delivered_again_stays_out_and_what_it_shows_now_is_nobody_elses(lake: Lake) -> None:
    resolve(lake, [ask(lake, ("owner", "ann"))], match=match)
    assert check(lake).ids == ("a/2",)
    part = add_part(lake, "a", 2, [Sample("2", 0b11001110, "else")])
    settle(lake, match=match)
    snapshot = check(lake)
    assert snapshot.ids == ("a/2",)
    assert sorted(snapshot.shards.values()) == [(0,), (1,)]
    assert snapshot.shards[f"{part}/512/1.000/shard.00000.mds"] == (0,)


def test_what_is_taken_back_is_served_again_but_for_what_others_hold_too(lake: Lake) -> None:
    first, second = ask(lake, ("id", "a/1")), ask(lake, ("owner", "ann"), ("owner", "bob"))
    resolve(lake, [first, second], match=match)
    assert check(lake).ids == ("a/1", "a/2", "b/x", "b/y")
    back = take_back(lake, second)
    step = resolve(lake, [back], match=match)
    assert step is not None
    assert (step.withdrawn, step.withdrawals, step.parts) == ((second,), (back,), ())
    assert check(lake).ids == ("a/1", "b/x", "b/y")
    assert read_snapshot(lake, 1).ids == ("a/1", "a/2", "b/x", "b/y")
    assert (state(lake).in_force, state(lake).withdrawn, state(lake).withdrawals) == ([first], {second: 2}, {back: 2})

    assert resolve(lake, [back, take_back(lake, second, "again")], match=match) is None  # taking back twice is once
    assert resolve(lake, [second], match=match) is None  # it is never in force again
    other = ask(lake, ("owner", "ann"), ("owner", "bob"), submission="later")
    resolve(lake, [other], match=match)
    assert state(lake).in_force == sorted([first, other])
    assert check(lake).ids == ("a/1", "a/2", "b/x", "b/y")


def test_taking_back_before_it_is_in_force_keeps_it_from_ever_being(lake: Lake) -> None:
    request = ask(lake, ("owner", "ann"))
    assert resolve(lake, [take_back(lake, request)], match=match) is not None
    assert resolve(lake, [request], match=match) is None
    other = ask(lake, ("owner", "bob"))
    step = resolve(lake, [other, take_back(lake, other)], match=match)
    assert step is not None
    assert (step.requests, step.withdrawn) == ((), (other,))
    assert check(lake).shards == {}


def test_what_must_not_be_applied_is_refused_before_anything_is_written(lake: Lake) -> None:
    def refused(request: str, why: str) -> None:
        with pytest.raises(InputError, match=why):
            resolve(lake, [ask(lake, ("id", "a/3")), request], match=match)

    query = ask(lake, ("id", "a/1"), action=Action.QUERY)
    refused(query, "a query is never applied")
    refused(ask(lake, ("id", "a/1"), apply=None), "nobody has answered it yet")
    refused(ask(lake, ("id", "a/2"), apply=False), "it was refused by limit")
    refused("0" * 16, "there is no such request")
    refused(take_back(lake, query), "a request to query is nothing that can be taken back")
    refused(take_back(lake, "1" * 16), "there is no such request")
    assert steps(lake) == []


def test_the_order_of_requests_and_parts_does_not_matter(tmp_path: Path) -> None:
    parts: dict[str, Sequence[Sample]] = {
        "a": [Sample("1", 0b0001, "ann"), Sample("2", 0b1111_0000)],
        "b": [Sample("1", 0b0011), Sample("2", 0b1111_0001, "ann"), Sample("3", 0b1010_1010)],
        "c": [Sample("1", 0b0111), Sample("2", 0b0101_0101)],
    }
    keys = [("owner", "ann"), ("id", "c/1"), ("id", "c/2")]
    events: list[str | tuple[str, str]] = [*parts, *keys]
    chosen = [order for number, order in enumerate(itertools.permutations(events)) if number % 97 == 0]
    found = []
    for number, order in enumerate([tuple(events), *chosen]):
        lake = Lake.at(str(tmp_path / str(number)))
        for event in order:
            if isinstance(event, str):
                add_part(lake, event, 1, parts[event])
            else:
                resolve(lake, [ask(lake, event)], match=match)
        settle(lake, match=match)
        snapshot = check(lake)
        found.append((snapshot.shards, snapshot.ids))
    assert len(found) == 9
    assert all(each == found[0] for each in found)
    assert found[0][1] == ("a/1", "a/2", "b/1", "b/2", "c/1", "c/2")


def test_killed_before_any_write_whoever_comes_next_repairs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 2)
    ends = set()
    for writes in itertools.count():
        lake = Lake.at(str(tmp_path / str(writes)))
        add_part(lake, "a", 1, [Sample("1", 0b0001), Sample("2", 0b1111_0000, "ann")])
        requests = [ask(lake, ("id", "a/1")), ask(lake, ("owner", "ann")), ask(lake, ("id", "a/9"))]
        back = take_back(lake, requests[1])
        revive = dying_after(monkeypatch, writes)
        try:
            for request in [*requests, back]:
                resolve(lake, [request], match=match)
            died = False
        except Died:
            died = True
        finally:
            revive()
        ends.add(len(steps(lake)))
        for request in [back, *requests]:
            resolve(lake, [request], match=match)
        check(lake)
        assert state(lake).in_force == sorted([requests[0], requests[2]])
        if not died:
            break
    assert ends == {0, 1, 2, 3, 4}
    assert writes == 4 + 4 + 2 + 2 + 1  # steps, snapshots, rows of two, blocks, rows of the first


def test_a_snapshot_that_is_missing_is_there_before_the_next_step_is_tried(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ask(lake, ("id", "a/1")), ask(lake, ("owner", "ann"))
    revive = dying_after(monkeypatch, 2)  # the rows and the step are written
    with pytest.raises(Died):
        resolve(lake, [first], match=match)
    revive()
    assert (len(steps(lake)), newest_position(lake)) == (1, 0)
    assert state(lake).position == 1
    revive = dying_after(monkeypatch, 1)
    with pytest.raises(Died):
        resolve(lake, [second], match=match)
    revive()
    assert (len(steps(lake)), newest_position(lake)) == (1, 1)


def test_the_ledger_on_gcs(gcs_lake: Lake) -> None:
    add_part(gcs_lake, "a", 1, [Sample("1", 0b0001, "ann"), Sample("2", 0b1111_0000)])
    requests = [ask(gcs_lake, ("id", f"a/{n}"), ("owner", "ann")) for n in range(1, 5)]
    with ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(lambda request: resolve(gcs_lake, [request], match=match), requests))
    add_part(gcs_lake, "b", 1, [Sample("x", 0b0011)])
    assert settle(gcs_lake, match=match) == 5
    assert resolve(gcs_lake, [take_back(gcs_lake, requests[1])], match=match) is not None
    assert check(gcs_lake).ids == ("a/1", "b/x")
    request = state(gcs_lake).in_force[0]
    receipt = prove(gcs_lake, request, match=match)  # there is no release, and nothing to read back
    assert receipt.effective is not None
    assert receipt.effective.timestamp() > receipt.resolved.timestamp() - 1  # by the store's clock
    assert receipt.found == 2
    assert prove(gcs_lake, request, match=match) == receipt


def test_ten_that_resolve_at_once_all_come_in_force(lake: Lake) -> None:
    requests = [ask(lake, ("id", f"a/{n}"), submission=f"s{n}") for n in range(1, 11)]
    start = threading.Barrier(len(requests))
    looked = Looked()

    def one(request: str) -> Resolution | None:
        start.wait()
        return resolve(lake, [request], match=looked)

    with ThreadPoolExecutor(len(requests)) as pool:
        made = list(pool.map(one, requests))
    assert sorted(step.position for step in made if step is not None) == list(range(1, 11))
    assert state(lake).in_force == sorted(requests)
    assert check(lake).ids == ("a/1", "a/2", "a/3", "b/x", "b/y")
    assert len(looked.calls) == len(requests)  # who was slower compared nothing again


def test_who_was_slower_compares_what_came_meanwhile_and_nothing_else(lake: Lake) -> None:
    first, second = ask(lake, ("owner", "ann")), ask(lake, ("id", "a/3"))
    late: list[str] = []
    looked = Looked()

    def overtaken(*arguments: object, **keywords: object) -> Matched:
        found = looked(*arguments, **keywords)  # type: ignore[arg-type]
        if not late:
            late.append(add_part(lake, "a", 2, [Sample("9", 0b0110_0110, "ann"), Sample("8", 0b1010_1011)]))
            resolve(lake, [second], match=match)
        return found

    resolve(lake, [first], match=overtaken)
    old = tuple(sorted(all_parts(lake).keys() - set(late)))
    assert looked.calls[:2] == [(old, (first,)), ((late[0],), (first,))]
    assert state(lake).in_force == sorted([first, second])
    assert check(lake).ids == ("a/2", "a/3", "a/8", "a/9")


def test_a_part_that_is_collected_meanwhile_does_not_stop_a_step(lake: Lake) -> None:
    """Maintenance takes part.json away first, then the rest."""
    gone = lake.samples("b", "00001-000000000001")

    def collected(*arguments: object, **keywords: object) -> Matched:
        if objects.delete_object(lake.part_commit("b", "00001-000000000001")):
            objects.delete_object(gone)
        return match(*arguments, **keywords)  # type: ignore[arg-type]

    step = resolve(lake, [ask(lake, ("id", "a/1"))], match=collected)
    assert step is not None
    assert step.parts == ("a/00001-000000000001",)
    assert check(lake).ids == ("a/1",)


def test_a_part_whose_samples_are_gone_is_an_error(lake: Lake) -> None:
    objects.delete_object(lake.samples("b", "00001-000000000001"))
    with pytest.raises(MissingObject):
        resolve(lake, [ask(lake, ("id", "a/1"))], match=match)


@pytest.mark.parametrize("count", [11, 12, 13])
def test_blocks_say_what_the_steps_say(lake: Lake, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(module, "BLOCK", 4)
    requests: list[str] = []
    for number in range(count):
        if number % 5 == 4:
            resolve(lake, [take_back(lake, requests[number - 3])], match=match)
        else:
            requests.append(ask(lake, ("id", f"a/{number}"), ("owner", f"o{number}"), submission=f"s{number}"))
            resolve(lake, requests[-1:], match=match)
    add_part(lake, "a", 2, [Sample("1", 0b0110_0110), Sample("99", 0b1001_1001, "o2")])
    settle(lake, match=match)
    check(lake)
    assert state(lake).position == count + 1
    assert objects.exists(lake.optout_block(8))
    assert len(state(lake).matched) < len(ledger_of(steps(lake)).matched)


def test_a_block_holds_what_its_steps_matched_for_requests_of_earlier_blocks(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 4)
    first = ask(lake, ("owner", "o2"), submission="first")
    resolve(lake, [first], match=match)
    for number in range(11):
        if number == 5:  # a step of the second block
            add_part(lake, "a", 2, [Sample("99", 0b1001_1001, "o2")])
            settle(lake, match=match)
        resolve(lake, [ask(lake, ("id", f"b/{number}"), submission=f"s{number}")], match=match)
    ledger = state(lake)
    assert ledger.position > 2 * 4
    rows = read_matched(lake, ledger.matched, [first])
    assert rows is not None
    assert set(rows["id"].to_pylist()) == ledger.ids[first]
    assert "a/99" in ledger.ids[first]


def test_a_position_that_holds_has_its_snapshot_even_if_another_writer_died_before_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(lake, [ask(lake, ("id", "a/1"), submission="s1")], match=match)
    step = Resolution(position=2, requests=(ask(lake, ("id", "a/2"), submission="s2"),), resolved=NOW)
    monkeypatch.setattr(
        module,
        "_step",
        lambda *_: step if objects.create_bytes(lake.optout_resolution(2), step.encode()) else None,
    )
    assert settle(lake, match=match) == 2
    assert objects.exists(lake.optout_snapshot(2))


def test_few_objects_are_read_however_many_steps_there_are(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)
    for number in range(50):
        resolve(lake, [ask(lake, ("id", f"a/{number}"), submission=f"s{number}")], match=match)
    reads: list[str] = []
    real: Callable[[str], bytes] = objects.read_bytes

    def noted(uri: str) -> bytes:
        reads.append(uri)
        return real(uri)

    monkeypatch.setattr(objects, "read_bytes", noted)
    assert state(lake).position == 50
    assert len(reads) == 6 + 2


def test_damage_of_the_ledger_is_named(lake: Lake) -> None:
    for number in (1, 2):
        resolve(lake, [ask(lake, ("id", f"a/{number}"))], match=match)
    first, second = (objects.local_path(lake.optout_resolution(n)) for n in (1, 2))
    assert first is not None
    assert second is not None
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptError, match="it says that it is step 2"):
        state(lake)
    first.unlink()
    with pytest.raises(MissingObject, match="a step of the ledger of opt-outs is gone"):
        state(lake)
    first.write_bytes(data)
    assert state(lake).position == 2


def test_a_snapshot_that_does_not_follow_from_the_steps_is_not_taken_for_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []

    def forged(uri: str) -> bool:
        found = real(uri)
        if uri == lake.optout_snapshot(1) and not made:
            made.append(objects.create_bytes(uri, OptoutSnapshot(position=1, shards={}).encode()))
        return found

    real = objects.exists
    monkeypatch.setattr(objects, "exists", forged)
    with pytest.raises(ConflictError, match="does not follow from the steps"):
        resolve(lake, [ask(lake, ("id", "a/1"))], match=match)
