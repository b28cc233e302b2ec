"""Numbers that the documentation quotes are those of the committed records."""

from pathlib import Path

import numpy as np
import pytest

from evidentia.record import read_record

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    "name", ["boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"]
)
def test_the_table_of_the_standard_splits(name):
    record = read_record(DOCS / "results" / "uci_standard")["sets"][name]
    nll = np.array([split["nll"] for split in record["splits"]])
    error = nll.std(ddof=1) / len(nll) ** 0.5
    inside = np.mean([split["coverage_90"] for split in record["splits"]])
    (row,) = [line for line in (DOCS / "training.md").read_text().splitlines() if line.startswith(f"| {name} |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == f"{nll.mean():.3f} ± {error:.3f}".replace("-", "−")
    assert cells[3] == f"{inside:.3f}"
    assert len(nll) == (5 if name == "protein" else 20)
    assert record["diverged"] == []
    assert record["test_evaluations"] == len(nll)
