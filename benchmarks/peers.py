"""Methods for tables that people use instead of howsure, their scores on the nine UCI sets, and the record of them.

``bench_tables.py --peers`` is the command. Each method has its package's defaults, sees the training rows of a standard
split and predicts its test rows once. A method is a function (x, y, seed) → (x → answer), so that the clock of a fit
stops when the function returns. An answer is a :class:`~howsure.Prediction`, or :class:`Quantiles` where there is no
density.
"""

import importlib.util
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from howsure import EvidentialRegressor, Normal, Prediction, metrics
from howsure.errors import InputError
from howsure_paper.datasets import uci
from howsure_paper.record import environment, read_record, refusing_damage, run_folder, write_record
from howsure_paper.tables import markdown, mean_and_error

__all__ = ["LEVELS", "METHODS", "RUN", "Quantiles", "compare", "print_tables", "scores_of", "show", "time_fits"]

RUN = "bench_tables"  # of the record
OURS = "evidential"
COVERAGE = 0.9
LEVELS = tuple(k / 20 for k in range(1, 20))  # 5, 10, …, 95 %
WHOLE_NUMBERS = ("wine",)  # sets whose target takes a few whole numbers: a density there says nothing
SCORES = ("nll", "crps", "rmse", "coverage", "interval_width", "interval_score")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quantiles:
    """An answer without a density: some quantiles of each row, and a point.

    Args:
        levels: probabilities of the quantiles, in ascending order; the first and the last are the ends of an interval.
        values: (rows, levels). Those of a row are sorted, as quantiles that are fitted one by one may cross.
        point: what the error is measured from, (rows,).
        distribution: whether the levels, evenly spaced in (0, 1), are enough for a CRPS.
    """

    levels: tuple[float, ...]
    values: Array
    point: Array
    distribution: bool = True

    def scores(self, y: Array) -> dict[str, float | None]:
        """Return the scores of the answer by name; None for the NLL, and for the CRPS of an interval alone."""
        values = np.sort(self.values, axis=1)
        low, high = values[:, 0], values[:, -1]
        outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
        outer = 1 - (self.levels[-1] - self.levels[0])
        return {
            "nll": None,
            "crps": self._crps(values, y) if self.distribution else None,
            "rmse": float(np.sqrt(np.mean((self.point - y) ** 2))),
            "coverage": float(np.mean((low <= y) & (y <= high))),
            "interval_width": float(np.mean(high - low)),
            "interval_score": float(np.mean(high - low + 2 / outer * outside)),
        }

    def _crps(self, values: Array, y: Array) -> float:
        """Return 2 ∫ pinball loss dq by the trapezoidal rule, with the outer quantiles also at the levels 0 and 1.

        For a point mass that is exact. With the levels 5, 10, …, 95 % it is within 0.2 % of the integral for calibrated
        normal, Laplace, exponential, uniform and t₃ distributions.
        """
        levels = np.r_[0, self.levels, 1]
        below = y[:, None] - values[:, [0, *range(values.shape[1]), -1]]
        pinball = np.maximum(levels * below, (levels - 1) * below).mean(0)
        return float(2 * np.trapezoid(pinball, levels))


Answer = Prediction | Quantiles
Predict = Callable[[Array], Answer]


def scores_of(answer: Answer, y: Array) -> dict[str, float | None]:
    """Return the scores of an answer by name; None for those that it does not have."""
    if isinstance(answer, Quantiles):
        return answer.scores(y)
    found = metrics.summary(answer, y, coverage=COVERAGE)
    return found | {"interval_score": metrics.interval_score(answer, y, COVERAGE)}


# The methods ----------------------------------------------------------------------------------------------------------


def normal(mean: Array, std: Array) -> Prediction:
    """Return the prediction of a method that answers with a normal distribution, in float64."""
    return Prediction(Normal(torch.from_numpy(np.array(mean, float)), torch.from_numpy(np.array(std, float))))


def fit_evidential(x: Array, y: Array, seed: int) -> Predict:
    return EvidentialRegressor(random_state=seed, verbose=False).fit(x, y).predict_distribution


def fit_ngboost(x: Array, y: Array, seed: int) -> Predict:
    from ngboost import NGBRegressor

    model = NGBRegressor(random_state=seed, verbose=False).fit(x, y)

    def predict(x: Array) -> Prediction:
        found = model.pred_dist(x).params
        return normal(found["loc"], found["scale"])

    return predict


def fit_catboost(x: Array, y: Array, seed: int) -> Predict:
    from catboost import CatBoostRegressor

    quiet = {"verbose": False, "allow_writing_files": False, "thread_count": torch.get_num_threads()}
    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", random_seed=seed, **quiet).fit(x, y)

    def predict(x: Array) -> Prediction:
        mean, variance = model.predict(x).T  # its documentation says deviation; it is the variance
        return normal(mean, np.sqrt(variance))

    return predict


def fit_process(x: Array, y: Array, seed: int) -> Predict:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    model = make_pipeline(StandardScaler(), process)
    with warnings.catch_warnings():  # of length scales at their bounds, which those of useless columns reach
        warnings.simplefilter("ignore")
        model.fit(x, y)
    return lambda x: normal(*model.predict(x, return_std=True))


def fit_quantiles(x: Array, y: Array, seed: int) -> Predict:
    from sklearn.ensemble import HistGradientBoostingRegressor

    def fit(level: float) -> HistGradientBoostingRegressor:
        return HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=seed).fit(x, y)

    models = {level: fit(level) for level in (0.05, 0.5, 0.95)}

    def predict(new: Array) -> Quantiles:
        # who wants an interval and a point fits three; the others serve the CRPS alone and are not part of the time
        values = np.column_stack([(models.get(level) or fit(level)).predict(new) for level in LEVELS])
        return Quantiles(LEVELS, values, values[:, LEVELS.index(0.5)])

    return predict


def fit_mapie(x: Array, y: Array, seed: int) -> Predict:
    from mapie.regression import CrossConformalRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(random_state=seed)
    model = CrossConformalRegressor(trees, confidence_level=COVERAGE, random_state=seed).fit_conformalize(x, y)

    def predict(new: Array) -> Quantiles:
        # each of its test rows needs as much memory as there are training rows: a few at a time
        parts = [model.predict_interval(new[k : k + 200]) for k in range(0, len(new), 200)]
        ends = np.concatenate([part[1][:, :, 0] for part in parts])
        return Quantiles((0.05, 0.95), ends, np.concatenate([part[0] for part in parts]), distribution=False)

    return predict


@dataclass(frozen=True)
class Method:
    """A method with its name in tables, what is said about it, and what it needs."""

    title: str
    settings: str
    fit: Callable[[Array, Array, int], Predict]
    package: str
    most_rows: float = math.inf  # to train on; with more it is not run


GRID = "the quantiles 5, 10, …, 95 % (trapezoidal rule, the outer two also at 0 and 1)"
METHODS = {
    "ngboost": Method("NGBoost", "NGBRegressor(); normal distribution, CRPS in closed form", fit_ngboost, "ngboost"),
    "catboost": Method(
        "CatBoost",
        "CatBoostRegressor(loss_function='RMSEWithUncertainty'); normal distribution, CRPS in closed form",
        fit_catboost,
        "catboost",
    ),
    "gp": Method(
        "Gaussian process",
        "GaussianProcessRegressor(constant · RBF with a length for each column + white noise, normalize_y=True) on "
        "standardised columns; normal distribution, CRPS in closed form; up to 2,000 training rows",
        fit_process,
        "scikit-learn",
        most_rows=2000,
    ),
    "quantile": Method(
        "quantile trees",
        f"HistGradientBoostingRegressor(loss='quantile'), one for each quantile; no density; CRPS from {GRID}; RMSE of "
        "the median; seconds of three fits (5, 50, 95 %)",
        fit_quantiles,
        "scikit-learn",
    ),
    "mapie": Method(
        "MAPIE",
        "CrossConformalRegressor(HistGradientBoostingRegressor(), confidence_level=0.9); an interval, so neither a "
        "density nor a CRPS",
        fit_mapie,
        "mapie",
    ),
    OURS: Method(
        "EvidentialRegressor",
        "EvidentialRegressor(); NLL and CRPS of its mixture of distributions by howsure.metrics",
        fit_evidential,
        "howsure",
    ),
}


def versions(methods: Iterable[str]) -> dict[str, str]:
    """Return the settings and the version of each method, and raise if a package is missing."""
    found = {}
    for name in methods:
        package = METHODS[name].package
        if package != "howsure" and not importlib.util.find_spec({"scikit-learn": "sklearn"}.get(package, package)):
            raise InputError(f'{package} is not installed: pip install ".[peers]", or leave out {name} with --methods')
        version = environment()["packages"]["howsure"] if package == "howsure" else metadata.version(package)
        found[name] = f"{METHODS[name].settings} [{package} {version}]"
        if name == OURS:  # its defaults may change without the version
            changed = sorted((EvidentialRegressor().get_params() | {"random_state": "split"}).items())
            found[name] += " " + ", ".join(f"{key}={value!r}" for key, value in changed)
    return found


# The run --------------------------------------------------------------------------------------------------------------


def timed_fit(name: str, x: Array, y: Array, seed: int) -> tuple[Predict, dict[str, Any]]:
    """Return what a method learned, and how long it took, on how many threads and beside how much other work."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    started = time.perf_counter()
    predict = METHODS[name].fit(x, y, seed)
    seconds = time.perf_counter() - started
    return predict, {"seconds": seconds, "threads": torch.get_num_threads(), "load_before": load}


def one_row(table: uci.UCITable, split: int, name: str) -> dict[str, Any]:
    """Return the scores of a method on the test rows of a split, and how long its fit took."""
    train, test = table.splits[split]
    x, y = table.x[train], table.y[train]
    predict, timing = timed_fit(name, x, y, split)
    scores = scores_of(predict(table.x[test]), table.y[test])
    size = {"train_rows": len(train), "test_rows": len(test)}
    return {"set": table.name, "split": split, "method": name, **size, **scores, **timing}


def compare(
    out: Path,
    data: Path | None,
    sets: Sequence[str],
    methods: Sequence[str],
    splits: int | None = None,
    again: Sequence[str] = (),
) -> dict[str, Any]:
    """Run what the record in a folder does not have yet, and return the record.

    Args:
        out: folder of the record, which is written after each fit.
        data: data folder.
        sets: names of UCI sets.
        methods: names of methods.
        splits: how many of each set's, from the first on; None: all.
        again: methods whose rows are dropped first.
    """
    settings = versions(methods)
    with run_folder(out, RUN) as before:
        record = before or new_record()
        with refusing_damage(out):
            record["rows"] = [row for row in record["rows"] if row["method"] not in again]
            refuse_mixture(record, settings, out)
            done = {(row["set"], row["split"], row["method"]) for row in record["rows"]}
        record["methods"] |= settings
        for name in sets:
            table = uci.load(name, data)
            for k in range(len(table.splits[:splits])):
                for method in methods:
                    if (name, k, method) in done or left_out(record, table, k, method):
                        continue
                    record["rows"].append(one_row(table, k, method))
                    print(progress(record["rows"][-1]), flush=True)
                    write_record(out, record)
        write_record(out, record)
    return record


def new_record() -> dict[str, Any]:
    """Return a record without rows."""
    note = "load_before is the machine's load average when a fit began: well above the run's own threads, it was shared"
    return {
        "run": RUN,
        "environment": environment(),
        "note": note,
        "methods": {},
        "not_run": {},
        "rows": [],
        "times": {},
    }


def refuse_mixture(record: dict[str, Any], settings: dict[str, str], out: Path) -> None:
    """Raise if the record has rows of a method with other settings, or of another version."""
    with_rows = {row["method"] for row in record["rows"]}
    for name, text in settings.items():
        if name in with_rows and record["methods"].get(name, text) != text:
            raise InputError(
                f"{out} has rows of {name} by {record['methods'][name]}, and now it is {text}; run all of them anew "
                f"with --again {name}, or choose another folder"
            )


def left_out(record: dict[str, Any], table: uci.UCITable, split: int, name: str) -> bool:
    """Return whether a method is not run on a split because of its size, and note why."""
    rows, most = len(table.splits[split][0]), METHODS[name].most_rows
    if rows <= most:
        return False
    record["not_run"].setdefault(name, {})[table.name] = f"{rows:,} training rows, and it is run up to {most:,.0f}"
    return True


def progress(row: dict[str, Any]) -> str:
    """Return a line about one fit."""
    shown = " ".join(f"{score} {row[score]:.4g}" for score in ("nll", "crps", "rmse") if row[score] is not None)
    return f"{row['set']} {row['split']} {row['method']}: {shown}, {row['seconds']:.1f} s"


def time_fits(out: Path, data: Path | None, sets: Sequence[str], methods: Sequence[str]) -> None:
    """Fit each method to the first split of each set, one after the other, print their seconds and keep them."""
    settings = versions(methods)
    with run_folder(out, RUN) as before:
        record = before or new_record()
        with refusing_damage(out):
            record["methods"], times_of = settings | record["methods"], dict(record["times"])
        record["times"] = times_of
        for name in sets:
            table = uci.load(name, data)
            train = table.splits[0][0]
            times = times_of.setdefault(name, {})
            for method in methods:
                if left_out(record, table, 0, method):
                    continue
                METHODS[method].fit(table.x[train[:60]], table.y[train[:60]], 0)  # imports and first calls do not count
                times[method] = {"rows": len(train), **timed_fit(method, table.x[train], table.y[train], 0)[1]}
                print(f"{name} {method}: {times[method]['seconds']:.1f} s", flush=True)
                write_record(out, record)


# Tables ---------------------------------------------------------------------------------------------------------------


def show(out: Path, sets: Sequence[str], methods: Sequence[str]) -> None:
    """Print the tables of a record, and run nothing."""
    record = read_record(out)
    if record.get("run") != RUN:
        raise InputError(f"{out} holds a run of {record.get('run')!r}, not of {RUN!r}; choose another folder")
    with refusing_damage(out):
        print_tables(record, sets, methods)


def print_tables(record: dict[str, Any], sets: Sequence[str], methods: Sequence[str]) -> None:
    """Print what each method is, a table for each set, and last on how many sets EvidentialRegressor is first."""
    chosen = [name for name in METHODS if name in methods]
    for name in chosen:
        if name in record["methods"]:
            print(f"{METHODS[name].title}: {record['methods'][name]}")
    print("Means over standard splits ± standard error; intervals of 90 %; scores are in the units of the target.")
    print("Where methods have different numbers of splits, only the summary compares the same ones.")
    found = {name: scores for name in sets if (scores := collect(record, name, chosen))}
    for name, scores in found.items():
        print(f"\n{name}\n\n{markdown([table_row(record, name, method, own) for method, own in scores.items()])}")
        print(*notes_on(record, name, scores, chosen), sep="\n")
    print()
    print_summary(found)


def collect(record: dict[str, Any], name: str, methods: Sequence[str]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the rows of a set by method and split; only methods that have some."""
    rows: dict[str, dict[int, dict[str, Any]]] = {method: {} for method in methods}
    for row in record["rows"]:
        if row["set"] == name and row["method"] in rows:
            rows[row["method"]][row["split"]] = row
    return {method: own for method, own in rows.items() if own}


def table_row(record: dict[str, Any], name: str, method: str, own: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the cells of a method in the table of a set."""
    timed = record["times"].get(name, {}).get(method)
    seconds = timed["seconds"] if timed else float(np.median([row["seconds"] for row in own.values()]))
    compared = [score for score in SCORES if not (score == "nll" and name in WHOLE_NUMBERS)]
    values = {score: [row[score] for row in own.values()] for score in compared}
    known = {score for score, own_values in values.items() if any(value is not None for value in own_values)}
    cells = {score: cell(values[score]) if score in known else "–" for score in SCORES}
    title = {
        "nll": "NLL",
        "crps": "CRPS",
        "rmse": "RMSE",
        "interval_width": "width",
        "interval_score": "interval score",
    }
    shown = {title.get(score, score): text for score, text in cells.items()}
    return {
        "method": METHODS[method].title,
        "splits": len(own),
        **shown,
        "seconds": f"{seconds:.1f}{'' if timed else '*'}",
    }


def cell(values: Sequence[float | None]) -> str:
    """Return mean and standard error with three or four digits of the mean, however small it is."""
    numbers = np.array([np.nan if value is None else value for value in values])
    size = abs(numbers.mean())
    digits = 3 if not np.isfinite(size) or size == 0 or size >= 1 else 3 - math.floor(math.log10(size))
    return mean_and_error(numbers, min(max(digits, 3), 8))


def notes_on(record: dict[str, Any], name: str, scores: dict[str, Any], methods: Sequence[str]) -> list[str]:
    """Return what must be said beside the table of a set."""
    notes = []
    if name in WHOLE_NUMBERS:
        notes.append(
            "The target is a few whole numbers: spikes there would earn any NLL, so densities are not compared."
        )
    for method in methods:
        if why := record["not_run"].get(method, {}).get(name):
            notes.append(f"{METHODS[method].title}: not run ({why}).")
        elif method not in scores:
            notes.append(f"{METHODS[method].title}: no rows in the record.")
    if any(method not in record["times"].get(name, {}) for method in scores):
        notes.append("* median over the splits, on a machine that may have had other work; --time measures alone.")
    return notes


def gaps(scores: dict[str, dict[int, dict[str, Any]]], score: str) -> dict[str, Array]:
    """Return ours − theirs for each peer that has the score, on each split that both have."""
    found = {}
    for method, own in scores.items():
        common = sorted(own.keys() & scores[OURS].keys())
        if method != OURS and any(own[k][score] is not None for k in common):
            both = [(finite(scores[OURS][k][score]), finite(own[k][score])) for k in common]
            found[method] = np.array([ours - theirs for ours, theirs in both])
    return found


def finite(score: float | None) -> float:
    """Return a score, and a large number for one that is not finite, which is null in a record."""
    return 1e300 if score is None or not math.isfinite(score) else score


def print_summary(found: dict[str, dict[str, dict[int, dict[str, Any]]]]) -> None:
    """Print how far EvidentialRegressor is from the best of the others on each set, and on how many it is first."""
    if not any(OURS in scores for scores in found.values()):
        print("EvidentialRegressor has no rows in the record yet.")
        return
    won, rows = {"nll": [], "crps": []}, []
    for name, scores in found.items():
        if OURS not in scores:
            continue
        cells = {"set": name}
        for score, results in won.items():
            differences = {} if score == "nll" and name in WHOLE_NUMBERS else gaps(scores, score)
            if differences:
                nearest = max(differences, key=lambda method: differences[method].mean())
                results.append(bool(differences[nearest].mean() < 0))
                cells[f"{score.upper()}, ours − best other"] = cell(differences[nearest])
                cells[f"best other by {score.upper()}"] = METHODS[nearest].title
            else:
                cells |= {f"{score.upper()}, ours − best other": "–", f"best other by {score.upper()}": "–"}
        rows.append(cells)
    print("Below 0 EvidentialRegressor is first; differences are those of the splits that both were run on.\n")
    print(markdown(rows))
    for score, results in won.items():
        print(f"EvidentialRegressor is first by {score.upper()} on {sum(results)} of {len(results)} sets")
