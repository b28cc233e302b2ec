"""The tables and sentences of paper/docs/shifts.md, and the sentences of other pages on the same record."""

import string
from collections.abc import Callable, Mapping
from typing import Any

from howsure_paper.quoted.blocks import Block, table
from howsure_paper.record import read_record

__all__ = ["SHIFTS", "SHIFT_TABLES", "flag_table"]

Shift = Mapping[str, Any]

NAMES = ("red to white wine", "bikes, 2011 to 2012", "inland to coast")
PLACES = {"inside": "inside", "outside": "other"}
PARTS = {"outside, not flagged": "not flagged", "outside, flagged": "flagged"}
SCORES = "number | in 90% | NLL | RMSE | RMSE of the training mean"


def number(value: float) -> str:
    """Return a score with three digits, and thousands with commas."""
    shown = f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"
    return shown.replace("-", "−")


def percent(value: float) -> str:
    """Return a share in percent, with one more digit if it is small."""
    return f"{100 * value:.1f}%" if value < 0.1 else f"{100 * value:.0f}%"


# Tables -------------------------------------------------------------------------------------------------------------


def _scores(own: Shift) -> list[str]:
    cells = [f"{own['rows']:,}", percent(own["coverage_90"]), f"{own['nll']:.2f}", number(own["rmse"])]
    return [*cells, number(own["rmse of the training mean"])]


def learned_table(record: Shift) -> str:
    """Return the table of the training rows of each model."""
    known = ("red wines", "hours of 2011", "districts of California that are inland")
    new = ("all white ones", "all hours of 2012", "all others")
    targets = ("grade, 0 to 10", "bikes hired in the hour", "median house value, $")
    shifts = record["shifts"]
    lines = [
        [name, f"{shifts[name]['rows']['train']:,} {rows}", others, target]
        for name, rows, others, target in zip(NAMES, known, new, targets, strict=True)
        if name in shifts  # a stopped study has fewer
    ]
    return table("shift | training rows | new rows | target", lines)


def shift_table(record: Shift) -> str:
    """Return the table of rows inside and outside."""
    lines = [
        [name, place, *_scores(found[key]), percent(found[key]["flagged"])]
        for name, found in record["shifts"].items()
        for key, place in PLACES.items()
    ]
    return table(f"shift | rows | {SCORES} | flagged", lines)


def flag_table(record: Shift) -> str:
    """Return the table of flagged and other new rows. Parts without rows are left out."""
    lines = [
        [name, part, *_scores(found[key]), number(found[key]["median width"])]
        for name, found in record["shifts"].items()
        for key, part in PARTS.items()
        if key in found
    ]
    return table(f"shift | new rows | {SCORES} | width", lines)


def parts_table(record: Shift) -> str:
    """Return the table of aleatoric and epistemic parts, inside and outside: medians over rows."""
    keys = ("aleatoric_std", "epistemic_std", "familiarity", "mean error")
    lines = [
        [name, place, *(number(found[key][score]) for score in keys)]
        for name, found in record["shifts"].items()
        for key, place in PLACES.items()
    ]
    return table("shift | rows | aleatoric | epistemic | `familiarity` | predictions too high by", lines)


def after_table(record: Shift) -> str:
    """Return the table of models that were trained with a few of the new rows."""
    lines = []
    for name, found in record["shifts"].items():
        both = (found["outside"], found["after"])
        cells = [percent(own["coverage_90"]) for own in both] + [f"{own['nll']:.2f}" for own in both]
        lines.append([name, *cells, *(number(own["rmse"]) for own in both), number(both[1]["rmse of their mean"])])
    scores = "in 90%, before | after | NLL, before | after | RMSE, before | after"
    return table(f"shift | {scores} | RMSE of the mean of the 200", lines)


SHIFT_TABLES = {
    "learned": learned_table,
    "rows": shift_table,
    "flags": flag_table,
    "parts": parts_table,
    "after": after_table,
}


# Sentences ----------------------------------------------------------------------------------------------------------

SENTENCES = {
    "flagged-inside": "{flagged inside} of {inside:,}",
    "wine": "{wine[outside][flagged]:%} of the white wines are flagged. Their columns differ from the red wines "
    "(`familiarity` has a median of {wine[outside][familiarity]:#}), the epistemic part is {ratio of wine:.1f} times "
    "as large, and the wider intervals hold {wine[outside][coverage_90]:%}. But the errors are only {gain:%} smaller "
    "than with one prediction for all wines",
    "coast": "{houses[outside][flagged]:%} are flagged, and {houses[inside][flagged]:%} inside: more, but too few for "
    "an alarm. Intervals are {width of houses:.1f} times as wide, and hold only {houses[outside][coverage_90]:%}. "
    "Most of these districts have columns like some district inland (`familiarity` has a median of "
    "{houses[outside][familiarity]:#})",
    "bikes": "{bikes[outside][flagged]:%} are flagged, fewer than one in a hundred ({bikes[inside][flagged]:%} "
    "inside). The epistemic part is {bikes[outside][epistemic_std]:#} instead of {bikes[inside][epistemic_std]:#}. "
    "Predictions are too low by {too low:.0f} bikes on average, so that intervals hold {bikes[outside][coverage_90]:%}",
    "last-tenth": "the last tenth of 2011, {bikes[last tenth in time][rows]} hours, instead of hours drawn at "
    "random. There the intervals hold {bikes[last tenth in time][coverage][0.9]:%} and the RMSE is "
    "{bikes[last tenth in time][rmse]:#}. On random hours they are {bikes[inside][coverage_90]:%} and "
    "{bikes[inside][rmse]:#}",
    "bikes-after": "they hold {bikes[after][coverage_90]:%}, and {bikes[after][flagged]:%} of the rows are flagged",
    "draws": "intervals hold {draws[coverage_90]} of the white wines, and {draws[flagged]} are flagged. Of the "
    "held-out red wines, {draws[flagged inside]} are flagged",
    "draws-flagged": "{draws[flagged]}",
    "copies": "Of the {wine[inside][rows]} red wines inside, {copies[rows]} are exact copies of a training row, "
    "because the file has many. Their RMSE is {copies[rmse]:#}, and the RMSE of the other {others[rows]} is "
    "{others[rmse]:#}: the {wine[inside][rmse]:#} in the first table is too good.",
    "copies-in-short": "RMSE is {copies[rmse]:#} for these, and {others[rmse]:#} for the other {others[rows]}",
    "claim": "{wine[outside][flagged]:%} of white wines are flagged ({wine[inside][flagged]:%} of held-out red ones), "
    "{houses[outside][flagged]:%} of the coast, and {bikes[outside][flagged]:%} of the bikes of 2012, whose intervals "
    "hold {bikes[outside][coverage_90]:%} instead of 90%",
}


class _Formatter(string.Formatter):
    """Format fields of the record: ``%`` by `percent`, ``#`` by `number`, other formats as Python does."""

    def format_field(self, value: Any, format_spec: str) -> str:
        formats = {"%": percent, "#": number}
        return formats[format_spec](value) if format_spec in formats else str(format(value, format_spec))


def sentence_values(record: Shift) -> dict[str, Any]:
    """Return the fields of the sentences: the results of the three shifts, and numbers computed from them."""
    shifts = wine, bikes, houses = [record["shifts"][name] for name in NAMES]
    draws = {score: [draw[score] for draw in wine["draws"]] for score in ("coverage_90", "flagged", "flagged inside")}
    return {
        "wine": wine,
        "bikes": bikes,
        "houses": houses,
        "copies": wine["inside, copies of training rows"],
        "others": wine["inside, no copies"],
        "draws": {score: f"{percent(min(values))} to {percent(max(values))}" for score, values in draws.items()},
        "gain": 1 - wine["outside"]["rmse"] / wine["outside"]["rmse of the training mean"],
        "ratio of wine": wine["outside"]["epistemic_std"] / wine["inside"]["epistemic_std"],
        "width of houses": houses["outside"]["median width"] / houses["inside"]["median width"],
        "too low": -bikes["outside"]["mean error"],
        "flagged inside": sum(round(shift["inside"]["flagged"] * shift["inside"]["rows"]) for shift in shifts),
        "inside": sum(shift["inside"]["rows"] for shift in shifts),
    }


def _table_block(make: Callable[[Shift], str]) -> Block:
    return lambda results: make(read_record(results / "shifts"))


def _sentence_block(sentence: str) -> Block:
    return lambda results: _Formatter().vformat(sentence, (), sentence_values(read_record(results / "shifts")))


SHIFTS: dict[str, Block] = {f"shift-{name}": _table_block(make) for name, make in SHIFT_TABLES.items()}
SHIFTS |= {f"shift-{name}": _sentence_block(sentence) for name, sentence in SENTENCES.items()}
