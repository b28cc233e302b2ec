import numpy as np
import pytest
import torch

import evidentia as ev
from evidentia.fitting import ImageRecipe, Pairs, fit_images
from evidentia.fitting import images as room
from evidentia.fitting.images import answers, largest_batch
from evidentia.methods import Evidential, GaussianLikelihood, LeastSquares
from evidentia.nn import UNet
from evidentia.training import Augmentation, ImageBatches, Settings
from evidentia.training.images import to_network

STILL = Augmentation(flip=False, zoom=1, colour=0)


def ramps(count=6, height=16, width=24):
    """Images whose first channel is the map: whatever happens to one must happen to the other."""
    y, x = torch.meshgrid(torch.linspace(0.1, 0.5, height), torch.linspace(0, 0.4, width), indexing="ij")
    maps = (x + y).expand(count, -1, -1) * torch.linspace(0.5, 1, count).view(-1, 1, 1)
    image = torch.stack([maps, 0 * maps + 0.5, 1 - maps], -1)
    return Pairs((255 * image).round().byte(), (255 * maps).round() / 255)


# Batches --------------------------------------------------------------------------------------------------------------


def test_bytes_become_what_a_network_sees():
    pairs = ramps(2)
    x = to_network(pairs.images)
    assert x.shape == (2, 3, 16, 24)
    assert torch.equal(x[:, 0], pairs.images[..., 0].float() / 255)
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "how", [Augmentation(colour=0), Augmentation(colour=0, zoom=1), Augmentation(colour=0, zoom=3)]
)
def test_images_and_maps_move_together(how):
    pairs = ramps()
    x, y = ImageBatches(pairs.images, pairs.maps, 64, seed=1, augmentation=how).next()
    # bilinear for the image, nearest for the map: apart by half a pixel's slope at most
    assert (x[:, 0] - y).abs().max() < 0.03
    still = ImageBatches(pairs.images, pairs.maps, 64, seed=1, augmentation=STILL).next()[1]
    moved = (y - still).abs().amax((1, 2)) > 0.01
    mirrored = torch.isclose(y, still.flip(2), atol=1e-6).all(2).all(1)
    assert moved.float().mean() > (0.3 if how.zoom == 1 else 0.9)
    assert 0.3 < mirrored.float().mean() < 0.7 if how.zoom == 1 else not mirrored.all()


def test_what_is_enlarged_comes_nearer_if_asked():
    pairs = ramps()
    zoomed = Augmentation(flip=False, zoom=2, colour=0)
    draw = [
        ImageBatches(pairs.images, pairs.maps, 32, 3, a).next()[1] for a in (zoomed, Augmentation(False, 2, 0, True))
    ]
    ratio = (draw[1] / draw[0]).flatten(1)
    inside = draw[1].flatten(1) < 0.999
    for k in range(32):
        values = ratio[k][inside[k]]
        assert values.max() - values.min() < 1e-4
        assert 1 <= values.mean() <= 2
    assert draw[1].max() <= 1


def test_colours_change_and_stay_in_range():
    pairs = ramps()
    how = Augmentation(flip=False, zoom=1, colour=0.5)
    x, y = ImageBatches(pairs.images, pairs.maps, 32, 0, how).next()
    before, _ = ImageBatches(pairs.images, pairs.maps, 32, 0, STILL).next()
    assert x.min() >= 0
    assert x.max() <= 1
    assert (x - before).abs().mean() > 0.03
    assert torch.equal(y, ImageBatches(pairs.images, pairs.maps, 32, 0, STILL).next()[1])


def test_gaps_stay_gaps():
    pairs = ramps()
    maps = pairs.maps.clone()
    maps[:, 4:8, 6:12] = torch.nan
    _, y = ImageBatches(pairs.images, maps, 32, 0, Augmentation(zoom=1)).next()
    assert torch.equal(y.isnan().flatten(1).sum(1), torch.full((32,), 24))


def test_batches_resume_and_use_every_image():
    pairs = ramps(5)
    first = ImageBatches(pairs.images, pairs.maps, 8, 7, Augmentation())
    for _ in range(3):
        first.next()
    second = ImageBatches(pairs.images, pairs.maps, 8, 7, Augmentation())
    second.restore(first.state())
    for a, b in zip(first.next(), second.next(), strict=True):
        assert torch.equal(a, b)
    other = ImageBatches(pairs.images, pairs.maps, 8, 8, Augmentation()).next()[1]
    assert not torch.equal(other, ImageBatches(pairs.images, pairs.maps, 8, 7, Augmentation()).next()[1])
    counts = torch.zeros(5)
    plain = ImageBatches(pairs.images, pairs.maps, 500, 0)
    for level, y in enumerate(pairs.maps):
        counts[level] = sum(torch.equal(y, drawn) for drawn in plain.next()[1])
        plain.step.zero_()
    assert counts.sum() == 500
    assert (counts - 100).abs().max() < 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: ImageBatches(p.images.float(), p.maps, 2), "images \\(N, H, W, 3\\) of bytes"),
        (lambda p: ImageBatches(p.images, p.maps[:, :4], 2), "maps \\(N, H, W\\) are needed"),
        (lambda p: ImageBatches(p.images[:0], p.maps[:0], 2), "no images to train on"),
        (lambda p: ImageBatches(p.images, p.maps, 0), "batch_size must be at least 1"),
        (lambda _: Augmentation(zoom=0.5), "at least 1, got 0.5"),
        (lambda _: Augmentation(colour=1.0), "relative change"),
        (lambda _: ImageRecipe(select="luck"), "nll or rmse, not 'luck'"),
    ],
)
def test_bad_batches_are_refused(make, message):
    with pytest.raises(ev.InputError, match=message):
        make(ramps(2))


# Fits -----------------------------------------------------------------------------------------------------------------

QUICK = Settings(steps=150, learning_rate=5e-3, evaluate_every=50)


@pytest.mark.parametrize("method", [Evidential(0.01), GaussianLikelihood(), LeastSquares()])
def test_a_network_learns_maps_with_gaps(method):
    pairs = ramps(12)
    maps = pairs.maps.clone()
    maps[:, :5, :5] = torch.nan
    still = Augmentation(colour=0)  # here the colour is the map
    settings = Settings(steps=300, learning_rate=1e-2, evaluate_every=60)
    recipe = ImageRecipe(width=8, blocks=3, batch_size=4, settings=settings, select="rmse", augmentation=still)
    before = torch.get_rng_state()
    network, training = fit_images(method, Pairs(pairs.images, maps), Pairs(pairs.images, maps), recipe, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert not training.diverged.any()
    known = ~maps.isnan()
    with torch.no_grad():
        mean = answers(method, [network.eval()], pairs.images).predictive().mean[0]
    error = (mean - pairs.maps)[known].square().mean().sqrt()
    assert error == pytest.approx(float(training.best_score[0]), rel=1e-4)
    assert error < 0.6 * (pairs.maps - pairs.maps.mean(0))[known].square().mean().sqrt()


def test_weights_are_selected_by_the_score_asked_for():
    pairs = ramps(8)
    scores = {}
    for select in ("nll", "rmse"):
        recipe = ImageRecipe(width=4, blocks=2, batch_size=4, settings=QUICK, select=select)
        network, training = fit_images(GaussianLikelihood(), pairs, pairs, recipe, device="cpu")
        with torch.no_grad():
            answer = answers(GaussianLikelihood(), [network.eval()], pairs.images)
        scores[select] = training.best_score[0]
        found = (
            -answer.log_prob(pairs.maps).mean() if select == "nll" else (answer.loc - pairs.maps).square().mean().sqrt()
        )
        assert torch.allclose(found, scores[select], rtol=1e-3)


def test_an_interrupted_fit_goes_on_to_the_same_weights(tmp_path):
    pairs = ramps(6)

    def train(checkpoint, stop=None):
        recipe = ImageRecipe(
            width=4, blocks=2, batch_size=2, settings=Settings(steps=12, evaluate_every=4, checkpoint_every=1)
        )
        calls = []

        class Stopping(Evidential):
            def loss(self, answer, y):
                calls.append(1)
                if stop is not None and len(calls) > stop:
                    raise RuntimeError("pulled the plug")
                return super().loss(answer, y)

        return fit_images(Stopping(0.01), pairs, pairs, recipe, device="cpu", checkpoint=checkpoint)[0]

    whole = train(None)
    with pytest.raises(RuntimeError, match="plug"):
        train(tmp_path / "a", stop=6)
    resumed = train(tmp_path / "a")
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_networks_and_draws_stand_in_the_first_dimension():
    pairs = ramps(3)
    nets = [UNet(2, width=4, blocks=2, dropout=0.5, seed=s).eval() for s in range(2)]
    with torch.no_grad():
        both = answers(GaussianLikelihood(), nets, pairs.images)
        drawn = answers(GaussianLikelihood(), nets, pairs.images, draws=3)
    assert both.batch_shape == (2, 3, 16, 24)
    assert drawn.batch_shape == (6, 3, 16, 24)
    assert torch.equal(both.loc[1], nets[1](to_network(pairs.images))[:, 0])
    assert not torch.equal(drawn.loc[0], drawn.loc[1])


def test_out_of_memory_names_a_batch_that_fits(monkeypatch):
    assert largest_batch(lambda size: size <= 5, 32) == 4
    assert largest_batch(lambda _: False, 32) == 0

    real = room._loss_of

    def hungry(method):
        loss = real(method)

        def limited(module, batch):
            if len(batch[0]) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return loss(module, batch)

        return limited

    monkeypatch.setattr(room, "_loss_of", hungry)
    pairs = ramps(4)
    recipe = ImageRecipe(width=4, blocks=2, batch_size=16, settings=QUICK)
    with pytest.raises(ev.InputError, match=r"a batch of 16 images does not fit .* a batch of 2 fits"):
        fit_images(Evidential(), pairs, pairs, recipe, device="cpu")


def test_least_squares_is_a_gaussian_of_one_width():
    raw = torch.tensor([[0.3], [2.0]], dtype=torch.bfloat16)
    answer = LeastSquares(0.2).answer(raw)
    assert answer.scale.unique().item() == pytest.approx(0.2)
    assert answer.loc.dtype == torch.float32
    y = torch.tensor([0.5, 1.0])
    assert np.allclose(LeastSquares().loss(answer, y), (y - answer.loc) ** 2)
