"""Turn one column of a table into the numbers that a network sees, as learned from training rows."""

import datetime
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from howsure.data.columns import Column, Content, Kind, is_missing_text, read_column
from howsure.data.numbers import is_template
from howsure.data.values import (
    RefusedError,
    boolean_text,
    kind_of,
    moment_text,
    number_text,
    refuse,
    shorten,
    to_text,
)
from howsure.errors import InputError

__all__ = ["DATE_PARTS", "DIGITS", "MOST_CATEGORIES", "PERIODS", "Encoder", "demand", "describe_strays", "encoder_from"]

Array = NDArray[np.float64]

MOST_CATEGORIES = 50  # that have a feature each; the rarer ones of a column share what an unseen one gets: zeros
DATE_PARTS = ("time", "year", "week", "day")  # what a date may become: the time itself, and where it lies in each cycle

_SPELLINGS: dict[str, Callable[[Any], str]] = {"number": number_text, "boolean": boolean_text, "date": moment_text}


@dataclass(frozen=True)
class Encoder:
    """What training rows taught about one column.

    Attributes:
        name: of the column.
        kind: how it is encoded.
        fill: the number that replaces a missing one.
        flags_missing: whether a feature says that a value is missing.
        categories: of a category; one feature each, or one row of ``means`` each.
        content: what the values were, where the kind leaves that open.
        parts: of a date, those of `DATE_PARTS` that are features.
        means: of a category that is encoded by its targets: their means in each category, where the value is missing,
            and where it was not seen in training, (categories + 2, targets).
        frequent: those of the categories that have a feature each beside the means.
        left_out: whether it is left out: no feature is made of it, and its values are not looked at.
        missing: how many training rows had no value; None in files of earlier versions.
        distinct: how many different values training rows had; None in files of earlier versions.
        why: why it was taken for what it is.
        span: of a date, the first and last moment of the training rows, where its time is held within them; otherwise
            empty.
        unread: the texts of training rows that count as missing values, and how many rows have them, in words.
        forgiving: whether later text that cannot be read is missing too, because training rows had such text.
    """

    name: str
    kind: Kind
    fill: float = 0.0
    flags_missing: bool = False
    categories: tuple[str, ...] = ()
    content: Content = ""
    parts: tuple[str, ...] = ()
    means: tuple[tuple[float, ...], ...] = ()
    frequent: tuple[str, ...] = ()
    left_out: bool = False
    missing: int | None = None
    distinct: int | None = None
    why: str = ""
    span: tuple[float, ...] = ()
    unread: str = ""
    forgiving: bool = False

    @property
    def features(self) -> list[str]:
        """The names of the columns of numbers that this column becomes."""
        if self.left_out:
            return []
        if self.kind == "category":
            count = len(self.means[0]) if self.means else 0
            names = [f"{self.name}: mean target{f' {k}' if count > 1 else ''}" for k in range(count)]
            names += [f"{self.name}={c}" for c in (self.frequent if self.means else self.categories)]
        elif self.kind == "date":
            waves = [f"{self.name}:{wave} {part}" for part in self.parts if part != "time" for wave in ("sin", "cos")]
            names = [self.name, *waves] if "time" in self.parts else waves
        else:
            names = [self.name]
        return [*names, f"{self.name} missing"] if self.flags_missing else names

    def read(self, values: Any, rows: int) -> Column:
        """Return a pandas series or an array, read as what this column was in training, or raise."""
        if self.left_out:
            return Column(self.name, self.kind, np.full(rows, None), self.content)
        spell = _Spelling(self.content, self.categories) if self.kind == "category" else None
        column = read_column(self.name, values, self.kind, self.content, spell, False, self.forgiving)
        odd = [(text, count) for text, count in column.strays if not is_missing_text(text, self.kind, self.content)]
        if odd:
            warnings.warn(f"column {self.name!r}: taken for missing values: {describe_strays(odd)}", stacklevel=2)
        return column

    def adopt(self, column: Column) -> Column:
        """Return a column that was typed without knowledge of the training rows, as what it was in training."""
        if self.left_out:
            return column
        same = column.content == self.content or (self.kind == "number" and not self.content)
        if column.kind == self.kind and (same or self.kind in ("boolean", "date")):
            clear = column.content in ("", "text", "month", "quarter", "week")
            if self.kind == "date" and not same and not clear:
                raise InputError(f"column {self.name!r} has dates that are written otherwise than in training")
            return column
        return self.read(_objects(column), len(column.values))

    def encode(self, column: Column, out: Array) -> None:
        """Write the features of a column that this encoder read into ``out``, an array of zeros (rows, features)."""
        if self.left_out:
            return
        values = column.values
        if self.kind == "category":
            missing = np.array([v is None for v in values], dtype=bool)
            self._encode_categories(values, missing, out)
        else:
            missing = np.isnan(values)
            numbers = np.where(missing, self.fill, values)
            if self.kind == "date":
                parts = _date_features(numbers, self.parts, self.span)
                out[:, : parts.shape[1]] = parts
            else:
                out[:, 0] = numbers
        if self.flags_missing:
            out[:, -1] = missing

    def _encode_categories(self, values: NDArray[Any], missing: NDArray[np.bool_], out: Array) -> None:
        if self.means:
            means = np.array(self.means)
            position = _positions(values, self.categories)  # -1 if not seen, and the last row is for those
            out[:, : means.shape[1]] = means[np.where(missing, len(self.categories), position)]
            out = out[:, means.shape[1] :]
        position = _positions(values, self.frequent if self.means else self.categories)
        seen = np.flatnonzero(position >= 0)
        out[seen, position[seen]] = 1

    @property
    def taken_for(self) -> str:
        """What the column was taken for, in a few words."""
        if self.left_out:
            return "identifier, left out" if self.kind == "number" else "names or free text, left out"
        if self.kind == "category":
            count = len(self.categories) if self.distinct is None else self.distinct
            return f"category, {count} value{'' if count == 1 else 's'}"
        if self.kind == "number" and is_template(self.content):
            return f"number (as in {self.content})"
        return _TAKEN_FOR.get((self.kind, self.content), self.kind)


def _positions(values: NDArray[Any], categories: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the position of each value among the categories, -1 if it is not there."""
    index = {category: k for k, category in enumerate(categories)}
    return np.array([index.get(value, -1) for value in values], dtype=np.int64)


_TAKEN_FOR = {
    ("number", "duration"): "duration",
    ("date", "text"): "date (written as text)",
    ("date", "day first"): "date (day/month/year)",
    ("date", "month first"): "date (month/day/year)",
    ("date", "year first"): "date (year/month/day)",
    ("date", "compact"): "date (as in 20201231)",
    ("date", "month"): "month",
    ("date", "quarter"): "quarter",
    ("date", "week"): "week",
    ("date", "time"): "time of day",
}


def describe_strays(strays: Sequence[tuple[str, int]]) -> str:
    """Return texts and how many rows have them, in words: "'?' in 6 rows"; the most frequent three by name."""
    ordered = sorted(strays, key=lambda stray: -stray[1])
    said = [f"{shorten(text)} in {count} row{'' if count == 1 else 's'}" for text, count in ordered[:3]]
    rest = sum(count for _, count in ordered[3:])
    return ", ".join([*said, f"other texts in {rest} row{'' if rest == 1 else 's'}"] if rest else said)


class _Spelling:
    """Function that returns the category of a value, by what the categories were made of in training.

    Categories that are numbers, booleans or dates are found by value, however it is written. Where they are text, a
    number, boolean or date stands for the one text that means it, "01" for 1, and is refused if there are several.
    """

    def __init__(self, content: Content, categories: tuple[str, ...]) -> None:
        self.content = content
        self.categories = frozenset(categories)
        self.meanings: dict[str, dict[str, list[str]]] = {}
        self.has_long_codes = any(len(c) >= 16 and c.lstrip("+-").isdigit() for c in self.categories)

    def __call__(self, value: Any) -> str:
        # pandas reads whole numbers beside a missing value as floating point, which keeps 15 digits of a code
        if self.has_long_codes and isinstance(value, float | np.floating) and abs(float(value)) >= 2**53:
            text = number_text(value)
            if text not in self.categories:
                refuse(value, "it has lost digits as a floating-point number; pass text or whole numbers")
            return text
        if self.content in _SPELLINGS:
            return _SPELLINGS[self.content](value)
        kind = kind_of(value)
        if kind == "text":
            return str(value)
        text = to_text(value)
        if text in self.categories and (self.content != "text" or kind not in _SPELLINGS):
            return text
        return self._by_meaning(kind, text, value)

    def _by_meaning(self, kind: str, text: str, value: Any) -> str:
        """Return the one category that means the same as the value; its text if none does, and that may be."""
        if kind not in self.meanings:
            self.meanings[kind] = _meanings(kind, self.categories)
        meant = self.meanings[kind].get(text, [])
        if len(meant) > 1:
            several = ", ".join(map(repr, sorted(meant)[:3]))
            raise RefusedError(f"{kind}s that could mean several categories ({several})", "pass text")
        if meant:
            return meant[0]
        # a number is simply not seen; rarer categories than were kept may have meant other values
        strict = self.content == "text" and kind != "number" and len(self.categories) < MOST_CATEGORIES
        if strict and not self.meanings[kind]:
            refuse(value, "pass text")
        return text


def _meanings(kind: str, categories: frozenset[str]) -> dict[str, list[str]]:
    """Return which categories spell each number, boolean or date."""
    meanings: dict[str, list[str]] = {}
    for category in categories if kind in _SPELLINGS else ():
        try:
            meanings.setdefault(_SPELLINGS[kind](category), []).append(category)
        except RefusedError:
            continue
    return meanings


def _objects(column: Column) -> Any:
    """Return the values of a column as a series of Python objects, None where missing."""
    import pandas as pd

    def date(seconds: float) -> np.datetime64:
        return np.datetime64(round(seconds * 1e6), "us")

    made: dict[tuple[str, str], Callable[[Any], Any]] = {
        ("boolean", ""): bool,
        ("date", ""): date,
        ("number", "duration"): lambda seconds: datetime.timedelta(seconds=seconds),
        ("category", "number"): lambda text: int(text) if text.lstrip("-").isdigit() else float(text),
        ("category", "boolean"): lambda text: text == "True",
        ("category", "date"): datetime.datetime.fromisoformat,
    }
    make = made.get((column.kind, column.content), lambda value: value)
    missing = [value is None or value != value for value in column.values]
    objects = [None if gone else make(value) for value, gone in zip(column.values, missing, strict=True)]
    return pd.Series(objects, dtype=object)


PERIODS = {"year": 31_556_952, "week": 604_800, "day": 86_400}  # in seconds
DIGITS = 12  # of a sine: processors and libraries differ in the last one, and trees divide whatever differs


def _date_features(seconds: Array, parts: tuple[str, ...], span: tuple[float, ...]) -> Array:
    """Return the seconds if they are asked for, and sine and cosine of the phase in each cycle, (rows, features)."""
    columns = [np.clip(seconds, span[0], span[1]) if span else seconds] if "time" in parts else []
    for part in parts:
        if part != "time":
            angle = 2 * np.pi * (seconds % PERIODS[part]) / PERIODS[part]
            columns += [np.sin(angle).round(DIGITS), np.cos(angle).round(DIGITS)]
    return np.stack(columns, axis=1) if columns else np.empty((len(seconds), 0))


# Files ----------------------------------------------------------------------------------------------------------------

# what the content of each kind may be; empty in files of earlier versions
_CONTENTS: dict[str, tuple[str, ...]] = {
    "number": ("", "number", "duration"),
    "boolean": ("",),
    "date": ("", "text", "day first", "month first", "year first", "month", "quarter", "week", "time", "compact"),
    "category": ("", "text", "number", "boolean", "date", "object"),
}
_ADDED = (
    "content",
    "parts",
    "means",
    "frequent",
    "left_out",
    "missing",
    "distinct",
    "why",
    "span",
    "unread",
    "forgiving",
)  # absent in files of earlier versions


def encoder_from(position: int, column: Any) -> Encoder:
    """Return one encoder from plain values, which may have been forged and are checked."""
    here = f"column {position} "
    keys = {field.name for field in fields(Encoder)}
    demand(isinstance(column, dict), here + "is not a dictionary")
    demand(keys - set(_ADDED) <= set(column) <= keys, here + f"needs the entries {', '.join(sorted(keys))}")
    content, categories, fill = column.get("content", ""), column["categories"], column["fill"]
    demand(isinstance(column["name"], str), here + "has a name that is not text")
    demand(isinstance(column["kind"], str) and column["kind"] in get_args(Kind), here + "is of an unknown kind")
    known = isinstance(content, str) and content in _CONTENTS[column["kind"]]
    template = isinstance(content, str) and column["kind"] == "number" and is_template(content)
    demand(known or template, here + "has an unknown content")
    demand(isinstance(column["flags_missing"], bool), here + "has a flags_missing that is not a boolean")
    demand(_is_finite(fill), here + "has a fill that is not a finite number")
    demand(_are_different_texts(categories), here + "has categories that are not different texts")
    demand(column["kind"] == "category" or not categories, here + "has categories, but is no category")
    return Encoder(
        column["name"],
        column["kind"],
        float(fill),
        column["flags_missing"],
        tuple(categories),
        content,
        _parts_from(here, column),
        _means_from(here, column),
        _frequent_from(here, column),
        span=_span_from(here, column),
        **_notes_from(here, column),
    )


def _parts_from(here: str, column: dict[str, Any]) -> tuple[str, ...]:
    """Return the parts of a date; earlier versions had all of them for every date."""
    parts = column.get("parts", DATE_PARTS if column["kind"] == "date" else ())
    right = _are_different_texts(parts) and set(parts) <= set(DATE_PARTS) and (not parts or column["kind"] == "date")
    demand(right, here + "has unknown parts of a date")
    return tuple(parts)


def _span_from(here: str, column: dict[str, Any]) -> tuple[float, ...]:
    span = column.get("span", ())
    right = isinstance(span, list | tuple) and len(span) in (0, 2) and all(map(_is_finite, span))
    demand(right and (not span or span[0] <= span[1]), here + "has a span that is not a first and a last moment")
    return tuple(map(float, span))


def _means_from(here: str, column: dict[str, Any]) -> tuple[tuple[float, ...], ...]:
    rows: Any = column.get("means", ())
    demand(isinstance(rows, list | tuple), here + "has means that are not a table")
    numbers = all(isinstance(row, list | tuple) and row and all(map(_is_finite, row)) for row in rows)
    demand(numbers, here + "has means that are not numbers")
    fits = column["kind"] == "category" and len(rows) == len(column["categories"]) + 2 and len(set(map(len, rows))) == 1
    demand(fits or not rows, here + "has means that do not fit its categories")
    return tuple(tuple(map(float, row)) for row in rows)


def _frequent_from(here: str, column: dict[str, Any]) -> tuple[str, ...]:
    frequent = column.get("frequent", ())
    among = _are_different_texts(frequent) and set(frequent) <= set(column["categories"])
    demand(among and (not frequent or bool(column.get("means"))), here + "has frequent values that are no categories")
    return tuple(frequent)


def _notes_from(here: str, column: dict[str, Any]) -> dict[str, Any]:
    """Return what is said about a column, checked."""
    notes: dict[str, Any] = {
        name: column[name]
        for name in ("left_out", "missing", "distinct", "why", "unread", "forgiving")
        if name in column
    }
    for name in ("left_out", "forgiving"):
        demand(isinstance(notes.get(name, False), bool), here + f"has a {name} that is not a boolean")
    for name in ("why", "unread"):
        demand(isinstance(notes.get(name, ""), str), here + f"has a {name} that is not text")
    for name in ("missing", "distinct"):
        count = notes.get(name)
        whole = count is None or (isinstance(count, int) and not isinstance(count, bool) and count >= 0)
        demand(whole, here + f"has a {name} that is not a count")
    return notes


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _are_different_texts(values: Any) -> bool:
    texts = isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
    return texts and len(set(values)) == len(values)


def demand(holds: bool, problem: str) -> None:
    """Raise if something that a file says about a table does not hold."""
    if not holds:
        raise InputError(f"the encoding of a table cannot be restored: {problem}; save the model again")
