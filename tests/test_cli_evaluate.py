import json
import subprocess
import sys

import numpy as np
import pytest

import howsure as hs
from howsure.cli import models
from shell import houses, numbers, shell, write


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate") / "m"
    frame = houses()
    x = frame.drop(columns=["price", "rent", "id", "street"])
    model = hs.EvidentialRegressor(members=2, steps=20, random_state=0, device="cpu").fit(x, frame[["price"]])
    model.model_.unfamiliar_below = 0.5  # these rows are too few to learn it
    model.save(folder)
    return folder


@pytest.mark.parametrize("rows", [65_536, 7])
def test_scores_are_those_of_the_metrics(rows, model, tmp_path, capsys, monkeypatch):
    frame = houses(50, seed=3)
    monkeypatch.setattr("howsure.cli.evaluate.BATCH_ROWS", rows)
    said = shell(capsys, "evaluate", model, write(frame, tmp_path / "t.csv"), "--by", "town", "--json")
    assert said.code == 0, said.error
    found = json.loads(said.out)
    regressor = hs.load(model)
    p, y = regressor.predict_distribution(frame[regressor.encoding_.names]), frame["price"].to_numpy()
    own, expected = found["targets"]["price"], hs.metrics.summary(p, y)
    for name in ("rmse", "mae", "nll", "crps", "calibration_error", "interval_width"):
        assert own[name] == pytest.approx(expected[name], rel=1e-9)
    for stated, held in own["coverage"].items():
        assert held == pytest.approx(hs.metrics.coverage(p, y, float(stated)))
    shares, errors = hs.metrics.retention_curve(p, y)
    for kept, error in own["retention"].items():
        assert error == pytest.approx(errors[np.abs(shares - float(kept)).argmin()], rel=1e-9)
    assert found["unfamiliar"] == pytest.approx((p.familiarity < 0.5).mean())
    for group in found["by"]["targets"]["price"]:
        chosen = np.flatnonzero(frame["town"] == group["group"])
        assert group["rows"] == len(chosen)
        assert group["nll"] == pytest.approx(hs.metrics.nll(p[chosen], y[chosen]), rel=1e-9)
        assert group["rmse"] == pytest.approx(hs.metrics.rmse(p[chosen], y[chosen]), rel=1e-9)
        assert group["coverage"] == pytest.approx(hs.metrics.coverage(p[chosen], y[chosen], 0.9))
    assert sum(group["rows"] for group in found["by"]["targets"]["price"]) == 50


def test_tables_for_people(model, tmp_path, capsys):
    frame = houses(50, seed=3)
    frame.loc[:4, "price"] = np.nan
    frame.loc[10, "town"] = np.nan
    said = shell(capsys, "evaluate", model, write(frame, tmp_path / "t.csv"), "--by", "town")
    assert said.code == 0, said.error
    assert numbers(said.error) == [5]
    assert said.out.startswith("price: 45 rows\n")
    groups = [line.split() for line in said.out.partition("by town\n")[2].splitlines()]
    assert ["(missing)", "1"] in [line[:2] for line in groups]
    assert sum(int(line[1]) for line in groups[1:] if line) == 45
    assert "\x1b" not in said.out


def test_one_row(model, tmp_path, capsys):
    said = shell(capsys, "evaluate", model, write(houses(1), tmp_path / "t.csv"), "--json")
    assert said.code == 0, said.error
    own = json.loads(said.out)["targets"]["price"]
    assert own["rows"] == 1
    assert own["rmse"] == pytest.approx(own["mae"])


def test_several_targets_and_targets_without_names(tmp_path, capsys):
    frame = houses(60)
    table = write(frame, tmp_path / "t.csv")
    fitted = hs.EvidentialRegressor(members=1, steps=5, device="cpu").fit(frame[["size"]], frame[["price", "rent"]])
    fitted.save(tmp_path / "two")
    said = shell(capsys, "evaluate", tmp_path / "two", table, "--json")
    p = fitted.predict_distribution(frame[["size"]])
    found = json.loads(said.out)["targets"]
    for t, name in enumerate(("price", "rent")):
        assert found[name]["nll"] == pytest.approx(hs.metrics.nll(p[:, t], frame[name].to_numpy()), rel=1e-9)
    fitted = hs.EnsembleRegressor(members=1, steps=5, device="cpu").fit(frame[["size"]].to_numpy(), frame["price"])
    fitted.save(tmp_path / "unnamed")
    table = write(frame[["size", "price"]], tmp_path / "t.csv")
    said = shell(capsys, "evaluate", tmp_path / "unnamed", table)
    assert (said.code, "--target" in said.error) == (2, True)
    said = shell(capsys, "evaluate", tmp_path / "unnamed", table, "--target", "price", "--json")
    assert said.code == 0, said.error
    expected = hs.metrics.nll(fitted.predict_distribution(frame[["size"]].to_numpy()), frame["price"].to_numpy())
    assert json.loads(said.out)["targets"]["price"]["nll"] == pytest.approx(expected, rel=1e-9)


def test_target_learned_by_its_logarithm_has_no_mean(tmp_path, capsys):
    frame = houses(60)
    table = write(frame, tmp_path / "t.csv")
    fitted = hs.EnsembleRegressor(members=1, steps=5, device="cpu", target_transform="log").fit(
        frame[["size"]], frame[["price"]]
    )
    fitted.save(tmp_path / "m")
    said = shell(capsys, "evaluate", tmp_path / "m", table, "--json")
    own = json.loads(said.out)["targets"]["price"]
    assert own["rmse"] is None
    assert own["retention"] is None
    expected = hs.metrics.nll(fitted.predict_distribution(frame[["size"]]), frame["price"].to_numpy())
    assert own["nll"] == pytest.approx(expected, rel=1e-9)
    assert "–" in shell(capsys, "evaluate", tmp_path / "m", table).out


@pytest.mark.parametrize(
    ("change", "arguments", "tokens"),
    [
        (lambda frame: frame.drop(columns="price"), (), ["t.csv", "'price'"]),
        (lambda frame: frame.drop(columns="size"), (), ["t.csv", "'size'"]),
        (lambda frame: frame.assign(price=np.nan), (), ["t.csv"]),
        (lambda frame: frame.assign(price="dear"), (), ["'price'"]),
        (lambda frame: frame, ("--by", "twn"), ["--by", "'twn'", "'town'"]),
        (lambda frame: frame, ("--target", "price", "--target", "rent"), ["--target", "1", "2"]),
    ],
)
def test_bad_input_is_one_sentence(change, arguments, tokens, model, tmp_path, capsys):
    said = shell(capsys, "evaluate", model, write(change(houses(30)), tmp_path / "t.csv"), *arguments)
    assert said.code == 2, said
    assert said.out == ""
    assert [token for token in tokens if token not in said.error.splitlines()[-1]] == []


def test_errors_name_rows_of_the_file(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("howsure.cli.evaluate.BATCH_ROWS", 7)
    frame = houses(30)
    frame.loc[[15, 16], "price"] = np.nan
    frame.loc[20, "size"] = np.inf
    said = shell(capsys, "evaluate", model, write(frame, tmp_path / "t.csv"))
    assert f"{tmp_path / 't.csv'}: " in said.error
    assert "'size'" in said.error
    assert "(row 20)" in said.error
    frame.loc[18, "price"] = np.inf
    said = shell(capsys, "evaluate", model, write(frame, tmp_path / "t.csv"))
    assert f"{tmp_path / 't.csv'}: " in said.error
    assert "'price'" in said.error
    assert "(row 18)" in said.error


def test_names_cannot_move_the_cursor(model, tmp_path, capsys):
    frame = houses(30).rename(columns={"price": "a\x1b[2J"}).assign(**{"b\x1b[2J": "c\x1b[2J"})
    said = shell(
        capsys, "evaluate", model, write(frame, tmp_path / "t.csv"), "--target", "a\x1b[2J", "--by", "b\x1b[2J"
    )
    assert said.code == 0, said.error
    assert "\x1b" not in said.out
    assert "by b?[2J" in said.out


def test_numbers_outside_json_are_none():
    assert models.finite({"a": [1.0, float("nan")], "b": (float("inf"), "x")}) == {"a": [1.0, None], "b": [None, "x"]}


@pytest.mark.extras
def test_rejected_file_ends_with_exit_code_2_every_time(model, tmp_path):
    """A thread of Arrow that reads ahead when Python ends would abort the process."""
    table = tmp_path / "ragged.csv"
    table.write_text("x,y\n" + "1,2\n" * 400 + "1,2,3\n" + "1,2\n" * 400)
    command = [sys.executable, "-m", "howsure.cli", "evaluate", str(model), str(table)]
    done = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(6)]
    assert [each.returncode for each in done] == [2] * 6
    assert all("terminate" not in each.stderr for each in done)
