"""Compares twenty splits of one table fitted as one population with twenty fits in turn by a plain PyTorch loop.

Both sides do the same work: network, loss, batch size, AdamW with warm-up and cosine, clipping, validation and best
weights. The plain loop spends its time on launching a few hundred tiny operations a step; the population launches as
many for all networks together.

    python benchmarks/bench_population.py [--data DATA] [--set concrete] [--device cuda] [--steps 1000]

Without --data the table is synthetic: 1,030 rows, 8 features.
"""

import argparse
import copy
import itertools
import math

import numpy as np
import torch
from torch import nn

import howsure as hs
from devices import device_label
from howsure import metrics
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.prediction import Prediction
from howsure.tables import splits
from howsure.tables.members import Member, hold_out
from howsure.training import Settings, resolve_device
from howsure_paper.datasets import uci
from howsure_paper.timing import synchronized_time
from howsure_paper.training import fit

BATCH = 64


def make_table(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, list[splits.Split]]:
    """Return features, target and twenty splits of the UCI set that was asked for, or of a synthetic table."""
    if options.data:
        table = uci.load(options.set, options.data)
        return table.x, table.y, table.splits[:20]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1030, 8))
    y = np.sin(x[:, 0] * 2) * 3 + x[:, 1] * x[:, 2] + 0.5 * (1 + np.abs(x[:, 3])) * rng.standard_normal(len(x))
    return x, y, [splits.random(len(x), 0.1, k) for k in range(20)]


def plain_fit(x: np.ndarray, y: np.ndarray, member: Member, network: Network, settings: Settings, device: str):
    """Train one network as a PyTorch user would write it, and return a function from row numbers to a prediction."""
    torch.manual_seed(member.seed)
    train = member.train.numpy()
    mean, std = x[train].mean(0), x[train].std(0)
    y_mean, y_std = y[train].mean(), y[train].std()

    def tensors(rows):
        features = torch.as_tensor((x[rows] - mean) / std, dtype=torch.float32, device=device)
        return features, torch.as_tensor((y[rows] - y_mean) / y_std, dtype=torch.float32, device=device)

    x_train, y_train = tensors(train)
    x_val, y_val = tensors(member.validation.numpy())
    sizes = (x.shape[1], *network.hidden)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
    net = nn.Sequential(*layers, hs.NIGHead(sizes[-1])).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    warm = max(1, round(settings.warmup * settings.steps))

    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / (settings.steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    best, kept = math.inf, None
    for step in range(1, settings.steps + 1):
        rows = torch.randint(len(x_train), (BATCH,), device=device)
        loss = hs.evidential_loss(net(x_train[rows]), y_train[rows], weight=0.01)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
        optimizer.step()
        schedule.step()
        if step % settings.evaluate_every == 0:
            with torch.no_grad():
                score = -net(x_val).predictive().log_prob(y_val).mean().item()
            if score < best:
                best, kept = score, copy.deepcopy(net.state_dict())
    net.load_state_dict(kept)

    def predict(rows):
        features, _ = tensors(rows)
        with torch.no_grad():
            answer = net(features)
        whole = torch.utils._pytree.tree_map(lambda p: p.unsqueeze(0).double().cpu(), answer)
        return Prediction(whole.affine(y_mean, y_std), members=0)

    return predict


def step_milliseconds(x: np.ndarray, y: np.ndarray, hidden: tuple[int, ...], device: torch.device) -> float:
    """Return the time of one captured step of a population of 100: the difference of a long and a short run."""
    members = hold_out(np.arange(len(x)), range(100))
    seconds = []
    for steps in (500, 2500):
        recipe = Recipe(Network(hidden), Settings(steps=steps, evaluate_every=steps), BATCH)
        started = synchronized_time(device)
        fit(Evidential(weight=0.01), x, y, members, recipe=recipe, device=device)
        seconds.append(synchronized_time(device) - started)
    return 1e3 * (seconds[1] - seconds[0]) / 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", help="data folder (default: a synthetic table)")
    parser.add_argument("--set", default="concrete")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", default="50", help="layer sizes, as in 128,128")
    options = parser.parse_args()
    device = resolve_device(options.device)
    x, y, parts = make_table(options)
    network = Network(tuple(int(h) for h in options.hidden.split(",")))
    settings = Settings(steps=options.steps, learning_rate=5e-3, evaluate_every=min(100, options.steps))
    members = [hold_out(train, [k])[0] for k, (train, _) in enumerate(parts)]
    method = Evidential(weight=0.01)

    def population():
        fitted = fit(method, x, y, members, recipe=Recipe(network, settings, BATCH), device=device)
        return [fitted.predict(x[test], [k]) for k, (_, test) in enumerate(parts)]

    def singles():
        nets = [plain_fit(x, y, member, network, settings, str(device)) for member in members]
        return [predict(test) for predict, (_, test) in zip(nets, parts, strict=True)]

    warm_up = Settings(steps=20, evaluate_every=10)
    fit(method, x, y, members, recipe=Recipe(network, warm_up, BATCH), device=device)
    plain_fit(x, y, members[0], network, warm_up, str(device))
    seconds, nll = {}, {}
    for name, way in {"population": population, "one by one": singles}.items():
        started = synchronized_time(device)
        predictions = way()
        seconds[name] = synchronized_time(device) - started
        nll[name] = np.array([metrics.nll(p, y[test]) for p, (_, test) in zip(predictions, parts, strict=True)])
    if device.type == "cuda":
        for hidden in ((50,), (128, 128)):
            print(f"100 members of {hidden}: {step_milliseconds(x, y, hidden, device):.2f} ms a step")
    print(f"20 splits, {x.shape[0]} x {x.shape[1]}, hidden {network.hidden}, {options.steps} steps, batches of {BATCH}")
    for name, values in nll.items():
        print(f"{name:11s} test NLL {values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}")
    gap = nll["population"] - nll["one by one"]
    print(f"difference, paired: {gap.mean():+.3f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.3f}")
    if device.type == "cuda":
        for name, value in seconds.items():
            print(f"{name:11s} {value:.2f} s")
    print(f"speed-up of the population on {device_label(device)}: {seconds['one by one'] / seconds['population']:.1f}")


if __name__ == "__main__":
    main()
