"""Memory and start-up time of Airflow on this machine, in a home of its own."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import wait_for

PROMISED_GIBIBYTES = 1.6
BYTES_PER_GIBIBYTE = 1024**3


def main() -> int:
    """Measure, print, and return 1 when the promise does not hold."""
    with tempfile.TemporaryDirectory(prefix="finetune-bench-") as folder:
        airflow = AirflowLocal(Path(folder))
        seconds = []
        try:
            for _ in range(2):
                airflow.stop()
                started = time.perf_counter()
                airflow.start()
                seconds.append(time.perf_counter() - started)
            wait_for("the first DAG", airflow.api.dags, 60)
            processes = airflow.processes()
            gibibytes = airflow.memory_bytes() / BYTES_PER_GIBIBYTE
        finally:
            airflow.stop()
    print(f"start to healthy: {seconds[0]:.1f} s the first time, {seconds[1]:.1f} s the second")
    print(
        f"memory (PSS) of {len(processes)} processes: {gibibytes:.2f} GiB (promised: at most {PROMISED_GIBIBYTES})"
    )
    return int(gibibytes > PROMISED_GIBIBYTES)


if __name__ == "__main__":
    sys.exit(main())
