"""The setting of Airflow's port."""

from __future__ import annotations

import pytest

from finetune import settings
from finetune.errors import PipelineError


def test_the_port_is_8080_unless_set(monkeypatch) -> None:
    monkeypatch.delenv("FINETUNE_AIRFLOW_PORT", raising=False)
    assert settings.airflow_port() == 8080

    monkeypatch.setenv("FINETUNE_AIRFLOW_PORT", "9000")
    assert settings.airflow_port() == 9000


@pytest.mark.parametrize("text", ["http", "-1", "65536", "80.5"])
def test_what_is_not_a_port_is_refused_by_name(monkeypatch, text) -> None:
    monkeypatch.setenv("FINETUNE_AIRFLOW_PORT", text)

    with pytest.raises(PipelineError, match=f"FINETUNE_AIRFLOW_PORT is '{text}', not a port"):
        settings.airflow_port()
