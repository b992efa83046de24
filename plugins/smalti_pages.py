"""Airflow's plugin of smalti: the pages of `smalti_airflow.pages`, below /smalti. Every part of Airflow loads this file, so it imports little."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin


async def pages(
    scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """The pages, imported when the first one is asked for: only the web server ever is."""
    from smalti_airflow.pages import app

    await app(scope, receive, send)


class SmaltiPages(AirflowPlugin):
    """Where they are."""

    name = "smalti_pages"
    fastapi_apps: ClassVar[list[dict[str, Any]]] = [{"app": pages, "url_prefix": "/smalti", "name": "smalti pages"}]
