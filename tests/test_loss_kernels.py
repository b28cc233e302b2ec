"""Loss and gradient in one pass from raw outputs: by tensor operations, and by Triton (here in its interpreter)."""

import copy
import dataclasses
import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path
from unittest import mock

import mpmath as mp
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

import howsure as hs
import oracles
from howsure.formulas import nig, penalties
from howsure.kernels import polynomials
from howsure.kernels.evidential_loss import evidential_loss_from_raw
from howsure.likelihoods import Evidential, Network

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # NumPy's, of lanes that nobody reads

triton = pytest.param(
    "triton", marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
)
kernels = pytest.mark.parametrize("kernel", ["tensors", triton])
device = "cuda" if torch.cuda.is_available() else "cpu"


def using(kernel):
    """Choose between the two implementations. Triton's is interpreted on a CPU."""
    return mock.patch("howsure.kernels.evidential_loss.uses_triton", return_value=kernel == "triton")


def quick_loss(raw, y, weight, *, kernel="tensors", reduction="none", **options):
    with using(kernel):
        return evidential_loss_from_raw(raw, y, weight, reduction=reduction, **options)


def loss_by(kernel, answer, y, weight=0.01, **options):
    """The loss of a distribution with raw outputs, by a kernel or by the formulas."""
    assert answer.raw is not None
    if kernel == "formulas":
        answer.raw = None
    with using(kernel):
        return hs.evidential_loss(answer, y, weight, **options)


# Polynomials ----------------------------------------------------------------------------------------------------------


def horner(coefficients, x):
    total = torch.zeros_like(x)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def test_polynomials_are_right_to_float32():
    x = torch.linspace(0, 1, 501)[1:]
    truth = torch.tensor([float(mp.log1p(oracles.exact(v)) / oracles.exact(v)) for v in x], dtype=torch.float64)
    assert ((horner(polynomials.LOG1P, x) - truth).abs() / truth).max() < 4e-7
    u = torch.cat([torch.linspace(0, 16 / 9, 301)[1:], torch.logspace(-16, -3, 60)])
    z = u.double().rsqrt()
    for k in range(len(u)):
        alpha = oracles.exact(z[k]) + mp.mpf(1) / 4
        rho = mp.log(oracles.exact(z[k])) / 2 + oracles.exact(u[k] * horner(polynomials.RHO, u[k]))
        assert abs(rho - oracles.rho(alpha)) < 3e-7
        slope = (mp.mpf(1) / 2 + oracles.exact(u[k] * horner(polynomials.RHO_PRIME, u[k]))) / oracles.exact(z[k])
        assert abs(slope / oracles.rho_prime(alpha) - 1) < 8e-7


# Exactness ------------------------------------------------------------------------------------------------------------


def points(dtype):
    """Raw outputs and targets from everyday ones to the ends of float32."""
    g = torch.Generator().manual_seed(0)
    shape = torch.cat([torch.empty(60).uniform_(-14, 20, generator=g), torch.tensor([1e2, 1e4, 1e6, 1e8])])
    raw = torch.empty(64, 4).uniform_(-6, 6, generator=g)
    raw[:, 2] = shape
    return raw.to(device, dtype).requires_grad_(), (3 * torch.randn(64, generator=g)).to(device, dtype)


@pytest.mark.parametrize(
    ("kernel", "dtype", "bound"),
    [
        ("tensors", torch.float32, 2e-6),
        ("tensors", torch.float64, 1e-13),
        pytest.param("triton", torch.float32, 2e-6, marks=triton.marks),
    ],
)
def test_loss_and_gradients_are_exact(kernel, dtype, bound):
    """Against mpmath, relative to the size of the terms that they add up."""
    raw, y = points(dtype)
    weight = 0.25
    loss = quick_loss(raw, y, weight, kernel=kernel)
    (grad,) = torch.autograd.grad(loss.sum(), raw)
    parameters = [p.detach() for p in nig.from_raw(raw.double())]
    slopes = torch.sigmoid(raw.double().detach())
    for k in range(64):
        point = [oracles.exact(t[k]) for t in (y, *parameters)]
        size = abs(float(point[0] - point[1]))
        evidence = float(2 * point[2] + 1 + point[3])
        terms = [*oracles.nll_terms(*point), weight * size * evidence]
        assert abs(loss[k].item() - float(sum(terms))) <= bound * float(sum(abs(t) for t in terms))
        sign = -1.0 if point[0] > point[1] else 1.0
        penalty = [weight * sign * evidence, 2 * weight * size, weight * size, 0.0]
        for j, (by_parameter, added) in enumerate(zip(oracles.nll_gradient_terms(*point), penalty, strict=True)):
            chain = float(slopes[k, j]) if j else 1.0
            whole = chain * (float(sum(by_parameter)) + added)
            scale = chain * (float(sum(abs(t) for t in by_parameter)) + abs(added))
            assert abs(float(grad[k, j]) - whole) <= 4 * bound * scale, (k, j)


@kernels
@pytest.mark.parametrize("penalty", ["error", "standard_score"])
def test_ends_of_float32(kernel, penalty):
    """α−1 from 1e-6 to 1e8, ν and β at their floors and huge, errors from 0 to 1e6: finite, and as in float64."""
    rows = torch.cartesian_prod(*[torch.tensor([-1e4, -15.0, 0.0, 1e3, 1e8])] * 3, torch.tensor([0.0, 1e-6, 1.0, 1e6]))
    raw = torch.cat([torch.zeros(len(rows), 1), rows[:, :3]], 1).to(device).requires_grad_()
    y = rows[:, 3].to(device)
    loss = quick_loss(raw, y, 0.1, penalty=penalty, kernel=kernel)
    (grad,) = torch.autograd.grad(loss.sum(), raw)
    exact = raw.detach().double().requires_grad_()
    truth = quick_loss(exact, y.double(), 0.1, penalty=penalty, kernel="tensors")
    assert loss.isfinite().all()
    assert grad.isfinite().all()
    assert ((loss - truth).abs() <= 1e-5 * (1 + truth.abs())).all()


@pytest.mark.extras
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compile_for_a_gpu():
    script = Path(__file__).parent / "compile_kernels.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Every way of calling it ----------------------------------------------------------------------------------------------

LAYOUTS = {
    "last": ((700, 4), -1, None),
    "more dimensions": ((3, 5, 4), -1, None),
    "maps": ((2, 4, 7, 9), 1, None),
    "channels last": ((2, 4, 7, 9), 1, torch.channels_last),
    "maps of several targets": ((2, 3, 4, 9, 40), 2, None),
    "maps with the four moved last": ((2, 7, 9, 4), -1, "planar"),
    "first": ((4, 5), 0, None),
    "one": ((4,), -1, None),
    "none": ((0, 4), -1, None),
    "no maps": ((0, 4, 3, 3), 1, None),
    "maps without pixels": ((2, 4, 0, 3), 1, None),
}


@kernels
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("penalty", ["error", "standard_score"])
def test_it_is_the_loss_of_the_formulas(kernel, layout, reduction, penalty):
    shape, dim, order = LAYOUTS[layout]
    raw = 3 * torch.randn(shape, device=device)
    if order == "planar":
        raw = raw.movedim(-1, 1).contiguous().movedim(1, -1)
    elif order is not None:
        raw = raw.to(memory_format=order)
    raw.requires_grad_()
    size = [n for k, n in enumerate(shape) if k != dim % len(shape)]
    mask, weights = torch.rand(size, device=device) > 0.3, torch.rand(size, device=device)
    y = torch.where(mask, torch.randn(size, device=device), torch.nan)
    upstream = torch.randn(size if reduction == "none" else (), device=device)
    both = {"mask": mask, "sample_weight": weights}
    one = torch.rand([1] * len(size), device=device)
    for options, weight in (({"mask": mask}, 0.3), (both, weights), ({"sample_weight": weights}, one), ({}, 0.0)):
        targets = y if "mask" in options else y.nan_to_num(0.5)
        answer = hs.NormalInverseGamma.from_raw(raw, dim)
        asked = {"penalty": penalty, "reduction": reduction, **options}
        loss = loss_by(kernel, answer, targets, weight, **asked)
        (grad,) = torch.autograd.grad(loss, raw, upstream)
        exact = raw.detach().double().requires_grad_()
        parameters = hs.NormalInverseGamma.from_raw(exact, dim)
        truth = loss_by("formulas", parameters, targets.double(), weight, **asked)
        (slope,) = torch.autograd.grad(truth, exact, upstream.double())
        assert loss.shape == truth.shape
        assert torch.allclose(loss.double(), truth, rtol=1e-5, atol=1e-5)
        assert torch.allclose(grad.double(), slope, rtol=1e-4, atol=1e-5)


@kernels
def test_more_targets_than_one_part_and_odd_numbers(kernel, monkeypatch):
    monkeypatch.setattr("howsure.kernels.evidential_loss.PART", 100)
    for shape in ((4097, 4), (7, 61, 4), (1, 700, 4), (2, 3, 150, 4)):
        raw, y = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape[:-1], device=device)
        loss = quick_loss(raw, y, 0.1, reduction="mean", kernel=kernel)
        (grad,) = torch.autograd.grad(loss, raw)
        truth = loss_by("formulas", hs.NormalInverseGamma.from_raw(raw), y, 0.1)
        assert torch.allclose(loss, truth, rtol=1e-5)
        assert torch.allclose(grad, torch.autograd.grad(truth, raw)[0], rtol=1e-4, atol=1e-8)


@kernels
def test_tensors_that_do_not_lie_in_order(kernel):
    raw = torch.randn(4, 30, device=device).t().requires_grad_()
    y, mask = torch.randn(60, device=device)[::2], (torch.rand(60, device=device) > 0.5)[::2]
    weights = torch.rand(1, device=device).expand(30)
    asked = {"mask": mask, "sample_weight": weights}
    loss = loss_by(kernel, hs.NormalInverseGamma.from_raw(raw), y, 0.1, **asked)
    truth = loss_by("formulas", hs.NormalInverseGamma.from_raw(raw), y, 0.1, **asked)
    assert torch.allclose(loss, truth)
    grads = [torch.autograd.grad(each, raw)[0] for each in (loss, truth)]
    assert torch.allclose(*grads, atol=1e-6)


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(kernel, dtype):
    raw, y = torch.randn(50, 4, device=device).to(dtype).requires_grad_(), torch.randn(50, device=device)
    loss = quick_loss(raw, y, 0.1, reduction="mean", kernel=kernel)
    assert loss.dtype == torch.float32
    (grad,) = torch.autograd.grad(loss, raw)
    assert grad.dtype == dtype
    whole = raw.detach().float().requires_grad_()
    truth = quick_loss(whole, y, 0.1, reduction="mean", kernel="tensors")
    assert torch.allclose(loss, truth, rtol=1e-6)
    (slope,) = torch.autograd.grad(truth, whole)
    assert torch.allclose(grad.float(), slope, rtol=1e-2, atol=1e-4)


@kernels
def test_factor_keeps_gradients_inside_float16(kernel):
    """The gradients of a mean over many targets are too small for float16, unless a loss scale comes first."""
    raw, y = torch.randn(300, 4, device=device).half(), torch.randn(300, device=device)
    grads = []
    for way, dtype in ((kernel, torch.float16), ("tensors", torch.float64)):
        own = raw.detach().clone().to(dtype).requires_grad_()
        targets = y.double() if dtype == torch.float64 else y
        loss = quick_loss(own, targets, 0.1, reduction="mean", kernel=way)
        (1e-5 * loss * 65536.0 * 1e4).backward()
        grads.append(own.grad.double())
    assert torch.allclose(*grads, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("kernel", ["formulas", "tensors", triton])
def test_upstream_gradient_of_masked_targets_is_ignored(kernel):
    raw, y = torch.randn(3, 4, 4, device=device, requires_grad=True), torch.randn(3, 4, device=device)
    y[1] = torch.nan
    mask = ~y.isnan()
    loss = loss_by(kernel, hs.NormalInverseGamma.from_raw(raw), y, mask=mask, reduction="none")
    count = mask.sum(1)
    torch.where(count > 0, loss.sum(1) / count, 0.0).mean().backward()  # 0/0 in the row that is masked as a whole
    assert raw.grad.isfinite().all()
    assert (raw.grad[1] == 0).all()


@pytest.mark.parametrize("options", [{"penalty": "nsu"}, {}])
def test_masked_raw_outputs_may_be_nan(options):
    raw, mask = torch.zeros(2, 4), torch.tensor([True, False])
    raw[1] = torch.nan
    raw.requires_grad_()
    loss = hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), torch.zeros(2), mask=mask, **options)
    (grad,) = torch.autograd.grad(loss, raw, create_graph=True)
    assert grad[0].isfinite().all()
    assert (grad[1] == 0).all()


@kernels
def test_errors_beyond_all_measure_have_finite_gradients(kernel):
    raw = torch.tensor([[1e20, 0.0, 0.0, 0.0]], device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(quick_loss(raw, torch.ones(1, device=device), 0.01, kernel=kernel).sum(), raw)
    exact = raw.detach().double().requires_grad_()
    truth = quick_loss(exact, torch.ones(1, dtype=torch.float64, device=device), 0.01, kernel="tensors").sum()
    assert torch.allclose(grad.double(), torch.autograd.grad(truth, exact)[0], rtol=1e-3)


@kernels
def test_nan_is_not_hidden(kernel):
    for column in range(4):
        raw = torch.zeros(2, 4, device=device)
        raw[1, column] = torch.nan
        loss = quick_loss(raw, torch.ones(2, device=device), 0.0, kernel=kernel)
        assert loss[0].isfinite()
        assert loss[1].isnan()


@kernels
def test_masked_entries_may_be_anything(kernel):
    for bad in (torch.nan, torch.inf, -torch.inf, 1e30):
        raw = torch.tensor([[0.1, 0.2, 0.3, 0.4], [bad] * 4], device=device, requires_grad=True)
        y, mask = torch.tensor([1.0, bad], device=device), torch.tensor([True, False], device=device)
        loss = quick_loss(raw, y, 0.1, mask=mask, reduction="mean", kernel=kernel)
        (grad,) = torch.autograd.grad(loss, raw)
        alone = raw.detach()[:1].requires_grad_()
        truth = quick_loss(alone, y[:1], 0.1, reduction="mean", kernel="tensors")
        assert torch.allclose(loss, truth)
        assert torch.allclose(grad[0], torch.autograd.grad(truth, alone)[0][0])
        assert (grad[1] == 0).all()


# Autograd -------------------------------------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_backward_pass_computes_the_gradient_again(kernel, reduction):
    raw, y = torch.randn(9, 4, device=device, requires_grad=True), torch.randn(9, device=device)
    loss = quick_loss(raw, y, 0.1, reduction=reduction, kernel=kernel)
    upstream = torch.rand_like(loss)
    first = torch.autograd.grad(loss, raw, upstream, retain_graph=True)[0].clone()
    second = torch.autograd.grad(loss, raw, 3 * upstream)[0]
    assert torch.allclose(3 * first, second)


@kernels
def test_gradient_can_be_differentiated(kernel):
    raw, y = torch.randn(6, 4, device=device, requires_grad=True), torch.randn(6, device=device)
    mask, weights = torch.rand(6, device=device) > 0.2, torch.rand(6, device=device)
    seconds = []
    for way in (kernel, "formulas"):
        answer = hs.NormalInverseGamma.from_raw(raw)
        loss = loss_by(way, answer, y, 0.1, mask=mask, sample_weight=weights)
        (grad,) = torch.autograd.grad(loss, raw, create_graph=True)
        seconds.append(torch.autograd.grad(grad.square().sum(), raw)[0])
    assert torch.allclose(*seconds, rtol=1e-4, atol=1e-6)


@kernels
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_many_gradients_at_once(kernel, reduction):
    raw, y = torch.randn(5, 4, device=device, requires_grad=True), torch.randn(5, device=device)
    many = torch.randn(3, 5, device=device) if reduction == "none" else torch.randn(3, device=device)
    loss = quick_loss(raw, y, 0.1, reduction=reduction, kernel=kernel)
    asked = {"is_grads_batched": True, "retain_graph": True}
    first = torch.autograd.grad(loss, raw, many, **asked)[0]
    again = torch.autograd.grad(loss, raw, many, **asked)[0]  # a second backward pass computes the gradient again
    one_by_one = torch.stack([torch.autograd.grad(loss, raw, each, retain_graph=True)[0].clone() for each in many])
    assert torch.allclose(first, one_by_one, rtol=1e-5, atol=1e-7)
    assert torch.allclose(again, one_by_one, rtol=1e-5, atol=1e-7)


def test_forward_mode_goes_by_the_formulas():
    raw, direction, y = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4), torch.randn(5)
    (slope,) = torch.autograd.grad(hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y), raw)
    with forward_ad.dual_level():
        answer = hs.NormalInverseGamma.from_raw(forward_ad.make_dual(raw, direction))
        along = forward_ad.unpack_dual(hs.evidential_loss(answer, y)).tangent
    assert torch.allclose(along, (slope * direction).sum(), atol=1e-6)


def test_gradients_by_finite_differences():
    raw, y = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.randn(6, dtype=torch.float64)
    for penalty in ("error", "standard_score"):
        assert torch.autograd.gradcheck(lambda r, p=penalty: quick_loss(r, y, 0.1, penalty=p), raw)
        assert torch.autograd.gradgradcheck(lambda r, p=penalty: quick_loss(r, y, 0.1, penalty=p), raw)
    assert not quick_loss(raw.detach(), y, 0.1).requires_grad


# Choice ---------------------------------------------------------------------------------------------------------------


def takes_fast_path(answer, y, *arguments, **options):
    """Whether the loss is computed from the raw outputs."""
    with mock.patch("howsure.losses.evidential_loss_from_raw", wraps=evidential_loss_from_raw) as called:
        hs.evidential_loss(answer, y, *arguments, **options)
    return called.called


def test_rule_of_the_fast_path():
    raw, y = torch.randn(3, 4, requires_grad=True), torch.randn(3)

    def taken(answer=None, y=y, **options):
        return takes_fast_path(answer or hs.NormalInverseGamma.from_raw(raw), y, **options)

    ones, mask = torch.ones(3), torch.tensor([True, True, False])
    for options in ({}, {"penalty": "standard_score"}, {"mask": mask}, {"sample_weight": ones}, {"reduction": "none"}):
        assert taken(**options)
    for options in (
        {"censored": torch.zeros(3, dtype=torch.int64)},
        {"penalty": "kl"},
        {"penalty": penalties.error},
        {"y": y.clone().requires_grad_()},
        {"weight": torch.tensor(0.1, requires_grad=True)},
        {"answer": hs.NormalInverseGamma(y, 1.0, 2.0, 1.0)},
    ):
        assert not taken(**options)


def test_hooks_and_gradients_of_parameters_are_served():
    """FSDP hangs hooks on the parameters of a distribution, and gradients must then pass through them."""
    raw, y, seen = torch.randn(3, 4, requires_grad=True), torch.randn(3), []
    answer = hs.NormalInverseGamma.from_raw(raw)
    answer.nu.register_hook(seen.append)
    hs.evidential_loss(answer, y).backward()
    assert len(seen) == 1
    answer = hs.NormalInverseGamma.from_raw(raw)
    answer.beta.retain_grad()
    hs.evidential_loss(answer, y).backward()
    assert answer.beta.grad.abs().sum() > 0
    answer = hs.NormalInverseGamma.from_raw(raw)
    answer.raw = None
    assert not takes_fast_path(answer, y)


def test_from_raw_with_bad_arguments_raises():
    raw, y = torch.randn(3, 4), torch.randn(3)
    for arguments in ((raw, torch.randn(4)), (raw[:, :3], y), (raw, y, 0.1, "kl"), (raw, y.unsqueeze(1))):
        with pytest.raises(hs.InputError):
            hs.kernels.evidential_loss_from_raw(*arguments)
    with pytest.raises(hs.InputError, match="median"):
        hs.kernels.evidential_loss_from_raw(raw, y, reduction="median")


def test_penalties_without_kernel_use_the_formulas():
    raw, y = torch.randn(3, 4, requires_grad=True), torch.randn(3)
    for options in ({"penalty": "kl"}, {"penalty": lambda y, *p: penalties.error(y, *p)}):
        loss = hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y, **options)
        parameters = hs.NormalInverseGamma.from_raw(raw.detach())
        assert torch.equal(loss.detach(), hs.evidential_loss(parameters, y, **options))


def test_transforms_of_other_arguments_use_the_formulas():
    net = nn.Sequential(nn.Linear(3, 8), hs.NIGHead(8))
    x, y, weights = torch.randn(6, 3), torch.randn(6), torch.tensor([0.1, 0.2])
    one_by_one = torch.stack([hs.evidential_loss(net(x), y, w) for w in weights])
    answer = net(x)
    assert torch.allclose(torch.vmap(lambda w: hs.evidential_loss(answer, y, w))(weights), one_by_one)
    answer = net(x)
    _, along = torch.func.jvp(lambda t: hs.evidential_loss(answer, t), (y,), (torch.ones_like(y),))
    answer = net(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, torch.ones_like(y))
        assert torch.allclose(forward_ad.unpack_dual(hs.evidential_loss(answer, dual)).tangent, along)
    assert along != 0


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of the compiler
def test_compiled_loss_takes_a_distribution_from_outside():
    net, x, y = nn.Sequential(nn.Linear(3, 8), hs.NIGHead(8)), torch.randn(6, 3), torch.randn(6)
    compiled = torch.compile(lambda answer, y: hs.evidential_loss(answer, y), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(net(x), y), hs.evidential_loss(net(x), y))


def test_subclass_may_have_other_parameters():
    class Wide(hs.NormalInverseGamma):
        @property
        def parameters(self):
            found = super().parameters
            return found._replace(beta=found.beta + 5)

    raw, y = torch.randn(3, 4, requires_grad=True), torch.randn(3)
    loss = hs.evidential_loss(Wide.from_raw(raw), y, 0.0)
    assert torch.equal(loss, nig.nll(y, *Wide.from_raw(raw).parameters).mean())
    assert not torch.allclose(loss, hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y, 0.0))


def test_dtype_of_the_loss_does_not_depend_on_the_way():
    raw, y, weight = torch.randn(3, 4, requires_grad=True), torch.randn(3), torch.rand(3, dtype=torch.float64)
    for kernel in ("tensors", "formulas"):
        assert loss_by(kernel, hs.NormalInverseGamma.from_raw(raw), y, weight).dtype == torch.float32


def test_kernel_takes_the_place_of_the_loss_of_tables():
    raw, y = torch.randn(3, 5, 1, 4), torch.randn(3, 5, 1)
    for penalty in ("error", "standard_score"):
        method = Evidential([0.0, 0.1, 1.0], penalty)
        networks = method.build([0, 1, 2], 2, 4, Network((4,)))
        quick, plain = method.loss_of_raw(raw, y, networks), method.loss(method.answer(raw), y, networks)
        assert torch.allclose(quick, plain, rtol=1e-5, atol=1e-6)
    other = Evidential(0.1, "nsu")
    assert torch.equal(other.loss_of_raw(raw, y), other.loss(other.answer(raw), y))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@kernels
def test_training_with_and_without_is_the_same(kernel, precision):
    x = torch.rand(64, 3, device=device)
    y = x.sum(1).sin() + 0.1 * torch.randn(64, device=device)
    curves = []
    for way in (kernel, "formulas"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), hs.NIGHead(16)).to(device)
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        losses = []
        for _ in range(40):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
                answer = net(x)
            loss = loss_by(way, answer, y, 0.01)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(torch.tensor(losses))
    assert curves[0][-1] < curves[0][0] - 0.3  # it has learned
    assert torch.allclose(*curves, rtol=1e-3, atol=1e-3)


# Distributions with raw outputs ---------------------------------------------------------------------------------------


def test_raw_is_kept_where_gradients_are_recorded():
    raw = torch.randn(2, 4, 5, requires_grad=True)
    answer = hs.NormalInverseGamma.from_raw(raw, dim=1)
    assert answer.raw.shape == (2, 5, 4)
    assert answer.raw.data_ptr() == raw.data_ptr()
    for mine, formula in zip(answer.parameters, nig.from_raw(raw, 1), strict=True):
        assert torch.equal(mine, formula)
    assert hs.NormalInverseGamma.from_raw(raw.detach(), dim=1).raw is None
    with torch.no_grad():
        assert hs.NormalInverseGamma.from_raw(raw, dim=1).raw is None
    assert hs.NormalInverseGamma(torch.zeros(2), 1.0, 2.0, 1.0).raw is None


def test_raw_is_dropped_by_whatever_changes_parameters():
    raw = torch.randn(3, 4, requires_grad=True)

    def answer():
        return hs.NormalInverseGamma.from_raw(raw)

    leaves, spec = tree_flatten(answer())
    for other in (
        answer().affine(1.0, 2.0),
        answer().update(torch.zeros(3)),
        answer().to(torch.float64),
        answer().double(),
        answer().detach(),
        answer().expand((2, 3)),
        tree_unflatten(leaves, spec),
        dataclasses.replace(answer()),
        copy.copy(answer()),
        pickle.loads(pickle.dumps(answer())),
        hs.NormalInverseGamma.from_dict(answer().to_dict()),
    ):
        assert other.raw is None


def test_raw_outputs_that_change_are_noticed():
    raw, y = torch.randn(3, 4, requires_grad=True) * 1, torch.zeros(3)
    answer = hs.NormalInverseGamma.from_raw(raw)
    expected = loss_by("formulas", hs.NormalInverseGamma.from_raw(raw.clone()), y)
    raw.mul_(2)
    assert torch.equal(hs.evidential_loss(answer, y), expected)


def test_parameter_that_is_set_counts():
    raw = torch.randn(3, 4, requires_grad=True)
    answer = hs.NormalInverseGamma.from_raw(raw)
    answer.gamma = torch.zeros(3)
    assert answer.raw is None
    y = torch.ones(3)
    _, nu, excess, beta = nig.from_raw(raw)
    changed = hs.NormalInverseGamma(torch.zeros(3), nu, beta=beta, alpha_minus_one=excess)
    assert torch.equal(hs.evidential_loss(answer, y), hs.evidential_loss(changed, y))
