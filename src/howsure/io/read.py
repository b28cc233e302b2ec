"""Read CSV, Parquet, Feather and Excel files as pandas frames, whole or in batches.

Columns of a CSV file are read as text. Whole files become numbers or booleans where all texts of a column are; digits
with zeros in front, such as 007, stay text. The reader of batches is given the columns of numbers: a batch in which a
cell of such a column is not a number keeps the text, for the model to decide.
"""

import contextlib
import re
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from howsure.errors import InputError, import_extra
from howsure.io.bounded import reading
from howsure.io.csv_format import BLOCK, CsvFormat, CsvOptions, find_format

__all__ = ["BATCH_ROWS", "count_rows", "find_spans", "import_pyarrow", "read_batches", "read_file"]

BATCH_ROWS = 65_536
MAX_BATCH_CELLS = BATCH_ROWS * 512  # wider tables have shorter batches
MAX_EXCEL_CELLS = 10_000_000  # about 1 GB in memory
MAX_BLOCK = 1 << 25  # bytes of a CSV file that are parsed at once
# the missing values of pandas.read_csv
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".tab": "csv", ".gz": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".feather": "feather", ".arrow": "feather", ".xlsx": "excel", ".xlsm": "excel",
}  # fmt: skip


def read_file(path: str | Path, numbers: Collection[str] | None = None, csv: CsvOptions | None = None) -> Any:
    """Return a pandas frame of all rows of a CSV, Parquet, Feather or Excel file.

    Args:
        path: of the file. Its ending names the format, unless it starts with the bytes of Parquet or Feather.
        numbers: names of the columns of a CSV file that are numbers. Others are text. None: each column has the
            type of all of its texts.
        csv: separator and encoding of a CSV file.

    Raises:
        InputError: if the file cannot be read.
    """
    path = Path(path)
    kind = _format_of(path)
    if kind == "excel":
        return _read_excel(path)
    pyarrow = import_pyarrow()
    tables = list(_tables(path, csv or CsvOptions()))
    with reading(path):
        table = pyarrow.concat_tables(tables)
        if not table.num_rows:
            raise InputError(f"{path} has no rows")
        return _to_frame(_typed(table, numbers) if kind == "csv" else table)


def read_batches(
    path: str | Path,
    numbers: Collection[str] | None = None,
    rows: int = BATCH_ROWS,
    span: tuple[int, int | None] = (0, None),
    csv: CsvOptions | None = None,
) -> Iterator[Any]:
    """Yield the rows of a file in their order as pandas frames. Memory does not grow with the file, except for Excel.

    Args:
        path: of the file.
        numbers: names of the columns of a CSV file that are numbers. Others are text. None: each column of a batch
            has the type of all of its texts.
        rows: of each batch but the last. Tables of more than 512 columns have a half, or a quarter, and so on.
        span: first row, a multiple of ``rows``, and end of the rows that are read; Parquet files only.
        csv: separator and encoding of a CSV file.
    """
    path = Path(path)
    kind = _format_of(path)
    if kind == "excel":
        frame = _read_excel(path)
        for start in range(0, len(frame), rows):
            yield frame[start : start + rows].reset_index(drop=True)
        return
    empty = span == (0, None)
    for table in _regroup(_tables(path, csv or CsvOptions(), span), rows):
        with reading(path):
            frame = _to_frame(_typed(table, numbers) if kind == "csv" else table)
        empty = False
        yield frame
    if empty:
        raise InputError(f"{path} has no rows")


def count_rows(path: str | Path) -> int | None:
    """Return the number of rows of a Parquet file, None of a file that would have to be read for it."""
    path = Path(path)
    if _format_of(path) != "parquet":
        return None
    with reading(path):
        return int(import_pyarrow().parquet.read_metadata(path).num_rows)


def find_spans(path: str | Path, rows: int) -> list[tuple[int, int | None]]:
    """Return where parts of a Parquet file begin and end, which can be read one by one; other files have one part.

    Args:
        path: of the file.
        rows: of each part, at least. Parts are larger where row groups are huge, because each part reads its first row
            group from the beginning. Their ends are multiples of ``BATCH_ROWS``.
    """
    path = Path(path)
    if _format_of(path) != "parquet":
        return [(0, None)]
    with reading(path):
        metadata = import_pyarrow().parquet.read_metadata(path)
    groups = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    size = -(-max(rows, max(groups, default=0) // 16) // BATCH_ROWS) * BATCH_ROWS
    cuts = [0, *range(size, metadata.num_rows, size)]
    return [*zip(cuts, [*cuts[1:], None], strict=True)]


def import_pyarrow() -> Any:
    """Return the module pyarrow with its parts, or raise an error with the extra to install."""
    for part in ("compute", "csv", "parquet"):
        import_extra(f"pyarrow.{part}", "cli")
    return import_extra("pyarrow", "cli")


def _format_of(path: Path) -> str:
    """Return "csv", "parquet", "feather" or "excel". A pipe is not opened: its reader would wait for a writer."""
    with reading(path):
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if not path.is_file():
            raise InputError(f"{path} is not a file")
        with path.open("rb") as file:
            start = file.read(6)
    if not start:
        raise InputError(f"{path} is empty")
    if start.startswith(b"PAR1"):
        return "parquet"
    if start == b"ARROW1":
        return "feather"
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise InputError(f"unknown file format: {path}", hint=f"a table is one of {', '.join(FORMATS)}")
    return found


def _tables(path: Path, csv: CsvOptions, span: tuple[int, int | None] = (0, None)) -> Iterator[Any]:
    """Yield the rows of a file as Arrow tables of any size."""
    with reading(path):
        readers = {
            "csv": partial(_csv_tables, path, csv),
            "parquet": partial(_parquet_tables, path, *span),
            "feather": partial(_feather_tables, path),
        }
        checked = False
        for table in readers[_format_of(path)]():
            names = [name for name in table.column_names if not re.fullmatch(r"__index_level_\d+__", name)]
            if not checked:
                _check_names(path, names)
                checked = True
            yield table.select(names)


def _check_names(path: Path, names: list[str]) -> None:
    if not names:
        raise InputError(f"{path} has no columns")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"{path} has more than one column {repeated[0]!r}", column=repeated[0], hint="rename one")


# Formats --------------------------------------------------------------------------------------------------------------


def _csv_tables(path: Path, options: CsvOptions) -> Iterator[Any]:
    """Yield the records of a CSV file as tables of text."""
    pyarrow = import_pyarrow()
    layout = find_format(path, options)
    _check_names(path, layout.names)
    if layout.has_quotes():
        layout.check_records(lengths=False)
    columns = [str(k) for k in range(len(layout.names))]
    block = min(max(BLOCK, 4096 * len(columns)), MAX_BLOCK)
    csv = pyarrow.csv
    with _utf8_stream(pyarrow, layout) as file:
        try:
            reader = csv.open_csv(
                file,
                csv.ReadOptions(
                    use_threads=False,
                    block_size=block,
                    skip_rows=layout.blank_lines + layout.row_names,
                    column_names=columns,
                ),
                csv.ParseOptions(
                    delimiter=layout.separator,
                    newlines_in_values=True,
                    ignore_empty_lines=len(columns) > 1,  # else a blank line is a missing value
                ),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pyarrow.string()), strings_can_be_null=True, null_values=MISSING
                ),
            )
            head = 0 if layout.row_names else 1  # the names are read as the first row if the number of fields is equal
            for batch in reader:
                yield pyarrow.Table.from_batches([batch]).rename_columns(layout.names).slice(head)
                head = 0 if batch.num_rows else head
        except pyarrow.ArrowInvalid:
            layout.check_records(lengths=True)
            raise


@contextlib.contextmanager
def _utf8_stream(pyarrow: Any, layout: CsvFormat) -> Iterator[Any]:
    """Yield a stream of UTF-8.

    Threads of Arrow read ahead, also while Python ends, and abort the process if they need Python then. So the stream
    is Arrow's own, and the reader has no function of Python to call.
    """
    if layout.is_utf8:
        with pyarrow.input_stream(str(layout.path), "gzip" if layout.gzipped else None) as stream:
            yield stream
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "utf8.csv"
        with layout.open_text() as source, copy.open("w", encoding="utf-8", newline="") as target:
            shutil.copyfileobj(source, target, BLOCK)
        with pyarrow.input_stream(str(copy)) as stream:
            yield stream


def _parquet_tables(path: Path, start: int, stop: int | None) -> Iterator[Any]:
    """Yield the rows from ``start`` to ``stop``; row groups outside of them are not read."""
    pyarrow = import_pyarrow()
    # in parts of a MiB: a row group may be the whole file
    with pyarrow.parquet.ParquetFile(str(path), pre_buffer=False, buffer_size=BLOCK) as file:
        sizes = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
        groups: list[int] = []
        place = end = 0
        for group, size in enumerate(sizes):
            first, end = end, end + size
            if end > start and (stop is None or first < stop):
                place = place if groups else first
                groups.append(group)
        if not groups:  # a table without rows has columns all the same
            yield file.schema_arrow.empty_table()
            return
        for batch in file.iter_batches(BATCH_ROWS, groups):
            first, last = max(start - place, 0), batch.num_rows if stop is None else max(stop - place, 0)
            yield pyarrow.Table.from_batches([batch]).slice(first, max(last - first, 0))
            place += batch.num_rows


def _feather_tables(path: Path) -> Iterator[Any]:
    pyarrow = import_pyarrow()
    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_file(file) as reader:
        yield reader.schema.empty_table()
        for k in range(reader.num_record_batches):
            batch = reader.get_batch(k)
            batch.validate(full=True)  # offsets of a damaged file may point anywhere
            yield pyarrow.Table.from_batches([batch])


def _read_excel(path: Path) -> Any:
    """Return the first sheet of an Excel file, whose first row has the names of the columns."""
    import pandas as pd

    openpyxl = import_extra("openpyxl", "excel")
    head: tuple[Any, ...] = ()
    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and extensions that openpyxl leaves out
        book = openpyxl.load_workbook(path, read_only=True)
        sheet, sheets = book.worksheets[0], book.sheetnames
        sheet.reset_dimensions()  # the file may state wrong ones
        width = 0
        for height, row in enumerate(sheet.iter_rows(values_only=True), 1):
            width = max(width, len(row))
            if height * width > MAX_EXCEL_CELLS:
                raise InputError(f"{path} has more than {MAX_EXCEL_CELLS:,} cells", hint="save the table as CSV")
            head = head or (row if any(value is not None for value in row) else ())
        book.close()
        _check_names(path, [str(name).strip() for name in head if name is not None])
        frame = pd.read_excel(path, dtype=object, engine="openpyxl").infer_objects()  # text such as 007 stays text
    if len(sheets) > 1:
        warnings.warn(f"{path}: only the first sheet, {sheets[0]!r}, is read", stacklevel=3)
    frame.columns = [str(name).strip() for name in frame.columns]
    if frame.empty:
        raise InputError(f"{path} has no rows")
    return frame


# Frames ---------------------------------------------------------------------------------------------------------------


def _regroup(tables: Iterable[Any], rows: int) -> Iterator[Any]:
    """Yield the same rows in the same order as tables of ``rows`` rows, or less if they are wide."""
    import pyarrow

    held: list[Any] = []
    count = 0
    for table in tables:
        while rows > 1 and rows * table.num_columns > MAX_BATCH_CELLS:
            rows //= 2
        held.append(table)
        count += table.num_rows
        while count >= rows:
            joined = pyarrow.concat_tables(held)
            yield joined.slice(0, rows)
            held, count = [joined.slice(rows)], count - rows
    if count:
        yield pyarrow.concat_tables(held)


def _typed(table: Any, numbers: Collection[str] | None) -> Any:
    """Return a table of text with numbers and booleans where all texts of a column are.

    Args:
        table: whose columns are text.
        numbers: names of the columns that are numbers; None if that is not known.
    """
    import pyarrow

    known = None if numbers is None else frozenset(numbers)
    columns = []
    for name, texts in zip(table.column_names, table.columns, strict=True):
        if known is None:
            columns.append(_plain_values(texts))
        else:
            found = _cast(texts, pyarrow.float64()) if name in known else None
            columns.append(texts if found is None else found)
    return pyarrow.table(columns, names=table.column_names)


def _plain_values(texts: Any) -> Any:
    """Return a column of text as numbers or booleans if all texts are; codes such as 007 stay text."""
    import pyarrow
    import pyarrow.compute as pc

    numbers = _cast(texts, pyarrow.float64())
    trimmed = pc.utf8_trim_whitespace(texts)
    if numbers is None:
        words = pyarrow.array(["true", "false", None])
        is_boolean = pc.all(pc.is_in(pc.utf8_lower(trimmed), value_set=words)).as_py()
        return _cast(texts, pyarrow.bool_()) if is_boolean else texts
    if pc.any(pc.match_substring_regex(trimmed, "^0[0-9]+$")).as_py():
        return texts
    whole = _cast(texts, pyarrow.int64()) if numbers.null_count < len(numbers) else None
    return numbers if whole is None else whole


def _cast(texts: Any, kind: Any) -> Any:
    """Return texts as values of a type, None if one of them is not such a value."""
    import pyarrow
    import pyarrow.compute as pc

    try:
        return pc.utf8_trim_whitespace(texts).cast(kind)
    except pyarrow.ArrowInvalid:
        return None


def _to_frame(table: Any) -> Any:
    """Return the pandas frame of an Arrow table. Types never depend on whether values are missing in these rows."""
    import pandas as pd
    import pyarrow

    nullable: dict[Any, Any] = {pyarrow.bool_(): pd.BooleanDtype()}
    for bits in (8, 16, 32, 64):
        for sign, name in (("", "Int"), ("u", "UInt")):
            nullable[getattr(pyarrow, f"{sign}int{bits}")()] = getattr(pd, f"{name}{bits}Dtype")()
    return table.to_pandas(types_mapper=nullable.get, ignore_metadata=True)
