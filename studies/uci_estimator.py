"""Measures ``EvidentialRegressor()`` with its defaults on each standard split of the nine UCI sets.

Nothing is chosen here: the regressor sees the training rows alone, and predicts the test rows once.

    python studies/uci_estimator.py --data DATA [--sets yacht,energy] [--splits 10] [--evidence plain] [--device cuda]

Splits that the record in the folder has already are not run again, so that a run that was cut short can be continued.
"""

import time
from typing import Any

import numpy as np

from evidentia import EvidentialRegressor, metrics
from evidentia.datasets import uci
from evidentia.record import find_record, write_record
from evidentia.report.tables import mean_and_error
from evidentia.training import resolve_device
from shared import device_and_record, new_record, option_parser

SCORES = {"rmse": metrics.rmse, "nll": metrics.nll, "crps": metrics.crps, "coverage_90": metrics.coverage}


def scores_of(table: uci.UCITable, k: int, device: str, **parameters: Any) -> dict:
    """Return the scores of a regressor on the test rows of split k, and how it was trained."""
    train, test = table.splits[k]
    started = time.perf_counter()
    model = EvidentialRegressor(**parameters, device=device, random_state=k).fit(table.x[train], table.y[train])
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
    parser = option_parser(__doc__, "uci_estimator")
    parser.add_argument("--sets", default=",".join(uci.SETS), help="names with commas (default: all nine)")
    parser.add_argument("--splits", type=int, help="splits of each set, from the first on (default: all)")
    parser.add_argument("--steps", type=int, help="training steps (default: the regressor's)")
    parser.add_argument("--evidence", default="fading", help="fading or plain")
    options = parser.parse_args()
    chosen = {"steps": options.steps, "evidence": options.evidence}
    parameters = EvidentialRegressor(**chosen).get_params()
    record = new_record("uci_estimator", resolve_device(options.device), parameters=parameters, sets={})
    if before := find_record(options.out):
        record["sets"] = before["sets"]
    print(f"{'set':10s}{'NLL':>16s}{'RMSE':>10s}{'in 90 %':>9s}{'seconds':>9s}  diverged")
    for name in options.sets.split(","):
        table = uci.load(name, options.data)
        rows = record["sets"].setdefault(name, [])
        for k in range(len(rows), len(table.splits[: options.splits])):
            rows.append(scores_of(table, k, options.device, **chosen))
            write_record(options.out, record)
        scores = {s: np.array([row[s] for row in rows]) for s in (*SCORES, "seconds")}
        diverged = sum(sum(row["training"]["diverged"]) for row in rows)
        print(
            f"{name:10s}{mean_and_error(scores['nll']):>16s}{scores['rmse'].mean():10.4f}"
            f"{scores['coverage_90'].mean():9.3f}{scores['seconds'].sum():9.1f}  {diverged}",
            flush=True,
        )
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
