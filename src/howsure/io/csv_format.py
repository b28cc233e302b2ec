"""Find the separator, encoding and column names of a CSV file from its first 64 KB."""

import codecs
import csv
import gzip
import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO, cast

from howsure.errors import InputError

__all__ = ["BLOCK", "CsvFormat", "CsvOptions", "find_format"]

BLOCK = 1 << 20  # bytes that are read at once
SAMPLE = 1 << 16  # bytes from which the format is found
MAX_LINE = 1 << 24  # bytes of the line at the end of the sample
ROW_NAMES = "row names"  # the name of a column that has none in files of R
SEPARATORS = "\t;|,"  # the comma last: it occurs in numbers and text of files with another separator
BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True)
class CsvOptions:
    """Properties of a CSV file that its user states. None: they are found from the file.

    Attributes:
        separator: one character.
        encoding: the name of a codec of Python, such as "utf-16".
    """

    separator: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise InputError(f"the separator must be one character, got {self.separator!r}", value=self.separator)
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError as error:
            raise InputError(f"unknown encoding: {self.encoding!r}", value=self.encoding) from error


@dataclass(frozen=True)
class CsvFormat:
    """The format of a CSV file.

    Attributes:
        path: of the file.
        gzipped: whether the file is compressed.
        encoding: of its text.
        separator: of its fields.
        names: of its columns. Columns without a name have the names that pandas gives them.
        blank_lines: number of blank lines above the names.
        row_names: whether the first column has no name in the line of names, as R writes the names of rows.
    """

    path: Path
    gzipped: bool
    encoding: str
    separator: str
    names: list[str]
    blank_lines: int
    row_names: bool = False

    @property
    def is_utf8(self) -> bool:
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")

    def open_text(self) -> TextIO:
        """Open the file as text with its own line ends."""
        return io.TextIOWrapper(_open_bytes(self.path, self.gzipped), self.encoding, newline="")

    def has_quotes(self) -> bool:
        """Return whether there is a quote in the file."""
        with _open_bytes(self.path, self.gzipped) as file:
            return any(b'"' in block for block in iter(lambda: file.read(BLOCK), b""))

    def check_records(self, lengths: bool) -> None:
        """Raise for the first quote that is never closed or that text follows.

        pyarrow reads such files without an error, and takes the rows behind an open quote for one value.

        Args:
            lengths: whether to raise for the first record with another number of fields than there are names, too.
        """
        line, row = 1, -2  # the names are row -1
        with self.open_text() as text:
            reader = csv.reader(text, delimiter=self.separator, strict=True)
            try:
                for record in reader:
                    row += bool(record)
                    if lengths and record and len(record) != len(self.names) - (self.row_names and row == -1):
                        self._refuse_length(record, row)
                    line = reader.line_num + 1
            except csv.Error as error:
                hint = "close each quote, and write a quote inside of quotes twice"
                raise InputError(f"{self.path}, line {line}: {error}", hint=hint) from error

    def _refuse_length(self, record: list[str], row: int) -> NoReturn:
        fields, columns = len(record), len(self.names)
        hint = "put values that contain the separator into quotes" if fields > columns else "is the line cut off?"
        if fields == columns + 1:
            hint += "; if the first field is a name of the row, name it in the first line, too"
        raise InputError(
            f"{self.path}: a row has {fields} field{'' if fields == 1 else 's'}, but there are {columns} columns",
            row=row,
            value=self.separator.join(record),
            hint=hint,
        )


def find_format(path: Path, options: CsvOptions) -> CsvFormat:
    """Return the format of a CSV file.

    The separator is the first of tab, semicolon, "|" and comma that divides all records of the first 64 KB into the
    same number of fields, and into more than one.

    Raises:
        InputError: if the file is empty or is not text.
    """
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    with _open_bytes(path, gzipped) as file:
        sample = file.read(SAMPLE)
        sample += file.readline(MAX_LINE)
        whole = not file.read(1)
    encoding = options.encoding or _find_encoding(path, sample, whole)
    text = codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    odd = re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]", text)
    if odd is not None:
        line = 1 + text.count("\n", 0, odd.start())
        raise InputError(
            f"{path}, line {line} is not text: it has the control character {odd[0]!r}",
            value=odd[0],
            hint="name the encoding if this is a CSV file",
        )
    if not text.strip():
        raise InputError(f"{path} is empty")
    above = text[: len(text) - len(text.lstrip())]
    blank_lines = len(re.findall(r"\r\n|\r|\n", above))
    tried = SEPARATORS if options.separator is None else options.separator
    records = {separator: rows for separator in tried if (rows := _records(text, separator, whole))}
    if not records:
        raise InputError(f"{path} has a field of more than {csv.field_size_limit():,} characters in its first lines")
    separator = _choose_separator(records)
    names = [name.strip(" \t\ufeff") or f"Unnamed: {k}" for k, name in enumerate(records[separator][0])]
    row_names = _has_row_names(text, records[separator])
    return CsvFormat(path, gzipped, encoding, separator, [ROW_NAMES] * row_names + names, blank_lines, row_names)


def _open_bytes(path: Path, gzipped: bool) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if gzipped else path.open("rb")


def _find_encoding(path: Path, sample: bytes, whole: bool) -> str:
    """Return the encoding by its byte order mark, UTF-8 if the sample is UTF-8, otherwise cp1252 with a warning."""
    for mark, encoding in BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=whole)
    except UnicodeDecodeError:
        warnings.warn(f"{path} is not UTF-8 and is read as Windows text (cp1252)", stacklevel=2)
        return "cp1252"
    return "utf-8"


def _records(text: str, separator: str, whole: bool) -> list[list[str]]:
    """Return the records of a sample that are not blank, without the last one if the sample may have cut it.

    Nothing is returned for a separator that leaves a field longer than those that the csv module reads.
    """
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        filled = [row for row in rows if any(field.strip() for field in row)]
    except csv.Error:
        return []
    return filled if whole or len(filled) < 3 else filled[:-1]


def _has_row_names(text: str, rows: list[list[str]]) -> bool:
    """Return whether each record has one field more than the first, as in files of R's ``write.table``.

    The first field must be quoted, as R does: without quotes a record such as 7,3,50 may have a decimal comma.
    """
    longer = len(rows) > 1 and all(len(row) == len(rows[0]) + 1 for row in rows[1:])
    return longer and all(line.startswith('"') for line in text.strip().splitlines()[1:] if line)


def _choose_separator(records: dict[str, list[list[str]]]) -> str:
    """Return the separator that divides all records alike, or else the one with the most names."""
    for separator, rows in records.items():
        first = len(rows[0])
        alike = all(len(row) == first for row in rows) or all(len(row) == first + 1 for row in rows[1:])
        if first > 1 and alike:
            return separator
    return max(reversed(records), key=lambda separator: len(records[separator][0]))
