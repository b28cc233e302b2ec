"""The calculus of the Normal Inverse-Gamma against mpmath, quadrature and Monte Carlo."""

import itertools

import mpmath as mp
import pytest
import torch
from scipy import integrate, stats

import howsure as hs
import oracles
from howsure.formulas import nig, normal
from oracles import exact

POINTS = [
    (0.3, 0.7, 2.5, 1.3),
    (-0.2, 2.0, 3.0, 2.0),
    (5.0, 0.05, 1.3, 0.2),
    (0.0, 40.0, 12.0, 30.0),
    (-3.0, 1.0, 4.5, 0.01),
]


def parameters(point, dtype=torch.float64):
    gamma, nu, alpha, beta = (torch.tensor(v, dtype=dtype) for v in point)
    return nig.Parameters(gamma, nu, alpha - 1, beta)


# The NLL over its whole domain --------------------------------------------------------------------------------------

GRID = {
    "r": [0.0, 1e-6, 1e-2, 1.0, 50.0, 1e4, 1e6],
    "nu": [1e-6, 1e-3, 1.0, 30.0, 1e6],
    "alpha_minus_one": [1e-6, 1e-4, 0.01, 0.5, 1.0, 2.9, 3.1, 7.0, 20.0, 1e3, 1e5, 1e6, 1e7, 1e8],
    "beta": [1e-9, 1e-4, 1.0, 1e4, 1e9],
}


def domain(dtype):
    """(y, γ, ν, α−1, β): the grid with γ = 0, and random points with γ ≠ 0 and y on both sides of it."""
    grid = torch.tensor(list(itertools.product(*GRID.values())), dtype=torch.float64)
    r, nu, a, beta = grid.unbind(1)
    g = torch.Generator().manual_seed(7)
    n = 1000
    ends = [(1e-9, 1e6), (1e-6, 1e6), (1e-6, 1e8), (1e-9, 1e9)]
    random = [oracles.log_uniform(low, high, n, g) for low, high in ends]
    gamma = torch.randn(n, generator=g, dtype=torch.float64)
    sign = torch.where(torch.rand(n, generator=g) < 0.5, -1.0, 1.0)
    columns = [
        torch.cat([r, gamma + sign * random[0]]),
        torch.cat([torch.zeros_like(r), gamma]),
        *(torch.cat(pair) for pair in zip((nu, a, beta), random[1:], strict=True)),
    ]
    return [c.to(dtype) for c in columns]


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def sweep(request):
    """Inputs and their exact terms, worked out once per dtype."""
    inputs = domain(request.param)
    rows = [[exact(v) for v in row] for row in zip(*inputs, strict=True)]
    values = [oracles.nll_terms(*row) for row in rows]
    slopes = [oracles.nll_gradient_terms(*row) for row in rows]
    return inputs, values, slopes


def by_loss(y, p):
    return nig.nll(y, *p)


def by_predictive(y, p):
    answer = hs.NormalInverseGamma(p.gamma, p.nu, beta=p.beta, alpha_minus_one=p.alpha_minus_one)
    return -answer.predictive().log_prob(y)


def worst(got, terms):
    """The largest error relative to max(1, sum of the absolute values of the terms)."""
    return max(float(abs(exact(v) - sum(t)) / max(1, sum(map(abs, t)))) for v, t in zip(got, terms, strict=True))


@pytest.mark.parametrize("route", [by_loss, by_predictive])
def test_nll_and_its_gradients_are_exact_over_the_whole_domain(sweep, route):
    (y, *rest), values, slopes = sweep
    p = nig.Parameters(*(v.clone().requires_grad_() for v in rest))
    nll = route(y, p)
    gradients = torch.autograd.grad(nll.sum(), p)
    single = y.dtype == torch.float32
    assert worst(nll, values) <= (2e-6 if single else 1e-12)
    for k, gradient in enumerate(gradients):
        assert worst(gradient, [s[k] for s in slopes]) <= (1e-5 if single else 1e-12), p._fields[k]


@pytest.mark.parametrize("route", [by_loss, by_predictive])
def test_gradients_are_exact_relative_to_their_own_terms(sweep, route):
    """Without the 1 in max(1, …): also a derivative of 1e-16 is right to six digits."""
    (y, *rest), _, slopes = sweep
    p = nig.Parameters(*(v.clone().requires_grad_() for v in rest))
    gradients = torch.autograd.grad(route(y, p).sum(), p)
    bound = 2e-6 if y.dtype == torch.float32 else 1e-13
    for k, gradient in enumerate(gradients):
        for value, terms in zip(gradient, slopes, strict=True):
            size = sum(map(abs, terms[k]))
            assert abs(exact(value) - sum(terms[k])) <= bound * size, p._fields[k]


def test_stable_form_is_the_papers_formula():
    for row in itertools.islice(zip(*domain(torch.float64), strict=True), 0, None, 37):
        numbers = [exact(v) for v in row]
        assert abs(oracles.nll_as_published(*numbers) - sum(oracles.nll_terms(*numbers))) < mp.mpf(10) ** -25


def test_published_form_fails_in_float32():
    """Why the stable form: the paper's own, in float32, is off by more than 0.5 nat at α = 1e6."""
    y, gamma, nu, beta = (torch.tensor(v) for v in (0.7, 0.0, 1.0, 1e6))
    alpha = torch.tensor(1e6)
    omega = 2 * beta * (1 + nu)
    naive = (
        0.5 * torch.log(torch.pi / nu)
        - alpha * omega.log()
        + (alpha + 0.5) * ((y - gamma) ** 2 * nu + omega).log()
        + torch.lgamma(alpha)
        - torch.lgamma(alpha + 0.5)
    )
    truth = float(sum(oracles.nll_terms(*(exact(v) for v in (y, gamma, nu, alpha - 1, beta)))))
    assert abs(naive - truth) > 0.5
    assert abs(nig.nll(y, gamma, nu, alpha - 1, beta) - truth) < 2e-6


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("y", [-4.0, 0.31, 6.0])
def test_nll_is_the_marginal_of_the_model(point, y):
    """∫∫ N(y; μ, σ²) NIG(μ, σ²) by quadrature: μ in closed form is N(γ, σ²(1+1/ν)), σ² from scipy's inverse gamma."""
    gamma, nu, alpha, beta = point
    mode = beta / (alpha + 1.5)

    def integrand(log_s2):
        s2 = mp.e**log_s2
        s2 = float(s2)
        return stats.norm.pdf(y, gamma, (s2 * (1 + 1 / nu)) ** 0.5) * stats.invgamma.pdf(s2, alpha, scale=beta) * s2

    centre = float(mp.log(mode + (y - gamma) ** 2 / (2 * (1 + 1 / nu)) / (alpha + 1.5)))
    density = sum(
        integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-11, limit=200)[0]
        for a, b in itertools.pairwise([centre - 12, centre - 2, centre, centre + 2, centre + 8, centre + 40])
    )
    assert nig.nll(torch.tensor(y, dtype=torch.float64), *parameters(point)).item() == pytest.approx(
        -float(mp.log(density)), abs=1e-8
    )


@pytest.mark.parametrize("point", POINTS)
def test_density_integrates_to_one_and_matches_scipy(point):
    p = parameters(point)
    mu = torch.tensor([-1.0, 0.0, 0.4, 7.0], dtype=torch.float64)
    s2 = torch.tensor([0.02, 0.3, 1.0, 25.0], dtype=torch.float64)
    gamma, nu, alpha, beta = point
    expected = stats.norm.logpdf(mu, gamma, (s2 / nu).sqrt()) + stats.invgamma.logpdf(s2, alpha, scale=beta)
    assert torch.allclose(nig.log_prob(mu, s2, *p), torch.as_tensor(expected), rtol=1e-12, atol=1e-12)


def test_density_stays_finite_and_right_for_huge_alpha():
    alpha, beta = 1e8, 2e8
    p = parameters((0.0, 3.0, alpha, beta))
    s2 = beta / alpha * (1 + torch.tensor([-2e-4, 0.0, 1e-4], dtype=torch.float64))
    for v, got in zip(s2, nig.log_prob(torch.tensor(0.1, dtype=torch.float64), s2, *p), strict=True):
        v, a, b = exact(v), mp.mpf(alpha), mp.mpf(beta)
        truth = mp.log(3 / (2 * mp.pi * v)) / 2 - 3 * mp.mpf(0.1) ** 2 / (2 * v)
        truth += a * mp.log(b) - mp.loggamma(a) - (a + 1) * mp.log(v) - b / v
        assert float(truth) == pytest.approx(got.item(), abs=1e-6)


# Moments and information --------------------------------------------------------------------------------------------

DRAWS = 400_000


@pytest.fixture(scope="module", params=POINTS, ids=str)
def drawn(request):
    """A point with draws of (μ, σ²) and y made by numpy-free definitions: σ² = 1/Gamma, μ and y normal."""
    gamma, nu, alpha, beta = request.param
    generator = torch.Generator().manual_seed(11)
    s2 = torch.as_tensor(stats.invgamma.rvs(alpha, scale=beta, size=DRAWS, random_state=5))
    mu = gamma + (s2 / nu).sqrt() * torch.randn(DRAWS, generator=generator, dtype=torch.float64)
    y = mu + s2.sqrt() * torch.randn(DRAWS, generator=generator, dtype=torch.float64)
    return request.param, mu, s2, y


def agrees(samples, expected, sigmas=5.0):
    """The mean of samples lies within five standard errors of the expected value."""
    error = samples.std() / len(samples) ** 0.5
    return abs(samples.mean() - expected) <= sigmas * error


def test_moments_against_draws(drawn):
    (gamma, nu, alpha, beta), mu, s2, y = drawn
    p = parameters((gamma, nu, alpha, beta))
    if alpha > 2:  # else the draws' own mean has no finite standard error
        assert agrees(s2, nig.aleatoric_variance(*p[2:]))
        assert agrees((mu - gamma) ** 2, nig.epistemic_variance(*p[1:]))
        assert agrees((y - gamma) ** 2, nig.predictive_variance(*p[1:]))
    if alpha > 4:
        assert agrees((s2 - beta / (alpha - 1)) ** 2, nig.variance_of_variance(*p[2:]))
    total = nig.aleatoric_variance(*p[2:]) + nig.epistemic_variance(*p[1:])
    assert nig.predictive_variance(*p[1:]).item() == pytest.approx(total.item(), rel=1e-14)


def test_variance_of_the_variance_is_infinite_up_to_two():
    a = torch.tensor([0.5, 1.0, 1.5], requires_grad=True)
    value = nig.variance_of_variance(a, torch.tensor(1.0))
    assert value[:2].isinf().all()
    assert value[2].item() == pytest.approx(1 / (1.5**2 * 0.5))
    assert torch.autograd.grad(value[2], a)[0].isfinite().all()


def test_entropy_against_draws(drawn):
    point, mu, s2, _ = drawn
    gamma, nu, alpha, beta = point
    surprise = -stats.norm.logpdf(mu, gamma, (s2 / nu).sqrt()) - stats.invgamma.logpdf(s2, alpha, scale=beta)
    assert agrees(torch.as_tensor(surprise), nig.entropy(*parameters(point)[1:]))


def test_mutual_information_against_draws(drawn):
    point, mu, s2, y = drawn
    p = parameters(point)
    scale = nig.predictive_scale(*p[1:]).item()
    marginal = torch.as_tensor(stats.t.logpdf(y, 2 * point[2], point[0], scale))
    gain = normal.log_prob(y, mu, s2.sqrt()) - marginal
    assert agrees(gain, nig.mutual_information(p.nu, p.alpha_minus_one))


def test_mutual_information_is_free_of_units_and_exact_in_the_limit():
    nu, a = torch.tensor([1e6, 1e8], dtype=torch.float64), torch.tensor([1e8, 1e8], dtype=torch.float64)
    for v, got in zip(nu, nig.mutual_information(nu, a), strict=True):
        alpha = 1 + mp.mpf(10) ** 8
        truth = mp.log1p(1 / exact(v)) / 2 + (alpha + mp.mpf("0.5")) * oracles.rho_prime(alpha) - mp.mpf("0.5")
        truth += mp.psi(0, alpha) / 2 - oracles.rho(alpha)
        assert float(truth) == pytest.approx(got.item(), rel=1e-9)


PAIRS = [
    (POINTS[0], POINTS[1]),
    (POINTS[1], POINTS[0]),
    (POINTS[3], POINTS[1]),
    (POINTS[0], POINTS[3]),
    (POINTS[4], POINTS[1]),
]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_kl_divergence_against_draws(left, right):
    gamma, nu, alpha, beta = left
    s2 = torch.as_tensor(stats.invgamma.rvs(alpha, scale=beta, size=DRAWS, random_state=3))
    mu = gamma + (s2 / nu).sqrt() * torch.randn(DRAWS, dtype=torch.float64)

    def density(point):
        g, n, a, b = point
        return torch.as_tensor(stats.norm.logpdf(mu, g, (s2 / n).sqrt()) + stats.invgamma.logpdf(s2, a, scale=b))

    assert agrees(density(left) - density(right), nig.kl_divergence(parameters(left), parameters(right)))


def test_kl_divergence_is_0_9951_instead_of_1_5200_as_printed():
    value = nig.kl_divergence(parameters((0.3, 0.7, 2.5, 1.3)), parameters((-0.2, 2.0, 3.0, 2.0)))
    assert value.item() == pytest.approx(0.9951, abs=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_divergence_against_the_textbook_form_in_mpmath(dtype):
    """½(α₁/β₁)Δγ²ν₂ + ½ν₂/ν₁ − ½ln(ν₂/ν₁) − ½ + α₂ln(β₁/β₂) − ln Γ(α₁)/Γ(α₂) + (α₁−α₂)ψ(α₁) − (β₁−β₂)α₁/β₁."""
    g = torch.Generator().manual_seed(1)
    ends = [(1e-3, 1e3), (1e-6, 1e6), (1e-6, 1e8), (1e-9, 1e9)]
    first, second = ([oracles.log_uniform(a, b, 300, g).to(dtype) for a, b in ends] for _ in range(2))
    # half of the pairs close to each other, where the textbook form loses everything
    second = [torch.where(torch.arange(300) % 2 == 0, s, f * 1.0001) for f, s in zip(first, second, strict=True)]
    got = nig.kl_divergence(nig.Parameters(*first), nig.Parameters(*second))
    for i, value in enumerate(got):
        (g1, n1, a1, b1), (g2, n2, a2, b2) = ([exact(c[i]) for c in side] for side in (first, second))
        a1, a2 = a1 + 1, a2 + 1
        location = (a1 / b1) * (g1 - g2) ** 2 * n2 / 2 + (n2 / n1 - mp.log(n2 / n1) - 1) / 2
        rate = a2 * mp.log(b1 / b2) - mp.loggamma(a1) + mp.loggamma(a2)
        truth = location + rate + (a1 - a2) * mp.psi(0, a1) - (b1 - b2) * a1 / b1
        assert truth >= 0
        # the rounding of α, β moves gap(α₁β₂/β₁α₂) by its slope times ε: α₂|1 − 1/q| ε
        sensitivity = abs(a1 * b2 / b1 - a2) + abs(a2 - a1)
        eps = torch.finfo(dtype).eps
        assert abs(exact(value) - truth) <= 8 * eps * max(1, truth + sensitivity), (i, value.item(), float(truth))


def test_kl_divergence_of_a_distribution_from_itself_is_zero():
    for point in POINTS:
        assert nig.kl_divergence(parameters(point, torch.float32), parameters(point, torch.float32)) == 0


def test_mean_and_variance_of_an_nig_are_dependent():
    """Erratum E1: the density does not factorise; I(μ; σ²) at α = 2.5 is 0.1020, by the literature's closed form."""
    gamma, nu, alpha, beta = 0.0, 1.0, 2.5, 1.0
    s2 = torch.as_tensor(stats.invgamma.rvs(alpha, scale=beta, size=DRAWS, random_state=8))
    mu = (s2 / nu).sqrt() * torch.randn(DRAWS, dtype=torch.float64)
    joint = nig.log_prob(mu, s2, *parameters((gamma, nu, alpha, beta)))
    product = stats.t.logpdf(mu, 2 * alpha, gamma, (beta / (nu * alpha)) ** 0.5) + stats.invgamma.logpdf(
        s2, alpha, scale=beta
    )
    assert agrees(joint - torch.as_tensor(product), 0.10200)


# Updates ---------------------------------------------------------------------------------------------


def test_update_by_all_observations_equals_updates_one_by_one():
    y = torch.randn(5, 4, 3, dtype=torch.float64) * 3
    p = nig.Parameters(*(v.double().expand(5, 3) for v in parameters(POINTS[0])))
    q = p
    for k in range(4):
        q = nig.conjugate_update(y[:, k : k + 1], *q, dim=1)
    for one, many in zip(q, nig.conjugate_update(y, *p, dim=1), strict=True):
        assert torch.allclose(one, many, rtol=1e-13, atol=1e-13)


def test_virtual_observations_are_nu_and_two_alpha():
    """Errata E3, E4: from almost nothing, n observations with sum of squares SS give ν = n, 2α = n, 2β = SS."""
    y = torch.randn(37, dtype=torch.float64) * 2
    start = [torch.tensor(v, dtype=torch.float64) for v in (0.0, 1e-12, -1 + 1e-12, 1e-12)]
    q = nig.conjugate_update(y, *start)
    assert q.nu.item() == pytest.approx(37)
    assert 2 * (1 + q.alpha_minus_one.item()) == pytest.approx(37)
    assert 2 * q.beta.item() == pytest.approx(((y - y.mean()) ** 2).sum().item())


# Maps ---------------------------------------------------------------------------------------------------------------


def test_affine_is_a_change_of_units():
    p = nig.Parameters(*(v.expand(6) for v in parameters(POINTS[0])))
    y = torch.linspace(-3, 3, 6, dtype=torch.float64)
    moved = nig.affine(p, loc=1e6, scale=-1e-3)
    change = torch.log(torch.tensor(1e-3, dtype=torch.float64))
    assert torch.allclose(nig.nll(1e6 - 1e-3 * y, *moved), nig.nll(y, *p) + change, rtol=1e-6)
    assert torch.equal(moved.alpha_minus_one, p.alpha_minus_one)


def test_raw_outputs_reach_alpha_minus_one_exactly():
    raw = torch.tensor([[1.0, -30.0, -30.0, -30.0], [1.0, 20.5, 20.5, 20.5]], dtype=torch.float64)
    low, high = nig.from_raw(raw).alpha_minus_one
    assert low.item() == pytest.approx(1e-6 + 9.3576229688e-14, rel=1e-15)
    assert high.item() == pytest.approx(20.5 + float(mp.log1p(mp.exp(-20.5))) + 1e-6, rel=1e-15)
    assert nig.from_raw(raw.bfloat16()).gamma.dtype == torch.float32


@pytest.mark.parametrize("shape", [(2,), (5,), (2, 2), (4, 3)])
def test_log_prob_of_targets_raises_and_names_predictive(shape):
    answer = hs.NormalInverseGamma.from_raw(torch.randn(*shape, 4))
    for y in (torch.zeros(shape), torch.zeros(shape[-1:]), torch.zeros(()), torch.zeros(*shape, 1)):
        with pytest.raises(hs.InputError) as caught:
            answer.log_prob(y)
        assert "predictive()" in (caught.value.hint or "")


def test_methods_about_a_new_y_are_those_of_the_predictive():
    answer = hs.NormalInverseGamma.from_raw(torch.randn(6, 4, dtype=torch.float64))
    t, y = answer.predictive(), torch.randn(6, dtype=torch.float64)
    for name in ("cdf", "sf", "crps"):
        assert torch.equal(getattr(answer, name)(y), getattr(t, name)(y))
    oracle = stats.t(df=t.df.numpy(), loc=t.loc.numpy(), scale=t.scale.numpy())
    np_ends = answer.interval(0.8).numpy()
    assert np_ends[:, 0] == pytest.approx(oracle.ppf(0.1), rel=1e-9)
    assert np_ends[:, 1] == pytest.approx(oracle.ppf(0.9), rel=1e-9)
    assert answer.std.numpy() == pytest.approx(oracle.std(), rel=1e-9)
    assert torch.allclose(answer.std**2, answer.aleatoric_std**2 + answer.epistemic_std**2)


@pytest.mark.parametrize("coverage", [0, 1, 1.5, -0.1, True, "0.9", float("nan")])
def test_interval_with_a_coverage_outside_the_unit_interval_raises(coverage):
    with pytest.raises(hs.InputError):
        hs.NormalInverseGamma(0.0, 1.0, 2.0, 1.0).interval(coverage)
