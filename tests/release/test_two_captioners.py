"""One batch, described by two captioners: two releases of the same samples that differ in their captions and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from smalti.config import load_engine
from smalti.lake import Lake
from smalti.objects import list_objects, read_bytes
from smalti.release.materialize import materialize
from smalti.settings import ReleaseRun, SourceRun
from smalti.shards import mds
from smalti.shards.stage import shard
from smalti.table import caption as caption_module
from smalti.table import classify as classify_module
from tests.pipeline.conftest import Told
from tests.pipeline.conftest import made as made
from tests.pipeline.conftest import run as run
from tests.release.conftest import build
from tests.support.pictures import release_run


def described(lake: Lake, run: SourceRun, name: str, monkeypatch: pytest.MonkeyPatch) -> SourceRun:
    """The batch through caption, classify and shard with a captioner of this name."""
    captioner = run.captioner.model_copy(update={"name": name})
    classifier = load_engine("qwen3-8b", "classifier").model_copy(update={"gpus": 0})
    both = run.model_copy(update={"captioner": captioner, "classifier": classifier})
    told, labels = Told(lambda question, _: f"{name} sees {question.id}."), Told(lambda *_: "visual")
    captions = dataclasses.replace(caption_module.caption_work(both), opener=told.open)
    labelling = dataclasses.replace(classify_module.classify_work(both), opener=labels.open)
    with monkeypatch.context() as patch:
        patch.setattr(caption_module, "caption_work", lambda _: captions)
        patch.setattr(classify_module, "classify_work", lambda _: labelling)
        caption_module.caption(lake, both)
        classify_module.classify(lake, both)
    shard(lake, both)
    return both


def served(lake: Lake, both: SourceRun, captioner: str) -> dict[str, dict[str, Any]]:
    """id -> sample of the release of a dataset that accepts this captioner alone."""
    dataset = release_run("made", name=f"of-{captioner}", drops={"captioners": (captioner,)})
    manifest = build(lake, ReleaseRun(dataset=dataset.dataset, sources=(both.source,))).manifest
    tree = f"{lake.root}/trees/{captioner}"
    materialize(manifest, tree)
    found: dict[str, dict[str, Any]] = {}
    for each in list_objects(tree):
        if each.uri.endswith(".mds"):
            columns, raw = mds.read_shard(read_bytes(each.uri))
            for sample in raw:
                decoded = dict(mds.decode_sample(columns, sample))
                assert str(decoded["id"]) not in found
                found[str(decoded["id"])] = decoded
    return found


def test_releases_of_two_captioners_differ_in_captions_only(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        both = described(lake, run, name, monkeypatch)
    one, two = served(lake, both, "one"), served(lake, both, "two")
    assert one.keys() == two.keys() == {f"made/p{number}.jpg" for number in range(8)}
    different = {field for sample in one for field in one[sample] if one[sample][field] != two[sample][field]}
    assert different == {"caption"}
    assert {one[sample]["caption"] for sample in one} == {f"one sees {sample}." for sample in one}
    assert {two[sample]["caption"] for sample in two} == {f"two sees {sample}." for sample in two}
