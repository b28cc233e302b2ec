"""The cubic problem of the paper: train on |x| ≤ 4, and see where the network knows that it does not know.

python examples/cubic.py            # writes out/cubic.png
python examples/cubic.py --help
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import evidentia as ev

NOISE = 3.0
TRAINED_ON = 4.0
SHOWN_ON = 6.0


def cubic_data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-TRAINED_ON, TRAINED_ON, n).unsqueeze(1)
    return x, x.squeeze(1) ** 3 + NOISE * torch.randn(n)


def train(x: torch.Tensor, y: torch.Tensor, weight: float, iterations: int) -> nn.Module:
    """The paper's settings: 3 layers of 100, Adam at 5e-3, batches of 128."""
    layers = [nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    net = nn.Sequential(*layers, ev.NIGHead(100))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    started = time.perf_counter()
    for i in range(1, iterations + 1):
        batch = torch.randint(len(x), (128,))
        loss = ev.evidential_loss(net(x[batch]), y[batch], weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 1000 == 0:
            left = (time.perf_counter() - started) / i * (iterations - i)
            print(f"  iteration {i:5d}   loss {loss.item():.3f}   {left:4.1f} s left")
    return net


def report(net: nn.Module) -> None:
    """What the network says, on fresh data inside the training range and on two strips outside it."""
    x, y = cubic_data(10_000)
    with torch.no_grad():
        inside, outside = net(x), net(torch.tensor([[-SHOWN_ON], [SHOWN_ON]]))
    tail = torch.full_like(y, 0.05)
    t = inside.predictive()
    covered = ((y >= t.icdf(tail)) & (y <= t.isf(tail))).float().mean()
    error = (inside.prediction - x.squeeze(1) ** 3).square().mean().sqrt()
    rows = {
        "error of the prediction, root mean square": (error, "0"),
        "share of new points in the 90 % interval": (covered, "0.90"),
        "predictive std, median": (inside.predictive_variance.sqrt().median(), f"{NOISE}"),
        "  its aleatoric part": (inside.aleatoric_variance.sqrt().median(), f"{NOISE}"),
        "  its epistemic part": (inside.epistemic_variance.sqrt().median(), "0"),
        "epistemic std at x = ±6": (outside.epistemic_variance.sqrt().mean(), "large"),
    }
    print(f"\n{'inside the training range':45s} {'network':>8s} {'ideal':>7s}")
    for name, (value, ideal) in rows.items():
        print(f"{name:45s} {value.item():8.2f} {ideal:>7s}")
    print("\nThe likelihood fixes the sum of the two parts, not the split: see docs/errata.md.")


def draw(net: nn.Module, x: torch.Tensor, y: torch.Tensor, path: Path) -> None:
    grid = torch.linspace(-SHOWN_ON, SHOWN_ON, 601)
    with torch.no_grad():
        answer = net(grid.unsqueeze(1))
    parts = {
        "aleatoric: noise in the data": (answer.aleatoric_variance.sqrt(), "#d95f02"),
        "epistemic: the model's own doubt": (answer.epistemic_variance.sqrt(), "#1f78b4"),
    }
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for ax, (title, (std, colour)) in zip(axes, parts.items(), strict=True):
        ax.axvspan(-TRAINED_ON, TRAINED_ON, color="0.94", zorder=0, label="training range")
        for k in (3, 2, 1):
            low, high = (answer.prediction - k * std), (answer.prediction + k * std)
            ax.fill_between(grid, low, high, color=colour, alpha=0.2, lw=0, label="± 1, 2, 3 std" if k == 1 else None)
        ax.plot(x[::4], y[::4], ".", color="0.35", ms=2, label="training data")
        ax.plot(grid, grid**3, "--", color="black", lw=1, label="x³")
        ax.plot(grid, answer.prediction, color=colour, lw=2, label="prediction")
        ax.set(title=title, xlabel="x", xlim=(-SHOWN_ON, SHOWN_ON), ylim=(-150, 150))
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(loc="upper left", frameon=False, fontsize=8)
    axes[0].set_ylabel("y")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure (default: out)")
    parser.add_argument("--weight", type=float, default=0.01, help="λ of the evidence penalty (default: 0.01)")
    parser.add_argument("--iterations", type=int, default=5000, help="training steps (default: 5000)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    x, y = cubic_data(1000)
    print(f"y = x³ + ε, ε of standard deviation {NOISE:g}, 1000 points in ±{TRAINED_ON:g}; λ = {arguments.weight:g}")
    net = train(x, y, arguments.weight, arguments.iterations)
    report(net)
    path = arguments.out / "cubic.png"
    draw(net, x, y, path)
    print(f"Figure: {path}")


if __name__ == "__main__":
    main()
