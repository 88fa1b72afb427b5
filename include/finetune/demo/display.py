"""What the demo prints while a run goes on: lines that stay, and on a terminal one part that moves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from finetune.progress.events import format_seconds

# Where no terminal shows a moving line, a plain one is printed this often.
PLAIN_LINE_SECONDS = 10.0
REFRESH_PER_SECOND = 5
NAME_WIDTH = 20
BAR_WIDTH = 24
MARKS = {"success": "[green]✓[/]", "failed": "[red]✗[/]"}


@dataclass
class Running:
    """A stage that runs now."""

    started: float
    note: str = ""
    share: float | None = None
    last_plain: float = 0.0


class Display:
    """Shows stages as they start, go on and end.

    Args:
        console: Where to; a terminal gets a moving part, anything else plain lines.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._running: dict[str, Running] = {}
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(f"  {escape(text)}", soft_wrap=True)

    def start_stage(self, name: str, seconds: float = 0.0) -> None:
        """Show that a stage has started, ``seconds`` ago."""
        now = time.monotonic()
        self._running[name] = Running(started=now - seconds, last_plain=now)
        if not self.console.is_terminal:
            self.console.print(f"  → {name} started")

    def update_stage(self, name: str, note: str, share: float | None = None) -> None:
        """Show how far a running stage is; ``share`` is the part that is done, from 0 to 1."""
        running = self._running[name]
        changed = note != running.note
        running.note, running.share = note, share
        now = time.monotonic()
        if changed and not self.console.is_terminal and now - running.last_plain >= PLAIN_LINE_SECONDS:
            running.last_plain = now
            self.console.print(f"    {name}: {escape(note)}", soft_wrap=True)

    def end_stage(self, name: str, state: str, seconds: float | None, note: str = "") -> None:
        """Show that a stage has ended, after how many seconds and with what remark."""
        self._running.pop(name, None)
        took = "" if seconds is None else f"{seconds:.1f} s"
        remark = f"  {escape(note)}" if note else ""
        mark = MARKS.get(state, "[yellow]-[/]")
        told = "" if state in MARKS else f"  {state}"
        self.console.print(f"  {mark} {name:<{NAME_WIDTH}} {took:>9}{told}{remark}", soft_wrap=True)

    def _render(self) -> Group:
        return Group(*(self._render_stage(name, running) for name, running in self._running.items()))

    def _render_stage(self, name: str, running: Running) -> Table:
        row = Table.grid(padding=(0, 1))
        cells: list[object] = [
            Spinner("dots"),
            f"[bold]{name:<{NAME_WIDTH}}[/]",
            f"{format_seconds(time.monotonic() - running.started):>9}",
        ]
        if running.share is not None:
            cells.append(ProgressBar(total=1.0, completed=running.share, width=BAR_WIDTH))
        cells.append(escape(running.note))
        row.add_row("", *cells)  # type: ignore[arg-type]
        return row
