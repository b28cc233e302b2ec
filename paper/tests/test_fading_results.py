"""The page on fading says what its records say."""

from pathlib import Path

import numpy as np
import pytest

from howsure_paper.record import read_record

RESULTS = Path(__file__).parents[1] / "docs" / "results"
METHODS = {
    "mixture": "mixture",
    "fading, unsettled": "fading",
    "neighbours": "fading, neighbours",
    "ensemble": "ensemble",
    "ensemble, fading": "ensemble fading",
    "Laplace": "Laplace",
    "dropout": "dropout",
    "coupled": "coupled",
}


def sets():
    """The sets of the record in alphabetical order, each with its splits."""
    return dict(sorted(read_record(RESULTS / "fading_tables")["sets"].items()))


def mean(rows, kind, method, score="nll"):
    """The mean score of a method over the splits of a kind."""
    return float(np.mean([row["scores"][method][score] for row in rows if row["kind"] == kind]))


def number(value):
    return (f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}").replace("-", "−")


def table(kind, score="nll"):
    """The table of a kind of splits, as the page has it."""
    first = next(row for row in next(iter(sets().values())) if row["kind"] == kind)
    names = [name for name, key in METHODS.items() if key in first["scores"]]
    lines = [f"| set | splits | {' | '.join(names)} |", f"|{'---|' * (len(names) + 2)}"]
    for name, rows in sets().items():
        cells = [number(mean(rows, kind, METHODS[m], score)) for m in names]
        lines.append(f"| {name} | {sum(row['kind'] == kind for row in rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def now_table():
    """The table of the rule as it is, of tails, gaps and standard splits."""
    kinds = {"tail": "tails", "gap": "gaps", "standard": "standard splits"}
    head = ["set", *(f"{words}: mixture | fading" for words in kinds.values()), "in 90 % on tails: mixture | fading"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * 9}"]
    for name, rows in now().items():
        cells = [number(mean(rows, kind, method)) for kind in kinds for method in ("mixture", "fading")]
        cells += [number(mean(rows, "tail", method, "coverage_90")) for method in ("mixture", "fading")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def now():
    """The sets that the rule as it is was measured on, each with its splits."""
    return dict(sorted(read_record(RESULTS / "fading_now")["sets"].items()))


def shift_table():
    """The table of the other kinds of rows, as the page has it."""
    head = (
        "| shift | method | NLL, inside | NLL, other | in 90 %, inside | in 90 %, other | AUROC | familiarity, other |"
    )
    lines = [head, f"|{'---|' * 8}"]
    for name, methods in read_record(RESULTS / "fading_shifts")["shifts"].items():
        for method, row in methods.items():
            inside, outside = row["inside"], row["outside"]
            familiarity = f"{row['familiarity']['outside']:.2f}" if "familiarity" in row else "–"
            cells = [f"{inside['nll']:.2f}", f"{outside['nll']:.2f}"]
            cells += [f"{inside['coverage_90']:.2f}", f"{outside['coverage_90']:.2f}"]
            cells += [f"{row['auroc of epistemic std']:.2f}", familiarity]
            lines.append(f"| {name} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page():
    return (RESULTS / "fading.md").read_text()


@pytest.mark.parametrize(
    ("kind", "score"), [("tail", "nll"), ("tail", "coverage_90"), ("gap", "nll"), ("standard", "nll")]
)
def test_the_tables_of_splits(kind, score):
    assert table(kind, score) in page()


def test_the_table_of_the_rule_as_it_is():
    assert now_table() in page()
    for rows in now().values():
        assert mean(rows, "tail", "fading") < mean(rows, "tail", "mixture") + 0.01
        assert mean(rows, "gap", "fading") <= mean(rows, "gap", "mixture") + 0.05
        assert abs(mean(rows, "standard", "fading") - mean(rows, "standard", "mixture")) < 0.02
    kin8nm, crps = now()["kin8nm"], [mean(now()["wine"], "tail", m, "crps") for m in ("mixture", "fading")]
    cost = mean(kin8nm, "tail", "fading") - mean(kin8nm, "tail", "mixture")
    assert f"On Kin8nm fading costs {cost:.3f} on tails" in page()
    assert "it is {:.3f} for the mixture\nand {:.3f} with fading".format(*crps) in page()
    tables = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    for name in ("energy", "yacht"):
        assert "from {:.2f} to {:.2f}".format(*(mean(now()[name], "tail", m) for m in ("mixture", "fading"))) in tables


def test_the_table_of_shifts():
    assert shift_table() in page()


def test_what_the_page_concludes():
    better, no_worse_than_ensembles = [], []
    for name, rows in sets().items():
        fading, mixture, ensemble = (mean(rows, "tail", m) for m in ("fading", "mixture", "ensemble"))
        better += [name] if fading <= mixture else []
        no_worse_than_ensembles += [name] if fading <= ensemble else []
        assert fading <= mixture + 0.01
        assert mean(rows, "gap", "fading") <= mean(rows, "gap", "mixture") + 0.05
        standard = np.array([r["scores"]["mixture"]["nll"] for r in rows if r["kind"] == "standard"])
        error = standard.std(ddof=1) / len(standard) ** 0.5
        assert abs(mean(rows, "standard", "fading") - standard.mean()) < error
    assert len(sets()) == 9
    assert set(better) == set(sets()) - {"kin8nm", "wine"}
    assert set(no_worse_than_ensembles) == set(sets()) - {"kin8nm", "power", "wine"}
    for change, words in ((("kin8nm", "mixture"), "0.008"), (("wine", "mixture"), "0.005")):
        rows = sets()[change[0]]
        assert f"{mean(rows, 'tail', 'fading') - mean(rows, 'tail', change[1]):.3f}" == words
    crps = [mean(sets()["wine"], "tail", m, "crps") for m in ("mixture", "fading")]
    assert "it is {:.3f} for the mixture and {:.3f} with fading".format(*crps) in page()
