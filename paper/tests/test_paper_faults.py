"""What interrupts, second writers and damaged records do to runs of experiments, with real processes."""

import json
import os
import signal
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import howsure as hs
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.tables.members import hold_out
from howsure.training import Settings
from howsure_paper.cli import app
from howsure_paper.depth.data import load
from howsure_paper.depth.plan import quick_plan
from howsure_paper.depth.run import run_on
from howsure_paper.protocol import Context
from howsure_paper.record import read_record, run_folder, write_record
from howsure_paper.training import fit
from howsure_paper.uci import run as uci
from program import command, start


def wait_for(process, words):
    """Read the remarks of a process, which go to standard error, up to the one with these words."""
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it never said {words!r}")


def interrupt(arguments, ready):
    process = start(command(*arguments))
    wait_for(process, ready)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


def test_interrupted_uci_run_records_nothing_and_exits_with_130(tmp_path):
    arguments = ("uci", "--sets", "diabetes", "--methods", "evidential", "--out", tmp_path / "out")
    code, error = interrupt(arguments, "diabetes, evidential")
    assert code == 130, error
    assert error.splitlines()[-1].startswith("howsure-paper: ")
    assert "Traceback" not in error
    assert "results" not in read_record(tmp_path / "out")


def test_interrupted_depth_run_keeps_its_checkpoint_and_stores_no_network(tmp_path):
    arguments = ("depth", "--quick", "--groups", "evidential", "--steps", 5000, "--out", tmp_path / "out")
    code, error = interrupt(arguments, "trial 1: evidential")
    assert code == 130, error
    assert not list((tmp_path / "out").rglob("model.json"))
    assert "results" not in read_record(tmp_path / "out")


def test_second_run_into_one_folder_raises_while_the_first_runs(tmp_path):
    arguments = ("uci", "--sets", "diabetes", "--methods", "evidential", "--out", tmp_path / "out")
    first = start(command(*arguments))
    wait_for(first, "diabetes, evidential")
    second = start(command(*arguments))
    _, error = second.communicate(timeout=60)
    first.kill()
    first.communicate()
    assert second.returncode == 2
    assert str(tmp_path / "out") in error


def test_two_runs_one_after_the_other_lose_no_results(tmp_path):
    for method in ("gaussian", "bayes"):
        options = ("--quick", "--sets", "diabetes", "--methods", method, "--members", "2", "--out", tmp_path / "out")
        process = start(command("uci", *options))
        assert process.communicate(timeout=100)[1] is not None
        assert process.returncode == 0
    assert set(read_record(tmp_path / "out")["results"]["diabetes"]) == {"gaussian", "bayes"}


# Folders that are not ours ------------------------------------------------------------------------------------------


STRANGE = ('{"schema": 1, "mine": true}', "[1, 2]", "text", '{"schema": 1, "run": "cubic"')


@pytest.mark.parametrize(
    ("name", "content"),
    [*((name, text) for name in ("cubic", "uci", "distribution") for text in STRANGE), ("depth", STRANGE[0])],
)
def test_run_leaves_a_strangers_folder_alone(tmp_path, name, content):
    mine = {"record.json": content, "cubic.csv": "a,b", "nll.md": "mine", "distribution.png": "mine"}
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "novel.txt").write_text("chapter one")
    for file, text in mine.items():
        (tmp_path / file).write_text(text)
    options = {"cubic": ["--iterations", "2"], "uci": ["--sets", "diabetes"], "depth": ["--quick"]}.get(name, [])
    result = CliRunner().invoke(app, [name, *options, "--out", str(tmp_path)])
    assert isinstance(result.exception, hs.InputError), result.output
    assert {file: (tmp_path / file).read_text() for file in mine} == mine
    assert (tmp_path / "unfinished" / "novel.txt").read_text() == "chapter one"


def test_folder_without_a_record_is_claimed_only_if_it_is_empty(tmp_path):
    with run_folder(tmp_path / "new", "toy") as before:
        assert before is None
    with run_folder(tmp_path / "new", "toy") as before:
        assert before is None  # nothing had come of it yet
        write_record(tmp_path / "new", {"run": "toy", "result": 1})
    with run_folder(tmp_path / "new", "toy") as before:
        assert before["result"] == 1
    with pytest.raises(hs.InputError, match="'toy'"), run_folder(tmp_path / "new", "uci"):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    with (
        pytest.raises(hs.InputError, match=r"'thesis\.txt'"),
        run_folder(tmp_path / "full", "uci"),
    ):
        pass
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_record_is_not_written_over_a_file_of_that_name(tmp_path):
    for content in ('{"schema": 1}', "{}", "[]", "mine"):
        (tmp_path / "record.json").write_text(content)
        with pytest.raises(hs.InputError):
            write_record(tmp_path, {"run": "toy"})
        assert (tmp_path / "record.json").read_text() == content


# The shell ----------------------------------------------------------------------------------------------------------


def shell(*arguments, **more):
    return subprocess.run(
        command(*arguments), capture_output=True, check=False, timeout=120, **{"encoding": "utf-8", **more}
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cubic", "--device", "foo"), "'foo'"),
        (("uci", "--sets", "diabetes", "--device", "gpu"), "'gpu'"),
        (("depth", "--quick", "--seed", "-1"), "'--seed'"),
        (("distribution", "--seed", str(10**30)), "'--seed'"),
        (("cubic", "--out", "/dev/null/x"), "/dev/null"),
        (("uci", "--sets", "diabetes", "--out", "/dev/null"), "/dev/null"),
    ],
)
def test_bad_options_are_one_sentence_before_any_training(arguments, message, tmp_path):
    result = shell(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    assert "networks" not in result.stdout


def test_console_that_is_not_unicode(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "LC_ALL": "C", "LANG": "C"}
    tiny = ("--iterations", "20", "--seeds", "1", "--hidden", "4", "--batch-size", "8", "--device", "cpu")
    result = shell("cubic", *tiny, "--out", tmp_path / "out", env=environment, encoding="cp1252")
    assert result.returncode == 0, result.stderr
    assert "evidential, ? = 0" in result.stdout
    assert "λ" in (tmp_path / "out" / "cubic.md").read_text(encoding="utf-8")


DAMAGES = {
    "no plan": lambda r: r.pop("plan"),
    "no results": lambda r: r.pop("results"),
    "plan is a list": lambda r: r.update(plan=[]),
    "results are a list": lambda r: r.update(results=[1]),
    "a set is a number": lambda r: r["results"].update(diabetes=3),
    "a method is null": lambda r: r["results"]["diabetes"].update(gaussian=None),
    "no splits": lambda r: r["results"]["diabetes"]["gaussian"].pop("splits"),
    "splits are text": lambda r: r["results"]["diabetes"]["gaussian"].update(splits="all"),
    "empty splits": lambda r: r["results"]["diabetes"]["gaussian"].update(splits=[]),
    "a score is missing": lambda r: r["results"]["diabetes"]["gaussian"]["splits"][0].pop("nll"),
    "a score is text": lambda r: r["results"]["diabetes"]["gaussian"]["splits"][0].update(nll="low"),
    "no seconds": lambda r: r["results"]["diabetes"]["gaussian"].pop("seconds"),
    "no plan key": lambda r: r["plan"].pop("members"),
    "the plan is another": lambda r: r["plan"].update(members=77),
    "another run": lambda r: r.update(run="cubic"),
    "an unknown set": lambda r: r["results"].update(mars={}),
    "schema is text": lambda r: r.update(schema="1"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uci")
    plan = uci.Plan(sets=("diabetes",), methods=("gaussian",), splits=2, steps=20, search=False)
    uci.run(plan, Context(folder, "cpu", progress=False))
    return plan, json.loads((folder / "record.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_record_is_one_sentence(finished, damage, tmp_path):
    plan, record = finished
    record = json.loads(json.dumps(record))
    DAMAGES[damage](record)
    (tmp_path / "record.json").write_text(json.dumps(record))
    before = (tmp_path / "record.json").read_bytes()
    with pytest.raises(hs.InputError):
        uci.run(plan, Context(tmp_path, "cpu", progress=False))
    assert (tmp_path / "record.json").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.update(results=None),
        lambda r: r.update(results=[]),
        lambda r: r["results"].update(gaussian=None),
        lambda r: r["results"]["gaussian"][0].pop("rmse"),
        lambda r: r["results"]["gaussian"][0]["attack"][0].pop("rmse"),
        lambda r: r.update(networks=3),
        lambda r: r.pop("plan"),
    ],
)
def test_damaged_depth_record_is_one_sentence(depth_run, damage):
    plan, folder, data = depth_run
    path = folder / "record.json"
    whole = path.read_bytes()
    record = json.loads(whole)
    damage(record)
    path.write_text(json.dumps(record), encoding="utf-8")
    try:
        with pytest.raises(hs.InputError, match=r"record\.json"):
            run_on(data, plan, Context(folder, "cpu", progress=False))
    finally:
        path.write_bytes(whole)


@pytest.fixture(scope="module")
def depth_run(tmp_path_factory):
    folder, data = tmp_path_factory.mktemp("depth") / "out", load(quick=True)
    few = {name: getattr(data, name).select(range(16)) for name in ("train", "validation", "test")}
    data = replace(data, outside=data.outside[:16], **few)
    plan = replace(quick_plan(), groups=("gaussian",), steps=4)
    run_on(data, plan, Context(folder, "cpu", progress=False))
    return plan, folder, data


# Checkpoints of other runs ------------------------------------------------------------------------------------------


def test_checkpoint_of_another_fit_raises(tmp_path):
    g = np.random.default_rng(0)
    x, y = g.random((40, 2)), g.random(40)
    recipe = Recipe(Network((4,)), Settings(steps=20, evaluate_every=10), 8)

    def train(x=x, y=y, seeds=(0, 1), method=None, rows=40, recipe=recipe, weight=None):
        members = hold_out(np.arange(rows), list(seeds), 0.2)
        method = method or Evidential(0.01)
        options = {"recipe": recipe, "device": "cpu", "checkpoint": tmp_path / "c", "sample_weight": weight}
        return fit(method, x, y, members, **options)

    first = train()
    assert np.array_equal(train().predict(x).mean, first.predict(x).mean)
    changed = x.copy()
    changed[3, 1] += 1e-9
    for other in (
        {"x": changed},
        {"y": y + 1e-9},
        {"seeds": (0, 2)},
        {"method": Evidential(0.02)},
        {"method": Evidential(0.01, penalty="kl")},
        {"rows": 39},
        {"recipe": Recipe(Network((4,), "relu"), recipe.settings, 8)},
        {"recipe": Recipe(Network((4,)), recipe.settings, 9)},
        {"weight": np.linspace(1, 2, 40)},
    ):
        with pytest.raises(hs.InputError) as caught:
            train(**other)
        assert caught.value.hint is not None
    (tmp_path / "c").write_bytes(b"junk")
    with pytest.raises(hs.InputError) as caught:
        train()
    assert str(tmp_path / "c") in caught.value.message
    (tmp_path / "c").unlink()
    train()
    state = torch.load(tmp_path / "c", weights_only=True)
    for key in ("weights", "clock", "history", "step", "optimizer"):
        torch.save({k: v for k, v in state.items() if k != key}, tmp_path / "c")
        with pytest.raises(hs.InputError):
            train()
    (tmp_path / "c").unlink()
    os.mkfifo(tmp_path / "c")
    with pytest.raises(hs.InputError):
        train()
