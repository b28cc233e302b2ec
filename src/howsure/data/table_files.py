"""Read CSV, Parquet, Arrow and Excel files as pandas frames, whole or in batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from howsure.data.arrow_files import ArrowReader, ParquetReader
from howsure.data.csv_files import CsvReader
from howsure.data.excel_files import ExcelReader
from howsure.errors import InputError

__all__ = ["count_rows", "find_spans", "read_batches", "read_file"]

ROWS = 65_536  # of a batch
_MOST_CELLS = ROWS * 512  # of a batch: wider tables have shorter ones
_TEXT, _PARQUET, _ARROW = (
    (".csv", ".tsv", ".txt", ".tab"),
    (".parquet", ".pq"),
    (".arrow", ".feather", ".ipc", ".arrows"),
)
_EXCEL = (".xlsx", ".xlsm")
_KINDS = "a table is a .csv (also .csv.gz), .tsv, .txt, .parquet, .arrow, .feather or .xlsx file"
_REFUSED = {  # by the first bytes
    b"\xd0\xcf\x11\xe0": "is an old Excel file (.xls), or one with a password; save it as .xlsx or .csv",
    b"FEA1": "is a Feather file of version 1; write it again with pandas.DataFrame.to_feather",
    b"BZh": "is compressed with bzip2; unpack it first, or use gzip",
    b"\xfd7zXZ": "is compressed with xz; unpack it first, or use gzip",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it first, or use gzip",
    b"%pdf": "is a PDF file; " + _KINDS,
    b"<html": "is a web page; download the table itself",
    b"[{": "is JSON; save it as .csv or .parquet",
    b'{"': "is JSON; save it as .csv or .parquet",
    b"<!doctyp": "is a web page; download the table itself",
}

Reader = CsvReader | ParquetReader | ArrowReader | ExcelReader


def read_file(path: str | Path) -> Any:
    """Return a pandas frame of all rows of a CSV, Parquet, Arrow or Excel file.

    What the file is decide its first bytes, and its ending where they do not. Whole numbers and booleans with missing
    values have pandas' nullable types.

    Raises:
        InputError: if it cannot be read without guessing, with the file, the line and what to do.
    """
    import pandas as pd

    frames = list(read_batches(path))
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def read_batches(
    path: str | Path, rows: int = ROWS, text: Sequence[str] = (), start: int = 0, stop: int | None = None
) -> Iterator[Any]:
    """Yield the rows of a file in their order as pandas frames, in bounded memory.

    The values and types are those of :func:`read_file`, whatever the rows of a batch are.

    Args:
        path: of the file.
        rows: of each batch but the last; tables of more than 512 columns have half as many, or a quarter, and so on.
        text: names of columns of a CSV file that are text, whatever they look like. Other files have their own types.
        start: the first row, a multiple of ``rows``; Parquet and Arrow files only.
        stop: the row behind the last; None for all.
    """
    reader = _reader_of(Path(path))(Path(path))
    if rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    if start % rows or start < 0 or (stop is not None and stop < start):
        raise InputError(f"start must be a multiple of rows, and stop no less; got {start} and {stop} for {rows} rows")
    while rows > 1 and rows * len(reader.names) > _MOST_CELLS:
        rows //= 2
    if isinstance(reader, ArrowReader):
        return _filled(reader.path, reader.frames(rows, start, stop), empty_is_fine=start > 0 or stop is not None)
    if start or stop is not None:
        raise InputError(f"{path} can only be read from its first row on; save it as .parquet")
    return _filled(reader.path, reader.frames(rows, text) if isinstance(reader, CsvReader) else reader.frames(rows))


def count_rows(path: str | Path) -> int | None:
    """Return the number of rows of a Parquet or Arrow file, None of a file that would have to be read for it."""
    kind = _reader_of(Path(path))
    return kind(Path(path)).count() if issubclass(kind, ArrowReader) else None


def find_spans(path: str | Path, rows: int, batch: int = ROWS) -> list[tuple[int, int | None]]:
    """Return where parts of a file begin and end, which can be read one by one; only Parquet has more than one.

    Args:
        path: of the file.
        rows: of each part, at least; more where row groups are huge, because each part reads its first one from the
            beginning.
        batch: rows of a batch, of which the ends of parts are multiples.
    """
    if not issubclass(_reader_of(Path(path)), ParquetReader):
        return [(0, None)]
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError):  # damaged: its reader knows what to say
        return [(0, None)]
    groups = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    size = -(-max(rows, max(groups, default=0) // 16) // batch) * batch
    cuts = [0, *range(size, metadata.num_rows, size)]
    return [*zip(cuts, [*cuts[1:], None], strict=True)]


def _filled(path: Path, frames: Iterator[Any], empty_is_fine: bool = False) -> Iterator[Any]:
    empty = True
    for frame in frames:
        empty = False
        yield frame
    if empty and not empty_is_fine:
        raise InputError(f"{path} has names of columns, but no rows")


def _reader_of(path: Path) -> type[Reader]:
    """Return the reader of a file, chosen by its first bytes, or by its ending where they do not tell."""
    start = _first_bytes(path)
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    ending = endings[0] if endings[-1:] == [".gz"] and len(endings) == 2 else (endings or [""])[-1]
    for mark, why in _REFUSED.items():
        if start.startswith(mark) or start.lower().startswith(mark):
            raise InputError(f"{path} {why}")
    if start.startswith(b"PAR1") or ending in _PARQUET:
        return ParquetReader
    if start.startswith(b"ARROW1") or ending in _ARROW:
        return ArrowReader
    if ending in _EXCEL:
        return ExcelReader
    if start.startswith(b"PK\x03\x04"):
        raise InputError(f"{path} is a zip archive; unpack it, or name it .xlsx if it is an Excel file")
    if ending not in (*_TEXT, ".gz"):
        raise InputError(f"{path}: {_KINDS}, not {ending or 'one without an ending'}")
    return CsvReader


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of a plain file. Anything else is refused unread: a pipe would keep its reader waiting."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; {_KINDS}")
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if not path.is_file():
            raise InputError(f"{path} is not a plain file; save what it gives as a file first")
        with path.open("rb") as file:
            start = file.read(8)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # also a name with a zero in it, or a link to itself
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not start:
        raise InputError(f"{path} is empty")
    return start
