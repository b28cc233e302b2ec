"""The equations of the paper as pure functions from tensors to tensors, exact in float32 and float64."""

from howsure.formulas import mixture, nig, normal, penalties, special, student_t, transforms

__all__ = ["mixture", "nig", "normal", "penalties", "special", "student_t", "transforms"]
