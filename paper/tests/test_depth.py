"""Scores and runs of depth models, on networks whose answer is known."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import howsure as hs
from howsure import metrics
from howsure.distributions import Normal, NormalInverseGamma
from howsure.images import ImageRecipe, Pairs
from howsure.likelihoods import Evidential, NormalLikelihood
from howsure.nn import UNet
from howsure_paper import timing
from howsure_paper.baselines import LeastSquares
from howsure_paper.cli import app
from howsure_paper.datasets import rooms
from howsure_paper.depth import data as depth_data
from howsure_paper.depth import run as depth
from howsure_paper.depth.data import DepthData, load, mean_of_training
from howsure_paper.depth.models import DepthModel
from howsure_paper.depth.plan import BLOCKS, EPSILONS, FRAME, GROUPS, Plan, quick_plan
from howsure_paper.depth.recipes import METHODS, RECIPE, group_recipe, plan_record
from howsure_paper.depth.scores import (
    QUANTILES,
    alive_channels,
    attack,
    curves,
    density_scores,
    error_scores,
    gradient_sign,
    histogram_scores,
    image_scores,
    summarize,
)
from howsure_paper.protocol import Context, same_plan
from howsure_paper.record import read_record, write_record


class Known(nn.Module):
    """Raw maps that are fixed, or the mean of an image's channels by fixed weights, and no dropout to speak of."""

    def __init__(self, *levels, weights=(0.0, 0.0, 0.0)):
        super().__init__()
        self.levels = nn.Parameter(torch.tensor(levels), requires_grad=False)
        self.weights = torch.tensor(weights)
        self.multiple = 1  # images of any size

    def forward(self, x):
        first = torch.einsum("nchw,c->nhw", x, self.weights)
        maps = [first + self.levels[0], *(torch.full_like(first, float(v)) for v in self.levels[1:])]
        return torch.stack(maps, 1)


def images(count=4, height=8, width=12, seed=0):
    return torch.randint(
        0, 256, (count, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


# Uncertainty of an image ----------------------------------------------------------------------------------------------


def test_scores_of_an_evidential_network_are_those_of_its_parameters():
    raw = (0.4, 0.3, -0.5, -2.0)
    nig = NormalInverseGamma.from_raw(torch.tensor(raw))
    found = image_scores(DepthModel(Evidential(), (Known(*raw),)).predict_batches(images()))
    expected = {
        "total entropy": nig.predictive().entropy(),
        "epistemic entropy": 0.5 * torch.log(2 * torch.pi * torch.e * nig.epistemic_variance),
        "mutual information": nig.mutual_information(),
        "−log ν": -nig.nu.log(),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value.expand(4), atol=1e-5), name


def test_scores_of_several_gaussian_networks_are_those_of_a_mixture():
    raws = [(0.2, -1.0), (0.6, -0.5), (0.4, -2.0)]
    each = [Normal.from_raw(torch.tensor(raw)) for raw in raws]
    means, deviations = (np.array([float(getattr(g, name)) for g in each]) for name in ("loc", "scale"))
    model = DepthModel(NormalLikelihood(), tuple(Known(*raw) for raw in raws))
    found = image_scores(model.predict_batches(images(2)))
    total = 0.5 * np.log(2 * np.pi * np.e * ((deviations**2).mean() + means.var()))
    parts = np.mean([0.5 * np.log(2 * np.pi * np.e * s**2) for s in deviations])
    assert np.allclose(found["total entropy"], total, atol=1e-5)
    assert np.allclose(found["epistemic entropy"], 0.5 * np.log(2 * np.pi * np.e * means.var()), atol=1e-5)
    assert np.allclose(found["mutual information"], total - parts, atol=1e-5)
    alone = image_scores(DepthModel(NormalLikelihood(), (Known(*raws[0]),)).predict_batches(images(2)))
    assert set(alone) == {"total entropy"}


def test_scores_are_the_same_a_few_images_at_a_time():
    model = DepthModel(Evidential(), (UNet(4, width=4, blocks=2, seed=0).eval(),))
    prediction, y = model.predict(images(7)), torch.rand(7, 8, 12)
    y[2] = torch.nan
    batches = [prediction[first : first + 2] for first in range(0, 7, 2)]
    whole, parts = summarize([prediction], y), summarize(batches, y)
    for name, values in image_scores(batches).items():
        assert torch.equal(values, whole.images[name])
    assert parts.images.keys() == whole.images.keys()
    for name in ("mean", "aleatoric", "epistemic", "log_prob", "pit"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name
    assert len(whole.pit) == 6 * 8 * 12  # the targets that are known


# Errors and calibration -----------------------------------------------------------------------------------------------


def right_by_construction(count=40, spread=0.1, gaps=False):
    """Return the summary of a normal network's predictions, and targets drawn from them."""
    generator = torch.Generator().manual_seed(1)
    y = 0.5 + spread * torch.randn(count, 8, 12, generator=generator)
    if gaps:
        y[:, :2] = torch.nan
    return normal_summary(spread, y), y


def normal_summary(spread, y):
    network = Known(0.5, float(np.log(np.expm1(spread))))
    return summarize(DepthModel(NormalLikelihood(), (network,)).predict_batches(images(len(y))), y)


@pytest.mark.parametrize("gaps", [False, True])
def test_model_that_is_right_is_calibrated(gaps):
    summary, y = right_by_construction(gaps=gaps)
    found = error_scores(summary, y) | curves(summary, y)
    known = y[~y.isnan()]
    assert found["rmse"] == pytest.approx(float((known - 0.5).square().mean().sqrt()), rel=1e-5)
    assert found["mae"] == pytest.approx(float((known - 0.5).abs().mean()), rel=1e-5)
    assert found["nll"] == pytest.approx(np.log(0.1 * np.sqrt(2 * np.pi * np.e)), abs=0.03)
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.02)
    assert found["calibration"]["predictive"]["error"] < 0.01
    assert found["calibration"]["authors"]["error"] < 0.02
    assert abs(found["aurg"]) < 1e-6  # the same deviation everywhere ranks nothing
    assert np.ptp(found["cutoff"]["rmse"]) < 1e-6
    assert len(found["calibration"]["authors"]["observed"]) == len(QUANTILES) == 41


def test_model_that_boasts_is_not():
    _, y = right_by_construction()
    boast = normal_summary(0.02, y)
    found = error_scores(boast, y) | curves(boast, y)
    assert found["coverage_90"] < 0.4
    assert found["calibration"]["predictive"]["error"] > 0.1
    # half of the targets lie below the median, and nearly all of those below the 10 % quantile too
    observed = found["calibration"]["predictive"]["observed"]
    assert observed[20] == pytest.approx(0.5, abs=0.02)
    assert observed[4] == pytest.approx(0.4, abs=0.03)


def test_epistemic_deviation_ranks_pixels():
    generator = torch.Generator().manual_seed(0)
    means = torch.rand(2, 6, 8, 12, generator=generator)
    prediction = hs.Prediction(Normal(means, torch.rand(6, 8, 12, generator=generator) + 0.5), members=0)
    y = torch.randn(6, 8, 12, generator=generator)
    found = curves(summarize([prediction[:4], prediction[4:]], y), y, every=1)
    deviation = means.double().std(0, correction=0)
    assert found["ause"] == pytest.approx(metrics.ause(prediction, y, deviation), rel=1e-6)
    normal = torch.distributions.Normal(means.double().mean(0), deviation)
    below = [float((y <= normal.icdf(torch.tensor(q))).double().mean()) for q in QUANTILES[1:-1]]
    assert found["calibration"]["authors"]["observed"][1:-1] == pytest.approx(np.array(below), abs=1e-9)


def test_mean_of_training_is_the_mean_of_training():
    generator = torch.Generator().manual_seed(0)
    train, test = torch.rand(10, 4, 5, generator=generator), torch.rand(3, 4, 5, generator=generator)
    train[2:, 0, 0] = torch.nan
    test[1, 2, 2] = torch.nan
    blank = torch.zeros(1, 4, 5, 3, dtype=torch.uint8)
    parts = [Pairs(blank.expand(len(m), -1, -1, -1), m) for m in (train, test, test)]
    found = mean_of_training(DepthData("x", *parts, "y", blank))
    gap = test.numpy() - np.nanmean(train.numpy(), 0)
    assert found["rmse"] == pytest.approx(np.sqrt(np.nanmean(gap**2)))
    variance = np.nanvar(train.numpy(), 0)
    assert found["nll"] == pytest.approx(np.nanmean(0.5 * (np.log(2 * np.pi * variance) + gap**2 / variance)), rel=1e-5)


# Unfamiliar and attacked ----------------------------------------------------------------------------------------------


def test_distance_of_features_detects_unseen_images():
    network = UNet(4, width=4, blocks=3, seed=0)
    train, validation, inside = images(80, 16, 16), images(40, 16, 16, seed=1), images(40, 16, 16, seed=2)
    stripes = images(30, 16, 16, seed=3)
    stripes[:, :, ::2] = 255
    sets = {"validation": validation, "inside": inside, "outside": stripes}
    score, blocks = density_scores(network, train, validation, sets)
    assert metrics.auroc(score["inside"], score["outside"]) > 0.95
    assert len(blocks) == 3
    assert torch.allclose(score["outside"], torch.stack([block["outside"] for block in blocks]).mean(0))
    for block in blocks:  # in units of the validation images' spread
        assert block["validation"].mean() == pytest.approx(0, abs=1e-4)
        assert block["validation"].std() == pytest.approx(1, abs=1e-4)
        assert abs(block["inside"].mean()) < 0.7


def test_colour_histograms_detect_only_other_colours():
    train, inside = images(200, 16, 16), images(40, 16, 16, seed=1)
    shuffled = inside.flatten(1, 2)[:, torch.randperm(256, generator=torch.Generator().manual_seed(0))].view_as(inside)
    found = histogram_scores(train, {"inside": inside, "dark": inside // 2, "shuffled": shuffled})
    assert metrics.auroc(found["inside"], found["dark"]) > 0.99
    assert torch.allclose(found["inside"], found["shuffled"])


def test_only_the_first_blocks_detect_other_images():
    network = UNet(4, width=4, blocks=5, seed=0)
    score, blocks = density_scores(network, images(40, 16, 16), images(9, 16, 16), {"inside": images(5, 16, 16)})
    first = torch.stack([block["inside"] for block in blocks[:BLOCKS]])
    assert len(blocks) == 5 > BLOCKS
    assert torch.equal(score["inside"], first.mean(0))


def test_block_that_died_has_no_distance():
    network = UNet(4, width=4, blocks=3, seed=0)
    with torch.no_grad():
        network.encoder[2][2].bias.fill_(-1e3)
    sets = {"inside": images(5), "outside": images(7)}
    score, blocks = density_scores(network, images(40), images(9), sets)
    assert [bool((block["outside"] == 0).all()) for block in blocks] == [False, False, True]
    assert torch.allclose(score["inside"], (blocks[0]["inside"] + blocks[1]["inside"]) / 3)


@pytest.mark.parametrize("name", ["evidential", "evidential, paper's head", "gaussian", "ensemble, 5"])
def test_network_that_died_is_a_result_like_any_other(name, small_data):
    key, group = next((key, group) for key, group in GROUPS.items() if name in group.models)
    recipe, method = replace(group_recipe(quick_plan(), key), width=4, blocks=3), METHODS[group.method]
    networks = [recipe.network(method.outputs, seed).eval() for seed in range(2)]
    with torch.no_grad():
        for network in networks:
            for block in (*network.encoder, *network.decoder):
                block[2].bias.fill_(-1e3)
    model = depth._model(group, DepthModel(method, tuple(networks), recipe), min(2, group.models[name]))
    result, maps = depth._study(model, name, 0, small_data)
    assert np.isfinite([result["rmse"], result["nll"], result["ause"]]).all()
    assert {v["auroc"] for v in result["unfamiliar"].values()} == {0.5}
    assert result["attack"][-1]["rmse"] == pytest.approx(result["rmse"], rel=1e-4)
    assert maps["mean"].std() == 0


def test_results_with_draws_do_not_depend_on_torchs_generator(small_data):
    recipe = replace(group_recipe(quick_plan(), "dropout"), width=4, blocks=3)
    model = DepthModel(LeastSquares(), (recipe.network(1, 0).eval(),), recipe, draws=3)
    first, maps = depth._study(model, "dropout, 10", 0, small_data)
    torch.manual_seed(99)
    again, same = depth._study(model, "dropout, 10", 0, small_data)
    np.testing.assert_equal(again, first)
    np.testing.assert_equal(same, maps)


def test_dead_channels_of_the_papers_head_are_counted():
    network = UNet(4, width=4, blocks=2, head="paper", seed=0)
    with torch.no_grad():
        network.head[0].weight.zero_()
        network.head[0].bias.copy_(torch.tensor([1.0, -1.0, 0.5, -2.0]))
    assert alive_channels(network, images(5)) == [1.0, 0.0, 1.0, 0.0]


def test_sign_of_the_gradient_of_a_linear_model():
    weights = (0.5, -0.25, 0.0)
    model = DepthModel(LeastSquares(), (Known(0.0, weights=weights),))
    x = torch.full((2, 3, 4, 4), 0.5)
    y = torch.full((2, 4, 4), 0.5)
    y[1] = -0.5  # the prediction, 0.125, is too low for the first image and too high for the second
    y[0, 0, 0] = torch.nan
    sign = gradient_sign(model, x, y)
    assert torch.equal(sign[0, :, 1, 1], torch.tensor([-1.0, 1.0, 0.0]))
    assert torch.equal(sign[1, :, 1, 1], torch.tensor([1.0, -1.0, 0.0]))
    assert not sign[0, :, 0, 0].any()


def test_attack_on_a_linear_model_has_the_exact_cost():
    model = DepthModel(Evidential(), (Known(0.0, 0.0, 0.0, 0.0, weights=(0.5, -0.25, 0.0)),))
    pixels = torch.full((3, 4, 4, 3), 128, dtype=torch.uint8)
    rows = attack(model, Pairs(pixels, torch.full((3, 4, 4), 0.5)))
    clean = 0.5 - 0.25 * 128 / 255
    assert [row["epsilon"] for row in rows] == list(EPSILONS) == pytest.approx(np.linspace(0, 0.04, 9))
    for row in rows:
        # not cumulative: each ε from the clean image
        assert row["rmse"] == pytest.approx(clean + 0.75 * row["epsilon"], rel=1e-5)
        assert row["scores"]["epistemic entropy"]["mean"] == pytest.approx(
            rows[0]["scores"]["epistemic entropy"]["mean"]
        )


def test_attack_on_a_dropout_network_goes_through_its_draws():
    recipe = ImageRecipe(width=4, blocks=2, dropout=0.5)
    model = DepthModel(LeastSquares(), (recipe.network(1, 0).eval(),), recipe, draws=4)
    pairs = Pairs(images(3), torch.rand(3, 8, 12, generator=torch.Generator().manual_seed(0)))
    rows = attack(model, pairs, (0.0, 0.04), torch.Generator().manual_seed(0))
    assert rows[1]["rmse"] > rows[0]["rmse"]
    same = attack(model, pairs, (0.0, 0.0), torch.Generator().manual_seed(1))
    assert same[0]["rmse"] == same[1]["rmse"]  # what moves along ε is the image, not the draws


# Runs -----------------------------------------------------------------------------------------------------------------


def small_plan(*groups, steps=6):
    return Plan(groups=groups, trials=2, steps=steps, quick=True)


@pytest.fixture(scope="module")
def small_data():
    def pairs(count, seed):
        made = rooms.rooms(count, seed, (16, 20))
        return Pairs(torch.from_numpy(made.image), torch.from_numpy(made.disparity))

    outside = torch.from_numpy(rooms.outdoors(6, 0, (16, 20)))
    return DepthData("synthetic rooms", pairs(24, 0), pairs(8, 1), pairs(8, 2), "streets", outside, synthetic=True)


@pytest.fixture
def without_results(monkeypatch):
    """Runs that draw and time nothing."""
    monkeypatch.setattr(depth, "write_results", lambda *_: [])
    monkeypatch.setattr(depth, "median_seconds", lambda *_: 0.01)


def run_in(folder, plan, data):
    return depth.run_on(data, plan, Context(folder, "cpu", progress=False))


@pytest.mark.usefixtures("without_results")
def test_killed_run_continues_to_the_same_record(tmp_path, small_data, monkeypatch):
    plan = small_plan("evidential", "ensemble", "dropout")
    run_in(tmp_path / "whole", plan, small_data)
    real, calls = depth._study, []

    def dying(*given):
        calls.append(given)
        if len(calls) == 3:
            raise RuntimeError("killed")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(depth, "_study", dying)
        with pytest.raises(RuntimeError, match="killed"):
            run_in(tmp_path / "again", plan, small_data)
    run_in(tmp_path / "again", plan, small_data)
    whole, again = (_without_times(read_record(tmp_path / name)) for name in ("whole", "again"))
    assert whole == again
    assert {model: len(trials) for model, trials in whole["results"].items()} == dict.fromkeys(whole["results"], 2)
    assert whole["results"]["ensemble, 5"][0]["count"] == 2  # quick
    assert list(read_record(tmp_path / "again")["seconds"]) == list(whole["results"])  # all timed in one go
    with pytest.raises(hs.InputError, match="split_seed"):
        run_in(tmp_path / "again", replace(plan, seed=9), small_data)
    with pytest.raises(hs.InputError, match=r"recipe\.settings\.steps"):
        run_in(tmp_path / "again", replace(plan, steps=8), small_data)
    with pytest.raises(hs.InputError, match="cut"):
        run_in(tmp_path / "again", plan, replace(small_data, cut=3))


@pytest.mark.usefixtures("without_results")
def test_record_with_settings_that_no_longer_exist_is_continued(tmp_path, small_data):
    run_in(tmp_path, small_plan("evidential"), small_data)
    record = read_record(tmp_path)
    settings = record["plan"]["recipe"]["settings"]
    settings["average"] = None
    del settings["averaging"], settings["plateau"], settings["decay"]  # which a record of an earlier version lacks
    write_record(tmp_path, record)
    run_in(tmp_path, small_plan("evidential", "ensemble"), small_data)
    again = read_record(tmp_path)
    assert again["results"]["evidential"] == record["results"]["evidential"]
    assert len(again["results"]["plain"]) == 2


def test_plan_of_the_committed_record_is_still_the_default():
    """A run continues from the committed record of depth: every setting that both have is equal."""
    record = read_record(Path(__file__).parents[1] / "docs" / "results" / "depth")
    same_plan(Path("depth"), record["plan"], plan_record(Plan()))


@pytest.mark.usefixtures("without_results")
def test_another_network_in_the_place_of_one_raises(tmp_path, small_data):
    run_in(tmp_path, small_plan("evidential"), small_data)
    record = read_record(tmp_path)
    write_record(tmp_path, record | {"results": {}, "networks": {}})
    file = tmp_path / "networks" / "evidential_0_0"
    DepthModel(Evidential(0.5), (RECIPE.network(4, 0),)).save(file)
    with pytest.raises(hs.InputError, match="evidential_0_0"):
        run_in(tmp_path, small_plan("evidential"), small_data)
    file.write_text("{}")
    with pytest.raises(hs.InputError, match="evidential_0_0"):
        run_in(tmp_path, small_plan("evidential"), small_data)


def _without_times(value):
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k != "seconds"}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def test_groups_need_as_many_networks_as_their_largest_model():
    assert GROUPS["gaussian"].network_count == 5
    assert GROUPS["dropout"].network_count == 1
    recipe = group_recipe(Plan(), "evidential, paper's settings")
    assert (recipe.settings.learning_rate, recipe.settings.steps, recipe.augmentation) == (5e-5, 60_000, None)
    assert METHODS[GROUPS["evidential, paper's settings"].method] == Evidential(0.1)
    sizes = {
        name: sum(p.numel() for p in group_recipe(Plan(), name).network(outputs, 0).parameters())
        for name, outputs in (("evidential, paper's head", 4), ("dropout", 1))
    }
    assert sizes == {"evidential, paper's head": 7_846_776, "dropout": 7_846_657}
    with pytest.raises(hs.InputError, match="'magic'"):
        Plan(groups=("magic",))


def test_help_of_steps_is_right():
    (steps,) = [f for f in fields(Plan) if f.name == "steps"]
    assert f"(default: {RECIPE.settings.steps})" in steps.metadata["option"].help


def test_quick_plan_has_small_models_and_one_learning_rate():
    plan = quick_plan(Plan(trials=3, groups=("gaussian", "dropout")))
    assert (plan.trials, plan.quick, plan.group_names) == (1, True, ("gaussian", "dropout"))
    assert plan.group("gaussian").models == {
        "gaussian": 1, "ensemble of likelihoods, 2": 2, "ensemble of likelihoods, 5": 2
    }  # fmt: skip
    assert plan.group("dropout").models == {"dropout, 2": 2, "dropout, 5": 5, "dropout, 10": 5}
    rates = {name: group_recipe(plan, name).settings.learning_rate for name in GROUPS}
    assert rates.pop("evidential, paper's settings") == 5e-5
    assert set(rates.values()) == {3e-3}


def test_without_data_there_are_synthetic_rooms():
    loaded = load(quick=True)
    assert loaded.synthetic
    assert loaded.outside_name == "synthetic streets"
    sizes = [len(getattr(loaded, part).maps) for part in ("train", "validation", "test")]
    assert sum(sizes) == 1200
    assert sizes[0] == pytest.approx(960, abs=8)


def test_frame_is_cut_from_all_images_alike(monkeypatch):
    whole, cut = load(quick=True), load(quick=True, cut=5)
    for part in ("train", "validation", "test"):
        uncut = getattr(whole, part)
        assert torch.equal(getattr(cut, part).images, uncut.images[:, 5:-5, 5:-5])
        assert torch.equal(getattr(cut, part).maps, uncut.maps[:, 5:-5, 5:-5])
    assert torch.equal(cut.outside, whole.outside[:, 5:-5, 5:-5])
    assert (whole.cut, cut.cut) == (0, 5)  # rendered rooms have no frame
    photographed = replace(rooms.rooms(24, 0, (32, 48)), synthetic=False)
    monkeypatch.setattr(depth_data.datasets, "load_nyu", lambda _: photographed)
    monkeypatch.setattr(depth_data.datasets, "load_images", lambda _, size: np.zeros((3, *size, 3), np.uint8))
    loaded = load(pairs=Path("x.zip"), outside=Path("y.zip"))
    assert loaded.cut == FRAME == 8
    assert loaded.test.images.shape[1:] == loaded.outside.shape[1:] == (16, 32, 3)
    for wrong in (-1, 16):
        with pytest.raises(hs.InputError, match=str(wrong)):
            load(pairs=Path("x.zip"), outside=Path("y.zip"), cut=wrong)


def test_times_are_medians_without_the_first(monkeypatch):
    clock = iter([0, 9, 10, 11, 20, 23, 30, 32])  # calls of 9, 1, 3 and 2 seconds
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    device, calls = torch.device("cpu"), []
    call = timing.captured(lambda: calls.append(1), device)
    assert timing.median_seconds(call, device) == 2
    assert len(calls) == 4


def test_command_line(tmp_path):
    arguments = ["depth", "--quick", "--groups", "evidential", "--steps", "4", "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "synthetic rooms" in result.output
    assert read_record(tmp_path)["results"]["evidential"][0]["rmse"] < 1
