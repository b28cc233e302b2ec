import numpy as np
import pytest
import torch

import evidentia as ev
from evidentia.nn import MLP, FeatureDensity


@pytest.mark.parametrize(
    ("head", "features", "raw", "batch"),
    [
        (ev.NIGHead(8), (5, 8), (5, 4), (5,)),
        (ev.NIGHead(8, targets=1), (5, 8), (5, 1, 4), (5, 1)),
        (ev.NIGHead(8, targets=3), (2, 5, 8), (2, 5, 3, 4), (2, 5, 3)),
        (ev.NIGHead(8), (8,), (4,), ()),
        (ev.GaussianHead(8), (5, 8), (5, 2), (5,)),
        (ev.GaussianHead(8, targets=3), (5, 8), (5, 3, 2), (5, 3)),
        (ev.NIGConv2d(8), (2, 8, 6, 7), (2, 4, 6, 7), (2, 6, 7)),
        (ev.NIGConv2d(8, targets=3, kernel_size=3), (2, 8, 6, 7), (2, 3, 4, 6, 7), (2, 3, 6, 7)),
        (ev.NIGHead(8), (0, 8), (0, 4), (0,)),
    ],
)
def test_shapes(head, features, raw, batch):
    x = torch.randn(features)
    assert head.raw(x).shape == raw
    assert head(x).batch_shape == batch


@pytest.mark.parametrize("targets", [None, 3])
def test_each_target_has_its_own_four_outputs(targets):
    head = ev.NIGHead(8, targets)
    x = torch.randn(5, 8)
    answer, raw = head(x), head.raw(x)
    assert torch.equal(answer.gamma, raw[..., 0])
    assert torch.allclose(answer.alpha_minus_one, torch.nn.functional.softplus(raw[..., 2]) + 1e-6)
    conv = ev.NIGConv2d(8, targets)
    maps = torch.randn(2, 8, 3, 4)
    assert torch.equal(conv(maps).gamma, conv.raw(maps).select(-3, 0))


def test_gaussian_head_answers_with_a_gaussian():
    head = ev.GaussianHead(8)
    x = torch.randn(5, 8)
    answer = head(x)
    assert isinstance(answer, torch.distributions.Normal)
    assert torch.allclose(answer.scale, torch.nn.functional.softplus(head.raw(x)[:, 1]) + 1e-6)


@pytest.mark.parametrize("head", [ev.NIGHead(8), ev.NIGConv2d(8), ev.GaussianHead(8)])
def test_a_head_computes_in_float32_under_autocast_and_in_half_models(head):
    x = torch.randn(2, 8, 4, 4) if isinstance(head, ev.NIGConv2d) else torch.randn(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = head.raw(x.bfloat16())
    assert mixed.dtype == torch.float32
    assert torch.allclose(mixed, head.raw(x.bfloat16().float()), atol=1e-6)
    head.bfloat16()
    assert head.raw(x.bfloat16()).dtype == torch.float32
    head.float()


def test_heads_of_either_precision_keep_it():
    assert ev.NIGHead(8, dtype=torch.float64)(torch.randn(5, 8, dtype=torch.float64)).gamma.dtype == torch.float64


def test_bad_input_is_named():
    with pytest.raises(
        ev.InputError, match=r"NIGHead expects features of size 8 in the last dimension, got shape \(5, 7\)"
    ):
        ev.NIGHead(8)(torch.randn(5, 7))
    with pytest.raises(ev.InputError, match=r"NIGConv2d expects maps of shape \(N, 8, H, W\) or \(8, H, W\), got \(5, 7\)"):
        ev.NIGConv2d(8)(torch.randn(5, 7))
    with pytest.raises(ev.InputError, match="targets must be at least 1, got 0"):
        ev.NIGHead(8, targets=0)
    with pytest.raises(ev.InputError, match="in_features must be at least 1"):
        ev.GaussianHead(0)
    with pytest.raises(ev.InputError, match="kernel_size must be at least 1"):
        ev.NIGConv2d(8, kernel_size=0)


@pytest.mark.parametrize("head", [ev.NIGHead(8), ev.NIGConv2d(8), ev.GaussianHead(8), MLP(8), FeatureDensity(8)])
def test_features_are_tensors_that_fit(head):
    name = type(head).__name__
    for x in (np.zeros((5, 8)), [[0.0] * 8], None):
        with pytest.raises(ev.InputTypeError, match=f"{name} expects a tensor, not {type(x).__name__}"):
            head(x)
    for shape in ((), (5, 7)):
        with pytest.raises(ev.InputError, match=rf"{name} expects .*8.*, got (shape )?\({'5, 7' if shape else ''}\)"):
            head(torch.zeros(shape))


@pytest.mark.parametrize("size", [8.0, 2.5, True, "8"])
def test_sizes_are_whole_numbers(size):
    for make in (ev.NIGHead, ev.GaussianHead, ev.NIGConv2d, FeatureDensity):
        with pytest.raises(ev.InputTypeError, match="must be a whole number, got"):
            make(size)
    with pytest.raises(ev.InputTypeError, match="targets must be a whole number, got"):
        ev.NIGHead(8, targets=size)
    assert ev.NIGHead(np.int64(8), np.int32(3))(torch.zeros(5, 8)).batch_shape == (5, 3)
