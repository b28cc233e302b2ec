import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import howsure as hs
from howsure import metrics
from howsure.prediction import Prediction


def normal(mean, std):
    """One normal network with these means and deviations."""
    return Prediction(hs.Normal(torch.as_tensor(mean), torch.as_tensor(std)))


def noisy(shape, seed=0):
    """Targets whose noise has the stated scale: the ranking is of some use, but far from the oracle's."""
    g = np.random.default_rng(seed)
    mean, std = g.normal(size=shape), g.uniform(0.2, 3, size=shape)
    return normal(mean, std), mean + std * g.normal(size=shape)


def shares(rows, points=100):
    """Numbers of rows kept, from all of them to one point's worth, each once."""
    counts = []
    for j in range(points, 0, -1):
        kept = next(k for k in range(1, rows + 1) if k * points >= rows * j)
        if kept not in counts:
            counts.append(kept)
    return counts


def error_of(distances, error):
    return np.mean(np.square(distances)) ** 0.5 if error == "rmse" else np.mean(distances)


def brute_curve(distances, uncertainty, error):
    """Sort and cut, one row after the other; without ties."""
    rows = sorted(zip(uncertainty, distances, strict=True))
    return [error_of([d for _, d in rows[:k]], error) for k in shares(len(rows))]


def brute_area(counts, gaps):
    return sum((counts[i] - counts[i + 1]) / counts[0] * (gaps[i] + gaps[i + 1]) / 2 for i in range(len(counts) - 1))


# The curve ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["rmse", "mae"])
@pytest.mark.parametrize("shape", [(1,), (7,), (250,), (101,), (40, 3)])
def test_curve_and_areas_against_loops(shape, error):
    p, y = noisy(shape)
    distances, std = np.abs(p.mean - y).ravel(), p.std.ravel()
    counts = shares(distances.size)
    curve = brute_curve(distances, std, error)
    oracle = brute_curve(distances, distances, error)
    share, kept = metrics.retention_curve(p, y, error=error)
    assert share == pytest.approx(np.array(counts) / distances.size)
    assert kept == pytest.approx(curve)
    whole = error_of(distances, error)
    ause = brute_area(counts, [c - o for c, o in zip(curve, oracle, strict=True)]) / whole
    aurg = brute_area(counts, [whole - c for c in curve]) / whole
    assert metrics.ause(p, y, error=error) == pytest.approx(ause, abs=1e-12)
    assert metrics.aurg(p, y, error=error) == pytest.approx(aurg, abs=1e-12)


def test_shares_go_from_all_rows_to_one_percent():
    p, y = noisy((1000,))
    share, kept = metrics.retention_curve(p, y)
    assert share == pytest.approx(np.arange(100, 0, -1) / 100)
    assert kept[0] == pytest.approx(metrics.rmse(p, y))


@pytest.mark.parametrize("error", ["rmse", "mae"])
def test_ties_are_the_mean_over_every_order(error):
    distances = np.array([0.3, 2.0, 1.0, 5.0, 0.1, 0.7])
    tied = np.array([1.0, 2.0, 1.0, 2.0, 2.0, np.inf])
    p = normal(np.zeros(6), np.ones(6))
    losses = []
    for order in itertools.permutations(range(6)):
        rows = sorted(order, key=lambda row: tied[row])  # stable: ties stay in this order
        losses.append([np.mean(distances[rows[:k]] ** (2 if error == "rmse" else 1)) for k in range(6, 0, -1)])
    expected = np.mean(losses, axis=0) ** (0.5 if error == "rmse" else 1)
    assert metrics.retention_curve(p, distances, tied, error)[1] == pytest.approx(expected)


def test_names_of_uncertainties():
    g = torch.Generator().manual_seed(2)
    p = Prediction(hs.NormalInverseGamma.from_raw(torch.randn(3, 60, 4, generator=g)), members=0)
    y = torch.randn(60, generator=g).numpy()
    arrays = {"std": p.std, "aleatoric": p.aleatoric_std, "epistemic": p.epistemic_std, "entropy": p.entropy()}
    curves = {name: metrics.retention_curve(p, y, name)[1] for name in arrays}
    for name, array in arrays.items():
        assert curves[name] == pytest.approx(brute_curve(np.abs(p.mean - y), array, "rmse")), name
    for one, other in itertools.combinations(arrays, 2):  # otherwise a mixed-up name would pass
        assert not np.allclose(curves[one], curves[other]), (one, other)
    assert (metrics.retention_curve(p, y)[1] == curves["std"]).all()


# The areas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["rmse", "mae"])
def test_right_ranking_is_the_oracles(error):
    mean, y = noisy((300,))[0].mean, noisy((300,))[1]
    p = normal(mean, 3 * np.abs(mean - y))
    assert metrics.ause(p, y, error=error) == pytest.approx(0, abs=1e-12)
    assert metrics.aurg(p, y, error=error) > 0.3
    assert (np.diff(metrics.retention_curve(p, y, error=error)[1]) < 0).all()


def test_rankings_in_order_of_merit():
    p, y = noisy((500,))
    distance = np.abs(p.mean - y)
    random = np.random.default_rng(1).random(500)
    rankings = [distance, p.std, random, -p.std, -distance]
    ause = [metrics.ause(p, y, u) for u in rankings]
    aurg = [metrics.aurg(p, y, u) for u in rankings]
    assert (np.diff(ause) > 0).all()
    assert (np.diff(aurg) < 0).all()
    assert aurg[1] > 0.1
    assert aurg[3] < -0.1
    assert np.ptp(np.add(ause, aurg)) < 1e-12  # the sum is the oracle's gain, whatever the ranking


@pytest.mark.parametrize("error", ["rmse", "mae"])
def test_constant_uncertainty_is_chance(error):
    p, y = noisy((77,))
    share, kept = metrics.retention_curve(p, y, np.full(77, 0.3), error)
    assert len(share) == 77
    assert (kept == kept[0]).all()
    assert kept[0] == pytest.approx(error_of(np.abs(p.mean - y), error))
    assert metrics.aurg(p, y, np.full(77, 0.3), error) == 0
    assert metrics.ause(p, y, np.full(77, 0.3), error) > 0.1


def test_order_of_rows_is_irrelevant():
    p, y = noisy((200,))
    for uncertainty in (np.full(200, 2.0), p.std.round(), p.std):
        rows = np.random.default_rng(3).permutation(200)
        shuffled = normal(p.mean[rows], p.std[rows])
        curve = metrics.retention_curve(p, y, uncertainty)[1]
        assert (metrics.retention_curve(shuffled, y[rows], uncertainty[rows])[1] == curve).all()
        for area in (metrics.ause, metrics.aurg):
            assert area(shuffled, y[rows], uncertainty[rows]) == area(p, y, uncertainty)


@pytest.mark.parametrize("error", ["rmse", "mae"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale, error):
    p, y = noisy((150, 2))
    scaled = normal(scale * p.mean, scale * p.std)
    kept = metrics.retention_curve(p, y, error=error)[1]
    assert metrics.retention_curve(scaled, scale * y, error=error)[1] == pytest.approx(scale * kept)
    for area in (metrics.ause, metrics.aurg):
        assert area(scaled, scale * y, error=error) == pytest.approx(area(p, y, error=error), rel=1e-9)


def test_without_errors_there_is_nothing_to_gain():
    p = noisy((20,))[0]
    assert metrics.ause(p, p.mean) == 0
    assert metrics.aurg(p, p.mean) == 0


# Familiar and unfamiliar --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [0, 1, 15])  # from many ties to none
def test_auroc_against_all_pairs_and_sklearn(digits):
    g = np.random.default_rng(4)
    inside, outside = g.normal(size=60).round(digits), g.normal(0.7, 2, size=45).round(digits)
    pairs = [(o > i) + 0.5 * (o == i) for i in inside for o in outside]
    assert metrics.auroc(inside, outside) == pytest.approx(np.mean(pairs), rel=1e-14)
    labels = np.r_[np.zeros(60), np.ones(45)]
    assert metrics.auroc(inside, outside) == pytest.approx(roc_auc_score(labels, np.r_[inside, outside]))
    assert metrics.auroc(outside, inside) == pytest.approx(1 - metrics.auroc(inside, outside))


def test_auroc_at_its_ends():
    assert metrics.auroc([1, 2], [3, np.inf]) == 1
    assert metrics.auroc([[3, 4]], [[1], [2]]) == 0
    assert metrics.auroc([2, 2, 2], [2]) == 0.5


# Bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [metrics.retention_curve, metrics.ause, metrics.aurg])
def test_bad_input_is_named(metric):
    p, y = noisy((5,))
    with pytest.raises(hs.InputError, match=r"\by\b"):
        metric(p, y[:4])
    with pytest.raises(hs.InputError, match="uncertainty"):
        metric(p, y, p.std[:, None])
    with pytest.raises(hs.InputError, match="'total'"):
        metric(p, y, "total")
    with pytest.raises(hs.InputError, match="NaN"):
        metric(p, y, [1, 2, np.nan, 4, 5])
    with pytest.raises(hs.InputError, match="NaN"):
        metric(p, [0, -np.inf, 1, np.inf, 2])
    with pytest.raises(hs.InputError, match=r"\by\b"):
        metric(p, [0, np.nan, 1, 3, 2])
    with pytest.raises(hs.InputError, match="'mse'"):
        metric(p, y, error="mse")
    with pytest.raises(hs.InputError):
        metric(normal(np.zeros(0), np.ones(0)), [])


@pytest.mark.parametrize("metric", [metrics.retention_curve, metrics.ause, metrics.aurg])
def test_one_gaussian_network_cannot_rank_by_epistemic(metric):
    p, y = noisy((5,))
    with pytest.raises(hs.InputError, match="'std'"):
        metric(p, y, "epistemic")
    metric(p, y, "aleatoric")


def test_bad_scores_are_named():
    with pytest.raises(hs.InputError):
        metrics.auroc([1.0], [])
    with pytest.raises(hs.InputError):
        metrics.auroc([], [1.0])
    with pytest.raises(hs.InputError, match="NaN"):
        metrics.auroc([np.nan, 1, np.nan], [1])
    with pytest.raises(hs.InputError, match="None"):
        metrics.auroc([1.0], noisy((5,))[0].epistemic_std)
