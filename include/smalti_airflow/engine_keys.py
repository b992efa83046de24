"""The key of a stage's engine, from an Airflow connection to the job's environment. It goes sealed, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from smalti.errors import InputError

KEY_VARIABLE = "SMALTI_ENGINE_KEY"
"""As smalti.engines.openai reads it; a test holds the two equal."""

ENGINES = {"pilot": "captioner", "caption": "captioner", "classify": "classifier"}
"""Stage -> the field of its settings that is the profile of its engine."""


def engine_key(stage: str, settings: Mapping[str, Any], conn_id: str) -> dict[str, str]:
    """The environment that brings a job the key of its engine; empty where the profile names no connection.

    Args:
        settings: the stage's, complete.
        conn_id: of the cluster, whose password is its token.

    Raises:
        InputError: the connection is not there or has no password, or the cluster has no token to seal the key with.
    """
    engine = settings.get(ENGINES.get(stage, ""))
    if not engine or engine["kind"] != "openai" or engine["key"]["env"] or not engine["key"]["connection"]:
        return {}
    from smalti.engines.sealing import seal

    where, name = f"engines/{engine['name']}.yaml", engine["key"]["connection"]
    try:
        secret = BaseHook.get_connection(name).password
    except AirflowNotFoundException:
        raise InputError(
            f"there is no Airflow connection {name!r}", where, f"Add it, with the server's key as its password: {name}"
        ) from None
    if not secret or not secret.strip():
        raise InputError(
            f"Airflow connection {name!r} has no password", where, "Put the server's key into it as the password"
        )
    token = (BaseHook.get_connection(conn_id).password or "").strip()
    if not token:
        raise InputError(
            f"the cluster of connection {conn_id!r} has no token to seal the key with, and Ray shows a job's environment to "
            "everybody",
            where,
            "Set the key as an environment variable of the Ray workers and name it as `key.env`, or give the cluster a token",
        )
    return {KEY_VARIABLE: seal(secret.strip(), token)}
