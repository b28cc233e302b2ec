"""Tables, figures and page of a depth run, from records made by hand."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from string import Template

import numpy as np
import pytest

import howsure as hs
from howsure_paper.arrays import arrays_path, read_arrays
from howsure_paper.depth import figures as depth_figures
from howsure_paper.depth import page as depth_page
from howsure_paper.depth.figures import FIGURES, MAPPED, MAPS, write_figures
from howsure_paper.depth.page import page
from howsure_paper.depth.plan import STUDIED, Plan, quick_plan
from howsure_paper.depth.recipes import QUICK_RECIPE, plan_record
from howsure_paper.depth.run import write_results
from howsure_paper.depth.tables import (
    attack_rows,
    block_rows,
    doubt_rows,
    signed,
    spread,
    table_s1_rows,
    unfamiliar_rows,
)
from howsure_paper.depth.trials import trial_values
from howsure_paper.pages import read_template
from howsure_paper.record import write_record

BASE = 0.2
HEIGHT, WIDTH = 8, 10


def fake_trial(trial, rmse, nll=-0.4, rise=0.5, auroc=0.8, features=0.96, epistemic=True):
    """What one studied model says in one trial."""
    entropies = {"total entropy": np.linspace(-1, 0, 4).tolist()}
    if epistemic:
        entropies |= {"epistemic entropy": np.linspace(-2, -1, 4).tolist(), "mutual information": [0.1, 0.2, 0.3, 0.4]}
    unfamiliar = {k: {"auroc": auroc, "inside": v, "outside": [x + 1 for x in v]} for k, v in entropies.items()}
    unfamiliar["feature distance"] = {"auroc": features, "inside": [1.0, 2.0], "outside": [3.0, 4.0]}
    share = np.linspace(1, 0.1, 10)
    observed = np.linspace(0, 1, 41) ** (1 + trial)
    attack = [
        {
            "epsilon": float(e),
            "rmse": rmse * (1 + 10 * e),
            "mae": rmse * 0.8 * (1 + 10 * e),
            "scores": {
                k: {"mean": float(np.mean(v)) + rise * e / 0.04, "images": [x + rise * e / 0.04 for x in v]}
                for k, v in entropies.items()
            },
        }
        for e in np.linspace(0, 0.04, 9)
    ]
    return {
        "trial": trial,
        "count": 1,
        "parameters": 1234,
        "rmse": rmse,
        "mae": 0.8 * rmse,
        "nll": nll,
        "coverage_90": 0.9,
        "ause": 0.3,
        "aurg": 0.2,
        "cutoff": {"share": share.tolist(), "mae": (0.8 * rmse * share).tolist(), "rmse": (rmse * share).tolist()},
        "calibration": {
            "authors": {"observed": observed.tolist(), "error": 0.05 + 0.01 * trial},
            "predictive": {"observed": observed.tolist(), "error": 0.03},
        },
        "unfamiliar": unfamiliar,
        "attack": attack,
        "auroc of every block": [0.6, features],
    }


def fake_record(synthetic=True, **evidential):
    """Two models with two trials each."""
    rmse = evidential.pop("rmse", 0.16)
    trials = [fake_trial(t, rmse + shift, **evidential) for t, shift in enumerate((-0.01, 0.01))]
    gaussian = [fake_trial(t, 0.17, nll=-0.3, epistemic=False) for t in range(2)]
    network = {"seed": 0, "best_step": 80, "best_score": -0.4, "diverged": False, "seconds": 12.5}
    return {
        "run": "depth",
        "plan": plan_record(quick_plan()) | {"quick": False, "groups": plan_record(Plan())["groups"]},
        "data": {
            "name": "synthetic rooms" if synthetic else "NYU Depth v2",
            "synthetic": synthetic,
            "note": "",
            "cut": 0 if synthetic else 8,
            "train": 1159,
            "validation": 145,
            "test": 145,
            "outside": "CamVid",
            "outside images": 100,
        },
        "environment": {"device": {"name": "a machine"}, "packages": {"torch": "2.9"}},
        "mean of training": {"rmse": BASE, "mae": 0.15, "nll": -0.2},
        "networks": {"evidential": [[network], [network | {"best_step": 120}]], "gaussian": [[network], [network]]},
        "results": {"evidential": trials, "gaussian": gaussian},
        "seconds": {"evidential": {"1": 0.0025, "32": 0.01}, "gaussian": {"1": 0.0075, "32": 0.03}},
    }


def fake_maps(folder, names=("evidential", "gaussian")):
    rng = np.random.default_rng(0)
    (folder / "maps").mkdir(parents=True)
    for name in names:
        maps = {key: rng.uniform(0.1, 0.9, (3, HEIGHT, WIDTH)) for key in ("truth", "mean", "aleatoric")}
        maps["truth"][0, 0, 0] = np.nan  # not everything is known
        for key in ("image", "outside_image", "attacked_image"):
            maps[key] = rng.integers(0, 256, (3, HEIGHT, WIDTH, 3), dtype=np.uint8)
        maps["attacked_mean"] = maps["mean"]
        if name != "gaussian":
            maps |= dict.fromkeys(("epistemic", "outside_epistemic", "attacked_epistemic"), maps["aleatoric"] / 2)
        np.savez(arrays_path(folder / MAPS, name), **maps)


def written_page(folder, record):
    write_record(folder, record)
    return page(folder, folder.name)


# Tables


def test_table_s1_has_means_ratios_and_skill():
    first, evidential, gaussian = table_s1_rows(fake_record())
    assert first["model"] == "mean of the training maps"
    assert (first["RMSE"], first["NLL"], first["N"]) == ("0.2000", "−0.200", None)
    assert list(first) == list(evidential) == list(gaussian)
    assert evidential["RMSE"] == "0.1600 ± 0.0100"  # 0.15 and 0.17
    assert evidential["RMSE to mean of training"] == "−20.0 %"
    assert gaussian["RMSE to mean of training"] == "−15.0 %"
    assert (evidential["ms, 1 image"], evidential["ms, 32 images"]) == ("2.50", "10.00")
    assert evidential["time to evidential"] == 1
    assert gaussian["time to evidential"] == pytest.approx(3)
    assert (evidential["RMSE, paper"], evidential["NLL, paper"]) == (0.024, -1.128)
    assert evidential["time to evidential, paper"] == 1
    assert gaussian["NLL, paper"] is None


def test_uncertainties_have_calibration_and_ranking():
    evidential, gaussian = doubt_rows(fake_record())
    assert evidential["calibration error, authors' rule"] == pytest.approx(0.055)
    assert (evidential["authors' rule, paper"], gaussian["authors' rule, paper"]) == (0.033, None)
    names = ("in 90 % intervals", "calibration error, predictive", "AUSE", "AURG")
    assert [gaussian[name] for name in names] == pytest.approx([0.9, 0.03, 0.3, 0.2])


def test_model_that_was_not_studied_has_errors_only():
    record = fake_record()
    kept = ("trial", "count", "parameters", "rmse", "mae", "nll", "coverage_90")
    record["results"]["dropout, 2"] = [{k: record["results"]["gaussian"][0][k] for k in kept}]
    row = table_s1_rows(record)[-1]
    assert (row["RMSE"], row["RMSE, paper"]) == ("0.1700", 0.033)
    for rows in (doubt_rows(record), unfamiliar_rows(record), attack_rows(record)[1:]):
        assert [r["model"] for r in rows] == ["evidential", "gaussian"]


def test_without_the_evidential_model_there_are_no_ratios():
    record = fake_record()
    del record["results"]["evidential"], record["seconds"]["evidential"]
    assert [row["time to evidential"] for row in table_s1_rows(record)] == [None, None]


def test_diverged_models_are_marked():
    record = fake_record()
    record["results"]["gaussian"][1] |= {"rmse": None, "nll": None}
    row = table_s1_rows(record)[-1]
    assert row["RMSE"] == row["NLL"] == row["RMSE to mean of training"] == "diverged"


def test_unfamiliar_images_by_score_with_the_range_over_trials():
    record = fake_record()
    record["results"]["evidential"][1]["unfamiliar"]["epistemic entropy"]["auroc"] = 0.5
    evidential, gaussian = unfamiliar_rows(record)
    assert evidential["epistemic entropy"] == "0.65 (0.50 to 0.80)"
    assert gaussian["epistemic entropy"] is None
    assert gaussian["feature distance"] == "0.96 (0.96 to 0.96)"
    blocks = block_rows(record)
    assert [row["block"] for row in blocks] == [1, 2]
    assert blocks[0]["gaussian"] == "0.600 (0.600 to 0.600)"


def test_fading_and_colour_histograms_have_rows_where_they_were_studied():
    record = fake_record()
    for trial, area in zip(record["results"]["evidential"], (0.9, 0.94), strict=True):
        trial["fading"] = {"unfamiliar": {"epistemic entropy": {"auroc": area}, "total entropy": {"auroc": 0.5}}}
        trial["colour histograms"] = {"auroc": 0.875}
    evidential, faded, colors, gaussian = unfamiliar_rows(record)
    assert [r["model"] for r in (evidential, gaussian)] == ["evidential", "gaussian"]
    assert (faded["model"], faded["epistemic entropy"]) == ("evidential, fading", "0.92 (0.90 to 0.94)")
    assert faded["feature distance"] is None
    assert colors["model"] == "colour histograms, no network"
    assert colors["feature distance"] == "0.88 (0.88 to 0.88)"


def test_attack_page_lists_the_increase_of_each_score():
    first, evidential, gaussian = attack_rows(fake_record(rise=0.25))
    assert first["model"] == "mean of the training maps"
    assert [first[f"RMSE, ε = {e}"] for e in ("0", "0.01", "0.04")] == [BASE] * 3
    assert list(first) == list(evidential) == list(gaussian)
    assert (evidential["score"], gaussian["score"]) == ("epistemic entropy", "total entropy")
    assert [evidential[f"RMSE, ε = {e}"] for e in ("0", "0.01", "0.04")] == pytest.approx([0.16, 0.176, 0.224])
    assert [evidential[f"rises by, ε = {e}"] for e in ("0.01", "0.04")] == ["+10.0 %", "+40.0 %"]
    assert evidential["entropy, ε = 0"] == pytest.approx(-1.5)
    assert [gaussian[f"entropy rises by, ε = {e}"] for e in ("0.01", "0.04")] == ["+0.125", "+0.500"]
    assert attack_rows(fake_record(rise=-0.25))[1]["entropy rises by, ε = 0.04"] == "−0.250"


@pytest.mark.parametrize(("rise", "area"), [(0.0, 0.5), (0.5, 13 / 16), (2.0, 1.0), (-2.0, 0.0)])
def test_attack_page_lists_the_auroc_of_each_score(rise, area):
    """Entropies of −2, −5/3, −4/3, −1, all moved by the same: of 16 pairs, 13 are in order when moved by a half."""
    assert attack_rows(fake_record(rise=rise))[1]["AUROC, ε = 0.04"] == pytest.approx(area)


def test_attack_that_is_not_finite_is_marked():
    record = fake_record()
    record["results"]["evidential"][0]["attack"][-1]["scores"]["epistemic entropy"] = {
        "mean": None,
        "images": [None] * 4,
    }
    row = attack_rows(record)[1]
    assert (row["entropy rises by, ε = 0.04"], row["AUROC, ε = 0.04"]) == ("diverged", None)
    assert attack_rows(record | {"results": {}}) == []


def test_numbers_in_words():
    assert signed(-0.0001, 2) == "+0.00"  # no negative zero
    assert (signed(None, 2), signed(float("nan"), 2), signed(-1.5, 1, " %")) == ("–", "diverged", "−1.5 %")
    assert (spread(np.array([])), spread(np.array([0.5])), spread(np.array([np.nan]))) == (None, "0.50", "diverged")
    assert trial_values([{"a": [1, None]}, {}], "a").shape == (1, 2)


# Files


def test_everything_is_written(tmp_path):
    fake_maps(tmp_path)
    paths = write_results(fake_record(), tmp_path)
    names = {path.name for path in paths}
    assert names >= {f"figure_{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert names >= {"table_s1.md", "doubts.md", "unfamiliar.md", "blocks.md", "attack.md"}
    for path in paths:
        assert path.stat().st_size > (2000 if path.suffix != ".md" else 100)
        if path.suffix == ".md":
            assert "synthetic rooms" in path.read_text().splitlines()[0]


def test_real_images_are_not_called_synthetic(tmp_path):
    (table, *_) = write_results(fake_record(synthetic=False) | {"results": {}}, tmp_path)
    assert "NYU Depth v2" in table.read_text()
    assert "synthetic" not in table.read_text()


def titles_of(monkeypatch, record, out):
    """name → title, without writing the files."""
    titles = {}

    def note(figure, folder, name):
        titles[name] = figure.get_suptitle()
        return [folder / f"{name}.png"]

    monkeypatch.setattr(depth_figures, "save", note)
    write_figures(record, out)
    return titles


def test_every_figure_names_its_images(tmp_path, monkeypatch):
    fake_maps(tmp_path)
    titles = titles_of(monkeypatch, fake_record(), tmp_path)
    assert set(titles) == {f"figure_{name}" for name in FIGURES}
    assert all("synthetic rooms" in title for title in titles.values())


def test_missing_parts_are_left_out(tmp_path, monkeypatch):
    record = fake_record()
    without_maps = {f"figure_{name}" for name in FIGURES} - {"figure_4_maps", "figure_s7"}
    assert set(titles_of(monkeypatch, record, tmp_path)) == without_maps
    del record["results"]["evidential"]  # the other has no epistemic entropy
    record["results"]["gaussian"].pop()
    assert set(titles_of(monkeypatch, record, tmp_path)) == without_maps - {"figure_5"}
    assert titles_of(monkeypatch, record | {"results": {}}, tmp_path) == {}


def test_values_that_are_not_finite_do_not_stop_the_figures(tmp_path, monkeypatch):
    record = fake_record()
    broken = copy.deepcopy(record["results"]["evidential"][0])
    broken["unfamiliar"]["epistemic entropy"]["inside"] = [None] * 4
    broken["attack"][3]["rmse"] = None
    broken["attack"][4]["scores"]["epistemic entropy"]["images"] = [None] * 4
    record["results"]["evidential"] = [broken]
    assert "figure_6" in titles_of(monkeypatch, record, tmp_path)


def test_every_mapped_model_is_studied_and_has_a_file_of_its_own(tmp_path):
    assert set(MAPPED) <= set(STUDIED)
    assert len({arrays_path(tmp_path, name) for name in STUDIED}) == len(STUDIED)


def test_damaged_maps_are_one_sentence(tmp_path):
    fake_maps(tmp_path, ["gaussian"])
    assert read_arrays(tmp_path / MAPS, "evidential") is None
    arrays_path(tmp_path / MAPS, "gaussian").write_bytes(b"no arrays")
    with pytest.raises(hs.InputError, match=r"gaussian\.npz"):
        read_arrays(tmp_path / MAPS, "gaussian")


# The page


def lines_of(text):
    """The points of «What it shows», each as one line, by their first words."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.startswith("- **")]
    return {line.split("**")[1]: line for line in paragraphs}


def in_order(text, *tokens):
    """Return whether a text has these tokens one after the other."""
    return re.search(".*?".join(map(re.escape, tokens)), text, re.DOTALL) is not None


def row_of(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_whole_run_with_its_studies_fills_the_whole_template(monkeypatch):
    found = {}
    monkeypatch.setattr(depth_page, "fill_template", lambda _, values: found.update(values) or "")
    page(Path(__file__).parents[1] / "docs" / "results" / "depth", "depth")
    names = set(Template(read_template("howsure_paper.depth")).get_identifiers())
    absent = {name for name in names if found.get(name) in (None, "")}
    assert absent == {"synthetic_data", "note", "missing_models", "missing_figures"}


@pytest.mark.parametrize(("rmse", "to_mean"), [(0.16, "−20.0 %"), (0.18, "−10.0 %"), (0.21, "+5.0 %")])
def test_skill_is_the_distance_from_the_mean_of_training(tmp_path, rmse, to_mean):
    text = written_page(tmp_path, fake_record(rmse=rmse))
    assert in_order(lines_of(text)["Skill."], "RMSE", "0.200", f"{rmse:.3f}", f"({to_mean})")


def test_values_follow_the_record(tmp_path):
    good, bad = (
        written_page(tmp_path, fake_record(**numbers))
        for numbers in (
            {"nll": -0.4, "rise": 0.5, "auroc": 0.8, "features": 0.96},
            {"nll": -0.2, "rise": -0.5, "auroc": 0.4, "features": 0.9},
        )
    )
    assert in_order(lines_of(good)["Skill."], "NLL", "−0.400")
    assert row_of(good, "NLL") == ["−0.400", "−0.300", "gaussian", "0 of 1"]
    assert row_of(bad, "NLL") == ["−0.200", "−0.300", "gaussian", "1 of 1"]
    assert lines_of(good)["Feature distance"].endswith("0.960 (0.960 to 0.960).")
    assert in_order(lines_of(good)["Attack."], "+0.500 nats", "2 of 2 trials", "AUROC 0.81")
    assert in_order(lines_of(bad)["Attack."], "−0.500 nats", "0 of 2 trials", "AUROC 0.19")
    assert "2 of 2 models" in lines_of(good)["Attack."]
    assert "1 of 2 models" in lines_of(bad)["Attack."]


def test_page_lists_the_candidates_of_the_recipe(tmp_path):
    assert "depth_recipe/record.json" not in written_page(tmp_path / "depth", fake_record())
    row = {"candidate": "nearer", "method": "gaussian", "seed": 1, "steps": 6000, "cut": 8, "nll": -0.5, "rmse": 0.15}
    write_record(tmp_path / "depth_recipe", {"run": "depth_recipe", "rows": [row, row | {"seed": 2, "nll": -0.6}]})
    text = page(tmp_path / "depth", "depth")
    assert "| nearer | gaussian | 6,000 | 8 | 2 | −0.550 (−0.600 to −0.500) | 0.150 (0.150 to 0.150) |" in text
    assert "[record](depth_recipe/record.json)" in text


def test_page_lists_the_tests_before_the_new_rate(tmp_path):
    record, before = fake_record(), fake_record(rmse=0.19)
    before["plan"]["groups"] = {"evidential": {"learning_rate": 0.003}}
    for name in ("networks", "results"):
        before[name] = {"evidential": before[name]["evidential"]}
    write_record(tmp_path / "depth_earlier", before)
    for trial in record["networks"]["evidential"]:
        trial[0]["best_score"] = -0.5
    text = written_page(tmp_path / "depth", record)
    assert "| evidential | earlier | 0.003 | −0.400 (−0.400 to −0.400) | 0.190 (0.180 to 0.200) |" in text
    assert "| evidential | now | 0.0003 | −0.500 (−0.500 to −0.500) | 0.160 (0.150 to 0.170) |" in text
    assert in_order(text, "NLL", "−0.500", "−0.400")


def fading_trial(area, rise):
    """What a network of studies/depth_fading.py says with fading and without."""
    said = {"rmse": 0.15, "nll": -0.5, "calibration": 0.05, "coverage_90": 0.8}
    row = {"quantile": 0.5, "power": 4.0, "auroc": 0.96, "nll rises by": -0.01, "error": 0.005}
    return {
        "choice": {
            "distances": {"all": {"dark": 0.9, "noisy": 0.8}, "colours": {"dark": 0.6, "noisy": 0.7}},
            "rows": [row | {"nll of shifts rises by": rise}],
        },
        "plain": said | {"auroc": {"epistemic entropy": 0.7}},
        "fading": said | {"nll": -0.6, "auroc": {"epistemic entropy": area}},
        "familiarity": {"inside": 0.8, "outside": 0.3},
        "distance": 0.95,
        "colour histograms": 0.875,
        "nll rises by": {"mean": -0.1, "error": 0.01},
    }


def test_page_lists_the_effect_of_image_evidence(tmp_path):
    assert "depth_fading/record.json" not in written_page(tmp_path / "depth", fake_record())
    seconds = {"plain": {"1": 1.0, "32": 2.0}, "fading": {"1": 1.25, "32": 2.2}}
    trials = [fading_trial(0.9, 0.02), fading_trial(0.94, -0.06)]
    found = {"run": "depth_fading", "trials": trials, "seconds": seconds, "data": {"outside": "CamVid"}}
    write_record(tmp_path / "depth_fading", found)
    text = page(tmp_path / "depth", "depth")
    assert "| plain | 0.700 (0.700 to 0.700) |" in text
    assert "| fading | 0.920 (0.900 to 0.940) |" in text
    assert "| all | 0.850 |\n| colours | 0.650 |" in text
    assert "| 0.5 | 4 | 0.960 | −0.010 | 0.005 | −0.020 |" in text
    assert in_order(text, "AUROC", "0.875", "0.950")
    assert in_order(text, "1.25", "1.10", "32")
    assert in_order(text, "0.80", "0.30", "CamVid")


def test_page_lists_blocks_and_the_effect_of_the_frame(tmp_path):
    assert "depth_unfamiliar/record.json" not in written_page(tmp_path / "depth", fake_record())
    one = {"logarithms": {"noisy": [0.7, 0.8], "blurred": [0.6, 0.4]}, "features": {"noisy": [0.5, 0.5]}}
    two = {"logarithms": {"noisy": [0.9, 0.8], "blurred": [0.6, 0.4]}, "features": {"noisy": [0.7, 0.6]}}
    blocks = {"100": one, "101": two}
    areas = {"CamVid": 0.97, "CamVid with a frame": 0.42, "no frame on either": 0.44, "without their frame": 0.95}
    frame = {images: {"feature distance": area} for images, area in areas.items()}
    write_record(tmp_path / "depth_unfamiliar", {"run": "depth_unfamiliar", "blocks": blocks, "frame": frame})
    text = page(tmp_path / "depth", "depth")
    assert "| noisy | 0.800 | 0.800 |\n| blurred | 0.600 | 0.400 |\n| mean | 0.700 | 0.600 |" in text
    assert "| mean, without logarithms | 0.600 | 0.550 |" in text
    assert "| CamVid | 0.970 |\n| CamVid with a frame | 0.420 |" in text
    assert "[record](depth_unfamiliar/record.json)" in text
    line = lines_of(text)["The white frame of NYU."]
    assert in_order(line, "0.970", "0.950", "0.420", "0.440")


def test_page_shows_how_many_channels_of_the_papers_head_live(tmp_path):
    assert "depth_heads/record.json" not in written_page(tmp_path / "depth", fake_record())
    one = {"seed": 100, "before": [0.0, 0.009, 0.5, 1.0], "direct": {"nll": -0.4}}
    two = {"seed": 101, "before": [0.3, 0.9, 0.5, 1.0], "direct": {"nll": -0.5}}
    one["paper's head"] = {"nll": -0.1, "alive": [0.0, 0.2, 0.0, 0.0]}
    two["paper's head"] = {"nll": -0.2, "alive": [1.0, 0.2, 0.7, 0.6]}
    rates = {"paper's head": 1e-3, "direct": 1e-3}
    write_record(tmp_path / "depth_heads", {"run": "depth_heads", "steps": 3000, "rates": rates, "rows": [one, two]})
    text = page(tmp_path / "depth", "depth")
    assert "| 100 | 0.000, 0.009, 0.500, 1.000 | 0.000, 0.200, 0.000, 0.000 | −0.100 | −0.400 |" in text
    assert in_order(" ".join(text.split()), "2 of 8", "1 %")
    assert row_of(text, "0.001") == ["3", "1", "1 of 2"]
    record = fake_record()
    record["results"]["evidential, paper's head"] = [fake_trial(0, 0.2) | {"alive channels": [0.5, 0.0, 1.0, 0.0]}]
    lines = lines_of(written_page(tmp_path / "depth", record))
    assert in_order(lines["Dead channels."], "the paper's head", " 2 ")
    assert in_order(lines["More seeds."], " 2 ", " 1 ", "0.001", "NLL", "−0.150", "−0.450.")


def test_page_shows_how_fast_it_is(tmp_path):
    rates, forward = {"plain float32": 1000, "ours": 8000}, {"1 image, eager": 1.04, "32 images, eager": 1.01}
    record = {"run": "bench_depth", "environment": {"device": {"name": "a machine"}}, "size": [128, 160], "batch": 32}
    assert "bench_depth/record.json" not in written_page(tmp_path / "depth", fake_record())
    write_record(tmp_path / "bench_depth", record | {"images a second": rates, "forward": forward})
    text = page(tmp_path / "depth", "depth")
    assert in_order(text, "a machine", "32 images", "160×128")
    assert row_of(text, "plain float32") == ["1,000", "8.00"]
    assert row_of(text, "1 image, eager") == ["1.040"]


def test_cost_of_a_pass(tmp_path):
    record = fake_record()
    assert "Cost." not in lines_of(written_page(tmp_path, record))
    record["seconds"] |= {"plain": {"1": 0.002, "32": 0.008}, "ensemble, 5": {"1": 0.01, "32": 0.05}}
    line = lines_of(written_page(tmp_path, record))["Cost."]
    assert in_order(line, "U-Net", "1.25", "32 images", "1.25", "1 image", "ensemble, 5: 5.0")


def test_score_that_depends_most_on_the_recipe(tmp_path):
    record = fake_record()
    assert "Recipe, not only method." not in lines_of(written_page(tmp_path, record))
    theirs = fake_trial(0, 0.2, auroc=0.75)
    theirs["unfamiliar"]["mutual information"]["auroc"] = 0.3
    record["results"]["evidential, paper's head"] = [theirs]
    line = lines_of(written_page(tmp_path, record))["Recipe, not only method."]
    assert in_order(line, "mutual information", "evidential: 0.80 (0.80 to 0.80)", "evidential, paper's head: 0.30")


def test_papers_settings(tmp_path):
    record = fake_record()
    assert "The paper's settings" not in lines_of(written_page(tmp_path, record))
    name = "evidential, paper's settings"
    record["results"][name] = [fake_trial(0, 0.19, nll=-0.1)]
    record["networks"][name] = [[record["networks"]["gaussian"][0][0] | {"best_step": 4500}]]
    line = lines_of(written_page(tmp_path, record))["The paper's settings"]
    assert in_order(line, "RMSE 0.190", "−5.0 %", "NLL −0.100", "4,500", "60,000")
    record["plan"] = plan_record(quick_plan())
    line = lines_of(written_page(tmp_path, record))["The paper's settings"]
    assert line.endswith(f" of {QUICK_RECIPE.settings.steps:,}.")


@pytest.mark.parametrize(("auroc", "reached", "chance"), [(0.7, 1, 2), (0.4, 0, 0)])
def test_evidential_is_on_par_with_the_counted_baselines(tmp_path, auroc, reached, chance):
    record = fake_record(auroc=auroc)
    record["results"]["ensemble, 5"] = [fake_trial(0, 0.15, auroc=0.9)]
    record["results"]["dropout, 10"] = [fake_trial(0, 0.15, auroc=0.6)]
    line = lines_of(written_page(tmp_path, record))["Images from elsewhere."]
    assert f"{chance} of 2 trials" in line
    assert in_order(line, f"{auroc:.2f}", f"{reached} of 2 ", "ensemble, 5: 0.90", "dropout, 10: 0.60")


def test_head_of_the_paper_is_compared(tmp_path):
    record = fake_record()
    theirs = [fake_trial(t, 0.2, nll=-0.1) for t in range(2)]
    theirs[0]["unfamiliar"]["total entropy"]["auroc"] = 0.3  # only in the other trial do all scores agree
    assert "The paper's head" not in lines_of(written_page(tmp_path, record))
    record["results"]["evidential, paper's head"] = theirs
    line = lines_of(written_page(tmp_path, record))["The paper's head"]
    assert in_order(line, "RMSE 0.200", "0.160", "NLL −0.100", "−0.400")
    assert in_order(line, "1 of 2", "2 of 2")


def test_page_lists_missing_parts(tmp_path):
    with pytest.raises(hs.InputError, match=r"record\.json"):
        page(tmp_path, "depth")
    record = fake_record()
    text = written_page(tmp_path, record)
    assert "evidential (2 of 3 trials)" in text
    assert "dropout, 50 (0 of 3 trials)" in text
    assert "evidential, paper's settings (0 of 1 trials)" in text
    assert "4, maps; 4, cutoff; 4, calibration; 5; 6; s4; s5; s6; s7" in text
    assert "## Figure S7" not in text  # nothing is left under this heading
    del record["results"]["evidential"]
    assert "**Skill.**" not in written_page(tmp_path, record)
    empty = written_page(tmp_path, record | {"results": {}, "networks": {}})
    headings = [line for line in empty.splitlines() if line.startswith("## ")]
    assert headings == ["## Table S1", "## Credits"]


def test_page_names_its_command(tmp_path):
    text = written_page(tmp_path / "depth", fake_record(synthetic=False))
    words = " ".join(text.split())
    assert "    howsure-paper depth --data DATA --out paper/docs/results/depth\n" in text
    assert in_order(text, "a machine", "torch 2.9")
    assert in_order(words, "1,159 training", "145 validation", "145 test")
    assert "1,449 labelled" in words
    assert "ynthetic" not in text
    assert in_order(words, "NYU Depth v2", "Silberman", "2012", "CamVid", "Brost")
    assert "| evidential | 2 | 12.5 | 0.0003 | 6,000 | 80 to 120 | −0.400 (−0.400 to −0.400) | 0 |" in text
    synthetic = written_page(tmp_path / "depth", fake_record())
    assert "**Synthetic rooms**" in synthetic
    assert "labelled" not in synthetic
    assert "--data" not in synthetic


def test_record_with_settings_that_no_longer_exist_has_a_page(tmp_path):
    record = fake_record()
    record["plan"]["recipe"]["settings"]["average"] = None
    assert in_order(written_page(tmp_path, record), "Adam", "0.003")


def test_figures_are_drawn_anew_only_where_their_maps_are(tmp_path, monkeypatch):
    monkeypatch.setattr(depth_figures, "save", lambda _, out, name: [(out / f"{name}.png").touch()])
    folder = tmp_path / "depth"
    write_record(folder, fake_record())
    write_results(fake_record(), folder)
    assert "figure_5.png" not in page(folder, "depth")
    fake_maps(folder)
    write_results(fake_record(), folder)
    text = page(folder, "depth")
    for name in FIGURES:
        assert f"(depth/figure_{name}.png)" in text


def test_quick_run_is_compared_with_a_quick_plan(tmp_path):
    record = fake_record()
    record["plan"] = plan_record(replace(quick_plan(), steps=6))
    text = written_page(tmp_path, record)
    assert "dropout, 10 (0 of 1 trials)" in text
    assert "dropout, 50" not in text
