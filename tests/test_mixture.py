"""Quantiles, CRPS and entropy of mixtures against quadrature, and arguments of every univariate distribution."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

import howsure as hs
from faults.mixtures import check
from howsure.formulas import mixture as formulas
from howsure.formulas import quadrature

METHODS = ("log_prob", "cdf", "sf", "icdf", "isf", "crps")


def normal(loc, scale, dtype=torch.float64):
    return hs.Mixture(hs.Normal(torch.tensor(loc, dtype=dtype), torch.tensor(scale, dtype=dtype)))


def student(df, loc, scale):
    return hs.Mixture(hs.StudentT(*(torch.tensor(v, dtype=torch.float64) for v in (df, loc, scale))))


@pytest.mark.parametrize("weighted", [False, True])
def test_random_mixtures_agree_with_brute_force(weighted):
    tried, failed = check(40, weighted=weighted)
    assert tried > 400
    assert failed == []


# Quantiles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [20.0, 100.0, 1e6])
def test_median_between_members_far_apart(dtype, apart):
    m = normal([0.0, apart], [1.0, 1.0], dtype)
    half = torch.tensor(0.5, dtype=dtype)
    assert m.icdf(half) == m.isf(half) == apart / 2
    p = torch.linspace(0.499, 0.501, 41, dtype=dtype)
    for quantiles, sign in ((m.icdf(p), 1), (m.isf(p), -1)):
        assert (sign * quantiles.diff() >= 0).all()
        assert ((quantiles > -4) & (quantiles < apart + 4)).all()
        below = sum(stats.norm.cdf(quantiles.double().numpy(), loc) for loc in (0.0, apart)) / 2
        # the spacing of float32 numbers near the second member
        slack = 1e-6 if dtype == torch.float64 else 1e-6 + 0.004 * apart * torch.finfo(dtype).eps
        assert np.abs(below - (p if sign > 0 else 1 - p).double().numpy()).max() < slack


@pytest.mark.parametrize("make", [normal, lambda loc, scale: student([1e8] * len(loc), loc, scale)])
def test_levels_at_the_gaps_of_several_members(make):
    """Level k/M lies where the cdf is flat; rounding error must not be divided by a density of 1e-90 there."""
    m = make([0.0, 10.0, 50.0, 1000.0, 1e6], [0.1, 1.0, 0.5, 2.0, 30.0])
    p = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)
    gaps = torch.tensor([[0.0, 10.0], [10.0, 50.0], [50.0, 1000.0], [1000.0, 1e6]], dtype=torch.float64)
    for quantiles in (m.icdf(p), m.isf(1 - p)):
        assert ((quantiles > gaps[:, 0]) & (quantiles < gaps[:, 1])).all()
    rounded = m.icdf(p.float().double() + 1e-9)
    assert (rounded.diff() > 0).all()
    assert rounded.max() < 1e6


@pytest.mark.parametrize("kind", ["normal", "student"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_quantiles_are_finite_where_there_is_no_density(kind, dtype):
    loc = torch.tensor([0.0, 100.0], dtype=dtype, requires_grad=True)
    scale = torch.tensor([1.0, 1.0], dtype=dtype, requires_grad=True)
    df = torch.tensor([1e8, 1e6], dtype=dtype, requires_grad=True)
    p = torch.tensor([0.3, 0.5, 1 - 1e-7, 0.0, 1.0], dtype=dtype, requires_grad=True)
    m = hs.Mixture(hs.Normal(loc, scale) if kind == "normal" else hs.StudentT(df, loc, scale))
    answer = m.icdf(p)
    used = (loc, scale, p) if kind == "normal" else (loc, scale, p, df)
    gradients = torch.autograd.grad(answer[:3].sum(), used)
    assert all(g.isfinite().all() for g in gradients)
    (by_loc,) = torch.autograd.grad(m.icdf(p[:1]).sum(), loc)
    assert by_loc.tolist() == pytest.approx([1, 0], abs=1e-5)


def test_nan_parameters_give_nan_and_spare_other_rows():
    loc = torch.tensor([[0.0, 0.0, math.nan], [1.0, 1.0, 1.0]])
    scale = torch.tensor([[1.0, math.nan, 1.0], [1.0, 1.0, 1.0]])
    for each in (hs.Normal(loc, scale, validate_args=False), hs.StudentT(3.0, loc, scale, validate_args=False)):
        m = hs.Mixture(each)
        for answer in (*(m.icdf(p) for p in (0.0, 0.05, 0.5, 1.0)), m.isf(0.05), m.isf(1.0), m.crps(0.0), m.entropy()):
            assert answer[1:].isnan().all()
            assert not answer[0].isnan()


def random_students(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(8, rows, generator=generator, dtype=torch.float64)
    df = 2.5 + 10 * torch.rand(8, rows, generator=generator, dtype=torch.float64)
    return hs.StudentT(df, loc, 1.0)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.975])
def test_rows_that_have_converged_stay_where_they_are(level, monkeypatch):
    m = hs.Mixture(random_students(200))
    sizes, at = [], formulas._Student.at
    monkeypatch.setattr(formulas._Student, "at", lambda self, z: sizes.append(z.numel()) or at(self, z))
    m.icdf(level)
    assert 3 <= len(sizes) <= 9
    assert sum(sizes) <= 7 * 8 * 200


def test_quantiles_are_those_of_scipys_tails():
    """By bisection with scipy's tails, for both ends of an interval, which come from one search."""
    each = random_students(6, seed=3)
    tail = torch.full((2, 1), 1e-3, dtype=torch.float64)
    found = hs.Mixture(each).quantile(tail, torch.tensor([[False], [True]])).numpy()
    assert np.array_equal(found[0], hs.Mixture(each).icdf(1e-3).numpy())
    assert np.array_equal(found[1], hs.Mixture(each).isf(1e-3).numpy())
    for row in range(6):
        members = stats.t(each.df[:, row].numpy(), each.loc[:, row].numpy(), 1.0)
        lower = optimize.brentq(lambda x, m=members: m.cdf(x).mean() - 1e-3, -1e3, 1e3, xtol=1e-13, rtol=1e-14)
        upper = optimize.brentq(lambda x, m=members: m.sf(x).mean() - 1e-3, -1e3, 1e3, xtol=1e-13, rtol=1e-14)
        assert found[:, row] == pytest.approx([lower, upper], abs=1e-9)


def test_quantiles_do_not_depend_on_how_many_are_found_at_once(monkeypatch):
    p = hs.Prediction(random_students(50), members=0)
    levels = [1e-6, 0.1, 0.5, 0.999]
    whole = p.quantile(levels), p.interval(0.8)
    monkeypatch.setattr("howsure.prediction.state.CPU_PART", 24)
    monkeypatch.setattr("howsure.formulas.student_tail.CHUNK", 16)
    for one, other in zip(whole, (p.quantile(levels), p.interval(0.8)), strict=True):
        assert np.allclose(one, other, rtol=1e-11, atol=0)
    assert np.allclose(p.quantile(0.1), whole[0][:, 1], rtol=1e-11, atol=0)


def test_quantiles_of_symmetric_mixtures_are_symmetric():
    m = student([3.0, 5.0, 5.0, 3.0], [-50.0, -1.0, 1.0, 50.0], [0.01, 2.0, 2.0, 0.01])
    p = torch.tensor([1e-9, 0.1, 0.25, 0.3], dtype=torch.float64)
    assert torch.allclose(m.icdf(p), -m.isf(p), rtol=1e-9)
    assert abs(m.icdf(0.5)) < 1e-9


def test_quantiles_of_members_that_no_number_lies_between():
    """Scales below the spacing of float64 numbers at their location: the nearest numbers have to do."""
    m = normal([1e9, 1e9 + 1], [1e-9, 1e-9])
    answer = m.icdf(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    assert ((answer >= 1e9 - 1e-6) & (answer <= 1e9 + 1 + 1e-6)).all()


# CRPS and entropy ---------------------------------------------------------------------------------------------------


def by_quad(m, value):
    """CRPS and entropy of one mixture by adaptive quadrature between the members' edges."""
    loc, scale = m.components.loc.numpy(), m.components.scale.numpy()
    df = m.components.df.numpy() if isinstance(m.components, hs.StudentT) else np.full(len(loc), np.inf)
    cuts = [0, 1, 3, 6, 12, 50, 1e3, 1e5]
    edges = sorted({value, *(loc[:, None] + scale[:, None] * np.array([*(-c for c in cuts), *cuts])).ravel().tolist()})

    def surprise(x):
        p = stats.t.pdf(x, df, loc, scale).mean()
        return -p * math.log(p) if p > 0 else 0.0

    def between(f, points):
        return sum(integrate.quad(f, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(points))

    k = edges.index(value)
    crps = between(lambda x: stats.t.cdf(x, df, loc, scale).mean() ** 2, edges[: k + 1])
    crps += between(lambda x: stats.t.sf(x, df, loc, scale).mean() ** 2, edges[k:])
    return crps, between(surprise, edges)


@pytest.mark.parametrize(
    ("m", "value"),
    [
        (normal([0.0, 1.0], [0.01, 0.01]), 0.0),
        (normal([0.0, 1.0, 1.0], [0.1, 1e-4, 3.0]), 1.0),
        (student([2.01, 4.0], [0.0, 1.0], [0.01, 0.05]), 0.5),
        (student([3.0, 1e6, 30.0], [0.0, 0.0, 2000.0], [1.0, 1e-3, 10.0]), 2.0),
    ],
    ids=str,
)
def test_narrow_members_against_adaptive_quadrature(m, value):
    crps, entropy = by_quad(m, value)
    assert m.crps(value).item() == pytest.approx(crps, rel=1e-6)
    assert m.entropy().item() == pytest.approx(entropy, abs=1e-6)


def test_published_numbers_of_two_needles():
    """By hand: half the draws are 1 away, E|X−y| = ½ + ½·0.01·√(2/π). The entropy of two halves is ln 2 more."""
    m = normal([0.0, 1.0], [0.01, 0.01])
    spread = (0.5 + 0.5 * 0.02 / math.sqrt(math.pi)) / 2
    assert m.crps(0.0).item() == pytest.approx(0.5 + 0.005 * math.sqrt(2 / math.pi) - spread, rel=1e-12)
    assert m.entropy().item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e) + math.log(0.02), abs=1e-7)


def test_coincident_members_are_as_one():
    one = hs.StudentT(torch.tensor(3.0, dtype=torch.float64), 1.0, 2.0)
    m = hs.Mixture(one.expand((32,)))
    y = torch.tensor([0.0, 1.0, 50.0], dtype=torch.float64)
    assert torch.allclose(m.crps(y), one.crps(y), rtol=1e-7)
    assert m.entropy().item() == pytest.approx(one.entropy().item(), abs=1e-7)
    single = hs.Mixture(one.expand((1,)))
    assert torch.equal(single.crps(y), one.crps(y))
    assert torch.equal(single.entropy(), one.entropy())


@pytest.mark.parametrize("kind", ["normal", "student"])
def test_gradients_of_crps_and_entropy(kind):
    y, df, loc, scale = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for v in (
            [0.3, 2.0],
            [[3.0, 2.5], [40.0, 4.0], [5.0, 9.0]],
            [[0.0, 0.0], [1.0, 30.0], [5.0, 0.1]],
            [[1.0, 0.1], [2.0, 0.3], [0.5, 4.0]],
        )
    )
    if kind == "normal":
        assert torch.autograd.gradcheck(lambda y, m, s: hs.Mixture(hs.Normal(m, s)).crps(y), (y, loc, scale))
        assert torch.autograd.gradcheck(lambda m, s: hs.Mixture(hs.Normal(m, s)).entropy(), (loc, scale))
    else:
        assert torch.autograd.gradcheck(lambda y, *a: hs.Mixture(hs.StudentT(*a)).crps(y), (y, df, loc, scale))
        assert torch.autograd.gradcheck(lambda *a: hs.Mixture(hs.StudentT(*a)).entropy(), (df, loc, scale))


def test_second_derivatives_and_functional_gradients_of_the_crps():
    parameters = [
        torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for v in ([[3.0], [5.0]], [[0.0], [1.0]], [[1.0], [2.0]])
    ]

    def crps(*parameters):
        return hs.Mixture(hs.StudentT(*parameters)).crps(0.3)

    assert torch.autograd.gradgradcheck(crps, parameters)
    found = torch.func.grad(lambda *p: crps(*p).sum(), argnums=(0, 1, 2))(*(p.detach() for p in parameters))
    for one, other in zip(found, torch.autograd.grad(crps(*parameters).sum(), parameters), strict=True):
        assert torch.allclose(one, other, rtol=1e-12)


def test_graph_of_a_crps_holds_no_densities():
    """A few dozen numbers for each parameter are kept for the gradient, and not the densities at hundreds of nodes."""
    each = random_students(200)
    leaves = [t.clone().requires_grad_() for t in (each.df, each.loc, each.scale)]
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        hs.Mixture(hs.StudentT(*leaves)).crps(0.3)
    assert sum(sizes) < 200 * each.loc.numel()


def test_rows_are_independent_of_their_company(monkeypatch):
    """Rows with few and with many panels, in any layout and any chunks, give the same results as alone."""
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64) * torch.tensor([0.1, 1.0, 1e3, 1e6, 10.0])
    df = 2.1 + 50 * torch.rand(3, 4, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    m = hs.Mixture(hs.StudentT(df, loc, 0.5), dim=1)
    crps, entropy = m.crps(y), m.entropy()
    assert crps.shape == (2, 3, 5)
    assert entropy.shape == (3, 5)
    monkeypatch.setitem(quadrature.VALUES_AT_ONCE, "cpu", 8)
    for i in range(3):
        for j in range(5):
            alone = hs.Mixture(hs.StudentT(df[i, :, j], loc[i, :, j], 0.5))
            assert torch.allclose(alone.crps(y[:, i, j]), crps[:, i, j], rtol=1e-12)
            assert alone.entropy().item() == pytest.approx(entropy[i, j].item(), rel=1e-12)
    assert torch.allclose(m.entropy(), entropy, rtol=1e-12)


# Arguments of every univariate distribution -------------------------------------------------------------------------


def examples(dtype=torch.float32, rows=3):
    loc, scale = torch.zeros(4, rows, dtype=dtype) + 0.3, torch.ones(4, rows, dtype=dtype) * 1.7
    loc = loc + torch.arange(4, dtype=dtype).unsqueeze(1)
    gaussian, student = hs.Normal(loc, scale), hs.StudentT(scale + 2, loc, scale)
    return {
        "Normal": gaussian,
        "StudentT": student,
        "StudentT by excess": hs.StudentT(loc=loc, scale=scale, df_minus_two=scale),
        "Mixture of Gaussians": hs.Mixture(gaussian),
        "Mixture of StudentT": hs.Mixture(student),
        "Mixture of one": hs.Mixture(hs.StudentT(scale[:1] + 2, loc[:1], scale[:1])),
    }


@pytest.mark.parametrize("name", examples())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_numbers_are_values(name, dtype):
    d = examples(dtype)[name]
    for method in METHODS:
        f = getattr(d, method)
        for number in (0.05, 1, 0, np.float64(0.25), np.int64(1)):
            answer = f(number)
            assert answer.dtype == dtype
            assert torch.equal(answer, f(torch.full(d.batch_shape, float(number), dtype=dtype)))
        for wrong in ("0.5", [0.5], np.zeros(3), None, True):
            with pytest.raises(hs.InputTypeError, match=type(wrong).__name__):
                f(wrong)
    for outside in (-0.1, 1.1, math.nan, math.inf):
        assert d.icdf(outside).isnan().all()
        assert d.isf(outside).isnan().all()


@pytest.mark.parametrize("name", examples())
def test_empty_batches(name):
    d = examples(rows=0)[name]
    shape = d.batch_shape
    assert 0 in shape
    for method in METHODS:
        for value in (0.3, torch.full(shape, 0.3), torch.full((2, *shape), 0.3)):
            answer = getattr(d, method)(value)
            assert answer.shape == torch.broadcast_shapes(shape, torch.as_tensor(value).shape)
            assert answer.dtype == torch.float32
    for answer in (d.entropy(), d.mean, d.variance, d.stddev, d.sample()):
        assert answer.shape == shape
    assert d.sample((5,)).shape == (5, *shape)


@pytest.mark.parametrize("name", examples())
def test_results_do_not_depend_on_the_default_dtype(name):
    def answers():
        d = examples()[name]
        torch.manual_seed(0)
        given = (0.05, 0.5, 0.99, torch.tensor(0.05, dtype=torch.float32))
        values = [getattr(d, method)(v) for method in METHODS for v in given]
        ends = [d.icdf(0.0), d.icdf(1.0), d.icdf(2.0)]
        return [*values, *ends, d.entropy(), d.mean, d.variance, d.sample((4,)), d.expand((2, *d.batch_shape)).mean]

    usual = answers()
    torch.set_default_dtype(torch.float64)
    try:
        other = answers()
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(usual, other, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0))
