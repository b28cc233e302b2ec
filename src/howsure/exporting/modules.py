"""Networks and fitted regressors as modules from tensors to named tensors."""

import contextlib
from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from howsure.errors import InputError, InputTypeError
from howsure.estimators import Regressor
from howsure.exporting.summaries import Summaries
from howsure.formulas import mixture as mixtures
from howsure.network import NetworkModel
from howsure.tables.target import Atom

__all__ = ["ExportedNetwork", "ExportedRegressor"]


class ExportedNetwork(nn.Module):
    """A network whose outputs are plain named tensors, in evaluation mode and without gradients.

    Args:
        network: a :class:`~howsure.NetworkModel`, or a module that returns a :class:`~howsure.NormalInverseGamma`, a
            :class:`~howsure.Normal`, a :class:`~howsure.StudentT` or a :class:`~howsure.Mixture`.
        coverage: probability of the interval, at most 0.999999; None leaves it out.
    """

    def __init__(self, network: nn.Module, coverage: float | None = 0.9) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise InputTypeError(f"export takes a torch module, not {type(network).__name__}")
        if isinstance(network, NetworkModel) and not network.reader.layers:
            raise InputError("gradients cannot be exported", hint='attach with features="layers"')
        self.network = network
        calibration = getattr(network, "calibration", None)
        is_scale = calibration is not None and calibration.method == "scale"  # the network has its scale inside
        self.summaries = Summaries(coverage, None if is_scale else calibration)
        self.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, *inputs: Any) -> dict[str, Tensor]:
        # a traced program has no gradient mode: there, the outputs of the network are detached
        with contextlib.nullcontext() if torch.compiler.is_compiling() else torch.no_grad():
            if not isinstance(self.network, NetworkModel):
                found: dict[str, Tensor] = self.summaries(_detached(self.network(*inputs)))
                return found
            answer, familiarity = self.network.with_familiarity(*inputs)
            return {**self.summaries(_detached(answer)), "familiarity": familiarity.detach()}


def _detached(answer: Any) -> Any:
    return _pytree.tree_map(Tensor.detach, answer)


class ExportedRegressor(nn.Module):
    """Numbers of a table (rows, columns) in float64 → tensors by name, (rows,) or (rows, targets).

    They are the tensors of :class:`Summaries`, and ``familiarity`` with evidence.

    Args:
        regressor: fitted, perhaps calibrated by one scale or conformally.
        coverage: of the interval; None for none.
        single: whether hidden layers compute in float32.
    """

    def __init__(self, regressor: Regressor, coverage: float | None = 0.9, single: bool = False) -> None:
        super().__init__()
        if isinstance(regressor.transform_, Atom):
            raise InputError(
                f"a model of a target with the atom {regressor.transform_.value:g} is not exported",
                hint='fit with target_transform="positive", which needs no atom at 0',
            )
        self.model = deepcopy(regressor.model_).cpu().ready()
        if single:
            self.model.networks.float()
        by_nu = self.model.evidence is not None
        self.summaries = Summaries(coverage, regressor.calibration_, regressor.transform_, from_parameters=by_nu)
        self.eval()

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        answer, familiarity = self.model(*inputs)
        if self.model.one_target:
            answer = _pytree.tree_map(lambda p: p.squeeze(-1), answer)
        found: dict[str, Tensor] = self.summaries.of_members(answer, self.model.mixture_weights)
        if familiarity is not None:
            weights = self.model.weights
            found["familiarity"] = mixtures.mean(familiarity, None if weights is None else weights.view(-1, 1))
        return found
