"""Image models with draws of dropout, and with least squares and the noise that is chosen for it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

import howsure as hs
from howsure import metrics
from howsure.images import Augmentation, ImageRecipe, Pairs, fit_images, to_network
from howsure.likelihoods import NormalLikelihood
from howsure.nn import UNet
from howsure.storage import save_model
from howsure.training import Settings
from howsure_paper.baselines import LeastSquares
from howsure_paper.depth.models import DepthModel

DROPOUT = ImageRecipe(width=4, blocks=2, dropout=0.5)
SMALL = ImageRecipe(
    width=6, blocks=3, batch_size=8, settings=Settings(steps=200, learning_rate=1e-2, evaluate_every=50)
)


def ramps(count=6, height=16, width=24):
    """Return images whose first channel is the map."""
    y, x = torch.meshgrid(torch.linspace(0.1, 0.5, height), torch.linspace(0, 0.4, width), indexing="ij")
    maps = (x + y).expand(count, -1, -1) * torch.linspace(0.5, 1, count).view(-1, 1, 1)
    image = torch.stack([maps, 0 * maps + 0.5, 1 - maps], -1)
    return Pairs((255 * image).round().byte(), (255 * maps).round() / 255)


def millimetres(count=16, height=21, width=30, seed=0):
    """Return images, and maps in millimetres that one channel shows."""
    g = np.random.default_rng(seed)
    level = g.uniform(0.2, 0.8, (count, 1, 1)) + np.linspace(-0.2, 0.2, width) + 0 * np.linspace(0, 1, height)[:, None]
    images = np.stack([level, 0.5 + 0 * level, 1 - level], -1)
    depth = 1000 + 4000 * level + g.normal(0, 50, level.shape)
    depth[:, :4, :4] = np.nan
    return np.rint(255 * images).astype(np.uint8), depth


def dropout_model(networks=1, **settings):
    nets = tuple(UNet(2, width=4, blocks=2, dropout=0.5, seed=s).eval() for s in range(networks))
    return DepthModel(NormalLikelihood(), nets, DROPOUT, **settings)


# Draws of dropout -----------------------------------------------------------------------------------------------------


def test_networks_and_draws_are_members():
    pairs, model = ramps(3), dropout_model(2)
    drawing = replace(model, draws=3)
    both, drawn = model.predict(pairs.images).answers, drawing.predict(pairs.images).answers
    assert both.batch_shape == (2, 3, 16, 24)
    assert drawn.batch_shape == (6, 3, 16, 24)
    assert torch.equal(both.loc[1], model.networks[1](to_network(pairs.images))[:, 0])
    assert not torch.equal(drawn.loc[0], drawn.loc[1])
    before = torch.get_rng_state()
    assert torch.equal(drawing.predict(pairs.images).answers.loc, drawn.loc)  # draws follow from the seed
    assert not torch.equal(replace(drawing, seed=1).predict(pairs.images).answers.loc, drawn.loc)
    assert torch.equal(torch.get_rng_state(), before)
    joined = DepthModel.join([replace(model, networks=(net,)) for net in model.networks])
    assert torch.equal(joined.predict(pairs.images).answers.loc, both.loc)
    assert (joined.members, drawing.members, drawing.parameters) == (2, 6, model.parameters)
    assert drawing.predict(pairs.images).decompose().epistemic.max() > 0


def test_draws_from_a_generator_are_those_of_torchs_own(monkeypatch):
    pairs, model = ramps(7), dropout_model(draws=2)
    (net,) = model.networks
    torch.manual_seed(3)
    net.eval().drops.train()
    with torch.no_grad():
        expected = torch.stack([net(to_network(pairs.images))[:, 0] for _ in range(2)])
    stream = torch.Generator().manual_seed(3)
    assert torch.allclose(model.predict(pairs.images, generator=stream).answers.loc, expected, atol=1e-6)
    monkeypatch.setattr("howsure.images.model.BATCH_IMAGES", 3)
    batches = list(model.predict_batches(pairs.images, torch.Generator().manual_seed(3)))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    p = model.predict(pairs.images, generator=torch.Generator().manual_seed(3))
    assert np.array_equal(np.concatenate([batch.mean for batch in batches]), p.mean)
    y = np.where(pairs.maps > 0.5, np.nan, pairs.maps)
    assert np.isfinite(metrics.nll(p, y, mask=~np.isnan(y)))
    unseeded = model.predict(pairs.images)
    assert np.array_equal(unseeded.mean, model.predict(pairs.images).mean)


def test_draws_in_one_thread_leave_predictions_in_another_alone():
    images, _ = millimetres(4)
    model = dropout_model()
    drawing = replace(model, draws=3)
    expected = model.predict(images).mean, drawing.predict(images).mean
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: (model, drawing)[k % 2].predict(images).mean, range(24)))
    assert all(np.array_equal(mean, expected[k % 2]) for k, mean in enumerate(found))


def test_draws_need_dropout_and_evidence_that_does_not_fade():
    images, depth = millimetres(30)
    brief = replace(SMALL, dropout=0.5, settings=Settings(steps=6, evaluate_every=3))
    fading = DepthModel.of(fit_images(images, depth, recipe=brief, device="cpu"))
    assert fading.fading is not None
    assert fading.predict(images).familiarity is not None
    with pytest.raises(hs.InputError, match="fading="):
        replace(fading, draws=4)
    assert replace(fading, fading=None, draws=4).predict(images).members == 4
    with pytest.raises(hs.InputError, match="draws"):
        replace(fading, draws=-1)
    with pytest.raises(hs.InputError, match="draws"):
        DepthModel(NormalLikelihood(), (UNet(2, width=4, blocks=2).eval(),), ImageRecipe(width=4, blocks=2), draws=2)


# Least squares --------------------------------------------------------------------------------------------------------


def test_least_squares_is_a_normal_of_one_deviation():
    raw = torch.tensor([[0.3], [2.0]], dtype=torch.bfloat16)
    answer = LeastSquares(0.2).answer(raw)
    assert answer.scale.unique().item() == pytest.approx(0.2)
    assert answer.loc.dtype == torch.float32
    y = torch.tensor([0.5, 1.0])
    assert np.allclose(LeastSquares().loss(answer, y), (y - answer.loc) ** 2)


def test_least_squares_learns_maps_with_gaps():
    pairs = ramps(12)
    maps = pairs.maps.clone()
    maps[:, :5, :5] = torch.nan
    settings = Settings(steps=300, learning_rate=1e-2, evaluate_every=60)
    still = Augmentation(color=0)  # the map is a color channel
    recipe = ImageRecipe(width=8, blocks=3, batch_size=4, settings=settings, select="rmse", augmentation=still)
    gaps = Pairs(pairs.images, maps)
    before = torch.get_rng_state()
    model = fit_images(gaps, method=LeastSquares(), validation=gaps, recipe=recipe, standardize=False, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    (training,) = model.training
    assert not training.diverged.any()
    known = ~maps.isnan()
    error = metrics.rmse(model.predict(pairs.images), maps, mask=known)
    assert error == pytest.approx(float(training.best_score[0]), rel=1e-4)
    assert error < 0.6 * (pairs.maps - pairs.maps.mean(0))[known].square().mean().sqrt()


def test_least_squares_finds_its_noise_in_any_unit():
    images, depth = millimetres(12)
    known = ~np.isnan(depth)
    for factor, standardize in ((1.0, False), (1e-6, False), (1.0, True)):
        options = {"recipe": SMALL, "standardize": standardize, "device": "cpu", "evidence": "plain"}
        pairs = Pairs(torch.from_numpy(images), torch.from_numpy(factor * depth).float())
        fitted = DepthModel.of(fit_images(pairs, method=LeastSquares(), **options))
        model = fitted.choose_noise(pairs)
        assert model.method.noise != fitted.method.noise
        assert 0.6 < metrics.coverage(model.predict(images), factor * depth, mask=known) < 0.995
    assert DepthModel.join([fitted, fitted]).choose_noise(pairs).members == 2
    with pytest.raises(hs.InputError, match="method"):
        DepthModel.join([model, replace(model, method=LeastSquares(0.3))])
    with pytest.raises(hs.InputError, match="scale"):
        DepthModel.join([model, replace(model, scale=1.0)])
    normal = DepthModel(NormalLikelihood(), (UNet(2, width=4, blocks=2).eval(),), ImageRecipe(width=4, blocks=2))
    assert normal.choose_noise(pairs) is normal


# Files ----------------------------------------------------------------------------------------------------------------


def test_saved_model_is_the_same(tmp_path):
    images, depth = millimetres(8)
    recipe = replace(SMALL, dropout=0.2, settings=Settings(steps=6, evaluate_every=3))
    options = {"members": 2, "recipe": recipe, "seed": 3, "device": "cpu", "evidence": "plain"}
    fitted = fit_images(images, depth, method=LeastSquares(), **options)
    model = replace(DepthModel.of(fitted, seed=3), method=LeastSquares(0.25), draws=2)
    again = DepthModel.load(model.save(tmp_path / "model"))
    assert type(again) is DepthModel
    assert (again.method, again.recipe, again.draws, again.seed) == (LeastSquares(0.25), recipe, 2, 3)
    assert (again.loc, again.scale) == (model.loc, model.scale)
    assert again.training[1].history == model.training[1].history
    assert torch.equal(again.training[1].best_score, model.training[1].best_score)
    assert np.array_equal(again.predict(images).std, model.predict(images).std)


@pytest.mark.parametrize("change", [{"draws": -1}, {"draws": 2}, {"draws": "x"}, {"seed": None}])
def test_forged_draws_raise(change, tmp_path):
    recipe = ImageRecipe(width=4, blocks=2)
    model = DepthModel(LeastSquares(), (recipe.network(1, 0).eval(),), recipe)
    tensors, header = model.state()
    with pytest.raises(hs.InputError, match="forged"):
        DepthModel.load(save_model(tmp_path / "forged", tensors, replace(header, extra=header.extra | change)))
