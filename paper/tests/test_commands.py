import importlib.metadata
import json
import re
import subprocess
import sys
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import howsure as hs
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.tables.members import hold_out
from howsure.training import Settings, loop
from howsure_paper.cli import _plan_options, _value, app
from howsure_paper.datasets import uci as uci_data
from howsure_paper.protocol import Context, find_runs, new_record, open_run, option, same_plan
from howsure_paper.record import write_record
from howsure_paper.registry import EXPERIMENTS, write_page
from howsure_paper.toy import cubic, disentangle, problem
from howsure_paper.toy.plan import CubicPlan, DisentanglePlan
from howsure_paper.training import fit
from howsure_paper.uci import run as uci
from howsure_paper.uci.methods import ReleasedEvidential
from howsure_paper.uci.tables import compare
from program import shell

TINY = ["--iterations", "40", "--seeds", "2", "--hidden", "8", "--batch-size", "16"]
TINY_PLAN = {"rows": 200, "iterations": 40, "seeds": 2, "hidden": (8,), "batch_size": 16}


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def quiet(folder, device="cpu"):
    return Context(folder, device, progress=False)


# The protocol --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_experiment_implements_the_protocol(experiment):
    plan = experiment.plan()
    assert not plan.quick
    assert {"quick"} <= {field.name for field in fields(plan)}
    if experiment.quick is not None:
        assert experiment.quick(plan).quick
    for name in ("run", "write_results", "page"):
        assert callable(getattr(experiment.work, name))
    folders = [experiment.folder_of(plan) for plan in experiment.plans(quick=False)]
    assert len(set(folders)) == len(folders)
    result = call(experiment.name, "--help")
    assert result.exit_code == 0, result.output
    for field in fields(plan):
        if "option" in field.metadata:
            assert f"--{field.name.replace('_', '-')}" in result.output


def test_settings_that_no_longer_exist_are_not_compared(tmp_path):
    before = {"network": {"hidden": [8], "average": 0.9}, "seeds": 2, "sets": ["yacht"]}
    same_plan(tmp_path, before, {"network": {"hidden": (8,)}, "seeds": 2, "sets": ("wine",)}, free=("sets",))
    with pytest.raises(hs.InputError, match=r"network\.hidden"):
        same_plan(tmp_path, before, {"network": {"hidden": (9,)}, "seeds": 2})
    with pytest.raises(KeyError):  # which open_run says in a sentence
        same_plan(tmp_path, before, {"members": 3})


def test_run_continues_the_finished_parts_of_an_earlier_one(tmp_path):
    plan = CubicPlan(**TINY_PLAN)
    with open_run(tmp_path, new_record("cubic", plan, "cpu")) as record:
        record["results"]["first"] = {"n": 1}
        write_record(tmp_path, record)
    with open_run(tmp_path, new_record("cubic", plan, "cpu")) as record:
        assert record["results"]["first"] == {"n": 1}
    with (
        pytest.raises(hs.InputError, match="seeds"),
        open_run(tmp_path, new_record("cubic", replace(plan, seeds=3), "cpu")),
    ):
        pass


def test_run_cut_before_its_first_result_names_its_plan(tmp_path):
    plan = CubicPlan(**TINY_PLAN)
    for seeds in (2, 3):  # nothing is lost by another plan in its place
        with open_run(tmp_path, new_record("cubic", replace(plan, seeds=seeds), "cpu")):
            assert json.loads((tmp_path / "record.json").read_text())["plan"]["seeds"] == seeds
    with pytest.raises(hs.InputError, match=tmp_path.name):
        write_page(tmp_path)
    quiet(tmp_path).checkpoint("ensemble").parent.mkdir()
    quiet(tmp_path).checkpoint("ensemble").touch()
    with (
        pytest.raises(hs.InputError, match="seeds"),
        open_run(tmp_path, new_record("cubic", plan, "cpu")),
    ):
        pass


def test_record_of_an_earlier_version_is_called_so(tmp_path):
    (tmp_path / "record.json").write_text('{"schema": 1, "run": "cubic", "settings": {"seeds": 5}, "methods": {}}')
    for use in (lambda: cubic.run(CubicPlan(**TINY_PLAN), quiet(tmp_path)), lambda: write_page(tmp_path)):
        with pytest.raises(hs.InputError, match="'cubic'"):
            use()


@pytest.mark.parametrize("name", ["cubic", "distribution", "uci", "depth"])
def test_run_without_matplotlib_raises_before_it_begins(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = call(name, "--out", tmp_path / "run", *([] if name == "distribution" else ["--quick"]))
    assert isinstance(result.exception, hs.InputError)
    assert "matplotlib" in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_option_of_several_numbers_has_those_of_its_field():
    @dataclass(frozen=True)
    class Plan:
        weights: tuple[float, ...] = option((0.5, 1.0), "Weights.", minimum=0)
        sizes: tuple[int, ...] = option((8,), "Sizes.", minimum=1, maximum=100)

    options = _plan_options(Plan)
    assert _value(options["weights"], "0.25, 1e-3,2") == (0.25, 0.001, 2.0)
    assert _value(options["sizes"], "8,100") == (8, 100)
    for name, given in (("weights", "-1"), ("weights", "nan"), ("sizes", "0.5"), ("sizes", "101")):
        with pytest.raises(hs.InputError, match=f"--{name}"):
            _value(options[name], given)


# Toys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cubic", ["cubic.csv", "figure_3.svg", "figure_s1.png"]),
        ("regularizer", ["regularizer.csv", "figure_s2.png", "regularizer_numbers.svg"]),
        ("disentangle", ["disentangle.md", "figure_s3.png"]),
    ],
)
def test_toy_experiment_writes_record_tables_and_figures(name, files, tmp_path):
    out = tmp_path / "run"
    result = call(name, *TINY, "--out", out)
    assert result.exit_code == 0, result.output
    for file in files:
        assert (out / file).stat().st_size > 100
    record = json.loads((out / "record.json").read_text())
    assert record["run"] == name
    assert record["plan"]["iterations"] == 40
    assert not (out / "unfinished").exists()
    other = call(name, *TINY, "--learning-rate", "0.1", "--out", out)
    assert isinstance(other.exception, hs.InputError)
    assert "learning_rate = 0.005, not 0.1" in str(other.exception)
    # without the curves a figure stays as it is; tables and page come from the record
    for path in (*(out / "curves").iterdir(), *out.glob("*.md"), *out.glob("*.csv")):
        path.unlink()
    drawn = {path: path.read_bytes() for path in out.glob("figure_*")}
    assert call("page", out).exit_code == 0
    page = (tmp_path / "run.md").read_text()
    assert (out / f"{name}.md").read_text() in page
    assert f"(run/{files[-1].replace('.svg', '.png')})" in page
    assert {path: path.read_bytes() for path in out.glob("figure_*")} == drawn


def test_second_call_trains_nothing_and_draws_the_same(tmp_path):
    call("disentangle", *TINY, "--out", tmp_path)
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = call("disentangle", *TINY, "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert "networks" not in again.output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == written


def interrupt_after(save):
    """Return a function that saves a checkpoint and is then interrupted."""

    def saved(*arguments):
        save(*arguments)
        raise KeyboardInterrupt

    return saved


def often_saved(recipe_of):
    """Return a function whose recipes save a checkpoint at every third evaluation."""

    def recipe(*arguments):
        found = recipe_of(*arguments)
        return replace(found, settings=replace(found.settings, checkpoint_every=3))

    return recipe


def test_killed_toy_run_continues(tmp_path, monkeypatch):
    """What was finished is not trained again, and what was cut goes on from its checkpoint."""
    plan = DisentanglePlan(**TINY_PLAN)
    trained = []

    def watched(*arguments, **options):
        trained.append(options["checkpoint"].exists())
        if len(trained) == 2:
            monkeypatch.setattr(loop, "save_checkpoint", interrupt_after(save))
        return original(*arguments, **options)

    original, save = problem.fit, loop.save_checkpoint
    monkeypatch.setattr(problem, "fit", watched)
    with pytest.raises(KeyboardInterrupt):
        disentangle.run(plan, quiet(tmp_path / "killed"))
    monkeypatch.setattr(loop, "save_checkpoint", save)
    assert list(json.loads((tmp_path / "killed" / "record.json").read_text())["results"]) == ["standard_score"]
    disentangle.run(plan, quiet(tmp_path / "killed"))
    assert trained == [False, False, True]
    disentangle.run(plan, quiet(tmp_path / "whole"))
    records = [json.loads((tmp_path / f / "record.json").read_text())["results"] for f in ("killed", "whole")]
    assert records[0] == records[1]
    for file in ("disentangle.csv", "figure_s3.svg"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_start_that_is_not_finite_is_seen_in_the_table():
    """A record has null for what is not finite, and for what a method does not have."""
    finite = {"rmse_inside": 1.0, "epistemic_inside": None, "nll_inside": 2.0}
    lost = {"rmse_inside": None, "epistemic_inside": None, "nll_inside": None}
    assert problem.median([finite, finite], "epistemic_inside") is None
    assert problem.median([finite, finite], "nll_inside") == 2.0
    assert np.isnan(problem.median([finite, lost], "nll_inside"))


# Pages ---------------------------------------------------------------------------------------------------------------


def test_page_of_a_folder_without_a_run_raises(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(hs.InputError, match=folder.name):
            write_page(folder)
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub" / "record.json").write_text('{"schema": 1, "run": "members", "results": {"x": 1}}')
    with pytest.raises(hs.InputError, match="'members'"):
        write_page(tmp_path / "a")
    (tmp_path / "a" / "other").mkdir()
    (tmp_path / "a" / "other" / "record.json").write_text('{"schema": 1, "run": "uci", "results": {"x": 1}}')
    assert len(find_runs(tmp_path / "a")) == 2
    with pytest.raises(hs.InputError, match="members"):
        write_page(tmp_path / "a")
    with pytest.raises(hs.InputError, match=r"record\.json"):
        write_page(tmp_path / "a" / "other")


def test_page_does_not_replace_other_files(tmp_path):
    assert call("distribution", "--out", tmp_path / "run").exit_code == 0
    (tmp_path / "run.md").write_text("my notes")
    with pytest.raises(hs.InputError):
        write_page(tmp_path / "run")
    assert (tmp_path / "run.md").read_text() == "my notes"
    result = call("page", tmp_path / "run", "--out", tmp_path / "elsewhere" / "page.md")
    assert result.exit_code == 0, result.output
    assert "(../run/distribution.png)" in (tmp_path / "elsewhere" / "page.md").read_text()


def without_last_result(folder):
    """Remove the last result of a record, as if the run had been cut before it; return its name."""
    record = json.loads((folder / "record.json").read_text())
    unit, _ = record["results"].popitem()
    (folder / "record.json").write_text(json.dumps(record))
    return unit


@pytest.mark.parametrize("name", ["cubic", "regularizer", "disentangle"])
def test_page_of_a_half_done_toy_run_lists_missing_runs(name, tmp_path):
    out = tmp_path / "run"
    assert call(name, *TINY, "--quick", "--out", out).exit_code == 0
    unit = without_last_result(out)
    for path in out.glob("*.png"):
        path.unlink()
    write_page(out)
    page = (tmp_path / "run.md").read_text()
    assert f": {unit}." in page
    assert re.search(r"\*\*Quick.*: run\.\*\*", page)
    assert ".png" not in page
    assert not list(out.glob("*.png"))


def test_page_of_a_record_without_its_name_raises_in_a_sentence(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "record.json").write_text('{"schema": 1, "plan": {}, "results": {"x": 1}}')
    with pytest.raises(hs.InputError, match="'run'"):
        write_page(tmp_path)


# Table 1 -------------------------------------------------------------------------------------------------------------


def test_uci_on_data_of_scikit_learn(tmp_path):
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


def test_page_of_a_small_uci_run_lists_its_runs(tmp_path):
    call("uci", "--quick", "--sets", "diabetes", "--methods", "evidential", "--members", "2", "--out", tmp_path / "run")
    write_page(tmp_path / "run")
    page = (tmp_path / "run.md").read_text()
    assert re.search(r"Sets: diabetes\. Methods: evidential\. .*\b2\b", page)
    command = "--quick --protocol standard --network best --sets diabetes --methods evidential --members 2 --out run"
    assert [line for line in page.splitlines() if line.startswith("    ")] == [f"    howsure-paper uci {command}"]
    assert "(run/record.json), 3 splits" in page
    assert re.search(r"\*\*Quick.*: run\.\*\*", page)
    for absent in (".png", "wins |", "Wine", "diabetes (", "$"):
        assert absent not in page
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    record["plan"] |= {"methods": ["evidential", "bayes"], "sets": ["diabetes", "yacht"]}
    (tmp_path / "run" / "record.json").write_text(json.dumps(record))
    write_page(tmp_path / "run")
    page = (tmp_path / "run.md").read_text()
    assert "diabetes (bayes); yacht (evidential, bayes)" in page
    assert "--sets yacht,diabetes --methods evidential,bayes" in page


def test_two_uci_runs_of_one_kind_have_no_page_together(tmp_path):
    for name in ("a", "b"):
        few = {"sets": ("diabetes",), "methods": ("gaussian",), "splits": 2, "steps": 20, "network": "paper"}
        uci.run(uci.Plan(**few), quiet(tmp_path / name))
    with pytest.raises(hs.InputError, match=r"/a\b.*/b\b"):
        write_page(tmp_path)


def test_all_sets_are_read_before_the_first_is_trained(tmp_path, monkeypatch):
    monkeypatch.delenv("HOWSURE_DATA", raising=False)
    with pytest.raises(hs.InputError, match="--data"):
        uci.run(uci.Plan(sets=("diabetes", "yacht")), quiet(tmp_path / "run"))
    with pytest.raises(hs.InputError):
        uci.run(uci.Plan(sets=("diabetes", "yacht")), replace(quiet(tmp_path / "run"), data=tmp_path))
    assert not (tmp_path / "run").exists()


def test_published_rule_flatters(tmp_path):
    plan = uci.Plan(sets=("diabetes",), methods=("evidential",), protocol="published", network="paper", splits=3)
    uci.run(plan, quiet(tmp_path))
    result = json.loads((tmp_path / "record.json").read_text())["results"]["diabetes"]["evidential"]
    assert len(result["trials"]) == 3
    assert result["evaluations"] == -(-result["recipe"]["settings"]["steps"] // 100)
    for trial in result["trials"]:
        assert trial["nll_min"] < trial["nll"]
        assert trial["rmse_min"] < trial["rmse"]


def test_minima_against_a_loop_over_trials():
    g = np.random.default_rng(0)
    x, y = g.standard_normal((60, 2)), g.standard_normal(60)
    recipe = Recipe(Network((4,)), Settings(steps=20, evaluate_every=20), 8)
    fitted = fit(Evidential(), x, y, hold_out(np.arange(40), range(4), 0), recipe=recipe, device="cpu")
    minima = uci.Minima(x[40:], y[40:], trials=2, batch=100)  # more than there are: all rows
    minima(fitted)
    for t in range(2):
        p = fitted.predict(x[40:], [2 * t, 2 * t + 1])
        assert minima.best["nll"][t] == pytest.approx(hs.metrics.nll(p, y[40:]), rel=1e-9)
        assert minima.best["rmse"][t] == pytest.approx(hs.metrics.rmse(p, y[40:]), rel=1e-9)


def test_dual_ascent_as_released():
    """By hand: λ starts at 0, and rises by 1e-4 times the mean penalty above 0.01."""
    method = ReleasedEvidential()
    networks = method.build([0], 1, 4, Network((2,)))
    answer = hs.NormalInverseGamma(torch.zeros(1, 2, 1), 1.0, 2.0, 1.0)
    y = torch.tensor([1.0, 3.0]).view(1, 2, 1)
    first, second = method.loss(answer, y, networks), method.loss(answer, y, networks)
    penalty = y * (2 * 1.0 + 2.0)
    weight = 1e-4 * (penalty.mean() - 0.01)
    assert torch.allclose(second - first, weight * (penalty - 0.01), atol=1e-7)
    assert networks.evidence_weight.item() == pytest.approx(2 * weight.item(), rel=1e-5)


def test_paired_comparison_against_scipy():
    from scipy import stats

    g = np.random.default_rng(1)
    theirs = g.standard_normal(20)
    for shift in (-2.0, -0.3, 0.0, 0.3, 2.0):
        ours = theirs + shift + 0.5 * g.standard_normal(20)
        significant = stats.ttest_rel(ours, theirs).pvalue < 0.05
        verdict = compare(ours, theirs)["verdict"]
        assert verdict == (("win" if ours.mean() < theirs.mean() else "loss") if significant else "tie")


def test_authors_split_has_the_authors_sizes():
    table = uci_data.UCITable("yacht", np.zeros((308, 6)), np.zeros(308), [])
    ((train, test),) = uci_data.published_split(table, 0.1).splits
    assert (len(train), len(test)) == (276, 31)
    assert sorted([*train, *test]) == list(range(1, 308))  # its first row is lost
    boston = uci_data.UCITable("boston", np.zeros((506, 13)), np.zeros(506), [])
    assert [len(part) for part in uci_data.published_split(boston, 0.2).splits[0]] == [405, 101]


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, capsys):
    for arguments, token in (
        (("uci", "--sets", "mars"), "'mars'"),
        (("uci", "--targets", "foo"), "'foo'"),
        (("disentangle", "--seeds", "1"), "'--seeds'"),
        (("cubic", "--hidden", "ten"), "--hidden"),
        (("cubic", "--seeds", "0"), "'--seeds'"),
        (("cubic", "--hidden", "100000,100000"), "--hidden"),
        (("uci", "--sets", "yacht", "--data", tmp_path, "--out", tmp_path / "o"), "yacht: "),
    ):
        said = shell(capsys, *arguments)
        assert said.code == 2
        assert token in said.error


def test_folder_of_another_run_is_not_mixed_in(tmp_path):
    plan = uci.Plan(sets=("diabetes",), methods=("gaussian",), splits=2, steps=20)
    uci.run(plan, quiet(tmp_path / "run"))
    with pytest.raises(hs.InputError, match="network"):
        uci.run(uci.Plan(sets=("diabetes",), network="paper", splits=2, steps=20), quiet(tmp_path / "run"))
    with pytest.raises(hs.InputError, match="'uci'"):
        cubic.run(CubicPlan(**TINY_PLAN), quiet(tmp_path / "run"))
    # a page of part of the methods, on a set that the paper does not have
    write_page(tmp_path / "run")
    assert (tmp_path / "run" / "nll.md").read_text().strip() in (tmp_path / "run.md").read_text()


@pytest.mark.parametrize("network", ["best", "paper"])
def test_interrupted_uci_run_goes_on_to_the_same_numbers(network, tmp_path, monkeypatch):
    """The fit that is cut goes on from its checkpoint, which has λ of the authors' dual ascent too."""
    monkeypatch.setattr(uci, "recipe_of", often_saved(uci.recipe_of))
    few = {"sets": ("diabetes",), "methods": ("evidential",), "members": 2, "splits": 2, "steps": 40, "search": False}
    plan, save = uci.Plan(network=network, **few), loop.save_checkpoint
    monkeypatch.setattr(loop, "save_checkpoint", interrupt_after(save))
    with pytest.raises(KeyboardInterrupt):
        uci.run(plan, quiet(tmp_path / "cut"))
    monkeypatch.setattr(loop, "save_checkpoint", save)
    uci.run(replace(plan, methods=("gaussian",)), quiet(tmp_path / "cut"))  # leaves what was cut alone
    assert [path.name for path in (tmp_path / "cut" / "unfinished").iterdir()] == ["diabetes_evidential_fit.ckpt"]
    for folder in ("cut", "whole"):
        uci.run(plan, quiet(tmp_path / folder))
        assert not (tmp_path / folder / "unfinished").exists()
    cut, whole = (json.loads((tmp_path / f / "record.json").read_text())["results"] for f in ("cut", "whole"))
    assert cut["diabetes"]["evidential"]["splits"] == whole["diabetes"]["evidential"]["splits"]


def test_actions_of_an_experiment_are_not_results(tmp_path, capsys, monkeypatch):
    def run_quickly(_, context):
        sys.stdout.write(f"penalty error: 2 networks, progress {context.progress}\n")
        (tmp_path / "table.md").write_text("| a table |")
        return [tmp_path / "table.md"]

    monkeypatch.setattr(cubic, "run", run_quickly)
    loud, quiet = (shell(capsys, "cubic", "--out", tmp_path, *more) for more in ((), ("--quiet",)))
    assert (loud.error, quiet.error) == ("penalty error: 2 networks, progress True\n", "")
    assert "| a table |" in quiet.out
    assert quiet.out == loud.out


# Data ----------------------------------------------------------------------------------------------------------------


def test_benchmark_sets_are_fetched(tmp_path, capsys, monkeypatch):
    fetched = []
    monkeypatch.setattr(uci_data, "download", lambda *arguments: fetched.append(arguments) or tmp_path / "uci" / "x")
    said = shell(capsys, "data", "fetch", "yacht", "wine", "--data", tmp_path)
    assert said.code == 0, said.error
    assert fetched == [("yacht", tmp_path, uci_data.ORIGIN), ("wine", tmp_path, uci_data.ORIGIN)]
    assert said.out.splitlines() == [str(tmp_path / "uci" / "x")] * 2
    assert shell(capsys, "data", "fetch", "all", "--data", tmp_path, "--quiet").error == ""
    assert len(fetched) == 2 + len(uci_data.SETS)


def test_sets_that_are_not_known_or_not_there(tmp_path, capsys, monkeypatch):
    said = shell(capsys, "data", "fetch", "mars", "--data", tmp_path)
    assert (said.code, "'mars'" in said.error, "boston" in said.error) == (2, True, True)
    said = shell(capsys, "data", "fetch", "yacht", "--data", tmp_path, "--origin", "http://127.0.0.1:1")
    assert (said.code, "http://127.0.0.1:1" in said.error) == (2, True)
    monkeypatch.delenv("HOWSURE_DATA", raising=False)
    assert "HOWSURE_DATA" in shell(capsys, "data", "fetch", "yacht").error


# The program ---------------------------------------------------------------------------------------------------------


def test_missing_command_prints_help(capsys):
    for arguments in ((), ("data",)):
        said = shell(capsys, *arguments)
        assert said.code == 2
        assert "Usage: " in said.out + said.error
        assert "Example: howsure-paper" in said.out + said.error


def test_installed_command_is_the_one_that_is_tested():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="howsure-paper")
    assert script.value == "howsure_paper.__main__:main"


# as if Ctrl-C were pressed while Python reads this module for the first time
INTERRUPT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["howsure-paper", "cubic"]
from howsure_paper.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["typer", "torch"])
def test_interrupt_while_torch_is_imported_ends_with_130(name):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT.format(name=name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert (done.stderr.partition(":")[0], done.stderr.count("\n")) == ("howsure-paper", 1)


def test_without_typer_the_program_names_the_extra():
    code = "import sys; sys.modules['typer'] = None; from howsure_paper.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'pip install ".[cli]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_imports_no_matplotlib():
    code = """
import sys
sys.argv = ["howsure-paper", "--help"]
from howsure_paper.__main__ import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
print("loaded:", sorted({"matplotlib", "pandas", "sklearn"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert "cubic" in done.stdout
    assert done.stdout.rstrip().endswith("loaded: []")


def test_no_module_imports_large_packages():
    """A module of a kernel needs Triton and is not imported here."""
    code = """
import importlib, pkgutil, sys
import howsure_paper

names = [module.name for module in pkgutil.walk_packages(howsure_paper.__path__, "howsure_paper.")]
for name in names:
    if not name.endswith("__main__") and name != "howsure_paper.small_networks":
        importlib.import_module(name)
large = {"matplotlib", "PIL", "h5py"}
print(len(names), sorted(large & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    count, found = done.stdout.strip().split(maxsplit=1)
    assert int(count) > 40
    assert found == "[]"


def verbs(command=None, path=()):
    """Yield all verbs with their options, as (words, names of options)."""
    command = typer.main.get_command(app) if command is None else command
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from verbs(each, (*path, name))
    else:
        yield path, {name for parameter in command.params for name in parameter.opts}


VERBS = dict(verbs())
# of some verbs: bad input, good input, and the function that an interrupt comes in
TRIED = {
    ("data", "fetch"): (
        ("no such set", "--data", "."),
        ("yacht", "--data", "."),
        "howsure_paper.datasets.folder.need_data",
    ),
    ("cubic",): (("--seeds", "0"), (), "howsure_paper.toy.cubic.run"),
    ("page",): (("none",), ("none",), "howsure_paper.cli.write_page"),
}


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_an_example_and_quiet(verb, capsys):
    said = shell(capsys, *verb, "--help")
    assert said.code == 0
    assert f"Example: howsure-paper {' '.join(verb)}" in said.out
    assert "--quiet" in VERBS[verb]


@pytest.mark.parametrize("verb", TRIED, ids=" ".join)
def test_verbs_end_with_2_and_130(verb, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad, good, interrupted = TRIED[verb]
    said = shell(capsys, *verb, *bad, "--quiet")
    assert said.code == 2, said
    assert (said.out, len(said.error.splitlines())) == ("", 1)
    assert said.error.startswith("howsure-paper: ")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, interrupt)
    assert shell(capsys, *verb, *good) == (130, "", "")
