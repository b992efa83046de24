"""# A release DAG: from parts to a published version

One DAG `release_<dataset>` for each file in `include/datasets/`.

| Task | What it does | If it is run again |
|---|---|---|
| curate | decides what is left out, and why: copies, text, nsfw, licences, denylists | the same decision, the same object |
| assemble | writes streams, skip files and the manifest of a new version | the version with the same content |
| verify | checks every hash and count, and reads the release through the training loader | checks again |
| approve | only where the dataset file says `approve: true`: waits for a person, who finds the release's page and what changed | asks again |
| publish | moves LATEST to the version, in one swap; with `publish: tree` writes the tree first | nothing to do |

- **Starts** when its sources have new batches: any of them or all of them, as the dataset file says. Or by hand, with a form:
  *version* names the new version (empty: the next number), *without* makes an ablation of the version that is served: the same parts,
  some reasons not applied. It is verified and kept; LATEST does not move.
- **Parts** that arrive while it runs are the next run's: a run, and a run that is cleared, works on those that were there when it
  began.
- **Twice** with the same parts and settings: the same digest, no new version.
- **Fails:** (a rejected version too) LATEST has not moved. Read the task's last lines, mend it, clear the red task.
- **Undo:** `smalti release rollback DATASET VERSION`.
- **Needs** the Airflow connection `smalti_ray` (the cluster's Jobs API), and `SMALTI_LAKE` in Airflow's environment.
"""

from __future__ import annotations

from airflow.sdk import chain, dag

from smalti.config import Dataset
from smalti_airflow.approval import ApproveRelease, release_text
from smalti_airflow.blocks import DEFAULTS, FIRST_DAY, RELEASE_FORM, release_schedule, report_field, stage_task
from smalti_airflow.broken import add_broken_dag, config_files


def add_release_dag(dataset: Dataset) -> None:
    """Make the DAG of one dataset."""

    @dag(
        f"release_{dataset.name}",
        description=dataset.description or None,
        schedule=release_schedule(dataset),
        start_date=FIRST_DAY,
        catchup=False,
        max_active_runs=1,
        params=RELEASE_FORM,
        default_args=DEFAULTS,
        tags=["smalti", "release"],
        doc_md=f"{dataset.description}\n\n{__doc__}",
        user_defined_filters={"release_text": release_text},
    )
    def run() -> None:
        settings = {
            "dataset": dataset.name,
            "version": "{{ params.version or '' }}",
            "build": "{{ dag_run.run_id }}",
            "without": "{{ params.without or '' }}",
        }
        made = {"dataset": dataset.name, "manifest": report_field("assemble", "manifest")}
        chain(
            stage_task("curate", settings),
            stage_task("assemble", {**settings, "curation": report_field("curate", "curation")}),
            stage_task("verify", made),
            *(
                [ApproveRelease(task_id="approve", assemble="assemble", dataset=dataset.name)]
                if dataset.approve
                else []
            ),
            stage_task("publish", made),
        )

    run()


for path, dataset in config_files("datasets", Dataset):
    if isinstance(dataset, Dataset):
        add_release_dag(dataset)
    else:
        add_broken_dag(f"release_{path.stem}", dataset)
