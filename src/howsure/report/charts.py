"""The charts of a report, each with a text that has the same content."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from howsure.report.evaluation import COVERAGE, TargetResult
from howsure.report.svg import Axis, Chart
from howsure.report.words import clip, counted, percent, show

__all__ = ["calibration_chart", "parts_chart", "predicted_chart", "retention_chart"]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
MAX_DECADES = 6  # of a logarithmic axis: smaller values lie at its edge


def predicted_chart(result: TargetResult, rows: Rows, labels: Sequence[str]) -> Chart:
    """Return the chart of predicted against true values with intervals, for some of the rows."""
    first, last, low, high = _picture(result)
    name = clip(result.name.removeprefix("the "), 30)
    missed, beyond = int((~result.inside).sum()), (result.lower[rows] < low) | (result.upper[rows] > high)
    seen = (
        f"{_shown(result, rows)} The intervals of {counted(missed, 'row')} of {len(result.y):,} do not hold the true "
        f"value ({percent(missed / len(result.y))}; {percent(1 - COVERAGE)} is correct)."
    )
    if beyond.any():
        seen += f" The intervals of {counted(int(beyond.sum()), 'row')} reach beyond the picture."
    reading = (
        f"Each mark is a row: its true value to the right, the predicted {result.point_name} upwards, and its "
        f"{percent(COVERAGE)} interval as a vertical line. On the dashed line predictions are perfect."
    )
    axes = Axis(f"true {name} →", first, last), Axis(f"↑ predicted {name}", low, high)
    chart = Chart("predicted", "Predicted against true", reading, seen, *axes)
    diagonal = np.array([first, last])
    chart.line(diagonal, diagonal, "dashed")
    inside = result.inside
    for style, shape, key, chosen in (
        ("good", "dot", "true value inside the interval", rows[inside[rows]]),
        ("bad", "cross", "outside", rows[~inside[rows]]),
    ):
        y, point, ends = result.y[chosen], result.point[chosen], result.ends[chosen]
        chart.intervals(y, ends[:, 0], ends[:, 1], f"interval {style}")
        chart.marks(y, point, _titles(result, chosen, labels), shape, style, key)
    _ring(chart, result, rows, result.y, result.point, labels)
    return chart


def parts_chart(result: TargetResult, rows: Rows, labels: Sequence[str]) -> Chart | None:
    """Return the chart of the two parts of the uncertainty; None if the model does not divide it."""
    if result.parts is None:
        return None
    aleatoric, epistemic = result.parts
    first, last = _ends(aleatoric[rows])
    low, high = _ends(epistemic[rows])
    larger = int((epistemic > aleatoric).sum())
    seen = (
        f"{_shown(result, rows)} Medians: aleatoric {show(float(np.median(aleatoric)), 3)}, epistemic "
        f"{show(float(np.median(epistemic)), 3)}. The epistemic part is the larger one in "
        f"{counted(larger, 'row')} of {len(result.y):,} ({percent(larger / len(result.y))})."
    )
    reading = (
        "Aleatoric: how much the data scatter; more rows do not change it, better columns may. Epistemic: how much the "
        "model lacks rows like this one; above the dashed line it is the larger part."
    )
    axes = Axis("aleatoric std →", first, last, True), Axis("↑ epistemic std", low, high, True)
    chart = Chart("parts", "Where the uncertainty comes from", reading, seen, *axes)
    equal = np.array([min(first, low), max(last, high)])
    chart.line(equal, equal, "dashed", "both parts equal")
    x, y = np.clip(aleatoric, first, last), np.clip(epistemic, low, high)
    chart.marks(x[rows], y[rows], _titles(result, rows, labels), "dot", "good")
    _ring(chart, result, rows, x, y, labels)
    return chart


def calibration_chart(result: TargetResult) -> Chart:
    """Return the chart of the calibration curve with its band."""
    levels, shares = result.curve
    distance = np.abs(shares - levels)
    worst = int(distance.argmax())
    held = bool((distance <= result.band).all())
    seen = (
        f"The largest distance from the diagonal is at {percent(levels[worst])}, where {percent(shares[worst])} of the "
        f"true values lie below. With {counted(len(result.y), 'row')} chance explains a distance of up to "
        f"{show(100 * result.band, 2)} percentage points. The curve {'stays inside' if held else 'leaves'} the band."
    )
    reading = (
        "To the right a predicted probability, upwards the share of true values below the predicted quantile of that "
        "probability. On the diagonal both are equal. The grey band holds 95 of 100 curves of correct models."
    )
    axes = Axis("predicted probability →", 0, 1, percent=True), Axis("↑ share of true values below", 0, 1, percent=True)
    chart = Chart("calibration", "Do the predicted probabilities hold?", reading, seen, *axes)
    low, high = np.clip(levels - result.band, 0, 1), np.clip(levels + result.band, 0, 1)
    chart.area(levels, low, high, "band", "explained by chance")
    chart.line(levels, levels, "dashed")
    chart.line(levels, shares, "curve", "this model")
    return chart


def retention_chart(result: TargetResult) -> Chart:
    """Return the chart of the error of the rows that are left without those with the widest intervals."""
    share, kept = result.kept()
    half = int(np.argmin(np.abs(share - 0.5)))
    seen = (
        f"The error (RMSE) of all rows is {show(result.rmse, 3)}. Of the {percent(share[half])} with the narrowest "
        f"intervals it is {show(float(kept[half]), 3)}."
    )
    reading = (
        "The error of the rows that are left when those with the widest intervals are set aside. If the curve falls to "
        "the right, wide intervals point at the rows with large errors."
    )
    top = float(np.max(kept)) or 1.0
    axes = Axis("share of rows set aside →", 0, 1, percent=True), Axis("↑ error of the others (RMSE)", 0, 1.1 * top)
    chart = Chart("retention", "Do wide intervals point at large errors?", reading, seen, *axes)
    chart.line(np.array([0.0, 1.0]), np.array([result.rmse] * 2), "dashed", "rows set aside at random")
    chart.line(1 - share, kept, "curve", "rows with the widest intervals set aside")
    return chart


def _ring(chart: Chart, result: TargetResult, rows: Rows, x: Array, y: Array, labels: Sequence[str]) -> None:
    """Draw a ring around the rows that are unlike the training rows."""
    odd = rows[result.unfamiliar[rows]]
    chart.marks(x[odd], y[odd], _titles(result, odd, labels), "ring", "odd", "unlike the training rows")


def _titles(result: TargetResult, rows: Rows, labels: Sequence[str]) -> list[str]:
    """Return the text of each row that appears under the pointer."""
    texts = []
    for k in rows.tolist():
        ends = f"{show(float(result.lower[k]))} to {show(float(result.upper[k]))}"
        numbers = f"true {show(float(result.y[k]))}, predicted {show(float(result.point[k]))} ({ends})"
        text = f"row {clip(labels[k], 30)}: {numbers}"
        if result.familiarity is not None:
            text += f", familiarity {show(float(result.familiarity[k]), 2)}"
        texts.append(text)
    return texts


def _shown(result: TargetResult, rows: Rows) -> str:
    """Return a sentence about the rows in a chart."""
    if len(rows) == len(result.y):
        return f"All {len(rows):,} rows."
    return f"{len(rows):,} of {len(result.y):,} rows: those with the widest intervals, and others at random."


def _picture(result: TargetResult) -> tuple[float, float, float, float]:
    """Return the ends of the axis of true values, and of the axis of predictions.

    The latter holds most intervals, unless these would make it twice as long.
    """
    first, last = float(result.y.min()), float(result.y.max())
    room = 0.5 * (last - first) or float(np.nanmedian(np.abs(result.error))) or abs(first) or 1.0
    low = float(np.clip(np.quantile(result.lower, 0.01), first - room, first))
    high = float(np.clip(np.quantile(result.upper, 0.99), last, last + room))
    margin = 0.03 * (last - first) or room
    return first - margin, last + margin, low - margin, high + margin


def _ends(values: Array) -> tuple[float, float]:
    """Return the ends of a logarithmic axis that holds positive and finite values."""
    good = values[np.isfinite(values) & (values > 0)]
    if not len(good):
        return 0.1, 10.0
    high = 1.2 * float(good.max())
    return max(float(good.min()) / 1.2, high / 10**MAX_DECADES), high
