"""A picture of where a table model is sure, for docs/epistemic.md.

python examples/epistemic.py            # writes out/epistemic_map.png
python examples/epistemic.py --help
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import howsure as hs

SIDE = 121  # points of the grid along each column


def arch(rows: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of two columns that lie on an arch, and targets x₁x₂ with noise of deviation 0.3."""
    random = np.random.default_rng(0)
    angle = random.uniform(-0.3, np.pi + 0.3, rows)
    x = 2 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.25 * random.standard_normal((rows, 2))
    return x, x[:, 0] * x[:, 1] + 0.3 * random.standard_normal(rows)


def draw_map(path: Path, steps: int | None) -> None:
    """Draw the width of intervals with plain and with conjugate evidence, and the familiarity."""
    x, y = arch()
    side = np.linspace(-6, 6, SIDE)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    p = {
        kind: hs.EvidentialRegressor(evidence=kind, steps=steps, random_state=0).fit(x, y).predict_distribution(grid)
        for kind in ("plain", "conjugate")
    }
    width = {kind: np.diff(each.interval(0.9))[:, 0] for kind, each in p.items()}
    panels = {
        "plain: width of 90% interval": (width["plain"], "viridis"),
        "familiarity": (p["conjugate"].familiarity, "cividis"),
        "conjugate: width of 90% interval": (width["conjugate"], "viridis"),
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    for ax, (title, (values, colors)) in zip(axes, panels.items(), strict=True):
        shown = values.reshape(SIDE, SIDE)
        norm = matplotlib.colors.Normalize(0, 1) if title == "familiarity" else matplotlib.colors.LogNorm(1, 100)
        image = ax.pcolormesh(side, side, shown, cmap=colors, norm=norm, rasterized=True)
        figure.colorbar(image, ax=ax, shrink=0.85)
        ax.plot(*x.T, ".", color="white", ms=1.5)
        ax.set(xlabel="first column", aspect="equal")
        ax.set_title(title, fontsize=11)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("second column")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"Figure: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure (default: out)")
    parser.add_argument("--steps", type=int, help="training steps (default: by the number of rows)")
    options = parser.parse_args()
    draw_map(options.out / "epistemic_map.png", options.steps)


if __name__ == "__main__":
    main()
