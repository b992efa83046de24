"""The command line: what a person sees, what a program reads, and one line with exit code 2 for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smalti import cli
from smalti.objects import create_bytes
from tests.support.gcs import Gcs

Run = Callable[..., tuple[int, str, str]]

RATIOS = [
    "0.500",
    "0.571",
    "0.600",
    "0.684",
    "0.778",
    "0.882",
    "1.000",
    "1.133",
    "1.286",
    "1.462",
    "1.667",
    "1.750",
    "2.000",
]
SOURCE = "format: files\nuri: {uri}\ntable: captions.csv\ncolumns: {{ key: file, caption: caption }}\n"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line as a shell does: exit code, output, errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["smalti", *map(str, arguments)])
        code = cli.run()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def cats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source `cats` with three pictures and a dataset of it; SMALTI_LAKE names a lake beside it."""
    for folder in ("sources", "datasets", "engines"):
        (tmp_path / "config" / folder).mkdir(parents=True)
    engines = Path(__file__).resolve().parents[1] / "include/engines"
    for path in engines.glob("*.yaml"):
        (tmp_path / "config/engines" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config/sources/cats.yaml").write_text(SOURCE.format(uri=(tmp_path / "cats").as_uri()))
    (tmp_path / "config/datasets/pets.yaml").write_text("sources: [{ name: cats }]\n")
    (tmp_path / "cats").mkdir()
    chance = np.random.default_rng(0)
    for name in "abc":
        cells = Image.fromarray(chance.integers(0, 255, (6, 8, 3), np.uint8))
        cells.resize((640, 480), Image.Resampling.BICUBIC).save(tmp_path / "cats" / f"{name}.jpg")
    table(tmp_path, *(f"{name}.jpg,A cat." for name in "abc"))
    monkeypatch.setenv("SMALTI_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("SMALTI_LAKE", str(tmp_path / "lake"))
    return tmp_path


def table(place: Path, *lines: str, header: str = "file,caption") -> None:
    (place / "cats" / "captions.csv").write_text("\n".join((header, *lines)) + "\n")


def lake_objects(place: Path) -> list[str]:
    return sorted(str(p.relative_to(place)) for p in (place / "lake").rglob("*") if p.is_file())


@pytest.mark.parametrize("tier", [512, 1024, 2048, 4096])
def test_buckets_prints_the_thirteen_shapes(run: Run, tier: int) -> None:
    code, out, _ = run("buckets", "--tier", str(tier))
    rows = [line.split() for line in out.splitlines()[1:]]
    assert code == 0
    assert [row[1] for row in rows] == RATIOS
    if tier == 512:
        shapes = (
            "352x704 384x672 384x640 416x608 448x576 480x544 512x512 544x480 576x448 608x416 640x384 672x384 704x352"
        )
        assert [f"{row[2]}x{row[3]}" for row in rows] == shapes.split()
    assert all(int(row[2]) % (tier // 16) == int(row[3]) % (tier // 16) == 0 for row in rows)


def test_buckets_as_json_are_52(run: Run) -> None:
    assert len(json.loads(run("buckets", "--json")[1])) == 52


def test_a_source_runs_stage_by_stage_and_says_what_it_holds(run: Run, cats: Path) -> None:
    code, out, _ = run("source", "run", "cats", "--batch", "b", "--until", "ingest", "--json")
    assert code == 0
    assert [report["stage"] for report in json.loads(out)] == ["stage", "ingest"]
    code, out, _ = run(
        "source", "run", "cats", "--batch", "b", "--from", "fingerprint", "--until", "fingerprint", "--json"
    )
    assert (code, json.loads(out)["rows_out"]) == (0, 3)
    code, out, _ = run("source", "report", "cats", "--json")
    assert code == 0
    assert "b" in out
    assert run("lake", "ls")[0] == 0


def test_a_pilot_needs_its_stages_and_prints_its_page(run: Run, cats: Path) -> None:
    assert run("source", "run", "cats", "--batch", "b", "--until", "ingest")[0] == 0
    code, _, err = run("source", "pilot", "cats", "--batch", "b")
    assert (code, "3 rows of batch 'b' are not fingerprinted" in err) == (2, True)
    assert run("source", "run", "cats", "--batch", "b", "--from", "fingerprint", "--until", "fingerprint")[0] == 0
    code, out, _ = run("source", "pilot", "cats", "--batch", "b", "--rows", "2")
    assert code == 0
    [page] = [line.split()[1] for line in out.splitlines() if line.startswith("  page:")]
    assert Path(page.removeprefix("file://")).read_text().count("<img ") == 2
    code, out, _ = run("source", "pilot", "cats", "--batch", "b", "--rows", "3", "--json")
    assert (code, json.loads(out)["rows"], json.loads(out)["waiting"]) == (0, 3, 3)


def test_extra_captions_from_the_file_to_the_loader(run: Run, cats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's own captions and those of a second profile, each with words of its own, weighed in a release."""
    (cats / "config/engines/short.yaml").write_text("role: captioner\nkind: rules\nmax_pixels: 20000\n")
    source, dataset = cats / "config/sources/cats.yaml", cats / "config/datasets/pets.yaml"
    table(cats, "a.jpg,A cat.", "b.jpg,Another cat.", "c.jpg,")
    assert run("source", "run", "cats", "--batch", "b")[0] == 0
    dataset.write_text("sources: [{ name: cats }]\ncaptions: { caption: 2, caption_source: 1, caption_short: 1 }\n")
    code, _, err = run("release", "build", "pets")
    assert (code, "cats/00001-" in err) == (2, True)
    assert "has no column caption_short, which `captions` weighs" in err
    assert "run `smalti source run cats --batch b --from caption`" in err
    source.write_text(source.read_text() + "extra_captions: [source, short]\n")
    code, _, err = run("source", "run", "cats", "--batch", "b", "--from", "shard")
    assert (code, "--batch b --captioner short --from caption --until caption`, then shard" in err) == (2, True)
    code, out, _ = run("source", "run", "cats", "--batch", "b", "--from", "caption", "--json")
    reports = json.loads(out)
    assert code == 0
    assert [report["stage"] for report in reports] == ["caption", "caption", "classify", "index", "shard"]
    assert [report["profile"] for report in reports[:2]] == ["rules", "short"]
    assert reports[-1]["extra_captions"] == {"caption_short": 3, "caption_source": 2}
    assert run("release", "build", "pets")[0] == 0
    manifest = cats / "lake/releases/pets/v1/manifest.json"
    assert json.loads(manifest.read_text())["captions"] == {"caption": 2.0, "caption_source": 1.0, "caption_short": 1.0}
    assert run("verify", str(manifest))[0] == 0


def test_a_budget_given_to_a_run_reaches_its_stages(run: Run, cats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(cli, "_run", lambda stage, lake, settings: seen.append((stage, settings)))
    monkeypatch.setattr(cli, "_show", lambda reports, as_json: None)
    assert run("source", "run", "cats", "--batch", "b", "--max-gpu-hours", "0.5")[0] == 0
    assert [stage for stage, _ in seen] == ["stage", "ingest", "fingerprint", "caption", "classify", "index", "shard"]
    assert {settings.max_gpu_hours for _, settings in seen} == {0.5}
    assert {settings.pilot for _, settings in seen} == {None}


def test_engines_are_listed_with_what_pins_them(run: Run, cats: Path) -> None:
    from smalti.config import load_engine
    from smalti.profiles import PromptText

    folder = cats / "config/engines"
    for path in folder.glob("*.yaml"):
        path.unlink()
    (folder / "prompts").mkdir()
    (folder / "prompts/short.yaml").write_text("user: Describe it.\n")
    now = PromptText(user="Describe it.").sha256
    served = 'role: captioner\nkind: openai\nmodel: m\nbase_url: http://h/v1\nrevision: {r}\nprompt: {{name: {p}, sha256: "{s}"}}\n'
    (folder / "good.yaml").write_text(served.format(r="a" * 40, p="short", s=now) + "rate: 2\nprice: 1.5\n")
    (folder / "new.yaml").write_text(served.format(r="b" * 40, p="short", s="0" * 64))
    (folder / "none.yaml").write_text(served.format(r="b" * 40, p="missing", s="0" * 64))
    (folder / "rules.yaml").write_text("role: captioner\nkind: rules\n")
    code, out, _ = run("engines", "--json")
    assert code == 0
    good, new, none, rules = json.loads(out)
    digest = load_engine("good", "captioner", cats / "config").digest
    expected = {"model": "m", "revision": "a" * 12, "prompt": "short", "prompt_sha256": now, "digest": digest}
    assert good == {
        **{"name": "good", "role": "captioner", "kind": "openai", "rate": 2.0, "price": 1.5, "problem": None},
        **expected,
    }
    assert (new["prompt_sha256"], new["digest"]) == (now, None)  # what is to be copied into the profile
    assert "is not the one that profile 'new' pins" in new["problem"]
    assert (none["prompt_sha256"], none["digest"]) == (None, None)
    assert (rules["prompt"], rules["problem"]) == (None, None)
    code, out, _ = run("engines")
    assert code == 0
    assert "good (openai captioner)" in out
    assert f"prompt sha256: {now}" in out
    (folder / "rules.yaml").write_text("role: singer\n")
    assert run("engines")[0] == 2


def test_the_whole_line_without_airflow(run: Run, cats: Path) -> None:
    assert run("lake", "init")[0] == 0
    assert run("source", "run", "cats", "--batch", "b")[0] == 0
    code, out, _ = run("release", "build", "pets", "--json")
    assert code == 0
    manifest = json.loads(out)[1]["manifest"]
    code, out, _ = run("release", "summary", manifest, "--json")
    assert (code, json.loads(out)["kept"]) == (0, 3)
    code, out, _ = run("release", "publish", manifest)
    assert code == 0, out
    assert "LATEST" in out
    code, out, _ = run("pull", manifest, str(cats / "pulled"), "--json")
    assert code == 0
    assert next((cats / "pulled").rglob("*.mds"))
    shard = next((cats / "lake/parts").rglob("*.mds"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    os.chmod(shard, 0o644)
    shard.write_bytes(data)
    code, _, err = run("verify", manifest)
    assert code == 1
    assert shard.name in err


def test_the_whole_line_on_gcs(run: Run, cats: Path, gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source, table, parts and release in buckets; the digest is that of the same line on disk."""
    bucket, lake = gcs.new_bucket(), f"{gcs.new_bucket()}/team/lake"
    for path in sorted((cats / "cats").iterdir()):
        create_bytes(f"{bucket}/cats/{path.name}", path.read_bytes())
    digests = []
    for uri, place in ((f"{bucket}/cats", lake), ((cats / "cats").as_uri(), str(cats / "lake"))):
        (cats / "config/sources/cats.yaml").write_text(SOURCE.format(uri=uri))
        monkeypatch.setenv("SMALTI_LAKE", place)
        assert run("source", "run", "cats", "--batch", "b")[0] == 0
        code, out, err = run("release", "build", "pets", "--json")
        assert code == 0, err
        digests.append(json.loads(out)[1]["digest"])
        code, _, err = run("release", "publish", json.loads(out)[1]["manifest"])
        assert code == 0, err
    assert digests[0] == digests[1]
    code, out, _ = run("lake", "ls", "--lake", lake, "--json")
    assert json.loads(out)["datasets"] == [{"name": "pets", "versions": ["v1"], "latest": "v1"}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("source", "run", "dogs"), "there is no source 'dogs'. Use one of: cats"),
        (("source", "run", "cats", "--from", "bake"), "there is no stage 'bake'"),
        (("source", "run", "cats", "--from", "shard", "--until", "stage"), "shard comes after stage"),
        (("source", "run", "cats", "--max-gpu-hours", "0"), "--max-gpu-hours: 0 GPU hours are no budget"),
        (("source", "run", "cats", "--from", "pilot"), "there is no stage 'pilot'"),
        (("source", "pilot", "cats", "--batch", "a/b"), "--batch: 'a/b' cannot be a batch"),
        (("source", "run", "cats", "--batch", "a/b"), "--batch: 'a/b' cannot be a batch"),
        (("release", "build", "pets", "--version", "a b"), "--version: 'a b' cannot be a version"),
        (("release", "build", "birds"), "there is no dataset 'birds'"),
        (("release", "build", "pets"), "no part is there"),
        (("buckets", "--tier", "500"), "there is no tier '500'. Use 512, 1024, 2048, 4096"),
        (("verify", "/nowhere/manifest.json"), "/nowhere/manifest.json: there is no such object"),
        (("lake", "ls", "--lake", "s3://x/y"), "s3://x/y: this is not a URI that smalti can read"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, cats: Path, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = run(*arguments)
    lines = [line for line in err.splitlines() if line.startswith("smalti: ")]
    assert code == 2
    assert len(lines) == 1
    assert says in lines[0]


def test_a_source_that_is_not_there_or_empty_is_named_and_nothing_is_written(run: Run, cats: Path) -> None:
    (cats / "cats").rename(cats / "gone")
    code, _, err = run("source", "run", "cats", "--batch", "b")
    assert code == 2
    assert "cats" in err.splitlines()[-1]
    (cats / "cats").mkdir()
    code, _, err = run("source", "run", "cats", "--batch", "b")
    assert code == 2
    assert "cats" in err.splitlines()[-1]
    assert lake_objects(cats) == []


@pytest.mark.parametrize(
    ("header", "lines", "says"),
    [
        ("file,caption", ("a.jpg,x", "a.jpg,y"), "a.jpg"),
        ("file,caption,mood", ("a.jpg,x,good",), "mood"),
        ("name,caption", ("a.jpg,x",), "file"),
    ],
)
def test_a_table_that_cannot_be_right_stops_the_batch_before_a_row_is_in(
    run: Run, cats: Path, header: str, lines: tuple[str, ...], says: str
) -> None:
    table(cats, *lines, header=header)
    code, _, err = run("source", "run", "cats", "--batch", "b")
    assert code == 2
    assert says in err.splitlines()[-1]
    assert "captions.csv" in err.splitlines()[-1]
    assert [name for name in lake_objects(cats) if not name.startswith("lake/staging")] == []


def test_json_lines_end_at_line_feeds_only_and_hold_text(run: Run, cats: Path) -> None:
    source = cats / "config/sources/cats.yaml"
    source.write_text(source.read_text().replace("captions.csv", "captions.jsonl"))
    lines = [json.dumps({"file": f"{name}.jpg", "caption": "one\u2028two"}, ensure_ascii=False) for name in "abc"]
    (cats / "cats/captions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (cats / "cats/captions.csv").unlink()
    code, out, _ = run("source", "run", "cats", "--batch", "b", "--until", "ingest", "--json")
    assert (code, json.loads(out)[1]["rows_out"]) == (0, 3)
    (cats / "cats/captions.jsonl").write_text('{"file": "a.jpg", "caption": "x\\ud800"}')
    code, _, err = run("source", "run", "cats", "--batch", "c", "--until", "ingest")
    assert code == 2
    assert "'caption' holds what is not text" in err.splitlines()[-1]


def test_a_denylist_is_of_ids_and_says_which_it_does_not_know(run: Run, cats: Path) -> None:
    never = cats / "never.txt"
    dataset = cats / "config/datasets/pets.yaml"
    dataset.write_text(f"sources: [{{ name: cats }}]\ndrops: {{ denylist: ['{never.as_uri()}'] }}\n")
    assert run("source", "run", "cats", "--batch", "b")[0] == 0
    never.write_text("a.jpg\n")
    code, _, err = run("release", "build", "pets")
    assert code == 2
    assert "'a.jpg' is not a sample id" in err.splitlines()[-1]
    never.write_text("cats/a.jpg\ncats/zzz\n")
    code, out, _ = run("release", "build", "pets", "--json")
    assert (code, json.loads(out)[0]["dropped"]) == (0, {"denylist": 1})
    assert "1 ids are of no sample in these parts, the first is 'cats/zzz'" in json.loads(out)[0]["warnings"][0]


def test_a_mistake_is_told_by_the_exit_code_of_the_process(cats: Path) -> None:
    """As a shell sees it: nothing that still runs in the background may turn 2 into an abort."""
    table(cats, "a.jpg,x", "a.jpg,y")
    command = [sys.executable, "-m", "smalti.cli", "source", "run", "cats", "--batch", "b"]
    assert [subprocess.run(command, capture_output=True, check=False).returncode for _ in range(3)] == [2, 2, 2]


def test_an_object_that_cannot_be_read_is_rejected_and_the_others_go_on(run: Run, cats: Path) -> None:
    (cats / "cats/b.jpg").write_bytes(b"<html>404</html>")
    code, out, _ = run("source", "run", "cats", "--batch", "b", "--until", "ingest", "--json")
    assert code == 0
    assert json.loads(out)[1]["dropped"] == {"not_an_image": 1}


def test_a_lake_that_cannot_be_written_is_one_line(run: Run, cats: Path) -> None:
    (cats / "lake").write_text("a file")
    code, _, err = run("source", "run", "cats", "--batch", "b")
    assert code == 1
    assert str(cats / "lake") in err.splitlines()[-1]
    code, _, err = run("lake", "init")
    assert code == 1


def test_no_lake_is_named(run: Run, cats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMALTI_LAKE")
    code, _, err = run("lake", "ls")
    assert code == 2
    assert "SMALTI_LAKE: no lake is named" in err


def test_maintenance_says_what_it_would_do_and_does_it_when_told(run: Run, cats: Path) -> None:
    from smalti.lake import Lake
    from smalti.shards.part import committed_parts

    for batch in ("a", "b"):
        table(cats, *(f"{name}.jpg,A cat." for name in ("abc" if batch == "a" else "bc")))
        assert run("source", "run", "cats", "--batch", batch)[0] == 0
        for name in "bc":
            picture = cats / "cats" / f"{name}.jpg"
            Image.open(picture).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(picture)
    lake = Lake.at(str(cats / "lake"))
    before = lake_objects(cats)
    code, out, _ = run("merge", "--json")
    assert (code, json.loads(out)["dry_run"], lake_objects(cats)) == (0, True, before)
    code, out, _ = run("merge", "--apply", "--json")
    assert (code, json.loads(out)["dropped"]) == (0, {"superseded": 2})
    [part] = committed_parts(lake, "cats")
    code, out, _ = run("rewrite", f"cats/{part.name}")
    assert (code, "no live release uses it" in out) == (0, True)
    for flags in ((), ("--apply",)):  # as merge and gc: first it is only said
        code, out, _ = run("rewrite", f"cats/{part.name}", *flags, "--json")
        assert (code, json.loads(out)["dry_run"]) == (0, not flags)
    code, _, err = run("rewrite", "cats/00009-0123456789ab")
    assert (code, err) == (
        2,
        "smalti: part cats/00009-0123456789ab: there is no such part. Name <source>/<part> as `parts` holds it.\n",
    )
    code, out, _ = run("gc", "--grace", "0")
    assert (code, "would be marked: part parts/cats/00001-" in out, ": merged, " in out) == (0, True, True)
    assert not (cats / "lake" / "gc").exists()
    assert run("gc", "--grace", "0", "--apply")[0] == 0
    code, out, _ = run("gc", "--grace", "0", "--apply")
    assert (code, "deleted: part parts/cats/00001-" in out) == (0, True)
    assert {path.split("/")[3] for path in lake_objects(cats) if path.startswith("lake/parts/")} == {
        part.name,
        "replacements",
    }
    assert run("gc", "--grace", "-1")[0] == 2
    assert run("rewrite", "x/y", "--limit", "1.5")[0] == 2
