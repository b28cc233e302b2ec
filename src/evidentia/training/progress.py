"""Progress on anything that takes longer than two seconds."""

import sys
import time
from types import TracebackType
from typing import Any, Self

__all__ = ["Progress"]


class Progress:
    """A bar on a terminal; elsewhere a plain line now and then."""

    def __init__(self, total: int, enabled: bool = True, stream: Any = None) -> None:
        self.total, self.enabled = total, enabled
        self.stream = stream or sys.stderr
        self.started = time.perf_counter()
        self.shown = self.started - 8  # the first plain line comes after two seconds, then one every ten
        self.bar: Any = None

    def __enter__(self) -> Self:
        if self.enabled and self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("training"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self.bar = Bar(*columns, console=Console(file=self.stream), transient=True)
            self.task = self.bar.add_task("", total=self.total)
            self.bar.start()
        return self

    def update(self, step: int, latest: dict[str, Any]) -> None:
        """Show where the training stands."""
        if not self.enabled:
            return
        words = f"loss {latest['loss']:.4f}  validation {latest['score']:.4f}  running {latest['running']}"
        if self.bar is not None:
            self.bar.update(self.task, completed=step, description=words)
            return
        now = time.perf_counter()
        if now - self.shown >= 10:
            left = (now - self.started) / step * (self.total - step)
            print(f"step {step}/{self.total}  {words}  {left:.0f} s left", file=self.stream, flush=True)
            self.shown = now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
