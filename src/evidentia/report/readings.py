"""Sentences that say what the scores of a model mean, for readers who are no statisticians."""

from dataclasses import dataclass

import numpy as np

from evidentia.report.bands import binomial_range
from evidentia.report.evaluation import COVERAGE, Group, TargetResult
from evidentia.report.words import counted, percent, show

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
            f"On average the predicted {result.point_name} differs from the true value by {show(own.mae, 3)}.",
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
            f"Half of the intervals are narrower than {show(own.width, 3)}. Narrow is good only if the line above is as "
            "stated.",
        ),
        ScoreLine(
            "Calibration error",
            show(own.calibration_error, 3),
            show(other.calibration_error, 3),
            f"Stated probabilities are off by about {show(100 * own.calibration_error, 2)} percentage points; 0 is ideal.",
        ),
    ]
    if np.isfinite(own.crps):
        lines.append(
            ScoreLine(
                "Error of the whole distribution (CRPS)",
                show(own.crps),
                show(other.crps),
                f"The mean error if the stated distribution counts, not only its {result.point_name}; smaller is better. "
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
    if result.familiarity is None:
        lines.append(
            "This model does not say which rows are unlike the training rows; look at the most doubtful rows below."
        )
        return lines
    flagged = int((result.familiarity < threshold).sum())
    if not flagged:
        lines.append(f"All rows look like the training rows (familiarity {show(threshold, 2)} or more).")
        return lines
    group = familiar[-1]
    rest = result.familiarity >= threshold
    text = (
        f"{counted(flagged, 'row')} of {len(result.y):,} ({percent(flagged / len(result.y))}) look unlike the training rows "
        f"(familiarity below {show(threshold, 2)}): do not trust these predictions without a check. Their typical error "
        f"is {show(group.rmse, 3)}"
    )
    if rest.any():
        error = float(np.sqrt(np.mean((result.point - result.y)[rest] ** 2)))
        text += f", that of the other rows {show(error, 3)}"
    lines.append(text + f"; {percent(group.coverage)} of their intervals hold the true value.")
    return lines


def _compared(own: float, other: float) -> str:
    """Return how an error compares with that of a constant answer."""
    if not (np.isfinite(own) and np.isfinite(other)) or other <= 0:
        return ""
    change = 1 - own / other
    always = "always answering the mean of the training rows"
    if abs(change) < 0.01:
        return f"That is no better than {always} ({show(other, 3)})."
    return (
        f"That is {percent(abs(change))} {'less' if change > 0 else 'more'} than {always} would be ({show(other, 3)})."
    )


def _coverage_verdict(inside: int, low: int, high: int) -> str:
    if inside < low:
        return "Intervals are too narrow for these rows: the model is too sure of itself."
    if inside > high:
        return "Intervals are wider than need be: the model is more careful than it states."
    return "That is as stated."
