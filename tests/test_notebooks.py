"""The notebooks in examples/ run from top to bottom, by a plain executor of their cells.

``HOWSURE_WRITE_OUTPUT=1 pytest tests/test_notebooks.py`` writes the outputs into the notebooks.
"""

import ast
import base64
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def output_of(value: Any) -> dict[str, Any]:
    """Return the data of a value at the end of a cell: its text, and a picture or a table."""
    data: dict[str, Any] = {"text/plain": repr(value)}
    if hasattr(value, "savefig"):
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=70, bbox_inches="tight")
        data["image/png"] = base64.b64encode(picture.getvalue()).decode()
    elif hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_()
    return data


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Execute a cell and return its outputs."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, outputs = io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": output_of(value)})
    return outputs


def test_there_are_notebooks_for_tables_networks_and_images():
    assert {each.stem for each in NOTEBOOKS} == {"table", "trained_network", "images"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    kinds = set()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = run_cell("".join(cell["source"]), names)
            kinds |= {kind for output in cell["outputs"] for kind in output.get("data", {"stdout": None})}
    assert {"stdout", "image/png"} <= kinds
    if os.environ.get("HOWSURE_WRITE_OUTPUT"):
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_outputs_of_its_cells(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 300_000
    assert any(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
