"""The same numbers on a GPU. Runs where there is one: PYTHONPATH=src pytest --confcutdir=tests tests/test_cuda.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from fits import fit
from howsure.formulas.penalties import PENALTIES
from howsure.images import Augmentation, FittedImages, ImageRecipe, Pairs, fit_images
from howsure.images.training import compiled_loss
from howsure.likelihoods import Evidential, Network, NormalLikelihood, Recipe
from howsure.tables.members import hold_out
from howsure.training import Settings, TableBatches, train

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
    with pytest.raises(hs.InputError, match=r"\by\b"):
        hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw.cuda()), y)


# Training -----------------------------------------------------------------------------------------------------------


def fitted_on(device, static=True, steps=200, checkpoint=None, stop_at=None):
    """A population trained on one device; ``static=False`` forbids the captured graph."""
    import test_training

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


def test_captured_step_is_the_eager_one():
    captured, a = fitted_on("cuda")
    eager, b = fitted_on("cuda", static=False)
    assert torch.allclose(captured.best_score, eager.best_score, atol=1e-4)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-3)


def test_gpu_results_equal_cpu_results():
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
    x = np.random.default_rng(0).standard_normal((100, 3))
    recipe = Recipe(Network((8,)), Settings(steps=20, evaluate_every=10), 8)
    fitted = fit(Evidential([0.0, 0.1]), x, x[:, 0], hold_out(np.arange(100), [0, 1]), recipe=recipe, device="cuda")
    assert fitted.result.steps == 20
    assert fitted.predict(x).std.shape == (100,)


def _ramps(count=12, height=16, width=32):
    """Images whose first channel is the map."""
    y, x = torch.meshgrid(torch.linspace(0.1, 0.5, height), torch.linspace(0, 0.4, width), indexing="ij")
    maps = (x + y).expand(count, -1, -1) * torch.linspace(0.5, 1, count).view(-1, 1, 1)
    image = (255 * torch.stack([maps, 0 * maps + 0.5, 1 - maps], -1)).round().byte()
    return Pairs(image, image[..., 0] / 255)


@pytest.mark.parametrize("method", [Evidential(0.01), NormalLikelihood()])
def test_images_are_learned_in_compiled_captured_half_precision(method):
    pairs = _ramps()
    settings = Settings(steps=300, learning_rate=1e-2, evaluate_every=60, precision="bfloat16")
    recipe = ImageRecipe(
        width=16, blocks=3, batch_size=8, settings=settings, select="rmse", augmentation=Augmentation(color=0)
    )
    compiled_loss.cache_clear()  # three networks in two calls, one compilation
    options = {"validation": pairs, "recipe": recipe, "standardize": False, "device": "cuda"}
    two = fit_images(pairs, method=method, members=2, **options)
    model = FittedImages.join([two, fit_images(pairs, method=method, seed=2, **options)])
    assert compiled_loss.cache_info().misses == 1
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


def test_image_step_on_the_gpu_is_that_of_the_cpu(monkeypatch):
    # inputs rounded to TF32 move some weights by a few thousandths in five steps of Adam
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    pairs = _ramps()
    settings = Settings(steps=5, learning_rate=1e-3, evaluate_every=5)
    recipe = ImageRecipe(width=8, blocks=3, batch_size=4, settings=settings)
    options = {"validation": pairs, "recipe": recipe, "standardize": False}
    here, there = (fit_images(pairs, device=d, **options).networks[0] for d in ("cpu", "cuda"))
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.allclose(a, b.cpu(), atol=1e-3)


def test_heads_of_maps_are_exact_where_cudnn_rounds():
    head = hs.nn.NIGConv2d(32).cuda()
    x = torch.randn(4, 32, 16, 16, device="cuda")
    with torch.no_grad():
        exact = head.double().raw(x.double())
        assert (head.float().raw(x) - exact).abs().max() < 1e-5


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


@pytest.mark.parametrize("features", ["layers", "gradients"])
def test_attached_evidence_agrees_with_the_cpu(features, tmp_path):
    x = torch.randn(600, 3)
    y = x[:, :1] ** 2 + 0.1 * torch.randn(600, 1)
    network = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1)).double()
    found = []
    for device in ("cpu", "cuda"):
        network.to(device)
        model = hs.attach(network, [(x[:400].double(), y[:400])], features=features)
        model = hs.calibrate(model, [(x[400:].double(), y[400:])])
        assert model(x.double().to(device)).gamma.device.type == device
        found.append(model.predict(3 * x.double()).cpu())
        model.save(tmp_path / f"{device}.safetensors")
    np.testing.assert_allclose(found[1].std, found[0].std, rtol=1e-4)
    np.testing.assert_allclose(found[1].familiarity, found[0].familiarity, rtol=1e-4)
    again = hs.load(tmp_path / "cpu.safetensors", network)
    np.testing.assert_allclose(again.predict(3 * x.double()).std, found[0].std, rtol=1e-4)
