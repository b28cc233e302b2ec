"""A fitted regressor as a module from the numbers of a table to named tensors, calibrated and in the units of y."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from howsure.conformal import REFERENCE_COVERAGE, ConformalCalibration
from howsure.deploy import Summaries, calibrated, calibration_factors, mixture_interval
from howsure.distributions import Support, Transform
from howsure.errors import InputError
from howsure.estimators import Regressor
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

    factor: Tensor | None
    stretch: Tensor | None

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
            from_parameters=self.model.evidence is not None,  # then the parameters divide the variance
        )
        factor, stretch = calibration_factors(calibration, coverage)
        self.register_buffer("factor", factor)
        self.register_buffer("stretch", stretch)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        answer, familiarity = self.model(x)
        weights = self.model.mixture_weights
        if self.model.one_target:
            answer = _pytree.tree_map(lambda p: p.squeeze(-1), answer)
        weights = None if weights is None else weights.view(-1, *(1,) * (len(answer.batch_shape) - 1))
        found = self.summaries.of_members(answer, weights)
        if self.transform is not None:
            found["median"] = mixture_interval(answer.predictive(), 0.5, torch.zeros_like, weights)[0]
        if self.factor is not None:
            found = calibrated(found, self.factor, self.stretch)
        if not self.has_interval:
            del found["lower"], found["upper"]
        if self.transform is not None:
            names = [name for name in ("median", "lower", "upper") if name in found]
            found = {name: _forward(self.transform, found[name]) for name in names}
        if familiarity is not None:
            shares = self.model.weights
            found["familiarity"] = familiarity.mean(0) if shares is None else (shares.view(-1, 1) * familiarity).sum(0)
        return found


def _forward(transform: Transform | Support, z: Tensor) -> Tensor:
    """Return y for z. Possible values are chosen by comparisons, which every format has."""
    if isinstance(transform, Transform):
        return transform.forward(z)
    steps = (z.unsqueeze(-1) > transform.edges).double() * transform.values.diff()
    return transform.values[0] + steps.sum(-1)
