"""Compares exported ONNX graphs with ``predict_distribution``: numbers and time.

Numbers: a default regressor is fitted to the training rows of a UCI set, written as an ONNX graph, and asked for its
test rows in ONNX Runtime; so are eight networks that see numbers alone. The error of mean, deviations and ends of the
90 % interval is relative to the number, or to the standard deviation of the row where that is larger. The same for
Exported networks: a mixture of eight, and a U-Net at two sizes.

Time: mean and both deviations of one row, and of 65,536 rows, by ``predict_distribution`` and by graphs in ONNX
Runtime: the exported one, with the same outputs, and one of the networks alone, from scaled features to raw outputs in
float32, without trees, bins, evidence and moments. ONNX Runtime has one thread for one row, and all for many. Ways take
turns.

    python benchmarks/bench_deploy.py [--data DATA] [--sets boston,concrete] [--steps 200] [--rows 65536]

Without --data the set is diabetes, which comes with scikit-learn.
"""

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import sklearn.datasets
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

import howsure as hs
from devices import device_label
from howsure.nn import UNet
from howsure_paper.datasets import uci

FIVE = "boston,concrete,energy,wine,yacht"
PARTS = ("mean", "aleatoric_std", "epistemic_std", "lower", "upper")


def rows_of(name: str, data: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features and targets of the training rows of the first split, and features of its test rows."""
    if name == "diabetes":
        x, y = sklearn.datasets.load_diabetes(return_X_y=True)
        return x[:400], y[:400], x[400:]
    table = uci.load(name, data)
    train, test = table.splits[0]
    return table.x[train], table.y[train], table.x[test]


def session_of(graph: Path | bytes, threads: int) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """Return a function that computes all outputs of a graph."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        graph if isinstance(graph, bytes) else str(graph), options, providers=["CPUExecutionProvider"]
    )
    return lambda inputs: session.run(None, inputs)


class Depth(torch.nn.Module):
    """The evidential U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = UNet(outputs=16, width=16), hs.nn.NIGConv2d(16)

    def forward(self, images: Tensor) -> Any:
        return self.head(self.body(images))


class Mixed(torch.nn.Module):
    """Eight networks whose distributions are mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.networks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.SiLU(), hs.NIGHead(width)) for _ in range(8)
        )

    def forward(self, x: Tensor) -> Any:
        raw = torch.stack([net[2].raw(net[:2](x)) for net in self.networks])
        return hs.Mixture(hs.NormalInverseGamma.from_raw(raw).predictive())


@torch.no_grad()
def export_networks(folder: Path, width: int) -> None:
    """Print errors and export times of a mixture of eight networks and of a U-Net at two sizes."""
    torch.manual_seed(0)
    net, rows, file = Mixed(width).eval(), torch.randn(1000, 8), folder / "8.onnx"
    taken = seconds_of_call(lambda: hs.export(net, file, rows))
    error = largest_error(file, rows.numpy(), hs.Prediction(net(rows)))
    print(f"mixture of eight: largest error {error:.1e}, export in {taken:.1f} s", flush=True)
    depth, file = Depth().eval(), folder / "unet.onnx"
    example = torch.randn(2, 3, 32, 48)
    taken = seconds_of_call(lambda: hs.export(depth, file, example, dynamic=(0, 2, 3)))
    for images in (torch.randn(2, 3, 64, 96), torch.randn(1, 3, 128, 160)):
        error = largest_error(file, images.numpy(), hs.Prediction(depth(images)))
        print(f"U-Net at {images.shape[-2:]}: largest error {error:.1e}, export in {taken:.1f} s", flush=True)


def seconds_of_call(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def largest_error(file: Path, x: np.ndarray, p: hs.Prediction) -> float:
    """Return the largest error of the graph in the file against a prediction of the same rows."""
    low, high = np.moveaxis(p.interval(0.9), -1, 0)
    truth = dict(zip(PARTS, (p.mean, p.aleatoric_std, p.epistemic_std, low, high), strict=True))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": x}), strict=True))
    return max(float((abs(found[n] - truth[n]) / np.maximum(abs(truth[n]), p.std)).max()) for n in PARTS)


def plain_graph(model: hs.EvidentialRegressor) -> bytes:
    """Return the networks of a model as an ONNX graph: what they see, scaled (M, rows, features), to raw outputs."""
    population = model.model_.networks
    names, nodes, last = [], [], "x"
    weights = [w.detach().float().numpy() for w in population.weights]
    weights[0] = weights[0][:, : population.in_features]
    for k, (weight, bias) in enumerate(zip(weights, population.biases, strict=True)):
        names += [numpy_helper.from_array(np.ascontiguousarray(weight), f"w{k}")]
        names += [numpy_helper.from_array(bias.detach().float().numpy(), f"b{k}")]
        nodes += [helper.make_node("MatMul", [last, f"w{k}"], [f"m{k}"])]
        nodes += [helper.make_node("Add", [f"m{k}", f"b{k}"], [f"a{k}"])]
        last = f"a{k}"
        if k < len(weights) - 1:
            nodes += [helper.make_node("Gelu", [last], [f"g{k}"])]
            last = f"g{k}"
    inside = [len(weights[0]), "rows", weights[0].shape[1]]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, inside)
    result = helper.make_tensor_value_info(last, TensorProto.FLOAT, [inside[0], "rows", weights[-1].shape[2]])
    graph = helper.make_graph(nodes, "plain", [given], [result], names)
    model_ = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model_)
    return model_.SerializeToString()


def seconds_of(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each way, in turns, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for k in range(1 + repeats):
        for name, call in ways.items():
            started = time.perf_counter()
            call()
            if k:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in times.items()}


def moments(model: hs.EvidentialRegressor, x: np.ndarray) -> tuple[Any, ...]:
    p = model.predict_distribution(x)
    return p.mean, p.aleatoric_std, p.epistemic_std


def speed(model: hs.EvidentialRegressor, folder: Path, x: np.ndarray, repeats: int, threads: int) -> dict[str, float]:
    """Return the median seconds of each way to predict these rows."""
    population = model.model_.networks
    seen = np.random.default_rng(0).normal(size=(population.members, len(x), population.in_features)).astype(np.float32)
    ways: dict[str, Callable[[], Any]] = {"predict_distribution": functools.partial(moments, model, x)}
    for single, name in ((False, "float64"), (True, "float32")):
        file = hs.export_onnx(model, folder / f"{name}.onnx", coverage=None, single=single, force=True)
        ways[f"exported, {name}"] = functools.partial(session_of(file, threads), {"x": x})
    ways["networks alone"] = functools.partial(session_of(plain_graph(model), threads), {"x": seen})
    return seconds_of(ways, repeats)


COMPARED = (
    ("predict_distribution", "exported, float64"),
    ("predict_distribution", "exported, float32"),
    ("exported, float32", "networks alone"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="data folder (default: the set is diabetes)")
    parser.add_argument("--sets", help=f"names with commas (default: {FIVE})")
    parser.add_argument("--steps", type=int, help="of the fits; by default those of the library")
    parser.add_argument("--rows", type=int, default=65_536, help="of the large batch")
    parser.add_argument("--repeats", type=int, default=300, help="of one row; of many rows a hundredth of that")
    parser.add_argument("--timed", type=int, default=1, help="sets for which times are measured: the first so many")
    parser.add_argument("--width", type=int, default=128, help="of the exported networks")
    options = parser.parse_args()
    names = (options.sets or FIVE).split(",") if options.data else ["diabetes"]
    print(f"{device_label(torch.device('cpu'))}, ONNX Runtime {onnxruntime.__version__}")
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        export_networks(Path(folder), options.width)
        for name in names:
            x, y, others = rows_of(name, options.data)
            for kind, own in (("default", {}), ("8 networks of numbers", {"members": 8, "inputs": "numbers"})):
                model = hs.EvidentialRegressor(steps=options.steps, random_state=0, verbose=False, **own).fit(x, y)
                file = Path(folder) / f"{name}.onnx"
                taken = seconds_of_call(functools.partial(hs.export_onnx, model, file, force=True))
                error = largest_error(file, others, model.predict_distribution(others))
                print(f"{name}, {kind}: largest error {error:.1e}, export in {taken:.1f} s", flush=True)
                if name not in names[: options.timed]:
                    continue
                many = np.tile(x, (-(-options.rows // len(x)), 1))[: options.rows]
                one = speed(model, Path(folder), others[:1], options.repeats, 1)
                batch = speed(model, Path(folder), many, max(3, options.repeats // 100), torch.get_num_threads())
                for ours, theirs in COMPARED:
                    what = f"{kind}: {ours} / {theirs}"
                    ratios.setdefault(f"{what}, rows a second of {options.rows}", []).append(
                        batch[theirs] / batch[ours]
                    )
                    ratios.setdefault(f"{what}, time of one row", []).append(one[ours] / one[theirs])
    for what, each in ratios.items():
        print(f"{what} (from {min(each):.2f} to {max(each):.2f}), median: {statistics.median(each):.2f}")


if __name__ == "__main__":
    main()
