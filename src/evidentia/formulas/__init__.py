"""The equations of the paper as pure functions from tensors to tensors, exact in float32 and float64."""

from evidentia.formulas import gaussian, mixture, nig, penalties, special, student_t, transforms

__all__ = ["gaussian", "mixture", "nig", "penalties", "special", "student_t", "transforms"]
