"""# The maintenance DAG: parts rewritten, merged and collected

One DAG `maintenance` for the whole lake. It changes no release: what a version names stays as long as the version counts.

| Task | What it does | If it is run again |
|---|---|---|
| plan | says what the others would do, with sizes; writes nothing | says it again |
| approve | waits for a person, 14 days at most; skipped unless the form asks for it | asks again |
| rewrite | writes parts anew without what every live release leaves out, if that is more than *skip limit* | nothing to do |
| merge | packs the small parts of each source into one, shards full again | nothing to do |
| gc | deletes what an earlier run marked a *grace* ago and still nobody needs; then marks what is garbage now | nothing to do |

- **Starts** every Sunday at 02:00 UTC, and then does it (on a new Airflow: from the next Sunday on); or by hand, with a form. A run by hand only plans (*dry run*) unless told otherwise.
- **What may go:** writes that were never finished, parts that were replaced or superseded and that no version uses, versions that
  nobody published or that are older than the newest *keep versions*, skip files and curations that no manifest names. Nothing goes
  that is younger than the grace, and nothing in the run that finds it: it is marked, and deleted by a run at least a grace later.
- **Danger:** *keep versions* ends the life of published versions. They cannot be rolled back to from the moment they are given up, and
  training runs that read them have one grace to end. A version that should stay although it is never published must be published once.
- **A release that is assembled meanwhile** loses nothing: it is found by its claim, or its task fails and says to run it again.
- **Twice, or killed:** every step is create-only, a deletion is decided in an object first. Clear the red task, or wait for next week.
- **Fails:** a damaged manifest stops it, because then nobody can say what is needed. Restore it, or look at `smalti verify MANIFEST`.
- **What went** is listed object by object in `gc/<collection>/deleting.json`. There is no undo, but a source's table keeps its rows.
- **Needs** the Airflow connection `smalti_ray` (the cluster's Jobs API), `SMALTI_LAKE` in Airflow's environment, and for gc the right to
  delete objects (`storage.objects.delete`), which no other task needs.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, chain, dag

from smalti_airflow.approval import ApproveMaintenance, maintenance_text
from smalti_airflow.blocks import DEFAULTS, MAINTENANCE_FORM, stage_task

APPLY = "{{ '' if params.dry_run and dag_run.run_type != 'scheduled' else 'true' }}"
"""A form is for people: the weekly run has nobody to fill it in, and does what it finds."""

SETTINGS = {
    "skip_limit": "{{ params.skip_limit }}",
    "small_part_bytes": "{{ params.small_part_mb * 1000000 }}",
    "grace_days": "{{ params.grace_days }}",
    "keep_versions": "{{ params.keep_versions or '' }}",
}


@dag(
    "maintenance",
    description="Rewrite and merge parts, collect garbage",
    schedule=CronTriggerTimetable("0 2 * * 0", timezone="UTC", run_immediately=timedelta(hours=1)),
    start_date=None,  # with a day in the past Airflow runs it, and for last Sunday, as soon as it is first seen
    catchup=False,
    max_active_runs=1,
    params=MAINTENANCE_FORM,
    default_args=DEFAULTS,
    tags=["smalti", "maintenance"],
    doc_md=__doc__,
    user_defined_filters={"maintenance_text": maintenance_text},
)
def maintenance() -> None:
    doing = {**SETTINGS, "apply": APPLY}
    chain(
        stage_task("plan", SETTINGS),
        ApproveMaintenance(
            task_id="approve", plan="plan", asked="{{ 'yes' if params.approve and not params.dry_run else '' }}"
        ),
        *(
            stage_task(name, doing, only_with="apply", trigger_rule="none_failed")
            for name in ("rewrite", "merge", "gc")
        ),
    )


maintenance()
