"""Write pandas frames one after the other to a CSV, Parquet or Arrow file that appears whole or not at all."""

import contextlib
import csv
import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from howsure.data.arrow_files import first_line, import_pyarrow
from howsure.data.columns import check_unique
from howsure.errors import InputError
from howsure.files import opening_whole

__all__ = ["check_output", "is_ours", "writing"]

_ROWS = 65_536  # of a row group or record batch, at least
_MARK = {b"written_by": b"howsure"}  # among the metadata of a Parquet file
_KINDS = "a table is written as .csv, .csv.gz, .parquet, .arrow or .feather"


@contextlib.contextmanager
def writing(path: str | Path, replace: bool = False) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes a pandas frame below those written before.

    The ending says the format: .csv, .csv.gz, .parquet, .arrow or .feather. The file is there when the block has ended
    without an error, whole, and never otherwise. Indices of frames are not written.

    Raises:
        InputError: if a file of that name is there and ``replace`` is False, if frames have different columns, if none
            was written, or if the disk is full.

    >>> import pandas, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with writing(path) as write:
    ...     write(pandas.DataFrame({"x": [1, 2]}))
    >>> path.read_text().split()
    ['x', '1', '2']
    """
    path = Path(path)
    make = check_output(path, replace)
    raised: BaseException | None = None
    try:
        with opening_whole(path, replace) as file:
            table = _Table(path, file, make)
            try:
                yield table.write
            except BaseException as error:
                raised = error
                table.abandon()
                raise
            table.close()
    except FileExistsError as error:
        if error is raised:
            raise
        raise InputError(f"{path} was written by someone else in the meantime; name another file") from error
    except OSError as error:
        if error is raised:  # the caller's own, and not about this file
            raise
        raise _refusal(path, error) from error


def check_output(path: Path, replace: bool = False) -> Callable[[Path, Any], "_Format"]:
    """Return what writes the format of a file; raise now what `writing` would raise about its name and its place."""
    make = _format_of(path)
    _check_place(path, replace)
    return make


def is_ours(path: Path) -> bool:
    """Return whether a file is a Parquet file that `writing` wrote."""
    import pyarrow.parquet

    if path.is_symlink() or not path.is_file():
        return False
    try:
        metadata = pyarrow.parquet.read_metadata(path).metadata or {}
    except (pyarrow.ArrowException, OSError):  # no Parquet, or not to be read
        return False
    return _MARK.items() <= metadata.items()


def _refusal(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written: {error.strerror or first_line(error)}; nothing was written")


class _Table:
    """A file that grows by frames, all with the columns of the first."""

    def __init__(self, path: Path, file: BinaryIO, make: Callable[[Path, Any], "_Format"]) -> None:
        self._path, self._sink, self._make = path, _Sink(file), make
        self._format: _Format | None = None
        self._names: list[str] = []
        self._damaged = False

    def write(self, frame: Any) -> None:
        """Write a frame below the others."""
        names = [str(name) for name in frame.columns]
        if self._format is None:
            check_unique(names, f"{self._path}: ")
            self._names, self._format = names, self._make(self._path, self._sink)
        if names != self._names:
            raise InputError(f"{self._path}: rows have the columns {names}, but those before had {self._names}")
        damaged, self._damaged = self._damaged, True  # if this fails, the file has a hole, whatever the caller does
        try:
            self._format.write(frame.set_axis(names, axis=1))
        except OSError as error:
            raise _refusal(self._path, error) from error
        except (ValueError, NotImplementedError) as error:  # of Arrow: lists and structures have no place in CSV, say
            raise InputError(f"{self._path} cannot hold these columns: {first_line(error)}") from error
        self._damaged = damaged

    def close(self) -> None:
        """Write what is left to write."""
        try:
            if self._damaged:
                raise InputError(f"{self._path} is not written: some of its rows could not be")
            if self._format is None:
                raise InputError(f"{self._path}: there are no rows to write")
            self._format.close()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Write no more. Writers of pyarrow are closed all the same, or they would try to write when they are freed."""
        self._sink.abandoned = True
        if self._format is not None:
            with contextlib.suppress(Exception):
                self._format.abandon()


class _Sink(io.RawIOBase):
    """An open file that takes bytes until it is abandoned, and is closed by its owner alone."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.abandoned = file, False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data) if self.abandoned else self._file.write(data)


def _format_of(path: Path) -> Callable[[Path, Any], "_Format"]:
    """Return what writes the format of an ending."""
    name = path.name.lower()
    endings: dict[str, Callable[[Path, Any], _Format]] = {
        ".csv": _Csv,
        ".csv.gz": _GzippedCsv,
        ".parquet": _Parquet,
        ".pq": _Parquet,
        ".arrow": _Arrow,
        ".feather": _Arrow,
    }
    for ending, make in endings.items():
        if name.endswith(ending):
            return make
    raise InputError(f"{path}: {_KINDS}, not {path.suffix or 'one without an ending'}")


def _check_place(path: Path, replace: bool) -> None:
    """Raise unless a file may be written there."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r} cannot be the name of a file: it has a zero in it")
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file in it, such as {path / 'predictions.csv'}")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a plain file; name another one")
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        if not nearest.is_dir():
            raise InputError(f"{path} cannot be written: {nearest} is a file, not a folder")
        if path.exists() and not replace:
            raise InputError(
                f"{path} is there already; name another file, or replace it with replace=True (--force on the command "
                "line)"
            )
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


class _Format(Protocol):
    """What writes frames to an open file."""

    def write(self, frame: Any) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class _Parquet:
    """Parquet in row groups of at least 65,536 rows, of which only one is held in memory.

    The types are those of the first frame; a column that has no value there is text.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._pyarrow = import_pyarrow(path)
        self._schema: Any = None
        self._writer: Any = None
        self._held: list[Any] = []

    def write(self, frame: Any) -> None:
        table = self._as_table(frame)
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._held.append(table)
        if sum(held.num_rows for held in self._held) >= _ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        if self._held:
            self._write_table(self._pyarrow.concat_tables(self._held))
            self._held = []

    def _as_table(self, frame: Any) -> Any:
        """Return a frame as an Arrow table with the types of the first one."""
        pa = self._pyarrow
        try:
            table = pa.Table.from_arrays([self._as_array(column) for _, column in frame.items()], list(frame.columns))
            if self._schema is None:
                types = [pa.string() if pa.types.is_null(field.type) else field.type for field in table.schema]
                self._schema = pa.schema(list(zip(table.column_names, types, strict=True)))
            return table.cast(self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{self._path}: a column cannot be written: {first_line(error)}") from error

    def _as_array(self, column: Any) -> Any:
        """Return a column as an Arrow array; objects that have no type in common are text."""
        pa = self._pyarrow
        try:
            array = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            if column.dtype != object:
                raise
            array = pa.array([None if gone else str(v) for v, gone in zip(column, column.isna(), strict=True)])
        return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array

    def _open(self, schema: Any) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetWriter(self._file, schema.with_metadata(_MARK), compression="zstd")

    def _write_table(self, table: Any) -> None:
        self._writer.write_table(table, row_group_size=1 << 20)


class _Arrow(_Parquet):
    """An Arrow file (Feather version 2)."""

    def _open(self, schema: Any) -> Any:
        return self._pyarrow.ipc.new_file(self._file, schema)

    def _write_table(self, table: Any) -> None:
        self._writer.write_table(table, max_chunksize=_ROWS)


class _Csv(_Arrow):
    """UTF-8 with commas: numbers with all of their digits, text in quotes, nothing for missing values."""

    def _open(self, schema: Any) -> Any:
        import pyarrow.csv

        names = io.StringIO(newline="")
        csv.writer(names, lineterminator="\n").writerow(schema.names)
        self._file.write(names.getvalue().encode("utf-8"))
        options = pyarrow.csv.WriteOptions(include_header=False, batch_size=_ROWS)
        return pyarrow.csv.CSVWriter(self._file, schema, write_options=options)


class _GzippedCsv(_Csv):
    """The same, compressed."""

    def __init__(self, path: Path, file: Any) -> None:
        super().__init__(path, file)
        self._file = gzip.GzipFile("", "wb", compresslevel=5, fileobj=file, mtime=0)

    def close(self) -> None:
        super().close()
        self._file.close()

    def abandon(self) -> None:
        super().abandon()
        self._file.close()
