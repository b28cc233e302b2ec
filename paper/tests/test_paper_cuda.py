"""The fits of the paper on a GPU: PYTHONPATH=src:paper/src pytest --confcutdir=paper/tests THIS_FILE."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import howsure as hs
from howsure.images import Augmentation, FittedImages, ImageRecipe, Pairs, fit_images
from howsure.images.training import compiled_loss
from howsure.likelihoods import Evidential, Network, NormalLikelihood, Recipe
from howsure.tables.members import hold_out
from howsure.training import Settings
from howsure_paper.baselines import BayesByBackprop, LeastSquares, MCDropout
from howsure_paper.depth import run as depth
from howsure_paper.depth.models import DepthModel
from howsure_paper.fused import FusedSteps, required_fused_steps
from howsure_paper.training import fit
from howsure_paper.uci.methods import ReleasedEvidential

if torch.cuda.is_available():  # Triton comes with torch where there is CUDA
    from howsure_paper.small_networks import Likelihood, Rows, run_steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


# Networks of tables ---------------------------------------------------------------------------------------------------


def _small_networks(method, steps, fused, device="cuda", **settings):
    x = np.random.default_rng(0).normal(size=(60, 5)) * [1, 2, 3, 4, 1e3]
    y = x[:, 0] ** 2 + 0.1 * x[:, 1]
    members = [m for k in range(3) for m in hold_out(np.arange(5 * k, 5 * k + 40), [k], 0)]
    usual = {"learning_rate": 3e-3, "warmup": 0.0, "schedule": "constant", "clip": None, "evaluate_every": 6}
    recipe = Recipe(Network((50,), "relu"), Settings(steps=steps, **(usual | settings)), 3)
    return fit(
        method,
        np.asfortranarray(x),
        y,
        members,
        recipe=recipe,
        device=device,
        fast_steps=required_fused_steps if fused else None,
    )


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
    monkeypatch.setattr(FusedSteps, "_noise", lambda self, chosen: next(parts).contiguous())
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


@pytest.mark.parametrize("name", ["dropout", "bayes"])
def test_captured_noise_follows_from_the_seed_alone(name):
    """Noise comes from a generator of the fit, which the captured step must know."""
    g = np.random.default_rng(0)
    x, y = g.random((100, 3)), g.random(100)
    method = {"dropout": MCDropout(3, 0.2), "bayes": BayesByBackprop(3)}[name]
    recipe = Recipe(Network((16,), "silu"), Settings(steps=60, evaluate_every=20), 16)
    means = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.cuda.get_rng_state()
        fitted = fit(method, x, y, hold_out(np.arange(100), [0, 1], 0), recipe=recipe, device="cuda")
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


# Images ---------------------------------------------------------------------------------------------------------------


def _ramps(count=12, height=16, width=32):
    """Images whose first channel is the map."""
    y, x = torch.meshgrid(torch.linspace(0.1, 0.5, height), torch.linspace(0, 0.4, width), indexing="ij")
    maps = (x + y).expand(count, -1, -1) * torch.linspace(0.5, 1, count).view(-1, 1, 1)
    image = (255 * torch.stack([maps, 0 * maps + 0.5, 1 - maps], -1)).round().byte()
    return Pairs(image, image[..., 0] / 255)


def test_least_squares_of_images_learns_captured_in_half_precision():
    pairs = _ramps()
    settings = Settings(steps=300, learning_rate=1e-2, evaluate_every=60, precision="bfloat16")
    recipe = ImageRecipe(
        width=16, blocks=3, batch_size=8, settings=settings, select="rmse", augmentation=Augmentation(color=0)
    )
    compiled_loss.cache_clear()  # three networks in two calls, one compilation
    options = {"validation": pairs, "recipe": recipe, "standardize": False, "device": "cuda"}
    method = LeastSquares()
    two = fit_images(pairs, method=method, members=2, **options)
    fitted = FittedImages.join([two, fit_images(pairs, method=method, seed=2, **options)])
    assert compiled_loss.cache_info().misses == 1
    assert not any(training.diverged.any() for training in fitted.training)
    assert {p.dtype for network in fitted.networks for p in network.parameters()} == {torch.float32}
    model = DepthModel.of(fitted).choose_noise(pairs)
    assert 0 < model.method.noise < 1
    p = model.predict(pairs.images)
    assert p.answers.predictive().loc.device.type == "cuda"
    # of three starts of 300 coarse steps, which differ from run to run on a GPU, one has learned the maps
    scores = [float(training.best_score[0]) for training in model.training]
    assert min(scores) < 0.8 * float((pairs.maps - pairs.maps.mean(0)).square().mean().sqrt())
    fading = None if model.fading is None else model.fading[:1]
    single = replace(model, networks=model.networks[:1], fading=fading).predict(pairs.images)
    assert hs.metrics.rmse(single, pairs.maps) == pytest.approx(scores[0], rel=0.02)
    assert p.cpu().interval(0.9) == pytest.approx(p.interval(0.9), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("method", "draws"), [(Evidential(), 0), (NormalLikelihood(), 3), (LeastSquares(), 3)])
def test_image_model_is_captured_to_be_timed(method, draws):
    recipe = ImageRecipe(width=8, blocks=3, dropout=0.1)
    model = DepthModel(method, (recipe.network(method.outputs, 0).eval(),), recipe, draws=draws).to("cuda")
    seconds = depth._seconds(model, _ramps().images.cuda())
    assert set(seconds) == {"1", "12"}
    assert min(seconds.values()) > 0


def test_draws_on_the_gpu_follow_from_the_seed():
    recipe = ImageRecipe(width=8, blocks=3, dropout=0.3)
    model = DepthModel(NormalLikelihood(), (recipe.network(2, 0).eval(),), recipe, draws=4).to("cuda")
    images = _ramps().images
    before = torch.cuda.get_rng_state()
    first, second = (model.predict(images) for _ in range(2))
    assert np.array_equal(first.mean, second.mean)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert first.decompose().epistemic.max() > 0
