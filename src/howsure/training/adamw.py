"""AdamW on the CPU by torch's fused kernel alone.

``torch.optim.AdamW`` is the same kernel, but imports torch's compiler when it is made, which takes longer than to fit a
small table.
"""

from collections.abc import Sequence
from typing import Any

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
        self.parameters = list(parameters)
        self.param_groups: list[dict[str, Any]] = [{"lr": lr, "weight_decay": weight_decay}]
        self.state = {
            p: {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            for p in self.parameters
        }

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have a gradient."""
        gradients = {p: p.grad for p in self.parameters if p.grad is not None}
        states = [self.state[p] for p in gradients]
        first, second, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        if not gradients:
            return
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            list(gradients),
            list(gradients.values()),
            first,
            second,
            [],
            steps,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            maximize=False,
            **self.param_groups[0],
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the moments of each parameter, for a checkpoint."""
        return {"state": [self.state[p] for p in self.parameters]}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue with these moments."""
        for p, state in zip(self.parameters, saved["state"], strict=True):
            for name, tensor in self.state[p].items():
                tensor.copy_(state[name])
