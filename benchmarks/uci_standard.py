"""The nine UCI sets on their standard splits: a mixture of eight evidential networks per split, all trained at once.

The recipe depends on the number of training rows alone, and each network stops by its own tenth of the training rows.
The test rows of a run are used once, for the numbers in the record.

    python benchmarks/uci_standard.py --data DATA [--sets yacht,energy] [--device cuda] [--out out/uci_standard]
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from evidentia import metrics
from evidentia.datasets import uci
from evidentia.fitting import fit, hold_out
from evidentia.methods import Evidential, Recipe
from evidentia.record import environment, write_record
from evidentia.training import resolve_device

# mean test NLL at or below which a set counts as reached
FLOOR = {
    "energy": 0.50,
    "yacht": -0.40,
    "concrete": 2.92,
    "boston": 2.32,
    "power": 2.68,
    "kin8nm": -1.33,
    "wine": 0.89,
    "naval": -7.9,
    "protein": 2.25,
}
SCORES = {"rmse": metrics.rmse, "nll": metrics.nll, "coverage_90": metrics.coverage}


def run(name: str, options: argparse.Namespace) -> dict:
    table = uci.load(name, options.data)
    splits = table.splits[: options.splits]
    groups = [
        hold_out(train, range(1000 * k, 1000 * k + options.members), share=0.1) for k, (train, _) in enumerate(splits)
    ]
    recipe = Recipe.for_rows(len(splits[0][0]))
    method = Evidential(weight=options.weight)
    started = time.perf_counter()
    fitted = fit(
        method,
        table.x,
        table.y,
        [m for group in groups for m in group],
        recipe=recipe,
        device=options.device,
        progress=True,
    )
    seconds = time.perf_counter() - started
    per_split = []
    for k, (_, test) in enumerate(splits):
        members = range(k * options.members, (k + 1) * options.members)
        prediction = fitted.predict(table.x[test], members)
        scores = {score: f(prediction, table.y[test]) for score, f in SCORES.items()}
        per_split.append({"split": k, "test_rows": len(test), **scores})
    training = fitted.training
    return {
        "recipe": asdict(recipe),
        "method": {"name": "evidential", "weight": method.weight, "penalty": method.penalty},
        "members": options.members,
        "seeds": list(fitted.population.seeds),
        "seconds": seconds,
        "steps": training.steps,
        "best_step": training.best_step,
        "best_score": training.best_score,
        "diverged": training.diverged.nonzero().flatten(),
        "test_evaluations": len(per_split),
        "splits": per_split,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="data folder (default: EVIDENTIA_DATA)")
    parser.add_argument("--sets", default=",".join(FLOOR), help="comma-separated names (default: all nine)")
    parser.add_argument("--splits", type=int, default=None, help="only the first so many splits")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--weight", type=float, default=0.01, help="λ, for standardised targets")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/uci_standard"))
    options = parser.parse_args()
    record = {"run": "uci_standard", "environment": environment(resolve_device(options.device)), "sets": {}}
    print(f"{'set':10s}{'NLL':>16s}{'floor':>8s}{'RMSE':>10s}{'in 90 %':>9s}{'seconds':>9s}  diverged")
    for name in options.sets.split(","):
        result = record["sets"][name] = run(name, options)
        scores = {s: np.array([split[s] for split in result["splits"]]) for s in SCORES}
        error = scores["nll"].std(ddof=1) / len(scores["nll"]) ** 0.5 if len(scores["nll"]) > 1 else float("nan")
        mark = "" if scores["nll"].mean() <= FLOOR[name] else "  above the floor"
        print(
            f"{name:10s}{scores['nll'].mean():9.3f} ± {error:.3f}{FLOOR[name]:8.2f}{scores['rmse'].mean():10.4f}"
            f"{scores['coverage_90'].mean():9.3f}{result['seconds']:9.1f}  {len(result['diverged'])}{mark}",
            flush=True,
        )
        write_record(options.out, record)
    print(f"device: {record['environment']['device']['name']}; record: {options.out / 'record.json'}")


if __name__ == "__main__":
    main()
