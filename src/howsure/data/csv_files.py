"""Read CSV files in batches: any usual separator and encoding, quoted or gzipped, with types decided by all rows.

A file is read three times, each time in small parts: to check its bytes and quotes (`csv_text.py`), to find the type of
each column, and for the values. A batch of rows therefore has the types of the whole file.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from howsure.data.arrow_files import first_line, import_pyarrow, regroup, to_frame
from howsure.data.csv_text import BLOCK, CsvText
from howsure.data.numbers import parse_number
from howsure.errors import InputError

__all__ = ["CsvReader"]

_LONGEST_RECORD = 1 << 28  # bytes; a longer one is a quote that never ends
# those of pandas.read_csv, and blanks
_MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
_TRUE, _FALSE = ("True", "TRUE", "true"), ("False", "FALSE", "false")


@dataclass(frozen=True)
class _Found:
    """What the texts of a column are, so far.

    Attributes:
        kind: "missing" (nothing but that), "boolean", "integer", "float" or "text".
        missing: whether values are missing.
        leading_zero: whether an integer has zeros in front, as codes have.
        signed: whether an integer has a sign, as codes have not.
    """

    kind: str
    missing: bool = False
    leading_zero: bool = False
    signed: bool = False

    def joined(self, other: "_Found") -> "_Found":
        """Return what a column is whose rows are those of both."""
        kinds = {self.kind, other.kind} - {"missing"}
        if len(kinds) > 1:
            kinds = {"float"} if kinds == {"integer", "float"} else {"text"}
        return _Found(
            next(iter(kinds), "missing"),
            self.missing or other.missing,
            self.leading_zero or other.leading_zero,
            self.signed or other.signed,
        )

    @property
    def final_kind(self) -> str:
        """Return the kind; digits with zeros in front are codes, which lose their zeros as numbers."""
        codes = self.kind == "integer" and self.leading_zero and not self.signed
        return "text" if codes else self.kind


class CsvReader(CsvText):
    """Reader of a CSV file. Its bytes, quotes and first lines are checked when it is made."""

    def __init__(self, path: Path) -> None:
        self._pyarrow = import_pyarrow(path)
        super().__init__(path)
        self._block = min(max(BLOCK, 4096 * len(self.names)), 1 << 25)  # some hundred rows, also of a wide table

    def count(self) -> None:
        """Return None: rows of a CSV file are known only when it is read."""
        return

    def frames(self, rows: int, text: Sequence[str] = ()) -> Iterator[Any]:
        """Yield pandas frames of ``rows`` rows each; columns named in ``text`` are read as text."""
        found = [_Found("text") if name in text else kind for name, kind in zip(self.names, self._types(), strict=True)]
        nullable = {k for k, f in enumerate(found) if f.missing and f.final_kind in ("integer", "boolean")}
        kinds = [f.final_kind for f in found]
        for table in regroup(self._tables(), rows):
            with self._refusing_damage():  # if the file has changed since its types were found
                columns = [self._converted(column, kind) for column, kind in zip(table.columns, kinds, strict=True)]
            yield to_frame(self._pyarrow.Table.from_arrays(columns, names=self.names), nullable)

    def _tables(self) -> Iterator[Any]:
        """Yield the records below the names as tables of text."""
        import pyarrow.csv

        columns = [str(k) for k in range(len(self.names))]
        ragged = False

        def judge(row: Any) -> str:
            nonlocal ragged
            ragged = ragged or bool(row.text.strip())
            return "error" if ragged else "skip"

        options = {
            "read_options": pyarrow.csv.ReadOptions(use_threads=False, block_size=self._block, column_names=columns),
            "parse_options": pyarrow.csv.ParseOptions(
                delimiter=self.separator, newlines_in_values=self._quoted, invalid_row_handler=judge
            ),
            "convert_options": pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(columns, pyarrow.string())),
        }
        with self._refusing_damage(), self._utf8() as file:
            try:
                head = True
                for batch in pyarrow.csv.open_csv(file, **options):
                    table = pyarrow.Table.from_batches([batch])
                    if head and table.num_rows:
                        table, head = table.slice(1), False
                    yield table
            except pyarrow.ArrowInvalid as error:
                if ragged:
                    self._check_records()
                raise error

    def _types(self) -> list[_Found]:
        """Return what each column is, decided by all rows."""
        while True:
            found = [_Found("missing")] * len(self.names)
            rows = 0
            try:
                for table in self._tables():
                    rows += table.num_rows
                    self._refuse_repeated_names(table)
                    for k, column in enumerate(table.columns):
                        if table.num_rows and found[k].kind != "text":
                            found[k] = found[k].joined(self._found(column.combine_chunks(), found[k]))
            except _TooLongError:
                self._block *= 8
                continue
            if not rows:
                raise InputError(f"{self.path} has names of columns, but no rows")
            return found

    def _refuse_repeated_names(self, table: Any) -> None:
        """Raise if a row has the names of the columns, as where several files were put together."""
        import pyarrow.compute as pc

        if len(self.names) == 1 or not pc.any(pc.equal(table.column(0), self._head[0])).as_py():
            return
        for row in pc.indices_nonzero(pc.equal(table.column(0), self._head[0])).to_pylist():
            if all(column[row].as_py() == name for column, name in zip(table.columns, self._head, strict=True)):
                self._check_records(repeated=True)

    def _found(self, texts: Any, before: _Found) -> _Found:
        """Return what the texts of a column are, behind others."""
        import pyarrow.compute as pc

        whole = before.kind in ("integer", "missing")
        found = self._number_kind(texts, whole)
        if found is not None:
            return found
        texts = pc.utf8_trim_whitespace(texts)
        present = texts.filter(pc.invert(pc.is_in(texts, value_set=self._pyarrow.array(_MISSING))))
        missing = len(present) < len(texts)
        if not len(present):
            return _Found("missing", missing=True)
        found = self._number_kind(present, whole)
        if found is not None:
            return _Found(found.kind, found.missing or missing, found.leading_zero, found.signed)
        boolean = pc.all(pc.is_in(present, value_set=self._pyarrow.array(_TRUE + _FALSE))).as_py()
        return _Found("boolean" if boolean else "text", missing)

    def _number_kind(self, texts: Any, whole: bool) -> _Found | None:
        """Return what the texts are if all of them spell numbers. ``whole`` says that integers may be integers."""
        import pyarrow.compute as pc

        sample = texts[0].as_py()  # a cast that fails is slow: it fails for every value
        if np.isnan(parse_number(sample)):
            return None
        integers = self._cast(texts, self._pyarrow.int64()) if whole and sample.lstrip("-").isdigit() else None
        if integers is None:
            numbers = self._cast(texts, self._pyarrow.float64())
            return None if numbers is None else _Found("float", missing=bool(pc.any(pc.is_nan(numbers)).as_py()))
        if pc.any(pc.match_substring(texts, "x", ignore_case=True)).as_py():  # 0x1f
            return None
        zero = pc.any(pc.match_substring_regex(texts, "^0[0-9]")).as_py()
        return _Found("integer", leading_zero=bool(zero), signed=bool(pc.any(pc.starts_with(texts, "-")).as_py()))

    def _cast(self, texts: Any, kind: Any) -> Any:
        """Return the texts as numbers, or None if one of them is none."""
        try:
            return texts.cast(kind)
        except self._pyarrow.ArrowInvalid:
            return None

    def _converted(self, column: Any, kind: str) -> Any:
        """Return the texts of a column as values of a kind; those that stand for missing values are null."""
        import pyarrow.compute as pc

        pa = self._pyarrow
        if kind in ("integer", "float"):
            numbers = self._cast(column, pa.int64() if kind == "integer" else pa.float64())
            if numbers is not None:
                return numbers
        trimmed = pc.utf8_trim_whitespace(column)
        absent = pc.is_in(trimmed, value_set=pa.array(_MISSING))
        if kind == "text":
            return pc.if_else(absent, pa.scalar(None, pa.string()), column)
        present = pc.if_else(absent, pa.scalar(None, pa.string()), trimmed)
        if kind == "boolean":
            truth = pc.is_in(trimmed, value_set=pa.array(_TRUE))
            return pc.if_else(absent, pa.scalar(None, pa.bool_()), truth)
        return present.cast(pa.int64() if kind == "integer" else pa.float64())

    @contextlib.contextmanager
    def _refusing_damage(self) -> Iterator[None]:
        with super()._refusing_damage():
            try:
                yield
            except self._pyarrow.ArrowInvalid as error:
                if "straddling" not in str(error):
                    raise InputError(f"{self.path} cannot be read as a table: {first_line(error)}") from error
                if self._block < _LONGEST_RECORD:
                    raise _TooLongError(f"{self.path} was changed while it was read") from error
                raise InputError(f"{self.path} cannot be read as a table: a line has more than 256 MiB") from error


class _TooLongError(InputError):
    """Raised where a record is longer than the blocks in which a file is read; they are then made longer."""
