"""The same numbers on a GPU. Runs where there is one: PYTHONPATH=src pytest --confcutdir=tests tests/test_cuda.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.fitting import fit, hold_out
from howsure.formulas.penalties import PENALTIES
from howsure.images import Augmentation, CompiledLosses, FittedImages, ImageRecipe, Pairs, fit_images
from howsure.methods import Evidential, Network, NormalLikelihood, Recipe
from howsure.training import Settings
from howsure_paper.baselines import BayesByBackprop, LeastSquares, MCDropout
from howsure_paper.depth import run as depth
from howsure_paper.fused import Fused
from howsure_paper.uci.methods import ReleasedEvidential

if torch.cuda.is_available():  # Triton comes with torch where there is CUDA
    from howsure_paper.small_networks import Likelihood, Rows, run_steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.fixture
def raw():
    return torch.randn(1000, 4) * torch.logspace(-1, 3, 1000).unsqueeze(1)


@pytest.fixture
def y():
    return torch.randn(1000)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_loss_and_gradient_agree_with_the_cpu(raw, y, penalty):
    answers = []
    for device in ("cpu", "cuda"):
        leaf = raw.to(device).requires_grad_()
        loss = hs.evidential_loss(
            hs.NormalInverseGamma.from_raw(leaf),
            y.to(device),
            0.1,
            penalty,
            extra={"lipschitz_mse": 1.0},
            reduction="none",
        )
        answers.append((loss.cpu(), torch.autograd.grad(loss.sum(), leaf)[0].cpu()))
    for a, b in zip(*answers, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_tails_and_quantiles_agree_with_the_cpu(raw, y):
    here = hs.NormalInverseGamma.from_raw(raw).predictive()
    there = hs.NormalInverseGamma.from_raw(raw.cuda()).predictive()
    level = torch.full_like(y, 0.05)
    for name, value in (("cdf", y), ("sf", y), ("icdf", level), ("isf", level), ("crps", y)):
        a, b = getattr(here, name)(value), getattr(there, name)(value.cuda()).cpu()
        assert torch.allclose(a, b, rtol=1e-4), name


def test_compiled_step_agrees_with_eager(y):
    net = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), hs.NIGHead(16)).cuda()
    x, y = torch.randn(1000, 3, device="cuda"), y.cuda()

    def step(x, y):
        return hs.evidential_loss(net(x), y, 0.1)

    compiled = torch.compile(step, fullgraph=True)
    for a, b in zip(
        torch.autograd.grad(step(x, y), net.parameters()),
        torch.autograd.grad(compiled(x, y), net.parameters()),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def test_autocast_and_graph_capture(y):
    net = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), hs.NIGHead(16)).cuda()
    x, y = torch.randn(1000, 3, device="cuda"), y.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert hs.evidential_loss(net(x), y).dtype == torch.float32
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            hs.evidential_loss(net(x), y).backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = hs.evidential_loss(net(x), y)
    graph.replay()
    assert torch.allclose(captured, hs.evidential_loss(net(x), y))


def test_devices_that_differ_are_named(raw, y):
    with pytest.raises(hs.InputError, match="y is on cpu but the prediction on cuda:0"):
        hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw.cuda()), y)


# Training -----------------------------------------------------------------------------------------------------------


def fitted_on(device, static=True, steps=200, checkpoint=None, stop_at=None):
    """A population trained on one device; ``static=False`` forbids the captured graph."""
    import test_training
    from howsure.training import Settings, TableBatches, train

    x, y = test_training.table()
    seeds = (0, 1, 2)
    rows = [torch.arange(60)[torch.arange(60) % 5 != s] for s in seeds]
    population, _ = test_training.setting(seeds)
    population.to(device)
    batches = TableBatches((x.to(device), y.to(device)), rows, seeds, 8)
    batches.static = static
    calls = []

    def validate(module):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return test_training.validate_on(x.to(device), y.to(device))(module)

    settings = Settings(steps=steps, evaluate_every=20, checkpoint_every=1)
    result = train(population, batches, test_training.nll, validate=validate, settings=settings, checkpoint=checkpoint)
    return result, population


def test_the_captured_step_is_the_eager_one():
    captured, a = fitted_on("cuda")
    eager, b = fitted_on("cuda", static=False)
    assert torch.allclose(captured.best_score, eager.best_score, atol=1e-4)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-3)


def test_a_gpu_finds_what_the_cpu_finds():
    there, _ = fitted_on("cuda")
    here, _ = fitted_on("cpu")
    assert torch.allclose(there.best_score.cpu(), here.best_score, atol=0.02)


def test_same_seed_same_result_and_resumed_runs_too(tmp_path):
    whole, a = fitted_on("cuda")
    with pytest.raises(KeyboardInterrupt):
        fitted_on("cuda", checkpoint=tmp_path / "c", stop_at=6)
    resumed, b = fitted_on("cuda", checkpoint=tmp_path / "c")
    assert torch.equal(whole.best_score, resumed.best_score)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_one_weight_per_member_can_be_captured():
    import numpy as np

    from howsure.fitting import fit, hold_out
    from howsure.methods import Evidential, Network, Recipe
    from howsure.training import Settings

    x = np.random.default_rng(0).standard_normal((100, 3))
    recipe = Recipe(Network((8,)), Settings(steps=20, evaluate_every=10), 8)
    fitted = fit(Evidential([0.0, 0.1]), x, x[:, 0], hold_out(np.arange(100), [0, 1]), recipe=recipe, device="cuda")
    assert fitted.training.steps == 20
    assert fitted.predict(x).std.shape == (100,)


def _small_networks(method, steps, fused, device="cuda", **settings):
    x = np.random.default_rng(0).normal(size=(60, 5)) * [1, 2, 3, 4, 1e3]
    y = x[:, 0] ** 2 + 0.1 * x[:, 1]
    members = [m for k in range(3) for m in hold_out(np.arange(5 * k, 5 * k + 40), [k], 0)]
    usual = {"learning_rate": 3e-3, "warmup": 0.0, "schedule": "constant", "clip": None, "evaluate_every": 6}
    recipe = Recipe(Network((50,), "relu"), Settings(steps=steps, **(usual | settings)), 3)
    return fit(method, np.asfortranarray(x), y, members, recipe=recipe, device=device, fused=fused)


def _largest_gap(a, b):
    with torch.no_grad():
        pairs = zip(a.population.parameters(), b.population.parameters(), strict=True)
        return max(float((p - q).abs().max()) for p, q in pairs)


@pytest.mark.parametrize(
    "make",
    [lambda: Evidential(0.05), lambda: Evidential((0.0, 0.1, 1.0)), ReleasedEvidential, NormalLikelihood],
)
def test_steps_in_one_kernel_are_those_of_the_loop(make):
    slow, fast = (_small_networks(make(), 24, fused) for fused in (False, True))
    start = _small_networks(make(), 1, True, learning_rate=1e-9)
    assert _largest_gap(start, fast) > 1e-2
    assert _largest_gap(slow, fast) < 1e-5
    assert slow.training.history[-1]["loss"] == pytest.approx(fast.training.history[-1]["loss"], rel=1e-3)


@pytest.mark.parametrize(("method", "draw"), [(MCDropout(5, 0.3), "uniform_"), (BayesByBackprop(5), "normal_")])
def test_noisy_steps_in_one_kernel_are_those_of_the_loop(method, draw, monkeypatch):
    drawn, real = [], getattr(torch.Tensor, draw)

    def remember(t, *arguments, **more):
        drawn.append(real(t, *arguments, **more).clone())
        return t

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, draw, remember)
        patch.setattr("howsure.training.batches.TableBatches.static", False)  # a captured graph would draw unseen
        slow = _small_networks(method, 12, False)
    layers = 1 if draw == "uniform_" else 2
    noise = torch.cat([torch.stack(drawn[k::layers], 1) for k in range(layers)], -1)
    parts = iter(noise.split(6, 1))
    monkeypatch.setattr(Fused, "_noise", lambda self, chosen: next(parts).contiguous())
    assert _largest_gap(slow, _small_networks(method, 12, True)) < 1e-5


@pytest.mark.parametrize("raw", [-30.0, -12.0, 0.0, 30.0, 1e4])
def test_gradient_in_the_kernel_is_exact_at_the_edges(raw):
    sizes, bias = (1, 16, 4), torch.tensor([0.3, raw, raw, raw])
    y = torch.tensor([[1.0]], device="cuda")
    state = torch.zeros(3, 1, 16 + 64 + 16 + 4, device="cuda")
    state[0, 0, -4:] = bias
    one = torch.ones(1, device="cuda")
    rows = Rows(y, y, torch.zeros(1, 1, 1, dtype=torch.int64, device="cuda"), 0 * one[None], one[None], 0 * one, one)
    run_steps(state, sizes, rows, Likelihood(True, 0.1 * one), 0 * one, one)
    leaf = bias.double().requires_grad_()
    loss = hs.evidential_loss(hs.NormalInverseGamma.from_raw(leaf), torch.tensor(1.0).double(), 0.1)
    (exact,) = torch.autograd.grad(loss, leaf)
    # Adam's first moment after one step from zero is a tenth of the gradient
    assert torch.allclose(10 * state[1, 0, -4:].cpu().double(), exact, rtol=2e-5, atol=1e-12)


def _ramps(count=12, height=16, width=32):
    """Images whose first channel is the map."""
    y, x = torch.meshgrid(torch.linspace(0.1, 0.5, height), torch.linspace(0, 0.4, width), indexing="ij")
    maps = (x + y).expand(count, -1, -1) * torch.linspace(0.5, 1, count).view(-1, 1, 1)
    image = (255 * torch.stack([maps, 0 * maps + 0.5, 1 - maps], -1)).round().byte()
    return Pairs(image, image[..., 0] / 255)


@pytest.mark.parametrize("method", [Evidential(0.01), NormalLikelihood(), LeastSquares()])
def test_images_are_learned_in_compiled_captured_half_precision(method):
    pairs = _ramps()
    settings = Settings(steps=300, learning_rate=1e-2, evaluate_every=60, precision="bfloat16")
    recipe = ImageRecipe(
        width=16, blocks=3, batch_size=8, settings=settings, select="rmse", augmentation=Augmentation(color=0)
    )
    losses = CompiledLosses()  # three networks in two calls, one compilation
    options = {"validation": pairs, "recipe": recipe, "standardise": False, "device": "cuda", "losses": losses}
    two = fit_images(pairs, method=method, members=2, **options)
    model = FittedImages.join([two, fit_images(pairs, method=two.method, seed=2, **options)])
    assert len(losses.known) == len({repr(m) for m in (method, two.method)})
    assert not any(training.diverged.any() for training in model.training)
    assert {p.dtype for network in model.networks for p in network.parameters()} == {torch.float32}
    p = model.predict(pairs.images)
    assert p.answers.predictive().loc.device.type == "cuda"
    # of three starts of 300 coarse steps, which differ from run to run on a GPU, one has learned the maps
    scores = [float(training.best_score[0]) for training in model.training]
    assert min(scores) < 0.8 * float((pairs.maps - pairs.maps.mean(0)).square().mean().sqrt())
    fading = None if model.fading is None else model.fading[:1]
    single = replace(model, networks=model.networks[:1], fading=fading).predict(pairs.images)
    assert hs.metrics.rmse(single, pairs.maps) == pytest.approx(scores[0], rel=0.02)
    assert p.cpu().interval(0.9) == pytest.approx(p.interval(0.9), rel=1e-4, abs=1e-4)


def test_an_image_step_on_the_gpu_is_that_of_the_cpu(monkeypatch):
    # inputs rounded to TF32 move some weights by a few thousandths in five steps of Adam
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    pairs = _ramps()
    settings = Settings(steps=5, learning_rate=1e-3, evaluate_every=5)
    recipe = ImageRecipe(width=8, blocks=3, batch_size=4, settings=settings)
    options = {"validation": pairs, "recipe": recipe, "standardise": False}
    here, there = (fit_images(pairs, device=d, **options).networks[0] for d in ("cpu", "cuda"))
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.allclose(a, b.cpu(), atol=1e-3)


@pytest.mark.parametrize(("method", "draws"), [(Evidential(), 0), (NormalLikelihood(), 3), (LeastSquares(), 3)])
def test_an_image_model_is_captured_to_be_timed(method, draws):
    recipe = ImageRecipe(width=8, blocks=3, dropout=0.1)
    model = FittedImages(method, (recipe.network(method.outputs, 0).eval(),), recipe, draws=draws).to("cuda")
    seconds = depth._seconds(model, _ramps().images.cuda())
    assert set(seconds) == {"1", "12"}
    assert min(seconds.values()) > 0


def test_heads_of_maps_are_exact_where_cudnn_rounds():
    head = hs.nn.NIGConv2d(32).cuda()
    x = torch.randn(4, 32, 16, 16, device="cuda")
    with torch.no_grad():
        exact = head.double().raw(x.double())
        assert (head.float().raw(x) - exact).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["dropout", "bayes"])
def test_captured_noise_follows_from_the_seed_alone(name):
    """Noise comes from a generator of the fit, which the captured step must know."""
    import numpy as np

    from howsure.fitting import fit, hold_out
    from howsure.methods import BayesByBackprop, MCDropout, Network, Recipe
    from howsure.training import Settings

    g = np.random.default_rng(0)
    x, y = g.random((100, 3)), g.random(100)
    method = {"dropout": MCDropout(3, 0.2), "bayes": BayesByBackprop(3)}[name]
    recipe = Recipe(Network((16,), "silu"), Settings(steps=60, evaluate_every=20), 16)
    means = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.cuda.get_rng_state()
        fitted = fit(method, x, y, hold_out(np.arange(100), [0, 1], 0), recipe=recipe, device="cuda", fused=False)
        assert torch.equal(torch.cuda.get_rng_state(), before)  # the caller's generator is not touched
        means.append(fitted.predict(x).mean)
    assert np.array_equal(*means)


@pytest.mark.parametrize(
    "method", [Evidential(0.01), MCDropout(3, 0.2), BayesByBackprop(3)], ids=lambda m: type(m).__name__
)
def test_one_kernel_gives_the_same_networks_twice(method):
    once, twice = (_small_networks(method, 24, True) for _ in range(2))
    for p, q in zip(once.population.parameters(), twice.population.parameters(), strict=True):
        assert torch.equal(p, q)


def test_draws_on_the_gpu_follow_from_the_seed():
    recipe = ImageRecipe(width=8, blocks=3, dropout=0.3)
    model = FittedImages(NormalLikelihood(), (recipe.network(2, 0).eval(),), recipe, draws=4).to("cuda")
    images = _ramps().images
    before = torch.cuda.get_rng_state()
    first, second = (model.predict(images) for _ in range(2))
    assert np.array_equal(first.mean, second.mean)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert first.decompose().epistemic.max() > 0


def test_streaming_metrics_stay_on_the_gpu():
    pytest.importorskip("torchmetrics")
    from howsure import metrics
    from howsure.metrics import streaming

    together = streaming.summary().to("cuda")
    together.add_metrics(
        [m.to("cuda") for m in (streaming.IntervalScore(), streaming.AUSE(), streaming.PITHistogram())]
    )
    raw = torch.randn(4, 300, 7, 4, device="cuda")
    y = torch.randn(4, 300, 7, device="cuda")
    y[torch.rand_like(y) < 0.2] = torch.nan
    for part, target in zip(raw, y, strict=True):
        together.update(hs.NormalInverseGamma.from_raw(part), target, mask=~target.isnan())
    found = together.compute()
    whole = hs.NormalInverseGamma.from_raw(raw)
    expected = metrics.summary(whole, y, mask=~y.isnan()) | {
        "IntervalScore": metrics.interval_score(whole, y, mask=~y.isnan()),
        "AUSE": metrics.ause(whole, y, mask=~y.isnan()),
        "PITHistogram": np.histogram(metrics.pit(whole, y, mask=~y.isnan()), 10, (0, 1))[0] / int((~y.isnan()).sum()),
    }
    assert set(found) == set(expected)
    for name, value in found.items():
        assert (value.device.type, value.dtype) == ("cuda", torch.float64), name
        np.testing.assert_allclose(value.cpu().numpy(), expected[name], rtol=1e-9)
    for metric in together.values():
        for state in metric.metric_state.values():
            assert all(t.device.type == "cuda" for t in (state if isinstance(state, list) else [state]))
