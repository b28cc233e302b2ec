"""A picture of evidence that was attached to a trained network, for docs/trained.md.

python examples/trained_network.py            # writes out/trained_network.png
python examples/trained_network.py --help
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import howsure as hs


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows between −4 and 4 of the cubic y = x³ with noise of deviation 3."""
    g = torch.Generator().manual_seed(seed)
    x = 8 * torch.rand(count, 1, generator=g) - 4
    return x, x**3 + 3 * torch.randn(count, 1, generator=g)


def trained_network(x: torch.Tensor, y: torch.Tensor, steps: int) -> nn.Module:
    """Return a network trained by squared errors."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    for _ in range(steps):
        batch = torch.randint(0, len(x), (128,))
        optimizer.zero_grad()
        (net(x[batch] / 4) - y[batch] / 25).square().mean().backward()
        optimizer.step()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--steps", type=int, default=1500, help="of training")
    options = parser.parse_args()
    (x, y), (x_new, y_new) = rows(800, 0), rows(200, 1)
    net = trained_network(x, y, options.steps)
    model = hs.attach(net, [(x / 4, y / 25)])
    model = hs.calibrate(model, [(x_new / 4, y_new / 25)])

    line = torch.linspace(-6, 6, 241).unsqueeze(1)
    p = model.predict(line / 4)
    ends = 25 * p.interval(0.9)[:, 0]
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axis.fill_between(line[:, 0], ends[:, 0], ends[:, 1], color="#9ecae1", label="90% interval")
    axis.scatter(x[::4], y[::4], s=4, color="#555555", label="training rows")
    axis.plot(line, 25 * p.mean, color="#08519c", label="network")
    axis.plot(line, line**3, "--", color="black", linewidth=1, label="truth")
    axis.set(xlabel="x", ylabel="y", ylim=(-400, 400))
    axis.legend(loc="upper left", frameon=False)
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "trained_network.png", dpi=130)


if __name__ == "__main__":
    main()
