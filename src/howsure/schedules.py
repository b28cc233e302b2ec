"""Dual ascent for the weight λ of the evidence penalty."""

import math

import torch
from torch import Tensor, nn

from howsure.distributed import sum_over_ranks
from howsure.distributions import NormalInverseGamma
from howsure.errors import InputError
from howsure.formulas import penalties
from howsure.losses import checked_number, fit_target, reduce_loss, without_masked

__all__ = ["DualAscent"]


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


class DualAscent(nn.Module):
    r"""Schedule that adapts λ by dual ascent, so that squared errors match the predictive variance.

    .. math:: \lambda \leftarrow \max\bigl(0,\ \lambda + \eta\,(\bar c - c^*)\bigr), \qquad
              c = (y-\gamma)^2\frac{\nu(\alpha-1)}{\beta(1+\nu)}

    The squared error c, in units of the predictive variance, has mean 1 for a model whose variance is right, whatever
    the unit of y. For an overconfident model (:math:`\bar c > c^* = 1`) λ rises and the penalty removes evidence;
    otherwise λ falls to 0. On training batches an overfitted model looks calibrated: call ``step`` with held-out data
    if there are any. A batch without targets, or with an error that is not finite, changes nothing.

    The authors' UCI code constrains the penalty itself, :math:`|y-\gamma|(2\nu+\alpha) \le 0.01`. Since α > 1, that
    requires errors below 0.01 standard deviations; so λ rises linearly as long as training lasts (to 7.8 on Kin8nm),
    and α collapses to 1. Nor does that code keep λ from becoming negative.

    Under ``torch.distributed`` all ranks of the default group must call ``step`` equally often. It uses the mean over
    the targets of all ranks, so that λ is the same on all of them. ``step`` replaces the buffers by new tensors and so
    cannot be part of a captured CUDA graph: call it outside.

    Args:
        weight: initial λ ≥ 0.
        rate: step size η > 0.
        target: :math:`c^* > 0`.
        memory: :math:`\bar c` is an exponential average over about this many batches, ≥ 1.

    >>> schedule = DualAscent(rate=0.1, memory=1)
    >>> schedule.step(NormalInverseGamma(torch.zeros(2), 1.0, 2.0, 1.0), torch.full((2,), 3.0))
    >>> schedule.weight  # errors are larger than predicted
    tensor(0.3500)
    """

    weight: Tensor
    average: Tensor

    def __init__(self, weight: float = 0.0, rate: float = 1e-3, target: float = 1.0, memory: float = 100.0) -> None:
        super().__init__()
        for name, value in {"rate": rate, "target": target}.items():
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} must be a finite number greater than 0, got {value}")
        if not memory >= 1:
            raise InputError(f"memory must be at least 1 batch, got {memory}")
        self.rate, self.target, self.memory = rate, target, memory
        self.register_buffer("weight", _scalar(checked_number("weight", weight)))
        self.register_buffer("average", _scalar(target))

    @torch.inference_mode(False)  # a weight made in inference mode could not be used in training
    @torch.no_grad()
    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Update the average and λ by one batch, before or after the backward pass.

        Args:
            nig: output of the network for the batch.
            y: targets of the batch.
            mask: True where a target counts; None counts all. Bounds of censored targets have no error to adapt to:
                pass ``censored == 0``.
        """
        y, mask = fit_target(y, nig.batch_shape, nig.gamma, mask)
        y = without_masked(y, mask)
        total = reduce_loss(penalties.nsu(y, *nig.parameters), mask, None, "sum")
        count = torch.full_like(total, y.numel()) if mask is None else mask.sum().to(total.dtype)
        total, count = sum_over_ranks(torch.stack([total, count])).unbind()
        violation = (total / count).to(self.average)  # NaN where there are no targets
        average = self.average + (violation - self.average) / self.memory
        weight = (self.weight + self.rate * (average - self.target)).clamp(min=0)
        # replace the tensors instead of changing them: the graph of a loss before its backward pass holds the old ones
        self.average = torch.where(violation.isfinite(), average, self.average)
        self.weight = torch.where(violation.isfinite(), weight, self.weight)
