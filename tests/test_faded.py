"""Evidence that fades: the calculus against mpmath and scipy, the distribution, and what a prediction makes of it."""

import copy
import io
import math
import pickle

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import stats

import howsure as hs
import oracles
from howsure.distributions import Transform, Transformed
from howsure.errors import InputError
from howsure.formulas import nig, normal
from howsure.prediction import Prediction
from oracles import exact


def random_parameters(n, dtype, seed=0):
    """NIGs over the whole domain: α−1 from 1e-6 to 1e8, ν from 1e-6 to 1e6, β from 1e-6 to 1e6."""
    g = torch.Generator().manual_seed(seed)
    ends = ((1e-6, 1e6), (1e-6, 1e8), (1e-6, 1e6))
    gamma = torch.randn(n, generator=g, dtype=torch.float64)
    return nig.Parameters(*(x.to(dtype) for x in (gamma, *(oracles.log_uniform(*e, n, g) for e in ends))))


def shares(n, dtype=torch.float64, low=1e-12, seed=1):
    return oracles.log_uniform(low, 1.0, n, torch.Generator().manual_seed(seed)).to(dtype)


def evidential(shape=(3, 5), dtype=torch.float32):
    g = torch.Generator().manual_seed(2)
    return hs.NormalInverseGamma.from_raw(torch.randn(*shape, 4, generator=g).to(dtype))


def ensemble(shape=(3, 5)):
    g = torch.Generator().manual_seed(2)
    return hs.Normal(torch.randn(shape, generator=g), torch.rand(shape, generator=g) + 0.2)


def keeps(shape=(3, 5)):
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) * 0.98 + 0.01


# The formulas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 5e-7), (torch.float64, 1e-15)])
def test_fading_against_mpmath(dtype, bound):
    p, w = random_parameters(400, dtype), shares(400, dtype)
    found = nig.fade(p, w)
    scale, variance = nig.predictive_scale(*found[1:]), nig.predictive_variance(*found[1:])
    for k in range(400):
        _, nu, a, beta = (exact(x[k]) for x in p)
        kept = exact(w[k])
        truth = (kept * nu, kept * a, beta * (1 + kept * a) / (1 + a))
        for got, right in zip(found[1:], truth, strict=True):
            assert abs(exact(got[k]) / right - 1) < bound
        squared = beta / (1 + a) * (1 + 1 / (kept * nu))
        assert abs(exact(scale[k]) / mp.sqrt(squared) - 1) < bound
        assert abs(exact(variance[k]) / (squared * (1 + kept * a) / (kept * a)) - 1) < 2 * bound
    assert torch.equal(found.gamma, p.gamma)


def test_fading_keeps_beta_over_alpha_and_discounting_the_noise():
    p, w = random_parameters(1000, torch.float64), shares(1000)
    faded, discounted = nig.fade(p, w), nig.discount(p, w)
    assert torch.allclose(faded.beta / (1 + faded.alpha_minus_one), p.beta / (1 + p.alpha_minus_one), rtol=1e-13)
    assert torch.allclose(discounted.beta / discounted.alpha_minus_one, p.beta / p.alpha_minus_one, rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_of_the_evidence_changes_no_bit(dtype):
    p = random_parameters(1000, dtype)
    for keep in (1, 1.0, torch.ones(1000), torch.ones((), dtype=torch.bfloat16)):
        assert all(torch.equal(a, b) for a, b in zip(nig.fade(p, keep), p, strict=True))
        assert torch.equal(normal.fade(p.beta, keep), p.beta)
    assert torch.equal(nig.added_variance(p.beta, torch.ones(1000, dtype=dtype)), torch.zeros(1000, dtype=dtype))


def test_fading_twice_is_fading_by_the_product():
    p, a, b = random_parameters(1000, torch.float64), shares(1000, low=1e-6, seed=1), shares(1000, low=1e-6, seed=2)
    for twice, once in zip(nig.fade(nig.fade(p, a), b), nig.fade(p, a * b), strict=True):
        assert torch.allclose(twice, once, rtol=1e-14, atol=0)


def test_a_gaussian_fades_by_its_variance():
    sigma, w = shares(200, torch.float32, low=1e-6), shares(200, torch.float32)
    for found, s, kept in zip(normal.fade(sigma, w), sigma, w, strict=True):
        assert abs(exact(found) / (exact(s) / mp.sqrt(exact(kept))) - 1) < 3e-7


def test_what_less_evidence_adds_against_mpmath():
    v = shares(400, torch.float32, low=1e-6)
    w = torch.cat([shares(200, torch.float32), 1 - shares(200, torch.float32, low=1e-7, seed=5) / 2])
    for found, variance, kept in zip(nig.added_variance(v, w), v, w, strict=True):
        truth = exact(variance) * (1 / exact(kept) - 1)
        assert abs(exact(found) - truth) <= 3e-7 * truth


def test_shares_are_of_any_precision_and_never_too_small():
    p = random_parameters(1000, torch.float32)
    assert all(x.dtype == torch.float32 for x in nig.fade(p, shares(1000)))
    half = torch.full((1000,), 0.3, dtype=torch.bfloat16)
    assert all(
        torch.equal(a, b) for a, b in zip(nig.fade(p, half), nig.fade(p, half.float()), strict=True)
    )  # the parameters keep their precision
    floor = nig.fade(p, nig.KEEP_FLOOR)
    for tiny in (1e-30, 1e-300, torch.tensor(1e-45), torch.full((1000,), 1e-200, dtype=torch.float64)):
        found = nig.fade(p, tiny)
        assert all(torch.equal(a, b) for a, b in zip(found, floor, strict=True))
        smallest = torch.finfo(torch.float32).tiny
        assert all((x.isfinite() & (x >= smallest)).all() for x in found[1:])
        assert nig.predictive_scale(*found[1:]).isfinite().all()
        assert normal.fade(p.beta, tiny).isfinite().all()


# Intervals ------------------------------------------------------------------------------------------------------------

LEVELS = (0.01, 0.1, 0.5, 0.68, 0.9, 0.99, 0.999)


def test_no_interval_of_a_member_narrows_as_its_evidence_fades():
    p = random_parameters(3000, torch.float64)
    w = torch.linspace(0, -12, 25, dtype=torch.float64).unsqueeze(1)
    found = nig.fade(p, 10**w)
    df, scale = 2 + 2 * found.alpha_minus_one, nig.predictive_scale(*found[1:])
    for level in LEVELS:
        half = scale.numpy() * stats.t.ppf(0.5 + 0.5 * level, df.numpy())
        assert (np.diff(half, axis=0) >= -1e-9 * half[1:]).all(), level
        assert (half[-1] > half[0]).all()
    assert (np.diff(nig.predictive_variance(*found[1:]).numpy(), axis=0) > 0).all()


def test_intervals_are_those_of_scipy():
    answer = hs.Faded(evidential((40,), torch.float64), shares(40, low=1e-6))
    t = answer.predictive()
    a, nu, beta = (x.numpy() for x in (answer.plain.alpha_minus_one, answer.plain.nu, answer.plain.beta))
    w = answer.keep.numpy()
    scale = np.sqrt(beta / (1 + a) * (1 + 1 / (w * nu)))
    for level in LEVELS:
        upper = stats.t.ppf(0.5 + 0.5 * level, 2 + 2 * w * a, answer.plain.gamma.numpy(), scale)
        assert t.isf(0.5 - 0.5 * level).numpy() == pytest.approx(upper, rel=1e-8)


@pytest.mark.parametrize("power", [1, 2, 8])
@pytest.mark.parametrize("members", [2, 9, 10])
def test_the_90_percent_interval_of_up_to_ten_members_never_narrows(members, power):
    """No location lies outside of the interval: half of that member would be 5 % of the mixture, or more."""
    g = torch.Generator().manual_seed(members)
    rows = 200
    gamma = torch.randn(members, rows, generator=g, dtype=torch.float64) * oracles.log_uniform(1e-2, 1e4, rows, g)
    raw = torch.cat([gamma.unsqueeze(-1), 3 * torch.randn(members, rows, 3, generator=g, dtype=torch.float64)], -1)
    answer = hs.NormalInverseGamma.from_raw(raw)
    reach = torch.rand(members, rows, generator=g, dtype=torch.float64) + 0.5
    widths = []
    for distance in np.geomspace(0.4, 1e3, 20):
        keep = (reach / distance).pow(power).clamp(max=1)
        ends = Prediction(hs.Faded(answer, keep), members=0).interval(0.9)
        widths.append(ends[:, 1] - ends[:, 0])
    widths = np.array(widths)
    assert (np.diff(widths, axis=0) >= -1e-8 * widths[1:]).all()
    assert (widths[-1] > widths[0]).all()


def test_more_members_or_a_narrower_interval_have_no_such_guarantee():
    """One member, wide and far above the others, of which more than half lies above the interval's upper end."""
    for members, coverage in ((12, 0.9), (3, 0.5)):
        loc, beta = torch.zeros(members, dtype=torch.float64), torch.full((members,), 1e-2, dtype=torch.float64)
        loc[0], beta[0] = 1e5, 1e4
        answer = hs.NormalInverseGamma(loc, 0.1, 50.0, beta)
        wide, narrow = (np.diff(Prediction(hs.Faded(answer, w), members=0).interval(coverage)) for w in (1.0, 0.1))
        assert narrow < wide


# The distribution -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [evidential(), ensemble()], ids=["NormalInverseGamma", "Normal"])
def test_shapes_and_parts(plain):
    for keep in (0.5, keeps(), keeps((5,)), keeps((3, 1)), torch.tensor(0.5)):
        answer = hs.Faded(plain, keep)
        assert answer.plain is plain
        assert answer.keep.shape == answer.batch_shape == (3, 5)
        assert type(answer.faded()) is type(answer.discounted()) is type(plain)
        assert answer.faded().batch_shape == answer.predictive().batch_shape == (3, 5)
        assert (answer.predictive().scale >= plain.predictive().scale).all()
    other = hs.Faded(plain, keeps()).affine(torch.tensor([2.0]), 3.0)
    right = hs.Faded(plain, keeps()).predictive()
    assert torch.allclose(other.predictive().loc, 2 + 3 * right.loc)
    assert torch.allclose(other.predictive().scale, 3 * right.scale)
    assert torch.equal(other.keep, keeps())
    assert hs.Faded(plain, keeps()).affine(torch.zeros(2, 1, 1), 1.0).keep.shape == (2, 3, 5)
    assert "keep: (3, 5)" in repr(hs.Faded(plain, keeps()))


def test_shares_have_the_dtype_of_the_answer():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        answer = hs.Faded(evidential(), keeps().to(dtype))
        assert answer.keep.dtype == answer.predictive().scale.dtype == torch.float32
        assert torch.allclose(answer.keep, keeps(), rtol=1e-2)
    assert hs.Faded(evidential(dtype=torch.float64), keeps()).keep.dtype == torch.float64


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (0, r"Faded: the share of evidence to keep lies in \(0, 1\]; got 0; keep.clamp\(min=1e-6\), say"),
        (1.5, r"lies in \(0, 1\]; got 1.5$"),
        (-0.1, "got -0.1$"),
        (math.nan, "got nan$"),
        (torch.tensor([0.5, 0.0, 1, 1, 1]), r"1 of 5 values .*first: 0 at index \(1,\)\); keep.clamp"),
        (torch.tensor([0.5, math.nan, 2, 1, 1]), r"2 of 5 values break this \(first: nan at index \(1,\)\)$"),
        (torch.ones(4), r"keep of shape \(4,\) does not broadcast to the shape \(3, 5\) of plain"),
        (torch.ones(2, 3, 5), r"keep of shape \(2, 3, 5\) does not broadcast"),
        (torch.ones(5, device="meta"), "keep lies on meta and plain on cpu; move them to one"),
    ],
)
def test_shares_outside_their_domain(keep, message):
    with pytest.raises(hs.InputError, match=message):
        hs.Faded(evidential(), keep)


def test_what_cannot_fade_is_named():
    with pytest.raises(hs.InputTypeError, match=r"not StudentT; pass the network's answer and not its predictive\(\)"):
        hs.Faded(evidential().predictive(), 0.5)
    with pytest.raises(hs.InputTypeError, match=r"takes a NormalInverseGamma or a Normal, not Tensor$"):
        hs.Faded(torch.zeros(3), 0.5)
    for keep, message in (
        (True, "not bool"),
        ("1", "not str"),
        (None, "not NoneType"),
        (torch.ones(5, dtype=torch.int64), r"keep is torch.int64; .* keep.float\(\)"),
    ):
        with pytest.raises(hs.InputTypeError, match=message):
            hs.Faded(evidential(), keep)
    for plain in (evidential(), ensemble()):
        with pytest.raises(hs.InputError, match=r"fade: the share of evidence to keep lies in \(0, 1\]; got 2"):
            plain.fade(2)
    with pytest.raises(hs.InputError, match="1 of 1 values break this"):
        hs.NormalInverseGamma(0.0, 1.0, 2.0, 1.0).fade(torch.tensor(0.0))


def test_validation_can_be_turned_off():
    assert hs.Faded(evidential(), torch.full((5,), 2.0), validate_args=False).keep.max() == 2


@pytest.mark.parametrize("plain", [evidential(), ensemble()], ids=["NormalInverseGamma", "Normal"])
def test_trees_and_pickles(plain):
    answer = hs.Faded(plain, keeps())
    leaves, spec = torch.utils._pytree.tree_flatten(answer)
    assert len(leaves) == len(plain.leaves) + 1
    assert leaves[-1] is answer.keep
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    wide = torch.utils._pytree.tree_map(lambda leaf: leaf.double(), answer)
    assert wide.predictive().scale.dtype == wide.keep.dtype == torch.float64
    buffer = io.BytesIO()
    torch.save(answer, buffer)
    buffer.seek(0)
    copies = (again, copy.deepcopy(answer), pickle.loads(pickle.dumps(answer)), torch.load(buffer, weights_only=False))
    for same in copies:
        assert torch.equal(same.predictive().scale, answer.predictive().scale)
    names = torch.utils._pytree.tree_map(lambda leaf: "x", answer)
    assert torch.utils._pytree.tree_leaves(names) == ["x"] * len(leaves)


class Fading(torch.nn.Module):
    """A network whose evidence fades with the size of its input."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x):
        return hs.Faded(self.head(x), 1 / (1 + x.square().sum(-1)), validate_args=False)


@pytest.mark.parametrize("head", [hs.NIGHead, hs.NormalHead])
def test_networks_answer_with_it_under_compile_vmap_and_export(head):
    net, x = Fading(head(3)), torch.randn(7, 3)
    right = net(x).predictive().scale

    def scale(x):
        return net(x).predictive().scale

    assert torch.allclose(torch.compile(scale, fullgraph=True, backend="aot_eager")(x), right)
    returned = torch.compile(net, fullgraph=True, backend="aot_eager")(x)
    assert torch.allclose(returned.predictive().scale, right)
    mapped = torch.func.vmap(net)(x)
    assert isinstance(mapped, hs.Faded)
    assert mapped.batch_shape == (7,)
    assert torch.allclose(mapped.predictive().scale, right)
    program = torch.export.export(net, (x,))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for exported in (program, torch.export.load(buffer)):
        answer = exported.module()(x)
        assert isinstance(answer, hs.Faded)
        assert torch.allclose(answer.predictive().scale, right)


def test_gradients_reach_the_shares_and_the_answer():
    values = [
        torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for v in ([0.1, 0.0, 1.0], [1.0, 2.0, 0.1], [0.5, 2.0, 9.0], [1.0, 2.0, 3.0], [0.3, 0.9, 0.01])
    ]

    def crps(gamma, nu, a, beta, w):
        plain = hs.NormalInverseGamma(gamma, nu, beta=beta, alpha_minus_one=a)
        return hs.Faded(plain, w).predictive().crps(torch.tensor(0.7, dtype=torch.float64))

    assert torch.autograd.gradcheck(crps, values)

    def density(loc, scale, w):
        return hs.Faded(hs.Normal(loc, scale), w).predictive().log_prob(torch.tensor(0.7, dtype=torch.float64))

    assert torch.autograd.gradcheck(density, [values[0], values[1], values[4]])


# Predictions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [1, 4])
def test_the_distribution_is_faded_and_the_moments_are_discounted(members):
    plain, keep = evidential((members, 6), torch.float64), keeps((members, 6)).double()
    p = Prediction(hs.Faded(plain, keep), members=0)
    assert isinstance(p.answers, hs.NormalInverseGamma)
    assert torch.equal(p.answers.beta, plain.fade(keep).beta)
    assert torch.equal(p.plain_answers.beta, plain.beta)
    assert torch.equal(p.distribution.components.scale, p.answers.predictive().scale)
    a, nu, beta, w = (x.numpy() for x in (plain.alpha_minus_one, plain.nu, plain.beta, keep))
    gamma = plain.gamma.numpy()
    between = gamma.var(0)
    assert p.mean == pytest.approx(gamma.mean(0))
    assert p.variance == pytest.approx((beta / a + beta / (w * nu * a)).mean(0) + between)
    assert (p.distribution.variance.numpy() > p.variance).all()
    aleatoric, epistemic = p.decompose("identified")
    assert aleatoric == pytest.approx((beta / a * (1 + 1 / nu)).mean(0))
    assert epistemic == pytest.approx((beta / (nu * a) * (1 / w - 1)).mean(0) + between)
    assert aleatoric + epistemic == pytest.approx(p.variance)
    aleatoric, epistemic = p.decompose("paper")
    assert aleatoric == pytest.approx((beta / a).mean(0))
    assert epistemic == pytest.approx((beta / (w * nu * a)).mean(0) + between)
    assert aleatoric + epistemic == pytest.approx(p.variance)
    assert p.default_decomposition == ("paper" if members == 1 else "identified")
    assert p.familiarity == pytest.approx(w.mean(0))


@pytest.mark.parametrize("members", [1, 4])
def test_gaussians_fade_too(members):
    plain, keep = ensemble((members, 6)), keeps((members, 6))
    p = Prediction(hs.Faded(plain, keep), members=0)
    variance, w = plain.scale.numpy() ** 2, keep.numpy()
    between = plain.loc.numpy().var(0)
    assert p.variance == pytest.approx((variance / w).mean(0) + between, rel=1e-5)
    assert p.distribution.variance.numpy() == pytest.approx(p.variance, rel=1e-5)
    for way in ("paper", "identified"):
        aleatoric, epistemic = p.decompose(way)
        assert aleatoric == pytest.approx(variance.mean(0), rel=1e-5)
        assert epistemic == pytest.approx((variance * (1 / w - 1)).mean(0) + between, rel=1e-5)


TRANSFORM = Transform("positive", scale=0.7, shift=0.1)


@pytest.mark.parametrize("transform", [None, TRANSFORM], ids=["plain", "positive"])
@pytest.mark.parametrize("make", [evidential, ensemble])
@pytest.mark.parametrize("members", [1, 4])
def test_all_of_the_evidence_changes_no_number(make, members, transform):
    answer = make((members, 6, 2))
    p = Prediction(answer, members=0, transform=transform)
    q = Prediction(hs.Faded(answer, 1.0), members=0, transform=transform)
    y = np.linspace(0.1, 2, 12).reshape(6, 2)
    for quantity in (
        lambda p: p.mean,
        lambda p: p.std,
        lambda p: p.variance,
        lambda p: p.interval(0.8),
        lambda p: p.log_prob(y),
        lambda p: p.crps(y),
        lambda p: p.entropy(),
        lambda p: p.sample(3, seed=0),
    ):
        assert np.array_equal(quantity(p), quantity(q))
    for way in ("identified", "paper") if transform is None else ("identified",):
        one, other = p.decompose(way), q.decompose(way)
        assert np.array_equal(one.aleatoric, other.aleatoric)
        if one.epistemic is None:
            assert (other.epistemic == 0).all()
        else:
            assert np.array_equal(one.epistemic, other.epistemic)
    assert p.familiarity is None
    assert np.array_equal(q.familiarity, np.ones(6))


def test_the_deviation_never_falls_as_evidence_fades():
    p = random_parameters(2000, torch.float64)
    plain = hs.NormalInverseGamma(p.gamma, p.nu, beta=p.beta, alpha_minus_one=p.alpha_minus_one)
    stds = np.array([Prediction(hs.Faded(plain, 10.0**-k)).std for k in np.linspace(0, 12, 25)])
    assert (np.diff(stds, axis=0) >= 0).all()
    # as the interval does, like 1/√w in the end
    assert stds[-1] / stds[-3] == pytest.approx(np.sqrt(10), rel=1e-3)


def test_under_a_transform_moments_are_those_of_the_discounted_members():
    plain, keep = evidential((3, 6), torch.float64), keeps((3, 6)).double()
    p = Prediction(hs.Faded(plain, keep), members=0, transform=TRANSFORM)
    g = np.random.default_rng(0)
    discounted = plain.discount(keep).predictive()
    whole = Transformed(hs.Mixture(discounted), TRANSFORM)
    before = Transformed(hs.Mixture(plain.predictive()), TRANSFORM)
    assert p.mean == pytest.approx(whole.mean.numpy())
    assert p.variance == pytest.approx(whole.variance.numpy())
    aleatoric, epistemic = p.decompose()
    assert aleatoric == pytest.approx(before.within_variance.numpy())
    assert aleatoric + epistemic == pytest.approx(p.variance)
    # the mean by simulation; the variance of so heavy tails would need far more draws
    draws = stats.t.rvs(discounted.df.numpy(), size=(200_000, 3, 6), random_state=g)
    z = torch.from_numpy(discounted.loc.numpy() + discounted.scale.numpy() * draws)
    y = TRANSFORM.forward(z).numpy()
    assert p.mean == pytest.approx(y.mean((0, 1)), rel=0.05)
    one = Prediction(hs.Faded(plain, keep), transform=TRANSFORM)
    assert one.default_decomposition == "identified"
    assert (one.decompose().epistemic >= 0).all()
    assert one.decompose().aleatoric + one.decompose().epistemic == pytest.approx(one.variance)
    with pytest.raises(hs.InputError, match="the division of the paper is not defined"):
        one.decompose("paper")
    log = Prediction(hs.Faded(plain, keep), members=0, transform=Transform("log"))
    assert log.familiarity == pytest.approx(keep.numpy().mean(0))
    assert list(log.to_frame().columns) == ["median", "lower_0.9", "upper_0.9", "familiarity"]
    assert np.isfinite(Prediction(hs.Faded(plain, 1e-12), members=0, transform=TRANSFORM).mean).all()


@pytest.mark.parametrize("shape", [(), (4,), (4, 2), (4, 3, 5)])
def test_familiarity_has_one_number_for_each_row(shape):
    keep = keeps((3, *shape))
    p = Prediction(hs.Faded(evidential((3, *shape)), keep), members=0)
    assert p.familiarity.shape == shape[:1]
    right = keep.numpy().mean(0)
    assert p.familiarity == pytest.approx(right.reshape(*shape[:1], -1).mean(-1) if shape else right)
    one = Prediction(hs.Faded(evidential((3, *shape)), keep))
    assert one.familiarity == pytest.approx(keep.numpy().reshape(3, -1).mean(1))
    assert Prediction(evidential((3, *shape)), members=0).familiarity is None


def test_parts_of_predictions_keep_their_shares():
    keep = keeps((3, 7, 2))
    p = Prediction(hs.Faded(evidential((3, 7, 2)), keep), members=0)
    row = keep.numpy().mean((0, 2))
    for key in (slice(1, 4), [5, 0], np.arange(7) > 2):
        assert p[key].familiarity == pytest.approx(row[key])
        assert np.array_equal(p[key].std, p.std[key])
        assert p[key].interval() == pytest.approx(p.interval()[key])
    assert p[:, 1].familiarity == pytest.approx(keep.numpy()[:, :, 1].mean(0))
    assert p[2, 1].familiarity == pytest.approx(keep.numpy()[:, 2, 1].mean())
    joined = Prediction.cat([p[:2], p[2:3], p[3:]])
    assert np.array_equal(joined.familiarity, p.familiarity)
    assert np.array_equal(joined.std, p.std)
    plain = Prediction(evidential((3, 7, 2)), members=0)
    with pytest.raises(hs.InputError, match=r"some of these predictions fade .*Faded\(answer, keep=1.0\)"):
        Prediction.cat([p, plain])
    with pytest.raises(hs.InputError, match="one shape, kind and number of members"):
        Prediction.cat([p, Prediction(hs.Faded(ensemble((3, 7, 2)), 1.0), members=0)])
    wide = p.to(torch.float64)
    assert wide.familiarity.dtype == wide.std.dtype == np.float64
    assert wide.std == pytest.approx(p.std)


def test_graphs_trees_and_copies():
    plain, keep = evidential(), keeps().requires_grad_()
    p = Prediction(hs.Faded(plain, keep), members=0)
    p.distribution.variance.sum().backward()
    assert keep.grad.abs().min() > 0
    assert not p.detach().answers.nu.requires_grad
    assert p.familiarity.shape == (5,)
    q = p.detach()
    leaves, structure = torch.utils._pytree.tree_flatten(q)
    assert [tuple(leaf.shape) for leaf in leaves] == [(3, 5)] * 5
    again = torch.utils._pytree.tree_unflatten(leaves, structure)
    for other in (again, copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert np.array_equal(other.std, q.std)
        assert np.array_equal(other.familiarity, q.familiarity)
    assert torch.utils._pytree.tree_leaves(torch.utils._pytree.tree_map(lambda t: "x", q)) == ["x"] * 5
    one = Prediction(hs.Faded(plain, keeps()))
    assert np.array_equal(torch.utils._pytree.tree_map(lambda t: t, one).std, one.std)
    raw, shares = torch.randn(6, 3, 5, 4), torch.rand(6, 3, 5)

    def batched(raw, w):
        return Prediction(hs.Faded(hs.NormalInverseGamma.from_raw(raw), w, validate_args=False), members=0)

    several = torch.func.vmap(batched)(raw, shares)
    assert (several.shape, several.members) == ((6, 5), 3)
    assert several.familiarity == pytest.approx(shares.mean((1, 2)).numpy())


def test_rows_are_worked_on_in_parts_without_a_change(monkeypatch):
    p = Prediction(hs.Faded(evidential((3, 50, 2)), keeps((3, 50, 2))), members=0)
    whole = [p.mean, p.std, p.interval(0.8), p.decompose("paper").epistemic, p.familiarity]
    monkeypatch.setattr("howsure.prediction.PART", 60)
    q = Prediction(p._given, members=0)
    parts = [q.mean, q.std, q.interval(0.8), q.decompose("paper").epistemic, q.familiarity]
    assert len(list(q._parts())) == 5
    assert all(a == pytest.approx(b, rel=1e-5) for a, b in zip(whole, parts, strict=True))


def test_tables_pictures_and_draws_know_of_fading():
    p = Prediction(hs.Faded(evidential((3, 5)), keeps()), members=0)
    frame = p.to_frame([0.5, 0.9], index=list("abcde"))
    assert frame.columns[-1] == "familiarity"
    assert frame["familiarity"].to_numpy() == pytest.approx(keeps().numpy().mean(0))
    assert list(p[2].to_frame()["familiarity"]) == pytest.approx([p.familiarity[2]])
    wide = Prediction(hs.Faded(evidential((3, 5, 2)), keeps((3, 5, 2))), members=0)
    columns = list(wide.to_frame(names=["u", "v"]).columns)
    assert columns.count("familiarity") == 1
    assert columns[-2:] == ["v_upper_0.9", "familiarity"]
    assert "familiarity" in wide._repr_html_()
    assert "familiarity" in p._repr_html_()
    y = p.sample(1, seed=0)[0]
    assert len(p.plot(y).axes) == 3
    draws = p.sample(4000, seed=1)
    for row in range(5):
        t = p.distribution.components
        each = [stats.t(t.df[k, row].item(), t.loc[k, row].item(), t.scale[k, row].item()) for k in range(3)]
        found = stats.kstest(draws[:, row], lambda x, each=each: np.mean([d.cdf(x) for d in each], axis=0))
        assert found.pvalue > 1e-3


def test_scores_are_those_of_the_faded_mixture():
    answer = hs.Faded(evidential((3, 5)), keeps())
    p, q = Prediction(answer, members=0), Prediction(answer.faded(), members=0)
    y = np.linspace(-2, 2, 5)
    assert np.array_equal(p.log_prob(y), q.log_prob(y))
    assert np.array_equal(p.crps(y), q.crps(y))
    assert np.array_equal(p.entropy(), q.entropy())
    assert hs.metrics.nll(p, y) == hs.metrics.nll(q, y)
    assert hs.metrics.nll(hs.Faded(evidential((5,)), 0.5), y) > 0


# Settling -------------------------------------------------------------------------------------------------------------


def test_settling_is_the_formula():
    p, usual = random_parameters(200, torch.float32, seed=1), random_parameters(200, torch.float32, seed=2)
    w = torch.logspace(-12, 0, 200)
    found = nig.settle(p, w, usual)
    for i in range(0, 200, 7):
        own, typical = ([exact(v[i]) for v in q] for q in (p, usual))
        share = exact(w[i])
        nu = min(own[1], own[1] ** share * typical[1] ** (1 - share))
        alpha_minus_one = own[2] ** share * typical[2] ** (1 - share)
        size = own[3] / (1 + own[2])
        size = max(size, size**share * (typical[3] / (1 + typical[2])) ** (1 - share))
        for got, true in zip(found[1:], (nu, alpha_minus_one, size * (1 + alpha_minus_one)), strict=True):
            assert abs(float(got[i]) / true - 1) < 1e-5
    assert torch.equal(found.gamma, p.gamma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_familiar_does_not_settle(dtype):
    p, usual = random_parameters(1000, dtype, seed=1), random_parameters(1000, dtype, seed=2)
    one = torch.ones(1000, dtype=dtype)
    for found in (nig.settle(p, one, usual), nig.fade_settled(p, nig.settle(p, one, usual), one)):
        assert all(torch.equal(a, b) for a, b in zip(found, p, strict=True))
    scale = p.beta
    assert torch.equal(normal.settle(scale, one, usual.beta), scale)


def test_intervals_never_narrow_where_answers_settle():
    p, usual = random_parameters(300, torch.float64, seed=3), random_parameters(300, torch.float64, seed=4)
    before = None
    for w in [1.0, 0.9, 0.7, 0.5, 0.2, 0.1, 0.03, 1e-2, 1e-3, 1e-5, 1e-8]:
        share = torch.full((300,), w, dtype=torch.float64)
        found = nig.fade_settled(p, nig.settle(p, share, usual), share)
        scale, df = nig.predictive_scale(*found[1:]).numpy(), 2 * (1 + found.alpha_minus_one.numpy())
        width = np.stack([stats.t.isf(q, df) * scale for q in (0.4, 0.25, 0.05, 0.005, 0.0005)])
        if before is not None:
            assert (width >= before * (1 - 1e-9)).all()
        before = width


def test_far_away_a_network_says_what_it_usually_says():
    far = hs.NormalInverseGamma(torch.zeros(2), torch.tensor([1e6, 1e-3]), alpha_minus_one=1e-6, beta=1e-9)
    usual = hs.NormalInverseGamma(0.0, 2.0, alpha_minus_one=3.0, beta=8.0)
    settled = far.settle(1e-6, usual)
    assert torch.allclose(settled.nu, torch.tensor([2.0, 1e-3]), rtol=1e-4)  # never more than it states
    assert torch.allclose(settled.beta / settled.alpha, torch.tensor(2.0), rtol=1e-4)
    assert torch.allclose(settled.alpha_minus_one, torch.tensor(3.0), rtol=1e-4)
    p = hs.Prediction(hs.Faded(far, 1e-6, settled))
    half = np.diff(p.interval(0.6827))[:, 0] / 2
    assert ((p.std / half > 0.7) & (p.std / half < 1.3)).all()  # and not the root of a variance without end
    assert torch.equal(p.plain_answers.nu[0], far.nu)
    wide = hs.Normal(torch.zeros(2), torch.tensor([1e-9, 7.0])).settle(1e-6, hs.Normal(0.0, 2.0))
    assert torch.allclose(wide.scale, torch.tensor([2.0, 7.0]), rtol=1e-4)


def test_settled_answers_have_the_type_and_shape_of_the_plain_ones():
    plain = hs.NormalInverseGamma(torch.zeros(3), 1.0, alpha_minus_one=1.0, beta=1.0)
    for other in (hs.Normal(torch.zeros(3), 1.0), hs.NormalInverseGamma(torch.zeros(2), 1.0, 2.0, 1.0)):
        with pytest.raises(InputError, match="type and the shape"):
            hs.Faded(plain, 0.5, other)


def test_settled_predictions_are_indexed_joined_and_mapped():
    random = np.random.default_rng(0)
    plain = hs.NormalInverseGamma(*(torch.from_numpy(random.uniform(1.1, 3, (4, 6))) for _ in range(4)))
    keep = torch.from_numpy(random.uniform(0.01, 1, (4, 6)))
    usual = hs.NormalInverseGamma(*(torch.from_numpy(random.uniform(1.1, 3, (4, 1))) for _ in range(4)))
    p = hs.Prediction(hs.Faded(plain, keep, plain.settle(keep, usual)), members=0)
    assert not np.allclose(p.std, hs.Prediction(hs.Faded(plain, keep), members=0).std)
    joined = hs.Prediction.cat([p[:2], p[2:]])
    mapped = torch.utils._pytree.tree_map(lambda leaf: leaf.clone(), p)
    for other in (joined, mapped, p.to("cpu"), pickle.loads(pickle.dumps(p))):
        assert np.array_equal(other.std, p.std)
        assert np.array_equal(other.interval(0.9), p.interval(0.9))
        assert np.array_equal(other.plain_answers.nu, plain.nu)
    moved = p.answers.affine(3.0, 2.0)
    again = hs.Faded(plain, keep, plain.settle(keep, usual)).affine(3.0, 2.0).faded()
    assert torch.allclose(moved.beta, again.beta)
    parts = p.decompose()
    np.testing.assert_allclose(parts.aleatoric + parts.epistemic, p.variance, rtol=1e-12)
