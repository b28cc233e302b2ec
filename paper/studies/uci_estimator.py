"""Measures ``EvidentialRegressor()`` with its defaults on each standard split of the nine UCI sets.

Nothing is chosen here: the regressor sees the training rows alone, and predicts the test rows once. With --tails the
test rows of a split are the lowest and highest sixth of one feature, at most 2,000 of them, in the place of the
standard ones: what is said of rows unlike the training rows.

    python paper/studies/uci_estimator.py --data DATA [--sets yacht,energy] [--splits 10] [--evidence plain]
        [--inputs numbers] [--uncalibrated] [--tails] [--device cuda] [--jobs 4]

Splits that the record in the folder has already are not run again, so that a run that was cut short can be continued.
With more than one of --jobs, splits run in processes of their own, each with one thread.
"""

import multiprocessing
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np
import torch

from howsure import EvidentialRegressor, metrics
from howsure.training import resolve_device
from howsure_paper import splits
from howsure_paper.datasets import uci
from howsure_paper.record import find_record, write_record
from howsure_paper.tables import mean_and_error
from shared import device_and_record, new_record, option_parser

MOST_TESTED = 2000  # rows of a tail
SCORES = {"rmse": metrics.rmse, "nll": metrics.nll, "crps": metrics.crps, "coverage_90": metrics.coverage}


def splits_of(table: uci.UCITable, tails: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return training and test rows of the standard splits, or of those whose test rows are the ends of a feature."""
    if not tails:
        return table.splits
    random = np.random.default_rng(0)
    found = [splits.tail(table.x[:, k]) for k in np.flatnonzero(table.x.std(0) > 0)]
    return [(train, np.sort(random.permutation(test)[:MOST_TESTED])) for train, test in found]


def scores_of(name: str, k: int, data: str, device: str, tails: bool, parameters: dict[str, Any]) -> dict:
    """Return the scores of a regressor on the test rows of split k, and how it was trained."""
    table = uci.load(name, data)
    train, test = splits_of(table, tails)[k]
    model = EvidentialRegressor(**parameters, device=device, random_state=k)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of targets that many rows share
        model.fit(table.x[train], table.y[train])
    seconds = time.perf_counter() - started
    p = model.predict_distribution(table.x[test])
    return {
        "set": name,
        "split": k,
        "test_rows": len(test),
        **{score: f(p, table.y[test]) for score, f in SCORES.items()},
        "seconds": seconds,
        "device": str(resolve_device(device)),
        "inputs": model.inputs_,
        "training": model.training_,
    }


def one_thread() -> None:
    """Let a process of its own use one thread: there are as many processes as cores."""
    torch.set_num_threads(1)


def results_of(tasks: list[tuple[Any, ...]], processes: int) -> Iterator[dict]:
    """Yield what :func:`scores_of` returns for each task, in this process or as soon as one of several has it."""
    if processes == 1:
        yield from (scores_of(*task) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=one_thread) as pool:
        for done in as_completed([pool.submit(scores_of, *task) for task in tasks]):
            yield done.result()


def print_scores(name: str, rows: list[dict]) -> None:
    """Print a line with the means over splits of a set."""
    scores = {s: np.array([row[s] for row in rows]) for s in (*SCORES, "seconds")}
    diverged = sum(sum(row["training"]["diverged"]) for row in rows)
    print(
        f"{name:10s}{len(rows):7d}{mean_and_error(scores['nll']):>18s}{scores['rmse'].mean():10.4f}"
        f"{scores['crps'].mean():9.4f}{scores['coverage_90'].mean():9.3f}{scores['seconds'].sum():9.1f}  {diverged}",
        flush=True,
    )


def main() -> None:
    parser = option_parser(__doc__, "uci_estimator")
    parser.add_argument("--sets", default=",".join(uci.SETS), help="names with commas (default: all nine)")
    parser.add_argument("--splits", type=int, help="splits of each set, from the first on (default: all)")
    parser.add_argument("--steps", type=int, help="training steps (default: the regressor's)")
    parser.add_argument("--evidence", default="conjugate", help="conjugate or plain")
    parser.add_argument("--inputs", default="auto", help="what networks see: auto, numbers, bins or trees")
    parser.add_argument("--uncalibrated", action="store_true", help="mixtures as they are, without a factor")
    parser.add_argument("--tails", action="store_true", help="test rows are the ends of each feature in turn")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    chosen = {"steps": options.steps, "evidence": options.evidence, "inputs": options.inputs}
    chosen["calibrated"] = not options.uncalibrated
    parameters = EvidentialRegressor(**chosen).get_params()
    record = new_record("uci_estimator", resolve_device(options.device), parameters=parameters, sets={})
    if before := find_record(options.out):
        record["sets"] = before["sets"]
    names = options.sets.split(",")
    wanted = {
        name: range(len(splits_of(uci.load(name, options.data), options.tails)[: options.splits])) for name in names
    }
    for name in names:
        record["sets"].setdefault(name, [])
    known = {(name, row["split"]) for name, rows in record["sets"].items() for row in rows}
    jobs = [(name, k) for name in names for k in wanted[name] if (name, k) not in known]
    jobs.sort(key=lambda job: (wanted[job[0]].stop, job[1]))  # those of large tables first: they take longest
    print(f"{'set':10s}{'splits':>7s}{'NLL':>18s}{'RMSE':>10s}{'CRPS':>9s}{'in 90 %':>9s}{'seconds':>9s}  diverged")
    for row in results_of([(*job, options.data, options.device, options.tails, chosen) for job in jobs], options.jobs):
        rows = record["sets"][row.pop("set")]
        rows.append(row)
        rows.sort(key=lambda row: row["split"])
        write_record(options.out, record)
    for name in names:
        print_scores(name, record["sets"][name])
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
