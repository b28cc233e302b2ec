"""Every script of benchmarks/ and paper/studies/ runs, small and on the CPU, and is in the table of its folder."""

import contextlib
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from howsure.tables import splits
from howsure_paper.datasets import rooms, uci
from howsure_paper.paper import TABLE_1
from howsure_paper.tables import mean_and_error

ROOT = Path(__file__).parents[2]
FOLDERS = {"benchmarks": "benchmarks", "studies": "paper/studies"}
CPU = "--device cpu"
RECORD = "--device cpu --out {out}"  # of a script that writes a record
UNET = "--width 4 --steps 4"
ARGUMENTS = {
    "benchmarks/bench_anchors.py": "--anchors {data}/anchors.csv --data {data} --repeats 1 --steps 5",
    "benchmarks/bench_attach.py": f"toys --only cubic --steps 20 --seeds 1 {RECORD}",
    "benchmarks/bench_botorch.py": "--seeds 1 --steps 5 --problems branin --out {out}",
    "benchmarks/bench_coverage.py": "--rows 60 --seeds 1 --jobs 1 --steps 5",
    "benchmarks/bench_deploy.py": "--steps 20 --rows 100 --repeats 2",
    "benchmarks/bench_depth.py": f"{UNET} --batch 2 {RECORD}",
    "benchmarks/bench_incontext.py": "--seconds --out {out}",
    "benchmarks/bench_inputs.py": "--rows 80 --repeats 1 --steps 10",
    "benchmarks/bench_bounds.py": "--tables 6 --jobs 1 --steps 10",
    "benchmarks/bench_fit.py": "--data {data} --sets yacht --steps 5",
    "benchmarks/bench_intervals.py": "--small",
    "benchmarks/bench_linear.py": "--rows 30 --columns 2 --noise 1 --jobs 1 --steps 5",
    "benchmarks/bench_loss.py": f"--rows 1000 --repeats 3 {CPU}",
    "benchmarks/bench_online.py": "--data {data} --rows 40 --stream 20 --steps 5",
    "benchmarks/bench_population.py": f"--steps 20 {CPU}",
    "benchmarks/bench_predict.py": f"--rows 100 --repeats 2 --modes eager {CPU}",
    "benchmarks/bench_rows.py": "--rows 30 --members 1 --steps 5",
    "benchmarks/bench_tables.py": "--cost --rows 60 --steps 20",
    "benchmarks/bench_targets.py": "--data {data} --tables two --rows 60 --steps 5",
    "benchmarks/bench_uci.py": f"--steps 20 {CPU}",
    "paper/studies/accuracy.py": "--every 60",
    "paper/studies/baselines.py": f"--sets yacht {RECORD}",
    "paper/studies/cubic_truth.py": f"--seeds 2 --members 2 --steps 20 {CPU}",
    "paper/studies/depth_fading.py": f"{UNET} --trials 1 {RECORD}",
    "paper/studies/depth_heads.py": f"{UNET} --seeds 1 {RECORD}",
    "paper/studies/depth_recipe.py": f"{UNET} --only nearer {RECORD}",
    "paper/studies/depth_unfamiliar.py": f"{UNET} --seeds 1 {RECORD}",
    "paper/studies/evidence_cubic.py": f"--sets 2 --jobs 1 --activations silu --steps 5 {RECORD}",
    "paper/studies/evidence_tables.py": f"--sets yacht --features 1 --splits 1 --steps 5 {RECORD}",
    "paper/studies/loss_accuracy.py": f"--points 20 {RECORD}",
    "paper/studies/members.py": f"--sets yacht --splits 2 --steps 20 {RECORD}",
    "paper/studies/real_tables.py": f"--data {{data}} --splits 1 --steps 20 {RECORD}",
    "paper/studies/shifts.py": f"--data {{data}} --steps 5 {RECORD}",
    "paper/studies/table_inputs.py": f"--sets yacht --splits 1 --steps 10 {RECORD}",
    "paper/studies/table_recipe.py": f"--sets yacht --splits 1 --steps 20 {RECORD}",
    "paper/studies/table_settings.py": f"--tables {{data}} --sets yacht --count 0 --steps 5 {RECORD}",
    "paper/studies/tie_side.py": f"--sets yacht --splits 2 --folds 2 --members 2 --steps 20 {RECORD}",
    "paper/studies/uci_estimator.py": f"--sets yacht --steps 20 {RECORD}",
}


def small_table(name, data=None, target="standard"):
    """A table in the place of a UCI set: 60 rows, 3 features, two splits."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3))
    y = x[:, 0] + 0.1 * rng.standard_normal(60)
    return uci.UCITable(name, x, y, [splits.random(60, 0.1, seed) for seed in range(2)])


def write_small_tables(folder):
    """Write the columns of tables that people have, with few rows, and what a public benchmark says of one of them."""
    rng = np.random.default_rng(0)
    (folder / "shift").mkdir(parents=True)
    days = pd.date_range("2011-01-01", periods=80).strftime("%m/%d/%y")
    bikes = pd.DataFrame({"dteday": days, "hr": rng.integers(0, 24, 80), "casual": 1, "registered": 2})
    bikes = bikes.assign(instant=range(80), yr=[0] * 50 + [1] * 30)
    bikes.assign(cnt=rng.permutation(80)).to_csv(folder / "shift" / "bike_hour.csv", index=False)
    houses = pd.DataFrame({"rooms": rng.random(80), "ocean_proximity": rng.choice(["NEAR", "INLAND"], 80)})
    houses.loc[3, "rooms"] = np.nan
    houses.assign(median_house_value=rng.random(80)).to_csv(folder / "shift" / "california_housing.csv", index=False)
    for color in ("red", "white"):
        wine = pd.DataFrame({"acidity": rng.random(60), "alcohol": rng.random(60), "quality": rng.random(60)})
        wine.to_csv(folder / "shift" / f"winequality-{color}.csv", index=False, sep=";")
    anchors = pd.DataFrame({"dataset": ["WhiteWine"], "n": [50], "method": ["TabPFN-2.5"], "crps": [0.3]})
    anchors.to_csv(folder / "anchors.csv", index=False)


def run_script(script, arguments, monkeypatch, capsys):
    """Run a script as Python would, and return the lines that it prints."""
    path = ROOT / script
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(path), *arguments.split()])
    with contextlib.suppress(SystemExit):  # of a benchmark whose bound is broken by so few steps
        runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def numbers_in(value):
    """All numbers in a record, and None for those that were not finite."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in numbers_in(each)]
    return [value] if value is None or isinstance(value, float) else []


@pytest.fixture
def small_data(monkeypatch):
    """Small stand-ins for the UCI sets, and few small synthetic rooms for NYU."""
    make_rooms = rooms.rooms
    monkeypatch.delenv("HOWSURE_DATA", raising=False)
    monkeypatch.setattr(uci, "load", small_table)
    monkeypatch.setattr(rooms, "rooms", lambda count, seed, size: make_rooms(40, seed, (32, 48)))


# two that start processes of their own, and four that need other packages
LONG = tuple(f"benchmarks/bench_{name}.py" for name in ("rows", "tables", "deploy", "targets", "botorch", "fit"))


@pytest.mark.parametrize("script", [pytest.param(s, marks=[pytest.mark.extras] * (s in LONG)) for s in ARGUMENTS])
def test_script(script, small_data, monkeypatch, capsys, tmp_path):
    write_small_tables(tmp_path / "data")
    arguments = ARGUMENTS[script].format(out=tmp_path / "out", data=tmp_path / "data")
    lines = run_script(script, arguments, monkeypatch, capsys)
    assert not re.search(r"\b(nan|inf)\b", "\n".join(lines))
    if script.startswith("benchmarks/"):
        ratio = re.fullmatch(r".+: (\d+\.\d+)", lines[-1])
        assert ratio, lines[-1]
        assert float(ratio[1]) > 0
    if RECORD in ARGUMENTS[script]:
        record = json.loads((tmp_path / "out" / "record.json").read_text())
        assert record["run"] == Path(script).stem
        results = {key: value for key, value in record.items() if key not in ("environment", "parameters")}
        found = numbers_in(results)
        assert len(found) >= 4
        assert None not in found  # that would be a number that is not finite


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_every_script_is_run_here_and_is_in_the_table_of_its_folder(folder):
    scripts = {path.name for path in (ROOT / folder).glob("*.py") if '"__main__"' in path.read_text()}
    assert scripts == {Path(name).name for name in ARGUMENTS if name.startswith(f"{folder}/")}
    lines = (ROOT / folder / "README.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    assert {row[0].strip("`") for row in table} == scripts
    for name, _, _, command in table:
        assert command.startswith(f"`python {folder}/{name.strip('`')}"), name


def test_study_that_was_stopped_continues(small_data, monkeypatch, capsys, tmp_path):
    """What the record has is not run again, and the numbers are those of one run."""
    script = "paper/studies/uci_estimator.py"
    arguments = ARGUMENTS[script].format(out=tmp_path)
    run_script(script, arguments, monkeypatch, capsys)
    whole = json.loads((tmp_path / "record.json").read_text())
    part = whole | {"sets": {"yacht": whole["sets"]["yacht"][:1]}}
    (tmp_path / "record.json").write_text(json.dumps(part))
    run_script(script, arguments, monkeypatch, capsys)
    again = json.loads((tmp_path / "record.json").read_text())["sets"]["yacht"]
    assert again[0] == whole["sets"]["yacht"][0]
    assert again[1]["nll"] == whole["sets"]["yacht"][1]["nll"]


RESULTS = ROOT / "paper" / "docs" / "results"


def in_order(text, *tokens):
    """Return whether a text has these tokens one after the other, with a few words between them."""
    return re.search(".{0,60}?".join(map(re.escape, tokens)).replace(r"\-", "[-−]"), text, re.DOTALL) is not None


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no records")
def test_claims_are_those_of_the_records():
    def record(name):
        return json.loads((RESULTS / name / "record.json").read_text())

    said = {name: (ROOT / folder / "README.md").read_text() for name, folder in FOLDERS.items()}
    rates, forward = (record("bench_depth")[key] for key in ("images a second", "forward"))
    plain, tf32 = (rates["ours"] / rates[name] for name in ("plain float32", "plain with TF32"))
    assert in_order(said["benchmarks"], f"{plain:.1f} times", "float32", f"{tf32:.1f} times", "TF32")
    assert in_order(said["benchmarks"], f" {min(forward.values()):.2f} ", f" {max(forward.values()):.2f} times")

    ours = "evidentia"  # the name of howsure when this record was made
    ways, maps = record("bench_loss")["ways"], record("bench_loss")["maps"]["graphs"]
    for name, way in (("edl-pytorch", "edl-pytorch"), ("torch-uncertainty", "torch-uncertainty (written out)")):
        large, small = (each[way]["median"] / each[ours]["median"] for each in (ways, maps))
        assert f"| {name} | {large:.1f} times | {small:.1f} times |" in said["benchmarks"]
    large, small = (each["naive"]["median"] / each[ours]["median"] for each in (ways, maps))
    assert f"| the paper's formula | {large:.1f} times | {small:.1f} times |" in said["benchmarks"]
    compiled = ways["naive, compiled"]["median"] / ways[ours]["median"]
    assert in_order(said["benchmarks"], f"{compiled:.1f} times", "compiled")
    share = 36 * record("bench_loss")["copy"]["median"] / (32 * ways[ours]["median"])
    assert in_order(said["benchmarks"], f"{100 * share:.0f}%", "copy")
    errors = record("loss_accuracy")["largest errors"]
    for kernel, name in (("triton", "Triton"), ("tensors", "tensor operations")):
        loss, *gradients = errors[kernel].values()
        assert in_order(said["studies"], name, *(f"{each:.1e}".replace("e-0", "e-") for each in (loss, max(gradients))))

    for folder, method in (("baselines", "ensemble"), ("baselines_first", "dropout")):
        results = record(folder)["results"][method]
        assert all(np.mean(results[name]["nll"]) <= TABLE_1[name][method].nll for name in uci.SETS)
    alive = [row["paper's head"]["alive"] for row in record("depth_heads")["rows"]]
    few = sum(sum(share > 1e-3 for share in shares) <= 1 for shares in alive)
    assert in_order(said["studies"], f"{few} of {len(alive)} networks", "live channel")

    nll = {}
    for row in record("depth_recipe")["rows"]:
        if row["method"] == "evidential":
            nll.setdefault((row["candidate"], row["cut"]), []).append(row["nll"])
    framed = [f"{np.mean(nll[name, 0]):.2f}" for name in ("nearer", "flips, crops, colours")]
    slower = nll["nearer, learning rate 3e-4", 8]
    assert in_order(said["studies"], *framed, "one seed")
    assert in_order(said["studies"], f"{np.mean(slower):.2f}", f"{len(slower)} seeds")

    found = record("depth_unfamiliar")
    areas = {
        kind: np.mean([list(seed[kind].values()) for seed in found["blocks"].values()], axis=(0, 1))
        for kind in ("logarithms", "features")
    }
    assert areas["logarithms"].argmax() == 2
    assert areas["logarithms"].max() > areas["features"].max()
    alone = found["frame"]["validation images without their frame"]["feature distance"]
    assert in_order(said["studies"], f"{areas['logarithms'].max():.3f}", f"{alone:.3f}")

    trials = record("depth_fading")["trials"]
    plain, fading = (np.array([t[kind]["auroc"]["epistemic entropy"] for t in trials]) for kind in ("plain", "fading"))
    least = [f"{fading.mean():.3f}", f"{fading.min():.3f}", f"{len(trials)} networks"]
    assert in_order(said["studies"], *least, f"{plain.mean():.3f}", f"{trials[0]['colour histograms']:.3f}")
    nll = [np.mean([t[kind]["nll"] for t in trials]) for kind in ("fading", "plain")]
    assert in_order(said["studies"], "NLL", f"{nll[0]:.3f}", f"{nll[1]:.3f}")

    rows = record("members")["rows"]
    means = {
        (name, count): np.mean([row["nll"] for row in rows if (row["set"], row["members"]) == (name, count)])
        for name in uci.SETS
        for count in (8, 16)
    }
    gap = max(means[name, 8] - means[name, 16] for name in uci.SETS)
    assert f"{gap:.3f} nat" in said["studies"]
    gaps = [
        row["scores"][row["picked"]["smallest tied"]]["nll"] - row["scores"][2]["nll"]
        for row in record("tie_side")["rows"]
        if row["kind"] == "random"
    ]
    assert f"{mean_and_error(np.negative(gaps))} nat" in said["studies"]

    runs = record("uci_estimator")["sets"]
    assert all(np.mean([run["nll"] for run in runs[name]]) < TABLE_1[name]["evidential"].nll for name in uci.SETS)
    assert not any(any(run["training"]["diverged"]) for name in uci.SETS for run in runs[name])
