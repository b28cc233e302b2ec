"""The cubic problem of the paper: train on |x| ≤ 4, and see where a model knows that it does not know.

Twice: one evidential network as in the paper, and a mixture of eight, whose spread identifies what one network cannot.

    python examples/cubic.py            # writes out/cubic.png
    python examples/cubic.py --help
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import evidentia as ev
from evidentia import metrics
from evidentia.datasets.cubic import cubic
from evidentia.fitting import fit, hold_out
from evidentia.methods import Evidential

NOISE = 3.0
TRAINED_ON = 4.0
SHOWN_ON = 6.0


def one_network(x: np.ndarray, y: np.ndarray, weight: float, iterations: int) -> nn.Module:
    """Plain PyTorch at the paper's settings: 3 layers of 100, Adam at 5e-3, batches of 128, y as it is."""
    features, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    layers = [nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    net = nn.Sequential(*layers, ev.NIGHead(100))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    started = time.perf_counter()
    for i in range(1, iterations + 1):
        batch = torch.randint(len(features), (128,))
        loss = ev.evidential_loss(net(features[batch]), targets[batch], weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 1000 == 0:
            left = (time.perf_counter() - started) / i * (iterations - i)
            print(f"  iteration {i:5d}   loss {loss.item():.3f}   {left:4.1f} s left")
    return net


def predict(net: nn.Module, x: np.ndarray) -> ev.Prediction:
    with torch.no_grad():
        return ev.Prediction(net(torch.tensor(x, dtype=torch.float32)))


def report(answers: dict) -> None:
    """What each model says, on fresh data inside the training range and at ±6."""
    x, y = cubic(10_000, NOISE, TRAINED_ON, seed=12_345)
    ends = np.array([[-SHOWN_ON], [SHOWN_ON]])
    rows = {
        "error of the prediction, root mean square": (lambda p, _: np.sqrt(np.mean((p.mean - x[:, 0] ** 3) ** 2)), "0"),
        "share of new points in the 90 % interval": (lambda p, _: metrics.coverage(p, y), "0.90"),
        "predictive std, median": (lambda p, _: np.median(p.std), f"{NOISE}"),
        "  its aleatoric part": (lambda p, _: np.median(p.aleatoric_std), f"{NOISE}"),
        "  its epistemic part": (lambda p, _: np.median(p.epistemic_std), "0"),
        "epistemic std at x = ±6": (lambda _, far: far.epistemic_std.mean(), "large"),
    }
    said = {name: (answer(x), answer(ends)) for name, answer in answers.items()}
    print(f"\n{'inside the training range':43s}" + "".join(f"{name:>16s}" for name in said) + f"{'ideal':>8s}")
    for row, (value, ideal) in rows.items():
        print(f"{row:43s}" + "".join(f"{value(*pair):16.2f}" for pair in said.values()) + f"{ideal:>8s}")
    print("\nThe likelihood fixes the sum of the two parts, not the split of one network: see docs/errata.md, E15.")


def draw(answers: dict, x: np.ndarray, y: np.ndarray, path: Path) -> None:
    grid = np.linspace(-SHOWN_ON, SHOWN_ON, 601)
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
    for row, (name, answer) in zip(axes, answers.items(), strict=True):
        p = answer(grid[:, None])
        parts = {
            "aleatoric, the noise in the data": (p.aleatoric_std, "#d95f02"),
            "epistemic, the model's own doubt": (p.epistemic_std, "#1f78b4"),
        }
        for ax, (title, (std, colour)) in zip(row, parts.items(), strict=True):
            ax.axvspan(-TRAINED_ON, TRAINED_ON, color="0.94", zorder=0, label="training range")
            for k in (3, 2, 1):
                label = "± 1, 2, 3 std" if k == 1 else None
                ax.fill_between(grid, p.mean - k * std, p.mean + k * std, color=colour, alpha=0.2, lw=0, label=label)
            ax.plot(x[::4], y[::4], ".", color="0.35", ms=2, label="training data")
            ax.plot(grid, grid**3, "--", color="black", lw=1, label="x³")
            ax.plot(grid, p.mean, color=colour, lw=2, label="prediction")
            ax.set(xlim=(-SHOWN_ON, SHOWN_ON), ylim=(-150, 150))
            ax.set_title(f"{name}: {title}", fontsize=10)
            ax.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("y")
    for ax in axes[1]:
        ax.set_xlabel("x")
    for ax in axes[0]:
        ax.legend(loc="upper left", frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure (default: out)")
    parser.add_argument("--weight", type=float, default=0.01, help="λ of the evidence penalty (default: 0.01)")
    parser.add_argument("--iterations", type=int, default=5000, help="steps of the one network (default: 5000)")
    parser.add_argument("--members", type=int, default=8, help="networks of the mixture (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    x, y = cubic(1000, NOISE, TRAINED_ON, seed=options.seed)
    print(f"y = x³ + ε, ε of standard deviation {NOISE:g}, 1000 points in ±{TRAINED_ON:g}; λ = {options.weight:g}")
    print("one evidential network, at the paper's settings:")
    net = one_network(x, y, options.weight, options.iterations)
    print(f"{options.members} evidential networks, trained together:")
    seeds = range(100 * options.seed, 100 * options.seed + options.members)
    fitted = fit(Evidential(options.weight), x, y, hold_out(np.arange(len(x)), seeds), progress=True)
    print(f"  {fitted.training.steps} steps, best validation NLL {fitted.training.best_score.mean():.3f}")
    answers = {"one network": lambda x: predict(net, x), f"mixture of {options.members}": fitted.predict}
    report(answers)
    path = options.out / "cubic.png"
    draw(answers, x, y, path)
    print(f"Figure: {path}")


if __name__ == "__main__":
    main()
