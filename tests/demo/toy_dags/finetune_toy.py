"""A DAG of the shape and the task ids of a recipe's, whose stages do their records and events and no work."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

from airflow.sdk import dag, get_current_context, task

from finetune.machines.base import MachineSpec
from finetune.machines.local import LocalMachineProvider
from finetune.store import RunRecord, RunStore, StageRecord, Store

RECIPE = "tiny-local"
STEPS = 12
STEP_SECONDS = float(os.environ.get("FINETUNE_TOY_STEP_SECONDS", "0.2"))


def run_id() -> str:
    return str(get_current_context()["run_id"])


def store() -> RunStore:
    return Store(os.environ["FINETUNE_STORE"]).run(RECIPE, run_id())


def labels() -> dict[str, str]:
    return {"recipe": RECIPE, "run": run_id()}


def record(stage: str, **what: object) -> None:
    now = datetime.now(UTC)
    known = {"state": "done", "digest": "0", "started_at": now, "ended_at": now, "seconds": 1.5}
    store().write_stage(StageRecord.model_validate({"stage": stage, **known, **what}))


def should_fail(stage: str) -> bool:
    wish = store().root.parents[2] / "failing_stage"
    return wish.exists() and wish.read_text() == stage


@dag(dag_id=f"finetune_{RECIPE}", schedule=None, is_paused_upon_creation=True)
def finetune_toy():
    @task
    def preflight():
        store().write_run(
            RunRecord(
                recipe_name=RECIPE,
                run_id=run_id(),
                started_at=datetime.now(UTC),
                recipe={},
                recipe_digest="0",
                params={},
                versions={},
            )
        )

    @task
    def create_machine():
        provider = LocalMachineProvider()
        machine = provider.create(MachineSpec("tpu", "local"), labels())
        provider.jobs(machine).start("train", "0", "sleep 1000", {})

    @task
    def install_trainer():
        record("install_trainer", state="reused", reason="the same was made by an earlier run")

    @task
    def convert_checkpoint():
        if should_fail("convert_checkpoint"):
            record("convert_checkpoint", state="failed", error="StageFailed: as wished\n  Next: wish it away")
            raise RuntimeError("this stands in the log")
        record("convert_checkpoint")

    @task
    def train():
        for step in range(1, STEPS + 1):
            time.sleep(STEP_SECONDS)
            event = {
                "time": datetime.now(UTC).isoformat(),
                "kind": "step",
                "step": step,
                "total_steps": STEPS,
                "loss": 3.0 - step / STEPS,
                "learning_rate": 1e-5,
                "step_seconds": STEP_SECONDS,
                "tokens_per_second_per_device": 120.0,
            }
            store().append_events([event])
        store().append_events([{"time": "", "kind": "eval", "step": STEPS, "loss": 2.2}])
        record("train", evidence={"steps": STEPS, "first_loss": 2.9, "last_loss": 2.0})

    @task
    def watch_training():
        pass

    @task
    def export_checkpoint():
        record("export_checkpoint", outputs={"model": str(store().root / "model")})

    @task
    def check_model():
        if should_fail("check_model"):
            raise RuntimeError("this stands in the log only")
        samples = [{"prompt": "How are you doing?", "before": "mendatanguser", "after": "I'm doing great!"}]
        figures = {"heldout_loss_before": 3.1, "heldout_loss_after": 2.2, "samples": samples}
        record("check_model", evidence=figures)

    @task
    def delete_machine():
        provider = LocalMachineProvider()
        for machine in provider.find(labels()):
            provider.delete(machine)

    @task
    def verdict():
        context = get_current_context()
        states = context["ti"].get_task_states(dag_id=context["dag"].dag_id, run_ids=[context["run_id"]])
        others = {name: state for name, state in states[context["run_id"]].items() if name != "verdict"}
        if set(others.values()) != {"success"}:
            raise RuntimeError(f"not every task succeeded: {others}")

    prepared = preflight()
    created = create_machine()
    convert, exported, checked = convert_checkpoint(), export_checkpoint(), check_model()
    deleted = delete_machine().as_teardown(setups=[prepared.as_setup(), created.as_setup()])
    judged = verdict().as_teardown(setups=[prepared], on_failure_fail_dagrun=True)
    prepared >> created >> install_trainer() >> convert >> [train(), watch_training()] >> exported
    exported >> [deleted, checked] >> judged


finetune_toy()
