r"""The losses, and schedules for the weight of the evidence penalty.

.. math:: \mathcal L = \mathrm{NLL} + \lambda\,\mathrm{penalty} \;(+ \text{extra terms})

:math:`\lambda` multiplies a penalty that, for the paper's choice, has the unit of y: train on standardised targets, or
expect to tune it anew for every data set.
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from evidentia.distributions import Gaussian, NormalInverseGamma
from evidentia.errors import InputError, InputTypeError
from evidentia.formulas import gaussian, penalties
from evidentia.formulas.nig import nll
from evidentia.formulas.penalties import EXTRA_TERMS, Penalty
from evidentia.nn.mlp import is_whole

__all__ = [
    "ConstantWeight",
    "DualAscent",
    "LinearWarmup",
    "WeightSchedule",
    "evidential_loss",
    "gaussian_loss",
]


def evidential_loss(
    nig: NormalInverseGamma,
    y: Tensor,
    weight: float | Tensor = 0.01,
    penalty: str | Penalty = "error",
    *,
    extra: Mapping[str, float] | None = None,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Return the negative log model evidence plus ``weight`` times an evidence penalty (the paper's Eq. 10).

    Args:
        nig: what an evidential head answered.
        y: targets, of exactly the shape of ``nig``; nothing broadcasts.
        weight: :math:`\lambda \ge 0`, a number or a tensor that broadcasts to y (one weight per network, say).
        penalty: ``"error"`` (the paper's), ``"standard_score"``, ``"kl"``, ``"kl_error"``, ``"nsu"``, or a function
            (see :mod:`evidentia.formulas.penalties`).
        extra: further terms by name and weight, ``{"lipschitz_mse": 1.0}`` or ``{"ur": 0.01}``.
        mask: boolean, True where a target counts. Missing targets are NaN and must be masked on purpose, with
            ``mask=~y.isnan()``; an unmasked NaN makes the loss NaN.
        sample_weight: non-negative, of the shape of y; with ``"mean"`` the weighted mean is taken.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"`` (masked entries are 0). Where no
            target counts, as in a batch of no rows, the loss is 0 and so are its gradients.

    The values of tensors ``weight`` and ``sample_weight`` are checked on the CPU only, and not inside
    ``torch.compile``, ``torch.func.vmap`` and the like: to read them would make a GPU wait, or end the graph. There a
    negative weight gives a wrong loss, and NaN one that is NaN.

    >>> import torch, evidentia as ev
    >>> answer = ev.NormalInverseGamma(gamma=torch.zeros(2), nu=1.0, alpha=2.0, beta=1.0)
    >>> ev.evidential_loss(answer, torch.tensor([0.5, 3.0]), weight=0.01)
    tensor(2.5999)
    """
    if not isinstance(nig, NormalInverseGamma):
        raise InputTypeError(f"evidential_loss takes a NormalInverseGamma, not {type(nig).__name__}")
    penalty_of = penalties.lookup(penalty)
    if not isinstance(extra or {}, Mapping):
        raise InputTypeError(f"extra must map names to weights, as in {{'ur': 0.01}}, not {type(extra).__name__}")
    y = _checked_target(y, nig.batch_shape, nig.gamma, mask)  # what is masked may be NaN, there and in the answer
    weight = _checked_weight("weight", weight, y)
    parameters = nig.parameters if mask is None else [torch.where(mask, p, 1.0) for p in nig.parameters]
    loss = nll(y, *parameters) + weight * _of_shape("the penalty", penalty_of(y, *parameters), y)
    for name, term_weight in (extra or {}).items():
        term = penalties.lookup(name, EXTRA_TERMS)(y, *parameters)
        loss = loss + _checked_weight(f"the weight of the extra term {name!r}", term_weight, y) * term
    return _reduce(loss, mask, sample_weight, reduction)


def gaussian_loss(
    normal: Gaussian,
    y: Tensor,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log likelihood of a Gaussian head (the paper's Eq. 2).

    Arguments are those of :func:`evidential_loss`.
    """
    if not isinstance(normal, torch.distributions.Normal):
        raise InputTypeError(f"gaussian_loss takes a Gaussian, not {type(normal).__name__}")
    y = _checked_target(y, normal.batch_shape, normal.loc, mask)
    loc, scale = (p if mask is None else torch.where(mask, p, 1.0) for p in (normal.loc, normal.scale))
    return _reduce(-gaussian.log_prob(y, loc, scale), mask, sample_weight, reduction)


def _checked_target(y: Tensor, shape: torch.Size, like: Tensor, mask: Tensor | None) -> Tensor:
    """Return y if it fits, with masked entries replaced by zeros that no gradient reaches."""
    if not isinstance(y, Tensor):
        raise InputTypeError(f"y must be a tensor, not {type(y).__name__}")
    if not y.is_floating_point():
        raise InputTypeError(f"y is {y.dtype}; targets of a regression are floating point, as in y.float()")
    if y.shape != shape:
        raise InputError(
            f"y has shape {tuple(y.shape)} but the prediction {tuple(shape)}; they must be equal "
            "(broadcasting would compare every target with every prediction)"
        )
    if y.device != like.device:
        raise InputError(f"y is on {y.device} but the prediction on {like.device}; move one of them")
    y = y.to(torch.promote_types(y.dtype, like.dtype))
    if mask is None:
        return y
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputTypeError("mask must be a boolean tensor, True where a target counts; for missing ones ~y.isnan()")
    _of_shape("mask", mask, y)
    return torch.where(mask, y, 0.0)


def _checked_weight(name: str, weight: Any, y: Tensor) -> float | Tensor:
    """Return a weight that is a number as a float, and a tensor as it is; NumPy's numbers do not multiply tensors."""
    if isinstance(weight, Tensor):
        if weight.is_complex():
            raise InputTypeError(f"{name} must be a number or a real tensor, not {weight.dtype}")
        if weight.ndim > y.ndim or any(
            w not in (1, n) for w, n in zip(weight.shape[::-1], y.shape[::-1], strict=False)
        ):
            raise InputError(
                f"{name} has shape {tuple(weight.shape)}, which does not broadcast to y's {tuple(y.shape)}"
            )
        if weight.device != y.device and (weight.ndim or weight.device.type != "cpu"):
            raise InputError(f"{name} is on {weight.device} but y on {y.device}; move one of them")
        return _check_values(name, weight)
    if torch.compiler.is_compiling():  # a number may be a symbol there, with no value to check
        plain: float = weight
        return plain
    return _checked_number(name, weight)


def _checked_number(name: str, weight: Any) -> float:
    if not isinstance(weight, Real):
        raise InputTypeError(f"{name} must be a number or a tensor, not {type(weight).__name__}")
    value = float(weight)
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name} must be a finite number that is at least 0, got {weight}")
    return value


def _check_values(name: str, weight: Tensor) -> Tensor:
    """Return the tensor, or raise where a value is negative or not finite and can be read at no cost."""
    if weight.device.type != "cpu" or torch.compiler.is_compiling() or not weight.numel():
        return weight
    least, greatest = torch.aminmax(weight.detach())
    try:
        if least >= 0 and greatest < torch.inf:
            return weight
    except RuntimeError:  # inside vmap or a tracer a tensor has no values yet
        return weight
    valid = (weight >= 0) & (weight < torch.inf)
    at = tuple(int(i) for i in (~valid).nonzero()[0])
    raise InputError(
        f"{name} must be finite and at least 0; {int((~valid).sum())} of {valid.numel()} values break this "
        f"(first: {weight[at].item():g}{f' at index {at}' if at else ''})"
    )


def _of_shape(name: str, x: Any, y: Tensor) -> Tensor:
    """Return x if it is a tensor of y's shape, on y's device."""
    if not isinstance(x, Tensor):
        raise InputTypeError(f"{name} must be a tensor, not {type(x).__name__}")
    if x.shape != y.shape:
        raise InputError(f"{name} has shape {tuple(x.shape)} but y {tuple(y.shape)}; they must be equal")
    if x.device != y.device:
        raise InputError(f"{name} is on {x.device} but y on {y.device}; move one of them")
    return x


def _reduce(loss: Tensor, mask: Tensor | None, sample_weight: Tensor | None, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"unknown reduction {reduction!r}; known are mean, sum, none")
    counts = None
    if sample_weight is not None:
        counts = _of_shape("sample_weight", sample_weight, loss).to(loss.dtype)
    if mask is not None:
        loss = torch.where(mask, loss, 0.0)
        counts = mask.to(loss.dtype) if counts is None else torch.where(mask, counts, 0.0)
    if counts is not None and sample_weight is not None:
        loss = loss * _check_values("sample_weight", counts)
    if reduction == "none":
        return loss
    if reduction == "sum" or not loss.numel():
        return loss.sum()
    if counts is None:
        return loss.mean()
    total = counts.sum()
    return loss.sum() / torch.where(total > 0, total, 1.0)  # a batch without targets has loss 0, not NaN


class WeightSchedule(Protocol):
    r"""A schedule for :math:`\lambda`: read ``weight`` for the loss, and call ``step`` once in each training step.

    ``step`` may come before or after the backward pass.
    """

    @property
    def weight(self) -> Tensor: ...

    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None: ...


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


class ConstantWeight(nn.Module):
    r"""A fixed :math:`\lambda`, as the paper describes (0.01 for the cubic toy, 0.1 for depth).

    No fixed value is right for every input (Jürgens et al., ICML 2024, Theorem 3.4), and published defaults range from
    0.01 to 1: choose it on validation likelihood.
    """

    weight: Tensor

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.register_buffer("weight", _scalar(_checked_number("weight", weight)))

    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Nothing changes."""


class LinearWarmup(nn.Module):
    r""":math:`\lambda` from 0 up to ``weight`` in equal steps, then constant.

    The penalty pushes evidence down from the first step on, while the mean is still far off; starting at 0 lets the
    likelihood find it first. Common in evidential classification; for regression no study has measured its worth.
    """

    target: Tensor
    steps_done: Tensor

    def __init__(self, weight: float, steps: int) -> None:
        super().__init__()
        if not is_whole(steps):
            raise InputTypeError(f"steps must be a whole number, got {steps!r}")
        if steps < 1:
            raise InputError(f"steps must be at least 1, got {steps}")
        self.steps = int(steps)
        self.register_buffer("target", _scalar(_checked_number("weight", weight)))
        self.register_buffer("steps_done", torch.tensor(0, dtype=torch.int64))

    @property
    def weight(self) -> Tensor:
        return self.target * (self.steps_done / self.steps).clamp(max=1)

    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Count one step."""
        self.steps_done += 1


class DualAscent(nn.Module):
    r""":math:`\lambda` by dual ascent on a constraint that can be met, and that is free of y's units.

    .. math:: \lambda \leftarrow \max\bigl(0,\ \lambda + \eta\,(\bar c - c^*)\bigr), \qquad
              c = (y-\gamma)^2\frac{\nu(\alpha-1)}{\beta(1+\nu)}

    The squared error in units of the predictive variance averages 1 for a model whose variance is right. Where the
    model is overconfident (:math:`\bar c > c^* = 1`), :math:`\lambda` rises and the penalty takes evidence away; where
    it is not, :math:`\lambda` falls to 0. :math:`\bar c` is an exponential average over about ``memory`` batches.

    The authors' UCI code constrains the penalty itself, :math:`|y-\gamma|(2\nu+\alpha) \le 0.01`. Since
    :math:`\alpha > 1` that asks for errors below 0.01 standard deviations; :math:`\lambda` therefore rises linearly for
    as long as training lasts (to 7.8 on Kin8nm) and α collapses to 1. It is also not kept from turning negative.

    Measured on training batches an overfitted model looks calibrated: feed ``step`` held-out data if there are any. A
    batch without targets, or with an error that is not finite, changes nothing.

    Under ``torch.distributed`` all ranks of the default group must call ``step`` equally often. They step by the mean
    over all their targets together, so that :math:`\lambda` stays the same on all of them. ``step`` puts new tensors in
    the place of the old ones, and so cannot be part of a captured CUDA graph: call it outside.
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
        self.register_buffer("weight", _scalar(_checked_number("weight", weight)))
        self.register_buffer("average", _scalar(target))

    @torch.inference_mode(False)  # a weight made in inference mode could not be trained with
    @torch.no_grad()
    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Move the average and the weight by one batch."""
        y = _checked_target(y, nig.batch_shape, nig.gamma, mask)
        total = _reduce(penalties.nsu(y, *nig.parameters), mask, None, "sum")
        count = torch.full_like(total, y.numel()) if mask is None else mask.sum().to(total.dtype)
        total, count = _over_ranks(torch.stack([total, count])).unbind()
        violation = (total / count).to(self.average)  # NaN where there are no targets
        average = self.average + (violation - self.average) / self.memory
        weight = (self.weight + self.rate * (average - self.target)).clamp(min=0)
        # new tensors, not changes in place: the graph of a loss that waits for its backward pass holds the old ones
        self.average = torch.where(violation.isfinite(), average, self.average)
        self.weight = torch.where(violation.isfinite(), weight, self.weight)


def _over_ranks(values: Tensor) -> Tensor:
    """Return the sum over all ranks of a distributed run; elsewhere the values themselves."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        distributed.all_reduce(values)
    return values
