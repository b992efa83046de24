"""A request from preview to receipt, as the DAG's stages take it, over a lake with a release: with the matcher itself, without the loader."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from smalti import cli, objects
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.objects import read_bytes
from smalti.optouts import apply as module
from smalti.optouts.apply import apply, prove, refuse
from smalti.optouts.match import match_parts
from smalti.optouts.parse import parse, parse_text
from smalti.optouts.preview import preview, read_preview
from smalti.optouts.proof import prove as prove_request
from smalti.optouts.request import Action, read_answer, read_request
from smalti.optouts.rows import Parsed
from smalti.optouts.status import State, standings
from smalti.optouts.submit import NOTHING, hand_in
from smalti.release import verify as verify_module
from smalti.release.latest import live_versions
from smalti.release.materialize import materialize
from smalti.release.optouts import newest_position, read_snapshot
from smalti.settings import OptoutRun
from smalti.shards.part import Part, committed_parts
from tests.conftest import snapshot
from tests.maintenance.conftest import release
from tests.optouts.conftest import RUN, deliver
from tests.optouts.test_proof import selected
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, stored


@pytest.fixture(autouse=True)
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing streaming takes many seconds, and the proof has a test with it."""
    monkeypatch.setattr(module, "prove_request", functools.partial(prove_request, read=selected))
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)


def asked(lake: Lake, keys: str | Parsed, action: Action = Action.EXCLUDE, **more: object) -> OptoutRun:
    """A request that was handed in and looked at."""
    parsed = parse_text(keys) if isinstance(keys, str) else keys
    known: dict[str, object] = {"reference": "T-7", "submission": f"test {keys}", "submitted": datetime.now(UTC)}
    request = hand_in(lake, action=action, parsed=parsed, **(known | more))  # type: ignore[arg-type]
    run = OptoutRun(request=request.id)
    preview(lake, run)
    return run


def state_of(lake: Lake, run: OptoutRun) -> State:
    return standings(lake, [run.request])[0].state


def opted_out(lake: Lake) -> set[str]:
    return set(read_snapshot(lake, newest_position(lake)).ids)


def test_a_request_goes_from_preview_to_receipt_and_its_copies_with_it(released: Lake) -> None:
    run = asked(released, "id demo/1.jpg\nid demo/nobody.jpg")
    found = read_preview(released, run.request)
    assert found is not None
    assert (found.matched, found.by_key, found.unmatched, found.sources) == (2, 1, 1, {"demo": 1, "other": 1})
    assert [(each.id, each.how) for each in found.shown] == [("demo/1.jpg", "key"), ("other/copy.jpg", "copy")]
    assert found.releases == {"set": ("v1",)}
    page = read_bytes(released.optout_preview_page(run.request)).decode()
    assert page.count('<img src="data:image/jpeg;base64,') == 2
    assert newest_position(released) == 0, "a preview applies nothing"

    report = apply(released, run)
    assert report.position == newest_position(released) == 1
    assert opted_out(released) == {"demo/1.jpg", "other/copy.jpg"}
    answer = read_answer(released, run.request)
    assert answer is not None
    assert (answer.by, answer.preview_sha256) == ("limit", found.digest())

    said = prove(released, run)
    assert said.effective
    receipt = json.loads(read_bytes(said.receipt))
    assert {each["id"] for each in receipt["samples"]} == {"demo/1.jpg", "other/copy.jpg"}
    assert state_of(released, run) == State.PROVEN
    before = snapshot(released.root)
    for stage in (preview, apply, prove):
        stage(released, run)
    assert snapshot(released.root) == before, "a second time nothing changes"


@pytest.mark.parametrize(
    "keys",
    [
        "id demo/1.jpg",
        "url https://example.org/1.jpg",
        "url HTTPS://EXAMPLE.org:443/1.jpg#top",
        "the bytes",
        "encoded again",
    ],
)
def test_each_kind_of_key_reaches_the_sample_and_its_copy_and_no_other(released: Lake, keys: str) -> None:
    given: str | Parsed = keys
    if keys == "the bytes":
        given = parse(stored(picture(1)), "mine.jpg")
    elif keys == "encoded again":
        given = parse(stored(picture(1, 900, 900), "WEBP", quality=80), "mine.webp")
    run = asked(released, given)
    apply(released, run)
    assert opted_out(released) == {"demo/1.jpg", "other/copy.jpg"}


def test_what_is_wide_or_matches_much_waits_for_a_person(released: Lake) -> None:
    for keys, above, why in (
        ("domain example.org", 1000, "it names a domain or a prefix"),
        ("owner somebody", 3, "it matches 9 places, more than 3"),
    ):
        run = asked(released, keys, confirm_above=above)
        assert preview(released, run).ask == why
        with pytest.raises(InputError, match=f"waits for a person: {why}"):
            apply(released, run)
        assert state_of(released, run) == State.WAITS
    assert newest_position(released) == 0
    assert apply(released, run.model_copy(update={"confirmed_by": "Ada"})).position == 1
    answer = read_answer(released, run.request)
    assert answer is not None
    assert answer.by == "Ada"


def test_what_matches_much_more_than_was_confirmed_is_looked_at_again(released: Lake) -> None:
    """Parts came between the answer and the step that applies it."""
    run = asked(released, "owner somebody", confirm_above=3)
    first = read_preview(released, run.request)
    assert first is not None
    sure = run.model_copy(update={"confirmed_by": "Ada", "seen": first.digest()})
    deliver(released, "third", [Row("1.jpg", stored(picture(41))), Row("2.jpg", stored(picture(42)))])
    with pytest.raises(InputError, match="waits for a person: it matches 11 places now, and 9 when it was looked at"):
        apply(released, sure)
    assert (newest_position(released), state_of(released, run)) == (0, State.WAITS)
    with pytest.raises(InputError, match="waits for a person: it matches 11 places, more than 3"):
        apply(released, sure)  # Ada has confirmed another preview
    report = preview(released, run)
    assert (report.matched, report.ask) == (11, "it matches 11 places, more than 3")
    assert read_bytes(report.page).decode().count("<figure>") == 11
    assert apply(released, run.model_copy(update={"confirmed_by": "Ada", "seen": report.digest})).position == 1
    answer = read_answer(released, run.request)
    assert answer is not None
    assert (answer.by, answer.preview_sha256) == ("Ada", report.digest)
    assert len(opted_out(released)) == 11
    assert state_of(released, run) == State.RESOLVED


@pytest.mark.parametrize("killed_at", ["preview.html", "preview.json.gz"])
def test_the_page_shows_the_preview_that_is_confirmed_even_if_a_run_died_between_the_two(
    released: Lake, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    def killed(uri: str, data: bytes) -> bool:
        if uri.endswith(killed_at):
            raise KeyboardInterrupt
        return real(uri, data)

    real = objects.create_bytes
    monkeypatch.setattr(objects, "create_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        asked(released, "owner somebody")
    monkeypatch.setattr(objects, "create_bytes", real)
    deliver(released, "third", [Row("1.jpg", stored(picture(41))), Row("2.jpg", stored(picture(42)))])
    run = asked(released, "owner somebody")
    seen = read_preview(released, run.request)
    assert seen is not None
    page = read_bytes(released.optout_preview_page(run.request)).decode()
    assert page.count("<figure>") == seen.matched


def test_of_two_runs_at_once_the_page_shows_the_preview_that_was_stored(
    released: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(uri: str, data: bytes) -> bool:
        if uri.endswith("preview.json.gz") and not late:
            late.append(uri)
            deliver(released, "third", [Row("1.jpg", stored(picture(41))), Row("2.jpg", stored(picture(42)))])
            asked(released, "owner somebody")
        return real(uri, data)

    late: list[str] = []
    real = objects.create_bytes
    monkeypatch.setattr(objects, "create_bytes", overtaken)
    run = asked(released, "owner somebody")
    seen = read_preview(released, run.request)
    assert seen is not None
    assert seen.matched == 11
    assert read_bytes(released.optout_preview_page(run.request)).decode().count("<figure>") == 11


def test_a_part_that_is_collected_while_it_is_looked_at_stops_no_preview(
    released: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance takes part.json away first, then the rest."""
    deliver(released, "third", [Row("1.jpg", stored(picture(41))), Row("2.jpg", stored(picture(42)))])
    [part] = committed_parts(released, "third")

    def collected(lake: Lake, parts: Sequence[Part], *arguments: Any, **keywords: Any) -> Any:
        if objects.delete_object(lake.part_commit(part.source, part.name)):
            objects.delete_object(lake.samples(part.source, part.name))
        return real(lake, parts, *arguments, **keywords)

    real = match_parts
    monkeypatch.setattr("smalti.optouts.everywhere.match_parts", collected)
    run = asked(released, "owner somebody")
    seen = read_preview(released, run.request)
    assert seen is not None
    assert seen.reached is not None
    assert seen.matched == 9
    assert f"third/{part.name}" not in seen.reached.parts
    assert apply(released, run).position == 1


def test_a_preview_of_a_part_whose_samples_are_gone_is_an_error(released: Lake) -> None:
    deliver(released, "third", [Row("1.jpg", stored(picture(41)))])
    [part] = committed_parts(released, "third")
    objects.delete_object(released.samples(part.source, part.name))
    with pytest.raises(MissingObject):
        asked(released, "owner somebody")


def test_a_confirmed_request_whose_preview_is_lost_is_looked_at_again_if_it_matches_much(released: Lake) -> None:
    run = asked(released, "owner somebody", confirm_above=3)
    sure = run.model_copy(update={"confirmed_by": "Ada"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "resolve", lambda *_, **__: None)
        apply(released, sure)  # answered, and then killed
    objects.delete_object(released.optout_preview(run.request))
    with pytest.raises(InputError, match="it matches 9 places now, and its preview is lost"):
        apply(released, sure)
    assert newest_position(released) == 0
    report = preview(released, run)
    assert apply(released, sure.model_copy(update={"seen": report.digest})).position == 1


def test_what_matches_little_more_than_was_seen_is_applied(released: Lake) -> None:
    run = asked(released, "owner somebody")
    deliver(released, "third", [Row("1.jpg", stored(picture(41)))])
    assert apply(released, run).position == 1
    assert len(opted_out(released)) == 10


def test_a_second_preview_can_be_refused(released: Lake) -> None:
    run = asked(released, "owner somebody", confirm_above=9)
    deliver(released, "third", [Row("1.jpg", stored(picture(41)))])
    with pytest.raises(InputError, match="matches 10 places now"):
        apply(released, run)
    assert not refuse(released, run.request, "Ada").apply
    with pytest.raises(InputError, match="was refused"):
        apply(released, run.model_copy(update={"confirmed_by": "Bob"}))
    assert (newest_position(released), state_of(released, run)) == (0, State.REFUSED)


def test_what_was_refused_is_never_applied(released: Lake) -> None:
    run = asked(released, "domain example.org")
    assert not refuse(released, run.request, "Ada").apply
    with pytest.raises(InputError, match="handed in under this reference before, and refused"):
        asked(released, "domain example.org")
    with pytest.raises(InputError, match="was refused"):
        apply(released, run.model_copy(update={"confirmed_by": "Bob"}))
    assert (state_of(released, run), newest_position(released)) == (State.REFUSED, 0)


def test_a_query_says_what_is_held_and_applies_nothing(released: Lake) -> None:
    run = asked(released, "domain example.org", Action.QUERY)
    assert preview(released, run).ask == "", "nobody is asked before nothing is done"
    with pytest.raises(InputError, match="only asks what is held"):
        apply(released, run)
    said = prove(released, run)
    told = json.loads(read_bytes(said.receipt))
    held = read_preview(released, run.request)
    assert held is not None
    assert (told["matched"], len(told["shown"])) == (held.matched, len(held.shown))
    assert "What is held" in read_bytes(said.page).decode()
    assert (state_of(released, run), newest_position(released)) == (State.PROVEN, 0)


def test_a_withdrawal_takes_a_request_back_and_says_so(released: Lake) -> None:
    first = asked(released, "id demo/1.jpg")
    other = asked(released, "id demo/2.jpg")
    for each in (first, other):
        apply(released, each)
    back = asked(released, NOTHING, Action.WITHDRAW, withdraws=first.request)
    with pytest.raises(InputError, match="was not applied"):
        prove(released, back)
    with pytest.raises(InputError, match="waits for a person: it lets pictures be served again"):
        apply(released, back)
    assert apply(released, back.model_copy(update={"confirmed_by": "Ada"})).position == newest_position(released) == 3
    assert opted_out(released) == {"demo/2.jpg"}
    said = prove(released, back)
    assert "is served again" in read_bytes(said.page).decode()
    assert first.request in read_bytes(said.page).decode()
    assert json.loads(read_bytes(said.receipt))["position"] == 3
    assert [state_of(released, each) for each in (first, back)] == [State.WITHDRAWN, State.PROVEN]


def test_a_proof_of_what_was_taken_back_is_none(released: Lake) -> None:
    run = asked(released, "id demo/1.jpg")
    apply(released, run)
    assert prove(released, run).effective
    back = asked(released, NOTHING, Action.WITHDRAW, withdraws=run.request)
    apply(released, back.model_copy(update={"confirmed_by": "Ada"}))
    with pytest.raises(InputError, match="it was taken back"):
        prove(released, run)


def test_the_command_line_takes_a_request_from_preview_to_receipt(
    released: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["smalti", "optout", *arguments, "--lake", released.root])
        return cli.run(), *capsys.readouterr()

    wide = asked(released, "domain example.org").request
    code, _, err = call("apply", wide)
    assert (code, "waits for a person: it names a domain" in err) == (2, True)
    code, out, _ = call("apply", wide, "--yes")
    assert (code, "effective: True" in out) == (0, True)
    assert len(opted_out(released)) == 9
    assert call("apply", asked(released, "id demo/2.jpg", Action.QUERY).request)[0] == 0
    assert call("apply", "0" * 16)[0] == 2


def test_yes_confirms_no_preview_that_nobody_has_seen(
    released: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(request: str) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setattr(
            "sys.argv", ["smalti", "optout", "apply", request, "--yes", "--json", "--lake", released.root]
        )
        code = cli.run()
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    def handed(text: str) -> str:
        return hand_in(
            released, action=Action.EXCLUDE, reference="T", parsed=parse_text(text), submission="x", submitted=datetime.now(UTC)
        ).id  # fmt: skip

    wide = handed("domain example.org")
    code, said, err = call(wide)
    assert (code, said["matched"], said["page"]) == (2, 9, released.optout_preview_page(wide))
    assert "waits for a person: it names a domain or a prefix. Nobody has seen yet what it matches" in err
    assert read_answer(released, wide) is None
    assert opted_out(released) == set()
    code, said, _ = call(wide)
    assert (code, said["effective"], len(opted_out(released))) == (0, True, 9)
    code, said, _ = call(handed("id demo/2.jpg"))
    assert (code, said["effective"]) == (0, True), "of this nobody needs to be asked"


def test_what_was_not_looked_at_is_not_applied(released: Lake) -> None:
    request = hand_in(
        released, action=Action.EXCLUDE, reference="T", parsed=parse_text("id demo/1.jpg"), submission="x", submitted=datetime.now(UTC)
    )  # fmt: skip
    with pytest.raises(InputError, match="has no preview"):
        apply(released, OptoutRun(request=request.id))
    assert read_request(released, request.id) == request


def test_no_page_and_no_object_that_others_see_has_a_key(released: Lake) -> None:
    run = asked(released, "owner somebody\nurl https://example.org/sesame", confirm_above=1000)
    apply(released, run)
    prove(released, run)
    for info in objects.list_objects(f"{released.root}/optouts"):
        if not info.uri.endswith("request.json.gz"):
            assert b"sesame" not in read_bytes(info.uri), info.uri


def test_the_command_line_says_what_is_held_and_writes_nothing(
    released: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("id demo/1.jpg\nid demo/nobody.jpg\n")
    before = snapshot(released.root)
    monkeypatch.setattr("sys.argv", ["smalti", "optout", "query", str(keys), "--lake", released.root, "--json"])
    assert cli.run() == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["samples"], said["places"], said["sources"]) == (2, 2, {"demo": 1, "other": 1})
    assert [(each["id"], each["how"]) for each in said["held"]] == [("demo/1.jpg", "key"), ("other/copy.jpg", "copy")]
    assert said["unmatched_keys"] == [{"kind": "id", "value": "demo/nobody.jpg"}]
    assert snapshot(released.root) == before


def test_a_tree_that_a_request_reaches_is_succeeded_and_the_receipt_says_so(released: Lake) -> None:
    settings = RUN.model_copy(update={"dataset": RUN.dataset.model_copy(update={"publish": "tree"})})
    release(released, settings)
    materialize(released.manifest("set", "v2"), released.tree("set", "v2"))
    run = asked(released, "id demo/1.jpg")

    report = apply(released, run)

    assert (report.succeeded, report.warnings) == ({"set/v2": "v3"}, ())
    assert live_versions(released, "set") == ("v3", "v1")
    assert prove(released, run).effective
    receipt = json.loads(read_bytes(released.optout_receipt(run.request, "exclude")))
    assert {(each["version"], each["since"], each["tree"]) for each in receipt["releases"]} == {
        ("v3", 0, False),
        ("v1", 1, False),
    }
    assert receipt["replaced"] == [{"dataset": "set", "version": "v2", "successor": "v3", "tree": True}]
    stone = objects.stat(released.release_tombstone("set", "v2"))
    assert stone is not None
    assert receipt["effective"] == datetime.fromtimestamp(stone.written, UTC).isoformat().replace("+00:00", "Z")
    assert receipt["unreachable"][0]["where"] == "the tree of set v2"
    assert "set v2</td><td>v3</td>" in read_bytes(released.optout_receipt_page(run.request, "exclude")).decode()
    before = snapshot(released.root)
    assert apply(released, run).succeeded == {}
    assert snapshot(released.root) == before
