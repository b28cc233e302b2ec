"""Compare the predictions and shell output of the present tree with the results of another commit, on this machine.

Fits 14 small tables in 6 configurations and runs ten shell commands, once with the tree of ``--against`` and once with
the working tree, in two processes of one thread each. Bits differ between processors, so nothing is stored in the
repository.

    python tools/golden.py check --against v0.1.0a0              # every number must be bit-equal
    python tools/golden.py check --against v0.1.0a0 --rtol 1e-9  # after a refactoring that changes the order of sums
"""

import argparse
import os
import pickle
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("howsure", "evidentia")  # the import package, newest name first
STEPS = 15
TEST_ROWS = 20
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MAX_DIFFERENCES_SHOWN = 40
Record = dict[str, Any]


# Tables ---------------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """Training rows followed by ``TEST_ROWS`` test rows, and further arguments of ``fit`` for the training rows."""

    x: Any
    y: np.ndarray
    fit_arguments: dict[str, np.ndarray]


def numeric(rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Return normal features, a smooth target of unit noise ratio 0.3, and the generator for later draws."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows + TEST_ROWS, columns))
    y = np.sin(2 * x[:, 0]) + x[:, -1] ** 2 + 0.3 * random.normal(size=len(x))
    return x, y, random


def make_tables() -> dict[str, Sample]:
    """Return the tables by name."""
    tables = {}
    x, y, random = numeric(200, 4, 1)
    tables["numeric"] = Sample(x, y, {})
    wide, wide_y, _ = numeric(150, 60, 2)
    tables["wide"] = Sample(wide, wide_y, {})
    levels = random.choice(["red", "green", "blue"], len(x))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "level": levels})
    tables["categories"] = Sample(frame, y + 2.0 * (levels == "red"), {})
    days = pd.to_datetime("2021-03-01") + pd.to_timedelta(np.arange(len(x)) * 7.5, unit="h")
    tables["dates"] = Sample(frame.assign(level=days), y + np.sin(np.arange(len(x)) / 20), {})
    tables["missing"] = Sample(np.where(random.random(x.shape) < 0.15, np.nan, x), y, {})
    groups = random.integers(0, 40, len(x))
    effects = random.normal(size=40)
    named = frame.assign(level=[f"group {k:02d}" for k in groups])
    tables["groups"] = Sample(named, y + effects[groups], {})
    constant = np.column_stack([x, np.full(len(x), 3.0), np.full(len(x), np.nan)])
    tables["constant columns"] = Sample(constant, y, {})
    tables["two targets"] = Sample(x, np.column_stack([y, 100 * x[:, 1] - y]), {})
    tables["whole numbers"] = Sample(x, np.round(2 * y), {})
    tables["heavy tails"] = Sample(x, y + 0.3 * random.standard_t(1.5, len(x)), {})
    few, few_y, _ = numeric(30, 3, 3)
    tables["30 rows"] = Sample(few, few_y, {})
    many, many_y, _ = numeric(5000, 6, 4)
    tables["5,000 rows"] = Sample(many, many_y, {})
    training = len(x) - TEST_ROWS
    tables["weights"] = Sample(x, y, {"sample_weight": random.uniform(0, 2, training).round(1)})
    bounds = np.where(random.random(training) < 0.2, 1, 0)
    tables["censored"] = Sample(x, y, {"censored": bounds})
    return tables


CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("EvidentialRegressor", {}),
    "one member": ("EvidentialRegressor", {"members": 1}),
    "no trees": ("EvidentialRegressor", {"members": 4, "inputs": ("numbers", "bins")}),
    "plain evidence": ("EvidentialRegressor", {"members": 4, "evidence": "plain"}),
    "ensemble": ("EnsembleRegressor", {"members": 3}),
    "positive target": ("EvidentialRegressor", {"members": 4, "target_transform": "positive"}),
}


# One tree -------------------------------------------------------------------------------------------------------------


def import_package() -> ModuleType:
    """Import the library of the tree that PYTHONPATH names, whatever it was called then."""
    for name in PACKAGES:
        if (Path(os.environ["PYTHONPATH"]) / name).is_dir():
            return __import__(name)
    raise SystemExit(f"no package of the names {', '.join(PACKAGES)} in {os.environ['PYTHONPATH']}")


def normalise(text: str, folder: str = "") -> str:
    """Replace the program's names, temporary paths, times and the width of rulers by fixed words."""
    text = text.replace(folder, "FOLDER") if folder else text
    text = re.sub(r"EvidentiaError|HowsureError", "ERROR", text)
    text = re.sub("|".join(PACKAGES), "PROGRAM", text, flags=re.IGNORECASE)
    text = re.sub(r"\b(ev|hs)\.", "PROGRAM.", text)
    text = re.sub(r"PROGRAM \d+\.\d+\.\d+\w*", "PROGRAM VERSION", text)
    text = re.sub(r"[\d,]+ rows/s", "SPEED", text)
    text = re.sub(r"\d+(\.\d+)?(e-?\d+)? ?(s|seconds?|ms|MB|kB|MiB)\b", "TIME", text)
    return re.sub(r"\s+", " ", text).strip()


def predictions(package: ModuleType, sample: Sample, configuration: str) -> Iterator[tuple[str, Any]]:
    """Yield the named results of one fit."""
    name, arguments = CONFIGURATIONS[configuration]
    training = len(sample.x) - TEST_ROWS
    x, y = sample.x, sample.y
    if configuration == "positive target":
        y = np.abs(y)
    test_x, test_y = (x.iloc[training:] if isinstance(x, pd.DataFrame) else x[training:]), y[training:]
    model = getattr(package, name)(steps=STEPS, random_state=0, device="cpu", verbose=False, **arguments)
    model.fit(x[:training], y[:training], **sample.fit_arguments)
    yield "encoded features", np.asarray(model.encoding_.transform(model._read(test_x, model.encoding_)))
    p = model.predict_distribution(test_x)
    for attribute in ("mean", "std", "aleatoric_std", "epistemic_std", "familiarity"):
        value = getattr(p, attribute)
        yield attribute, None if value is None else np.asarray(value)
    yield "quantiles", np.asarray(p.quantile(QUANTILES))
    yield "log density", np.asarray(p.log_prob(test_y))
    yield "crps", np.asarray(p.crps(test_y))


def fit_everything(package: ModuleType) -> Record:
    """Return the results of all fits. The result of a fit that raises is its error."""
    record: Record = {}
    for table, sample in make_tables().items():
        for configuration in CONFIGURATIONS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    for name, value in predictions(package, sample, configuration):
                        record[f"{table} / {configuration} / {name}"] = value
                except Exception as error:
                    record[f"{table} / {configuration}"] = normalise(f"{type(error).__name__}: {error}")
    return record


def commands() -> dict[str, list[str]]:
    """Return ten shell commands by name; they run in a folder with houses.csv and odd.csv."""
    quick = ["--members", "2", "--steps", "15", "--device", "cpu"]
    return {
        "version": ["--version"],
        "fit": ["fit", "houses.csv", "--target", "price", "--drop", "id", "-o", "model", *quick],
        "fit without target": ["fit", "houses.csv", "--target", "cost", "-o", "other", *quick],
        "evaluate": ["evaluate", "model", "houses.csv"],
        "predict": ["predict", "model", "houses.csv", "--keep", "id", "-o", "predictions.csv"],
        "predict again": ["predict", "model", "houses.csv", "-o", "predictions.csv"],
        "predict odd": ["predict", "model", "odd.csv", "-o", "odd_predictions.csv"],
        "report": ["report", "model", "houses.csv", "-o", "report.html"],
        "unknown option": ["predict", "model", "houses.csv", "--colour", "red"],
        "no model": ["info", "nothing"],
    }


def run_commands(package: str) -> Record:
    """Return exit code and normalised output of each command, and the table of predictions that they write."""
    random = np.random.default_rng(5)
    size, town = random.uniform(30, 200, 120).round(1), random.choice(["Ulm", "Bonn", "Kiel"], 120)
    price = (2 * size + 30 * (town == "Ulm") + 10 * random.normal(size=120)).round(2)
    houses = pd.DataFrame({"id": [f"h{k:03d}" for k in range(120)], "size": size, "town": town, "price": price})
    record: Record = {}
    with tempfile.TemporaryDirectory() as folder:
        houses.to_csv(Path(folder, "houses.csv"), index=False)
        houses.astype({"size": str}).assign(size="large").to_csv(Path(folder, "odd.csv"), index=False)
        for name, arguments in commands().items():
            made = subprocess.run(
                [sys.executable, "-m", f"{package}.cli", *arguments],
                cwd=folder,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"COLUMNS": "120", "NO_COLOR": "1"},
            )
            record[f"shell / {name} / exit code"] = str(made.returncode)
            record[f"shell / {name} / output"] = normalise(made.stdout + "\n" + made.stderr, folder)
        written = Path(folder, "predictions.csv")
        record["shell / predictions.csv"] = written.read_text() if written.exists() else "absent"
    return record


# Two trees ------------------------------------------------------------------------------------------------------------


def record_tree(source: Path, out: Path) -> "subprocess.Popen[bytes]":
    """Start the recording of the tree whose packages lie in ``source``."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = os.environ | threads | {"PYTHONPATH": str(source)}
    return subprocess.Popen([sys.executable, __file__, "record", str(out)], env=environment)


def compare(old: Any, new: Any, rtol: float) -> str | None:
    """Return how a result differs, or None if it does not."""
    if isinstance(old, str) or isinstance(new, str) or old is None or new is None:
        return None if old is new or (isinstance(old, str) and old == new) else f"{old!s:.300} -> {new!s:.300}"
    if old.shape != new.shape:
        return f"shape {old.shape} -> {new.shape}"
    if np.array_equal(old, new, equal_nan=True) or (rtol and np.allclose(new, old, rtol=rtol, atol=0, equal_nan=True)):
        return None
    scale = np.maximum(np.abs(old), np.finfo(float).tiny)
    return f"largest relative difference {np.nanmax(np.abs(new - old) / scale):.2e}, at {np.size(old)} numbers"


def check(against: str, rtol: float) -> int:
    """Record both trees side by side, print the differences and return their number."""
    with tempfile.TemporaryDirectory() as folder:
        old_tree, old, new = Path(folder, "tree"), Path(folder, "old"), Path(folder, "new")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(old_tree), against], cwd=ROOT, check=True)
        try:
            running = [record_tree(old_tree / "src", old), record_tree(ROOT / "src", new)]
            if max(process.wait() for process in running) != 0:
                raise SystemExit("a tree could not be recorded; its traceback is above")
            before, after = (pickle.loads(path.read_bytes()) for path in (old, new))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old_tree)], cwd=ROOT, check=True)
    names = list(dict.fromkeys([*before, *after]))
    found = {name: compare(before.get(name), after.get(name), rtol) for name in names}
    differences = {name: difference for name, difference in found.items() if difference is not None}
    for name, difference in list(differences.items())[:MAX_DIFFERENCES_SHOWN]:
        print(f"{name}: {difference}")
    how = "bit-equal" if rtol == 0 else f"equal to rtol {rtol:g}"
    print(f"{len(names) - len(differences)} of {len(names)} results {how} to those of {against}")
    return len(differences)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    checking = verbs.add_parser("check", help="compare the working tree with a commit; exit code 1 if they differ")
    checking.add_argument("--against", required=True, metavar="COMMIT")
    checking.add_argument("--rtol", type=float, default=0.0, help="relative tolerance; 0 asks for equal bits")
    recording = verbs.add_parser("record", help="record the tree of PYTHONPATH; used by check")
    recording.add_argument("out", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "check":
        sys.exit(1 if check(arguments.against, arguments.rtol) else 0)
    package = import_package()
    record = fit_everything(package) | run_commands(package.__name__)
    arguments.out.write_bytes(pickle.dumps(record))


if __name__ == "__main__":
    main()
