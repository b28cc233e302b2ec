"""Train small networks on CUDA by one kernel that takes many steps."""

import importlib.util
from typing import Any, cast

import torch
from torch import Tensor

from howsure.errors import InputError
from howsure.likelihoods import Evidential, Method, NormalLikelihood, Recipe
from howsure.nn import Population
from howsure.nn.population import per_member
from howsure.tables.scaled_table import ScaledTable
from howsure.training import TableBatches
from howsure_paper.baselines import BayesPopulation

__all__ = ["FusedSteps", "fused_steps", "obstacle", "required_fused_steps"]


def fused_steps(
    method: Method, population: Population, batches: TableBatches, table: ScaledTable, recipe: Recipe
) -> "FusedSteps | None":
    """Return the ``fast_steps`` of :func:`howsure_paper.training.fit`, or None where the kernel cannot train them."""
    if obstacle(method, population, recipe, table.row_weights is not None, table.cells is not None):
        return None
    return FusedSteps(method, population, batches, table)


def required_fused_steps(
    method: Method, population: Population, batches: TableBatches, table: ScaledTable, recipe: Recipe
) -> "FusedSteps":
    """Return the kernel as :func:`fused_steps` does, but raise an InputError where it cannot train the networks."""
    why_not = obstacle(method, population, recipe, table.row_weights is not None, table.cells is not None)
    if why_not:
        raise InputError(f"these networks cannot be trained in one kernel: {why_not}; use fused_steps")
    return FusedSteps(method, population, batches, table)


def obstacle(
    method: Method, population: Population, recipe: Recipe, weighted: bool, censored: bool = False
) -> str | None:
    """Return the reason why the kernel cannot train these networks; None if it can."""
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
        f"{type(method).__name__} has no such kernel": likelihood(method, population) is None,
    }
    return next((words for words, applies in found.items() if applies), None)


def likelihood(method: Method, population: Population) -> dict[str, Any] | None:
    """Return the loss as arguments of ``small_networks.Likelihood``; None if the kernel does not have it.

    A method of the paper may define it by a method ``fused(population)``.
    """
    if hasattr(method, "fused"):
        return cast("dict[str, Any] | None", method.fused(population))
    device = population.weights[0].device
    if isinstance(method, Evidential) and method.one_pass and method.penalty == "error":
        each = per_member("weight", method.weight, population.members)
        return {"evidential": True, "weight": torch.tensor(each, dtype=torch.float32, device=device)}
    if isinstance(method, NormalLikelihood):
        return {"evidential": False, "weight": torch.zeros(population.members, dtype=torch.float32, device=device)}
    return None


class FusedSteps:
    """Many steps at once, as ``fast_steps`` of :func:`howsure.training.train`."""

    def __init__(self, method: Method, population: Population, batches: TableBatches, table: ScaledTable) -> None:
        self.population, self.batches = population, batches
        # a table may lie in memory column by column, as its reader left it
        self.x, self.y = (t.contiguous() for t in batches.tables[:2])
        self.likelihood: Any = likelihood(method, population)
        self.scaling = [t.flatten() for t in (table.own_x.loc, table.own_x.scale, table.own_y.loc, table.own_y.scale)]
        self.extra: dict[str, Any] = {}
        if any(getattr(population, "dropout", ())):
            self.extra = {"keep": cast(Any, population).keep.flatten()}
        if isinstance(population, BayesPopulation):
            counts = batches.counts.flatten()
            temperature = getattr(method, "temperature", 1.0)
            self.extra = {"prior_std": population.prior_std.flatten(), "complexity": temperature / counts.float()}

    def __call__(
        self, parameters: list[Tensor], first: list[Tensor], second: list[Tensor], rates: Tensor, before: int
    ) -> Tensor:
        from howsure_paper.small_networks import Likelihood, Rows, run_steps

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
            "generator": getattr(self.population, "generator", None),
        }
        if "prior_std" in self.extra:
            return torch.randn(*chosen.shape, hidden + outputs, **options)
        return torch.rand(*chosen.shape, hidden, **options) if self.extra else None
