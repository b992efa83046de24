"""Run one stage as its spec says: `python -m smalti.jobs STAGE --spec URI [--attempt N]`.

Prints what it does, then ``report: URI``. A mistake of the user's is one line and exit code 2; another error of ours is one
line and exit code 1; anything unforeseen is a traceback and exit code 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from smalti.compute import connect_ray
from smalti.errors import InputError, SmaltiError
from smalti.jobs.leaving import leave
from smalti.jobs.registry import find_stage
from smalti.jobs.spec import next_attempt, read_spec, report_uri
from smalti.lake import Lake
from smalti.objects import create_same

log = logging.getLogger("smalti")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m smalti.jobs", description="Run one stage of the line.")
    parser.add_argument("stage")
    parser.add_argument("--spec", required=True, help="URI of the job's spec.json")
    parser.add_argument("--attempt", type=int, default=None, help="which report to write; default: the next free one")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING, stream=sys.stdout)
    log.setLevel(logging.INFO)
    try:
        print(f"report: {run_job(options.stage, options.spec, options.attempt)}", flush=True)
    except SmaltiError as error:
        print(f"smalti: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, InputError) else 1
    return 0


def run_job(stage_name: str, spec_uri: str, attempt: int | None = None) -> str:
    """Run the stage that a spec describes and write its report. Returns the report's URI."""
    stage = find_stage(stage_name)
    spec = read_spec(spec_uri)
    if spec.stage != stage.name:
        raise InputError(f"the spec is for stage {spec.stage!r}", spec_uri, f"Run `python -m smalti.jobs {spec.stage}`")
    settings = spec.typed_settings()
    attempt = attempt or next_attempt(spec)
    if stage.uses_ray:
        connect_ray()
    log.info("%s: %s %s %s, attempt %d", stage.name, spec.dag, spec.run, spec.task, attempt)
    started = time.monotonic()
    report = stage.run(Lake.at(spec.lake), settings)
    report = report.model_copy(update={"seconds": round(time.monotonic() - started, 3)})
    for warning in report.warnings:
        log.warning("%s: %s", stage.name, warning)
    uri = report_uri(spec, attempt)
    create_same(uri, (report.model_dump_json(indent=1) + "\n").encode())
    return uri


if __name__ == "__main__":
    leave(main())
