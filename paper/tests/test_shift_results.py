"""The page on shifts says what its record says, and the commands of the tutorial run as they are printed."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from howsure_paper.record import read_record
from shell import QUICK, shell

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
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


@recorded
def test_tables_of_the_page_are_those_of_the_record(study):
    page = (DOCS / "shifts.md").read_text(encoding="utf-8")
    record = read_record(RECORD)
    assert all(f"<!-- {mark} -->" in page for mark in study["TABLES"])
    assert study["fill_page"](page, record) == page
    assert record["rows"] == "all"  # the page says that nothing was left out


@recorded
def test_sentences_of_the_pages_are_those_of_the_record(found, study):
    page, tutorial = words("shifts.md"), words("tutorial.md")
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


def write_wines(path, rows, seed, sweet):
    """Write a small table with the columns of the wines."""
    random = np.random.default_rng(seed)
    names = "fixed acidity,volatile acidity,citric acid,residual sugar,chlorides,free sulfur dioxide"
    names += ",total sulfur dioxide,density,pH,sulphates,alcohol"
    wines = pd.DataFrame(random.random((rows, 11)).round(3), columns=names.split(","))
    wines["residual sugar"] += sweet
    wines["quality"] = (4 + 3 * wines["alcohol"]).round().astype(int)
    wines.to_csv(path, sep=";", index=False, quoting=2)


def blocks():
    """The indented blocks of the tutorial, each as its lines."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    found = re.findall(r"(?:(?<=\n\n)|\A)((?:    .*\n|\n(?=    ))+)", text)
    return [[line[4:] for line in block.splitlines()] for block in found]


@pytest.mark.skipif(shutil.which("shuf") is None, reason="the tutorial's shell commands need GNU coreutils")
def test_commands_of_the_tutorial_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_wines("winequality-red.csv", 300, 0, 0.0)
    write_wines("winequality-white.csv", 2800, 1, 0.5)
    ran = []
    for block in blocks():
        commands = [line.removeprefix("$ ") for line in block if line.startswith("$ ")]
        if block[0].startswith("import sys"):
            Path("piles.py").write_text("\n".join(block))
        elif not commands:
            subprocess.run(["bash", "-euc", "\n".join(block)], check=True)
        for command in commands:
            verb, arguments = command.split()[0], shlex.split(command)[1:]
            if verb == "howsure":
                said = shell(capsys, *arguments, *(QUICK if arguments[0] == "fit" else ()))
                assert said.code == 0, (command, said.error)
            else:
                subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            ran.append(" ".join([verb, arguments[0]]))
    assert {"howsure fit", "howsure predict", "howsure report", "python piles.py"} <= set(ran)
    assert len(pd.read_csv("both.csv", sep=";")) == 300 + 200
    assert len(pd.read_csv("decide.csv")) == 2800 - 200


def test_pictures_of_the_tutorial_are_there_and_small():
    pictures = re.findall(r"!\[(.+)\]\((.+\.png)\)", (DOCS / "tutorial.md").read_text(encoding="utf-8"))
    assert len(pictures) >= 2
    for text, path in pictures:
        assert len(text) > 20  # says what is to be seen
        assert 5_000 < (DOCS / path).stat().st_size < 300_000
