"""Pictures of how evidence fades away from the training data, for docs/epistemic.md.

python examples/epistemic.py            # writes out/epistemic_{map,share,speed}.png
python examples/epistemic.py --help
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

import howsure as hs
from howsure.fitting import fit, hold_out
from howsure.fitting.fading import extrapolation_folds, with_fading
from howsure.methods import Evidential
from howsure.plots import COLOURS
from howsure_paper.datasets.cubic import cubic

NOISE = 3.0
POWERS = {0.0: COLOURS["aleatoric"], 2.0: COLOURS["epistemic"], 8.0: COLOURS["other"]}


def tidy(ax: plt.Axes, title: str, **settings: object) -> None:
    """Set title, labels and limits, and remove the frame's upper and right side."""
    ax.set(**settings)
    ax.set_title(title, fontsize=11)
    ax.spines[["top", "right"]].set_visible(False)


def draw_map(path: Path, steps: int | None) -> None:
    """Draw where a model of two columns is sure, with all evidence and with evidence that fades."""
    random = np.random.default_rng(0)
    angle = random.uniform(-0.3, np.pi + 0.3, 500)
    x = 2 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.25 * random.standard_normal((500, 2))
    y = x[:, 0] * x[:, 1] + 0.3 * random.standard_normal(500)
    model = hs.EvidentialRegressor(steps=steps, random_state=0).fit(x, y)
    side = np.linspace(-6, 6, 121)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    p = model.predict_distribution(grid)
    plain = hs.Prediction(p.plain_answers, members=0, weights=p.weights)
    panels = {
        "plain: width of 90 % interval": (np.diff(plain.interval(0.9))[:, 0], "viridis", (0, 2)),
        "familiarity of an input": (p.familiarity, "cividis", None),
        "fading: width of 90 % interval": (np.diff(p.interval(0.9))[:, 0], "viridis", (0, 2)),
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    for ax, (title, (values, colors, powers)) in zip(axes, panels.items(), strict=True):
        shown = values.reshape(len(side), -1)
        norm = None if powers is None else matplotlib.colors.LogNorm(10.0 ** powers[0], 10.0 ** powers[1])
        limits = {"vmin": 0, "vmax": 1} if norm is None else {"norm": norm}
        image = ax.pcolormesh(side, side, shown, cmap=colors, rasterized=True, **limits)
        figure.colorbar(image, ax=ax, shrink=0.85, extend="neither" if norm is None else "both")
        ax.plot(*x.T, ".", color="white", ms=1.5)
        tidy(ax, title, xlabel="first column", aspect="equal")
    axes[0].set_ylabel("second column")
    save(figure, path)


def draw_share(path: Path) -> None:
    """Draw the share of the evidence that counts by the distance, and what it does to an answer."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
    distance = np.linspace(0, 5, 501)
    for power, shade in zip((1, 2, 4), (0.5, 0.75, 1.0), strict=True):
        share = np.minimum(1, distance.clip(1e-9) ** -power)
        left.plot(distance, share, color=COLOURS["epistemic"], alpha=shade, lw=2, label=f"power {power}")
    left.axvspan(0, 1, color=COLOURS["range"], zorder=0)
    left.text(0.5, 0.04, "near the\ntraining\nrows", ha="center", fontsize=8.5)
    left.legend(frameon=False, fontsize=8.5)
    tidy(left, "how much evidence counts", xlabel="distance / reach", ylabel="w", xlim=(0, 5), ylim=(0, 1.05))

    answer = hs.NormalInverseGamma(0.0, 4.0, 5.0, 4.0)
    at = torch.linspace(-8, 8, 801)
    for w, shade in zip((1.0, 0.3, 0.1, 0.03), (1.0, 0.75, 0.5, 0.3), strict=True):
        density = answer.fade(w).predictive().log_prob(at).exp()
        middle.plot(at, density, color=COLOURS["epistemic"], alpha=shade, lw=2, label=f"w = {w:g}")
    middle.legend(frameon=False, fontsize=8.5)
    tidy(middle, "an answer, with less and less evidence", xlabel="y", ylabel="density", xlim=(-8, 8), ylim=(0, None))

    keep = torch.logspace(-4, 0, 200)
    p = hs.Prediction(hs.Faded(answer.expand((200,)), keep))
    right.plot(keep, np.diff(p.interval(0.9))[:, 0] / 2, color=COLOURS["epistemic"], lw=2, label="90 % interval, half")
    right.plot(keep, p.std, color=COLOURS["total"], lw=2, label="std")
    right.plot(
        keep, np.diff(p.interval(0.68))[:, 0] / 2, "--", color=COLOURS["data"], lw=1.5, label="68 % interval, half"
    )
    right.legend(frameon=False, fontsize=8.5)
    tidy(right, "its width", xlabel="w", xscale="log", yscale="log", xlim=(1, 1e-4))
    save(figure, path)


def draw_speed(path: Path) -> None:
    """Draw how the training rows themselves tell the speed: networks that did not see the ends predict them."""
    x, y = cubic(1000, NOISE, seed=0)
    train, test = extrapolation_folds(x, np.arange(len(x)), 0)[0]
    members = hold_out(train, range(2))
    fitted = fit(Evidential(0.01), x, y, members, device="cpu")
    faded = with_fading(fitted, x, members, 1.0)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    grid = np.linspace(-4, 4, 401)
    edge = np.abs(x[train]).max()
    for ax, (power, color) in zip(axes, POWERS.items(), strict=True):
        model = faded.select(range(2))
        model.fading.set_power(power)
        lower, upper = model.predict(grid[:, None]).interval(0.9).T
        nll = hs.metrics.nll(model.predict(x[test]), y[test])
        ax.axvspan(-edge, edge, color=COLOURS["range"], zorder=0, label="rows that were learned")
        ax.fill_between(grid, lower, upper, color=color, alpha=0.35, lw=0, label="90 % interval")
        ax.plot(x[train][::4], y[train][::4], ".", color=COLOURS["data"], ms=2)
        ax.plot(x[test][::2], y[test][::2], ".", color="black", ms=3, label="rows left out")
        tidy(ax, f"power {power:g}: NLL of the rows left out {nll:.1f}", xlabel="x", xlim=(-4, 4), ylim=(-120, 120))
    axes[0].legend(frameon=False, fontsize=8.5, loc="upper left")
    axes[0].set_ylabel("y")
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    """Write a figure to a file, whose folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"Figure: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figures (default: out)")
    parser.add_argument("--steps", type=int, help="training steps of the map's model (default: by the number of rows)")
    options = parser.parse_args()
    draw_share(options.out / "epistemic_share.png")
    draw_speed(options.out / "epistemic_speed.png")
    draw_map(options.out / "epistemic_map.png", options.steps)


if __name__ == "__main__":
    main()
