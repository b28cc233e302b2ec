"""Compares the time of a prediction by an evidential network, an ensemble and dropout with that by a plain network.

All have the same hidden layers; the ensemble has five networks, dropout five draws. The evidential network ends with
the mean and both variances of every row, the plain one, which has one output, with the mean. The matrix products of the
hidden layers are the same; four outputs instead of one and the arithmetic on them are the difference.

    python benchmarks/bench_predict.py [--device cuda] [--rows 10000] [--repeats 40] [--modes eager]
"""

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from devices import device_label
from howsure.distributions import Normal, NormalInverseGamma
from howsure.estimators import EvidentialRegressor
from howsure.nn import Population
from howsure.training import resolve_device
from howsure_paper.baselines import DropoutPopulation
from howsure_paper.timing import synchronized_time

FEATURES = 8
HIDDEN = (128, 128), (256, 256, 256)


def predictors(hidden: tuple[int, ...], device: torch.device) -> dict[str, Callable[[Tensor], tuple[Tensor, ...]]]:
    """Return, by name, the functions to compare: from features to the mean, and to both variances where there are."""
    plain = Population([0], FEATURES, hidden, 1, "silu").to(device).eval()
    one = Population([0], FEATURES, hidden, 4, "silu").to(device).eval()
    five = Population(range(5), FEATURES, hidden, 2, "silu").to(device).eval()
    dropped = DropoutPopulation([0], FEATURES, hidden, 2, "silu", dropout=0.1).to(device).thin([0], 5).eval()

    def evidential(x: Tensor) -> tuple[Tensor, ...]:
        answer = NormalInverseGamma.from_raw(one(x)[0])
        return answer.prediction, answer.aleatoric_variance, answer.epistemic_variance

    def spread(population: Population) -> Callable[[Tensor], tuple[Tensor, ...]]:
        def answer(x: Tensor) -> tuple[Tensor, ...]:
            each = Normal.from_raw(population(x))
            return each.loc.mean(0), each.variance.mean(0), each.loc.var(0, correction=0)

        return answer

    return {
        "plain, one output": lambda x: (plain(x)[0, :, 0],),
        "evidential": evidential,
        "ensemble of 5": spread(five),
        "dropout, 5 draws": spread(dropped),
    }


def regressor_ratio(rows: int) -> float:
    """Return the time of ``EvidentialRegressor(members=1)`` over that of a plain network that is used the same way.

    Both read an array, scale it, pass it through the network in float64 and scale the answer back, on the CPU.
    """
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((500, FEATURES)), rng.standard_normal(500)
    model = EvidentialRegressor(members=1, steps=20, device="cpu", random_state=0).fit(x, y)
    network = model.model_.networks
    plain = Population([0], FEATURES, network.sizes[1:-1], 1, "silu").double().eval()
    scale_x, scale_y = model.model_.scale_x, model.model_.scale_y

    def mean_only(table: np.ndarray) -> np.ndarray:
        features = torch.from_numpy(model.encoding_.transform(model.read(table)))
        return (plain(scale_x(features))[0, :, 0] * scale_y.scale.flatten() + scale_y.loc.flatten()).numpy()

    table = rng.standard_normal((rows, FEATURES))
    compared = {"plain": mean_only, "evidential": model.predict_distribution}
    seconds = measure(compared, table, 10, torch.device("cpu"))
    return seconds["evidential"] / seconds["plain"]


def measure(
    compared: dict[str, Callable], x: Tensor | np.ndarray, repeats: int, device: torch.device
) -> dict[str, float]:
    """Return the seconds of each function: the median over turns of the fastest of five calls in a row.

    The functions take turns, so that a slow spell of the machine affects all of them. The first calls of a turn pay for
    memory that the other function released.
    """
    turns: dict[str, list[float]] = {name: [] for name in compared}
    for k in range(repeats + 3):
        for name, predict in compared.items():
            seconds = []
            for _ in range(5):
                started = synchronized_time(device)
                predict(x)
                seconds.append(synchronized_time(device) - started)
            if k >= 3:
                turns[name].append(min(seconds))
    return {name: statistics.median(best) for name, best in turns.items()}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--modes", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    options = parser.parse_args()
    device = resolve_device(options.device)
    x = torch.randn(options.rows, FEATURES, device=device)
    ratios = {}
    for hidden in HIDDEN:
        eager = predictors(hidden, device)
        for mode in options.modes:
            compared = eager if mode == "eager" else {n: torch.compile(f, dynamic=False) for n, f in eager.items()}
            # each is paired with the plain network alone: five networks leave the caches in another state than one
            for name in list(compared)[1:]:
                pair = {"plain": compared["plain, one output"], name: compared[name]}
                seconds = measure(pair, x, options.repeats, device)
                ratios[hidden, mode, name] = ratio = seconds[name] / seconds["plain"]
                absolute = f"{1e3 * seconds[name]:9.3f} ms" if device.type == "cuda" else ""
                print(f"{hidden!s:16s}{mode:9s}{name:20s}{absolute}  {ratio:6.2f} of the plain network", flush=True)
    print(f"{options.rows} rows, {device_label(device)}")
    for rows in (1, options.rows):
        ratio = regressor_ratio(rows)
        print(
            f"EvidentialRegressor(members=1), {rows} rows, on the CPU: {ratio:.2f} of a plain network used the same way"
        )
    worst = max(value for (_, _, name), value in ratios.items() if name == "evidential")
    print(f"evidential / plain network, the largest of these ratios: {worst:.3f}")


if __name__ == "__main__":
    main()
