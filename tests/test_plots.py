"""Figures of predictions show intervals, calibration and the histogram of P(Y ≤ y)."""

import io
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
from howsure import metrics

pytest.importorskip("matplotlib")


def evidential(members=3, shape=(60,)):
    raw = torch.randn(members, *shape, 4, generator=torch.Generator().manual_seed(2))
    return hs.NormalInverseGamma.from_raw(raw)


@pytest.fixture(scope="module")
def right():
    """A prediction, and targets that are drawn from it."""
    p = hs.Prediction(evidential(), members=0)
    return p, p.sample(1, seed=0)[0]


def titles(figure):
    return [ax.get_title() for ax in figure.axes]


def texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def drawn(figure):
    """The figure as PNG: some errors occur only when a figure is drawn."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=40)
    return file.getvalue()


def segments(ax):
    """Ends of the intervals, as drawn."""
    (lines,) = (c for c in ax.collections if hasattr(c, "get_segments"))
    return np.array([segment[:, 1] for segment in lines.get_segments()])


def test_without_targets_it_shows_the_intervals_by_their_medians(right):
    p, _ = right
    figure = p.plot(coverage=0.8)
    assert titles(figure) == ["Predictions"]
    (ax,) = figure.axes
    order = np.argsort(p.median)
    assert segments(ax) == pytest.approx(p.interval(0.8)[order])
    assert texts(ax) == ["80% interval", "median"]
    assert (ax.get_ylabel(), ax.get_xlabel().split()[0]) == ("y", "60")
    assert drawn(figure).startswith(b"\x89PNG")


def test_with_targets_it_shows_outliers_calibration_and_pit(right):
    p, y = right
    figure = p.plot(y)
    assert ["PIT" in title for title in titles(figure)] == [False, False, True]
    intervals, calibration, pit = figure.axes
    ends = p.interval(0.9)
    widths = np.diff(segments(intervals), axis=1)[:, 0]
    assert (np.diff(widths) >= -1e-6).all()
    assert widths == pytest.approx(np.sort(np.diff(ends, axis=1)[:, 0]), rel=1e-4)
    outside = int(((y < ends[:, 0]) | (y > ends[:, 1])).sum())
    assert any(f"({outside} of 60, {100 * outside / 60:.3g}%)" in text for text in texts(intervals))

    (curve,) = (line for line in calibration.lines if line.get_label() == "observed")
    stated, observed = curve.get_data()
    assert observed / 100 == pytest.approx(metrics.coverage_curve(p, y, stated / 100))
    assert any(text.startswith(f"{100 * metrics.coverage(p, y):.3g}% ") for text in texts(calibration))

    heights = [bar.get_height() for bar in pit.patches]
    assert heights == list(np.histogram(metrics.pit(p, y), bins=len(heights), range=(0, 1))[0])
    for ax in (intervals, calibration, pit):
        assert ax.get_ylabel()
        assert ax.get_xlabel()
    assert drawn(figure)


def test_many_rows_stay_readable(monkeypatch):
    monkeypatch.setattr("howsure.prediction.prediction.PLOTTED", 600)
    p = hs.Prediction(evidential(2, (1000,)), members=0)
    figure = p.plot(p.sample(1, seed=0)[0])
    ax = figure.axes[0]
    assert len(segments(ax)) == 250
    assert ax.get_xlabel() == "250 of 1,000 rows, narrowest to widest interval"
    assert sum(bar.get_height() for bar in figure.axes[2].patches) == 600


def test_several_targets_have_a_row_of_panels_each():
    p = hs.Prediction(evidential(2, (40, 2)), members=0)
    p.names = ["price", "days"]
    y = p.sample(1, seed=0)[0]
    figure = p.plot(y)
    assert len(figure.axes) == 6
    assert [figure.axes[k].get_ylabel() for k in (0, 3)] == ["price − predicted median", "days − predicted median"]
    assert len(p.plot().axes) == 2
    with pytest.raises(hs.InputError, match=r"\b6\b.*\b7\b"):
        hs.Prediction(evidential(2, (4, 7)), members=0).plot()
    with pytest.raises(hs.InputError, match=r"p\[:, 0\]"):
        p.plot(ax=figure.axes[0])


def test_maps_are_one_target_of_many_pixels():
    p = hs.Prediction(evidential(2, (2, 5, 6)), members=0)
    y = p.sample(1, seed=0)[0]
    known = y > np.quantile(y, 0.3)
    figure = p.plot(np.where(known, y, np.nan), mask=known)
    assert figure.axes[0].get_xlabel().startswith(f"{known.sum()} pixels")
    with pytest.raises(hs.InputError):
        p.plot(np.where(known, y, np.nan))
    with pytest.raises(hs.InputError):
        p.plot(y, mask=known & False)


def test_series_names_the_axis(right):
    p, y = right
    assert p.plot(pd.Series(y, name="price")).axes[0].get_ylabel() == "price − predicted median"
    assert p.plot(pd.Series(y, name=3)).axes[0].get_ylabel() == "y − predicted median"


def test_intervals_are_drawn_into_given_axes(right):
    from matplotlib.figure import Figure

    p, y = right
    mine = Figure()
    axes = mine.subplots(1, 2)
    assert p.plot(y, ax=axes[1]) is mine
    assert titles(mine) == ["", "Intervals and targets"]
    part = mine.subfigures(1, 1)
    assert p.plot(ax=part.subplots()) is mine


def test_odd_values_are_drawn(right):
    p, y = right
    far = y.copy()
    far[:2] = 1e6, -1e6
    figure = p.plot(far)
    assert figure.axes[0].get_ylim()[1] < 1e3
    assert drawn(figure)
    assert drawn(p[[0]].plot(y[:1]))
    assert drawn(hs.Prediction(hs.Normal(torch.zeros(3), 1.0)).plot([0.0, 0.0, 0.0]))
    nan = hs.Normal(torch.tensor([torch.nan, 1.0, 2.0]), torch.ones(3), validate_args=False)
    assert drawn(hs.Prediction(nan).plot([0.0, 1.0, 2.0]))
    assert any("99.999%" in text for text in texts(p.plot(coverage=0.99999).axes[0]))
    for wrong in (0.0, 90, [0.5, 0.9], None):
        with pytest.raises(hs.InputError, match="coverage"):
            p.plot(coverage=wrong)
    with pytest.raises(hs.InputError, match=r"p\[\[i\]\]"):
        p[0].plot()


def test_notebook_shows_the_figure_without_pyplot(right):
    p, y = right
    figure = p.plot(y)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure))._repr_png_() == figure._repr_png_()


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
p.plot([0.0, 1.0, 2.0])
assert "matplotlib.pyplot" not in sys.modules
for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
    del sys.modules[name]
sys.modules["matplotlib"] = None
try:
    p.plot()
except hs.InputError as error:
    print(error)
"""
    assert run(code) == 'matplotlib is not installed; install it with pip install ".[plot]" in a checkout of howsure'
