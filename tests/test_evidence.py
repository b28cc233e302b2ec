"""Evidence by conjugacy: the leverage of features, the formulas, and fitted table models."""

import numpy as np
import pytest
import torch

import howsure as hs
from fits import fit
from howsure.formulas import nig
from howsure.likelihoods import Evidential
from howsure.nn import ConjugateEvidence
from howsure.nn.evidence import PRIOR_VARIANCE, UNIT_FLOOR, FeatureBasis
from howsure.tables.evidence import add_evidence, extrapolation_folds, learn_ridge
from howsure.tables.members import hold_out
from howsure.tables.robust import LINEAR_RANGE, RobustScale
from howsure.tables.target import Target
from howsure.tables.train import train
from howsure.tables.views import Views


def features(rows=200, size=6, seed=0):
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.normal(size=(rows, size)) * np.geomspace(0.1, 10, size) + 3)


# The leverage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 0.01, 1.0, 100.0])
def test_leverage_is_the_posterior_variance_of_bayesian_linear_regression(ridge):
    """Var[ψᵀw] = ψᵀ(ΨᵀWΨ + λI)⁻¹ψ, computed by NumPy with an explicit constant."""
    train, new = features().numpy(), features(20, seed=1).numpy() * 2
    weights = np.random.default_rng(2).uniform(0.2, 2, len(train))
    evidence = ConjugateEvidence.fit([(torch.from_numpy(train), torch.from_numpy(weights))], ridge).double()
    mean = np.average(train, axis=0, weights=weights)
    variance = np.average((train - mean) ** 2, axis=0, weights=weights)
    scale = np.sqrt(variance + UNIT_FLOOR * variance.mean())
    psi, at = (np.column_stack([(x - mean) / scale, np.ones(len(x))]) for x in (train, new))
    inverse = np.linalg.inv(psi.T @ (weights[:, None] * psi) + ridge * np.eye(psi.shape[1]))
    expected = np.einsum("ni,ij,nj->n", at, inverse, at)
    assert np.allclose(evidence(torch.from_numpy(new)).numpy(), expected, rtol=1e-5)


def test_batches_and_members_equal_one_batch():
    x = torch.stack([features(seed=k) for k in range(3)])
    whole = ConjugateEvidence.fit(x, 1.0)
    parts = ConjugateEvidence.fit([(part, None) for part in x.split(33, 1)], 1.0)
    alone = ConjugateEvidence.fit(x[1], 1.0)
    new = torch.stack([features(5, seed=9)] * 3)
    assert torch.allclose(whole(new), parts(new), rtol=1e-5)
    assert torch.allclose(whole(new)[1], alone(new[1]), rtol=1e-5)
    assert torch.equal(whole.select([2, 0])(new[:2]), whole(new)[[2, 0]])


def test_rows_scale_the_sums_of_a_sample():
    x = features()
    assert torch.allclose(
        ConjugateEvidence.fit(x, 1.0, rows=400.0)(x[:5]), ConjugateEvidence.fit(torch.cat([x, x]), 1.0)(x[:5])
    )


def test_lower_rank_keeps_the_leverage_of_typical_rows():
    random = np.random.default_rng(3)
    low = torch.from_numpy(random.normal(size=(500, 4)) @ random.normal(size=(4, 40)))
    x = low + 0.01 * torch.from_numpy(random.normal(size=(500, 40)))
    full, few = (ConjugateEvidence.fit(x, 10.0, rank=rank).double() for rank in (None, 8))
    assert torch.allclose(full(x), few(x), rtol=0.05)


def test_silent_unit_that_wakes_up_stays_bounded():
    x = features()
    x[:, 0] = 0.0  # silent in training
    evidence = ConjugateEvidence.fit(x, 1.0, layers=[6])
    woken = x[:1].clone()
    woken[:, 0] = x.std()
    assert evidence(woken).item() < 20
    assert evidence(woken).item() > evidence(x[:1]).item()


def test_evidence_survives_its_state_dict_and_compiles_to_a_graph():
    evidence = ConjugateEvidence.fit(features(), 1.0, rank=3)
    again = ConjugateEvidence(6, rank=3)
    assert bool(again(features().float()).isnan().all())
    again.load_state_dict(evidence.state_dict())
    x = features(7, seed=4).float()
    assert torch.equal(again(x), evidence(x))
    exported = torch.export.export(evidence, (x,)).module()
    assert torch.allclose(exported(x), evidence(x))


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(3, 0), torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64), torch.full((3, 2), torch.nan), []],
)
def test_features_that_cannot_be_used_raise(bad):
    with pytest.raises((hs.InputError, hs.InputTypeError)):
        ConjugateEvidence.fit(bad, 1.0)


def test_layers_must_add_up_to_the_features():
    with pytest.raises(hs.InputError):
        FeatureBasis.fit([(features(), None)], layers=[2, 2])


# The formulas ---------------------------------------------------------------------------------------------------------


def made(scale, inside, added, rate=1.0, prior=50.0, least=0.05):
    one = torch.ones((), dtype=torch.float64)
    given = nig.Parameters(2 * one, 7 * one, 3 * one, one)  # γ = 2, α = 4
    return nig.conjugate_evidence(given, *(v * one for v in (scale, inside, added, rate, prior)), least)


def test_predictive_scale_and_epistemic_share_are_as_defined():
    p = made(scale=1.5, inside=0.2, added=4.0)
    bounded = 1 / (1 / 4.0 + 1 / 50.0)
    total = nig.predictive_scale(p.nu, p.alpha_minus_one, p.beta).square()
    assert total.item() == pytest.approx(1.5**2 + bounded)
    mean_variance = 1 / (1 / 4.2 + 1 / 50.0)
    assert (total / (1 + p.nu)).item() == pytest.approx(mean_variance)
    assert p.gamma.item() == pytest.approx(2 * 50 / 54)
    assert p.alpha_minus_one.item() == 3
    epistemic = nig.epistemic_variance(p.nu, p.alpha_minus_one, p.beta)
    share = epistemic / nig.predictive_variance(p.nu, p.alpha_minus_one, p.beta)
    assert share.item() == pytest.approx(1 / (1 + p.nu.item()))


def test_rate_widens_and_does_not_move_the_mean():
    slow, fast = made(1.0, 0.1, 2.0), made(1.0, 0.1, 2.0, rate=5.0)
    assert fast.gamma.item() == slow.gamma.item()
    total = nig.predictive_scale(fast.nu, fast.alpha_minus_one, fast.beta).square()
    assert total.item() == pytest.approx(1 + 1 / (1 / 10 + 1 / 50))


def test_no_evidence_returns_to_the_prior():
    p = made(scale=1.0, inside=0.1, added=1e12)
    total = nig.predictive_scale(p.nu, p.alpha_minus_one, p.beta).square()
    assert total.item() == pytest.approx(51, rel=1e-6)
    assert abs(p.gamma.item()) < 1e-9


def test_evidence_has_a_lower_bound():
    assert made(scale=0.01, inside=5.0, added=0.0).nu.item() == pytest.approx(0.05)


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(5)
    x = random.normal(size=(300, 4))
    y = 100 * (np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * random.normal(size=300)) + 1000
    return x, y, hs.EvidentialRegressor(members=3, steps=150, random_state=0).fit(x, y)


def test_intervals_widen_and_familiarity_falls_away_from_the_rows(table):
    x, _, model = table
    p = model.predict_distribution(x[:1] * 0 + np.array([0, 1, 2, 4, 8, 16])[:, None])
    width = np.diff(p.interval(0.9))[:, 0]
    assert (np.diff(width[1:]) > 0).all()
    assert (np.diff(p.familiarity[1:]) < 0).all()
    assert ((p.familiarity > 0) & (p.familiarity <= 1)).all()
    assert p.epistemic_std[-1] > 3 * p.epistemic_std[0]


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e12, -1e150])
def test_cell_far_out_has_a_bounded_interval_and_mean(table, factor):
    x, y, model = table
    far = x.copy()
    far[:, 0] *= factor
    p = model.predict_distribution(far)
    assert np.diff(p.interval(0.9)).max() < 40 * y.std()
    assert np.abs(p.mean - y.mean()).max() < 20 * y.std()
    assert np.isfinite(p.std).all()


def test_std_is_that_of_the_distribution(table):
    x, _, model = table
    p = model.predict_distribution(3 * x)
    assert np.allclose(p.std, np.sqrt(p.distribution.variance.numpy()))
    assert np.allclose(p.aleatoric_std**2 + p.epistemic_std**2, p.variance)


def test_about_one_percent_of_new_rows_are_flagged(table):
    x, y, _ = table
    model = hs.EvidentialRegressor(members=10, steps=40, inputs="numbers", random_state=0).fit(x, y)
    new = np.random.default_rng(6).normal(size=(4000, 4))
    flagged = (model.predict_distribution(new).familiarity < model.unfamiliar_below_).mean()
    assert 0.001 < flagged < 0.06


def test_few_rows_have_no_threshold_and_a_relative_scale():
    random = np.random.default_rng(7)
    x = random.normal(size=(30, 2))
    model = hs.EvidentialRegressor(members=2, steps=50, random_state=0).fit(x, x[:, 0])
    assert model.unfamiliar_below_ is None
    near, far = np.diff(model.predict_interval(np.array([[0.0, 0.0], [9.0, 9.0]])))[:, 0]
    assert far > near


@pytest.mark.parametrize("rows", [2, 3, 5, 80])
def test_rows_that_are_all_the_same_have_finite_predictions(rows):
    x, y = np.ones((rows, 2)), np.random.default_rng(0).random((rows, 2))
    model = hs.EvidentialRegressor(members=2, hidden=(4,), steps=5, random_state=0).fit(x, y)
    p = model.predict_distribution(np.array([[1.0, 1.0], [5.0, -3.0]]))
    assert np.isfinite(p.interval(0.9)).all()
    assert np.isfinite(p.std).all()


def test_one_direction_or_no_validation_has_no_ridge():
    x = np.random.default_rng(8).normal(size=(80, 1))
    target, recipe = Target(x[:, 0]), Evidential().recipe(50)
    assert learn_ridge(train, Evidential(), Views(x, []), target, 0, recipe, 0.1, device="cpu") is None
    both = Views(np.column_stack([x, -x]), [])
    assert learn_ridge(train, Evidential(), both, target, 0, recipe, 0.0, device="cpu") is None


def test_folds_leave_out_both_ends_of_every_direction():
    x = np.random.default_rng(9).normal(size=(90, 3))
    folds = extrapolation_folds(x, np.arange(10, 90), seed=0)
    assert len(folds) >= 4
    for inner, ends in folds:
        assert set(inner) | set(ends) == set(range(10, 90))
        assert not set(inner) & set(ends)
        assert abs(len(ends) - 80 / 3) < 2


def test_evidence_of_some_members_is_theirs():
    x = np.random.default_rng(10).normal(size=(60, 2))
    members = hold_out(np.arange(60), [0, 1, 2])
    recipe = Evidential().recipe(60)
    model = fit(Evidential(), x, x[:, 0], members, recipe=recipe, device="cpu")
    model = add_evidence(model, Views(x, members), 1.0)
    some = model.select([2, 0])
    whole = model.predict(x[:5]).answers
    assert torch.allclose(some.predict(x[:5]).answers.nu, whole.nu[[2, 0]])
    assert float(model.evidence.prior) == PRIOR_VARIANCE


# Inputs ---------------------------------------------------------------------------------------------------------------


def scaled(scale, x):
    return scale(torch.from_numpy(np.array(x, dtype=float))).numpy()[:, 0]


def test_robust_scale_is_linear_inside_and_logarithmic_outside():
    x = np.random.default_rng(11).normal(size=(1000, 1)) * 5 + 20
    scale = RobustScale.fit(x)
    inside = scaled(scale, [[20.0], [25.0], [30.0]])
    assert np.diff(inside, 2)[0] == pytest.approx(0, abs=1e-12)
    assert inside[1] - inside[0] == pytest.approx(1, rel=0.1)
    far = scaled(scale, [[20 + 5e3], [20 - 5e3]])
    assert np.allclose(np.abs(far), LINEAR_RANGE + np.log(1e3), rtol=0.05)
    assert (np.diff(scaled(scale, np.linspace(-1e4, 1e4, 999)[:, None])) > 0).all()


@pytest.mark.parametrize("column", [np.zeros(50), np.full(50, 1e9), np.r_[np.zeros(45), np.arange(5.0)], np.eye(50)[0]])
def test_robust_scale_of_columns_without_quartiles_is_finite(column):
    scale = RobustScale.fit(column[:, None])
    assert scale.spread[0] > 0
    assert np.isfinite(scaled(scale, column[:, None])).all()
