"""Fig. S2: what the strength of the penalty does to the uncertainties, for the error penalty (A) and the KL (B)."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evidentia.datasets.cubic import cubic
from evidentia.fitting import Fitted
from evidentia.formulas import penalties
from evidentia.methods import Evidential
from evidentia.report.figures import COLOURS, band, legend, legend_below, new_figure, save, sweep
from evidentia.report.tables import write_table
from evidentia.reproduce.toy.settings import GRID, TRAINED, Options, Toy, dress, experiment, numbers, train_toy, write

__all__ = ["EPSILONS", "WEIGHTS", "run"]

WEIGHTS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
EPSILONS = (1e-3, 1e-2, 1e-1, 1.0)


@experiment("regularizer")
def run(
    options: Options,
    toy: Toy | None = None,
    weights: Sequence[float] = WEIGHTS,
    epsilons: Sequence[float] = EPSILONS,
) -> list[Path]:
    """Train one network per weight and start, for each penalty; write record, table and figures."""
    toy = toy or Toy()
    if options.quick:
        toy = replace(toy, iterations=min(toy.iterations, 1000), seeds=min(toy.seeds, 2))
        weights, epsilons = weights[::2], epsilons[1:3]
    named: dict[str, Any] = {"error": "error"}
    named |= {f"KL, ε = {e:g}": functools.partial(penalties.kl, epsilon=e) for e in epsilons}
    fits, rows, details = {}, [], []
    for name, penalty in named.items():
        print(f"penalty {name}: {len(weights)} weights x {toy.seeds} networks", flush=True)
        # the same starts and batches for every weight: what differs is the weight
        seeds = list(range(toy.seeds)) * len(weights)
        each = [float(w) for w in weights for _ in range(toy.seeds)]
        fitted = fits[name] = train_toy(f"{name} {list(weights)}", Evidential(each, penalty), toy, seeds, options)
        for k, weight in enumerate(weights):
            members = range(k * toy.seeds, (k + 1) * toy.seeds)
            found = [numbers(functools.partial(fitted.predict, members=[i]), toy) for i in members]
            details += [{"penalty": name, "weight": weight, "seed": s, **n} for s, n in enumerate(found)]
            shown = ("total_inside", "aleatoric_inside", "epistemic_inside", "epistemic_outside", "auroc_epistemic")
            medians = {key: float(np.median([n[key] for n in found])) for key in shown}
            rows.append({"penalty": name, "λ": weight, **medians})
    claim = _claim(rows)
    for sentence in claim:
        print(sentence)
    return [
        write("regularizer", toy, options, weights=weights, epsilons=epsilons, rows=details, claim=claim),
        write_table(options.out, "regularizer", rows),
        *_panels(fits, weights, toy, options.out),
        *_sweeps(details, list(named), weights, options.out),
    ]


def _claim(rows: list[dict[str, Any]]) -> list[str]:
    """The paper's two sentences on this figure, against the numbers."""
    mine = [row for row in rows if row["penalty"] == "error"]
    first, last = mine[0], mine[-1]
    aleatoric = [row["aleatoric_inside"] for row in mine]
    return [
        "«As we decrease our regularizer weight, uncertainty on OOD examples decays to zero»: epistemic std outside "
        f"is {last['epistemic_outside']:.3g} at λ = {last['λ']:g} and {first['epistemic_outside']:.3g} at "
        f"λ = {first['λ']:g}.",
        "«while aleatoric uncertainty is maintained constant»: its median inside goes from "
        f"{aleatoric[0]:.3g} at λ = {first['λ']:g} to {aleatoric[-1]:.3g} at λ = {last['λ']:g} "
        f"(smallest {min(aleatoric):.3g}, largest {max(aleatoric):.3g}); the noise is 3.",
    ]


def _panels(fits: dict[str, Fitted], weights: Sequence[float], toy: Toy, out: Path) -> list[Path]:
    figure, axes = new_figure(
        len(fits), len(weights), (2.1 * len(weights), 2.0 * len(fits) + 0.4), sharex=True, sharey=True
    )
    data = cubic(toy.rows, toy.noise, TRAINED, seed=0)
    for row, (name, fitted) in zip(axes, fits.items(), strict=True):
        for k, ax in enumerate(row):
            p = fitted.predict(GRID[:, None], [k * toy.seeds])
            dress(ax, data)
            band(ax, GRID, p.mean, p.epistemic_std, COLOURS["epistemic"], "epistemic: ± 1, 2, 3 std")
        row[0].set_ylabel(f"{name} penalty", fontsize=9)
    for ax, weight in zip(axes[0], weights, strict=True):
        ax.set_title(f"λ = {weight:g}", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("x", fontsize=9)
    legend_below(figure, axes[0, 0])
    return save(figure, out, "figure_s2")


def _sweeps(details: list[dict[str, Any]], names: list[str], weights: Sequence[float], out: Path) -> list[Path]:
    figure, axes = new_figure(1, len(names), (2.9 * len(names), 3.0), sharey=True)
    labels = {
        "aleatoric_inside": "aleatoric, inside",
        "epistemic_inside": "epistemic, inside",
        "epistemic_outside": "epistemic, outside",
    }
    colours = (COLOURS["aleatoric"], COLOURS["epistemic"], COLOURS["other"])
    for ax, name in zip(axes[0], names, strict=True):
        found = {
            label: np.array([[d[key] for d in details if d["penalty"] == name and d["weight"] == w] for w in weights])
            for key, label in labels.items()
        }
        sweep(ax, weights, found, colours)
        ax.axhline(3, color=COLOURS["truth"], ls="--", lw=1, label="the noise")
        ax.set_title(f"penalty {name}", fontsize=9)
        ax.set_xlabel("λ")
    axes[0, 0].set_ylabel("standard deviation")
    legend(axes[0, 0])
    return save(figure, out, "regularizer_numbers")
