"""A fitted regressor as a module from the numbers of a table to named tensors, calibrated and in the units of y."""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from howsure.conformal import REFERENCE_COVERAGE, ConformalCalibration
from howsure.deploy import Summaries
from howsure.distributions import StudentT, Support, Transform
from howsure.errors import InputError
from howsure.estimators import Regressor
from howsure.formulas.quick_quantile import NORMAL_DF, mixture_ends
from howsure.tables.schema import Encoder
from howsure.tables.target import Atom

__all__ = ["TableOutputs"]


class TableOutputs(nn.Module):
    """Numbers of a table (rows, columns) in float64 → tensors by name, (rows,) or (rows, targets).

    They are ``mean``, ``std``, ``aleatoric_std`` and ``epistemic_std``, ``lower`` and ``upper`` with an interval, and
    ``familiarity`` with evidence. With a transform of the target there is a ``median`` instead of the first four.

    Args:
        regressor: fitted, perhaps calibrated by one scale or conformally.
        coverage: of the interval; None for none.
        single: whether hidden layers compute in float32.
    """

    def __init__(self, regressor: Regressor, coverage: float | None = 0.9, single: bool = False) -> None:
        super().__init__()
        self.model = deepcopy(regressor.model_).cpu().ready()
        if single:
            self.model.networks.float()
        if isinstance(regressor.transform_, Atom):
            raise InputError(
                f"a model of a target with the atom {regressor.transform_.value:g} is not exported",
                hint='fit with target_transform="positive", which needs no atom at 0',
            )
        self.has_interval, self.transform = coverage is not None, regressor.transform_
        calibration = regressor.calibration_
        conformal = isinstance(calibration, ConformalCalibration)
        self.summaries = Summaries(
            REFERENCE_COVERAGE if coverage is None or conformal else coverage,
            members=0,
            weights=self.model.mixture_weights,
            from_parameters=self.model.evidence is not None,  # then the parameters divide the variance
        )
        self.factors: _Factors | None = None
        self.stretch: _Factors | None = None
        if isinstance(calibration, ConformalCalibration):
            encoders = regressor.encoding_.encoders
            self.factors = _Factors.of(calibration, REFERENCE_COVERAGE, encoders)
            if coverage is not None:
                self.stretch = _Factors.of(calibration, coverage, encoders)
        elif calibration is not None:
            self.factors = _Factors(np.atleast_2d(calibration.factors))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        answer, familiarity = self.model(x)
        one_target = self.model.one_target
        found = self.summaries(_pytree.tree_map(lambda p: p.squeeze(-1), answer) if one_target else answer)
        if self.transform is not None:
            found["median"] = self._median(answer.predictive())
        if self.factors is not None:
            factor = self.factors(x, one_target)
            stretch = None if self.stretch is None else self.stretch(x, one_target)
            found = _calibrated(found, factor, stretch)
        if not self.has_interval:
            del found["lower"], found["upper"]
        if self.transform is not None:
            names = [name for name in ("median", "lower", "upper") if name in found]
            found = {name: _forward(self.transform, found[name]) for name in names}
        if familiarity is not None:
            found["familiarity"] = self._over_members(familiarity)
        return found

    def _over_members(self, x: Tensor) -> Tensor:
        """Return the mean over networks, weighted as they are."""
        weights = self.model.weights
        return x.mean(0) if weights is None else (weights.view(-1, *(1,) * (x.ndim - 1)) * x).sum(0)

    def _median(self, each: Any) -> Tensor:
        """Return the median of the mixture of these distributions (M, N, T)."""
        if len(each.loc) == 1:
            median = each.loc.squeeze(0)
        else:
            df = each.df if isinstance(each, StudentT) else torch.full_like(each.loc, NORMAL_DF)
            weights = self.model.mixture_weights
            weights = None if weights is None else weights.view(-1, 1, 1)
            median = mixture_ends(df, each.loc, each.scale, torch.zeros_like(each.loc), 0.5, weights)[0]
        found: Tensor = median.squeeze(-1) if self.model.one_target else median
        return found


def _forward(transform: Transform | Support, z: Tensor) -> Tensor:
    """Return y for z. Possible values are chosen by comparisons, which every format has."""
    if isinstance(transform, Transform):
        return transform.forward(z)
    steps = (z.unsqueeze(-1) > transform.edges).double() * transform.values.diff()
    return transform.values[0] + steps.sum(-1)


def _calibrated(found: dict[str, Tensor], factor: Tensor, stretch: Tensor | None) -> dict[str, Tensor]:
    """Return outputs stretched about the mean; with ``stretch`` the interval is stretched conformally instead.

    Args:
        found: outputs. With ``stretch`` the interval has ``REFERENCE_COVERAGE``.
        factor: of all deviations.
        stretch: of the half-widths of the interval, see :mod:`howsure.conformal`.
    """
    mean, lower, upper = (found[name] for name in ("mean", "lower", "upper"))
    moved = {name: mean + factor * (x - mean) for name, x in found.items() if name in ("median", "lower", "upper")}
    wider = {name: factor * x for name, x in found.items() if name.endswith("std")}
    if stretch is not None:
        quarter = 0.25 * (upper - lower)
        centre = torch.minimum(torch.maximum(mean, lower + quarter), upper - quarter)
        middle = mean + factor * (centre - mean)
        moved |= {"lower": middle - stretch * (centre - lower), "upper": middle + stretch * (upper - centre)}
    return found | wider | moved


class _Factors(nn.Module):
    """The factor of each row and target, which may depend on the group of the row.

    Args:
        table: factors of each group, and of all other rows in the last row, (groups + 1, targets).
        columns: by which rows are grouped.
        keys: the numbers of these columns in each group, (groups, columns).
    """

    rest: Tensor
    change: Tensor
    keys: Tensor

    def __init__(self, table: Any, columns: Any = (), keys: Any = ()) -> None:
        super().__init__()
        factors = torch.as_tensor(np.asarray(table, dtype=np.float64))
        self.register_buffer("rest", factors[-1])
        self.register_buffer("change", factors[:-1] - factors[-1])
        self.register_buffer("keys", torch.tensor(keys, dtype=torch.float64))
        self.columns = list(columns)

    @classmethod
    def of(cls, calibration: ConformalCalibration, coverage: float, encoders: tuple[Encoder, ...]) -> "_Factors":
        """Return the factors of a conformal calibration for intervals of this coverage."""
        table, groups = calibration.factors(coverage), calibration.groups
        if groups is None:
            return cls(table)
        position = {encoder.name: k for k, encoder in enumerate(encoders)}
        columns = [position[name] for name in groups.columns]
        keys = [[_code(encoders[k], v) for k, v in zip(columns, key, strict=True)] for key in groups.keys]
        return cls(table, columns, keys)

    def forward(self, x: Tensor, one_target: bool) -> Tensor:
        factor = self.rest
        if len(self.change):
            own = torch.ones_like(x[:, :1]) > 0
            for k, column in enumerate(self.columns):
                value, key = x[:, column].unsqueeze(1), self.keys[:, k]
                own = own & ((value == key) | (value.isnan() & key.isnan()))
            factor = factor + (own.to(factor.dtype).unsqueeze(-1) * self.change).sum(1)
        return factor.squeeze(-1) if one_target else factor


def _code(encoder: Encoder, value: Any) -> float:
    """Return the number that the column of an exported model has for a value of a group."""
    if value is None:
        return float("nan")
    if encoder.kind != "category":
        return float(value)
    if value not in encoder.categories:
        raise InputError(
            f"column {encoder.name!r} has a calibrated group {value!r} that the model does not know",
            column=encoder.name,
            value=value,
            hint="calibrate without groups to export the model",
        )
    return float(encoder.categories.index(value))
