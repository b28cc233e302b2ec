"""The networks that a fit trains, and the selection of networks that learned something."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from howsure.errors import InputError
from howsure.tables.members import Member, hold_in_turn
from howsure.tables.model import TableModel
from howsure.tables.target import Target
from howsure.tables.views import Views

__all__ = ["ALL_KINDS", "choose_members", "count_networks", "kinds_of_inputs", "usable"]

Array = NDArray[np.float64]
KINDS = ("numbers", "bins", "trees", "bins+trees")  # inputs of a network
ALL_KINDS = KINDS[:3]  # inputs of "auto"
MIN_ROWS_FOR_BINS = 50
MIN_ROWS_FOR_TREES = 150  # with fewer, trees of seven eighths of the rows differ from those of all rows
MAX_ROWS_FOR_ALL = 10_000  # with more rows, fewer networks are trained
MIN_SCORED_ROWS = 5  # with fewer rows a network is not judged
TOO_BAD = 5.0  # nats above the score of a constant


def count_networks(members: int | None, rows: int) -> int:
    """Return how many networks to train on a table with this number of rows."""
    return (12 if rows < MAX_ROWS_FOR_ALL else 9) if members is None else int(members)


def kinds_of_inputs(inputs: Any, members: int, rows: int) -> list[str]:
    """Return the names of the inputs of the networks, after checking them."""
    auto = isinstance(inputs, str) and inputs == "auto"
    kinds = list(ALL_KINDS) if auto else list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not kinds or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise InputError(f"inputs must be 'auto', or one or several of {', '.join(KINDS)}, got {inputs!r}")
    if auto and (members < len(ALL_KINDS) or rows < MIN_ROWS_FOR_BINS):
        return ["numbers"]
    if auto and rows < MIN_ROWS_FOR_TREES:
        return ["numbers", "bins"]
    return kinds[:members]


def choose_members(rows: NDArray[np.int64], kinds: Sequence[str], count: int, seed: int, share: float) -> list[Member]:
    """Return ``count`` networks to train on some rows, in equal numbers for each of the inputs.

    Args:
        rows: that count.
        kinds: inputs of the networks.
        count: number of networks.
        seed: of the networks and of the rows that they hold out.
        share: of the rows that each network holds out.
    """
    seeds = np.random.SeedSequence(seed).generate_state(count, np.uint32)
    parts = hold_in_turn(rows, -(-count // len(kinds)), seed, share)
    members = []
    for k, own_seed in enumerate(seeds):
        kind, (train, validation) = kinds[k % len(kinds)], parts[k // len(kinds)]
        members.append(Member(train, validation, int(own_seed), "bins" in kind, "trees" in kind))
    return members


def usable(model: TableModel, views: Views, target: Target) -> tuple[TableModel, Views]:
    """Return the model without the networks that learned nothing, and the views of those that are left.

    A warning has their number. Raise if none is left. Validation scores are compared with the score of a
    constant only where they are comparable: not if rows are weighted or targets censored.
    """
    result, count = model.result, model.members
    diverged = int(result.diverged.sum())
    advice = "lower learning_rate, and look for outliers in X and y"
    if diverged == count:
        raise InputError(f"training diverged: all {count} networks reached values that are not finite; {advice}")
    comparable = target.weights is None and target.cells is None
    poor = _worse_than_a_constant(model, views.members, target.table) if comparable else 0
    for number, problem in ((diverged, "diverged"), (poor, "do far worse on held-out rows than a constant would")):
        if number:
            text = f"{number} of {count} networks {problem}; {advice}"
            warnings.warn(text, ConvergenceWarning, stacklevel=5)
    kept = result.best_score.isfinite().nonzero().flatten().tolist()
    return (model, views) if len(kept) == count else (model.select(kept), views.select(kept))


def _worse_than_a_constant(model: TableModel, members: Sequence[Member], y: Array) -> int:
    """Count networks whose validation score is far worse than a standard normal for scaled targets."""
    if len(members[0].validation) < MIN_SCORED_ROWS:
        return 0
    rows = zip(model.scale_y(torch.from_numpy(np.array(y))), members, strict=True)
    constant = torch.stack([0.5 * (np.log(2 * np.pi) + each[m.validation].square().mean()) for each, m in rows])
    best = model.result.best_score.cpu()
    return int((best.isfinite() & (best > constant + TOO_BAD)).sum())
