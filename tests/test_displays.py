"""Displays draw the numbers of howsure.metrics, and reject inputs that they cannot draw."""

import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import howsure as hs

matplotlib = pytest.importorskip("matplotlib")


class Constant:
    """A model with a normal distribution around the first column."""

    def predict_distribution(self, x):
        values = torch.tensor(pd.DataFrame(x).iloc[:, 0].to_list(), dtype=torch.float64)
        return hs.Prediction(hs.Normal(values, 1.0))


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    return x, x[:, 0] + rng.normal(size=400)


def drawn(display):
    """Draw the figure, and return it."""
    display.figure_.canvas.draw()
    return display.figure_


def line(display, label):
    (found,) = (each for each in display.ax_.get_lines() if each.get_label() == label)
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def test_calibration_display_draws_the_coverage_curve(rows):
    x, y = rows
    display = hs.CalibrationDisplay.from_estimator(Constant(), x, y)
    coverage, observed = line(display, "observed")
    p = Constant().predict_distribution(x)
    inside = [(np.abs(y - p.mean) <= np.diff(p.interval(c))[:, 0] / 2).mean() for c in coverage]
    assert observed == pytest.approx(inside, abs=1 / 400)
    assert np.abs(observed - coverage).max() < 0.1
    assert drawn(display).axes == [display.ax_]


def test_retention_display_draws_the_error_of_the_remaining_rows(rows):
    x, y = rows
    order = np.arange(400.0)
    display = hs.RetentionDisplay.from_estimator(Constant(), x, y, uncertainty=order, error="mae")
    kept, error = line(display, "by predicted uncertainty")
    for share, value in zip(kept, error, strict=True):
        assert value == pytest.approx(np.abs(y - x[:, 0])[: round(share * 400)].mean())
    _, oracle = line(display, "by true error (best possible)")
    assert (oracle <= error + 1e-12).all()
    drawn(display)


def test_interval_display_counts_targets_inside(rows):
    x, y = rows
    display = hs.IntervalDisplay.from_estimator(Constant(), x, y, coverage=0.5)
    assert display.inside.mean() == pytest.approx(hs.metrics.coverage(display.prediction, y, 0.5))
    assert "50" in display.ax_.get_legend().get_texts()[0].get_text()
    drawn(display)


def test_interval_display_draws_intervals_about_their_medians_by_width():
    raw = torch.randn(3, 1000, 4, generator=torch.Generator().manual_seed(2))
    p = hs.Prediction(hs.NormalInverseGamma.from_raw(raw), members=0)
    y = p.sample(1, seed=0)[0]
    display = hs.IntervalDisplay.from_predictions(p, y)
    (lines,) = (each for each in display.ax_.collections if hasattr(each, "get_segments"))
    widths = np.diff([segment[:, 1] for segment in lines.get_segments()], axis=1)[:, 0]
    assert len(widths) == 250
    assert (np.diff(widths) >= 0).all()
    assert widths[[0, -1]] == pytest.approx(np.sort(np.diff(p.interval(0.9), axis=1)[:, 0])[[0, -1]])
    outside = int((~display.inside).sum())
    assert any(f"({outside} of 1,000, " in text.get_text() for text in display.ax_.get_legend().get_texts())


def test_notebook_shows_the_figure_of_a_display(rows):
    x, y = rows
    display = hs.CalibrationDisplay.from_estimator(Constant(), x, y)
    assert display._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(display)).rows == 400


def test_displays_draw_into_given_axes(rows):
    x, y = rows
    figure, axes = matplotlib.figure.Figure(), None
    axes = figure.subplots(1, 3)
    classes = (hs.IntervalDisplay, hs.CalibrationDisplay, hs.RetentionDisplay)
    for ax, display in zip(axes, classes, strict=True):
        made = display.from_estimator(Constant(), x, y, ax=ax)
        assert made.ax_ is ax
        assert made.figure_ is figure
        assert ax.has_data()
    figure.canvas.draw()


def test_displays_without_axes_do_not_use_pyplot(rows):
    x, y = rows
    hs.CalibrationDisplay.from_estimator(Constant(), x, y)
    pyplot = __import__("sys").modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.fixture(scope="module")
def house_model():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.uniform(40, 200, 120), "age": rng.integers(0, 90, 120)})
    table["town"] = rng.choice(["Ulm", "Bonn"], 120)
    price = 3 * table["size"] - table["age"] + rng.normal(size=120)
    return hs.EvidentialRegressor(members=2, steps=60, random_state=0).fit(table, price), table


def test_evidence_display_of_one_feature_extends_beyond_the_rows(house_model):
    model, table = house_model
    display = hs.EvidenceDisplay.from_estimator(model, table, "size", coverage=0.8, margin=1.0)
    (grid,) = display.grid
    assert grid[0] < table["size"].min() - 100
    assert grid[-1] > table["size"].max() + 100
    x, median = line(display, "median")
    assert x == pytest.approx(grid)
    typical = pd.DataFrame({"size": grid, "age": table["age"].median(), "town": table["town"].mode()[0]})
    assert median == pytest.approx(model.predict_distribution(typical).median)
    assert len(drawn(display).axes) == 2  # the second has the familiarity


def test_evidence_display_of_two_features_draws_the_interval_width(house_model):
    model, table = house_model
    display = hs.EvidenceDisplay.from_estimator(model, table, ["size", 1])
    assert display.names == ["size", "age"]
    (mesh,) = (each for each in display.ax_.collections if hasattr(each, "get_coordinates"))
    ends = display.prediction.interval(0.9)
    assert np.sort(np.asarray(mesh.get_array()).ravel()) == pytest.approx(np.sort(ends[:, 1] - ends[:, 0]))
    drawn(display)


@pytest.mark.parametrize("features", ["town", "nothing", 7, ["size", "age", "town"], ["size", "size"], []])
def test_evidence_display_rejects_other_features(house_model, features):
    with pytest.raises(hs.InputError):
        hs.EvidenceDisplay.from_estimator(*house_model, features)


@pytest.mark.parametrize("display", [hs.IntervalDisplay, hs.CalibrationDisplay, hs.RetentionDisplay])
@pytest.mark.parametrize("shape", [(0,), (3, 2), ()])
def test_predictions_without_rows_or_with_several_targets_raise(display, shape):
    p = hs.Prediction(hs.Normal(torch.zeros(shape), 1.0))
    with pytest.raises(hs.InputError):
        display.from_predictions(p, np.zeros(shape))


@pytest.mark.parametrize("display", [hs.IntervalDisplay, hs.CalibrationDisplay, hs.RetentionDisplay])
@pytest.mark.parametrize("y", [[1.0, np.nan, 0.0], [1.0, 2.0]])
def test_targets_that_are_missing_or_of_another_length_raise(display, y):
    with pytest.raises(hs.InputError):
        display.from_predictions(hs.Prediction(hs.Normal(torch.zeros(3), 1.0)), y)


def test_evidence_display_takes_polars_and_arrays(rows):
    polars = pytest.importorskip("polars")
    x, _ = rows
    table = polars.DataFrame({"a": x[:, 0], "b": x[:, 1]})
    of_table = hs.EvidenceDisplay.from_estimator(Constant(), table, "b")
    of_array = hs.EvidenceDisplay.from_estimator(Constant(), x, 1)
    assert of_table.names == ["b"]
    assert of_table.prediction.mean == pytest.approx(of_array.prediction.mean)


def test_column_of_targets_is_drawn_like_a_row(rows):
    x, y = rows
    for display in (hs.IntervalDisplay, hs.RetentionDisplay):
        one, two = (vars(display.from_estimator(Constant(), x, each)) for each in (y, y[:, None]))
        name = "inside" if display is hs.IntervalDisplay else "oracle"
        assert one[name] == pytest.approx(two[name])


def test_calibration_display_of_few_conformal_rows_ends_early(house_model):
    model, table = house_model
    y = 3 * table["size"] - table["age"]
    sure = hs.calibrate(model, table[:30], y[:30], method="conformal")
    display = hs.CalibrationDisplay.from_estimator(sure, table[30:], y[30:])
    assert display.coverage[-1] == pytest.approx(0.96)  # 30 of 31 rows


def test_example_of_the_docs_runs(monkeypatch, capsys, tmp_path):
    script = Path(__file__).parents[1] / "examples/diabetes.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "20", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert "crps" in capsys.readouterr().out
    assert (tmp_path / "diabetes.png").stat().st_size > 10_000


def run(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_pyplot_is_loaded_and_missing_matplotlib_raises_with_hint():
    code = """
import sys, torch, howsure as hs
p = hs.Prediction(hs.Normal(torch.zeros(3), 1.0))
assert "matplotlib" not in sys.modules
hs.IntervalDisplay(p, [0.0, 1.0, 2.0]).plot()
assert "matplotlib.pyplot" not in sys.modules
for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
    del sys.modules[name]
sys.modules["matplotlib"] = None
try:
    hs.IntervalDisplay(p, [0.0, 1.0, 2.0]).plot()
except hs.InputError as error:
    print(error)
"""
    assert run(code) == 'matplotlib is not installed; install it with pip install ".[plot]" in a checkout of howsure'
