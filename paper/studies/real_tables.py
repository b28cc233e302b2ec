"""Measures ``EvidentialRegressor()`` on two tables as people have them: bikes hired by the hour, houses in California.

    python paper/studies/real_tables.py --data DATA [--splits 3] [--steps 50] [--device cuda] [--out out/real_tables]

The tables are what ``pandas.read_csv`` makes of the files in DATA/shift: counts, dates as text, hours, a text column,
missing values. Nothing is prepared but that the two columns which add up to the number of bikes are dropped. A fifth of
the rows is predicted once: chosen at random, several times, and of the bikes also the latest. For the bikes the
regressor is fitted a second time with ``target_transform="positive"``, where the version has it.
"""

import time

import numpy as np
import pandas as pd

from howsure import EvidentialRegressor, metrics
from howsure.tables import splits
from howsure.training import resolve_device
from howsure_paper.record import write_record
from shared import device_and_record, new_record, option_parser

SCORES = {"rmse": metrics.rmse, "nll": metrics.nll, "crps": metrics.crps, "coverage_90": metrics.coverage}


def bikes(folder) -> tuple[pd.DataFrame, pd.Series]:
    """Return the hours of two years in their order, and how many bikes were hired in each."""
    table = pd.read_csv(folder / "shift" / "bike_hour.csv")
    return table.drop(columns=["casual", "registered", "cnt"]), table["cnt"]


def houses(folder) -> tuple[pd.DataFrame, pd.Series]:
    """Return the blocks of California, and the median value of their houses."""
    table = pd.read_csv(folder / "shift" / "california_housing.csv")
    return table.drop(columns="median_house_value"), table["median_house_value"]


def scores_of(x: pd.DataFrame, y: pd.Series, split: splits.Split, seed: int, **parameters) -> dict:
    """Return the scores of a regressor on the test rows of a split, and how it was trained."""
    train, test = split
    started = time.perf_counter()
    model = EvidentialRegressor(random_state=seed, **parameters).fit(x.iloc[train], y.iloc[train])
    seconds = time.perf_counter() - started
    p = model.predict_distribution(x.iloc[test])
    target = y.iloc[test].to_numpy(float)
    scores = {name: score(p, target) for name, score in SCORES.items()}
    return {"seed": seed, **scores, "seconds": seconds, "training": model.training_}


def main() -> None:
    parser = option_parser(__doc__, "real_tables")
    parser.add_argument("--splits", type=int, default=3, help="random splits of each table")
    parser.add_argument("--steps", type=int, help="training steps (default: the regressor's)")
    options = parser.parse_args()
    (x, y), (hx, hy) = bikes(options.data), houses(options.data)
    latest = round(0.8 * len(x))
    late = [(np.arange(latest), np.arange(latest, len(x)))]

    def random(rows):
        return [splits.random(rows, 0.2, k) for k in range(options.splits)]

    cases = {
        "bikes, random rows": (x, y, random(len(x)), {}),
        "bikes, the latest fifth": (x, y, late, {}),
        "houses, random rows": (hx, hy, random(len(hx)), {}),
    }
    if "target_transform" in EvidentialRegressor().get_params():
        for name in ("bikes, random rows", "bikes, the latest fifth"):
            cases[f"{name}, positive"] = (*cases[name][:3], {"target_transform": "positive"})
    record = new_record("real_tables", resolve_device(options.device), cases={})
    print(f"{'':36s}{'RMSE':>10s}{'NLL':>9s}{'CRPS':>10s}{'in 90 %':>9s}{'seconds':>9s}")
    for name, (table, target, parts, parameters) in cases.items():
        chosen = {"device": options.device, "steps": options.steps, **parameters}
        rows = [scores_of(table, target, split, k, **chosen) for k, split in enumerate(parts)]
        record["cases"][name] = rows
        write_record(options.out, record)
        means = {score: float(np.mean([row[score] for row in rows])) for score in (*SCORES, "seconds")}
        print(
            f"{name:36s}{means['rmse']:10.5g}{means['nll']:9.3f}{means['crps']:10.5g}{means['coverage_90']:9.3f}"
            f"{means['seconds']:9.1f}",
            flush=True,
        )
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
