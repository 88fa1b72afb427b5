"""The picture of a training."""

from __future__ import annotations

import math
from typing import Any

import pytest
from matplotlib.figure import Figure

from finetune.progress.plot import draw_heldout, draw_training, moving_average, plot_loss, points_of


def steps(*losses: float) -> list[dict[str, Any]]:
    return [{"kind": "step", "step": number, "loss": loss} for number, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    "events",
    [
        [],
        steps(2.0),
        steps(3.0, 2.0, math.nan),
        steps(*range(50)),
        [{"kind": "eval", "step": 5, "loss": 2.0}],
    ],
    ids=["none", "one-step", "diverged", "many", "evaluation-only"],
)
def test_a_picture_is_drawn_of_any_events(events, tmp_path) -> None:
    plot_loss(events, tmp_path / "loss.png")

    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_points_are_ordered_by_step_and_finite() -> None:
    events = [*reversed(steps(3.0, math.inf, 1.0)), {"kind": "verdict", "state": "diverged"}]

    assert points_of(events, "step") == [(1, 3.0), (3, 1.0)]


def test_every_step_is_drawn_and_many_are_smoothed_as_well() -> None:
    few, many = Figure().add_subplot(), Figure().add_subplot()

    draw_training(few, [(step, 2.0) for step in range(1, 5)])
    draw_training(many, [(step, 2.0) for step in range(1, 41)])

    assert [line.get_label() for line in few.lines] == ["training"]
    assert [line.get_label() for line in many.lines] == ["training, each step", "training, smoothed"]
    assert len(many.lines[0].get_xdata()) == 40


def test_the_heldout_loss_is_drawn_with_its_first_and_last_value() -> None:
    axes = Figure().add_subplot()

    draw_heldout(axes, [(0, 3.127), (20, 2.5), (40, 2.2)])

    assert list(axes.lines[0].get_ydata()) == [3.127, 2.5, 2.2]
    assert sorted(text.get_text() for text in axes.texts) == ["2.20", "3.13"]


def test_the_moving_average_of_a_straight_line_is_the_line() -> None:
    line = [float(step) for step in range(40)]

    assert moving_average(line) == pytest.approx(line)


def test_the_moving_average_evens_out_what_jumps() -> None:
    averages = moving_average([1.0, 3.0] * 20)

    assert max(averages[5:-5]) - min(averages[5:-5]) < 0.5
