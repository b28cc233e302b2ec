"""The joints with torch and scikit-learn: mixture heads, weights and masks of rows, torch's own distributions."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import mean_pinball_loss

import howsure as hs
from howsure import metrics
from howsure.distributions import Transform, Transformed

# Mixture heads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [None, 2])
def test_mixture_head(targets):
    """Moments, density and quantiles agree with those of the components, weighted by the softmax."""
    head = hs.MixtureHead(3, components=4, targets=targets)
    x = torch.randn(6, 3)
    mixture = head(x)
    each, weights = head.parts(x)
    shape = (6,) if targets is None else (6, 2)
    assert head.raw(x).shape == (*shape, 20)
    assert mixture.batch_shape == shape
    y = torch.randn(shape)
    density = (each.predictive().log_prob(y.unsqueeze(-1)).exp() * weights).sum(-1)
    assert torch.allclose(mixture.log_prob(y).exp(), density, rtol=1e-4)
    assert torch.allclose(mixture.mean, (each.prediction * weights).sum(-1), atol=1e-5)
    assert torch.allclose(mixture.cdf(mixture.icdf(torch.tensor(0.3))), torch.tensor(0.3).expand(shape), atol=1e-5)
    assert hs.Prediction(mixture).interval(0.9).shape == (*shape, 2)


def test_mixture_head_learns_two_modes():
    x = torch.zeros(400, 1)
    y = torch.where(torch.arange(400) % 2 == 0, 2.0, -2.0) + 0.1 * torch.randn(400)
    head = hs.MixtureHead(1, components=2)
    optimizer = torch.optim.Adam(head.parameters(), 0.05)
    for _ in range(300):
        optimizer.zero_grad()
        loss = hs.losses.nll_loss(head(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5  # a normal distribution has 2.1, the truth −0.2
    found = head(x[:1])
    assert found.log_prob(torch.tensor([2.0])) > found.log_prob(torch.tensor([0.0])) + 1


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
@pytest.mark.parametrize("targets", [None, 2])
def test_mixture_head_export(ending, targets, tmp_path):
    """An exported head has the numbers of the mixture, for any number of rows."""
    head = hs.MixtureHead(3, components=4, targets=targets)
    x = torch.randn(6, 3)
    if ending == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(hs.export(head, tmp_path / "head.onnx", x[:2]))
        names = [output.name for output in session.get_outputs()]
        found = {n: torch.from_numpy(t) for n, t in zip(names, session.run(None, {"x": x.numpy()}), strict=True)}
    else:
        found = torch.export.load(hs.export(head, tmp_path / "head.pt2", x[:2])).module()(x)
    mixture = head(x)
    assert torch.allclose(found["mean"], mixture.mean, atol=1e-5)
    assert torch.allclose(found["std"], mixture.std, rtol=1e-4)
    ends = torch.stack([found["lower"], found["upper"]], -1)
    assert torch.allclose(mixture.cdf(ends[..., 0]), torch.tensor(0.05), atol=1e-3)
    assert torch.allclose(mixture.sf(ends[..., 1]), torch.tensor(0.05), atol=1e-3)


def test_wrong_arguments_raise():
    for options in ({"in_features": 0}, {"in_features": 3, "components": 0}):
        with pytest.raises(hs.InputError):
            hs.MixtureHead(**options)
    with pytest.raises(hs.InputTypeError):
        hs.losses.nll_loss(torch.zeros(3), torch.zeros(3))
    with pytest.raises(hs.InputError):
        hs.losses.nll_loss(hs.MixtureHead(3)(torch.zeros(5, 3)), torch.zeros(5, 4))
    with pytest.raises(hs.InputError):
        hs.losses.pinball_loss(torch.zeros(3), torch.zeros(3), quantile=1.0)


# Weights and masks of rows --------------------------------------------------------------------------------------------

ROWS = torch.tensor([1.0, 0.0, 2.0, 0.5])
LOSSES = {
    "evidential": lambda y, **o: hs.evidential_loss(hs.NormalInverseGamma(torch.zeros(4, 3), 1.0, 2.0, 1.0), y, **o),
    "kernel": lambda y, **o: hs.evidential_loss(
        hs.NormalInverseGamma.from_raw(torch.ones(4, 3, 4, requires_grad=True)), y, **o
    ),
    "normal": lambda y, **o: hs.normal_loss(hs.Normal(torch.zeros(4, 3), 1.0), y, **o),
    "nll": lambda y, **o: hs.losses.nll_loss(torch.distributions.Laplace(torch.zeros(4, 3), 1.0), y, **o),
    "pinball": lambda y, **o: hs.losses.pinball_loss(torch.zeros(4, 3), y, 0.3, **o),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3)])
def test_weights_of_rows_in_losses(loss, shape):
    y = torch.randn(4, 3)
    each = LOSSES[loss](y, reduction="none")
    given = ROWS.view(4, *[1] * (len(shape) - 1)).expand(shape)
    whole = ROWS.unsqueeze(1).expand(4, 3)
    assert torch.allclose(LOSSES[loss](y, sample_weight=given), (each * whole).sum() / whole.sum(), atol=1e-5)
    assert torch.allclose(LOSSES[loss](y, mask=given > 0), each[ROWS > 0].mean(), atol=1e-5)


def test_square_weights_are_of_rows():
    """A weight (N,) belongs to rows even where there are N targets."""
    p, y = hs.Normal(torch.zeros(3, 3), 1.0), torch.randn(3, 3)
    by_rows = hs.normal_loss(p, y, sample_weight=torch.tensor([1.0, 0.0, 0.0]))
    assert torch.allclose(by_rows, hs.normal_loss(hs.Normal(torch.zeros(3), 1.0), y[0]))


SCORES = ["rmse", "mae", "nll", "crps", "interval_score", "pinball"]


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3)])
def test_weights_of_rows_in_metrics(name, shape):
    """A weight of 2 counts as the same row twice, and a mask of rows leaves them out."""
    score = getattr(metrics, name)
    p, y = hs.Normal(torch.randn(4, 3), torch.rand(4, 3) + 0.5), torch.randn(4, 3)
    repeated = torch.tensor([0, 2, 2, 3])
    given = torch.tensor([1.0, 0.0, 2.0, 1.0]).view(4, *[1] * (len(shape) - 1)).expand(shape)
    assert score(p, y, sample_weight=given) == pytest.approx(score(p[repeated], y[repeated]))
    assert score(p, y, mask=given > 0) == pytest.approx(score(p[[0, 2, 3]], y[[0, 2, 3]]))
    assert score(p, y, mask=given > 0, sample_weight=given) == pytest.approx(score(p, y, sample_weight=given))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], [1.0, -1.0, 0.0, 0.0], [np.nan, 1, 1, 1], [0.0, 0, 0, 0]])
def test_wrong_weights_of_metrics_raise(wrong):
    with pytest.raises(hs.InputError):
        metrics.mae(hs.Normal(torch.zeros(4, 3), 1.0), torch.zeros(4, 3), sample_weight=wrong)


def test_metrics_of_each_target():
    p, y = hs.Prediction(hs.Normal(torch.randn(20, 3), 1.0)), torch.randn(20, 3)
    mask = torch.rand(20, 3) > 0.3
    found = metrics.summary_of_targets(p, y, mask=mask)
    for t in range(3):
        own = metrics.summary(p[:, t], y[:, t], mask=mask[:, t])
        assert {name: values[t] for name, values in found.items()} == own
    with pytest.raises(hs.InputError):
        metrics.summary_of_targets(p[:, 0], y[:, 0])


def test_pinball_loss_agrees_with_scikit_learn():
    p, y = hs.Normal(torch.randn(50), 1.0), torch.randn(50)
    for q in (0.1, 0.5, 0.9):
        z = p.icdf(torch.tensor(q))
        expected = mean_pinball_loss(y, z, alpha=q)
        assert metrics.pinball(p, y, q) == pytest.approx(expected, rel=1e-5)
        assert hs.losses.pinball_loss(p, y, q).item() == pytest.approx(expected, rel=1e-5)
        assert hs.losses.pinball_loss(z, y, q).item() == pytest.approx(expected, rel=1e-5)


# torch's own distributions --------------------------------------------------------------------------------------------


def test_distributions_of_torch_are_predictions():
    loc, y = torch.randn(30, 2), torch.randn(30, 2)
    pairs = [
        (torch.distributions.Normal(loc, 2.0), hs.Normal(loc, 2.0)),
        (torch.distributions.StudentT(5.0, loc, 2.0), hs.StudentT(5.0, loc, 2.0)),
        (torch.distributions.Independent(torch.distributions.Normal(loc, 2.0), 1), hs.Normal(loc, 2.0)),
    ]
    for given, own in pairs:
        assert metrics.summary(given, y) == metrics.summary(own, y)
        assert np.array_equal(hs.Prediction(given).interval(0.9), hs.Prediction(own).interval(0.9))
        assert hs.calibrate(given, y).numbers == hs.calibrate(own, y).numbers
        assert torch.allclose(hs.losses.nll_loss(getattr(given, "base_dist", given), y), hs.losses.nll_loss(own, y))


def test_support_has_the_shape_of_the_batch():
    nig = hs.NormalInverseGamma(torch.zeros(5), 1.0, 2.0, 1.0)
    assert nig.support.check(nig.sample()).shape == (5,)
    assert nig.support.check(nig.sample((7,))).shape == (7, 5)
    assert nig.support.check(torch.tensor([[0.0, 1.0], [0.0, -1.0]])).tolist() == [True, False]


# Transformed ----------------------------------------------------------------------------------------------------------


def test_lognormal_moments():
    mu, sigma = torch.tensor([0.3, -1.0]), torch.tensor([0.5, 1.2])
    log = Transformed(hs.Normal(mu, sigma), Transform("log"))
    truth = stats.lognorm(s=sigma.numpy(), scale=np.exp(mu.numpy()))
    np.testing.assert_allclose(log.mean, truth.mean(), rtol=1e-5)
    np.testing.assert_allclose(log.variance, truth.var(), rtol=1e-5)
    np.testing.assert_allclose(log.entropy(), truth.entropy(), rtol=1e-5)
    two = Transformed(hs.Mixture(hs.Normal(mu, sigma), weights=torch.tensor([3.0, 1.0])), Transform("log"))
    assert two.mean.item() == pytest.approx(truth.mean() @ [0.75, 0.25], rel=1e-5)
    second = (truth.var() + truth.mean() ** 2) @ [0.75, 0.25]
    assert two.variance.item() == pytest.approx(second - two.mean.item() ** 2, rel=1e-5)
    with pytest.raises(hs.InputError):
        _ = Transformed(hs.StudentT(5.0, mu, sigma), Transform("log")).mean


@pytest.mark.parametrize("kind", ["positive", "log"])
def test_transformed_has_the_methods_of_a_distribution(kind):
    loc = torch.randn(3, requires_grad=True)
    given = Transformed(hs.Normal(loc, 1.0), Transform(kind), validate_args=True)
    wide = given.expand((2, 3))
    assert wide.batch_shape == (2, 3)
    assert torch.equal(wide.mean[1], given.mean)
    double = given.to(torch.float64)
    assert double.mean.dtype == torch.float64
    assert not given.detach().mean.requires_grad
    assert given.mean.requires_grad
    assert repr(given).startswith("Transformed(Mixture(Normal (1, 3)")
    for each in (given, wide, double, given.detach()):
        with pytest.raises(ValueError, match="support"):
            each.log_prob(torch.tensor(-1.0))
    unchecked = Transformed(hs.Normal(loc, 1.0), Transform(kind))
    assert bool((unchecked.log_prob(torch.tensor(-1.0)) == -torch.inf).all())
