from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import howsure as hs
from howsure import metrics
from howsure.images import Augmentation, FittedImages, ImageBatches, ImageRecipe, Pairs, fit_images
from howsure.images.batches import to_network
from howsure.images.fit import _usable
from howsure.images.model import BATCH_PIXELS
from howsure.images.networks import raw_maps
from howsure.images.pairs import hold_out_images
from howsure.images.training import _loss_of
from howsure.likelihoods import Evidential, NormalLikelihood
from howsure.nn import UNet
from howsure.storage import save_model
from howsure.training import Settings

STILL = Augmentation(flip=False, zoom=1, color=0)


def ramps(count=6, height=16, width=24):
    """Images whose first channel is the map: whatever happens to one must happen to the other."""
    y, x = torch.meshgrid(torch.linspace(0.1, 0.5, height), torch.linspace(0, 0.4, width), indexing="ij")
    maps = (x + y).expand(count, -1, -1) * torch.linspace(0.5, 1, count).view(-1, 1, 1)
    image = torch.stack([maps, 0 * maps + 0.5, 1 - maps], -1)
    return Pairs((255 * image).round().byte(), (255 * maps).round() / 255)


# Batches --------------------------------------------------------------------------------------------------------------


def test_bytes_become_inputs_of_a_network():
    pairs = ramps(2)
    x = to_network(pairs.images)
    assert x.shape == (2, 3, 16, 24)
    assert torch.equal(x[:, 0], pairs.images[..., 0].float() / 255)
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("how", [Augmentation(color=0), Augmentation(color=0, zoom=1), Augmentation(color=0, zoom=3)])
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


def test_enlarged_images_have_smaller_depths_on_request():
    pairs = ramps()
    zoomed = Augmentation(flip=False, zoom=2, color=0)
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


def test_colors_change_and_stay_in_range():
    pairs = ramps()
    how = Augmentation(flip=False, zoom=1, color=0.5)
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
        (lambda p: ImageBatches(p.images.float(), p.maps, 2), r"torch\.float32"),
        (lambda p: ImageBatches(p.images, p.maps[:, :4], 2), r"\(2, 4, 24\)"),
        (lambda p: ImageBatches(p.images[:0], p.maps[:0], 2), "images"),
        (lambda p: ImageBatches(p.images, p.maps, 0), "batch_size"),
        (lambda _: Augmentation(zoom=0.5), "zoom"),
        (lambda _: Augmentation(color=1.0), "color"),
        (lambda _: ImageRecipe(select="luck"), "'luck'"),
    ],
)
def test_bad_batches_raise(make, message):
    with pytest.raises(hs.InputError, match=message):
        make(ramps(2))


# Fits -----------------------------------------------------------------------------------------------------------------

QUICK = Settings(steps=150, learning_rate=5e-3, evaluate_every=50)


@pytest.mark.parametrize("method", [Evidential(0.01), NormalLikelihood()])
def test_network_learns_maps_with_gaps(method):
    pairs = ramps(12)
    maps = pairs.maps.clone()
    maps[:, :5, :5] = torch.nan
    still = Augmentation(color=0)  # here a color channel is the map
    settings = Settings(steps=300, learning_rate=1e-2, evaluate_every=60)
    recipe = ImageRecipe(width=8, blocks=3, batch_size=4, settings=settings, select="rmse", augmentation=still)
    before = torch.get_rng_state()
    gaps = Pairs(pairs.images, maps)
    model = fit_images(gaps, method=method, validation=gaps, recipe=recipe, standardize=False, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    (training,) = model.training
    assert not training.diverged.any()
    known = ~maps.isnan()
    error = metrics.rmse(model.predict(pairs.images), maps, mask=known)
    assert error == pytest.approx(float(training.best_score[0]), rel=1e-4)
    assert error < 0.6 * (pairs.maps - pairs.maps.mean(0))[known].square().mean().sqrt()


def test_weights_are_selected_by_the_chosen_score():
    pairs = ramps(8)
    scores = {}
    for select in ("nll", "rmse"):
        recipe = ImageRecipe(width=4, blocks=2, batch_size=4, settings=QUICK, select=select)
        options = {"recipe": recipe, "standardize": False, "device": "cpu"}
        model = fit_images(pairs, method=NormalLikelihood(), validation=pairs, **options)
        scores[select] = model.training[0].best_score[0]
        score = metrics.nll if select == "nll" else metrics.rmse
        assert score(model.predict(pairs.images), pairs.maps) == pytest.approx(float(scores[select]), rel=1e-3)


def test_interrupted_fit_goes_on_to_the_same_weights(tmp_path):
    pairs = ramps(6)

    def train(checkpoint, stop=None):
        recipe = ImageRecipe(
            width=4, blocks=2, batch_size=2, settings=Settings(steps=12, evaluate_every=4, checkpoint_every=1)
        )
        calls = []

        class Stopping(Evidential):
            def loss(self, answer, y, networks=None):
                calls.append(1)
                if stop is not None and len(calls) > stop:
                    raise RuntimeError("pulled the plug")
                return super().loss(answer, y, networks)

        options = {"recipe": recipe, "device": "cpu", "checkpoint": checkpoint}
        return fit_images(pairs, method=Stopping(0.01), validation=pairs, **options).networks[0]

    whole = train(None)
    with pytest.raises(RuntimeError, match="plug"):
        train(tmp_path / "a", stop=6)
    resumed = train(tmp_path / "a")
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_networks_are_members():
    pairs = ramps(3)
    nets = tuple(UNet(2, width=4, blocks=2, seed=s).eval() for s in range(2))
    model = FittedImages(NormalLikelihood(), nets, ImageRecipe(width=4, blocks=2))
    both = model.predict(pairs.images).answers
    assert both.batch_shape == (2, 3, 16, 24)
    assert torch.equal(both.loc[1], nets[1](to_network(pairs.images))[:, 0])
    joined = FittedImages.join([replace(model, networks=(net,)) for net in nets])
    assert torch.equal(joined.predict(pairs.images).answers.loc, both.loc)
    assert (joined.members, joined.parameters) == (2, model.parameters)


def test_predictions_in_batches_are_those_of_all_images(monkeypatch):
    pairs = ramps(7)
    nets = tuple(UNet(2, width=4, blocks=2, seed=s).eval() for s in range(2))
    model = FittedImages(NormalLikelihood(), nets, ImageRecipe(width=4, blocks=2))
    whole = model.predict(pairs.images)
    monkeypatch.setattr("howsure.images.model.BATCH_IMAGES", 3)
    assert [len(batch) for batch in model.predict_batches(pairs.images)] == [3, 3, 1]
    p = model.predict(pairs.images)
    assert p.shape == (7, 16, 24)
    assert np.allclose(p.mean, whole.mean, atol=1e-6)
    assert np.array_equal(np.concatenate([batch.mean for batch in model.predict_batches(pairs.images)]), p.mean)
    monkeypatch.undo()
    monkeypatch.setitem(BATCH_PIXELS, "cpu", 2 * 2 * 16 * 24)  # two images for two members
    assert [len(batch) for batch in model.predict_batches(pairs.images)] == [2, 2, 2, 1]
    monkeypatch.setitem(BATCH_PIXELS, "cpu", 1)
    assert [len(batch) for batch in model.predict_batches(pairs.images)] == [1] * 7
    assert model.predict(pairs.images[:0]).shape == (0, 16, 24)


def test_batches_are_computed_when_they_are_reached(monkeypatch):
    pairs, calls = ramps(4), []
    net = UNet(2, width=4, blocks=2, seed=0).eval()
    net.register_forward_pre_hook(lambda _, images: calls.append(len(images[0])))
    model = FittedImages(NormalLikelihood(), (net,), ImageRecipe(width=4, blocks=2))
    monkeypatch.setattr("howsure.images.model.BATCH_IMAGES", 3)
    batches = model.predict_batches(pairs.images)
    assert calls == []
    assert next(batches).shape == (3, 16, 24)
    assert calls == [3]
    assert next(batches).shape == (1, 16, 24)
    assert calls == [3, 1]


def test_predictions_are_without_dropout():
    pairs = ramps(3)
    recipe = ImageRecipe(width=4, blocks=2, dropout=0.5)
    model = FittedImages(NormalLikelihood(), (recipe.network(2, 0).eval(),), recipe)
    mean = model.predict(pairs.images).mean
    model.networks[0].train()  # as further training leaves it
    assert np.array_equal(model.predict(pairs.images).mean, mean)


def test_out_of_memory_names_the_batch(monkeypatch):
    def hungry(method, *scaling):
        loss = _loss_of(method, *scaling)

        def limited(module, batch):
            if len(batch[0]) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return loss(module, batch)

        return limited

    monkeypatch.setattr("howsure.images.training._loss_of", hungry)
    pairs = ramps(4)
    recipe = ImageRecipe(width=4, blocks=2, batch_size=16, settings=QUICK)
    with pytest.raises(hs.InputError, match=r"\b16\b"):
        fit_images(pairs, validation=pairs, recipe=recipe, device="cpu")


# A user's own images --------------------------------------------------------------------------------------------------


SMALL = ImageRecipe(
    width=6, blocks=3, batch_size=8, settings=Settings(steps=200, learning_rate=1e-2, evaluate_every=50)
)


def millimetres(count=16, height=21, width=30, seed=0):
    """Pictures of a size that no network takes as it is, with a map in millimetres that one channel shows."""
    g = np.random.default_rng(seed)
    level = g.uniform(0.2, 0.8, (count, 1, 1)) + np.linspace(-0.2, 0.2, width) + 0 * np.linspace(0, 1, height)[:, None]
    images = np.stack([level, 0.5 + 0 * level, 1 - level], -1)
    depth = 1000 + 4000 * level + g.normal(0, 50, level.shape)
    depth[:, :4, :4] = np.nan
    return np.rint(255 * images).astype(np.uint8), depth


def test_predictions_have_the_units_of_the_targets():
    images, depth = millimetres()
    model = fit_images(images, depth, recipe=SMALL, device="cpu")
    new, truth = millimetres(5, seed=1)
    known = ~np.isnan(truth)
    p = model.predict(new)
    assert p.shape == (5, 21, 30)
    assert metrics.rmse(p, truth, mask=known) < 0.5 * np.nanstd(truth)
    assert 0.7 < metrics.coverage(p, truth, coverage=0.9, mask=known) <= 1
    assert np.all(p.aleatoric_std > 0)
    assert np.all(p.epistemic_std > 0)
    assert p.interval(0.9).shape == (5, 21, 30, 2)
    for same in (new / 255, new.astype(np.int64), torch.from_numpy(new), to_network(torch.from_numpy(new))):
        assert model.predict(same).mean == pytest.approx(p.mean, rel=1e-5)
    grey = fit_images(images[..., 0], np.nan_to_num(depth), unknown=0, recipe=SMALL, device="cpu")
    assert grey.loc == pytest.approx(model.loc, rel=1e-6)
    assert grey.predict(new[..., :1]).shape == (5, 21, 30)


def test_folder_of_pairs_is_fitted_as_arrays_are(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    images, depth = millimetres()
    for part in ("image", "target"):
        (tmp_path / part).mkdir()
    for k, (image, target) in enumerate(zip(images, depth, strict=True)):
        image_module.fromarray(image).save(tmp_path / "image" / f"{k:02d}.png")
        np.save(tmp_path / "target" / f"{k:02d}.npy", target)
    quick = replace(SMALL, settings=Settings(steps=6, evaluate_every=3))
    a, b = (fit_images(*source, recipe=quick, device="cpu") for source in ((tmp_path,), (images, depth)))
    assert np.array_equal(a.predict(images).mean, b.predict(images).mean)
    with pytest.raises(hs.InputError, match="target/"):
        fit_images(tmp_path, depth)
    with pytest.raises(hs.InputError, match="target/"):
        fit_images(images, depth, validation=(str(tmp_path), depth))


def test_ensemble_a_constant_target_and_whole_groups():
    images, depth = millimetres(8)
    quick = replace(SMALL, settings=Settings(steps=6, evaluate_every=3))
    scenes = np.repeat(["a", "b", "c", "d"], 2)
    model = fit_images(images, depth, members=2, groups=scenes, validation=0.3, recipe=quick, device="cpu")
    assert (model.members, len(model.training)) == (2, 2)
    p = model.predict(images)
    assert p.members == 2
    assert p.decompose().epistemic.max() > 0
    flat = fit_images(images, np.full_like(depth, 7.0), validation=0, recipe=quick, device="cpu")
    assert flat.predict(images).mean == pytest.approx(7.0, abs=3)
    pairs = Pairs(torch.from_numpy(images), torch.from_numpy(depth))
    assert [len(part) for part in hold_out_images(pairs, 0.3, scenes, 0)] == [6, 2]
    large = ["a"] * 6 + ["b", "c"]
    for seed in range(8):  # a large group is not taken for a small share
        assert [len(part) for part in hold_out_images(pairs, 0.2, large, seed)] in ([6, 2], [7, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: {"images": x[..., :2]}, r"\(6, 21, 30, 2\)"),
        (lambda x, y: {"images": np.moveaxis(x, 3, 1)}, r"\(6, 3, 21, 30\)"),
        (lambda x, y: {"images": x.astype(float)}, r"\b0\b.*\b1\b"),
        (lambda x, y: {"images": x.astype(int) + 300}, "255"),
        (lambda x, y: {"images": x.astype(str)}, "<U3"),
        (lambda x, y: {"targets": y[:, 1:]}, r"\(6, 20, 30\)"),
        (lambda x, y: {"targets": None}, "target/"),
        (lambda x, y: {"targets": np.full_like(y, np.nan)}, "unknown="),
        (lambda x, y: {"targets": np.where(np.isnan(y), np.inf, y)}, r"\b0\b"),
        (lambda x, y: {"targets": y.astype(str)}, "<U32"),
        (lambda x, y: {"validation": 1.5}, r"1\.5"),
        (lambda x, y: {"validation": "nowhere"}, "nowhere"),
        (lambda x, y: {"validation": None}, "NoneType"),
        (lambda x, y: {"groups": [1, 2]}, r"\(2,\)"),
        (lambda x, y: {"groups": [1] * 6}, "groups"),
        (lambda x, y: {"groups": [1, 2] * 3, "validation": (x, y)}, "validation"),
        (lambda x, y: {"members": 0}, "members"),
        (lambda x, y: {"seed": -1}, "seed"),
        (lambda x, y: {"unknown": "a"}, "unknown"),
        (lambda x, y: {"groups": [1, None] * 3}, "groups"),
        (lambda x, y: {"recipe": "x"}, "ImageRecipe"),
        (lambda x, y: {"recipe": {}}, "ImageRecipe"),
        (lambda x, y: {"method": "evidential"}, "method"),
        (lambda x, y: {"method": Evidential((0.1, 0.2))}, "weight"),
        (lambda x, y: {"targets": y * 1e20}, "float32"),
        (lambda x, y: {"targets": y / 1e30}, "float32"),
        (lambda x, y: {"targets": y + 1e12}, r"1e\+12"),
        (lambda x, y: {"images": x[0], "targets": y[0]}, r"\(21, 30, 3\)"),
        (lambda x, y: {"images": [x[0], x[1, 1:]]}, "images"),
        (lambda x, y: {"validation": (x, y * np.nan)}, "unknown="),
        (lambda x, y: {"targets": np.where(np.arange(6)[:, None, None] == 0, y, np.nan)}, "validation"),
        (lambda x, y: {"recipe": replace(SMALL, augmentation=Augmentation(rescale=True))}, "rescale=True"),
        (lambda x, y: {"images": x[:1], "targets": y[:1]}, r"\b1\b.*\b2\b"),
        (lambda x, y: {"images": "nowhere", "targets": None}, "nowhere"),
    ],
)
def test_bad_images_raise(change, message):
    images, depth = millimetres(6)
    with pytest.raises((hs.InputError, hs.InputTypeError), match=message):
        fit_images(**({"images": images, "targets": depth, "recipe": SMALL, "device": "cpu"} | change(images, depth)))


def test_pairs_are_read_as_arrays_are():
    images, depth = millimetres(6)
    zeros = torch.from_numpy(np.nan_to_num(depth))
    quick = {"recipe": replace(SMALL, settings=Settings(steps=2, evaluate_every=1)), "device": "cpu", "unknown": 0}
    pairs = fit_images(Pairs(torch.from_numpy(images), zeros), **quick)
    arrays = fit_images(
        images, zeros.numpy(), seed=np.int64(0), members=np.int64(1), validation=np.float32(0.1), **quick
    )
    assert pairs.loc == arrays.loc
    assert np.array_equal(pairs.predict(images).mean, arrays.predict(images).mean)
    wide = images.astype(np.uint16)
    for same in (wide, 257 * wide):
        assert np.array_equal(pairs.predict(same).mean, pairs.predict(images).mean)
    x = to_network(torch.from_numpy(images))
    assert pairs.predict(x.double()).mean == pytest.approx(pairs.predict(images).mean, rel=1e-5)
    for wrong in (images[0], x * 255, x[..., :3], "folder"):
        with pytest.raises((hs.InputError, hs.InputTypeError)):
            pairs.predict(wrong)


def test_network_under_autocast_uses_its_current_weights():
    network, x = UNet(4, width=4, blocks=3, seed=0).eval(), torch.rand(1, 3, 16, 16)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # a context around all of it, as fit_images has
        before = raw_maps([network], x, half=True)
        for p in network.encoder.parameters():
            p.mul_(1.5)
        after = raw_maps([network], x, half=True)
        exact = raw_maps([network], x, half=False)
    assert (after - before).abs().max() > 0.1
    assert torch.allclose(after, exact, atol=0.02)


def test_callers_contexts_change_nothing():
    images, depth = millimetres(6)
    quick = {"recipe": replace(SMALL, settings=Settings(steps=4, evaluate_every=2)), "device": "cpu"}
    plain = fit_images(images, depth, **quick)
    mean = plain.predict(images).mean
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            model = fit_images(images, depth, **quick)
            assert np.array_equal(model.predict(images).mean, mean)
    torch.set_default_dtype(torch.float64)
    try:
        assert np.array_equal(fit_images(images, depth, **quick).predict(images).mean, mean)
    finally:
        torch.set_default_dtype(torch.float32)
    plain.networks[0].train()
    assert np.array_equal(plain.predict(images).mean, mean)


def test_network_that_diverged_raises_or_left_out(monkeypatch):
    images, depth = millimetres(4)
    wild = Settings(steps=6, learning_rate=1e20, clip=None, warmup=0.0, evaluate_every=2)
    options = {"recipe": replace(SMALL, settings=wild), "device": "cpu"}
    with pytest.raises(hs.InputError, match=r"recipe\.settings"):
        fit_images(images, depth, members=2, **options)
    kept = fit_images(images, depth, keep_diverged=True, **options)
    assert kept.training[0].diverged.all()
    calm = fit_images(images, depth, recipe=replace(SMALL, settings=Settings(steps=2, evaluate_every=1)), device="cpu")
    with pytest.warns(RuntimeWarning):
        assert _usable([calm, kept]) == [calm]


def test_checkpoint_of_another_scale_raises(tmp_path):
    images, depth = millimetres(4)
    quick = {"recipe": replace(SMALL, settings=Settings(steps=4, evaluate_every=2)), "device": "cpu"}
    fit_images(images, depth, checkpoint=tmp_path / "c", **quick)
    with pytest.raises(hs.InputError) as caught:
        fit_images(images, depth, checkpoint=tmp_path / "c", standardize=False, **quick)
    assert caught.value.hint is not None


def test_saved_model_round_trip(tmp_path):
    images, depth = millimetres(8)
    recipe = replace(SMALL, dropout=0.2, settings=Settings(steps=6, evaluate_every=3))
    for method in (Evidential(0.1, "standard_score"), NormalLikelihood()):
        model = fit_images(images, depth, method=method, members=2, recipe=recipe, seed=3, device="cpu")
        folder = model.save(tmp_path / type(method).__name__)
        for again in (FittedImages.load(folder), hs.load(folder)):
            assert (again.method, again.recipe) == (model.method, recipe)
            assert (again.loc, again.scale) == (model.loc, model.scale)
            assert again.training[1].history == model.training[1].history
            assert torch.equal(again.training[1].best_score, model.training[1].best_score)
            assert np.array_equal(again.predict(images).std, model.predict(images).std)


def test_other_headers_than_of_images_raise(tmp_path):
    images, depth = millimetres(4)
    quick = replace(SMALL, settings=Settings(steps=2, evaluate_every=1))
    model = fit_images(images, depth, recipe=quick, device="cpu")
    tensors, header = model.state()
    recipe, method = asdict(header.recipe), header.method
    changes = [{"networks": 2}, {"networks": "1"}, {"scale": 0.0}, {"loc": None}]
    changes += [
        {"recipe": recipe | wrong} for wrong in ({"width": 10**9}, {"blocks": 60}, {"select": "x"}, {"head": ""})
    ]
    changes += [{"method": method | wrong} for wrong in ({"weight": "x"}, {"penalty": 3}, {"more": 1})]
    changes += [{"method": {"name": "Method"}}, {"method": {"name": "NormalLikelihood"}}, {"training": 3}]
    for change in changes:
        with pytest.raises(hs.InputError):
            hs.load(save_model(tmp_path / "forged", tensors, replace(header, **change)))
    some = dict(list(tensors.items())[:-1])
    empty = {"0.encoder.0.0.weight": torch.zeros(1, 3, 3, 3), "0.encoder.20.2.weight": torch.zeros(1 << 20, 0)}
    with pytest.raises(hs.InputError):  # whose networks would fill the memory
        hs.load(save_model(tmp_path / "forged", empty, replace(header, recipe=recipe | {"width": 1, "blocks": 21})))
    for wrong in (some, tensors | {"9.x": torch.zeros(1)}, {k: t.double() for k, t in tensors.items()}):
        with pytest.raises(hs.InputError, match="forged"):
            hs.load(save_model(tmp_path / "forged", wrong, header))
    with pytest.raises(hs.InputError):
        replace(model, method=Evidential(penalty=lambda *_: 0)).save(tmp_path / "no")
    table = hs.EnsembleRegressor(members=1, steps=2).fit(np.eye(6), np.arange(6.0)).save(tmp_path / "table")
    with pytest.raises(hs.InputError, match=r"howsure\.load"):
        FittedImages.load(table)


# Evidence of images -------------------------------------------------------------------------------------------------


BRIEF = replace(SMALL, settings=Settings(steps=6, evaluate_every=3))


def noise(count=5, height=21, width=30):
    return np.random.default_rng(9).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def two_models(**options):
    """The same network, with fading and without."""
    images, depth = millimetres(30)
    model = fit_images(images, depth, validation=0.4, recipe=BRIEF, device="cpu", **options)
    for fading in model.fading or ():
        fading.power.fill_(2.0)  # whatever the few validation images say
    return model, replace(model, fading=None), images


def test_intervals_widen_for_images_unlike_the_training_images():
    model, plain, images = two_models()
    model.fading[0].power.fill_(4.0)
    model.fading[0].width.fill_(1.0)
    inside, outside = model.predict(images), model.predict(noise())
    assert inside.familiarity.shape == (30,)
    assert np.median(inside.familiarity) > 0.5
    assert outside.familiarity.max() < 0.1
    before = plain.predict(noise())
    assert before.familiarity is None
    assert np.array_equal(outside.mean, before.mean)
    share = outside.familiarity[:, None, None]
    assert outside.decompose("paper").aleatoric == pytest.approx(before.decompose("paper").aleatoric, rel=1e-5)
    assert outside.decompose("paper").epistemic == pytest.approx(before.decompose("paper").epistemic / share, rel=1e-4)
    assert np.all(np.ptp(outside.interval(0.9), axis=-1) > 1.5 * np.ptp(before.interval(0.9), axis=-1))
    assert torch.equal(outside.answers.alpha_minus_one, before.answers.alpha_minus_one)
    nu = torch.from_numpy(share).to(before.answers.nu.dtype) * before.answers.nu[0]
    assert torch.allclose(outside.answers.nu[0], nu, rtol=1e-4)
    assert "fading" in repr(model)
    assert "fading" not in repr(plain)


def test_distributions_without_image_evidence_equal_the_networks():
    model, plain, _ = two_models()
    x = to_network(torch.from_numpy(noise())).requires_grad_()
    assert torch.equal(model.answers(x).gamma, plain.answers(x).gamma)
    assert torch.equal(model.answers(x).nu, plain.answers(x).nu)
    (gradient,) = torch.autograd.grad(model.answers(x).gamma.sum(), x)
    assert gradient.abs().max() > 0
    answer, familiarity = plain.answers_with_evidence(x)
    assert type(answer) is hs.NormalInverseGamma
    assert familiarity is None
    faded, familiarity = model.answers_with_evidence(x.detach())
    share = familiarity[..., None, None].to(faded.nu.dtype)
    assert torch.allclose(faded.nu, share * plain.predict(noise()).answers.nu, rtol=1e-5)


def test_prediction_in_batches_fades_as_a_whole_one(monkeypatch):
    model, _, _ = two_models(members=2)
    several = np.concatenate([millimetres(4, seed=1)[0], noise()])
    whole = model.predict(several)
    assert whole.familiarity[-5:].max() < whole.familiarity[:4].min()
    monkeypatch.setattr("howsure.images.model.BATCH_IMAGES", 2)
    parts = model.predict(several)
    assert parts.familiarity == pytest.approx(whole.familiarity, rel=1e-4)
    assert parts[3:].std == pytest.approx(whole[3:].std, rel=1e-4)


def test_normal_distributions_widen():
    model, plain, _ = two_models(method=NormalLikelihood())
    faded, before = model.predict(noise()), plain.predict(noise())
    width = float(model.fading[0].width)
    assert faded.std == pytest.approx(width * before.std / np.sqrt(faded.familiarity)[:, None, None], rel=1e-4)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
def test_width_equals_the_ratio_of_true_and_predicted_scale(factor):
    _, plain, images = two_models()
    predictive = plain.answers(torch.from_numpy(images)).predictive()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = predictive.sample()
    targets = (predictive.loc + factor * (drawn - predictive.loc))[0].detach().numpy()
    fitted = plain.fit_fading(images, images, targets)
    assert float(fitted.fading[0].width) == pytest.approx(factor, rel=0.1)


def test_power_is_the_largest_that_costs_no_likelihood():
    images, depth = millimetres(30)
    model = fit_images(images[:18], depth[:18], validation=0, recipe=BRIEF, device="cpu")
    assert float(model.fading[0].power) == 2  # nothing to judge by
    held = images[18:], depth[18:]
    known = ~np.isnan(depth[18:])

    def nll(each):
        return np.where(known, -each.predict(held[0]).log_prob(np.nan_to_num(depth[18:])), 0).sum((1, 2)) / known.sum(
            (1, 2)
        )

    def power_chosen_by(targets):
        chosen = model.fit_fading(images[:18], held[0], targets)
        return float(chosen.fading[0].power)

    plain, good = nll(replace(model, fading=None)), []
    for power in (4.0, 3.0, 2.0, 1.0):
        faded = model.fit_fading(images[:18], held[0])
        assert float(faded.fading[0].power) == 4
        faded.fading[0].power.fill_(power)
        rise = nll(faded) - plain
        good += [power] if rise.mean() <= rise.std(ddof=1) / np.sqrt(12) else []
    assert power_chosen_by(depth[18:]) == max(good, default=0.0)
    far = depth[18:] + 1e5  # where the network is wrong by far, less evidence is better
    assert power_chosen_by(far) == 4
    assert power_chosen_by(model.predict(held[0]).mean) == 0  # where it is right everywhere, less is worse


def test_plain_evidence_and_too_few_images():
    images, depth = millimetres(30)
    quick = {"recipe": BRIEF, "device": "cpu"}
    assert fit_images(images, depth, evidence="plain", **quick).fading is None
    assert fit_images(images[:9], depth[:9], **quick).fading is None
    assert len(fit_images(images, depth, validation=0, members=2, **quick).fading) == 2
    with pytest.raises(hs.InputError, match="'fade'"):
        fit_images(images, depth, evidence="fade", **quick)


def test_evidence_is_saved_and_models_without_it_are_read(tmp_path):
    model, plain, _ = two_models(members=2)
    again = FittedImages.load(model.save(tmp_path / "model"))
    for mine, theirs in zip(again.fading, model.fading, strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True)
        )
    assert np.array_equal(again.predict(noise()).std, model.predict(noise()).std)
    assert FittedImages.load(plain.save(tmp_path / "plain")).fading is None


def forge(tensors, name, change):
    return tensors | {name: change(tensors[name])}


@pytest.mark.parametrize(
    "change",
    [
        lambda t, s: ({k: v for k, v in t.items() if k != "0.fading.reach"}, s),
        lambda t, s: (forge(t, "0.fading.power", lambda p: -p), s),
        lambda t, s: (forge(t, "0.fading.least", lambda p: p[:-1]), s),
        lambda t, s: (forge(t, "0.fading.scale", torch.zeros_like), s),
        lambda t, s: (forge(t, "0.fading.density.whiten", lambda p: p.float()), s),
        lambda t, s: (t, replace(s, fading="yes")),
        lambda t, s: (t, replace(s, fading=False)),
    ],
)
def test_fading_that_does_not_fit_raises(change, tmp_path):
    model, _, _ = two_models()
    save_model(tmp_path / "model", *change(*model.state()))
    with pytest.raises(hs.InputError, match="model"):
        hs.load(tmp_path / "model")


def test_joined_models_all_fade_or_none():
    model, plain, _ = two_models()
    joined = FittedImages.join([model, model])
    assert joined.fading == (*model.fading, *model.fading)
    assert FittedImages.join([plain, plain]).fading is None
    with pytest.raises(hs.InputError):
        FittedImages.join([model, plain])
    with pytest.raises(hs.InputError, match=r"\b2\b.*\b1\b"):
        replace(joined, fading=model.fading)
