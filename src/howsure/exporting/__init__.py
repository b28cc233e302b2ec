"""Models leave Python: a fitted model as one ONNX or pt2 file, with its interval inside."""

from howsure.exporting.files import columns_of, export
from howsure.exporting.rows import encode_row

__all__ = ["columns_of", "encode_row", "export"]
