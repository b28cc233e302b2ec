"""Recipes and tables of docs: scripts run as they are printed, and what a table names exists.

The other blocks of the recipes are run where they stand; see conftest.py of the repository.
"""

import ast
import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import howsure as hs

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "docs" / "recipes"
PAGES = sorted(RECIPES.glob("*.md"))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def script(page: str, name: str, folder: Path) -> Path:
    """Write the block of a page that begins with a comment with this file name to the folder, and return its path."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (RECIPES / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (block,) = (block for block in blocks if block.startswith(f"# {name}\n"))
    path = folder / name
    path.write_text(block, encoding="utf-8")
    return path


def torchrun(path: Path, processes: int, attempts: int = 1) -> dict[str, float]:
    """Return the names and values that a script prints on its last line.

    Args:
        path: the script.
        processes: number of processes that run it.
        attempts: how often to run it if gloo aborts a process at exit (pytorch#190489).
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), path]
    for _ in range(attempts):
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300)
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-4000:]
    words = done.stdout.splitlines()[-1].split()
    return dict(zip(words[::2], map(float, words[1::2]), strict=True))


@pytest.mark.extras
def test_ddp_by_torchrun_prints_the_same_for_one_process_and_two(tmp_path):
    path = script("torchrun.md", "train.py", tmp_path)
    alone, together = torchrun(path, 1), torchrun(path, 2)
    assert set(alone) == {"rmse", "nll", "coverage"}
    assert alone["rmse"] < 0.4  # the noise is 0.3
    assert together == pytest.approx(alone, abs=2e-3)


@pytest.mark.extras
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_ddp_recipe_ends_the_threads_of_its_process_group(tmp_path):
    """A gloo thread that is alive at exit may abort the process (pytorch#190489)."""
    path = script("torchrun.md", "train.py", tmp_path)
    count = """
from pathlib import Path
from types import SimpleNamespace
names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
if os.environ["RANK"] == "0":
    print("python", len(names), "gloo", sum("gloo" in name for name in names))
"""
    path.write_text(path.read_text(encoding="utf-8") + count, encoding="utf-8")
    assert torchrun(path, 2) == {"python": 1, "gloo": 0}


@pytest.mark.extras
def test_fsdp_prints_the_same_for_one_process_and_two(tmp_path):
    path = script("fsdp.md", "sharded.py", tmp_path)
    # DTensor's caches keep the process group to the end of the process, so the recipe cannot end gloo's threads
    alone, together = torchrun(path, 1, attempts=4), torchrun(path, 2, attempts=4)
    assert alone["rmse"] < 0.3  # a constant has 1
    assert together == pytest.approx(alone, abs=2e-3)


@pytest.mark.extras
def test_lightning_with_two_processes_has_the_same_scores_on_both(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (RECIPES / "lightning.md").read_text(), re.MULTILINE | re.DOTALL)
    two = 'lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", '
    (tmp_path / "lit.py").write_text(blocks[0].replace("lightning.Trainer(", two))
    command = [sys.executable, "lit.py"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    one, other = (ast.literal_eval(text) for text in re.findall(r"{.*?}", done.stdout))
    assert one["train_loss"] != other["train_loss"]  # each has its own rows
    assert one["val_nll"] == other["val_nll"] < 1.5
    assert one["val_coverage"] == other["val_coverage"] > 0.7


def request(url: str, content: dict) -> tuple[int, dict]:
    """Return status and content of the reply to a POST of JSON."""
    data = json.dumps(content).encode()
    message = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(message, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def address(log: Path, server: subprocess.Popen) -> str:
    """Return the address that uvicorn writes to its log when it is ready."""
    for _ in range(600):
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text())
        if found:
            return found[1]
        assert server.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(f"no server after two minutes: {log.read_text()}")


@pytest.mark.extras
def test_server_responds_to_another_process(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    model = hs.EvidentialRegressor(members=2, steps=100, random_state=0).fit(x, 3 * x[:, 0] + x[:, 1])
    model.save(tmp_path / "model")
    script("server.md", "server.py", tmp_path)
    command = [sys.executable, "-m", "uvicorn", "server:app", "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        environment = ENVIRONMENT | {"MODEL": str(tmp_path / "model")}
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        url = address(tmp_path / "log", server) + "/predict"
        status, reply = request(url, {"rows": x[:5].tolist()})
        refused, reason = request(url, {"rows": [[1.0, 2.0, 3.0]]})
    finally:
        server.terminate()
        server.wait(30)
    p = model.predict_distribution(x[:5])
    assert status == 200
    assert reply["mean"] == pytest.approx(p.mean, rel=1e-5, abs=1e-5)
    assert reply["epistemic_std"] == pytest.approx(p.epistemic_std, rel=1e-4)
    assert reply["lower_0.9"] == pytest.approx(p.interval(0.9)[:, 0], rel=1e-4, abs=1e-4)
    assert refused == 422
    assert "2" in reason["detail"]


class Saved:
    """The part of ``mlflow.pyfunc`` that the recipe calls, in the manner of MLflow: a pickled class and its files."""

    class PythonModel:
        pass

    def save_model(self, path, python_model, artifacts):
        copies = {name: shutil.copy(file, f"{path}-{name}") for name, file in artifacts.items()}
        Path(path).write_bytes(pickle.dumps((python_model.__dict__, copies)))
        self.kind = type(python_model)

    def load_model(self, path):
        state, copies = pickle.loads(Path(path).read_bytes())
        model = self.kind()
        model.__dict__.update(state)
        model.load_context(SimpleNamespace(artifacts=copies))
        return SimpleNamespace(predict=lambda table: model.predict(None, table))


def test_mlflow_model_predicts_as_the_regressor(tmp_path, monkeypatch, capsys):
    """With MLflow where it is installed, otherwise with a stand-in for the three names of it that the recipe uses."""
    if importlib.util.find_spec("mlflow") is None:
        monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(pyfunc=Saved()))
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", (RECIPES / "mlflow.md").read_text(encoding="utf-8"), re.M | re.S)
    X = pd.DataFrame({"a": np.arange(60.0), "b": ["u", "v"] * 30})  # noqa: N806
    names = {"X": X, "y": np.arange(60.0)}
    exec(block, names)
    shown = names["mlflow"].pyfunc.load_model("served").predict(X[:3])
    p = names["model"].predict_distribution(X[:3])
    assert list(shown.columns) == ["mean", "std", "low", "high"]
    np.testing.assert_allclose(shown, np.column_stack([p.mean, p.std, p.interval(0.9)]))
    assert "mean" in capsys.readouterr().out


def test_every_recipe_is_in_the_list_of_recipes():
    listed = re.findall(r"\]\(([\w-]+\.md)", (RECIPES / "README.md").read_text(encoding="utf-8"))
    assert sorted(set(listed)) == [page.name for page in PAGES if page.name != "README.md"]


OPTIONAL = {"accelerate", "fastapi", "lightning", "onnx", "onnxruntime", "onnxscript", "peft", "ray", "torchmetrics"}
OPTIONAL |= {"transformers", "uvicorn"}


def imported_packages(page: Path) -> set[str]:
    """Return the packages that the blocks of a page import."""
    text = page.read_text(encoding="utf-8")
    names = set()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    streaming = {"torchmetrics"} if any("metrics.streaming" in name for name in names) else set()
    return {name.partition(".")[0] for name in names} | streaming


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_pages_name_the_packages_that_make_test_may_not_have(page):
    """Their first line does, so that a page is skipped by name where one is missing."""
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    named = set(re.findall(r"\w+", first.partition("test-extras:")[2]))
    assert imported_packages(page) & OPTIONAL <= named


def table_of_tools() -> list[tuple[str, str]]:
    """Return tool and proof of each row of the table in docs/pytorch.md."""
    text = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    table = text.split("| tool | supported | proof |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(tool, proof) for tool, _, proof in rows]


@pytest.mark.parametrize(("tool", "proof"), table_of_tools(), ids=lambda text: re.sub(r"\W+", "-", text)[:40])
def test_table_of_tools_names_tests_that_exist(tool, proof):
    """Each row names a test, or a recipe whose blocks are run."""
    tests = re.findall(r"`(test_\w+)\.py::(test_\w+)`", proof)
    recipes = re.findall(r"\]\((recipes/[\w-]+\.md)\)", proof)
    assert tests or recipes, tool
    for file, name in tests:
        tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
    for recipe in recipes:
        assert "```python" in (ROOT / "docs" / recipe).read_text(encoding="utf-8")
