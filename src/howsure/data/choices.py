"""Choose by training rows what becomes of a column: what is left out, target means, parts of dates, absolute time."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.data.columns import Column, name_parts

__all__ = ["LIKE_NUMBERS", "TargetMeans", "absolute_time_helps", "date_parts", "reason_to_leave_out", "target_means"]

Array = NDArray[np.float64]

LEAST_ROWS = 20  # with a value; with fewer, that all values differ says little about a column
FOLDS = 10  # in which the means are learned without the rows that they encode
MOST_ROWS = 5000  # on which it is judged, at equal distances in time, whether trees need the time
CLEARLY = 3.0  # standard errors by which means must explain the targets


# What is left out -----------------------------------------------------------------------------------------------------


def reason_to_leave_out(column: Column) -> str:
    """Return why a column is an identifier, a name or free text, from which nothing can be learned; empty if it is not.

    Text that is different in nine of ten rows has no categories: a network could only learn its rows by heart. Whole
    numbers that are all different may as well be quantities, such as prices, so that the name must also say it.
    """
    if column.kind == "category" and column.content == "text" and not column.declared:
        texts = [text for text in column.values if text is not None]
        distinct = len(set(texts))
        if len(texts) < LEAST_ROWS:
            return ""
        if distinct > 0.9 * len(texts):
            hint = f", which {LIKE_NUMBERS}" if _look_like_numbers(texts) else ""
            return f"{distinct} different texts in {len(texts)} rows{hint}"
        if distinct > 0.5 * len(texts) and sum(len(t.split()) for t in texts) > 5 * len(texts):
            return f"sentences, {distinct} different ones in {len(texts)} rows"
    if column.kind == "number" and column.content == "number" and _is_named_as_identifier(column.name):
        numbers = column.values[~np.isnan(column.values)]
        whole = len(numbers) >= LEAST_ROWS and not (numbers % 1).any()
        if whole and len(np.unique(numbers)) == len(numbers):
            return "whole numbers that are all different, with the name of an identifier"
    return ""


LIKE_NUMBERS = "look like numbers with different units"
_NUMBER_WITH_UNIT = re.compile(r"[^\w\s]?\s*[-+]?[0-9][0-9.,' ]*\s*[^\d]{0,12}")


def _look_like_numbers(texts: list[str]) -> bool:
    """Return whether nearly all texts are numbers with units or separators, such as "1,200" or "5 km", and no codes."""
    if all(text.strip().isdigit() for text in texts):
        return False
    return sum(_NUMBER_WITH_UNIT.fullmatch(text.strip()) is not None for text in texts) > 0.9 * len(texts)


_WHOLE_NAMES = frozenset(("index", "idx", "row", "rows", "rowid", "rownum", "rowname", "rownames", "record", "serial"))
_JOINED_NAMES = re.compile(  # "id" at the end of a word says nothing by itself: bid, paid, grid
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
    """Return whether a name is that of an identifier: id, customer_id, PassengerId, Serial No., Unnamed: 0 or index."""
    parts = name_parts(name)
    if not parts:
        return not name.strip()  # what pandas writes above its index
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
    categories = sorted({value for value in values if value is not None})
    index = {category: k for k, category in enumerate(categories)}
    codes = np.array([len(categories) if value is None else index[value] for value in values], dtype=np.int64)
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
            if r * np.sqrt(len(t)) > CLEARLY * np.sqrt(max(1 - r**2, 0)):
                best = max(best, r**2)
    return best


# Dates ----------------------------------------------------------------------------------------------------------------

_DAY = 86_400
# a cycle that was not seen whole is a time in disguise: later dates would lie where no training row was
_LEAST_SPANS = {"year": 360 * _DAY, "week": 6 * _DAY, "day": 20 * 3600}


def date_parts(column: Column) -> tuple[tuple[str, ...], str]:
    """Return the cycles that a column of dates is described by, and why the others are left out."""
    seconds = column.values[~np.isnan(column.values)]
    if column.content == "time":
        return ("time", "day"), "seconds since midnight, and their place in the day"
    if not len(seconds):
        return (), ""
    days = np.floor(seconds / _DAY).astype("M8[D]")
    months = days.astype("M8[M]")
    of_month, of_year = (days - months).astype(int), months.astype(int) % 12
    last_of_month = ((days + 1).astype("M8[M]") > months).all()
    varies = {
        "year": len(np.unique(of_year * 31 + of_month)) > 1,
        "week": not (of_month == 0).all() and not last_of_month and len(np.unique(days.astype(int) % 7)) > 1,
        "day": np.ptp(seconds % _DAY) > 0,
    }
    span = np.ptp(seconds)
    parts = tuple(part for part, long in _LEAST_SPANS.items() if varies[part] and span >= long)
    short = [part for part, long in _LEAST_SPANS.items() if varies[part] and span < long]
    why = f"its place in the {' and the '.join(parts)}" if parts else "no cycle is complete"
    return parts, why + (f"; the rows are within less than a {short[0]}" if short else "")


def absolute_time_helps(seconds: Array, x: Array, y: Array) -> str:
    """Return how the time itself, beside the features x (N, F), helps to predict the latest rows from earlier ones.

    Each of two models predicts the latest fifth of the rows with the time and without it. The mean squared error must
    fall by 5 %, and by two standard errors of the differences in up to ten blocks of time. It must also fall on the
    fifth before, so that one turn of the targets does not decide.

    Returns:
        "trend" if it helps a ridge regression, which continues a trend; "level" if it helps boosted trees alone, which
        take the last level that they have seen; "" if it helps neither.
    """
    known = np.flatnonzero(~np.isnan(seconds))
    order = known[np.argsort(seconds[known], kind="stable")]
    if len(order) < 25 or len(np.unique(seconds[order])) < 10:
        return ""
    table = seconds[order], x[order], y[order]
    if _helps_latest(_ridge, *table):
        return "trend"
    if len(order) >= 50:
        chosen = order[np.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).astype(int)]
        if _helps_latest(_trees, seconds[chosen], x[chosen], y[chosen]):
            return "level"
    return ""


Model = Callable[[Array, Array, Array], Array]  # (features, targets, new features) → predictions


def _helps_latest(model: Model, time: Array, x: Array, y: Array) -> bool:
    """Return whether the time helps a model on the latest fifth of rows in the order of time, and on the one before."""
    latest, before = (_gains(model, time, x, y, part) for part in ((0.8, 1.0), (0.6, 0.8)))
    if latest is None or before is None:
        return False
    (gains, error), error_before = latest, before[0].mean()
    mean, deviation = gains.mean(), gains.std(ddof=1) / np.sqrt(len(gains))
    return bool(mean > 2 * deviation and mean > 0.05 * error and error_before > 0)


def _gains(model: Model, time: Array, x: Array, y: Array, part: tuple[float, float]) -> tuple[Array, float] | None:
    """Return by how much the squared error falls with the time in each block of a part of the rows, and its size."""
    start, stop = (round(share * len(time)) for share in part)
    early = np.arange(stop) < start
    target = _standardised(y[:stop], early)
    without = _standardised(x[:stop], early)
    whole = np.concatenate([without, _standardised(time[:stop, None], early)], axis=1)
    if not (np.isfinite(whole).all() and np.isfinite(target).all()):
        return None
    errors = [((model(f[early], target[early], f[~early]) - target[~early]) ** 2).mean(1) for f in (without, whole)]
    gains = errors[0] - errors[1]
    blocks = np.array_split(gains, min(10, len(gains)))
    return np.array([block.mean() for block in blocks]), float(errors[0].mean())


def _standardised(table: Array, rows: NDArray[np.bool_]) -> Array:
    """Return the columns with mean 0 and deviation 1 in some rows; those that hardly vary there are 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        centred = table - table[rows].mean(0)
        size = np.abs(table[rows]).max(0)
        scale = centred[rows].std(0)
    constant = ~(scale > 1e-12 * size)
    return np.where(constant, 0.0, centred / np.where(constant, 1.0, scale))


def _ridge(x: Array, y: Array, new: Array) -> Array:
    """Return the predictions of a ridge regression with penalty 1 for new rows, from centred features and targets."""
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)
    predicted: Array = new @ weights
    return predicted


def _trees(x: Array, y: Array, new: Array) -> Array:
    """Return the predictions of boosted trees for new rows, one model a target."""
    if not x.shape[1]:
        return np.zeros((len(new), y.shape[1]))
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(max_iter=50, min_samples_leaf=10, early_stopping=False, random_state=0)
    return np.stack([trees.fit(x, t).predict(new) for t in y.T], axis=1)
