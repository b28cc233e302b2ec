"""Plain values for the state of a fitted model without its tensors, and back, after checks. No class is stored."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.errors import InputError
from howsure.likelihoods import Evidential, Method, NormalLikelihood
from howsure.training import Training

__all__ = ["METHODS", "TableHeader", "method_from_state", "method_state", "training_from_state", "training_state"]

METHODS: Mapping[str, type[Method]] = {cls.__name__: cls for cls in (Evidential, NormalLikelihood)}


@dataclass(frozen=True)
class TableHeader:
    """Header of a model file of a regressor."""

    estimator: str
    parameters: dict[str, Any]
    columns: dict[str, Any]
    target_names: list[str] | None
    target_transform: dict[str, Any] | None
    calibration: dict[str, Any] | None
    method: dict[str, Any]
    activation: str
    one_target: bool
    unfamiliar_below: float | int | None
    training: dict[str, Any]
    record: dict[str, Any]
    model: str = "table"


def method_state(method: Method, methods: Mapping[str, type[Method]] = METHODS) -> dict[str, Any]:
    """Return the name of a method and the values of its fields.

    Args:
        method: an instance of one of ``methods``.
        methods: the classes that can be saved, by name.

    Raises:
        InputError: if the class of the method is not in ``methods``, or a field is neither text nor numbers.
    """
    name = type(method).__name__
    if methods.get(name) is not type(method):
        raise InputError(f"a model of the method {name} cannot be saved; known are {', '.join(methods)}")
    values = {f.name: _plain(getattr(method, f.name)) for f in fields(method)}  # type: ignore[arg-type]
    for key, value in values.items():
        if not _is_plain(value):
            raise InputError(f"{name} with {key} = {value!r} cannot be saved: only names and numbers can")
    return {"name": name, **values}


def method_from_state(saved: Any, methods: Mapping[str, type[Method]] = METHODS) -> Method:
    """Return the method that :func:`method_state` described, an instance of one of ``methods``."""
    if not isinstance(saved, dict) or saved.get("name") not in methods:
        raise InputError(f"the method {saved!r} is unknown")
    cls = methods[saved["name"]]
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in saved.items() if key != "name"}
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key, value in values.items():
        # a field has the type of its default: a name, a number (or one per member), or a table of numbers
        if key not in known or not _is_plain(value) or isinstance(value, str) != (key == "penalty"):
            raise InputError(f"{saved['name']} has no {key} = {value!r}")
    return cls(**values)


def _plain(value: Any) -> Any:
    """Return numbers of NumPy and torch as numbers of Python, and other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(type(v) in (int, float) for v in value)
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and type(v) in (int, float) for k, v in value.items())
    return type(value) in (int, float, str)


def training_state(training: Training) -> dict[str, Any]:
    """Return the result of a training as plain values, with None for values that are not finite."""
    return {
        "steps": training.steps,
        "seconds": training.seconds,
        "best_score": _finite(training.best_score.tolist()),
        "best_step": training.best_step.tolist(),
        "diverged": training.diverged.tolist(),
        "stopped_early": training.stopped_early.tolist(),
        "history": _finite(training.history),
    }


def training_from_state(saved: Any) -> Training:
    """Return the result of a training that `training_state` described; models of earlier versions knew less of it."""
    if not isinstance(saved, dict) or not isinstance(saved.get("diverged"), list):
        raise InputError("training is not a table of results")
    members = len(saved["diverged"])

    def column(name: str, missing: Any, dtype: torch.dtype) -> Tensor:
        values = saved.get(name, [missing] * members)
        if not isinstance(values, list) or len(values) != members:
            raise InputError(f"training has no {name} for each of {members} networks")
        return torch.tensor([missing if v is None else v for v in values], dtype=dtype, device="cpu")

    history = saved.get("history", [])
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise InputError("the history of the training is a list of evaluations")
    return Training(
        best_score=column("best_score", math.inf, torch.float32),
        best_step=column("best_step", 0, torch.int64),
        diverged=column("diverged", False, torch.bool),
        stopped_early=column("stopped_early", False, torch.bool),
        steps=int(saved["steps"]),
        seconds=float(saved["seconds"]),
        history=[{k: math.nan if v is None else v for k, v in row.items()} for row in history],
    )


def _finite(value: Any) -> Any:
    """Return lists and tables of numbers with None for those that are not finite, which JSON does not have."""
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
