"""Tables for people (Markdown) and for programs (CSV), from the same rows."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from howsure.files import write_text

__all__ = ["Rows", "as_text", "markdown", "mean_and_error", "write_table"]

Rows = Sequence[Mapping[str, Any]]


def mean_and_error(values: ArrayLike, digits: int = 3) -> str:
    """Return «mean ± standard error»; the mean alone for a single value, «diverged» if one is not finite.

    >>> mean_and_error([1.0, 2.0, 3.0], digits=2)
    '2.00 ± 0.58'
    """
    given = np.asarray(values, dtype=float)
    if not np.isfinite(given).all():
        return "diverged"
    text = f"{given.mean():.{digits}f}"
    if given.size > 1:
        text += f" ± {given.std(ddof=1) / given.size**0.5:.{digits}f}"
    return text.replace("-", "−")


def markdown(rows: Rows) -> str:
    """Return rows as a Markdown table, whose columns are those of the first row; nothing if there are no rows.

    >>> print(markdown([{"set": "yacht", "NLL": 0.12345}]))
    | set | NLL |
    |---|---|
    | yacht | 0.1235 |
    """
    if not rows:
        return ""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(as_text(row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def as_text(value: Any) -> str:
    """Return a value as tables and pages show it.

    Floats have four digits, integers commas; None is a dash, and what is not finite «diverged».

    >>> as_text(0.12345), as_text(6000), as_text(None), as_text("yacht")
    ('0.1235', '6,000', '–', 'yacht')
    """
    if value is None:
        return "–"
    if isinstance(value, float):
        return (f"{value:.4g}" if np.isfinite(value) else "diverged").replace("-", "−")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def write_table(folder: str | Path, name: str, rows: Rows, caption: str = "") -> Path:
    """Write ``name.csv``, with every digit, and ``name.md``, under its caption; return the path of the latter."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    contents = {"csv": text.getvalue(), "md": (f"{caption}\n\n" if caption else "") + markdown(rows) + "\n"}
    for kind, content in contents.items():
        write_text(Path(folder) / f"{name}.{kind}", content)
    return Path(folder) / f"{name}.md"
