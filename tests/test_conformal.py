import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import howsure as hs
from howsure.data.table import read_table
from howsure.distributions import Transform
from howsure.fitting import conformal
from howsure.fitting.conformal import (
    CalibrationRows,
    CrossConformal,
    Frame,
    Groups,
    SplitConformal,
    cross_ends,
    deal_folds,
    fewest_rows,
    quantile_of_scores,
    rank_of,
    scores_of,
    set_apart,
    stretch,
)
from howsure.prediction import Prediction


def gaussian(mean, std=1.0, **options):
    return Prediction(hs.Normal(torch.as_tensor(np.asarray(mean, dtype=float)), std), **options)


def skewed(rows, seed=0, targets=None, members=3):
    """A mixture of three Student t whose means differ."""
    g = np.random.default_rng(seed)
    shape = (members, rows) if targets is None else (members, rows, targets)
    numbers = (g.uniform(3, 9, shape), g.normal(0, 3, shape), g.uniform(0.3, 2, shape))
    return Prediction(hs.StudentT(*map(torch.from_numpy, numbers)), members=0)


# Ranks --------------------------------------------------------------------------------------------------------------


def test_ranks_are_those_of_decimal_numbers():
    for percent in range(1, 100):
        for rows in range(1, 250):
            exact = -(-(rows + 1) * percent // 100)
            assert rank_of(percent / 100, rows) == exact
        least = fewest_rows(percent / 100)
        assert rank_of(percent / 100, least) <= least
        assert least == 1 or rank_of(percent / 100, least - 1) > least - 1


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5, math.nan, math.inf])
def test_a_coverage_that_is_none_is_refused(coverage):
    with pytest.raises(hs.InputError, match="between 0 and 1"):
        fewest_rows(coverage)


@pytest.mark.parametrize("coverage", [None, "0.9", True, [0.9]])
def test_a_coverage_that_is_no_number_is_refused(coverage):
    with pytest.raises(hs.InputTypeError, match="coverage must be a number"):
        fewest_rows(coverage)


def test_too_few_scores_say_how_many_are_needed():
    with pytest.raises(hs.InputError, match=r"8 rows .* needs 9: .* at most 0\.888"):
        quantile_of_scores(np.arange(8.0), 0.9)
    assert quantile_of_scores(np.arange(9.0), 0.9) == 8.0


def test_scores_that_are_not_numbers_are_the_largest():
    assert quantile_of_scores([math.nan, 1.0, 2.0], 0.5) == 2.0
    assert quantile_of_scores([math.nan, 1.0, 2.0], 0.75) == math.inf


# Scores -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0.05, 0.5, 0.9, 0.999])
def test_a_score_is_the_smallest_factor_that_holds_y(coverage):
    p, y = skewed(200), np.random.default_rng(1).normal(0, 8, 200)
    frame = Frame.of(p.interval(coverage), p.mean)
    assert (frame.lower < frame.centre).all()
    assert (frame.centre < frame.upper).all()
    s = scores_of(frame, y)
    for factor, inside in ((s * (1 + 1e-9) + 1e-12, True), (s * (1 - 1e-6), False)):
        low, high = stretch(frame, factor).T
        holds = (low <= y) & (y <= high)
        assert holds.all() if inside else not holds[s > 0].any()


def test_the_centre_is_the_mean_in_the_inner_half_and_else_the_end_of_that_half():
    # brute force: the nearest point of the inner half to the mean
    g = np.random.default_rng(0)
    ends = np.sort(g.normal(0, 5, (500, 2)), axis=1)
    mean = g.normal(0, 5, 500)
    centre = Frame.of(ends, mean).centre
    for (low, high), m, c in zip(ends, mean, centre, strict=True):
        grid = np.linspace(low + (high - low) / 4, high - (high - low) / 4, 1001)
        assert abs(c - grid[np.argmin(np.abs(grid - m))]) <= (high - low) / 2000 + 1e-12


def test_an_interval_without_width_holds_its_centre_and_nothing_else():
    frame = Frame.of(np.array([[1e9, 1e9]] * 3), [1e9] * 3)
    assert scores_of(frame, [1e9, 1e9 + 1, 1e9 - 1]).tolist() == [0, math.inf, math.inf]
    assert stretch(frame, [1.0, math.inf, 0.0]).tolist() == [[1e9, 1e9]] * 3


def test_a_prediction_that_is_not_a_number_has_an_infinite_score():
    assert scores_of(Frame.of([[math.nan, math.nan]], [0.0]), [0.0]).tolist() == [math.inf]


@pytest.mark.parametrize("kind", ["positive", "log"])
def test_scores_under_a_transform_are_those_of_intervals_in_the_units_of_y(kind):
    base = skewed(100)
    transform = Transform(kind, 2.0, 0.3) if kind == "positive" else Transform(kind)
    p = Prediction(base.answers, members=0, transform=transform)
    y = np.abs(np.random.default_rng(2).normal(0, 6, 100))
    y[:20] = 0.0
    s = CalibrationRows(p, y, np.full(100, -1)).scores(0.9)[:, 0]
    if kind == "log":
        assert np.isinf(s[:20]).all()
    frame = Frame.of(base.interval(0.9), base.mean)
    for factor, inside in ((s * (1 + 1e-9) + 1e-9, True), (s * (1 - 1e-6), False)):
        z = stretch(frame, np.where(np.isinf(factor), 1e3, factor))
        low, high = (transform.forward(torch.from_numpy(z[:, k].copy())).numpy() for k in (0, 1))
        holds = ((low <= y) & (y <= high))[np.isfinite(s) & ((s > 0) | inside)]
        assert holds.all() if inside else not holds.any()


# Split --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "coverage"), [(9, 0.9), (37, 0.9), (100, 0.5), (199, 0.95)])
def test_coverage_of_split_has_the_beta_law(rows, coverage):
    """The model is wrong by a factor of two; the coverage of its stretched intervals is known from scipy."""
    g = np.random.default_rng(3)
    half = stats.norm.ppf(0.5 + coverage / 2)
    frame = Frame.of(np.tile([-half, half], (rows, 1)), np.zeros(rows))
    factors = [quantile_of_scores(scores_of(frame, g.normal(0, 2, rows)), coverage) for _ in range(2000)]
    found = 1 - 2 * stats.norm.sf(np.array(factors) * half / 2)
    rank = math.ceil((rows + 1) * round(coverage * 100) / 100 - 1e-9)
    law = stats.beta(rank, rows + 1 - rank)
    assert coverage - 1e-12 <= law.mean() <= coverage + 1 / (rows + 1) + 1e-12
    assert abs(np.mean(found) - law.mean()) < 5 * law.std() / math.sqrt(len(found))
    assert stats.kstest(found, law.cdf).pvalue > 1e-6


def test_split_covers_skewed_mixtures_of_every_size():
    """Scale and shift differ from row to row, the model's own coverage is far off, and y has heavy tails."""
    g, rows, sets = np.random.default_rng(4), 60, 400
    p = skewed(rows * sets)
    y = p.mean + 1.5 * p.std * g.standard_t(3, rows * sets) + 0.5
    frame = Frame.of(p.interval(0.8), p.mean)
    scores = scores_of(frame, y).reshape(rows, sets)
    factors = quantile_of_scores(scores[:-1], 0.8)
    first = SplitConformal(
        CalibrationRows(p[np.arange(rows - 1) * sets], y[: (rows - 1) * sets : sets], np.full(59, -1))
    )
    assert first.factors(0.8)[-1, 0] == pytest.approx(factors[0], rel=1e-12)
    low, high = stretch(frame.at(slice(-sets, None)), factors).T
    hits = (low <= y[-sets:]) & (y[-sets:] <= high)
    assert np.mean(scores[-1] <= 1) < 0.7
    assert np.mean(hits) > 0.8 - 5 * math.sqrt(0.16 / sets)


def test_rows_are_set_apart_at_random():
    learn, calibrate = set_apart(np.arange(5, 105), seed=0)
    assert len(calibrate) == 20
    assert sorted([*learn, *calibrate]) == list(range(5, 105))
    assert not np.array_equal(set_apart(np.arange(5, 105), seed=1)[1], calibrate)
    assert [len(part) for part in set_apart(np.arange(18), seed=0)] == [9, 9]
    assert [len(part) for part in set_apart(np.arange(100), seed=0, most=15)] == [85, 15]
    with pytest.raises(hs.InputError, match="at least 18 rows"):
        set_apart(np.arange(17), seed=0)
    counts = np.zeros(40)
    for seed in range(2000):
        counts[set_apart(np.arange(40), seed)[1]] += 1
    assert stats.chisquare(counts).pvalue > 1e-6


# CV+ ----------------------------------------------------------------------------------------------------------------


def without_fold(x, y, folds):
    """Least squares without each fold."""
    models = []
    for fold in folds:
        kept = np.setdiff1d(np.arange(len(y)), fold)
        models.append(np.linalg.lstsq(np.c_[np.ones(len(kept)), x[kept]], y[kept], rcond=None)[0])
    return models


def paper(x, y, folds, models, new, alpha):
    """Equation (13) of Barber et al. 2021, one row after the other."""
    lows, highs = [], []
    for fold, b in zip(folds, models, strict=True):
        for i in fold:
            residual = abs(y[i] - (b[0] + b[1] * x[i]))
            lows.append(b[0] + b[1] * new - residual)
            highs.append(b[0] + b[1] * new + residual)
    n = len(lows)
    return sorted(lows)[math.floor(alpha * (n + 1) + 1e-9) - 1], sorted(highs)[
        math.ceil((1 - alpha) * (n + 1) - 1e-9) - 1
    ]


def cross_of(x, y, folds, models, groups=None):
    codes = np.full(len(y), -1) if groups is None else groups
    rows = (
        CalibrationRows(gaussian(b[0] + b[1] * x[f], 0.7), y[f], codes[f]) for f, b in zip(folds, models, strict=True)
    )
    return tuple(rows)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_cross_intervals_are_those_of_the_paper(coverage):
    """With one scale for all rows the scores are the absolute errors, in other units."""
    g = np.random.default_rng(5)
    x = g.normal(size=64)
    y = 2 * x + g.standard_t(4, 64)
    folds = deal_folds(np.full(64, -1), seed=0)
    models = without_fold(x, y, folds)
    cross = CrossConformal(cross_of(x, y, folds, models))
    new = g.normal(0, 3, 30)
    at_new = [gaussian(b[0] + b[1] * new, 0.7) for b in models]
    found = cross.intervals(at_new, np.full(30, -1), np.zeros(30, dtype=int), coverage)
    expected = [paper(x, y, folds, models, each, 1 - coverage) for each in new]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_cross_intervals_in_small_parts_are_the_same(monkeypatch):
    g = np.random.default_rng(6)
    x = g.normal(size=(40, 2))
    y = x + g.normal(size=(40, 2))
    folds = deal_folds(np.full(40, -1), seed=0)
    rows = tuple(CalibrationRows(gaussian(x[f] * 0.9, 0.5), y[f], np.full(len(f), -1)) for f in folds)
    new = [gaussian(g.normal(size=(17, 2)), 0.5) for _ in folds]
    codes, targets = np.full((17, 2), -1), np.tile([0, 1], (17, 1))
    whole = CrossConformal(rows).intervals(new, codes, targets, 0.9)
    monkeypatch.setattr(conformal, "AT_ONCE", 100)
    np.testing.assert_array_equal(CrossConformal(rows).intervals(new, codes, targets, 0.9), whole)
    # a target alone is as if there were no other
    alone = tuple(CalibrationRows(gaussian(x[f, 1] * 0.9, 0.5), y[f, 1], np.full(len(f), -1)) for f in folds)
    second = CrossConformal(alone).intervals([p[:, 1] for p in new], codes[:, 0], np.zeros(17, dtype=int), 0.9)
    np.testing.assert_allclose(second, whole[:, 1], rtol=1e-12)


def test_cross_intervals_hold_their_share_on_exchangeable_rows():
    g = np.random.default_rng(7)
    hits = []
    for seed in range(500):
        x = g.normal(size=33)
        y = x**2 + g.standard_t(3, 33)
        folds = deal_folds(np.full(32, -1), seed)
        models = without_fold(x[:32], y[:32], folds)
        frames = [Frame.of([[b[0] + b[1] * x[32] - 1, b[0] + b[1] * x[32] + 1]], [0.0]) for b in models]
        scores = [np.abs(y[f] - b[0] - b[1] * x[f])[:, None] for f, b in zip(folds, models, strict=True)]
        frames = [f._replace(centre=(f.lower + f.upper) / 2) for f in frames]
        ends = [stretch(frame, own) for frame, own in zip(frames, scores, strict=True)]
        ((low, high),) = cross_ends([e[..., 0] for e in ends], [e[..., 1] for e in ends], 0.9)
        hits.append(low <= y[32] <= high)
    # the theorem says at least 1 − 2α − 0.084 at n = 32; what is seen in practice is about 1 − α
    assert np.mean(hits) > 0.9 - 5 * math.sqrt(0.09 / len(hits))


def test_cross_ends_of_too_few_scores_are_refused():
    with pytest.raises(hs.InputError, match="4 rows"):
        cross_ends([np.zeros((2, 1))] * 2, [np.zeros((2, 1))] * 2, 0.9)


def test_folds_have_one_size_and_equal_shares_of_every_group():
    codes = np.r_[np.full(37, 0), np.full(100, 1), np.full(5, 2), np.full(10, -1)]
    folds = deal_folds(codes, seed=0)
    assert len({len(fold) for fold in folds}) == 1
    together = np.concatenate(folds)
    assert len(set(together)) == len(together)
    for fold in folds:
        assert [int((codes[fold] == code).sum()) for code in (0, 1)] == [4, 12]
        assert int((codes[fold] == 2).sum() + (codes[fold] == -1).sum()) == 1
    assert len(np.concatenate(deal_folds(np.full(1000, -1), seed=0, most=80))) == 80
    with pytest.raises(hs.InputError, match="at least 16 rows"):
        deal_folds(np.full(15, -1), seed=0)


# Groups -------------------------------------------------------------------------------------------------------------


def groups_table(rows=60):
    site = np.where(np.arange(rows) % 3 == 0, "b", "a").astype(object)
    site[:2] = [None, "rare"]
    return read_table(pd.DataFrame({"x": np.arange(rows, dtype=float), "site": site, "shift": np.arange(rows) % 2}))


def test_groups_are_equal_values_of_their_columns():
    table = groups_table()
    groups = Groups.learn(table, "site")
    assert groups.keys == (("a",), ("b",))
    codes = groups.codes(table)
    assert codes[:6].tolist() == [-1, -1, 0, 1, 0, 0]
    assert Groups.learn(table, 1) == groups
    both = Groups.learn(table, ["site", "shift"])
    assert set(both.keys) == {(site, shift) for site in "ab" for shift in (0.0, 1.0)}
    assert Groups.learn(table, "x").keys == ()
    assert Groups.from_dict(both.to_dict()) == both
    unseen = read_table(pd.DataFrame({"x": [0.0], "site": ["elsewhere"], "shift": [1]}))
    assert groups.codes(unseen).tolist() == [-1]


@pytest.mark.parametrize("columns", ["nowhere", 3, -1, 1.0, True, None, [], ["site", "site"], [["site"]], {"site": 1}])
def test_columns_that_are_not_there_are_refused(columns):
    with pytest.raises(hs.InputError, match="conformal_groups"):
        Groups.learn(groups_table(), columns)


@pytest.mark.parametrize(
    "saved",
    [
        None,
        {},
        {"columns": [], "keys": []},
        {"columns": ["a"], "keys": [["x", "y"]]},
        {"columns": ["a"], "keys": [[math.nan]]},
        {"columns": ["a"], "keys": [[["x"]]]},
        {"columns": ["a"], "keys": [["x"], ["x"]]},
        {"columns": [1], "keys": []},
        {"columns": "a", "keys": []},
    ],
)
def test_groups_from_a_hostile_file_are_refused(saved):
    with pytest.raises(hs.InputError):
        Groups.from_dict(saved)


def test_every_group_with_rows_enough_has_its_own_factor():
    """One group is noisier by ten; a rare one has the factor of all rows."""
    g = np.random.default_rng(8)
    codes = np.r_[np.zeros(300, dtype=int), np.ones(300, dtype=int), np.full(5, 2)]
    y = g.normal(size=605) * np.where(codes == 1, 10, 1)
    groups = Groups(("site",), (("a",), ("b",), ("c",)))
    split = SplitConformal(CalibrationRows(gaussian(np.zeros(605)), y, codes), groups)
    a, b, c, whole = split.factors(0.9)[:, 0]
    half = stats.norm.ppf(0.95)
    for found, own in ((a, y[:300]), (b, y[300:600])):
        assert found == pytest.approx(sorted(np.abs(own))[math.ceil(301 * 0.9) - 1] / half)
    assert c == whole == pytest.approx(sorted(np.abs(y))[math.ceil(606 * 0.9) - 1] / half)
    with pytest.raises(hs.InputError, match="605 rows"):
        split.factors(0.9999)
    assert split.factors(0.998)[0, 0] == split.factors(0.998)[-1, 0]  # 300 rows are too few, 605 enough


def test_groups_of_cv_plus_use_their_own_scores():
    g = np.random.default_rng(9)
    codes = np.repeat([0, 1], 80)
    x = g.normal(size=160)
    y = x + g.normal(size=160) * np.where(codes == 1, 10, 1)
    folds = deal_folds(codes, seed=0)
    models = without_fold(x, y, folds)
    cross = CrossConformal(cross_of(x, y, folds, models, codes), Groups(("site",), (("a",), ("b",))))
    new = np.linspace(-1, 1, 6)
    at_new = [gaussian(b[0] + b[1] * new, 0.7) for b in models]
    found = cross.intervals(at_new, np.array([0, 1, -1] * 2), np.zeros(6, dtype=int), 0.9)
    for k, code in enumerate([0, 1, -1] * 2):
        own = [fold if code < 0 else fold[codes[fold] == code] for fold in folds]
        np.testing.assert_allclose(found[k], paper(x, y, own, models, new[k], 0.1), atol=1e-9)


# Predictions with a guarantee ---------------------------------------------------------------------------------------


def calibrated(targets=None, cross=False, transform=None, groups=None, rows=200, seed=10):
    """A calibration, and a function that predicts the first new rows with it."""
    g = np.random.default_rng(seed)
    named = None if groups is None else Groups(("site",), tuple((name,) for name in groups))
    labels = np.full(rows, -1) if groups is None else np.arange(rows) % (len(groups) + 1) - 1

    def model(count, k):
        p = skewed(count, seed=100 * seed + k, targets=targets)
        return p if transform is None else Prediction(p.answers, members=0, transform=transform)

    def part(k, count, codes):
        p = model(count, k)
        y = p.sample(1, seed=k)[0] * (1.5 if transform is None else 2.0) + (
            g.normal(size=p.shape) if not transform else 0
        )
        return CalibrationRows(p, y, codes)

    new = model(30, 50)
    codes = np.resize(labels, 30)
    if not cross:
        split = SplitConformal(part(0, rows, labels), named)
        return split, new, split.apply(new, codes), codes
    each = rows // 4
    made = CrossConformal(tuple(part(k, each, labels[k * each : (k + 1) * each]) for k in range(4)), named)
    folds = [model(30, 60 + k) for k in range(4)]
    return made, new, made.apply(new, folds, codes), codes


CASES = [
    {},
    {"targets": 2},
    {"cross": True},
    {"cross": True, "targets": 2},
    {"groups": ("a", "b")},
    {"cross": True, "groups": ("a",), "targets": 2},
    {"transform": Transform("positive", 2.0, 0.3)},
    {"transform": Transform("log")},
    {"cross": True, "transform": Transform("positive", 2.0, 0.3)},
    {"cross": True, "transform": Transform("positive", [2.0, 1.0], [0.3, 0.0]), "targets": 2},
]


@pytest.mark.parametrize("case", CASES)
def test_the_distribution_has_the_interval_of_90_percent_and_all_intervals_their_factor(case):
    made, plain, p, codes = calibrated(**case)
    transform = plain.transform
    own = Prediction(plain.answers, members=0)
    for coverage in (0.5, 0.9, 0.97):
        frame = Frame.of(own.interval(coverage), own.mean)
        if case.get("cross"):
            inner = made.intervals(p.guarantee.folds, p.guarantee.groups, p.guarantee.targets, coverage)
            ends = p.interval(coverage)
            assert (ends[..., 0] <= inner[..., 0]).all()
            assert (ends[..., 1] >= inner[..., 1]).all()
            touches = np.isclose(ends, inner, rtol=1e-6).any(-1)  # it is no wider than it must be
            assert touches.all()
        else:
            table = made.factors(coverage)
            factor = np.stack([table[codes, t] for t in range(table.shape[1])], axis=-1).reshape(plain.shape)
            z = stretch(frame, factor)
            if transform is not None:
                z = np.stack([transform.forward(torch.from_numpy(z[..., k].copy())).numpy() for k in (0, 1)], axis=-1)
            np.testing.assert_allclose(p.interval(coverage), z, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(Prediction(p.distribution).interval(0.9), p.interval(0.9), rtol=1e-6, atol=1e-9)
    if transform is None:
        np.testing.assert_allclose(p.mean, plain.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(p.std, plain.std * p.guarantee.scale, rtol=1e-9)


@pytest.mark.parametrize("case", [CASES[k] for k in (0, 1, 4, 5, 6, 9)])
def test_parts_and_joined_predictions_keep_their_guarantee(case):
    _, _, p, _ = calibrated(**case)
    whole = p.interval(0.8)
    keys = [slice(3, 9), [4, 2, 2], np.arange(30) % 3 == 0, 5, slice(None, None, -1), slice(0, 0)]
    for key in keys:
        np.testing.assert_allclose(p[key].interval(0.8), whole[key], rtol=1e-10)
    if len(p.shape) == 2:
        np.testing.assert_allclose(p[:, 1].interval(0.8), whole[:, 1], rtol=1e-10)
        np.testing.assert_allclose(p[2:5, 0].interval(0.8), whole[2:5, 0], rtol=1e-10)
    np.testing.assert_allclose(Prediction.cat([p[:7], p[7:]]).interval(0.8), whole, rtol=1e-10)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(p)).interval(0.8), whole, rtol=1e-10)
    np.testing.assert_allclose(p.detach().to(torch.float64).interval(0.8), whole, rtol=1e-10)
    frame = p.to_frame(coverage=[0.8, 0.9])
    first = "lower_0.8" if len(p.shape) == 1 else "y0_lower_0.8"
    np.testing.assert_allclose(frame[first], whole.reshape(30, -1)[:, 0])
    y = p.sample(1, seed=0)[0]
    inside = ((whole[..., 0] <= y) & (y <= whole[..., 1])).mean()
    assert hs.metrics.coverage(p, y, 0.8) == pytest.approx(inside)
    assert p.scaled(2.0).guarantee is None


def test_guarantees_that_do_not_belong_together_are_not_joined():
    _, plain, first, _ = calibrated()
    _, _, second, _ = calibrated(seed=11)
    with pytest.raises(hs.InputError, match="different models"):
        Prediction.cat([first, second])
    with pytest.raises(hs.InputError, match="of others none"):
        Prediction.cat([first, plain])


def test_coverages_that_the_rows_cannot_guarantee_are_refused():
    _, _, p, _ = calibrated(rows=20)
    assert p.interval(0.95).shape == (30, 2)
    with pytest.raises(hs.InputError, match=r"20 rows to calibrate with cannot guarantee a coverage of 0.99"):
        p.interval(0.99)
    _, _, p, _ = calibrated(rows=20, cross=True)
    with pytest.raises(hs.InputError, match=r"20 rows to calibrate with cannot guarantee a coverage of 0.99"):
        p.interval(0.99)


def test_rows_whose_targets_are_impossible_are_said():
    p = Prediction(hs.Normal(torch.zeros(20).double(), 1.0), transform=Transform("log"))
    split = SplitConformal(CalibrationRows(p, np.zeros(20), np.full(20, -1)))
    with pytest.raises(hs.InputError, match="another target_transform"):
        split.apply(p, np.full(20, -1))


def test_a_perfect_model_has_a_small_factor_and_not_none():
    p = Prediction(hs.Normal(torch.arange(20.0).double(), 1.0))
    split = SplitConformal(CalibrationRows(p, np.arange(20.0), np.full(20, -1)))
    assert 0 < split.apply(p, np.full(20, -1)).std.max() < 1e-5


def test_split_holds_in_simulation_for_every_coverage_and_group():
    """Through `apply` and `interval`: skewed mixtures, a noisy and a quiet group, all as new data."""
    g = np.random.default_rng(12)
    codes = (np.arange(6000) % 2).astype(int)
    p = skewed(6000, seed=3)
    y = p.sample(1, seed=1)[0] + g.normal(size=6000) * np.where(codes, 8, 0.5)
    split = SplitConformal(CalibrationRows(p[:2000], y[:2000], codes[:2000]), Groups(("s",), ((0.0,), (1.0,))))
    new = split.apply(p[2000:], codes[2000:])
    for coverage in (0.3, 0.8, 0.95):
        low, high = new.interval(coverage).T
        inside = (low <= y[2000:]) & (y[2000:] <= high)
        for code in (0, 1):
            share = inside[codes[2000:] == code].mean()
            error = math.sqrt(coverage * (1 - coverage) * (1 / 1000 + 1 / 2000))
            assert abs(share - coverage) < 5 * error


def test_what_does_not_fit_together_is_refused():
    p = skewed(20)
    rows = CalibrationRows(p, torch.from_numpy(p.mean))
    assert rows.groups.tolist() == [-1] * 20
    for y, words in ((p.mean[:5], "shape"), (np.full(20, np.nan), "missing"), (np.full(20, np.inf), "finite")):
        with pytest.raises(hs.InputError, match=words):
            CalibrationRows(p, y)
    for groups in (np.zeros(19, dtype=int), np.zeros(20), np.zeros((20, 1), dtype=int)):
        with pytest.raises(hs.InputError, match="20 whole numbers"):
            CalibrationRows(p, p.mean, groups)
        with pytest.raises(hs.InputError, match="20 whole numbers"):
            SplitConformal(rows).apply(p, groups)
    with pytest.raises(hs.InputError, match="not exchangeable"):
        CalibrationRows(Prediction(hs.Normal(torch.zeros(4, 3, 3), 1.0)), np.zeros((4, 3, 3)))
    with pytest.raises(hs.InputError, match="of 1 targets"):
        SplitConformal(rows).apply(skewed(20, targets=2))
    assert SplitConformal(rows).apply(p).interval(0.5).shape == (20, 2)


# State --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [None, 2])
def test_rows_come_back_from_their_state(targets):
    p = skewed(50, targets=targets)
    y = p.mean + 1.0
    groups = Groups(("site",), (("a",),))
    split = SplitConformal(CalibrationRows(p, y, np.where(np.arange(50) < 30, 0, -1)), groups)
    tensors, settings = split.state()
    back = SplitConformal.from_state(tensors, settings, None, targets)
    for coverage in (0.31, 0.9):
        np.testing.assert_array_equal(back.factors(coverage), split.factors(coverage))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(split)).factors(0.5), split.factors(0.5))


def test_a_member_without_weight_is_not_saved():
    p = skewed(50)
    weighted = Prediction(p.answers, members=0, weights=[0.3, 0.0, 0.7])
    split = SplitConformal(CalibrationRows(weighted, p.mean + 1.0, np.full(50, -1)))
    tensors, settings = split.state()
    assert tensors["conformal.0.loc"].shape == (2, 50)
    back = SplitConformal.from_state(tensors, settings, None, None)
    np.testing.assert_allclose(back.factors(0.9), split.factors(0.9), rtol=1e-9)


def test_a_cross_calibration_comes_back_from_its_state():
    made, plain, p, codes = calibrated(cross=True, groups=("a",))
    tensors, settings = made.state()
    back = CrossConformal.from_state(tensors, settings, [None] * 4, None)
    again = back.apply(plain, p.guarantee.folds, codes)
    np.testing.assert_array_equal(again.interval(0.8), p.interval(0.8))
    with pytest.raises(hs.InputError):
        CrossConformal.from_state(tensors, settings, [None] * 3, None)
    with pytest.raises(hs.InputError, match="each of 4 models"):
        back.apply(plain, p.guarantee.folds[:3], codes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("y", torch.full((50,), math.nan, dtype=torch.float64)),
        ("y", torch.zeros(49, dtype=torch.float64)),
        ("y", torch.zeros(50, dtype=torch.float32)),
        ("y", torch.tensor(0.0, dtype=torch.float64)),
        ("loc", torch.zeros(3, 49, dtype=torch.float64)),
        ("loc", torch.tensor(1.0, dtype=torch.float64)),
        ("scale", torch.zeros(3, 50, dtype=torch.float64)),
        ("df", torch.full((3, 50), -1.0, dtype=torch.float64)),
        ("groups", torch.full((50,), 7)),
        ("groups", torch.full((50,), -2)),
        ("groups", torch.zeros(50)),
        ("other", torch.zeros(50)),
        ("weights", torch.zeros(2, dtype=torch.float64)),
        ("scale", None),
        ("y", None),
    ],
)
def test_a_hostile_state_is_refused(name, value):
    p = skewed(50)
    tensors, settings = SplitConformal(CalibrationRows(p, p.mean, np.full(50, -1))).state()
    tensors.pop(f"conformal.0.{name}", None)
    if value is not None:
        tensors[f"conformal.0.{name}"] = value
    with pytest.raises(hs.InputError):
        SplitConformal.from_state(tensors, settings, None, None)


@pytest.mark.parametrize("saved", [None, {}, {"parts": 2, "groups": None}, {"parts": 1, "groups": []}])
def test_hostile_settings_are_refused(saved):
    p = skewed(50)
    tensors, _ = SplitConformal(CalibrationRows(p, p.mean, np.full(50, -1))).state()
    with pytest.raises(hs.InputError):
        SplitConformal.from_state(tensors, saved, None, None)
