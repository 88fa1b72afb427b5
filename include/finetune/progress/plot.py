"""The picture of a training: its loss over the steps, with the held-out loss where it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from finetune.progress.events import is_finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAINING_COLOR = "#2563eb"
HELDOUT_COLOR = "#dc2626"
INK = "#1f2937"
GRID = "#e5e7eb"
# A single step's loss jumps with its batch: from this many steps on a moving average is drawn over it.
SMOOTHED_FROM_STEPS = 20
SMOOTHING_SHARE = 0.1


def plot_loss(events: list[dict[str, Any]], path: Path, title: str = "Loss") -> None:
    """Draw the loss curve of a run's events (``step`` and ``eval``, others are passed over) into a PNG.

    Args:
        events: As in ``events.jsonl``; step and eval events have a step and a loss.
        path: Where to write it; its folder must exist.
        title: What stands above the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_training(axes, points_of(events, "step"))
    draw_heldout(axes, points_of(events, "eval"))
    axes.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=12)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss (nats per token)", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=INK)
    else:
        axes.text(0.5, 0.5, "no step was made", transform=axes.transAxes, ha="center", color=INK)
    figure.savefig(path, format="png")


def draw_training(axes: Axes, points: list[tuple[int, float]]) -> None:
    """Draw each step's loss, and its moving average where there are enough steps."""
    if not points:
        return
    steps, losses = zip(*points, strict=True)
    averaged = len(points) >= SMOOTHED_FROM_STEPS
    axes.plot(
        steps,
        losses,
        color=TRAINING_COLOR,
        alpha=0.3 if averaged else 1.0,
        linewidth=1.2 if averaged else 2.0,
        marker="" if len(points) > 1 else "o",
        label="training, each step" if averaged else "training",
    )
    if averaged:
        axes.plot(
            steps, moving_average(losses), color=TRAINING_COLOR, linewidth=2.2, label="training, smoothed"
        )


def draw_heldout(axes: Axes, points: list[tuple[int, float]]) -> None:
    """Draw the held-out loss with its values."""
    if not points:
        return
    steps, losses = zip(*points, strict=True)
    axes.plot(steps, losses, color=HELDOUT_COLOR, linewidth=1.2, linestyle="--", marker="o", label="held-out")
    for step, loss in {points[0], points[-1]}:
        axes.annotate(
            f"{loss:.2f}",
            (step, loss),
            xytext=(0, -15),
            textcoords="offset points",
            ha="center",
            color=HELDOUT_COLOR,
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )


def points_of(events: list[dict[str, Any]], kind: str) -> list[tuple[int, float]]:
    """Return step and loss of each event of a kind whose loss is finite, in the order of steps."""
    return sorted(
        (int(one["step"]), float(one["loss"])) for one in events if one["kind"] == kind and is_finite(one)
    )


def moving_average(values: Sequence[float]) -> list[float]:
    """Return each value's average with its neighbours: a tenth of all on either side, as many on both."""
    reach = round(len(values) * SMOOTHING_SHARE)
    averages = []
    for index in range(len(values)):
        near = min(reach, index, len(values) - 1 - index)
        averages.append(fmean(values[index - near : index + near + 1]))
    return averages
