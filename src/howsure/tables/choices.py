"""Choose the encoding of a column by training rows: left out, means of targets, cycles of dates."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from howsure.tables.columns import Column, name_parts
from howsure.tables.numbers import PLAIN

__all__ = ["TargetMeans", "date_cycles", "reason_to_leave_out", "target_means"]

Array = NDArray[np.float64]

MIN_ROWS_TO_LEAVE_OUT = 20  # with a value. With fewer, different values are common in ordinary columns
FOLDS = 10  # the means of a fold's rows are learned from the others
MIN_STANDARD_ERRORS = 3.0  # by which means must explain the targets


# Columns to leave out -------------------------------------------------------------------------------------------------


def reason_to_leave_out(column: Column) -> str:
    """Return why a column is an identifier, a name or free text, from which nothing can be learned; empty if it is not.

    Text that is different in nine of ten rows has no categories: a network could only learn its rows by heart. Whole
    numbers that are all different may as well be quantities, such as prices, so that the name must also match.
    """
    if column.kind == "category" and not column.declared:
        texts = [text for text in column.values if text is not None]
        distinct = len(set(texts))
        if len(texts) < MIN_ROWS_TO_LEAVE_OUT:
            return ""
        if distinct > 0.9 * len(texts):
            return f"{distinct} different texts in {len(texts)} rows"
        if distinct > 0.5 * len(texts) and sum(len(t.split()) for t in texts) > 5 * len(texts):
            return f"sentences, {distinct} different ones in {len(texts)} rows"
    if column.kind == "number" and column.content == PLAIN and _is_named_as_identifier(column.name):
        numbers = column.values[~np.isnan(column.values)]
        whole = len(numbers) >= MIN_ROWS_TO_LEAVE_OUT and not (numbers % 1).any()
        if whole and len(np.unique(numbers)) == len(numbers):
            return "whole numbers that are all different, with the name of an identifier"
    return ""


_WHOLE_NAMES = frozenset(("index", "idx", "row", "rows", "rowid", "rownum", "rowname", "rownames", "record", "serial"))
_JOINED_NAMES = re.compile(  # "id" at the end of a word is not enough: bid, paid, grid
    "unnamed[0-9]+|rownumber"
    "|(?:user|customer|client|order|item|product|case|patient|subject|sample|record|object|listing|house|movie)id"
)
_LAST_WORDS = frozenset(("id", "ids", "uuid", "guid", "identifier", "key", "pk", "rowid"))
_NUMBERED = frozenset(  # a house number or a floor number is a quantity, or may be
    (
        *("s", "sl", "sr", "serial", "row", "record", "id", "index", "idx", "order", "invoice", "bill", "receipt"),
        *("account", "customer", "client", "user", "member", "employee", "emp", "student", "patient", "case", "sample"),
        *("subject", "item", "product", "ticket", "transaction", "ref", "reference", "reg", "registration", "roll"),
        *("policy", "claim", "booking", "application", "loan", "entry", "document", "doc"),
    )
)


def _is_named_as_identifier(name: str) -> bool:
    """Return whether a name belongs to an identifier: id, customer_id, PassengerId, Serial No., Unnamed: 0 or index."""
    parts = name_parts(name)
    if not parts:
        return not name.strip()  # pandas writes this above its index
    joined = "".join(parts)
    if parts[-1] in ("no", "nr"):
        return parts[:-1] == [] or parts[-2] in _NUMBERED
    return parts[-1] in _LAST_WORDS or joined in _WHOLE_NAMES or bool(_JOINED_NAMES.fullmatch(joined))


# Categories -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetMeans:
    """The means of the targets in each category, drawn towards the mean of all as far as their rows are few.

    Attributes:
        categories: that occur, sorted.
        means: one row a category, then where the value is missing, then for unseen ones, (categories + 2, T).
        out_of_fold: for each training row, learned without its fold, (N, T).
        gain: share of the variance that those explain, of the target that is explained best.
    """

    categories: tuple[str, ...]
    means: Array
    out_of_fold: Array
    gain: float


def target_means(values: NDArray[Any], y: Array, seed: int) -> TargetMeans | None:
    """Return the means of the targets (N, T) by category, or None if they do not clearly explain the targets.

    The mean of n rows counts n/(n + m), where m is the variance within categories over that between them (analysis of
    variance), so that a category of a single row hardly counts if rows vary. Whether the means help is judged on rows
    that they were not learned from.
    """
    codes, categories = pd.factorize(values, sort=True)
    codes = np.where(codes < 0, len(categories), codes)
    centre, spread = y.mean(0), y.std(0)
    z = (y - centre) / np.where(spread > 0, spread, 1)
    prior = _prior_rows(codes, z)
    fold = np.random.default_rng(seed).permutation(len(z)) % FOLDS
    out_of_fold = np.empty_like(z)
    for k in range(FOLDS):
        others = fold != k
        means = _shrunk_means(codes[others], z[others], prior, len(categories))
        out_of_fold[~others] = means[codes[~others]]
    gain = _explained(out_of_fold, z)
    if not gain:
        return None
    means = _shrunk_means(codes, z, prior, len(categories))
    return TargetMeans(tuple(categories), centre + spread * means, centre + spread * out_of_fold, gain)


def _prior_rows(codes: NDArray[np.int64], z: Array) -> Array:
    """Return how many rows the mean of all counts for, for each target: the variance within over that between."""
    count = np.bincount(codes)
    used = count > 0
    n, k = len(codes), int(used.sum())
    sums = np.stack([np.bincount(codes, t) for t in z.T], axis=1)[used]
    count = count[used, None]
    between = (sums**2 / count).sum(0)  # of centred targets
    within = np.maximum((z**2).sum(0) - between, 0) / max(n - k, 1)
    size = (n - (count**2).sum() / n) / max(k - 1, 1)
    variance = (between / max(k - 1, 1) - within) / max(size, 1e-9)
    prior: Array = within / np.maximum(variance, 1e-6)
    return prior


def _shrunk_means(codes: NDArray[np.int64], z: Array, prior: Array, categories: int) -> Array:
    """Return the mean of each category, then of missing and unseen values, in targets whose mean is near zero."""
    count = np.bincount(codes, minlength=categories + 2)[:, None]
    sums = np.stack([np.bincount(codes, t, minlength=categories + 2) for t in z.T], axis=1)
    overall = z.mean(0)
    means: Array = overall + (sums - count * overall) / np.maximum(count + prior, 1e-9)
    return means


def _explained(features: Array, z: Array) -> float:
    """Return the largest squared correlation of a feature with its target, 0 if none is clearly above chance."""
    best = 0.0
    for x, t in zip(features.T, z.T, strict=True):
        if x.std() > 0 and t.std() > 0:
            r = float(np.corrcoef(x, t)[0, 1])
            if r * np.sqrt(len(t)) > MIN_STANDARD_ERRORS * np.sqrt(max(1 - r**2, 0)):
                best = max(best, r**2)
    return best


# Dates ----------------------------------------------------------------------------------------------------------------

_DAY = 86_400
# training rows must span a cycle: the phase in part of a cycle is a time, and later rows lie outside the training range
MIN_SPANS = {"year": 360 * _DAY, "week": 6 * _DAY, "day": 20 * 3600}


def date_cycles(seconds: Array) -> tuple[str, ...]:
    """Return the cycles in which dates vary, and which they span: some of "year", "week" and "day"."""
    if not len(seconds):
        return ()
    days = np.floor(seconds / _DAY).astype("M8[D]")
    day_of_year = days - days.astype("M8[Y]")
    phases = {"year": day_of_year, "week": days.astype(np.int64) % 7, "day": seconds % _DAY}
    span = np.ptp(seconds)
    return tuple(cycle for cycle, least in MIN_SPANS.items() if span >= least and len(np.unique(phases[cycle])) > 1)
