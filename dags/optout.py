"""# Opt-outs: asked today, gone from every release

`optout` takes one request through; `optout_inbox` looks every five minutes for files that people dropped, and starts `optout` for each, and for what the command line handed in;
`optout_watch` counts requests by state every hour, writes their page, and fails while one is late (24 hours; 30 days until bytes are erased) or will be
within a quarter of that time. It starts `optout` again for each that waits for nothing but time: nobody has to be asked, and its own run should have gone on an hour ago (two days, where parts
are written anew or bytes removed).

| Task | What it does | If it is run again |
|---|---|---|
| receive | reads the keys and puts the request into the ledger, rows that are no keys into `optouts/rejected` | finds the request there |
| preview | matches it against every part and table, copies included, and writes a page; applies nothing | the first preview counts |
| confirm | waits for a person, 14 days at most; skipped where nobody needs to be asked, or one has confirmed | asks again |
| apply | writes the matches into the ledger and a new snapshot: from now on no training run that starts is served them; live versions whose trees hold any get a successor | nothing to do |
| prove_again | (`optout_watch`) starts `optout` for what waits for nothing but time | once an hour; once a day from *erase* on |
| look | (`optout_watch`) compares what came with what is in force, and looks whether anything that was erased and removed is in the lake again | looks again |
| erase_again | (`optout_watch`) starts `optout` for what is: it is erased and removed once more, after the grace, and has a further receipt (`erase-2`) | once a day |
| take_in | (`optout_inbox`) puts what was dropped into the ledger and removes it from the inbox; what cannot be read goes to `optouts/rejected` | finds the rest |
| forget | (`optout_watch`) removes rejected rows, previews and keys that nothing is compared with, 90 days after a request's end (`include/optouts.yaml`) | finds the rest |
| watch | (`optout_watch`) metrics `smalti.optouts.<state>` and `.overdue`, a page below `runs/`, an alert | says it again |
| prove | reads affected streams of every live release back through the training loader, of large ones 16 shards a tier; writes the receipt | the first receipt counts |
| erase | (`erase` only) writes affected parts anew with the same shards, puts successors in the place of live versions that use them, and gives up the old ones | goes on |
| grace | (`erase` only) waits the days of *Grace*, for training runs that read the old parts; they can resume on the successor | waits for what is left |
| remove | (`erase` only) removes the bytes and the ids from tables, parts, versions, checkpoints, pages, logs and former generations; scans every object of the lake; writes the second receipt | goes on |

- **Starts** by hand with a form, through Airflow's REST API with the same fields as `conf`, or from a file in
  `optouts/inbox/<action>/<reference>/`. Several may run at once.
- **Action** `query`: what is held; nothing is applied. `exclude`: never served again. `erase`: excluded now, its bytes removed after the grace; `optout_watch` fails if that takes more than 30 days.
  `withdraw`: takes an earlier request back, named by its id.
- **Keys**, one a line: `id demo/cat.jpg`, `url https://…`, `owner NAME`, `sha256 HEX`, `domain example.org`, `prefix https://example.org/me`;
  or the URI of a csv, jsonl, parquet or text file, or of a picture. What is typed into the form stays in Airflow's database with the
  run, like every form: name a file where that must not be, or delete the run.
- **Pages** are at `/smalti/optouts/<request>/preview.html`, and `exclude.html`, `erase.html`, `query.html` or `withdraw.html` when there is a receipt. Who opens one is recorded in the ledger.
- **Copies** of what a key names go too, in every source, found by their bytes or by two fingerprints that agree. Look-alikes stay, and the
  page shows them: hand those that must go in by id.
- **A person confirms** more matches than *ask above*, whatever comes from a domain or a prefix, and every withdrawal.
- **Danger:** a wide key takes everything it matches out of every release, until it is withdrawn; a release that is built meanwhile is
  built without it.
- **Twice, or killed:** the same run is the same request; the ledger only grows, by objects that are created once. Clear the red task.
- **Fails at apply, `waits for a person: it matches … now`:** parts have come since it was looked at, and it would take more than was confirmed and more
  than *ask above*. It has a second preview: clear the run from `preview` on, and somebody is asked again.
- **Fails at prove:** something that was asked for is still served. The message names it; the receipt is not written.
- **Ends green with a warning at prove:** a tree of a live version still holds something. `optout_watch` runs this again, or you do, with the id in *request*.
- **Ends green with a warning at remove:** a file that nobody committed holds something, for 7 days at most. `optout_watch` runs this again.
- **Fails at remove:** something that counts still uses an old part, or a place cannot be cleaned: the message names it. Clear `erase` and what follows it; `optout_watch` starts it again the next day.
- **Needs** the Airflow connection `smalti_ray` (the cluster's Jobs API), `SMALTI_LAKE` in Airflow's environment, and for the inbox the right
  to delete objects.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import CronTriggerTimetable, chain, dag, task

from smalti_airflow.approval import ApproveOptout, optout_text
from smalti_airflow.blocks import DEFAULTS, FIRST_DAY, OPTOUT_FORM, days_after, report_field, stage_task

REQUEST = report_field("receive", "request")
APPLIED = "{% set it = ti.xcom_pull(task_ids='receive') %}{{ '' if it['action'] == 'query' else it['request'] }}"
ERASED = "{% set it = ti.xcom_pull(task_ids='receive') %}{{ it['request'] if it['action'] == 'erase' else '' }}"
OVER = (
    "{% set it = ti.xcom_pull(task_ids='erase') %}"
    "{{ it['erased'] | days_after([params.grace_days, it.get('grace_days', 0)] | max) }}"
)
CONFIRMED = "{{ ((ti.xcom_pull(task_ids='confirm') or {}).get('responded_by_user') or {}).get('name') or '' }}"

SEEN = "{{ (ti.xcom_pull(task_ids='preview') or {}).get('digest') or '' }}"


@dag(
    "optout",
    description="Take a request to opt out from its keys to its receipt",
    schedule=None,
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1000,  # one that waits for a person keeps nobody else waiting
    max_active_tasks=16,
    params=OPTOUT_FORM,
    default_args=DEFAULTS,
    tags=["smalti", "optout"],
    doc_md=__doc__,
    user_defined_filters={"optout_text": optout_text, "days_after": days_after},
)
def optout() -> None:
    @task(multiple_outputs=False)
    def receive(params: Any = None, dag_run: Any = None) -> dict[str, Any]:
        """Put the request into the ledger; what later tasks are told is its id."""
        from smalti_airflow.optouts import hand_in_form  # not at every parse

        return hand_in_form(params, dag_run)

    chain(
        receive(),
        stage_task("optout_preview", {"request": REQUEST}, task_id="preview"),
        ApproveOptout(task_id="confirm", preview="preview"),
        stage_task(
            "optout_apply",
            {"request": APPLIED, "confirmed_by": CONFIRMED, "seen": SEEN},
            task_id="apply",
            only_with="request",
            trigger_rule="none_failed",
        ),
        stage_task("optout_prove", {"request": REQUEST}, task_id="prove", trigger_rule="none_failed"),
        stage_task("optout_erase", {"request": ERASED}, task_id="erase", only_with="request"),
        DateTimeSensorAsync(
            task_id="grace",
            target_time=OVER,
            timeout=timedelta(days=400).total_seconds(),
            execution_timeout=timedelta(days=400),  # of the wait, too
        ),
        stage_task(
            "optout_remove",
            {"request": ERASED, "grace_days": "{{ params.grace_days }}"},
            task_id="remove",
            only_with="request",
        ),
    )


@dag(
    "optout_inbox",
    description="Start an opt-out for each file in optouts/inbox",
    schedule=CronTriggerTimetable("*/5 * * * *", timezone="UTC", run_immediately=timedelta(minutes=10)),
    start_date=None,
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["smalti", "optout"],
    doc_md=__doc__,
)
def optout_inbox() -> None:
    @task
    def take_in() -> list[dict[str, Any]]:
        """Put what was dropped into the ledger; one `conf` a request."""
        from smalti_airflow.optouts import take_in_files  # not at every parse

        return take_in_files()

    TriggerDagRunOperator.partial(
        task_id="start", trigger_dag_id="optout", skip_when_already_exists=True
    ).expand_kwargs(take_in().map(lambda waits: {"conf": waits, "trigger_run_id": f"request_{waits['request']}"}))


@dag(
    "optout_watch",
    description="Requests by state; an alert before one is late; what was lost goes on",
    schedule=CronTriggerTimetable("7 * * * *", timezone="UTC", run_immediately=timedelta(minutes=10)),
    start_date=None,
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["smalti", "optout"],
    doc_md=__doc__,
)
def optout_watch() -> None:
    @task(multiple_outputs=False)
    def watch(dag_run: Any = None) -> dict[str, Any]:
        """Look at every request."""
        from smalti_airflow.optouts import watch_deadlines  # not at every parse

        return watch_deadlines(dag_run)

    @task(multiple_outputs=False)
    def forget() -> dict[str, Any]:
        """Remove what is no longer needed of requests that are over."""
        from smalti_airflow.optouts import forget_what_is_over  # not at every parse

        return forget_what_is_over()

    watch()
    forget()

    @task
    def lost_runs() -> list[dict[str, Any]]:
        """What waits for nothing but time; one `conf` a request."""
        from smalti_airflow.optouts import take_lost  # not at every parse

        return take_lost()

    TriggerDagRunOperator.partial(
        task_id="prove_again", trigger_dag_id="optout", skip_when_already_exists=True
    ).expand_kwargs(lost_runs().map(lambda each: {"conf": each["conf"], "trigger_run_id": each["run"]}))

    @task
    def came_back(report: Any) -> list[dict[str, Any]]:
        """What is in the lake again after it was removed; one `conf` a request."""
        from smalti_airflow.optouts import erase_again  # not at every parse

        return erase_again(report)

    looked = stage_task("optout_look", {}, task_id="look")
    TriggerDagRunOperator.partial(
        task_id="erase_again", trigger_dag_id="optout", skip_when_already_exists=True
    ).expand_kwargs(came_back(looked.output).map(lambda each: {"conf": each["conf"], "trigger_run_id": each["run"]}))


optout()
optout_inbox()
optout_watch()
