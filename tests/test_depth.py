"""What is said about depth models, on networks whose answer is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import evidentia as ev
from evidentia import metrics
from evidentia.cli.app import app
from evidentia.datasets import rooms
from evidentia.distributions import Gaussian, NormalInverseGamma
from evidentia.fitting import ImageRecipe, Pairs
from evidentia.methods import Evidential, GaussianLikelihood, LeastSquares
from evidentia.nn import UNet
from evidentia.record import read_record
from evidentia.reproduce import timing
from evidentia.reproduce.depth import run as depth
from evidentia.reproduce.depth.scores import (
    BLOCKS,
    LEVELS,
    DepthModel,
    alive_channels,
    attack,
    choose_noise,
    curves,
    density_scores,
    fast_gradient_sign,
    look,
    score,
)
from evidentia.training import Settings


class Known(nn.Module):
    """Raw maps that are fixed, or the mean of an image's channels by fixed weights, and no dropout to speak of."""

    def __init__(self, *levels, weights=(0.0, 0.0, 0.0)):
        super().__init__()
        self.levels = torch.tensor(levels)
        self.weights = torch.tensor(weights)

    def forward(self, x):
        first = torch.einsum("nchw,c->nhw", x, self.weights)
        maps = [first + self.levels[0], *(torch.full_like(first, float(v)) for v in self.levels[1:])]
        return torch.stack(maps, 1)


def images(count=4, height=8, width=12, seed=0):
    return torch.randint(
        0, 256, (count, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


# Looks ----------------------------------------------------------------------------------------------------------------


def test_an_evidential_network_says_what_its_parameters_say():
    raw = (0.4, 0.3, -0.5, -2.0)
    nig = NormalInverseGamma.from_raw(torch.tensor(raw))
    seen = look(DepthModel(Evidential(), (Known(*raw),)), images(), torch.full((4, 8, 12), 0.5))
    assert torch.allclose(seen.mean, nig.prediction.expand(4, 8, 12))
    assert torch.allclose(seen.aleatoric, nig.aleatoric_variance.expand(4, 8, 12))
    assert torch.allclose(seen.epistemic, nig.epistemic_variance.expand(4, 8, 12))
    assert torch.allclose(seen.log_prob, nig.predictive().log_prob(torch.tensor(0.5)).expand(4, 8, 12))
    assert torch.allclose(seen.pit, nig.predictive().cdf(torch.tensor(0.5)).expand(4, 8, 12))
    expected = {
        "total entropy": nig.predictive().entropy(),
        "epistemic entropy": 0.5 * torch.log(2 * torch.pi * torch.e * nig.epistemic_variance),
        "mutual information": nig.mutual_information(),
        "−log ν": -nig.nu.log(),
    }
    assert seen.scores.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(seen.scores[name], value.expand(4), atol=1e-5), name


def test_several_gaussian_networks_are_a_mixture():
    raws = [(0.2, -1.0), (0.6, -0.5), (0.4, -2.0)]
    each = [Gaussian.from_raw(torch.tensor(raw)) for raw in raws]
    seen = look(
        DepthModel(GaussianLikelihood(), tuple(Known(*raw) for raw in raws)), images(2), torch.full((2, 8, 12), 0.3)
    )
    means, deviations = (np.array([float(getattr(g, name)) for g in each]) for name in ("loc", "scale"))
    assert np.allclose(seen.mean, means.mean())
    assert np.allclose(seen.aleatoric, (deviations**2).mean())
    assert np.allclose(seen.epistemic, means.var())
    density = np.mean([np.exp(float(g.log_prob(torch.tensor(0.3)))) for g in each])
    assert np.allclose(seen.log_prob, np.log(density))
    total = 0.5 * np.log(2 * np.pi * np.e * ((deviations**2).mean() + means.var()))
    parts = np.mean([0.5 * np.log(2 * np.pi * np.e * s**2) for s in deviations])
    assert np.allclose(seen.scores["mutual information"], total - parts, atol=1e-5)
    alone = look(DepthModel(GaussianLikelihood(), (Known(*raws[0]),)), images(2))
    assert alone.epistemic is None
    assert set(alone.scores) == {"total entropy"}
    assert alone.log_prob is None


def test_draws_of_dropout_have_a_spread_and_single_passes_none():
    network = UNet(2, width=4, blocks=2, dropout=0.5, seed=0)
    seen = look(DepthModel(GaussianLikelihood(), (network,), draws=6), images())
    assert (seen.epistemic > 0).any()
    again = [look(DepthModel(GaussianLikelihood(), (network,)), images()).mean for _ in range(2)]
    assert torch.equal(*again)


# Scores ---------------------------------------------------------------------------------------------------------------


def right_by_construction(count=40, spread=0.1, gaps=False):
    """Targets drawn from what a Gaussian network says, and that network."""
    generator = torch.Generator().manual_seed(1)
    raw = float(np.log(np.expm1(spread)))
    y = 0.5 + spread * torch.randn(count, 8, 12, generator=generator)
    if gaps:
        y[:, :2] = torch.nan
    return DepthModel(GaussianLikelihood(), (Known(0.5, raw),)), y


@pytest.mark.parametrize("gaps", [False, True])
def test_a_model_that_is_right_is_calibrated(gaps):
    model, y = right_by_construction(gaps=gaps)
    seen = look(model, images(40), y)
    found = score(seen, y) | curves(seen, y)
    known = y[~y.isnan()]
    assert found["rmse"] == pytest.approx(float((known - 0.5).square().mean().sqrt()), rel=1e-5)
    assert found["mae"] == pytest.approx(float((known - 0.5).abs().mean()), rel=1e-5)
    assert found["nll"] == pytest.approx(np.log(0.1 * np.sqrt(2 * np.pi * np.e)), abs=0.03)
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.02)
    assert found["calibration"]["predictive"]["error"] < 0.01
    assert found["calibration"]["authors"]["error"] < 0.02
    assert abs(found["aurg"]) < 1e-6  # the same deviation everywhere ranks nothing
    assert np.ptp(found["cutoff"]["rmse"]) < 1e-6
    assert len(found["calibration"]["authors"]["observed"]) == len(LEVELS) == 41


def test_a_model_that_boasts_is_not():
    _, y = right_by_construction()
    boast = DepthModel(GaussianLikelihood(), (Known(0.5, float(np.log(np.expm1(0.02)))),))
    seen = look(boast, images(40), y)
    found = score(seen, y) | curves(seen, y)
    assert found["coverage_90"] < 0.4
    assert found["calibration"]["predictive"]["error"] > 0.1
    # half of the targets lie below the median, and nearly all of those below the 10 % quantile too
    observed = found["calibration"]["predictive"]["observed"]
    assert observed[20] == pytest.approx(0.5, abs=0.02)
    assert observed[4] == pytest.approx(0.4, abs=0.03)


def test_the_noise_of_least_squares_is_found_on_validation_pairs():
    generator = torch.Generator().manual_seed(0)
    y = 0.5 + 0.07 * torch.randn(20, 8, 12, generator=generator)
    model = choose_noise(DepthModel(LeastSquares(), (Known(0.5),)), Pairs(images(20), y), every=1)
    assert model.method.noise == pytest.approx(0.07, rel=0.06)
    same = DepthModel(GaussianLikelihood(), (Known(0.5, 0.0),))
    assert choose_noise(same, Pairs(images(20), y)) is same


def test_the_mean_of_training_is_the_mean_of_training():
    generator = torch.Generator().manual_seed(0)
    train, test = torch.rand(10, 4, 5, generator=generator), torch.rand(3, 4, 5, generator=generator)
    train[2:, 0, 0] = torch.nan
    test[1, 2, 2] = torch.nan
    blank = torch.zeros(1, 4, 5, 3, dtype=torch.uint8)
    parts = [Pairs(blank.expand(len(m), -1, -1, -1), m) for m in (train, test, test)]
    found = depth.mean_of_training(depth.DepthData("x", *parts, "y", blank))
    gap = test.numpy() - np.nanmean(train.numpy(), 0)
    assert found["rmse"] == pytest.approx(np.sqrt(np.nanmean(gap**2)))
    variance = np.nanvar(train.numpy(), 0)
    assert found["nll"] == pytest.approx(np.nanmean(0.5 * (np.log(2 * np.pi * variance) + gap**2 / variance)), rel=1e-5)


# Unfamiliar and attacked ----------------------------------------------------------------------------------------------


def test_distance_of_features_tells_what_was_never_seen():
    network = UNet(4, width=4, blocks=3, seed=0)
    train, validation, inside = images(80, 16, 16), images(40, 16, 16, seed=1), images(40, 16, 16, seed=2)
    stripes = images(30, 16, 16, seed=3)
    stripes[:, :, ::2] = 255
    groups = {"validation": validation, "inside": inside, "outside": stripes}
    score, blocks = density_scores(network, train, validation, groups)
    assert metrics.auroc(score["inside"], score["outside"]) > 0.95
    assert len(blocks) == 3
    assert torch.allclose(score["outside"], torch.stack([block["outside"] for block in blocks]).mean(0))
    for block in blocks:  # in units of the validation images' spread
        assert block["validation"].mean() == pytest.approx(0, abs=1e-4)
        assert block["validation"].std() == pytest.approx(1, abs=1e-4)
        assert abs(block["inside"].mean()) < 0.7


def test_only_the_first_blocks_tell():
    network = UNet(4, width=4, blocks=5, seed=0)
    score, blocks = density_scores(network, images(40, 16, 16), images(9, 16, 16), {"inside": images(5, 16, 16)})
    first = torch.stack([block["inside"] for block in blocks[:BLOCKS]])
    assert len(blocks) == 5 > BLOCKS
    assert torch.equal(score["inside"], first.mean(0))


def test_a_block_that_died_has_no_distance():
    network = UNet(4, width=4, blocks=3, seed=0)
    with torch.no_grad():
        network.encoder[2][2].bias.fill_(-1e3)
    groups = {"inside": images(5), "outside": images(7)}
    score, blocks = density_scores(network, images(40), images(9), groups)
    assert [bool((block["outside"] == 0).all()) for block in blocks] == [False, False, True]
    assert torch.allclose(score["inside"], (blocks[0]["inside"] + blocks[1]["inside"]) / 3)


@pytest.mark.parametrize("name", ["evidential", "evidential, paper's head", "gaussian", "ensemble, 5"])
def test_a_network_that_died_is_a_result_like_any_other(name, small_data):
    group = next(g for g in depth.GROUPS.values() if name in g.models)
    recipe = replace(depth.quick_plan().recipe_of(group), width=4, blocks=3)
    networks = [recipe.network(group.method.outputs, seed).eval() for seed in range(2)]
    with torch.no_grad():
        for network in networks:
            for block in (*network.encoder, *network.decoder):
                block[2].bias.fill_(-1e3)
    model = depth._model(group, networks, min(2, group.models[name]), torch.device("cpu"))
    result, maps = depth._study(model, name, 0, small_data)
    assert np.isfinite([result["rmse"], result["nll"], result["ause"]]).all()
    assert {v["auroc"] for v in result["unfamiliar"].values()} == {0.5}
    assert result["attack"][-1]["rmse"] == pytest.approx(result["rmse"], rel=1e-4)
    assert maps["mean"].std() == 0


def test_dead_channels_of_the_papers_head_are_counted():
    network = UNet(4, width=4, blocks=2, head="paper", seed=0)
    with torch.no_grad():
        network.head[0].weight.zero_()
        network.head[0].bias.copy_(torch.tensor([1.0, -1.0, 0.5, -2.0]))
    assert alive_channels(network, images(5)) == [1.0, 0.0, 1.0, 0.0]
    with pytest.raises(ev.InputError, match="head='paper'"):
        UNet(4, width=4, blocks=2).squeezed(torch.zeros(1, 3, 8, 8))


def test_the_sign_of_the_gradient_of_a_linear_model():
    weights = (0.5, -0.25, 0.0)
    model = DepthModel(LeastSquares(), (Known(0.0, weights=weights),))
    x = torch.full((2, 3, 4, 4), 0.5)
    y = torch.full((2, 4, 4), 0.5)
    y[1] = -0.5  # the prediction, 0.125, is too low for the first image and too high for the second
    y[0, 0, 0] = torch.nan
    sign = fast_gradient_sign(model, x, y)
    assert torch.equal(sign[0, :, 1, 1], torch.tensor([-1.0, 1.0, 0.0]))
    assert torch.equal(sign[1, :, 1, 1], torch.tensor([1.0, -1.0, 0.0]))
    assert not sign[0, :, 0, 0].any()


def test_an_attack_on_a_linear_model_costs_what_it_must():
    model = DepthModel(Evidential(), (Known(0.0, 0.0, 0.0, 0.0, weights=(0.5, -0.25, 0.0)),))
    pixels = torch.full((3, 4, 4, 3), 128, dtype=torch.uint8)
    rows = attack(model, Pairs(pixels, torch.full((3, 4, 4), 0.5)))
    clean = 0.5 - 0.25 * 128 / 255
    assert [row["epsilon"] for row in rows] == pytest.approx(np.linspace(0, 0.04, 9))
    for row in rows:
        # not cumulative: each ε from the clean image
        assert row["rmse"] == pytest.approx(clean + 0.75 * row["epsilon"], rel=1e-5)
        assert row["scores"]["epistemic entropy"]["mean"] == pytest.approx(
            rows[0]["scores"]["epistemic entropy"]["mean"]
        )


def test_an_attack_on_a_dropout_network_goes_through_its_draws():
    network = UNet(1, width=4, blocks=2, dropout=0.5, seed=0)
    model = DepthModel(LeastSquares(), (network,), draws=4)
    rows = attack(model, Pairs(images(3), torch.rand(3, 8, 12)), np.array([0.0, 0.04]))
    assert rows[1]["rmse"] > rows[0]["rmse"]
    same = attack(model, Pairs(images(3), torch.rand(3, 8, 12)), np.array([0.0, 0.0]))
    assert same[0]["rmse"] == same[1]["rmse"]  # what moves along ε is the image, not the draws


# Runs -----------------------------------------------------------------------------------------------------------------


def small_plan(*groups):
    settings = Settings(steps=6, learning_rate=3e-3, evaluate_every=3)
    recipe = ImageRecipe(width=4, blocks=3, batch_size=4, settings=settings)
    return depth.Plan(groups=groups, trials=2, recipe=recipe, quick=True)


@pytest.fixture(scope="module")
def small_data():
    from evidentia.datasets import rooms

    def pairs(count, seed):
        made = rooms.rooms(count, seed, (16, 20))
        return Pairs(torch.from_numpy(made.image), torch.from_numpy(made.disparity))

    outside = torch.from_numpy(rooms.outdoors(6, 0, (16, 20)))
    return depth.DepthData(
        "synthetic rooms", pairs(24, 0), pairs(8, 1), pairs(8, 2), "streets", outside, synthetic=True
    )


def test_a_killed_run_continues_to_the_same_record(tmp_path, small_data, monkeypatch):
    plan = small_plan("evidential", "ensemble", "dropout")
    monkeypatch.setattr(depth, "write_results", lambda *_: [])
    depth.run(plan, tmp_path / "whole", small_data, "cpu", progress=False)
    real, calls = depth._study, []

    def dying(*given):
        calls.append(given)
        if len(calls) == 3:
            raise RuntimeError("killed")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(depth, "_study", dying)
        with pytest.raises(RuntimeError, match="killed"):
            depth.run(plan, tmp_path / "again", small_data, "cpu", progress=False)
    depth.run(plan, tmp_path / "again", small_data, "cpu", progress=False)
    whole, again = (_without_times(read_record(tmp_path / name)) for name in ("whole", "again"))
    assert whole == again
    assert {model: len(trials) for model, trials in whole["results"].items()} == dict.fromkeys(whole["results"], 2)
    assert whole["results"]["ensemble, 5"][0]["count"] == 2  # quick
    assert list(read_record(tmp_path / "again")["seconds"]) == list(whole["results"])  # all timed in one go
    with pytest.raises(ev.InputError, match="another plan"):
        depth.run(depth.Plan(trials=2, split_seed=9), tmp_path / "again", small_data, "cpu")


def _without_times(value):
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k != "seconds"}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def test_groups_need_as_many_networks_as_their_largest_model():
    assert depth.GROUPS["gaussian"].members == 5
    assert depth.GROUPS["dropout"].members == 1
    recipe = depth.Plan().recipe_of(depth.GROUPS["evidential, paper's settings"])
    assert (recipe.settings.learning_rate, recipe.settings.steps, recipe.augmentation) == (5e-5, 60_000, None)
    sizes = {
        name: sum(p.numel() for p in depth.Plan().recipe_of(depth.GROUPS[name]).network(outputs, 0).parameters())
        for name, outputs in (("evidential, paper's head", 4), ("dropout", 1))
    }
    assert sizes == {"evidential, paper's head": 7_846_776, "dropout": 7_846_657}
    with pytest.raises(ev.InputError, match="unknown group 'magic'"):
        depth.Plan(groups=("magic",))


def test_without_data_there_are_synthetic_rooms():
    loaded = depth.load(quick=True)
    assert loaded.synthetic
    assert loaded.outside_name == "synthetic streets"
    sizes = [len(getattr(loaded, part).maps) for part in ("train", "validation", "test")]
    assert sum(sizes) == 1200
    assert sizes[0] == pytest.approx(960, abs=8)


def test_the_frame_is_cut_from_all_images_alike(monkeypatch):
    whole, cut = depth.load(quick=True), depth.load(quick=True, cut=5)
    for part in ("train", "validation", "test"):
        uncut = getattr(whole, part)
        assert torch.equal(getattr(cut, part).images, uncut.images[:, 5:-5, 5:-5])
        assert torch.equal(getattr(cut, part).maps, uncut.maps[:, 5:-5, 5:-5])
    assert torch.equal(cut.outside, whole.outside[:, 5:-5, 5:-5])
    assert (whole.cut, cut.cut) == (0, 5)  # rendered rooms have no frame
    photographed = replace(rooms.rooms(24, 0, (32, 48)), synthetic=False)
    monkeypatch.setattr(depth.images, "load_nyu", lambda _: photographed)
    monkeypatch.setattr(depth.images, "load_images", lambda _, size: np.zeros((3, *size, 3), np.uint8))
    loaded = depth.load(pairs=Path("x.zip"), outside=Path("y.zip"))
    assert loaded.cut == depth.FRAME == 8
    assert loaded.test.images.shape[1:] == loaded.outside.shape[1:] == (16, 32, 3)
    for wrong in (-1, 16):
        with pytest.raises(ev.InputError, match=rf"leave something of images of 48×32, got {wrong}"):
            depth.load(pairs=Path("x.zip"), outside=Path("y.zip"), cut=wrong)


def test_times_are_medians_without_the_first(monkeypatch):
    clock = iter([0, 9, 10, 11, 20, 23, 30, 32])  # calls of 9, 1, 3 and 2 seconds
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    device, calls = torch.device("cpu"), []
    call = timing.captured(lambda: calls.append(1), device)
    assert timing.median_seconds(call, device) == 2
    assert len(calls) == 4


def test_the_command_line(tmp_path):
    arguments = ["reproduce", "depth", "--quick", "--groups", "evidential", "--steps", "4", "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "synthetic rooms" in result.output
    assert read_record(tmp_path)["results"]["evidential"][0]["rmse"] < 1
    assert "Example: evidentia reproduce depth" in CliRunner().invoke(app, ["reproduce", "depth", "--help"]).output
