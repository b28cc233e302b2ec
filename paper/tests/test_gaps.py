import numpy as np

from howsure_paper import splits


def test_gaps_and_tails():
    feature = np.random.default_rng(0).permutation(30)
    train, test = splits.gap(feature)
    assert sorted([*train, *test]) == list(range(30))
    assert sorted(feature[test]) == list(range(10, 20))
    train, test = splits.tail(feature)
    assert sorted([*train, *test]) == list(range(30))
    assert sorted(feature[test]) == [*range(5), *range(25, 30)]
