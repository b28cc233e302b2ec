"""The CPU time of a fit, beside NGBoost and CatBoost.

    OMP_NUM_THREADS=1 python benchmarks/bench_fit.py --data DATA [--sets yacht,boston,…] [--steps N]

Each method has its defaults and one thread, and is fitted to the training rows of the first standard split of each UCI
set: 277 to 41,157 rows. "quick" is ``EvidentialRegressor(members=4, evidence="edge")``. CatBoost is asked for a normal
distribution (``RMSEWithUncertainty``). Imports and first calls do not count. Prints the CPU seconds, and last two
geometric means of ratios: the defaults to NGBoost, and the quick setting to CatBoost.
"""

import argparse
import time
import warnings

import numpy as np
import torch

import howsure as hs
from howsure_paper.datasets import uci


def regressors(steps: int | None) -> dict:
    """Return the methods by name."""
    from catboost import CatBoostRegressor
    from ngboost import NGBRegressor

    options = {"random_state": 0, "steps": steps, "device": "cpu", "verbose": False}
    return {
        "default": hs.EvidentialRegressor(**options),
        "quick": hs.EvidentialRegressor(members=4, evidence="edge", **options),
        "ngboost": NGBRegressor(random_state=0, verbose=False),
        "catboost": CatBoostRegressor(
            loss_function="RMSEWithUncertainty", random_seed=0, verbose=False, thread_count=1, allow_writing_files=False
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", required=True, help="data folder")
    parser.add_argument("--sets", default=",".join(uci.SETS), help="UCI sets, with commas")
    parser.add_argument("--steps", type=int, help="most training steps of ours; default: those of the regressor")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    for model in regressors(arguments.steps).values():  # imports and first calls
        model.fit(random.normal(size=(60, 3)), random.normal(size=60))
    seconds = []
    print(f"{'set':<10}{'rows':>8}" + "".join(f"{name:>10}" for name in regressors(None)))
    for name in arguments.sets.split(","):
        table = uci.load(name, arguments.data)
        train = table.splits[0][0]
        own = []
        for model in regressors(arguments.steps).values():
            start = time.process_time()
            model.fit(table.x[train], table.y[train])
            own.append(time.process_time() - start)
        seconds.append(own)
        print(f"{name:<10}{len(train):>8}" + "".join(f"{s:>10.1f}" for s in own), flush=True)
    default, quick, ngboost, catboost = np.log(np.array(seconds)).mean(0)
    print(f"CPU time of the quick setting to that of CatBoost, geometric mean: {np.exp(quick - catboost):.2f}")
    print(f"CPU time of the defaults to that of NGBoost, geometric mean: {np.exp(default - ngboost):.2f}")


if __name__ == "__main__":
    main()
