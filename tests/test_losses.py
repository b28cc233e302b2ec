import functools
import math

import pytest
import torch

import evidentia as ev
from evidentia.formulas import nig, penalties


@pytest.fixture
def answer():
    return ev.NormalInverseGamma.from_raw(torch.randn(6, 4, dtype=torch.float64))


@pytest.fixture
def y():
    return torch.randn(6, dtype=torch.float64)


def test_loss_is_likelihood_plus_weighted_penalty_and_extras(answer, y):
    p = answer.parameters
    expected = (
        nig.nll(y, *p) + 0.3 * penalties.nsu(y, *p) + 2 * penalties.lipschitz_mse(y, *p) + 0.1 * penalties.ur(y, *p)
    )
    extra = {"lipschitz_mse": 2.0, "ur": 0.1}
    got = ev.evidential_loss(answer, y, weight=0.3, penalty="nsu", extra=extra, reduction="none")
    assert torch.allclose(got, expected)
    assert torch.allclose(ev.evidential_loss(answer, y, 0.3, "nsu", extra=extra), expected.mean())
    assert torch.allclose(ev.evidential_loss(answer, y, 0.3, "nsu", extra=extra, reduction="sum"), expected.sum())


def test_a_penalty_may_be_a_function(answer, y):
    mild = functools.partial(penalties.kl, epsilon=0.5)
    difference = ev.evidential_loss(answer, y, 1.0, mild) - ev.evidential_loss(answer, y, 0.0)
    assert torch.allclose(difference, mild(y, *answer.parameters).mean())


def test_one_weight_per_network(y):
    raw = torch.randn(2, 6, 4, dtype=torch.float64)
    both = ev.evidential_loss(
        ev.NormalInverseGamma.from_raw(raw), y.expand(2, 6), torch.tensor([[0.0], [1.0]]), reduction="none"
    )
    for k, weight in enumerate((0.0, 1.0)):
        alone = ev.evidential_loss(ev.NormalInverseGamma.from_raw(raw[k]), y, weight, reduction="none")
        assert torch.allclose(both[k], alone)


@pytest.mark.parametrize("loss", ["evidential", "gaussian"])
def test_masked_targets_do_not_count_and_send_no_gradient(loss):
    f = ev.evidential_loss if loss == "evidential" else ev.gaussian_loss
    head = ev.NIGHead(3) if loss == "evidential" else ev.GaussianHead(3)
    x = torch.randn(5, 3)
    y = torch.tensor([0.1, math.nan, -0.2, math.nan, 1.0])
    keep = ~y.isnan()
    x.requires_grad_()
    masked = f(head(x), y, mask=keep)
    assert torch.allclose(masked, f(head(x[keep]), y[keep]))
    (gradient,) = torch.autograd.grad(masked, x)
    assert gradient.isfinite().all()
    assert (gradient[~keep] == 0).all()
    assert f(head(x), y, mask=keep, reduction="none")[~keep].tolist() == [0, 0]
    assert f(head(x), y).isnan()  # a missing target is never dropped unasked
    nothing = f(head(x), y, mask=torch.zeros(5, dtype=torch.bool))
    assert nothing == 0


def test_sample_weights_count_rows(answer, y):
    weights = torch.tensor([2.0, 1.0, 0.0, 0.0, 3.0, 1.0], dtype=torch.float64)
    each = ev.evidential_loss(answer, y, reduction="none")
    repeated = torch.cat([each[[0, 0, 1]], each[[4, 4, 4, 5]]])
    assert torch.allclose(ev.evidential_loss(answer, y, sample_weight=weights), repeated.mean())
    mask = torch.tensor([True, True, True, True, False, True])
    both = ev.evidential_loss(answer, y, sample_weight=weights, mask=mask)
    assert torch.allclose(both, torch.stack([each[0], each[0], each[1], each[5]]).mean())


def test_gaussian_loss_is_torchs_normal():
    normal = ev.Gaussian(torch.randn(4), torch.rand(4) + 0.1)
    y = torch.randn(4)
    expected = -torch.distributions.Normal(normal.loc, normal.scale).log_prob(y)
    assert torch.allclose(ev.gaussian_loss(normal, y, reduction="none"), expected)


def test_dtypes_promote(answer, y):
    single = ev.NormalInverseGamma.from_raw(torch.randn(6, 4))
    assert ev.evidential_loss(single, y).dtype == torch.float64
    assert ev.evidential_loss(single, y.bfloat16()).dtype == torch.float32
    assert ev.evidential_loss(answer, y.float()).dtype == torch.float64
    half = ev.NormalInverseGamma.from_raw(torch.randn(6, 4, dtype=torch.bfloat16))
    assert ev.evidential_loss(half, y.bfloat16()).dtype == torch.float32


# Bad input ----------------------------------------------------------------------------------------------------------


def test_shapes_that_would_broadcast_are_refused(y):
    answer = ev.NormalInverseGamma.from_raw(torch.randn(6, 1, 4))
    with pytest.raises(ev.InputError, match=r"y has shape \(6,\) but the prediction \(6, 1\)"):
        ev.evidential_loss(answer, y)
    with pytest.raises(ev.InputError, match=r"y has shape \(6, 1\) but the prediction \(6,\)"):
        ev.gaussian_loss(ev.Gaussian(torch.zeros(6), 1.0), y.unsqueeze(1))


def test_integer_targets_are_refused(answer):
    with pytest.raises(ev.InputTypeError, match=r"y is torch.int64.*y.float\(\)"):
        ev.evidential_loss(answer, torch.arange(6))
    with pytest.raises(ev.InputTypeError, match="y must be a tensor, not list"):
        ev.evidential_loss(answer, [0.0] * 6)


def test_devices_must_agree(answer, y):
    with pytest.raises(ev.InputError, match="y is on meta but the prediction on cpu"):
        ev.evidential_loss(answer, y.to("meta"))
    with pytest.raises(ev.InputError, match="mask is on meta but y on cpu"):
        ev.evidential_loss(answer, y, mask=torch.ones(6, dtype=torch.bool, device="meta"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"penalty": "l2"}, "unknown penalty 'l2'; known are error"),
        ({"extra": {"l2": 1.0}}, "known are lipschitz_mse, ur"),
        ({"reduction": "median"}, "unknown reduction 'median'; known are mean, sum, none"),
        ({"weight": -1.0}, "weight must be a finite number that is at least 0, got -1"),
        ({"weight": math.nan}, "weight must be a finite number"),
        ({"weight": torch.ones(5)}, r"weight has shape \(5,\), which does not broadcast to y's \(6,\)"),
        ({"weight": torch.ones(6, 6)}, r"weight has shape \(6, 6\)"),
        ({"sample_weight": torch.ones(6, 1)}, r"sample_weight has shape \(6, 1\) but y \(6,\)"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, r"mask has shape \(3,\) but y \(6,\)"),
    ],
)
def test_one_clear_error_each(answer, y, arguments, message):
    with pytest.raises(ev.InputError, match=message):
        ev.evidential_loss(answer, y, **arguments)


def test_wrong_kinds_are_refused(answer, y):
    with pytest.raises(ev.InputTypeError, match="mask must be a boolean tensor"):
        ev.evidential_loss(answer, y, mask=torch.ones(6))
    with pytest.raises(ev.InputTypeError, match="takes a NormalInverseGamma, not Tensor"):
        ev.evidential_loss(torch.zeros(6, 4), y)
    with pytest.raises(ev.InputTypeError, match="takes a Gaussian, not StudentT"):
        ev.gaussian_loss(answer.predictive(), y)


# Schedules ----------------------------------------------------------------------------------------------------------


def test_constant_and_warm_up(answer, y):
    constant, warm = ev.ConstantWeight(0.2), ev.LinearWarmup(0.2, steps=4)
    seen = []
    for _ in range(6):
        seen.append((constant.weight.item(), warm.weight.item()))
        constant.step(answer, y)
        warm.step(answer, y)
    assert [c for c, _ in seen] == pytest.approx([0.2] * 6)
    assert [w for _, w in seen] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.2])


def overconfident(scale):
    """Answers whose standard deviation is ``scale`` times that of the noise."""
    y = torch.randn(256)
    return ev.NormalInverseGamma(torch.zeros(256), 1.0, 51.0, 25.0 * scale**2), y


def test_dual_ascent_rises_when_overconfident_and_falls_to_zero_when_not():
    dual = ev.DualAscent(rate=0.01, memory=5)
    for _ in range(50):
        dual.step(*overconfident(0.5))
    risen = dual.weight.item()
    assert risen > 0.5
    for _ in range(400):
        dual.step(*overconfident(2.0))
    assert dual.weight.item() == 0  # and never below
    dual.step(*overconfident(2.0))
    assert dual.weight.item() == 0


def test_dual_ascent_is_free_of_units():
    runs = []
    for scale in (1.0, 1e3):
        torch.manual_seed(1)
        dual = ev.DualAscent(rate=0.01, memory=5)
        for _ in range(20):
            answer, y = overconfident(0.5)
            dual.step(answer.affine(0.0, scale), y * scale)
        runs.append(dual.weight.item())
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)


def test_the_authors_constraint_cannot_be_met():
    """|r|(2ν+α) ≤ 0.01 with α > 1: even at no evidence at all the mean violation is the mean error."""
    y = torch.randn(1000)
    least = penalties.error(y, torch.zeros(1000), torch.tensor(1e-6), torch.tensor(1e-6), torch.tensor(1.0))
    assert least.mean() > 0.7


def test_schedules_resume_from_their_state():
    for schedule in (ev.LinearWarmup(0.3, 10), ev.DualAscent(0.1, memory=3), ev.ConstantWeight(0.4)):
        schedule.step(*overconfident(0.5))
        other = type(schedule)(0.9, 10) if isinstance(schedule, ev.LinearWarmup) else type(schedule)(0.9)
        other.load_state_dict(schedule.state_dict())
        assert other.weight == schedule.weight


@pytest.mark.parametrize(
    "build",
    [
        lambda: ev.ConstantWeight(-1),
        lambda: ev.LinearWarmup(0.1, 0),
        lambda: ev.DualAscent(rate=0),
        lambda: ev.DualAscent(memory=0),
        lambda: ev.DualAscent(weight=math.inf),
    ],
)
def test_bad_schedules_are_refused(build):
    with pytest.raises(ev.InputError, match="must be"):
        build()
