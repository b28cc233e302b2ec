import errno
import os
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest

import howsure as hs
from howsure.cli import models, rows
from howsure.cli.rows import predict_frame
from howsure.errors import InputError, InputTypeError
from howsure.io import read_batches, read_file
from shell import QUICK, SWIFT, houses, numbers, shell, write

COLUMNS = ["mean", "std", "aleatoric_std", "epistemic_std", "lower", "upper", "familiarity", "unfamiliar"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder of the default method, and new rows, some of them far from those of training."""
    folder = tmp_path_factory.mktemp("predict")
    frame = houses()
    x = frame.drop(columns=["price", "rent", "id", "street"])
    fitted = hs.EvidentialRegressor(members=2, steps=20, random_state=0, device="cpu").fit(x, frame[["price"]])
    fitted.model_.unfamiliar_below = 0.3  # these rows are too few to learn it
    models.save(fitted, folder / "m", _record())
    return folder / "m"


def _record():
    held_out = {"how": "a tenth at random", "rows": 12, "learned_from": True}
    return {"rows": 120, "held_out": held_out, "scores": {}}


def new_rows(count=40):
    frame = houses(count, seed=5)
    frame.loc[3, "size"] = 9000.0
    return frame


@pytest.mark.parametrize(("table", "output"), [("n.csv", "p.csv"), ("n.parquet", "p.parquet"), ("n.csv", "p.csv.gz")])
def test_predictions_are_those_of_python(table, output, model, tmp_path, capsys):
    frame = new_rows()
    path = write(frame, tmp_path / table)
    said = shell(capsys, "predict", model, path, "-o", tmp_path / output, "--keep", "id", "--coverage", "0.8")
    assert said.code == 0, said.error
    found = read_file(tmp_path / output)
    regressor = hs.load(model)
    p = regressor.predict_distribution(frame[regressor.encoding_.names])
    assert list(found.columns) == ["id", *COLUMNS]
    assert found["id"].tolist() == frame["id"].tolist()  # rows in their order
    for name in COLUMNS[:4]:
        assert np.allclose(found[name].astype(float), getattr(p, name), rtol=1e-9)
    assert np.allclose(found[["lower", "upper"]].astype(float), p.interval(0.8), rtol=1e-9)
    assert np.allclose(found["familiarity"].astype(float), p.familiarity, rtol=1e-9)
    threshold = models.load(model).unfamiliar_below_
    assert found["unfamiliar"].astype(bool).tolist() == (p.familiarity < threshold).tolist()
    assert found["unfamiliar"].iloc[3]
    assert found["unfamiliar"].astype(bool).mean() < 0.5
    assert "'street', 'rent'" in said.error
    assert f"{tmp_path / output}: 40 " in said.error


def test_predictions_do_not_depend_on_batches(model, tmp_path, capsys, monkeypatch):
    path = write(new_rows(), tmp_path / "n.csv")
    shell(capsys, "predict", model, path, "-o", tmp_path / "whole.parquet", "--keep", "town")
    monkeypatch.setattr("howsure.cli.predict.read_batches", partial(read_batches, rows=7))
    said = shell(capsys, "predict", model, path, "-o", tmp_path / "parts.parquet", "--keep", "town")
    assert said.error.count("'street'") == 1
    whole, parts = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("whole", "parts"))
    assert len(parts) == 40
    assert whole["town"].tolist() == parts["town"].tolist()
    assert whole["unfamiliar"].tolist() == parts["unfamiliar"].tolist()
    assert np.allclose(whole[COLUMNS[:-1]], parts[COLUMNS[:-1]], rtol=1e-9)


def test_frame_without_rows_has_no_predictions(model):
    assert len(predict_frame(models.load(model), new_rows()[:0])) == 0


def test_errors_name_rows_of_the_table(model):
    frame = new_rows()
    frame.loc[20, "size"] = np.inf
    with pytest.raises(InputError) as caught:
        predict_frame(models.load(model), frame)
    assert (caught.value.column, caught.value.row) == ("size", 20)
    with pytest.raises(InputTypeError) as caught, rows.naming_rows("t.csv", [4, 9]):
        raise InputTypeError("odd", column="a", row=1, value="b", hint="drop it")
    assert str(caught.value) == "t.csv: odd (row 9); drop it"
    assert (caught.value.column, caught.value.value) == ("a", "b")
    with pytest.raises(InputError) as caught, rows.naming_rows("t.csv", [4, 9], lambda column: f"--drop {column}"):
        raise InputError("odd", column="a", row=5, hint="X.drop('a')")  # there is no such row: it is left as it was
    assert str(caught.value) == "t.csv: odd (row 5); --drop a"


def test_codes_stay_text_in_a_file_that_has_nothing_else(model, tmp_path, capsys):
    """A reader that knows nothing would take 120 for a number."""
    frame = new_rows().assign(code="120")
    shell(capsys, "predict", model, write(frame, tmp_path / "n.csv"), "-o", tmp_path / "p.parquet")
    regressor = hs.load(model)
    expected = regressor.predict(frame[regressor.encoding_.names])
    assert np.allclose(pd.read_parquet(tmp_path / "p.parquet")["mean"], expected, rtol=1e-9)


def test_model_that_was_saved_from_python(tmp_path, capsys):
    """An evidential model has a flag. One normal network has neither a flag nor an epistemic part."""
    frame = houses()
    fitted = hs.EvidentialRegressor(members=1, steps=5, device="cpu").fit(frame[["size"]], frame["price"])
    assert "unfamiliar" not in predict_frame(fitted, frame)  # the rows are too few to learn a threshold
    fitted.model_.unfamiliar_below = 0.3
    fitted.save(tmp_path / "m")
    frame.loc[0, "size"] = 1e6
    found = predict_frame(models.load(tmp_path / "m"), frame)
    assert found["unfamiliar"].tolist() == (found["familiarity"] < fitted.unfamiliar_below_).tolist()
    assert found["unfamiliar"][0]
    plain = hs.EnsembleRegressor(members=1, steps=5, device="cpu").fit(frame[["size"]], frame["price"])
    assert list(predict_frame(plain, frame, keep=["id"])) == ["id", "mean", "std", "aleatoric_std", "lower", "upper"]
    logarithm = hs.EnsembleRegressor(members=1, steps=5, device="cpu", target_transform="log").fit(
        frame[["size"]], frame["price"]
    )
    assert list(predict_frame(logarithm, frame)) == ["median", "lower", "upper"]


def test_model_of_an_array_needs_as_many_columns(tmp_path, capsys):
    x = houses()[["size", "price"]].to_numpy()
    hs.EnsembleRegressor(members=1, steps=5, device="cpu").fit(x, x[:, 0]).save(tmp_path / "m")
    table = write(houses()[["size", "price"]], tmp_path / "n.csv")
    said = shell(capsys, "predict", tmp_path / "m", table, "-o", tmp_path / "p.csv")
    assert said.code == 0, said.error
    expected = hs.load(tmp_path / "m").predict(x)
    assert np.allclose(pd.read_csv(tmp_path / "p.csv")["mean"], expected, rtol=1e-9)
    table = write(houses()[["size", "price", "rent"]], tmp_path / "n.csv")
    said = shell(capsys, "predict", tmp_path / "m", table, "-o", tmp_path / "q.csv")
    assert (said.code, numbers(said.error.replace(str(table), ""))) == (2, [3, 2])


def test_several_targets_have_columns_of_their_own():
    frame = houses(60)
    targets = frame[["price", "rent"]]
    fitted = hs.EvidentialRegressor(members=1, steps=5, device="cpu").fit(frame[["size"]], targets)
    found = predict_frame(fitted, frame[:1], coverage=0.5)
    names = [f"{target}_{name}" for target in ("price", "rent") for name in COLUMNS[:6]]
    assert list(found) == [*names, "familiarity"]
    p = fitted.predict_distribution(frame[["size"]][:1])
    assert np.allclose(found[["rent_lower", "rent_upper"]], p.interval(0.5)[:, 1], rtol=1e-9)


def test_function_of_a_batch_travels_in_a_pickle(model):
    function = partial(predict_frame, models.load(model), coverage=0.8, keep=["id"])
    frame = new_rows(5)
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(function))(frame), function(frame))


def test_folder_of_tables(model, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for k in range(3):
        write(houses(10 + k, seed=k), tmp_path / "in" / f"part-{k}.parquet")
    said = shell(capsys, "predict", model, tmp_path / "in", "-o", tmp_path / "out", "--keep", "id")
    assert said.code == 0, said.error
    assert said.error.count("'street'") == 1
    found = [pd.read_parquet(tmp_path / "out" / f"part-{k}.parquet") for k in range(3)]
    assert [len(frame) for frame in found] == [10, 11, 12]
    assert found[2]["id"].tolist() == houses(12, seed=2)["id"].tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    said = shell(capsys, "predict", model, tmp_path / "in", "-o", tmp_path / "out")
    assert said.code == 2  # a folder is never mixed with another
    assert (str(tmp_path / "out") in said.error, "--force" in said.error) == (True, True)


def test_force_replaces_a_folder_of_predictions_and_no_other(model, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for k in range(2):
        write(houses(10, seed=k), tmp_path / "in" / f"{k}.parquet")
    command = ("predict", model, tmp_path / "in", "-o", tmp_path / "out", "--force", "--quiet")
    assert shell(capsys, *command).code == 0
    (tmp_path / "in" / "0.parquet").unlink()
    assert shell(capsys, *command).code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["1.parquet"]  # whole, and not mixed
    write(houses(10), tmp_path / "out" / "mine.parquet")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    said = shell(capsys, *command)
    assert said.code == 2
    assert "'mine.parquet'" in said.error
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    said = shell(capsys, "predict", model, tmp_path / "in", "-o", tmp_path / "in", "--force")
    assert (said.code, str(tmp_path / "in") in said.error) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("escape", [False, True])
def test_texts_that_spreadsheets_compute_are_escaped_on_request(escape, model, tmp_path, capsys):
    evil = ["=1+1", "@SUM(A1)", "+1", "-1", "\tx", "a=b", ""]
    frame = new_rows(7).assign(**{"=name": evil})
    path = write(frame, tmp_path / "n.csv")
    options = ["--escape-formulas"] if escape else []
    said = shell(
        capsys, "predict", model, path, "-o", tmp_path / "p.csv", "--keep", "=name", "--keep", "size", *options
    )
    assert said.code == 0, said.error
    found = pd.read_csv(tmp_path / "p.csv", dtype=str, keep_default_na=False)
    assert list(found.columns[:2]) == ["'=name" if escape else "=name", "size"]
    mark = "'" if escape else ""
    assert found.iloc[:, 0].tolist() == [*(mark + text for text in evil[:5]), "a=b", ""]
    assert found["size"].astype(float).tolist() == frame["size"].tolist()


# Bad input and failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (("no.csv", "-o", "p.csv"), ["no.csv"]),
        (("n.csv", "-o", "p.csv", "--keep", "idd"), ["'idd'", "'id'"]),
        (("mean.csv", "-o", "p.csv", "--keep", "mean"), ["--keep", "mean"]),
        (("n.csv", "-o", "p.csv", "--coverage", "90"), ["--coverage"]),
        (("n.csv", "-o", "p.csv", "--coverage", "nan"), ["--coverage"]),
        (("n.csv", "-o", "old.csv"), ["old.csv", "--force"]),
        (("n.csv", "-o", "n.csv", "--force"), ["n.csv", "-o"]),
        (("n.csv", "-o", "."), ["new.csv"]),
        (("n.csv", "-o", "p.docx"), ["p.docx"]),
        (("lacking.csv", "-o", "p.csv"), ["lacking.csv", "'size', 'town'"]),
        (("case.csv", "-o", "p.csv"), ["case.csv", "'size'", "'Size'"]),
        ((".", "-o", "p"), ["Parquet"]),
    ],
)
def test_bad_input_is_one_sentence(arguments, tokens, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = new_rows()
    write(frame, tmp_path / "n.csv")
    write(frame.drop(columns=["size", "town"]), tmp_path / "lacking.csv")
    write(frame.assign(mean=1), tmp_path / "mean.csv")
    write(frame.rename(columns={"size": "Size"}), tmp_path / "case.csv")
    (tmp_path / "old.csv").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    said = shell(capsys, "predict", model, *arguments)
    assert said.code == 2, said
    last = said.error.splitlines()[-1]
    assert last.startswith("howsure: ")
    assert [token for token in tokens if token not in last] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "old.csv").read_text() == "mine"


def test_model_and_the_table_are_never_replaced(model, tmp_path, capsys):
    table = write(new_rows(), tmp_path / "n.csv")
    before = model.read_bytes(), table.read_bytes()
    for verb in ("predict", "report"):
        for out in (model, table):
            said = shell(capsys, verb, model, table, "-o", out, "--force")
            assert (said.code, str(out) in said.error, "--force" in said.error) == (2, True, False)
    assert (model.read_bytes(), table.read_bytes()) == before


def test_file_that_is_not_a_model(tmp_path, capsys):
    table = write(new_rows(), tmp_path / "n.csv")
    for path in (tmp_path, table, tmp_path / "nothing"):
        said = shell(capsys, "predict", path, table, "-o", tmp_path / "p.csv")
        assert said.code == 2
        assert len(said.error.splitlines()) == 1


def test_failure_in_the_middle_leaves_the_old_file(model, tmp_path, capsys, monkeypatch):
    """The third batch has infinity: nothing of the first two is to be seen."""
    frame = new_rows()
    frame.loc[20, "size"] = np.inf
    path = write(frame, tmp_path / "n.csv")
    (tmp_path / "p.csv").write_text("old")
    monkeypatch.setattr("howsure.cli.predict.read_batches", partial(read_batches, rows=7))
    said = shell(capsys, "predict", model, path, "-o", tmp_path / "p.csv", "--force")
    assert said.code == 2, said
    assert said.error.splitlines()[-1].startswith(f"howsure: {path}: ")
    assert "'size'" in said.error
    assert "(row 20)" in said.error  # of the file, not of the batch
    assert (tmp_path / "p.csv").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n.csv", "p.csv"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names")
def test_pipe_is_never_replaced(model, tmp_path, capsys):
    path = write(new_rows(), tmp_path / "n.csv")
    os.mkfifo(tmp_path / "p.csv")
    for verb in ("predict", "report"):
        said = shell(capsys, verb, model, path, "-o", tmp_path / "p.csv", "--force")
        assert said.code == 2, said
        assert "p.csv" in said.error
        assert (tmp_path / "p.csv").is_fifo()


def test_unreadable_cells_are_missing_and_counted(model, tmp_path, capsys, monkeypatch):
    frame = new_rows().astype({"size": object})
    frame.loc[[4, 20, 21], "size"] = ["unknown", "large", "small"]
    monkeypatch.setattr("howsure.cli.predict.read_batches", partial(read_batches, rows=7))
    said = shell(capsys, "predict", model, write(frame, tmp_path / "n.csv"), "-o", tmp_path / "p.csv")
    assert said.code == 0, said.error
    # "unknown" is a mark of missing values
    assert [2] in [numbers(line) for line in said.error.splitlines() if "'size'" in line]
    frame.loc[[4, 20, 21], "size"] = None
    shell(capsys, "predict", model, write(frame, tmp_path / "m.csv"), "-o", tmp_path / "q.csv")
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "q.csv").read_text()


@pytest.mark.parametrize("separator", [";", ":"])
def test_separator_and_encoding_by_option(separator, model, tmp_path, capsys):
    frame = new_rows()
    frame.to_csv(tmp_path / "n.csv", sep=separator, encoding="utf-16-le", index=False)
    options = ("--separator", separator, "--encoding", "utf-16-le", "--quiet")
    said = shell(capsys, "predict", model, tmp_path / "n.csv", "-o", tmp_path / "p.csv", *options)
    assert (said.code, said.error) == (0, "")
    shell(capsys, "predict", model, write(frame, tmp_path / "m.csv"), "-o", tmp_path / "q.csv")
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "q.csv").read_text()
    said = shell(capsys, "predict", model, tmp_path / "n.csv", "-o", tmp_path / "p.csv", "--force", "--separator", "::")
    assert (said.code, "'::'" in said.error) == (2, True)


def test_force_replaces_a_file(model, tmp_path, capsys):
    path = write(new_rows(), tmp_path / "n.csv")
    (tmp_path / "p.csv").write_text("old")
    said = shell(capsys, "predict", model, path, "-o", tmp_path / "p.csv", "--force", "--quiet")
    assert (said.code, said.out, said.error) == (0, "", "")
    assert len(pd.read_csv(tmp_path / "p.csv")) == 40


@pytest.mark.parametrize(
    ("verb", "writer"), [("report", "howsure.report.html.write_text"), ("export", "howsure.exporting.export")]
)
def test_full_disk_is_one_sentence_about_the_output(verb, writer, model, tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, full)
    table = (write(houses(), tmp_path / "t.csv"),) if verb == "report" else ()
    out = tmp_path / f"r.{'html' if verb == 'report' else 'onnx'}"
    said = shell(capsys, verb, model, *table, "-o", out)
    assert said.code == 2, said
    last = said.error.splitlines()[-1]
    assert last.startswith(f"howsure: {out} ")
    assert os.strerror(errno.ENOSPC) in last


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_gaps_that_no_training_row_had_are_noted(verb, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("howsure.cli.predict.read_batches", partial(read_batches, rows=7))
    frame = new_rows()
    frame.loc[[2, 9, 30], "size"] = np.nan  # rows of training lacked some years, and no size
    frame.loc[3, "year"] = np.nan
    options = ("-o", tmp_path / "p.csv") if verb == "predict" else ()
    said = shell(capsys, verb, model, write(frame, tmp_path / "n.csv"), *options, "--quiet")
    assert said.code == 0, said.error
    (line,) = said.error.splitlines()
    assert ("'size'" in line, "'year'" in line) == (True, False)


def test_fit_and_predict_together(tmp_path, capsys):
    table = write(houses(), tmp_path / "t.csv")
    for options, evidential in ((QUICK, True), (SWIFT, False)):
        shell(capsys, "fit", table, "--target", "price", "--drop", "rent", "-o", tmp_path / "m", "--force", *options)
        said = shell(capsys, "predict", tmp_path / "m", table, "-o", tmp_path / "p.csv", "--force")
        assert said.code == 0, said.error
        assert ("familiarity" in pd.read_csv(tmp_path / "p.csv")) is evidential
