import copy
import functools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import howsure as hs
from howsure.formulas import nig, penalties


@pytest.fixture
def answer():
    return hs.NormalInverseGamma.from_raw(torch.randn(6, 4, dtype=torch.float64))


@pytest.fixture
def y():
    return torch.randn(6, dtype=torch.float64)


def test_loss_is_likelihood_plus_weighted_penalty(answer, y):
    p = answer.parameters
    expected = nig.nll(y, *p) + 0.3 * penalties.nsu(y, *p)
    got = hs.evidential_loss(answer, y, weight=0.3, penalty="nsu", reduction="none")
    assert torch.allclose(got, expected)
    assert torch.allclose(hs.evidential_loss(answer, y, 0.3, "nsu"), expected.mean())
    assert torch.allclose(hs.evidential_loss(answer, y, 0.3, "nsu", reduction="sum"), expected.sum())


def test_penalty_may_be_a_function(answer, y):
    mild = functools.partial(penalties.kl, epsilon=0.5)
    difference = hs.evidential_loss(answer, y, 1.0, mild) - hs.evidential_loss(answer, y, 0.0)
    assert torch.allclose(difference, mild(y, *answer.parameters).mean())


def test_one_weight_per_network(y):
    raw = torch.randn(2, 6, 4, dtype=torch.float64)
    both = hs.evidential_loss(
        hs.NormalInverseGamma.from_raw(raw), y.expand(2, 6), torch.tensor([[0.0], [1.0]]), reduction="none"
    )
    for k, weight in enumerate((0.0, 1.0)):
        alone = hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw[k]), y, weight, reduction="none")
        assert torch.allclose(both[k], alone)


@pytest.mark.parametrize("loss", ["evidential", "normal"])
def test_masked_targets_do_not_count_and_send_no_gradient(loss):
    f = hs.evidential_loss if loss == "evidential" else hs.normal_loss
    head = hs.NIGHead(3) if loss == "evidential" else hs.NormalHead(3)
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
    each = hs.evidential_loss(answer, y, reduction="none")
    repeated = torch.cat([each[[0, 0, 1]], each[[4, 4, 4, 5]]])
    assert torch.allclose(hs.evidential_loss(answer, y, sample_weight=weights), repeated.mean())
    mask = torch.tensor([True, True, True, True, False, True])
    both = hs.evidential_loss(answer, y, sample_weight=weights, mask=mask)
    assert torch.allclose(both, torch.stack([each[0], each[0], each[1], each[5]]).mean())


def test_normal_loss_is_torchs_normal():
    normal = hs.Normal(torch.randn(4), torch.rand(4) + 0.1)
    y = torch.randn(4)
    expected = -torch.distributions.Normal(normal.loc, normal.scale).log_prob(y)
    assert torch.allclose(hs.normal_loss(normal, y, reduction="none"), expected)


def test_dtypes_promote(answer, y):
    single = hs.NormalInverseGamma.from_raw(torch.randn(6, 4))
    assert hs.evidential_loss(single, y).dtype == torch.float64
    assert hs.evidential_loss(single, y.bfloat16()).dtype == torch.float32
    assert hs.evidential_loss(answer, y.float()).dtype == torch.float64
    half = hs.NormalInverseGamma.from_raw(torch.randn(6, 4, dtype=torch.bfloat16))
    assert hs.evidential_loss(half, y.bfloat16()).dtype == torch.float32


# Bad input ----------------------------------------------------------------------------------------------------------


FITTING = [((6,), (6, 1)), ((6, 1), (6,)), ((6,), (1, 6)), ((2, 3), (2, 1, 3)), ((2, 1, 3), (2, 3)), ((), (1,))]


@pytest.mark.parametrize(("shape", "other"), FITTING)
def test_one_dimension_of_size_one_more_or_less_means_the_same(shape, other):
    raw, y = torch.randn(*shape, 4), torch.randn(shape)
    arguments = {
        "mask": torch.rand(shape) < 0.7,
        "sample_weight": torch.rand(shape),
        "censored": torch.randint(-1, 2, shape),
    }
    reshaped = {name: value.reshape(other) for name, value in arguments.items()}
    for loss_of, answer in (
        (hs.evidential_loss, hs.NormalInverseGamma.from_raw(raw)),
        (hs.normal_loss, hs.Normal.from_raw(raw[..., :2])),
    ):
        for reduction in ("mean", "sum", "none"):
            expected = loss_of(answer, y, **arguments, reduction=reduction)
            got = loss_of(answer, y.reshape(other), **reshaped, reduction=reduction)
            assert got.shape == expected.shape
            assert torch.equal(got, expected)
    dual, other_dual = hs.schedules.DualAscent(0.3), hs.schedules.DualAscent(0.3)
    answer = hs.NormalInverseGamma.from_raw(raw)
    dual.step(answer, y)
    other_dual.step(answer, y.reshape(other), mask=torch.ones(other, dtype=torch.bool))
    assert dual.average == other_dual.average


@pytest.mark.parametrize(
    ("shape", "other"),
    [((6,), (6, 6)), ((6,), (1,)), ((6, 1), (1, 6)), ((6,), (6, 1, 1)), ((1, 1), ()), ((2, 3), (3, 2))],
)
def test_shapes_that_would_broadcast_raise(shape, other):
    answer, y = hs.NormalInverseGamma.from_raw(torch.randn(*shape, 4)), torch.randn(shape)
    with pytest.raises(hs.InputError, match=r"\by\b"):
        hs.evidential_loss(answer, torch.zeros(other))
    with pytest.raises(hs.InputError, match=r"\by\b"):
        hs.normal_loss(hs.Normal(torch.zeros(shape), 1.0), torch.zeros(other))
    with pytest.raises(hs.InputError, match="mask"):
        hs.evidential_loss(answer, y, mask=torch.ones(other, dtype=torch.bool))


def test_integer_targets_raise(answer):
    with pytest.raises(hs.InputTypeError, match=r"\by\b"):
        hs.evidential_loss(answer, torch.arange(6))
    with pytest.raises(hs.InputTypeError, match=r"\by\b"):
        hs.evidential_loss(answer, [0.0] * 6)


def test_devices_must_agree(answer, y):
    with pytest.raises(hs.InputError, match=r"\by\b"):
        hs.evidential_loss(answer, y.to("meta"))
    with pytest.raises(hs.InputError, match="mask"):
        hs.evidential_loss(answer, y, mask=torch.ones(6, dtype=torch.bool, device="meta"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"penalty": "l2"}, "'l2'"),
        ({"reduction": "median"}, "'median'"),
        ({"weight": -1.0}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"weight": torch.ones(5)}, "weight"),
        ({"weight": torch.ones(6, 6)}, "weight"),
        ({"sample_weight": torch.ones(6, 6)}, "sample_weight"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, "mask"),
    ],
)
def test_one_clear_error_each(answer, y, arguments, message):
    with pytest.raises(hs.InputError, match=message):
        hs.evidential_loss(answer, y, **arguments)


def test_wrong_kinds_raise(answer, y):
    with pytest.raises(hs.InputTypeError, match="mask"):
        hs.evidential_loss(answer, y, mask=torch.ones(6))
    with pytest.raises(hs.InputTypeError, match="NormalInverseGamma"):
        hs.evidential_loss(torch.zeros(6, 4), y)
    with pytest.raises(hs.InputTypeError, match="StudentT"):
        hs.normal_loss(answer.predictive(), y)


LOSSES = {"evidential": (hs.evidential_loss, hs.NIGHead), "normal": (hs.normal_loss, hs.NormalHead)}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("extras", [{}, {"mask": torch.ones(0, dtype=torch.bool)}, {"sample_weight": torch.ones(0)}])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_batch_without_rows_has_loss_zero_and_a_gradient_of_zeros(name, extras, reduction):
    loss_of, head_of = LOSSES[name]
    head = head_of(3)
    loss = loss_of(head(torch.zeros(0, 3)), torch.zeros(0), reduction=reduction, **extras)
    assert loss.shape == ((0,) if reduction == "none" else ())
    assert loss.sum() == 0
    loss.sum().backward()
    for p in head.parameters():
        assert torch.equal(p.grad, torch.zeros_like(p))


@pytest.mark.parametrize("name", ["weight", "sample_weight"])
@pytest.mark.parametrize(
    "values",
    [
        [1.0, -1.0, 0.5, -2.0, 0.0, 3.0],
        [1.0, 1.0, math.nan, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, math.inf, 1.0, 1.0],
    ],
)
def test_weights_that_are_negative_or_not_finite_raise(answer, y, name, values):
    bad = torch.tensor(values)
    with pytest.raises(hs.InputError, match=name):
        hs.evidential_loss(answer, y, **{name: bad})
    if name == "sample_weight":
        with pytest.raises(hs.InputError, match="sample_weight"):
            hs.normal_loss(hs.Normal(torch.zeros(6), 1.0), y, sample_weight=bad)
        whole = torch.tensor(values).nan_to_num(1.0, posinf=1.0).clamp(min=0)
        mask = bad == whole  # targets that do not count may be anything
        expected = hs.evidential_loss(answer, y, sample_weight=whole, mask=mask)
        assert torch.equal(hs.evidential_loss(answer, y, sample_weight=bad, mask=mask), expected)


def test_weights_of_other_kinds(answer, y):
    expected = hs.evidential_loss(answer, y, 0.5)
    raw = torch.randn(6, 4, requires_grad=True)
    for weight in (np.float32(0.5), np.float64(0.5), torch.tensor(0.5)):
        assert torch.equal(hs.evidential_loss(answer, y, weight), expected)
        hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y, weight).backward()
    assert torch.equal(hs.evidential_loss(answer, y, np.int64(2)), hs.evidential_loss(answer, y, 2.0))
    counts = torch.tensor([2, 1, 0, 0, 3, 1])
    assert torch.equal(
        hs.evidential_loss(answer, y, sample_weight=counts),
        hs.evidential_loss(answer, y, sample_weight=counts.double()),
    )
    for weight in ("0.1", None, [0.1] * 6, np.ones(6), 1j):
        with pytest.raises(hs.InputTypeError, match="weight"):
            hs.evidential_loss(answer, y, weight)
    with pytest.raises(hs.InputTypeError, match="weight"):
        hs.evidential_loss(answer, y, torch.ones(6, dtype=torch.complex64))
    for weights in ([1.0] * 6, np.ones(6), 2.0):
        with pytest.raises(hs.InputTypeError, match="sample_weight"):
            hs.evidential_loss(answer, y, sample_weight=weights)
    with pytest.raises(hs.InputTypeError, match=r"\by\b"):
        hs.evidential_loss(answer, y.numpy(), weight=torch.ones(6))
    with pytest.raises(hs.InputError, match="weight"):
        hs.evidential_loss(answer, y, torch.ones(6, device="meta"))


def test_penalty_of_another_shape_raises(answer, y):
    with pytest.raises(hs.InputError, match="penalty"):
        hs.evidential_loss(answer, y, penalty=lambda y, *p: penalties.nsu(y, *p).unsqueeze(1))


def test_weights_inside_transforms_are_not_read():
    """A value that is read ends a compiled graph, and cannot be read at all inside vmap."""
    head, x, y, weights = hs.NIGHead(3), torch.randn(8, 3), torch.randn(8), torch.rand(8)

    def loss(x, y, w):
        return hs.evidential_loss(head(x), y, w, sample_weight=w)

    expected = loss(x, y, weights)
    assert torch.allclose(torch.compile(loss, fullgraph=True, backend="aot_eager")(x, y, weights), expected)
    rows = torch.func.vmap(loss)(x, y, weights)
    assert torch.allclose((rows * weights).sum() / weights.sum(), expected)
    gradients = torch.func.vmap(torch.func.grad(loss))(x, y, weights)
    assert gradients.isfinite().all()
    for scale in (0.1, 0.2, 0.3):  # numbers that change do not end it either
        compiled = torch.compile(lambda x, y, w: hs.evidential_loss(head(x), y, w), fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(x, y, scale), hs.evidential_loss(head(x), y, scale))


# Schedules ----------------------------------------------------------------------------------------------------------


def overconfident(scale):
    """Distributions whose standard deviation is ``scale`` times the noise."""
    y = torch.randn(256)
    return hs.NormalInverseGamma(torch.zeros(256), 1.0, 51.0, 25.0 * scale**2), y


def test_dual_ascent_rises_when_overconfident_and_falls_to_zero_when_not():
    dual = hs.schedules.DualAscent(rate=0.01, memory=5)
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
        dual = hs.schedules.DualAscent(rate=0.01, memory=5)
        for _ in range(20):
            answer, y = overconfident(0.5)
            dual.step(answer.affine(0.0, scale), y * scale)
        runs.append(dual.weight.item())
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)


def test_authors_constraint_cannot_be_met():
    """|r|(2ν+α) ≤ 0.01 with α > 1: even at no evidence at all the mean violation is the mean error."""
    y = torch.randn(1000)
    least = penalties.error(y, torch.zeros(1000), torch.tensor(1e-6), torch.tensor(1e-6), torch.tensor(1.0))
    assert least.mean() > 0.7


@pytest.mark.parametrize(
    "build",
    [
        lambda: hs.schedules.DualAscent(rate=0),
        lambda: hs.schedules.DualAscent(memory=0),
        lambda: hs.schedules.DualAscent(weight=math.inf),
    ],
)
def test_bad_schedules_raise(build):
    with pytest.raises(hs.InputError):
        build()


def dual_ascent():
    return hs.schedules.DualAscent(0.5, rate=0.1, memory=2)


def test_step_may_come_before_the_backward_pass():
    schedule, head = dual_ascent(), hs.NIGHead(3)
    x, y = torch.randn(8, 3), torch.randn(8)
    for _ in range(2):
        expected = torch.autograd.grad(hs.evidential_loss(head(x), y, schedule.weight), head.linear.weight)[0]
        answer = head(x)
        loss = hs.evidential_loss(answer, y, schedule.weight)
        schedule.step(answer, y)
        assert torch.equal(torch.autograd.grad(loss, head.linear.weight)[0], expected)
    assert not schedule.weight.requires_grad


def test_schedule_after_a_step_is_still_a_module():
    schedule = dual_ascent()
    keys = set(schedule.state_dict())
    schedule.step(*overconfident(0.5))
    assert set(schedule.state_dict()) == keys
    other, copied = dual_ascent(), copy.deepcopy(schedule)
    other.load_state_dict(schedule.state_dict(), strict=True)
    for one in (other, copied):
        assert one.weight == schedule.weight
        one.step(*overconfident(2.0))
    assert copied.weight != schedule.weight
    assert all(t.device.type == "meta" for t in schedule.to("meta").buffers())
    assert len(list(schedule.buffers())) == len(keys)


def test_step_on_held_out_data_in_inference_mode():
    """Held-out data are often evaluated in inference mode; a weight made there could not be used in training."""
    schedule, head = dual_ascent(), hs.NIGHead(3)
    with torch.inference_mode():
        schedule.step(head(torch.randn(8, 3)), torch.randn(8))
    hs.evidential_loss(head(torch.randn(8, 3)), torch.randn(8), schedule.weight).backward()
    assert all(p.grad.isfinite().all() for p in head.parameters())


def test_batches_without_targets_leave_dual_ascent_unchanged():
    dual = hs.schedules.DualAscent(0.5, rate=0.1, memory=2)
    dual.step(*overconfident(0.5))
    before = dual.weight.item(), dual.average.item()
    empty = hs.NormalInverseGamma.from_raw(torch.zeros(0, 4))
    answer, y = overconfident(2.0)
    dual.step(empty, torch.zeros(0))
    dual.step(answer, y, mask=torch.zeros(256, dtype=torch.bool))
    dual.step(answer, y.index_fill(0, torch.tensor([3]), math.nan))
    dual.step(answer, y.index_fill(0, torch.tensor([3]), math.inf))
    assert (dual.weight.item(), dual.average.item()) == before


def test_schedule_does_not_follow_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        assert {t.dtype for t in dual_ascent().buffers()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)


RANK = """
import json, sys
import torch
import torch.distributed as dist
import howsure as hs

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
raw, y, keep = torch.load(out + ".pt")
dual, seen = hs.schedules.DualAscent(0.3, rate=0.1, memory=2), []
for k in range(len(y)):
    rows = slice(None, 5) if rank == 0 else slice(5, None)
    dual.step(hs.NormalInverseGamma.from_raw(raw[k, rows]), y[k, rows], mask=keep[k, rows])
    seen.append(dual.weight.item())
with open(f"{out}.{rank}", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
"""


def test_ranks_step_together_by_the_violation_of_the_whole_batch(tmp_path):
    """Two processes with parts of unequal size, one of them without any target now and then."""
    raw, y, keep = torch.randn(6, 16, 4), 3 * torch.randn(6, 16), torch.rand(6, 16) < 0.7
    keep[1, :5], keep[2, 5:], keep[3] = False, False, False
    alone, expected = hs.schedules.DualAscent(0.3, rate=0.1, memory=2), []
    for k in range(6):
        alone.step(hs.NormalInverseGamma.from_raw(raw[k]), y[k], mask=keep[k])
        expected.append(alone.weight.item())
    torch.save((raw, y, keep), tmp_path / "out.pt")
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), str(tmp_path / "out")], stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    first, second = (json.loads((tmp_path / f"out.{rank}").read_text()) for rank in (0, 1))
    assert first == second
    assert first == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) > 4


def test_masked_targets_may_be_anything():
    """Padding, as of sequences, may be NaN or infinite; it sends no gradient."""
    y, mask = torch.tensor([1.0, torch.nan]), torch.tensor([True, False])
    for bad in (torch.nan, torch.inf, 1e30):
        raw = torch.tensor([[0.1, 0.2, 0.3, 0.4], [bad] * 4], requires_grad=True)
        hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y, 0.1, mask=mask).backward()
        alone = raw.detach()[:1].requires_grad_()
        hs.evidential_loss(hs.NormalInverseGamma.from_raw(alone), y[:1], 0.1).backward()
        assert torch.allclose(raw.grad[0], alone.grad[0])
        loc = torch.tensor([0.0, bad], requires_grad=True)
        hs.normal_loss(hs.Normal(loc, torch.tensor([1.0, 1e-30]), validate_args=False), y, mask=mask).backward()
        assert loc.grad[0].isfinite()
        assert loc.grad[1] == 0
