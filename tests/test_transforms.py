"""torch.compile, torch.func and torch.export through head, distribution and loss."""

import io

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.formulas.penalties import PENALTIES


@pytest.fixture
def setting():
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), hs.NIGHead(16))
    return net, torch.randn(32, 3), torch.randn(32)


def check_compiled(loss, net, x, y, backend):
    eager = loss(x, y)
    compiled = torch.compile(loss, fullgraph=True, backend=backend)(x, y)
    assert torch.allclose(compiled, eager, rtol=1e-5)
    for a, b in zip(
        torch.autograd.grad(eager, net.parameters()), torch.autograd.grad(compiled, net.parameters()), strict=True
    ):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_head_and_loss_compile_to_one_graph(setting):
    net, x, y = setting
    check_compiled(lambda x, y: hs.evidential_loss(net(x), y, weight=0.1), net, x, y, "inductor")


@pytest.mark.parametrize("penalty", PENALTIES)
def test_every_penalty_traces_to_one_graph(setting, penalty):
    """With the tracer and autograd of torch.compile but no code generation, which takes 20 seconds each on a CPU."""
    net, x, y = setting

    def loss(x, y):
        return hs.evidential_loss(net(x), y, 0.1, penalty, mask=y > -1, sample_weight=y.abs())

    check_compiled(loss, net, x, y, "aot_eager")


def test_normal_head_and_mixture_trace_to_one_graph():
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), hs.NormalHead(16))
    check_compiled(lambda x, y: hs.normal_loss(net(x), y), net, torch.randn(8, 3), torch.randn(8), "aot_eager")
    members = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), hs.NIGHead(16, targets=5))
    check_compiled(
        lambda x, y: -hs.Mixture(members(x).predictive(), dim=-1).log_prob(y).mean(),
        members,
        torch.randn(8, 3),
        torch.randn(8),
        "aot_eager",
    )


def test_crps_traces_to_one_graph(setting):
    net, x, y = setting
    check_compiled(lambda x, y: net(x).predictive().crps(y).mean(), net, x, y, "aot_eager")


@pytest.mark.parametrize("penalty", PENALTIES)
def test_gradients_of_single_rows(setting, penalty):
    net, x, y = setting
    parameters = dict(net.named_parameters())

    def one(p, x, y):
        return hs.evidential_loss(torch.func.functional_call(net, p, (x,)), y, 0.1, penalty)

    rows = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(parameters, x, y)
    whole = torch.autograd.grad(hs.evidential_loss(net(x), y, 0.1, penalty), net.parameters())
    for name, gradient in zip(parameters, whole, strict=True):
        assert torch.allclose(rows[name].mean(0), gradient, rtol=1e-4, atol=1e-6)


def test_vmap_returns_distributions(setting):
    net, x, y = setting
    answer = torch.func.vmap(net)(x)
    assert isinstance(answer, hs.NormalInverseGamma)
    assert answer.batch_shape == (32,)
    assert torch.allclose(answer.beta, net(x).beta)
    mixture = torch.func.vmap(lambda raw: hs.Mixture(hs.NormalInverseGamma.from_raw(raw).predictive()))(
        torch.randn(7, 3, 2, 4)
    )
    assert mixture.batch_shape == (7, 2)
    assert mixture.log_prob(torch.zeros(7, 2)).shape == (7, 2)
    tails = torch.func.vmap(lambda x, y: net(x).predictive().cdf(y))(x, y)
    assert torch.allclose(tails, net(x).predictive().cdf(y))


def test_hessians_of_the_loss():
    raw = torch.randn(4, dtype=torch.float64)
    y = torch.tensor(0.3, dtype=torch.float64)

    def loss(raw):
        return hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y)

    hessian = torch.func.hessian(loss)(raw)
    assert torch.allclose(hessian, hessian.T)
    assert torch.autograd.gradgradcheck(loss, raw.requires_grad_())


def test_exported_program_returns_a_distribution(setting):
    net, x, _ = setting
    program = torch.export.export(net, (x,))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for exported in (program, torch.export.load(buffer)):
        answer = exported.module()(x)
        assert isinstance(answer, hs.NormalInverseGamma)
        assert torch.allclose(answer.beta, net(x).beta)
