import io

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf
from torch import nn

import howsure as hs
from howsure.nn import appearance as room
from howsure.nn.appearance import APPEARANCE, COLOURS, ImageFading, Seen, appearance


def pictures(count=3, height=9, width=14, seed=0):
    """Bytes (N, 3, H, W), some of them dark."""
    random = np.random.default_rng(seed)
    return (random.integers(0, 256, (count, 3, height, width)) * random.random((count, 1, 1, 1))).astype(np.uint8)


def as_floats(pixels):
    return torch.from_numpy(pixels).float() / 255


# Looks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(9, 14), (1, 7), (8, 1), (1, 1)])
def test_colours_are_those_of_numpys_histograms(size):
    pixels = pictures(3, *size)
    found = appearance(as_floats(pixels))
    assert found.shape == (3, APPEARANCE)
    for image, features in zip(pixels, found.numpy(), strict=True):
        counts = [np.bincount(channel.ravel() // 16, minlength=16) / channel.size for channel in image]
        assert np.allclose(features[:COLOURS] ** 2, np.concatenate(counts), atol=1e-6)


def test_gradients_are_counted_by_their_logarithm():
    pixels = pictures(2, 7, 6, seed=1)
    grey = pixels.astype(float).mean(1) / 255
    for image, features in zip(grey, appearance(as_floats(pixels)).numpy(), strict=True):
        sizes = []
        for y in range(7):
            for x in range(6):
                down = image[y + 1, x] - image[y, x] if y < 6 else 0
                across = image[y, x + 1] - image[y, x] if x < 5 else 0
                sizes.append(np.log(np.hypot(down, across) + 1 / 255))
        edges = [-np.inf, *np.linspace(-5.4, -0.8, 15), np.inf]
        assert np.allclose(features[COLOURS:] ** 2, np.histogram(sizes, edges)[0] / 42, atol=1e-6)


def test_large_images_are_compared_a_few_edges_at_a_time(monkeypatch):
    x = as_floats(pictures())
    whole = appearance(x)
    monkeypatch.setattr(room, "AT_ONCE", 2 * x.numel())
    assert torch.equal(appearance(x), whole)
    assert torch.equal(appearance(x.contiguous(memory_format=torch.channels_last)), whole)


def test_rounding_does_not_move_a_byte_to_another_bin():
    steps = torch.arange(256.0).view(1, 1, 16, 16).expand(1, 3, -1, -1) / 255
    for x in (steps, steps * (1 + 1e-5), steps - 1e-4, steps.double(), (steps * 255).to(torch.float16) / 255):
        assert np.allclose(appearance(x.clamp(0, 1))[:, :COLOURS].numpy(), 0.25, atol=1e-3)


def test_grey_image_has_three_equal_channels():
    grey = as_floats(pictures())[:, :1].expand(-1, 3, -1, -1)
    red, green, blue = appearance(grey)[:, :COLOURS].chunk(3, 1)
    assert torch.equal(red, green)
    assert torch.equal(red, blue)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, 4, 4, dtype=torch.uint8), np.zeros((2, 3, 4, 4))])
def test_appearance_of_other_inputs_raises(wrong):
    with pytest.raises(hs.InputTypeError):
        appearance(wrong)


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 1, 4, 4), (2, 3, 0, 4)])
def test_other_shapes_have_no_looks(shape):
    with pytest.raises(hs.InputError) as caught:
        appearance(torch.zeros(shape))
    assert str(shape) in caught.value.message


# Fading ---------------------------------------------------------------------------------------------------------------


def seen(count, seed=0, shift=0.0, channels=(4, 5, 6, 7)):
    """Features of made-up images, those of three blocks and of the looks correlated."""
    random = np.random.default_rng(seed)
    hidden = random.standard_normal((count, 3)) + shift
    pooled = []
    for k, width in enumerate(channels):
        noise = random.standard_normal((count, width))
        mixing = np.random.default_rng(100 + k).standard_normal((3, width))
        pooled.append(torch.from_numpy(np.exp(0.3 * hidden @ mixing + 0.2 * noise)).float())
    return Seen(appearance(torch.rand(count, 3, 6, 8, generator=torch.Generator().manual_seed(seed))), tuple(pooled))


def by_hand(train, asked):
    """The distance without a trend, from the definition, with scikit-learn's covariance."""

    def parts(x):
        logs = [
            np.log(b.double().numpy() + 0.01 * t.double().numpy().mean())
            for b, t in zip(x.pooled[:3], train.pooled[:3], strict=True)
        ]
        looks = x.appearance.double().numpy()
        return [*logs, looks[:, :COLOURS], looks[:, COLOURS:]]

    spreads = [np.sqrt(part.var(0).mean()) for part in parts(train)]
    known, new = (np.concatenate([p / s for p, s in zip(parts(x), spreads, strict=True)], 1) for x in (train, asked))
    estimate = LedoitWolf().fit(known)
    return np.sqrt(estimate.mahalanobis(new))


def test_distance_is_that_of_scikit_learns_covariance():
    train, asked = seen(60), seen(9, seed=1)  # too few to say what is usual for an image
    fading = ImageFading.fit(train, seen(20, seed=2))
    expected = by_hand(train, asked)
    found = fading.distance(asked).numpy()
    assert found / found[0] == pytest.approx(expected / expected[0], rel=1e-6)
    assert np.median(fading.distance(train).numpy()) == pytest.approx(1, rel=0.3)


def test_share_is_one_up_to_the_reach_and_falls_by_the_power():
    train, usual = seen(200), seen(41, seed=1)
    fading = ImageFading.fit(train, usual, power=3.0)
    distance, share = fading.distance(usual).numpy(), fading(usual).numpy()
    assert float(fading.reach) == pytest.approx(np.median(distance), rel=1e-9)
    assert (share == 1).sum() == 21
    beyond = distance > np.median(distance)
    assert share[beyond] == pytest.approx((np.median(distance) / distance[beyond]) ** 3, rel=1e-9)
    near, far = (fading(seen(30, seed=2, shift=s)).numpy() for s in (5.0, 50.0))
    assert near.mean() < 0.5
    assert far.max() < 0.01
    assert ImageFading.fit(train, usual, power=0.0)(seen(5, shift=9.0)).tolist() == [1.0] * 5


def test_usual_distance_corrects_for_images_that_vary_more():
    """Features of the second block vary the more, the larger those of the first are: so do plain distances."""

    def made(count, seed):
        random = np.random.default_rng(seed)
        first = random.standard_normal((count, 1))
        blocks = [
            first + 0.05 * random.standard_normal((count, 4)),
            np.exp(0.5 * first) * random.standard_normal((count, 6)),
        ]
        pooled = tuple(torch.from_numpy(np.exp(b)).float() for b in blocks)
        blank = appearance(torch.rand(count, 3, 6, 8, generator=torch.Generator().manual_seed(seed)))
        return Seen(0.0 * blank, pooled), first[:, 0]

    (train, _), (usual, first) = made(1500, 0), made(400, 1)
    fading = ImageFading.fit(train, usual)
    after = np.log(fading.distance(usual).numpy())
    before = np.log(fading.density(fading.features(usual)).numpy())
    assert np.corrcoef(before, first)[0, 1] > 0.5
    assert abs(np.corrcoef(after, first)[0, 1]) < 0.3


def test_training_images_define_the_usual_distance_without_validation():
    train = seen(300)
    alone, few = ImageFading.fit(train), ImageFading.fit(train, seen(9, seed=1))
    assert torch.equal(alone.reach, few.reach)
    assert float(alone.reach) == pytest.approx(float(ImageFading.fit(train, seen(300, seed=3)).reach), rel=0.1)
    # a density is nearer to the images that it was fitted to, which the reach must not believe
    assert float(alone.reach) > float(alone.distance(train).median())


def test_equal_images_have_distance_zero():
    one = seen(1)
    same = Seen(one.appearance.expand(12, -1), tuple(block.expand(12, -1) for block in one.pooled))
    fading = ImageFading.fit(same)
    assert fading(seen(4, seed=5)).tolist() == [1.0] * 4
    dead = seen(30)
    dead = Seen(dead.appearance, (dead.pooled[0], 0 * dead.pooled[1], dead.pooled[2]))
    assert bool(ImageFading.fit(dead)(dead).isfinite().all())


def test_state_dict_round_trip_of_a_new_object():
    fading = ImageFading.fit(seen(100), seen(20, seed=1))
    asked = seen(6, seed=2, shift=1.0)
    file = io.BytesIO()
    torch.save(fading.state_dict(), file)
    file.seek(0)
    new = ImageFading((4, 5, 6, 7))
    assert bool(new(asked).isnan().all())
    new.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(new(asked), fading(asked))


def test_it_can_be_exported_with_the_looks():
    class Familiar(nn.Module):
        def __init__(self, fading):
            super().__init__()
            self.fading = fading

        def forward(self, images, *pooled):
            return self.fading(Seen(appearance(images), pooled))

    fading = ImageFading.fit(seen(100), seen(20, seed=1))
    inputs = (as_floats(pictures(2)), *seen(2, seed=3).pooled)
    whole = Familiar(fading)
    assert torch.allclose(torch.export.export(whole, inputs).module()(*inputs), whole(*inputs))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"power": -1.0}, "power"),
        ({"power": np.inf}, "power"),
        ({"quantile": 0.0}, "quantile"),
        ({"quantile": 2}, "quantile"),
    ],
)
def test_numbers_out_of_range(wrong, says):
    with pytest.raises(hs.InputError, match=says) as caught:
        ImageFading.fit(seen(20), **wrong)
    assert caught.value.value == wrong[says]


def test_too_few_images_and_other_networks():
    with pytest.raises(hs.InputError):
        ImageFading.fit(seen(9))
    with pytest.raises(hs.InputError) as caught:
        ImageFading.fit(seen(20))(seen(3, channels=(4, 5)))
    assert caught.value.value == [4, 5]
    broken = seen(20)
    broken.pooled[0][3] = torch.nan
    with pytest.raises(hs.InputError):
        ImageFading.fit(broken)
