"""Pages and tables of the committed records, and facts that the documentation states about the records."""

from pathlib import Path

import numpy as np
import pytest

from howsure_paper.depth.trials import trial_values
from howsure_paper.paper import TABLE_1
from howsure_paper.quoted.tables import INPUTS, differences_to_peers
from howsure_paper.record import read_record
from howsure_paper.registry import EXPERIMENTS, page_text

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@pytest.mark.parametrize("name", ["uci", "depth"])
def test_page_equals_its_records(name):
    assert (RESULTS / f"{name}.md").read_text() == page_text(RESULTS / name)


@pytest.mark.parametrize("name", ["cubic", "regularizer", "disentangle"])
def test_tables_of_the_toy_experiments_equal_their_records(name, tmp_path):
    """Records without curves give tables; figures stay as they are."""
    folder = RESULTS / name
    paths = EXPERIMENTS[name].work.write_results(read_record(folder), tmp_path)
    tables = [path for path in paths if path.suffix == ".md"]
    assert [path.read_text() for path in tables] == [(folder / path.name).read_text() for path in tables]
    assert not list(tmp_path.glob("figure_*"))


@pytest.mark.parametrize("name", TABLE_1)
def test_all_splits_of_the_default_are_recorded_without_divergence(name):
    now, before = (read_record(RESULTS / folder)["sets"][name] for folder in ("uci_estimator", "uci_estimator_earlier"))
    assert len(now) == (5 if name == "protein" else 20)
    assert [run["split"] for run in now[: len(before)]] == [run["split"] for run in before]
    assert not any(any(run["training"]["diverged"]) for run in now)


@pytest.mark.parametrize("score", ["nll", "crps"])
@pytest.mark.parametrize("name", TABLE_1)
def test_default_regressor_is_before_every_other_package(name, score):
    differences, _ = differences_to_peers(RESULTS, name, score)
    assert np.mean(differences) < 0


def test_every_mixture_of_the_table_of_inputs_is_recorded():
    assert set(INPUTS) <= {row["kind"] for row in read_record(RESULTS / "table_inputs")["rows"]}
    assert len(set(INPUTS)) == len(INPUTS) == 18


def test_cubic_run_is_not_quick_and_no_network_diverged():
    record = read_record(RESULTS / "cubic")
    assert not record["quick"]
    assert not any(any(result["diverged"]) for result in record["results"].values())


def test_ensembles_predict_depth_better_at_five_times_the_cost():
    record = read_record(RESULTS / "depth")
    one, seconds = record["results"]["evidential"], record["seconds"]
    for name in ("ensemble, 5", "ensemble of likelihoods, 5"):
        for score in ("rmse", "nll"):
            assert trial_values(record["results"][name], score).mean() < trial_values(one, score).mean()
        assert round(seconds[name]["32"] / seconds["evidential"]["32"]) == 5


def test_white_frame_separates_images_almost_perfectly():
    frame = read_record(RESULTS / "depth_unfamiliar")["frame"]
    for images in ("CamVid", "validation images without their frame"):
        assert frame[images]["feature distance"] > 0.99


def test_familiarity_of_images_raises_auroc_and_costs_no_likelihood():
    trials = read_record(RESULTS / "depth_fading")["trials"]
    fading = trial_values(trials, "fading", "auroc", "epistemic entropy")
    assert fading.mean() >= 0.89
    assert fading.min() >= 0.86
    assert len(set(trial_values(trials, "colour histograms"))) == 1
    rows = [row for trial in trials for row in trial["choice"]["rows"] if (row["quantile"], row["power"]) == (0.5, 4)]
    assert all(row["nll rises by"] <= row["error"] for row in rows)
