"""Limits of the source: lengths of files and functions, and names that stay inside their module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "howsure"
FILES = sorted(ROOT.rglob("*.py"))
MAX_LINES_OF_FILE = 600
MAX_LINES_OF_FUNCTION = 60  # without its docstring


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_is_not_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES_OF_FILE


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_functions_are_not_too_long(path):
    long = {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            docstring = (ast.get_docstring(node, clean=False) or "").count("\n")
            long[node.name] = node.end_lineno - node.lineno + 1 - docstring
    assert {name: lines for name, lines in long.items() if lines > MAX_LINES_OF_FUNCTION} == {}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_private_names_are_not_imported_from_other_packages(path):
    own = ["howsure", *path.relative_to(ROOT).parts][:2]
    private = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("howsure"):
            parts = node.module.split(".")
            names = [*parts, *(alias.name for alias in node.names)]
            if parts[:2] != own and any(name.startswith("_") and not name.startswith("__") for name in names):
                private.append(".".join(parts))
    assert private == []
