"""A lake that went through the whole line, with every kind of object that can show a sample; made by the stages themselves."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import pyarrow as pa
import pytest

from smalti import objects
from smalti.config import Columns
from smalti.curation.curate import curate
from smalti.engines.base import CaptionInput, CaptionResult, LabelResult
from smalti.lake import Lake
from smalti.optouts.apply import apply
from smalti.optouts.keys import key_of
from smalti.optouts.preview import preview
from smalti.optouts.proof import prove
from smalti.optouts.request import Action, Answer, Request, ordered, request_id, submit, write_answer
from smalti.optouts.salt import salt_of
from smalti.reasons import Label
from smalti.release import verify as verify_module
from smalti.release.assemble import assemble
from smalti.release.publish import publish
from smalti.release.verify import verify
from smalti.settings import OptoutRun, ReleaseRun, SourceRun
from smalti.shards.stage import shard
from smalti.sources.inventory import parquet_bytes, stage
from smalti.table import caption as caption_module
from smalti.table import classify as classify_module
from smalti.table.caption import caption, caption_target
from smalti.table.classify import classify
from smalti.table.fingerprint import fingerprint
from smalti.table.index import index
from smalti.table.ingest import ingest
from smalti.table.pilot import pilot
from smalti.table.store import open_table
from tests.optouts.lakes import NOW
from tests.release.test_verify import kept_ids
from tests.sources.making import CAPTIONER, CLASSIFIER, Made, as_parquet
from tests.support.pictures import picture, release_run, stored

ORIGINAL = "made/p1.jpg"
COPIES = ("other/copy 1", "other/copy&2")
ERASED = {ORIGINAL, *COPIES}
"""What a request about the first one reaches."""


class Says:
    """A captioner and a classifier without a model."""

    def caption(self, items: list[CaptionInput]) -> list[CaptionResult]:
        return [CaptionResult(f"a picture that is called {item.id}", "ok") for item in items]

    def classify(self, captions: Sequence[str]) -> list[LabelResult]:
        return [LabelResult(Label.VISUAL, 0.9) for _ in captions]


@functools.cache
def pictures() -> dict[str, bytes]:
    """id -> bytes of what is delivered: three of one picture at different sizes, some others, one that is too small."""
    copies = {COPIES[0]: stored(picture(1, 600, 600)), COPIES[1]: stored(picture(1, 560, 560), "PNG")}
    own = {f"other/own {n}": stored(picture(30 + n)) for n in range(2)}
    return (
        {f"made/p{n}.jpg": stored(picture(n)) for n in range(5)}
        | copies
        | own
        | {"made/small.jpg": stored(picture(9, 90, 90))}
    )


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model and no training loader: both have tests of their own."""
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    monkeypatch.setattr(caption_module, "_captioner", lambda _: Says())
    monkeypatch.setattr(classify_module, "_classifier", lambda _: Says())


def make(root: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> tuple[SourceRun, ...]:
    """Fill a lake from sources below `root`. Returns the sources' runs."""
    patch(monkeypatch)
    runs = sources(root)
    for run in runs:
        source(lake, run)
    answered(lake, runs[0])
    build(lake)
    reports(lake)
    return runs


def sources(root: str) -> tuple[SourceRun, SourceRun]:
    """One of image files with a table, one of parquet files with the pictures inside."""
    made = Made(f"{root}/made")
    named = {name.partition("/")[2]: data for name, data in pictures().items() if name.startswith("made/")}
    for name, data in named.items():
        made.put(f"images/{name}", data)
    made.table([{"file": name, "caption": f"the source says {name}", "url": f"https://a.org/{name}"} for name in named])
    made.config["columns"] = Columns(key="file", caption="caption", url="url")
    rows = [
        {"key": name.partition("/")[2], "image": data} for name, data in pictures().items() if name.startswith("other/")
    ]
    other = Made(f"{root}/other", name="other")
    other.put("rows/0.parquet", as_parquet(rows))
    columns = Columns(key="key", image="image")
    held = other.run(format="parquet", images="", uri=f"{root}/other/rows", columns=columns)
    return made.run().model_copy(update={"pilot": 10}), held


def source(lake: Lake, run: SourceRun) -> None:
    """Every stage of a source."""
    for each in (stage, ingest, fingerprint, pilot, caption, classify, index, shard):
        each(lake, run)


def answered(lake: Lake, run: SourceRun) -> None:
    """Checkpoints of an engine, as the run that was killed before they were folded into the table has left them."""
    target = caption_target(run)
    table = open_table(lake.table("made"))
    rows = table.to_table(columns=["id", "sha256"], filter="drop IS NULL").sort_by("id")
    columns = {"id": rows["id"], "sha256": rows["sha256"]}
    for field in target.outputs:
        columns[field.name] = pa.array([f"{field.name} of {name}" for name in rows["id"].to_pylist()])
    for name, some in {"all": slice(None), "one": slice(1, 2)}.items():
        data = parquet_bytes(pa.table({key: column.to_pylist()[some] for key, column in columns.items()}), {})
        objects.create_same(lake.answer("made", "caption", "vlm", "0" * 64, "b1", name), data)


def dataset(name: str, **drops: object) -> ReleaseRun:
    run = release_run("made", "other", name=name, publish="tree", drops={"duplicates": {"distance": 2, **drops}})
    return run.model_copy(update={"engines": (CAPTIONER, CLASSIFIER)})


def build(lake: Lake, *, quarantine: bool = True) -> None:
    """Versions of two datasets with a tree, published: one keeps one of the three copies, the other sets them aside for a person."""
    for run in (dataset("plain"), dataset("set", cluster_limit=2)):
        curated = curate(lake, run)
        assert bool(curated.quarantine) == (quarantine and run.dataset.name == "set")
        found = assemble(lake, run.model_copy(update={"curation": curated.curation}))
        there = run.model_copy(update={"manifest": found.manifest})
        verify(lake, there)
        publish(lake, there)


def reports(lake: Lake) -> None:
    """What runs have said, with ids in it, plain and escaped."""
    at = functools.partial(lake.run_object, "source_made", "2026", "ingest")
    told = {"stage": "ingest", "warnings": [f"{ORIGINAL} is odd", "all is well"], "rows": 3, "per_row": {COPIES[1]: 2}}
    objects.create_bytes(at("report.json"), json.dumps(told).encode())
    objects.create_bytes(at("driver.log"), f"00:00 made/p2.jpg is fine\n00:01 {ORIGINAL}: odd\n00:02 done\n".encode())
    objects.create_bytes(at("page.html"), f"<p>{COPIES[1].replace('&', '&amp;')}</p>".encode())
    objects.create_bytes(lake.collection("old", "mark.json"), json.dumps({"doomed": [f"gs://x/{ORIGINAL}"]}).encode())
    rejected = [{"row": 3, "reason": "no such kind", "value": ORIGINAL}, {"row": 4, "reason": "empty", "value": ""}]
    lines = "".join(json.dumps(each) + "\n" for each in rejected)
    objects.create_bytes(lake.optout_rejected("f" * 16), lines.encode())
    killed = objects.local_path(
        lake.shard("made", "00009-000000000009", 512, "1.000", 0).replace("shard.0", ".attempt-shard.0")
    )
    if killed is not None:  # on GCS an upload that was not completed is no object
        killed.parent.mkdir(parents=True)
        killed.write_bytes(b"begun " + pictures()[ORIGINAL])


def ask(lake: Lake, action: Action = Action.ERASE, submission: str = "test") -> OptoutRun:
    """Handed in, looked at, confirmed."""
    keys = tuple(ordered([key_of("id", ORIGINAL)]))
    name = request_id(action, "ref-1", keys, None, submission, salt_of(lake))
    submit(lake, Request(id=name, action=action, reference="ref-1", submission=submission, submitted=NOW, keys=keys))
    run = OptoutRun(request=name, grace_days=0)
    preview(lake, run)
    return run


def exclude(lake: Lake, run: OptoutRun) -> None:
    """Applied and proved: the first receipt."""
    write_answer(lake, Answer(request=run.request, apply=True, by="me", answered=NOW, preview_sha256=""))
    apply(lake, run)
    prove(lake, run.request, read=lambda _: ())
