"""The rules of tools/english.py find the habits they name, in each place where prose stands."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import english


def findings(tmp_path: Path, text: str, suffix: str = ".py") -> list[tuple[int, str]]:
    """Return line and rule of each finding in a file with this text."""
    file = tmp_path / f"example{suffix}"
    file.write_text(text, encoding="utf-8")
    return [(found.line, found.rule) for found in english.check(file)]


HABITS = {  # one sentence with each habit, and a plain one that its rule must accept
    "name the thing instead of 'what' or 'who'": ("Return what the texts are.", "What is evidence?"),
    "name the argument": ("Draw so many rows.", "Draw as many rows as columns."),
    "functions return, raise, store and compute": ("The file says it.", "The essay is long."),
    "write 'is not a', or repeat the noun": ("A text is no number.", "There is no number."),
    "write 'instead of', 'next to', 'custom' or 'also'": ("It lies beside the mean.", "Its own size is 3."),
    "write 'raises' or 'rejects'": ("NaN is refused.", "NaN is rejected."),
    "use the standard term": ("The mean fades.", "The mean decreases."),
    'write "quotes" and 90%': ("A 90 % interval.", "A 90% interval."),
    "write two sentences": ("Rows are read; they are many.", "Rows; columns."),
}


@pytest.mark.parametrize("rule", english.RULES)
@pytest.mark.parametrize(
    "place", ['"""{}"""', "x = 1  # {}", 'raise ValueError("{}")', 'raise ValueError(f"{} {{x}}")']
)
def test_habit_in_python_is_found_and_plain_text_is_not(rule, place, tmp_path):
    habit, plain = (text.replace('"', "'") for text in HABITS[rule])
    assert findings(tmp_path, place.format(habit)) == [(1, rule)]
    assert findings(tmp_path, place.format(plain)) == []


@pytest.mark.parametrize("rule", english.RULES)
def test_habit_in_markdown_is_found_with_its_line(rule, tmp_path):
    habit, plain = HABITS[rule]
    assert findings(tmp_path, f"# Title\n\n{plain}\n\n{habit}\n", ".md") == [(5, rule)]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("```python\nwhat = 'so many'\n```\n", ".md"),
        ("See `what says` and [a page](what.md).\n", ".md"),
        ("It says so. <!-- english: off -->\n", ".md"),
        ('"""Add.\n\n>>> f("what says")\nrefused\n"""\n', ".py"),
        ('"""Return :func:`answer` of ``what``.\n\n    Args:\n        answer: a distribution.\n"""\n', ".py"),
        ("x = 1  # it says so  english: off\n", ".py"),
        ("text = 'what it says'\n", ".py"),
    ],
)
def test_code_and_exempt_lines_are_not_checked(text, suffix, tmp_path):
    assert findings(tmp_path, text, suffix) == []


def test_names_of_constants_and_tests_are_checked(tmp_path):
    source = "FEWEST = 3\nMIN_ROWS = 3\n\n\ndef test_a_row():\n    pass\n\n\ndef test_empty_row_raises():\n    pass\n"
    assert [line for line, _ in findings(tmp_path, source)] == [1, 5]


def test_listed_files_have_no_findings():
    lines = english.CLEAN.read_text(encoding="utf-8").splitlines()
    files = english.files([line for line in lines if line and not line.startswith("#")])
    assert len(files) > 30
    assert [found for file in files for found in english.check(file)] == []


def test_names_of_all_tests_have_no_findings():
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "paper" / "tests")]
    files = english.files([folder for folder in folders if Path(folder).exists()])
    assert len(files) > 50
    found = [name for file in files for _, rule, name in english.names(ast.parse(file.read_text(encoding="utf-8")))]
    assert found == []
