"""Checks of the arguments of modules."""

from numbers import Integral
from typing import Any

from torch import Tensor

from howsure.errors import InputError, InputTypeError

__all__ = ["check_counts", "check_features", "is_whole"]


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer, Python's or NumPy's; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_counts(**counts: int) -> None:
    """Raise an error, which names the argument, for a count that is not a whole number ≥ 1."""
    for name, count in counts.items():
        if not is_whole(count):
            raise InputTypeError(f"{name} must be a whole number, got {count!r}", value=count)
        if count < 1:
            raise InputError(f"{name} must be at least 1, got {count}", value=count)


def check_features(owner: object, x: Any, size: int) -> None:
    """Raise an error if x is not a tensor with features of this size in its last dimension.

    Args:
        owner: the module that takes the features; the error names its class.
        x: the argument.
        size: number of features.
    """
    name = type(owner).__name__
    if not isinstance(x, Tensor):
        raise InputTypeError(f"{name} expects a tensor, not {type(x).__name__}")
    if x.ndim == 0 or x.shape[-1] != size:
        raise InputError(f"{name} expects features of size {size} in the last dimension, got shape {tuple(x.shape)}")
