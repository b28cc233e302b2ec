"""Write pandas frames one after the other to a CSV, Parquet or Feather file that appears whole or not at all."""

import contextlib
import csv
import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from howsure.errors import InputError
from howsure.files import opening_whole
from howsure.io.read import import_pyarrow

__all__ = ["check_output", "is_ours", "writing"]

FORMATS = (".csv", ".csv.gz", ".parquet", ".pq", ".feather", ".arrow")
WRITTEN_BY = {b"written_by": b"howsure"}  # in the metadata of a Parquet file


@contextlib.contextmanager
def writing(path: str | Path, replace: bool = False) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes a pandas frame below the frames before it. All have the columns of the first.

    The ending of the name chooses the format: .csv, .csv.gz, .parquet or .feather. The file is there when the block has
    ended without an error, whole, and never otherwise. Indices of frames are not written.

    Raises:
        InputError: if a file of that name is there and ``replace`` is False, or if a frame cannot be written.

    >>> import pandas, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with writing(path) as write:
    ...     write(pandas.DataFrame({"x": [1, 2]}))
    >>> path.read_text().split()
    ['x', '1', '2']
    """
    path = Path(path)
    check_output(path, replace)
    raised: BaseException | None = None
    try:
        with opening_whole(path, replace) as file:
            writer = _Writer(path, file)
            try:
                yield writer.write
            except BaseException as error:
                raised = error
                with contextlib.suppress(Exception):
                    writer.close()
                raise
            writer.close()
    except OSError as error:
        if raised is not None:  # closing the file may fail, too
            raise raised from None
        if isinstance(error, FileExistsError):
            raise InputError(
                f"{path} was written by another program in the meantime", hint="name another file"
            ) from error
        raise _cannot_write(path, error) from error


def check_output(path: Path, replace: bool = False) -> None:
    """Raise the errors of `writing` about the name and the place of a file."""
    if not path.name.lower().endswith(FORMATS):
        raise InputError(f"unknown file format: {path}", hint=f"a table is written as one of {', '.join(FORMATS)}")
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a file", hint="name another one")
        nearest = next(parent for parent in path.resolve().parents if parent.exists())
        if not nearest.is_dir():
            raise InputError(f"{path} cannot be written: {nearest} is a file, not a folder")
        if path.exists() and not replace:
            raise InputError(f"{path} exists already", hint="--force replaces it, -o names another file")
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # also a name with a zero in it, or a link to itself
        raise _cannot_write(path, error) from error


def is_ours(path: Path) -> bool:
    """Return whether a file is a Parquet file that `writing` wrote."""
    import pyarrow.parquet

    if path.is_symlink() or not path.is_file():
        return False
    try:
        metadata = pyarrow.parquet.read_metadata(path).metadata or {}
    except (pyarrow.ArrowException, OSError):  # not Parquet, or not to be read
        return False
    return WRITTEN_BY.items() <= metadata.items()


def _cannot_write(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"{path} cannot be written: {reason}", hint="the file is left as it was")


class _Writer:
    """An open file that grows by frames. The first frame decides the types. A column without values is text."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.pyarrow = import_pyarrow()
        self.schema: Any = None
        self.open = contextlib.ExitStack()

    def write(self, frame: Any) -> None:
        """Write a frame below the others."""
        pa = self.pyarrow
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
        try:
            table = pa.Table.from_pandas(_without_mixtures(frame), self.schema, preserve_index=False)
            if self.schema is None:
                self._start([(name, _stored_type(pa, table[name].type)) for name in table.column_names])
            self.writer.write_table(table.cast(self.schema))
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        except (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError) as error:
            raise InputError(f"{self.path} cannot hold these columns: {error}") from error

    def _start(self, types: list[tuple[str, Any]]) -> None:
        """Start the file with the names of the columns."""
        pa, name = self.pyarrow, self.path.name.lower()
        self.schema = pa.schema(types)
        if name.endswith((".parquet", ".pq")):
            marked = self.schema.with_metadata(WRITTEN_BY)
            writer = pa.parquet.ParquetWriter(self.file, marked, compression="zstd")
        elif name.endswith((".feather", ".arrow")):
            writer = pa.ipc.new_file(self.file, self.schema)
        else:
            file: Any = self.file
            if name.endswith(".gz"):
                file = self.open.enter_context(gzip.GzipFile("", "wb", compresslevel=5, fileobj=file, mtime=0))
            head = io.StringIO(newline="")
            csv.writer(head, lineterminator="\n").writerow(self.schema.names)
            file.write(head.getvalue().encode("utf-8"))
            writer = pa.csv.CSVWriter(file, self.schema, write_options=pa.csv.WriteOptions(include_header=False))
        self.writer = self.open.enter_context(writer)

    def close(self) -> None:
        """Write the remaining rows."""
        if self.schema is None:
            raise InputError(f"{self.path}: there are no rows to write")
        self.open.close()


def _without_mixtures(frame: Any) -> Any:
    """Return a frame with text in place of values that have no type in common."""
    import pandas as pd

    mixed = [name for name in frame if pd.api.types.infer_dtype(frame[name], skipna=True).startswith("mixed")]
    return frame.assign(**{name: frame[name].map(str, na_action="ignore") for name in mixed})


def _stored_type(pa: Any, kind: Any) -> Any:
    """Return the type of a column in the file: text if there are no values, the values of categories."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_null(kind) else kind
