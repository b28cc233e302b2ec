"""AdamW by torch's fused kernel alone.

``torch.optim.AdamW`` is the same kernel, but imports torch's compiler when it is made, which takes longer than to fit a
small table.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["AdamW"]


class AdamW:
    """AdamW with the part of torch's interface that the training loop uses, and the same arithmetic.

    Args:
        parameters: to be changed in place.
        lr: learning rate, a tensor that is read at every step.
        weight_decay: as in ``torch.optim.AdamW``.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: Tensor, weight_decay: float) -> None:
        self.parameters, self.lr, self.weight_decay = list(parameters), lr, weight_decay
        self.first, self.second = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))  # moments
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have a gradient."""
        have = [k for k, p in enumerate(self.parameters) if p.grad is not None]
        lists: list[list[Tensor]] = [self.parameters, self.first, self.second, self.steps]
        parameters, first, second, steps = ([values[k] for k in have] for values in lists)
        if not have:
            return
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            first,
            second,
            [],
            steps,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            maximize=False,
            lr=self.lr,
            weight_decay=self.weight_decay,
        )

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return the moments and steps of all parameters, for a checkpoint."""
        return {"first": self.first, "second": self.second, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, list[Tensor]]) -> None:
        """Continue with these moments and steps."""
        for name, own in self.state_dict().items():
            for tensor, value in zip(own, saved[name], strict=True):
                tensor.copy_(value)
