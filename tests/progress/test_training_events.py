"""What MaxText's metrics file says, as events and as lines for a person."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from finetune.progress.events import MetricsReader, format_seconds, is_finite, progress_line

# A row as MaxText 0.2.5 wrote it (common/metric_logger.py, write_metrics_locally).
ROW = {
    "learning/loss": 5.692291736602783,
    "learning/total_weights": 129.0,
    "learning/perplexity": 410.8228759765625,
    "learning/grad_norm": 69.29045104980469,
    "perf/step_time_seconds": 33.18938027099966,
    "learning/current_learning_rate": 2.499999936844688e-05,
    "perf/per_device_tflops": 0.418960637952,
    "perf/per_device_tflops_per_sec": 0.012623334166865445,
    "perf/per_device_tokens": 256.0,
    "perf/per_device_tokens_per_sec": 7.713310640623459,
    "step": 2.0,
    "run_name": "f1_5e5",
}
EVAL_ROW = {"eval/avg_loss": 2.5, "eval/total_weights": 901.0, "eval/avg_perplexity": 12.2, "step": 40.0}


def line(row: dict[str, Any], **changes: Any) -> bytes:
    """Return a row as a line of the file."""
    return json.dumps(row | changes).encode() + b"\n"


def test_a_row_of_a_step_becomes_an_event_in_the_pipelines_words() -> None:
    (event,) = MetricsReader(total_steps=10).feed(line(ROW))
    assert event.pop("time")
    assert event == {
        "kind": "step",
        "step": 2,
        "total_steps": 10,
        "loss": 5.692291736602783,
        "learning_rate": 2.499999936844688e-05,
        "step_seconds": 33.18938027099966,
        "tokens_per_second_per_device": 7.713310640623459,
        "tflops_per_second_per_device": 0.012623334166865445,
        "counted_tokens": 129.0,
    }


def test_a_row_of_an_evaluation_becomes_an_event_of_its_own() -> None:
    (event,) = MetricsReader(total_steps=40).feed(line(EVAL_ROW))
    assert event.pop("time")
    assert event == {"kind": "eval", "step": 40, "loss": 2.5, "counted_tokens": 901.0}


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_rows_cut_anywhere_are_read_whole(size: int) -> None:
    text = b"".join(line(ROW, step=float(step)) for step in range(1, 6)) + line(EVAL_ROW)
    reader = MetricsReader(total_steps=5)
    events = [
        event for start in range(0, len(text), size) for event in reader.feed(text[start : start + size])
    ]
    assert [(event["kind"], event["step"]) for event in events] == [
        *(("step", step) for step in range(1, 6)),
        ("eval", 40),
    ]


def test_a_row_without_its_end_waits_for_it() -> None:
    reader = MetricsReader(total_steps=5)
    assert reader.feed(line(ROW)[:-1]) == []
    assert [event["step"] for event in reader.feed(b"\n")] == [2]


def test_rows_of_other_kinds_and_empty_lines_say_nothing() -> None:
    assert MetricsReader(total_steps=5).feed(b"\n" + line({"step": 1.0, "other/figure": 3.0})) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_read_and_recognised(loss: float) -> None:
    (event,) = MetricsReader(total_steps=5).feed(line(ROW, **{"learning/loss": loss}))
    assert not is_finite(event)


def test_a_finite_loss_is_recognised() -> None:
    assert is_finite({"loss": 2.0})


def test_a_line_for_a_person_has_step_total_loss_speed_and_time_left() -> None:
    (event,) = MetricsReader(total_steps=10).feed(line(ROW, **{"perf/per_device_tokens_per_sec": 12345.6}))
    assert progress_line(event, 200.0) == "step 2/10, loss 5.692, 12,346 tokens/s/device, about 3m 20s left"


def test_a_line_leaves_out_what_is_not_known() -> None:
    (event,) = MetricsReader(total_steps=10).feed(line({"learning/loss": 5.0, "step": 1.0}))
    assert progress_line(event, None) == "step 1/10, loss 5.000"


def test_a_line_of_an_evaluation_says_what_was_measured() -> None:
    (event,) = MetricsReader(total_steps=40).feed(line(EVAL_ROW))
    assert progress_line(event, 10.0) == "step 40: held-out loss 2.500"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1m 00s"), (200, "3m 20s"), (3599.6, "1h 00m"), (3725, "1h 02m")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
