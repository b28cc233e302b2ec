"""Kill ``howsure fit`` and ``howsure predict`` at random moments: what was there before must be intact.

Each check returns (how many were tried, what failed).
"""

import contextlib
import io
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

import howsure as hs
from faults.processes import Found, command, run
from howsure.cli import models
from howsure.cli.app import app
from howsure.errors import InputError

ROWS = 150_000  # that are predicted, so that most of the time is spent on the output


def kills_in_fit(count: int = 20, seed: int = 0) -> Found:
    """Kill fits that replace a model, and fits that make one: there is the old model or the new one, or none yet."""
    choose, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        table, old, new = (Path(scratch) / name for name in ("table.csv", "old", "new"))
        _table(200).to_csv(table, index=False)
        whole = _seconds(_fit(table, old, seed=1))
        for trial in range(count):
            path = old if trial % 2 else new
            _kill(_fit(table, path, seed=2), "fitting to", choose.uniform(0, 1.1 * whole))
            try:
                if models.load(path).random_state not in ((1, 2) if path == old else (2,)):
                    failed.append(f"kill {trial}: {path.name} holds a model that no one saved")
            except InputError as error:
                if path == old:
                    failed.append(f"kill {trial}: the model that was there cannot be read: {error}")
                elif path.exists():
                    failed.append(f"kill {trial}: a model that looks complete cannot be read: {error}")
        for path in (old, new):  # the next fit works, and removes what killed ones left
            _seconds(_fit(table, path, seed=3))
            if models.load(path).random_state != 3:
                failed.append(f"after all kills {path.name} is not the new model")
        beside = sorted(path.name for path in Path(scratch).iterdir())
        if beside != ["new", "old", "table.csv"]:
            failed.append(f"left behind: {beside}")
    return count, failed


def kills_in_predict(
    count: int = 20, seed: int = 0, rows: int = ROWS, endings: tuple[str, ...] = (".csv", ".parquet")
) -> Found:
    """Kill predictions: the output is whole, or what was there before, and nothing else looks like one."""
    choose, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        table, model = Path(scratch) / "table.parquet", Path(scratch) / "model"
        frame = _table(rows)
        frame.to_parquet(table)
        learned = frame[:200]
        hs.EnsembleRegressor(members=1, steps=5, device="cpu", random_state=0).fit(
            learned[["a", "b"]], learned["y"]
        ).save(model)
        for ending in endings:
            output = Path(scratch) / f"predictions{ending}"
            whole = _seconds(_predict(model, table, output))
            complete = output.read_bytes()
            for trial in range(count // len(endings)):
                before = b"what was there" if trial % 2 else None
                output.write_bytes(before) if before else output.unlink(missing_ok=True)
                _kill(_predict(model, table, output), "ignored", choose.uniform(0, 1.1 * whole))
                after = output.read_bytes() if output.exists() else None
                if after not in (before, complete):
                    failed.append(f"kill {trial}: {output.name} is neither as before nor complete")
                failed += [f"kill {trial}: {name} looks like an output" for name in _visible(Path(scratch))]
            _seconds(_predict(model, table, output))
            if output.read_bytes() != complete:
                failed.append(f"{output.name}: after the kills the same command writes something else")
        left = sorted(path.name for path in Path(scratch).iterdir() if path.name.startswith("."))
        if left:
            failed.append(f"left behind: {left}")
    return len(endings) * (count // len(endings)), failed


def _table(rows: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 2))
    return pd.DataFrame(x, columns=["a", "b"]).assign(y=x[:, 0] + generator.normal(size=rows), c=1)


def _fit(table: Path, path: Path, seed: int) -> list[str]:
    few = ("--method", "ensemble", "--members", "1", "--steps", "20", "--device", "cpu")
    return [str(each) for each in ("fit", table, "--target", "y", "-o", path, "--force", "--seed", seed, *few)]


def _predict(model: Path, table: Path, output: Path) -> list[str]:
    return [str(each) for each in ("predict", model, table, "-o", output, "--force", "--keep", "y")]


def _seconds(arguments: list[str]) -> float:
    """Run a command to its end, within this process, and return how long it took."""
    started = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app(arguments, standalone_mode=False)
    return time.monotonic() - started


def _kill(arguments: list[str], ready: str, after: float) -> None:
    """Start a command and kill it so many seconds after it says that it is ready."""
    process = run(command(*arguments))
    assert process.stderr is not None
    for line in process.stderr:
        if ready in line:
            break
    time.sleep(after)
    process.kill()
    process.communicate()


def _visible(path: Path) -> list[str]:
    """Return the files of a path that a user sees and that no one asked for."""
    known = {"table.parquet", "model", "predictions.csv", "predictions.parquet"}
    return [path.name for path in path.iterdir() if path.name not in known and not path.name.startswith(".")]
