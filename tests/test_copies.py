"""Copies of training rows count as one row with a weight."""

import numpy as np
import pandas as pd
import pytest

import howsure as hs
from howsure.tables.copies import merge_copies
from howsure.tables.table import read_table

SWIFT = {"members": 2, "steps": 40, "random_state": 0}


def rows(count=200, seed=0):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"a": g.normal(size=count), "b": g.choice(["x", "y", None], count), "c": g.integers(3, size=count)}
    )
    return frame, frame["a"].to_numpy() + g.normal(size=count)


@pytest.mark.parametrize("times", [2, 5])
def test_table_with_copies_gives_the_model_of_the_table(times):
    frame, y = rows()
    p = hs.EvidentialRegressor(**SWIFT).fit(frame, y).predict_distribution(frame)
    order = np.concatenate([np.arange(200), np.repeat(np.arange(200), times - 1)])
    q = hs.EvidentialRegressor(**SWIFT).fit(frame.iloc[order], y[order]).predict_distribution(frame)
    assert np.array_equal(p.interval(0.9), q.interval(0.9))


def test_weights_of_copies_are_summed():
    frame, y = rows(50)
    order = [3, *range(50), 3, 7]
    kept, weights = merge_copies(read_table(frame.iloc[order]), y[order], None)
    assert np.array_equal(np.array(order)[kept], [3, 0, 1, 2, *range(4, 50)])
    assert weights[0] == 1
    assert weights[np.array(order)[kept] == 7] == pytest.approx(2 / 3)
    assert np.sum(weights == 1 / 3) == 48
    kept, weights = merge_copies(read_table(frame.iloc[[0, 0, 1]]), y[[0, 0, 1]], np.array([1.0, 2.0, 3.0]))
    assert (kept.tolist(), weights) == ([0, 2], None)


def test_rows_that_are_equal_by_chance_all_count():
    g = np.random.default_rng(0)
    x = g.integers(3, size=(300, 2)).astype(float)
    grades = g.integers(5, size=300).astype(float)
    kept, weights = merge_copies(read_table(x), grades, None)
    assert (len(kept), weights) == (300, None)
    zeros = np.where(g.random(300) < 0.3, 0, g.exponential(size=300))  # a value that stands out of a continuum
    assert len(merge_copies(read_table(x), zeros, None)[0]) == 300
    real = g.normal(size=(300, 2))
    twice = np.concatenate([real, real])
    assert len(merge_copies(read_table(twice), np.tile(grades, 2), None)[0]) == 300


def test_error_names_the_row_of_the_whole_table():
    y = np.array([1.0, 1.0, 2.0, -3.0, 4.0])
    x = np.array([[0.0], [0.0], [1.0], [2.0], [3.0]])
    with pytest.raises(hs.InputError) as caught:
        hs.EvidentialRegressor(target_transform="positive", **SWIFT).fit(x, y)
    assert caught.value.row == 3
