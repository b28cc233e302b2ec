"""The cubic problem of the paper: train on |x| ≤ 4, and compare intervals inside and outside of this range.

Three models: one evidential network as in the paper, a mixture of twelve with the evidence that its networks output,
and the same mixture with evidence by conjugacy, which is the default of `EvidentialRegressor`.

    python examples/cubic.py            # writes out/cubic.png and out/intervals.png
    python examples/cubic.py --help
"""

import argparse
import time
from copy import deepcopy
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import howsure as hs
from howsure import metrics
from howsure.plots import COLOURS
from howsure_paper.datasets.cubic import cubic

NOISE = 3.0
TRAINED_ON = 4.0
SHOWN_ON = 6.0
FAR = 12.0


def one_network(x: np.ndarray, y: np.ndarray, weight: float, iterations: int) -> nn.Module:
    """Plain PyTorch at the paper's settings: 3 layers of 100, Adam at 5e-3, batches of 128, y as it is."""
    features, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    layers = [nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    net = nn.Sequential(*layers, hs.NIGHead(100))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    started = time.perf_counter()
    for i in range(1, iterations + 1):
        batch = torch.randint(len(features), (128,))
        loss = hs.evidential_loss(net(features[batch]), targets[batch], weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 1000 == 0:
            left = (time.perf_counter() - started) / i * (iterations - i)
            print(f"  iteration {i:5d}   loss {loss.item():.3f}   {left:4.1f} s left")
    return net


def predict(net: nn.Module, x: np.ndarray) -> hs.Prediction:
    with torch.no_grad():
        return hs.Prediction(net(torch.tensor(x, dtype=torch.float32)))


def plain(model: hs.EvidentialRegressor) -> hs.EvidentialRegressor:
    """Return the same networks with the evidence that they output."""
    some = deepcopy(model)
    some.model_.evidence = None
    return some


def report(answers: dict) -> None:
    """Print scores of each model: on fresh data inside the training range, at x = ±6, and std and interval at 12."""
    x, y = cubic(10_000, NOISE, TRAINED_ON, seed=12_345)
    places = np.array([[-SHOWN_ON], [SHOWN_ON], [FAR]])
    ends = slice(0, 2)
    rows = {
        "error of the prediction, root mean square": (lambda p, _: np.sqrt(np.mean((p.mean - x[:, 0] ** 3) ** 2)), "0"),
        "share of new points in the 90% interval": (lambda p, _: metrics.coverage(p, y), "0.90"),
        "predictive std, median": (lambda p, _: np.median(p.std), f"{NOISE}"),
        "  its aleatoric part": (lambda p, _: np.median(p.aleatoric_std), f"{NOISE}"),
        "  its epistemic part": (lambda p, _: np.median(p.epistemic_std), "0"),
        "half of the 90% interval at x = ±6": (lambda _, far: half_interval(far, 0.9)[ends].mean(), "≥ error"),
        "epistemic std at x = ±6": (lambda _, far: far.epistemic_std[ends].mean(), "≥ error"),
        "error of the prediction at x = ±6": (lambda _, far: np.abs(far.mean - places[:, 0] ** 3)[ends].mean(), ""),
        "std at x = 6": (lambda _, far: far.std[1], ""),
        "  half of the 68% interval at x = 6": (lambda _, far: half_interval(far, 0.68)[1], "as std"),
        "std at x = 12": (lambda _, far: far.std[2], ""),
        "  half of the 68% interval at x = 12": (lambda _, far: half_interval(far, 0.68)[2], "as std"),
    }
    found = {name: (answer(x), answer(places)) for name, answer in answers.items()}
    print(f"\n{'inside the training range':43s}" + "".join(f"{name:>31s}" for name in found) + f"{'ideal':>10s}")
    for row, (value, ideal) in rows.items():
        print(f"{row:43s}" + "".join(f"{value(*pair):31,.2f}" for pair in found.values()) + f"{ideal:>10s}")
    print(
        "\nThe likelihood fixes the sum of the two parts, not the split of one network: see paper/docs/errata.md, E15."
    )
    print("Evidence by conjugacy: docs/epistemic.md.")


def half_interval(p: hs.Prediction, coverage: float) -> np.ndarray:
    """Return half of the width of each interval."""
    return np.diff(p.interval(coverage))[:, 0] / 2


def draw_panel(ax: plt.Axes, p: hs.Prediction, grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Draw one model: 90% intervals, predictions, the training rows and the true function."""
    ax.axvspan(-TRAINED_ON, TRAINED_ON, color=COLOURS["range"], zorder=0, label="training range")
    lower, upper = p.interval(0.9).T
    ax.fill_between(grid, lower, upper, color=COLOURS["epistemic"], alpha=0.35, lw=0, label="90% interval")
    ax.plot(x[::4], y[::4], ".", color=COLOURS["data"], ms=2.5, label="training rows")
    ax.plot(grid, p.mean, color=COLOURS["epistemic"], lw=2, label="prediction")
    ax.plot(grid, grid**3, "--", color="black", lw=1.4, label="truth, x³")
    ax.set(xlim=(-SHOWN_ON, SHOWN_ON), ylim=(-330, 330))


def draw(answers: dict, x: np.ndarray, y: np.ndarray, path: Path) -> None:
    """Draw 90% intervals above, and below them the predicted standard deviations with the true error."""
    grid = np.linspace(-SHOWN_ON, SHOWN_ON, 601)
    figure, axes = plt.subplots(
        2, 3, figsize=(9.6, 5.6), sharex=True, sharey="row", height_ratios=(3, 2), layout="constrained"
    )
    for (above, below), (name, answer) in zip(axes.T, answers.items(), strict=True):
        p = answer(grid[:, None])
        draw_panel(above, p, grid, x, y)
        above.set_title(name, fontsize=11)
        below.axvspan(-TRAINED_ON, TRAINED_ON, color=COLOURS["range"], zorder=0)
        error = np.abs(p.mean - grid**3)
        below.plot(grid, np.maximum(error, 1e-3), "--", color="black", lw=1.2, label="error of the prediction")
        below.plot(grid, p.aleatoric_std, color=COLOURS["aleatoric"], lw=2, label="aleatoric std")
        below.plot(grid, p.epistemic_std, color=COLOURS["epistemic"], lw=2, label="epistemic std")
        below.set(yscale="log", ylim=(0.08, 3000), xlabel="x")
        for ax in (above, below):
            ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("std or error")
    axes[0, 0].legend(loc="upper left", frameon=False, fontsize=8.5)
    axes[1, 0].legend(loc="upper center", frameon=False, fontsize=8.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_intervals(answers: dict, x: np.ndarray, y: np.ndarray, path: Path) -> None:
    """Draw the 90% intervals of two models side by side."""
    grid = np.linspace(-SHOWN_ON, SHOWN_ON, 601)
    figure, axes = plt.subplots(1, len(answers), figsize=(9.6, 3.6), sharey=True, layout="constrained")
    for ax, (name, answer) in zip(axes, answers.items(), strict=True):
        draw_panel(ax, answer(grid[:, None]), grid, x, y)
        ax.set_xlabel("x")
        ax.set_title(name, fontsize=12)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("y")
    axes[0].legend(loc="upper left", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure (default: out)")
    parser.add_argument("--weight", type=float, default=0.01, help="λ of the evidence penalty (default: 0.01)")
    parser.add_argument("--iterations", type=int, default=5000, help="steps of the one network (default: 5000)")
    parser.add_argument("--members", type=int, default=12, help="networks of the mixture (default: 12)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    x, y = cubic(1000, NOISE, TRAINED_ON, seed=options.seed)
    print(f"y = x³ + ε, ε of standard deviation {NOISE:g}, 1000 points in ±{TRAINED_ON:g}; λ = {options.weight:g}")
    print("one evidential network, at the paper's settings:")
    net = one_network(x, y, options.weight, options.iterations)
    print(f"{options.members} evidential networks, trained together:")
    # one smooth column: bins and trees add nothing to it, and know nothing beyond the data
    model = hs.EvidentialRegressor(options.members, options.weight, inputs="numbers", random_state=options.seed)
    model.fit(x, y)
    print(f"  {model.training_['steps']} steps")
    mixture = f"mixture of {options.members}"
    answers = {
        "one network, as in the paper": lambda x: predict(net, x),
        f"{mixture}, plain": plain(model).predict_distribution,
        f"{mixture}, conjugate": model.predict_distribution,
    }
    report(answers)
    path = options.out / "cubic.png"
    draw(answers, x, y, path)
    one, _, computed = answers.values()
    intervals = options.out / "intervals.png"
    draw_intervals(
        {"a network's own evidence: too narrow outside": one, "howsure: wide where it has no data": computed},
        x,
        y,
        intervals,
    )
    print(f"Figures: {path}, {intervals}")


if __name__ == "__main__":
    main()
