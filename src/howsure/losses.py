r"""Losses: the evidential loss and the negative log likelihood of a normal distribution.

.. math:: \mathcal L = \mathrm{NLL} + \lambda\,\mathrm{penalty}

The paper's penalty has the unit of y. Train on standardised targets, or tune λ anew for every data set.
"""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from howsure.distributions import Normal, NormalInverseGamma
from howsure.distributions.arguments import count_invalid, fit_rows, fit_shape
from howsure.errors import InputError, InputTypeError
from howsure.formulas import normal as normal_formulas
from howsure.formulas import penalties
from howsure.formulas.nig import Parameters, cell_nll, from_raw, nll
from howsure.formulas.penalties import Penalty
from howsure.kernels.evidential_loss import PENALTIES as KERNEL_PENALTIES
from howsure.kernels.evidential_loss import evidential_loss_from_raw
from howsure.tracing import is_traced

__all__ = ["evidential_loss", "nll_loss", "normal_loss", "pinball_loss"]


def evidential_loss(
    nig: NormalInverseGamma,
    y: Tensor,
    weight: float | Tensor = 0.01,
    penalty: str | Penalty = "error",
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    censored: Tensor | None = None,
    cells: tuple[Tensor, Tensor] | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Return the negative log model evidence plus ``weight`` times an evidence penalty (the paper's Eq. 10).

    Args:
        nig: output of an evidential head.
        y: targets, of the shape of ``nig``. One dimension of size 1 more or less is fine, as (N, 1) for an output (N,);
            nothing broadcasts. The same holds for ``mask``, ``sample_weight`` and ``censored``. Only ``mask`` and
            ``sample_weight`` may also have one element for each row, (N,) or (N, 1), for targets (N, T).
        weight: :math:`\lambda \ge 0`, a number or a tensor that broadcasts to y (one weight per network, for example).
        penalty: ``"error"`` (the paper's), ``"standard_score"``, ``"kl"``, ``"kl_error"``, ``"nsu"``, or a function
            (see :mod:`howsure.formulas.penalties`).
        mask: boolean, True where a target counts. Missing targets are NaN and must be masked on purpose, with
            ``mask=~y.isnan()``; an unmasked NaN makes the loss NaN.
        sample_weight: non-negative, one for each target; with ``"mean"`` the weighted mean is returned.
        censored: integers or booleans, one for each target, where only a bound of some is known. 0 or False: y is the
            value. 1 or True: the value is at least y, and :math:`-\ln P(Y \ge y)` takes the place of the negative
            log density. −1: it is at most y, and :math:`-\ln P(Y \le y)` does. Penalties of a bound
            use the value nearest to γ that it allows: y if γ contradicts it, and γ itself if not.
        cells: lower and upper ends of targets that are known up to a cell, two tensors of the shape of y: then
            :math:`-\ln P(a < Y \le b)` takes the place of the negative log density where :math:`a < b`. Ends may be
            infinite. Where both are equal, y is the value. Penalties are as for censored targets, which are cells with
            one infinite end. Cells have first derivatives only.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"`` (masked entries are 0). If no target
            counts, as in a batch without rows, the loss and its gradients are 0.

    Returns:
        A scalar, or with ``reduction="none"`` a tensor of the shape of ``nig``.

    One pass computes the loss and its gradient by the raw outputs (:mod:`howsure.kernels`) if ``nig`` has raw
    outputs (``nig.raw is not None``), the penalty is "error" or "standard_score", and nothing else is to be
    differentiated or added: no extra terms, no censored targets, no gradients by y, weight or sample_weight, no hook on
    a parameter, and no ``torch.compile``, ``torch.func`` or forward-mode differentiation at work. Otherwise autograd
    differentiates the formulas. Both compute the same numbers, up to rounding.

    Values of the tensors ``weight``, ``sample_weight`` and ``censored`` are checked on the CPU only, and not inside
    ``torch.compile``, ``torch.func.vmap`` and other transforms, because reading them would make a GPU wait or break the
    graph. There, a negative weight gives a wrong loss, a NaN gives NaN, and of ``censored`` the sign counts.

    Raises:
        InputTypeError: if ``nig`` is not a NormalInverseGamma, or a tensor has the wrong dtype.
        InputError: if a shape, weight, penalty or reduction is invalid.

    >>> import torch, howsure as hs
    >>> answer = hs.NormalInverseGamma(gamma=torch.zeros(2), nu=1.0, alpha=2.0, beta=1.0)
    >>> hs.evidential_loss(answer, torch.tensor([0.5, 3.0]), weight=0.01)
    tensor(2.5999)
    """
    if not isinstance(nig, NormalInverseGamma):
        raise InputTypeError(f"evidential_loss takes a NormalInverseGamma, not {type(nig).__name__}")
    penalty_of = penalties.lookup(penalty)
    y, mask = fit_target(y, nig.batch_shape, nig.gamma, mask)
    weight = _checked_weight("weight", weight, y)
    _check_reduction(reduction)
    if isinstance(weight, Tensor):  # λ in float64 does not make a loss of float32 one of float64
        weight = weight.to(torch.promote_types(y.dtype, torch.float32))
    raw = _usable_raw(nig, y, weight, sample_weight)
    if raw is not None and penalty in KERNEL_PENALTIES and censored is None and cells is None:
        if sample_weight is not None:
            sample_weight = _checked_sample_weight(sample_weight, y, mask)
        return evidential_loss_from_raw(
            raw, y, weight, str(penalty), mask=mask, sample_weight=sample_weight, reduction=reduction
        )
    parameters = nig.parameters
    if mask is not None:  # masked entries may be NaN, in y and in the parameters
        y = torch.where(mask, y, 0.0)
        if raw is None:
            parameters = Parameters(*(torch.where(mask, p, 1.0) for p in parameters))
        else:  # masked before the softplus, whose slope at NaN is NaN
            parameters = from_raw(torch.where(mask.unsqueeze(-1), raw, 0.0))
    ends = _checked_ends(cells, censored, y, mask)
    if ends is None:
        nearest, loss = y, nll(y, *parameters)
    else:  # penalties take the value of the cell that is nearest to γ
        nearest = torch.minimum(torch.maximum(parameters[0], ends[0]), ends[1])
        loss = cell_nll(y, *ends, *parameters)
    loss = loss + weight * _of_shape("the penalty", penalty_of(nearest, *parameters), y, fit=None)
    return reduce_loss(loss, mask, sample_weight, reduction)


def _usable_raw(nig: NormalInverseGamma, *others: Any) -> Tensor | None:
    """Return the raw outputs behind ``nig``, or None if gradients or transforms must pass through its parameters."""
    tensors = [t for t in others if isinstance(t, Tensor)]
    if nig.raw is None or is_traced(nig.raw, *tensors) or any(t.requires_grad for t in tensors):
        return None
    if nig.raw._version != nig.raw_version:  # changed in place since
        return None
    return None if any(p._backward_hooks or p.retains_grad for p in nig.parameters) else nig.raw


def normal_loss(
    normal: Normal,
    y: Tensor,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    censored: Tensor | None = None,
    cells: tuple[Tensor, Tensor] | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log likelihood of y under the output of a normal head (the paper's Eq. 2).

    Args:
        normal: output of :class:`~howsure.NormalHead`.
        y, mask, sample_weight, censored, cells, reduction: as in :func:`evidential_loss`.

    Returns:
        A scalar, or with ``reduction="none"`` a tensor of the shape of ``normal``.

    Raises:
        InputTypeError: if ``normal`` is not a Normal, or a tensor has the wrong dtype.
        InputError: if a shape, weight or reduction is invalid.

    >>> import torch, howsure as hs
    >>> hs.normal_loss(hs.Normal(torch.zeros(2), 1.0), torch.tensor([0.0, 1.0]))
    tensor(1.1689)
    """
    if not isinstance(normal, torch.distributions.Normal):
        raise InputTypeError(f"normal_loss takes a Normal, not {type(normal).__name__}")
    y, mask = fit_target(y, normal.batch_shape, normal.loc, mask)
    y = without_masked(y, mask)
    loc, scale = (p if mask is None else torch.where(mask, p, 1.0) for p in (normal.loc, normal.scale))
    ends = _checked_ends(cells, censored, y, mask)
    loss = -normal_formulas.log_prob(y, loc, scale) if ends is None else normal_formulas.cell_nll(y, *ends, loc, scale)
    return reduce_loss(loss, mask, sample_weight, reduction)


def nll_loss(
    distribution: Any,
    y: Tensor,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log likelihood of y under any distribution, such as the output of a mixture head.

    Args:
        distribution: with a ``log_prob`` of y and a batch shape, from howsure or ``torch.distributions``.
        y, mask, sample_weight, reduction: as in :func:`evidential_loss`.

    Returns:
        A scalar, or with ``reduction="none"`` a tensor of the shape of the distribution.

    Raises:
        InputTypeError: if ``distribution`` is not a distribution, or a tensor has the wrong dtype.
        InputError: if a shape, weight or reduction is invalid.

    >>> import torch, howsure as hs
    >>> hs.losses.nll_loss(hs.MixtureHead(4, components=2)(torch.zeros(3, 4)), torch.zeros(3)).shape
    torch.Size([])
    """
    of_y = _of_targets("nll_loss", distribution)
    y, mask = fit_target(y, of_y.batch_shape, y, mask)
    return reduce_loss(-of_y.log_prob(without_masked(y, mask)), mask, sample_weight, reduction)


def pinball_loss(
    distribution: Any,
    y: Tensor,
    quantile: float = 0.5,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Return the pinball loss of one quantile of a distribution, :math:`\max(q(y-z), (q-1)(y-z))` (Koenker 1978).

    Args:
        distribution: with an ``icdf`` and a batch shape, from howsure or ``torch.distributions``; or the quantiles
            themselves, a tensor.
        y, mask, sample_weight, reduction: as in :func:`evidential_loss`.
        quantile: the probability q, between 0 and 1.

    Returns:
        A scalar, or with ``reduction="none"`` a tensor of the shape of the distribution.

    Raises:
        InputTypeError: if ``distribution`` is not a distribution, or a tensor has the wrong dtype.
        InputError: if a shape, weight, quantile or reduction is invalid.

    >>> import torch, howsure as hs
    >>> hs.losses.pinball_loss(hs.Normal(torch.zeros(2), 1.0), torch.tensor([1.0, -1.0]), 0.5)
    tensor(0.5000)
    """
    if not 0 < quantile < 1:
        raise InputError(f"quantile must be between 0 and 1, got {quantile}", value=quantile)
    if isinstance(distribution, Tensor):
        z = distribution
    else:
        z = _of_targets("pinball_loss", distribution).icdf(torch.as_tensor(quantile, dtype=y.dtype, device=y.device))
    y, mask = fit_target(y, z.shape, z, mask)
    error = without_masked(y, mask) - (z if mask is None else torch.where(mask, z, 0.0))
    return reduce_loss(torch.maximum(quantile * error, (quantile - 1) * error), mask, sample_weight, reduction)


def _of_targets(owner: str, distribution: Any) -> Any:
    """Return the distribution of y: the predictive one of a Normal Inverse-Gamma, any other as it is."""
    if not isinstance(distribution, torch.distributions.Distribution):
        raise InputTypeError(f"{owner} takes a distribution, not {type(distribution).__name__}")
    return distribution.predictive() if isinstance(distribution, NormalInverseGamma) else distribution


def fit_target(y: Tensor, shape: torch.Size, like: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return y and the mask in the shape of the parameters, or raise an error if one does not fit."""
    if not isinstance(y, Tensor):
        raise InputTypeError(f"y must be a tensor, not {type(y).__name__}")
    if not y.is_floating_point():
        raise InputTypeError(f"y is {y.dtype}; targets of a regression are floating point, as in y.float()")
    y = fit_shape(y, shape)
    if y.shape != shape:
        raise InputError(
            f"y has shape {tuple(y.shape)} but the prediction {tuple(shape)}. They must be equal, except for one "
            "dimension of size 1 (broadcasting would compare every target with every prediction)"
        )
    if y.device != like.device:
        raise InputError(f"y is on {y.device} but the prediction on {like.device}; move one of them")
    y = y.to(torch.promote_types(y.dtype, like.dtype))
    if mask is None:
        return y, None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputTypeError("mask must be a boolean tensor, True where a target counts; for missing ones ~y.isnan()")
    return y, _of_shape("mask", mask, y, fit=fit_rows)


def without_masked(y: Tensor, mask: Tensor | None) -> Tensor:
    """Return y with zeros for masked entries, which may be NaN."""
    return y if mask is None else torch.where(mask, y, 0.0)


def _checked_censored(censored: Any, y: Tensor, mask: Tensor | None) -> Tensor:
    """Return the censoring of each target, 0 for masked ones, or raise an error if it does not fit y."""
    if not isinstance(censored, Tensor) or censored.is_floating_point() or censored.is_complex():
        kind = censored.dtype if isinstance(censored, Tensor) else type(censored).__name__
        raise InputTypeError(
            f"censored must be a tensor of integers or booleans, not {kind}: "
            "0 where y is the value, 1 where the value is at least y, -1 where it is at most y"
        )
    bounds = _of_shape("censored", censored, y)
    if mask is not None:
        bounds = torch.where(mask, bounds, 0)
    valid = bounds.sign() == bounds
    if not _is_readable(bounds) or bool(valid.all()):
        return bounds
    raise InputError(
        f"censored must be 0 (y is the value), 1 (at least y) or -1 (at most y); {count_invalid(bounds, valid)}"
    )


def _checked_ends(cells: Any, censored: Any, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return the lower and upper ends of the cells of all targets, equal for values and masked targets.

    Returns None if all are values. A bound is a cell with an infinite end.
    """
    if censored is None:
        return None if cells is None else _checked_cells(cells, y, mask)
    if cells is not None:
        raise InputError("censored= and cells= exclude each other: a bound is a cell with an infinite end")
    bounds = _checked_censored(censored, y, mask)
    return torch.where(bounds < 0, -math.inf, y), torch.where(bounds > 0, math.inf, y)


def _checked_cells(cells: Any, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the ends of cells, equal for masked targets, or raise an error if they do not fit y."""
    if not isinstance(cells, tuple | list) or len(cells) != 2:
        raise InputTypeError("cells must be two tensors, the lower and the upper ends")
    lower, upper = (_of_shape(name, end, y) for name, end in zip(("lower ends", "upper ends"), cells, strict=True))
    if mask is not None:
        lower, upper = (torch.where(mask, end, 0.0) for end in (lower, upper))
    if _is_readable(y) and not bool((lower <= upper).all()):
        raise InputError(f"a cell ends where it begins or above; {count_invalid(lower, lower <= upper)}")
    return lower, upper


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
        return check_values(name, weight)
    if torch.compiler.is_compiling():  # there a number may be a symbol without a value
        plain: float = weight
        return plain
    return checked_number(name, weight)


def checked_number(name: str, weight: Any) -> float:
    """Return the weight as a float, or raise an error if it is not a finite number ≥ 0."""
    if not isinstance(weight, Real):
        raise InputTypeError(f"{name} must be a number or a tensor, not {type(weight).__name__}")
    value = float(weight)
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name} must be a finite number that is at least 0, got {weight}")
    return value


def check_values(name: str, weight: Tensor) -> Tensor:
    """Return the tensor, or raise an error if a value is negative or not finite and reading it costs nothing."""
    if not _is_readable(weight) or not weight.numel():
        return weight
    least, greatest = torch.aminmax(weight.detach())
    if least >= 0 and greatest < torch.inf:
        return weight
    valid = (weight >= 0) & (weight < torch.inf)
    raise InputError(f"{name} must be finite and at least 0; {count_invalid(weight, valid)}")


def _is_readable(x: Tensor) -> bool:
    """Return whether values can be read without making a GPU wait or breaking a graph."""
    return x.device.type == "cpu" and not is_traced(x)


def _of_shape(name: str, x: Any, y: Tensor, *, fit: Callable[..., Any] | None = fit_shape) -> Tensor:
    """Return x in the shape of y, or raise an error if it is not a tensor that fits y's shape, on y's device."""
    if not isinstance(x, Tensor):
        raise InputTypeError(f"{name} must be a tensor, not {type(x).__name__}")
    fitted: Tensor = x if fit is None else fit(x, y.shape)
    if fitted.shape != y.shape:
        raise InputError(f"{name} has shape {tuple(x.shape)} but y {tuple(y.shape)}. They must be equal")
    if fitted.device != y.device:
        raise InputError(f"{name} is on {x.device} but y on {y.device}; move one of them")
    return fitted


def reduce_loss(loss: Tensor, mask: Tensor | None, sample_weight: Tensor | None, reduction: str) -> Tensor:
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
    counts = _of_shape("sample_weight", sample_weight, like, fit=fit_rows).to(
        torch.promote_types(like.dtype, torch.float32)
    )
    return check_values("sample_weight", counts if mask is None else torch.where(mask, counts, 0.0))
