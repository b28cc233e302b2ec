"""Measures what `howsure fit` gives on rows of another kind, and makes the tables of paper/docs/shifts.md.

    python paper/studies/shifts.py --data DATA [--out paper/docs/results/shifts]
    python paper/studies/shifts.py --show [--out paper/docs/results/shifts]    # the tables of a record

Red wines teach about white ones, bikes of 2011 about 2012, houses inland about the coast. A tenth of the rows that
could be learned from is kept to compare with («inside»). Each model is that of `howsure fit TRAIN --test INSIDE` with
its defaults, and rows are flagged by the threshold that its fit learned from training rows alone. For the bikes a
second model is scored on the last tenth of 2011, by `--split-by-time`: what its owner could have known in time. A last
model of each shift also learns from 200 rows of the other kind, drawn at random, with a column that tells the kinds
apart, and is scored on the other rows of that kind. The wines, a small table, are drawn and fitted five times in all,
to see what chance does.
"""

import contextlib
import io
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from howsure import metrics
from howsure.cli import models
from howsure.cli.app import app
from howsure.estimators import Regressor
from howsure.io import read_file
from howsure.prediction import Prediction
from howsure.tables.splits import random
from howsure.training import resolve_device
from howsure_paper.datasets.folder import find_data
from howsure_paper.quoted.shifts import SHIFT_TABLES
from howsure_paper.record import read_record, write_record
from shared import Tables, device_and_record, new_record, option_parser, shifts

TARGET = "target"  # the name of its column in the tables that are written
TIMES = {"bikes, 2011 to 2012": "dteday"}  # shifts in time, and the column that has it
DRAWS = {"red to white wine": 5}  # fits by other seeds, to other nine tenths
KNOWN = 200  # rows of the other kind whose targets someone found out
PLACES = ("inside", "outside")


def write_tables(tables: Tables, folder: Path, rows: int | None, seed: int = 0) -> dict[str, int]:
    """Write the tables train.csv, inside.csv and outside.csv and return how many rows they have."""
    x, y, other_x, other_y = tables
    train, inside = random(len(y), 0.1, seed)
    train = np.sort(train if rows is None else train[:rows])
    written = {
        "train": x.iloc[train].assign(**{TARGET: y[train]}),
        "inside": x.iloc[inside].assign(**{TARGET: y[inside]}),
        "outside": other_x.assign(**{TARGET: other_y}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in written.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return {name: len(frame) for name, frame in written.items()}


def fit(folder: Path, name: str, options: Namespace, *further: str) -> Regressor:
    """Run `howsure fit` on train.csv and return the model that it saved."""
    words = ["fit", str(folder / "train.csv"), "--target", TARGET, "-o", str(folder / name), "--force", "--quiet"]
    words += ["--device", options.device, *(() if options.steps is None else ("--steps", str(options.steps)))]
    with contextlib.redirect_stdout(io.StringIO()):
        app([*words, *further], standalone_mode=False)
    return models.load(folder / name)


def score(p: Prediction, y: np.ndarray, unfamiliar: np.ndarray, constant: float) -> dict[str, float]:
    """Return the scores of a prediction, the share of its rows that is flagged, and the RMSE of a constant."""
    low, high = p.interval(0.9).T
    return {
        "rows": len(y),
        "coverage_90": metrics.coverage(p, y),
        "nll": metrics.nll(p, y),
        "crps": metrics.crps(p, y),
        "rmse": metrics.rmse(p, y),
        "rmse of the training mean": float(np.sqrt(np.mean((y - constant) ** 2))),
        "mean error": float(np.mean(p.mean - y)),
        "median width": float(np.median(high - low)),
        "aleatoric_std": float(np.median(p.aleatoric_std)),
        "epistemic_std": float(np.median(p.epistemic_std)),
        "familiarity": float(np.median(p.familiarity)),
        "flagged": float(np.mean(unfamiliar)),
    }


def measure(name: str, tables: Tables, folder: Path, options: Namespace) -> dict[str, Any]:
    """Return all that is measured of one shift."""
    started = time.perf_counter()
    found = {"rows": write_tables(tables, folder, options.rows), **score_both(folder, options, seed=0)}
    if name in TIMES:
        scored = fit(folder, "by_time", options, "--split-by-time", TIMES[name]).record_
        found["last tenth in time"] = {"rows": scored["held_out"]["rows"], **scored["scores"][TARGET]["evidential"]}
    found["after"] = measure_after(folder, options)
    if name in DRAWS:
        found["draws"] = [found["outside"] | {"flagged inside": found["inside"]["flagged"]}]
        for seed in range(1, DRAWS[name]):
            write_tables(tables, folder / f"draw_{seed}", options.rows, seed)
            own = score_both(folder / f"draw_{seed}", options, seed)
            found["draws"].append(own["outside"] | {"flagged inside": own["inside"]["flagged"]})
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def score_both(folder: Path, options: Namespace, seed: int) -> dict[str, Any]:
    """Return the scores of a model inside and outside, and there those of flagged and of other rows."""
    model = fit(folder, "model", options, "--test", str(folder / "inside.csv"), "--seed", str(seed))
    found: dict[str, Any] = {"unfamiliar_below": model.unfamiliar_below_ or 0.0}  # too few held-out rows have none
    constant = float(read_file(folder / "train.csv")[TARGET].mean())
    for place in PLACES:
        frame = read_file(folder / f"{place}.csv")
        y = frame[TARGET].to_numpy(float)
        p = model.predict_distribution(frame.drop(columns=TARGET))
        flagged = p.familiarity < found["unfamiliar_below"]
        found[place] = score(p, y, flagged, constant)
        for part, rows in ((f"{place}, not flagged", ~flagged), (f"{place}, flagged", flagged)):
            if rows.any():
                found[part] = score(p[rows], y[rows], flagged[rows], constant)
        if place == "inside":
            found |= score_copies(p, y, flagged, constant, frame, folder)
    return found


def score_copies(
    p: Prediction, y: np.ndarray, flagged: np.ndarray, constant: float, rows: pd.DataFrame, folder: Path
) -> dict[str, Any]:
    """Return the scores of rows that are exact copies of training rows, and of the others, if there are copies."""
    train = read_file(folder / "train.csv").drop_duplicates()
    copied = rows.merge(train, how="left", indicator=True)["_merge"].eq("both").to_numpy()
    if not copied.any():
        return {}
    parts = {"inside, copies of training rows": copied, "inside, no copies": ~copied}
    return {name: score(p[own], y[own], flagged[own], constant) for name, own in parts.items()}


def measure_after(folder: Path, options: Namespace) -> dict[str, float]:
    """Return scores on rows of the other kind, of a model that has learned from a few of them as well."""
    train, outside = (read_file(folder / f"{name}.csv").assign(kind=name) for name in ("train", "outside"))
    order = np.random.default_rng(0).permutation(len(outside))
    known = min(KNOWN, len(outside) // 2)
    together = pd.concat([train, outside.iloc[np.sort(order[:known])]], ignore_index=True)
    rest = outside.iloc[np.sort(order[known:])]
    (folder / "after").mkdir(exist_ok=True)
    together.to_csv(folder / "after" / "train.csv", index=False)
    rest.to_csv(folder / "after" / "rest.csv", index=False)
    model = fit(folder / "after", "model", options, "--test", str(folder / "after" / "rest.csv"))
    y = rest.pop(TARGET).to_numpy(float)
    p = model.predict_distribution(rest)
    found = score(p, y, p.familiarity < (model.unfamiliar_below_ or 0.0), float(together[TARGET].mean()))
    constant = np.full(len(y), outside[TARGET].iloc[order[:known]].mean())
    return found | {"known": known, "rmse of their mean": float(np.sqrt(np.mean((y - constant) ** 2)))}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, help="training steps (default: the regressor's)")
    parser.add_argument("--rows", type=int, help="most training rows of each table, drawn at random (default: all)")
    parser.add_argument("--only", help="one shift, by its first word; the others stay as the record has them")
    parser.add_argument("--keep", type=Path, help="folder for tables and models (default: a temporary one)")
    parser.add_argument("--show", action="store_true", help="only make the tables of the record")


def run(options: Namespace, data: Path) -> None:
    """Measure the shifts and write the record after each."""
    record = new_record("shifts", resolve_device(options.device), rows=options.rows or "all", shifts={})
    if options.only is not None:
        record["shifts"] = read_record(options.out)["shifts"]
    with tempfile.TemporaryDirectory() as scratch:
        for name, tables in shifts(f"{data}/shift").items():
            if options.only not in (None, name.replace(",", "").split()[0]):
                continue
            folder = (options.keep or Path(scratch)) / name.replace(",", "").split()[0]
            record["shifts"][name] = measure(name, tables, folder, options)
            write_record(options.out, record)
            print(f"{name}: {record['shifts'][name]['seconds']} s", flush=True)


def main() -> None:
    parser = option_parser(__doc__, "shifts")
    add_options(parser)
    options = parser.parse_args()
    if not options.show:
        data = find_data(options.data)
        if data is None:
            parser.error("the tables are in the folder shift/ of the data: pass --data")
        run(options, data)
    record = read_record(options.out)
    for make in SHIFT_TABLES.values():
        print(f"\n{make(record)}")
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
