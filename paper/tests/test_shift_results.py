"""The tables of paper/docs/shifts.md, and facts that its prose states."""

from pathlib import Path

import pytest

from howsure_paper.quoted.shifts import SHIFT_TABLES, flag_table, learned_table
from howsure_paper.record import read_record

RECORD = Path(__file__).parents[1] / "docs" / "results" / "shifts"


@pytest.mark.skipif(not RECORD.exists(), reason="a source distribution has no records")
def test_facts_of_the_page_hold_in_the_record():
    record = read_record(RECORD)
    assert record["rows"] == "all"  # "all rows were used"
    found = record["shifts"]
    wine, bikes, houses = (found[name] for name in ("red to white wine", "bikes, 2011 to 2012", "inland to coast"))
    assert all(bikes[place]["flagged"] < 0.01 for place in ("inside", "outside"))  # "fewer than one in a hundred"
    assert max(shift["inside"]["flagged"] for shift in (bikes, houses)) < 0.0075  # "rather too low"
    assert 0.015 < houses["outside"]["flagged"] < 0.025  # "it notices too little"
    assert all(shift["after"]["rmse"] < shift["outside"]["rmse"] for shift in found.values())
    assert all(shift["outside, not flagged"]["coverage_90"] < 0.89 for shift in found.values())
    held = [draw["coverage_90"] for draw in wine["draws"]]
    assert len(held) == 5
    assert held[0] == max(held)  # "this fit was lucky"


def test_shift_without_flagged_rows_has_one_line_in_the_table_of_flags():
    scores = dict.fromkeys(("coverage_90", "nll", "rmse", "rmse of the training mean", "median width"), 0.5)
    scores |= {"rows": 1234}
    lines = flag_table({"shifts": {"here": {"outside, not flagged": scores}}}).splitlines()
    assert lines[2:] == ["| here | not flagged | 1,234 | 50% | 0.50 | 0.500 | 0.500 | 0.500 |"]


def test_shifts_missing_from_a_record_have_no_line_in_the_tables():
    record = {"shifts": {"inland to coast": {"rows": {"train": 1234}}}}
    (line,) = learned_table(record).splitlines()[2:]
    assert line.startswith("| inland to coast | 1,234 districts")
    assert all(len(make({"shifts": {}}).splitlines()) == 2 for make in SHIFT_TABLES.values())


def test_numbers_of_a_thousand_and_more_have_commas_and_no_decimals():
    scores = dict.fromkeys(("coverage_90", "nll", "rmse"), 0.5)
    shift = {"outside": scores, "after": scores | {"rmse of their mean": 12345.6}}
    assert SHIFT_TABLES["after"]({"shifts": {"here": shift}}).endswith("| 0.500 | 0.500 | 12,346 |")
