"""Fig. S2: what the strength of the penalty does to the uncertainties, for the error penalty (A) and the KL (B)."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from howsure.formulas import penalties
from howsure.formulas.penalties import Penalty
from howsure.likelihoods import Evidential
from howsure_paper.arrays import Arrays
from howsure_paper.figures import COLOURS, band, legend, legend_below, new_figure, save
from howsure_paper.protocol import Context, Record
from howsure_paper.tables import write_table
from howsure_paper.toy.plan import RegularizerPlan
from howsure_paper.toy.problem import (
    GRID,
    draw_frame,
    fill_page,
    median,
    missing_units,
    numbers,
    read_curves,
    run_units,
    train_toy,
    training_data,
)

__all__ = ["page", "run", "write_results"]

SHOWN = ("total_inside", "aleatoric_inside", "epistemic_inside", "epistemic_outside", "auroc_epistemic")


def penalties_of(plan: RegularizerPlan) -> dict[str, str | Penalty]:
    """Return the penalties by name: the error, and the KL divergence from each ε."""
    divergences = {f"KL, ε = {e:g}": functools.partial(penalties.kl, epsilon=e) for e in plan.epsilons}
    return {"error": "error", **divergences}


def run(plan: RegularizerPlan, context: Context) -> list[Path]:
    """Train one network per weight and start, for each penalty; write record, curves, table and figures."""
    return run_units("regularizer", plan, context, penalties_of(plan), _study, write_results, check=_rows)


def _study(plan: RegularizerPlan, context: Context, name: str) -> tuple[Any, Arrays]:
    """Return the numbers of a penalty for each weight and start, and what the first network of each weight predicts."""
    print(f"penalty {name}: {len(plan.weights)} weights x {plan.seeds} networks", flush=True)
    # the same starts and batches for every weight: what differs is the weight
    starts = [(weight, seed) for weight in plan.weights for seed in range(plan.seeds)]
    method = Evidential([float(weight) for weight, _ in starts], penalties_of(plan)[name])
    data = training_data(plan.rows, plan.noise)
    fitted = train_toy(name, method, plan, [seed for _, seed in starts], context, data)
    result = [
        {"weight": weight, "seed": seed, **numbers(fitted, [k], plan.noise)} for k, (weight, seed) in enumerate(starts)
    ]
    firsts = [fitted.predict(GRID[:, None], [k * plan.seeds]) for k in range(len(plan.weights))]
    curves = {"mean": [p.mean for p in firsts], "epistemic": [p.epistemic_std for p in firsts]}
    return result, {part: np.array(each) for part, each in curves.items()}


# Tables, figures and page ---------------------------------------------------------------------------------------------


def write_results(record: Record, folder: Path) -> list[Path]:
    """Write the table of a record; if all penalties are there the figure of its numbers, and of curves that are."""
    paths = [write_table(folder, "regularizer", _rows(record))]
    if missing_units(record, _units(record)):
        return paths
    curves = read_curves(folder, record["results"])
    return [*paths, *([] if curves is None else _figure_s2(curves, record, folder)), *_figure_numbers(record, folder)]


def page(folder: Path, link: str) -> str:
    """Return the page of a run."""
    return fill_page(folder, link, _rows, _units)


def _units(record: Record) -> Iterable[str]:
    return penalties_of(RegularizerPlan(epsilons=record["plan"]["epsilons"]))


def _rows(record: Record) -> list[dict[str, Any]]:
    """Return a row for each penalty and weight, with medians over starts."""
    rows = []
    for name, starts in record["results"].items():
        for weight in record["plan"]["weights"]:
            found = [start for start in starts if start["weight"] == weight]
            rows.append({"penalty": name, "λ": weight, **{key: median(found, key) for key in SHOWN}})
    return rows


def _figure_s2(curves: Mapping[str, Arrays], record: Record, folder: Path) -> list[Path]:
    weights = record["plan"]["weights"]
    size = 2.1 * len(weights), 2.0 * len(curves) + 0.4
    figure, axes = new_figure(len(curves), len(weights), size, sharex=True, sharey=True)
    data = training_data(record["plan"]["rows"], record["plan"]["noise"])
    for row, (name, predicted) in zip(axes, curves.items(), strict=True):
        for ax, mean, epistemic in zip(row, predicted["mean"], predicted["epistemic"], strict=True):
            draw_frame(ax, data)
            band(ax, GRID, mean, epistemic, COLOURS["epistemic"], "epistemic: ± 1, 2, 3 std")
        row[0].set_ylabel(f"{name} penalty", fontsize=9)
    for ax, weight in zip(axes[0], weights, strict=True):
        ax.set_title(f"λ = {weight:g}", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("x", fontsize=9)
    legend_below(figure, axes[0, 0], 5)
    return save(figure, folder, "figure_s2")


def _figure_numbers(record: Record, folder: Path) -> list[Path]:
    """Draw the medians over starts, and a point for each start."""
    results, weights = record["results"], record["plan"]["weights"]
    figure, axes = new_figure(1, len(results), (2.9 * len(results), 3.0), sharey=True)
    colors = {"aleatoric_inside": "aleatoric", "epistemic_inside": "epistemic", "epistemic_outside": "other"}
    positions = np.arange(len(weights))  # evenly spaced, because the first weight is 0
    for ax, (name, starts) in zip(axes[0], results.items(), strict=True):
        for key, color in colors.items():
            found = [[start[key] for start in starts if start["weight"] == weight] for weight in weights]
            values, label = np.array(found, dtype=float), key.replace("_", ", ")
            ax.plot(positions, np.median(values, axis=1), "o-", color=COLOURS[color], ms=4, label=label)
            ax.plot(positions, values, ".", color=COLOURS[color], ms=3, alpha=0.4)
        ax.set_xticks(positions, [f"{weight:g}" for weight in weights])
        ax.set_yscale("log")
        ax.axhline(record["plan"]["noise"], color=COLOURS["truth"], ls="--", lw=1, label="the noise")
        ax.set_title(f"penalty {name}", fontsize=9)
        ax.set_xlabel("λ")
    axes[0, 0].set_ylabel("standard deviation")
    legend(axes[0, 0])
    return save(figure, folder, "regularizer_numbers")
