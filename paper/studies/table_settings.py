"""Compares settings of `EvidentialRegressor()` on many small tables: width of the networks, number of networks, folds.

    python paper/studies/table_settings.py --data DATA --tables FOLDER [--count 14] [--settings "9 networks"]
        [--tails] [--out out/table_settings]

Tables are the rows of the UCI sets that belong to the first standard training split (at most 2,500), and CSV files
drawn at random from a folder, for example those of the package ``pydataset``, with 80 to 2,500 rows. The target of a
file is its last column of numbers with more than 25 values. A quarter of the rows is set aside, or with --tails the
sixth of the rows at each end of a random direction. Prints for each setting the mean differences to the defaults.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch

import howsure as hs
from howsure.distributions import Discrete
from howsure.likelihoods.base import Recipe
from howsure.tables import evidence, splits
from howsure_paper.datasets import uci
from howsure_paper.record import write_record
from shared import new_record, option_parser

MAX_ROWS = 2500
SETS = ("boston", "concrete", "energy", "yacht", "kin8nm", "power", "protein")
Table = tuple[str, pd.DataFrame, np.ndarray]
SETTINGS = {  # share of the width, parameters of the regressor, constants of howsure.tables.evidence
    "default": (1.0, {}, {}),
    "width × 1.5": (1.5, {}, {}),
    "width × 0.75": (0.75, {}, {}),
    "9 networks": (1.0, {"members": 9}, {}),
    "500 steps per fold": (1.0, {}, {"FOLD_STEPS": 500}),
}


def tables(data: str, sets: list[str], folder: Path, count: int) -> Iterator[Table]:
    """Yield the UCI tables, then ``count`` tables of the folder."""
    for name in sets:
        table = uci.load(name, data)
        rows = np.random.default_rng(1).permutation(table.splits[0][0])[:MAX_ROWS]
        yield name, pd.DataFrame(table.x[rows]).add_prefix("c"), table.y[rows]
    files = np.random.default_rng(101).permutation(sorted(str(path) for path in folder.rglob("*.csv")))
    for file in files:
        frame = pd.read_csv(file, index_col=0, encoding_errors="replace")
        numbers = [c for c in frame if pd.api.types.is_numeric_dtype(frame[c]) and frame[c].nunique() > 25]
        if not (80 <= len(frame) <= MAX_ROWS and 3 <= frame.shape[1] <= 40 and numbers):
            continue
        if count == 0:
            return
        count -= 1
        frame = frame[frame[numbers[-1]].notna()]
        yield Path(file).stem, frame.drop(columns=numbers[-1]), frame[numbers[-1]].to_numpy(float)


def divide(x: pd.DataFrame, rows: int, tails: bool) -> splits.Split | None:
    """Return rows to learn from and rows that are set aside, None for tails of a table with one column of numbers."""
    if not tails:
        return splits.random(rows, 0.25, seed=3)
    numbers = x.select_dtypes("number")
    if numbers.shape[1] < 2:
        return None
    scaled = ((numbers - numbers.mean()) / (numbers.std() + 1e-9)).fillna(0).to_numpy()
    order = np.argsort(scaled @ np.random.default_rng(5).normal(size=scaled.shape[1]))
    end = rows // 6
    return order[end:-end], np.r_[order[:end], order[-end:]]


def scores_of(
    setting: str, x: pd.DataFrame, y: np.ndarray, division: splits.Split, steps: int | None
) -> dict[str, float]:
    """Fit with a setting, and return the scores of the rows set aside in deviations of the training targets."""
    width, parameters, constants = SETTINGS[setting]
    default, (train, aside) = Recipe.for_rows, division

    def recipe(rows: int) -> Recipe:
        found = default(rows)
        hidden = tuple(8 * round(units * width / 8) for units in found.network.hidden)
        return replace(found, network=replace(found.network, hidden=hidden))

    with mock.patch.object(Recipe, "for_rows", recipe), mock.patch.dict(vars(evidence), constants):
        start = time.process_time()
        model = hs.EvidentialRegressor(random_state=0, steps=steps, device="cpu", verbose=False, **parameters)
        model.fit(x.iloc[train], y[train])
        seconds = time.process_time() - start
        p, deviation = model.predict_distribution(x.iloc[aside]), y[train].std()
        inside = p.interval(0.9)
    density = not isinstance(p.distribution, Discrete)
    return {
        "nll": float(-p.log_prob(y[aside]).mean() - density * np.log(deviation)),
        "crps": float(p.crps(y[aside]).mean() / deviation),
        "coverage": float(((inside[:, 0] <= y[aside]) & (y[aside] <= inside[:, 1])).mean()),
        "cpu": seconds,
    }


def print_differences(rows: list[dict], chosen: list[str]) -> None:
    """Print for each setting the mean differences to the defaults over tables."""
    found = {(row["table"], row["setting"]): row for row in rows}
    names = list(dict.fromkeys(row["table"] for row in rows))
    print(f"{'setting':<24}{'tables':>7}{'NLL':>9}{'worst':>9}{'CRPS':>9}{'coverage':>10}{'CPU time':>10}")
    for setting in chosen:
        pairs = [(found[name, setting], found[name, "default"]) for name in names if (name, setting) in found]
        nll = np.array([a["nll"] - b["nll"] for a, b in pairs])
        crps, cpu = (np.exp(np.mean([np.log(a[key] / b[key]) for a, b in pairs])) for key in ("crps", "cpu"))
        covered = np.mean([a["coverage"] for a, _ in pairs])
        print(
            f"{setting:<24}{len(pairs):>7}{nll.mean():>+9.4f}{nll.max():>+9.3f}{crps:>9.4f}{covered:>10.3f}{cpu:>10.2f}"
        )


def main() -> None:
    parser = option_parser(__doc__, "table_settings")
    parser.add_argument("--tables", type=Path, required=True, help="folder of CSV files")
    parser.add_argument("--sets", default=",".join(SETS), help="UCI sets with commas")
    parser.add_argument("--steps", type=int, help="training steps (default: those of the regressor)")
    parser.add_argument("--count", type=int, default=14, help="tables of the folder")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="names with commas")
    parser.add_argument("--tails", action="store_true", help="set aside the ends of a direction")
    options: argparse.Namespace = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = list(dict.fromkeys(["default", *options.settings.split(",")]))
    record = new_record("table_settings", torch.device("cpu"), tails=options.tails, rows=[])
    for name, x, y in tables(options.data, options.sets.split(","), options.tables, options.count):
        division = divide(x, len(y), options.tails)
        for setting in chosen if division else ():
            row = {
                "table": name,
                "rows": len(y),
                "setting": setting,
                **scores_of(setting, x, y, division, options.steps),
            }
            record["rows"].append(row)
            write_record(options.out, record)
    print_differences(record["rows"], chosen)


if __name__ == "__main__":
    main()
