"""Targets as networks learn them: transformed, and known up to a cell where rows share values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.distributions import Support, Transform
from howsure.errors import InputError
from howsure.prediction import Prediction
from howsure.tables.censoring import cells_of_bounds
from howsure.tables.target_values import check_sign, find_atom, find_shared_values, positive_numbers

__all__ = ["Atom", "Target", "TargetTransform", "prepare_target", "transform_from_dict"]

Array = NDArray[np.float64]
NARROWEST_CELL = 0.05  # of the standard deviation: width of a value of several targets that stands out of a continuum


@dataclass(frozen=True)
class Atom:
    """A value with a separate probability, which networks learn as a second target: 1 for the value, 0 for others.

    Args:
        value: the value.
    """

    value: float
    kind = "atom"

    def split(self, p: Prediction) -> Prediction:
        """Return the prediction of the target from the prediction of both targets, (rows, 2)."""
        gate = p[:, 1].answers.predictive().sf(torch.tensor(0.5, dtype=torch.float64, device="cpu"))
        own = p[:, 0]
        return Prediction(
            own.answers,
            members=0,
            weights=p.weights,
            familiarity=None if p.familiarity is None else torch.from_numpy(p.familiarity),
            atom=self.value,
            gate=gate.clamp(0, 1),
        )

    def fits(self, targets: int) -> bool:
        """Return whether a model with this number of targets can have the atom."""
        return targets == 2

    def to_dict(self) -> dict[str, Any]:
        """Return the atom as plain values."""
        return {"kind": self.kind, "value": self.value}


TargetTransform = Transform | Support | Atom


def transform_from_dict(saved: Any) -> TargetTransform:
    """Return the transform, the possible values or the atom that ``to_dict`` described."""
    kind = saved.get("kind") if isinstance(saved, dict) else None
    if kind == "atom":
        value = saved.get("value")
        if set(saved) != {"kind", "value"} or type(value) not in (int, float) or not np.isfinite(value):
            raise InputError("inconsistent model file: the atom of the target is not a number")
        return Atom(float(value))
    return Support.from_dict(saved) if kind == "discrete" else Transform.from_dict(saved)


@dataclass(frozen=True)
class Target:
    """Targets as networks learn them.

    Args:
        values: (N,) or (N, T).
        weights: of the rows, (N,); None: all count the same.
        cells: lower and upper ends, (N, T, 2), of targets that are known up to a cell: shared values and bounds. Both
            ends are equal where the value is known, and infinite where nothing is. None: all are values.
        transform: from these values to the target, or None.
    """

    values: Array
    weights: Array | None = None
    cells: Array | None = None
    transform: TargetTransform | None = None

    @property
    def table(self) -> Array:
        """The values as (N, T)."""
        return self.values.reshape(len(self.values), -1)


def prepare_target(
    y: Array,
    kind: str | None = None,
    names: Sequence[str] | None = None,
    censored: NDArray[np.int8] | None = None,
    weights: Array | None = None,
) -> Target:
    """Return the targets, (N,) or (N, T), as networks learn them.

    A target whose rows share values has cells between the midpoints of neighbouring values. A single target has a
    :class:`~howsure.distributions.Support` if no other values are possible, and an :class:`Atom` if one value stands
    out of a continuum. Censored targets have cells with one infinite end.

    Args:
        y: targets.
        kind: "positive", "log" or None.
        names: of several targets.
        censored: of the shape of y, as `read_censored` returns it; None: all are values.
        weights: of the rows, (N,).
    """
    table = y.reshape(len(y), -1)
    known = np.ones(table.shape, dtype=bool) if censored is None else censored.reshape(table.shape) == 0
    transform = _transform(table, kind, names)
    values = _before(transform, table)
    bounds = cells_of_bounds(values, None if censored is None else censored.reshape(table.shape))
    cells = np.stack([values, values], -1) if bounds is None else bounds
    single = table.shape[1] == 1
    found: TargetTransform | None = transform
    for t in range(table.shape[1]):
        counted = np.flatnonzero(known[:, t])
        if kind == "positive":  # a 0 is known to lie anywhere below
            zeros = counted[table[counted, t] == 0]
            cells[zeros, t] = [-np.inf, float(_before(transform, np.zeros(1), t)[0])]
        atom = find_atom(table[counted, t])
        shared = find_shared_values(table[counted, t])
        if atom is not None and kind is None and single:
            return _with_atom(Target(values, weights, cells), atom, known[:, 0])
        if atom is not None and not (kind == "positive" and atom == 0):
            edges = _edges_of_atom(table[counted, t], atom)
            inside = counted[table[counted, t] == atom]
            cells[inside, t] = _before(transform, edges, t)
        elif shared is not None:
            least = {None: -np.inf, "positive": 0.0, "log": np.finfo(float).tiny}[kind]
            support = Support(shared.values[shared.values >= least])
            lower, upper = support.cell(support.index(torch.from_numpy(table[counted, t]))[0])
            edges = _before(transform, support.edges.numpy(), t)
            if shared.possible and single:
                found = Support(support.values, edges)
            cells[counted, t, 0], cells[counted, t, 1] = (_before(transform, e.numpy(), t) for e in (lower, upper))
    same = (cells[..., 0] == cells[..., 1]).all()
    return Target(values.reshape(y.shape), weights, None if same else cells, found)


def _transform(table: Array, kind: str | None, names: Sequence[str] | None) -> Transform | None:
    """Return the transform of this kind for the targets."""
    if kind is None:
        return None
    several, numbers = table.shape[1] > 1, []
    for t in range(table.shape[1]):
        name = f"y[{names[t]!r}]" if several and names is not None else f"y[:, {t}]" if several else "y"
        check_sign(table[:, t], kind, name)
        numbers.append(positive_numbers(table[:, t]) if kind == "positive" else (1.0, 0.0))
    scales, shifts = zip(*numbers, strict=True)
    return Transform(kind, scales, shifts) if several else Transform(kind, scales[0], shifts[0])


def _before(transform: Transform | None, y: Array, target: int | None = None) -> Array:
    """Return the variable before the transform, of all targets or of one; infinite ends stay infinite."""
    if transform is None:
        return y
    own = transform if target is None or not transform.scale.ndim else transform.at(transform.scale.shape, (target,))
    finite = np.isfinite(y)
    z: Array = np.array(own.inverse(torch.from_numpy(np.where(finite, y, 1.0))).numpy())
    return np.where(finite, z, y)


def _edges_of_atom(y: Array, atom: float) -> Array:
    """Return the ends of the cell of a value that stands out of a continuum; infinite where it is the end of that."""
    half = 0.5 * NARROWEST_CELL * float(y.std())
    low = -np.inf if atom == y.min() else atom - half
    high = np.inf if atom == y.max() else atom + half
    return np.array([low, high])


def _with_atom(target: Target, value: float, known: NDArray[np.bool_]) -> Target:
    """Return a target with a second one: 1 where the value is the atom and 0 elsewhere."""
    assert target.cells is not None
    one, endless = known & (target.table[:, 0] == value), np.array([-np.inf, np.inf])
    own = target.cells.copy()
    own[one, 0] = endless  # nothing is known of the distribution of other values
    gate = np.where(one[:, None], [0.5, np.inf], [-np.inf, 0.5])
    gate[~known] = endless
    values = np.column_stack([target.table[:, 0], one.astype(float)])
    return Target(values, target.weights, np.concatenate([own, gate[:, None]], 1), Atom(value))
