"""Progress of a training run."""

import sys
from typing import Any, Self

from tqdm import tqdm

__all__ = ["Progress"]

SECONDS_BEFORE_BAR = 2.0
SECONDS_BETWEEN_LINES = 10.0  # where there is no terminal


class Progress:
    """Context with a progress bar of tqdm, which appears after two seconds.

    Args:
        total: largest number of steps of the run, which may stop earlier.
        enabled: whether to show it; None shows it on a terminal only.
        stream: file to write to; standard error by default.
    """

    def __init__(self, total: int, enabled: bool | None = True, stream: Any = None) -> None:
        stream = stream or sys.stderr
        self.bar = tqdm(
            total=total,
            desc="training",
            unit="step",
            delay=SECONDS_BEFORE_BAR,
            mininterval=0.1 if stream.isatty() else SECONDS_BETWEEN_LINES,
            file=stream,
            leave=False,
            disable=None if enabled is None else not enabled,
        )

    def __enter__(self) -> Self:
        return self

    def update(self, step: int, latest: dict[str, Any]) -> None:
        """Show the step, and of ``latest`` the loss, the validation score and how many members still train."""
        if not self.bar.disable:
            numbers = {"loss": latest["loss"], "validation": latest["score"], "running": latest["running"]}
            self.bar.set_postfix(numbers, refresh=False)
            self.bar.update(step - self.bar.n)

    def __exit__(self, *_: object) -> None:
        self.bar.close()
