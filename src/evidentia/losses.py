r"""Losses, and schedules for the weight λ of the evidence penalty.

.. math:: \mathcal L = \mathrm{NLL} + \lambda\,\mathrm{penalty} \;(+ \text{extra terms})

The paper's penalty has the unit of y. Train on standardised targets, or tune λ anew for every data set.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from evidentia.distributions import Gaussian, NormalInverseGamma
from evidentia.distributions._base import count_invalid, fit_shape
from evidentia.errors import InputError, InputTypeError
from evidentia.formulas import gaussian, penalties
from evidentia.formulas.nig import censored_nll, from_raw, nll
from evidentia.formulas.penalties import EXTRA_TERMS, Penalty
from evidentia.kernels.evidential_loss import KERNELS
from evidentia.kernels.evidential_loss import PENALTIES as KERNEL_PENALTIES
from evidentia.kernels.evidential_loss import evidential_loss as loss_of_raw
from evidentia.nn.checks import check_counts

__all__ = [
    "ConstantWeight",
    "DualAscent",
    "LinearWarmup",
    "WeightSchedule",
    "evidential_loss",
    "gaussian_loss",
    "global_mean_factor",
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
    censored: Tensor | None = None,
    reduction: str = "mean",
    kernel: str | None = None,
) -> Tensor:
    r"""Return the negative log model evidence plus ``weight`` times an evidence penalty (the paper's Eq. 10).

    Args:
        nig: answer of an evidential head.
        y: targets, of the shape of ``nig``. One dimension of size 1 more or less is fine, as (N, 1) for an answer (N,);
            nothing broadcasts. The same holds for ``mask``, ``sample_weight`` and ``censored``.
        weight: :math:`\lambda \ge 0`, a number or a tensor that broadcasts to y (one weight per network, say).
        penalty: ``"error"`` (the paper's), ``"standard_score"``, ``"kl"``, ``"kl_error"``, ``"nsu"``, or a function
            (see :mod:`evidentia.formulas.penalties`).
        extra: further terms by name and weight, ``{"lipschitz_mse": 1.0}`` or ``{"ur": 0.01}``.
        mask: boolean, True where a target counts. Missing targets are NaN and must be masked on purpose, with
            ``mask=~y.isnan()``; an unmasked NaN makes the loss NaN.
        sample_weight: non-negative, one for each target; with ``"mean"`` the weighted mean is returned.
        censored: integers or booleans, one for each target, where only a bound of some is known. 0 or False: y is the
            value. 1 or True: the value is at least y, and :math:`-\ln P(Y \ge y)` takes the place of the negative
            log density. −1: it is at most y, and :math:`-\ln P(Y \le y)` does. Penalties and extra terms of a bound
            are those of the value nearest to γ that it allows: of y if γ contradicts it, and of γ itself if not.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"`` (masked entries are 0). If no target
            counts, as in a batch without rows, the loss and its gradients are 0.
        kernel: how the loss is computed. None chooses: in training one pass from the raw outputs to loss and gradients,
            where that is possible, by ``"triton"`` on CUDA and by ``"tensors"``, tensor operations, elsewhere; else
            ``"formulas"``, which autograd differentiates. A kernel that is asked for and cannot be used is an error.

    Returns:
        A scalar, or with ``reduction="none"`` a tensor of the shape of the answer.

    Values of the tensors ``weight``, ``sample_weight`` and ``censored`` are checked on the CPU only, and not inside
    ``torch.compile``, ``torch.func.vmap`` and other transforms, because reading them would make a GPU wait or break the
    graph. There, a negative weight gives a wrong loss, a NaN gives NaN, and of ``censored`` the sign counts.

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
    kept = nig.raw_outputs
    like = nig.gamma if kept is None else kept[0]
    y, mask = _fitted_target(y, nig.batch_shape, like, mask)
    weight = _checked_weight("weight", weight, y)
    if isinstance(weight, Tensor):  # λ in float64 does not make a loss of float32 one of float64
        weight = weight.to(torch.promote_types(torch.promote_types(like.dtype, y.dtype), torch.float32))
    if kernel not in (None, "formulas", *KERNELS):
        raise InputError(f"unknown kernel {kernel!r}; known are formulas, {', '.join(KERNELS)}")
    why_not = None if kernel == "formulas" else _obstacle(nig, y, weight, penalty_of, extra, sample_weight, censored)
    if kernel not in (None, "formulas") and why_not:
        raise InputError(f"the kernel {kernel!r} of the evidential loss cannot be used: {why_not}")
    if kept is not None and kernel != "formulas" and why_not is None:
        _check_reduction(reduction)
        if sample_weight is not None:
            sample_weight = _checked_sample_weight(sample_weight, y, mask)
        options: Any = {"mask": mask, "sample_weight": sample_weight, "reduction": reduction, "kernel": kernel}
        return loss_of_raw(kept[0], y, weight, penalty=penalty_of.__name__, dim=kept[1], **options)
    y = _without_masked(y, mask)
    # masked entries may be NaN, in y and in the answer
    if mask is None:
        parameters: Sequence[Tensor] = nig.parameters
    elif kept is not None:  # masked before the softplus, whose slope at NaN is NaN
        parameters = from_raw(torch.where(mask.unsqueeze(kept[1]), kept[0], 0.0), kept[1])
    else:
        parameters = [torch.where(mask, p, 1.0) for p in nig.parameters]
    nearest = y  # for penalties
    if censored is None:
        loss = nll(y, *parameters)
    else:
        censored = _checked_censored(censored, y, mask)
        loss = censored_nll(y, censored, *parameters)
        nearest = _nearest_allowed(y, censored, parameters[0])
    loss = loss + weight * _of_shape("the penalty", penalty_of(nearest, *parameters), y, exactly=True)
    for name, term_weight in (extra or {}).items():
        term = penalties.lookup(name, EXTRA_TERMS)(nearest, *parameters)
        loss = loss + _checked_weight(f"the weight of the extra term {name!r}", term_weight, y) * term
    return _reduce(loss, mask, sample_weight, reduction)


def _obstacle(
    nig: NormalInverseGamma,
    y: Tensor,
    weight: float | Tensor,
    penalty: Penalty,
    extra: Mapping[str, float] | None,
    sample_weight: Tensor | None,
    censored: Tensor | None,
) -> str | None:
    """Return why the loss is computed by the formulas and not by a kernel, in words; None if a kernel will do."""
    tensors = [t for t in (y, weight, sample_weight) if isinstance(t, Tensor)]
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    found = {
        f"it has the penalties {' and '.join(KERNEL_PENALTIES)}, not this one": penalty
        not in [penalties.PENALTIES[name] for name in KERNEL_PENALTIES],
        "there are extra terms": bool(extra),
        "targets are censored": censored is not None,
        "gradients by y, weight or sample_weight are wanted": any(t.requires_grad for t in tensors),
        f"the answer is a {type(nig).__name__}, whose parameters may be others": type(nig) is not NormalInverseGamma,
        "it is for training, from the raw outputs of a head: for an answer of from_raw whose raw outputs require "
        "gradients, whose parameters nobody has asked for yet, and outside of torch.compile and torch.func": traced
        or nig.raw_outputs is None,
    }
    obstacle = next((words for words, applies in found.items() if applies), None)
    if obstacle is None and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        return "it is differentiated in forward mode"
    return obstacle


def gaussian_loss(
    normal: Gaussian,
    y: Tensor,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    censored: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log likelihood of y under the answer of a Gaussian head (the paper's Eq. 2).

    Args:
        normal: answer of a Gaussian head.
        y, mask, sample_weight, censored, reduction: as in :func:`evidential_loss`.

    >>> import torch, evidentia as ev
    >>> ev.gaussian_loss(ev.Gaussian(torch.zeros(2), 1.0), torch.tensor([0.0, 1.0]))
    tensor(1.1689)
    """
    if not isinstance(normal, torch.distributions.Normal):
        raise InputTypeError(f"gaussian_loss takes a Gaussian, not {type(normal).__name__}")
    y, mask = _fitted_target(y, normal.batch_shape, normal.loc, mask)
    y = _without_masked(y, mask)
    loc, scale = (p if mask is None else torch.where(mask, p, 1.0) for p in (normal.loc, normal.scale))
    if censored is None:
        loss = -gaussian.log_prob(y, loc, scale)
    else:
        loss = gaussian.censored_nll(y, _checked_censored(censored, y, mask), loc, scale)
    return _reduce(loss, mask, sample_weight, reduction)


def _fitted_target(y: Tensor, shape: torch.Size, like: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return y and the mask in the answer's shape, or raise an error if one misfits."""
    if not isinstance(y, Tensor):
        raise InputTypeError(f"y must be a tensor, not {type(y).__name__}")
    if not y.is_floating_point():
        raise InputTypeError(f"y is {y.dtype}; targets of a regression are floating point, as in y.float()")
    if y.is_nested:
        raise InputError("y is a nested tensor; pass its rows, y.values(), and give the head those of its features")
    y = fit_shape(y, shape)
    if y.shape != shape:
        raise InputError(
            f"y has shape {tuple(y.shape)} but the prediction {tuple(shape)}; they must be equal, except for one "
            "dimension of size 1 (broadcasting would compare every target with every prediction)"
        )
    if y.device != like.device:
        raise InputError(f"y is on {y.device} but the prediction on {like.device}; move one of them")
    y = y.to(torch.promote_types(y.dtype, like.dtype))
    if mask is None:
        return y, None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputTypeError("mask must be a boolean tensor, True where a target counts; for missing ones ~y.isnan()")
    return y, _of_shape("mask", mask, y)


def _without_masked(y: Tensor, mask: Tensor | None) -> Tensor:
    """Return y with zeros for masked entries, which may be NaN."""
    return y if mask is None else torch.where(mask, y, 0.0)


def _checked_censored(censored: Any, y: Tensor, mask: Tensor | None) -> Tensor:
    """Return what is known of each target, 0 for masked ones, or raise an error if it does not fit y."""
    if not isinstance(censored, Tensor) or censored.is_floating_point() or censored.is_complex():
        kind = censored.dtype if isinstance(censored, Tensor) else type(censored).__name__
        raise InputTypeError(
            f"censored must be a tensor of integers or booleans, not {kind}: "
            "0 where y is the value, 1 where the value is at least y, -1 where it is at most y"
        )
    bounds = _of_shape("censored", censored, y)
    if mask is not None:
        bounds = torch.where(mask, bounds, 0)
    if bounds.device.type != "cpu" or torch.compiler.is_compiling():
        return bounds
    valid = bounds.sign() == bounds
    try:
        if valid.all():
            return bounds
    except RuntimeError:  # inside vmap or a tracer a tensor has no values yet
        return bounds
    raise InputError(
        f"censored must be 0 (y is the value), 1 (at least y) or -1 (at most y); {count_invalid(bounds, valid)}"
    )


def _nearest_allowed(y: Tensor, censored: Tensor, gamma: Tensor) -> Tensor:
    """Return the value nearest to γ that is compatible with what is known: γ where it does not contradict a bound."""
    allowed = ((censored > 0) & (gamma >= y)) | ((censored < 0) & (gamma <= y))
    return torch.where(allowed, gamma, y)


def _checked_weight(name: str, weight: Any, y: Tensor) -> float | Tensor:
    """Return the weight, a number as a float (NumPy's numbers do not multiply tensors), or raise an error."""
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
    if torch.compiler.is_compiling():  # there a number may be a symbol without a value
        plain: float = weight
        return plain
    return _checked_number(name, weight)


def _checked_number(name: str, weight: Any) -> float:
    """Return the weight as a float, or raise an error if it is not a finite number ≥ 0."""
    if not isinstance(weight, Real):
        raise InputTypeError(f"{name} must be a number or a tensor, not {type(weight).__name__}")
    value = float(weight)
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name} must be a finite number that is at least 0, got {weight}")
    return value


def _check_values(name: str, weight: Tensor) -> Tensor:
    """Return the tensor, or raise an error if a value is negative or not finite and reading it costs nothing."""
    if weight.device.type != "cpu" or torch.compiler.is_compiling() or not weight.numel():
        return weight
    least, greatest = torch.aminmax(weight.detach())
    try:
        if least >= 0 and greatest < torch.inf:
            return weight
    except RuntimeError:  # inside vmap or a tracer a tensor has no values yet
        return weight
    valid = (weight >= 0) & (weight < torch.inf)
    raise InputError(f"{name} must be finite and at least 0; {count_invalid(weight, valid)}")


def _of_shape(name: str, x: Any, y: Tensor, *, exactly: bool = False) -> Tensor:
    """Return x in the shape of y, or raise an error if it is not a tensor that fits y's shape, on y's device."""
    if not isinstance(x, Tensor):
        raise InputTypeError(f"{name} must be a tensor, not {type(x).__name__}")
    fitted: Tensor = x if exactly else fit_shape(x, y.shape)
    if fitted.shape != y.shape:
        raise InputError(f"{name} has shape {tuple(x.shape)} but y {tuple(y.shape)}; they must be equal")
    if fitted.device != y.device:
        raise InputError(f"{name} is on {x.device} but y on {y.device}; move one of them")
    return fitted


def _reduce(loss: Tensor, mask: Tensor | None, sample_weight: Tensor | None, reduction: str) -> Tensor:
    """Return the loss without masked entries, weighted and reduced, as :func:`evidential_loss` describes."""
    _check_reduction(reduction)
    counts = None if mask is None else mask.to(loss.dtype)
    if mask is not None:
        loss = torch.where(mask, loss, 0.0)
    if sample_weight is not None:
        counts = _checked_sample_weight(sample_weight, loss, mask)
        loss = loss * counts
    if reduction == "none":
        return loss
    if reduction == "sum" or not loss.numel():
        return loss.sum()
    if counts is None:
        return loss.mean()
    total = counts.sum()
    return loss.sum() / torch.where(total > 0, total, 1.0)  # the loss of a batch without targets is 0, not NaN


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"unknown reduction {reduction!r}; known are mean, sum, none")


def _checked_sample_weight(sample_weight: Tensor, like: Tensor, mask: Tensor | None) -> Tensor:
    """Return how much each target counts, 0 for masked ones, in the shape and dtype of another tensor."""
    counts = _of_shape("sample_weight", sample_weight, like).to(torch.promote_types(like.dtype, torch.float32))
    return _check_values("sample_weight", counts if mask is None else torch.where(mask, counts, 0.0))


def global_mean_factor(*counted: Tensor | float, group: Any = None) -> Tensor:
    r"""Return the factor that turns a sum of losses into the mean over the targets of all ranks and micro-batches.

    .. math:: \frac{\text{ranks}}{\text{targets that count, on all ranks}}

    A mean over the targets of one rank is not a part of the mean over all of them, unless every rank has equally many;
    nor is the mean of one micro-batch. A sum is. ``DistributedDataParallel`` and FSDP average gradients over ranks,
    which the number of ranks in the factor undoes. Without ``torch.distributed`` there is one rank.

    All ranks of the group must call this equally often. If nothing counts anywhere, the factor is 0.

    Args:
        counted: what says how many targets count: masks, numbers of targets, or sample weights (those of masked targets
            left out); tensors are summed. Give all micro-batches between two steps of the optimizer.
        group: the process group over which gradients are averaged; None is the default group.

    Returns:
        A float32 scalar, equal on all ranks.

    >>> import torch, evidentia as ev
    >>> y = torch.tensor([0.5, 3.0, torch.nan])
    >>> answer = ev.NormalInverseGamma(gamma=torch.zeros(3), nu=1.0, alpha=2.0, beta=1.0)
    >>> ev.global_mean_factor(~y.isnan()) * ev.evidential_loss(answer, y, mask=~y.isnan(), reduction="sum")
    tensor(2.5999)
    """
    for each in counted:
        if not isinstance(each, Tensor | Real) or isinstance(each, bool):
            raise InputTypeError(
                f"global_mean_factor takes masks, counts or sample weights, not {type(each).__name__}; for "
                "micro-batches in a list, global_mean_factor(*masks)"
            )
    if not counted:
        raise InputTypeError("global_mean_factor: say which targets count, as with a mask or the number of targets")
    devices = [each.device for each in counted if isinstance(each, Tensor)]
    device = devices[0] if devices else _device_of_ranks(group)
    exact = torch.float32 if device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=exact, device=device)
    for each in counted:
        own = each.detach().sum(dtype=exact) if isinstance(each, Tensor) else torch.tensor(float(each))
        total = total + own.to(device, exact)
    total = _over_ranks(total, group)
    _check_values("global_mean_factor: the number of targets", total)
    return torch.where(total > 0, _ranks(group) / total, 0.0).float()


class WeightSchedule(Protocol):
    """Interface of a schedule for λ: use ``weight`` in the loss, and call ``step`` once in each training step."""

    @property
    def weight(self) -> Tensor:
        """Current value of λ."""

    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Update λ after a batch; the call may come before or after the backward pass.

        Args:
            nig: the network's answer for the batch.
            y: targets of the batch.
            mask: True where a target counts; None counts all. Bounds of censored targets have no error to adapt to:
                pass ``censored == 0``.
        """


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


class ConstantWeight(nn.Module):
    """Schedule with a constant λ, as in the paper (0.01 for the cubic toy problem, 0.1 for depth).

    No constant is right for every input (Jürgens et al., ICML 2024, Theorem 3.4), and published defaults range from
    0.01 to 1: choose it by validation likelihood.

    Args:
        weight: λ ≥ 0.

    >>> ConstantWeight(0.01).weight
    tensor(0.0100)
    """

    weight: Tensor

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.register_buffer("weight", _scalar(_checked_number("weight", weight)))

    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Change nothing."""


class LinearWarmup(nn.Module):
    """Schedule that raises λ from 0 to ``weight`` in equal steps and then keeps it constant.

    A constant penalty lowers evidence from the first step on, while predictions are still far off. A warm-up lets the
    likelihood fit them first. It is common in evidential classification; no study has measured its value for
    regression.

    Args:
        weight: the final λ ≥ 0.
        steps: number of training steps until it is reached.

    >>> schedule = LinearWarmup(0.1, steps=4)
    >>> answer, y = NormalInverseGamma(torch.zeros(2), 1.0, 2.0, 1.0), torch.ones(2)
    >>> schedule.step(answer, y)
    >>> schedule.weight
    tensor(0.0250)
    """

    target: Tensor
    steps_done: Tensor

    def __init__(self, weight: float, steps: int) -> None:
        super().__init__()
        check_counts(steps=steps)
        self.steps = int(steps)
        self.register_buffer("target", _scalar(_checked_number("weight", weight)))
        self.register_buffer("steps_done", torch.tensor(0, dtype=torch.int64))

    @property
    def weight(self) -> Tensor:
        return self.target * (self.steps_done / self.steps).clamp(max=1)

    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Count one training step."""
        self.steps_done += 1


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

    Under ``torch.distributed`` all ranks of the default group must call ``step`` equally often; it uses the mean over
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
        self.register_buffer("weight", _scalar(_checked_number("weight", weight)))
        self.register_buffer("average", _scalar(target))

    @torch.inference_mode(False)  # a weight made in inference mode could not be used in training
    @torch.no_grad()
    def step(self, nig: NormalInverseGamma, y: Tensor, mask: Tensor | None = None) -> None:
        """Update the average and λ by one batch."""
        y, mask = _fitted_target(y, nig.batch_shape, nig.gamma, mask)
        y = _without_masked(y, mask)
        total = _reduce(penalties.nsu(y, *nig.parameters), mask, None, "sum")
        count = torch.full_like(total, y.numel()) if mask is None else mask.sum().to(total.dtype)
        total, count = _over_ranks(torch.stack([total, count])).unbind()
        violation = (total / count).to(self.average)  # NaN where there are no targets
        average = self.average + (violation - self.average) / self.memory
        weight = (self.weight + self.rate * (average - self.target)).clamp(min=0)
        # replace the tensors instead of changing them: the graph of a loss before its backward pass holds the old ones
        self.average = torch.where(violation.isfinite(), average, self.average)
        self.weight = torch.where(violation.isfinite(), weight, self.weight)


def _ranks(group: Any = None) -> int:
    """Return the number of ranks of a distributed run; without one, 1."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(group)
    return 1


def _over_ranks(values: Tensor, group: Any = None) -> Tensor:
    """Return the sum of the values over all ranks of a distributed run; without one, the values themselves."""
    if _ranks(group) > 1:
        torch.distributed.all_reduce(values, group=group)
    return values


def _device_of_ranks(group: Any) -> torch.device:
    """Return a device whose tensors the ranks can sum."""
    on_gpu = _ranks(group) > 1 and torch.distributed.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
