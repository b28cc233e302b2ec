"""What an answer costs: the evidential network against a plain one with one output, an ensemble and dropout of five.

All of them have the same body and stand in memory as they do when a fitted regressor predicts; the evidential side ends
with mean and both variances of every row, the plain one with the mean. The limit is the matrix products of the body,
which are the same; four outputs instead of one, and the arithmetic on them, are what can be saved or lost.

    python benchmarks/bench_predict.py [--device cuda] [--rows 10000] [--repeats 40]
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from evidentia.distributions import Gaussian, NormalInverseGamma
from evidentia.estimators import EvidentialRegressor
from evidentia.nn import MLP, Population
from evidentia.training import resolve_device

FEATURES = 8


def ways(hidden: tuple[int, ...], device: torch.device) -> dict[str, Callable[[Tensor], tuple[Tensor, ...]]]:
    plain = MLP(FEATURES, hidden, 1, "silu").to(device).eval()
    one = MLP(FEATURES, hidden, 4, "silu").to(device).eval()
    five = Population(range(5), FEATURES, hidden, 2, "silu").to(device).eval()
    dropped = Population([0], FEATURES, hidden, 2, "silu", dropout=0.1).to(device).thin([0], 5).eval()

    def evidential(x: Tensor) -> tuple[Tensor, ...]:
        answer = NormalInverseGamma.from_raw(one(x))
        return answer.prediction, answer.aleatoric_variance, answer.epistemic_variance

    def spread(population: Population) -> Callable[[Tensor], tuple[Tensor, ...]]:
        def answer(x: Tensor) -> tuple[Tensor, ...]:
            each = Gaussian.from_raw(population(x))
            return each.loc.mean(0), each.variance.mean(0), each.loc.var(0, correction=0)

        return answer

    return {
        "plain, one output": lambda x: (plain(x)[:, 0],),
        "evidential": evidential,
        "ensemble of 5": spread(five),
        "dropout, 5 draws": spread(dropped),
    }


def whole(rows: int) -> float:
    """The same question asked of the regressor: ``EvidentialRegressor(members=1)`` against a plain network in a frame.

    Both read an array, scale it, pass it through the network in float64 and scale the answer back.
    """
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((500, FEATURES)), rng.standard_normal(500)
    model = EvidentialRegressor(members=1, steps=20, device="cpu", random_state=0).fit(x, y)
    network = model.fitted_.population
    plain = Population([0], FEATURES, network.sizes[1:-1], 1, "silu").double().eval()
    scale_x, scale_y = model.fitted_.scale_x, model.fitted_.scale_y

    def mean_only(table: np.ndarray) -> np.ndarray:
        features = torch.from_numpy(model.encoding_.transform(model._read(table, reset=False)))
        return (plain(scale_x(features))[0, :, 0] * scale_y.scale.flatten() + scale_y.loc.flatten()).numpy()

    table = rng.standard_normal((rows, FEATURES))
    seconds = measure({"plain": mean_only, "evidential": model.predict_distribution}, table, 10)
    return seconds["evidential"] / seconds["plain"]


def measure(asked: dict[str, Callable], x: Tensor | np.ndarray, repeats: int) -> dict[str, float]:
    """Seconds of each way: the median over turns of the best of five calls in a row.

    The ways take turns, so that a slow spell of the machine hits all alike; the first calls of a turn pay for memory
    that the other way gave back.
    """
    cuda = isinstance(x, Tensor) and x.is_cuda
    turns: dict[str, list[float]] = {name: [] for name in asked}
    for k in range(repeats + 3):
        for name, way in asked.items():
            seconds = []
            for _ in range(5):
                if cuda:
                    torch.cuda.synchronize()
                started = time.perf_counter()
                way(x)
                if cuda:
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - started)
            if k >= 3:
                turns[name].append(min(seconds))
    return {name: statistics.median(best) for name, best in turns.items()}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    device = resolve_device(options.device)
    cpu = f"{platform.machine()}, {torch.get_num_threads()} threads"
    label = torch.cuda.get_device_name() if device.type == "cuda" else cpu
    x = torch.randn(options.rows, FEATURES, device=device)
    ratios = {}
    for hidden in ((128, 128), (256, 256, 256)):
        eager = ways(hidden, device)
        for mode in ("eager", "compiled"):
            asked = eager if mode == "eager" else {n: torch.compile(w, dynamic=False) for n, w in eager.items()}
            # one by one with the plain network: five networks leave the caches in another state than one
            for name in list(asked)[1:]:
                seconds = measure({"plain": asked["plain, one output"], name: asked[name]}, x, options.repeats)
                ratios[hidden, mode, name] = ratio = seconds[name] / seconds["plain"]
                absolute = f"{1e3 * seconds[name]:9.3f} ms" if device.type == "cuda" else ""
                print(f"{hidden!s:16s}{mode:9s}{name:20s}{absolute}  {ratio:6.2f} of the plain network", flush=True)
    print(f"{options.rows} rows, {label}")
    for rows in (1, options.rows):
        print(f"EvidentialRegressor(members=1), {rows} rows, on the CPU: {whole(rows):.2f} of a plain network so used")
    worst = max(value for (_, _, name), value in ratios.items() if name == "evidential")
    print(f"evidential against plain, the worst of the four: {worst:.3f}")


if __name__ == "__main__":
    main()
