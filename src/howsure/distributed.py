"""Means over the targets of all ranks of a distributed run."""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from howsure.errors import InputTypeError
from howsure.losses import check_values

__all__ = ["count_ranks", "global_mean_factor", "sum_over_ranks"]


def global_mean_factor(*counted: Tensor | float, group: Any = None) -> Tensor:
    r"""Return the factor that turns a sum of losses into the mean over the targets of all ranks and micro-batches.

    .. math:: \frac{\text{ranks}}{\text{targets that count, on all ranks}}

    A mean over the targets of one rank is not a part of the mean over all of them, unless every rank has equally many;
    nor is the mean of one micro-batch. A sum is. ``DistributedDataParallel`` and FSDP average gradients over ranks,
    which the number of ranks in the factor undoes. Without ``torch.distributed`` there is one rank.

    All ranks of the group must call this equally often. If nothing counts anywhere, the factor is 0.

    Args:
        counted: masks, numbers of targets, or sample weights (without masked targets). Tensors are summed. Give all
            micro-batches between two steps of the optimizer.
        group: the process group over which gradients are averaged; None is the default group.

    Returns:
        A float32 scalar, equal on all ranks.

    Raises:
        InputTypeError: if no argument is given.

    >>> import torch, howsure as hs
    >>> y = torch.tensor([0.5, 3.0, torch.nan])
    >>> answer = hs.NormalInverseGamma(gamma=torch.zeros(3), nu=1.0, alpha=2.0, beta=1.0)
    >>> hs.global_mean_factor(~y.isnan()) * hs.evidential_loss(answer, y, mask=~y.isnan(), reduction="sum")
    tensor(2.5999)
    """
    for each in counted:
        if not isinstance(each, Tensor | Real) or isinstance(each, bool):
            raise InputTypeError(
                f"global_mean_factor takes masks, counts or sample weights, not {type(each).__name__}; for "
                "micro-batches in a list, global_mean_factor(*masks)"
            )
    if not counted:
        raise InputTypeError("global_mean_factor needs an argument: a mask or the number of targets")
    devices = [each.device for each in counted if isinstance(each, Tensor)]
    device = devices[0] if devices else _device_of_ranks(group)
    exact = torch.float32 if device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=exact, device=device)
    for each in counted:
        own = each.detach().sum(dtype=exact) if isinstance(each, Tensor) else torch.tensor(float(each))
        total = total + own.to(device, exact)
    total = sum_over_ranks(total, group)
    check_values("global_mean_factor: the number of targets", total)
    return torch.where(total > 0, count_ranks(group) / total, 0.0).float()


def count_ranks(group: Any = None) -> int:
    """Return the number of ranks of a distributed run; without one, 1."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(group)
    return 1


def sum_over_ranks(values: Tensor, group: Any = None) -> Tensor:
    """Return the sum of the values over all ranks of a distributed run; without one, the values themselves."""
    if count_ranks(group) > 1:
        torch.distributed.all_reduce(values, group=group)
    return values


def _device_of_ranks(group: Any) -> torch.device:
    """Return a device whose tensors the ranks can sum."""
    on_gpu = count_ranks(group) > 1 and torch.distributed.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
