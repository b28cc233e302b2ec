import json
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from sklearn.isotonic import IsotonicRegression

import howsure as hs
from howsure import metrics
from howsure.distributions import Transform
from howsure.errors import FewLabelsWarning
from howsure.prediction import Prediction


def mixture(rows, targets=None, seed=0, members=3, **options):
    g = np.random.default_rng(seed)
    shape = (members, rows) if targets is None else (members, rows, targets)
    numbers = (g.uniform(2.5, 9, shape), g.normal(0, 2, shape), g.uniform(0.3, 2, shape))
    return Prediction(hs.StudentT(*map(torch.from_numpy, numbers)), members=0, **options)


def evidential(shape, seed=0):
    g = np.random.default_rng(seed)
    numbers = (g.normal(0, 2, shape), g.uniform(0.5, 3, shape), g.uniform(1.5, 6, shape), g.uniform(0.5, 2, shape))
    return hs.NormalInverseGamma(*map(torch.from_numpy, numbers))


def scipy_density(p, y, s):
    """Density of the stretched mixture, from its definition: Y' = m + s(Y − m)."""
    each = p.answers
    df, loc, scale = (np.asarray(t) for t in (each.df, each.loc, each.scale))
    weights = np.full(len(loc), 1 / len(loc)) if p.weights is None else p.weights
    weights = weights.reshape(-1, *(1,) * (loc.ndim - 1))
    mean = (weights * loc).sum(0)
    back = mean + (y - mean) / s
    return (weights * stats.t.pdf(back, df, loc, scale)).sum(0) / s


# Prediction.scaled ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, [0.2, 0.5, 0.3]])
def test_scaled_mixture_has_the_density_of_a_stretched_variable(weights):
    p, factor = mixture(40, weights=weights), np.random.default_rng(1).uniform(0.2, 5, 40)
    y = np.random.default_rng(2).normal(0, 5, 40)
    scaled = p.scaled(factor)
    np.testing.assert_allclose(scaled.density(y), scipy_density(p, y, factor), rtol=1e-10)
    np.testing.assert_allclose(scaled.mean, p.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(scaled.std, p.std * factor, rtol=1e-10)
    ends = p.mean[:, None] + factor[:, None] * (p.interval(0.7) - p.mean[:, None])
    np.testing.assert_allclose(scaled.interval(0.7), ends, rtol=1e-8)


@pytest.mark.parametrize("known", [False, True])
def test_scaling_keeps_the_shares_of_the_variance(known):
    familiarity = torch.from_numpy(np.random.default_rng(3).uniform(0.05, 1, (4, 30))) if known else None
    p = Prediction(evidential((4, 30)), members=0, familiarity=familiarity)
    factor = np.linspace(0.3, 4, 30)
    scaled = p.scaled(factor)
    for way in ("paper", "identified"):
        for before, after in zip(p.decompose(way), scaled.decompose(way), strict=True):
            np.testing.assert_allclose(after, before * factor**2, rtol=1e-9)
    if known:
        np.testing.assert_array_equal(scaled.familiarity, p.familiarity)
    draws = scaled.sample(4000, seed=0)
    quartiles = np.quantile(draws, [0.25, 0.5, 0.75], axis=0).T
    assert np.abs(scaled.cdf(quartiles[:, 1]) - 0.5).max() < 5 * 0.5 / math.sqrt(4000)
    back = scaled.scaled(1 / factor)
    np.testing.assert_allclose(back.interval(0.9), p.interval(0.9), rtol=1e-9)


def test_factor_of_one_changes_nothing_and_a_transform_comes_after():
    p = mixture(30)
    np.testing.assert_array_equal(p.scaled(1).interval(0.9), p.interval(0.9))
    positive = Prediction(p.answers, members=0, transform=Transform("positive", 2.0, 0.1))
    lower = positive.transform.forward(torch.from_numpy(p.scaled(2.5).interval(0.9))).numpy()
    np.testing.assert_allclose(positive.scaled(2.5).interval(0.9), lower, rtol=1e-10)


def test_factors_of_rows_targets_and_images():
    p = mixture(20, targets=3)
    by_row, by_target = np.linspace(1, 2, 20), np.array([[0.5, 1.0, 2.0]])
    np.testing.assert_allclose(p.scaled(by_row).std, p.std * by_row[:, None])
    np.testing.assert_allclose(p.scaled(by_target).std, p.std * by_target)
    np.testing.assert_allclose(p.scaled(by_row[:, None] * by_target).std, p.std * by_row[:, None] * by_target)
    image = Prediction(evidential((5, 4, 6)))
    np.testing.assert_allclose(image.scaled(np.arange(1, 6)).std, image.std * np.arange(1, 6)[:, None, None])
    assert Prediction(hs.Normal(0.0, 1.0)).scaled(3).std == 3
    labelled = mixture(4)
    labelled.index = np.array(list("abcd"))
    assert labelled.scaled(2.0).to_frame().index.tolist() == list("abcd")


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, [1.0, 2.0], np.ones((3, 20)), np.ones((20, 3, 1)), []])
def test_factors_that_cannot_be_raise(factor):
    with pytest.raises(hs.InputError, match="factor"):
        mixture(20, targets=3).scaled(factor)


@pytest.mark.parametrize("factor", ["2", None, [None] * 20, 1j])
def test_factors_that_are_no_numbers_raise(factor):
    with pytest.raises((hs.InputError, hs.InputTypeError), match="factor"):
        mixture(20).scaled(factor)


# One scale ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("true", [0.05, 0.9, 7.0, 300.0])
def test_scale_of_the_highest_likelihood_is_that_of_scipy(true):
    p = mixture(300, seed=4)
    y = p.mean + true * (p.sample(1, seed=0)[0] - p.mean)
    found = hs.calibrate(p, y).factors[0]

    def surprise(log_s):
        return -np.log(scipy_density(p, y, math.exp(log_s))).mean()

    expected = optimize.minimize_scalar(surprise, bracket=(math.log(true) - 1, math.log(true) + 1), tol=1e-12)
    assert found == pytest.approx(math.exp(expected.x), rel=1e-5)
    assert found == pytest.approx(true, rel=0.3)


def test_scale_of_a_gaussian_is_the_root_mean_square():
    g = np.random.default_rng(5)
    mean, std = g.normal(size=50), g.uniform(0.5, 2, 50)
    y = mean + 3 * std * g.normal(size=50)
    answer = hs.Normal(torch.from_numpy(mean), torch.from_numpy(std))
    rms = math.sqrt(np.mean(((y - mean) / std) ** 2))
    assert hs.calibrate(answer, y).factors[0] == pytest.approx(rms, rel=1e-6)
    assert hs.calibrate(Prediction(answer).to(torch.float32), y).factors[0] == pytest.approx(rms, rel=1e-3)
    assert hs.calibrate(answer, 1e6 * (y - mean) + mean).factors[0] == pytest.approx(1e6 * rms, rel=1e-6)


@pytest.mark.parametrize("labels", [1, 5, 19])
def test_scale_of_few_labels_is_shrunk_towards_one_and_warns(labels):
    y = 3 * np.random.default_rng(7).normal(size=labels)
    with pytest.warns(FewLabelsWarning) as caught:
        found = hs.calibrate(hs.Normal(torch.zeros(labels, dtype=torch.float64), 1.0), y).factors[0]
    assert found == pytest.approx(math.sqrt(np.mean(y**2)) ** (labels / 20), rel=1e-6)
    assert (caught[0].message.target, caught[0].message.labels) == (0, labels)


@pytest.mark.parametrize("method", ["scale", "isotonic"])
def test_target_without_labels_stays_as_it_is_and_warns(method):
    p = mixture(60, targets=2, seed=6)
    mask = np.ones((60, 2), dtype=bool)
    mask[:, 1] = False
    with pytest.warns(FewLabelsWarning) as caught:
        calibrated = hs.calibrate(p, p.sample(1, seed=1)[0], method=method, mask=mask).apply(p)
    assert (caught[0].message.target, caught[0].message.labels) == (1, 0)
    np.testing.assert_allclose(calibrated.interval(0.8)[:, 1], p.interval(0.8)[:, 1], rtol=1e-6)


def test_every_target_has_its_own_scale_and_masked_ones_count_for_none():
    p = mixture(200, targets=2, seed=6)
    y = p.mean + np.array([0.5, 4.0]) * (p.sample(1, seed=1)[0] - p.mean)
    both = hs.calibrate(p, y)
    for t in (0, 1):
        assert both.factors[t] == pytest.approx(hs.calibrate(p[:, t], y[:, t]).factors[0], rel=1e-6)
    np.testing.assert_allclose(both.apply(p).std, p.std * both.factors)
    mask = np.random.default_rng(7).random(y.shape) < 0.5
    holes = np.where(mask, y, np.nan)
    masked = hs.calibrate(p, holes, mask=mask)
    rows = mask[:, 1]
    assert masked.factors[1] == pytest.approx(hs.calibrate(p[rows, 1], y[rows, 1]).factors[0], rel=1e-6)
    with pytest.raises(hs.InputError):
        hs.calibrate(p, holes)
    with pytest.raises(hs.InputError, match=r"\(200,\)"):
        both.apply(p[:, 0])


def test_images_with_a_mask_have_one_scale_and_many_pixels_are_drawn_from(monkeypatch):
    answer = evidential((6, 20, 30))
    p = Prediction(answer)
    y = p.mean + 3 * (p.sample(1, seed=0)[0] - p.mean)
    mask = np.random.default_rng(8).random(y.shape) < 0.7
    whole = hs.calibrate(answer, torch.from_numpy(np.where(mask, y, np.nan)), mask=torch.from_numpy(mask))
    assert whole.factors == pytest.approx([3.0], rel=0.1)
    assert whole.apply(answer).shape == (6, 20, 30)
    monkeypatch.setattr("howsure.calibration.MAX_TARGETS", 1000)
    drawn = hs.calibrate(answer, y, mask=mask).factors
    assert drawn == pytest.approx(whole.factors, rel=0.15)
    assert drawn != whole.factors
    batches = Prediction.cat([p[:2], p[2:]])
    assert hs.calibrate(batches, y, mask=mask).factors == pytest.approx(drawn, rel=1e-9)


def test_scale_lowers_the_nll_of_new_rows_and_corrects_their_coverage():
    p = mixture(4000, seed=9)
    y = p.mean + 2.5 * (p.sample(1, seed=2)[0] - p.mean)
    after = hs.calibrate(p[:300], y[:300]).apply(p[300:])
    assert metrics.nll(after, y[300:]) < metrics.nll(p[300:], y[300:]) - 0.1
    assert abs(metrics.coverage(after, y[300:], 0.9) - 0.9) < 0.03


@pytest.mark.parametrize("kind", ["positive", "log"])
def test_scale_under_a_transform_is_that_of_the_variable_before_it(kind):
    base = mixture(200, seed=10)
    z = base.mean + 3 * (base.sample(1, seed=3)[0] - base.mean)
    transform = Transform(kind, 2.0) if kind == "positive" else Transform(kind)
    p = Prediction(base.answers, members=0, transform=transform)
    y = transform.forward(torch.from_numpy(z)).numpy()
    possible = y > 1e-200
    found = hs.calibrate(p[possible], y[possible]).factors[0]
    assert found == pytest.approx(hs.calibrate(base[possible], z[possible]).factors[0], rel=1e-4)
    y[0] = 0.0
    with pytest.raises(hs.InputError, match="mask="):
        hs.calibrate(p, y)


def test_targets_at_the_means_have_no_scale():
    p = Prediction(hs.Normal(torch.arange(5.0), 1.0))
    with pytest.raises(hs.InputError):
        hs.calibrate(p, np.arange(5.0))
    with pytest.raises(hs.InputError):
        hs.calibrate(p, np.arange(5.0) + 1, mask=np.zeros(5, dtype=bool))
    with pytest.raises(hs.InputError):
        hs.calibrate(p, [math.inf] * 5)
    with pytest.raises(hs.InputError, match=r"\(4,\)"):
        hs.calibrate(p, np.arange(4.0))
    with pytest.raises(hs.InputError, match="platt"):
        hs.calibrate(p, np.arange(5.0), method="platt")
    with pytest.raises(hs.InputError, match="None"):
        hs.calibrate(p, np.arange(5.0), method=None)
    for shape in ((), (0,), (5, 0)):
        with pytest.raises(hs.InputError) as caught:
            hs.calibrate(hs.Normal(torch.zeros(shape), 1.0), np.zeros(shape))
        assert str(shape) in caught.value.message
    with pytest.raises(hs.InputError):
        hs.calibrate(p, np.arange(5.0), method=np.array(["scale", "isotonic"]))
    with pytest.raises(hs.InputError):
        hs.calibrate(np.zeros(5), np.arange(5.0))


# A monotone map -------------------------------------------------------------------------------------------------------


def test_map_is_the_isotonic_regression_of_ranks():
    p = mixture(400, seed=11)
    y = p.mean + 2 * (p.sample(1, seed=4)[0] - p.mean) + 1
    stated = p.cdf(y)
    ranks = stats.rankdata(stated) / 401
    regression = IsotonicRegression(out_of_bounds="clip").fit(stated, ranks)
    found = hs.calibrate(p, y, method="isotonic").apply(p).cdf(y)
    np.testing.assert_allclose(found, regression.predict(stated), atol=1e-12)


@pytest.mark.parametrize("targets", [None, 2])
def test_quantiles_and_probabilities_of_a_map_are_inverse(targets):
    p = mixture(300, targets=targets, seed=12)
    y = p.mean + 2 * (p.sample(1, seed=5)[0] - p.mean) + 1
    after = hs.calibrate(p, y, method="isotonic").apply(p)
    for q in (0.03, 0.5, 0.98):
        np.testing.assert_allclose(after.cdf(after.quantile(q)), q, atol=1e-8)
    ends = after.interval(0.8)
    np.testing.assert_allclose(ends[..., 0], after.quantile(0.5 * (1 - 0.8)), rtol=1e-12)
    assert ends.shape == (*p.shape, 2)
    assert after.median.shape == after.shape == p.shape
    inside = ((ends[..., 0] <= y) & (y <= ends[..., 1])).mean()
    assert after.coverage(y, 0.8) == pytest.approx(inside, abs=0.01)
    assert "shape" in repr(after)


def test_map_corrects_where_a_scale_cannot():
    """Exponential noise under a Gaussian prediction, on new rows."""
    g = np.random.default_rng(13)
    mean = g.normal(size=6000)
    y = mean + g.exponential(size=6000)
    p = Prediction(hs.Normal(torch.from_numpy(mean), 1.0))
    map_, scale = (hs.calibrate(p[:2000], y[:2000], method=method).apply(p[2000:]) for method in ("isotonic", "scale"))
    new = y[2000:]
    for q in (0.1, 0.5, 0.9):
        assert abs((new <= map_.quantile(q)).mean() - q) < 5 * math.sqrt(q * (1 - q) / 2000)
    assert abs((new <= scale.quantile(0.1)).mean() - 0.1) > 0.05
    assert abs(map_.coverage(new, 0.9) - 0.9) < 0.03
    for absent in ("log_prob", "density", "mean", "std"):
        assert not hasattr(map_, absent)


def test_map_of_many_rows_is_thinned_and_ties_and_atoms_are_fine():
    p = Prediction(hs.Normal(torch.zeros(20_000), 1.0))
    y = 2 * np.random.default_rng(14).normal(size=20_000)
    calibration = hs.calibrate(p, y, method="isotonic")
    assert len(calibration.numbers[0]) <= 1001
    found = calibration.apply(p[:3]).quantile([0.1, 0.9])
    np.testing.assert_allclose(found, [stats.norm.ppf([0.1, 0.9], scale=2)] * 3, atol=0.1)
    tied = hs.calibrate(p[:20], np.zeros(20), method="isotonic").apply(p[:20])
    np.testing.assert_allclose(tied.cdf(np.zeros(20)), 0.5)
    zeros = Prediction(hs.Normal(torch.zeros(1000), 1.0), transform=Transform("positive", 1.0, 0.7))
    atoms = hs.calibrate(zeros, zeros.sample(1, seed=0)[0], method="isotonic")
    stated, observed = np.array(atoms.numbers[0]).T
    assert np.abs(stated - observed).max() < 5 * 0.5 / math.sqrt(1000)
    far = hs.calibrate(p[:50], np.full(50, 1e9), method="isotonic").apply(p[:50])
    assert np.isfinite(far.interval(0.9)).all()


def test_map_raises_for_moments_and_density():
    p = mixture(50)
    after = hs.calibrate(p, p.mean + 1, method="isotonic").apply(p)
    for q in (-0.1, 1.1, [], [[0.5]]):
        with pytest.raises(hs.InputError) as caught:
            after.quantile(q)
        assert repr(q) in caught.value.message
    for coverage in (0, 1, 2, math.nan):
        with pytest.raises(hs.InputError, match="coverage"):
            after.interval(coverage)
    with pytest.raises(hs.InputError, match="coverage"):
        after.interval("0.9")
    with pytest.raises(hs.InputError, match='"isotonic"'):
        _ = after.calibration.factors
    with pytest.raises(hs.InputError):
        after.coverage(p.mean, mask=np.zeros(50, dtype=bool))


# Plain values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["scale", "isotonic"])
@pytest.mark.parametrize("targets", [None, 2])
def test_calibration_survives_json_and_pickle(method, targets):
    p = mixture(60, targets=targets)
    calibration = hs.calibrate(p, p.mean + 1.0 + 0.1 * p.std, method=method)
    back = hs.calibration.Calibration.from_dict(json.loads(json.dumps(calibration.to_dict())))
    assert back == calibration == pickle.loads(pickle.dumps(calibration))
    np.testing.assert_array_equal(back.apply(p).interval(0.9), calibration.apply(p).interval(0.9))


@pytest.mark.parametrize(
    "saved",
    [
        None,
        [],
        {},
        {"method": "scale"},
        {"method": "other", "numbers": [1.0]},
        {"method": "scale", "numbers": []},
        {"method": "scale", "numbers": [0.0]},
        {"method": "scale", "numbers": [math.nan]},
        {"method": "scale", "numbers": [math.inf]},
        {"method": "scale", "numbers": ["1"]},
        {"method": "scale", "numbers": [True]},
        {"method": ["scale"], "numbers": [1.0]},
        {"method": "isotonic", "numbers": [1.0]},
        {"method": "isotonic", "numbers": [[[0, 0]]]},
        {"method": "isotonic", "numbers": [[[0, 0], [0.5, 0.7], [0.4, 0.8], [1, 1]]]},
        {"method": "isotonic", "numbers": [[[0, 0], [0.5, math.nan], [1, 1]]]},
        {"method": "isotonic", "numbers": [[[0.1, 0], [1, 1]]]},
        {"method": "isotonic", "numbers": [[[0, 0], [1, 2]]]},
        {"method": "isotonic", "numbers": [[[0, 0], "x", [1, 1]]]},
        {"method": "isotonic", "numbers": [{"a": 1}]},
    ],
)
def test_hostile_calibration_raises(saved):
    with pytest.raises(hs.InputError):
        hs.calibration.Calibration.from_dict(saved)
