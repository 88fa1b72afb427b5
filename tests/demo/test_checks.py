"""Ports and health of an Airflow on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from finetune.demo.checks import choose_port, describe_unhealthy, is_taken, listens
from finetune.demo.processes import ProcessIdentity

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def listener(request) -> Iterator[int]:
    """Somebody who listens, on the loopback address or on all."""
    with socket.create_server((request.param, 0)) as server:
        yield server.getsockname()[1]


def health(**changes: dict[str, str | None]) -> dict[str, dict[str, str | None]]:
    parts = ("scheduler", "triggerer", "dag_processor")
    beats = {
        part: {"status": "healthy", f"latest_{part}_heartbeat": "2026-01-01T12:00:05+00:00"} for part in parts
    }
    return {"metadatabase": {"status": "healthy"}, **beats, **changes}


def test_a_taken_port_makes_way_for_a_free_one(listener) -> None:
    chosen = choose_port(listener)

    assert chosen != listener
    assert not is_taken(chosen)


def test_a_free_port_is_taken_as_wished() -> None:
    free = choose_port(0)

    assert choose_port(free) == free


def test_only_the_component_itself_counts_as_listening(listener) -> None:
    me, parent = ProcessIdentity.of("api-server", os.getpid()), ProcessIdentity.of("api-server", os.getppid())

    assert listens([me], "api-server", listener)
    assert not listens([parent], "api-server", listener)
    assert not listens([me], "api-server", choose_port(0))


def test_all_parts_healthy_with_fresh_signs_of_life_is_healthy() -> None:
    assert describe_unhealthy(health(), NOON) == ""


def test_a_sign_of_life_from_before_the_start_is_an_earlier_process() -> None:
    stale = {"status": "healthy", "latest_triggerer_heartbeat": "2026-01-01T11:59:59+00:00"}

    assert describe_unhealthy(health(triggerer=stale), NOON) == "triggerer has not reported yet"


def test_each_unhealthy_part_is_named() -> None:
    silent = {"status": None, "latest_scheduler_heartbeat": None}

    told = describe_unhealthy(health(scheduler=silent, metadatabase={"status": "unhealthy"}), NOON)

    assert told == "metadatabase is unhealthy, scheduler is None"
