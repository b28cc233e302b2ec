"""Plain values for the state of a fitted model without its tensors, and back, after checks. No class is stored."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from howsure.calibration import Calibration
from howsure.conformal import ConformalCalibration
from howsure.errors import InputError
from howsure.likelihoods import Evidential, Method, NormalLikelihood
from howsure.storage import checked_header
from howsure.tables.encoder import Encoding
from howsure.training import Training

__all__ = ["METHODS", "TableHeader", "method_from_state", "method_state", "training_from_state", "training_state"]

METHODS: Mapping[str, type[Method]] = {cls.__name__: cls for cls in (Evidential, NormalLikelihood)}


@dataclass(frozen=True)
class TableHeader:
    """Header of a model file of a regressor."""

    estimator: str
    parameters: dict[str, Any]
    columns: Encoding
    target_names: list[str] | None
    target_transform: dict[str, Any] | None
    calibration: Calibration | ConformalCalibration | None
    method: dict[str, Any]
    activation: str
    one_target: bool
    unfamiliar_below: float | int | None
    training: dict[str, Any]
    record: dict[str, Any]
    model: str = "table"


@dataclass(frozen=True)
class TrainingState:
    """The result of a training as plain values, with the fields of :class:`howsure.training.Training`."""

    best_score: list[Any]  # numbers, also infinite ones
    best_step: list[int]
    diverged: list[bool]
    stopped_early: list[bool]
    steps: int
    seconds: float
    history: list[dict[str, Any]]


def method_state(method: Method, methods: Mapping[str, type[Method]] = METHODS) -> dict[str, Any]:
    """Return the name of a method and the values of its fields.

    Args:
        method: an instance of one of ``methods``.
        methods: the classes that can be saved, by name.

    Raises:
        InputError: if the class of the method is not in ``methods``.
    """
    name = type(method).__name__
    if methods.get(name) is not type(method):
        raise InputError(f"a model of the method {name} cannot be saved; known are {', '.join(methods)}")
    return {"name": name, **{f.name: getattr(method, f.name) for f in fields(method)}}  # type: ignore[arg-type]


def method_from_state(saved: Any, methods: Mapping[str, type[Method]] = METHODS) -> Method:
    """Return the method that :func:`method_state` described, an instance of one of ``methods``."""
    if not isinstance(saved, dict) or saved.get("name") not in methods:
        raise InputError(f"the method {saved!r} is unknown")
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in saved.items() if key != "name"}
    return checked_header(methods[saved["name"]], values)


def training_state(training: Training) -> dict[str, Any]:
    """Return the result of a training as the plain values of a :class:`TrainingState`."""
    values = {f.name: getattr(training, f.name) for f in fields(TrainingState)}
    return {name: v.tolist() if isinstance(v, Tensor) else v for name, v in values.items()}


def training_from_state(saved: Any) -> Training:
    """Return the result of a training that :func:`training_state` described."""
    state = checked_header(TrainingState, saved)
    kinds = {"best_score": torch.float32, "best_step": torch.int64, "diverged": torch.bool, "stopped_early": torch.bool}
    tensors = {name: torch.tensor(getattr(state, name), dtype=kind, device="cpu") for name, kind in kinds.items()}
    return Training(**vars(state) | tensors)
