"""Pages in Airflow's web server: who may open them, and that whoever does is recorded."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.support.airflow_home  # noqa: F401  (before anything imports airflow)
from smalti import objects
from smalti.lake import Lake
from smalti.optouts.parse import parse_text
from smalti.optouts.request import Action
from smalti.optouts.submit import hand_in
from smalti.optouts.views import views
from tests.support.airflow_home import ROOT


class Auth:
    """Airflow's auth manager, as far as it is asked."""

    def __init__(self) -> None:
        self.allowed = True
        self.asked: list[Any] = []

    async def get_user_from_token(self, token: str) -> Any:
        from jwt import InvalidTokenError

        if token != "ada's":
            raise InvalidTokenError
        return SimpleNamespace(get_name=lambda: "ada", get_id=lambda: "1")

    def is_authorized_dag(self, **asked: Any) -> bool:
        self.asked.append((asked["method"], asked["access_entity"].value, asked["details"].id))
        return self.allowed

    def get_url_login(self) -> str:
        return "/auth/login/"


@pytest.fixture
def auth(monkeypatch: pytest.MonkeyPatch) -> Auth:
    from airflow.api_fastapi.app import _AuthManagerState
    from airflow.models import DagModel

    made = Auth()
    monkeypatch.setattr(_AuthManagerState, "instance", made)
    monkeypatch.setattr(DagModel, "get_team_name", lambda *_: None)
    return made


@pytest.fixture
def web(auth: Auth, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A browser on the plugin as Airflow mounts it."""
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    monkeypatch.setenv("SMALTI_LAKE", lake.root)
    plugin = runpy.run_path(str(ROOT / "plugins" / "smalti_pages.py"))["SmaltiPages"]
    root = FastAPI()
    [mounted] = plugin.fastapi_apps
    root.mount(mounted["url_prefix"], mounted["app"])
    with TestClient(root, follow_redirects=False) as client:
        yield client


@pytest.fixture
def request_id(lake: Lake) -> str:
    request = hand_in(
        lake,
        action=Action.EXCLUDE,
        reference="T-7",
        parsed=parse_text("owner sesame"),
        submission="x",
        submitted=datetime.now(UTC),
    ).id
    objects.create_bytes(lake.optout_preview_page(request), b"<p>preview")
    objects.create_bytes(lake.optout_receipt(request, "exclude"), b"{}")
    return request


ADA = {"Authorization": "Bearer ada's"}


def test_whoever_opens_a_page_is_recorded(web: Any, auth: Auth, lake: Lake, request_id: str) -> None:
    answer = web.get(f"/smalti/optouts/{request_id}/preview.html", headers=ADA)
    assert (answer.status_code, answer.content) == (200, b"<p>preview")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert web.get(f"/smalti/optouts/{request_id}/exclude.json", headers=ADA).json() == {}
    assert [(each.by, each.what, each.form) for each in views(lake, request_id)] == [
        ("airflow:ada", "preview", "page"), ("airflow:ada", "exclude", "json")
    ]  # fmt: skip
    assert set(auth.asked) == {("GET", "RUN", "optout")}


def test_whoever_may_not_sees_nothing(web: Any, auth: Auth, lake: Lake, request_id: str) -> None:
    path = f"/smalti/optouts/{request_id}/preview.html"
    answer = web.get(path)
    assert (answer.status_code, answer.content) == (302, b"")
    assert answer.headers["location"].startswith("/auth/login/?next=http%3A%2F%2Ftestserver%2Fsmalti%2Foptouts%2F")
    assert web.get(path, headers={"Authorization": "Bearer eve's"}).status_code == 403
    auth.allowed = False
    assert web.get(path, headers=ADA).status_code == 403
    assert views(lake, request_id) == []


@pytest.mark.parametrize(
    "path",
    [
        "{id}/erase.html", "{id}/preview.json", "{id}/preview.exe", "{id}/request.json.gz", "{id}/../../../x.html", "0000000000000000/preview.html",
        "..%2f..%2f/preview.html", "{id}/%2e%2e%2fanswer.json",
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found(web: Any, lake: Lake, request_id: str, path: str) -> None:
    answer = web.get("/smalti/optouts/" + path.format(id=request_id), headers=ADA)
    assert answer.status_code == 404
    assert b"sesame" not in answer.content
    assert views(lake, request_id) == []


def test_the_plugin_imports_little(tmp_path: Path) -> None:
    """Scheduler and workers load it, too."""
    import subprocess
    import sys

    code = (
        "import runpy, sys; import airflow.plugins_manager; before = set(sys.modules);"
        f"runpy.run_path({str(ROOT / 'plugins' / 'smalti_pages.py')!r}); new = set(sys.modules) - before;"
        "assert not {n for n in new if n.startswith(('smalti', 'fastapi', 'airflow.api_fastapi'))}, new"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
