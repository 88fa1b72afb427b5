"""A small typed client of Airflow's REST API (v2): what following, steering and testing runs needs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from finetune.errors import PipelineError

RunState = Literal["queued", "running", "success", "failed"]
TaskState = Literal["success", "failed", "skipped"]
FINISHED_RUN_STATES = frozenset({"success", "failed"})
FINISHED_TASK_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
# The API answers in milliseconds; on a machine whose cores are all training it may take seconds.
REQUEST_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.5
PAGE_SIZE = 100
# What a log entry carries beside its message that a reader of one task's log knows or does not need.
TASK_KEYS = ("ti_id", "dag_id", "run_id", "task_id", "map_index", "try_number")
SOURCE_KEYS = ("logger", "filename", "lineno", "loc", "chan")
KNOWN_LOG_KEYS = frozenset({"timestamp", "level", "event", "error_detail", *TASK_KEYS, *SOURCE_KEYS})


class AirflowApiError(PipelineError):
    """Airflow's API refused a request, or did not answer."""


class WaitTimeout(PipelineError):
    """What was waited for did not come about in time."""


class Dag(BaseModel, frozen=True):
    """A DAG as Airflow knows it."""

    dag_id: str
    is_paused: bool


class DagRun(BaseModel, frozen=True):
    """A run of a DAG; durations in seconds."""

    dag_id: str
    dag_run_id: str
    state: str
    conf: dict[str, Any] | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    duration: float | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended."""
        return self.state in FINISHED_RUN_STATES


class TaskInstance(BaseModel, frozen=True):
    """One task of a run, in its latest try; durations in seconds."""

    task_id: str
    map_index: int
    try_number: int
    state: str | None = None
    pid: int | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    duration: float | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen to it unasked."""
        return self.state in FINISHED_TASK_STATES


class ImportFailure(BaseModel, frozen=True):
    """A DAG file that could not be imported."""

    filename: str
    stack_trace: str


class AirflowApi:
    """Speaks to one Airflow as one user; logs in when needed.

    Args:
        base_url: The UI's address.
        username: Of a user who may trigger and clear runs.
        password: Theirs.
    """

    def __init__(self, base_url: str, username: str, password: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._login = {"username": username, "password": password}
        # The proxy and netrc settings of the caller's environment have no say on a loopback address.
        self._client = httpx.Client(
            base_url=self.base_url,
            timeout=REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
            transport=httpx.HTTPTransport(retries=3),
        )
        self._token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # DAGs

    def health(self) -> dict[str, Any]:
        """Return each component's health: ``{"scheduler": {"status": "healthy", ...}, ...}``."""
        found: dict[str, Any] = self._read(self._send("GET", "/api/v2/monitor/health"))
        return found

    def dags(self) -> list[Dag]:
        """Return every DAG that was parsed and is not stale."""
        return [Dag.model_validate(row) for row in self._rows("/api/v2/dags", "dags")]

    def dag(self, dag_id: str) -> Dag | None:
        """Return a DAG; None where Airflow does not know it (yet)."""
        response = self._authorised("GET", f"/api/v2/dags/{quote(dag_id)}")
        return (
            None
            if response.status_code == httpx.codes.NOT_FOUND
            else Dag.model_validate(self._read(response))
        )

    def import_errors(self) -> list[ImportFailure]:
        """Return the DAG files that could not be imported, with the traces."""
        return [
            ImportFailure.model_validate(row) for row in self._rows("/api/v2/importErrors", "import_errors")
        ]

    def set_paused(self, dag_id: str, *, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self._call("PATCH", f"/api/v2/dags/{quote(dag_id)}", {"is_paused": paused})

    # Runs

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a run and return its id; ``conf`` are the DAG's params that differ from their defaults."""
        body = {"logical_date": None, "conf": dict(conf or {})} | ({"dag_run_id": run_id} if run_id else {})
        answer = self._call("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", body)
        return str(answer["dag_run_id"])

    def dag_run(self, dag_id: str, run_id: str) -> DagRun:
        """Return a run."""
        return DagRun.model_validate(self._call("GET", self._run_path(dag_id, run_id)))

    def dag_runs(self, dag_id: str = "~", states: Iterable[str] = ()) -> list[DagRun]:
        """Return the runs of a DAG (``~``: of all), only those in these states where any are given."""
        rows = self._rows(f"/api/v2/dags/{quote(dag_id)}/dagRuns", "dag_runs", {"state": list(states)})
        return [DagRun.model_validate(row) for row in rows]

    def set_run_state(self, dag_id: str, run_id: str, state: RunState) -> None:
        """Mark a run, as a person does in the UI; teardowns still run."""
        self._call("PATCH", self._run_path(dag_id, run_id), {"state": state})

    def wait_for_run(self, dag_id: str, run_id: str, timeout_seconds: float) -> DagRun:
        """Wait until the run and all its tasks have ended, and return the run.

        Raises:
            WaitTimeout: They have not.
        """

        def finished() -> DagRun | None:
            run = self.dag_run(dag_id, run_id)
            tasks = self.task_instances(dag_id, run_id).values() if run.is_finished else []
            return run if run.is_finished and all(task.is_finished for task in tasks) else None

        return wait_for(f"the end of run {run_id} of {dag_id}", finished, timeout_seconds)

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Iterable[str],
        *,
        only_failed: bool = False,
        include_downstream: bool = True,
    ) -> list[str]:
        """Clear tasks of a run so that they run again, and return the ids of those cleared.

        The defaults are the UI's. REST's own default is ``only_failed=True`` without downstream tasks.
        """
        body = {
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "dry_run": False,
            "only_failed": only_failed,
            "include_downstream": include_downstream,
        }
        answer = self._call("POST", f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances", body)
        return [row["task_id"] for row in answer["task_instances"]]

    # Tasks

    def task_instances(self, dag_id: str, run_id: str) -> dict[str, TaskInstance]:
        """Return a run's task instances by task id."""
        rows = self._rows(f"{self._run_path(dag_id, run_id)}/taskInstances", "task_instances")
        return {row["task_id"]: TaskInstance.model_validate(row) for row in rows}

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: TaskState) -> None:
        """Mark one task, as a person does in the UI."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}"
        self._call("PATCH", path, {"new_state": state})

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """Return the log of one try as text, a line for each message."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        lines: list[str] = []
        token: str | None = None
        while True:
            query = {"full_content": "true"} | ({"token": token} if token else {})
            answer = self._call("GET", path, query=query)
            lines += [_format_log_entry(entry) for entry in answer["content"]]
            previous, token = token, answer.get("continuation_token")
            if not token or token == previous or not answer["content"]:
                return "\n".join(lines)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return one XCom value."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
        return self._call("GET", path, query={"deserialize": "true"})["value"]

    # Requests

    def _run_path(self, dag_id: str, run_id: str) -> str:
        return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"

    def _rows(self, path: str, key: str, query: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while True:
            page = {**(query or {}), "limit": PAGE_SIZE, "offset": len(rows)}
            answer = self._call("GET", path, query=page)
            rows += answer[key]
            if len(rows) >= answer["total_entries"] or not answer[key]:
                return rows

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._read(self._authorised(method, path, body, query))

    def _authorised(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        fresh = self._token is None
        response = self._send(method, path, body, query)
        # Airflow answers 401 to an expired token and 403 to one that it cannot read.
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN) and not fresh:
            self._token = None
            response = self._send(method, path, body, query)
        return response

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        public = path in ("/auth/token", "/api/v2/monitor/health")
        if self._token is None and not public:
            self._token = self._read(self._send("POST", "/auth/token", self._login))["access_token"]
        headers = {"Accept": "application/json"} | (
            {} if public else {"Authorization": f"Bearer {self._token}"}
        )
        try:
            return self._client.request(method, path, json=body, params=query, headers=headers)
        except httpx.TransportError as error:
            raise AirflowApiError(
                f"{method} {path}: no answer ({type(error).__name__}: {error})",
                resource=self.base_url,
                next_step="make status",
            ) from error

    def _read(self, response: httpx.Response) -> Any:
        if response.is_success:
            return response.json() if response.content else None
        request = response.request
        raise AirflowApiError(
            f"{request.method} {request.url.path}: {response.status_code} {_read_detail(response)}",
            resource=self.base_url,
            next_step="look at the API server's log in the components folder of AIRFLOW_HOME",
        )


def wait_for[Value](what: str, look: Callable[[], Value | None], timeout_seconds: float) -> Value:
    """Call ``look`` until it returns something true, and return that.

    Raises:
        WaitTimeout: It has not within ``timeout_seconds``.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise WaitTimeout(f"waited {timeout_seconds:g} s in vain for {what}")
        time.sleep(POLL_SECONDS)


def _format_log_entry(entry: str | Mapping[str, Any]) -> str:
    if isinstance(entry, str):
        return entry
    extras = " ".join(f"{key}={value}" for key, value in entry.items() if key not in KNOWN_LOG_KEYS and value)
    head = " ".join(str(entry[name]) for name in ("timestamp", "level", "event") if entry.get(name))
    lines = [f"{head} {extras}".rstrip()]
    lines += [f"{one.get('exc_type')}: {one.get('exc_value')}" for one in entry.get("error_detail") or []]
    return "\n".join(lines)


def _read_detail(response: httpx.Response) -> str:
    try:
        detail = response.json().get("detail", response.text)
    except json.JSONDecodeError:
        detail = response.text
    return detail if isinstance(detail, str) else json.dumps(detail)
