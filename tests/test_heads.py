import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import howsure as hs
from howsure.nn import FeatureDensity, UNet

CONVS = {
    (hs.nn.NIGConv1d, functional.conv1d, nn.Conv1d): (11,),
    (hs.nn.NIGConv2d, functional.conv2d, nn.Conv2d): (7, 6),
    (hs.nn.NIGConv3d, functional.conv3d, nn.Conv3d): (5, 6, 7),
    (hs.nn.NormalConv1d, functional.conv1d, nn.Conv1d): (11,),
    (hs.nn.NormalConv2d, functional.conv2d, nn.Conv2d): (7, 6),
    (hs.nn.NormalConv3d, functional.conv3d, nn.Conv3d): (5, 6, 7),
}
HEADS = [hs.NIGHead, hs.NormalHead, *(kinds[0] for kinds in CONVS)]


def features_for(kind, size=8, rows=5):
    """Features of this many channels that a head of this kind takes."""
    sizes = next((sizes for kinds, sizes in CONVS.items() if kinds[0] is kind), None)
    return torch.randn(rows, size) if sizes is None else torch.randn(rows, size, *sizes)


def layer_of(head):
    return head.linear if hasattr(head, "linear") else head.conv


@pytest.mark.parametrize(
    ("head", "features", "raw", "batch"),
    [
        (hs.NIGHead(8), (5, 8), (5, 4), (5,)),
        (hs.NIGHead(8, targets=1), (5, 8), (5, 1, 4), (5, 1)),
        (hs.NIGHead(8, targets=3), (2, 5, 8), (2, 5, 3, 4), (2, 5, 3)),
        (hs.NIGHead(8), (8,), (4,), ()),
        (hs.NormalHead(8), (5, 8), (5, 2), (5,)),
        (hs.NormalHead(8, targets=3), (5, 8), (5, 3, 2), (5, 3)),
        (hs.nn.NIGConv2d(8), (2, 8, 6, 7), (2, 4, 6, 7), (2, 6, 7)),
        (hs.nn.NIGConv2d(8, targets=3, kernel_size=3), (2, 8, 6, 7), (2, 3, 4, 6, 7), (2, 3, 6, 7)),
        (hs.nn.NIGConv2d(8), (8, 6, 7), (4, 6, 7), (6, 7)),
        (hs.nn.NIGConv2d(8, 3, 3), (8, 6, 7), (3, 4, 6, 7), (3, 6, 7)),
        (hs.nn.NIGConv2d(8, 3, (1, 5), stride=(1, 2), padding=(0, 2)), (2, 8, 6, 7), (2, 3, 4, 6, 4), (2, 3, 6, 4)),
        (hs.nn.NIGConv1d(8), (2, 8, 9), (2, 4, 9), (2, 9)),
        (hs.nn.NIGConv1d(8, 1, 3, dilation=4), (2, 8, 9), (2, 1, 4, 9), (2, 1, 9)),
        (hs.nn.NIGConv1d(8, kernel_size=(3,), padding="valid"), (8, 9), (4, 7), (7,)),
        (hs.nn.NIGConv3d(8), (2, 8, 3, 4, 5), (2, 4, 3, 4, 5), (2, 3, 4, 5)),
        (hs.nn.NIGConv3d(8, 2, (1, 3, 3)), (2, 8, 3, 4, 5), (2, 2, 4, 3, 4, 5), (2, 2, 3, 4, 5)),
        (hs.nn.NormalConv1d(8, 3), (2, 8, 9), (2, 3, 2, 9), (2, 3, 9)),
        (hs.nn.NormalConv2d(8, kernel_size=3), (2, 8, 6, 7), (2, 2, 6, 7), (2, 6, 7)),
        (hs.nn.NormalConv3d(8, stride=2, padding=0), (2, 8, 3, 4, 5), (2, 2, 2, 2, 3), (2, 2, 2, 3)),
        (hs.NIGHead(8), (0, 8), (0, 4), (0,)),
        (hs.nn.NIGConv3d(8, kernel_size=3), (0, 8, 3, 4, 5), (0, 4, 3, 4, 5), (0, 3, 4, 5)),
    ],
)
def test_shapes(head, features, raw, batch):
    x = torch.randn(features)
    assert head.raw(x).shape == raw
    assert head(x).batch_shape == batch


@pytest.mark.parametrize("targets", [None, 3])
def test_each_target_has_its_own_four_outputs(targets):
    head = hs.NIGHead(8, targets)
    x = torch.randn(5, 8)
    answer, raw = head(x), head.raw(x)
    assert torch.equal(answer.gamma, raw[..., 0])
    assert torch.allclose(answer.alpha_minus_one, torch.nn.functional.softplus(raw[..., 2]) + 1e-6)
    conv = hs.nn.NIGConv2d(8, targets)
    maps = torch.randn(2, 8, 3, 4)
    assert torch.equal(conv(maps).gamma, conv.raw(maps).select(-3, 0))


def test_normal_head_returns_a_normal():
    head = hs.NormalHead(8)
    x = torch.randn(5, 8)
    answer = head(x)
    assert isinstance(answer, torch.distributions.Normal)
    assert torch.allclose(answer.scale, torch.nn.functional.softplus(head.raw(x)[:, 1]) + 1e-6)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("kind", HEADS)
def test_head_computes_in_float32_under_autocast_and_in_half_models(kind, kernel_size, half):
    head = kind(8) if kind in (hs.NIGHead, hs.NormalHead) else kind(8, kernel_size=kernel_size)
    x = features_for(kind).to(half)
    exact = copy.deepcopy(head).double().raw(x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = head.raw(x)
    assert mixed.dtype == head.raw(x).dtype == torch.float32
    assert torch.allclose(mixed.double(), exact, rtol=1e-6, atol=1e-6)
    head.to(half)
    exact = copy.deepcopy(head).double().raw(x.double())
    for features in (x, x.float()):
        raw = head.raw(features)
        assert raw.dtype == torch.float32
        assert torch.allclose(raw.double(), exact, rtol=1e-6, atol=1e-6)
    raw.sum().backward()
    assert all(p.dtype == p.grad.dtype == half for p in head.parameters())


def test_heads_of_either_precision_keep_it():
    assert hs.NIGHead(8, dtype=torch.float64)(torch.randn(5, 8, dtype=torch.float64)).gamma.dtype == torch.float64


def test_bad_input_is_named():
    with pytest.raises(hs.InputError, match=r"\(5, 7\)"):
        hs.NIGHead(8)(torch.randn(5, 7))
    for head in (hs.nn.NIGConv1d(8), hs.nn.NIGConv2d(8), hs.nn.NormalConv3d(8)):
        for wrong in ((5, 7), (2, 2, 2, 2, 2), (8,)):
            with pytest.raises(hs.InputError, match=type(head).__name__):
                head(torch.randn(wrong))
    with pytest.raises(hs.InputError, match="targets"):
        hs.NIGHead(8, targets=0)
    with pytest.raises(hs.InputError, match="in_features"):
        hs.NormalHead(0)


@pytest.mark.parametrize("head", [*(kind(8) for kind in HEADS), FeatureDensity(8)])
def test_features_are_tensors_that_fit(head):
    name = type(head).__name__
    for x in (np.zeros((5, 8)), [[0.0] * 8], None):
        with pytest.raises(hs.InputTypeError, match=name):
            head(x)
    for shape in ((), (5, 7)):
        with pytest.raises(hs.InputError, match=name):
            head(torch.zeros(shape))


@pytest.mark.parametrize("size", [8.0, 2.5, True, "8"])
def test_sizes_are_whole_numbers(size):
    for make in (*HEADS, FeatureDensity):
        with pytest.raises(hs.InputTypeError) as caught:
            make(size)
        assert caught.value.value is size
    with pytest.raises(hs.InputTypeError, match="targets") as caught:
        hs.NIGHead(8, targets=size)
    assert caught.value.value is size
    assert hs.NIGHead(np.int64(8), np.int32(3))(torch.zeros(5, 8)).batch_shape == (5, 3)


# Convolutions ---------------------------------------------------------------------------------------------------------

SETTINGS = [
    {},
    {"kernel_size": 3},
    {"kernel_size": 3, "dilation": 2},
    {"kernel_size": 4, "padding": "valid"},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    {"stride": 2, "padding": 0},
    {"padding": 1},  # a kernel of size 1 that is not a matrix product, like the next two
    {"groups": 2},
    {"kernel_size": 2, "stride": 3, "padding": 4, "dilation": 2, "groups": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kinds", CONVS, ids=lambda kinds: kinds[0].__name__)
def test_convolutions_are_torchs(kinds, settings):
    kind, function, _ = kinds
    head = kind(6, 2, dtype=torch.float64, **settings)
    x = features_for(kind, 6, rows=2).double()
    how = {"padding": "same"} | {k: v for k, v in settings.items() if k not in ("kernel_size", "padding_mode")}
    padded = x
    if "padding_mode" in settings:
        padded = functional.pad(x, [1] * (2 * len(CONVS[kinds])), mode=settings["padding_mode"])
        how["padding"] = 0
    expected = function(padded, head.conv.weight, head.conv.bias, **how)
    raw = head.raw(x)
    assert torch.allclose(raw.flatten(1, 2), expected, rtol=0, atol=1e-13)
    assert torch.allclose(head.raw(x[0]), raw[0], rtol=0, atol=1e-13)
    answer = head(x)
    first = answer.gamma if isinstance(answer, hs.NormalInverseGamma) else answer.loc
    assert torch.equal(first, raw[:, :, 0])


def test_groups_keep_targets_apart():
    head, x = hs.nn.NIGConv2d(6, targets=4, groups=2), torch.randn(2, 6, 3, 4)
    before = head(x)
    x[:, 3:] = 0
    after = head(x)
    for name in ("gamma", "nu", "alpha", "beta"):
        same = (getattr(before, name) == getattr(after, name)).all((0, 2, 3))
        assert same.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding": "half"}, "padding"),
        ({"kernel_size": 3, "stride": 2}, "padding='same'"),
        ({"groups": 2}, "groups"),
        ({"groups": 0}, "groups"),
        ({"padding_mode": "odd"}, "padding_mode"),
    ],
)
def test_settings_of_convolutions_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        hs.nn.NIGConv3d(8, **settings)


def test_missing_voxels_of_a_volume_do_not_count():
    head, x, y = hs.nn.NIGConv3d(3, kernel_size=3), torch.randn(2, 3, 4, 5, 6), torch.randn(2, 4, 5, 6)
    known = torch.rand_like(y) < 0.6
    known[1] = False  # a volume without any target
    answer = head(x)
    loss = hs.evidential_loss(answer, torch.where(known, y, torch.nan), mask=known)
    chosen = hs.NormalInverseGamma(
        answer.gamma[known], answer.nu[known], alpha_minus_one=answer.alpha_minus_one[known], beta=answer.beta[known]
    )
    assert torch.allclose(loss, hs.evidential_loss(chosen, y[known]), rtol=1e-6)
    x = x.requires_grad_()
    gradient = torch.autograd.grad(
        hs.evidential_loss(head(x), torch.where(known, y, torch.nan), mask=known), [x, *head.parameters()]
    )
    assert all(g.isfinite().all() for g in gradient)
    assert gradient[0][1].count_nonzero() == 0
    assert gradient[0][0].count_nonzero() > 0


# Tools that change layers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HEADS)
def test_hooks_of_the_layer_fire(kind):
    head, x, seen = kind(8), features_for(kind).requires_grad_(), []
    layer = layer_of(head)
    expected = head.raw(2 * x) + 1
    before = layer.register_forward_pre_hook(lambda _, given: (2 * given[0],))
    after = layer.register_forward_hook(lambda _, given, out: out + 1)
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    raw = head.raw(x)
    assert torch.allclose(raw, expected, atol=1e-6)
    raw.sum().backward()
    assert seen == ["backward"]
    before.remove()
    after.remove()
    assert torch.allclose(head.raw(2 * x) + 1, expected, atol=1e-6)


def test_hooks_of_the_unets_head_fire():
    net, seen = UNet(width=4, blocks=2, head="paper", seed=0), []
    for layer in net.head:
        layer.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.zeros(1, 3, 8, 8))
    assert seen == [torch.float32, torch.float32]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", [hs.NIGHead, hs.nn.NIGConv1d, hs.nn.NIGConv2d])
def test_pruned_and_parametrized_layers_use_their_weights(kind, half):
    x = features_for(kind)
    for change in (
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: parametrizations.weight_norm(layer),
    ):
        head = kind(8).to(torch.bfloat16 if half else torch.float32)
        layer = change(layer_of(head))
        weight, plain = layer.weight, kind(8)
        if hasattr(layer, "weight_mask"):
            assert (weight == 0).float().mean() == 0.5
        with torch.no_grad():
            layer_of(plain).weight.copy_(weight)
            layer_of(plain).bias.copy_(layer.bias)
        raw = head.raw(x)
        assert raw.dtype == torch.float32
        assert torch.allclose(raw, plain.raw(x), atol=1e-5)
        raw.sum().backward()
        assert all(p.grad is not None for p in head.parameters())


@pytest.mark.filterwarnings("ignore")  # torch wants another package to quantise by now
def test_dynamic_int8_quantises_the_body_and_leaves_the_head():
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), hs.NIGHead(32))
    quantised = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    assert quantised[0].weight().dtype == torch.qint8
    assert torch.equal(quantised[2].linear.weight, net[2].linear.weight)
    x = torch.randn(100, 8)
    assert torch.equal(quantised(x).gamma, net[2](quantised[1](quantised[0](x))).gamma)
    assert torch.allclose(quantised(x).gamma, net(x).gamma, atol=0.05)


def test_layer_may_be_replaced():
    head, x = hs.NIGHead(8, targets=2), torch.randn(5, 8)
    head.linear = nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 8))
    assert torch.allclose(head.raw(x).flatten(1), head.linear(x))


@pytest.mark.parametrize("kind", HEADS)
def test_heads_are_copied_pickled_and_loaded(kind):
    head, x = kind(8, 2), features_for(kind)
    name = "linear" if hasattr(head, "linear") else "conv"
    assert list(head.state_dict()) == [f"{name}.weight", f"{name}.bias"]
    loaded = kind(8, 2)
    loaded.load_state_dict(head.state_dict())
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head)), loaded):
        assert torch.equal(other.raw(x), head.raw(x))


@pytest.mark.parametrize("kind", HEADS)
def test_heads_run_on_the_meta_device(kind):
    x = features_for(kind)
    assert kind(8, 2, device="meta")(x.to("meta")).batch_shape == kind(8, 2)(x).batch_shape


@pytest.mark.parametrize("kind", HEADS)
def test_many_heads_at_once(kind):
    heads, x = [kind(8), kind(8), kind(8)], features_for(kind)
    stacked, _ = torch.func.stack_module_state(heads)
    answers = torch.func.vmap(lambda p: torch.func.functional_call(heads[0], p, (x,)))(stacked)
    for k, head in enumerate(heads):
        assert torch.allclose(answers.mean[k], head(x).mean, rtol=1e-4, atol=1e-5)


# Heads that go on from an old layer -----------------------------------------------------------------------------------


def mean_and_std(answer):
    p = hs.Prediction(answer)
    return torch.as_tensor(p.mean), torch.as_tensor(p.std)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kind", [hs.NIGHead, hs.NormalHead])
def test_head_starts_at_the_predictions_of_a_linear_layer(kind, outputs, bias):
    old, x = nn.Linear(8, outputs, bias=bias, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    std = torch.arange(1, outputs + 1) / 4
    mean, stated = mean_and_std(kind.from_linear(old, std=std)(x))
    assert mean.shape == (2, 5, outputs)
    assert torch.allclose(mean, old(x), rtol=0, atol=1e-14)
    assert torch.allclose(stated, std.double().expand(2, 5, outputs), rtol=1e-12)


def test_evidential_head_starts_with_little_evidence():
    answer = hs.NIGHead.from_linear(nn.Linear(8, 1), std=0.5, squeeze=True)(torch.randn(5, 8))
    assert answer.batch_shape == (5,)
    for value, expected in ((answer.nu, 1.0), (answer.alpha, 2.0), (answer.beta, 0.125)):
        assert torch.allclose(value, torch.full((5,), expected))


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kinds", CONVS, ids=lambda kinds: kinds[0].__name__)
def test_head_starts_at_the_maps_of_a_convolution(kinds, settings, outputs):
    kind, _, convolution = kinds
    given = {"kernel_size": 1, "padding": "same", "bias": outputs > 2} | settings
    old, x = convolution(6, outputs, dtype=torch.float64, **given), features_for(kind, 6, rows=2).double()
    mean, std = mean_and_std(kind.from_conv(old, std=0.1)(x))
    assert torch.allclose(mean, old(x), rtol=0, atol=1e-13)
    assert torch.allclose(std, torch.full_like(std, 0.1), rtol=1e-12)


def test_one_output_may_lose_its_dimension():
    old, x = nn.Conv2d(6, 1, 3), torch.randn(2, 6, 5, 5)
    assert hs.nn.NIGConv2d.from_conv(old)(x).batch_shape == (2, 1, 3, 3)
    squeezed = hs.nn.NIGConv2d.from_conv(old, squeeze=True)(x)
    assert squeezed.batch_shape == (2, 3, 3)
    assert torch.allclose(squeezed.gamma, old(x)[:, 0], atol=1e-6)
    with pytest.raises(hs.InputError, match="squeeze="):
        hs.NormalHead.from_linear(nn.Linear(8, 3), squeeze=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_head_has_dtype_and_exact_predictions_of_the_old_layer(dtype):
    old, x = nn.Linear(8, 2).to(dtype), torch.randn(50, 8).to(dtype)
    head = hs.NIGHead.from_linear(old, std=0.3)
    assert {p.dtype for p in head.parameters()} == {dtype}
    assert torch.allclose(head(x).prediction.double(), copy.deepcopy(old).double()(x.double()), rtol=1e-6, atol=1e-6)
    assert torch.allclose(mean_and_std(head(x))[1], torch.tensor(0.3), rtol=0.02)
    assert hs.NIGHead.from_linear(nn.Linear(8, 2, device="meta")).linear.weight.is_meta


def test_old_layer_stays_and_no_number_is_drawn():
    old, before = nn.Linear(8, 2), torch.get_rng_state()
    kept = copy.deepcopy(old)
    head = hs.NIGHead.from_linear(old)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        for p in head.parameters():
            p.fill_(7.0)
    assert torch.equal(old.weight, kept.weight)
    assert torch.equal(old.bias, kept.bias)
    assert all(p.requires_grad for p in old.parameters())


def test_frozen_body_keeps_its_weights_while_the_head_learns():
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
    body = copy.deepcopy(model[0])
    old, x = copy.deepcopy(model[2]), torch.randn(200, 3)
    y = (model(x) + x[:, :1].exp() * torch.randn(200, 1)).detach()
    model[2] = hs.NIGHead.from_linear(model.requires_grad_(False)[2], std=(model(x) - y).std().item())
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["2.linear.weight", "2.linear.bias"]
    start = hs.evidential_loss(model(x), y)
    learning = [p for p in model.parameters() if p.requires_grad]
    for _ in range(100):
        loss = hs.evidential_loss(model(x), y)
        with torch.no_grad():
            for p, g in zip(learning, torch.autograd.grad(loss, learning), strict=True):
                p -= 0.1 * g
    assert loss < start - 0.1  # the noise is not the same everywhere
    assert torch.equal(model[0].weight, body.weight)
    assert all(p.requires_grad for p in hs.NIGHead.from_linear(old.requires_grad_(False)).parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hs.NIGHead.from_linear(nn.Conv1d(8, 1, 1)), r"torch\.Conv1d"),
        (lambda: hs.nn.NIGConv2d.from_conv(nn.Conv1d(8, 1, 1)), "from_conv"),
        (lambda: hs.nn.NIGConv2d.from_conv(nn.ConvTranspose2d(8, 1, 1)), "ConvTranspose2d"),
        (lambda: hs.NIGHead.from_linear(None), "NoneType"),
        (lambda: hs.NIGHead.from_linear(nn.LazyLinear(2)), r"NIGHead\.from_linear"),
        (lambda: hs.NIGHead.from_linear(nn.Linear(8, 1), std=0), "std"),
        (lambda: hs.NIGHead.from_linear(nn.Linear(8, 1), std=torch.nan), "std"),
        (lambda: hs.NIGHead.from_linear(nn.Linear(8, 1), std=None), "None"),
        (lambda: hs.NIGHead.from_linear(nn.Linear(8, 3), std=[1, 2]), r"\(2,\)"),
        (lambda: hs.NIGHead.from_linear(nn.Linear(8, 1), std=1e-6), "std"),
        (lambda: hs.NIGHead.from_linear(nn.Linear(8, 1).half(), std=1e4), r"torch\.float16"),
    ],
)
def test_head_from_an_unsuitable_layer_raises(call, message):
    with pytest.raises((hs.InputError, hs.InputTypeError), match=message):
        call()


def test_head_goes_on_from_pruned_and_parametrized_layers():
    x = torch.randn(5, 8)
    for old in (prune.l1_unstructured(nn.Linear(8, 2), "weight", 0.5), parametrizations.weight_norm(nn.Linear(8, 2))):
        head = hs.NIGHead.from_linear(old)
        assert torch.allclose(head(x).prediction, old(x), atol=1e-6)
        assert all(p.is_leaf for p in head.parameters())
