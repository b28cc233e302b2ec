"""The checks of other projects: torch's generic distribution tests, skpro, torchmetrics, scoringrules, ONNX.

scikit-learn's checks run in test_estimators.py and test_incontext_regressor.py, with the exception that is declared
there. Nothing else is excused but the names in ``EXCUSED``, each with its reason.
"""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.distributions import Discrete, Support, Transform, Transformed, WithAtom

pytestmark = pytest.mark.extras


def normal():
    return hs.Normal(torch.randn(5, 3), torch.rand(5, 3) + 0.5)


def student():
    return hs.StudentT(torch.rand(5, 3) * 5 + 4.5, torch.randn(5, 3), torch.rand(5, 3) + 0.5)


CLASSES = {
    "Normal": normal,
    "StudentT": student,
    "NormalInverseGamma": lambda: hs.NormalInverseGamma(torch.randn(5, 3), 2.0, torch.rand(5, 3) + 4, 1.0),
    "Mixture": lambda: hs.Mixture(student(), dim=0),
    "Mixture with weights per row": lambda: hs.Mixture(student(), dim=-1, weights=torch.rand(5, 3) + 0.1),
    "Transformed": lambda: Transformed(hs.Mixture(student(), dim=0), Transform("positive")),
    "Transformed log": lambda: Transformed(hs.Normal(torch.randn(5), torch.rand(5) * 0.5 + 0.1), Transform("log")),
    "Discrete": lambda: Discrete(hs.Mixture(student(), dim=0), Support(torch.arange(-3.0, 4.0))),
    "WithAtom": lambda: WithAtom(hs.Mixture(student(), dim=0), torch.tensor([0.1, 0.5, 0.9]), 0.0),
}
EXCUSED = {
    ("test_density_is_the_slope_of_the_cdf", "NormalInverseGamma"): "a value is a pair, which has no cdf of its own",
    ("test_density_is_the_slope_of_the_cdf", "Discrete"): "single values have probabilities, and there is no density",
    ("test_quantiles_invert_the_cdf", "NormalInverseGamma"): "a value is a pair; icdf is that of a new y",
    ("test_quantiles_invert_the_cdf", "Discrete"): "the cdf jumps",
    ("test_quantiles_invert_the_cdf", "WithAtom"): "the cdf jumps",
    ("test_expand", "WithAtom"): "it is made by predictions, which are indexed and not expanded",
}


@pytest.fixture(params=CLASSES)
def distribution(request):
    if (request.node.originalname, request.param) in EXCUSED:
        pytest.xfail(EXCUSED[request.node.originalname, request.param])
    return CLASSES[request.param]()


# torch: test/distributions/test_distributions.py ----------------------------------------------------------------------


def test_shapes(distribution):
    d = distribution
    assert d.sample().shape == d._extended_shape()
    assert d.sample((7, 2)).shape == d._extended_shape((7, 2))
    assert d.log_prob(d.sample((7, 2))).shape == (7, 2, *d.batch_shape)
    assert d.mean.shape == d.variance.shape == d.batch_shape + d.event_shape
    assert repr(d)


def test_samples_lie_in_the_support(distribution):
    d = distribution
    drawn = d.sample((100,))
    assert d.support.check(drawn).all()
    assert d.support.check(drawn).shape == (100, *d.batch_shape)
    assert d.log_prob(drawn).isfinite().all()


def test_moments_of_samples(distribution):
    """Mean and variance of draws, to six standard errors."""
    d, count = distribution, 20_000
    drawn = d.sample((count,)).double()
    mean, variance = d.mean.double(), d.variance.double()
    finite = variance.isfinite()
    error = (variance / count).sqrt()
    assert bool(((drawn.mean(0) - mean).abs() < 6 * error)[finite].all())
    assert bool((drawn.var(0) / variance)[finite].sub(1).abs().lt(0.5).all())  # the fourth moment may be large


def test_density_is_the_slope_of_the_cdf(distribution):
    """As torch's test_cdf_log_prob."""
    d = distribution
    y = d.sample((4,)).abs().double() + 0.3
    y.requires_grad_()
    (slope,) = torch.autograd.grad(d.cdf(y).sum(), y)
    assert torch.allclose(d.log_prob(y).exp().double(), slope, rtol=1e-3, atol=1e-6)


def test_quantiles_invert_the_cdf(distribution):
    """As torch's test_cdf_icdf_inverse."""
    d = distribution
    y = d.sample((20,))
    level = d.cdf(y)
    inside = (level > 1e-3) & (level < 1 - 1e-3)
    assert torch.allclose(d.icdf(level)[inside].float(), y[inside], rtol=1e-2, atol=1e-3)
    assert torch.allclose(d.cdf(y) + d.sf(y), torch.ones_like(level), atol=1e-5)


def test_expand(distribution):
    """As torch's test_distribution_expand."""
    d = distribution
    for shape in (torch.Size(), torch.Size((1,)), torch.Size((3, 2))):
        wide = d.expand(shape + d.batch_shape)
        y = wide.sample()
        assert y.shape == shape + d.batch_shape + d.event_shape
        assert torch.allclose(wide.log_prob(y), d.log_prob(y), rtol=1e-4, atol=1e-5)
        assert torch.allclose(wide.mean, d.mean.expand_as(wide.mean))


def test_copies(distribution):
    d = distribution
    y = d.sample()
    for other in (copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert torch.equal(other.log_prob(y), d.log_prob(y))


def test_gradients_of_reparametrised_samples(distribution):
    if not distribution.has_rsample:
        assert type(distribution).__name__ not in ("Normal", "StudentT", "NormalInverseGamma")
        return
    parameters = [p.clone().requires_grad_() for p in distribution.to_dict().values()]
    drawn = type(distribution)._from_leaves(parameters).rsample((3,))
    gradients = torch.autograd.grad(drawn.sum(), parameters, allow_unused=True)
    assert any(g is not None and bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("name", ["Normal", "StudentT", "NormalInverseGamma"])
def test_invalid_parameters_raise(name):
    kind = getattr(hs, name)
    good = {k: v for k, v in CLASSES[name]().to_dict().items() if k != "df_minus_two"}
    for parameter, constraint in kind.arg_constraints.items():
        assert bool(constraint.check(good[parameter]).all())
        if constraint is not torch.distributions.constraints.real:
            with pytest.raises(ValueError):
                kind(**{**good, parameter: -torch.ones(5, 3)}, validate_args=True)


# scoringrules ---------------------------------------------------------------------------------------------------------


def test_scores_agree_with_scoringrules():
    rules = pytest.importorskip("scoringrules")
    y = torch.randn(5, 3, dtype=torch.float64)
    loc, scale, df = torch.randn(5, 3).double(), torch.rand(5, 3).double() + 0.5, torch.rand(5, 3).double() * 5 + 2.5
    each = (y.numpy(), loc.numpy(), scale.numpy())
    np.testing.assert_allclose(hs.Normal(loc, scale).crps(y), rules.crps_normal(*each), rtol=1e-10)
    np.testing.assert_allclose(hs.Normal(loc, scale).log_prob(y), -rules.logs_normal(*each), rtol=1e-10)
    expected = rules.crps_t(each[0], df.numpy(), *each[1:])
    np.testing.assert_allclose(hs.StudentT(df, loc, scale).crps(y), expected, rtol=1e-8)
    weights = torch.rand(5, 3).double() + 0.1
    mixture = hs.Mixture(hs.Normal(loc, scale), dim=-1, weights=weights)
    share = (weights / weights.sum(-1, keepdim=True)).numpy()
    expected = rules.crps_mixnorm(each[0][:, 0], *each[1:], share)
    np.testing.assert_allclose(mixture.crps(y[:, 0]), expected, rtol=1e-8)
    p = hs.Prediction(hs.Normal(loc, scale))
    low, high = np.moveaxis(p.interval(0.8), -1, 0)
    expected = rules.interval_score(each[0], low, high, 0.2).mean()
    assert hs.metrics.interval_score(p, y, 0.8) == pytest.approx(expected)
    expected = rules.quantile_score(each[0], p.quantile(0.3), 0.3).mean()
    assert hs.metrics.pinball(p, y, 0.3) == pytest.approx(expected)


# torchmetrics ---------------------------------------------------------------------------------------------------------


def test_metrics_in_the_manner_of_torchmetrics():
    """Batches against the whole, forward, reset, copies, and merged states, for every class."""
    streaming = pytest.importorskip("howsure.metrics.streaming")
    names = [n for n in streaming.__all__ if n not in ("StreamingMetric", "BootStrapper", "summary")]
    raw, y = torch.randn(60, 4), torch.randn(60)

    def part(rows):
        return hs.NormalInverseGamma.from_raw(raw[rows]), y[rows]

    def same(a, b):
        pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
        return all(torch.allclose(x, z) for x, z in pairs)

    for name in names:
        whole, batches, other = (getattr(streaming, name)() for _ in range(3))
        whole.update(*part(slice(None)))
        for first in range(0, 40, 10):
            batches.update(*part(slice(first, first + 10)))
        other.update(*part(slice(40, 60)))
        batches.merge_state(other)
        assert same(batches.compute(), whole.compute()), name
        for twin in (whole.clone(), pickle.loads(pickle.dumps(whole))):
            assert same(twin.compute(), whole.compute()), name
        fresh = getattr(streaming, name)()
        assert same(fresh(*part(slice(None))), whole.compute()), name
        fresh.reset()
        assert fresh.count == 0


# skpro ----------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_skpro_check_estimator():
    pytest.importorskip("skpro")
    from skpro.utils import check_estimator

    from howsure.contrib.skpro import ProbaRegressor

    found = check_estimator(ProbaRegressor, verbose=False)
    assert len(found) > 50
    assert {name: result for name, result in found.items() if result != "PASSED"} == {}


# ONNX -----------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["head", "mixture", "regressor"])
def test_onnx_checker(kind, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    x, path = torch.rand(60, 3), tmp_path / "model.onnx"
    if kind == "regressor":
        model = hs.EvidentialRegressor(members=2, steps=20, random_state=0).fit(x.numpy(), x[:, 0].numpy())
        hs.export(model, path)
    else:
        head = hs.NIGHead(8) if kind == "head" else hs.MixtureHead(8, components=3)
        hs.export(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), head), path, x)
    onnx.checker.check_model(str(path), full_check=True)
