"""Heads under LoRA, torch.compile and torch.export; `make test-extras` runs this file."""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim

import howsure as hs

pytestmark = pytest.mark.extras

CONVS = [hs.nn.NIGConv1d, hs.nn.NIGConv2d, hs.nn.NIGConv3d, hs.nn.NormalConv2d]


def maps_for(kind, size=6):
    return torch.randn(2, 8, *[size] * (-1 - kind.dim))


def adapted(model, *, autocast_adapter_dtype=True, **config):
    """The model with LoRA around some layers, and corrections that are not zero."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, init_lora_weights=False, **config)
    return peft.get_peft_model(model, config, autocast_adapter_dtype=autocast_adapter_dtype)


def exact_raw(layer, x):
    """What a linear layer with LoRA should say, in float64."""
    a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
    weight = layer.base_layer.weight.double() + layer.scaling["default"] * b @ a
    return x.double() @ weight.T + layer.base_layer.bias.double()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("dtype", "adapters", "error"),
    [
        (torch.float32, torch.float32, 2e-6),
        (torch.bfloat16, torch.float32, 2e-6),  # peft's own choice: adapters in float32
        (torch.float16, torch.float32, 2e-6),
        (torch.bfloat16, torch.bfloat16, 0.05),  # the correction is rounded, the rest is not
    ],
)
def test_lora_computes_in_the_precision_of_its_adapters(dtype, adapters, error, autocast):
    net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), hs.NIGHead(64, targets=2)).to(dtype)
    kept = adapters == torch.float32
    net = adapted(net, target_modules="all-linear", autocast_adapter_dtype=kept).base_model.model
    assert net[2].linear.lora_A["default"].weight.dtype == adapters
    x = torch.randn(50, 64).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        raw = net[2].raw(x)
    assert raw.dtype == torch.float32
    assert torch.allclose(raw.flatten(1).double(), exact_raw(net[2].linear, x), rtol=0, atol=error)


def test_lora_trains_the_adapters_alone_and_merges():
    net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), hs.NIGHead(32))
    before, x, y = copy.deepcopy(net), torch.randn(64, 8), torch.randn(64)
    model = adapted(net, target_modules=["0", "linear"])
    hs.evidential_loss(model(x), y).backward()
    learning = {name for name, p in model.named_parameters() if p.grad is not None}
    assert len(learning) == 4
    assert all("lora_" in name for name in learning)
    answer = model(x)
    assert not torch.allclose(answer.gamma, before(x).gamma, atol=1e-3)
    merged = model.merge_and_unload()
    assert merged.state_dict().keys() == before.state_dict().keys()
    assert torch.allclose(merged(x).gamma, answer.gamma, atol=1e-5)


def test_head_may_be_trained_with_lora():
    net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), hs.NIGHead(32))
    model = adapted(net, target_modules=["0"], modules_to_save=["2"])
    hs.evidential_loss(model(torch.randn(64, 8)), torch.randn(64)).backward()
    learning = [name for name, p in model.named_parameters() if p.grad is not None]
    assert sum("linear" in name for name in learning) == 2
    assert len(learning) == 4


def test_layer_inside_lora_is_no_layer_to_go_on_from():
    model = adapted(nn.Sequential(nn.Linear(8, 1)), target_modules=["0"])
    with pytest.raises(hs.InputTypeError):
        hs.NIGHead.from_linear(model.base_model.model[0])
    hs.NIGHead.from_linear(model.merge_and_unload()[0])


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("kind", CONVS)
def test_lora_of_convolutions(kind, kernel_size):
    if kind is hs.nn.NIGConv3d and kernel_size == 1:
        kernel_size = (3, 1, 1)  # peft 0.21 cannot merge kernels that begin with 1×1, of nn.Conv3d either
    net = nn.Sequential(kind(8, kernel_size=kernel_size))
    model, x = adapted(net, target_modules=["conv"]), maps_for(kind)
    expected = model(x).mean
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(model(x).mean, expected, atol=1e-5)
    merged = model.merge_and_unload()
    assert torch.allclose(merged(x).mean, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", CONVS)
def test_convolutions_compile_to_one_graph(kind, autocast):
    head, x = kind(8, 2, 3, stride=2, padding=1), maps_for(kind)

    def total(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return head(x).mean.sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    for a, b in zip(*(torch.autograd.grad(f(x), head.parameters()) for f in (total, compiled)), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_hooked_head_compiles_to_one_graph():
    head, x = hs.NIGHead(8), torch.randn(5, 8)
    head.linear.register_forward_hook(lambda _, given, out: 2 * out)
    compiled = torch.compile(lambda x: head(x).gamma, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), 2 * nn.functional.linear(x, head.linear.weight, head.linear.bias)[:, 0])


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("settings", [{}, {"kernel_size": 3}, {"kernel_size": 3, "stride": 2, "padding": 1}], ids=str)
def test_convolutions_are_exported_for_maps_of_any_size(kind, settings):
    head, x = kind(8, **settings), maps_for(kind)
    sizes = {0: Dim.DYNAMIC} | dict.fromkeys(range(2, x.ndim), Dim.DYNAMIC)
    program = torch.export.export(head, (x,), dynamic_shapes=(sizes,)).module()
    for other in (x, torch.cat([maps_for(kind, 9), maps_for(kind, 9)])):
        assert torch.allclose(program(other).mean, head(other).mean, atol=1e-5)


def test_head_made_from_an_old_layer_is_exported():
    old, x = nn.Linear(8, 1), torch.randn(5, 8)
    head = hs.NIGHead.from_linear(old, squeeze=True)
    program = torch.export.export(head, (x,), dynamic_shapes=({0: Dim.DYNAMIC},)).module()
    more = torch.randn(9, 8)
    assert torch.allclose(program(more).prediction, old(more)[:, 0], atol=1e-6)
