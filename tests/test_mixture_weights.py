"""Mixtures whose members count differently: against repeated members, scipy, quadrature and finite differences."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.utils import _pytree

import howsure as hs
from howsure.distributions import Transform, Transformed
from howsure.formulas import mixture as formulas
from howsure.formulas import quadrature
from howsure.prediction import Prediction

KINDS = ("normal", "student")
QUARTERS = torch.tensor([0.25, 0.75], dtype=torch.float64)
REPEATED = [0, 1, 1, 1]
Y = torch.tensor([0.3, -2.0, 0.0, 40.0, 1.0], dtype=torch.float64)


def numbers(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def components(kind, shape=(2, 5), dtype=torch.float64, seed=0):
    loc, scale = numbers(seed, *shape, dtype=dtype), numbers(seed + 1, *shape, dtype=dtype).abs() + 0.2
    if kind == "normal":
        return hs.Normal(loc, scale)
    return hs.StudentT(2.5 + 5 * numbers(seed + 2, *shape, dtype=dtype).abs(), loc, scale)


def chosen(distribution, index, dim=0):
    return _pytree.tree_map(lambda leaf: leaf.index_select(dim, torch.tensor(index)), distribution)


def nig(members=2, shape=(5,), dtype=torch.float64, seed=0):
    raw = numbers(seed, members, *shape, 4)
    raw[..., 2] += 2  # enough evidence for a variance of moderate size
    return hs.NormalInverseGamma.from_raw(raw.to(dtype))


def quantities(m, y):
    """Every quantity of a mixture or of its transform, by name."""
    found = {name: getattr(m, name)(y) for name in ("log_prob", "cdf", "sf")}
    for level in (1e-9, 0.1, 0.5, 0.95):
        found |= {f"icdf({level})": m.icdf(level), f"isf({level})": m.isf(level)}
    if not isinstance(m, Transformed) or m.transform.has_moments:
        found |= {name: getattr(m, name) for name in ("mean", "variance", "within_variance", "between_variance")}
        found["crps"] = m.crps(y)
    return found | {"entropy": m.entropy()}


# Against repeated members ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_weights_count_as_repeated_members_do(kind, dim):
    each = components(kind, (2, 2) if dim == 0 else (4, 2))
    y = Y[:2] if dim == 0 else Y[:4]
    weighted = quantities(hs.Mixture(each, dim, weights=torch.tensor([3.0, 9.0])), y)
    repeated = quantities(hs.Mixture(chosen(each, REPEATED, dim), dim), y)
    for name, expected in repeated.items():
        assert weighted[name].dtype == expected.dtype
        # the panels of an entropy lie around the mean of the locations, which repeated members move
        assert torch.allclose(weighted[name], expected, rtol=1e-11, atol=1e-8 if name == "entropy" else 1e-13), name


@pytest.mark.parametrize("transform", [Transform("positive", 2.0, 0.5), Transform("positive", 3.0), Transform("log")])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_count_as_repeated_members_under_a_transform(kind, transform):
    each = components(kind)
    weighted = Transformed(hs.Mixture(each, weights=QUARTERS), transform)
    repeated = quantities(Transformed(hs.Mixture(chosen(each, REPEATED)), transform), Y.abs())
    assert weighted.weights is weighted.base.weights
    for name, found in quantities(weighted, Y.abs()).items():
        assert torch.allclose(found, repeated[name], rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_float64_rounded(kind):
    small = components(kind, (8, 20), torch.float32)
    weights = numbers(9, 8).abs()
    found = quantities(hs.Mixture(small, weights=weights.float()), torch.tensor(0.3))
    exact = quantities(hs.Mixture(small.double(), weights=weights.float().double()), torch.tensor(0.3).double())
    for name, value in found.items():
        assert value.dtype == torch.float32
        assert torch.allclose(value.double(), exact[name], rtol=3e-6, atol=3e-7), name


# Against scipy --------------------------------------------------------------------------------------------------------


def frozen(each):
    df = each.df.numpy() if isinstance(each, hs.StudentT) else np.inf
    return stats.t(df, each.loc.numpy(), each.scale.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_density_tails_moments_and_scores_match_scipy_and_quadrature(kind):
    each, w = components(kind, (3,)), np.array([0.05, 0.6, 0.35])
    m, members = hs.Mixture(each, weights=torch.tensor([0.1, 1.2, 0.7])), frozen(each)
    for y in (-3.0, 0.2, 2.0):
        assert m.log_prob(y).item() == pytest.approx(math.log(w @ members.pdf(y)), rel=1e-6)
        assert m.cdf(y).item() == pytest.approx(w @ members.cdf(y), rel=1e-6)
        assert m.sf(y).item() == pytest.approx(w @ members.sf(y), rel=1e-6)
        options = {"epsabs": 1e-11, "limit": 200}
        below = integrate.quad(lambda x: (w @ members.cdf(x)) ** 2, -np.inf, y, **options)[0]
        above = integrate.quad(lambda x: (w @ members.sf(x)) ** 2, y, np.inf, **options)[0]
        assert m.crps(y).item() == pytest.approx(below + above, rel=1e-6)
    mean = w @ members.mean()
    assert m.mean.item() == pytest.approx(mean, rel=1e-6)
    assert m.within_variance.item() == pytest.approx(w @ members.var(), rel=1e-6)
    assert m.between_variance.item() == pytest.approx(w @ (members.mean() - mean) ** 2, rel=1e-6)
    for level in (1e-6, 0.3, 0.5):
        assert w @ members.cdf(m.icdf(level).item()) == pytest.approx(level, rel=1e-6)
        assert w @ members.sf(m.isf(level).item()) == pytest.approx(level, rel=1e-6)

    def surprise(x):
        p = w @ members.pdf(x)
        return -p * math.log(p) if p > 0 else 0.0

    assert m.entropy().item() == pytest.approx(integrate.quad(surprise, -np.inf, np.inf, limit=300)[0], abs=1e-6)


def test_draws_have_the_weights():
    """Members far apart, so that a draw identifies its member. Five standard errors."""
    loc = torch.tensor([[0.0], [100.0], [200.0], [300.0]])
    m = hs.Mixture(hs.Normal(loc, 1.0), weights=torch.tensor([0.5, 0.0, 0.3, 0.2]))
    torch.manual_seed(0)
    n = 20_000
    draws = m.sample((n,))
    assert draws.shape == (n, 1)
    p = Prediction(m)
    for values in (draws.numpy(), p.sample(n, seed=0)):
        shares = np.array([(np.abs(values - at) < 50).mean() for at in (0, 100, 200, 300)])
        assert shares[1] == 0
        assert np.abs(shares - [0.5, 0, 0.3, 0.2]).max() < 5 * 0.5 / math.sqrt(n)
    assert np.array_equal(p.sample(7, seed=3), p.sample(7, seed=3))


def test_last_member_is_never_drawn_without_weight():
    """The sums of weights end with exactly 1, and the largest uniform number lies below it."""
    steps = formulas.steps(torch.tensor([0.1, 0.2, 0.7, 0.0], dtype=torch.float64) / 1.0000001)
    largest = torch.tensor(1 - 2.0**-53, dtype=torch.float64)
    assert int((largest >= steps).sum()) == 2
    steps = formulas.steps(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert int((torch.tensor(0.0, dtype=torch.float64) >= steps).sum()) == 1


# Derivatives ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantity", ["log_prob", "cdf", "sf", "crps", "icdf", "isf", "mean", "variance", "entropy"])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_by_weights_and_parameters(kind, quantity):
    each = components(kind, (3, 2))
    leaves = [t.clone().requires_grad_() for t in (each.loc, each.scale)]
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64, requires_grad=True)

    def value(weights, *leaves):
        family = hs.Normal if kind == "normal" else lambda *a: hs.StudentT(each.df, *a)
        found = getattr(hs.Mixture(family(*leaves), weights=weights), quantity)
        if quantity in ("mean", "variance"):
            return found
        return found() if quantity == "entropy" else found(torch.tensor(0.2, dtype=torch.float64))

    # where the number of panels changes, an entropy jumps by its error
    steps = {"eps": 1e-4, "atol": 1e-4} if quantity == "entropy" else {"atol": 1e-6, "rtol": 1e-5}
    assert torch.autograd.gradcheck(value, (weights, *leaves), **steps)


@pytest.mark.parametrize("quantity", ["log_prob", "cdf", "icdf", "mean"])
@pytest.mark.parametrize("kind", KINDS)
def test_weight_of_zero_has_its_one_sided_derivative(kind, quantity):
    each = components(kind, (3,))

    def value(last):
        m = hs.Mixture(each, weights=torch.stack([QUARTERS[0], QUARTERS[1], last]))
        return m.mean if quantity == "mean" else getattr(m, quantity)(torch.tensor(0.4, dtype=torch.float64))

    zero, step = torch.tensor(0.0, dtype=torch.float64, requires_grad=True), torch.tensor(1e-7, dtype=torch.float64)
    (found,) = torch.autograd.grad(value(zero), zero)
    with torch.no_grad():
        expected = (-3 * value(zero) + 4 * value(step) - value(2 * step)) / (2 * step)
    assert found.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_by_weights(kind):
    each = components(kind, (3, 1))
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda w: hs.Mixture(each, weights=w).log_prob(0.2), (weights,))
    assert torch.autograd.gradgradcheck(lambda w: hs.Mixture(each, weights=w).crps(0.2), (weights,))


# Weights of zero ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("idle", [math.nan, math.inf, 1e300, 0.0])
def test_member_without_weight_counts_nowhere(kind, idle):
    each = components(kind)
    loc = torch.cat([each.loc, torch.full((1, 5), idle, dtype=torch.float64)])
    scale = torch.cat([each.scale, torch.full((1, 5), 1.0 if idle == 0 else idle, dtype=torch.float64)])
    loc.requires_grad_()
    if kind == "normal":
        three = hs.Normal(loc, scale, validate_args=False)
    else:
        heavy = torch.full((1, 5), 0.5, dtype=torch.float64)  # without a mean
        three = hs.StudentT(torch.cat([each.df, heavy]), loc, scale, validate_args=False)
    two = hs.Mixture(each, weights=QUARTERS)
    weights = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64, requires_grad=True)
    m = hs.Mixture(three, weights=weights)
    found = quantities(m, Y)
    for name, expected in quantities(two, Y).items():
        assert torch.allclose(found[name], expected, rtol=1e-10, atol=1e-8 if name == "entropy" else 1e-12), name
        by_loc, by_weight = torch.autograd.grad(
            found[name].sum(), (loc, weights), allow_unused=True, materialize_grads=True, retain_graph=True
        )
        assert by_loc[:2].isfinite().all(), name
        assert by_weight.isfinite().all(), name
    draws = m.sample((50,))
    assert ((draws - each.loc.mean(0)).abs() < 1e4).all()
    base, idle_base = Transformed(two, Transform("positive", 2.0)), Transformed(m, Transform("positive", 2.0))
    for name in ("mean", "variance"):
        assert torch.allclose(getattr(idle_base, name), getattr(base, name), rtol=1e-10)
    assert torch.allclose(idle_base.crps(Y), base.crps(Y), rtol=1e-10)


def test_far_values_have_a_log_density_and_a_derivative():
    weights = torch.tensor([1e-30, 1.0], requires_grad=True)
    m = hs.Mixture(hs.Normal(torch.tensor([100.0, 0.0]), 1.0), weights=weights)
    # of the second member e^-5000 is nothing, of the first 1e-30 is left
    assert m.log_prob(100.0).item() == pytest.approx(math.log(1e-30) - 0.5 * math.log(2 * math.pi), rel=1e-6)
    # at −100 it is the second that is near: e^-5000 next to 1e-30 e^-20000
    assert m.log_prob(-100.0).item() == pytest.approx(-5000 - 0.5 * math.log(2 * math.pi), rel=1e-6)
    with torch.no_grad():
        weights[0] = 0.0
    m = hs.Mixture(hs.Normal(torch.tensor([100.0, 0.0]), 1.0), weights=weights)
    for y in (100.0, -100.0, 1e30):
        value = m.log_prob(y)
        assert value.item() < -4000
        (found,) = torch.autograd.grad(value, weights, retain_graph=True)
        assert not found.isnan().any()


def test_all_weight_on_one_member_is_that_member():
    each = components("student")
    m = hs.Mixture(each, weights=torch.tensor([0.0, 7.0]))
    one = chosen(each, [1])
    assert torch.allclose(m.log_prob(Y), one.log_prob(Y)[0])
    assert torch.allclose(m.icdf(0.1), one.icdf(0.1)[0], rtol=1e-9)
    assert torch.allclose(m.crps(Y), one.crps(Y)[0], rtol=1e-7)
    assert (m.between_variance == 0).all()
    answer = nig()
    p, alone = Prediction(answer, 0, [0, 7]), Prediction(chosen(answer, [1]), 0)
    # one network that counts has no spread of means, as if there were no other
    assert p.default_decomposition == alone.default_decomposition == "paper"
    assert p.decompose("identified").epistemic is None
    for one, other in zip(p.decompose("paper"), alone.decompose("paper"), strict=True):
        assert one == pytest.approx(other)


# Shapes, trees, compilers ---------------------------------------------------------------------------------------------


def test_weights_are_normalised_and_huge_or_tiny_ones_too():
    each = components("normal")
    for weights in ([1.0, 3.0], [1e308, 1.5e308], [1e-310, 3e-310], [2, 6]):
        found = hs.Mixture(each, weights=torch.tensor(weights, dtype=torch.float64)).weights
        assert found.dtype == torch.float64
        assert found.sum().item() == pytest.approx(1, abs=1e-15)
    assert torch.equal(hs.Mixture(each, weights=torch.tensor([1, 3])).weights, QUARTERS)
    assert hs.Mixture(each).weights is None


def test_expanded_mixtures_and_trees_keep_their_weights():
    m = hs.Mixture(components("student"), weights=QUARTERS)
    wide = m.expand((3, 5))
    assert torch.allclose(wide.icdf(0.3), m.icdf(0.3).expand(3, 5))
    assert torch.allclose(wide.entropy(), m.entropy().expand(3, 5))
    leaves, structure = _pytree.tree_flatten(m)
    assert [tuple(leaf.shape) for leaf in leaves] == [(2, 5)] * 4 + [(2,)]
    again = _pytree.tree_unflatten(leaves, structure)
    assert torch.equal(again.log_prob(Y), m.log_prob(Y))
    keys = [_pytree.keystr(key) for key, _ in _pytree.tree_flatten_with_path(m)[0]]
    assert keys[-1] == ".weights"
    assert len(_pytree.tree_flatten(hs.Mixture(m.components))[0]) == 4
    small = _pytree.tree_map(torch.Tensor.float, m)
    assert torch.allclose(small.mean.double(), m.mean, rtol=1e-5)
    assert "weights: [0.25, 0.75]" in repr(m)
    assert "weights" in repr(_pytree.tree_map(lambda leaf: "leaf", m))
    for same in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert torch.equal(same.crps(Y), m.crps(Y))
    under = Transformed(m, Transform("positive"))
    assert torch.equal(_pytree.tree_map(lambda leaf: leaf + 0.0, under).mean, under.mean)


def test_many_rows_in_parts_and_empty_batches(monkeypatch):
    each = components("student", (3, 40))
    m = hs.Mixture(each, weights=torch.tensor([1.0, 2.0, 3.0]))
    whole = m.icdf(0.2), m.crps(0.1), m.entropy()
    monkeypatch.setitem(quadrature.VALUES_AT_ONCE, "cpu", 8)
    monkeypatch.setattr("howsure.formulas.student_tail.CHUNK", 16)
    for one, other in zip(whole, (m.icdf(0.2), m.crps(0.1), m.entropy()), strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
    none = hs.Mixture(components("student", (3, 0)), weights=torch.tensor([1.0, 2.0, 3.0]))
    assert all(value.shape == (0,) for value in quantities(none, torch.zeros(0).double()).values())
    one = hs.Mixture(components("student", (1, 4)), weights=torch.tensor([5.0]))
    assert torch.equal(one.crps(0.3), hs.Mixture(one.components).crps(0.3))


def test_vmap_and_compile_know_weights():
    raw = torch.randn(7, 3, 2, 4, generator=torch.Generator().manual_seed(0))
    given = torch.tensor([1.0, 2.0, 5.0])

    def make(raw, weights):
        return hs.Mixture(hs.NormalInverseGamma.from_raw(raw).predictive(), weights=weights, validate_args=False)

    for mapped, weights in (((0, None), given), ((0, 0), torch.rand(7, 3, generator=torch.Generator().manual_seed(1)))):
        m = torch.func.vmap(make, in_dims=mapped)(raw, weights)
        assert m.batch_shape == (7, 2)
        y = torch.linspace(-1, 1, 14).view(7, 2)
        alone = [make(raw[i], weights if mapped[1] is None else weights[i]) for i in range(7)]
        for name in ("log_prob", "cdf", "crps", "icdf"):
            value = y.abs() / 2 + 0.1
            expected = torch.stack([getattr(each, name)(v) for each, v in zip(alone, value, strict=True)])
            assert torch.allclose(getattr(m, name)(value), expected, rtol=1e-5, atol=1e-6), name
        assert torch.allclose(m.entropy(), torch.stack([each.entropy() for each in alone]), rtol=1e-5)
        assert m.sample((4,)).shape == (4, 7, 2)
        if mapped[1] is None:
            assert Prediction(m).weights == pytest.approx([0.125, 0.25, 0.625])
        else:
            found = Prediction(m)
            assert found.weights.shape == (3, 7, 2)
            assert found.mean == pytest.approx(m.mean.numpy(), rel=1e-5)
            assert found[3].std == pytest.approx(m.stddev[3].numpy(), rel=1e-5)

    def loss(raw, weights, y):
        return -make(raw, weights).log_prob(y).mean()

    y = torch.zeros(2)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    one, other = (f(raw[0], given.requires_grad_(), y) for f in (loss, compiled))
    assert one.item() == pytest.approx(other.item(), rel=1e-6)
    for a, b in zip(torch.autograd.grad(one, given), torch.autograd.grad(other, given), strict=True):
        assert torch.allclose(a, b, rtol=1e-5)
    by_function = torch.func.grad(loss, argnums=1)(raw[0], given.detach(), y)
    assert torch.allclose(by_function, torch.autograd.grad(loss(raw[0], given, y), given)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "token"),
    [
        (torch.ones(3), r"\(3,\)"),
        (torch.ones(2, 1), r"\(2, 1\)"),
        (torch.tensor(1.0), r"\(\)"),
        (torch.tensor([1.0, -0.5]), r"-0\.5"),
        (torch.tensor([math.nan, 1.0]), r"\bnan\b"),
        (torch.tensor([math.inf, 1.0]), r"\binf\b"),
        (torch.zeros(2), "weights"),
    ],
)
def test_impossible_weights_raise(weights, token):
    with pytest.raises(hs.InputError, match=token):
        hs.Mixture(components("normal"), weights=weights, validate_args=True)
    with pytest.raises(hs.InputError, match=token):
        Prediction(components("normal"), 0, weights)


def test_weights_of_other_types_raise():
    for wrong in ([0.5, 0.5], np.ones(2), 1.0, "equal"):
        with pytest.raises(hs.InputTypeError, match="weights"):
            hs.Mixture(components("normal"), weights=wrong)
    for wrong in (torch.tensor([True, False]), torch.ones(2, dtype=torch.complex64)):
        with pytest.raises(hs.InputTypeError):
            hs.Mixture(components("normal"), weights=wrong)
    for wrong in ("equal", ["a", "b"], [1j, 1], [None, "x"]):
        with pytest.raises(hs.InputTypeError, match="weights"):
            Prediction(components("normal"), 0, wrong)
    with pytest.raises(hs.InputError, match="members="):
        Prediction(components("normal"), weights=[1, 1])
    m = hs.Mixture(components("normal"), weights=QUARTERS)
    for mixture in (m, Transformed(m, Transform("log"))):
        with pytest.raises(hs.InputError, match="weights="):
            Prediction(mixture, weights=[1, 1])
    with pytest.raises(hs.InputError, match=r"-1\b"):
        Prediction(components("normal", (1, 5)), 0, [-1.0])


# Predictions ----------------------------------------------------------------------------------------------------------


def answers(kind, members=2, shape=(6,), dtype=torch.float64):
    answer = nig(members, shape, dtype)
    return {
        "evidential": answer,
        "normal": hs.Normal(answer.gamma, answer.beta.sqrt()),
        "student": answer.predictive(),
    }[kind]


ANSWERS = ("evidential", "normal", "student")


def shares(*shape):
    """Familiarity of each member for each row."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def stated(p, y):
    """All results of a prediction, by name."""
    found = {"cdf": p.cdf(y), "log_prob": p.log_prob(y), "density": p.density(y), "entropy": p.entropy()}
    found |= {"quantile": p.quantile([1e-6, 0.2, 0.5]), "interval": p.interval(0.8), "median": p.median}
    if p.transform is None or p.transform.has_moments:
        found |= {"mean": p.mean, "std": p.std, "variance": p.variance, "crps": p.crps(y)}
        for way in ("paper", "identified") if p.transform is None else ("identified",):
            parts = p.decompose(way)
            found |= {f"{way} aleatoric": parts.aleatoric, f"{way} epistemic": parts.epistemic}
    found["familiarity"] = p.familiarity
    found |= {f"column {name}": column.to_numpy() for name, column in p.to_frame([0.5, 0.9]).items()}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("transform", [None, Transform("positive", 2.0, 0.1), Transform("log")])
@pytest.mark.parametrize(("kind", "known"), [*((kind, False) for kind in ANSWERS), ("evidential", True)])
def test_prediction_counts_weights_as_repeated_members(kind, transform, known):
    answer, y = answers(kind), np.linspace(0.1, 3, 6)
    familiarity = shares(2, 6) if known else None
    p = Prediction(answer, 0, [1, 3], transform=transform, familiarity=familiarity)
    assert p.weights.tolist() == [0.25, 0.75]
    same = None if familiarity is None else familiarity[REPEATED]
    repeated = stated(Prediction(chosen(answer, REPEATED), 0, transform=transform, familiarity=same), y)
    found = stated(p, y)
    assert found.keys() == repeated.keys()
    for name, expected in repeated.items():
        assert found[name] == pytest.approx(expected, rel=1e-9, abs=1e-12), name


def test_parts_indices_copies_and_other_dtypes_have_the_weights(monkeypatch):
    answer, y = answers("evidential", 3, (30, 2)), np.full((30, 2), 0.2)
    p = Prediction(answer, members=0, weights=np.array([0.2, 0.5, 0.3]), familiarity=shares(3, 30))
    whole = stated(p, y)
    for same in (
        copy.copy(p),
        copy.deepcopy(p),
        pickle.loads(pickle.dumps(p)),
        p.cpu(),
        p.detach(),
        p.to(torch.float64),
        Prediction.cat([p[:10], p[10:]]),
        Prediction.cat([p[:10], Prediction(p[10:].answers, 0, p.weights, familiarity=p._familiarity[10:])]),
    ):
        assert same.weights == pytest.approx(p.weights, abs=1e-15)
        for name, value in stated(same, y).items():
            assert value == pytest.approx(whole[name], rel=1e-12), name
    assert p.to(torch.float32).weights.tolist() == p.weights.tolist()
    assert p.to(torch.float32).mean == pytest.approx(p.mean, rel=1e-5, abs=1e-6)
    for key in (3, slice(2, 9), ([1, 5], 1), np.arange(30) > 20, (slice(None), 0)):
        assert p[key].weights.tolist() == p.weights.tolist()
        assert p[key].mean == pytest.approx(p.mean[key])
    draws = p.sample(3, seed=0)
    monkeypatch.setattr("howsure.prediction.state.CPU_PART", 24)
    assert [len(part) for part in p._parts()] == [4] * 7 + [2]
    for name, value in stated(p, y).items():
        assert value == pytest.approx(whole[name], rel=1e-9), name
    assert p.sample(3, seed=0).shape == draws.shape
    assert repr(p) == "Prediction(shape=(30, 2), members=3, weights=[0.2, 0.5, 0.3])"
    p.weights[0] = 7  # a copy
    assert p.weights[0] == 0.2


def test_weighted_mixture_is_a_prediction_with_these_weights():
    m = hs.Mixture(components("student", (4, 2)), dim=1, weights=QUARTERS)
    for answer in (m, Transformed(m, Transform("positive"))):
        p = Prediction(answer)
        assert p.weights.tolist() == [0.25, 0.75]
        assert p.mean == pytest.approx(answer.mean.numpy())
        assert Prediction(p.distribution).weights.tolist() == [0.25, 0.75]


def test_only_equal_weights_are_joined():
    answer = answers("normal")
    a, b, plain = (Prediction(answer, 0, w) for w in ([1, 3], [3, 1], None))
    for pair in ([a, b], [a, plain], [plain, a]):
        with pytest.raises(hs.InputError, match="weights"):
            Prediction.cat(pair)
    even = Prediction(answer, 0, [2, 2])
    assert Prediction.cat([plain, even]).weights is None
    assert Prediction.cat([even, plain]).mean == pytest.approx(np.tile(plain.mean, 2))


def test_weight_of_one_network_changes_nothing():
    p = Prediction(answers("evidential", 1), 0, [3.0])
    assert p.weights is None
    assert np.array_equal(p.mean, Prediction(answers("evidential", 1), 0).mean)


def test_graph_reaches_weights_and_ends_with_detach():
    weights = torch.tensor([1.0, 3.0], requires_grad=True)
    p = Prediction(answers("evidential", dtype=torch.float32), 0, weights)
    loss = -p.distribution.log_prob(torch.zeros(6)).mean()
    (found,) = torch.autograd.grad(loss, weights)
    assert (found != 0).all()
    # the loss does not depend on the sum of the weights
    assert (found @ weights.detach()).item() == pytest.approx(0, abs=1e-7)
    assert not p.detach()._weights.requires_grad
    assert p.weights.tolist() == [0.25, 0.75]


def test_maps_and_one_row():
    p = Prediction(answers("normal", 2, (4, 3, 5)), 0, [1, 3])
    assert p.familiarity is None
    assert p.mean.shape == (4, 3, 5)
    known = Prediction(answers("evidential", 2, (4, 3, 5)), 0, [1, 3], familiarity=shares(2, 4))
    assert known.familiarity == pytest.approx((0.25 * shares(2, 4)[0] + 0.75 * shares(2, 4)[1]).numpy())
    single = Prediction(answers("evidential", 2, ()), 0, [1, 3], familiarity=shares(2))
    assert single.familiarity.shape == single.std.shape == ()
    row = Prediction(answers("evidential", 2, (1,)), 0, [1, 3], familiarity=shares(2, 1))
    assert row.to_frame().shape == (1, 7)
