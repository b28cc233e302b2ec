"""The record of a depth run as tables, with the paper's numbers in the last columns, and as figures."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidentia.metrics import auroc
from evidentia.report.tables import mean_and_error, write_table
from evidentia.reproduce.depth.figures import (
    against,
    drawn_score,
    mean_of,
    signed,
    studied,
    values_of,
    where,
    write_figures,
)
from evidentia.reproduce.paper import DEPTH_CALIBRATION, TABLE_S1

__all__ = [
    "attack_rows",
    "block_rows",
    "doubt_rows",
    "rows_of",
    "spread",
    "table_s1_rows",
    "unfamiliar_rows",
    "write_results",
]

Array = NDArray[np.float64]
Rows = list[dict[str, Any]]
MEAN = "mean of the training maps"
SMALL = 0.01  # the ε at which an attack is told beside the largest one
CAPTIONS = {
    "table_s1": "Table S1 on {where}. Errors in 1/m, ± a standard error over trials; medians of times.",
    "doubts": "How well deviations fit and rank the errors of pixels on {where}: means over trials.",
    "unfamiliar": "AUROC of telling images from elsewhere from test images on {where}: mean (least to greatest trial).",
    "blocks": "AUROC of the distance of pooled features, block by block, on {where}: mean (least to greatest trial).",
    "attack": "Test images of {where} moved by ε along the sign of the gradient of the error: means over trials.",
}


def write_results(record: dict[str, Any], out: Path) -> list[Path]:
    """Write the tables and figures of all models and trials that the record has; return their paths."""
    paths = [
        write_table(out, name, rows, CAPTIONS[name].format(where=where(record)))
        for name, rows in rows_of(record).items()
    ]
    return paths + write_figures(record, out)


def rows_of(record: dict[str, Any]) -> dict[str, Rows]:
    """The tables that a record has results for, by name."""
    makers = {
        "table_s1": table_s1_rows,
        "doubts": doubt_rows,
        "unfamiliar": unfamiliar_rows,
        "blocks": block_rows,
        "attack": attack_rows,
    }
    return {name: rows for name, make in makers.items() if (rows := make(record))}


def spread(values: Array, digits: int = 2) -> str | None:
    """Mean, least and greatest: «0.73 (0.55 to 0.88)»; a single value alone."""
    if not len(values):
        return None
    if not np.isfinite(values).all():
        return "diverged"
    mean, least, greatest = (signed(float(v), digits, plus=False) for v in (values.mean(), values.min(), values.max()))
    return f"{mean} ({least} to {greatest})" if len(values) > 1 else mean


def _all_columns(rows: Rows) -> Rows:
    """The same columns in every row, in the order of the widest: a table has those of its first row."""
    columns = dict.fromkeys(column for row in sorted(rows, key=len, reverse=True) for column in row)
    return [{column: row.get(column) for column in columns} for row in rows]


def table_s1_rows(record: dict[str, Any]) -> Rows:
    """The mean of the training maps, which any model must beat, and every model with its cost and errors."""
    results = {name: trials for name, trials in record["results"].items() if trials}
    base = record["mean of training"]
    batch = max((int(n) for times in record["seconds"].values() for n in times), default=1)
    reference = _answer_seconds(record, "evidential", batch)
    numbers = {"RMSE": f"{base['rmse']:.4f}", "NLL": signed(base["nll"], 3, plus=False)}
    rows: Rows = [{"model": MEAN, **numbers}]
    for name, trials in results.items():
        seconds, rmse, paper = _answer_seconds(record, name, batch), values_of(trials, "rmse"), TABLE_S1.get(name)
        row: dict[str, Any] = {"model": name, "N": trials[0]["count"], "trials": len(trials)}
        row |= {"parameters": trials[0]["parameters"], "ms, 1 image": _milliseconds(_answer_seconds(record, name, 1))}
        row |= {f"ms, {batch} images": _milliseconds(seconds)} if batch > 1 else {}
        row["time to evidential"] = seconds / reference if seconds and reference else None
        row["RMSE"] = mean_and_error(rmse, 4)
        row["RMSE to mean of training"] = signed(100 * (rmse.mean() / base["rmse"] - 1), 1, " %")
        row["NLL"] = mean_and_error(values_of(trials, "nll"), 3)
        row["time to evidential, paper"] = paper and paper.seconds / TABLE_S1["evidential"].seconds
        rows.append(row | {"RMSE, paper": paper and paper.rmse, "NLL, paper": paper and paper.nll})
    return _all_columns(rows)


def _answer_seconds(record: dict[str, Any], model: str, images: int) -> float | None:
    """Of so many images."""
    seconds: float | None = record["seconds"].get(model, {}).get(str(images))
    return seconds


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.2f}"


def doubt_rows(record: dict[str, Any]) -> Rows:
    """A row for each model: calibration, and how well its deviations rank the errors."""
    return [
        {
            "model": name,
            "in 90 % intervals": mean_of(trials, "coverage_90"),
            "calibration error, predictive": mean_of(trials, "calibration", "predictive", "error"),
            "calibration error, authors' rule": mean_of(trials, "calibration", "authors", "error"),
            "authors' rule, paper": DEPTH_CALIBRATION.get(name),
            "AUSE": mean_of(trials, "ause"),
            "AURG": mean_of(trials, "aurg"),
        }
        for name, trials in studied(record).items()
    ]


def unfamiliar_rows(record: dict[str, Any]) -> Rows:
    """A row for each model and a column for each score: how well it tells images from elsewhere."""
    rows: Rows = []
    for name, trials in studied(record).items():
        scores = {s: spread(values_of(trials, "unfamiliar", s, "auroc")) for s in trials[0]["unfamiliar"]}
        rows.append({"model": name, **scores})
    return _all_columns(rows)


def block_rows(record: dict[str, Any]) -> Rows:
    """A row for each block of the encoder: how well the distance of its features tells images from elsewhere."""
    models = {n: trials for n, trials in studied(record).items() if len(values_of(trials, "auroc of every block", 0))}
    count = max((len(trials[0]["auroc of every block"]) for trials in models.values()), default=0)
    return [
        {"block": k + 1, **{n: spread(values_of(t, "auroc of every block", k), 3) for n, t in models.items()}}
        for k in range(count)
    ]


def attack_rows(record: dict[str, Any]) -> Rows:
    """By how much error and entropy rise when images are moved a little and furthest, and whether that can be told."""
    base = record["mean of training"]["rmse"]
    rows: Rows = [{"model": MEAN, "RMSE, ε = 0": base}]
    for name, trials in studied(record).items():
        score, epsilons = drawn_score(trials), values_of(trials[0]["attack"], "epsilon")
        error = against(trials, "rmse").mean(0)
        entropy = against(trials, "scores", score, "mean").mean(0)
        row: dict[str, Any] = {"model": name, "RMSE, ε = 0": float(error[0])}
        chosen = {f"{epsilons[k]:g}": k for k in (int(np.abs(epsilons - SMALL).argmin()), -1)}
        row |= {f"RMSE, ε = {e}": float(error[k]) for e, k in chosen.items()}
        row |= {f"rises by, ε = {e}": signed(100 * (error[k] / error[0] - 1), 1, " %") for e, k in chosen.items()}
        row |= {"score": score, "entropy, ε = 0": float(entropy[0])}
        row |= {f"entropy rises by, ε = {e}": signed(entropy[k] - entropy[0], 3) for e, k in chosen.items()}
        rows.append(row | {f"AUROC, ε = {epsilons[-1]:g}": _told_attacked(trials, score)})
    # a constant answer cannot be attacked
    rows[0] |= {column: base for row in rows[1:] for column in row if column.startswith("RMSE, ")}
    return _all_columns(rows) if len(rows) > 1 else []


def _told_attacked(trials: list[dict[str, Any]], score: str) -> float | None:
    """AUROC of telling the images that were moved furthest from clean ones, mean over trials."""
    clean, moved = (values_of(trials, "attack", k, "scores", score, "images") for k in (0, -1))
    if not np.isfinite([clean, moved]).all():
        return None
    return float(np.mean([auroc(a, b) for a, b in zip(clean, moved, strict=True)]))
