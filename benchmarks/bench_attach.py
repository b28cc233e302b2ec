"""Evidence after training: coverage of `hs.attach` on toys, scores on tails of the UCI tables, and its cost.

python benchmarks/bench_attach.py toys      # coverage off the data, without training again
python benchmarks/bench_attach.py tails     # UCI: last-layer Laplace and an ensemble of four beside it
python benchmarks/bench_attach.py cost      # passes of a network of the size of a ResNet-18
python benchmarks/bench_attach.py images    # U-Net on NYU Depth: AUROC of CamVid
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import howsure as hs
from devices import device_label
from howsure.errors import FewLabelsWarning
from howsure.nn.evidence import FeatureSums
from howsure_paper import splits
from howsure_paper.datasets import uci
from howsure_paper.depth import data as depth
from howsure_paper.record import environment, find_record, write_record

ACTIVATIONS = {"SiLU": nn.SiLU, "ReLU": nn.ReLU, "Tanh": nn.Tanh}
HEADS = ("Linear", "NIGHead")
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
    width = split.train[0].shape[1]
    last: nn.Module = hs.NIGHead(64, targets=1) if evidential else nn.Linear(64, 1)
    network = nn.Sequential(nn.Linear(width, 64), activation(), nn.Linear(64, 64), activation(), last)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        if evidential:
            return hs.evidential_loss(network(inputs), targets, weight=0.01)
        return nn.functional.mse_loss(network(inputs), targets)

    return fit(network, loss, split, steps)


def fit(network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], split: Any, steps: int) -> nn.Module:
    """Train a network, and return it with the weights of its best step by validation rows."""
    x, y = split.train
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    best, state = float("inf"), network.state_dict()
    for step in range(steps):
        rows = torch.randint(0, len(x), (128,))
        optimizer.zero_grad()
        loss(x[rows], y[rows]).backward()
        optimizer.step()
        if step % 50 == 49:
            with torch.no_grad():
                found = float(loss(*split.validation))
            if found < best:
                best, state = found, {k: v.clone() for k, v in network.state_dict().items()}
    network.load_state_dict(state)
    return network.eval()


def measure(network: nn.Module, split: Split, features: str) -> dict[str, float]:
    """Return coverage of 90% intervals inside and off the data, the half-width there and the error there."""
    model = hs.attach(network, [split.train], validation=[split.validation], features=features)
    model = hs.calibrate(model, [split.calibration])
    inside, off = model.predict(split.test[0]), model.predict(split.off[0])
    ends = off.interval(0.9)
    return {
        "inside": hs.metrics.coverage(inside, split.test[1], 0.9),
        "off": hs.metrics.coverage(off, split.off[1], 0.9),
        "half_width": float(np.median(ends[..., 1] - ends[..., 0]) / 2),
        "error": float(np.abs(off.mean - split.off[1].numpy()).mean()),
    }


def toys(which: dict[str, Toy], steps: int, seeds: int) -> dict[str, Any]:
    """Print one line for each toy, head, activation and kind of features; return the numbers."""
    record = {}
    for (name, toy), head, (activation, kind) in itertools.product(which.items(), HEADS, ACTIVATIONS.items()):
        drawn = [draw(toy, seed) for seed in range(seeds)]
        networks = [train_network(split, seed, kind, head == "NIGHead", steps) for seed, split in enumerate(drawn)]
        for features in ("layers", "gradients"):
            runs = [measure(network, split, features) for network, split in zip(networks, drawn, strict=True)]
            mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            mean["worst"] = min(run["off"] for run in runs)
            record[f"{name}, {head}, {activation}, {features}"] = mean
            print(
                f"{name:22s} {head:7s} {activation:4s} {features:9s} inside {mean['inside']:.2f}, off "
                f"{mean['off']:.2f} (worst {mean['worst']:.2f}), half-width {mean['half_width']:.2f}, "
                f"error {mean['error']:.2f}",
                flush=True,
            )
    return record


# Tables ---------------------------------------------------------------------------------------------------------------


SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
TAILS = STANDARD = 4  # splits of each kind
MAX_ROWS = 10_000  # training rows of a split
MEMBERS = 4


def split_table(table: uci.UCITable, train: np.ndarray, test: np.ndarray, seed: int) -> Split:
    """Return the rows of a split; a tenth of the training rows validates, and another tenth calibrates."""
    rows = np.random.default_rng(seed).permutation(train)[:MAX_ROWS]
    tenth = len(rows) // 10
    parts = [rows[2 * tenth :], rows[:tenth], rows[tenth : 2 * tenth], test[:2000], test[:2000]]
    x, y = table.x[parts[0]], table.y[parts[0]]
    x_std = np.where(x.std(0) > 0, x.std(0), 1.0)
    return Split(
        *(
            (
                torch.tensor((table.x[part] - x.mean(0)) / x_std).float(),
                torch.tensor((table.y[part] - y.mean()) / y.std()).float().unsqueeze(1),
            )
            for part in parts
        )
    )


def splits_of(table: uci.UCITable) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Return splits whose test rows are the ends of a feature, and standard ones."""
    varying = [k for k in range(table.x.shape[1]) if len(np.unique(table.x[:, k])) > 5]
    chosen = np.random.default_rng(0).permutation(varying)[:TAILS]
    return {"tail": [splits.tail(table.x[:, k]) for k in chosen], "standard": table.splits[:STANDARD]}


def laplace(network: nn.Module, split: Split, x: Tensor) -> hs.Normal:
    """Return predictions of the last-layer Laplace approximation in closed form (Daxberger et al. 2021).

    The noise is that of the validation rows; the prior precision maximises the marginal likelihood of the training
    rows. With the same two numbers laplace-torch gives the same variances.
    """
    body, last = network[:-1], network[-1]
    with torch.no_grad():
        features, new = (torch.cat([body(rows), torch.ones(len(rows), 1)], 1).double() for rows in (split.train[0], x))
        noise = float((network(split.validation[0]) - split.validation[1]).square().mean())
        weights = torch.cat([last.weight[0], last.bias]).double()
        values, directions = torch.linalg.eigh(features.T @ features / noise)
        values = values.clamp(min=0)
        precisions = torch.logspace(-4, 6, 101, dtype=torch.float64)
        evidence = [
            0.5 * (len(weights) * p.log() - p * weights.square().sum() - (values + p).log().sum()) for p in precisions
        ]
        best = precisions[int(torch.stack(evidence).argmax())]
        variance = ((new @ directions).square() / (values + best)).sum(1, keepdim=True)
        return hs.Normal(network(x), (variance + noise).sqrt().float())


def train_normal(split: Split, seed: int, steps: int) -> nn.Module:
    """Return a member of a deep ensemble: a network with a normal likelihood."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(split.train[0].shape[1], 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), hs.NormalHead(64, targets=1)
    )
    return fit(network, lambda a, b: hs.normal_loss(network(a), b), split, steps)


def score(p: Any, y: Tensor) -> dict[str, float]:
    """Return NLL, CRPS and the coverage of 90% intervals."""
    return {
        "nll": hs.metrics.nll(p, y),
        "crps": hs.metrics.crps(p, y),
        "coverage": hs.metrics.coverage(p, y, 0.9),
    }


def measure_split(split: Split, seed: int, steps: int) -> dict[str, dict[str, float]]:
    """Return the scores of each method for the test rows of a split, and the seconds after training."""
    network = train_network(split, seed, steps=steps)
    x, y = split.test
    found = {}

    def add(name: str, predict: Callable[[], Any], seconds: float = 0.0) -> None:
        started = time.perf_counter()
        p = predict()
        found[name] = {**score(p, y), "seconds": seconds + time.perf_counter() - started}

    def attached() -> Any:
        model = hs.attach(network, [split.train], validation=[split.validation])
        return hs.calibrate(model, [split.calibration]).predict(x)

    def calibrated(predict: Callable[[Tensor], Any]) -> Any:
        calibration = hs.calibrate(predict(split.calibration[0]), split.calibration[1])
        return calibration.apply(predict(x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewLabelsWarning)
        add("attach", attached)
        add("laplace", lambda: laplace(network, split, x))
        add("laplace, calibrated", lambda: calibrated(lambda rows: laplace(network, split, rows)))
        started = time.perf_counter()
        members = [train_normal(split, seed + k, steps) for k in range(MEMBERS)]
        taken = time.perf_counter() - started

        @torch.no_grad()
        def ensemble(rows: Tensor) -> hs.Mixture:
            each = [member(rows) for member in members]
            return hs.Mixture(hs.Normal(torch.stack([n.loc for n in each]), torch.stack([n.scale for n in each])))

        add("ensemble of four", lambda: ensemble(x), taken)
        add("ensemble of four, calibrated", lambda: calibrated(ensemble), taken)
    return found


def tails(data: Path | None, only: str | None, steps: int) -> dict[str, Any]:
    """Print the mean scores of each method for tails and standard splits of the UCI tables."""
    record: dict[str, Any] = {}
    for name in SETS:
        if only not in (None, name):
            continue
        table = uci.load(name, data)
        for kind, chosen in splits_of(table).items():
            runs = [measure_split(split_table(table, *rows, k), 10 * k, steps) for k, rows in enumerate(chosen)]
            for method in runs[0]:
                mean = {key: float(np.mean([run[method][key] for run in runs])) for key in runs[0][method]}
                record[f"{name}, {kind}, {method}"] = mean
                shown = ", ".join(f"{key} {value:.3f}" for key, value in mean.items())
                print(f"{name:8s} {kind:8s} {method:28s} {shown}", flush=True)
    return record


# Cost -----------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Basic block of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.skip(x))


def resnet18() -> nn.Module:
    """Return a network of the size of a ResNet-18 with one output."""
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Block(*size) for size in [*sizes, (512, 512, 1)]]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1)).eval()


@torch.no_grad()
def cost(device: torch.device, batch: int, size: int) -> dict[str, Any]:
    """Print the time of a batch while attaching, and of a prediction, by that of a pass of the network.

    The time of `attach` that does not depend on the number of rows is left out: a million rows take far longer.
    """
    torch.manual_seed(0)
    network = resnet18().to(device)
    x, y = torch.randn(batch, 3, size, size, device=device), torch.randn(batch, 1, device=device)
    model = hs.attach(network, [(x, y)] * 4)
    sums = FeatureSums()

    def one_batch() -> None:
        _, features = model.reader(network, (x,))
        sums.add(torch.cat(features, -1))

    def seconds(call: Callable[[], Any]) -> float:
        started = time.process_time() if device.type == "cpu" else time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.process_time() if device.type == "cpu" else time.perf_counter()) - started

    calls = (lambda: network(x), one_batch, lambda: model(x))
    plain, attaching, predicting = np.median([[seconds(call) for call in calls] for _ in range(20)], 0)
    return {"batch": batch, "size": size, "attach": attaching / plain, "prediction": predicting / plain}


# Images ---------------------------------------------------------------------------------------------------------------


def images(data: Path | None, device: torch.device, steps: int, width: int, seeds: int) -> dict[str, Any]:
    """Print the AUROC of CamVid by attached evidence, for U-Nets trained on NYU Depth by squared errors alone."""
    found = depth.load(data)
    record: dict[str, Any] = {"steps": steps, "width": width}
    for seed in range(seeds):
        network = train_unet(found, device, steps, width, seed)
        for name, layers in {"last two": None, "encoder": ["encoder.0", "encoder.1", "encoder.2"]}.items():
            record[f"{name}, seed {seed}"] = measure_unet(network, found, device, layers)
            print(name, seed, record[f"{name}, seed {seed}"], flush=True)
    return record


def train_unet(found: depth.DepthData, device: torch.device, steps: int, width: int, seed: int) -> nn.Module:
    """Return a U-Net trained by squared errors of standardised disparity, with flips as augmentation."""
    network = hs.nn.UNet(1, width=width, seed=seed).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(0, len(found.train.maps), (16,), generator=generator)
        x, y = pixels(found.train.images[rows], found.train.maps[rows], device)
        if torch.rand((), generator=generator) < 0.5:
            x, y = x.flip(-1), y.flip(-1)
        loss = (network(x) - y).square()[~y.isnan()].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    return network.eval()


def pixels(image: Tensor, disparity: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, H, W) from 0 to 1 and disparities (N, 1, H, W) on a device."""
    return image.to(device).permute(0, 3, 1, 2).float() / 255, disparity.to(device).unsqueeze(1)


def measure_unet(
    network: nn.Module, found: depth.DepthData, device: torch.device, layers: list[str] | None
) -> dict[str, float]:
    """Return scores of a U-Net with evidence: AUROC of CamVid by image, and NLL and coverage of NYU's test images."""
    loaders = {
        part: [pixels(pairs.images[k : k + 4], pairs.maps[k : k + 4], device) for k in range(0, len(pairs.maps), 4)]
        for part, pairs in {"train": found.train, "validation": found.validation, "test": found.test}.items()
    }
    model = hs.attach(network, loaders["train"], validation=loaders["validation"], layers=layers)
    model = hs.calibrate(model, loaders["validation"])
    inside = [model.predict(x) for x, _ in loaders["test"]]
    outside_images = found.outside.permute(0, 3, 1, 2).float() / 255
    outside = [model.predict(x.to(device)) for x in outside_images.split(4)]
    p, y = hs.Prediction.cat(inside).cpu(), torch.cat([y for _, y in loaders["test"]]).cpu()
    known = ~y.isnan()

    def scores(parts: list[hs.Prediction]) -> np.ndarray:
        return np.concatenate([np.log(part.epistemic_std).reshape(len(part), -1).mean(1) for part in parts])

    return {
        "auroc": hs.metrics.auroc(scores(inside), scores(outside)),
        "auroc of familiarity": hs.metrics.auroc(
            *(-np.concatenate([part.familiarity for part in parts]) for parts in (inside, outside))
        ),
        "rmse": hs.metrics.rmse(p, y, mask=known),
        "nll": hs.metrics.nll(p, y, mask=known),
        "coverage": hs.metrics.coverage(p, y, 0.9, mask=known),
    }


def summary(part: str, found: dict[str, Any]) -> str:
    """Return the last line: one number of a part."""
    if part in ("toys", "fresh"):
        share = np.mean([run["off"] for run in found.values()]) / 0.9
        return f"{part}, mean coverage off the training rows by the stated one: {share:.2f}"
    if part == "tails":
        names = {key.split(",")[0] for key in found}
        ratios = [found[f"{n}, tail, attach"]["crps"] / found[f"{n}, tail, laplace, calibrated"]["crps"] for n in names]
        return f"tails, CRPS by that of a calibrated Laplace approximation: {np.mean(ratios):.2f}"
    if part == "cost":
        print(f"a prediction by that of the network: {found['prediction']:.2f}")
        return f"a batch while attaching by a pass of the network: {found['attach']:.2f}"
    values = [run["auroc"] for run in found.values() if isinstance(run, dict)]
    return f"images, AUROC of CamVid: {np.mean(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["toys", "fresh", "tails", "cost", "images"])
    parser.add_argument("--only", help="one toy or one table")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--steps", type=int, help="of training")
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch of the measurement of cost")
    parser.add_argument("--size", type=int, default=64, help="height and width of its images")
    parser.add_argument("--width", type=int, default=32, help="of the U-Net")
    parser.add_argument("--seeds", type=int, help="trainings of each toy (4) or of the U-Net (3)")
    parser.add_argument("--out", type=Path, help="folder of the record, to which the numbers are added")
    options = parser.parse_args()
    if options.part in ("toys", "fresh"):
        which = CHOSEN if options.part == "toys" else FRESH
        chosen = {k: v for k, v in which.items() if options.only in (None, k)}
        found = toys(chosen, options.steps or 1500, options.seeds or 4)
    elif options.part == "tails":
        found = tails(options.data, options.only, options.steps or 1500)
    elif options.part == "cost":
        found = cost(options.device, options.batch, options.size)
    else:
        found = images(options.data, options.device, options.steps or 3000, options.width, options.seeds or 3)
    if options.out:
        before = find_record(options.out) or {"run": "bench_attach"}
        part = {"device": device_label(options.device), **found}
        write_record(options.out, {**before, "environment": environment(options.device), options.part: part})
    print(summary(options.part, found))


if __name__ == "__main__":
    main()
