"""A plain callable from rows to numbers: the numbers of predict_distribution, however rows are given."""

import pickle
import threading

import numpy as np
import pandas as pd
import pytest
import torch

import howsure as hs
from howsure.data.row_trees import MOST_LISTED, RowTrees
from howsure.data.trees import Trees
from howsure.errors import HowsureError, InputError, InputTypeError, UnreadableCellsWarning

NAMES = ("mean", "std", "aleatoric_std", "epistemic_std", "familiarity")


def table(rows=120, columns=3, targets=None, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * [1.0, 100.0, 0.01][:columns]
    y = x[:, 0] + 0.3 * rng.standard_normal(rows)
    return x, y if targets is None else np.stack([y * 10**k for k in range(targets)], 1)


def same(found, p, one=None):
    """Check what a predictor returned against a prediction: all of its rows, or one of them."""
    expected = {name: getattr(p, name) for name in NAMES}
    if p.guarantee is not None or "lower" in found:
        ends = p.interval(0.8)
        expected |= {"lower": ends[..., 0], "upper": ends[..., 1]}
    expected = {name: value for name, value in expected.items() if value is not None}
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value if one is None else value[one], rtol=1e-9)


@pytest.fixture(scope="module")
def numbers():
    """A mixture that sees numbers, bins and trees, with weights, fading and a width."""
    x, y = table()
    return hs.EvidentialRegressor(members=3, steps=60, random_state=0).fit(x, y), x


@pytest.fixture(scope="module")
def mixed():
    """A model of text, dates, booleans, numbers and missing values, with names."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "size": rng.random(80),
            "town": rng.choice(["Rome", "Oslo", "Bern"], 80),
            "sold": pd.date_range("2020-01-01", periods=80, freq="3D"),
            "new": rng.random(80) < 0.5,
        }
    )
    frame.loc[3, "size"] = np.nan
    frame.loc[5, "town"] = None
    y = frame["size"].fillna(0.5) + (frame["town"] == "Oslo") + 0.1 * rng.standard_normal(80)
    return hs.EvidentialRegressor(members=2, steps=40, random_state=0).fit(frame, y), frame


def regressors():
    return {
        "one network": hs.EvidentialRegressor(members=1, steps=30, random_state=0),
        "plain evidence": hs.EvidentialRegressor(members=3, steps=30, evidence="plain", random_state=0),
        "ensemble": hs.EnsembleRegressor(members=2, steps=30, random_state=0),
        "fading ensemble": hs.EnsembleRegressor(members=2, steps=30, evidence="fading", random_state=0),
        "ensemble of one": hs.EnsembleRegressor(members=1, steps=30, random_state=0),
        "linear": hs.EvidentialRegressor(members=2, hidden=(), steps=30, random_state=0),
        "positive": hs.EvidentialRegressor(members=2, steps=30, target_transform="positive", random_state=0),
        "split": hs.EvidentialRegressor(members=1, steps=30, conformal="split", random_state=0),
    }


def test_a_row_a_few_and_many_have_the_numbers_of_predict_distribution(numbers):
    model, x = numbers
    predict = model.predictor()
    wild = np.concatenate([x, 20 * x])  # half of them far from the training rows
    p = model.predict_distribution(wild)
    assert p.familiarity.min() < 0.5
    for row in (0, 7, 130, 200):
        same(predict(wild[row]), p, row)
    same(predict(wild[:8]), p[:8])
    same(predict(wild[110:135]), p[110:135])
    same(predict(wild), p)
    assert isinstance(predict(x[0])["mean"], float)
    assert predict(x[:1])["mean"].shape == (1,)


def test_single_precision_is_close_and_for_many_rows_only(numbers):
    model, x = numbers
    exact, single = model.predictor(), model.predictor(single=True)
    wild = np.concatenate([x, 20 * x])
    found, truth = single(wild), exact(wild)
    assert any((found[name] != truth[name]).any() for name in truth)
    for name in truth:
        assert np.allclose(found[name], truth[name], rtol=1e-4, atol=1e-5)
    assert single(x[0]) == exact(x[0])
    assert repr(pickle.loads(pickle.dumps(single))) == "EvidentialRegressor.predictor(single=True)"


@pytest.mark.parametrize(
    ("name", "targets"), [*((name, None) for name in regressors()), ("plain evidence", 2), ("fading ensemble", 2)]
)
def test_every_regressor_has_one(name, targets):
    x, y = table(targets=targets)
    model = regressors()[name].fit(x, np.abs(y))
    p = model.predict_distribution(x[:40])
    predict = model.predictor()
    if p.guarantee is None:
        same(predict(x[4]), p, 4)
        same(predict(x[:40]), p)
    same(model.predictor(coverage=0.8)(x[4]), p, 4)


def test_log_targets_have_a_median_instead_of_moments():
    x, y = table()
    model = hs.EvidentialRegressor(members=2, steps=30, target_transform="log", random_state=0).fit(x, np.exp(y))
    p = model.predict_distribution(x[:3])
    found = model.predictor(coverage=0.8)(x[:3])
    assert set(found) == {"median", "lower", "upper", "familiarity"}
    np.testing.assert_allclose(found["median"], p.median)
    np.testing.assert_allclose(found["upper"], p.interval(0.8)[:, 1])


def test_rows_by_name_by_position_as_series_and_as_lists(mixed):
    model, frame = mixed
    p, predict = model.predict_distribution(frame), model.predictor()
    for row in (0, 3, 5, 40):
        series = frame.iloc[row]
        same(predict(series.to_dict()), p, row)
        same(predict(dict(reversed(series.to_dict().items()))), p, row)
        same(predict(series), p, row)
        same(predict(series.tolist()), p, row)
    same(predict([row.to_dict() for _, row in frame[:4].iterrows()]), p[:4])
    same(predict(frame[:40]), p[:40])
    odd = {"size": "0.5", "town": "Paris", "sold": "2020-02-01", "new": 1}  # text, an unseen town, a written date
    expected = model.predict_distribution(pd.DataFrame([{**odd, "size": 0.5, "new": True}]).astype({"sold": "M8[ns]"}))
    same(predict(odd), expected, 0)


def test_a_missing_value_is_filled_as_in_a_table(numbers, mixed):
    model, x = numbers
    row = x[0].copy()
    row[1] = np.nan
    same(model.predictor()(row), model.predict_distribution(row[None]), 0)
    same(model.predictor()([row[0], None, row[2]]), model.predict_distribution(row[None]), 0)
    model, frame = mixed
    empty = dict.fromkeys(frame.columns)
    expected = model.predict_distribution(pd.DataFrame([empty], dtype=object))
    same(model.predictor()(empty), expected, 0)


def test_types_of_numbers_do_not_matter(numbers):
    model, _ = numbers
    predict, row = model.predictor(), np.array([1, 200, 0])
    expected = predict(row.astype(float))
    for given in (row, row.tolist(), tuple(row), torch.tensor(row), row.astype(np.float32), row.astype(np.uint8)):
        assert predict(given) == expected


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([1.0, 2.0], "2 values, but EvidentialRegressor was fitted to 3 columns"),
        (np.zeros((2, 4)), "4 values"),
        ([[1.0, 2.0, 3.0], [1.0, 2.0]], "2 values"),
        ([1.0, 2.0, np.inf], "infinite"),
        (np.array([1.0, -np.inf, 0.0]), "'x1' is infinite in row 0"),
        ([], "empty"),
        ([1.0, [2.0], 3.0], "one row, or a list of rows"),
        ({"x0": 1.0}, "without names"),
        ([1.0, 2.0, b"3"], "x2"),
    ],
)
def test_wrong_rows_are_refused_with_a_sentence(numbers, rows, words):
    with pytest.raises(HowsureError, match=words):
        numbers[0].predictor()(rows)


@pytest.mark.parametrize("rows", ["text", 3.0, None, object()])
def test_what_is_no_row_is_refused(numbers, rows):
    with pytest.raises(InputTypeError, match="a row is"):
        numbers[0].predictor()(rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"town": ...}, "lacks the column 'town'"),
        ({"garden": 1}, "beyond those of training: 'garden'"),
        ({"size": pd.Timestamp(0)}, "size"),
        ({"sold": 3}, "sold"),
    ],
)
def test_wrong_values_of_a_row_by_name_are_refused(mixed, change, words):
    model, frame = mixed
    row = frame.iloc[0].to_dict() | change
    row = {name: value for name, value in row.items() if value is not ...}
    with pytest.raises(HowsureError, match=words):
        model.predictor()(row)


def test_a_text_that_cannot_be_read_is_missing_with_a_warning(mixed):
    model, frame = mixed
    row = frame.iloc[0].to_dict()
    for column, text in (("size", "large"), ("sold", "yesterday")):
        with pytest.warns(UnreadableCellsWarning) as caught:
            found = model.predictor()(row | {column: text})
        assert found == model.predictor()(row | {column: None})
        assert (caught[0].message.column, caught[0].message.value) == (column, text)


def test_errors_name_the_row_of_several(numbers):
    with pytest.raises(InputError) as caught:
        numbers[0].predictor()([[1.0, 2.0, 3.0], [1.0, 2.0, b"3"]])
    assert (caught.value.column, caught.value.row, caught.value.value) == ("x2", 1, b"3")


@pytest.mark.parametrize("coverage", [0, 1, 1.5, True, "0.9"])
def test_coverage_is_a_probability(numbers, coverage):
    with pytest.raises(InputError, match="coverage"):
        numbers[0].predictor(coverage=coverage)


def test_a_predictor_is_pickled_copied_and_outlives_another_fit(numbers):
    x, y = table()
    model = hs.EvidentialRegressor(members=2, steps=20, random_state=0).fit(x, y)
    predict = model.predictor()
    before = predict(x[0])
    assert pickle.loads(pickle.dumps(predict))(x[0]) == before
    many = predict(x)["mean"]
    model.fit(x, -y)
    assert predict(x[0]) == before
    np.testing.assert_array_equal(predict(x)["mean"], many)
    assert repr(model.predictor(0.5)) == "EvidentialRegressor.predictor(coverage=0.5)"


def test_several_threads_get_the_same_numbers(numbers):
    model, x = numbers
    predict = model.predictor()
    expected = [predict(row) for row in x]
    found = {}

    def work(k):
        found[k] = [predict(row) for row in x]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[k] == expected for k in range(4))


def test_an_unfitted_model_has_none():
    with pytest.raises(ValueError, match="not fitted"):
        hs.EvidentialRegressor().predictor()


@pytest.mark.parametrize("targets", [1, 3])
def test_trees_row_by_row_are_those_of_all_rows(targets, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 5)).round(1)  # ties between values and thresholds
    y = np.stack([x[:, 0] * (k + 1) + rng.standard_normal(90) for k in range(targets)], 1) * 1e6
    trees, _ = Trees.fit(x, y, seed=0)
    new = np.concatenate([x, 1e3 * x, np.full((1, 5), 1e308), np.full((1, 5), -1e308)])
    expected = trees.predict(new)
    scale = np.abs(expected).max()
    np.testing.assert_allclose([RowTrees(trees)(row) for row in new], expected, rtol=0, atol=1e-12 * scale)
    monkeypatch.setattr("howsure.data.row_trees.MOST_LISTED", 0)
    assert MOST_LISTED > 0
    np.testing.assert_allclose([RowTrees(trees)(row) for row in new[:5]], expected[:5], rtol=0, atol=1e-12 * scale)


def test_trees_of_a_single_leaf():
    trees, _ = Trees.fit(np.zeros((30, 2)), np.arange(30.0)[:, None], seed=0)
    row = np.array([1.0, -1.0])
    np.testing.assert_allclose(RowTrees(trees)(row), trees.predict(row[None])[0])


def test_records_masked_arrays_and_bytes(numbers, mixed):
    model, x = numbers
    predict = model.predictor()
    masked = np.ma.masked_array(x[:2], mask=np.zeros_like(x[:2], dtype=bool))
    masked[0, 0] = np.ma.masked
    missing = x[:2].copy()
    missing[0, 0] = np.nan
    assert np.array_equal(predict(masked)["mean"], predict(missing)["mean"])
    with pytest.raises(hs.InputTypeError, match="not bytes"):
        predict(b"abc")
    model, frame = mixed
    record = next(frame[frame.columns[::-1]].itertuples(index=False))  # its fields are in another order
    assert model.predictor()(record) == model.predictor()(dict(frame.iloc[0]))


def test_errors_of_several_rows_name_the_row(numbers):
    model, x = numbers
    rows = x[:3].tolist()
    with pytest.raises(hs.InputError, match="row 2"):
        model.predictor()([*rows[:2], [*rows[2][:-1], np.inf]])
    with pytest.raises(hs.InputError, match="row 1 has 1 values"):
        model.predictor()([rows[0], [1.0]])
    with pytest.raises(hs.InputError, match="too large"):
        model.predictor()([10**400, *rows[0][1:]])


@pytest.mark.parametrize("single", [False, True])
def test_rows_beyond_all_measure_have_the_answers_of_predict_distribution(numbers, single):
    model, x = numbers
    far = np.tile(x, (2, 1))
    far[5, 0] = -3.4028235e38
    same(model.predictor(single=single)(far), model.predict_distribution(far))
