"""Discrete distributions against scipy, sums over all values and Monte Carlo."""

import numpy as np
import pytest
import torch
from scipy import stats

from howsure import InputError, InputTypeError, Mixture, Normal, NormalInverseGamma, StudentT
from howsure.distributions import Discrete, Support
from howsure.distributions import discrete as module

LOC = torch.tensor([[0.2, 3.0, -40.0], [1.4, 70.3, 20.0]], dtype=torch.float64)
SCALE = torch.tensor([[0.3, 9.0, 0.01], [2.0, 0.2, 55.0]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)


def mixture(kind):
    parts = StudentT(torch.tensor(3.0, dtype=torch.float64), LOC, SCALE) if kind == "t" else Normal(LOC, SCALE)
    return Mixture(parts, weights=WEIGHTS)


def cdf_by_scipy(kind, x):
    each = stats.t(3, LOC.numpy(), SCALE.numpy()) if kind == "t" else stats.norm(LOC.numpy(), SCALE.numpy())
    return (WEIGHTS.numpy()[:, None] * each.cdf(x)).sum(0)


def table(kind, support):
    """Probabilities of all values by scipy, (values, rows)."""
    inner = np.stack([cdf_by_scipy(kind, e) for e in support.edges.tolist()])
    full = np.concatenate([np.zeros((1, 3)), inner, np.ones((1, 3))])
    return np.diff(full, axis=0)


SUPPORTS = {
    "few": Support([-1.0, 0.0, 2.5, 3.0]),
    "irregular": Support(np.sort(np.random.default_rng(0).normal(0, 40, 90))),
    "grid": Support(np.arange(-120.0, 120.0)),
    "coarse grid": Support(25.0 * np.arange(-40.0, 60.0)),
}


@pytest.mark.parametrize("kind", ["t", "normal"])
@pytest.mark.parametrize("name", SUPPORTS)
def test_moments_and_scores_match_sums_over_all_values(kind, name):
    support = SUPPORTS[name]
    made, p, v = Discrete(mixture(kind), support), table(kind, support), support.values.numpy()[:, None]
    mean = (p * v).sum(0)
    size = SCALE.max(0).values.numpy() + 25.0 * (name == "coarse grid")
    assert np.allclose(made.probabilities.numpy().T, p, atol=1e-12)
    assert np.abs(made.mean.numpy() - mean).max() < 5e-5 * size.max()
    assert np.allclose(made.variance.numpy(), (p * (v - mean) ** 2).sum(0), rtol=1e-4, atol=1e-2 * size)
    y = support.values[torch.tensor([1, 2, len(v) - 2])]
    below = p.cumsum(0)[:-1]
    score = (np.diff(v, axis=0) * (below - (v[:-1] >= y.numpy())) ** 2).sum(0)
    assert np.allclose(made.crps(y).numpy(), score, rtol=1e-5, atol=5e-5 * size)
    assert np.allclose(made.entropy().numpy(), stats.entropy(p, axis=0), atol=1e-9)


@pytest.mark.parametrize("kind", ["t", "normal"])
def test_tails_and_log_probabilities_match_scipy(kind):
    support = SUPPORTS["few"]
    made, p, v = Discrete(mixture(kind), support), table(kind, support), support.values
    for k in range(len(v)):
        assert np.allclose(made.log_prob(v[k]).numpy(), np.log(p[k]), rtol=1e-9)
        assert np.allclose(made.cdf(v[k]).numpy(), p[: k + 1].sum(0))
        assert np.allclose(made.cdf(v[k] + 0.1).numpy(), p[: k + 1].sum(0))
        assert np.allclose(made.sf(v[k]).numpy(), p[k + 1 :].sum(0), atol=1e-14)
    assert bool((made.cdf(torch.tensor(-1.1)) == 0).all())
    assert bool((made.log_prob(torch.tensor(1.0)) == -torch.inf).all())


def test_quantiles_are_the_smallest_values_with_enough_probability():
    support = SUPPORTS["few"]
    made, p = Discrete(mixture("t"), support), table("t", support)
    for q in (0.01, 0.05, 0.5, 0.93):
        expected = support.values.numpy()[(p.cumsum(0) >= q).argmax(0)]
        assert np.array_equal(made.icdf(q).numpy(), expected)
        assert np.array_equal(made.isf(1 - q).numpy(), expected)


def test_samples_have_the_probabilities_of_their_values():
    support = SUPPORTS["few"]
    torch.manual_seed(0)
    drawn = Discrete(mixture("t"), support).sample((40_000,)).numpy()
    p = table("t", support)
    for k, value in enumerate(support.values.tolist()):
        error = np.sqrt(p[k] * (1 - p[k]) / len(drawn))
        assert bool((np.abs((drawn == value).mean(0) - p[k]) <= 5 * error + 1e-9).all())


def test_values_in_float32_are_possible_values():
    support = Support(0.1 * np.arange(20))
    made = Discrete(Normal(torch.tensor(0.7), torch.tensor(0.2)), support)
    y = torch.tensor([0.3, 0.7, 1.1])
    assert bool(made.log_prob(y).isfinite().all())
    assert torch.allclose(made.cdf(y), torch.distributions.Normal(0.7, 0.2).cdf(y + 0.05), atol=1e-6)


def test_edges_of_another_variable_are_used():
    support = Support([0.0, 1.0, 4.0], edges=[-2.0, 3.0])
    made = Discrete(Normal(torch.tensor(0.0), torch.tensor(1.0)), support)
    expected = [stats.norm.cdf(-2), stats.norm.cdf(3) - stats.norm.cdf(-2), stats.norm.sf(3)]
    assert np.allclose(made.probabilities.numpy(), expected, atol=1e-6)
    assert torch.equal(support.forward(support.inverse(support.values)), support.values)


def test_member_of_weight_zero_does_not_count():
    parts = Normal(torch.tensor([[1.0], [torch.nan]]), torch.tensor([[1.0], [torch.nan]]), validate_args=False)
    made = Discrete(Mixture(parts, weights=torch.tensor([1.0, 0.0])), Support(torch.arange(-100.0, 100.0)))
    alone = Discrete(Normal(torch.tensor([1.0]), torch.tensor([1.0])), made.values)
    assert torch.allclose(made.mean, alone.mean)
    assert torch.allclose(made.crps(torch.tensor([2.0])), alone.crps(torch.tensor([2.0])))


def test_empty_batch_has_empty_results():
    made = Discrete(Normal(torch.zeros(0), torch.ones(0)), SUPPORTS["grid"])
    assert made.mean.shape == made.variance.shape == made.crps(torch.zeros(0)).shape == (0,)


def test_saved_support_equals_the_original():
    support = SUPPORTS["irregular"]
    again = Support.from_dict(support.to_dict())
    assert again == support
    assert hash(again) == hash(support)


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [2.0, 1.0], [0.0, torch.inf], [[0.0, 1.0]]])
def test_values_out_of_order_raise(values):
    with pytest.raises(InputError):
        Support(values)


def test_distribution_without_cells_raises():
    with pytest.raises(InputTypeError):
        Discrete(NormalInverseGamma(0.0, 1.0, 2.0, 1.0), SUPPORTS["few"])


def test_tree_functions_rebuild_the_distribution():
    made = Discrete(mixture("t"), SUPPORTS["few"])
    double = torch.utils._pytree.tree_map(lambda t: t + 0, made)
    assert torch.equal(double.mean, made.mean)
    assert len(SUPPORTS["grid"].values) > module.MAX_DIRECT
