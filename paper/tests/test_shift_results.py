"""The numbers of docs/shifts.md are those of its record."""

import re
import runpy
from pathlib import Path

import pytest

from howsure_paper.record import read_record

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RECORD = DOCS / "results" / "shifts"
recorded = pytest.mark.skipif(not RECORD.exists(), reason="a source distribution has no records")
SHIFTS = ("red to white wine", "bikes, 2011 to 2012", "inland to coast")


@pytest.fixture
def study(monkeypatch):
    """The names of the script that makes the tables of the page."""
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return runpy.run_path(str(ROOT / "studies" / "shifts.py"))


@pytest.fixture(scope="module")
def found():
    """The results of the shifts: wine, bikes, houses."""
    return [read_record(RECORD)["shifts"][name] for name in SHIFTS]


def words(page):
    """The text of a page in one line."""
    return " ".join(page.read_text(encoding="utf-8").split())


@recorded
def test_tables_of_the_page_are_those_of_the_record(study):
    page = (DOCS / "shifts.md").read_text(encoding="utf-8")
    record = read_record(RECORD)
    assert all(f"<!-- {mark} -->" in page for mark in study["TABLES"])
    assert study["fill_page"](page, record) == page
    assert record["rows"] == "all"  # the page says that nothing was left out


@recorded
def test_sentences_of_the_pages_are_those_of_the_record(found, study):
    page, tutorial = words(DOCS / "shifts.md"), words(ROOT.parent / "docs" / "tutorial.md")
    wine, bikes, houses = found
    percent, number = study["percent"], study["number"]

    def times(shift, score):
        return f"{shift['outside'][score] / shift['inside'][score]:.1f} times"

    gain = 1 - wine["outside"]["rmse"] / wine["outside"]["rmse of the training mean"]
    tenth = bikes["last tenth in time"]
    copies, others = (wine[f"inside, {name}"] for name in ("copies of training rows", "no copies"))
    draws = {score: [draw[score] for draw in wine["draws"]] for score in ("coverage_90", "flagged", "flagged inside")}
    held, flagged, usual = (f"{percent(min(values))} to {percent(max(values))}" for values in draws.values())
    flagged_inside = [round(shift["inside"]["flagged"] * shift["inside"]["rows"]) for shift in found]
    sentences = [
        f"{percent(wine['outside']['flagged'])} of the white wines are flagged",
        f"median of {number(wine['outside']['familiar'])}), doubt is {times(wine, 'epistemic_std')} that inside",
        f"wider intervals hold {percent(wine['outside']['coverage_90'])}",
        f"{percent(gain)} better than one answer for all",
        f"{sum(flagged_inside)} of {sum(shift['inside']['rows'] for shift in found):,} in all three together",
        f"{percent(houses['outside']['flagged'])} are flagged, and {percent(houses['inside']['flagged'])} inside",
        f"Intervals are {times(houses, 'median width')} as wide, and hold {percent(houses['outside']['coverage_90'])}",
        f"(`familiar` has a median of {number(houses['outside']['familiar'])})",
        f"{percent(bikes['outside']['flagged'])} are flagged, fewer than one in a hundred "
        f"({percent(bikes['inside']['flagged'])} inside)",
        f"doubt is {number(bikes['outside']['epistemic_std'])} instead of {number(bikes['inside']['epistemic_std'])}",
        f"too low by {-bikes['outside']['mean error']:.0f} bikes on average, so that intervals hold "
        f"{percent(bikes['outside']['coverage_90'])}",
        f"last tenth of 2011, {tenth['rows']} hours",
        f"hold {percent(tenth['coverage']['0.9'])} and the RMSE is {number(tenth['rmse'])}; on random hours these are "
        f"{percent(bikes['inside']['coverage_90'])} and {number(bikes['inside']['rmse'])}",
        f"(they hold {percent(bikes['after']['coverage_90'])}, and {percent(bikes['after']['flagged'])} of the rows",
        f"hold {held} of the white wines, and {flagged} are flagged, of the held-out red ones {usual}",
        f"Of the {wine['inside']['rows']} red wines inside, {copies['rows']} are exact copies",
        f"RMSE is {number(copies['rmse'])}, and that of the other {others['rows']} is {number(others['rmse'])}: "
        f"the {number(wine['inside']['rmse'])}",
        *(
            f"{shift['rows']['train']:,} {rows}"
            for shift, rows in zip(found, ("red", "hours", "districts"), strict=True)
        ),
    ]
    assert [sentence for sentence in sentences if sentence not in page] == []
    flags = [percent(own["flagged"]) for own in (wine["outside"], wine["inside"], houses["outside"], bikes["outside"])]
    line = "{} of white wines are flagged ({} of held-out red ones), {} of the coast, and {} of the bikes".format(
        *flags
    )
    assert line in (ROOT / "studies" / "README.md").read_text(encoding="utf-8")
    claim = f"RMSE is {number(copies['rmse'])} for these, and {number(others['rmse'])} for the other {others['rows']}"
    assert claim in tutorial
    assert f"{flagged} in [five others]" in tutorial
    assert all(bikes[place]["flagged"] < 0.01 for place in ("inside", "outside"))  # «fewer than one in a hundred»
    assert max(shift["inside"]["flagged"] for shift in (bikes, houses)) < 0.0075  # «rather too low»
    assert 0.015 < houses["outside"]["flagged"] < 0.025  # «two in a hundred»
    assert all(shift["after"]["rmse"] < shift["outside"]["rmse"] for shift in found)
    assert all(shift["outside, not flagged"]["coverage_90"] < 0.89 for shift in found)
    assert len(wine["draws"]) == 5
    assert draws["coverage_90"][0] == max(draws["coverage_90"])  # «this fit was lucky»


def test_tables_of_an_older_record_are_replaced(study):
    part = dict.fromkeys(("coverage_90", "nll", "rmse", "rmse of the training mean", "median width"), 0.5)
    part |= dict.fromkeys(("aleatoric_std", "epistemic_std", "familiar", "flagged", "mean error"), -0.25)
    part |= {"rows": 1234, "rmse of their mean": 12345.6}
    shift = dict.fromkeys(("inside", "outside", "outside, not flagged", "after"), part)  # no row outside is flagged
    page = "a\n<!-- flags -->\n| old |\n<!-- end -->\nb\n<!-- after -->\n<!-- end -->\n"
    filled = study["fill_page"](page, {"shifts": {"here": shift}})
    flags, after = re.findall(r"-->\n(.+?)\n<!-- end -->", filled, re.DOTALL)
    assert flags.splitlines()[-1] == "| here | not flagged | 1,234 | 50 % | 0.50 | 0.500 | 0.500 | 0.500 |"
    assert after.splitlines()[-1].endswith("| 12,346 |")
    assert filled.replace(flags, "| old |").replace(f"{after}\n", "") == page
