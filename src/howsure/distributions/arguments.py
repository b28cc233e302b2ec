"""Checks of the arguments of distributions, heads and losses."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from howsure.errors import InputError, InputTypeError

__all__ = [
    "as_tensors",
    "as_value",
    "check_domain",
    "check_floating",
    "checked_parts",
    "class_name",
    "count_invalid",
    "fit_rows",
    "fit_shape",
    "short_numbers",
]


def as_tensors(owner: str, parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parameters as tensors of one shape, device and floating dtype (at least float32).

    Args:
        owner: name of the distribution, for error messages.
        parameters: tensors or numbers by name.

    Raises:
        InputTypeError: for a parameter that is neither a floating-point tensor nor a number.
        InputError: for tensors on different devices, or of shapes that do not broadcast.
    """
    tensors = {name: value for name, value in parameters.items() if isinstance(value, Tensor)}
    dtype = torch.float32 if tensors else torch.promote_types(torch.get_default_dtype(), torch.float32)
    for name, value in parameters.items():
        if name in tensors:
            check_floating(f"{owner}: {name}", value)
            dtype = torch.promote_types(dtype, value.dtype)
        elif not _is_number(value):
            raise InputTypeError(f"{owner}: {name} must be a tensor or a number, not {type(value).__name__}")
    device = next((value.device for value in tensors.values()), None)
    if any(value.device != device for value in tensors.values()):
        devices = ", ".join(f"{name} on {value.device}" for name, value in tensors.items())
        raise InputError(f"{owner}: parameters lie on different devices ({devices}); move them to one")
    full = [torch.as_tensor(value, dtype=dtype, device=device) for value in parameters.values()]
    try:
        return dict(zip(parameters, torch.broadcast_tensors(*full), strict=True))
    except RuntimeError:
        shapes = ", ".join(f"{k} {tuple(v.shape)}" for k, v in zip(parameters, full, strict=True))
        raise InputError(f"{owner}: shapes that do not broadcast: {shapes}") from None


def as_value(owner: str, value: Any, like: Tensor) -> Tensor:
    """Return the argument of a method: a tensor as it is, a number as a tensor of the dtype and device of ``like``."""
    if isinstance(value, Tensor):
        return value
    if not _is_number(value):
        raise InputTypeError(
            f"{owner}: the argument must be a tensor or a number, not {type(value).__name__}; "
            "torch.as_tensor makes one from a list or an array"
        )
    return torch.as_tensor(float(value), dtype=like.dtype, device=like.device)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def fit_shape(x: Any, shape: Sequence[int]) -> Any:
    """Return x in this shape if it has exactly one dimension of size 1 more or less, as (N, 1) and (N,); else x itself.

    Elements keep their order and nothing broadcasts, so that each has one counterpart. x is a tensor or an array.
    """
    own, wanted = tuple(x.shape), tuple(shape)
    if own == wanted:
        return x
    long, short = (own, wanted) if len(own) > len(wanted) else (wanted, own)
    places = [k for k, size in enumerate(long) if size == 1] if len(long) == len(short) + 1 else []
    return x.reshape(wanted) if any(long[:k] + long[k + 1 :] == short for k in places) else x


def fit_rows(x: Any, shape: Sequence[int]) -> Any:
    """Return x in this shape as :func:`fit_shape` does, or repeated along a row if it has one element for each row.

    The shapes (N,), (N, 1) and (N, T) all fit (N, T).
    """
    fitted, rows = fit_shape(x, shape), tuple(shape[:1])
    if tuple(fitted.shape) == tuple(shape) or tuple(x.shape) not in (rows, (*rows, 1)):
        return fitted
    column = x.reshape(*rows, *(1,) * (len(shape) - 1))
    return column.expand(shape).contiguous() if isinstance(x, Tensor) else np.broadcast_to(column, shape)


def check_floating(what: str, value: Any) -> None:
    """Raise an error, which begins with ``what``, if the value is not a floating-point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise InputTypeError(f"{what} must be a floating-point tensor, not {kind}")


def check_domain(owner: str, parameters: Mapping[str, Tensor], domains: Mapping[str, Any]) -> None:
    """Raise an error if a value of a parameter is not finite or lies outside the parameter's domain.

    Args:
        owner: name of the distribution, for the error message.
        parameters: tensors by name.
        domains: a constraint of ``torch.distributions`` for each of these names.
    """
    for name, value in parameters.items():
        valid = domains[name].check(value) & value.isfinite()
        if bool(valid.all()):
            continue
        rule = "finite" if domains[name] is constraints.real else f"finite and > {domains[name].lower_bound:g}"
        raise InputError(f"{owner}: {name} must be {rule}; {count_invalid(value, valid)}")


def count_invalid(value: Tensor, valid: Tensor) -> str:
    """Return a phrase for error messages: how many values are not valid, the first of them and its index."""
    first = tuple(int(i) for i in (~valid).nonzero()[0])
    index = f" at index {first}" if first else ""
    return f"{int((~valid).sum())} of {valid.numel()} values break this (first: {value[first].item():g}{index})"


def checked_parts(owner: str, parts: Any, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """Return the parts of ``from_dict`` by name, arrays as tensors, or raise an error if names are wrong."""
    required, known = set(required), {*required, *optional}
    if not isinstance(parts, Mapping):
        raise InputTypeError(f"{owner}.from_dict takes a dict as of to_dict(), not {type(parts).__name__}")
    if not required <= set(parts) <= known:
        found = ", ".join(str(name) for name in parts) or "nothing"
        raise InputError(f"{owner}.from_dict takes {', '.join(sorted(known))} as of to_dict(); got {found}")
    return {name: part if isinstance(part, Tensor | Mapping) else torch.tensor(part) for name, part in parts.items()}


def class_name(x: Any) -> str:
    """Return the name of the class of an object, with the package for torch's distributions of equal names."""
    kind = type(x)
    package = "torch.distributions." if kind.__module__.startswith("torch.distributions.") else ""
    return f"{package}{kind.__name__}"


def short_numbers(numbers: Any, most: int) -> str:
    """Return numbers as text; of more than ``most``, the smallest and the largest."""
    if not isinstance(numbers, Tensor):
        return repr(numbers)  # a placeholder of tree functions
    if numbers.numel() > most:
        return f"{float(numbers.min()):.3g} … {float(numbers.max()):.3g}"
    texts = [f"{x:.3g}" for x in numbers.detach().flatten().tolist()]
    return f"[{', '.join(texts)}]" if numbers.ndim else texts[0]
