"""The paper's Fig. 2: evidential distributions, one of them sampled, and the likelihoods its samples stand for.

python -m evidentia.reproduce.toy.distribution --out FOLDER
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from evidentia.distributions import Gaussian, NormalInverseGamma
from evidentia.record import environment, run_folder, write_record
from evidentia.report.figures import save
from evidentia.training import seeded

__all__ = ["main", "run"]

EVIDENCE = (0.25, 1.0, 8.0)  # ν = α − 1 of the three densities of panel A; their prediction and noise are the same
SAMPLES = 12


def _density(ax: Any, nig: NormalInverseGamma) -> None:
    """Contours that hold 20, 40, … 95 % of the mass, found from the density itself."""
    mu = torch.linspace(-3, 3, 400, dtype=torch.float64)
    sigma2 = torch.linspace(0.01, 3, 400, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(mu, sigma2, indexing="xy"), dim=-1)
    density = nig.log_prob(grid).exp()
    drawn = nig.log_prob(nig.sample((20_000,))).exp()
    levels = torch.quantile(drawn, 1 - torch.tensor([0.95, 0.8, 0.6, 0.4, 0.2], dtype=torch.float64))
    ax.contourf(mu, sigma2, density, levels=[*levels.tolist(), float(density.max()) * 1.01], cmap="Blues", alpha=0.9)
    ax.plot(*nig.mean, "+", color="black", ms=8)
    ax.set(xlabel="μ", xlim=(-3, 3), ylim=(0, 3))


def run(out: Path, seed: int = 0) -> list[Path]:
    """Draw the figure into the folder ``out``, as PNG and SVG, beside its record."""
    with run_folder(out, "distribution"), seeded(seed, torch.device("cpu")):
        paths = save(_figure(), out, "distribution")
        return [*paths, write_record(out, {"run": "distribution", "seed": seed, "environment": environment()})]


def _figure() -> Figure:
    figure = Figure(figsize=(10, 6), layout="constrained")
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
    colours = colormaps["plasma"](np.linspace(0, 0.85, SAMPLES))
    axes["b"].scatter(pairs[:, 0], pairs[:, 1], c=colours, s=22, edgecolor="black", lw=0.5, zorder=3)
    axes["b"].set_title(f"B   {SAMPLES} draws of (μ, σ²)", loc="left")
    axes["b"].set_ylabel("σ²")

    y = torch.linspace(-4, 4, 500, dtype=torch.float64)
    for (mu, sigma2), colour in zip(pairs, colours, strict=True):
        axes["c"].plot(y, Gaussian(mu, sigma2.sqrt()).log_prob(y).exp(), color=colour, lw=1)
    axes["c"].plot(
        y, chosen.predictive().log_prob(y).exp(), color="black", lw=2.5, label="mean over all (μ, σ²): Student t"
    )
    axes["c"].set_title("C   the likelihood N(y; μ, σ²) of each", loc="left")
    axes["c"].set(xlabel="y", ylabel="density", xlim=(-4, 4), ylim=(0, None))
    axes["c"].legend(frameon=False)
    for ax in axes.values():
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m evidentia.reproduce.toy.distribution", description="Draw the paper's Fig. 2."
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure (default: out)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (default: 0)")
    options = parser.parse_args(arguments)
    paths = run(options.out, options.seed)
    print(f"Figure: {paths[0]}")


if __name__ == "__main__":
    main()
