"""Warnings of copies among training rows."""

import warnings

import numpy as np
import pytest

import howsure as hs

SWIFT = {"members": 2, "steps": 20, "random_state": 0}
RANDOM = np.random.default_rng(0)


def test_rows_that_were_repeated_are_counted_in_a_warning():
    x, y = RANDOM.normal(size=(40, 2)), RANDOM.normal(size=40)
    with pytest.warns(UserWarning, match="160") as caught:
        hs.EvidentialRegressor(**SWIFT).fit(np.tile(x, (5, 1)), np.tile(y, 5))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("grades", [3, 0])
def test_rows_that_are_equal_by_chance_give_no_warning(grades):
    x = RANDOM.integers(2, size=(200, 2)).astype(float)
    y = RANDOM.integers(grades, size=200).astype(float) if grades else RANDOM.normal(size=200)
    with warnings.catch_warnings(action="error", category=UserWarning):
        hs.EvidentialRegressor(**SWIFT).fit(x, y)


def test_few_copies_give_no_warning():
    x, y = RANDOM.normal(size=(60, 2)), RANDOM.normal(size=60)
    with warnings.catch_warnings(action="error", category=UserWarning):
        hs.EvidentialRegressor(**SWIFT).fit(np.r_[x, x[:20]], np.r_[y, y[:20]])
