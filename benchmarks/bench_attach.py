"""Evidence after training: coverage of `hs.attach` on toys, scores on tails of the UCI tables, and its cost.

python benchmarks/bench_attach.py toys      # coverage off the data, without training again
python benchmarks/bench_attach.py tails     # UCI: last-layer Laplace and an ensemble of four beside it
python benchmarks/bench_attach.py cost      # passes of a network of the size of a ResNet-18
python benchmarks/bench_attach.py images    # U-Net on NYU Depth: AUROC of CamVid
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import howsure as hs

ACTIVATIONS = {"SiLU": nn.SiLU, "ReLU": nn.ReLU, "Tanh": nn.Tanh}
SEEDS = 4
TRAIN, VALIDATION, CALIBRATION, TEST = 800, 150, 150, 1000


# Toys -----------------------------------------------------------------------------------------------------------------


class Toy(NamedTuple):
    """Rows inside and off the training data, and the function that gives noisy targets."""

    inside: Callable[[np.random.Generator, int], np.ndarray]
    off: Callable[[np.random.Generator, int], np.ndarray]
    target: Callable[[np.random.Generator, np.ndarray], np.ndarray]


def _uniform(low: float, high: float, width: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda g, n: g.uniform(low, high, (n, width))


def _sides(low: float, high: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda g, n: g.choice([-1.0, 1.0], (n, 1)) * g.uniform(low, high, (n, 1))


def _shell(low: float, high: float, width: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    def draw(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.normal(size=(n, width))
        return x / np.linalg.norm(x, axis=1, keepdims=True) * g.uniform(low, high, (n, 1))

    return draw


def _friedman(u: np.ndarray) -> np.ndarray:
    return 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]


CHOSEN = {
    "cubic": Toy(_uniform(-4, 4, 1), _sides(4.5, 6), lambda g, x: x[:, 0] ** 3 + 3 * g.normal(size=len(x))),
    "gap": Toy(_sides(1.5, 4), _uniform(-1, 1, 1), lambda g, x: 10 * np.cos(1.5 * x[:, 0]) + g.normal(size=len(x))),
    "friedman": Toy(_uniform(0, 1, 10), _uniform(-0.25, 1.25, 10), lambda g, x: _friedman(x) + g.normal(size=len(x))),
}
FRESH = {  # chose nothing
    "damped sine": Toy(
        _uniform(-3, 3, 1),
        _sides(3.5, 5),
        lambda g, x: np.exp(-0.2 * x[:, 0]) * np.sin(2 * x[:, 0]) + 0.1 * g.normal(size=len(x)),
    ),
    "growing noise": Toy(
        _uniform(0, 4, 2),
        _uniform(4.5, 6, 2),
        lambda g, x: x[:, 0] * x[:, 1] + (0.1 + 0.3 * x[:, 0]) * g.normal(size=len(x)),
    ),
    "ball in six dimensions": Toy(
        _shell(0, 1, 6), _shell(1.4, 2, 6), lambda g, x: (x**2).sum(1) + x[:, 0] * x[:, 1] + 0.1 * g.normal(size=len(x))
    ),
    "product of eight": Toy(
        _uniform(-1, 1, 8),
        _uniform(1.2, 1.6, 8),
        lambda g, x: 3 * x[:, 0] * x[:, 1] - 2 * x[:, 2] * x[:, 3] + x[:, 4] + 0.3 * g.normal(size=len(x)),
    ),
    "heavy tails": Toy(
        _uniform(-2, 2, 3),
        lambda g, n: g.choice([-1.0, 1.0], (n, 3)) * g.uniform(2.5, 3.5, (n, 3)),
        lambda g, x: x[:, 0] ** 2 - x[:, 1] * x[:, 2] + 0.3 * g.standard_t(3, size=len(x)),
    ),
}


class Split(NamedTuple):
    """Standardised rows of a toy: inputs and targets of each part."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    calibration: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    off: tuple[Tensor, Tensor]


def draw(toy: Toy, seed: int) -> Split:
    """Return the rows of a toy, standardised by its training rows."""
    g = np.random.default_rng(seed)
    sizes = (TRAIN, VALIDATION, CALIBRATION, TEST)
    inputs = [toy.inside(g, n) for n in sizes] + [toy.off(g, 300)]
    targets = [toy.target(g, x) for x in inputs]
    x_mean, x_std = inputs[0].mean(0), inputs[0].std(0)
    y_mean, y_std = targets[0].mean(), targets[0].std()
    return Split(
        *(
            (torch.tensor((x - x_mean) / x_std).float(), torch.tensor((y - y_mean) / y_std).float().unsqueeze(1))
            for x, y in zip(inputs, targets, strict=True)
        )
    )


def train_network(
    split: Any, seed: int, activation: type[nn.Module] = nn.SiLU, evidential: bool = False, steps: int = 1500
) -> nn.Module:
    """Return a network with two hidden layers of 64 units, trained as usual, at its best step by validation rows."""
    torch.manual_seed(seed)
    (x, y), (x_validation, y_validation) = split.train, split.validation
    last: nn.Module = hs.NIGHead(64, targets=1) if evidential else nn.Linear(64, 1)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), activation(), nn.Linear(64, 64), activation(), last)
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        if evidential:
            return hs.evidential_loss(network(inputs), targets, weight=0.01)
        return nn.functional.mse_loss(network(inputs), targets)

    best, state = float("inf"), {}
    for step in range(steps):
        rows = torch.randint(0, len(x), (128,))
        optimizer.zero_grad()
        loss(x[rows], y[rows]).backward()
        optimizer.step()
        if step % 50 == 49:
            with torch.no_grad():
                score = float(loss(x_validation, y_validation))
            if score < best:
                best, state = score, {k: v.clone() for k, v in network.state_dict().items()}
    network.load_state_dict(state)
    return network.eval()


def measure(toy: Toy, seed: int, activation: type[nn.Module], evidential: bool, features: str, **options: Any) -> dict:
    """Return coverage of 90% intervals inside and off the data, the half-width there and the error there."""
    split = draw(toy, seed)
    network = train_network(split, seed, activation, evidential)
    model = hs.attach(network, [split.train], validation=[split.validation], features=features, **options)
    model = hs.calibrate(model, [split.calibration])
    inside, off = model.predict(split.test[0]), model.predict(split.off[0])
    ends = off.interval(0.9)
    return {
        "inside": hs.metrics.coverage(inside, split.test[1], 0.9),
        "off": hs.metrics.coverage(off, split.off[1], 0.9),
        "half_width": float(np.median(ends[..., 1] - ends[..., 0]) / 2),
        "error": float(np.abs(off.mean - split.off[1].numpy()).mean()),
    }


def toys(which: dict[str, Toy]) -> dict[str, Any]:
    """Print one line for each toy, activation and head; return the numbers."""
    record = {}
    for name, toy in which.items():
        for features in ("layers", "gradients"):
            for head in ("Linear", "NIGHead"):
                for activation, kind in ACTIVATIONS.items():
                    runs = [measure(toy, s, kind, head == "NIGHead", features) for s in range(SEEDS)]
                    mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
                    mean["worst"] = min(run["off"] for run in runs)
                    record[f"{name}, {features}, {head}, {activation}"] = mean
                    print(
                        f"{name:22s} {features:9s} {head:7s} {activation:4s} inside {mean['inside']:.2f}, off "
                        f"{mean['off']:.2f} (worst {mean['worst']:.2f}), half-width {mean['half_width']:.2f}, "
                        f"error {mean['error']:.2f}",
                        flush=True,
                    )
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["toys", "fresh", "tails", "cost", "images"])
    parser.add_argument("--only", help="one toy or one table")
    parser.add_argument("--record", type=Path, help="JSON file for the numbers")
    options = parser.parse_args()
    if options.part in ("toys", "fresh"):
        which = CHOSEN if options.part == "toys" else FRESH
        found = toys({k: v for k, v in which.items() if options.only in (None, k)})
    if options.record:
        options.record.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
