"""The tables of a depth run, from its record, with the paper's numbers in the last columns."""

from pathlib import Path
from typing import Any

import numpy as np

from howsure.metrics import auroc
from howsure_paper.depth.trials import (
    Array,
    Trials,
    attack_values,
    data_name,
    shown_score,
    studied_models,
    trial_mean,
    trial_values,
)
from howsure_paper.paper import DEPTH_CALIBRATION, TABLE_S1
from howsure_paper.protocol import Record
from howsure_paper.tables import mean_and_error, write_table

__all__ = [
    "attack_rows",
    "block_rows",
    "doubt_rows",
    "learning_rate",
    "number",
    "signed",
    "spread",
    "table_rows",
    "table_s1_rows",
    "unfamiliar_rows",
    "write_tables",
]

Rows = list[dict[str, Any]]
MEAN = "mean of the training maps"
SMALL_EPSILON = 0.01  # the strength of attack that the table shows beside the largest
CAPTIONS = {
    "table_s1": "Table S1 on {data}. Errors in 1/m, ± a standard error over trials; medians of times.",
    "doubts": "How well deviations fit and rank the errors of pixels on {data}: means over trials.",
    "unfamiliar": "AUROC of telling images from elsewhere from test images on {data}: mean (least to greatest trial).",
    "blocks": "AUROC of the distance of pooled features, block by block, on {data}: mean (least to greatest trial).",
    "attack": "Test images of {data} moved by ε along the sign of the gradient of the error: means over trials.",
}


def write_tables(record: Record, out: Path) -> list[Path]:
    """Write every table that the record has results for; return the paths."""
    return [
        write_table(out, name, rows, CAPTIONS[name].format(data=data_name(record)))
        for name, rows in table_rows(record).items()
    ]


def table_rows(record: Record) -> dict[str, Rows]:
    """Return the rows of every table that the record has results for, by the name of its file."""
    tables = {
        "table_s1": table_s1_rows(record),
        "doubts": doubt_rows(record),
        "unfamiliar": unfamiliar_rows(record),
        "blocks": block_rows(record),
        "attack": attack_rows(record),
    }
    return {name: rows for name, rows in tables.items() if rows}


# Numbers as text ------------------------------------------------------------------------------------------------------


def signed(value: float | None, digits: int, unit: str = "", plus: bool = True) -> str:
    """Return a number with a true minus, a plus unless ``plus`` is False, and a unit.

    >>> signed(-1.5, 1, " %"), signed(0.25, 2), signed(None, 2), signed(float("nan"), 2)
    ('−1.5 %', '+0.25', '–', 'diverged')
    """
    if value is None or not np.isfinite(value):
        return "–" if value is None else "diverged"
    return f"{round(value, digits) + 0.0:{'+' if plus else ''}.{digits}f}{unit}".replace("-", "−")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with a true minus, and no plus."""
    return signed(value, digits, plus=False)


def learning_rate(value: float) -> str:
    """Return a learning rate as text: 0.001, and 5e-5 rather than 5e-05."""
    return f"{value:g}".replace("e-0", "e-")


def spread(values: Array, digits: int = 2) -> str | None:
    """Return mean, least and greatest value as text; a single value alone; None if there is none.

    >>> spread(np.array([0.5, 0.75, 1.0]))
    '0.75 (0.50 to 1.00)'
    """
    if not len(values):
        return None
    if not np.isfinite(values).all():
        return "diverged"
    mean, least, greatest = (number(float(v), digits) for v in (values.mean(), values.min(), values.max()))
    return f"{mean} ({least} to {greatest})" if len(values) > 1 else mean


# Rows -----------------------------------------------------------------------------------------------------------------


def table_s1_rows(record: Record) -> Rows:
    """Return a row for the mean of the training maps, and one with cost and errors for every model."""
    results = {name: trials for name, trials in record["results"].items() if trials}
    base = record["mean of training"]
    batch = max((int(n) for times in record["seconds"].values() for n in times), default=1)
    reference = _answer_seconds(record, "evidential", batch)
    rows: Rows = [{"model": MEAN, "RMSE": f"{base['rmse']:.4f}", "NLL": number(base["nll"])}]
    for name, trials in results.items():
        seconds, rmse, paper = _answer_seconds(record, name, batch), trial_values(trials, "rmse"), TABLE_S1.get(name)
        row: dict[str, Any] = {"model": name, "N": trials[0]["count"], "trials": len(trials)}
        row |= {"parameters": trials[0]["parameters"], "ms, 1 image": _milliseconds(_answer_seconds(record, name, 1))}
        row |= {f"ms, {batch} images": _milliseconds(seconds)} if batch > 1 else {}
        row["time to evidential"] = seconds / reference if seconds and reference else None
        row["RMSE"] = mean_and_error(rmse, 4)
        row["RMSE to mean of training"] = signed(100 * (rmse.mean() / base["rmse"] - 1), 1, " %")
        row["NLL"] = mean_and_error(trial_values(trials, "nll"), 3)
        row["time to evidential, paper"] = paper and paper.seconds / TABLE_S1["evidential"].seconds
        rows.append(row | {"RMSE, paper": paper and paper.rmse, "NLL, paper": paper and paper.nll})
    return _with_equal_columns(rows)


def doubt_rows(record: Record) -> Rows:
    """Return a row for each model: calibration, and how well its deviations rank the errors."""
    return [
        {
            "model": name,
            "in 90 % intervals": trial_mean(trials, "coverage_90"),
            "calibration error, predictive": trial_mean(trials, "calibration", "predictive", "error"),
            "calibration error, authors' rule": trial_mean(trials, "calibration", "authors", "error"),
            "authors' rule, paper": DEPTH_CALIBRATION.get(name),
            "AUSE": trial_mean(trials, "ause"),
            "AURG": trial_mean(trials, "aurg"),
        }
        for name, trials in studied_models(record).items()
    ]


def unfamiliar_rows(record: Record) -> Rows:
    """Return a row for each model and a column for each score: the AUROC of telling images from elsewhere.

    Below the evidential model are the same networks with evidence that fades, and the distance of colour histograms.
    """
    rows: Rows = []
    for name, trials in studied_models(record).items():
        scores = {s: spread(trial_values(trials, "unfamiliar", s, "auroc")) for s in trials[0]["unfamiliar"]}
        rows.append({"model": name, **scores})
        if "fading" in trials[0]:
            faded = trials[0]["fading"]["unfamiliar"]
            scores = {s: spread(trial_values(trials, "fading", "unfamiliar", s, "auroc")) for s in faded}
            rows.append({"model": f"{name}, fading", **scores})
        if "colour histograms" in trials[0]:
            alone = spread(trial_values(trials, "colour histograms", "auroc"))
            rows.append({"model": "colour histograms, no network", "feature distance": alone})
    return _with_equal_columns(rows)


def block_rows(record: Record) -> Rows:
    """Return a row for each block of the encoder: the AUROC of the distance of its features."""
    key = "auroc of every block"
    models = {name: trials for name, trials in studied_models(record).items() if len(trial_values(trials, key, 0))}
    count = max((len(trials[0][key]) for trials in models.values()), default=0)
    return [
        {"block": k + 1, **{name: spread(trial_values(trials, key, k), 3) for name, trials in models.items()}}
        for k in range(count)
    ]


def attack_rows(record: Record) -> Rows:
    """Return a row for each model: how much error and entropy rise under attack, and the AUROC of telling it."""
    base = record["mean of training"]["rmse"]
    rows: Rows = [{"model": MEAN, "RMSE, ε = 0": base}]
    for name, trials in studied_models(record).items():
        score, epsilons = shown_score(trials[0]["unfamiliar"]), trial_values(trials[0]["attack"], "epsilon")
        error = attack_values(trials, "rmse").mean(0)
        entropy = attack_values(trials, "scores", score, "mean").mean(0)
        row: dict[str, Any] = {"model": name, "RMSE, ε = 0": float(error[0])}
        chosen = {f"{epsilons[k]:g}": k for k in (int(np.abs(epsilons - SMALL_EPSILON).argmin()), -1)}
        row |= {f"RMSE, ε = {e}": float(error[k]) for e, k in chosen.items()}
        row |= {f"rises by, ε = {e}": signed(100 * (error[k] / error[0] - 1), 1, " %") for e, k in chosen.items()}
        row |= {"score": score, "entropy, ε = 0": float(entropy[0])}
        row |= {f"entropy rises by, ε = {e}": signed(entropy[k] - entropy[0], 3) for e, k in chosen.items()}
        rows.append(row | {f"AUROC, ε = {epsilons[-1]:g}": _auroc_of_attack(trials, score)})
    # the mean of the training maps does not look at the image, so that an attack does not change its error
    rows[0] |= {column: base for row in rows[1:] for column in row if column.startswith("RMSE, ")}
    return _with_equal_columns(rows) if len(rows) > 1 else []


def _with_equal_columns(rows: Rows) -> Rows:
    """Return the rows with the columns of all of them, in the order of the widest: a table has those of its first."""
    columns = dict.fromkeys(column for row in sorted(rows, key=len, reverse=True) for column in row)
    return [{column: row.get(column) for column in columns} for row in rows]


def _answer_seconds(record: Record, model: str, images: int) -> float | None:
    """Return how long the model takes to answer so many images; None if that was not measured."""
    seconds: float | None = record["seconds"].get(model, {}).get(str(images))
    return seconds


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.2f}"


def _auroc_of_attack(trials: Trials, score: str) -> float | None:
    """Return the AUROC of telling the strongest attack from clean images, the mean over trials."""
    clean, moved = (trial_values(trials, "attack", k, "scores", score, "images") for k in (0, -1))
    if not np.isfinite([clean, moved]).all():
        return None
    return float(np.mean([auroc(a, b) for a, b in zip(clean, moved, strict=True)]))
