"""``EvidentialRegressor()`` as it comes out of the box, fitted to each standard split of the nine UCI sets.

Nothing is chosen here: the regressor sees the training rows alone and is asked once about the test rows.

    python studies/uci_estimator.py --data DATA [--sets yacht,energy] [--device cuda] [--out out/uci_estimator]

A set whose splits are in the record already is not run again, so that a run that was cut short can be continued.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from evidentia import EvidentialRegressor
from evidentia.datasets import uci
from evidentia.record import environment, find_record, write_record
from evidentia.training import resolve_device
from uci_standard import FLOOR, SCORES


def run(table: uci.UCITable, k: int, device: str) -> dict:
    train, test = table.splits[k]
    started = time.perf_counter()
    model = EvidentialRegressor(device=device, random_state=k).fit(table.x[train], table.y[train])
    seconds = time.perf_counter() - started
    p = model.predict_distribution(table.x[test])
    return {
        "split": k,
        "test_rows": len(test),
        **{score: f(p, table.y[test]) for score, f in SCORES.items()},
        "seconds": seconds,
        "training": model.training_,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="data folder (default: EVIDENTIA_DATA)")
    parser.add_argument("--sets", default=",".join(FLOOR), help="comma-separated names (default: all nine)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/uci_estimator"))
    options = parser.parse_args()
    record = {
        "run": "uci_estimator",
        "environment": environment(resolve_device(options.device)),
        "parameters": EvidentialRegressor().get_params(),
        "sets": {},
    }
    if before := find_record(options.out):
        record["sets"] = before["sets"]
    print(f"{'set':10s}{'NLL':>16s}{'floor':>8s}{'RMSE':>10s}{'in 90 %':>9s}{'seconds':>9s}  diverged")
    for name in options.sets.split(","):
        table = uci.load(name, options.data)
        rows = record["sets"].setdefault(name, [])
        for k in range(len(rows), len(table.splits)):
            rows.append(run(table, k, options.device))
            write_record(options.out, record)
        scores = {s: np.array([row[s] for row in rows]) for s in (*SCORES, "seconds")}
        diverged = sum(sum(row["training"]["diverged"]) for row in rows)
        mark = "" if scores["nll"].mean() <= FLOOR[name] else "  above the floor"
        print(
            f"{name:10s}{scores['nll'].mean():9.3f} ± {scores['nll'].std(ddof=1) / len(rows) ** 0.5:.3f}"
            f"{FLOOR[name]:8.2f}{scores['rmse'].mean():10.4f}{scores['coverage_90'].mean():9.3f}"
            f"{scores['seconds'].sum():9.1f}  {diverged}{mark}",
            flush=True,
        )
    print(f"device: {record['environment']['device']['name']}; record: {options.out / 'record.json'}")


if __name__ == "__main__":
    main()
