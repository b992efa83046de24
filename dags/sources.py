"""# A source DAG: from files to a committed part

One DAG `source_<name>` for each file in `include/sources/`.

| Task | What it does | If it is run again |
|---|---|---|
| stage | writes down which objects the source holds, pinned by their generation | the same inventory |
| ingest | reads them into the source's table; what cannot be read is kept with a reason | rows that are there stay |
| fingerprint | perceptual hash, tier, aspect ratio | only rows without one |
| pilot | captions some random rows and shows them on a page; skipped where the form's *pilot* is empty | the same rows, asked once |
| approve_pilot | waits for a person, 14 days at most; skipped without a pilot | asks again |
| caption, classify | with the profiles that the source file names | only rows without one |
| caption_PROFILE | once for each profile of the source's `extra_captions` | only rows without one |
| index | search indices and compaction | brings them up to date |
| shard | writes MDS shards and commits the part | the same bytes, the same part |
| done | tells the release DAGs | tells them again |

- **Starts** by the source file's cron line, on the partition (UTC) that has just ended; without one, when a person starts it.
  The form's *limit* takes only the first rows, to try things out. A run without a partition is a batch named after its run id.
- **Pilot.** With a number in the form's *pilot* the run captions so many random rows, and waits; no other run of the source starts
  meanwhile. *Required Actions* shows where the page is and what the batch will take. *Approve*: the other rows are captioned, none is
  asked about twice. *Reject*: the run fails; save the better profile or prompt under a new name, name it in the source's file, start
  a run of the same batch.
- **Captioner.** With a profile's name in the form's *captioner* the batch is captioned by it as well, in columns of its own, and
  gets a part of its own; a dataset says by `drops.captioners` whose words it takes.
- **Extra captions.** Their profiles caption one after another, each as a job with a key and a budget of its own, before classify: engines
  of two jobs would wait for each other's GPUs.
- **Budget.** *GPU hours at most* bounds what captioning the batch costs, over all its runs, its pilots included. When it is used up
  caption fails once, with an alert, and what was answered is kept. A cleared task has its run's form again, so do not clear it:
  start a new run with the same partition key and a larger number, and the stages that are done pass quickly. For the batch of a run
  without a partition: `smalti source run NAME --batch BATCH --from caption --max-gpu-hours N` where the engines can run.
- **Each task** but approve_pilot and done is a Ray job. It waits without a worker, takes over its own job after a retry, and stops it when it is killed.
- **Fails:** the task's last lines say what and where. Mend it and clear the red task: what was done stays done.
- **Marked failed or cleared while it runs:** its job is stopped; a cleared task starts the next attempt.
- **Nothing is published here.** A part that no release names is served to nobody.
- **Needs** the Airflow connection `smalti_ray` (the cluster's Jobs API), `SMALTI_LAKE` in Airflow's environment, and the
  connection that the captioner's or classifier's profile names as `key.connection`, if it names one.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import chain, dag, task

from smalti.config import Source
from smalti.profiles import SOURCE
from smalti_airflow.approval import ApprovePilot, pilot_text
from smalti_airflow.assets import source_asset
from smalti_airflow.blocks import (
    BATCH,
    DEFAULTS,
    SOURCE_FORM,
    batch_name,
    source_schedule,
    source_start,
    stage_task,
)
from smalti_airflow.broken import add_broken_dag, config_files


def add_source_dag(source: Source) -> None:
    """Make the DAG of one source."""
    asset = source_asset(source.name)

    @task(outlets=[asset], multiple_outputs=False)
    def done(batch: str, ti: Any = None, dag_run: Any = None, outlet_events: Any = None) -> dict[str, Any]:
        """Tell the release DAGs which part is new, and what became of the batch's rows."""
        reports = {name: ti.xcom_pull(task_ids=name) for name in ("ingest", "fingerprint", "shard")}
        counts = {
            name: {key: report[key] for key in ("rows_in", "rows_out", "dropped")} for name, report in reports.items()
        }
        news = {"part": reports["shard"]["part"], "batch": batch, "counts": counts}
        outlet_events[asset].extra = news
        if dag_run.partition_key is None:  # a release that is scheduled by partitions never sees an event without one
            outlet_events[asset].add_partitions(batch)
        return news

    @dag(
        f"source_{source.name}",
        description=source.description or None,
        schedule=source_schedule(source),
        start_date=source_start(source),
        catchup=False,
        max_active_runs=1,
        params=SOURCE_FORM,
        default_args=DEFAULTS,
        tags=["smalti", "source"],
        doc_md=f"{source.description}\n\n{__doc__}",
        user_defined_filters={"batch_name": batch_name, "pilot_text": pilot_text},
    )
    def run() -> None:
        settings = {
            "source": source.name,
            "batch": BATCH,
            "limit": "{{ params.limit or '' }}",
            "captioner": "{{ params.captioner or '' }}",
        }
        budget = {"max_gpu_hours": "{{ params.max_gpu_hours or '' }}"}
        chain(
            *(stage_task(name, settings) for name in ("stage", "ingest", "fingerprint")),
            stage_task("pilot", settings | budget | {"pilot": "{{ params.pilot or '' }}"}, only_with="pilot"),
            ApprovePilot(task_id="approve_pilot", pilot="pilot", source=source.name, batch=BATCH),
            stage_task("caption", settings | budget, trigger_rule="none_failed"),
            *(
                stage_task("caption", settings | budget | {"captioner": profile}, task_id=f"caption_{profile}")
                for profile in source.extra_captions
                if profile != SOURCE
            ),
            stage_task("classify", settings),
            [stage_task("index", settings), stage_task("shard", settings)],
            done(BATCH),
        )

    run()


for path, source in config_files("sources", Source):
    if isinstance(source, Source):
        add_source_dag(source)
    else:
        add_broken_dag(f"source_{path.stem}", source)
