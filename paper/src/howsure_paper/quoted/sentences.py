"""The sentences of README.md and docs/images.md that quote results."""

from pathlib import Path

import numpy as np

from howsure_paper.depth.page import ALIVE
from howsure_paper.paper import TABLE_1
from howsure_paper.quoted.blocks import Block
from howsure_paper.record import read_record

__all__ = ["SENTENCES"]


def _uci_means(results: Path, run: str, method: str, score: str) -> dict[str, float]:
    """Return the mean of a score over the splits of each set, in a run of `howsure-paper uci`."""
    found = read_record(results / "uci" / run)["results"]
    return {name: float(np.mean([split[score] for split in found[name][method]["splits"]])) for name in TABLE_1}


def _count_of_sets(count: int) -> str:
    return f"{count} of {len(TABLE_1)}" if count else "none"


def _table_1(results: Path) -> str:
    """Sets on which the evidential network has a lower NLL, or a higher RMSE, than the paper prints."""
    nll = _uci_means(results, "standard_best", "evidential", "nll")
    ensemble = _uci_means(results, "standard_best", "ensemble", "nll")
    small = _uci_means(results, "standard_paper", "evidential", "nll")
    rmse = _uci_means(results, "standard_best", "evidential", "rmse")
    printed = {name: row["evidential"] for name, row in TABLE_1.items()}
    lower = _count_of_sets(sum(nll[name] <= printed[name].nll for name in TABLE_1))
    better = _count_of_sets(sum(nll[name] <= ensemble[name] for name in TABLE_1))
    reached = _count_of_sets(sum(small[name] <= printed[name].nll for name in TABLE_1))
    above = [name for name in TABLE_1 if round(rmse[name], 2) > printed[name].rmse]
    above = [name.title() if name == "boston" else name for name in above]
    return (
        f"a lower NLL than the paper prints on {lower} sets, and than our own deep ensemble on {better}; RMSE is above "
        f"the paper's on {' and '.join(above)}. With the paper's own network its NLL is reached on {reached}"
    )


def _depth_rmse(results: Path) -> str:
    """RMSE of the evidential U-Net relative to that of the mean of the training maps."""
    record = read_record(results / "depth")
    rmse = np.mean([trial["rmse"] for trial in record["results"]["evidential"]])
    return f"{100 * (1 - rmse / record['mean of training']['rmse']):.0f}%"


def _depth_auroc(results: Path) -> str:
    """AUROC of the feature distance on images without their frame."""
    trials = read_record(results / "depth")["results"]["evidential"]
    area = np.mean([trial["unfamiliar"]["feature distance"]["auroc"] for trial in trials])
    return f"{area:.2f} of AUROC"


def _depth_speed(results: Path) -> str:
    """Speed of a training step of the U-Net relative to plain steps."""
    rates = read_record(results / "bench_depth")["images a second"]
    plain, tf32 = (rates["ours"] / rates[name] for name in ("plain float32", "plain with TF32"))
    return f"{plain:.1f} times as many images a second as a plain step in float32, and {tf32:.1f} times as with TF32"


def _depth_heads(results: Path) -> str:
    """Networks with the paper's head in which at most one channel is alive."""
    rows = read_record(results / "depth_heads")["rows"]
    few = sum(sum(share > ALIVE for share in row["paper's head"]["alive"]) <= 1 for row in rows)
    return f"in {few} of {len(rows)} networks at most one was left"


SENTENCES: dict[str, Block] = {
    "table-1": _table_1,
    "depth-rmse": _depth_rmse,
    "depth-auroc": _depth_auroc,
    "depth-speed": _depth_speed,
    "depth-heads": _depth_heads,
}
