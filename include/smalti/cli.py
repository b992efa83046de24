"""The command line: the functions that the DAGs' tasks call, without Airflow.

Every command takes --json; those that name no manifest take --lake (default: $SMALTI_LAKE). SMALTI_CONFIG names the folder
with sources/, datasets/ and engines/ (default: include/ of the checkout). A mistake of the caller's is one line and exit
code 2; a fault of the data or the store is one line and exit code 1.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smalti.accounting import Report
from smalti.cli_io import Json, LakeUri, lake_at, print_data, print_fields
from smalti.cli_optout import optout
from smalti.errors import InputError, MissingObject, SmaltiError
from smalti.jobs.leaving import leave
from smalti.lake import Lake

if TYPE_CHECKING:
    from smalti.settings import SourceRun

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
source = typer.Typer(no_args_is_help=True, help="Sources: from inventory to part.")
release = typer.Typer(no_args_is_help=True, help="Releases: from parts to LATEST.")
lakes = typer.Typer(no_args_is_help=True, help="The lake itself.")
app.add_typer(source, name="source")
app.add_typer(release, name="release")
app.add_typer(lakes, name="lake")
app.add_typer(optout, name="optout")

Captioner = Annotated[str, typer.Option(help="another profile than the source file names")]
GpuHours = Annotated[float | None, typer.Option(help="GPU hours that captioning the batch may cost, over all runs")]
Apply = Annotated[bool, typer.Option("--apply", help="do it; without it, it is only said")]
KeepVersions = Annotated[
    int | None, typer.Option(min=1, help="published versions of a dataset that count, the newest ones; default: all")
]
log = logging.getLogger("smalti")


@source.command("run")
def source_run(
    name: str,
    lake: LakeUri = "",
    batch: Annotated[str, typer.Option(help="the partition; default: today, UTC")] = "",
    first: Annotated[str, typer.Option("--from", help="first stage")] = "stage",
    last: Annotated[str, typer.Option("--until", help="last stage")] = "shard",
    limit: Annotated[int | None, typer.Option(min=1, help="take only the first rows")] = None,
    captioner: Captioner = "",
    max_gpu_hours: GpuHours = None,
    as_json: Json = False,
) -> None:
    """Take a batch of source NAME through the stages, from inventory to part. Stage pilot is a command of its own.

    Stage caption runs the captioner, and then each profile of the source's `extra_captions`.
    """
    from smalti.jobs.registry import SOURCE_STAGES
    from smalti.settings import source_run as settings_of

    _check_budget(max_gpu_hours)
    stages = [stage for stage in SOURCE_STAGES if stage.name != "pilot"]
    names = [stage.name for stage in stages]
    for stage in (first, last):
        if stage not in names:
            raise InputError(f"there is no stage {stage!r}", "--from, --until", f"Use one of: {', '.join(names)}")
    chosen = stages[names.index(first) : names.index(last) + 1]
    if not chosen:
        raise InputError(f"{first} comes after {last}", "--from, --until", f"The order is: {', '.join(names)}")
    settings = settings_of(
        name, batch or datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), limit, captioner=captioner
    )
    settings = settings.model_copy(update={"max_gpu_hours": max_gpu_hours})
    work = [(stage.name, each) for stage in chosen for each in _runs_of(stage.name, settings)]
    _show([_run(stage, lake_at(lake), each) for stage, each in work], as_json)


@source.command("pilot")
def source_pilot(
    name: str,
    batch: Annotated[str, typer.Option(help="the partition")],
    rows: Annotated[int, typer.Option(min=1, max=1000, help="random rows to caption")] = 20,
    captioner: Captioner = "",
    max_gpu_hours: GpuHours = None,
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Caption some random rows of a batch of source NAME and show them on a page. The stages until fingerprint must have run."""
    from smalti.settings import source_run as settings_of

    _check_budget(max_gpu_hours)
    settings = settings_of(name, batch, captioner=captioner).model_copy(
        update={"pilot": rows, "max_gpu_hours": max_gpu_hours}
    )
    _show([_run("pilot", lake_at(lake), settings)], as_json)


@source.command("report")
def source_report(name: str, lake: LakeUri = "", as_json: Json = False) -> None:
    """What source NAME holds: rows by batch, tier, label, drop and reject reason."""
    from smalti.config import load_source
    from smalti.table.index import describe

    print_data(describe(lake_at(lake), load_source(name)), as_json)


@release.command("build")
def release_build(
    dataset: str,
    lake: LakeUri = "",
    version: Annotated[
        str, typer.Option(help="default: the next number; of an ablation: <base>-without-<reasons>")
    ] = "",
    name: Annotated[str, typer.Option(help="of this build: under one name it always works on the same parts")] = "",
    without: Annotated[
        str, typer.Option(help="an ablation: reasons that are not applied, for instance text,nsfw")
    ] = "",
    base: Annotated[str, typer.Option(help="manifest that an ablation differs from; default: LATEST's")] = "",
    as_json: Json = False,
) -> None:
    """Curate DATASET and assemble a version of it; publish nothing.

    With --without it is an ablation: over the parts and settings of its base, no new shards, and never LATEST.
    """
    from smalti.settings import RUN_NAME, reasons_to_lift, release_run

    reasons = reasons_to_lift(without)
    if (base or without) and not reasons:
        raise InputError("an ablation names its reasons", "--base, --without", "Give --without text, for instance")
    if name and not re.fullmatch(RUN_NAME, name):
        raise InputError(f"{name!r} cannot be a build's name", "--name", "Use at most 100 letters, digits, _ . -")
    place = lake_at(lake)
    settings = release_run(dataset, version, build=name or None, without=reasons, base=_uri(base) if base else None)
    curated: Any = _run("curate", place, settings)
    assembled = _run("assemble", place, settings.model_copy(update={"curation": curated.curation}))
    _show([curated, assembled], as_json)


@release.command("publish")
def release_publish(manifest: str, as_json: Json = False) -> None:
    """Verify the release at MANIFEST and let LATEST point to it."""
    place, settings = _release_at(manifest)
    _show([_run("verify", place, settings), _run("publish", place, settings)], as_json)


@release.command("rollback")
def release_rollback(dataset: str, version: str, lake: LakeUri = "", as_json: Json = False) -> None:
    """Let LATEST of DATASET point to an earlier VERSION again."""
    from smalti.release.publish import rollback

    _show([rollback(lake_at(lake), dataset, version)], as_json)


@release.command("diff")
def release_diff(before: str, after: str, as_json: Json = False) -> None:
    """What the release at AFTER serves that the one at BEFORE does not, what it no longer serves, and why."""
    from smalti.release.diff import diff

    print_data(diff(_uri(before), _uri(after)).model_dump(mode="json"), as_json)


@release.command("summary")
def release_summary(manifest: str, as_json: Json = False) -> None:
    """What the release at MANIFEST keeps, and what it leaves out and why."""
    from smalti.release.summary import summary

    print_data(summary(_uri(manifest)).model_dump(mode="json"), as_json)


@app.command()
def verify(manifest: str, as_json: Json = False) -> None:
    """Check every hash and count of a release and read it back through the loader; exit code 1 on any fault.

    Covers manifest, claim, curation, streams, skip files with every reason set, the parts' indices, samples.parquet, shards, and the
    tree where there is one.
    """
    place, settings = _release_at(manifest)
    _show([_run("verify", place, settings)], as_json)


@app.command()
def pull(
    manifest: str,
    directory: Path,
    tiers: Annotated[str, typer.Option(help="for instance 512,1024; default: all")] = "",
    materialize: Annotated[bool, typer.Option(help="write bucket trees without the skipped samples instead")] = False,
    recheck: Annotated[bool, typer.Option(help="hash what is here again, whatever its size and time say")] = False,
    refresh_optouts: Annotated[
        bool,
        typer.Option(help="bring nothing but the opt-outs that are known by now, and which versions were given up"),
    ] = False,
    positions: Annotated[str, typer.Option(help="older opt-out positions to bring, that checkpoints name: 3,5")] = "",
    as_json: Json = False,
) -> None:
    """Copy the release at MANIFEST into DIRECTORY: only what is missing there, every byte checked."""
    from smalti.release.pull import pull as pull_release

    if refresh_optouts and (materialize or tiers or recheck):
        raise InputError(
            "--refresh-optouts brings the opt-outs and nothing else", "smalti pull", "Leave the other options away"
        )
    if positions and not re.fullmatch(r"\d+(,\d+)*", positions):
        raise InputError(f"{positions!r} are no positions", "--positions", "Write numbers with commas: 3,5")
    report = pull_release(
        _uri(manifest),
        directory,
        tiers=tuple(_tier(text) for text in tiers.split(",")) if tiers else None,
        materialize=materialize,
        recheck=recheck,
        refresh_optouts=refresh_optouts,
        positions=[int(each) for each in positions.split(",")] if positions else (),
    )
    _show([report], as_json)


@app.command("trace")
def trace_sample(sample_id: str, lake: LakeUri = "", as_json: Json = False) -> None:
    """The whole story of SAMPLE_ID: deliveries, words, copies, shards, and what every release does with it."""
    from smalti.trace import trace

    print_data(trace(lake_at(lake), sample_id).model_dump(mode="json"), as_json)


@app.command()
def rewrite(
    part: Annotated[str, typer.Argument(help="<source>/<part>")],
    limit: Annotated[float, typer.Option(min=0, max=1, help="share of its samples that all releases leave out")] = 0.10,
    keep_versions: KeepVersions = None,
    apply: Apply = False,
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Say what every live release leaves out of PART, or with --apply write it anew without, if that is more than the limit."""
    settings = {"parts": (part,), "skip_limit": limit, "keep_versions": keep_versions, "apply": apply}
    _show([_maintain("rewrite", lake_at(lake), settings)], as_json)


@app.command()
def merge(
    small: Annotated[int, typer.Option(min=0, help="bytes below which a part is small")] = 1 << 30,
    apply: Apply = False,
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Say which small parts would be merged, or with --apply merge them."""
    _show([_maintain("merge", lake_at(lake), {"small_part_bytes": small, "apply": apply})], as_json)


@app.command()
def gc(
    apply: Apply = False,
    grace: Annotated[
        float, typer.Option(min=0, help="days: what is younger stays, what is marked goes after them")
    ] = 7.0,
    keep_versions: KeepVersions = None,
    lake: LakeUri = "",
    as_json: Json = False,
) -> None:
    """Say what is garbage and why, or with --apply mark it; what was marked a grace ago, and still is garbage, is deleted."""
    settings = {"apply": apply, "grace_days": grace, "keep_versions": keep_versions}
    _show([_maintain("gc", lake_at(lake), settings)], as_json)


@app.command()
def buckets(
    tier: Annotated[int, typer.Option(help="512, 1024, 2048 or 4096; default: all")] = 0, as_json: Json = False
) -> None:
    """The shapes that images are cut to: 13 for each tier."""
    from smalti.images.buckets import TIERS, buckets_of

    shapes = [bucket for each in ((_tier(str(tier)),) if tier else TIERS) for bucket in buckets_of(each)]
    if as_json:
        print(json.dumps([bucket._asdict() for bucket in shapes]))
    else:
        print("tier  ar     width  height")
        for each in shapes:
            print(f"{each.tier:<4}  {each.ar}  {each.width:>5}  {each.height:>6}")


@app.command()
def engines(as_json: Json = False) -> None:
    """The profiles of captioners and classifiers, and the sha256 of each prompt's file as it is now."""
    from smalti.engines.listing import list_engines

    found = list_engines()
    if as_json:
        print(json.dumps(found))
        return
    for each in found:
        print(f"{each.pop('name')} ({each.pop('kind')} {each.pop('role')})")
        print_fields({name: value for name, value in each.items() if value is not None}, "  ")


@lakes.command("init")
def lake_init(lake: LakeUri = "", as_json: Json = False) -> None:
    """Find out whether the lake can be written, create-only, before a run depends on it."""
    from smalti.objects import create_bytes, read_bytes

    place = lake_at(lake)
    marker = place.marker()
    create_bytes(marker, b"smalti lake 1\n")
    if read_bytes(marker) != b"smalti lake 1\n":
        raise InputError("another kind of lake is there", marker, "Name an empty place, or the root of a smalti lake")
    print_data({"lake": place.root, "writable": True}, as_json)


@lakes.command("ls")
def lake_ls(lake: LakeUri = "", as_json: Json = False) -> None:
    """What the lake holds: sources with batches and parts, datasets with versions."""
    from smalti.contents import contents

    print_data(contents(lake_at(lake)), as_json)


def main() -> None:
    """Entry point."""
    leave(run())


def run() -> int:
    """One line and an exit code for every foreseen error."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        app()
    except SystemExit as done:  # typer's way to end
        return int(done.code or 0)
    except SmaltiError as error:
        print(f"smalti: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError | MissingObject) else 1
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _check_budget(max_gpu_hours: float | None) -> None:
    if max_gpu_hours is not None and not max_gpu_hours > 0:
        raise InputError(f"{max_gpu_hours:g} GPU hours are no budget", "--max-gpu-hours", "Give a number above 0")


def _uri(text: str) -> str:
    from smalti.objects import normalise_uri

    return normalise_uri(text)


def _tier(text: str) -> int:
    from smalti.images.buckets import TIERS

    if text.strip() not in map(str, TIERS):
        raise InputError(f"there is no tier {text.strip()!r}", "--tier, --tiers", f"Use {', '.join(map(str, TIERS))}")
    return int(text)


def _release_at(manifest: str) -> tuple[Lake, Any]:
    """The lake a manifest lies in, and the settings that verify and publish take."""
    from smalti.release.manifest import read_manifest
    from smalti.settings import ReleaseRun

    uri = _uri(manifest)
    found = read_manifest(uri)
    dataset = found.settings
    return Lake(uri.rsplit("/", 4)[0]), ReleaseRun.model_validate({"dataset": dataset, "sources": [], "manifest": uri})


def _run(stage: str, lake: Lake, settings: Any) -> Report:
    from smalti.compute import connect_ray
    from smalti.jobs.registry import find_stage

    found = find_stage(stage)
    if found.uses_ray:
        connect_ray()
    log.info("%s ...", stage)
    return found.run(lake, settings)


def _runs_of(stage: str, settings: SourceRun) -> list[SourceRun]:
    """The run; of caption once more for each profile of the source's extra captions, which has columns and a budget of its own."""
    others = settings.extra_captioners if stage == "caption" else ()
    return [
        settings,
        *(settings.model_copy(update={"captioner": each}) for each in others if each.name != settings.captioner.name),
    ]


def _maintain(stage: str, lake: Lake, settings: dict[str, Any]) -> Report:
    from smalti.jobs.spec import validate_settings

    return _run(stage, lake, validate_settings(stage, settings, "--limit, --small, --grace, --keep-versions"))


def _show(reports: list[Any], as_json: bool) -> None:
    data = [report.model_dump(mode="json") for report in reports]
    if as_json:
        print(json.dumps(data if len(data) > 1 else data[0]))
        return
    for report in data:
        print(report.pop("stage"))
        print_fields(report, "  ")


if __name__ == "__main__":
    main()
