"""Find out how a CSV file is written: its encoding, its separator, its names, and whether every line keeps to them."""

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import math
import re
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from howsure.data.arrow_files import first_line
from howsure.data.columns import check_unique
from howsure.data.numbers import parse_number
from howsure.data.values import shorten
from howsure.errors import InputError

__all__ = ["BLOCK", "CsvText"]

BLOCK = 1 << 20  # bytes that are read at once
_LONGEST_FIELD = 1 << 26
_MOST_COLUMNS = 100_000
_SEPARATORS = ",;\t|"
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "'|'"}
_MARKS = (  # the longer one first: the mark of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_csv_limit = threading.Lock()  # csv keeps one limit for all


class CsvText:
    """A CSV file as lines of fields. Its bytes, quotes and first lines are checked when it is opened.

    Attributes:
        path: of the file.
        names: of the columns.
        separator: of the fields.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gzipped = _has_gzip_mark(path)
        with self._refusing_damage():
            self._encoding = self._find_encoding()
            self._quoted, self._blank_before_quote = self._check_bytes()
            self._skip, records = self._first_records()
            self.separator, self._head = self._choose_separator(records)
            self.names = self._check_names(self._head)
            if self._quoted or len(self.names) == 1:
                self._check_records()

    # The bytes ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _bytes(self) -> Iterator[BinaryIO]:
        with self.path.open("rb") as file:
            if not self._gzipped:
                yield file
                return
            with gzip.open(file, "rb") as inner:
                yield cast(BinaryIO, inner)

    @contextlib.contextmanager
    def _utf8(self) -> Iterator[BinaryIO]:
        """Open the file as UTF-8, whatever it is encoded in, from behind its mark and a line such as ``sep=;``."""
        with self._bytes() as file:
            if self._encoding == "utf-8":
                stream: BinaryIO = file
            else:
                stream = io.BufferedReader(_Recoded(file, self._encoding), BLOCK)
            stream.read(getattr(self, "_skip", 0))
            yield stream

    def _find_encoding(self) -> str:
        with self._bytes() as file:
            start = file.read(4)
            for mark, encoding in _MARKS:
                if start.startswith(mark):
                    return encoding
            decoder = codecs.getincrementaldecoder("utf-8")()
            part, waiting = start, b""
            try:
                while part:
                    if waiting or not part.isascii():
                        decoder.decode(part)
                        waiting = decoder.getstate()[0]
                    part = file.read(BLOCK)
                decoder.decode(b"", final=True)
                return "utf-8"
            except UnicodeDecodeError:
                pass
        self._check_windows_text()
        warnings.warn(
            f"{self.path} is not UTF-8 and was read as Windows text (cp1252); if letters look wrong, save it as UTF-8",
            stacklevel=2,
        )
        return "cp1252"

    def _check_windows_text(self) -> None:
        """Raise unless all bytes are characters of cp1252: random bytes are not."""
        odd = bytes({*range(9), *range(14, 27), *range(28, 32), 0x7F, 0x81, 0x8D, 0x8F, 0x90, 0x9D})
        line = 1
        with self._bytes() as file:
            while part := file.read(BLOCK):
                if len(part.translate(None, odd)) < len(part):
                    place = next(k for k, byte in enumerate(part) if byte in odd)
                    line += part.count(b"\n", 0, place)
                    what = "NUL bytes, as binary files have" if part[place] == 0 else "bytes of no text we know"
                    self._refuse(f"it is not UTF-8 text, and has {what}; save it as UTF-8", line)
                line += part.count(b"\n")

    def _check_bytes(self) -> tuple[bool, bool]:
        """Raise if there are NUL bytes; return whether there are quotes, and whether one has a blank before it."""
        quoted, spaced, last, line, empty = False, False, b"", 1, True
        with self._utf8() as file:
            while part := file.read(BLOCK):
                if b"\0" in part:
                    line += part.count(b"\n", 0, part.index(b"\0"))
                    self._refuse(
                        "it has NUL bytes, as binary files and UTF-16 without a mark have; save it as UTF-8", line
                    )
                line += part.count(b"\n")
                quoted = quoted or b'"' in part
                spaced = spaced or b' "' in part or (last == b" " and part[:1] == b'"')
                last = part[-1:]
                empty = empty and not part.strip()
        if empty:
            raise InputError(f"{self.path} is empty")
        return quoted, spaced

    # The first lines ----------------------------------------------------------------------------------------------

    def _first_records(self) -> tuple[int, dict[str, list[list[str]]]]:
        """Return the length of a line such as ``sep=;`` in bytes, and the first records by separator."""
        with self._utf8() as file:
            start = file.read(BLOCK)
            while len(start) % BLOCK == 0 and len(start) < _LONGEST_FIELD and b"\n" not in start and b"\r" not in start:
                more = file.read(BLOCK)
                if not more:
                    break
                start += more
            whole = not file.read(1)
        said = re.match(rb'"?sep=([^\w"\x80-\xff])"?\r?\n', start)
        if said:
            start = start[said.end() :]
            if not start.strip():
                raise InputError(f"{self.path} is empty")
        text = start.decode("utf-8", errors="ignore")
        above = text[: len(text) - len(text.lstrip())]
        self._names_line = 1 + bool(said) + len(re.findall(r"\r\n|\r|\n", above))
        tried = [said[1].decode("ascii")] if said else list(_SEPARATORS)
        records = {separator: _records(text, separator, whole) for separator in tried}
        return said.end() if said else 0, records

    def _choose_separator(self, records: dict[str, list[list[str]]]) -> tuple[str, list[str]]:
        """Return the separator of the fields and the first record.

        The separator divides all of the first records alike. If several do, the one decides whose fields are numbers
        more often: with semicolons, 1,5;2,5 are two numbers, and with commas three fields that are not.
        """
        heads = {separator: rows[0] for separator, rows in records.items() if rows}
        if not heads:
            self._refuse(
                f"it has a field of more than {csv.field_size_limit():,} characters, which is no name", self._names_line
            )
        if len(records) == 1:
            return next(iter(heads.items()))
        wide = [s for s in _SEPARATORS if len(heads.get(s, [])) > 1]
        even = [s for s in wide if all(len(row) == len(heads[s]) for row in records[s])]
        if len(even) > 1:
            shares = {s: _number_share(records[s][1:]) for s in even}
            best = max(shares.values())
            even = [s for s in even if shares[s] == best]
        if len(even) > 1:
            a, b = (_NAMES[s] for s in even[:2])
            self._refuse(
                f"its fields may be separated by {a} or by {b}; put fields that hold either into quotes",
                self._names_line,
            )
        if even or wide:
            chosen = even[0] if even else max(wide, key=lambda s: len(heads[s]))
            return chosen, heads[chosen]
        self._refuse_other_separators([",".join(row) for row in records[","]])
        return next(iter(heads.items()))

    def _refuse_other_separators(self, lines: list[str]) -> None:
        """Raise if lines that seem to be one field each are several numbers, with colons or blanks between them."""
        for separator, called in ((":", "colons"), (None, "blanks")):
            rows = [line.split(separator) for line in lines]
            alike = len(rows) > 1 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)
            if alike and sum(not math.isnan(parse_number(field)) for field in rows[1]) > 1:  # "10 km" is one value
                self._refuse(
                    f"its fields seem to be separated by {called}; use commas, semicolons or tabs", self._names_line
                )

    def _check_names(self, head: list[str]) -> list[str]:
        """Return the names of the columns; those without one are called as pandas calls them."""
        names = [name.strip(" \t\r\n\ufeff") for name in head]
        if len(names) > _MOST_COLUMNS:
            self._refuse(f"it has {len(names):,} columns; at most {_MOST_COLUMNS:,} can be read", self._names_line)
        numbers = [parse_number(name) for name in names if name]
        written = [name for name, number in zip(filter(None, names), numbers, strict=True) if not math.isnan(number)]
        parts = any(number % 1 > 0 for number in numbers)
        if written and len(written) == len(numbers):
            if parts or any(number < 0 for number in numbers):
                self._refuse(
                    f"its first line is all numbers ({shorten(written[0])}, …), not names of columns; put a line with "
                    "their names on top",
                    self._names_line,
                )
            self._warn(f"names of columns are all numbers ({shorten(written[0])}, …); is the first line data?")
        elif parts:
            self._warn(f"a column is named {shorten(written[0])}; if the first line is data, put names on top")
        nameless = [k for k, name in enumerate(names) if not name]
        names = [name or f"Unnamed: {k}" for k, name in enumerate(names)]
        check_unique(names, f"{self.path}, line {self._names_line}: ")
        if nameless not in ([], [0]):  # pandas writes its index as a first column without a name
            called = ", ".join(repr(names[k]) for k in nameless[:5]) + (", …" if nameless[5:] else "")
            have = "column has" if len(nameless) == 1 else "columns have"
            self._warn(f"{len(nameless)} {have} no name, called {called} here")
        return names

    # The records --------------------------------------------------------------------------------------------------

    def _check_records(self, repeated: bool = False) -> None:
        """Raise for the first record with another number of fields than names, or with wrong quotes, with its line.

        With ``repeated``, raise also for one that has the names of the columns again.
        """
        with _csv_limit, self._utf8() as file:
            before = csv.field_size_limit(_LONGEST_FIELD)
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            reader = csv.reader(text, delimiter=self.separator, strict=True)
            line, blank, below = 1 + bool(self._skip), 0, False
            try:
                for record in reader:
                    if not record:
                        blank = blank or line
                    elif _is_blank(record) and len(self.names) > 1:
                        pass
                    elif len(record) != len(self.names):
                        self._refuse_length(record, line)
                    elif repeated and below and record == self._head:
                        self._refuse("it has the names of the columns again; remove the line", line)
                    elif blank and below and len(self.names) == 1:
                        self._refuse("it is blank; write NA if a value is missing, or remove the line", blank)
                    else:
                        blank, below = 0, True
                    if self._blank_before_quote and any(
                        field[:1].isspace() and field.lstrip()[:1] == '"' for field in record
                    ):
                        self._refuse("it has a blank before a quote; remove the blank", line)
                    line = reader.line_num + 1 + bool(self._skip)
            except csv.Error as error:
                self._refuse(_explained(error), line)
            finally:
                csv.field_size_limit(before)
                text.detach()

    def _refuse_length(self, record: list[str], line: int) -> NoReturn:
        count, names = len(record), len(self.names)
        several = f"{count} field{'' if count == 1 else 's'}"
        named = f"{names} name{'' if names == 1 else 's'}"
        hint = "; values that hold the separator belong into quotes" if count > names else "; is the line cut off?"
        self._refuse(f"the line has {several}, but the first line has {named}{hint}", line)

    # What goes wrong ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _refusing_damage(self) -> Iterator[None]:
        """Turn what readers raise about a damaged file into one InputError that names the file."""
        try:
            yield
        except InputError:
            raise
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{self.path} is a damaged gzip file ({first_line(error)}); copy it again, or unpack what is left of it"
            ) from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self.path} cannot be read as a table: {first_line(error)}") from error
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or first_line(error)}") from error

    def _refuse(self, why: str, line: int) -> NoReturn:
        raise InputError(f"{self.path}, line {line}: {why}")

    def _warn(self, what: str) -> None:
        warnings.warn(f"{self.path}: {what}", stacklevel=2)


class _Recoded(io.RawIOBase):
    """The bytes of a file in another encoding, as UTF-8."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file, self._ready = file, b""
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            part = self._file.read(BLOCK)
            self._ready = self._decoder.decode(part, final=not part).encode("utf-8")
            if not part and not self._ready:
                return 0
        taken, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _has_gzip_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _records(text: str, separator: str, whole: bool, most: int = 200) -> list[list[str]]:
    """Return the first records of a text that are not blank; without the last one if the text goes on behind it."""
    rows: list[list[str]] = []
    filled = (row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if not _is_blank(row))
    with contextlib.suppress(csv.Error):  # a field too long for csv; in the first line it cannot be a name
        rows.extend(itertools.islice(filled, most))
    return rows if whole or len(rows) == most or len(rows) < 2 else rows[:-1]


def _is_blank(record: list[str]) -> bool:
    """Return whether a line has nothing but blanks; one with a pair of quotes has an empty value."""
    return not record or (len(record) == 1 and record[0].isspace())


def _number_share(rows: list[list[str]]) -> float:
    """Return the share of fields that are empty or numbers, with a decimal point or comma."""
    fields = [field.strip() for row in rows for field in row]
    plain = sum(not f or not math.isnan(parse_number(f)) or not math.isnan(parse_number(f, "1000,0")) for f in fields)
    return plain / max(len(fields), 1)


def _explained(error: csv.Error) -> str:
    """Return what a message of csv means."""
    text = str(error)
    if "unexpected end of data" in text:
        return "a quote is opened here and never closed"
    if "expected after" in text:
        return "text follows a closing quote; write a quote inside of quotes twice"
    if "field larger" in text:
        return "a field has more than 64 MiB; is a quote never closed?"
    return first_line(error)
