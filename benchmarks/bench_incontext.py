"""Measures the pretrained in-context regressor: is its posterior true, and how good are its predictions?

    python benchmarks/bench_incontext.py --posterior [--tables 500] [--device auto] [--weights FILE]
    python benchmarks/bench_incontext.py --anchors ANCHORS.csv --data DATA [--repeats 5]
    python benchmarks/bench_incontext.py --uci --data DATA [--splits 20]
    python benchmarks/bench_incontext.py --seconds

--posterior simulates tables of the training families and of families that training never saw, and compares the
posterior of μ and σ² in query rows with the truth: how many 90% credible intervals hold μ, the ratio of expected to
true σ², and how the error of the mean and its epistemic standard deviation fall with the rows of the context. --figure draws
the last. --anchors has n = 1,000 rows of six tables, of which 750 are the context; the file has the scores of other
methods. --uci has the standard splits of five small sets. --seconds times 750 + 250 rows of ten columns.
--out FILE writes all results as JSON.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from howsure.incontext import prior
from howsure.incontext.model import Network, sampled
from howsure.incontext.regressor import load_network

SIZES = ((128, 2), (256, 6), (512, 10), (768, 25), (1024, 10))  # rows and columns of simulated tables
CONTEXT_SHARE = 0.75
SAMPLES = 400  # of the posterior of a row
CONTEXTS = (64, 128, 256, 512, 1024)  # rows in context of the same tables
QUERIES = 128
CELLS_AT_ONCE = {"cpu": 4_000, "cuda": 60_000}  # rows of the tables that are predicted together
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
            memory = network.fit(drawn.x[:, :context], drawn.y[:, :context])
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
                p = network.predict(network.fit(drawn.x[:, :n], drawn.y[:, :n]), query)
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
    network, results = load_network(options.weights).to(device), {}
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


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--posterior", action="store_true", help="compare the posterior with simulated truth")
    parser.add_argument("--tables", type=int, default=500, help="simulated tables of each kind of family")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu"))
    parser.add_argument("--seed", type=int, default=12345)
    parser.add_argument("--weights", type=Path, help="safetensors file instead of the weights of the package")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    return parser.parse_args()


def main() -> None:
    options, results = parse_options(), {}
    start = time.perf_counter()
    if options.posterior:
        results["posterior"] = posterior(options)
    results["seconds"] = round(time.perf_counter() - start)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
