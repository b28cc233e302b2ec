"""Turn the columns of a table into the numbers that a network sees, as learned from training rows."""

import datetime
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evidentia.data.columns import Column, Content, Kind, read_column
from evidentia.data.table import Table, open_table
from evidentia.data.values import RefusedError, boolean_text, kind_of, moment_text, number_text, refuse, to_text
from evidentia.errors import InputError
from evidentia.files import listed

__all__ = ["Encoding", "Scaling"]

Array = NDArray[np.float64]

IGNORED = 1e307  # the scale of a column that is to be ignored: divided by it, nearly every number is 0 in float32
MOST_CATEGORIES = 50  # the rarer ones of a column share what an unseen one gets: zeros

_SPELLINGS: dict[str, Callable[[Any], str]] = {"number": number_text, "boolean": boolean_text, "date": moment_text}


@dataclass(frozen=True)
class _Encoder:
    """What training rows taught about one column.

    Attributes:
        name: of the column.
        kind: how it is encoded.
        fill: the number that replaces a missing one.
        flags_missing: whether a feature says that a value is missing.
        categories: of a category, one feature each.
        content: what the values were, where the kind leaves that open.
    """

    name: str
    kind: Kind
    fill: float = 0.0
    flags_missing: bool = False
    categories: tuple[str, ...] = ()
    content: Content = ""

    @classmethod
    def fit(cls, column: Column) -> Self:
        name, kind, values = column.name, column.kind, column.values
        if kind == "category":
            counts = Counter(v for v in values if v is not None)
            frequent = sorted(counts, key=lambda category: (-counts[category], category))[:MOST_CATEGORIES]
            missing = sum(counts.values()) < len(values)
            return cls(name, kind, 0.0, missing, tuple(sorted(frequent)), column.content)
        present = values[~np.isnan(values)]
        return cls(name, kind, _median(present), len(present) < len(values), (), column.content)

    @property
    def features(self) -> list[str]:
        """The names of the columns of numbers that this column becomes."""
        names = {
            "number": [self.name],
            "boolean": [self.name],
            "category": [f"{self.name}={c}" for c in self.categories],
            "date": [self.name, *(f"{self.name}:{part}" for part in _CYCLES)],
        }[self.kind]
        return [*names, f"{self.name} missing"] if self.flags_missing else names

    def read(self, values: Any) -> Column:
        """Return a pandas series or an array, read as what this column was in training, or raise."""
        spell = _Spelling(self.content, self.categories) if self.kind == "category" else None
        return read_column(self.name, values, self.kind, self.content, spell, training=False)

    def adopt(self, column: Column) -> Column:
        """Return a column that was typed without knowledge of the training rows, as what it was in training."""
        same = column.content == self.content or (self.kind == "number" and not self.content)
        if column.kind == self.kind and (same or self.kind in ("boolean", "date")):
            return column
        return self.read(_objects(column))

    def encode(self, column: Column, out: Array) -> None:
        """Write the features of a column that this encoder read into ``out``, an array of zeros (rows, features)."""
        values = column.values
        if self.kind == "category":
            index = {category: k for k, category in enumerate(self.categories)}
            position = np.array([index.get(v, -1) for v in values], dtype=np.int64)
            seen = np.flatnonzero(position >= 0)
            out[seen, position[seen]] = 1
            missing = np.array([v is None for v in values], dtype=bool)
        else:
            missing = np.isnan(values)
            out[:, 0] = np.where(missing, self.fill, values)
            if self.kind == "date":
                out[:, 1 : 1 + len(_CYCLES)] = _cycles(out[:, 0])
        if self.flags_missing:
            out[:, -1] = missing


def _median(values: Array) -> float:
    """Return the median, 0 of nothing; the mean of the middle two does not overflow."""
    if not len(values):
        return 0.0
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]].tolist()
    return float(low if low == high else low / 2 + high / 2)


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
        # rarer categories than were kept may have meant such values
        if self.content == "text" and not self.meanings[kind] and len(self.categories) < MOST_CATEGORIES:
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


_CYCLES = {
    "sin year": 31_556_952,
    "cos year": 31_556_952,
    "sin week": 604_800,
    "cos week": 604_800,
    "sin day": 86_400,
    "cos day": 86_400,
}


def _cycles(seconds: Array) -> Array:
    """Return the sines and cosines of each moment's phase in the year, the week and the day, (rows, cycles)."""
    waves = {"sin": np.sin, "cos": np.cos}
    return np.stack(
        [waves[part.split()[0]](2 * np.pi * (seconds % period) / period) for part, period in _CYCLES.items()], axis=1
    )


@dataclass(frozen=True)
class Encoding:
    """Rule learned from training rows that turns a table into numbers.

    Numbers and booleans stay as they are, with the median of the training rows where they are missing, and a column
    that says so if any were missing in training. A category gets a column of zeros and ones; one not seen in training
    has zeros in all of them. A date is its seconds and where it lies in the year, the week and the day.
    """

    encoders: tuple[_Encoder, ...]
    named: bool

    @classmethod
    def fit(cls, table: Table) -> Self:
        """Return the encoding that a table teaches; pass training rows only."""
        if table.rows == 0:
            raise InputError("the table has no rows to learn from")
        return cls(tuple(_Encoder.fit(column) for column in table.columns), table.named)

    @property
    def names(self) -> list[str]:
        """The names of the columns of the table."""
        return [encoder.name for encoder in self.encoders]

    @property
    def features(self) -> list[str]:
        """The names of the columns of numbers that come out."""
        return [feature for encoder in self.encoders for feature in encoder.features]

    def read(self, x: Any) -> Table:
        """Return the table of an array, a pandas, polars or Arrow table, its columns as what they were in training.

        What a column is was decided by the training rows, so that a row's numbers never depend on the rows it comes
        with: the text "01" stays text in a batch that has nothing but such codes.
        """
        opened = open_table(x)
        order = self._order(opened.names, opened.named)
        columns = tuple(e.read(opened.columns[k]) for e, k in zip(self.encoders, order, strict=True))
        return Table(columns, opened.rows, opened.named, opened.index)

    def transform(self, table: Table) -> Array:
        """Return the numbers of a table, (rows, features)."""
        order = self._order(table.names, table.named)
        out = np.zeros((table.rows, len(self.features)))
        first = 0
        for encoder, k in zip(self.encoders, order, strict=True):
            last = first + len(encoder.features)
            encoder.encode(encoder.adopt(table.columns[k]), out[:, first:last])
            first = last
        return out

    def _order(self, names: list[str], named: bool) -> list[int]:
        """Return which column of a table each encoder reads: by name if both have names, else by position."""
        if not (self.named and named):
            if len(names) != len(self.encoders):
                raise InputError(f"the table has {len(names)} columns, but {len(self.encoders)} were there in training")
            return list(range(len(names)))
        position = {name: k for k, name in enumerate(names)}
        known = set(self.names)
        for problem, some in (
            ("lacks", [n for n in self.names if n not in position]),
            ("has, beyond those of training,", [n for n in names if n not in known]),
        ):
            if some:
                raise InputError(f"the table {problem} the column{'s' if len(some) > 1 else ''} {listed(some)}")
        return [position[name] for name in self.names]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a model file."""
        return {"named": self.named, "columns": [asdict(encoder) for encoder in self.encoders]}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the encoding of the values that :meth:`to_dict` made, in this or an earlier version, or raise."""
        _demand(isinstance(state, dict) and set(state) == {"named", "columns"}, "it needs 'named' and 'columns' only")
        named, columns = state["named"], state["columns"]
        _demand(isinstance(named, bool), "'named' is not a boolean")
        _demand(isinstance(columns, list | tuple) and len(columns) > 0, "'columns' is not a list of columns")
        encoders = tuple(_encoder_from(k, column) for k, column in enumerate(columns))
        _demand(len({encoder.name for encoder in encoders}) == len(encoders), "names of columns are repeated")
        return cls(encoders, named)


# what the content of each kind may be; empty in files of earlier versions
_CONTENTS: dict[str, tuple[str, ...]] = {
    "number": ("", "number", "duration"),
    "boolean": ("",),
    "date": ("",),
    "category": ("", "text", "number", "boolean", "date", "object"),
}


def _encoder_from(position: int, column: Any) -> _Encoder:
    """Return one encoder from plain values, which may have been forged and are checked."""
    here = f"column {position} "
    keys = {field.name for field in fields(_Encoder)}
    _demand(isinstance(column, dict), here + "is not a dictionary")
    _demand(keys - {"content"} <= set(column) <= keys, here + f"needs the entries {', '.join(sorted(keys))}")
    content, categories, fill = column.get("content", ""), column["categories"], column["fill"]
    _demand(isinstance(column["name"], str), here + "has a name that is not text")
    _demand(isinstance(column["kind"], str) and column["kind"] in get_args(Kind), here + "is of an unknown kind")
    _demand(isinstance(content, str) and content in _CONTENTS[column["kind"]], here + "has an unknown content")
    _demand(isinstance(column["flags_missing"], bool), here + "has a flags_missing that is not a boolean")
    finite = isinstance(fill, int | float) and not isinstance(fill, bool) and abs(fill) <= sys.float_info.max
    _demand(finite, here + "has a fill that is not a finite number")
    texts = isinstance(categories, list | tuple) and all(isinstance(c, str) for c in categories)
    _demand(texts and len(set(categories)) == len(categories), here + "has categories that are not different texts")
    _demand(column["kind"] == "category" or not categories, here + "has categories, but is no category")
    return _Encoder(**{**column, "fill": float(fill), "categories": tuple(categories), "content": content})


def _demand(holds: bool, problem: str) -> None:
    if not holds:
        raise InputError(f"the encoding of a table cannot be restored: {problem}; save the model again")


@dataclass(frozen=True)
class Scaling:
    """Scaling of each column to zero mean and unit deviation, for each member of a population: both (M, 1, F).

    A column that does not vary has the scale of its size, at least 1, or with ``ignore_constant`` one so large that
    whatever comes later counts as no change: networks have learned nothing about it.
    """

    loc: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, table: Tensor, rows: Sequence[Tensor], ignore_constant: bool = False) -> Self:
        """Return the scaling by each member's rows of a table (N, F), computed in float64, in the table's dtype."""
        fitted = [_location_and_scale(table[r.to(table.device)].double(), ignore_constant) for r in rows]
        loc = torch.stack([loc for loc, _ in fitted]).unsqueeze(1).to(table.dtype)
        scale = torch.stack([scale for _, scale in fitted]).unsqueeze(1).to(table.dtype)
        # a spread of a few subnormal numbers must not be divided by zero
        return cls(loc, scale.clamp(min=torch.finfo(table.dtype).tiny))

    @classmethod
    def none(cls, table: Tensor, rows: Sequence[Tensor]) -> Self:
        """Return a scaling that leaves every column as it is."""
        blank = table.new_zeros(len(rows), 1, table.shape[1])
        return cls(blank, torch.ones_like(blank))

    def __call__(self, x: Tensor) -> Tensor:
        """Return x, (M, N, F) or (N, F), scaled for every member, (M, N, F)."""
        return (x - self.loc) / self.scale

    def select(self, members: Sequence[int]) -> "Scaling":
        """Return the scaling of some members."""
        chosen = list(members)
        return Scaling(self.loc[chosen], self.scale[chosen])


def _location_and_scale(part: Tensor, ignore_constant: bool) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column of (N, F) in float64, both (F,).

    Columns are divided by a power of 2 first, which is exact and keeps squares in range, and shifted, so that a column
    far from zero keeps the digits of its spread. One that varies by a few units in the last place is constant.
    """
    exponent = torch.frexp(part.abs().amax(0)).exponent.double().clamp(-1021, 1024) - 1
    unit = torch.exp2(exponent)
    units = part / unit
    low, high = units.aminmax(dim=0)
    shift = units.mean(0).clamp(low, high)  # rounding may take the mean out of the column
    shifted = units - shift
    rest = shifted.mean(0)
    std = (shifted - rest).square().mean(0).sqrt()
    constant = high - low <= 4 * torch.finfo(torch.float64).eps * units.abs().amax(0)
    loc = torch.where(constant, shift, shift + rest) * unit
    fallback = torch.full_like(loc, IGNORED) if ignore_constant else loc.abs().clamp(min=1.0)
    return loc, torch.where(constant, fallback, std * unit)
