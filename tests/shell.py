"""Calls of the command line within the process of a test, and small tables for them."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from howsure.cli import INTERRUPTED
from howsure.cli.app import run

QUICK = ("--members", "2", "--steps", "20", "--device", "cpu")  # the default method in about a second
# the fastest fit, for tests that do not depend on the method
SWIFT = ("--method", "ensemble", "--members", "1", "--steps", "10", "--device", "cpu")


class Said(NamedTuple):
    """What a command left: its exit code, and what it wrote to standard output and standard error."""

    code: int
    out: str
    error: str


def shell(capsys, *arguments: object) -> Said:
    """Run ``howsure ARGUMENTS`` as a shell would, but within this process."""
    capsys.readouterr()
    before = sys.argv
    sys.argv = ["howsure", *map(str, arguments)]
    try:
        code = run() or 0
    except SystemExit as stop:
        code = 0 if stop.code is None else int(stop.code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        sys.argv = before
    return Said(code, *capsys.readouterr())


def numbers(text: str) -> list[float]:
    """Return the numbers in a text, in their order."""
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def houses(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    """Return a table with numbers, text, dates, missing values, groups and codes."""
    random = np.random.default_rng(seed)
    size = random.uniform(30, 200, rows).round(1)
    town = random.choice(["Ulm", "Bonn", "Kiel"], rows)
    year = random.normal(size=rows).round(3)
    frame = pd.DataFrame(
        {
            "id": [f"h{k:05d}" for k in range(rows)],
            "size": size,
            "town": town,
            "year": np.where(random.random(rows) < 0.1, np.nan, year),
            "sold": pd.date_range("2020-01-01", periods=rows, freq="D").strftime("%Y-%m-%d"),
            "code": random.choice(["007", "012", "120"], rows),
            "street": random.choice([f"s{k}" for k in range(20)], rows),
        }
    )
    frame["price"] = (2 * size + 30 * (town == "Ulm") + 10 * random.normal(size=rows)).round(2)
    frame["rent"] = (frame["price"] / 10 + random.normal(size=rows)).round(2)
    return frame


def write(frame: pd.DataFrame, path: Path) -> Path:
    """Write a table as its ending says and return its path."""
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path
