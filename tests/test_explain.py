"""Importance of columns, causes of unfamiliar rows, and intervals of a stream."""

import numpy as np
import pandas as pd
import pytest
import torch

import howsure as hs
from howsure.distributions import Transform

SMALL = {"members": 3, "steps": 150, "random_state": 0, "device": "cpu", "verbose": False}


@pytest.fixture(scope="module")
def fitted():
    random = np.random.default_rng(0)
    x = pd.DataFrame({"noise": random.random(200), "signal": random.random(200), "kind": ["u", "v"] * 100})
    y = 3 * x["signal"].to_numpy() + 0.5 * (x["kind"] == "u").to_numpy() + 0.1 * random.standard_normal(200)
    return hs.EvidentialRegressor(**SMALL).fit(x, y), x, y


def test_importance_ranks_columns(fitted):
    model, x, y = fitted
    found = hs.importance(model, x, y, repeats=3)
    assert list(found.index) == ["noise", "kind", "signal"]
    assert found.loc["signal", "importance"] > 10 * abs(found.loc["noise", "importance"])
    assert found.equals(hs.importance(model, x, y, repeats=3))
    assert hs.importance(model, x, y, metric=hs.metrics.nll, repeats=1).index[-1] == "signal"


def test_importance_agrees_with_a_permutation_by_hand(fitted):
    model, x, y = fitted
    order = np.random.default_rng(0).permutation(len(x))
    other = x.assign(noise=x["noise"].to_numpy()[order])
    expected = hs.metrics.crps(model.predict_distribution(other), y) - hs.metrics.crps(model.predict_distribution(x), y)
    found = hs.importance(model, x, y, repeats=1)
    assert found.loc["noise", "importance"] == pytest.approx(expected)


def test_columns_are_found_by_name(fitted):
    """In another order, and in another kind of table, the result is the same."""
    model, x, y = fitted
    expected = hs.importance(model, x, y, repeats=1)
    other = x[["kind", "signal", "noise"]]
    found = hs.importance(model, other, y, repeats=1)
    assert found.equals(expected)
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(other)
    assert np.allclose(hs.importance(model, arrow, y, repeats=1), expected)
    assert np.allclose(hs.explain_familiarity(model, arrow), hs.explain_familiarity(model, x))


def test_importance_of_an_array_and_its_picture():
    pytest.importorskip("matplotlib").use("agg")
    x = np.random.default_rng(0).random((60, 2))
    model = hs.EvidentialRegressor(**SMALL).fit(x, x[:, 0])
    found = hs.importance(model, x, x[:, 0], repeats=2)
    assert found.index[-1] == "x0"
    assert len(found["importance"].plot.barh(xerr=found["std"]).patches) == 2


def test_unfamiliar_column_is_named(fitted):
    model, x, _ = fitted
    rows = x.iloc[:3].copy()
    rows.iloc[0, 0], rows.iloc[1, 1] = 40.0, -30.0
    found = hs.explain_familiarity(model, rows)
    assert list(found.columns) == ["familiarity", "noise", "signal", "kind"]
    assert np.allclose(found["familiarity"], model.predict_distribution(rows).familiarity)
    assert found.iloc[0, 1:].astype(float).idxmax() == "noise"
    assert found.iloc[1, 1:].astype(float).idxmax() == "signal"
    typical = rows.assign(noise=x["noise"].median())
    assert np.allclose(
        found["noise"] + found["familiarity"], model.predict_distribution(typical).familiarity, atol=0.02
    )


def test_wrong_models_and_tables_raise(fitted):
    model, x, y = fitted
    for wrong in (hs.EvidentialRegressor(), torch.nn.Linear(2, 1)):
        with pytest.raises(hs.InputTypeError):
            hs.importance(wrong, x, y)
        with pytest.raises(hs.InputTypeError):
            hs.explain_familiarity(wrong, x)
    with pytest.raises(hs.InputError):
        hs.importance(model, x, y, repeats=0)
    plain = hs.EvidentialRegressor(evidence="plain", **SMALL).fit(x[:60], y[:60])
    with pytest.raises(hs.InputError):
        hs.explain_familiarity(plain, x)


# A stream -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_coverage_of_a_drifting_stream(coverage):
    """The share of missed targets differs from its aim by the documented amount, also where the noise changes."""
    noise = np.repeat([1.0, 5.0, 0.2], 500)
    y = noise * np.random.default_rng(0).standard_normal(1500)
    online, missed = hs.OnlineConformal(coverage), 0
    for each in y:
        p = hs.Prediction(hs.Normal(torch.zeros(1, dtype=torch.float64), 1.0))
        low, high = online.interval(p)[0]
        missed += not low <= each <= high
        online.update(p, [each])
    assert abs(missed / 1500 - (1 - coverage)) == pytest.approx(abs(np.log(online.factor)) / (0.05 * 1500), abs=1e-9)
    assert abs(missed / 1500 - (1 - coverage)) < 0.04


def test_stream_with_a_transform():
    """Intervals of targets that cannot be negative stay so."""
    p = hs.Prediction(hs.Normal(torch.zeros(4), 1.0), transform=Transform("positive"))
    online = hs.OnlineConformal(0.9)
    assert np.allclose(online.interval(p), p.interval(0.9), rtol=1e-5)
    online.update(p, [50.0, 50.0, 50.0, 50.0])
    ends = online.interval(p)
    assert (ends[:, 1] > p.interval(0.9)[:, 1]).all()
    assert (ends[:, 0] >= 0).all()


def test_wrong_streams_raise():
    for options in ({"coverage": 1.0}, {"rate": 0.0}, {"rate": np.nan}):
        with pytest.raises(hs.InputError):
            hs.OnlineConformal(**options)
    online = hs.OnlineConformal()
    with pytest.raises(hs.InputError):
        online.update(hs.Prediction(hs.Normal(torch.zeros(2, 2), 1.0)), [[0.0, 0.0], [0.0, 0.0]])
    with pytest.raises(hs.InputError):
        online.update(hs.Prediction(hs.Normal(torch.zeros(2), 1.0)), [0.0, np.nan])


def test_report_warns_of_later_dates(tmp_path):
    pytest.importorskip("jinja2")
    days = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=80), "a": np.arange(80) % 7})
    y = np.sin(np.arange(80.0))
    model = hs.EvidentialRegressor(**SMALL).fit(days[:60], y[:60])
    text = model_report(model, days[50:], y[50:], tmp_path)
    assert "20 rows after the last training date, 2020-02-29" in text
    assert "after the last training date" not in model_report(model, days[:60], y[:60], tmp_path)


def model_report(model, x, y, folder):
    return hs.write_report(model, x, y, folder / "report.html").read_text()
