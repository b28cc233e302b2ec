"""Fit a method to a table: populations of networks."""

from howsure.fitting.members import Member, hold_out
from howsure.fitting.search import Search, search
from howsure.fitting.tables import Fitted, fit

__all__ = [
    "Fitted",
    "Member",
    "Search",
    "fit",
    "hold_out",
    "search",
]
