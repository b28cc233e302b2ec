"""Read Parquet and Arrow files, and make pandas frames of Arrow tables whose types do not depend on the batch."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from howsure.data.columns import check_unique
from howsure.errors import InputError, install_hint

__all__ = ["ArrowReader", "ParquetReader", "first_line", "import_pyarrow", "regroup", "to_frame"]

_NULLABLE = {f"{sign}int{bits}": f"{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NULLABLE["bool"] = "boolean"


def import_pyarrow(path: Path) -> Any:
    """Return the module pyarrow, or raise an InputError that says how to install it."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(
            f"{path} cannot be read or written without pyarrow; install it with {install_hint('cli')}"
        ) from error
    return pyarrow


def first_line(error: BaseException) -> str:
    """Return the first line of an error, for a message of one sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class ArrowReader:
    """Reader of an Arrow IPC (Feather) file or stream.

    Attributes:
        path: of the file.
        names: of the columns.
    """

    kind = "Arrow"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pyarrow = import_pyarrow(path)
        with self._refusing_damage():
            self.schema = self._open_schema()
            self._kept = self._columns()
        self.names = _checked_names(path, [self.schema.names[k] for k in self._kept])

    def count(self) -> int | None:
        """Return the number of rows, or None where only a whole pass would tell."""
        with self._refusing_damage(), self._opened() as reader:
            return int(reader.count_rows()) if hasattr(reader, "count_rows") else None

    def frames(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yield pandas frames of ``rows`` rows each, of the same types whatever the rows in them are."""
        nullable, categories = self._examine()
        for table in regroup(self._refused_late(self._tables(start, stop)), rows):
            with self._refusing_damage():
                frame = to_frame(table.rename_columns(self.names), nullable, categories)
            yield frame

    def _examine(self) -> tuple[set[int], dict[int, Any]]:
        """Return which columns of integers or booleans have missing values, and the values of each dictionary.

        Both are those of the whole file: what pandas makes of a batch would depend on whether that batch has any.
        """
        types = self._pyarrow.types
        plain, categories = set(), {}
        for k, name in enumerate(self.names):
            kind = self.schema.field(self._kept[k]).type
            if types.is_dictionary(kind):
                categories[k] = self._pyarrow.array([], kind.value_type)
            elif (types.is_integer(kind) or types.is_boolean(kind)) and name is not None:
                plain.add(k)
        nullable, unknown = self._known_nulls(plain)
        if unknown or categories:
            for table in self._refused_late(self._tables(0, None, sorted(unknown | set(categories)))):
                for column, k in zip(table.columns, sorted(unknown | set(categories)), strict=True):
                    if k in categories:
                        categories[k] = _merged(self._pyarrow, categories[k], column)
                    elif column.null_count:
                        nullable.add(k)
        return nullable, categories

    def _known_nulls(self, columns: set[int]) -> tuple[set[int], set[int]]:
        """Return which of the columns have missing values, and of which that is not known without reading them."""
        return set(), columns

    def _tables(self, start: int, stop: int | None, columns: list[int] | None = None) -> Iterator[Any]:
        """Yield the rows from ``start`` to ``stop`` as Arrow tables of any size; ``columns`` are places in names."""
        chosen = self._kept if columns is None else [self._kept[k] for k in columns]
        with self._opened() as reader:
            batches = (
                (reader.get_batch(k) for k in range(reader.num_record_batches))
                if hasattr(reader, "get_batch")
                else iter(reader)
            )
            place = 0
            for batch in batches:
                first, last = (
                    max(start - place, 0),
                    batch.num_rows if stop is None else min(stop - place, batch.num_rows),
                )
                place += batch.num_rows
                if first < last:
                    part = batch.select(chosen).slice(first, last - first)
                    part.validate(full=True)  # offsets of a damaged file may point anywhere
                    yield self._pyarrow.Table.from_batches([part])
                if stop is not None and place >= stop:
                    return

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        ipc = self._pyarrow.ipc
        with self._pyarrow.memory_map(str(self.path)) as file:
            whole = file.read(6) == b"ARROW1"
            file.seek(0)
            with (ipc.open_file if whole else ipc.open_stream)(file) as reader:
                yield reader

    def _open_schema(self) -> Any:
        with self._opened() as reader:
            return reader.schema

    def _columns(self) -> list[int]:
        """Return the places of the columns; indices of pandas that have no name are none."""
        metadata = self.schema.pandas_metadata or {}
        index = {name for name in metadata.get("index_columns", []) if isinstance(name, str)}
        hidden = {name for name in index if name.startswith("__index_level_")}
        return [k for k, name in enumerate(self.schema.names) if name not in hidden]

    @contextlib.contextmanager
    def _refusing_damage(self) -> Iterator[None]:
        """Turn what pyarrow raises about a damaged file into one InputError that names the file."""
        try:
            yield
        except InputError:
            raise
        except (self._pyarrow.ArrowException, ValueError, TypeError, KeyError, OverflowError, EOFError) as error:
            raise InputError(f"{self.path} is not a readable {self.kind} file: {first_line(error)}") from error
        except OSError as error:  # also what pyarrow raises about damaged pages
            raise InputError(f"{self.path} cannot be read: {first_line(error)}") from error

    def _refused_late(self, tables: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._refusing_damage():
                table = next(tables, None)
            if table is None:
                return
            yield table


class ParquetReader(ArrowReader):
    """Reader of a Parquet file."""

    kind = "Parquet"

    def count(self) -> int | None:
        """Return the number of rows."""
        with self._refusing_damage(), self._opened() as file:
            return int(file.metadata.num_rows)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        import pyarrow.parquet

        # in parts of a MiB: a row group may be the whole file
        with pyarrow.parquet.ParquetFile(str(self.path), pre_buffer=False, buffer_size=1 << 20) as file:
            yield file

    def _open_schema(self) -> Any:
        with self._opened() as file:
            return file.schema_arrow

    def _known_nulls(self, columns: set[int]) -> tuple[set[int], set[int]]:
        nullable, unknown = set(), set()
        with self._refusing_damage(), self._opened() as file:
            metadata = file.metadata
            places = {metadata.schema.column(k).path: k for k in range(metadata.num_columns)}
            for column in columns:
                place = places.get(self.schema.names[self._kept[column]])
                counts = [_null_count(metadata.row_group(g), place) for g in range(metadata.num_row_groups)]
                if any(counts):
                    nullable.add(column)
                elif None in counts:
                    unknown.add(column)
        return nullable, unknown

    def _tables(self, start: int, stop: int | None, columns: list[int] | None = None) -> Iterator[Any]:
        chosen = self._kept if columns is None else [self._kept[k] for k in columns]
        names = [self.schema.names[k] for k in chosen]
        with self._opened() as file:
            ends, place = [], 0
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if place + size > start and (stop is None or place < stop):
                    ends.append((group, place))
                place += size
            if not ends:
                return
            place = ends[0][1]
            for batch in file.iter_batches(1 << 16, [group for group, _ in ends], names):
                first, last = (
                    max(start - place, 0),
                    batch.num_rows if stop is None else min(stop - place, batch.num_rows),
                )
                place += batch.num_rows
                if first < last:
                    yield self._pyarrow.Table.from_batches([batch]).select(names).slice(first, last - first)


def _null_count(group: Any, place: int | None) -> int | None:
    """Return how many values of a column are missing in a row group, None if the file does not say."""
    statistics = None if place is None else group.column(place).statistics
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else None


def _checked_names(path: Path, names: list[str]) -> list[str]:
    if not names:
        raise InputError(f"{path} has no columns")
    check_unique(names, f"{path}: ")
    return names


def _merged(pyarrow: Any, values: Any, column: Any) -> Any:
    """Return the values of a dictionary so far and the new ones of a column, in the order of first rows."""
    found = column.unique().drop_null() if hasattr(column.unique(), "drop_null") else column.unique()
    found = found.dictionary.take(found.indices) if hasattr(found, "indices") else found
    return pyarrow.concat_arrays([values, found.cast(values.type)]).unique()


def regroup(tables: Iterable[Any], rows: int) -> Iterator[Any]:
    """Yield the same rows in the same order as tables of ``rows`` rows; the last one may be shorter."""
    import pyarrow

    held: list[Any] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        while count >= rows:
            joined = pyarrow.concat_tables(held)
            yield joined.slice(0, rows)
            held, count = [joined.slice(rows)], count - rows
    if count:
        yield pyarrow.concat_tables(held)


def to_frame(table: Any, nullable: set[int], categories: dict[int, Any] | None = None) -> Any:
    """Return the pandas frame of an Arrow table.

    Args:
        table: with unique names.
        nullable: places of integers and booleans that become pandas' nullable types, because the file has missing
            values in them, even if this table has none.
        categories: of dictionaries, by their places.
    """
    import pandas as pd

    categories = categories or {}
    special = nullable | set(categories)
    plain = [name for k, name in enumerate(table.column_names) if k not in special]
    frame = table.select(plain).to_pandas(ignore_metadata=True) if plain else pd.DataFrame(index=range(table.num_rows))
    if not special:
        return frame
    own = {}
    for k in special:
        name, column = table.column_names[k], table.column(k)
        if k in categories:
            texts = column.cast(column.type.value_type).to_pandas()
            own[name] = pd.Series(pd.Categorical(texts, categories=categories[k].to_pandas()))
        else:
            own[name] = column.to_pandas(types_mapper=lambda kind: pd.api.types.pandas_dtype(_NULLABLE[str(kind)]))
    return pd.concat([frame, pd.DataFrame(own)], axis=1)[table.column_names]
