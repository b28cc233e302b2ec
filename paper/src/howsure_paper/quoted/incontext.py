"""The tables of docs/incontext.md."""

from pathlib import Path

from howsure_paper.quoted.blocks import Block, table
from howsure_paper.record import read_record

__all__ = ["IN_CONTEXT"]

RECORD = "incontext"
FAMILIES = ("training", "foreign")
SETS = ("bostonHousing", "concrete", "energy", "yacht", "wine-quality-red")
ANCHORS = ("WhiteWine", "Protein", "CalHousing", "Kin8nm", "BikeSharing", "NavalPropulsion")


def _posterior(results: Path) -> str:
    """Posterior against truth on simulated tables."""
    found = read_record(results / RECORD)["posterior"]
    lines = []
    for name in FAMILIES:
        result = found[name]
        error, std = result["slopes"]
        lines.append(
            [
                f"{name} families, {result['tables']:,} tables",
                f"{result['coverage']:.3f}",
                f"{result['variance_ratio']:.2f}",
                f"{result['variance_ratio_of_tables']:.2f}",
                f"{error:.2f}, {std:.2f}",
            ]
        )
    header = (
        "simulated tables | 90% credible intervals that hold μ | E[σ²]/σ², median of rows | of means over a "
        "table, median | slopes of error and epistemic std"
    )
    return table(header, lines)


def _anchors(results: Path) -> str:
    """CRPS on six tables of 1,000 rows."""
    found, lines = read_record(results / RECORD)["anchors"], []
    for name in ANCHORS:
        own = found[name]
        default = own["default_crps"]
        cells = (own["crps"], default, own["tabpfn_crps"], own["ridge_crps"])
        lines.append([name, *("" if v is None else f"{v:.4g}" for v in cells), f"{own['coverage']:.3f}"])
    return table("table | in context | EvidentialRegressor | TabPFN-2.5 | ridge | 90% coverage in context", lines)


def _uci(results: Path) -> str:
    """Scores on standard splits of small UCI sets."""
    found = read_record(results / RECORD)["uci"]
    lines = [[name, *(f"{found[name][score]:.3f}" for score in ("nll", "crps", "coverage"))] for name in SETS]
    return table("set | NLL | CRPS | 90% coverage", lines)


IN_CONTEXT: dict[str, Block] = {"incontext-posterior": _posterior, "incontext-anchors": _anchors, "incontext-uci": _uci}
