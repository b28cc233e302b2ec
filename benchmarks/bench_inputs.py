"""Measures what bins and trees add to the cost of a fit and of a prediction, beside a mixture that sees numbers alone.

    python benchmarks/bench_inputs.py [--rows 1000,40000] [--repeats 2] [--steps N]

Both regressors fit the same made table in turn, in one process, with the rest of their defaults and all evidence; the
plain mixture has eight networks. What counts is the CPU time of the process, which a busy machine changes little.
"""

import argparse
import time
import warnings

import numpy as np
import torch

from bench_tables import make_table
from devices import device_label
from howsure import EvidentialRegressor

PLAIN = {"members": 8, "inputs": "numbers", "calibrated": False}


def cost_of(x: np.ndarray, y: np.ndarray, steps: int | None, seed: int, **parameters: object) -> tuple[float, ...]:
    """Return CPU seconds of a fit, of a prediction of all rows and of one row, and the steps that were taken."""
    model = EvidentialRegressor(random_state=seed, steps=steps, evidence="plain", verbose=False, **parameters)
    seconds = [time.process_time()]
    model.fit(x, y)
    seconds.append(time.process_time())
    model.predict(x)
    seconds.append(time.process_time())
    for _ in range(20):
        model.predict(x[:1])
    seconds.append(time.process_time())
    fit, predict, rows = np.diff(seconds)
    return fit, predict, rows / 20, model.training_["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", default="1000,40000", help="sizes, with commas")
    parser.add_argument("--repeats", type=int, default=2, help="fits of each")
    parser.add_argument("--steps", type=int, help="training steps (default: the regressor's)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    EvidentialRegressor(members=3, steps=5).fit(*make_table(60, 1.0))  # imports and first calls are not part of it
    print(f"device: {device_label(torch.device('cpu'))}; CPU seconds, means of {options.repeats}")
    print(f"{'rows':>8s} {'mixture':>10s} {'fit':>8s} {'steps':>7s} {'predict':>9s} {'one row ms':>11s}")
    for rows in map(int, options.rows.split(",")):
        x, y = make_table(rows, 1.0)
        runs: dict[str, list[tuple[float, ...]]] = {"plain": [], "default": []}
        for seed in range(options.repeats):
            runs["plain"].append(cost_of(x, y, options.steps, seed, **PLAIN))
            runs["default"].append(cost_of(x, y, options.steps, seed))
        means = {name: np.mean(each, 0) for name, each in runs.items()}
        for name, (fit, predict, one, steps) in means.items():
            print(f"{rows:8,d} {name:>10s} {fit:8.1f} {steps:7.0f} {predict:9.2f} {1000 * one:11.2f}")
        print(f"fit of {rows:,} rows, default over plain: {means['default'][0] / means['plain'][0]:.2f}", flush=True)


if __name__ == "__main__":
    main()
