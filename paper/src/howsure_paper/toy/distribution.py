"""The paper's Fig. 2: evidential distributions, one of them sampled, and the likelihoods its samples stand for."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from howsure.distributions import Normal, NormalInverseGamma
from howsure.training import seeded
from howsure_paper.figures import import_matplotlib, save
from howsure_paper.protocol import Context, Record, new_record, open_run, write_from_record
from howsure_paper.record import write_record
from howsure_paper.toy.plan import DistributionPlan
from howsure_paper.toy.problem import fill_page

__all__ = ["page", "run", "write_results"]

EVIDENCE = (0.25, 1.0, 8.0)  # ν = α − 1 of the three densities of panel A; their prediction and noise are the same
SAMPLES = 12


def run(plan: DistributionPlan, context: Context) -> list[Path]:
    """Write the record, draw the figure, and return their paths."""
    import_matplotlib()
    with open_run(context.out, new_record("distribution", plan, "cpu")) as record:
        record["results"] = {"evidence": EVIDENCE, "draws": SAMPLES}
        write_record(context.out, record)
        return write_from_record(context.out, write_results)


def write_results(record: Record, folder: Path) -> list[Path]:
    """Draw the figure as PNG and SVG, and return their paths."""
    with seeded(record["plan"]["seed"], torch.device("cpu")):
        return save(_figure(), folder, "distribution")


def page(folder: Path, link: str) -> str:
    """Return the page of a run."""
    return fill_page(folder, link, lambda _: [], lambda _: [])


def _figure() -> Any:
    figure = import_matplotlib("matplotlib.figure").Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplot_mosaic([["a0", "a1", "a2"], ["b", "c", "c"]])
    family = [NormalInverseGamma(torch.tensor(0.0, dtype=torch.float64), e, 1 + e, e) for e in EVIDENCE]
    for name, nig, evidence in zip(("a0", "a1", "a2"), family, EVIDENCE, strict=True):
        _density(axes[name], nig)
        letter = "A   " if name == "a0" else ""
        axes[name].set_title(f"{letter}ν = {evidence:g}, α = {1 + evidence:g}", loc="left")
    axes["a0"].set_ylabel("σ²")

    chosen = family[-1]
    pairs = chosen.sample((SAMPLES,))
    _density(axes["b"], chosen)
    colors = import_matplotlib().colormaps["plasma"](np.linspace(0, 0.85, SAMPLES))
    axes["b"].scatter(pairs[:, 0], pairs[:, 1], c=colors, s=22, edgecolor="black", lw=0.5, zorder=3)
    axes["b"].set_title(f"B   {SAMPLES} draws of (μ, σ²)", loc="left")
    axes["b"].set_ylabel("σ²")

    y = torch.linspace(-4, 4, 500, dtype=torch.float64)
    for (mu, sigma2), color in zip(pairs, colors, strict=True):
        axes["c"].plot(y, Normal(mu, sigma2.sqrt()).log_prob(y).exp(), color=color, lw=1)
    axes["c"].plot(
        y, chosen.predictive().log_prob(y).exp(), color="black", lw=2.5, label="mean over all (μ, σ²): Student t"
    )
    axes["c"].set_title("C   the likelihood N(y; μ, σ²) of each", loc="left")
    axes["c"].set(xlabel="y", ylabel="density", xlim=(-4, 4), ylim=(0, None))
    axes["c"].legend(frameon=False)
    for ax in axes.values():
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _density(ax: Any, nig: NormalInverseGamma) -> None:
    """Draw contours that hold 20, 40, … 95 % of the mass, found from the density itself."""
    mu = torch.linspace(-3, 3, 400, dtype=torch.float64)
    sigma2 = torch.linspace(0.01, 3, 400, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(mu, sigma2, indexing="xy"), dim=-1)
    density = nig.log_prob(grid).exp()
    drawn = nig.log_prob(nig.sample((20_000,))).exp()
    levels = torch.quantile(drawn, 1 - torch.tensor([0.95, 0.8, 0.6, 0.4, 0.2], dtype=torch.float64))
    ax.contourf(mu, sigma2, density, levels=[*levels.tolist(), float(density.max()) * 1.01], cmap="Blues", alpha=0.9)
    ax.plot(*nig.mean, "+", color="black", ms=8)
    ax.set(xlabel="μ", xlim=(-3, 3), ylim=(0, 3))
