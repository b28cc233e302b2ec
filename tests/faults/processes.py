"""Kill, interrupt and race real processes.

Each check returns (how many were tried, what failed).
"""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from howsure.errors import InputError
from howsure.storage import load_model, save_model

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
Found = tuple[int, list[str]]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["faults.processes"])

FIT = """
    import sys, pickle
    import numpy as np, howsure as hs
    rng = np.random.default_rng(0)
    X, y = rng.random((120, 3)), rng.random(120)
    model = hs.EvidentialRegressor(members=2, hidden=(8,), steps=30, random_state=0).fit(X, y)
    before, parameters = model.predict(X), model.get_params()
    model.set_params(steps=1_000_000, validation_fraction=0.0)
    print("ready", flush=True)
    try:
        model.fit(X, y)
        print("finished")
    except KeyboardInterrupt:
        same = np.array_equal(model.predict(X), before)
        print("kept" if same and model.model_.result.steps == 30 else "changed", flush=True)
        raise
"""


@dataclass
class Count:
    """Header of a model file."""

    k: int


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python program in a process of its own and return it; it answers to signals as in a shell."""
    return run([sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)])


def run(command: list[str], **more: object) -> subprocess.Popen[str]:
    """Start a command with this source tree and return its process; one thread each, since many run at once."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(SOURCE), str(TESTS))),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, **more)  # type: ignore[call-overload]


def save_forever(path: Path, first: int, saved: Connection) -> None:
    """Send a first word, save models numbered from ``first`` on, and send the number of each that is written."""
    saved.send("ready")
    for k in itertools.count(first):
        save_model(path, {"w": torch.full((20_000,), float(k))}, Count(k))
        saved.send(k)


def start_saving(path: Path, first: int) -> tuple[BaseProcess, Connection]:
    """Start a process that saves models, forked from one that has done the imports; return it when it has begun."""
    numbers, saved = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=save_forever, args=(path, first, saved), daemon=True)
    process.start()
    saved.close()
    numbers.recv()
    return process, numbers


def numbers_of(process: BaseProcess, numbers: Connection) -> list[int]:
    """Kill a process that saves, and return the numbers that it sent."""
    process.kill()
    process.join()
    found = []
    with contextlib.suppress(EOFError, OSError), numbers:
        while True:
            found.append(numbers.recv())
    return found


def leftovers(path: Path) -> list[str]:
    """Save once more, which removes the parts of killed writers, and return the files that should not be there."""
    save_model(path, {"w": torch.zeros(3)}, Count(0))
    found = sorted(each.name for each in path.parent.iterdir())
    return [] if found == [path.name] else [f"left behind: {found}"]


def kills_in_save(count: int = 200, seed: int = 0) -> Found:
    """Kill processes at random moments of saving over a model: the old one or the new one must be there, whole."""
    choose, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        path, written = Path(scratch) / "model", -1
        for trial in range(count):
            process, numbers = start_saving(path, 1000 * trial)
            if trial == 0 or choose.random() < 0.5:
                written = numbers.recv()  # at least one save is through
            time.sleep(choose.random() * 0.02)
            written = max([written, *numbers_of(process, numbers)])
            try:
                tensors, settings = load_model(path)
            except InputError as error:
                failed.append(f"kill {trial}: {error}")
                continue
            if not (tensors["w"] == settings["k"]).all() or settings["k"] < written:
                failed.append(f"kill {trial}: {settings['k']} is there, {written} had been written")
        failed += leftovers(path)
    return count, failed


def writers(processes: int = 3, seconds: float = 3.0) -> Found:
    """Save to one file from several processes while this one loads: none may fail, and every model must be whole."""
    failed, loads = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model"
        save_model(path, {"w": torch.zeros(3)}, Count(0))
        crowd = [start_saving(path, 1_000_000 * k) for k in range(1, processes + 1)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            tensors, settings = load_model(path)
            loads += 1
            if not (tensors["w"] == settings["k"]).all():
                failed.append(f"torn: {settings['k']}")
        saves = 0
        for process, numbers in crowd:
            if not process.is_alive():
                failed.append(f"a writer ended with {process.exitcode}")
            saves += len(numbers_of(process, numbers))
        failed += leftovers(path)
    return saves + loads, failed


def interrupts_of_fit(count: int = 20, seed: int = 0) -> Found:
    """Interrupt ``fit`` at random moments: the estimator must stay as it was, and the interrupt be raised again."""
    choose, failed = random.Random(seed), []
    for trial in range(count):
        process = start(FIT)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(choose.random() * 1.0)
        process.send_signal(signal.SIGINT)
        said, error = process.communicate(timeout=60)
        if said.strip() != "kept" or process.returncode not in (-signal.SIGINT, 130):
            failed.append(f"interrupt {trial}: said {said!r}, exit {process.returncode}: {error[-300:]}")
    return count, failed


def command(*arguments: object) -> list[str]:
    """Return the command line of ``howsure`` in this source tree."""
    return [sys.executable, "-m", "howsure.cli", *map(str, arguments)]
