import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

import howsure as hs
from howsure.nn import UNet

SMALL = {"width": 4, "blocks": 3, "seed": 0}


def randomised(net):
    """The biases are random too: they start at zero, which would hide a mistake."""
    with torch.no_grad():
        for p in net.parameters():
            if p.ndim == 1:
                p.uniform_(-0.5, 0.5)
    return net


def by_hand(state, x, blocks, paper):
    """The same network, written out from the paper's description and a state dict alone."""

    def twice(x, name):
        for k in (0, 2):
            x = functional.conv2d(x, state[f"{name}.{k}.weight"], state[f"{name}.{k}.bias"], padding=1).clamp(min=0)
        return x

    skips = []
    for k in range(blocks):
        if k:
            x = x.unflatten(3, (-1, 2)).amax(4).unflatten(2, (-1, 2)).amax(3)
        x = twice(x, f"encoder.{k}")
        skips.append(x)
    for k, skip in enumerate(skips[-2::-1]):
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        x = twice(torch.cat([x, skip], 1), f"decoder.{k}")
    x = torch.einsum("nchw,oc->nohw", x, state["head.0.weight"][:, :, 0, 0]) + state["head.0.bias"].view(-1, 1, 1)
    if paper:
        x = torch.einsum("nchw,oc->nohw", x.clamp(min=0), state["head.1.weight"][:, :, 0, 0])
        x = x + state["head.1.bias"].view(-1, 1, 1)
    return x


def hooked(modules):
    """The last input and the output of each of these modules, filled as they run."""
    inputs, outputs = [], []

    def note(_, given, answer):
        inputs.append(given[-1])
        outputs.append(answer)

    for module in modules:
        module.register_forward_hook(note)
    return inputs, outputs


@pytest.mark.parametrize(
    ("outputs", "head", "count"),
    [
        (4, "paper", 7_846_776),
        (4, "direct", 7_846_756),
        (2, "paper", 7_846_690),
        (2, "direct", 7_846_690),
        (1, "paper", 7_846_657),
        (1, "direct", 7_846_657),
    ],
)
def test_authors_counts(outputs, head, count):
    assert sum(p.numel() for p in UNet(outputs, head=head).parameters()) == count


def test_five_plain_members():
    members = nn.ModuleList(UNet(outputs=1, seed=k) for k in range(5))
    assert sum(p.numel() for p in members.parameters()) == 39_233_285


@pytest.mark.parametrize("head", ["direct", "paper"])
@pytest.mark.parametrize(("outputs", "channels", "blocks"), [(4, 3, 3), (1, 1, 1), (2, 3, 2), (4, 2, 4)])
def test_forward_pass_by_hand(head, outputs, channels, blocks):
    net = randomised(UNet(outputs, channels, 3, blocks, dropout=0.3, head=head, seed=0)).double().eval()
    x = torch.randn(2, channels, 16, 24, dtype=torch.float64)
    raw = net(x)
    assert raw.shape == (2, outputs, 16, 24)
    assert raw.dtype == torch.float64
    assert torch.allclose(raw, by_hand(net.state_dict(), x, blocks, head == "paper" and outputs == 4), atol=1e-12)


def test_papers_head_can_die_and_the_direct_one_cannot():
    x = torch.rand(2, 3, 8, 8)
    paper, direct = UNet(head="paper", **SMALL), UNet(**SMALL)
    for net in (paper, direct):
        with torch.no_grad():
            net.head[0].bias.fill_(-100.0)
    assert torch.equal(paper(x), torch.zeros(2, 4, 8, 8))
    assert direct(x).std((2, 3)).min() > 0


def test_weights_are_glorot_uniform_and_biases_zero():
    for layer in UNet(width=16, blocks=3, seed=0).modules():
        if isinstance(layer, nn.Conv2d):
            bound = (6 / (layer.weight[0, 0].numel() * (layer.in_channels + layer.out_channels))) ** 0.5
            assert 0.85 * bound < layer.weight.abs().max() <= bound
            assert layer.bias.count_nonzero() == 0


def test_seed_draws_the_weights_and_nothing_else():
    before = torch.get_rng_state()
    one, same, other = (UNet(width=4, blocks=2, seed=seed).encoder[1][0].weight for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    drawn = UNet(width=4, blocks=2).encoder[1][0].weight
    assert not torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    assert torch.equal(drawn, UNet(width=4, blocks=2).encoder[1][0].weight)


def test_dropout_follows_each_pooling_and_stands_nowhere_else():
    net = UNet(dropout=0.5, width=8, blocks=4, seed=0)
    assert sum(isinstance(m, nn.Dropout2d) for m in net.modules()) == 3
    assert all(d.p == 0.5 for d in net.drops)
    dropped, kept = hooked(net.drops)
    entered, encoded = hooked(net.encoder)
    decoded, _ = hooked(net.decoder)
    net(torch.randn(2, 3, 16, 16))
    for k in range(3):
        assert torch.equal(dropped[k], functional.max_pool2d(encoded[k], 2))
        assert torch.equal(entered[k + 1], kept[k])
        assert torch.equal(decoded[k], encoded[2 - k])  # the decoder sees the maps before dropout


def test_dropout_drops_whole_channels():
    net = randomised(UNet(dropout=0.5, width=32, blocks=2, seed=0))
    inputs, outputs = hooked(net.drops)
    net(torch.randn(8, 3, 8, 8))
    gone = (outputs[0] == 0).all(3).all(2)
    alive = inputs[0].amax((2, 3)) > 0
    assert 0.3 < gone[alive].float().mean() < 0.7
    assert torch.allclose(outputs[0], 2 * inputs[0] * ~gone[:, :, None, None])


def test_dropout_by_a_generator_matches_torch_with_the_same_seed():
    net, x = randomised(UNet(dropout=0.5, **SMALL)), torch.randn(2, 3, 8, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        expected = [net(x), net(x)]
        before = torch.get_rng_state()
        net.generator = torch.Generator().manual_seed(11)
        assert torch.equal(net(x), expected[0])
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert torch.equal(copied(x), expected[1])  # a copy continues from the same state, independently
        net.eval().drops.train()
        assert torch.equal(net(x), expected[1])
        assert torch.equal(torch.get_rng_state(), before)
        net.generator = None
        net(x)
        assert not torch.equal(torch.get_rng_state(), before)
    assert UNet(**SMALL).generator is None
    assert net.state_dict().keys() == UNet(**SMALL).state_dict().keys()


def test_float64_default_changes_nothing():
    x = torch.linspace(-1, 1, 384, dtype=torch.float32).view(2, 3, 8, 8)

    def everything():
        net = UNet(dropout=0.5, **SMALL)
        net.generator = torch.Generator().manual_seed(3)
        return [*net.parameters(), net(x)]

    expected = everything()
    torch.set_default_dtype(torch.float64)
    try:
        got = everything()
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(expected, got, strict=True):
        assert b.dtype == torch.float32
        assert torch.equal(a, b)


def test_features_are_means_of_the_blocks_outputs_in_the_same_pass():
    net = UNet(**SMALL)
    _, encoded = hooked(net.encoder)
    x = torch.randn(2, 3, 8, 12)
    raw, features = net.forward_with_features(x)
    assert len(encoded) == 3
    assert [tuple(f.shape) for f in features] == [(2, 4), (2, 8), (2, 16)]
    for feature, maps in zip(features, encoded, strict=True):
        assert torch.allclose(feature, maps.mean((2, 3)), atol=1e-6)
    assert torch.equal(raw, net(x))


def test_bfloat16_autocast_returns_float32():
    net = randomised(UNet(head="paper", **SMALL))
    x = torch.randn(2, 3, 8, 8)
    _, last = hooked([net.decoder[-1]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        raw, features = net.forward_with_features(x)
    assert last[0].dtype == torch.bfloat16
    assert {t.dtype for t in (raw, *features)} == {torch.float32}
    squeeze, final = net.head
    wide = final(functional.relu(squeeze(last[0].float())))
    assert torch.allclose(raw, wide, rtol=1e-5, atol=1e-6)  # not rounded to bfloat16 on the way
    assert torch.allclose(raw, net(x), atol=0.1)
    half = UNet(**SMALL).bfloat16()
    assert half(x.bfloat16()).dtype == torch.float32
    assert half.forward_with_features(x.bfloat16())[1][0].dtype == torch.float32


def test_channels_last_gives_the_same_result():
    net, x = UNet(**SMALL), torch.randn(2, 3, 8, 12)
    expected = net(x)
    net.to(memory_format=torch.channels_last)
    answer = net(x.to(memory_format=torch.channels_last))
    assert answer.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(answer, expected, atol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
def test_network_traces_to_one_graph(autocast):
    """One graph also means that no value is read on the way, which would make a GPU wait."""
    net = randomised(UNet(dropout=0.5, **SMALL)).eval()
    x = torch.randn(2, 3, 8, 8)

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            raw, features = net.forward_with_features(x)
        return raw.square().mean() + sum(f.mean() for f in features)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    eager_gradient, gradient = (torch.autograd.grad(f(x), net.parameters()) for f in (step, compiled))
    for a, b in zip(eager_gradient, gradient, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=0.05 if autocast else 1e-5)
    assert torch.equal(compiled(x), compiled(x))
    net.drops.train()
    assert not torch.equal(compiled(x), compiled(x))
    net.drops.eval()
    assert torch.allclose(compiled(x), step(x), rtol=0.02 if autocast else 1e-5)


def test_invalid_arguments_raise():
    for name in ("outputs", "in_channels", "width", "blocks"):
        with pytest.raises(hs.InputError, match=name):
            UNet(**{name: 0})
    with pytest.raises(hs.InputError, match="dropout"):
        UNet(dropout=1.0)
    with pytest.raises(hs.InputError, match="'wide'"):
        UNet(head="wide")


def test_images_that_do_not_fit_raise():
    net = UNet(width=2, seed=0)
    for sizes, fit in (((100, 160), "112×160"), ((128, 1), "128×16"), ((0, 17), "16×32")):
        with pytest.raises(hs.InputError, match=fit):
            net(torch.zeros(1, 3, *sizes))
    for shape in ((1, 1, 16, 16), (3, 16, 16), (1, 16, 16, 3)):
        with pytest.raises(hs.InputError, match="UNet"):
            net.forward_with_features(torch.zeros(shape))
    with pytest.raises(hs.InputTypeError, match=r"torch\.uint8"):
        net(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
    with pytest.raises(hs.InputTypeError, match="UNet"):
        net([[0.0]])
    assert net(torch.zeros(1, 3, 16, 32)).shape == (1, 4, 16, 32)
