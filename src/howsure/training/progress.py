"""Progress of a training run: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

__all__ = ["Progress"]


class Progress:
    """Context that shows how far a training run is.

    Nothing is shown in the first two seconds. Then it draws a bar on a terminal, if rich is installed; otherwise it
    prints a plain line, and then one every ten seconds.

    Args:
        total: Largest number of steps of the run, which may stop earlier.
        enabled: Whether to show it. None shows one line, after five seconds, if more than a minute may be left.
        stream: File to write to; standard error by default.
    """

    def __init__(self, total: int, enabled: bool | None = True, stream: Any = None) -> None:
        self.total, self.enabled = total, enabled
        self.stream = stream or sys.stderr
        self.started = time.perf_counter()
        self.shown = self.started - 8  # the first plain line comes after two seconds, then one every ten
        self.bar: Any = None

    def __enter__(self) -> Self:
        return self

    def update(self, step: int, latest: dict[str, Any]) -> None:
        """Show the step, and of ``latest`` the loss, the validation score and how many members still train."""
        if not self.enabled:
            self._announce(step)
            return
        words = f"loss {latest['loss']:.4f}  validation {latest['score']:.4f}  running {latest['running']}"
        now = time.perf_counter()
        if self.bar is None and now - self.started >= 2 and self.stream.isatty():
            self._start_bar()
        if self.bar is not None:
            self.bar.update(self.task, completed=step, description=words)
        elif now - self.shown >= 10:
            print(f"step {step}/{self.total}  {words}  at most {self._left(step)} left", file=self.stream, flush=True)
            self.shown = now

    def _start_bar(self) -> None:
        self.bar = _rich_bar(self.stream)
        if self.bar is not None:
            self.task = self.bar.add_task("", total=self.total)
            self.bar.start()

    def _left(self, step: int) -> str:
        """Return how long the rest may take, in words."""
        seconds = (time.perf_counter() - self.started) / step * (self.total - step)
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"

    def _announce(self, step: int) -> None:
        """Say once that a run without progress will take minutes."""
        passed = time.perf_counter() - self.started
        if self.enabled is not None or passed < 5:
            return
        self.enabled = False
        if passed / step * (self.total - step) > 60:
            print(f"training takes at most {self._left(step)} more; verbose=True shows progress", file=self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()


def _rich_bar(stream: Any) -> Any:
    """Return a progress bar of rich on the stream, or None where rich, which is an extra, is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        return None
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream), transient=True)
