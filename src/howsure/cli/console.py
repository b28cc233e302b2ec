"""Output of the commands: remarks and progress on standard error, tables of plain text on standard output."""

import contextlib
import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from howsure.errors import InputError, UnreadableCellsWarning

__all__ = [
    "Coverage",
    "Encoding",
    "Force",
    "Progress",
    "Quiet",
    "Seed",
    "Separator",
    "column",
    "counted",
    "number",
    "prepare_streams",
    "printable",
    "remark",
    "share",
    "speaking",
    "table",
]

SECONDS_BEFORE_PROGRESS = 2.0
SECONDS_BETWEEN_LINES = 10.0  # where there is no terminal


def _probability(value: float) -> float:
    if not 0 < value < 1:
        raise InputError(f"--coverage is a probability between 0 and 1, as in 0.9, got {value:g}", value=value)
    return value


Coverage = Annotated[
    float, typer.Option("--coverage", callback=_probability, help="Probability of the interval from lower to upper.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Results, warnings and errors only.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of everything random.")]
Separator = Annotated[
    str | None, typer.Option("--separator", help="Of the fields of a CSV file; found by itself.", metavar="CHARACTER")
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", help="Of a CSV file, such as utf-16; found by itself.", metavar="NAME")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]


def column(text: str, *names: str) -> Any:
    """Return the declaration of an option that takes the name of a column, with its help text."""
    return typer.Option(*names, help=text, metavar="COLUMN")


def prepare_streams() -> None:
    """Make standard output and standard error such that no character and no missing reader can stop a command.

    A console that cannot show λ shows a question mark. Where the reader of a pipe has left, as ``head -1`` does, the
    rest of the text is dropped and the work goes on, because the result of a command may be a file.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
            continue
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        try:
            handle = None if stream.isatty() else stream.fileno()
        except (AttributeError, OSError, ValueError):  # no file of the operating system
            handle = None
        if handle is not None and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw: Any = _Pipe(handle, "wb", closefd=False)
            buffer = raw if isinstance(stream.buffer, io.FileIO) else io.BufferedWriter(raw)  # as Python has it
            lines, at_once = stream.line_buffering, stream.write_through
            text = io.TextIOWrapper(buffer, stream.encoding, "replace", line_buffering=lines, write_through=at_once)
            setattr(sys, name, text)


class _Pipe(io.FileIO):
    """File or pipe that accepts all text, also after the reader of the pipe has left."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(BrokenPipeError):
            return super().write(data)
        return len(data)


@contextlib.contextmanager
def speaking(in_batches: bool = False) -> Iterator[None]:
    """Show each warning of the library once, as a line on standard error, while the block runs.

    Args:
        in_batches: whether each row is read once, in some batch. The unreadable cells of all batches are then added up,
            and shown when the block ends.
    """
    said: set[str] = set()
    unreadable: list[UnreadableCellsWarning] = []  # appended to by several threads

    def show(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        if in_batches and isinstance(message, UnreadableCellsWarning):
            unreadable.append(message)
            return
        text = " ".join(str(message).split())
        if issubclass(category, UserWarning) and text not in said:
            said.add(text)
            remark(f"note: {text}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other libraries, for their programmers
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
    for column in dict.fromkeys(each.column for each in unreadable):
        own = [each for each in unreadable if each.column == column]
        count = sum(each.count for each in own)
        cells = "1 cell" if count == 1 else f"{count:,} cells"
        remark(f"note: column {column!r}: {cells} cannot be read and count as missing, such as {own[0].value!r:.60}")


def remark(text: str, quiet: bool = False) -> None:
    """Write a line to standard error, unless ``quiet``."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    r"""Return text without characters that could move the cursor or break a line: names of columns come from files.

    >>> printable("a\nb\x1b[2J")
    'a?b?[2J'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def counted(rows: int) -> str:
    """Return a number of rows in words.

    >>> counted(1), counted(1200)
    ('1 row', '1,200 rows')
    """
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a number with four significant digits, or a dash.

    >>> number(53.21987), number(0.00012345), number(None), number(1234567.8)
    ('53.22', '0.0001234', '–', '1,234,568')
    >>> number(5), number(1234.0), number(0.0), number(1e12)
    ('5.000', '1234', '0', '1.000e+12')
    """
    if value is None or value != value:  # NaN
        return "–"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:#.4g}".rstrip(".")


def share(value: float | None) -> str:
    """Return a share as a percentage with one decimal, or a dash.

    >>> share(0.909), share(None)
    ('90.9%', '–')
    """
    return "–" if value is None or value != value else f"{100 * value:.1f}%"


def table(rows: Sequence[Mapping[str, Any]], left: Sequence[str] = ()) -> str:
    """Return rows as aligned plain text; columns named in ``left`` start at the left, the first always does.

    >>> print(table([{"model": "linear", "RMSE": "1.5"}, {"model": "constant", "RMSE": "10"}]))
    model     RMSE
    linear     1.5
    constant    10
    """
    if not rows:
        return ""
    names = list(rows[0])
    cells = [[printable(str(text)) for text in line] for line in (names, *([row[n] for n in names] for row in rows))]
    widths = [max(len(line[k]) for line in cells) for k in range(len(names))]
    at_left = [k == 0 or name in left for k, name in enumerate(names)]

    def aligned(line: Sequence[str]) -> str:
        parts = zip(line, widths, at_left, strict=True)
        return "  ".join(text.ljust(width) if first else text.rjust(width) for text, width, first in parts).rstrip()

    return "\n".join(map(aligned, cells))


class Progress:
    """Context that shows on standard error how long a task has run, and how many of its rows are done.

    Nothing is shown in the first two seconds. Then a line is rewritten every half second on a terminal; elsewhere a
    line is added every ten seconds.

    Args:
        task: name of the task.
        total: number of its rows, None if it is unknown.
        quiet: show nothing.
    """

    def __init__(self, task: str, total: int | None = None, quiet: bool = False) -> None:
        self.task, self.total, self.quiet, self.done = task, total, quiet, 0
        self.started = time.perf_counter()
        self.ended = threading.Event()
        self.terminal = sys.stderr.isatty()
        self.ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if not self.quiet:
            self.ticker.start()
        return self

    def add(self, rows: int) -> None:
        """Count more rows as done."""
        self.done += rows

    def _tick(self) -> None:
        wait = SECONDS_BEFORE_PROGRESS
        while not self.ended.wait(wait):
            wait = 0.5 if self.terminal else SECONDS_BETWEEN_LINES
            end = "\x1b[K\r" if self.terminal else "\n"
            print(f"{self.task}: {self.summary()}", end=end, file=sys.stderr, flush=True)

    def summary(self) -> str:
        """Return the time, or the number of rows and their rate."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        if not self.done:
            return f"{seconds:.0f} s"
        of = "" if self.total is None or self.total == self.done else f" of {self.total:,}"
        return f"{self.done:,}{of} row{'' if self.done == 1 else 's'}, {self.done / seconds:,.0f} rows/s"

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if self.ticker.is_alive():
            self.ticker.join()
            if self.terminal:
                print("\x1b[K", end="", file=sys.stderr, flush=True)
