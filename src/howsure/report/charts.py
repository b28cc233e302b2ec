"""The charts of a report as specifications for plotly.js: plain dictionaries, each with a text that says the same.

Text of a user's table is escaped where it enters a chart: plotly.js reads tags in labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.report.bands import curve_band, histogram_band
from howsure.report.evaluation import COVERAGE, TargetResult
from howsure.report.words import clip, counted, percent, show

__all__ = ["Chart", "calibration_chart", "pit_chart", "predicted_chart", "retention_chart", "uncertainty_chart"]

Array = NDArray[np.float64]
BLUE, RED, GREY, LIGHT = "#0b5394", "#b45309", "#4b5563", "#d1d5db"  # 4.5 : 1 or more on white, but for LIGHT
INK = "#1f2937"


@dataclass(frozen=True)
class Chart:
    """A chart: what plotly.js draws, a title, what one sees in it, with the numbers, and how to read it."""

    name: str
    title: str
    seen: str
    reading: str
    figure: dict[str, Any]
    sample: str = ""  # which rows are shown, where these are not all


def predicted_chart(result: TargetResult, rows: NDArray[np.int64], labels: Sequence[str]) -> Chart:
    """Return the chart of predicted against true values with intervals, for some of the rows."""
    inside = result.inside
    jitter, gap = _jitter(result)
    low, high = _picture(result)
    kinds = (("true value inside interval", inside, BLUE, "circle"), ("outside", ~inside, RED, "x"))
    chosen = [(name, rows[of_kind[rows]], color, symbol) for name, of_kind, color, symbol in kinds]
    traces = [_intervals(result, some, result.y + jitter, color, low, high) for _, some, color, _ in chosen]
    traces.append(_line([low, high], [low, high], GREY, "predicted = true", dash="dash"))
    for name, some, color, symbol in chosen:
        marker = {"color": color, "symbol": symbol, "size": 5, "opacity": 0.75}
        traces.append(_marks(result, some, result.y + jitter, result.point, labels, name, marker))
    missed = int((~inside).sum())
    seen = (
        f"Each mark is a row: its true value to the right, the predicted {result.point_name} upwards, and a line for "
        f"the {percent(COVERAGE)} interval. The intervals of {counted(missed, 'row')} of {len(inside):,} miss the true "
        f"value ({percent(missed / len(inside))}; {percent(1 - COVERAGE)} would be as stated)."
    )
    beyond = int(((result.lower[rows] < low) | (result.upper[rows] > high)).sum())
    if beyond:
        hidden = int(((result.point[rows] < low) | (result.point[rows] > high)).sum())
        seen += f" The intervals of {counted(beyond, 'row')} reach beyond the picture"
        seen += f", and {counted(hidden, 'prediction')} lie beyond it." if hidden else "."
    if gap:
        seen += " True values with few different values are drawn a little apart, so that marks do not hide each other."
    reading = (
        "Marks on the dashed line are predicted perfectly. A good model is close to it where its lines are short, and "
        "orange crosses are few and not all in one place."
    )
    name = result.name.removeprefix("the ")
    layout = _layout(f"true {name}", f"predicted {name}", 380)
    layout["xaxis"]["range"] = [low - gap, high + gap]
    layout["yaxis"]["range"] = [low, high]
    return Chart("predicted", "Predicted against true", seen, reading, _figure(traces, layout), _sampled(result, rows))


def _intervals(
    result: TargetResult, rows: NDArray[np.int64], x: Array, color: str, low: float, high: float
) -> dict[str, Any]:
    """Return the intervals of some rows as one line with gaps, which a browser draws far quicker than error bars."""
    ends = np.full((len(rows), 3), np.nan)
    room = high - low  # beyond the picture
    ends[:, 0] = np.clip(result.lower[rows], low - room, high + room)
    ends[:, 1] = np.clip(result.upper[rows], low - room, high + room)
    line = {"color": _faint(color, 0.3 if len(rows) > 300 else 0.6), "width": 0.7, "simplify": False}
    drawn = {"x": _plain(np.repeat(x[rows], 3)), "y": _plain(ends.ravel()), "line": line}
    return {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False} | drawn


def _marks(
    result: TargetResult,
    rows: NDArray[np.int64],
    x: Array,
    y: Array,
    labels: Sequence[str],
    name: str,
    marker: dict[str, Any],
) -> dict[str, Any]:
    """Return a mark for each of some rows, with what is shown where the pointer is."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": _plain(x[rows]),
        "y": _plain(y[rows]),
        "marker": marker,
        "customdata": _hover(result, rows, labels),
        "hovertemplate": HOVER,
        "showlegend": len(rows) > 0,
    }


def calibration_chart(result: TargetResult) -> Chart:
    """Return the chart of the calibration curve with its simultaneous band."""
    levels, shares = result.curve
    reach = curve_band(len(result.y))
    distance = np.abs(shares - levels)
    worst = int(distance.argmax())
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": _plain(np.concatenate([levels, levels[::-1]])),
        "y": _plain(np.clip(np.concatenate([levels + reach, levels[::-1] - reach]), 0, 1)),
        "fill": "toself",
        "fillcolor": "rgba(75,85,99,0.18)",
        "line": {"width": 0},
        "name": "by chance (95 %)",
        "hoverinfo": "skip",
    }
    traces: list[dict[str, Any]] = [
        band,
        _line([0, 1], [0, 1], GREY, "as stated", dash="dash"),
        _line(levels, shares, BLUE, "this model", hover="stated %{x:.0%}, found %{y:.0%}<extra></extra>"),
    ]
    held = bool((distance <= reach).all())
    seen = (
        f"The share of true values below each stated quantile. It is farthest from the diagonal at "
        f"{percent(levels[worst])}, where {percent(shares[worst])} of the true values lie below; chance alone explains "
        f"distances up to {show(100 * reach, 2)} percentage points with {counted(len(result.y), 'row')}. "
        + ("The curve stays within the band." if held else "The curve leaves the band.")
    )
    reading = (
        "Nothing here speaks against the stated probabilities."
        if held
        else "The stated probabilities are not those of these rows: "
        + _direction(levels, shares)
        + " Where the curve leaves the grey band, chance is no explanation."
    )
    if result.few_values and not held:
        reading += " Part of it are the few different values of the target, which give the curve steps in any case."
    layout = _layout("stated probability", "share of true values below", 330)
    for axis in ("xaxis", "yaxis"):
        layout[axis] |= {"range": [0, 1], "tickformat": ".0%"}
    return Chart("calibration", "Calibration curve", seen, reading, _figure(traces, layout))


def _direction(levels: Array, shares: Array) -> str:
    """Return what the calibration curve says about predictions, in a sentence."""
    middle = shares[len(shares) // 2]
    tails = float(np.mean(shares[5:26] - levels[5:26]) - np.mean(shares[75:96] - levels[75:96]))
    if abs(middle - 0.5) > abs(tails) / 2:
        side = "too low" if middle < 0.5 else "too high"
        return f"predictions tend to be {side} ({percent(middle)} of the true values lie below the predicted median)."
    width = "narrow" if tails > 0 else "wide"
    return f"intervals tend to be too {width}."


def pit_chart(result: TargetResult) -> Chart:
    """Return the histogram of F(y) with its simultaneous band."""
    rows = len(result.pit)
    bins = 20 if rows >= 1000 else 10 if rows >= 50 else 5
    counts, edges = np.histogram(np.clip(result.pit, 0, 1), bins, (0, 1))
    band = histogram_band(rows, bins)
    outside = int(((counts < band.low) | (counts > band.high)).sum())
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "x": _plain((edges[:-1] + edges[1:]) / 2),
            "y": counts.tolist(),
            "width": 0.92 / bins,
            "marker": {"color": [RED if c < band.low or c > band.high else BLUE for c in counts], "opacity": 0.85},
            "name": "rows",
            "hovertemplate": "%{y} rows<extra></extra>",
            "showlegend": False,
        },
        _line([0, 1], [rows / bins] * 2, INK, "as stated", dash="dash"),
        _line([0, 1], [band.low] * 2, GREY, "by chance (95 %)", dash="dot"),
        _line([0, 1], [band.high] * 2, GREY, "", dash="dot") | {"showlegend": False},
    ]
    seen = (
        f"How many rows have their true value in each of {bins} parts of equal stated "
        f"probability, from the lowest to the highest: {', '.join(f'{c:,}' for c in counts)}. As stated it would be "
        f"{show(rows / bins)} each; chance explains {band.low:,} to {band.high:,}, and "
        + ("all bars are in this range." if not outside else f"{counted(outside, 'bar')} of {bins} lie outside.")
    )
    reading = (
        "Flat bars mean that the stated distribution is that of the rows. High bars at both ends: intervals too "
        "narrow; high in the middle: too wide; high on one side: predictions too low (right) or too high (left)."
    )
    layout = _layout("stated probability of less", "rows", 290)
    layout["xaxis"] |= {"range": [0, 1], "tickformat": ".0%"}
    layout["yaxis"]["rangemode"] = "tozero"
    return Chart("pit", "Where true values fall in the stated distribution", seen, reading, _figure(traces, layout))


def retention_chart(result: TargetResult) -> Chart:
    """Return the chart of the error of the rows that are left when the most uncertain ones are dropped."""
    share, kept, oracle = result.retention
    traces = [
        _line(share, kept, BLUE, "uncertain rows first", hover="%{x:.0%} kept: RMSE %{y:.4g}<extra></extra>"),
        _line(share, oracle, GREY, "best possible order", dash="dot"),
        _line([0, 1], [kept[0]] * 2, INK, "random order", dash="dash"),
    ]
    half = int(np.argmin(np.abs(share - 0.5)))
    tenth = int(np.argmin(np.abs(share - 0.9)))
    change = 1 - kept[half] / kept[0] if kept[0] > 0 else 0.0
    seen = (
        f"The RMSE of the rows that are left: {show(float(kept[0]), 3)} for all rows, {show(float(kept[tenth]), 3)} "
        f"without the most uncertain tenth, {show(float(kept[half]), 3)} for the more certain half; the best possible "
        f"order would leave {show(float(oracle[half]), 3)} there."
    )
    if change > 0.05:
        reading = f"The model knows which rows are hard: where it is more sure, errors are {percent(change)} smaller."
    elif change < -0.05:
        reading = "The model's uncertainty misleads here: the rows that it is more sure of have larger errors."
    else:
        reading = "The model's uncertainty hardly tells which rows have large errors."
    layout = _layout("share of the rows kept", f"RMSE of {result.name}", 300)
    layout["xaxis"] |= {"range": [1.02, 0], "tickformat": ".0%"}
    layout["yaxis"]["rangemode"] = "tozero"
    return Chart("retention", "What refusing to answer gains", seen, reading, _figure(traces, layout))


def uncertainty_chart(
    result: TargetResult, rows: NDArray[np.int64], labels: Sequence[str], threshold: float
) -> Chart | None:
    """Return the chart of noise and doubt of each row; None if the model does not divide its uncertainty."""
    noise, doubt, w = result.aleatoric, result.epistemic, result.familiarity
    if noise is None or doubt is None:
        return None
    flagged = np.zeros(len(doubt), dtype=bool) if w is None else w < threshold
    traces = []
    for name, chosen, color, symbol in (
        ("like the training rows" if w is not None else "rows", ~flagged, BLUE, "circle"),
        ("unlike the training rows", flagged, RED, "diamond"),
    ):
        marker = {"color": color, "symbol": symbol, "size": 6, "opacity": 0.6}
        traces.append(_marks(result, rows[chosen[rows]], noise, doubt, labels, name, marker))
    low, high = (pick(limit(noise[rows]), limit(doubt[rows])) for pick, limit in ((max, _least), (min, _largest)))
    if low < high:
        traces.append(_line([low, high], [low, high], GREY, "doubt = noise", dash="dash"))
    larger = int((doubt > noise).sum())
    seen = (
        f"Noise (aleatoric) to the right and doubt (epistemic) upwards, both standard deviations of {result.name} on "
        f"logarithmic axes. Medians: noise {show(float(np.median(noise)), 3)}, doubt "
        f"{show(float(np.median(doubt)), 3)}; doubt is larger than noise in {counted(larger, 'row')} of {len(doubt):,} "
        f"({percent(larger / len(doubt))})."
    )
    if w is not None:
        seen += (
            f" {counted(int(flagged.sum()), 'row')} ({percent(float(flagged.mean()))}) are unlike the training rows."
        )
    reading = (
        "Noise stays, however many rows a model learns from. Doubt is what more training rows like this one would "
        "remove: do not trust rows high above the others. Point at a mark, or tap it, for its row."
    )
    layout = _layout("noise (aleatoric std)", "doubt (epistemic std)", 370)
    for axis, values in (("xaxis", noise[rows]), ("yaxis", doubt[rows])):
        layout[axis] |= {"type": "log"} | _log_ticks(values)
    figure = _figure(traces, layout)
    return Chart("uncertainty", "Noise and doubt of each row", seen, reading, figure, _sampled(result, rows))


def _jitter(result: TargetResult) -> tuple[Array, float]:
    """Return how far each mark is moved sideways, and at most how far: only where many rows share few true values."""
    values = np.unique(result.y)
    if not result.few_values or len(values) < 2:
        return np.zeros(len(result.y)), 0.0
    gap = 0.3 * float(np.diff(values).min())
    return np.random.default_rng(0).uniform(-gap, gap, len(result.y)), gap


# Parts of charts ------------------------------------------------------------------------------------------------------

HOVER = "%{customdata}<extra></extra>"


def _hover(result: TargetResult, rows: NDArray[np.int64], labels: Sequence[str]) -> list[str]:
    """Return the text of each row that is shown where the pointer is."""
    texts = []
    for k in rows.tolist():
        parts = [
            f"<b>row {escape(clip(labels[k], 30), quote=False)}</b>",
            f"true {show(float(result.y[k]))}",
            f"predicted {show(float(result.point[k]))}",
            f"{percent(COVERAGE)} interval {show(float(result.lower[k]))} to {show(float(result.upper[k]))}",
        ]
        if result.aleatoric is not None and result.epistemic is not None:
            parts.append(f"noise {show(float(result.aleatoric[k]), 3)}, doubt {show(float(result.epistemic[k]), 3)}")
        if result.familiarity is not None:
            parts.append(f"familiarity {show(float(result.familiarity[k]), 2)}")
        texts.append("<br>".join(parts))
    return texts


def _sampled(result: TargetResult, rows: NDArray[np.int64]) -> str:
    """Return a sentence about the rows that are shown, where these are not all."""
    if len(rows) == len(result.y):
        return ""
    return (
        f"Shown are {len(rows):,} of {len(result.y):,} rows: the most doubtful ones, and others chosen at random; the "
        "numbers in the text are of all rows."
    )


def _figure(traces: list[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    return {"data": traces, "layout": layout}


def _line(x: Any, y: Any, color: str, name: str, dash: str = "solid", hover: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = {"hoverinfo": "skip"} if hover is None else {"hovertemplate": hover}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _plain(np.asarray(x, dtype=float)),
        "y": _plain(np.asarray(y, dtype=float)),
        "line": {"color": color, "width": 2 if dash == "solid" else 1.3, "dash": dash},
        "name": name,
        **shown,
    }


def _layout(x: str, y: str, height: int) -> dict[str, Any]:
    axis = {"gridcolor": "#e5e7eb", "zeroline": False, "linecolor": GREY, "ticks": "outside", "automargin": True}
    font = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": INK}
    return {
        "height": height,
        "margin": {"l": 56, "r": 12, "t": 8, "b": 48},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": font,
        "xaxis": axis | {"title": {"text": escape(clip(x, 30), quote=False)}},
        "yaxis": axis | {"title": {"text": escape(clip(y, 30), quote=False)}},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 12}},
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"color": INK}, "align": "left"},
        "hovermode": "closest",
        "dragmode": False,
    }


def _log_ticks(values: Array) -> dict[str, Any]:
    """Return ticks at 1, 2 and 5 times powers of ten, of powers alone where these would be many."""
    good = values[np.isfinite(values) & (values > 0)]
    if not len(good):
        return {}
    first, last = (int(np.floor(np.log10(v))) for v in (good.min(), good.max()))
    factors = (1, 2, 5) if last - first < 3 else (1,)
    step = max(1, (last - first) // 6)
    ticks = [factor * 10.0**power for power in range(first, last + 2, step) for factor in factors]
    return {"tickvals": ticks, "ticktext": [show(tick) for tick in ticks]}


def _picture(result: TargetResult) -> tuple[float, float]:
    """Return the range of both axes: true values, and most intervals unless these would make it twice as wide."""
    first, last = float(result.y.min()), float(result.y.max())
    room = 0.5 * (last - first) or float(np.nanmedian(np.abs(result.point - first))) or 1.0
    low = float(np.clip(np.quantile(result.lower, 0.01), first - room, first))
    high = float(np.clip(np.quantile(result.upper, 0.99), last, last + room))
    margin = 0.03 * (high - low) or room
    return low - margin, high + margin


def _least(values: Array) -> float:
    return float(min(values[values > 0], default=np.inf))


def _largest(values: Array) -> float:
    return float(max(values[np.isfinite(values)], default=0.0))


def _plain(values: Array) -> list[float | None]:
    """Return numbers for JSON with seven digits, None where they are not finite."""
    return [float(f"{v:.7g}") if np.isfinite(v) else None for v in values.tolist()]


def _faint(color: str, opacity: float) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
