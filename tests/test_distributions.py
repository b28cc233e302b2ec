"""The contract of torch.distributions, for every distribution in one list."""

import io
import math

import pytest
import torch
from scipy import stats
from torch.distributions import Independent, kl_divergence

import howsure as hs


def nig(shape=(3,), dtype=torch.float64):
    return hs.NormalInverseGamma.from_raw(torch.randn(*shape, 4, dtype=dtype))


EXAMPLES = {
    "NormalInverseGamma": lambda: hs.NormalInverseGamma(
        torch.tensor([0.0, 1.0, -2.0]), 2.0, torch.tensor([2.5, 3.0, 9.0]), torch.tensor(0.7)
    ),
    "NormalInverseGamma by alpha_minus_one": lambda: hs.NormalInverseGamma(
        torch.zeros(3), torch.ones(3), beta=torch.ones(3), alpha_minus_one=torch.tensor([1e-3, 1.0, 1e4])
    ),
    "NormalInverseGamma from raw": lambda: nig(dtype=torch.float32),
    "StudentT": lambda: hs.StudentT(torch.tensor([2.5, 4.0, 50.0]), torch.tensor([0.0, 1.0, 2.0]), 0.5),
    "StudentT by df_minus_two": lambda: hs.StudentT(loc=0.0, scale=1.0, df_minus_two=torch.tensor([1e-3, 1.0, 1e6])),
    "Normal": lambda: hs.Normal(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.1, 1.0, 10.0])),
    "Mixture": lambda: hs.Mixture(nig((4, 3), torch.float32).predictive()),
    "Mixture of Gaussians": lambda: hs.Mixture(hs.Normal(torch.randn(3, 4), torch.rand(3, 4) + 0.1), dim=-1),
}


@pytest.fixture(params=EXAMPLES, ids=str)
def example(request):
    return EXAMPLES[request.param]()


def test_shapes(example):
    event = example.event_shape
    assert example.batch_shape == (3,)
    assert example.sample().shape == (3, *event)
    assert example.sample((5, 2)).shape == (5, 2, 3, *event)
    assert example.log_prob(example.sample((5, 2))).shape == (5, 2, 3)
    assert example.mean.shape == (3, *event)
    assert example.variance.shape == (3, *event)
    assert example.stddev.shape == (3, *event)


def test_expand(example):
    wide = example.expand((2, 3))
    assert type(wide) is type(example)
    assert wide.batch_shape == (2, 3)
    value = example.sample()
    assert torch.allclose(wide.log_prob(value.expand(2, *value.shape)), example.log_prob(value).expand(2, 3))
    assert example.expand(torch.Size([3])).batch_shape == (3,)


def test_independent(example):
    joint = Independent(example, 1)
    value = example.sample((4,))
    assert torch.allclose(joint.log_prob(value), example.log_prob(value).sum(-1))


def test_samples_lie_in_the_support(example):
    assert example.support.check(example.sample((100,))).all()


def test_bad_values_raise_where_arguments_are_validated(example):
    value = torch.full_like(example.sample(), math.nan)
    example._validate_args = True
    with pytest.raises(ValueError):
        example.log_prob(value)


def test_trees(example):
    leaves, spec = torch.utils._pytree.tree_flatten(example)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    value = example.sample((2,))
    assert torch.equal(again.log_prob(value), example.log_prob(value))
    assert again.batch_shape == example.batch_shape
    moved = torch.utils._pytree.tree_map(lambda leaf: leaf.double(), example)
    assert moved.log_prob(value.double()).dtype == torch.float64


@pytest.mark.parametrize("name", [n for n in EXAMPLES if not n.startswith("Mixture")])
def test_reparameterised_gradients(name):
    example = EXAMPLES[name]()
    assert example.has_rsample
    leaves = [leaf.detach().requires_grad_() for leaf in torch.utils._pytree.tree_leaves(example)]
    again = type(example)._from_leaves(leaves)
    gradients = torch.autograd.grad(again.rsample((10,)).sum(), leaves, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in gradients)
    assert sum(g is not None for g in gradients) >= 2


@pytest.mark.parametrize("name", [n for n in EXAMPLES if not n.startswith("NormalInverseGamma")])
def test_tails_and_quantiles_agree(name):
    d = EXAMPLES[name]()
    for q in (1e-12, 0.01, 0.4):
        q = torch.full((3,), q)
        assert torch.allclose(d.cdf(d.icdf(q)), q, rtol=1e-4, atol=0)
        assert torch.allclose(d.sf(d.isf(q)), q, rtol=1e-4, atol=0)
    y = d.sample((50,))
    assert torch.allclose(d.cdf(y) + d.sf(y), torch.ones(50, 3))
    assert torch.allclose(d.icdf(torch.tensor([0.9, 0.95, 0.999])), d.isf(torch.tensor([0.1, 0.05, 0.001])), rtol=1e-4)


@pytest.mark.parametrize("name", [n for n in EXAMPLES if not n.startswith("NormalInverseGamma")])
def test_cdf_is_the_integral_of_the_density(name):
    d = EXAMPLES[name]()
    y = torch.tensor(0.3, requires_grad=True)
    (slope,) = torch.autograd.grad(d.cdf(y.expand(3)).sum(), y)
    assert slope.item() == pytest.approx(d.log_prob(torch.full((3,), 0.3)).exp().sum().item(), rel=1e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_samples_follow_the_distribution(name):
    d = EXAMPLES[name]().expand((3,))
    draws = d.sample((4000,))
    if name.startswith("NormalInverseGamma"):
        mu, s2 = draws.unbind(-1)
        alpha, scale = d.alpha, (d.beta / (d.nu * d.alpha)).sqrt()
        for k in range(3):
            assert stats.kstest(s2[:, k], stats.invgamma(alpha[k].item(), scale=d.beta[k].item()).cdf).pvalue > 1e-3
            t = stats.t(2 * alpha[k].item(), d.gamma[k].item(), scale[k].item())
            assert stats.kstest(mu[:, k], t.cdf).pvalue > 1e-3
    else:
        for k in range(3):
            assert stats.kstest(d.cdf(draws)[:, k], "uniform").pvalue > 1e-3


# Normal Inverse-Gamma -----------------------------------------------------------------------------------------------


def test_letters_and_quantities():
    d = hs.NormalInverseGamma(torch.tensor(0.5), 2.0, 3.0, 4.0)
    assert (d.gamma, d.nu, d.alpha, d.alpha_minus_one, d.beta) == (0.5, 2, 3, 2, 4)
    assert (d.prediction, d.aleatoric_variance, d.epistemic_variance, d.predictive_variance) == (0.5, 2, 1, 3)
    assert d.evidence == 7
    assert d.mean.tolist() == [0.5, 2]
    assert d.variance.tolist() == [1, 4]
    assert d.mode.tolist() == pytest.approx([0.5, 4 / 4.5])
    t = d.predictive()
    assert (t.df, t.loc) == (6, 0.5)
    assert t.variance.item() == pytest.approx(3)
    assert repr(d) == "NormalInverseGamma(gamma: 0.5, nu: 2.0, alpha: 3.0, beta: 4.0)"


def test_mode_is_where_the_density_is_largest():
    d = nig(())
    mode = d.mode.clone().requires_grad_()
    (slope,) = torch.autograd.grad(d.log_prob(mode), mode)
    assert slope.abs().max() < 1e-8


def test_alpha_minus_one_survives_every_map():
    """In float32 α = 1 + 1e-9 is 1; nothing becomes infinite because α − 1 is passed on."""
    tiny = torch.tensor([1e-9, 3e-8])
    d = hs.NormalInverseGamma(torch.zeros(2), 1.0, beta=1e-9, alpha_minus_one=tiny)
    assert (d.alpha == 1).any()
    for other in (d, d.expand((5, 2)), d.affine(3.0, 2.0), torch.utils._pytree.tree_map(lambda x: x, d)):
        assert torch.equal(other.alpha_minus_one, tiny.expand(other.batch_shape))
        assert other.aleatoric_variance.isfinite().all()
        assert other.predictive().variance.isfinite().all()
    raw = torch.tensor([[0.0, 0.0, -12.0, 0.0]])
    exact = torch.nn.functional.softplus(raw[:, 2].double()) + 1e-6
    assert torch.allclose(hs.NormalInverseGamma.from_raw(raw).alpha_minus_one.double(), exact, rtol=1e-6)
    updated = d.update(torch.tensor([1.0, 2.0]))
    assert torch.allclose(updated.alpha_minus_one, tiny + 0.5)
    assert torch.allclose(d.predictive().df_minus_two, 2 * tiny)


def test_from_raw_takes_any_dimension_and_its_leaves_are_the_parameters():
    raw = torch.randn(2, 4, 5, 6)
    d = hs.NormalInverseGamma.from_raw(raw, dim=1)
    assert d.batch_shape == (2, 5, 6)
    assert torch.equal(d.gamma, raw[:, 0])
    leaves = torch.utils._pytree.tree_leaves(d)
    assert len(leaves) == 4
    assert all(a is b for a, b in zip(leaves, d.parameters, strict=True))
    assert leaves[3] is d.beta


def test_update_is_conjugate():
    d = nig()
    y = torch.randn(3, 5, dtype=torch.float64)
    step = d
    for k in range(5):
        step = step.update(y[:, k])
    at_once = d.update(y, dim=1)
    assert torch.allclose(step.beta, at_once.beta)
    assert torch.allclose(step.gamma, at_once.gamma)
    with pytest.raises(hs.InputTypeError, match=r"torch\.int64"):
        d.update(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(hs.InputError, match=r"\by\b"):
        d.update(torch.zeros(5))
    with pytest.raises(hs.InputError, match=r"\by\b"):
        d.update(y, dim=0)


def test_affine_with_scale_zero_raises():
    with pytest.raises(hs.InputError, match="scale"):
        nig().affine(0.0, 0.0)


def test_affine_broadcasts_per_target():
    d = nig((5, 2)).affine(torch.tensor([0.0, 1e6]), torch.tensor([1.0, 1e-3]))
    assert d.batch_shape == (5, 2)
    assert d.nu.shape == (5, 2)


def test_kl_is_registered():
    d, e = nig(), nig()
    assert (kl_divergence(d, e) > 0).all()
    assert (kl_divergence(d, d) == 0).all()
    pairs = d.sample((200_000,))
    estimate = (d.log_prob(pairs) - e.log_prob(pairs)).mean(0)
    assert torch.allclose(kl_divergence(d, e), estimate, rtol=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.5}, "alpha"),
        ({"alpha": torch.tensor([2.0, 1.0, 3.0])}, "alpha"),
        ({"alpha": None, "alpha_minus_one": -0.1}, "alpha_minus_one"),
        ({"nu": torch.tensor([1.0, -1.0, math.nan])}, r"\bnu\b"),
        ({"beta": math.inf}, "beta"),
        ({"gamma": math.nan}, "gamma"),
        ({"gamma": torch.zeros(3), "nu": torch.ones(2)}, r"\(3,\).*\(2,\)"),
        ({"gamma": torch.zeros(1), "nu": torch.ones(1, device="meta")}, "gamma"),
    ],
)
def test_parameters_outside_their_domain(arguments, message):
    with pytest.raises(hs.InputError, match=message):
        hs.NormalInverseGamma(**{"gamma": 0.0, "nu": 1.0, "alpha": 2.0, "beta": 1.0, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": torch.tensor([1])}, "gamma"),
        ({"gamma": "1"}, "gamma"),
        ({"nu": True}, r"\bnu\b"),
        ({"alpha": None}, "alpha_minus_one"),
        ({"alpha_minus_one": 1.0}, "alpha_minus_one"),
        ({"beta": None}, "beta"),
    ],
)
def test_parameters_of_the_wrong_kind(arguments, message):
    with pytest.raises(hs.InputTypeError, match=message):
        hs.NormalInverseGamma(**{"gamma": 0.0, "nu": 1.0, "alpha": 2.0, "beta": 1.0, **arguments})


def test_raw_of_the_wrong_kind():
    with pytest.raises(hs.InputError, match=r"\(5, 3\)"):
        hs.NormalInverseGamma.from_raw(torch.zeros(5, 3))
    with pytest.raises(hs.InputError, match=r"\b3\b.*\(5, 4\)"):
        hs.NormalInverseGamma.from_raw(torch.zeros(5, 4), dim=3)
    with pytest.raises(hs.InputTypeError, match=r"torch\.int64"):
        hs.NormalInverseGamma.from_raw(torch.zeros(5, 4, dtype=torch.int64))


def test_dtypes_promote():
    half = torch.ones(2, dtype=torch.bfloat16)
    assert hs.NormalInverseGamma(half, half, half * 2, half).gamma.dtype == torch.float32
    assert hs.NormalInverseGamma(half, half.double(), half * 2, half).gamma.dtype == torch.float64
    assert hs.StudentT(half * 3, half, half).loc.dtype == torch.float32
    assert hs.NormalInverseGamma(0, 1, 2, 1).gamma.dtype == torch.float32


def test_validation_can_be_turned_off():
    d = hs.NormalInverseGamma(0.0, 1.0, 0.5, 1.0, validate_args=False)
    assert d.alpha == 0.5


def test_pickles():
    d = nig()
    buffer = io.BytesIO()
    torch.save(d, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert torch.equal(again.beta, d.beta)


# Student's t and Gaussian -------------------------------------------------------------------------------------------


def test_student_t_agrees_with_torch_in_float64():
    df, loc, scale = (
        torch.tensor(v, dtype=torch.float64) for v in ([2.5, 4.0, 50.0], [0.0, 1.0, 2.0], [0.5, 1.0, 2.0])
    )
    ours, torchs = hs.StudentT(df, loc, scale), torch.distributions.StudentT(df, loc, scale)
    y = torch.randn(10, 3, dtype=torch.float64) * 5
    assert torch.allclose(ours.log_prob(y), torchs.log_prob(y))
    assert torch.allclose(ours.mean, torchs.mean)
    assert torch.allclose(ours.variance, torchs.variance)
    assert torch.allclose(ours.entropy(), torchs.entropy())


def test_student_t_moments_that_do_not_exist():
    t = hs.StudentT(torch.tensor([0.5, 1.5, 2.0, 3.0]))
    assert t.mean.isnan().tolist() == [True, False, False, False]
    assert t.variance.isnan().tolist() == [True, False, False, False]
    assert t.variance.isinf().tolist() == [False, True, True, False]


def test_student_t_and_gaussian_refuse_bad_parameters():
    with pytest.raises(hs.InputError, match=r"\bdf\b"):
        hs.StudentT(-1.0)
    with pytest.raises(hs.InputTypeError, match="df_minus_two"):
        hs.StudentT(loc=1.0)
    with pytest.raises(hs.InputError, match="df_minus_two"):
        hs.StudentT(3.0, df_minus_two=2.0)
    with pytest.raises(hs.InputError, match="df_minus_two"):
        hs.StudentT(df_minus_two=-2.0)
    with pytest.raises(hs.InputError, match="scale"):
        hs.Normal(0.0, 0.0)


def test_gaussian_keeps_torchs_kl():
    p, q = hs.Normal(0.0, 1.0), hs.Normal(1.0, 2.0)
    assert kl_divergence(p, q).item() == pytest.approx(math.log(2) + 2 / 8 - 0.5)


# Mixture ------------------------------------------------------------------------------------------------------------


def test_mixture_of_one_is_its_member():
    t = hs.StudentT(torch.tensor([[3.0, 9.0]]), torch.tensor([[0.0, 1.0]]), 2.0)
    m, y = hs.Mixture(t), torch.randn(7, 2)
    assert torch.allclose(m.log_prob(y), t.log_prob(y))
    assert torch.allclose(m.cdf(y), t.cdf(y))
    assert torch.allclose(m.variance, t.variance[0])
    assert torch.allclose(m.icdf(torch.tensor([0.1, 0.9])), t.icdf(torch.tensor([0.1, 0.9]))[0])


def test_law_of_total_variance():
    m = hs.Mixture(hs.Normal(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 1.0])))
    assert (m.mean, m.within_variance, m.between_variance, m.variance) == (5, 1, 25, 26)
    draws = hs.Mixture(nig((4, 3)).predictive()).expand((3,)).sample((10,))
    assert draws.shape == (10, 3)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_members_along_any_dimension(dim):
    df, loc, scale = torch.rand(2, 2, dtype=torch.float64) * 5 + 2, torch.randn(2, 2, dtype=torch.float64), 1.5
    m = hs.Mixture(hs.StudentT(df, loc, scale), dim=dim)
    y = torch.randn(6, 2, dtype=torch.float64)
    members = [hs.StudentT(df.select(dim, k), loc.select(dim, k), scale) for k in range(2)]
    expected = torch.stack([t.log_prob(y).exp() for t in members]).mean(0).log()
    assert torch.allclose(m.log_prob(y), expected)
    assert torch.allclose(m.sf(y), torch.stack([t.sf(y) for t in members]).mean(0))


def test_quantiles_of_members_far_apart():
    """Two needles a thousand widths apart: Newton's method alone would leave, the bracket holds it."""
    m = hs.Mixture(hs.StudentT(torch.tensor([3.0, 3.0], dtype=torch.float64), torch.tensor([0.0, 1000.0]), 0.01))
    p = torch.tensor([1e-20, 0.2, 0.499, 0.501, 0.8, 1 - 1e-9], dtype=torch.float64)
    assert torch.allclose(m.cdf(m.icdf(p)), p, rtol=1e-7, atol=0)
    assert torch.allclose(m.sf(m.isf(p)), p, rtol=1e-7, atol=0)


def test_quantiles_of_mixtures_at_and_beyond_the_ends():
    m = hs.Mixture(hs.Normal(torch.zeros(2), torch.tensor([1.0, 2.0])))
    assert m.icdf(torch.tensor([0.0, 1.0])).tolist() == [-math.inf, math.inf]
    assert m.isf(torch.tensor([0.0, 1.0])).tolist() == [math.inf, -math.inf]
    assert m.icdf(torch.tensor([-0.5, 2.0, math.nan])).isnan().all()


def test_gradients_of_mixture_quantiles():
    loc = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64, requires_grad=True)
    df = torch.tensor([3.0, 4.0, 9.0], dtype=torch.float64, requires_grad=True)
    p = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p, df, loc: hs.Mixture(hs.StudentT(df, loc, 1.0)).icdf(p), (p, df, loc))


def test_bad_mixtures_raise():
    with pytest.raises(hs.InputTypeError, match="NormalInverseGamma"):
        hs.Mixture(nig())
    with pytest.raises(hs.InputTypeError):
        hs.Mixture(torch.zeros(3))
    with pytest.raises(hs.InputError, match=r"\(\)"):
        hs.Mixture(hs.StudentT(3.0))
    with pytest.raises(hs.InputError, match=r"\(0,\)"):
        hs.Mixture(hs.StudentT(torch.ones(0)))


def test_index_and_cat_keep_every_parameter(example):
    assert len(example) == 3
    assert example[0].batch_shape == ()
    assert example[torch.tensor([True, False, True])].batch_shape == (2,)
    again = type(example).cat([example[:1], example[1:]])
    value = example.sample()
    assert torch.equal(again.log_prob(value), example.log_prob(value))
    assert torch.equal(example[1:].mean, example.mean[1:])


def test_len_of_one_distribution_raises(example):
    assert example[0]
    with pytest.raises(TypeError):
        len(example[0])


def test_cat_of_nothing_or_other_objects_raises(example):
    for parts in ([], [example, torch.zeros(3)]):
        with pytest.raises(hs.InputTypeError):
            type(example).cat(parts)
