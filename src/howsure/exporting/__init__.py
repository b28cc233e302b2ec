"""Fitted regressors and networks as one ONNX or pt2 file, for programs without howsure."""

from howsure.exporting.export import columns_of, export
from howsure.exporting.rows import encode_row

__all__ = ["columns_of", "encode_row", "export"]
