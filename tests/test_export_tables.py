"""Regressors as ONNX graphs: ONNX Runtime gives the numbers of predict_distribution, without howsure."""

import datetime as dt
import json
import subprocess
import sys

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

import howsure as hs
from howsure.errors import InputError, InputTypeError
from howsure.exporting import columns_of, encode_row
from shell import shell

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
states = onnxruntime.capi.onnxruntime_pybind11_state  # its errors are not all RuntimeErrors
pytestmark = pytest.mark.extras

NAMES = ("mean", "std", "aleatoric_std", "epistemic_std")


def table(rows=120, targets=None, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3)) * [1.0, 100.0, 0.01]
    y = x[:, 0] + 0.3 * rng.standard_normal(rows)
    return x, y if targets is None else np.stack([y * 10**k for k in range(targets)], 1)


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(path, x):
    """The outputs of a graph by name."""
    made = session(path)
    return dict(zip([output.name for output in made.get_outputs()], made.run(None, {"x": x}), strict=True))


def check(found, p, coverage=0.9, rtol=1e-6):
    """Check outputs against a prediction; ends are compared by their own size or the deviation."""
    points = ("median",) if p.transform is not None else NAMES
    expected = {name: getattr(p, name) for name in points if getattr(p, name) is not None}
    names = {*expected, "lower", "upper"} | ({"familiarity"} if p.familiarity is not None else set())
    assert set(found) == names
    size = p.std if p.transform is None else p.median
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-7 * size.min())
    if p.familiarity is not None:
        np.testing.assert_allclose(found["familiarity"], p.familiarity, rtol=rtol)
    ends = p.interval(coverage)
    for k, name in enumerate(("lower", "upper")):
        assert np.max(np.abs(found[name] - ends[..., k]) / np.maximum(np.abs(ends[..., k]), size)) < max(rtol, 1e-6)


@pytest.fixture(scope="module")
def model():
    """A mixture that sees numbers, bins and trees, with weights, evidence and a width."""
    x, y = table()
    return hs.EvidentialRegressor(members=4, steps=80, random_state=0).fit(x, y)


def test_no_rows_give_no_rows_in_pt2_and_an_error_in_onnx_runtime(model, tmp_path):
    x = np.zeros((0, 3))
    program = torch.export.load(hs.export(model, tmp_path / "m.pt2")).module()
    assert {tuple(value.shape) for value in program(torch.from_numpy(x)).values()} == {(0,)}
    # docs/deploy.md has a sentence on it: remove both when this passes
    with pytest.raises((RuntimeError, states.Fail, states.RuntimeException)):
        run(hs.export(model, tmp_path / "m.onnx"), x)


REGRESSORS = {
    "bins+trees": lambda: hs.EvidentialRegressor(members=3, steps=40, inputs="bins+trees", random_state=0),
    "one network": lambda: hs.EvidentialRegressor(members=1, steps=40, random_state=0),
    "plain evidence": lambda: hs.EvidentialRegressor(members=3, steps=40, evidence="plain", random_state=0),
    "ensemble": lambda: hs.EnsembleRegressor(members=3, steps=40, random_state=0),
    "ensemble with trees": lambda: hs.EnsembleRegressor(members=2, steps=40, inputs="trees", random_state=0),
    "ensemble of one": lambda: hs.EnsembleRegressor(members=1, steps=40, random_state=0),
}


def test_default_model(model, tmp_path):
    x, _ = table(seed=1)
    wild = np.concatenate([x, 30 * x])  # half of them far from the training rows
    path = hs.export(model, tmp_path / "model.onnx", coverage=0.8)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    p = model.predict_distribution(wild)
    assert p.familiarity.min() < 0.1
    check(run(path, wild), p, 0.8)
    check(run(path, wild[:1]), p[:1], 0.8)
    whole = run(path, wild)
    for k in (0, 130):  # a row does not depend on the others
        np.testing.assert_allclose(run(path, wild[k : k + 1])["upper"], whole["upper"][k], rtol=1e-6)


@pytest.mark.parametrize("name", REGRESSORS)
@pytest.mark.parametrize("targets", [None, 2])
def test_every_regressor(name, targets, tmp_path):
    x, y = table(targets=targets)
    fitted = REGRESSORS[name]().fit(x, y)
    path = hs.export(fitted, tmp_path / "model.onnx")
    check(run(path, x), fitted.predict_distribution(x))


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "tanh"])
def test_every_activation(activation, tmp_path):
    x, y = table()
    fitted = hs.EvidentialRegressor(members=2, steps=20, hidden=(8,), random_state=0).fit(x, y)
    fitted.model_.networks.activation = activation
    path = hs.export(fitted, tmp_path / "model.onnx")
    check(run(path, x), fitted.predict_distribution(x))


def test_single_precision_is_close(model, tmp_path):
    x, _ = table(seed=1)
    path = hs.export(model, tmp_path / "model.onnx", single=True)
    check(run(path, x), model.predict_distribution(x), rtol=1e-4)


def test_large_numbers_with_a_small_spread_keep_their_digits(tmp_path):
    rng = np.random.default_rng(0)
    x = 1e7 + 1e-2 * rng.standard_normal((100, 2))
    y = 1e6 + 100 * (x[:, 0] - 1e7) + 0.1 * rng.standard_normal(100)
    fitted = hs.EvidentialRegressor(members=2, steps=60, random_state=0).fit(x, y)
    found, p = run(hs.export(fitted, tmp_path / "model.onnx"), x), fitted.predict_distribution(x)
    np.testing.assert_allclose(found["mean"], p.mean, rtol=1e-9)
    np.testing.assert_allclose(found["epistemic_std"], p.epistemic_std, rtol=1e-5)


def mixed_table():
    rng = np.random.default_rng(1)
    count = 160
    codes = [f"k{k:03d}" for k in rng.integers(0, 60, count)]  # many values, encoded by the mean of their targets
    frame = pd.DataFrame(
        {
            "size": rng.random(count),
            "town": rng.choice(["Rome", "Oslo", "Bern"], count),
            "code": pd.Categorical(codes),
            "sold": pd.date_range("2019-01-01", periods=count, freq="37h"),
            "opens": pd.to_datetime(pd.Series(rng.integers(0, 86400, count)), unit="s").dt.time,
            "lasts": pd.to_timedelta(rng.random(count), unit="D"),
            "new": rng.random(count) < 0.5,
            "id": [f"customer {k} {rng.integers(1e9)}" for k in range(count)],
        }
    )
    frame.loc[3, "size"] = np.nan
    frame.loc[5, "town"] = None
    effect = {code: rng.standard_normal() for code in codes}
    y = frame["size"].fillna(0.5) + [3 * effect[code] for code in codes] + 0.1 * rng.standard_normal(count)
    return frame, y


def as_numbers(frame, columns):
    """The rows as the metadata of a graph says, without howsure."""
    out = np.full((len(frame), len(columns)), np.nan)
    for k, column in enumerate(columns):
        values = frame[column["name"]]
        if column["kind"] == "category":
            out[:, k] = [np.nan if v is None or v != v else column["codes"].get(str(v), -1) for v in values]
        elif column["kind"] == "date":
            out[:, k] = (values - pd.Timestamp(0)) / pd.Timedelta(seconds=1)
        elif column["kind"] == "duration":
            out[:, k] = pd.to_timedelta(values.astype(str)).dt.total_seconds()
        elif column["kind"] != "ignored":
            out[:, k] = values.astype(float)
    return out


def test_texts_dates_booleans_and_missing_values_by_the_written_mapping(tmp_path):
    frame, y = mixed_table()
    with pytest.warns(UserWarning, match="'id'"):
        fitted = hs.EvidentialRegressor(members=3, steps=40, random_state=0).fit(frame, y)
    path = hs.export(fitted, tmp_path / "model.onnx")
    columns = columns_of(path)
    kinds = {column["name"]: column["kind"] for column in columns}
    assert list(kinds) == list(frame.columns)
    assert set(kinds.values()) == {"number", "category", "date", "duration", "boolean", "ignored"}
    assert any(encoder.means for encoder in fitted.encoding_.encoders)  # or this test shows less than it should
    new = frame.copy()
    new["code"] = new["code"].astype(object)
    new.loc[7, "town"], new.loc[8, "code"], new.loc[9, "code"] = "Paris", "never seen", None
    with pytest.warns(UserWarning, match="'code'"):  # a gap that no training row had
        p = fitted.predict_distribution(new)
    check(run(path, as_numbers(new, columns)), p)
    metadata = session(path).get_modelmeta().custom_metadata_map
    assert json.loads(metadata["columns"]) == columns
    assert json.loads(metadata["coverage"]) == 0.9


def test_graph_needs_no_howsure(model, tmp_path):
    path = hs.export(model, tmp_path / "model.onnx")
    x = table(seed=1)[0][:5]
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy, onnxruntime; sys.modules['howsure'] = sys.modules['torch'] = None\n"
        f"s = onnxruntime.InferenceSession({str(path)!r}, providers=['CPUExecutionProvider'])\n"
        f"print(s.run(['mean'], {{'x': numpy.load({str(tmp_path / 'x.npy')!r})}})[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    np.testing.assert_allclose(json.loads(done.stdout), model.predict_distribution(x).mean, rtol=1e-6)


def test_without_an_interval_the_graph_is_smaller(model, tmp_path):
    whole = onnx.load(hs.export(model, tmp_path / "whole.onnx"))
    plain = onnx.load(hs.export(model, tmp_path / "plain.onnx", coverage=None))
    assert [output.name for output in plain.graph.output] == [*NAMES, "familiarity"]
    sizes = [sum(node.op_type != "Constant" for node in graph.graph.node) for graph in (plain, whole)]
    assert sizes[0] < sizes[1] < 600


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_existing_file_is_replaced_only_with_overwrite(model, tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_text("mine")
    with pytest.raises(InputError) as error:
        hs.export(model, path)
    assert "overwrite" in error.value.hint
    assert path.read_text() == "mine"
    hs.export(model, path, overwrite=True)
    assert [column["name"] for column in columns_of(path)] == ["x0", "x1", "x2"]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["model", "model.json", ".", "", ".onnx"])
def test_other_suffix_raises(model, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        hs.export(model, name)


@pytest.mark.parametrize("targets", [None, 2])
@pytest.mark.parametrize("method", [None, "scale", "conformal"])
@pytest.mark.parametrize("transform", [None, "positive", "log"])
def test_transform_and_calibration_are_inside(transform, method, targets, tmp_path):
    fitted, x = calibrated(transform, method, targets)
    found = run(hs.export(fitted, tmp_path / "model.onnx", coverage=0.8), x)
    check(found, fitted.predict_distribution(x), 0.8)


@pytest.mark.parametrize(("transform", "method", "targets"), [(None, None, None), ("positive", "conformal", 2)])
def test_program_of_torch_computes_the_same(transform, method, targets, tmp_path):
    fitted, x = calibrated(transform, method, targets)
    program = torch.export.load(hs.export(fitted, tmp_path / "model.pt2", coverage=0.8)).module()
    found = {name: value.detach().numpy() for name, value in program(torch.from_numpy(x)).items()}
    check(found, fitted.predict_distribution(x), 0.8)


def calibrated(transform, method, targets):
    """A fitted and perhaps calibrated model, and rows."""
    x, y = table(targets=targets)
    y = y if transform is None else np.exp(y / np.abs(y).max(0))
    options = {"members": 3, "steps": 40, "random_state": 0, "target_transform": transform}
    fitted = hs.EvidentialRegressor(**options).fit(x[:80], y[:80])
    return fitted if method is None else hs.calibrate(fitted, x[80:], y[80:], method=method), x


def test_calibration_by_groups_is_not_exported(tmp_path):
    frame, y = mixed_table()
    frame = frame[["size", "town"]]
    fitted = hs.EvidentialRegressor(members=2, steps=20, random_state=0).fit(frame[:80], y[:80])
    fitted = hs.calibrate(fitted, frame[80:], y[80:], method="conformal", groups="town")
    with pytest.raises(hs.InputError):
        hs.export(fitted, tmp_path / "model.onnx")


def test_network_without_hidden_layers_is_exported(tmp_path):
    x, y = table()
    fitted = hs.EvidentialRegressor(members=2, hidden=(), steps=10, random_state=0).fit(x, y)
    check(run(hs.export(fitted, tmp_path / "model.onnx"), x), fitted.predict_distribution(x))


# Rows -----------------------------------------------------------------------------------------------------------------


def test_row_of_named_values_is_that_of_the_table(tmp_path):
    frame, y = mixed_table()
    with pytest.warns(UserWarning, match="'id'"):
        fitted = hs.EvidentialRegressor(members=3, steps=20, random_state=0).fit(frame, y)
    columns = columns_of(hs.export(fitted, tmp_path / "model.onnx"))
    opens = pd.to_timedelta(frame["opens"].astype(str))
    rows = [
        encode_row(columns, values | {"opens": opens[k].to_pytimedelta(), "town": values["town"] or None})
        for k, values in enumerate(frame.to_dict("records"))
    ]
    assert np.array_equal(rows, fitted.encoding_.codes(fitted.read(frame)), equal_nan=True)


COLUMNS = [
    {"name": "n", "kind": "number"},
    {"name": "c", "kind": "category", "codes": {"a": 0, "7": 1}},
    {"name": "d", "kind": "date"},
    {"name": "t", "kind": "duration"},
    {"name": "i", "kind": "ignored"},
]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [np.nan, np.nan, np.nan, np.nan, 0]),
        ({"n": True, "c": "b", "i": object()}, [1, -1, np.nan, np.nan, 0]),
        ({"c": 7, "d": "1970-01-02"}, [np.nan, 1, 86400, np.nan, 0]),
        ({"d": dt.date(1970, 1, 2), "t": dt.timedelta(minutes=1)}, [np.nan, np.nan, 86400, 60, 0]),
        ({"d": dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))}, [np.nan, np.nan, 0, np.nan, 0]),
        ({"d": 3, "n": None, "c": float("nan")}, [np.nan, np.nan, 3, np.nan, 0]),
    ],
)
def test_values_of_a_row(values, expected):
    assert np.array_equal(encode_row(COLUMNS, values), expected, equal_nan=True)


@pytest.mark.parametrize("values", [{"x": 1}, {"n": "much"}, {"d": "soon"}, {"t": "long"}, {"n": [1]}])
def test_value_without_a_number_raises_with_its_column(values):
    with pytest.raises(InputError) as error:
        encode_row(COLUMNS, values)
    assert error.value.column in values


# Errors ---------------------------------------------------------------------------------------------------------------


def test_other_objects_than_regressors_raise(tmp_path):
    with pytest.raises(InputTypeError):
        hs.export(torch.nn.Linear(1, 1), tmp_path / "model.onnx")
    with pytest.raises(InputTypeError):
        hs.export("model", tmp_path / "model.onnx")
    with pytest.raises(NotFittedError):
        hs.export(hs.EvidentialRegressor(), tmp_path / "model.onnx")


@pytest.mark.parametrize("coverage", [0, 1, 2.0, "0.9"])
def test_coverage_is_a_probability(model, coverage, tmp_path):
    with pytest.raises(InputError, match="coverage"):
        hs.export(model, tmp_path / "model.onnx", coverage=coverage)


def test_sizes_of_the_model_are_not_taken_for_the_number_of_rows(tmp_path):
    x = np.random.default_rng(0).standard_normal((120, 89))
    model = hs.EnsembleRegressor(members=2, steps=5, hidden=(89,), random_state=0).fit(x, x[:, 0])
    path = hs.export(model, tmp_path / "model.onnx")
    for rows in (1, 7, 89):
        check(run(path, x[:rows]), model.predict_distribution(x[:rows]))


def test_gelu_and_softplus_in_float64_are_exact_enough(tmp_path):
    class Functions(torch.nn.Module):
        def forward(self, x):
            return hs.Normal(torch.nn.functional.gelu(x), torch.nn.functional.softplus(x), validate_args=False)

    x = torch.linspace(-40, 40, 4001, dtype=torch.float64)
    found = run(hs.export(Functions(), tmp_path / "functions.onnx", x[:5], coverage=None), x.numpy())
    expected = [float(v * mpmath.ncdf(v)) for v in map(mpmath.mpf, x.tolist())]
    np.testing.assert_allclose(found["mean"], expected, rtol=0, atol=2e-10)
    expected = [float(mpmath.log1p(mpmath.exp(v))) for v in map(mpmath.mpf, x.tolist())]
    np.testing.assert_allclose(found["std"], expected, rtol=1e-14, atol=1e-15)


def test_from_the_shell(model, capsys, tmp_path):
    model.save(tmp_path / "model")
    path = tmp_path / "out" / "model.onnx"
    said = shell(capsys, "export", tmp_path / "model", "-o", path, "--coverage", "0.5")
    assert said.code == 0, said.error
    x = table(seed=1)[0]
    check(run(path, x), model.predict_distribution(x), 0.5)
    for arguments, token in (
        ((tmp_path / "model", "-o", path), "model.onnx"),
        ((tmp_path / "model", "-o", path, "--force", "--coverage", "90"), "--coverage"),
        ((tmp_path / "model", "-o", tmp_path / "model"), str(tmp_path / "model")),
        ((tmp_path / "out", "-o", tmp_path / "other.onnx"), str(tmp_path / "out")),
    ):
        said = shell(capsys, "export", *arguments)
        assert said.code == 2
        assert token in said.error
