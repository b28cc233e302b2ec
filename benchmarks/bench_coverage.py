"""Coverage of the default regressor's intervals on linear Gaussian tables, whose noise is known.

    python benchmarks/bench_coverage.py [--rows 100,300,1000] [--seeds 10] [--jobs 2] [--steps N]

Each table has 5 standard normal features, a random linear signal and normal noise of half its deviation. The regressor
is fitted with its defaults, and 2,000 test rows of the same distribution are predicted once. Prints for each number of
rows the mean coverage of the 50, 80 and 90% intervals over the seeds with its standard error, and last the largest
distance of a mean from its nominal value over the bound (.03, .02 and .015). The exit code is 1 if a bound is broken.
"""

import argparse
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

import howsure as hs

FEATURES = 5
NOISE = 0.5  # deviations of the signal
TEST_ROWS = 2000
BOUNDS = {0.5: 0.03, 0.8: 0.02, 0.9: 0.015}  # of the distance between mean and nominal coverage


def coverages(task: tuple[int, int, int | None]) -> list[float]:
    """Fit one table and return the coverage of each interval on its test rows."""
    rows, seed, steps = task
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random = np.random.default_rng([rows, seed])
    x = random.normal(size=(rows + TEST_ROWS, FEATURES))
    direction = random.normal(size=FEATURES)
    y = x @ direction / np.linalg.norm(direction) + NOISE * random.normal(size=len(x))
    model = hs.EvidentialRegressor(random_state=seed, steps=steps, device="cpu", verbose=False).fit(x[:rows], y[:rows])
    p = model.predict_distribution(x[rows:])
    ends = [p.interval(coverage) for coverage in BOUNDS]
    return [float(((e[:, 0] <= y[rows:]) & (y[rows:] <= e[:, 1])).mean()) for e in ends]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", default="100,300,1000", help="numbers of training rows, with commas")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="most training steps; default: those of the regressor")
    arguments = parser.parse_args()
    sizes = [int(rows) for rows in arguments.rows.split(",")]
    tasks = [(rows, seed, arguments.steps) for rows in sizes for seed in range(arguments.seeds)]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        found = np.array(list(pool.map(coverages, tasks))).reshape(len(sizes), arguments.seeds, len(BOUNDS))
    print(f"{'rows':>6}" + "".join(f"{f'{100 * c:.0f}% intervals':>20}" for c in BOUNDS))
    for rows, own in zip(sizes, found, strict=True):
        means, errors = own.mean(0), own.std(0) / max(1, arguments.seeds - 1) ** 0.5
        print(f"{rows:>6}" + "".join(f"{f'{m:.3f} ± {e:.3f}':>20}" for m, e in zip(means, errors, strict=True)))
    distance = np.abs(found.mean(1) - np.array(list(BOUNDS))) / np.array(list(BOUNDS.values()))
    print(f"largest distance from the nominal coverage over its bound: {distance.max():.2f}")
    if distance.max() > 1:
        sys.exit(1)


if __name__ == "__main__":
    main()
