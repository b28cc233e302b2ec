import numpy as np
import pytest

import howsure as hs
from howsure.tables import splits


def check_partition(split, n):
    train, test = split
    assert sorted([*train, *test]) == list(range(n))
    assert len(train)
    assert len(test)


def test_random_splits():
    split = splits.random(100, 0.2, seed=1)
    check_partition(split, 100)
    assert len(split[1]) == 20
    assert not np.array_equal(split[1], splits.random(100, 0.2, seed=2)[1])


def test_splits_that_cannot_be_made():
    with pytest.raises(hs.InputError, match=r"\b1\b.*\b2\b"):
        splits.random(1)
    with pytest.raises(hs.InputError):
        splits.random(10, 1)
