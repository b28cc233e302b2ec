"""Regressors leave Python: a fitted regressor as one ONNX graph, from the columns of a table to mean and deviations."""

from howsure.export.onnx import columns_file, export_onnx

__all__ = ["columns_file", "export_onnx"]
