"""No DAG: makes every broken file in include/ show up in Airflow's list of import errors, and keeps it from the others."""

from __future__ import annotations

from smalti_airflow.broken import config_errors

errors = config_errors()
if errors:
    raise ImportError("\n".join(str(error) for error in errors))
