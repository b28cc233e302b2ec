"""The record of a UCI run as tables and a figure, with the paper's numbers in the next column."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.distributions import StudentT
from howsure_paper.figures import COLOURS, legend, new_figure, save
from howsure_paper.paper import TABLE_1
from howsure_paper.protocol import Record
from howsure_paper.tables import mean_and_error, write_table

__all__ = [
    "compare",
    "digits_of",
    "long_rows",
    "paired_rows",
    "published_rows",
    "score_values",
    "standard_rows",
    "tables_of",
    "write_results",
]

Array = NDArray[np.float64]
Results = dict[str, Any]  # set → method → result
Rows = list[dict[str, Any]]


def write_results(record: Record, folder: Path) -> list[Path]:
    """Write all tables of a record, and the figure of the paired comparisons; return their paths."""
    tables = tables_of(record)
    paths = [write_table(folder, name, rows) for name, rows in tables.items()]
    return paths + (_paired_figure(record["results"], folder) if "paired" in tables else [])


def tables_of(record: Record) -> dict[str, Rows]:
    """Return the rows of the tables that a record has results for, by name."""
    results = record["results"]
    if record["plan"]["protocol"] == "published":
        tables = {"published": published_rows(results)}
    else:
        tables = {score: standard_rows(results, score) for score in ("nll", "rmse")}
        tables |= {"all_scores": long_rows(results), "paired": paired_rows(results)}
    return {name: rows for name, rows in tables.items() if rows}


def score_values(result: dict[str, Any], score: str) -> Array:
    """Return a score of every split or trial; NaN where it is null in the record."""
    key = "splits" if "splits" in result else "trials"
    if not result[key]:
        raise ValueError(f"no {key}")
    return np.array([row[score] for row in result[key]], dtype=float)


def digits_of(name: str, score: str) -> int:
    """Return how many digits of a set's score are shown: three, but more for the small errors of two sets."""
    return {"naval": 5, "kin8nm": 4}.get(name, 3) if score == "rmse" else 3


def _paper(name: str, method: str, score: str) -> float | None:
    known = TABLE_1.get(name, {}).get(method)
    return None if known is None else float(getattr(known, score))


def standard_rows(results: Results, score: str) -> Rows:
    """Return a row for each set: our methods, and the paper's beside them."""
    rows = []
    for name, methods in results.items():
        row: dict[str, Any] = {"set": name}
        for method, result in methods.items():
            row[method] = mean_and_error(score_values(result, score), digits_of(name, score))
            if method in ("evidential", "ensemble", "dropout"):
                row[f"{method}, paper"] = _paper(name, method, score)
        rows.append(row)
    return rows


def published_rows(results: Results) -> Rows:
    """Return the minima over test batches, the paper's column, and the last weights' scores on all test rows."""
    rows = []
    for name, methods in results.items():
        for method, result in methods.items():
            row: dict[str, Any] = {"set": name, "method": method}
            for score in ("nll", "rmse"):
                digits = digits_of(name, score)
                minima, last = score_values(result, f"{score}_min"), score_values(result, score)
                row[f"{score}, minimum over test batches"] = mean_and_error(minima, digits)
                row[f"{score}, paper"] = _paper(name, method, score)
                row[f"{score}, last weights"] = mean_and_error(last, digits)
            rows.append(row)
    return rows


def long_rows(results: Results) -> Rows:
    """Return a row for each set and method, with every score."""
    rows = []
    for name, methods in results.items():
        for method, result in methods.items():
            scores = [key for key in result["splits"][0] if key != "split"]
            means = {score: float(score_values(result, score).mean()) for score in scores}
            times = {"milliseconds": result["milliseconds"], "seconds": result["seconds"]}
            rows.append({"set": name, "method": method, **means, **times, "diverged": len(result["diverged"])})
    return rows


def compare(ours: Array, theirs: Array) -> dict[str, float | str]:
    """Compare two methods split by split: the mean difference, its standard error, and who wins at the 5 % level."""
    gap = ours - theirs
    error = float(gap.std(ddof=1) / len(gap) ** 0.5)
    # the quantile of Student's t with n − 1 degrees of freedom
    level = StudentT(torch.tensor(float(len(gap) - 1), dtype=torch.float64), 0.0, 1.0).icdf(torch.tensor(0.975))
    verdict = "tie"
    if not np.isfinite(gap).all():
        verdict = "diverged"
    elif abs(gap.mean()) > float(level) * error:
        verdict = "win" if gap.mean() < 0 else "loss"
    return {"difference": float(gap.mean()), "error": error, "verdict": verdict}


def paired_rows(results: Results) -> Rows:
    """Return evidential less each other method, split by split: a negative difference is a win."""
    return [
        {"set": name, "against": method, "score": score}
        | compare(score_values(methods["evidential"], score), score_values(result, score))
        for score in ("nll", "rmse", "crps")
        for name, methods in results.items()
        if "evidential" in methods
        for method, result in methods.items()
        if method != "evidential" and len(result["splits"]) > 1
    ]


def _paired_figure(results: Results, folder: Path) -> list[Path]:
    """Draw the NLL of the evidential method less that of each other, with two standard errors."""
    shown = [row for row in paired_rows(results) if row["score"] == "nll"]
    names = list(dict.fromkeys(row["set"] for row in shown))
    others = list(dict.fromkeys(row["against"] for row in shown))
    figure, axes = new_figure(1, 1, (7, 0.5 + 0.45 * len(names) + 1.0))
    ax = axes[0, 0]
    colors = {"gaussian": "more", "ensemble": "epistemic", "dropout": "aleatoric", "bayes": "other"}
    for k, other in enumerate(others):
        rows = [row for row in shown if row["against"] == other]
        heights = [names.index(row["set"]) + 0.17 * (k - (len(others) - 1) / 2) for row in rows]
        gaps, errors = [row["difference"] for row in rows], [2 * row["error"] for row in rows]
        ax.errorbar(gaps, heights, xerr=errors, fmt="o", ms=4, lw=1.2, color=COLOURS[colors[other]], label=other)
    ax.axvline(0, color=COLOURS["truth"], lw=1)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xscale("symlog", linthresh=0.1)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    ax.set_xlabel("NLL, evidential less the other, ± 2 standard errors (left: evidential is better)", fontsize=9)
    legend(ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(others))
    return save(figure, folder, "paired_nll")
