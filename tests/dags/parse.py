"""Run in a process of its own: parse dags/ and say what that cost and made, as JSON on the last line."""

from __future__ import annotations

import hashlib
import json
import sys
import time

import tests.support.airflow_home  # noqa: F401  (before airflow)


def main() -> None:
    import airflow.sdk
    from airflow.dag_processing import dagbag
    from airflow.serialization.serialized_objects import DagSerialization

    for name in airflow.sdk.__all__:  # each is loaded when it is first asked for
        getattr(airflow.sdk, name, None)
    from tests.dags.conftest import load_dags

    assert dagbag
    before, started = set(sys.modules), time.process_time()
    bag = load_dags()
    print(  # keys are sorted, as Airflow sorts them before it compares: it writes a task's fields in the order of a set
        json.dumps({
            "seconds": time.process_time() - started,
            "modules": sorted({name.partition(".")[0] for name in set(sys.modules) - before}),
            "errors": bag.import_errors,
            "dags": {
                dag_id: hashlib.sha256(json.dumps(DagSerialization.to_dict(dag), sort_keys=True).encode()).hexdigest()
                for dag_id, dag in bag.dags.items()
            },
        })
    )


if __name__ == "__main__":
    main()
