"""Sentences that say what the scores of a model mean, for readers who are no statisticians."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from howsure.report.bands import binomial_range
from howsure.report.evaluation import COVERAGE, TYPICAL_FAMILIARITY, Group, TargetResult
from howsure.report.words import counted, percent, show

__all__ = ["ScoreLine", "score_lines", "summary_lines"]


@dataclass(frozen=True)
class ScoreLine:
    """One score: its name, its value for the model and for a constant answer, and what it means."""

    name: str
    value: str
    constant: str
    reading: str


def score_lines(result: TargetResult) -> list[ScoreLine]:
    """Return every score of a target with a sentence about it."""
    own, other, name = result.scores, result.constant, result.name
    stated = percent(COVERAGE)
    inside = round(own.coverage * len(result.y))
    chance = binomial_range(len(result.y), COVERAGE)
    lines = [
        ScoreLine(
            "Typical error (RMSE)",
            show(own.rmse),
            show(other.rmse),
            f"Predictions of {name} are off by about {show(own.rmse, 3)}; large errors count more. "
            + _compared(own.rmse, other.rmse),
        ),
        ScoreLine(
            "Mean error (MAE)",
            show(own.mae),
            show(other.mae),
            f"On average the predicted {result.point_name} differs from the true value by {show(own.mae, 3)}, in half "
            f"of the rows by less than {show(_median_error(result), 3)}.",
        ),
        ScoreLine(
            f"Inside {stated} intervals",
            percent(own.coverage),
            percent(other.coverage),
            f"{inside:,} of {len(result.y):,} true values lie in their interval; if it held what it states, "
            f"{chance.low:,} to {chance.high:,} would (95 % of the time). " + _coverage_verdict(inside, *chance),
        ),
        ScoreLine(
            f"Width of {stated} intervals",
            show(own.width),
            show(other.width),
            f"Half of the intervals are narrower than {show(own.width, 3)}. Narrow is good only if the line above is "
            "as stated.",
        ),
        ScoreLine(
            "Calibration error",
            show(own.calibration_error, 3),
            show(other.calibration_error, 3),
            f"Stated probabilities are off by about {show(100 * own.calibration_error, 2)} percentage points; 0 would "
            "be perfect.",
        ),
    ]
    if np.isfinite(own.crps):
        lines.append(
            ScoreLine(
                "Error of the whole distribution (CRPS)",
                show(own.crps),
                show(other.crps),
                f"The mean error if all of the stated distribution counts, not only its {result.point_name}. "
                + _compared(own.crps, other.crps),
            )
        )
    better = "smaller, and thus better," if own.nll < other.nll else "larger, and thus worse,"
    lines.append(
        ScoreLine(
            "Surprise (NLL)",
            show(own.nll),
            show(other.nll),
            "How unlikely the true values are by what the model states, in nats a row; only differences between models "
            f"mean something. It is {better} than that of the constant by {show(abs(own.nll - other.nll), 3)}.",
        )
    )
    return lines


def summary_lines(result: TargetResult, familiar: list[Group], threshold: float) -> list[str]:
    """Return the few sentences that a reader needs first: how good, how honest, and which rows not to trust."""
    own, other = result.scores, result.constant
    inside = round(own.coverage * len(result.y))
    chance = binomial_range(len(result.y), COVERAGE)
    lines = [
        f"Predictions of {result.name} are off by about {show(own.rmse, 3)}. " + _compared(own.rmse, other.rmse),
        f"{percent(own.coverage)} of the true values lie in the intervals that should hold {percent(COVERAGE)}. "
        + _coverage_verdict(inside, *chance),
    ]
    bias = float(np.mean(result.point - result.y))
    if abs(bias) > 0.25 * own.rmse and len(result.y) >= 20:  # five standard errors or more of the mean of 400 rows
        lines[0] += f" On average they are too {'high' if bias > 0 else 'low'}, by {show(abs(bias), 3)}."
    middle = _median_error(result)
    if own.rmse > 5 * middle:  # 1.5 times for normal errors
        lines[0] += f" A few rows are far worse than the others: half of them are off by less than {show(middle, 3)}."
    if result.familiarity is None:
        lines.append(
            "This model does not say which rows are unlike the training rows; look at the most doubtful rows below."
        )
        return lines
    lines += _familiarity_lines(result, familiar, threshold)
    return lines


def _familiarity_lines(result: TargetResult, familiar: list[Group], threshold: float) -> list[str]:
    """Return what familiarity says about the rows as a whole, and about those unlike the training rows."""
    assert result.familiarity is not None
    lines, limit = [], show(threshold, 2)
    middle = float(np.median(result.familiarity))
    if middle < TYPICAL_FAMILIARITY:
        lines.append(
            f"The table as a whole is unlike the training rows: half of its rows have a familiarity below "
            f"{show(middle, 2)}, and rows like the training rows have about 1. Expect larger errors than in training."
        )
    flagged = result.familiarity < threshold
    lines += _changed_law(result, ~flagged)
    if not threshold:
        return [*lines, "No row is flagged: too few rows were held out to learn a threshold of familiarity."]
    if not flagged.any():
        return [*lines, f"No row is so unlike the training rows that its familiarity is below {limit}."]
    group = familiar[-1]
    text = (
        f"Do not trust {counted(group.count, 'row')} of {len(result.y):,} ({percent(group.count / len(result.y))}) "
        f"without a check: familiarity below {limit}. The typical error is {show(group.rmse, 3)} there"
    )
    if flagged.all():
        return [*lines, f"{text}, and {percent(group.coverage)} of the intervals hold the true value."]
    error = float(np.sqrt(np.mean((result.point - result.y)[~flagged] ** 2)))
    width = float(np.median(result.width[~flagged]))
    text += (
        f", {show(error, 3)} elsewhere; intervals are {_times(group.width, width)} there and hold "
        f"{percent(group.coverage)} of the true values, {percent(float(np.mean(result.inside[~flagged])))} elsewhere."
    )
    return [*lines, text]


def _changed_law(result: TargetResult, familiar: NDArray[np.bool_]) -> list[str]:
    """Return a warning if the intervals of familiar rows miss far more than stated."""
    count, inside = int(familiar.sum()), int(result.inside[familiar].sum())
    if count < 20 or 1 - inside / count <= 2 * (1 - COVERAGE) or inside >= binomial_range(count, COVERAGE).low:
        return []
    return [
        f"Do not trust intervals here, not even those of rows that look familiar: they hold {percent(inside / count)}. "
        "Either the target follows another law than in training, by a cause that is in no column, or the model is "
        "badly fitted: compare with rows held out of training. Familiarity compares columns, and cannot show this."
    ]


def _times(width: float, other: float) -> str:
    """Return how many times wider intervals are than others, in words."""
    ratio = width / other if other > 0 else np.inf
    return f"{show(ratio, 2)} times as wide" if ratio > 1.05 else "about as wide" if ratio > 0.95 else "narrower"


def _median_error(result: TargetResult) -> float:
    return float(np.median(np.abs(result.point - result.y)))


def _compared(own: float, other: float) -> str:
    """Return how an error compares with that of a constant answer."""
    if not (np.isfinite(own) and np.isfinite(other)) or other <= 0:
        return ""
    change = 1 - own / other
    always = "always answering the mean of the training rows"
    if abs(change) < 0.01:
        return f"That is no better than {always} ({show(other, 3)})."
    if change < -2:
        return f"That is {show(own / other, 2)} times as much as {always} would be ({show(other, 3)})."
    return (
        f"That is {percent(abs(change))} {'less' if change > 0 else 'more'} than {always} would be ({show(other, 3)})."
    )


def _coverage_verdict(inside: int, low: int, high: int) -> str:
    if inside < low:
        return "Intervals are too narrow for these rows: the model is too sure of itself."
    if inside > high:
        return "Intervals are wider than need be: the model is more careful than it states."
    return "That is as stated."
