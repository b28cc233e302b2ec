"""Try odd files of tables: each must give the right rows, or be refused in one clear sentence.

Every case is written by hand or by the csv module of Python from values that it keeps, so that it knows the right
answer. ``python -m faults.odd_files COUNT`` (in the folder of the tests) checks many of them; the tests check a few.
"""

import contextlib
import csv
import gzip
import io
import math
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

import howsure as hs
from howsure.io import read_batches, read_file

Values = list[Any]
TARGET = "y"


@dataclass(frozen=True)
class Case:
    """A file and what must come of it.

    Attributes:
        about: what is odd about it.
        name: of the file.
        content: its bytes.
        expected: the values of its columns, None where missing; None if the file must be refused.
        row: that the error names.
        plain: whether a model can be fitted to it beyond doubt.
    """

    about: str
    name: str
    content: bytes
    expected: dict[str, Values] | None
    row: int | None = None
    plain: bool = False


# Columns: what is written, and what it means ----------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """Texts of a column and the values that they mean; ``usual`` columns can be learned from."""

    texts: list[str]
    values: Values
    usual: bool = True


def _columns(g: np.random.Generator, n: int) -> dict[str, Column]:
    z, whole, few = g.normal(size=n), g.integers(-1000, 1000, n), g.integers(0, 3, n)
    gone = g.random(n) < 0.3
    if n > 1:
        gone[0] = False
    numbers, integers = [repr(float(v)) for v in z], [str(k) for k in whole]
    words = [["Ulm", "Bonn", "größe"][k] for k in few]
    tricky = [['say "hi"', "two\nlines", "a, b; c|d\te"][k] for k in few]
    days = [f"20{k:02d}-0{1 + k % 9}-1{k % 10}" for k in g.integers(10, 30, n)]
    blanks = list(g.choice(["", "NA", "nan", "null", "N/A", "None"], n))
    return {
        "float": Column(numbers, z.tolist()),
        "whole": Column(integers, whole.tolist()),
        "padded": Column([f" {text}  " for text in numbers], z.tolist()),
        "exponent": Column([f"{v:.17E}" for v in z], z.tolist()),
        "gaps": Column(*_with_gaps(numbers, z.tolist(), gone, blanks)),
        "whole_gaps": Column(*_with_gaps(integers, whole.tolist(), gone, blanks)),
        "text": Column(words, words),
        "text_gaps": Column(*_with_gaps(words, words, gone, blanks)),
        "truth": Column([str(k == 0) for k in few.tolist()], [k == 0 for k in few.tolist()]),
        "truth_gaps": Column(*_with_gaps(["true"] * n, [True] * n, gone, blanks)),
        "tricky": Column(tricky, tricky),
        "date": Column(days, days, usual=False),
        "comma": Column([f"{k},5" for k in whole], [f"{k},5" for k in whole], usual=False),
        "unit": Column([f"{k} km" for k in whole], [f"{k} km" for k in whole], usual=False),
        "code": Column([f"{k:04d}" for k in 7 + few], [f"{k:04d}" for k in 7 + few]),
        "missing": Column([""] * n, [None] * n, usual=False),
        "said_missing": Column(blanks, [None] * n, usual=False),
        "huge": Column([f"{10**30 + int(k)}" for k in whole], [float(10**30 + int(k)) for k in whole], usual=False),
        "large": Column([str(2**62 + int(k)) for k in whole], [2**62 + int(k) for k in whole], usual=False),
        "infinite": Column([*numbers[1:], "inf"], [*z[1:].tolist(), math.inf], usual=False),
        "stray": Column([*numbers[1:], "oops"], [*numbers[1:], "oops"], usual=False),
        "question": Column([*numbers[1:], "?"], [*numbers[1:], "?"], usual=False),
        "mixed": Column([["1", "A", "True"][k] for k in few], [["1", "A", "True"][k] for k in few], usual=False),
        "long": Column(["x" * 5000 + str(k) for k in few], ["x" * 5000 + str(k) for k in few], usual=False),
        "minus": Column(["\u22125"] * n, ["\u22125"] * n, usual=False),
    }


def _with_gaps(texts: list[str], values: Values, gone: Any, blanks: list[str]) -> tuple[list[str], Values]:
    written = [blank if hole else text for text, hole, blank in zip(texts, gone, blanks, strict=True)]
    return written, [None if hole else value for value, hole in zip(values, gone, strict=True)]


def _one_kind(name: str, column: Column) -> Values:
    """Return the values of a column; one in which only text is text, and the one row of which spells a number."""
    kept = [value for value in column.values if value is not None]
    if name in ("mixed", "stray", "question") and len({str(value) for value in kept}) == 1:
        text = str(kept[0])
        single = {"1": 1, "True": True, "A": "A"}.get(text, text)
        return [single] * len(column.values)
    return column.values


# Files ----------------------------------------------------------------------------------------------------------------


def odd_files(count: int = 300, seed: int = 0) -> Iterator[Case]:
    """Yield cases; the same for the same seed, however many are asked for."""
    for k in range(count):
        g = np.random.default_rng([seed, k])
        if k % 100 == 99:
            case = _wide(g)
        elif g.random() < 0.12:
            case = _typed_file(g)
        else:
            case = _damaged(g, _text_table(g)) if g.random() < 0.45 else _plain_text(g)
        yield replace(case, about=f"file {k} of seed {seed}: {case.about}")


@dataclass(frozen=True)
class TextTable:
    """The parts of a CSV file before they are put together."""

    names: list[str]
    columns: list[Column]
    separator: str
    ends: str
    quoting: Any

    def records(self) -> list[list[str]]:
        return [self.names, *map(list, zip(*(column.texts for column in self.columns), strict=True))]

    def lines(self) -> list[str]:
        """Return each record as text with its end."""
        return [_line(record, self) for record in self.records()]

    def expected(self) -> dict[str, Values]:
        return {name: _one_kind(name.partition("_of")[0], c) for name, c in zip(self.names, self.columns, strict=True)}


def _line(record: list[str], table: TextTable) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=table.separator, lineterminator=table.ends, quoting=table.quoting).writerow(record)
    return out.getvalue()


def _text_table(g: np.random.Generator) -> TextTable:
    n = int(g.choice([1, 2, 7, 20, 40], p=[0.06, 0.06, 0.18, 0.35, 0.35]))
    every = list(_columns(g, n).items())
    chosen = [every[i] for i in g.choice(len(every), int(g.choice([1, 2, 4, 8])), replace=False)]
    names = [f"{name}_of_{k}" for k, (name, _) in enumerate(chosen)]
    z = g.normal(size=n)
    target = Column([repr(float(v)) for v in z], z.tolist())
    ends = str(g.choice(["\n", "\r\n", "\r"], p=[0.6, 0.35, 0.05]))
    all_quoted = g.random() < 0.2 or ends == "\r"  # beside which csv would not quote a \n
    quoting = csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL
    separator = str(g.choice([",", ";", "\t", "|"], p=[0.5, 0.25, 0.15, 0.1]))
    return TextTable(
        [*names, TARGET],
        [*(column for _, column in chosen), target],
        separator,
        ends,
        quoting,
    )


def _plain_text(g: np.random.Generator) -> Case:
    """Return a table in one of the spellings that must be read."""
    table = _text_table(g)
    lines, about = table.lines(), f"{len(table.columns[0].texts)} rows of {', '.join(table.names)}, {table.separator!r}"
    if g.random() < 0.15:
        place = int(g.integers(1, len(lines) + 1))
        lines.insert(place, table.ends)
        about += ", blank line"
    text = "".join(lines)
    if g.random() < 0.3:
        text = text.removesuffix(table.ends)
        about += ", no end of the last line"
    content, encoding = _encoded(g, text)
    name = "table.csv"
    if g.random() < 0.2:
        content, name = gzip.compress(content), str(g.choice(["table.csv.gz", "table.csv"]))
        about += ", gzip"
    usual = all(column.usual for column in table.columns) and len(table.columns[0].texts) >= 20
    return Case(f"{about}, {encoding}", name, content, table.expected(), plain=usual)


def _encoded(g: np.random.Generator, text: str) -> tuple[bytes, str]:
    encoding = str(g.choice(["utf-8", "utf-8-sig", "utf-16", "cp1252"], p=[0.6, 0.2, 0.1, 0.1]))
    try:
        return text.encode(encoding), encoding
    except UnicodeEncodeError:
        return text.encode("utf-8"), "utf-8"


def _damaged(g: np.random.Generator, table: TextTable) -> Case:
    """Return a table in which something is wrong."""
    every = list(_DAMAGES.items())
    about, damage = every[int(g.integers(len(every)))]
    content, row = damage(g, table)
    return Case(f"{about}, {len(table.names)} columns", "table.csv", content, None, row)


def _with_record(
    g: np.random.Generator, table: TextTable, change: Callable[[list[str]], list[str]]
) -> tuple[bytes, int]:
    """Return the file with a changed record, and the row of that record."""
    records = table.records()
    place = int(g.integers(1, len(records)))
    records[place] = change(records[place])
    return "".join(_line(record, table) for record in records).encode(), place - 1


def _too_long(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return _with_record(g, table, lambda record: [*record, "1"])


def _too_short(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return _with_record(g, table, lambda record: [field or "0" for field in record[:-1]])


def _cut_off(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    lines = table.lines()
    return ("".join(lines) + "5" + table.ends).encode(), len(lines) - 1


def _open_quote(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return ("".join(table.lines()) + '"5' + table.separator * (len(table.names) - 1) + table.ends).encode(), None


def _behind_quote(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return ("".join(table.lines()) + '"5"x' + table.separator * (len(table.names) - 1)).encode(), None


def _zero_byte(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    content = "".join(table.lines()).encode()
    place = int(g.integers(len(content)))
    while 0x80 <= content[place] < 0xC0:  # not within a character
        place -= 1
    return content[:place] + b"\0" + content[place:], None


def _repeated_name(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return "".join(replace(table, names=[*table.names[:-1], table.names[0]]).lines()).encode(), None


def _only_names(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return table.lines()[0].encode(), None


def _nothing(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return [b"", b"\n\n", b" \r\n", b"\xef\xbb\xbf", gzip.compress(b"\n")][int(g.integers(5))], None


def _half_gzip(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    content = gzip.compress("".join(table.lines()).encode())
    return content[: int(g.integers(3, len(content)))], None


def _wrong_utf16(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return "".join(table.lines()).encode("utf-16-le"), None


def _junk(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return b"\x07\xff\x90" + g.bytes(int(g.integers(100, 5000))), None


def _not_parquet(g: np.random.Generator, table: TextTable) -> tuple[bytes, int | None]:
    return b"PAR1" + g.bytes(200), None


_DAMAGES: dict[str, Callable[[np.random.Generator, TextTable], tuple[bytes, int | None]]] = {
    "a line too long": _too_long,
    "a line too short": _too_short,
    "cut off": _cut_off,
    "an open quote": _open_quote,
    "text behind a quote": _behind_quote,
    "a zero byte": _zero_byte,
    "a name twice": _repeated_name,
    "only names": _only_names,
    "nothing": _nothing,
    "half of a gzip file": _half_gzip,
    "UTF-16 without a mark": _wrong_utf16,
    "junk": _junk,
    "not Parquet": _not_parquet,
}


def _typed_file(g: np.random.Generator) -> Case:
    """Return a Parquet, Arrow or Excel file, whole or cut off."""
    table = _text_table(g)
    expected = {name: ["?" if v == "" else v for v in values] for name, values in table.expected().items()}
    expected = {
        n: v for n, v in expected.items() if n.partition("_of")[0] not in ("huge", "large", "infinite", "tricky")
    }
    ending = str(g.choice([".parquet", ".feather", ".xlsx"]))
    if ending == ".xlsx":  # whose numbers have 16 digits
        expected = {n: [float(f"{v:.16g}") if type(v) is float else v for v in c] for n, c in expected.items()}
    frame = pd.DataFrame({name: _series(values) for name, values in expected.items()})
    out = io.BytesIO()
    {".parquet": frame.to_parquet, ".feather": frame.to_feather}.get(ending, lambda o: frame.to_excel(o, index=False))(
        out
    )
    content, about = out.getvalue(), f"{ending} with {', '.join(expected)}"
    if g.random() < 0.3:
        return Case(f"{about}, cut off", f"t{ending}", content[: len(content) // 2], None)
    usual = all(c.usual for c in table.columns) and len(frame) >= 20
    return Case(about, f"t{ending}", content, expected, plain=usual)


def _series(values: Values) -> Any:
    kinds = {type(value) for value in values if value is not None}
    dtype = {frozenset({int}): "Int64", frozenset({bool}): "boolean"}.get(frozenset(kinds))
    if dtype is None and kinds <= {float}:
        dtype = "float64"
    return pd.Series(values, dtype=dtype if dtype else object)


def _wide(g: np.random.Generator) -> Case:
    values = g.integers(0, 9, (20, 10_000))
    names = [*(f"c{k}" for k in range(9_999)), TARGET]
    lines = [",".join(names), *(",".join(map(str, row)) for row in values)]
    expected = {name: values[:, k].tolist() for k, name in enumerate(names)}
    return Case("10,000 columns", "table.csv", "\n".join(lines).encode(), expected)


# What may be wrong ----------------------------------------------------------------------------------------------------


def check(count: int = 300, seed: int = 0, shell_every: int = 1) -> tuple[int, list[str]]:
    """Return how many files were tried, and what went wrong with which of them.

    Each is read whole and in batches; every ``shell_every``-th goes through ``howsure fit`` and ``predict`` too.
    """
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for k, case in enumerate(odd_files(count, seed)):
            path = Path(folder) / f"{k}" / case.name
            path.parent.mkdir()
            path.write_bytes(case.content)
            problem = _read_problem(case, path)
            if problem is None and k % shell_every == 0:
                problem = _shell_problem(case, path)
            if problem is not None:
                failures.append(f"{case.about}: {problem}")
    return count, failures


def _read_problem(case: Case, path: Path) -> str | None:
    """Return what is wrong with how a file is read, or None."""

    def in_batches(path: Path) -> Any:
        return pd.concat(list(read_batches(path, numbers, 3)), ignore_index=True)

    numbers: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for how in (read_file, in_batches):
            try:
                frame = how(path)
            except hs.InputError as error:
                if case.expected is not None:
                    return f"refused: {error}"
                if case.row not in (None, error.row) or not error.message.startswith((str(path), "unknown")):
                    return f"refused, but not row {case.row}: {error}"
                continue
            except Exception:
                return traceback.format_exc(limit=-3)
            if case.expected is None:
                return f"not refused: {frame.to_dict('list')}"[:500]
            problem = _difference(frame, case.expected, how is not read_file)
            if problem is not None:
                return problem
            numbers = [name for name in frame if pd.api.types.is_numeric_dtype(frame[name].dtype)]
    return None


def _difference(frame: Any, expected: dict[str, Values], batches: bool) -> str | None:
    """Return the first difference. In batches numbers are floats, and booleans are the text of a CSV file."""
    if list(frame) != list(expected):
        return f"columns {list(frame)[:9]}, not {list(expected)[:9]}"
    for name, values in expected.items():
        found = frame[name].tolist()
        if len(found) != len(values):
            return f"{len(found)} rows, not {len(values)}"
        for row, (got, value) in enumerate(zip(found, values, strict=True)):
            if value is None and bool(pd.isna(got)):
                continue
            if batches and isinstance(value, bool):
                got = {"true": True, "false": False}.get(str(got).lower())
            if batches and isinstance(value, int):
                value = type(got)(value)
            if not (type(got) is type(value) or _are_numbers(got, value)):
                return f"column {name}, row {row}: {got!r} is no {type(value).__name__}"
            if got != value:
                return f"column {name}, row {row}: {got!r}, not {value!r}"
    return None


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


# The shell ------------------------------------------------------------------------------------------------------------


def _shell_problem(case: Case, path: Path) -> str | None:
    """Return what is wrong with how the shell learns from and predicts a file, or None."""
    model, out = path.parent / "model", path.parent / "out.csv"
    few = ("--method", "ensemble", "--members", 1, "--steps", 5, "--quiet")
    code, error = _shell("fit", path, "--target", TARGET, "-o", model, *few)
    problem = _unclear(case, code, error)
    if problem is not None or code != 0:
        return problem or ("fit refused: " + error if case.plain else None)
    code, error = _shell("predict", model, path, "-o", out, "--quiet")
    if code != 0:
        return f"predict: exit {code}: {error}"
    regressor = hs.load(model)
    features = pd.DataFrame({n: _series(v) for n, v in (case.expected or {}).items() if n != TARGET})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = regressor.predict(features)
    found = pd.read_csv(out)["mean"].to_numpy()
    if found.shape != right.shape or not np.allclose(found, right, rtol=1e-6, atol=1e-6):
        return f"predictions {found[:3]}, not {right[:3]}"
    return None


def _unclear(case: Case, code: int, error: str) -> str | None:
    """Return what is wrong with an exit code and what was said, or None."""
    lines = error.splitlines()
    if "Traceback" in error or code not in (0, 2):
        return f"exit {code}: {error[-1500:]}"
    if case.expected is None and code == 0:
        return "fit took a file that must be refused"
    sentences = [line for line in lines if line.startswith("howsure: ")]
    others = [line for line in lines if not line.startswith(("howsure: ", "note: "))]
    if others or len(sentences) != (code == 2):
        return f"exit {code}, but said: {error[-1500:]}"
    return None


def _shell(*arguments: Any) -> tuple[int, str]:
    """Return the exit code and standard error of a command that runs in this process."""
    from howsure.cli.app import run

    out, error = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["howsure", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            run()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code, error.getvalue()


if __name__ == "__main__":
    tried, failed = check(int(sys.argv[1]) if len(sys.argv) > 1 else 300, *map(int, sys.argv[2:4]))
    sys.stdout.write("\n".join([*failed, f"tried {tried}, failed {len(failed)}"]) + "\n")
