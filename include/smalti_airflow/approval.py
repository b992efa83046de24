"""A person looks before a run goes on: at the pilot of a batch, a release to be published, a plan to tidy a lake, or an opt-out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from smalti.lake import Lake
from smalti.page import short

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

PATIENCE = timedelta(days=14)
"""Time that a person has. It costs no worker and no trigger."""


class Approve(ApprovalOperator):
    """Wait for a person's word. A no, and no word in time, fail the run at once: to be asked again would not help.

    Args:
        subject, body: what the person is told. Templates.
        where: named by errors, for instance `source cats, batch b1`. A template.
        what: what the person looks at.
        after_no: what can be done after a no.
    """

    template_fields: tuple[str, ...] = ("subject", "body", "where")

    def __init__(self, *, where: str, what: str, after_no: str, **kwargs: Any) -> None:
        super().__init__(fail_on_reject=True, response_timeout=PATIENCE, **kwargs)
        self.where = where
        self.what = what
        self.after_no = after_no

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        try:
            return super().execute_complete(context, event)
        except HITLRejectException:
            who = (event.get("responded_by_user") or {}).get("name") or "a person"
            raise AirflowFailException(f"{self.where}: {who} rejected {self.what}. {self.after_no}") from None
        except HITLTimeoutError:
            raise AirflowFailException(
                f"{self.where}: nobody looked at {self.what} in {PATIENCE.days} days. Clear this task to ask again."
            ) from None


class ApprovePilot(Approve):
    """Before the rest of a batch is captioned.

    Args:
        pilot: task_id of the pilot, whose report says what the person is told.
        source, batch: named by the subject. `batch` may be a template.
    """

    def __init__(self, *, pilot: str, source: str, batch: str, **kwargs: Any) -> None:
        report = f"ti.xcom_pull(task_ids={pilot!r})"
        super().__init__(
            subject=f"Caption batch {batch} of {source} with {{{{ {report}['profile'] }}}}?",
            body=f"{{{{ {report} | pilot_text }}}}",
            where=f"source {source}, batch {batch}",
            what="the pilot",
            after_no="Save a better profile or prompt under a new name, name it in the source's file, and start a run of the "
            "same batch.",
            **kwargs,
        )


class ApproveRelease(Approve):
    """Before LATEST moves to a version that was verified.

    Args:
        assemble: task_id of assemble, whose report says what the person is told.
        dataset: its name.
    """

    def __init__(self, *, assemble: str, dataset: str, **kwargs: Any) -> None:
        report = f"ti.xcom_pull(task_ids={assemble!r})"
        version = f"{{{{ {report}['version'] }}}}"
        super().__init__(
            subject=f"Publish {version} of {dataset}?",
            body=f"{{{{ {report} | release_text }}}}",
            where=f"dataset {dataset}, version {version}",
            what="the release",
            after_no="LATEST has not moved. Change the dataset's file, and start a run: it makes another version.",
            **kwargs,
        )


class ApproveMaintenance(Approve):
    """Before parts are rewritten and merged and garbage is deleted, where the run's form asks for it.

    Args:
        plan: task_id of the plan, whose report says what the person is told.
        asked: a template; where it is empty the task is skipped.
    """

    template_fields = (*Approve.template_fields, "asked")

    def __init__(self, *, plan: str, asked: str, **kwargs: Any) -> None:
        super().__init__(
            subject="Rewrite, merge and collect as planned?",
            body=f"{{{{ ti.xcom_pull(task_ids={plan!r}) | maintenance_text }}}}",
            where="maintenance",
            what="the plan",
            after_no="Nothing was changed.",
            **kwargs,
        )
        self.asked = asked

    def execute(self, context: Context) -> Any:
        if not self.asked:
            raise AirflowSkipException("the form does not ask for a person's word")
        return super().execute(context)


class ApproveOptout(Approve):
    """Before a request is applied that matches much, or whatever comes from a domain. A no is written into the ledger.

    Args:
        preview: task_id of the preview, whose report says what the person is told, and whether one is needed.
    """

    template_fields = (*Approve.template_fields, "request", "ask")

    def __init__(self, *, preview: str, **kwargs: Any) -> None:
        report = f"ti.xcom_pull(task_ids={preview!r})"
        super().__init__(
            subject=f"Apply opt-out {{{{ {report}['request'] }}}} ({{{{ {report}['action'] }}}})?",
            body=f"{{{{ {report} | optout_text }}}}",
            where=f"opt-out {{{{ {report}['request'] }}}}",
            what="the request",
            after_no="It is recorded as refused, and nothing was applied. Hand it in again if that was wrong.",
            **kwargs,
        )
        self.request = f"{{{{ {report}['request'] }}}}"
        self.ask = f"{{{{ {report}['ask'] }}}}"

    def execute(self, context: Context) -> Any:
        if not self.ask:
            raise AirflowSkipException("it matches no more than may be applied without asking")
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        try:
            return super().execute_complete(context, event)
        except AirflowFailException:
            if event.get("chosen_options") == [self.REJECT]:
                from smalti.optouts.apply import refuse  # not for every file that is parsed

                who = (event.get("responded_by_user") or {}).get("name") or "a person"
                answer = refuse(Lake.from_environment(), self.request, who)
                if answer.apply:
                    raise AirflowFailException(
                        f"{self.where}: {answer.by} confirmed the request before, and it applies. Withdraw it to take it back."
                    ) from None
            raise


def optout_text(report: Mapping[str, Any] | None) -> str:
    """What a person is told, in Markdown, of a PreviewReport. No key is in it."""
    if not report:
        return "There is no preview."
    where = ", ".join(f"{source} {count}" for source, count in report["sources"].items()) or "no source"
    lines = [
        f"**[The request's page]({optout_page(report['request'], 'preview')})** (`{report['page']}`)",
        f"Reference `{report['reference']}`. A person is asked because {report['ask']}.",
        f"{report['keys']} keys match {report['matched']} places in parts ({where}): {report['by_key']} by a key, "
        f"{report['matched'] - report['by_key']} as copies of those. {report['near']} look-alikes would stay.",
        f"{report['unmatched']} keys match nothing.",
        *(f"Warning: {warning}" for warning in report["warnings"]),
        "Approve: it takes effect within minutes, in every live release. Reject: nothing is applied, and that is recorded.",
    ]
    return "\n\n".join(lines)


def maintenance_text(report: Mapping[str, Any] | None) -> str:
    """What a person is told, in Markdown, of a PlanReport."""
    if not report:
        return "There is no plan."
    rewrite, merge, gc = report["rewrite"], report["merge"], report["gc"]
    merged = sum(map(len, merge["merged"].values()))
    size = sum(gc["deleted_bytes"].values()) / 1e9
    lines = [
        f"**Rewrite** {len(rewrite['rewritten'])} parts: of {rewrite['samples']} samples {rewrite['kept']} stay.",
        f"**Merge** {merged} parts into {len(merge['merged'])}.",
        f"**Delete** {_objects(gc['deleted'])} ({size:.1f} GB), marked by an earlier run; this cannot be undone.",
        f"**Mark** {_objects(gc['marked'])}; **give up** {len(gc['given_up'])} versions"
        + (f" ({', '.join(gc['given_up'])})." if gc["given_up"] else "."),
        *(f"- {line}" for line in gc["shown"]),
        "Approve: it is done. Reject: the run fails, and nothing is changed.",
    ]
    return "\n\n".join(lines)


def _objects(counts: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)
    return f"{sum(counts.values())} objects" + (f" ({kinds})" if kinds else "")


def pilot_text(report: Mapping[str, Any] | None) -> str:
    """What a person is told, in Markdown, of a PilotReport."""
    if not report or not report.get("page"):
        return "The batch has no rows that are to be captioned: there is nothing to look at."
    failed = sum(report["failed"].values())
    why = ", ".join(f"{reason} {count}" for reason, count in report["failed"].items())
    engine = ", ".join(f"{name} `{report[name]}`" for name in ("model", "revision", "prompt") if report[name])
    lines = [
        f"**{link(report['page'], 'The pilot')}**",
        f"Profile `{report['profile']}`" + (f": {engine}" if engine else ""),
        f"{report['rows']} of {report['eligible']} rows were drawn; {failed} failed" + (f" ({why})" if why else ""),
        f"{report['waiting']} rows wait. " + _estimate("At the pilot's own rate", report["measured"]),
        _estimate("At the rate in the profile", report["stated"]),
        "Approve: the rest of the batch is captioned. Reject: the run fails, and nothing more is spent.",
    ]
    return "\n\n".join(lines)


def release_text(report: Mapping[str, Any]) -> str:
    """What a person is told, in Markdown, of an AssembleReport."""
    left_out = ", ".join(f"{reason} {count}" for reason, count in report["dropped"].items() if count) or "nothing"
    lines = [
        f"**{link(report['page'], 'The release')}**",
        f"{report['rows_out']} of {report['rows_in']} samples are served, in {report['streams']} streams. Left out: {left_out}.",
    ]
    if report["parent"]:
        changes = " and ".join(
            f"{sum(counts.values())} {what}"
            + (f" ({', '.join(f'{why} {n}' for why, n in counts.items())})" if counts else "")
            for what, counts in (("gained", report["gained"]), ("lost", report["lost"]))
        )
        lines.append(f"Since {report['parent']}: {changes}.")
    lines += [f"Warning: {warning}" for warning in report["warnings"]]
    return "\n\n".join((*lines, "Approve: LATEST moves to it. Reject: the run fails, and LATEST stays where it is."))


def link(uri: str, whose: str) -> str:
    """Where a browser finds a page of the lake. One on disk cannot be linked to from a page: its path is shown."""
    name = f"{whose}'s page"
    if uri.startswith("gs://"):
        return f"[{name}](https://storage.cloud.google.com/{uri.removeprefix('gs://')}) (`{uri}`)"
    return f"{name}: `{uri}`"


def optout_page(request: str, what: str) -> str:
    """Where Airflow itself shows a page of a request, and records who opens it (`smalti_airflow.pages`)."""
    from airflow.sdk.configuration import conf

    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{base}/smalti/optouts/{request}/{what}.html"


def _estimate(rate: str, estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return f"{rate}: not known."
    gpu = "" if estimate["gpu_hours"] is None else f", {short(estimate['gpu_hours'])} GPU hours"
    cost = "" if estimate["cost"] is None else f", {short(estimate['cost'])} in the currency of the profile's price"
    return f"{rate} ({short(estimate['rows_per_second'])} rows/s): {short(estimate['hours'])} hours{gpu}{cost}."
