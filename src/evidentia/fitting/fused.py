"""When a population can be trained by the one-kernel twin of the loop's steps, and how."""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from evidentia.data.encoding import Scaling
from evidentia.errors import InputError
from evidentia.methods.base import Method, Recipe
from evidentia.nn import BayesPopulation, Population
from evidentia.training import TableBatches

__all__ = ["Fused", "obstacle", "use_fused"]


def use_fused(
    wanted: bool | None, method: Method, population: Population, recipe: Recipe, weighted: bool, censored: bool = False
) -> bool:
    """Return whether to train with :class:`Fused`; raise if it was asked for and cannot be used."""
    if wanted is False:
        return False
    why_not = obstacle(method, population, recipe, weighted, censored)
    if wanted and why_not:
        raise InputError(f"these networks cannot be trained in one kernel: {why_not}; leave out fused=True")
    return why_not is None


def obstacle(
    method: Method, population: Population, recipe: Recipe, weighted: bool, censored: bool = False
) -> str | None:
    """Return why :class:`Fused` cannot be used, in words; None if it can."""
    settings, sizes, device = recipe.settings, population.sizes, population.weights[0].device
    found = {
        f"the device is {device.type}, not cuda": device.type != "cuda",
        "Triton is not installed": importlib.util.find_spec("triton") is None,
        "the network is not one hidden layer of ReLU units": len(sizes) != 3 or population.activation != "relu",
        "more than 32 inputs or 128 units do not fit into registers": sizes[0] > 32
        or max(sizes[1:-1], default=0) > 128,
        "there is more than one target": sizes[-1] != method.outputs,
        "rows are weighted": weighted,
        "targets are censored": censored,
        "gradients are clipped": settings.clip is not None,
        "weights are averaged": settings.averaging > 0,
        "weights decay": settings.weight_decay != 0,
        "the precision is not float32": settings.precision != "float32",
        f"{type(method).__name__} has no such kernel": method.fused(population) is None,
    }
    return next((words for words, applies in found.items() if applies), None)


class Fused:
    """Many steps at once, as :func:`evidentia.training.train` takes them."""

    def __init__(
        self,
        method: Method,
        population: Population,
        batches: TableBatches,
        own_x: Scaling,
        own_y: Scaling,
        row_counts: Tensor,
    ) -> None:
        self.population, self.batches = population, batches
        # a table may lie in memory column by column, as its reader left it
        self.x, self.y = (t.contiguous() for t in batches.tables[:2])
        self.likelihood: Any = method.fused(population)
        self.scaling = [t.flatten() for t in (own_x.loc, own_x.scale, own_y.loc, own_y.scale)]
        self.extra: dict[str, Any] = {"keep": population.keep.flatten()} if any(population.dropout) else {}
        if isinstance(population, BayesPopulation):
            temperature = getattr(method, "temperature", 1.0)
            self.extra = {"prior_std": population.prior_std.flatten(), "complexity": temperature / row_counts.float()}

    def __call__(
        self, parameters: list[Tensor], first: list[Tensor], second: list[Tensor], rates: Tensor, before: int
    ) -> Tensor:
        from evidentia.kernels.small_networks import Likelihood, Rows, run_steps

        state = torch.stack([torch.cat([t.flatten(1) for t in ts], 1) for ts in (parameters, first, second)])
        chosen = self.batches.skip(len(rates))
        # float64, as 1 − 0.999ᵗ at t = 1 has three digits less in float32
        step = before + 1 + torch.arange(len(rates), device=rates.device, dtype=torch.float64)
        corrected, roots = rates / (1 - 0.9**step), (1 - 0.999**step).rsqrt()
        loss = run_steps(
            state,
            self.population.sizes,  # type: ignore[arg-type]
            Rows(self.x, self.y, chosen, *self.scaling),
            Likelihood(**self.likelihood),
            corrected.float(),
            roots.float(),
            noise=self._noise(chosen),
            **self.extra,
        )
        for tensors, flat in zip((parameters, first, second), state, strict=True):
            parts = flat.split([t[0].numel() for t in tensors], 1)
            torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])
        return loss

    def _noise(self, chosen: Tensor) -> Tensor | None:
        """Return random numbers, one per unit, row and step: uniform for dropout, normal for drawn weights."""
        hidden, outputs = self.population.sizes[1:]
        options: dict[str, Any] = {
            "device": chosen.device,
            "dtype": torch.float32,
            "generator": self.population.generator,
        }
        if "prior_std" in self.extra:
            return torch.randn(*chosen.shape, hidden + outputs, **options)
        return torch.rand(*chosen.shape, hidden, **options) if self.extra else None
