"""Calls of ``howsure-paper``, in the process of a test and in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from howsure.cli import INTERRUPTED
from howsure_paper.cli import run

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", ROOT / "paper" / "src")


class Said(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    error: str


def shell(capsys, *arguments: object) -> Said:
    """Run ``howsure-paper ARGUMENTS`` as a shell would, but within this process."""
    capsys.readouterr()
    before = sys.argv
    sys.argv = ["howsure-paper", *map(str, arguments)]
    try:
        code = run() or 0
    except SystemExit as stop:
        code = 0 if stop.code is None else int(stop.code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        sys.argv = before
    return Said(code, *capsys.readouterr())


def command(*arguments: object) -> list[str]:
    """Return the command line of ``howsure-paper`` in this source tree."""
    return [sys.executable, "-m", "howsure_paper", *map(str, arguments)]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """Start a command with this source tree and one thread, and return its process."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
