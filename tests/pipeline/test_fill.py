"""Rows are asked about once, whatever happens, and the table gets what was said."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter

import lance  # noqa: TID253
import pytest

from smalti import objects
from smalti.engines.base import Answer, Question, RowError
from smalti.errors import CorruptError, EngineError, InputError
from smalti.lake import Lake
from smalti.pipeline import fill as fill_module
from smalti.pipeline.budget import Ledger
from smalti.pipeline.fill import fill
from smalti.pipeline.plan import plan_chunks
from smalti.profiles import Checks, Sampling
from smalti.settings import SourceRun
from smalti.table.caption import caption
from smalti.table.store import open_table
from smalti.table.target import read_checkpoint
from tests.pipeline.conftest import Told, add_batch, column, place_of, work_of
from tests.sources.making import Made, picture

ALL = {f"p{n}" for n in range(8)}


def ids(*names: str) -> set[str]:
    return {f"made/{name}.jpg" for name in names}


def test_every_row_is_asked_about_once_and_its_answer_is_kept(lake: Lake, run: SourceRun, told: Told) -> None:
    filled = fill(place_of(lake, run), work_of(run, told))
    assert (filled.computed, filled.resumed) == (8, 0)
    assert told.asked == dict.fromkeys(ids(*ALL), 1)
    assert column(lake, "caption_told") == {name: f"It is made/{name}.jpg." for name in ALL}
    assert set(column(lake, "caption_told_status").values()) == {"ok"}
    assert set(column(lake, "caption_told_finish").values()) == {"stop"}
    assert set(column(lake, "caption_told_tokens").values()) == {3}
    assert set(column(lake, "caption_told_attempts").values()) == {1}
    assert set(column(lake, "caption_told_reason").values()) == {None}
    assert (told.opened, told.closed) == (1, 1)


def test_a_second_run_asks_nothing_opens_nothing_and_commits_nothing(lake: Lake, run: SourceRun, told: Told) -> None:
    fill(place_of(lake, run), work_of(run, told))
    version = lance.dataset(lake.table("made")).version
    again = Told()
    assert fill(place_of(lake, run), work_of(run, again)).computed == 0
    assert (again.opened, lance.dataset(lake.table("made")).version) == (0, version)


def test_the_engine_has_as_many_rows_at_once_as_its_profile_says(lake: Lake, run: SourceRun) -> None:
    told = Told(seconds=0.05)
    fill(place_of(lake, run), work_of(run, told))
    assert told.most == 4


def test_a_caption_that_fails_its_check_is_asked_for_again_with_other_sampling(lake: Lake, run: SourceRun) -> None:
    strict = run.model_copy(update={"captioner": run.captioner.model_copy(update={"checks": Checks(min_words=5)})})
    used: dict[str, list[Sampling]] = {}

    def say(question: Question, sampling: Sampling) -> Answer:
        used.setdefault(question.id, []).append(sampling)
        enough = question.id.endswith("p1.jpg") and len(used[question.id]) == 2
        return Answer("A room with a chair and a table." if enough else "A room.", "stop", 7)

    fill(place_of(lake, strict), work_of(strict, Told(say)))
    status, attempts = column(lake, "caption_told_status"), column(lake, "caption_told_attempts")
    assert (status["p1"], attempts["p1"], column(lake, "caption_told_tokens")["p1"]) == ("ok", 2, 14)
    assert (status["p2"], attempts["p2"], column(lake, "caption_told_reason")["p2"]) == ("failed", 3, "too_short")
    assert column(lake, "caption_told")["p2"] is None
    assert len(set(used["made/p2.jpg"])) == 3
    temperatures = [each.temperature for each in used["made/p2.jpg"]]
    assert temperatures == sorted(set(temperatures))


def test_a_row_that_the_engine_cannot_answer_fails_alone(lake: Lake, run: SourceRun) -> None:
    def say(question: Question, _: Sampling) -> str:
        if question.id.endswith("p3.jpg"):
            raise RowError("the prompt is too long")
        return "A room."

    report_of = fill(place_of(lake, run), work_of(run, Told(say)))
    assert report_of.computed == 8
    assert {name for name, state in column(lake, "caption_told_status").items() if state == "failed"} == {"p3"}
    assert column(lake, "caption_told_reason")["p3"] == "error"


def test_an_engine_that_fails_stops_the_stage_and_what_was_answered_stays(lake: Lake, run: SourceRun) -> None:
    told = Told()

    def say(question: Question, _: Sampling) -> str:
        if sum(told.asked.values()) > 4:
            raise EngineError("it is gone", "told", "Start it again")
        return "A room."

    told.say = say
    with pytest.raises(EngineError, match="it is gone"):
        fill(place_of(lake, run), work_of(run, told))
    kept = plan_chunks(place_of(lake, run), open_table(place_of(lake, run).table), 2).answered
    assert kept
    again = Told()
    filled = fill(place_of(lake, run), work_of(run, again))
    assert filled.resumed == len(kept)
    assert set(again.asked) == ids(*ALL) - set(kept)
    assert set(column(lake, "caption_told_status").values()) == {"ok"}


def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines and the driver look after each other 50 times a second instead of once."""
    for module in ("worker", "fill"):
        monkeypatch.setattr(f"smalti.pipeline.{module}.BEAT", 0.02)


def test_two_rows_that_the_engine_cannot_answer_keep_nobody_from_going_on(lake: Lake, run: SourceRun) -> None:
    def say(question: Question, _: Sampling) -> str:
        if question.id in ids("p0", "p1"):
            raise RowError("the prompt is too long")
        return "A room."

    assert fill(place_of(lake, run), work_of(run, Told(say))).computed == 8
    assert Counter(column(lake, "caption_told_status").values()) == {"ok": 6, "failed": 2}


def test_an_engine_that_refuses_whatever_it_is_asked_stops_the_stage(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smalti.pipeline.worker.REFUSED", 2)

    def say(question: Question, _: Sampling) -> str:
        raise RowError("unknown field top_q")

    with pytest.raises(EngineError, match=r"it has answered none of the \d rows .* \(unknown field top_q\)"):
        fill(place_of(lake, run), work_of(run, Told(say)))
    kept = [read_checkpoint(info.uri).num_rows for info in objects.list_objects(place_of(lake, run).answers)]
    assert sum(kept) <= 1  # a chunk of one row may come first: one alone may well be at fault itself


def test_an_engine_that_cannot_start_leaves_the_table_as_it_was(lake: Lake, run: SourceRun, told: Told) -> None:
    async def fails(_: object) -> Told:
        raise EngineError("no memory", "told", "Take a smaller model")

    object.__setattr__(told, "open", fails)
    with pytest.raises(EngineError, match="no memory"):
        fill(place_of(lake, run), work_of(run, told))
    assert "caption_told" not in lance.dataset(lake.table("made")).schema.names


def test_rows_appended_meanwhile_and_other_columns_stay(lake: Lake, run: SourceRun, made: Made) -> None:
    before = column(lake, "sha256")
    made.put("images/p8.jpg", picture(8))
    made.table([{"file": f"p{n}.jpg", "caption": ""} for n in range(9)])
    told = Told()
    later: list[SourceRun] = []

    def say(question: Question, _: Sampling) -> str:
        if not later:
            later.append(run)
            later[0] = add_batch(lake, made, "b2")
        return "A room."

    told.say = say
    fill(place_of(lake, run), work_of(run, told))
    assert column(lake, "sha256") == before
    assert set(column(lake, "caption_told").values()) == {"A room."}
    assert column(lake, "caption_told", "b2") == {"p8": None}
    fill(place_of(lake, later[0]), work_of(later[0], told))
    assert column(lake, "caption_told", "b2") == {"p8": "A room."}


def test_complete_fragments_are_folded_while_others_wait(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill_module, "NOTE_EVERY", 0.0)
    seen: list[int] = []

    def say(question: Question, _: Sampling) -> str:
        table = lance.dataset(lake.table("made"))
        if "caption_told_status" in table.schema.names:
            seen.append(table.count_rows("caption_told_status = 'ok'"))
        return "A room."

    told = Told(say, seconds=0.2)
    slow = run.model_copy(update={"captioner": run.captioner.model_copy(update={"concurrency": 1, "batch_size": 1})})
    fill(place_of(lake, slow), work_of(slow, told))
    assert any(0 < count < 8 for count in seen)
    assert set(column(lake, "caption_told_status").values()) == {"ok"}


def test_a_compaction_between_two_runs_costs_no_answer(lake: Lake, run: SourceRun) -> None:
    only = frozenset(ids("p0", "p4", "p7"))
    fill(place_of(lake, run), work_of(run, Told()), only=only)
    assert "caption_told" not in lance.dataset(lake.table("made")).schema.names
    lance.dataset(lake.table("made")).optimize.compact_files(target_rows_per_fragment=100)
    assert len(lance.dataset(lake.table("made")).get_fragments()) == 1
    again = Told()
    filled = fill(place_of(lake, run), work_of(run, again))
    assert (filled.computed, filled.resumed) == (5, 3)
    assert set(again.asked) == ids(*ALL) - only
    assert column(lake, "caption_told") == {name: f"It is made/{name}.jpg." for name in ALL}


def test_a_budget_stops_cleanly_and_a_larger_one_goes_on(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_beats(monkeypatch)
    slow = run.model_copy(update={"captioner": run.captioner.model_copy(update={"concurrency": 1, "batch_size": 1})})
    told = Told(seconds=0.3)
    with pytest.raises(
        InputError, match=r"the budget of 0\.0001 GPU hours is used up .* rows wait; all answers are kept"
    ):
        fill(place_of(lake, slow), work_of(slow, told), max_gpu_hours=0.0001)  # 0.36 s
    done = {name for name, state in column(lake, "caption_told_status").items() if state == "ok"}
    assert 0 < len(done) < 8
    assert set(told.asked) == ids(*done)  # nothing was asked and thrown away
    spent = Ledger(place_of(lake, slow)).before
    assert spent >= 0.36

    with pytest.raises(InputError, match="is used up"):  # the hours of the first run count
        fill(place_of(lake, slow), work_of(slow, Told()), max_gpu_hours=0.0001)
    again = Told()
    use = fill(place_of(lake, slow), work_of(slow, again), max_gpu_hours=1).use
    assert set(again.asked) == ids(*(ALL - done))
    assert use is not None
    assert use.gpu_hours_before == pytest.approx(spent / 3600, abs=1e-5)


def test_an_engine_that_never_answers_uses_up_the_budget_too(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_beats(monkeypatch)
    told = Told()

    async def slow_to_load(_: object) -> Told:
        await asyncio.sleep(0.6)
        return told

    object.__setattr__(told, "open", slow_to_load)
    with pytest.raises(InputError, match="8 rows wait"):
        fill(place_of(lake, run), work_of(run, told), max_gpu_hours=0.0001)  # 0.36 s
    assert not told.asked
    assert told.closed == 1
    assert Ledger(place_of(lake, run)).before >= 0.5


def test_the_stage_says_how_it_gets_on_and_what_it_cost(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick_beats(monkeypatch)
    monkeypatch.setattr(fill_module, "LINE_EVERY", 0.0)
    profile = run.captioner.model_copy(update={"rate": 2.0})
    priced = run.model_copy(update={"captioner": profile})
    told = Told(seconds=0.1)
    work = work_of(priced, told)
    monkeypatch.setattr("smalti.table.caption.caption_work", lambda _: work)
    with caplog.at_level(logging.INFO, "smalti"):
        report = caption(lake, priced)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == (
        "caption: 8 rows for 1 engine of told; at 2 rows/s each about 4 s and 0.00 GPU hours, 0.00 at 2 an hour, without loading"
    )
    assert any(
        re.match(r"caption: [2-6] of 8 rows .* rows/s and \d+ tokens/s, \d+ % busy .*; done in about", line)
        for line in lines
    )
    use = report.use
    assert use is not None
    assert (report.rows_out, report.computed, use.tokens, use.engines) == (8, 8, 24, 1)
    assert use.cost_per_1000 == pytest.approx(1000 * use.gpu_hours * 2.0 / 8, abs=1e-3)
    assert 0 < use.busy <= 1


def test_checkpoints_of_another_profile_text_are_not_used(lake: Lake, run: SourceRun) -> None:
    fill(place_of(lake, run), work_of(run, Told()), only=frozenset(ids("p0")))
    other = run.model_copy(update={"captioner": run.captioner.model_copy(update={"max_pixels": 2048})})
    told = Told()
    fill(place_of(lake, other), work_of(other, told))
    assert told.asked["made/p0.jpg"] == 1


def test_a_checkpoint_that_breaks_is_named(lake: Lake, run: SourceRun, told: Told) -> None:
    fill(place_of(lake, run), work_of(run, told), only=frozenset(ids("p0")))
    (info,) = objects.list_objects(place_of(lake, run).answers)
    path = objects.local_path(info.uri)
    assert path is not None
    path.write_bytes(b"torn")
    with pytest.raises(CorruptError, match=re.escape(info.uri)):
        fill(place_of(lake, run), work_of(run, Told()))
