"""The commands of docs/tutorial.md run, in order, on small tables with the columns of the wines."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shell import QUICK, shell

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"


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
    text = TUTORIAL.read_text(encoding="utf-8")
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
    pictures = re.findall(r"!\[(.+)\]\((.+\.png)\)", TUTORIAL.read_text(encoding="utf-8"))
    assert len(pictures) >= 2
    for text, path in pictures:
        assert len(text) > 20  # says what is to be seen
        assert 5_000 < (TUTORIAL.parent / path).stat().st_size < 300_000
