"""Try odd tables as people have them: each must be learned, or refused in one clear sentence.

``python -m faults.tables COUNT`` (in the folder of the tests) checks many of them; the tests check a few.
"""

import datetime
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import howsure as hs

DAY = datetime.datetime(2020, 1, 2)
Values = list[Any]


def odd_tables(count: int = 300, seed: int = 0) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield (description, X_train, y_train, X_test); the same for the same seed, however many are asked for."""
    for k in range(count):
        g = np.random.default_rng([seed, k])
        about, x, rows = _array_table(g) if g.random() < 0.35 else _frame_table(g)
        y, target = _target(g, rows)
        test = _some_rows(x, np.sort(g.choice(rows, min(rows, 4), replace=False)))
        if isinstance(test, pd.DataFrame) and g.random() < 0.3:
            about, test = f"{about}, objects to predict", test.astype(object)  # the same values without their dtypes
        yield f"table {k} of seed {seed}: {about}, {rows} rows, y {target}", x, y, test


def _rows(g: np.random.Generator) -> int:
    return int(g.choice([1, 2, 3, 5, 12, 30, 60], p=[0.03, 0.07, 0.1, 0.2, 0.2, 0.2, 0.2]))


# Columns --------------------------------------------------------------------------------------------------------------


def _columns(g: np.random.Generator, n: int) -> dict[str, Values]:
    """Return one column of every kind, as Python values; the second half must be refused or is close to it."""
    z = g.normal(size=n)
    seconds = g.integers(-(10**9), 2 * 10**9, n)
    moments = [DAY + datetime.timedelta(seconds=int(s)) for s in seconds]
    few = g.integers(0, 3, n)
    return {
        "floats": z.tolist(),
        "ints": few.tolist(),
        "booleans": (z > 0).tolist(),
        "text": [["Ulm", "Bonn", "größe"][k] for k in few],
        "codes": [["01", "A", "b"][k] for k in few],
        "numerals": [["01", "2", " 3e1 "][k] for k in few],
        "dates": moments,
        "days": [m.date() for m in moments],
        "zoned": [m.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=3))) for m in moments],
        "iso": [m.isoformat() for m in moments],
        "durations": [datetime.timedelta(seconds=int(s)) for s in seconds],
        "decimals": [Decimal(int(k)) / 3 for k in few],
        "fractions": [Fraction(int(k), 3) for k in few],
        "mixed numbers": [[1, 2.5, True][k] for k in few],
        "constant": [3.5] * n,
        "constant text": ["same"] * n,
        "huge constant": [1e30] * n,
        "far": (1e15 + 900 * z).tolist(),
        "huge": (1e200 * z).tolist(),
        "tiny": (1e-200 * z).tolist(),
        "subnormal": (5e-324 * few).tolist(),
        "outlier": [1e30, *z[1:].tolist()],
        "large ints": [2**60 + int(k) for k in few],
        "unsigned": [2**64 - 1 - int(k) for k in few],
        "missing": [None] * n,
        "long text": ["x" * 10_000 + str(k) for k in few],
        "unique text": [f"id {k}" for k in range(n)],
        "empty text": [["", " ", "x"][k] for k in few],
        # mostly refused
        "stray text": [*z[1:].tolist(), "n/a"],
        "infinite": [*z[1:].tolist(), np.inf],
        "beyond float64": [10**400, *few[1:].tolist()],
        "complex": (z + 1j).tolist(),
        "bytes": [b"x"] * n,
        "lists": [[1, 2]] * n,
        "dicts": [{"a": 1}] * n,
        "tuples": [(1, int(k)) for k in few],
        "periods": [pd.Period("2020-01", "M") + int(k) for k in few],
        "intervals": [pd.Interval(int(k), int(k) + 1) for k in few],
        "times": [datetime.time(int(k)) for k in few],
        "text and dates": [["Ulm", DAY, None][k] for k in few],
        "objects": [object()] * n,
    }


ALWAYS_FINE = 28  # so many of the columns above
MISSING = (None, np.nan, pd.NA)


def _some_columns(g: np.random.Generator, n: int) -> dict[str, Values]:
    every = list(_columns(g, n).items())
    count = int(g.choice([1, 2, 4, 8, 30], p=[0.25, 0.25, 0.25, 0.15, 0.1]))
    chosen = {}
    for k in range(count):
        last = ALWAYS_FINE if g.random() < 0.95 else len(every)
        name, values = every[g.integers(last)]
        if g.random() < 0.25:
            gap = MISSING[g.integers(3)]
            values = [gap if gone else v for v, gone in zip(values, g.random(n) < 0.3, strict=True)]
        chosen[f"{name} {k}"] = values
        if g.random() < 0.1:
            chosen[f"{name} {k} again"] = values
    return chosen


def _series(g: np.random.Generator, values: Values) -> Any:
    """Return a pandas column of one of the dtypes that can hold the values."""
    way = g.integers(6)
    try:
        if way == 0:
            return pd.Series(values, dtype=object)
        if way == 1:
            return pd.Series(pd.Categorical(values))
        if way == 2:
            return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, from_pandas=True)))
        if way == 3:
            return pd.Series(values).convert_dtypes()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # not every library can hold every value
        return pd.Series(values, dtype=object)
    try:
        return pd.Series(values)
    except (TypeError, ValueError, OverflowError):
        return pd.Series(values, dtype=object)


# Tables ---------------------------------------------------------------------------------------------------------------


def _frame_table(g: np.random.Generator) -> tuple[str, Any, int]:
    n = _rows(g)
    columns = _some_columns(g, n)
    library = ["pandas", "pandas", "pandas", "polars", "arrow"][g.integers(5)]
    about = f"{library} with {', '.join(columns)}"
    try:
        if library == "polars":
            return about, pl.DataFrame({k: [None if v is pd.NA else v for v in c] for k, c in columns.items()}), n
        if library == "arrow":
            return about, pa.table({k: pa.array(c, from_pandas=True) for k, c in columns.items()}), n
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        about += " (as pandas)"
    frame = pd.DataFrame({name: _series(g, values) for name, values in columns.items()})
    names, index = g.integers(8), g.integers(6)
    frame.columns = _names(frame, int(names))
    frame.index = [
        frame.index,
        pd.Index([7] * n),
        pd.date_range("2020", periods=n),
        pd.MultiIndex.from_arrays([range(n), ["u"] * n]),
        pd.Index(range(n, 0, -1)),
        pd.Index([f"row {k}" for k in range(n)]),
    ][index]
    return f"{about} (names {names}, index {index}, dtypes {', '.join(map(str, frame.dtypes))})", frame, n


def _names(frame: Any, way: int) -> Any:
    count = frame.shape[1]
    return {
        0: [f"größe {k} 🏠" for k in range(count)],
        1: ["", *(f"c{k}" for k in range(1, count))],
        2: list(range(count)),
        3: pd.MultiIndex.from_tuples([("a", str(k)) for k in range(count)]),
        4: [0, *(f"c{k}" for k in range(1, count))],
        5: ["same"] * count if count > 5 else list(frame.columns),
    }.get(way, list(frame.columns))


def _array_table(g: np.random.Generator) -> tuple[str, Any, int]:
    n, width = _rows(g), int(g.choice([1, 2, 5, 30]))
    z = g.normal(size=(n, width))
    dtypes = ["f8", "f4", "f2", "i1", "u8", "i8", "?", "O", "g", "U5", "c16", "M8[s]"]
    dtype = dtypes[g.choice(12, p=[0.2, *[0.09] * 8, 0.03, 0.03, 0.02])]
    array = (
        (z > 0)
        if dtype == "?"
        else (10 * z).clip(0 if dtype == "u8" else -99).astype("i8" if dtype == "M8[s]" else "f8")
    )
    array = array.astype(dtype)
    about = f"{dtype} array of width {width}"
    shapes = {
        "transposed": lambda a: np.asfortranarray(a),
        "strided": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
        "backwards": lambda a: a[::-1, ::-1],
        "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
        "masked": lambda a: np.ma.array(a, mask=g.random(a.shape) < 0.2),
        "lists": lambda a: a.tolist(),
        "duplicated rows": lambda a: np.repeat(a[:1], n, 0),
        "constant": lambda a: np.full_like(a, a[0, 0]),
        "with NaN": lambda a: np.where(g.random(a.shape) < 0.2, np.nan, a) if a.dtype.kind == "f" else a,
        "huge": lambda a: a * a.dtype.type(1e30) if a.dtype in (np.dtype("f8"), np.dtype("f4")) else a,
        "infinite": lambda a: np.where(z > 2.5, np.inf, a) if a.dtype.kind == "f" else a,
        "one dimension": lambda a: a[:, 0] if g.random() < 0.3 else a,
        "plain": lambda a: a,
        "subclass": lambda a: a.view(np.recarray) if a.dtype.kind == "f" else a,
    }
    name = list(shapes)[g.integers(len(shapes))]
    array = shapes[name](array)
    if isinstance(array, np.ndarray) and g.random() < 0.2:
        array.flags.writeable = False
        name += ", read-only"
    return f"{about}, {name}", array, n


def _some_rows(x: Any, rows: Any) -> Any:
    if isinstance(x, pd.DataFrame):
        return x.iloc[rows]
    if isinstance(x, pa.Table):
        return x.take(pa.array(rows))
    if isinstance(x, list):
        return [x[int(k)] for k in rows]
    return x[rows.tolist()] if isinstance(x, pl.DataFrame) else x[rows]


def _target(g: np.random.Generator, n: int) -> tuple[Any, str]:
    z = g.normal(size=n)
    targets = {
        "floats": z,
        "list": z.tolist(),
        "Series": pd.Series(z, index=range(5, n + 5)),
        "nullable": pd.Series(z).astype("Float64"),
        "ints": (9 * z).astype(int),
        "booleans": z > 0,
        "column": z.reshape(-1, 1),
        "two": np.stack([z, 100 * z], 1),
        "frame": pd.DataFrame({"u": z, "v": -z}),
        "float32": z.astype(np.float32),
        "float16": z.astype(np.float16),
        "constant": np.full(n, 7.0),
        "huge": 1e30 * z,
        "huge constant": np.full(n, 1e30),
        "tiny": 1e-30 * z,
        "far": 1e12 + z,
        "decimals": [Decimal(int(v * 100)) for v in z],
        "text": ["a"] * n,
        "NaN": np.r_[z[1:], np.nan],
        "complex": z + 1j,
        "longer": np.r_[z, 1.0],
    }
    usual = 0.85 if g.random() < 0.85 else 1
    name = list(targets)[int(g.integers(int(usual * len(targets))))]
    return targets[name], name


# What may be wrong ----------------------------------------------------------------------------------------------------


def check(count: int = 300, seed: int = 0, rounding: float = 1e-12) -> tuple[int, list[str]]:
    """Return how many tables were tried, and what went wrong with which of them.

    The numbers that networks see of a row must be the same bit for bit, alone or with others. Predictions may differ by
    ``rounding`` standard deviations: products of matrices round differently for another number of rows.
    """
    failures = []
    for k, (about, x, y, test) in enumerate(odd_tables(count, seed)):
        problem = _problem(x, y, test, rounding, save=k % 10 == 0)
        if problem is not None:
            failures.append(f"{about}: {problem}")
    return count, failures


def _problem(x: Any, y: Any, test: Any, rounding: float, save: bool) -> str | None:
    """Return what is wrong with how a table was learned or refused, or None."""
    model = hs.EvidentialRegressor(members=2, steps=20, hidden=(8,), random_state=0, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fit that is too short to converge
        try:
            model.fit(x, y)
            mean, std = model.predict(test, return_std=True)
        except Exception as error:  # whatever it is, it is judged
            return _unclear(error)
        shape = (len(test), *np.shape(y)[1:]) if np.ndim(y) == 2 and np.shape(y)[1] > 1 else (len(test),)
        if mean.shape != shape or std.shape != shape:
            return f"mean {mean.shape} and std {std.shape}, not {shape}"
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
            return f"mean {mean.ravel()[:3]} and std {std.ravel()[:3]}"
        try:
            return _depends(model, test, mean, std, rounding, save)
        except Exception:  # nothing may be refused now
            return traceback.format_exc(limit=-4)


def _depends(model: Any, test: Any, mean: Any, std: Any, rounding: float, save: bool) -> str | None:
    """Return what a prediction depends on beside its row, or None."""
    encoded = model.encoding_.transform(model.encoding_.read(test))
    for row in range(len(test)):
        alone = _some_rows(test, np.array([row]))
        if not np.array_equal(model.encoding_.transform(model.encoding_.read(alone)), encoded[[row]]):
            return f"row {row} is encoded otherwise without the others"
        for found, expected in zip(model.predict(alone, return_std=True), (mean, std), strict=True):
            if (abs(found - expected[[row]]) > rounding * std[[row]]).any():
                return f"row {row} is answered with {found} alone, with {expected[[row]]} among others"
    if save:
        with tempfile.TemporaryDirectory() as folder:
            again = hs.load(model.save(Path(folder) / "model")).predict(test, return_std=True)
        if not (np.array_equal(again[0], mean) and np.array_equal(again[1], std)):
            return "a saved model predicts otherwise"
    return None


def _unclear(error: Exception) -> str | None:
    """Return what is wrong with an error, or None if it is one sentence of ours or of scikit-learn's."""
    ours = isinstance(error, hs.InputError | hs.InputTypeError)
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1].filename if frames else ""
    theirs = type(error) in (ValueError, TypeError) and "sklearn" in last
    if not (ours or theirs):
        return "".join(traceback.format_exception(error)[-4:])
    if not str(error).strip() or (ours and (len(str(error)) > 1000 or "\n" in str(error).strip())):
        return f"refused with {len(str(error))} characters: {str(error)[:200]!r}"
    return None


if __name__ == "__main__":
    tried, found = check(int(sys.argv[1]) if len(sys.argv) > 1 else 300, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"{tried} tables, {len(found)} failures", *found, sep="\n\n")  # noqa: T201
