"""A request is applied from what its preview has found, and comes to the same as if everything were compared again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.maintenance.merge import merge
from smalti.optouts import ledger, match, reach
from smalti.optouts.apply import apply
from smalti.optouts.ledger import read_step
from smalti.optouts.preview import preview, read_preview
from smalti.optouts.request import Action
from smalti.optouts.resolution import Resolution
from smalti.optouts.tables import Tables
from smalti.settings import MaintenanceRun, OptoutRun
from smalti.shards.part import Part
from tests.optouts.conftest import deliver, deliver_run
from tests.optouts.test_apply import asked
from tests.support.pictures import Row, picture, source_run, stored

KEYS = "id demo/1.jpg\nid demo/nothing.jpg\nowner nobody"


def nothing_came(lake: Lake, run: OptoutRun) -> None:
    pass


def a_copy_came(lake: Lake, run: OptoutRun) -> None:
    """And a sample of somebody else."""
    deliver(lake, "third", [Row("again.jpg", stored(picture(1, 560, 560))), Row("x.jpg", stored(picture(41)))])


def what_was_missing_came(lake: Lake, run: OptoutRun) -> None:
    deliver(lake, "third", [Row("x.jpg", stored(picture(41)), owner="nobody")])


def parts_were_merged(lake: Lake, run: OptoutRun) -> None:
    more = source_run("other", shard_bytes=1 << 20).model_copy(update={"batch": "b2"})
    deliver_run(lake, more, [Row("again.jpg", stored(picture(1, 500, 500))), Row("more.jpg", stored(picture(42)))])
    merge(lake, MaintenanceRun(apply=True, sources=("other",), small_part_bytes=1 << 40))


def a_part_was_collected(lake: Lake, run: OptoutRun) -> None:
    parts_were_merged(lake, run)
    old = next(part for part in ledger.all_parts(lake).values() if part.source == "other" and part.batch == "b1")
    objects.delete_object(lake.part_commit("other", old.name))


def the_rows_are_gone(lake: Lake, run: OptoutRun) -> None:
    seen = read_preview(lake, run.request)
    assert seen is not None
    assert seen.reached is not None
    objects.delete_object(lake.optout_matched(str(seen.reached.rows)))


CAME = [nothing_came, a_copy_came, what_was_missing_came, parts_were_merged, a_part_was_collected, the_rows_are_gone]


@pytest.mark.parametrize("came", CAME)
def test_it_comes_to_what_comparing_everything_comes_to(
    released: Lake, tmp_path: Path, came: Callable[[Lake, OptoutRun], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asked(released, KEYS)
    came(released, run)
    other = Lake.at(str(shutil.copytree(Path(released.root.removeprefix("file://")), tmp_path / "other")))
    from_preview = applied(released, run)
    with monkeypatch.context() as patch:
        patch.setattr(reach.Reach, "take_over", lambda *_: None)
        assert from_preview == applied(other, run)
    assert from_preview["unmatched"] == {run.request: (1,) if came is what_was_missing_came else (1, 2)}


def applied(lake: Lake, run: OptoutRun) -> dict[str, Any]:
    """What the step says, but for its time."""
    step = read_step(lake, apply(lake, run).position)
    assert isinstance(step, Resolution)
    return step.model_dump(exclude={"resolved"})


def test_only_what_came_is_compared(released: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run, late = asked(released, KEYS), asked(released, "id demo/2.jpg")
    compared: list[str] = []
    tables: list[str] = []

    def match_parts(lake: Lake, parts: Sequence[Part], *given: Any, **named: Any) -> match.Matched:
        compared.extend(part.source for part in parts)
        return real(lake, parts, *given, **named)

    def in_tables(self: Tables, *given: Any) -> match.Matched:
        tables.append("looked")
        return look(self, *given)

    real, look = match.match_parts, Tables.match
    monkeypatch.setattr(match, "match_parts", match_parts)
    monkeypatch.setattr(Tables, "match", in_tables)
    assert apply(released, run).position == 1
    assert (compared, tables) == ([], [])
    deliver(released, "third", [Row("x.jpg", stored(picture(41)))])
    assert apply(released, late).position == 2
    assert set(compared) == {"third"}
    assert tables


def test_what_another_rule_found_is_not_used(released: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run = asked(released, "id demo/nothing.jpg")
    monkeypatch.setattr("smalti.optouts.reached.RULE", 2)
    compared: list[int] = []
    real = match.match_parts

    def match_parts(*given: Any, **named: Any) -> match.Matched:
        compared.append(1)
        return real(*given, **named)

    monkeypatch.setattr(match, "match_parts", match_parts)
    apply(released, run)
    assert compared


def test_a_preview_without_it_has_the_digest_that_it_had(released: Lake) -> None:
    run = asked(released, KEYS)
    seen = read_preview(released, run.request)
    assert seen is not None
    assert b'"reached"' in seen.encode()
    assert b'"reached"' not in seen.model_copy(update={"reached": None}).encode()


def test_a_query_keeps_nothing(released: Lake) -> None:
    run = asked(released, KEYS, Action.QUERY)
    seen = read_preview(released, run.request)
    assert seen is not None
    assert seen.reached is None
    assert not [each for each in objects.list_objects(released.optout_resolutions()) if "matched-" in each.uri]
    assert preview(released, run).matched == 2
