"""Kills, interrupts and writers side by side: real processes, real signals.

Each function returns (how many were tried, what failed).
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from evidentia.errors import InputError
from evidentia.persistence import load_model

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
Found = tuple[int, list[str]]

SAVE = """
    import sys, torch
    from evidentia.persistence import save_model
    folder, first, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    print("ready", flush=True)
    sys.stdin.readline()
    for k in range(first, first + 100_000):
        save_model(folder, {"w": torch.full((20_000,), float(k))}, {"k": k})
        print(k, flush=True)
"""
FIT = """
    import sys, pickle
    import numpy as np, evidentia as ev
    rng = np.random.default_rng(0)
    X, y = rng.random((120, 3)), rng.random(120)
    model = ev.EvidentialRegressor(members=2, hidden=(8,), steps=30, random_state=0).fit(X, y)
    before, parameters = model.predict(X), model.get_params()
    model.set_params(steps=1_000_000)
    print("ready", flush=True)
    try:
        model.fit(X, y)
        print("finished")
    except KeyboardInterrupt:
        same = np.array_equal(model.predict(X), before)
        print("kept" if same and model.fitted_.training.steps == 30 else "changed", flush=True)
        raise
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a program in a process of its own that answers to signals as in a shell."""
    return run([sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)])


def run(command: list[str], **more: object) -> subprocess.Popen[str]:
    """Start a command with the source tree and one thread, so that many of them do not stand in each other's way."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(SOURCE), str(TESTS))),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, **more)  # type: ignore[call-overload]


def kills_in_save(count: int = 200, seed: int = 0) -> Found:
    """kill −9 at random moments of saving over a model: the old one or the new one is there, whole."""
    choose, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        folder, written = Path(scratch) / "model", -1
        for trial in range(count):
            process = start(SAVE, folder, 1000 * trial, 0)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            process.stdin.write("go\n")
            process.stdin.flush()
            if trial == 0 or choose.random() < 0.5:
                written = int(process.stdout.readline())  # at least one save is through
            time.sleep(choose.random() * 0.02)
            process.kill()
            said = process.communicate()[0].split()
            written = int(said[-1]) if said else written
            try:
                tensors, settings = load_model(folder)
            except InputError as error:
                failed.append(f"kill {trial}: {error}")
                continue
            if not (tensors["w"] == settings["k"]).all() or settings["k"] < written:
                failed.append(f"kill {trial}: {settings['k']} is there, {written} had been written")
        start_again(folder)
        left = sorted(path.name for path in (*folder.iterdir(), *Path(scratch).iterdir()))
        if len(left) != 3:  # model.json, its tensors, and the folder itself
            failed.append(f"left behind: {left}")
    return count, failed


def start_again(folder: Path) -> None:
    """One more save, which removes what killed ones left."""
    import torch

    from evidentia.persistence import save_model

    save_model(folder, {"w": torch.zeros(3)}, {"k": 0})


def writers(processes: int = 3, seconds: float = 3.0) -> Found:
    """Several processes save to one folder while this one loads: nobody fails, and every model read is whole."""
    failed, loads = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        start_again(folder)
        crowd = [start(SAVE, folder, 1_000_000 * k, 0) for k in range(1, processes + 1)]
        for process in crowd:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            process.stdin.write("go\n")
            process.stdin.flush()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            tensors, settings = load_model(folder)
            loads += 1
            if not (tensors["w"] == settings["k"]).all():
                failed.append(f"torn: {settings['k']}")
        saves = 0
        for process in crowd:
            if process.poll() is not None:
                failed.append(f"a writer ended: {process.communicate()[1][-300:]}")
                continue
            process.kill()
            saves += len(process.communicate()[0].split())
        start_again(folder)
        left = sorted(path.name for path in (*folder.iterdir(), *Path(scratch).iterdir()))
        if len(left) != 3:
            failed.append(f"left behind: {left}")
    return saves + loads, failed


def interrupts_of_fit(count: int = 20, seed: int = 0) -> Found:
    """Ctrl-C at random moments of ``fit``: the estimator stays as it was, and the interrupt goes on."""
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
    """The shell's command in this source tree."""
    return [sys.executable, "-m", "evidentia.cli", *map(str, arguments)]


def interrupts_of_reproduce(name: str, count: int = 20, seed: int = 0, longest: float = 6.0) -> Found:
    """Ctrl-C at random moments of ``reproduce``: exit 130, and the record holds finished results only.

    The same command is then run to its end, and what it says must be what an undisturbed run says.
    """
    choose, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        quiet, disturbed = Path(scratch) / "quiet", Path(scratch) / "disturbed"
        if (said := run([*_experiment(name), "--out", str(quiet)]).communicate()) and not _numbers(quiet):
            return 1, [f"{name} did not run: {said[1][-500:]}"]
        tried = 0
        while tried < count:
            process = run([*_experiment(name), "--out", str(disturbed)])
            time.sleep(3 + choose.random() * longest)  # past the imports
            if process.poll() is not None:  # nothing was left to do: begin anew
                process.communicate()
                if _numbers(disturbed) != _numbers(quiet):
                    failed.append(f"{name}: after {tried} interrupts the numbers differ")
                for path in sorted(disturbed.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()
                continue
            process.send_signal(signal.SIGINT)
            error = process.communicate(timeout=120)[1]
            tried += 1
            if process.returncode not in (130, -signal.SIGINT) or (
                process.returncode == 130 and "interrupted" not in error
            ):
                failed.append(f"{name}, interrupt {tried}: exit {process.returncode}: {error[-300:]}")
            failed += [f"{name}, interrupt {tried}: {wrong}" for wrong in _unfinished(disturbed, quiet)]
        last = run([*_experiment(name), "--out", str(disturbed)])
        last.communicate()
        if last.returncode or _numbers(disturbed) != _numbers(quiet):
            failed.append(f"{name}: the numbers after {tried} interrupts are not those of an undisturbed run")
    return count, failed


def _experiment(name: str) -> list[str]:
    if name == "uci":
        return command("reproduce", "uci", "--quick", "--sets", "diabetes", "--members", "2", "--device", "cpu")
    return command(
        "reproduce", "depth", "--quick", "--groups", "evidential;gaussian", "--steps", "60", "--device", "cpu"
    )


def _numbers(folder: Path) -> dict[str, object]:
    """The scores of a record, without times."""
    path = folder / "record.json"
    if not path.exists():
        return {}
    results = json.loads(path.read_text(encoding="utf-8")).get("results", {})
    if not results:
        return {}
    if any("splits" in r for methods in results.values() if isinstance(methods, dict) for r in methods.values()):
        return {f"{name} {m}": r["splits"] for name, methods in results.items() for m, r in methods.items()}
    return {name: [(t["rmse"], t["nll"]) for t in trials] for name, trials in results.items()}


def _unfinished(disturbed: Path, quiet: Path) -> list[str]:
    """Results in the record of an interrupted run that are not those of a finished one."""
    whole = _numbers(quiet)
    return [
        f"{key} is in the record, half-trained" for key, value in _numbers(disturbed).items() if value != whole[key]
    ]
