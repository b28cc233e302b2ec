"""Detection of torch's compilers and transforms."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["is_traced"]


def is_traced(*tensors: Tensor) -> bool:
    """Return whether torch records or transforms operations on these tensors instead of only computing them.

    This is so inside ``torch.compile``, ``torch.export``, ``torch.func`` transforms and a ``TorchDispatchMode``, for
    subclasses of ``Tensor``, and for tensors with a tangent of forward-mode differentiation. Code that reads values, or
    that uses a kernel without such rules, must then take another path.

    >>> is_traced(torch.zeros(2))
    False
    >>> bool(torch.func.vmap(lambda x: x + is_traced(x))(torch.zeros(2)).all())
    True
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    return any(type(t) not in (Tensor, nn.Parameter) or forward_ad.unpack_dual(t).tangent is not None for t in tensors)
