"""Measures the pretrained in-context regressor: is its posterior true, and how good are its predictions?

    python benchmarks/bench_incontext.py --posterior [--tables 500] [--device auto] [--weights FILE]
    python benchmarks/bench_incontext.py --anchors ANCHORS.csv --data DATA [--repeats 4]
    python benchmarks/bench_incontext.py --uci --data DATA [--splits 20]
    python benchmarks/bench_incontext.py --expert --data DATA [--splits 2]
    python benchmarks/bench_incontext.py --seconds

--posterior simulates tables of the training families and of families that training never saw, and compares the
posterior of μ and σ² in query rows with the truth: how many 90% credible intervals hold μ, the ratio of expected to
true σ², and how error and epistemic standard deviation of the mean fall with the rows of the context. --anchors has
n = 1,000 rows of six tables, of which 750 are the context, chosen and split as in bench_anchors.py; the file has the
scores of other methods. --uci has the
standard splits of five small sets. --expert mixes the regressor with EvidentialRegressor() there; its share has the
greatest likelihood for a fifth of the training rows, which both predict by the others. --seconds times 750 + 250 rows
of ten columns. Results join the record in the folder --out. --figure draws the errors and the epistemic standard
deviations of that record.
"""

import argparse
import copy
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import howsure as hs
from bench_anchors import read_anchor
from howsure.incontext import expert, prior
from howsure.incontext.model import Network, sampled
from howsure.plots import COLOURS
from howsure.tables.stacking import stacking_weights
from howsure_paper.record import environment, find_record, write_record

SIZES = ((128, 2), (256, 6), (512, 10), (768, 25), (1024, 10))  # rows and columns of simulated tables
CONTEXT_SHARE = 0.75
SAMPLES = 400  # of the posterior of a row
CONTEXTS = (64, 128, 256, 512, 1024)  # rows in context of the same tables
QUERIES = 128
CELLS_AT_ONCE = {"cpu": 4_000, "cuda": 60_000}  # rows of the tables that are predicted together
TABLES_OF_ANCHORS = ("WhiteWine", "Protein", "CalHousing", "Kin8nm", "BikeSharing", "NavalPropulsion")
DEFAULT_CRPS = {  # of EvidentialRegressor() by the protocol of --anchors, September 2026
    "WhiteWine": 0.390, "Protein": 2.74, "CalHousing": 28_060, "Kin8nm": 0.051, "BikeSharing": 24.9,
}  # fmt: skip
SMALL_SETS = {  # bars for the mean negative log likelihood
    "bostonHousing": 2.15, "concrete": 2.65, "energy": 0.60, "yacht": 0.0, "wine-quality-red": 0.62,
}  # fmt: skip
FAMILIES = {"training": prior.TRAINING, "foreign": prior.FOREIGN}


def in_parts(tables: int, rows: int, device: torch.device) -> list[int]:
    """Return numbers of tables of at most ``CELLS_AT_ONCE`` rows that add up to ``tables``."""
    most = max(1, CELLS_AT_ONCE[device.type] // rows)
    return [min(most, tables - first) for first in range(0, tables, most)]


def varying(drawn: prior.Tables) -> prior.Tables:
    """Return the tables with finite numbers and a target that varies."""
    fine = drawn.mean.isfinite().all(1) & drawn.y.isfinite().all(1) & (drawn.y.std(1) > 0)
    return prior.Tables(*(part[fine] for part in drawn))


def truth(network: Network, functions: Sequence[prior.Function], tables: int, device: torch.device) -> dict[str, float]:
    """Return the coverage of 90% credible intervals of μ and the ratio of expected to true σ² in query rows."""
    inside, rows, means = [], [], []
    for n, columns in SIZES:
        for count in in_parts(math.ceil(tables / len(SIZES)), n, device):
            drawn, context = varying(prior.simulate(count, n, columns, device, functions)), round(CONTEXT_SHARE * n)
            memory = network.fit(drawn.x[:, :context], drawn.y[:, :context], expert.VIEWS)
            p = network.predict(memory, drawn.x[:, context:])
            place = (sampled(p, SAMPLES)[0] < drawn.mean[:, context:, None]).double().mean(2)
            expected, variance = p.moments()[2], drawn.variance[:, context:].double()
            inside.append(((place - 0.5).abs() < 0.45).double().mean(1))
            rows.append((expected / variance).flatten())
            means.append(expected.mean(1) / variance.mean(1))
    ratios = torch.cat(rows)
    return {
        "tables": len(torch.cat(means)),
        "coverage": float(torch.cat(inside).mean()),
        "variance_ratio": float(ratios.median()),
        "variance_ratio_of_tables": float(torch.cat(means).median()),
    }


def decay(network: Network, functions: Sequence[prior.Function], tables: int, device: torch.device) -> dict[str, Any]:
    """Return error and epistemic standard deviation by rows in context, geometric means over tables of their RMS."""
    found: list[list[torch.Tensor]] = [[] for _ in CONTEXTS]
    for columns in (2, 6, 10):
        for count in in_parts(math.ceil(tables / 3), CONTEXTS[-1], device):
            drawn = varying(prior.simulate(count, CONTEXTS[-1] + QUERIES, columns, device, functions))
            size, query = drawn.y.double().std(1), drawn.x[:, -QUERIES:]
            for parts, n in zip(found, CONTEXTS, strict=True):
                p = network.predict(network.fit(drawn.x[:, :n], drawn.y[:, :n], expert.VIEWS), query)
                mean, spread, _ = p.moments()
                error = (mean - drawn.mean[:, -QUERIES:]).square().mean(1)
                parts.append(torch.stack([error.sqrt() / size, spread.mean(1).sqrt() / size]).clamp(min=1e-9).log())
    logs = torch.stack([torch.cat(parts, 1).mean(1) for parts in found]).cpu()  # (contexts, 2)
    steps = torch.tensor(CONTEXTS).double().log()
    steps -= steps.mean()
    slopes = (steps[:, None] * logs).sum(0) / steps.square().sum()
    error, std = logs.exp().T.tolist()
    return {"rows": list(CONTEXTS), "error": error, "epistemic_std": std, "slopes": slopes.tolist()}


def posterior(options: argparse.Namespace) -> dict[str, Any]:
    """Compare posteriors with the truth of simulated tables; print the results and their bars."""
    device = torch.device("cuda" if options.device == "auto" and torch.cuda.is_available() else "cpu")
    network, results = copy.deepcopy(expert.load_network()).to(device), {}
    for name, functions in FAMILIES.items():
        torch.manual_seed(options.seed)
        found = truth(network, functions, options.tables, device) | decay(network, functions, options.tables, device)
        bar = "0.87 to 0.93" if name == "training" else "at least 0.80"
        print(f"{name} families, {found['tables']} tables")
        print(f"  90% credible intervals of the mean hold it in {found['coverage']:.3f} of rows (bar: {bar})")
        print(f"  expected over true variance, median of rows {found['variance_ratio']:.2f} (bar: 0.8 to 1.2)")
        print(f"  the same of means over the rows of a table, median {found['variance_ratio_of_tables']:.2f}")
        for n, error, std in zip(found["rows"], found["error"], found["epistemic_std"], strict=True):
            print(f"  {n:5d} rows in context: error {error:.4f}, epistemic std {std:.4f}")
        first, second = found["slopes"]
        print(f"  slopes {first:.3f} and {second:.3f}, difference {abs(first - second):.3f} (bar: 0.1)", flush=True)
        results[name] = found
    return results


def load_uci(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return features and target of a UCI set."""
    table = np.loadtxt(folder / "data.txt")
    features, target = (np.loadtxt(folder / f"index_{name}.txt").astype(int) for name in ("features", "target"))
    return table[:, features], table[:, int(target)]


def scores(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return NLL, CRPS, coverage of 90% intervals and seconds for one split."""
    start = time.perf_counter()
    p = hs.InContextRegressor().fit(x[train], y[train]).predict_distribution(x[test])
    seconds, (low, high) = time.perf_counter() - start, p.interval(0.9).T
    inside = ((low <= y[test]) & (y[test] <= high)).mean()
    return np.array([-p.log_prob(y[test]).mean(), p.crps(y[test]).mean(), inside, seconds])


def ridge_crps(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    """Return the CRPS of ridge regression with normal errors."""
    parts = SimpleImputer(strategy="median"), StandardScaler(), RidgeCV(np.logspace(-6, 4, 21))
    ridge = make_pipeline(*parts).fit(x[train], y[train])
    deviation = (y[train] - ridge.predict(x[train])).std()
    normal = hs.Normal(torch.from_numpy(ridge.predict(x[test])), torch.tensor(deviation))
    return float(hs.Prediction(normal).crps(y[test]).mean())


def anchors(options: argparse.Namespace) -> dict[str, Any]:
    """Score n = 1,000 rows of six tables; print the results beside those of other methods."""
    others, results = pd.read_csv(options.anchors), {}
    others = others[(others.n == 1000) & (others.method == "TabPFN-2.5")].set_index("dataset").crps
    for name in TABLES_OF_ANCHORS:
        x, y = read_anchor(name, options.data)
        chosen = np.random.RandomState(42).permutation(len(y))[:1000]
        x, y, found, ridge = x[chosen], y[chosen], [], []
        for repeat in range(options.repeats):
            train, test = train_test_split(np.arange(1000), test_size=0.25, random_state=repeat)
            found.append(scores(x, y, train, test))
            ridge.append(ridge_crps(x, y, train, test))
        mean = np.mean(found, 0)
        results[name] = dict(zip(("nll", "crps", "coverage", "seconds"), mean.tolist(), strict=True))
        results[name] |= {"ridge_crps": float(np.mean(ridge)), "default_crps": DEFAULT_CRPS.get(name)}
        results[name] |= {"tabpfn_crps": float(others[name])}
        own, bar = results[name], f"default {DEFAULT_CRPS[name]:.5g}" if name in DEFAULT_CRPS else ""
        print(
            f"{name:16s} CRPS {own['crps']:<10.5g} {bar:15s} TabPFN-2.5 {own['tabpfn_crps']:<10.5g} ridge "
            f"{own['ridge_crps']:<10.5g} NLL {own['nll']:.3f} coverage {own['coverage']:.3f}",
            flush=True,
        )
    rest = [found for name, found in results.items() if name in DEFAULT_CRPS]
    print(
        f"below the default {sum(r['crps'] < r['default_crps'] for r in rest)} of 5 (bar: 4), at or below TabPFN-2.5 "
        f"{sum(r['crps'] <= r['tabpfn_crps'] for r in rest)} (bar: 1), largest ratio to it "
        f"{max(r['crps'] / r['tabpfn_crps'] for r in rest):.2f} (bar: 1.5)"
    )
    return results


def uci(options: argparse.Namespace) -> dict[str, Any]:
    """Score the standard splits of the small UCI sets; print the results and their bars."""
    results = {}
    for name, bar in SMALL_SETS.items():
        folder, found = options.data / "uci" / name, []
        x, y = load_uci(folder)
        found += [scores(x, y, *rows) for rows in read_splits(folder, options.splits)]
        mean, error = np.mean(found, 0), np.std(found, 0) / math.sqrt(len(found))
        results[name] = dict(zip(("nll", "crps", "coverage", "seconds"), mean.tolist(), strict=True))
        print(
            f"{name:16s} NLL {mean[0]:.3f} ± {error[0]:.3f} (bar: {bar}) CRPS {mean[1]:.4g} coverage {mean[2]:.3f} "
            "(bar: 0.87 to 0.93)",
            flush=True,
        )
    return results


def read_splits(folder: Path, splits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training and test rows of the first standard splits of a UCI set."""
    for k in range(splits):
        train, test = (np.loadtxt(folder / f"index_{part}_{k}.txt").astype(int) for part in ("train", "test"))
        yield train, test


def densities(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return log densities of test rows by EvidentialRegressor() and by InContextRegressor(), (rows, 2)."""
    models = hs.EvidentialRegressor(random_state=0, verbose=False), hs.InContextRegressor()
    found = [m.fit(x[train], y[train]).predict_distribution(x[test]).log_prob(y[test]) for m in models]
    return np.stack(found, 1)


def expert_gain(options: argparse.Namespace) -> dict[str, Any]:
    """Score the mixture of the default regressor with the in-context regressor on small UCI sets.

    Wine is left out: the default gives its grades probabilities, and the in-context regressor gives them densities.
    """
    results = {}
    for name in list(SMALL_SETS)[:-1]:
        folder, found = options.data / "uci" / name, []
        x, y = load_uci(folder)
        for train, test in read_splits(folder, min(options.splits, 2)):
            kept, held_out = np.split(np.random.RandomState(0).permutation(train), [4 * len(train) // 5])
            weights = stacking_weights(densities(x, y, kept, held_out))
            each = densities(x, y, train, test)
            found.append([*-each.mean(0), -np.log(np.exp(each) @ weights).mean(), weights[1]])
        default, own, mixed, share = np.mean(found, 0).tolist()
        results[name] = {"default": default, "incontext": own, "mixture": mixed, "share": share}
        print(
            f"{name:16s} NLL of the default {default:.3f}, in context {own:.3f}, mixture {mixed:.3f} "
            f"({mixed - default:+.3f}) with a share of {share:.2f}",
            flush=True,
        )
    print(f"mean difference {np.mean([r['mixture'] - r['default'] for r in results.values()]):+.3f} (bar: -0.03)")
    return results


def seconds(_: argparse.Namespace) -> dict[str, float]:
    """Return the median time of 750 rows in context and 250 new rows of ten columns."""
    random, times = np.random.default_rng(0), []
    x, y = random.normal(size=(1000, 10)), random.normal(size=1000)
    for _ in range(5):
        start = time.perf_counter()
        hs.InContextRegressor().fit(x[:750], y[:750]).predict_distribution(x[750:])
        times.append(time.perf_counter() - start)
    print(
        f"750 + 250 rows of ten columns: {np.median(times):.2f} s; over the bar of 1.5 s: {np.median(times) / 1.5:.2f}"
    )
    return {"median": float(np.median(times))}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--posterior", action="store_true", help="compare the posterior with simulated truth")
    parser.add_argument("--anchors", type=Path, help="CSV file with the scores of other methods")
    parser.add_argument("--uci", action="store_true", help="score standard splits of small UCI sets")
    parser.add_argument("--expert", action="store_true", help="mix with EvidentialRegressor on small UCI sets")
    parser.add_argument("--seconds", action="store_true", help="time 750 + 250 rows of ten columns")
    parser.add_argument("--data", type=Path, help="data folder, with uci and shift")
    parser.add_argument("--repeats", type=int, default=4, help="splits of each table of --anchors")
    parser.add_argument("--splits", type=int, default=20, help="splits of each UCI set")
    parser.add_argument("--tables", type=int, default=500, help="simulated tables of each kind of family")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu"))
    parser.add_argument("--seed", type=int, default=12345)
    parser.add_argument("--weights", type=Path, help="safetensors file instead of the weights of the package")
    parser.add_argument("--out", type=Path, default=Path("out/bench_incontext"), help="folder of the record")
    parser.add_argument("--figure", type=Path, help="file for a figure of the record")
    return parser.parse_args()


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw errors and epistemic standard deviations by rows in context, for both kinds of families."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for axis, (name, result) in zip(axes, ((n, found[n]) for n in FAMILIES), strict=True):
        axis.loglog(result["rows"], result["error"], "o-", color=COLOURS["total"], label="error of the mean")
        axis.loglog(result["rows"], result["epistemic_std"], "s--", color=COLOURS["epistemic"], label="epistemic std")
        axis.set_title(f"{name} families")
        axis.set_xlabel("rows in context")
        axis.set_xticks(result["rows"], [str(n) for n in result["rows"]])
        axis.minorticks_off()
    axes[0].set_yticks([0.2, 0.3, 0.4], ["0.2", "0.3", "0.4"])
    axes[0].set_ylabel("standard deviations of the target")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    options = parse_options()
    if options.weights:
        expert.WEIGHTS = options.weights
    record = {"run": "incontext", **(find_record(options.out) or {})}
    on_gpu = options.device == "auto" and torch.cuda.is_available()
    parts = {"posterior": posterior, "anchors": anchors, "uci": uci, "expert": expert_gain, "seconds": seconds}
    for name, function in parts.items():
        if getattr(options, name):
            device = "cuda" if name == "posterior" and on_gpu else "cpu"
            record[name] = {"environment": environment(device), **function(options)}
            write_record(options.out, record)
    if options.figure:
        draw(record["posterior"], options.figure)


if __name__ == "__main__":
    main()
