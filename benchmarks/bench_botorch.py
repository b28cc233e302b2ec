"""Bayesian optimisation with `hs.contrib.botorch.Surrogate`, next to Gaussian processes and random points.

    python benchmarks/bench_botorch.py [--seeds 10] [--steps 500] [--problems branin,hartmann6,noisy] [--out FOLDER]
    python benchmarks/bench_botorch.py --figure FIGURE.png --out FOLDER

Problems: Branin (2 variables), Hartmann-6 (6 variables), and Hartmann-3 with normal noise of standard deviation 0.2.
Every method starts from the same Sobol points and evaluates batches of two points, which maximise the acquisition
function qLogExpectedImprovement of BoTorch with 128 samples. Its incumbent is the best observed value, and with noise
the largest posterior mean at an observed point. Models are fitted again after each batch:

- howsure: six small networks, trained by squared errors on all rows, as one network of `hs.attach`. Before each fit the
  targets get a normal shape by the power transform of Yeo and Johnson.
- gp: ``SingleTaskGP`` on standardized targets.
- gp_power: the same on targets with the power transform.

The settings of our networks are the same for all problems. They were chosen with the seeds 100 to 103, and the seeds of
the record start at 0. The regret after a batch is the distance of the function from its maximum, without noise, at the
incumbent (of random points, at the best observed value). Prints the median final regrets, the ratio of our median to
that of gp on each problem, and last the median of these ratios. --out writes a record with all regrets, and --figure
draws the record.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.exceptions import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.test_functions import Branin, Hartmann
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from sklearn.preprocessing import PowerTransformer
from torch import Tensor, nn

import howsure as hs
from howsure.contrib.botorch import Surrogate
from howsure_paper.record import environment, write_record

METHODS = ("howsure", "gp", "gp_power", "random")
BATCH = 2
MEMBERS, WIDTH, LAYERS = 6, 24, 3
WEIGHT_DECAY = 0.001  # weight of the squared weights, divided by the number of rows
PROBLEMS = {  # function, standard deviation of the noise, first points, batches
    "branin": (Branin(negate=True), 0.0, 6, 10),
    "hartmann6": (Hartmann(dim=6, negate=True), 0.0, 12, 16),
    "noisy": (Hartmann(dim=3, negate=True), 0.2, 8, 12),
}


class Hidden(nn.Module):
    """The hidden layers of all networks: points (N, d) to features (N, members · width)."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        sizes = [columns] + [WIDTH] * LAYERS
        scales = [2.0] + [1.0] * (LAYERS - 1)
        self.weights = nn.ParameterList(
            torch.randn(MEMBERS, m, n, dtype=torch.float64) * scale / m**0.5
            for m, n, scale in zip(sizes, sizes[1:], scales, strict=False)
        )
        self.biases = nn.ParameterList(2 * torch.rand(MEMBERS, 1, n, dtype=torch.float64) - 1 for n in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        x = 2 * x - 1
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = (x @ weight + bias).sin()
        return x.movedim(0, 1).flatten(1)


class Networks(nn.Module):
    """Small networks side by side. The output is their mean."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.hidden = Hidden(columns)
        self.head = nn.Parameter(torch.randn(MEMBERS, WIDTH, dtype=torch.float64) / (2 * WIDTH**0.5))
        self.bias = nn.Parameter(torch.zeros(MEMBERS, dtype=torch.float64))

    def each(self, x: Tensor) -> Tensor:
        """Return the outputs of the networks, (N, members)."""
        return (self.hidden(x).unflatten(1, self.head.shape) * self.head).sum(-1) + self.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.each(x).mean(1, keepdim=True)


def fit_howsure(x: Tensor, y: Tensor, seed: int, steps: int) -> Surrogate:
    """Return our surrogate of observations in the unit cube, with standardized targets."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        networks = Networks(x.shape[1])
    optimizer = torch.optim.Adam(networks.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        size = sum(w.square().sum() for w in (*networks.hidden.weights, networks.head))
        loss = (networks.each(x) - y).square().mean(0).sum() + WEIGHT_DECAY / len(x) * size
        loss.backward()
        optimizer.step()
        schedule.step()
    return Surrogate(hs.attach(networks, [(x, y)], layers=["hidden"]))


def fit_process(x: Tensor, y: Tensor, seed: int, steps: int) -> SingleTaskGP:  # noqa: ARG001
    """Return a Gaussian process."""
    model = SingleTaskGP(x, y, outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def next_batch(model: object, x: Tensor, y: Tensor, noisy: bool, seed: int) -> tuple[Tensor, int]:
    """Return the next points, and the position of the incumbent."""
    with torch.no_grad():
        mean = model.posterior(x.unsqueeze(1)).mean.flatten()
    values = mean if noisy else y.squeeze(1)
    sampler = SobolQMCNormalSampler(torch.Size([128]), seed=seed) if isinstance(model, SingleTaskGP) else None
    acquisition = qLogExpectedImprovement(model, best_f=values.max(), sampler=sampler)
    bounds = torch.stack([torch.zeros(x.shape[1]), torch.ones(x.shape[1])]).double()
    points, _ = optimize_acqf(
        acquisition, bounds, q=BATCH, num_restarts=4, raw_samples=128, options={"maxiter": 60, "batch_limit": 4}
    )
    return points.detach(), int(values.argmax())


def optimise(problem: str, method: str, seed: int, steps: int) -> list[float]:
    """Return the regret after the first points and after each batch."""
    function, noise, first, batches = PROBLEMS[problem]
    torch.manual_seed(seed)
    dim = function.dim
    low, high = function.bounds.double()

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        exact = function(low + (high - low) * x).unsqueeze(1)
        return exact, exact + noise * torch.randn(exact.shape, dtype=exact.dtype)

    unit = torch.stack([torch.zeros(dim), torch.ones(dim)]).double()
    x = draw_sobol_samples(unit, n=1, q=first, seed=seed)[0].double()
    exact, y = evaluate(x)
    fits: dict[str, Callable[..., object]] = {"howsure": fit_howsure, "gp": fit_process, "gp_power": fit_process}
    fit = fits.get(method)
    regrets = []
    for step in range(batches + 1):
        best, points = int(y.argmax()), torch.rand(BATCH, dim, dtype=torch.float64)
        if fit is not None:
            target = y if method == "gp" else torch.from_numpy(PowerTransformer().fit_transform(y.numpy()))
            points, best = next_batch(fit(x, target, seed, steps), x, target, noise > 0, seed + step)
        regrets.append(float(function.optimal_value - exact[best]))
        new_exact, new_y = evaluate(points)
        x, exact, y = torch.cat([x, points]), torch.cat([exact, new_exact]), torch.cat([y, new_y])
    return regrets


def draw(record: dict, path: Path) -> None:
    """Draw the median regrets, with the quartiles."""
    import matplotlib.pyplot as plt

    names = {
        "howsure": "howsure",
        "gp": "Gaussian process",
        "gp_power": "Gaussian process, power transform",
        "random": "random points",
    }
    figure, axes = plt.subplots(1, len(record["regrets"]), figsize=(11, 3.4), constrained_layout=True)
    for ax, (problem, found) in zip(np.atleast_1d(axes), record["regrets"].items(), strict=True):
        for k, method in enumerate(METHODS):
            regrets = np.array(found[method])
            evaluations = PROBLEMS[problem][2] + BATCH * np.arange(regrets.shape[1])
            low, middle, high = np.quantile(regrets, [0.25, 0.5, 0.75], axis=0)
            ax.plot(evaluations, middle, color=f"C{k}", label=names[method])
            ax.fill_between(evaluations, low, high, color=f"C{k}", alpha=0.15, linewidth=0)
        ax.set(title=problem, xlabel="evaluations", yscale="log")
    axes[0].set_ylabel("regret")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500, help="training steps of our networks")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--out", type=Path, help="folder of the record, to which the regrets are added")
    parser.add_argument("--figure", type=Path, help="only draw the record in --out")
    options = parser.parse_args()
    path = options.out and options.out / "record.json"
    if options.figure:
        draw(json.loads(path.read_text()), options.figure)
        return
    for category in (OptimizationWarning, UserWarning, RuntimeWarning):
        warnings.simplefilter("ignore", category)
    torch.set_num_threads(1)
    regrets: dict[str, dict[str, list[list[float]]]] = {}
    start = time.process_time()
    for problem in options.problems.split(","):
        found = {m: [optimise(problem, m, s, options.steps) for s in range(options.seeds)] for m in METHODS}
        regrets[problem] = found
        medians = {m: float(np.median([run[-1] for run in runs])) for m, runs in found.items()}
        print(f"{problem:<10}" + "".join(f"{m:>10} {v:.4f}" for m, v in medians.items()), flush=True)
        seconds = time.process_time() - start
        if path:  # after each problem, so that an interrupted run is kept
            settings = {"seeds": options.seeds, "steps": options.steps, "cpu_seconds": round(seconds)}
            record = {"run": "bench_botorch", "environment": environment("cpu"), **settings, "regrets": regrets}
            write_record(options.out, record)
    ratios = {
        problem: np.median([run[-1] for run in found["howsure"]]) / np.median([run[-1] for run in found["gp"]])
        for problem, found in regrets.items()
    }
    print(f"CPU seconds: {seconds:.0f}")
    for problem, ratio in ratios.items():
        print(f"ratio of median regrets, howsure to Gaussian process, {problem}: {ratio:.2f}")
    print(f"median of the ratios: {np.median(list(ratios.values())):.2f}")


if __name__ == "__main__":
    main()
