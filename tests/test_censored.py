"""Targets of which only a bound is known, against mpmath, scipy and simulation."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import stats

import howsure as hs
import oracles
from howsure.formulas import nig, normal, penalties, student_t, student_tail
from howsure.likelihoods import Evidential, Network, NormalLikelihood
from oracles import exact

LOSSES = {"evidential": (hs.evidential_loss, hs.NIGHead), "gaussian": (hs.normal_loss, hs.NormalHead)}


@pytest.fixture
def answer():
    return hs.NormalInverseGamma.from_raw(torch.randn(6, 4, dtype=torch.float64))


@pytest.fixture
def y():
    return torch.randn(6, dtype=torch.float64)


def cell(y, sign):
    """Ends of the cells of bounds: at least y for the sign 1, at most y for −1, and y itself for 0."""
    sign = torch.as_tensor(sign)
    return torch.where(sign < 0, -math.inf, y), torch.where(sign > 0, math.inf, y)


# Values and gradients -------------------------------------------------------------------------------------------------

# α−1, z, direction of the bound: both ends of α, both sides, and tails far beyond the smallest float
POINTS = [
    (1e-6, 1e4, 1),
    (1e-6, -0.3, -1),
    (0.5, -40.0, 1),
    (3.0, 1e4, -1),
    (30.0, -3.0, -1),
    (30.0, 0.0, 1),
    (1e3, 60.0, 1),
    (1e5, -2.0, 1),
    (1e8, 1e4, 1),
    (1e8, -1e4, -1),
    (1e8, 1.0, 1),
    (1e8, 9.0, -1),
]


def tail_nll(y, sign, gamma, nu, a, beta):
    """−ln P(Y ≥ y), or −ln P(Y ≤ y) for sign = −1, of the Student t with 2α degrees of freedom."""
    n = 2 * (1 + a)
    t = sign * (y - gamma) / mp.sqrt(beta * (1 + nu) / (nu * (1 + a)))
    tail = oracles.t_tail(t, n)
    return -mp.log(tail) if t >= 0 else -mp.log1p(-tail)


def tail_slopes(y, sign, gamma, nu, a, beta, nll):
    """Derivatives by (γ, ν, α, β): by the density over the tail, and for α by a difference of mpmath's tails."""
    density = mp.exp(-sum(oracles.nll_terms(y, gamma, nu, a, beta)))
    hazard = density / mp.exp(-nll)  # by y, in the direction of the bound
    by_log_scale = -sign * (y - gamma) * hazard
    h = (1 + a) * mp.mpf(10) ** -10
    by_alpha = (tail_nll(y, sign, gamma, nu, a + h, beta) - tail_nll(y, sign, gamma, nu, a - h, beta)) / (2 * h)
    return [-sign * hazard, by_log_scale * -1 / (2 * nu * (1 + nu)), by_alpha, by_log_scale / (2 * beta)]


@pytest.mark.parametrize(("a", "z", "sign"), POINTS)
def test_tails_and_their_gradients_are_exact_in_float32(a, z, sign):
    """To one rounding of float32, relative to the value itself, however small or large it is."""
    p = [torch.tensor(v, requires_grad=True) for v in (0.25, 0.7, a, 1.3)]
    scale = nig.predictive_scale(*p[1:]).item()
    y, bound = torch.tensor(0.25 + z * scale), torch.tensor(sign)
    loss = nig.cell_nll(y, *cell(y, bound), *p)
    gradient = torch.autograd.grad(loss, p)
    with mp.workdps(30):
        point = [exact(v.detach()) for v in (y, bound, *p)]
        truth = tail_nll(*point)
        assert abs(exact(loss.detach()) - truth) <= mp.mpf(2) ** -23 * truth
        for got, expected in zip(gradient, tail_slopes(*point, truth), strict=True):
            # at y = γ the derivative by α is 0, a difference of two numbers near 1/α
            floor = mp.mpf(10) ** -37 if z else mp.mpf(10) ** -12
            assert abs(exact(got) - expected) <= mp.mpf(2) ** -22 * abs(expected) + floor


def test_oracle_of_slopes_is_the_derivative():
    with mp.workdps(30):
        point = [mp.mpf(v) for v in (1.5, 1, 0.25, 0.7, 2.0, 1.3)]
        slopes = tail_slopes(*point, tail_nll(*point))
        for k, slope in enumerate(slopes, start=2):
            apart = mp.mpf(10) ** -10
            ends = [tail_nll(*(v + d * (i == k) for i, v in enumerate(point))) for d in (apart, -apart)]
            assert abs((ends[0] - ends[1]) / (2 * apart) - slope) < mp.mpf(10) ** -15


@pytest.mark.parametrize(("s", "n"), [(0.0, 2.0), (0.3, 5.0), (1e-3, 1e6), (2e-4, 2e8), (40.0, 3.0), (1e9, 700.0)])
def test_derivative_of_the_integral_by_the_degrees_of_freedom(s, n):
    """−∂G/∂n = ∫ ln(cosh x + τ sinh x) (cosh x + τ sinh x)^(−n) dx, by adaptive quadrature."""
    got = student_tail.integral_slope(*(torch.tensor(v, dtype=torch.float64) for v in (s, n)))
    with mp.workdps(30):
        tau = mp.mpf(s) / mp.sqrt(1 + mp.mpf(s) ** 2)
        unit = (2 / mp.mpf(n)) / (tau + mp.sqrt(tau * tau + 2 / mp.mpf(n)))

        def integrand(u):
            log = mp.log(mp.cosh(unit * u) + tau * mp.sinh(unit * u))
            return log * mp.exp(-n * log)

        truth = unit * mp.quad(integrand, [0, 0.5, 1, 2, 4, 8, 16, 32, 64, 128])
        assert abs(exact(got) / truth - 1) < 1e-12


@pytest.mark.parametrize("df", [0.7, 2.0, 5.0, 300.0])
def test_log_tails_of_students_t_against_scipy(df):
    y = torch.tensor([-30.0, -2.0, 0.0, 0.4, 7.0], dtype=torch.float64)
    n, loc, scale = (torch.tensor(v, dtype=torch.float64) for v in (df, 0.5, 2.0))
    law = stats.t(df, 0.5, 2.0)
    infinite = torch.full_like(y, math.inf)
    for lower, upper, tail in ((y, infinite, law.sf), (-infinite, y, law.cdf)):
        found = student_t.cell_nll(y, lower, upper, n, loc, scale)
        assert -found.numpy() == pytest.approx(np.log(tail(y)), rel=1e-9)
    lower, upper = torch.where(y == -2, -math.inf, y), torch.where(y == 7, math.inf, y)
    expected = [-law.logpdf(-30), -law.logcdf(-2), -law.logpdf(0), -law.logpdf(0.4), -law.logsf(7)]
    assert student_t.cell_nll(y, lower, upper, n, loc, scale).numpy() == pytest.approx(np.array(expected), rel=1e-9)


def test_log_tails_of_the_normal_against_scipy():
    y = torch.tensor([-1e5, -40.0, -1.0, 0.5, 3.0, 40.0, 1e5])
    loc, scale = torch.tensor(0.5), torch.tensor(2.0)
    law = stats.norm(0.5, 2.0)
    for side, log_tail in ((1, law.logsf), (-1, law.logcdf)):
        found = normal.cell_nll(y, *cell(y, side), loc, scale)
        assert -found.numpy() == pytest.approx(log_tail(y.numpy()), rel=1e-6)


def test_gradients_of_the_normals_tails_against_mpmath():
    for z, sign in [(-50.0, 1), (-1.0, -1), (0.0, 1), (3.0, 1), (1e4, 1), (-1e4, -1)]:
        loc, scale = torch.tensor(0.25, requires_grad=True), torch.tensor(0.5, requires_grad=True)
        y = torch.tensor(0.25 + 0.5 * z)
        loss = normal.cell_nll(y, *cell(y, sign), loc, scale)
        by_loc, by_scale = torch.autograd.grad(loss, (loc, scale))
        t = mp.mpf(sign * z)
        tail = mp.erfc(t / mp.sqrt(2)) / 2
        hazard = mp.exp(-t * t / 2) / mp.sqrt(2 * mp.pi) / tail
        for got, truth in [(loss, -mp.log(tail)), (by_loc, -sign * hazard / 0.5), (by_scale, -t * hazard / 0.5)]:
            assert abs(exact(got.detach()) - truth) <= mp.mpf(2) ** -22 * abs(truth) + mp.mpf(10) ** -37


def test_derivatives_by_differences(answer, y):
    p = [v.detach().requires_grad_() for v in answer.parameters]
    sign = torch.tensor([1, -1, 0, 1, -1, 1])
    assert torch.autograd.gradcheck(lambda y, *p: nig.cell_nll(y, *cell(y, sign), *p), (y.requires_grad_(), *p))


def test_bounds_are_probabilities_of_simulated_targets(answer):
    """The share of draws beyond a bound, within five standard errors."""
    bounds = answer.prediction + torch.tensor([-1.0, 0.5, 2.0, -0.2, 0.0, 1.0], dtype=torch.float64)
    draws = answer.predictive().sample((40_000,))
    for sign, share in ((1, (draws >= bounds)), (-1, (draws <= bounds))):
        censored = torch.full((6,), sign)
        p = torch.exp(-hs.evidential_loss(answer, bounds, 0.0, censored=censored, reduction="none"))
        assert ((share.double().mean(0) - p).abs() < 5 * (p * (1 - p) / 40_000).sqrt()).all()


# The losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_each_entry_is_value_or_bound(name):
    loss_of, head_of = LOSSES[name]
    answer, y = head_of(3)(torch.randn(9, 3)), 3 * torch.randn(9)
    censored = torch.tensor([0, 1, -1] * 3)
    predictive = answer.predictive()
    tails = torch.stack([-predictive.log_prob(y), -predictive.sf(y).log(), -predictive.cdf(y).log()])
    expected = tails.gather(0, (censored % 3).unsqueeze(0))[0]
    options = {"weight": 0.0} if name == "evidential" else {}
    each = loss_of(answer, y, censored=censored, reduction="none", **options)
    assert torch.allclose(each, expected, rtol=1e-5)
    weights = torch.rand(9)
    mask = torch.tensor([True, True, False] * 3)
    counted = weights * mask
    got = loss_of(answer, y, censored=censored, sample_weight=weights, mask=mask, **options)
    assert torch.allclose(got, (expected * counted).sum() / counted.sum(), rtol=1e-5)
    total = loss_of(answer, y, censored=censored, sample_weight=weights, mask=mask, reduction="sum", **options)
    assert torch.allclose(total, (expected * counted).sum(), rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_without_bounds_nothing_changes(name):
    loss_of, head_of = LOSSES[name]
    answer, y = head_of(3)(torch.randn(5, 3)), torch.randn(5)
    answer.raw = None  # the formulas, as with bounds
    plain = loss_of(answer, y, reduction="none")
    for nothing in (torch.zeros(5, dtype=torch.int8), torch.zeros(5, dtype=torch.bool)):
        assert torch.equal(loss_of(answer, y, censored=nothing, reduction="none"), plain)
    ones = torch.tensor([1, 0, 0, 1, 1])
    for same in (ones.bool(), ones.to(torch.uint8), ones.to(torch.int32)):
        assert torch.equal(loss_of(answer, y, censored=same), loss_of(answer, y, censored=ones))


@pytest.mark.parametrize("penalty", penalties.PENALTIES)
def test_penalties_of_bounds_are_one_sided(answer, y, penalty):
    f, p = penalties.PENALTIES[penalty], answer.parameters
    for sign in (1, -1):
        bound = torch.full((6,), sign)
        parts = [hs.evidential_loss(answer, y, w, penalty, censored=bound, reduction="none") for w in (0.0, 1.0)]
        contradicts = sign * (y - answer.gamma) > 0
        assert 0 < contradicts.sum() < 6
        expected = torch.where(contradicts, f(y, *p), f(answer.gamma, *p))
        assert torch.allclose(parts[1] - parts[0], expected)
    if penalty != "kl":  # which knows no errors
        assert torch.equal(f(answer.gamma, *p), torch.zeros(6, dtype=torch.float64))


def test_kept_bound_sends_no_gradient_through_the_penalty(answer):
    p = [v.detach().requires_grad_() for v in answer.parameters]
    kept = hs.NormalInverseGamma(p[0], p[1], alpha_minus_one=p[2], beta=p[3])
    y, bound = answer.gamma.detach() - 0.5, torch.ones(6, dtype=torch.bool)
    for penalty in ("error", "standard_score", "nsu", "kl_error"):
        gradients = [
            torch.autograd.grad(hs.evidential_loss(kept, y, weight, penalty, censored=bound), p)
            for weight in (0.0, 5.0)
        ]
        for without, with_penalty in zip(*gradients, strict=True):
            assert torch.allclose(without, with_penalty)


@pytest.mark.parametrize("name", LOSSES)
def test_masked_targets_may_have_any_value(name):
    loss_of, head_of = LOSSES[name]
    head, x = head_of(3), torch.randn(4, 3, requires_grad=True)
    y, mask = torch.tensor([0.1, math.nan, math.inf, 0.3]), torch.tensor([True, False, False, True])
    loss = loss_of(head(x), y, mask=mask, censored=torch.tensor([1, 1, 7, 0]))
    (gradient,) = torch.autograd.grad(loss, x)
    alone = loss_of(head(x[mask]), y[mask], censored=torch.tensor([1, 0]))
    assert torch.allclose(loss, alone)
    assert gradient.isfinite().all()
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_bounds_of_probability_one_and_zero(name):
    loss_of, head_of = LOSSES[name]
    head, x = head_of(3), torch.randn(4, 3, requires_grad=True)
    y = torch.tensor([-math.inf, math.inf, -1e30, 1e30])
    each = loss_of(head(x), y, censored=torch.tensor([1, -1, 1, -1]), reduction="none")
    (gradient,) = torch.autograd.grad(each.sum(), x)
    assert each.tolist() == pytest.approx([0.0] * 4, abs=1e-25)
    assert gradient.abs().max() < 1e-25
    impossible = loss_of(head(x), y.abs(), censored=torch.ones(4, dtype=torch.int64), reduction="none")
    assert impossible[0] == math.inf
    unknown = loss_of(head(x), torch.full((4,), math.nan), censored=torch.ones(4, dtype=torch.bool), reduction="none")
    assert unknown.isnan().all()  # a missing bound is never dropped unasked


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_distributions_have_finite_gradients(name):
    loss_of, _ = LOSSES[name]
    law, outputs = (hs.NormalInverseGamma, 4) if name == "evidential" else (hs.Normal, 2)
    corners = torch.cartesian_prod(*[torch.tensor([-1e4, -5.0, 5.0, 1e4])] * outputs)
    for sign in (1, -1):
        raw = corners.clone().requires_grad_()
        y = torch.linspace(-100, 100, len(raw))
        loss = loss_of(law.from_raw(raw), y, censored=torch.full((len(raw),), sign), reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), raw)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_and_empty_batches(name):
    loss_of, head_of = LOSSES[name]
    head = head_of(3).bfloat16()
    x, y = torch.randn(5, 3, dtype=torch.bfloat16), torch.randn(5, dtype=torch.bfloat16)
    bound = torch.tensor([1, 0, -1, 1, 0])
    loss = loss_of(head(x), y, censored=bound)
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.isfinite().all() for p in head.parameters())
    empty = loss_of(head(x[:0]), y[:0], censored=bound[:0])
    assert empty == 0
    several = head_of(3, targets=2)(torch.randn(5, 3))
    both = loss_of(several, torch.zeros(5, 2), censored=torch.stack([bound, -bound], 1), reduction="none")
    assert both.shape == (5, 2)


@pytest.mark.parametrize("name", LOSSES)
def test_bounds_inside_transforms(name):
    loss_of, head_of = LOSSES[name]
    head, x, y = head_of(3), torch.randn(8, 3), torch.randn(8)
    bound = torch.tensor([1, 0, -1, 1, 0, 0, -1, 1])

    def loss(x, y, bound):
        return loss_of(head(x), y, censored=bound)

    expected = loss(x.requires_grad_(), y, bound)
    (gradient,) = torch.autograd.grad(expected, x)
    traced = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, y, bound)
    assert torch.allclose(traced, expected)
    assert torch.allclose(torch.autograd.grad(traced, x)[0], gradient, rtol=1e-4, atol=1e-6)
    rows = torch.func.vmap(torch.func.grad(loss))(x.detach(), y, bound)
    assert torch.allclose(rows / 8, gradient, rtol=1e-4, atol=1e-6)


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    ("censored", "error", "message"),
    [
        (torch.ones(6), hs.InputTypeError, "censored"),
        ([1] * 6, hs.InputTypeError, "list"),
        (True, hs.InputTypeError, "bool"),
        (np.ones(6, dtype=bool), hs.InputTypeError, "ndarray"),
        (torch.ones(6, 6, dtype=torch.int64), hs.InputError, "censored"),
        (torch.tensor(1), hs.InputError, "censored"),
        (torch.tensor([0, 1, 2, 0, -3, 0]), hs.InputError, r"\(2,\)"),
        (torch.ones(6, dtype=torch.bool, device="meta"), hs.InputError, "censored"),
    ],
)
def test_one_clear_error_each(name, censored, error, message):
    loss_of, head_of = LOSSES[name]
    with pytest.raises(error, match=message):
        loss_of(head_of(3)(torch.randn(6, 3)), torch.randn(6), censored=censored)


# Methods --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Evidential([0.0, 0.1]), NormalLikelihood()])
def test_methods_learn_from_bounds(method):
    networks = method.build([0, 1], 2, method.outputs, Network((4,)))
    raw, y = torch.randn(2, 5, 1, method.outputs), torch.randn(2, 5, 1)
    bound = torch.randint(-1, 2, (2, 5, 1))
    answer = method.answer(raw)
    cells = torch.where(bound < 0, -math.inf, y), torch.where(bound > 0, math.inf, y)
    got = method.loss_of_raw(raw, y, networks, cells)
    assert torch.equal(got, method.loss(answer, y, networks, cells))
    nothing = method.loss_of_raw(raw, y, networks, (y, y))
    assert torch.allclose(nothing, method.loss_of_raw(raw, y, networks), rtol=1e-5)
    assert torch.allclose(method.nll(answer, y), -answer.predictive().log_prob(y))
    tails = torch.where(bound > 0, answer.predictive().sf(y), answer.predictive().cdf(y))
    expected = torch.where(bound == 0, method.nll(answer, y), -tails.log())
    assert torch.allclose(method.nll(answer, y, cells), expected, rtol=1e-4)


# Recovery -------------------------------------------------------------------------------------------------------------


def test_network_recovers_censored_targets():
    """Two fifths of the targets are cut off at random bounds: bounds that count as values pull predictions down."""
    g = torch.Generator().manual_seed(0)
    x = torch.empty(1000, 1).uniform_(-2, 2, generator=g)
    truth = torch.sin(2 * x[:, 0]) + x[:, 0]
    noise = torch.from_numpy(stats.t(5).rvs(1000, random_state=0)).float()
    y, bounds = truth + 0.3 * noise, truth + 0.15 + 0.6 * torch.randn(1000, generator=g)
    censored = y > bounds
    assert 0.3 < censored.double().mean() < 0.5
    seen = torch.minimum(y, bounds)
    bias = {}
    for name, known in (("ignored", None), ("censored", censored)):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.SiLU(), torch.nn.Linear(32, 32), torch.nn.SiLU())
        model = torch.nn.Sequential(net, hs.NIGHead(32))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(300):
            optimizer.zero_grad()
            hs.evidential_loss(model(x), seen, 0.0, censored=known).backward()
            optimizer.step()
        with torch.no_grad():
            bias[name] = (model(x).prediction - truth).mean().item()
    assert bias["ignored"] < -0.12
    assert abs(bias["censored"]) < 0.05
