"""Compares the cost of fits and predictions with evidence that fades with that of the same networks without.

    python benchmarks/bench_fading.py [--device cuda] [--rows 1000,10000] [--repeats 30]

Plain and fading take turns, on Friedman's first function with ten features and noise 1. A prediction is mean, standard
deviation and both of its parts for 10,000 rows. Fits are compared by their medians, of three each, predictions by the
median of the CPU time of the process, which other work on the machine moves less.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from sklearn.datasets import make_friedman1

from devices import device_label
from howsure import EvidentialRegressor, Prediction
from howsure.training import resolve_device

PREDICTED = 10_000


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    function()
    return clock() - started


def moments(p: Prediction) -> tuple[object, ...]:
    return p.mean, p.std, p.aleatoric_std, p.epistemic_std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", default="1000,10000", help="training rows, with commas")
    parser.add_argument("--fits", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=30, help="predictions of each kind")
    parser.add_argument("--steps", type=int, help="training steps (default: the regressor's)")
    options = parser.parse_args()
    new = np.random.default_rng(1).random((PREDICTED, 10))
    ratios = {}
    for rows in (int(n) for n in options.rows.split(",")):
        x, y = make_friedman1(rows, n_features=10, noise=1.0, random_state=0)
        models = {
            kind: EvidentialRegressor(evidence=kind, steps=options.steps, device=options.device, random_state=0)
            for kind in ("plain", "fading")
        }
        fits: dict[str, list[float]] = {kind: [] for kind in models}
        for _ in range(options.fits):
            for kind, model in models.items():
                fits[kind].append(seconds(lambda model=model, x=x, y=y: model.fit(x, y)))
        took: dict[str, list[float]] = {kind: [] for kind in models}
        for _ in range(options.repeats):
            for kind, model in models.items():
                took[kind].append(
                    seconds(lambda model=model: moments(model.predict_distribution(new)), time.process_time)
                )
        fit = {kind: statistics.median(each) for kind, each in fits.items()}
        predict = {kind: statistics.median(each) for kind, each in took.items()}
        spread = {kind: f"{min(each):.2f} to {max(each):.2f}" for kind, each in fits.items()}
        print(
            f"{rows:6d} rows: fit {fit['plain']:.2f} s plain ({spread['plain']}), {fit['fading']:.2f} s fading "
            f"({spread['fading']}); {PREDICTED:,} predictions {1e3 * predict['plain']:.0f} ms of CPU "
            f"time plain, {1e3 * predict['fading']:.0f} ms fading; power {models['fading'].fading_power_:g}",
            flush=True,
        )
        ratios[rows] = fit["fading"] / fit["plain"], predict["fading"] / predict["plain"]
    device = device_label(resolve_device(options.device))
    for rows, (fit, predict) in ratios.items():
        print(f"{rows:,} rows on {device}, prediction, fading to plain: {predict:.2f}")
        print(f"{rows:,} rows on {device}, fit, fading to plain: {fit:.2f}")


if __name__ == "__main__":
    main()
