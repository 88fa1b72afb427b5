"""What is checked of an Airflow on this machine: its port, who listens there, and its parts' health."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from datetime import datetime

import psutil

from finetune.demo.hostname import LOOPBACK
from finetune.demo.processes import ProcessIdentity

# The keys of the answer of /api/v2/monitor/health.
HEALTHY_PARTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
LOG_TAIL_LINES = 25


def choose_port(preferred: int) -> int:
    """Return the preferred port of the loopback address if it is free, else one that is."""
    if preferred and not is_taken(preferred):
        return preferred
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_taken(port: int) -> bool:
    """Say whether somebody listens on this port of the loopback address."""
    with socket.socket() as client:
        client.settimeout(1)
        if client.connect_ex((LOOPBACK, port)) == 0:
            return True
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def listens(components: Iterable[ProcessIdentity], name: str, port: int) -> bool:
    """Say whether it is this very component that listens on the port."""
    process = next((found for one in components if one.name == name and (found := one.find())), None)
    if process is None:
        return False
    return any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in process.net_connections("tcp")
    )


def describe_unhealthy(health: Mapping[str, Mapping[str, str | None] | None], since: datetime) -> str:
    """Return what is not healthy, or nothing; a sign of life before ``since`` is an earlier process's."""
    wrong = []
    for part in HEALTHY_PARTS:
        told = health.get(part) or {}
        beat = told.get(f"latest_{part}_heartbeat")
        if told.get("status") != "healthy":
            wrong.append(f"{part} is {told.get('status')}")
        elif part != "metadatabase" and (beat is None or datetime.fromisoformat(beat) < since):
            wrong.append(f"{part} has not reported yet")
    return ", ".join(wrong)


def tail(text: str) -> str:
    """Return the last lines of a log."""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
