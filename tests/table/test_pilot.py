"""Pilot: which rows it takes, what it costs later, and what its page shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import lance  # noqa: TID253
import pytest

from smalti.config import Engine
from smalti.engines.base import CaptionInput, CaptionResult
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.objects import list_names, read_bytes
from smalti.pipeline import fill as fill_module
from smalti.profiles import Checks, Prompt, PromptText
from smalti.settings import SourceRun
from smalti.sources.inventory import stage
from smalti.table import caption as caption_module
from smalti.table.caption import caption, caption_digest
from smalti.table.fingerprint import fingerprint
from smalti.table.ingest import ingest
from smalti.table.pilot import PilotReport, estimate, pilot
from tests.sources.making import Made, picture, rows_of, simple
from tests.support.openai_server import OpenAIServer, refusal, serve_openai

HOSTILE = "</p><script>alert(1)</script><img src=x onerror=alert(2)> \"'& <b>bold</b> https://evil.example/x.png"
HARMLESS = {"html", "head", "meta", "title", "style", "body", "main", "header", "section", "div", "h1", "h2", "p", "b"}
HARMLESS |= {"small", "span", "img", "table", "tr", "th", "td"}
TEXT = PromptText(user="Describe it.")


def asking(server: OpenAIServer, **changes: Any) -> Engine:
    return Engine(
        role="captioner",
        kind="openai",
        model="m",
        base_url=server.base_url,
        prompt=Prompt(name="plain", sha256=TEXT.sha256, text=TEXT),
        **{"name": "served", "batch_size": 2, "price": 2.0, "rate": 10.0, **changes},
    )


@pytest.fixture
def made(tmp_path: Any) -> Made:
    return simple(f"file://{tmp_path}/source", 8)


@pytest.fixture
def ready(lake: Lake, made: Made) -> SourceRun:
    """Eight rows, one of them too small, in three fragments, fingerprinted."""
    made.put("images/p7.jpg", picture(7, 300, 300))
    made.table([{"file": f"p{n}.jpg", "caption": f"source says {HOSTILE}"} for n in range(8)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smalti.sources.files.GROUP_ROWS", 3)
        for each in (stage, ingest, fingerprint):
            each(lake, made.run())
    return made.run()


def trying(run: SourceRun, count: int | None, captioner: Engine | None = None) -> SourceRun:
    return run.model_copy(update={"pilot": count, "captioner": captioner or run.captioner})


def page_of(report: PilotReport) -> str:
    assert report.page is not None
    return read_bytes(report.page).decode()


def ids_on(page: str) -> set[str]:
    return set(re.findall(r"made/p\d\.jpg", page))


class Tags(HTMLParser):
    """What a browser would see as tags, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_without_a_number_nothing_is_done(lake: Lake, ready: SourceRun) -> None:
    before = lance.dataset(lake.table("made")).version
    report = pilot(lake, ready)
    assert (report.page, report.rows, report.computed) == (None, 0, 0)
    assert lance.dataset(lake.table("made")).version == before


def test_a_batch_that_is_not_fingerprinted_is_refused(lake: Lake, made: Made) -> None:
    for each in (stage, ingest):
        each(lake, made.run())
    with pytest.raises(InputError, match="Run fingerprint first"):
        pilot(lake, trying(made.run(), 2))


def test_without_rows_there_is_no_page(lake: Lake, made: Made) -> None:
    assert pilot(lake, trying(made.run(), 2)).page is None


def test_the_full_run_asks_about_no_row_of_the_pilot_again(
    lake: Lake, ready: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill_module, "NOTE_EVERY", 0.0)  # folds would be due all the time
    with serve_openai() as server:
        run = trying(ready, 3, asking(server))
        report = pilot(lake, run)
        assert (report.rows, report.computed, report.eligible, report.waiting) == (3, 3, 7, 4)
        assert sorted(server.asked.values()) == [1, 1, 1]
        assert not [name for name in lance.dataset(lake.table("made")).schema.names if name.startswith("caption_serv")]
        again = pilot(lake, run)
        assert (again.computed, again.use, again.measured) == (0, None, None)
        assert ids_on(page_of(again)) == ids_on(page_of(report))
        assert sum(server.asked.values()) == 3
        full = caption(lake, run)  # whose `pilot` says nothing to it
        assert (full.rows_out, full.computed) == (7, 4)
        assert len(server.asked) == 7
        assert set(server.asked.values()) == {1}
        later = pilot(lake, run)
        assert (later.rows, later.computed, later.waiting) == (3, 0, 0)
        assert ids_on(page_of(later)) == ids_on(page_of(report))
        assert page_of(later).count(">about ") == 3
        assert sum(server.asked.values()) == 7
    assert full.use is not None
    assert report.use is not None
    assert full.use.gpu_hours_before == pytest.approx(report.use.gpu_hours, abs=1e-5)


def test_rows_are_drawn_by_the_captioners_digest_and_more_of_them_hold_the_fewer(lake: Lake, ready: SourceRun) -> None:
    with serve_openai() as server:
        drawn = [ids_on(page_of(pilot(lake, trying(ready, n, asking(server))))) for n in (2, 4)]
        assert [len(each) for each in drawn] == [2, 4]
        assert drawn[0] < drawn[1]
        assert "made/p7.jpg" not in drawn[1]
        others = [
            ids_on(page_of(pilot(lake, trying(ready, 3, asking(server, name=f"s{n}", max_pixels=4096 + n)))))
            for n in range(6)
        ]
    assert len({frozenset(each) for each in others}) > 1


def test_what_is_shown_is_said_with_its_numbers(lake: Lake, ready: SourceRun) -> None:
    refused: list[str] = []

    def some(asked: Any) -> Any:
        if not refused or asked.row in refused:
            refused.append(asked.row)
            return refusal(400, "too many tokens")
        return None

    with serve_openai(lambda _: "One two three.", faults=some) as server:
        report = pilot(lake, trying(ready, 4, asking(server, concurrency=1)))
    page = page_of(report)
    assert report.failed == {"error": 1}
    assert page.index("too many tokens") < page.index("One two three.")  # what failed stands first
    assert page.count("3 words, 3 tokens, 1 attempt, ended by stop") == 3
    for said in ("served", "plain", "failed: error", ">m<"):
        assert said in page
    assert report.stated == estimate(report.waiting, 10.0, 1, asking_again(report))
    assert report.stated is not None
    assert report.stated.cost == pytest.approx(2 * (report.stated.gpu_hours or 0), abs=1e-3)
    assert report.measured is not None
    assert report.use is not None
    assert report.measured.rows_per_second == pytest.approx(report.use.rows_per_second, rel=0.01)
    assert json.loads(report.model_dump_json())["page"] == report.page


def asking_again(report: PilotReport) -> Engine:
    return Engine(name=report.profile, role="captioner", kind="openai", model="m", base_url="http://h/v1", price=2.0,
                  prompt=Prompt(name="plain", sha256=TEXT.sha256, text=TEXT))  # fmt: skip


def test_hostile_captions_stay_text(lake: Lake, ready: SourceRun) -> None:
    with serve_openai(lambda _: HOSTILE) as server:
        loose = pilot(lake, trying(ready, 3, asking(server)))
        strict = pilot(lake, trying(ready, 3, asking(server, name="strict", checks=Checks(), attempts=1)))
    assert strict.failed == {"markup": 3}
    for report in (loose, strict):
        page = page_of(report)
        seen = Tags(page).seen
        assert {tag for tag, _ in seen} <= HARMLESS
        assert all(not name.startswith("on") for _, attrs in seen for name in attrs)
        pictures = [attrs["src"] or "" for tag, attrs in seen if tag == "img"]
        assert len(pictures) == 3
        assert all(source.startswith("data:image/jpeg;base64,") for source in pictures)
        assert page.count("&lt;script&gt;alert(1)") == 6  # the captioner's and the source's


def test_pictures_are_small_and_in_the_shape_that_the_captioner_saw(lake: Lake, ready: SourceRun) -> None:
    with serve_openai() as server:
        page = page_of(pilot(lake, trying(ready, 2, asking(server))))
    pictures = [attrs for tag, attrs in Tags(page).seen if tag == "img"]
    for attrs in pictures:
        width, height = int(attrs["width"] or 0), int(attrs["height"] or 0)
        assert max(width, height) == 384
        assert width / height == pytest.approx(576 / 448, rel=0.01)
    assert page.count("shown at 576 x 448") == 2
    assert len(page) < 200_000


def test_a_picture_that_no_longer_decodes_is_said(lake: Lake, ready: SourceRun) -> None:
    strict = ready.model_copy(update={"source": ready.source.model_copy(update={"max_pixels": 1000})})
    with serve_openai() as server:
        report = pilot(lake, trying(strict, 2, asking(server)))
        assert not server.asked
    assert report.failed == {"no_picture": 2}
    assert page_of(report).count("(does not decode)") == 2


class Fake:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def caption(self, items: list[CaptionInput]) -> list[CaptionResult]:
        self.asked += [item.id for item in items]
        return [CaptionResult(f"{item.id} {HOSTILE}", "ok") for item in items]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    found = Fake()
    opened: Callable[[Engine], Fake] = lambda _: found  # noqa: E731
    monkeypatch.setattr(caption_module, "open_captioner", opened)
    caption_module._captioner.cache_clear()
    yield found
    caption_module._captioner.cache_clear()


def test_rules_are_tried_without_leaving_anything_but_the_page(lake: Lake, ready: SourceRun, fake: Fake) -> None:
    report = pilot(lake, trying(ready, 4))
    assert (report.rows, report.computed, report.waiting, len(fake.asked)) == (4, 4, 7, 4)
    assert (report.use, report.stated) == (None, None)
    assert report.measured is not None
    assert report.measured.gpu_hours is None
    assert ids_on(page_of(report)) == set(fake.asked)
    digest = caption_digest(ready)
    assert list_names(f"{lake.root}/progress/made/caption/rules/{digest[:16]}") == ["b1"]
    assert rows_of(lake, "made", "tier")
    assert caption(lake, trying(ready, 4)).computed == 7
    assert pilot(lake, trying(ready, 4)).waiting == 0


def test_a_profile_that_was_changed_under_its_name_is_refused(lake: Lake, ready: SourceRun) -> None:
    with serve_openai() as server:
        caption(lake, trying(ready, None, asking(server)))
        with pytest.raises(InputError, match="save the changed profile under another name"):
            pilot(lake, trying(ready, 2, asking(server, max_pixels=5000)))
