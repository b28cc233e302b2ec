"""Fit a method to a table: populations of networks."""

from howsure.fitting.members import Member, hold_out
from howsure.fitting.tables import Fitted, fit

__all__ = [
    "Fitted",
    "Member",
    "fit",
    "hold_out",
]
