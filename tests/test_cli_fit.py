import errno
import json
import os
import shlex

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import howsure as hs
from howsure.cli import models, scoring
from howsure.cli.evaluate import training_rows_note
from howsure.cli.fit import Calibration, Method, _latest, _some_groups
from howsure.cli.rows import number_columns, read_target
from howsure.errors import HowsureError, InputError
from howsure.tables.splits import random as random_split
from shell import QUICK, SWIFT, houses, numbers, shell, write

DROP = ("--drop", "id", "--drop", "rent")


@pytest.fixture
def table(tmp_path):
    return write(houses(), tmp_path / "houses.csv")


def record_of(folder):
    return models.load(folder).record_


def scored_rows(said, target):
    """Return the number of rows in the heading of the scores of a target."""
    (heading,) = (line for line in said.out.splitlines() if line.startswith(f"{target}: "))
    return numbers(heading)[0]


def test_scores_of_a_fit_are_those_of_its_held_out_rows(table, tmp_path, capsys):
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *QUICK)
    assert said.code == 0, said.error
    frame = houses()
    train, test = random_split(len(frame), 0.1, 0)
    model = models.load(tmp_path / "m")
    p = model.predict_distribution(pd.read_csv(table, dtype={"code": str})[model.encoding_.names].iloc[test])
    y = frame["price"].to_numpy()
    expected = hs.metrics.summary(p, y[test])
    found = model.record_["scores"]["price"]
    for name in ("rmse", "mae", "nll", "crps", "calibration_error", "interval_width"):
        assert found["evidential"][name] == pytest.approx(expected[name], rel=1e-9)
    assert found["evidential"]["coverage"]["0.9"] == pytest.approx(expected["coverage"])
    assert found["evidential"]["rows"] == len(test) == 12
    # the constant against scipy
    mean, std = y[train].mean(), y[train].std()
    assert found["constant"]["nll"] == pytest.approx(-stats.norm(mean, std).logpdf(y[test]).mean(), rel=1e-12)
    assert found["constant"]["rmse"] == pytest.approx(np.sqrt(np.mean((y[test] - mean) ** 2)), rel=1e-12)
    # the linear model against least squares on columns made here
    columns = [frame["size"], frame["town"] == "Ulm", frame["town"] == "Bonn", np.ones(len(frame))]
    x = np.column_stack(columns).astype(float)
    by_hand = x[test] @ np.linalg.lstsq(x[train], y[train], rcond=None)[0]
    assert found["linear"]["rmse"] == pytest.approx(np.sqrt(np.mean((y[test] - by_hand) ** 2)), rel=0.25)
    # what was printed
    assert scored_rows(said, "price") == 12
    assert [line.split()[0] for line in said.out.splitlines()[-3:]] == ["evidential", "linear", "constant"]
    assert f"{expected['rmse']:#.4g}" in said.out


def test_types_that_were_guessed_are_those_of_the_model(table, tmp_path, capsys):
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *QUICK)
    shown = {line.split()[0]: line for line in said.out.split("\n\n")[0].splitlines()[1:]}
    columns = models.load(tmp_path / "m").columns_
    assert list(shown) == list(columns.index)
    for name, row in columns.iterrows():
        assert row["taken for"] in shown[name]
        assert shown[name].endswith(row["why"])


def test_refit_saves_a_model_of_all_rows(table, tmp_path, capsys):
    shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", "--refit", *QUICK)
    frame = houses().drop(columns=["id", "rent"])
    x = frame.drop(columns="price")
    model = hs.EvidentialRegressor(members=2, steps=20, device="cpu", random_state=0).fit(x, frame["price"])
    saved = hs.load(tmp_path / "m")
    assert np.allclose(saved.predict(x), model.predict(x), rtol=1e-9)
    assert saved.target_names_ == ["price"]
    assert saved.verbose is None
    record = record_of(tmp_path / "m")
    assert (record["rows"], record["held_out"]["rows"], record["held_out"]["learned_from"]) == (120, 12, True)


def test_fewer_than_100_rows_are_cross_validated_and_all_are_learned_from(tmp_path, capsys):
    frame = houses(60)
    table = write(frame, tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
    assert said.code == 0, said.error
    record = record_of(tmp_path / "m")
    assert (record["rows"], record["held_out"]["rows"], record["held_out"]["learned_from"]) == (60, 60, True)
    fold = np.random.default_rng(0).permutation(60) % 5
    y = frame["price"].to_numpy()
    errors = [y[fold == k] - y[fold != k].mean() for k in range(5)]
    constant = record["scores"]["price"]["constant"]["rmse"]
    assert constant == pytest.approx(np.sqrt(np.mean(np.concatenate(errors) ** 2)), rel=1e-9)
    x = frame.drop(columns=["id", "rent", "price"])
    saved = hs.load(tmp_path / "m")
    again = hs.EnsembleRegressor(members=1, steps=10, device="cpu", random_state=0).fit(x, frame["price"])
    assert np.allclose(saved.predict(x), again.predict(x), rtol=1e-9)


def test_refit_with_a_test_table_raises(table, tmp_path, capsys):
    said = shell(capsys, "fit", table, "--target", "price", "--test", table, "--refit", "-o", tmp_path / "m", *SWIFT)
    assert said.code != 0
    assert "--refit" in said.error


def test_about_one_percent_of_rows_like_those_of_training_are_flagged(tmp_path, capsys):
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 4))
    frame = pd.DataFrame(x, columns=list("abcd")).assign(y=x[:, 0] + random.normal(size=3000))
    write(frame[:1000], tmp_path / "t.csv")
    shell(capsys, "fit", tmp_path / "t.csv", "--target", "y", "-o", tmp_path / "m", *QUICK)
    model = models.load(tmp_path / "m")
    flagged = model.predict_distribution(frame[1000:][list("abcd")]).familiarity < model.unfamiliar_below_
    assert 0 < flagged.mean() < 0.03
    far = pd.DataFrame(np.full((1, 4), 30.0), columns=list("abcd"))
    assert model.predict_distribution(far).familiarity[0] < model.unfamiliar_below_


def test_rows_without_a_target_are_left_out(tmp_path, capsys):
    frame = houses()
    frame.loc[[3, 5, 40], "price"] = np.nan
    frame["price"] = frame["price"].astype(object).where(frame["price"].notna(), "n/a")
    said = shell(
        capsys, "fit", write(frame, tmp_path / "t.csv"), "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT
    )
    assert said.code == 0, said.error
    assert {3, 120} <= set(numbers(said.error))
    record = record_of(tmp_path / "m")
    assert (record["rows"], record["without_target"], record["held_out"]["rows"]) == (105, 3, 12)


def test_several_targets(table, tmp_path, capsys):
    arguments = ("--target", "price", "--target", "rent", "--drop", "id", "-o", tmp_path / "m")
    said = shell(capsys, "fit", table, *arguments, *SWIFT)
    assert said.code == 0, said.error
    assert (scored_rows(said, "price"), scored_rows(said, "rent")) == (12, 12)
    assert models.load(tmp_path / "m").target_names_ == ["price", "rent"]


# Options --------------------------------------------------------------------------------------------------------------


def test_positive_predictions_are_never_negative(tmp_path, capsys):
    frame = houses().assign(price=np.exp(np.random.default_rng(0).normal(size=120)))
    table = write(frame, tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", "--positive", *SWIFT)
    assert said.code == 0, said.error
    model = hs.load(tmp_path / "m")
    assert model.target_transform == "positive"
    assert (model.predict_interval(frame[model.encoding_.names], 0.99) >= 0).all()
    frame.loc[3, "price"] = -1.0
    table = write(frame, tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "n", "--positive", *SWIFT)
    assert said.code == 2
    assert len(said.error.splitlines()[-1]) < 300


@pytest.mark.parametrize("method", list(Calibration))
def test_calibration_uses_rows_that_the_fit_does_not_see(method, table, tmp_path, capsys):
    options = ("--target", "price", *DROP, "-o", tmp_path / "m", "--calibrate", method)
    said = shell(capsys, "fit", table, *options, *SWIFT)
    assert said.code == 0, said.error
    assert 88 in numbers(said.error)  # of 120 rows, 12 are scored and 20 calibrate
    assert models.load(tmp_path / "m").calibration_.method == method
    p = models.load(tmp_path / "m").predict_distribution(houses(30, 1)[models.load(tmp_path / "m").encoding_.names])
    assert (p.guarantee is not None) is (method == "conformal")
    said = shell(capsys, "evaluate", tmp_path / "m", table)
    assert said.code == 0, said.error


def test_quick_fits_fewer_networks_and_steps(table, tmp_path, capsys):
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", "--quick", "--steps", "10")
    assert said.code == 0, said.error
    model = models.load(tmp_path / "m")
    assert (model.members, model.steps) == (3, 10)


def test_targets_with_thousands_separators_and_currency_signs(tmp_path, capsys):
    frame = houses()
    written = frame["price"].map("${:,.2f}".format)
    table = write(frame.assign(price=written), tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
    assert said.code == 0, said.error
    said = shell(capsys, "evaluate", tmp_path / "m", table, "--json")
    model = hs.load(tmp_path / "m")
    expected = hs.metrics.rmse(model.predict_distribution(frame[model.encoding_.names]), frame["price"].to_numpy())
    assert json.loads(said.out)["targets"]["price"]["rmse"] == pytest.approx(expected, rel=1e-9)


# Notes ----------------------------------------------------------------------------------------------------------------


def test_copies_of_rows_are_counted(tmp_path, capsys):
    frame = houses()
    table = write(pd.concat([frame, frame[:30], frame[:5]]), tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
    assert [35, 155] in [numbers(line) for line in said.error.splitlines()]


def test_column_that_contains_the_target_is_named(tmp_path, capsys):
    frame = houses(400).assign(tax=lambda f: 1.19 * f["price"])
    table = write(frame, tmp_path / "t.csv")
    options = ("--target", "price", *DROP, "-o", tmp_path / "m", "--members", "2", "--steps", "150", "--force")
    said = shell(capsys, "fit", table, *options)
    assert "--drop tax" in said.error
    said = shell(capsys, "fit", table, *options, "--drop", "tax", "--drop", "size")
    assert "--drop" not in said.error


@pytest.mark.parametrize("kept", [10_000, 60])
def test_training_rows_are_recognised(kept, table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(models, "MAX_HASHES", kept)
    frame = houses()
    shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
    model = models.load(tmp_path / "m")
    x, y = pd.read_csv(table, dtype={"code": str}), frame[["price"]].to_numpy()
    train, test = random_split(120, 0.1, 0)
    for rows, count in ((train, 108), (test, 0), (np.arange(120), 108)):
        found = models.training_rows_among(model, x.iloc[rows][model.encoding_.names], y[rows])
        assert found == count if kept > 120 else abs(found - count) <= 20
    said = shell(capsys, "evaluate", tmp_path / "m", table)
    assert training_rows_note(found, 120) in said.error
    said = shell(capsys, "report", tmp_path / "m", table, "-o", tmp_path / "r.html", "--quiet")
    assert training_rows_note(found, 120) in (tmp_path / "r.html").read_text()
    new = write(houses(50, seed=7), tmp_path / "new.csv")
    assert shell(capsys, "evaluate", tmp_path / "m", new).error == ""


# Held-out rows --------------------------------------------------------------------------------------------------------


def test_last_tenth_in_time(table, tmp_path, capsys):
    arguments = ("--target", "price", *DROP, "--split-by-time", "sold", "-o", tmp_path / "m")
    said = shell(capsys, "fit", table, *arguments, *SWIFT)
    assert said.code == 0, said.error
    assert scored_rows(said, "price") == 12
    model = models.load(tmp_path / "m")
    assert "sold" in model.encoding_.names
    test = houses()[-12:]  # days are in order
    p = model.predict_distribution(pd.read_csv(table, dtype={"code": str})[model.encoding_.names][-12:])
    nll = model.record_["scores"]["price"]["ensemble"]["nll"]
    assert nll == pytest.approx(hs.metrics.nll(p, test["price"].to_numpy()), rel=1e-9)


def test_equal_times_stay_together_and_missing_ones_are_first():
    times = np.array([np.nan, 3.0, 1.0, 2.0, 3.0, *np.zeros(15)])
    assert np.flatnonzero(_latest(times)).tolist() == [1, 4]
    mostly = np.array([5.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    assert np.flatnonzero(_latest(mostly)).tolist() == [0]
    with pytest.raises(InputError, match="--split-by-time"):
        _latest(np.ones(20))


def test_groups_stay_together_and_are_not_learned_from(table, tmp_path, capsys):
    arguments = ("--target", "price", *DROP, "--split-by-group", "street", "-o", tmp_path / "m")
    said = shell(capsys, "fit", table, *arguments, *SWIFT)
    assert said.code == 0, said.error
    assert numbers(record_of(tmp_path / "m")["held_out"]["how"]) == [2, 20]
    assert "street" not in models.load(tmp_path / "m").encoding_.names
    groups = pd.Series(["a", "b", None, "a", "c", None] * 5, dtype=object, name="letter")
    held_out, how = _some_groups(groups, 0)
    assert numbers(how) == [1, 4]
    inside = {str(group) for group in groups[held_out]}
    assert len(inside) == 1
    assert not inside & {str(group) for group in groups[~held_out]}


def test_test_table_of_its_own(table, tmp_path, capsys):
    new = houses(50, seed=1)
    new["code"] = "012"  # which a reader that knows nothing takes for a number
    other = write(new, tmp_path / "new.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "--test", other, "-o", tmp_path / "m", *SWIFT)
    assert said.code == 0, said.error
    assert scored_rows(said, "price") == 50
    assert "new.csv" in record_of(tmp_path / "m")["held_out"]["how"]
    model = models.load(tmp_path / "m")
    assert model.record_["rows"] == 120
    p = model.predict_distribution(new[model.encoding_.names])
    nll = model.record_["scores"]["price"]["ensemble"]["nll"]
    assert nll == pytest.approx(hs.metrics.nll(p, new["price"].to_numpy()), rel=1e-9)


def test_training_rows_in_a_test_table_are_counted(table, tmp_path, capsys):
    other = write(pd.concat([houses()[:7], houses(30, seed=1)]), tmp_path / "new.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "--test", other, "-o", tmp_path / "m", *SWIFT)
    assert said.code == 0, said.error
    assert f"note: {training_rows_note(7, 37)}" in said.error


def test_stray_text_among_the_held_out_rows_is_a_missing_value(tmp_path, capsys):
    frame = houses().astype({"size": object})
    frame.loc[random_split(len(frame), 0.1, 0)[1][0], "size"] = "oops"
    table = write(frame, tmp_path / "t.csv")
    for more in ((), ("--refit", "--force")):
        said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT, *more)
        assert said.code == 0, said.error
    assert scored_rows(said, "price") == 12


# Output ---------------------------------------------------------------------------------------------------------------


def test_existing_model_is_replaced_only_with_force(table, tmp_path, capsys):
    arguments = ("fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT, "--quiet")
    assert shell(capsys, *arguments).code == 0
    before = (tmp_path / "m").read_bytes()
    said = shell(capsys, *arguments)
    assert said.code == 2
    assert "--force" in said.error
    assert (tmp_path / "m").read_bytes() == before
    assert shell(capsys, *arguments, "--force", "--seed", "1").code == 0
    assert hs.load(tmp_path / "m").random_state == 1


def test_other_file_is_never_replaced(table, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    before = table.read_bytes()
    for name in ("mine", "houses.csv"):
        said = shell(capsys, "fit", table, "--target", "price", "-o", tmp_path / name, "--force", *QUICK)
        assert said.code == 2
        assert (str(tmp_path / name) in said.error, "--force" in said.error) == (True, False)
        assert said.out == ""  # before anything was read or fitted
    assert table.read_bytes() == before


def test_quiet_leaves_scores_and_warnings(table, tmp_path, capsys):
    said = shell(capsys, "fit", table, "--target", "price", "-o", tmp_path / "m", *SWIFT, "--quiet")
    assert said.out.startswith("\nprice: ")
    lines = said.error.splitlines()
    assert lines
    assert all(line.startswith("note: ") for line in lines)  # of identifiers that are left out
    assert sum("'id'" in line for line in lines) == 1
    assert "UserWarning" not in said.error


@pytest.mark.parametrize("method", list(Method))
def test_every_method(method, table, tmp_path, capsys):
    arguments = ("--method", method, *QUICK, "--quiet")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *arguments)
    assert said.code == 0, said.error
    model = models.load(tmp_path / "m")
    assert type(model).__name__.lower().startswith(method)
    assert model.unfamiliar_below_ is None  # the rows are too few to learn it
    assert (model.model_.evidence is None) is (method != "evidential")


def test_example_needs_no_file(tmp_path, capsys):
    said = shell(capsys, "fit", "--example", "-o", tmp_path / "m", *SWIFT)
    assert said.code == 0, said.error
    assert scored_rows(said, "progression") == 44


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (("--target", "prize"), ["'prize'", "'price'"]),
        (("--target", "town"), ["'town'"]),
        (("--target", "sold"), ["'sold'"]),
        (("--target", "empty"), ["'empty'"]),
        (("--target", "price", "--target", "price"), ["--target", "'price'"]),
        (("--target", "price", "--drop", "price"), ["--drop", "'price'"]),
        (("--target", "price", "--drop", "nothing"), ["--drop", "houses.csv", "'nothing'"]),
        (("--target", "price", "--split-by-time", "town"), ["--split-by-time", "houses.csv", "'town'"]),
        (("--target", "price", "--split-by-time", "x"), ["--split-by-time", "houses.csv", "'x'"]),
        (
            ("--target", "price", "--split-by-time", "sold", "--split-by-group", "town"),
            ["--split-by-time", "--split-by-group"],
        ),
        (("--target", "price", "--split-by-group", "same"), ["--split-by-group"]),
        (("--target", "price", "--test", "missing.csv"), ["missing.csv"]),
        (("--target", "price", "--device", "tpu"), ["'tpu'"]),
        (("--target", "few"), ["houses.csv", "9", "10"]),
        (("--target", "wide"), ["'wide'", "(row 2)"]),
        ((), ["--target"]),
    ],
)
def test_bad_input_is_one_sentence(arguments, tokens, tmp_path, capsys):
    frame = houses().assign(empty=np.nan, same="x", wide=1.0, few=np.nan)
    frame.loc[2, "wide"] = np.inf
    frame.loc[:8, "few"] = 1.5
    table = write(frame, tmp_path / "houses.csv")
    said = shell(capsys, "fit", table, "-o", tmp_path / "m", *QUICK, *arguments)
    assert said.code == 2, said
    last = said.error.splitlines()[-1]
    assert last.startswith("howsure: ")
    assert [token for token in tokens if token not in last] == []
    assert not (tmp_path / "m").exists()


def test_table_with_nothing_but_the_target(tmp_path, capsys):
    table = write(houses()[["price", "id"]], tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", "--drop", "id", "-o", tmp_path / "m")
    assert (said.code, "t.csv" in said.error) == (2, True)
    assert shell(capsys, "fit").code == 2


def test_target_beyond_the_range_of_variances(tmp_path, capsys):
    frame = houses()
    for exponent in (200, 305):  # which float64 cannot add up either
        table = write(frame.assign(price=float(f"1e{exponent}") * frame["price"]), tmp_path / "t.csv")
        said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
        assert said.code == 2, said
        assert f"e+{exponent + 2}" in said.error


def test_full_disk_is_one_sentence_with_the_folder(table, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("howsure.estimators.base.save_model", full)
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
    assert said.code == 2, said
    last = said.error.splitlines()[-1]
    assert last.startswith(f"howsure: {tmp_path / 'm'} ")
    assert os.strerror(errno.ENOSPC) in last


def test_target_that_does_not_vary(tmp_path, capsys):
    table = write(houses().assign(price=3.0), tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
    assert said.code == 0, said.error
    assert json.dumps(record_of(tmp_path / "m"), allow_nan=False)
    assert [3] in [numbers(line) for line in said.error.splitlines() if "'price'" in line]


# Advice ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["day", "day of sale"])
def test_errors_about_a_column_advise_options(name, tmp_path, capsys):
    table = write(houses().assign(**{name: ["03/04/2021", "05/06/2021"] * 60}), tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
    assert said.code == 2, said.error
    last = said.error.splitlines()[-1]
    assert f"--drop {shlex.quote(name)}" in last
    assert f"--category {shlex.quote(name)}" in last
    assert "pandas" not in last


def test_column_can_be_declared_a_category(tmp_path, capsys):
    """Also one that looks like a name, like numbers or like dates that mean two days; it stays one in new rows."""
    frame = houses().assign(day=["03/04/2021", "05/06/2021"] * 60, zone=[10115, 20095, 80331] * 40)
    frame["name"] = [f"house of {k} {k * k}" for k in range(60)] * 2
    table = write(frame, tmp_path / "t.csv")
    declared = ("--category", "day", "--category", "zone", "--category", "name")
    options = ("--target", "price", *DROP, "-o", tmp_path / "m", *declared, *SWIFT)
    for more in ((), ("--test", table, "--force")):
        said = shell(capsys, "fit", table, *options, *more)
        assert said.code == 0, said.error
        kinds = models.load(tmp_path / "m").columns_["taken for"]
        assert kinds[["day", "zone", "name"]].str.startswith("category").all()
    said = shell(capsys, "predict", tmp_path / "m", table, "-o", tmp_path / "p.csv")
    assert said.code == 0, said.error
    expected = hs.load(tmp_path / "m").predict(frame[models.load(tmp_path / "m").encoding_.names])
    assert np.allclose(pd.read_csv(tmp_path / "p.csv")["mean"], expected, rtol=1e-9)
    for wrong, near in (("zones", "'zone'"), ("price", "'price'")):
        said = shell(capsys, "fit", table, "--target", "price", "-o", tmp_path / "q", "--category", wrong)
        assert (said.code, "--category" in said.error, near in said.error) == (2, True, True)


# Parts ---------------------------------------------------------------------------------------------------------------


def test_targets_are_read_from_any_numbers():
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "written": ["1.5", "n/a", "2"],
            "units": ["1 kg", "2 kg", "3 kg"],
            "truth": [True, False, True],
            "german": ["1.234,5", "n/a", "-2,75"],
        }
    )
    found = read_target(frame, ["whole", "written", "german"], "t.csv")
    assert np.array_equal(found, [[1, 1.5, 1234.5], [np.nan, np.nan, np.nan], [3, 2, -2.75]], equal_nan=True)
    for name in ("units", "truth"):
        with pytest.raises(HowsureError) as caught:
            read_target(frame, [name], "t.csv")
        assert caught.value.column == name


def test_text_among_the_numbers_of_a_target_is_named(tmp_path, capsys):
    frame = houses().astype({"price": object})
    frame.loc[3, "price"], frame.loc[5, "price"] = "oops", "n/a"
    table = write(frame, tmp_path / "t.csv")
    said = shell(capsys, "fit", table, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT, "--quiet")
    assert said.code == 0, said.error
    assert len(said.error.splitlines()) == 1
    assert "'price'" in said.error
    assert "'oops'" in said.error
    said = shell(capsys, "evaluate", tmp_path / "m", table)
    assert "'oops'" in said.error
    assert 2 in numbers(said.error)


def test_errors_name_rows_of_the_file(tmp_path, capsys):
    frame = houses()
    frame.loc[5, "price"] = np.nan
    frame.loc[10, "size"] = np.inf
    table = write(frame, tmp_path / "t.csv")
    good = write(houses(), tmp_path / "good.csv")
    for arguments in ((table,), (good, "--test", table)):
        said = shell(capsys, "fit", *arguments, "--target", "price", *DROP, "-o", tmp_path / "m", *SWIFT)
        assert said.code == 2, said
        last = said.error.splitlines()[-1]
        assert last.startswith("howsure: t.csv: ")
        assert "'size'" in last
        assert "(row 10)" in last


def test_more_than_a_tenth_in_time_is_called_so(tmp_path, capsys):
    table = write(houses().assign(sold=np.repeat([2019, 2020], 60)), tmp_path / "t.csv")
    options = ("--target", "price", *DROP, "--split-by-time", "sold", "-o", tmp_path / "m")
    said = shell(capsys, "fit", table, *options, *SWIFT)
    assert scored_rows(said, "price") == 60


def test_columns_that_were_text_are_read_as_text():
    frame = houses()
    frame["weight"] = [f"1.{k:03d}.000" for k in range(len(frame))]  # points between thousands
    model = hs.EvidentialRegressor(members=1, steps=5, device="cpu").fit(
        frame.drop(columns=["price", "rent", "id"]), frame["price"]
    )
    assert number_columns(model) == ["size", "year"]


def test_linear_model_with_odd_features():
    random = np.random.default_rng(0)
    y = random.normal(size=(30, 2))
    for x in (np.zeros((30, 2)), np.full((30, 1), 1e300), random.normal(size=(30, 100))):
        found = scoring.baselines(x, y, x[:3], seed=0)
        assert found["constant"].shape == (3, 2)
        assert all(np.isfinite(p.std).all() and np.isfinite(p.mean).all() for p in found.values())
    x = random.normal(size=(500, 3))
    y = (x @ [1.0, 2, 3] + 0.5 * random.normal(size=500))[:, None]
    p = scoring.baselines(x[:400], y[:400], x[400:], seed=0)["linear"]
    assert p.std[0, 0] == pytest.approx(0.5, rel=0.1)
    assert np.sqrt(np.mean((p.mean - y[400:]) ** 2)) == pytest.approx(0.5, rel=0.3)
