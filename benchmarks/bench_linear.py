"""The default regressor on linear Gaussian tables, beside ridge regression and Bayesian ridge regression.

    python benchmarks/bench_linear.py [--rows 100,300,1000,5000] [--columns 5,20,60] [--noise 0.001,0.01,0.1,1,3]
        [--jobs 2] [--steps N]

Each table has standard normal features, a random linear signal of deviation 1, and normal noise of the given deviation.
All three are fitted to the same rows, with their defaults (``RidgeCV`` with 17 ridges), and 2,000 test rows of the same
distribution are predicted once. Prints for each table the RMSE over that of ridge regression and the negative log
likelihood minus that of ``BayesianRidge``, then how many tables keep both bounds (1.03 and .03), and last the worst
ratio of RMSE. The exit code is 1 if a table breaks a bound.
"""

import argparse
import itertools
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch
from scipy.stats import norm
from sklearn.linear_model import BayesianRidge, RidgeCV

import howsure as hs

TEST_ROWS = 2000
MOST_RATIO, MOST_NATS = 1.03, 0.03


def compare(task: tuple[int, int, float, int | None]) -> tuple[float, float]:
    """Fit one table and return the ratio of RMSE to ridge regression and the difference of NLL to Bayesian ridge."""
    rows, columns, noise, steps = task
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random = np.random.default_rng([rows, columns, round(1000 * noise)])
    x = random.normal(size=(rows + TEST_ROWS, columns))
    direction = random.normal(size=columns)
    y = x @ direction / np.linalg.norm(direction) + noise * random.normal(size=len(x))
    train, test = slice(rows), slice(rows, None)
    p = hs.EvidentialRegressor(random_state=0, steps=steps, device="cpu", verbose=False).fit(x[train], y[train])
    p = p.predict_distribution(x[test])
    ridge = RidgeCV(np.logspace(-6, 4, 17)).fit(x[train], y[train]).predict(x[test])
    mean, std = BayesianRidge().fit(x[train], y[train]).predict(x[test], return_std=True)
    ratio = np.sqrt(((p.mean - y[test]) ** 2).mean() / ((ridge - y[test]) ** 2).mean())
    return float(ratio), float(norm.logpdf(y[test], mean, std).mean() - p.log_prob(y[test]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", default="100,300,1000,5000", help="numbers of training rows, with commas")
    parser.add_argument("--columns", default="5,20,60", help="numbers of columns, with commas")
    parser.add_argument("--noise", default="0.001,0.01,0.1,1,3", help="deviations of the noise, with commas")
    parser.add_argument("--steps", type=int, help="most training steps; default: those of the regressor")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    sizes, columns = ([int(v) for v in text.split(",")] for text in (arguments.rows, arguments.columns))
    tasks = list(itertools.product(sizes, columns, [float(v) for v in arguments.noise.split(",")], [arguments.steps]))
    kept, worst = 0, 0.0
    print(f"{'rows':>6}{'columns':>9}{'noise':>8}{'RMSE / ridge':>14}{'NLL - Bayesian ridge':>22}")
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for (n, c, noise, _), (ratio, nats) in zip(tasks, pool.map(compare, tasks), strict=True):
            print(f"{n:>6}{c:>9}{noise:>8g}{ratio:>14.4f}{nats:>22.4f}", flush=True)
            kept += ratio <= MOST_RATIO and nats <= MOST_NATS
            worst = max(worst, ratio)
    print(f"{kept} of {len(tasks)} tables keep both bounds, {MOST_RATIO} and {MOST_NATS}")
    print(f"largest ratio of RMSE to that of ridge regression: {worst:.3f}")
    if kept < len(tasks):
        sys.exit(1)


if __name__ == "__main__":
    main()
