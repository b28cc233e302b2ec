"""Sentences about the scores of a model, for readers who are not statisticians."""

from typing import NamedTuple

import numpy as np

from howsure.report.bands import binomial_range
from howsure.report.evaluation import COVERAGE, TYPICAL_FAMILIARITY, TargetResult
from howsure.report.words import counted, percent, show

__all__ = ["ScoreLine", "notes", "score_lines", "summary"]

MIN_ROWS_FOR_WARNING = 20  # with fewer, a low coverage may be chance
BIASED = 0.25  # share of the RMSE: the mean error of 400 rows by chance is a fifth of it


class ScoreLine(NamedTuple):
    """One score: its name, its value and its meaning."""

    name: str
    value: str
    meaning: str


def summary(result: TargetResult) -> list[str]:
    """Return three sentences: how large errors are, whether intervals hold, and which rows need a check."""
    return [_about_errors(result), _about_intervals(result), _about_rows(result)]


def _about_errors(result: TargetResult) -> str:
    spread = float(np.std(result.y))
    text = f"Predictions of {result.name} are off by about {show(result.rmse, 3)}"
    if spread > 0 and np.isfinite(result.rmse / spread):
        change = 1 - result.rmse / spread
        compared = (
            "about as much as"
            if abs(change) < 0.01
            else f"{percent(abs(change))} {'less' if change > 0 else 'more'} than"
        )
        text += f", {compared} the true values differ from their mean ({show(spread, 3)})"
    bias = float(np.mean(result.error))
    if len(result.y) >= MIN_ROWS_FOR_WARNING and abs(bias) > BIASED * result.rmse:
        text += f", and on average {show(abs(bias), 3)} too {'high' if bias > 0 else 'low'}"
    return text + "."


def _about_intervals(result: TargetResult) -> str:
    inside, (low, high) = int(result.inside.sum()), result.chance
    text = f"{percent(result.coverage)} of the true values lie inside their {percent(COVERAGE)} intervals"
    if inside < low:
        return f"{text}: the intervals are too narrow for these rows."
    if inside > high:
        return f"{text}: the intervals are wider than they need to be."
    return f"{text}, as they should."


def _about_rows(result: TargetResult) -> str:
    known = ~result.unfamiliar
    count, inside = int(known.sum()), int(result.inside[known].sum())
    if (
        count >= MIN_ROWS_FOR_WARNING
        and 1 - inside / count > 2 * (1 - COVERAGE)
        and inside < binomial_range(count, COVERAGE).low
    ):
        return (
            f"Do not trust the intervals: even for rows that look like the training rows they hold "
            f"{percent(inside / count)}, so the target may depend on something that no column shows."
        )
    if result.familiarity is None:
        return "This model does not measure how much a row resembles the training rows."
    if np.median(result.familiarity) < TYPICAL_FAMILIARITY:
        return (
            "The table as a whole is unlike the training rows (half of the rows have a familiarity below "
            f"{show(float(np.median(result.familiarity)), 2)}): expect larger errors than in training."
        )
    if result.threshold is None:
        return "No row is marked as unfamiliar, because the training rows were too few to learn a threshold."
    flagged = int(result.unfamiliar.sum())
    if not flagged:
        return "No row is unlike the training rows."
    rows = f"{counted(flagged, 'row')} of {len(result.y):,}"
    return f"Check {rows} before use: unlike the training rows."


def score_lines(result: TargetResult) -> list[ScoreLine]:
    """Return every score of a target with its meaning."""
    low, high = result.chance
    middle = float(np.median(np.abs(result.error)))
    interval = percent(COVERAGE)
    lines = [
        ScoreLine(
            "Root mean squared error (RMSE)",
            show(result.rmse),
            "The size of a typical error. Errors are squared before they are averaged, so large ones count more.",
        ),
        ScoreLine(
            "Mean absolute error (MAE)",
            show(float(np.mean(np.abs(result.error)))),
            f"The average distance of the predicted {result.point_name} from the true value. Half of the errors are "
            f"smaller than {show(middle, 3)}.",
        ),
        ScoreLine(
            f"Inside {interval} intervals",
            percent(result.coverage),
            f"{int(result.inside.sum()):,} of {len(result.y):,} true values. With correct intervals it would be "
            f"{low:,} to {high:,}, in 95 of 100 such tables.",
        ),
        ScoreLine(
            f"Width of {interval} intervals",
            show(float(np.median(result.width))),
            "Half of the intervals are narrower. Narrow is better if the line above is as it should be.",
        ),
    ]
    if result.crps is not None:
        lines.append(
            ScoreLine(
                "Error of the distribution (CRPS)",
                show(result.crps),
                "The mean absolute error of a whole predicted distribution. Smaller is better.",
            )
        )
    lines.append(
        ScoreLine(
            "Surprise (NLL)",
            show(result.nll),
            "The mean of −log(predicted density at the true value). Smaller is better; only differences between models "
            "have a meaning.",
        )
    )
    return lines


def notes(result: TargetResult, rows: int) -> list[str]:
    """Return the limitations of the numbers of a target.

    Args:
        result: of the target.
        rows: number of rows of the table, also those without a known target.
    """
    found = []
    if len(result.y) < rows:
        found.append(f"{counted(rows - len(result.y), 'row')} without a known target are left out.")
    if result.few_values:
        found.append(f"The target has only {result.few_values} different values: the calibration curve has steps.")
    if len(result.y) < 100:
        found.append(f"With {counted(len(result.y), 'row')} all numbers are rough.")
    return found
