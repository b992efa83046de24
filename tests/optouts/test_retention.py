"""What has had its time is removed, and nothing else is; whoever is killed at it leaves the rest to the next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from smalti import objects
from smalti.config import Retention, load_retention
from smalti.errors import InputError, LakeError
from smalti.lake import Lake
from smalti.optouts.apply import apply, prove, refuse
from smalti.optouts.ledger import state
from smalti.optouts.parse import parse_text
from smalti.optouts.preview import preview, read_preview, turns
from smalti.optouts.request import Action, read_answer, read_request
from smalti.optouts.retention import ForgetReport, forget
from smalti.optouts.status import standings
from smalti.optouts.submit import hand_in
from smalti.optouts.watch import load_watch
from smalti.release.optouts import read_snapshot
from smalti.settings import OptoutRun
from tests.conftest import snapshot
from tests.optouts.making import Sample, put_part
from tests.optouts.test_status import answer, handed, step


def later(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days, minutes=1)


def names(lake: Lake, *, but: tuple[str, ...] = ()) -> set[str]:
    return {name for name in snapshot(lake.root) if not name.endswith(but)}


def done(report: ForgetReport) -> tuple[int, int, int, int]:
    return report.previews, report.rejected, report.files, report.keys


def put(lake: Lake, request: str, *uris: str) -> None:
    for uri in (lake.optout_preview(request), lake.optout_preview_page(request), *uris):
        objects.create_bytes(uri, b"x")


def every_state(lake: Lake) -> dict[str, str]:
    """A request in each state, all with a preview and rejected rows."""
    made = {
        name: handed(lake, hour, **more)
        for hour, (name, more) in enumerate({
            "waits": {}, "confirmed": {}, "refused": {}, "resolved": {}, "proven": {}, "withdrawn": {},
            "excluded": {"action": Action.ERASE}, "erased": {"action": Action.ERASE}, "asked": {"action": Action.QUERY},
        }.items())
    }  # fmt: skip
    made["back"] = handed(lake, 20, action=Action.WITHDRAW, withdraws=made["withdrawn"], parsed=parse_text(""))
    for request in made.values():
        put(lake, request)
    for name in made.keys() - {"waits", "asked"}:
        answer(lake, made[name], name != "refused")
    step(lake, 1, requests=sorted(made[name] for name in ("resolved", "proven", "withdrawn", "excluded", "erased")))
    step(lake, 2, withdrawn=[made["withdrawn"]], withdrawals=[made["back"]])
    for name, kind in [("proven", "exclude"), ("excluded", "exclude"), ("erased", "exclude"), ("erased", "erase"),
                       ("withdrawn", "exclude"), ("asked", "query"), ("back", "withdraw")]:  # fmt: skip
        objects.create_bytes(lake.optout_receipt(made[name], kind), b"{}")
    return made


def test_what_is_over_goes_and_what_is_in_force_or_open_stays(any_lake: Lake) -> None:
    made = every_state(any_lake)
    objects.create_bytes(any_lake.optout_rejected("f" * 16), b"of no request")
    objects.create_bytes(any_lake.optout_rejected_file("f" * 16, ".csv"), b"of no request")
    before = names(any_lake)
    found = [(each.id, each.shown, each.keys, each.rejected) for each in standings(any_lake)]
    assert done(forget(any_lake, later(89), Retention())) == (0, 0, 0, 0)
    assert names(any_lake) == before
    report = forget(any_lake, later(90), Retention())
    assert (report.requests, report.ended) == (10, 6)
    assert done(report) == (6, 5 + 1, 1, 3), "what takes another one back has no rows and no keys"
    over = {made[name] for name in ("refused", "proven", "withdrawn", "erased", "asked", "back")}
    gone = before - names(any_lake)
    assert {name for name in gone if "preview" in name} == {
        f"/optouts/requests/{request}/{name}" for request in over for name in ("preview.json.gz", "preview.html")
    }
    idle = {made[name] for name in ("refused", "withdrawn", "asked")}
    assert {name for name in gone if "request.json" in name} == {
        f"/optouts/requests/{request}/request.json.gz" for request in idle
    }
    left = [name for name in gone if "preview" not in name and "request.json" not in name]
    assert all("/rejected/" in name for name in left), "no step, no receipt, no answer"
    assert [(each.id, each.shown, each.keys, each.rejected) for each in standings(any_lake)] == found
    assert done(forget(any_lake, later(900), Retention())) == (0, 0, 0, 0), "a second time there is nothing to do"


def test_of_a_request_that_was_taken_back_its_keys_are_nowhere(lake: Lake) -> None:
    made = every_state(lake)
    assert "sesame" in read_request(lake, made["withdrawn"]).model_dump_json()
    forget(lake, later(1), Retention(keys_days=1))
    request = read_request(lake, made["withdrawn"])
    assert (request.keys, request.action, request.reference) == ((), Action.EXCLUDE, "T-1")
    assert request.forgotten is not None
    for info in objects.list_objects(lake.optout_folder(made["withdrawn"])):
        assert b"sesame" not in objects.read_bytes(info.uri)
    assert objects.exists(lake.optout_preview(made["withdrawn"])), "each has its own time"


def test_handed_in_again_it_is_not_put_back(lake: Lake) -> None:
    made = every_state(lake)
    forget(lake, later(90), Retention())
    before = snapshot(lake.root)
    for hour, name, more in [(2, "refused", {}), (5, "withdrawn", {}), (8, "asked", {"action": Action.QUERY})]:
        with pytest.raises(InputError, match="its keys were removed since"):
            handed(lake, hour, **more)
        with pytest.raises(InputError, match="its keys were removed"):
            preview(lake, OptoutRun(request=made[name]))
    assert snapshot(lake.root) == before


def test_the_ledger_goes_on_without_the_keys_of_what_was_taken_back(lake: Lake) -> None:
    """Really applied, really taken back, forgotten; then a part comes, and another request."""
    put_part(lake, "demo", 1, [Sample("a", 1, owner="ada"), Sample("b", 2, owner="bob")])

    def go(text: str, reference: str, **more: Any) -> str:
        fields: dict[str, Any] = {"action": Action.EXCLUDE, "parsed": parse_text(text)}
        request = hand_in(
            lake, reference=reference, submission=reference, submitted=datetime.now(UTC), **(fields | more)
        )
        run = OptoutRun(request=request.id, confirmed_by="me")
        preview(lake, run)
        apply(lake, run)
        return request.id

    ada, bob = go("owner ada", "T-1"), go("owner bob", "T-2")
    taken = go("", "T-3", action=Action.WITHDRAW, withdraws=ada)
    prove(lake, OptoutRun(request=taken))
    held = state(lake)
    assert done(forget(lake, later(90), Retention())) == (2, 0, 0, 1), "bob has no receipt yet: nothing of it is over"
    assert state(lake) == held
    put_part(lake, "demo", 2, [Sample("c", 3, owner="ada"), Sample("d", 4, owner="bob")])
    carl = go("owner carl\nid demo/a", "T-4")
    now = state(lake)
    assert (now.in_force, now.resolved[ada], now.withdrawn[ada]) == (sorted([bob, carl]), 1, 3)
    assert read_snapshot(lake, now.position).ids == ("demo/a", "demo/b", "demo/d")
    watch = load_watch(lake)
    assert watch is not None
    with pytest.raises(InputError, match="withdrawn at position 3, and its keys were removed since"):
        go("owner ada", "T-1")


class Killed(BaseException):
    pass


def test_killed_at_any_write_or_removal_it_goes_on_where_it_was(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = every_state(lake)
    now, shown = later(90), [(each.id, each.shown) for each in standings(lake)]
    left = [0]

    def until_killed(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return work(*arguments)

        return call

    kills = 0
    with monkeypatch.context() as patch:
        patch.setattr(objects, "create_bytes", until_killed(objects.create_bytes))
        patch.setattr(objects, "delete_object", until_killed(objects.delete_object))
        while True:
            left[0] = 1
            try:
                forget(lake, now, Retention())
                break
            except Killed:
                kills += 1
                pages = {name for name in names(lake) if name.endswith("preview.html")}
                assert {name.replace(".html", ".json.gz") for name in pages} <= names(lake), (
                    "none is left of another preview"
                )
                assert [(each.id, each.shown) for each in standings(lake)] == shown
                assert read_request(lake, made["withdrawn"]).reference == "T-1"
    assert kills == 12 + 5 + 2 * 3 - 1
    assert done(forget(lake, now, Retention())) == (0, 0, 0, 0)


def test_a_preview_that_was_made_again_has_its_own_time(lake: Lake) -> None:
    made = every_state(lake)
    assert forget(lake, later(90), Retention()).previews == 6
    put(lake, made["proven"])
    assert forget(lake, later(-1), Retention(preview_days=0)).previews == 0
    assert forget(lake, later(0), Retention(preview_days=0)).previews == 1


def test_previews_of_later_turns_go_too_but_a_no_stays_a_no(lake: Lake) -> None:
    made = every_state(lake)
    for name in ("proven", "refused"):
        objects.create_bytes(lake.optout_preview(made[name], 2), b"x")
        objects.create_bytes(lake.optout_preview_page(made[name], 2), b"x")
        answer(lake, made[name], name != "refused", turn=2)
    objects.delete_object(lake.optout_answer(made["refused"]))
    answer(lake, made["refused"], True)  # the no came at the second turn
    answers = {name: (read_answer(lake, made[name]), turns(lake, made[name])) for name in ("proven", "refused")}
    assert [found.apply for found, _ in answers.values() if found] == [True, False]
    forget(lake, later(90), Retention())
    left = {name.rpartition("/")[2] for name in names(lake) if made["proven"] in name and "/requests/" in name}
    assert left == {"request.json.gz", "answer.json", "answer-2.json"}
    left = {name.rpartition("/")[2] for name in names(lake) if made["refused"] in name and "/requests/" in name}
    assert left == {"forgotten.json", "answer.json", "answer-2.json", "preview-2.json.gz"}
    assert {name: (read_answer(lake, made[name]), turns(lake, made[name])) for name in answers} == answers
    objects.delete_object(lake.optout_preview(made["refused"], 2))
    assert read_answer(lake, made["refused"]) == answers["refused"][0], "a preview that was lost makes no yes of it"


def test_rows_that_a_preview_has_found_go_with_it_unless_they_are_in_force(lake: Lake) -> None:
    put_part(lake, "s1", 1, [Sample("k1", 1, phash=3), Sample("k2", 2, phash=0xFFFF0000)])
    kept, gone = (
        hand_in(
            lake,
            action=Action.EXCLUDE,
            parsed=parse_text(f"id s1/{key}"),
            reference="r",
            submission=key,
            submitted=later(0),
        )
        for key in ("k1", "k2")
    )
    rows = {}
    for each in (kept, gone):
        preview(lake, OptoutRun(request=each.id))
        seen = read_preview(lake, each.id)
        assert seen is not None
        assert seen.reached is not None
        rows[each.id] = lake.optout_matched(str(seen.reached.rows))
    refuse(lake, gone.id, "Ada")
    apply(lake, OptoutRun(request=kept.id))
    prove(lake, OptoutRun(request=kept.id))
    assert all(objects.exists(each) for each in rows.values())
    assert forget(lake, later(90), Retention()).previews == 2
    assert (objects.exists(rows[kept.id]), objects.exists(rows[gone.id])) == (True, False)
    assert set(state(lake).ids[kept.id]) == {"s1/k1"}


def test_without_the_right_to_delete_it_says_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    every_state(lake)

    def denied(*_: Any) -> bool:
        raise LakeError("access is denied", "gs://b", "Grant storage.objects.delete")

    monkeypatch.setattr(objects, "delete_object", denied)
    with pytest.raises(LakeError, match="access is denied"):
        forget(lake, later(90), Retention())


def test_how_long_is_a_setting(tmp_path: Any) -> None:
    assert load_retention(tmp_path) == Retention(rejected_days=90, preview_days=90, keys_days=90)
    (tmp_path / "optouts.yaml").write_text("preview_days: 7\n")
    assert load_retention(tmp_path).preview_days == 7
    (tmp_path / "optouts.yaml").write_text("preview_days: -7\n")
    with pytest.raises(InputError, match="preview_days"):
        load_retention(tmp_path)
