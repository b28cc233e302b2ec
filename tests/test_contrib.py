"""Adapters: regressors as estimators of skpro and as surrogate models of BoTorch."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import howsure as hs

pytestmark = pytest.mark.extras
SMALL = {"steps": 60, "random_state": 0, "device": "cpu", "verbose": False}


def wave(rows, columns=2):
    x = np.random.default_rng(0).random((rows, columns))
    return x, np.sin(6 * x[:, 0]) + x[:, -1]


# skpro ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def skpro():
    pytest.importorskip("skpro")
    from howsure.contrib import skpro

    return skpro


@pytest.mark.filterwarnings("default")  # warnings of skpro about pandas
@pytest.mark.parametrize("targets", [1, 2])
def test_variance_is_that_of_the_distribution(skpro, targets):
    x, y = wave(60)
    table = pd.DataFrame(x, columns=["a", "b"], index=np.arange(60) * 3)
    target = pd.DataFrame({f"y{t}": y * (t + 1) for t in range(targets)}, index=table.index)
    model = skpro.ProbaRegressor(hs.EvidentialRegressor(members=2, **SMALL)).fit(table, target)
    proba = model.predict_proba(table)
    own = model.regressor_.predict_distribution(table)
    assert proba.shape == (60, targets)
    assert np.array_equal(model.predict_var(table), proba.var())
    assert np.array_equal(proba.var().to_numpy(), own.variance.reshape(60, -1))
    assert np.array_equal(model.predict(table).to_numpy(), own.mean.reshape(60, -1))
    assert list(model.predict(table).columns) == list(target.columns)
    np.testing.assert_allclose(model.predict_quantiles(table, alpha=[0.1]), own.quantile(0.1).reshape(60, -1))
    assert np.allclose(proba.log_pdf(target), own.log_prob(target.to_numpy().reshape(own.shape)).reshape(60, -1))
    assert proba.iloc[3:5].mean().index.tolist() == [9, 12]
    assert proba.iat[3, targets - 1].mean() == own.mean.reshape(60, -1)[3, targets - 1]


# BoTorch --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def botorch():
    pytest.importorskip("botorch")
    from howsure.contrib import botorch

    return botorch


def attached():
    x, y = (torch.as_tensor(a, dtype=torch.float32) for a in wave(200))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        (net(x).squeeze(1) - y).square().mean().backward()
        optimizer.step()
    return hs.attach(net, [(x, y.unsqueeze(1))])


MODELS = {
    "with trees and a linear expert": lambda: hs.EvidentialRegressor(members=4, **SMALL).fit(*wave(120)),
    "numbers": lambda: hs.EvidentialRegressor(members=3, inputs="numbers", **SMALL).fit(*wave(60)),
    "ensemble": lambda: hs.EnsembleRegressor(members=3, **SMALL).fit(*wave(60)),
    "network": attached,
}


@pytest.fixture(params=MODELS, scope="module")
def fitted(request):
    return MODELS[request.param]()


def predicted(model, x):
    if isinstance(model, hs.NetworkModel):
        return model.predict(x.float())
    return model.predict_distribution(x.numpy())


def test_moments_are_those_of_the_prediction(botorch, fitted):
    x = torch.rand(4, 3, 2, dtype=torch.float64)
    posterior = botorch.Surrogate(fitted).posterior(x.float() if isinstance(fitted, hs.NetworkModel) else x)
    p = predicted(fitted, x.flatten(0, 1))
    assert posterior.mean.shape == posterior.variance.shape == (4, 3, 1)
    np.testing.assert_allclose(posterior.mean.detach().flatten(), p.mean.ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(posterior.variance.detach().flatten(), p.epistemic_std.ravel() ** 2, rtol=1e-3)


def test_samples_are_functions(botorch, fitted):
    """The registered sampler draws functions: equal at equal points, whichever points they are evaluated with."""
    from botorch.sampling.get_sampler import get_sampler

    surrogate, dtype = botorch.Surrogate(fitted), torch.float32
    x = torch.rand(5, 2, dtype=dtype)
    sampler = get_sampler(surrogate.posterior(x), torch.Size([2000]), seed=0)
    assert isinstance(sampler, botorch.FunctionSampler)
    together = sampler(surrogate.posterior(x))
    alone = torch.cat([sampler(surrogate.posterior(row.unsqueeze(0))) for row in x], 1)
    batched = sampler(surrogate.posterior(x.unsqueeze(1))).squeeze(2)
    assert torch.allclose(together, alone, atol=1e-4)
    assert torch.allclose(together, batched, atol=1e-4)
    posterior = surrogate.posterior(x)
    error = (posterior.variance / 2000).sqrt()
    assert bool(((together.mean(0) - posterior.mean).abs() < 5 * error + 1e-6).all())
    twice = sampler(surrogate.posterior(x[[0, 0]]))
    assert torch.allclose(twice[:, 0], twice[:, 1], atol=1e-5)


def test_joint_covariance(botorch):
    """Covariances of samples agree with the members' factors, and correlation falls with the distance."""
    surrogate = botorch.Surrogate(MODELS["numbers"]())
    x = torch.tensor([[0.2, 0.2], [0.21, 0.2], [0.9, 0.9]], dtype=torch.float64)
    posterior = surrogate.posterior(x)
    spread = posterior.loc - posterior.mean.squeeze(-1)
    within = posterior.factor @ posterior.factor.mT
    expected = torch.einsum("m,mij->ij", posterior.weights, within + spread.unsqueeze(-1) * spread.unsqueeze(-2))
    drawn = posterior.rsample(torch.Size([40_000])).squeeze(-1)
    assert torch.allclose(drawn.detach().T.cov(), expected, rtol=0.1, atol=0.05 * float(expected.max()))
    assert expected[0, 1] > expected[0, 2]


def test_acquisition_functions_have_gradients(botorch, fitted):
    from botorch.acquisition.logei import qLogExpectedImprovement

    x = torch.rand(3, 2, 2, dtype=torch.float32, requires_grad=True)
    value = qLogExpectedImprovement(botorch.Surrogate(fitted), best_f=1.0)(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert value.shape == (3,)
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())


def test_conjugate_update(botorch):
    """The update agrees with the conditional normal distribution of each member; two updates agree with one."""
    surrogate = botorch.Surrogate(MODELS["numbers"]())
    x, y = torch.rand(4, 2, dtype=torch.float64), torch.rand(4, 1, dtype=torch.float64)
    new = torch.rand(3, 2, dtype=torch.float64)
    found = surrogate.condition_on_observations(x, y).posterior(new)
    loc, factor, noise = (part.detach() for part in surrogate._functions(torch.cat([x, new])))
    covariance = factor @ factor.mT
    seen = covariance[:, :4, :4] + torch.diag_embed(noise[:, :4])
    gain = torch.linalg.solve(seen, covariance[:, :4, 4:]).mT
    mean = loc[:, 4:] + (gain @ (y.T - loc[:, :4]).unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(found.loc, mean, atol=1e-8)
    left = covariance[:, 4:, 4:] - gain @ covariance[:, :4, 4:]
    assert torch.allclose(found.factor @ found.factor.mT, left, atol=1e-8)
    twice = surrogate.condition_on_observations(x[:2], y[:2]).condition_on_observations(x[2:], y[2:]).posterior(new)
    assert torch.allclose(twice.mean, found.mean, atol=1e-8)
    assert torch.allclose(twice.variance, found.variance, atol=1e-8)


def test_update_without_evidence_raises(botorch):
    surrogate = botorch.Surrogate(MODELS["ensemble"]())
    with pytest.raises(hs.InputError) as caught:
        surrogate.condition_on_observations(torch.rand(2, 2), torch.rand(2, 1))
    assert "fit it again" in str(caught.value)
    with pytest.raises(hs.InputError):
        surrogate.condition_on_observations(torch.rand(5, 2, 2), torch.rand(5, 2, 1))
    with pytest.raises(hs.InputError):
        surrogate.posterior(torch.rand(2, 2), observation_noise=True)


def test_unsuitable_models_raise(botorch):
    x, y = wave(60)
    model = hs.EvidentialRegressor(members=2, **SMALL)
    unsuitable = [
        hs.EvidentialRegressor(members=2, target_transform="positive", **SMALL).fit(x, y - y.min()),
        hs.EvidentialRegressor(members=2, **SMALL).fit(x, np.stack([y, y], 1)),
        hs.EvidentialRegressor(members=2, **SMALL).fit(pd.DataFrame({"a": x[:, 0], "b": ["u", "v"] * 30}), y),
        hs.calibrate(model.fit(x, y), x, y),
    ]
    for each in unsuitable:
        with pytest.raises(hs.InputError):
            botorch.Surrogate(each)
    with pytest.raises(hs.InputTypeError):
        botorch.Surrogate(nn.Linear(2, 1))
    two = hs.attach(
        nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), [(torch.rand(50, 2), torch.rand(50, 2))]
    )
    with pytest.raises(hs.InputError):
        botorch.Surrogate(two).posterior(torch.rand(3, 2))
