import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import evidentia as ev
from evidentia.cli import app
from evidentia.datasets import uci as uci_data
from evidentia.fitting import fit, hold_out
from evidentia.methods import Network, Recipe
from evidentia.reproduce.toy.settings import Options, Toy
from evidentia.reproduce.uci import run as uci
from evidentia.reproduce.uci.tables import compare
from evidentia.training import Settings

TINY = ["--iterations", "40", "--seeds", "2", "--hidden", "8", "--batch-size", "16"]


def call(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cubic", ["cubic.csv", "figure_3.svg", "figure_s1.png"]),
        ("regularizer", ["regularizer.csv", "figure_s2.png", "regularizer_numbers.svg"]),
        ("disentangle", ["disentangle.md", "figure_s3.png"]),
    ],
)
def test_a_toy_experiment_writes_record_tables_and_figures(name, files, tmp_path):
    result = call(name, *TINY, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for file in files:
        assert (tmp_path / file).stat().st_size > 100
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["run"] == name
    assert record["settings"]["iterations"] == 40
    assert not (tmp_path / "unfinished").exists()


def test_a_killed_toy_run_continues(tmp_path, monkeypatch):
    from evidentia.reproduce.toy import disentangle
    from evidentia.reproduce.toy import settings as toy

    settings = Toy(rows=200, iterations=40, seeds=2, hidden=(8,), batch_size=16)
    options = Options(tmp_path / "killed", "cpu", progress=False)
    trained = []
    original = toy.fit

    def watched(*arguments, **more):
        if len(trained) == 1:
            trained.append("killed")
            raise KeyboardInterrupt
        fitted = original(*arguments, **more)
        trained.append(fitted.training.steps)
        return fitted

    monkeypatch.setattr(toy, "fit", watched)
    with pytest.raises(KeyboardInterrupt):
        disentangle.run(options, settings)
    assert list((tmp_path / "killed" / "unfinished").iterdir())
    disentangle.run(options, settings)
    disentangle.run(Options(tmp_path / "whole", "cpu", progress=False), settings)
    records = [json.loads((tmp_path / f / "record.json").read_text())["rows"] for f in ("killed", "whole")]
    assert records[0] == records[1]


def test_uci_on_what_scikit_learn_brings(tmp_path):
    arguments = ["uci", "--quick", "--sets", "diabetes", "--methods", "evidential,ensemble", "--members", "2"]
    result = call(*arguments, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "record.json").read_text())
    scores = record["results"]["diabetes"]["evidential"]["splits"]
    assert len(scores) == 3
    assert all(5 < s["nll"] < 6.5 and 0.7 < s["coverage_90"] <= 1 for s in scores)
    assert "evidential, paper" in (tmp_path / "nll.md").read_text()
    # a second call has nothing to do, and a further method is added to the rest
    again = call(*arguments, "--out", tmp_path)
    assert "diabetes, " not in again.output
    more = call(*arguments[:5], "gaussian", *arguments[6:], "--out", tmp_path)
    assert more.exit_code == 0, more.output
    assert set(json.loads((tmp_path / "record.json").read_text())["results"]["diabetes"]) == {
        "evidential",
        "ensemble",
        "gaussian",
    }


def test_the_published_rule_flatters(tmp_path):
    plan = uci.Plan(sets=("diabetes",), methods=("evidential",), protocol="published", network="paper", splits=3)
    uci.run(plan, tmp_path, device="cpu", progress=False)
    result = json.loads((tmp_path / "record.json").read_text())["results"]["diabetes"]["evidential"]
    assert len(result["trials"]) == 3
    assert result["evaluations"] == -(-result["recipe"]["settings"]["steps"] // 100)
    for trial in result["trials"]:
        assert trial["nll_min"] < trial["nll"]
        assert trial["rmse_min"] < trial["rmse"]


def test_the_minima_against_a_loop_over_trials():
    g = np.random.default_rng(0)
    x, y = g.standard_normal((60, 2)), g.standard_normal(60)
    recipe = Recipe(Network((4,)), Settings(steps=20, evaluate_every=20), 8)
    fitted = fit(uci.Evidential(), x, y, hold_out(np.arange(40), range(4), 0), recipe=recipe, device="cpu")
    minima = uci.Minima(x[40:], y[40:], trials=2, batch=100)  # more than there are: all rows
    minima(fitted)
    for t in range(2):
        p = fitted.predict(x[40:], [2 * t, 2 * t + 1])
        assert minima.best["nll"][t] == pytest.approx(ev.metrics.nll(p, y[40:]), rel=1e-9)
        assert minima.best["rmse"][t] == pytest.approx(ev.metrics.rmse(p, y[40:]), rel=1e-9)


def test_dual_ascent_as_released():
    """By hand: λ starts at 0, and rises by 1e-4 times the mean penalty above 0.01."""
    method = uci.ReleasedEvidential()
    networks = method.build([0], 1, 4, Network((2,)))
    answer = ev.NormalInverseGamma(torch.zeros(1, 2, 1), 1.0, 2.0, 1.0)
    y = torch.tensor([1.0, 3.0]).view(1, 2, 1)
    first, second = method.loss(answer, y, networks), method.loss(answer, y, networks)
    penalty = y * (2 * 1.0 + 2.0)
    weight = 1e-4 * (penalty.mean() - 0.01)
    assert torch.allclose(second - first, weight * (penalty - 0.01), atol=1e-7)
    assert networks.evidence_weight.item() == pytest.approx(2 * weight.item(), rel=1e-5)


def test_a_paired_comparison_against_scipy():
    from scipy import stats

    g = np.random.default_rng(1)
    theirs = g.standard_normal(20)
    for shift in (-2.0, -0.3, 0.0, 0.3, 2.0):
        ours = theirs + shift + 0.5 * g.standard_normal(20)
        significant = stats.ttest_rel(ours, theirs).pvalue < 0.05
        verdict = compare(ours, theirs)["verdict"]
        assert verdict == (("win" if ours.mean() < theirs.mean() else "loss") if significant else "tie")


def test_the_authors_split_has_the_authors_sizes():
    table = uci_data.UCITable("yacht", np.zeros((308, 6)), np.zeros(308), [])
    ((train, test),) = uci_data.published_split(table, 0.1).splits
    assert (len(train), len(test)) == (276, 31)
    assert sorted([*train, *test]) == list(range(1, 308))  # its first row is lost
    boston = uci_data.UCITable("boston", np.zeros((506, 13)), np.zeros(506), [])
    assert [len(part) for part in uci_data.published_split(boston, 0.2).splits[0]] == [405, 101]


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "evidentia.cli", "reproduce", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for arguments, message in (
        (("uci", "--sets", "mars"), "evidentia: unknown set 'mars'; known are boston"),
        (("cubic", "--hidden", "ten"), "evidentia: --hidden takes whole numbers from 1 to 10,000 with commas"),
        (("cubic", "--seeds", "0"), "Invalid value for '--seeds'"),
        (("cubic", "--hidden", "100000,100000"), "evidentia: --hidden takes whole numbers from 1 to 10,000"),
        (("uci", "--sets", "yacht", "--data", tmp_path, "--out", tmp_path / "o"), "yacht: "),
    ):
        result = run(*arguments)
        assert result.returncode == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr


def test_a_folder_of_another_run_is_not_mixed_in(tmp_path):
    plan = uci.Plan(sets=("diabetes",), methods=("gaussian",), splits=2, steps=20)
    uci.run(plan, tmp_path, device="cpu", progress=False)
    with pytest.raises(ev.InputError, match="holds a run with network = best, not paper"):
        uci.run(uci.Plan(sets=("diabetes",), network="paper", splits=2, steps=20), tmp_path, progress=False)


def test_help_shows_an_example():
    assert "Example: evidentia reproduce cubic" in call("cubic", "--help").output
    assert CliRunner().invoke(app, ["--version"]).output.startswith("evidentia 0.")
