"""Targets as they are measured: counts, grades and zeros, next to a quantile forest of 200 trees.

    python benchmarks/bench_targets.py --data DATA [--tables eleven,red] [--rows 3000] [--quick]

CRPS of test rows (a fifth), coverage of 90% intervals, the ratio of both CRPS, and last its geometric mean: below 1
ours is better. A forest's distribution is that of the training targets in the leaves of a row, at the quantiles 0.5%,
1.5%, …, 99.5%. Needs quantile-forest.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from quantile_forest import RandomForestQuantileRegressor

import howsure as hs

LEVELS = (np.arange(100) + 0.5) / 100


def made(values: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table whose target has so many values, 62% of the rows at the lowest."""
    random = np.random.default_rng(values)
    x = random.normal(size=(rows, 8))
    latent = np.exp(x[:, 0] + 0.5 * x[:, 1] * (x[:, 2] > 0) + 0.4 * random.normal(size=rows))
    edges = np.quantile(latent, np.linspace(0.62, 1, values)[:-1])
    return x, np.searchsorted(edges, latent).astype(float)


def zeros(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table whose target is 0 in four fifths of the rows, and an amount in the others."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 8))
    amount = np.exp(1 + 0.5 * x[:, 0] + 0.3 * random.normal(size=rows))
    score = x[:, 1] + x[:, 2] + random.logistic(size=rows)
    return x, np.where(score < np.quantile(score, 0.8), 0.0, amount)


def wine(color: str, rows: int, data: Path) -> tuple[np.ndarray, np.ndarray]:
    frame = pd.read_csv(data / "shift" / f"winequality-{color}.csv", sep=";")
    return _some(frame.drop(columns="quality").to_numpy(float), frame["quality"].to_numpy(float), rows)


def bikes(rows: int, data: Path) -> tuple[np.ndarray, np.ndarray]:
    frame = pd.read_csv(data / "shift" / "bike_hour.csv")
    x = frame.drop(columns=["instant", "dteday", "casual", "registered", "cnt"]).to_numpy(float)
    return _some(x, frame["cnt"].to_numpy(float), rows)


def _some(x: np.ndarray, y: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.random.default_rng(0).permutation(len(y))[:rows]
    return x[chosen], y[chosen]


TABLES: dict[str, Callable[[int, Path], tuple[np.ndarray, np.ndarray]]] = {
    "two": lambda rows, _: made(2, rows),
    "five": lambda rows, _: made(5, rows),
    "eleven": lambda rows, _: made(11, rows),
    "fifty": lambda rows, _: made(50, rows),
    "red": lambda rows, data: wine("red", rows, data),
    "white": lambda rows, data: wine("white", rows, data),
    "bikes": bikes,
    "zeros": lambda rows, _: zeros(rows),
}


def forest(x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return CRPS and coverage of a quantile forest: twice the mean pinball loss over the levels."""
    model = RandomForestQuantileRegressor(n_estimators=200, min_samples_leaf=5, random_state=0, n_jobs=1).fit(x, y)
    found = np.asarray(model.predict(new, quantiles=list(LEVELS)))
    error = truth[:, None] - found
    crps = 2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean()
    low, high = np.asarray(model.predict(new, quantiles=[0.05, 0.95])).T
    return float(crps), float(((low <= truth) & (truth <= high)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="data folder, with shift")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--steps", type=int, help="most training steps; default: those of the regressor")
    parser.add_argument("--quick", action="store_true", help="the quick setting: four networks, evidence without folds")
    options = parser.parse_args()
    more = {"members": 4, "evidence": "edge"} if options.quick else {}
    more["steps"] = options.steps
    ratios = []
    print("table      rows      CRPS    forest  cover forest    width   CPU s  ratio", flush=True)
    for name in options.tables.split(","):
        x, y = TABLES[name](options.rows, options.data)
        test = np.random.default_rng(1).random(len(y)) < 0.2
        other = forest(x[~test], y[~test], x[test], y[test])
        started = time.process_time()
        model = hs.EvidentialRegressor(random_state=0, verbose=False, **more).fit(x[~test], y[~test])
        seconds = time.process_time() - started
        p = model.predict_distribution(x[test])
        ends = p.interval(0.9)
        if p.transform is not None:
            assert np.isin(ends, p.transform.values.numpy()).all(), "an interval ends at an impossible value"
        inside = float(((ends[:, 0] <= y[test]) & (y[test] <= ends[:, 1])).mean())
        crps, width = hs.metrics.crps(p, y[test]), float(np.diff(ends).mean())
        ratios.append(crps / other[0])
        print(
            f"{name:8} {(~test).sum():6d} {crps:9.4f} {other[0]:9.4f} {inside:6.3f} {other[1]:6.3f} {width:8.3f} "
            f"{seconds:7.1f} {ratios[-1]:6.2f}",
            flush=True,
        )
    print(f"geometric mean of the ratios: {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
