"""The linear expert against refits without a row, the conjugate update of scipy's t, and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import BayesianRidge, Ridge

import howsure as hs
from howsure.tables.experts.linear import LinearExpert
from howsure.tables.robust import RobustScale, unclipped


def table(rows=60, columns=4, noise=0.3, seed=0):
    random = np.random.default_rng(seed)
    x = random.uniform(-1.5, 1.5, size=(rows, columns)) * [1, 2, 0.1, 2][:columns] + 0.5  # no value is clipped
    weights = random.normal(size=(columns, 2)) / x.std(0)[:, None]
    return x, x @ weights + noise * random.normal(size=(rows, 2))


def ridge_of(expert, x, target):
    z = (x - expert.centre.numpy()) * expert.rate.numpy()
    largest = np.linalg.eigvalsh(z.T @ z)
    return float((1 / expert.inverse[:, target].numpy() - largest).mean())


def test_mean_is_that_of_ridge_regression():
    x, y = table()
    expert, _ = LinearExpert.fit(x, y)
    new = table(seed=1)[0]
    z, z_new = ((t - x.mean(0)) / x.std(0) for t in (x, new))
    for t in range(2):
        ridge = Ridge(alpha=ridge_of(expert, x, t)).fit(z, y[:, t])
        assert np.allclose(expert(torch.from_numpy(new)).gamma[:, t], ridge.predict(z_new), rtol=1e-9)


def test_prior_has_the_largest_marginal_likelihood():
    x, y = table(noise=3.0)
    expert, _ = LinearExpert.fit(x, y[:, :1])
    z, target = (x - x.mean(0)) / x.std(0), y[:, 0] - y[:, 0].mean()

    def log_evidence(ridge):
        """The multivariate t of the centred targets, up to a constant: its scale matrix is I + ZZᵀ/λ."""
        covariance = np.eye(len(z)) + z @ z.T / ridge
        square = target @ np.linalg.solve(covariance, target)
        return -0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * (len(z) - 1) * np.log(square)

    best = ridge_of(expert, x, 0)
    assert log_evidence(best) > max(log_evidence(best * f) for f in (0.9, 1.1, 0.5, 2))


def test_left_out_rows_equal_fits_without_them():
    x, y = table(rows=20)
    expert, left_out = LinearExpert.fit(x, y)
    ridge = [ridge_of(expert, x, t) for t in range(2)]
    mean, spread = x.mean(0), x.std(0)
    for row in (0, 7, 19):
        rest = np.arange(20) != row
        for t in range(2):
            z = np.c_[np.ones(20), (x - mean) / spread]
            a = z[rest].T @ z[rest] + np.diag([0, *[ridge[t]] * 4])
            m = np.linalg.solve(a, z[rest].T @ y[rest, t])
            beta = 0.5 * (((y[rest, t] - z[rest] @ m) ** 2).sum() + ridge[t] * (m[1:] ** 2).sum())
            alpha = 0.5 * (19 - 1)
            scale = np.sqrt(beta / alpha * (1 + z[row] @ np.linalg.solve(a, z[row])))
            truth = stats.t.logpdf(y[row, t], 2 * alpha, z[row] @ m, scale)
            found = left_out.predictive().log_prob(torch.from_numpy(y))[row, t]
            assert float(found) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize(("rows", "columns", "noise"), [(100, 4, 0.001), (100, 4, 3.0), (400, 3, 1.0)])
def test_likelihood_of_new_rows_is_near_bayesian_ridge(rows, columns, noise):
    x, y = table(rows=rows + 500, columns=columns, noise=noise, seed=3)
    expert, _ = LinearExpert.fit(x[:rows], y[:rows])
    own = -expert(torch.from_numpy(x[rows:])).predictive().log_prob(torch.from_numpy(y[rows:]))[:, 0].mean()
    mean, std = BayesianRidge().fit(x[:rows], y[:rows, 0]).predict(x[rows:], return_std=True)
    assert float(own) < -stats.norm.logpdf(y[rows:, 0], mean, std).mean() + 0.03


def test_row_weights_of_two_equal_repeated_rows_in_the_mean():
    x, y = table(rows=40)
    twice = np.r_[np.arange(40), np.arange(20)]
    weighted, _ = LinearExpert.fit(x, y, np.r_[np.full(20, 2.0), np.ones(20)])
    repeated, _ = LinearExpert.fit(x[twice], y[twice])
    new = torch.from_numpy(table(seed=2)[0])
    assert np.allclose(weighted(new).gamma, repeated(new).gamma, atol=0.05)
    assert torch.allclose(weighted.centre, repeated.centre)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_more_columns_than_rows_are_as_likely_left_out_as_new(noise):
    random = np.random.default_rng(0)
    x = random.normal(size=(2060, 124))
    y = x[:, :5].sum(1, keepdims=True) + noise * random.normal(size=(2060, 1))
    expert, left_out = LinearExpert.fit(x[:60], y[:60])
    new = expert(torch.from_numpy(x[60:])).predictive()
    inside = ((new.cdf(torch.from_numpy(y[60:])) - 0.5).abs() < 0.45).double().mean()
    assert 0.85 < float(inside) < 0.99
    own = left_out.predictive().log_prob(torch.from_numpy(y[:60])).mean()
    assert float(own) < float(new.log_prob(torch.from_numpy(y[60:])).mean()) + 0.3


def test_direction_without_training_rows_has_the_variance_of_the_prior():
    x, y = table(rows=8, columns=4)
    x = np.column_stack([x, 0.25 * x @ np.ones(4)])  # no row leaves a plane of four dimensions
    expert, _ = LinearExpert.fit(x, y)
    away = np.zeros(5)
    away[[0, 4]] = x.std(0)[[0, 4]] * [1, -1]
    z = (np.stack([x[0], x[0] + away]) - x.mean(0)) / x.std(0)
    covariance = (x - x.mean(0)) / x.std(0)
    for t in range(2):
        ridge = 1 / expert.outside[t].item()
        inverse = np.linalg.inv(covariance.T @ covariance + ridge * np.eye(5))
        expected = 1 / 8 + np.einsum("ij,jk,ik->i", z, inverse, z)
        found = 1 / expert(torch.from_numpy(np.stack([x[0], x[0] + away]))).nu[:, t].numpy()
        assert found == pytest.approx(expected, rel=1e-5)


def test_constant_and_repeated_columns_change_nothing():
    x, y = table()
    new = torch.from_numpy(table(seed=1)[0])
    wide = np.c_[x, np.full(len(x), 3.0)]
    plain, _ = LinearExpert.fit(x, y)
    more, _ = LinearExpert.fit(wide, y)
    found = more(torch.cat([new, torch.full((len(new), 1), 9.0, dtype=torch.float64)], 1))
    assert torch.allclose(found.gamma, plain(new).gamma)
    assert torch.isfinite(LinearExpert.fit(np.c_[x, x], y)[0](torch.cat([new, new], 1)).gamma).all()


def test_exact_linear_table_has_finite_parameters():
    x, _ = table()
    expert, left_out = LinearExpert.fit(x, x @ np.ones((4, 1)))
    found = expert(torch.from_numpy(x))
    assert all(bool(p.isfinite().all()) for d in (found, left_out) for p in d.parameters)
    assert np.allclose(found.gamma[:, 0], x.sum(1), rtol=1e-6)


@pytest.mark.parametrize("x", [np.ones((4, 1)), np.ones((50, 2)), np.zeros((50, 0))])
def test_tables_without_a_fit_return_none(x):
    assert LinearExpert.fit(x, np.arange(len(x), dtype=float)[:, None]) is None


def test_saved_tensors_give_the_same_expert():
    x, y = table()
    expert, _ = LinearExpert.fit(x, y)
    saved = expert.state_dict()
    again = LinearExpert(**saved)
    new = torch.from_numpy(x)
    assert torch.equal(again(new).gamma, expert(new).gamma)


@pytest.mark.parametrize("factor", [3, 10, 1000])
def test_clipped_rows_are_as_uncertain_as_the_clip_is_large(factor):
    random = np.random.default_rng(0)
    raw = random.normal(size=(400, 3))
    y = raw @ [3.0, 1.0, -2.0] + 0.1 * random.normal(size=400)
    scale = RobustScale.fit(raw)
    expert, _ = LinearExpert.fit(scale(torch.from_numpy(raw)).numpy(), y[:, None])
    far = raw * [factor, 1, 1]
    p = hs.Prediction(expert(scale(torch.from_numpy(far))))
    low, high = p.interval(0.9)[:, 0].T
    truth = np.clip(far @ [3.0, 1.0, -2.0], -10 * y.std(), 10 * y.std())  # V0 holds no more
    assert ((low <= truth) & (truth <= high)).mean() > 0.85
    assert (high - low).max() < 40 * y.std()
    near = np.abs((far - np.median(raw, 0)) / scale.spread.numpy()).max(1) < 4
    assert (high - low)[near].max() < 1.0


def test_unclipped_inverts_the_robust_scale():
    z = np.linspace(-3000, 3000, 7001)[:, None]
    scale = RobustScale.fit(np.random.default_rng(0).normal(size=(500, 1)))
    expected = (z - scale.median.numpy()) / scale.spread.numpy()
    assert np.allclose(unclipped(scale(torch.from_numpy(z))).numpy(), expected, rtol=1e-9, atol=1e-12)
    assert torch.isfinite(unclipped(torch.tensor([-1e4, 1e4], dtype=torch.float64))).all()
