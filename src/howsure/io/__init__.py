"""Tables in files: read whole or in batches, written whole or not at all."""

from howsure.io.csv_format import CsvOptions
from howsure.io.read import BATCH_ROWS, count_rows, find_spans, read_batches, read_file
from howsure.io.write import check_output, is_ours, writing

__all__ = [
    "BATCH_ROWS",
    "CsvOptions",
    "check_output",
    "count_rows",
    "find_spans",
    "is_ours",
    "read_batches",
    "read_file",
    "writing",
]
