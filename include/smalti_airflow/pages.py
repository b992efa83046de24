"""Pages of opt-outs in Airflow's own web server: behind its login, and whoever opens one is recorded in the ledger.

    /smalti/optouts/<request>/preview.html                      what a person confirms by
    /smalti/optouts/<request>/query|exclude|erase|withdraw.html     a receipt; .json: its data

Whoever may read the runs of the DAG `optout` may open them. The web server needs SMALTI_LAKE, and the rights to read optouts/ and to
create objects there.
"""
# No `from __future__ import annotations`: FastAPI resolves what stands in signatures in this module, and in no function.

from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from smalti.errors import InputError, SmaltiError
from smalti.lake import Lake
from smalti.optouts.views import show

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
User = Annotated[Any, Depends(get_user)]

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
"""The pages hold all that they show: nothing is fetched, and nothing in them is run."""

_TYPES = {"html": "text/html; charset=utf-8", "json": "application/json"}

_may_read = requires_access_dag("GET", DagAccessEntity.RUN, param_dag_id="optout")


@app.get("/optouts/{request_id}/{what}.{form}", dependencies=[Depends(_may_read)])
def optout_page(request_id: str, what: str, form: str, user: User) -> Response:
    """A preview or a receipt; that it was opened is recorded first."""
    if form not in _TYPES:
        raise HTTPException(404, "There is .html and .json")
    try:
        by = f"airflow:{user.get_name()}"[:200]
        data = show(Lake.from_environment(), request_id, what, by, page=form == "html")
    except InputError as error:
        raise HTTPException(404, str(error)) from None
    except SmaltiError as error:
        raise HTTPException(502, str(error)) from None
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-store",  # each look is one that we see
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(data, headers=headers, media_type=_TYPES[form])


@app.exception_handler(HTTPException)
def say(request: Request, error: HTTPException) -> Response:
    """A line of text; whoever is not logged in gets to do so first."""
    if error.status_code == 401:
        login = get_auth_manager().get_url_login()
        separator = "&" if urlsplit(login).query else "?"
        return RedirectResponse(f"{login}{separator}next={quote(str(request.url), safe='')}", 302)
    return PlainTextResponse(str(error.detail), error.status_code)
