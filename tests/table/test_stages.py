"""Fingerprint, caption and classify: what they ask, of which rows, and what they report."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import lance  # noqa: TID253
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from smalti.engines.base import CaptionInput, CaptionResult, LabelResult
from smalti.errors import EngineError, InputError
from smalti.images.buckets import Bucket, bucket_of
from smalti.images.decode import decode
from smalti.images.fingerprint import fingerprint as fingerprint_of
from smalti.lake import Lake
from smalti.reasons import Label
from smalti.settings import SourceRun
from smalti.sources.inventory import stage
from smalti.table import caption as caption_module
from smalti.table import classify as classify_module
from smalti.table import columns as columns_module
from smalti.table import fingerprint as fingerprint_module
from smalti.table import ingest as ingest_module
from smalti.table import target as target_module
from smalti.table.caption import caption, caption_digest, shown
from smalti.table.classify import classify
from smalti.table.fingerprint import fingerprint
from smalti.table.index import describe
from smalti.table.ingest import ingest
from tests.sources.making import CAPTIONER, Made, picture, rows_of


class FakeCaptioner:
    """Says which picture it was shown; `trouble` names ids over which a whole chunk fails."""

    def __init__(self) -> None:
        self.asked: list[CaptionInput] = []
        self.trouble: set[str] = set()
        self.refused: set[str] = set()

    def caption(self, items: list[CaptionInput]) -> list[CaptionResult]:
        self.asked += items
        if self.trouble.intersection(item.id for item in items):
            raise ValueError("too long for the model")
        return [
            CaptionResult(None, "failed", "no words")
            if item.id in self.refused
            else CaptionResult(f"{item.id}: {item.source_caption}", "ok")
            for item in items
        ]


class FakeClassifier:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def classify(self, captions: Sequence[str]) -> list[LabelResult]:
        self.asked += captions
        return [LabelResult(Label.TEXT if "p1" in text else Label.VISUAL, 0.75) for text in captions]


@pytest.fixture
def captioner(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCaptioner]:
    fake = FakeCaptioner()
    monkeypatch.setattr(caption_module, "open_captioner", lambda _: fake)
    caption_module._captioner.cache_clear()
    yield fake
    caption_module._captioner.cache_clear()


@pytest.fixture
def classifier(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClassifier]:
    fake = FakeClassifier()
    monkeypatch.setattr(classify_module, "open_classifier", lambda _: fake)
    classify_module._classifier.cache_clear()
    yield fake
    classify_module._classifier.cache_clear()


@pytest.fixture
def run(lake: Lake, made: Made) -> SourceRun:
    """Four good pictures (p0 is larger and wide), one too small, one too long; in the table."""
    made.put("images/p0.jpg", picture(0, 1600, 900))
    made.put("images/small.jpg", picture(10, 300, 300))
    made.put("images/wide.jpg", picture(11, 1500, 300))
    names = [*(f"p{n}.jpg" for n in range(4)), "small.jpg", "wide.jpg"]
    made.table([{"file": name, "caption": f"source says {name}"} for name in names])
    stage(lake, made.run())
    ingest(lake, made.run())
    return made.run()


def column(lake: Lake, name: str) -> dict[str, Any]:
    return {row["id"].removeprefix("made/"): row[name] for row in rows_of(lake, "made", name)}


def test_rows_get_their_bucket_or_the_reason_why_not(lake: Lake, run: SourceRun) -> None:
    report = fingerprint(lake, run)
    assert (report.rows_in, report.rows_out) == (6, 4)
    assert report.dropped == {"aspect_ratio": 1, "too_small": 1}
    assert report.tiers == {"512": 3, "1024": 1}
    assert column(lake, "tier") == {
        "p0.jpg": 1024,
        "p1.jpg": 512,
        "p2.jpg": 512,
        "p3.jpg": 512,
        "small.jpg": 0,
        "wide.jpg": 0,
    }
    assert column(lake, "ar") == {
        "p0.jpg": "1.750",
        **dict.fromkeys(("p1.jpg", "p2.jpg", "p3.jpg"), "1.286"),
        "small.jpg": None,
        "wide.jpg": None,
    }
    assert column(lake, "drop")["small.jpg"] == "too_small"
    assert column(lake, "drop")["p0.jpg"] is None
    expected = fingerprint_of(decode(picture(2)))
    found = rows_of(lake, "made", "phash", "colour", "flat", "unstable")[2]
    assert {name: found[name] for name in ("phash", "colour", "flat", "unstable")} == {
        name: getattr(expected, name) for name in ("phash", "colour", "flat", "unstable")
    }


def test_what_has_no_bucket_is_never_decoded(lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def spy(data: bytes, max_pixels: int) -> Image.Image:
        image = decode(data, max_pixels)
        sizes.append(image.size)
        return image

    monkeypatch.setattr(fingerprint_module, "decode", spy)
    fingerprint(lake, run)
    assert sorted(sizes) == [(500, 400)] * 3 + [(1600, 900)]


def test_a_picture_that_no_longer_decodes_is_dropped_for_that(
    lake: Lake, run: SourceRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    strict = run.model_copy(update={"source": run.source.model_copy(update={"max_pixels": 300_000})})
    assert fingerprint(lake, strict).dropped == {"aspect_ratio": 1, "decode_failed": 1, "too_small": 1}
    row = rows_of(lake, "made", "tier", "ar", "drop", "phash")[0]
    assert {k: row[k] for k in ("tier", "ar", "drop", "phash")} == {
        "tier": 0,
        "ar": None,
        "drop": "decode_failed",
        "phash": None,
    }
    assert "fingerprint: a picture does not decode: " in caplog.text
    assert "made/p" not in caplog.text, "an id may say whatever a source calls its pictures"


def test_a_second_run_of_each_stage_asks_nothing_and_reports_the_same(
    lake: Lake, run: SourceRun, captioner: FakeCaptioner, classifier: FakeClassifier
) -> None:
    stages: list[Any] = [fingerprint, caption, classify]
    first = [each(lake, run) for each in stages]
    version = lance.dataset(lake.table("made")).version
    asked = (len(captioner.asked), len(classifier.asked))
    again = [each(lake, run) for each in stages]
    ignore = {"seconds", "computed"}
    assert [r.model_dump(exclude=ignore) for r in again] == [r.model_dump(exclude=ignore) for r in first]
    assert [r.computed for r in again] == [0, 0, 0]
    assert lance.dataset(lake.table("made")).version == version
    assert (len(captioner.asked), len(classifier.asked)) == asked == (4, 4)


def test_a_captioner_is_shown_the_crop_of_eligible_rows_only(
    lake: Lake, run: SourceRun, captioner: FakeCaptioner
) -> None:
    fingerprint(lake, run)
    report = caption(lake, run)
    assert (report.rows_in, report.rows_out, report.computed) == (6, 4, 4)
    assert report.dropped == {"aspect_ratio": 1, "too_small": 1}
    assert [item.id for item in captioner.asked] == [f"made/p{n}.jpg" for n in range(4)]
    first = captioner.asked[0]
    assert first.source_caption == "source says p0.jpg"
    assert (first.width, first.height) == (1600, 900)
    bucket = bucket_of(1600, 900)
    assert isinstance(bucket, Bucket)
    assert first.image.width * first.image.height <= CAPTIONER.max_pixels
    assert first.image.width / first.image.height == pytest.approx(bucket.width / bucket.height, rel=0.01)
    assert column(lake, "caption_rules")["p1.jpg"] == "made/p1.jpg: source says p1.jpg"
    assert column(lake, "caption_rules_status") == {
        **{f"p{n}.jpg": "ok" for n in range(4)},
        "small.jpg": None,
        "wide.jpg": None,
    }


@pytest.mark.parametrize("kind", ["trouble", "refused"])
def test_one_bad_picture_fails_alone(
    lake: Lake, run: SourceRun, captioner: FakeCaptioner, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    getattr(captioner, kind).add("made/p1.jpg")
    fingerprint(lake, run)
    report = caption(lake, run)
    assert "caption: a picture failed: " in caplog.text
    assert "made/p" not in caplog.text
    assert (report.rows_out, report.dropped["caption_failed"]) == (3, 1)
    assert column(lake, "caption_rules_status")["p1.jpg"] == "failed"
    assert column(lake, "caption_rules")["p1.jpg"] is None
    assert caption(lake, run).computed == 0  # it is not asked again


def test_a_captioner_that_fails_on_everything_stops_the_stage(
    lake: Lake, run: SourceRun, captioner: FakeCaptioner
) -> None:
    captioner.trouble = {f"made/p{n}.jpg" for n in range(4)}
    fingerprint(lake, run)
    with pytest.raises(EngineError, match="it failed on each of 3 pictures"):
        caption(lake, run)
    captioner.trouble = set()
    assert caption(lake, run).rows_out == 4


def test_a_picture_that_does_not_decode_is_a_failed_caption(
    lake: Lake, run: SourceRun, captioner: FakeCaptioner
) -> None:
    fingerprint(lake, run)
    strict = run.model_copy(update={"source": run.source.model_copy(update={"max_pixels": 300_000})})
    assert caption(lake, strict).dropped["caption_failed"] == 1


def test_stages_out_of_order_say_what_to_run_first(lake: Lake, run: SourceRun, captioner: FakeCaptioner) -> None:
    with pytest.raises(InputError, match=r"6 rows of batch 'b1' are not fingerprinted\. Run fingerprint first"):
        caption(lake, run)
    fingerprint(lake, run)
    with pytest.raises(InputError, match=r"4 rows of batch 'b1' have no caption by 'rules'\. Run caption first"):
        classify(lake, run)


def test_a_classifier_reads_only_the_captions_there_are(
    lake: Lake, run: SourceRun, captioner: FakeCaptioner, classifier: FakeClassifier
) -> None:
    captioner.refused = {"made/p3.jpg"}
    for each in (fingerprint, caption):
        each(lake, run)
    report = classify(lake, run)
    assert (report.rows_in, report.rows_out, report.labels) == (3, 3, {"text": 1, "visual": 2})
    assert sorted(classifier.asked) == [f"made/p{n}.jpg: source says p{n}.jpg" for n in range(3)]
    labels = column(lake, "label_rules_minilm_of_rules")
    assert (labels["p1.jpg"], labels["p2.jpg"], labels["p3.jpg"], labels["small.jpg"]) == ("text", "visual", None, None)
    assert column(lake, "label_rules_minilm_of_rules_score")["p0.jpg"] == 0.75


def test_profiles_never_mix(lake: Lake, run: SourceRun, captioner: FakeCaptioner, classifier: FakeClassifier) -> None:
    for each in (fingerprint, caption, classify):
        each(lake, run)
    prompted = run.model_copy(update={"captioner": CAPTIONER.model_copy(update={"max_pixels": 4096})})
    with pytest.raises(InputError, match="save the changed profile under another name"):
        caption(lake, prompted)
    other = run.model_copy(update={"captioner": CAPTIONER.model_copy(update={"name": "rules.v2", "max_pixels": 4096})})
    assert caption(lake, other).rows_out == 4
    assert column(lake, "caption_rules_v2")["p1.jpg"] == column(lake, "caption_rules")["p1.jpg"]
    asked = len(classifier.asked)
    assert classify(lake, other).computed == 4  # other captions: they are read, and have labels of their own
    assert len(classifier.asked) == asked + 4
    assert column(lake, "label_rules_minilm_of_rules_v2") == column(lake, "label_rules_minilm_of_rules")


def test_the_cut_of_the_picture_is_in_what_decides_its_caption(lake: Lake, made: Made) -> None:
    run = made.run()
    stretched = run.source.encoding.model_copy(update={"fit": "stretch"})
    other = run.model_copy(update={"source": run.source.model_copy(update={"encoding": stretched})})
    assert caption_digest(other) != caption_digest(run)


def test_without_a_table_every_stage_has_nothing_to_do(lake: Lake, made: Made) -> None:
    for each in (fingerprint, caption, classify):
        assert each(lake, made.run()).rows_in == 0


def test_a_batch_without_rows_is_nothing_to_do(
    lake: Lake, run: SourceRun, made: Made, captioner: FakeCaptioner
) -> None:
    for each in (stage, ingest, fingerprint, caption, classify):
        report: Any = each(lake, made.run("b2"))
        assert getattr(report, "rows_out", 0) == 0


def test_a_source_describes_what_it_holds(
    lake: Lake, run: SourceRun, made: Made, captioner: FakeCaptioner, classifier: FakeClassifier
) -> None:
    empty = describe(Lake.at(f"{lake.root}/other"), run.source)
    assert (empty["rows"], empty["batches"], empty["labels"]) == (0, {}, {})
    captioner.refused = {"made/p3.jpg"}
    for each in (fingerprint, caption, classify):
        each(lake, run)
    made.put("images/p4.jpg", picture(4))
    made.put("images/orphan.jpg", picture(5))
    made.table([{"file": f"p{n}.jpg", "caption": ""} for n in (0, 1, 2, 3, 4, 99)])
    stage(lake, made.run("b2"))
    ingest(lake, made.run("b2"))
    found = describe(lake, run.source)
    assert {name: found[name] for name in ("rows", "batches", "tiers", "drops", "captions", "labels", "rejects")} == {
        "rows": 7,
        "batches": {"b1": 6, "b2": 1},
        "tiers": {"512": 3, "1024": 1},
        "drops": {"aspect_ratio": 1, "too_small": 1},
        "captions": {"caption_rules": {"failed": 1, "ok": 3}},
        "labels": {"label_rules_minilm_of_rules": {"text": 1, "visual": 2}},
        "rejects": {"missing_object": 1, "no_table_row": 1},
    }


def test_tasks_and_their_outcomes_travel_to_other_processes(
    lake: Lake, made: Made, captioner: FakeCaptioner, classifier: FakeClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def over_the_wire(function: Any, items: Sequence[Any], **_: Any) -> Iterator[Any]:
        for item in items:
            packed = pickle.dumps((function, item))
            sent.append(len(packed))
            there, what = pickle.loads(packed)
            yield pickle.loads(pickle.dumps(there(what)))

    for module in (ingest_module, columns_module, target_module):
        monkeypatch.setattr(module, "map_tasks", over_the_wire)
    for each in (stage, ingest, fingerprint, caption, classify):
        each(lake, made.run())
    assert column(lake, "label_rules_minilm_of_rules") == {
        "p0.jpg": "visual",
        "p1.jpg": "text",
        "p2.jpg": "visual",
        "p3.jpg": "visual",
    }
    assert max(sent) < 8000  # a description, no pictures


@settings(deadline=None, max_examples=40)
@given(
    st.integers(300, 2200), st.integers(300, 2200), st.integers(10_000, 1 << 20), st.sampled_from(["cover", "stretch"])
)
def test_a_crop_is_never_larger_than_its_bucket_or_the_bound(width: int, height: int, bound: int, fit: Any) -> None:
    bucket = bucket_of(width, height)
    if not isinstance(bucket, Bucket):
        return
    image = shown(Image.new("RGB", (width, height)), fit, bound)
    assert image.width * image.height <= min(bound, bucket.width * bucket.height)
    if bound >= bucket.width * bucket.height:
        assert image.size == (bucket.width, bucket.height)
    assert image.width / image.height == pytest.approx(bucket.width / bucket.height, rel=0.03)
