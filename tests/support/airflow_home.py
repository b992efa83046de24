"""Import this before airflow: it gives the test process an Airflow home of its own, empty and without a database server."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if "airflow" not in sys.modules:
    HOME = Path(tempfile.mkdtemp(prefix="smalti-airflow-"))
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        del os.environ[name]  # whatever the developer's own Airflow says
    os.environ |= {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
    }
