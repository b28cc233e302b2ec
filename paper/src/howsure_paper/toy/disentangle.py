"""Fig. S3: noise that peaks in the middle of the data; which of the two uncertainties says so?

What the likelihood identifies is the sum of the two variances. The experiment shows it: from different starts the sum
agrees with the truth every time, the paper's split of one network falls as it happens to, and the spread of a mixture
recovers it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from howsure.likelihoods import Evidential
from howsure_paper.arrays import Arrays
from howsure_paper.figures import COLOURS, legend, new_figure, save
from howsure_paper.protocol import Context, Record
from howsure_paper.tables import write_table
from howsure_paper.toy.plan import DisentanglePlan
from howsure_paper.toy.problem import (
    GRID,
    TRAINED,
    Array,
    fill_page,
    missing_units,
    read_curves,
    run_units,
    train_toy,
)

__all__ = ["noise", "page", "run", "write_results"]

LOW, PEAK, WIDTH = 2.0, 12.0, 1.0
PENALTIES = ("standard_score", "error")
NUMBERS = ("total_error", "aleatoric_error", "epistemic_rms", "aleatoric_share")


def noise(x: Array) -> Array:
    """Return the standard deviation of y at x."""
    return LOW + (PEAK - LOW) * np.exp(-0.5 * (x / WIDTH) ** 2)


def data(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Return x and y = x³ + noise(x) ε."""
    x = np.linspace(-TRAINED, TRAINED, rows)
    return x[:, None], x**3 + noise(x) * np.random.default_rng(seed).standard_normal(rows)


def run(plan: DisentanglePlan, context: Context) -> list[Path]:
    """Train with the standard-score penalty and with the error penalty; write record, curves, table and figure."""
    return run_units("disentangle", plan, context, PENALTIES, _study, write_results, check=_summary)


def _study(plan: DisentanglePlan, context: Context, penalty: str) -> tuple[Any, Arrays]:
    """Return how far the deviations of each network and of their mixture lie from the noise, and the deviations."""
    print(f"penalty {penalty}: {plan.seeds} networks", flush=True)
    method = Evidential(plan.weight, penalty)
    fitted = train_toy(penalty, method, plan, range(plan.seeds), context, data(plan.rows))
    x = GRID[np.abs(GRID) <= TRAINED]
    rows = []
    for k in (*range(plan.seeds), None):
        p = fitted.predict(x[:, None], None if k is None else [k])
        model = {"model": f"mixture of {plan.seeds}" if k is None else "one network", "seed": k}
        readings = ("paper",) if k is not None else ("paper", "identified")
        rows += [model | _compared_with_noise(p, reading, noise(x)) for reading in readings]
    singles = [fitted.predict(GRID[:, None], [k]) for k in range(plan.seeds)]
    mixture = fitted.predict(GRID[:, None])
    curves: dict[str, Any] = {
        "total": [p.std for p in singles],
        "aleatoric": [p.aleatoric_std for p in singles],
        "epistemic": [p.epistemic_std for p in singles],
        "mixture_aleatoric": [mixture.aleatoric_std],
        "mixture_epistemic": [mixture.epistemic_std],
    }
    return rows, {part: np.array(each) for part, each in curves.items()}


def _compared_with_noise(p: Any, reading: str, truth: Array) -> dict[str, Any]:
    """Return how far each deviation lies from the true noise (root mean square), and the aleatoric share."""
    parts = p.decompose(reading)
    assert parts.aleatoric is not None
    assert parts.epistemic is not None
    return {
        "reading": reading,
        "total_error": _root_mean_square(p.std - truth),
        "aleatoric_error": _root_mean_square(np.sqrt(parts.aleatoric) - truth),
        "epistemic_rms": _root_mean_square(np.sqrt(parts.epistemic)),
        "aleatoric_share": float(np.mean(parts.aleatoric / p.variance)),
    }


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


# Tables, figures and page ---------------------------------------------------------------------------------------------


def write_results(record: Record, folder: Path) -> list[Path]:
    """Write the table of a record, and the figure if both penalties and their curves are there; return their paths."""
    paths = [write_table(folder, "disentangle", _summary(record))]
    curves = None if missing_units(record, PENALTIES) else read_curves(folder, record["results"])
    return paths if curves is None else [*paths, *_figure(curves, record["plan"]["seeds"], folder)]


def page(folder: Path, link: str) -> str:
    """Return the page of a run."""
    return fill_page(folder, link, _summary, lambda _: PENALTIES)


def _summary(record: Record) -> list[dict[str, Any]]:
    """Return a line per penalty, model and reading; for single networks the median and the range over starts."""
    lines = []
    for penalty, rows in record["results"].items():
        for model, reading in dict.fromkeys((row["model"], row["reading"]) for row in rows):
            line: dict[str, Any] = {"penalty": penalty, "model": model, "reading": reading}
            for key in NUMBERS:
                found = [row[key] for row in rows if (row["model"], row["reading"]) == (model, reading)]
                values = np.array(found, dtype=float)
                span = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
                line[key] = f"{np.median(values):.2f}{span}"
            lines.append(line)
    return lines


def _figure(curves: Mapping[str, Arrays], seeds: int, folder: Path) -> list[Path]:
    figure, axes = new_figure(len(curves), 3, (10, 2.9 * len(curves)), sharex=True, sharey=True)
    titles = ("one network: both together", "one network: the paper's split", f"mixture of {seeds}: identified split")
    for row, (penalty, deviations) in zip(axes, curves.items(), strict=True):
        drawn = [
            {"total": deviations["total"]},
            {part: deviations[part] for part in ("aleatoric", "epistemic")},
            {part: deviations[f"mixture_{part}"] for part in ("aleatoric", "epistemic")},
        ]
        for ax, title, parts in zip(row, titles, drawn, strict=True):
            ax.axvspan(-TRAINED, TRAINED, color=COLOURS["range"], zorder=0, label="training range")
            for part, starts in parts.items():
                for k, deviation in enumerate(starts):
                    alpha, label = 1 if len(starts) == 1 else 0.55, part if k == 0 else None
                    ax.plot(GRID, deviation, color=COLOURS[part], lw=1.4, alpha=alpha, label=label)
            inside = np.where(np.abs(GRID) <= TRAINED, noise(GRID), np.nan)
            ax.plot(GRID, inside, "--", color=COLOURS["truth"], lw=1.5, label="the noise")
            ax.set(ylim=(0, 2 * PEAK), xlim=(GRID[0], GRID[-1]))
            ax.set_title(title, fontsize=9)
        row[0].set_ylabel(f"{penalty.replace('_', ' ')} penalty\nstandard deviation", fontsize=9)
    for ax in axes[0]:
        legend(ax, loc="upper center")
    for ax in axes[-1]:
        ax.set_xlabel("x")
    return save(figure, folder, "figure_s3")
