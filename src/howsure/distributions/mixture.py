"""Mixtures: the joint prediction of several networks, or of several samples of one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from howsure.distributions.arguments import as_value, checked_parts, class_name, count_invalid, short_numbers
from howsure.distributions.base import Predictive, Rows, Univariate, on_leaves
from howsure.distributions.normal import Normal
from howsure.distributions.student_t import StudentT
from howsure.errors import InputError, InputTypeError
from howsure.formulas import mixture

__all__ = ["Mixture", "log_cell_prob", "normalised_weights"]


@dataclass(init=False, repr=False, eq=False, match_args=False)
class Mixture(Predictive, Rows):
    """Mixture of the members along one dimension of a distribution, with equal weights or with given ones.

    The variance follows the law of total variance: ``within_variance`` is the mean of the members' variances,
    ``between_variance`` the variance of their means. With weights, every mean over members is a weighted one. A member
    of weight 0 counts nowhere, and its parameters may be NaN.

    Moments, density, tails and quantiles have derivatives with respect to the weights, also where a weight is 0; CRPS
    and entropy with respect to the positive ones.

    Args:
        components: a :class:`~howsure.StudentT` or a :class:`~howsure.Normal`. Of a Normal Inverse-Gamma, mix
            its ``predictive()``.
        dim: the dimension of the components' batch shape along which the members lie.
        weights: of the members, a tensor (members,) of numbers ≥ 0, not all 0. Or for each row, of the
            shape of the components, whose members then move to the last dimension. They are stored in float64 and
            divided by their sum. None: equal weights.
        validate_args: whether to check values. None: as the components.

    Raises:
        InputError: for a dimension or weights that do not fit.
        InputTypeError: for components of another class.

    >>> from howsure import Normal
    >>> two = Mixture(Normal(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 1.0])))
    >>> two.mean, two.within_variance, two.between_variance
    (tensor(5.), tensor(1.), tensor(25.))
    >>> Mixture(two.components, weights=torch.tensor([3.0, 1.0])).mean
    tensor(2.5000)
    >>> two.members, two.interval(0.9), two.icdf(torch.tensor(0.05)), two.quantile(0.05, upper=True)
    (2, tensor([-1.2816, 11.2816]), tensor(-1.2816), tensor(11.2816))
    >>> two.log_prob(0.0), two.cdf(5.0), two.sf(5.0), two.crps(5.0), two.entropy(), two.sample((3,)).shape
    (tensor(-1.6121), tensor(0.5000), tensor(0.5000), tensor(2.2179), tensor(2.1121), torch.Size([3]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real
    leaves = ("components", "weights")
    context = "dim"

    components: Univariate
    dim: int
    weights: Tensor | None = None

    def __init__(
        self,
        components: Univariate,
        dim: int = 0,
        *,
        weights: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(components, Univariate):
            hint = "; mix its predictive()" if hasattr(components, "predictive") else ""
            raise InputTypeError(
                f"Mixture takes a StudentT or a Normal with a member dimension, not {class_name(components)}{hint}"
            )
        ndim = len(components.batch_shape)
        whole = isinstance(dim, int) and not isinstance(dim, bool)
        if not whole or not -ndim <= dim < ndim or components.batch_shape[dim] == 0:
            raise InputError(
                f"Mixture: dimension {dim!r} of the components' batch shape {tuple(components.batch_shape)} "
                "must exist and have at least one member"
            )
        # count the dimension from the right, so that sample dimensions on the left do not move it
        validate = components._validate_args if validate_args is None else validate_args
        if weights is not None:
            if isinstance(weights, Tensor) and weights.device != components.loc.device:
                raise InputError(
                    f"Mixture: weights lie on {weights.device} and the components on {components.loc.device}; move "
                    "them to one"
                )
            if isinstance(weights, Tensor) and weights.shape == components.batch_shape and ndim > 1:
                components = on_leaves(lambda t: t.movedim(dim, -1), components)
                weights, dim = _shares("Mixture", weights.movedim(dim, -1), validate), -1
            else:
                weights = normalised_weights("Mixture", weights, components.batch_shape[dim], validate)
        self._set_leaves((components, weights), validate, dim % ndim - ndim)

    def _shape_of_leaves(self) -> torch.Size:
        shape = getattr(self.components, "batch_shape", ())
        return torch.Size([size for k, size in enumerate(shape) if k != len(shape) + self.dim])

    @property
    def members(self) -> int:
        """Number of distributions that are mixed."""
        return self.components.batch_shape[self.dim]

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        """Return the mixture with its parameters expanded to ``batch_shape``, without the members."""
        shape = list(batch_shape)
        shape.insert(len(shape) + 1 + self.dim, self.members)
        new: Self = type(self).__new__(type(self)) if _instance is None else _instance
        new._set_leaves((self.components.expand(shape), self.weights), self._validate_args, self.dim)
        return new

    def to(self, target: torch.device | torch.dtype | str | int, *, non_blocking: bool = False) -> Self:
        """Return the same on another device, or with components of another dtype.

        Args:
            target: a device, or ``torch.float32`` or ``torch.float64``. The weights stay in float64.
            non_blocking: as for ``torch.Tensor.to``.
        """
        new = super().to(target, non_blocking=non_blocking)
        if isinstance(target, torch.dtype):
            new.weights = self.weights
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return the leaves of the components, with members in the last dimension, and the weights of each row.

        Rows come first, so that they can be sliced, joined and gathered in each tensor.
        """
        leaves = {name: leaf.movedim(self.dim, -1) for name, leaf in self.components.to_dict().items()}
        weights = self._weights_first(self.batch_shape)
        return {"components": leaves} if weights is None else {"components": leaves, "weights": weights.movedim(0, -1)}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Self:
        """Return the mixture of :meth:`to_dict`, with members in the last dimension.

        Args:
            parts: the components and their weights, as of :meth:`to_dict`.

        Raises:
            InputError: if they do not fit together.
        """
        given = checked_parts(cls.__name__, parts, ["components"], ["weights"])
        weights = given.get("weights")
        if weights is not None and len(rows := weights.reshape(-1, weights.shape[-1])):
            weights = rows[0] if bool((rows == rows[0]).all()) else weights
        return cls(_components_of(given["components"]), dim=-1, weights=weights)

    def __repr__(self) -> str:
        weights = "" if self.weights is None else f", weights: {short_numbers(self.weights, 8)}"
        kind, shape = type(self.components).__name__, tuple(getattr(self.components, "batch_shape", ()))
        return f"Mixture({kind} {shape}, dim: {self.dim}{weights})"

    # Moments ----------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the members' means."""
        return self._mean_of(self.components.mean)

    @property
    def within_variance(self) -> Tensor:
        """Mean of the members' variances."""
        return self._mean_of(self.components.variance)

    @property
    def between_variance(self) -> Tensor:
        """Variance of the members' means: the mean of the squared distances from their mean."""
        return mixture.spread_of_means(self.components.mean, self._aligned_weights, self.dim)

    @property
    def variance(self) -> Tensor:
        """Sum of ``within_variance`` and ``between_variance``."""
        return self.within_variance + self.between_variance

    @property
    def _aligned_weights(self) -> Tensor | None:
        """Weights that broadcast with the parameters and values of the members."""
        if self.weights is None or self.dim == -1:
            return self.weights
        return self.weights.reshape(*self.weights.shape, *(1,) * (-1 - self.dim))

    def _weights_first(self, batch_shape: torch.Size) -> Tensor | None:
        """Return the weights as (members, *batch_shape), for this batch shape of the mixture."""
        aligned = self._aligned_weights
        if aligned is None:
            return None
        shape = list(batch_shape)
        shape.insert(len(shape) + 1 + self.dim, self.members)
        return aligned.expand(shape).movedim(self.dim, 0).double()

    def _mean_of(self, x: Tensor) -> Tensor:
        """Return the mean over members of something that each of them has."""
        return mixture.mean(x, self._aligned_weights, self.dim)

    # Density and tails ------------------------------------------------------------------------------------------------

    def log_prob(self, value: Tensor | float) -> Tensor:
        """Return the log density at ``value``."""
        each = self.components.log_prob(self._for_members(value))
        return mixture.log_mean_exp(each, self._aligned_weights, self.dim)

    def cdf(self, value: Tensor | float) -> Tensor:
        """Return P(Y ≤ value), exact in the lower tail."""
        return self._mean_of(self.components.cdf(self._for_members(value)))

    def sf(self, value: Tensor | float) -> Tensor:
        """Return P(Y > value), exact in the upper tail."""
        return self._mean_of(self.components.sf(self._for_members(value)))

    def crps(self, value: Tensor | float) -> Tensor:
        r"""Return the continuous ranked probability score of ``value`` y.

        .. math:: \mathbb E|X-y| - \tfrac12\mathbb E|X-X'|

        It has a closed form for normal members. For Student t members (df > 1) the second mean is computed by
        quadrature. Its error is below 1e-7 of the mixture's width √(mean scale² + variance of loc), as measured for 2
        to 32 members, scales up to 1e6 times each other, up to 1e6 widths apart, df from 2 + 1e-6 to 1e8. A float32
        result is then rounded. The number of panels depends on the parameters, so ``torch.func.vmap`` cannot map it.
        """
        value = self._as_tensor(value)
        return (self._mean_distance(value) - self._half_spread()).to(self._result_dtype(value))

    def _mean_distance(self, value: Tensor) -> Tensor:
        """Return E|X−value| in float64."""
        double = self._double()
        return self._mean_of(double.components.mean_distance(double._for_members(value.double())))

    def _half_spread(self) -> Tensor:
        """Return ½E|X−X'| in float64."""
        if self.members == 1:
            return self.components.double().half_spread().squeeze(self.dim)
        return self._by_formula(mixture.half_spread)

    def entropy(self) -> Tensor:
        r"""Return the differential entropy :math:`-\int p\ln p` in nats, by quadrature.

        The error is below 1e-6 for the mixtures described at `crps`. As there, ``torch.func.vmap`` cannot map it.
        """
        if self.members == 1:
            return self.components.entropy().squeeze(self.dim)
        return self._by_formula(mixture.entropy).to(self.components.loc.dtype)

    def _by_formula(self, formula: Callable[[Tensor | None, Tensor, Tensor, Tensor | None], Tensor]) -> Tensor:
        """Return a function of ``howsure.formulas.mixture`` of this mixture, in float64 and in the batch shape."""
        return formula(*self._parameters(self.batch_shape)).reshape(self.batch_shape)

    def _parameters(self, batch_shape: torch.Size) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
        """Return df (None for normal members), loc, scale and weights in float64, (members, rows)."""
        flat = self._flat_components(batch_shape).double()
        return getattr(flat, "df", None), flat.loc, flat.scale, self._flat_weights(batch_shape)

    def _flat_components(self, batch_shape: torch.Size) -> Univariate:
        """Return the components, expanded to this batch shape of the mixture, with the shape (members, rows)."""
        full = self.expand(batch_shape).components
        size = math.prod(batch_shape)  # which stays a symbol in an export with dynamic sizes
        return on_leaves(lambda t: t.movedim(self.dim, 0).reshape(self.members, size), full)

    def _flat_weights(self, batch_shape: torch.Size) -> Tensor | None:
        """Return the weights with the shape (members, rows) of `_flat_components`."""
        weights = self._weights_first(batch_shape)
        return None if weights is None else weights.reshape(self.members, math.prod(batch_shape))

    def _double(self) -> "Mixture":
        return Mixture._from_leaves((self.components.double(), self.weights), self.dim)

    def _result_dtype(self, value: Tensor) -> torch.dtype:
        return torch.promote_types(value.dtype, self.components.loc.dtype)

    @torch.no_grad()
    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        """Return draws of shape (*sample_shape, *batch_shape), each from one member chosen by its weight."""
        shape = torch.Size(sample_shape) + self.batch_shape
        full, weights = self.expand(shape).components, self._aligned_weights
        if weights is None:
            chosen = torch.randint(self.members, shape, device=full.loc.device).unsqueeze(self.dim)
        else:
            level = torch.rand(shape, dtype=torch.float64, device=weights.device).unsqueeze(self.dim)
            chosen = (level >= mixture.steps(weights, self.dim)).sum(self.dim, keepdim=True)
        return on_leaves(lambda t: t.gather(self.dim, chosen).squeeze(self.dim), full).sample()

    def _as_tensor(self, value: Any) -> Tensor:
        return as_value(type(self).__name__, value, self.components.loc)

    def _for_members(self, value: Tensor | float) -> Tensor:
        """Return the value with a dimension of size 1 where the components have their members."""
        value = self._checked(self._as_tensor(value))
        # a value with too few dimensions first gets those to the right of the members
        return value.expand(torch.broadcast_shapes(value.shape, (1,) * (-1 - self.dim))).unsqueeze(self.dim)

    # Quantiles --------------------------------------------------------------------------------------------------------

    def quantile(self, value: Tensor | float, upper: Tensor | bool) -> Tensor:
        """Return `isf` of ``value`` where ``upper`` is true, else `icdf`, both by one search.

        The tail at the result equals ``value`` to a relative 1e-11 (in float64, before a float32 result is rounded).
        Where members are so far apart that the cdf is flat between them, every point of the flat part is a quantile,
        and one of them is returned. Gradients are finite there too.
        """
        p = self._as_tensor(value)
        double, dtype = self._double(), self._result_dtype(p)
        q = p.double().expand(torch.broadcast_shapes(p.shape, self.batch_shape))
        upper = torch.as_tensor(upper, device=q.device).expand(q.shape)
        if not torch.is_grad_enabled():
            return double._solve(q, upper).to(dtype)
        with torch.no_grad():
            found = double._solve(q, upper)
            bounded = found.isfinite()
            y = torch.where(bounded, found, 0.0)
            slope = double.log_prob(y).exp().clamp(min=torch.finfo(torch.float64).tiny)
            rate = torch.where(upper, -1, 1) * (1 / slope).clamp(max=torch.finfo(dtype).max)
        # the quantile is exact already: the Newton step, which is zero, carries its derivatives by the parameters
        step = torch.where(upper, double.sf(y) - q.detach(), q.detach() - double.cdf(y)) / slope
        # without its value: where the density vanishes, that is a rounding error divided by almost nothing
        quantile = y + (step - step.detach()) + (q - q.detach()) * rate
        return torch.where(bounded, quantile, found).to(dtype)

    def _solve(self, p: Tensor, upper: Tensor) -> Tensor:
        """Return the quantiles: infinite for probabilities 0 and 1, NaN outside [0, 1] and for NaN parameters."""
        high = p > 0.5  # then solve for the other tail, which is smaller
        df, loc, scale, weights = self._parameters(p.shape)
        tails = (torch.where(high, 1 - p, p).flatten(), (upper ^ high).flatten())
        return mixture.quantile(df, loc, scale, *tails, weights).view(p.shape)


def log_cell_prob(mixed: Mixture, lower: Tensor, upper: Tensor, value: Tensor | None = None) -> Tensor:
    """Return the log probability of cells, and the log density of values.

    Args:
        mixed: the mixture.
        lower, upper: ends of cells, equal where y is the value.
        value: values; None: there are none.
    """
    members = mixed.components
    given = (mixed._for_members(end) for end in (lower if value is None else value, lower, upper))
    each = -members.formulas.cell_nll(*given, *(getattr(members, name) for name in members.arguments))
    return mixture.log_mean_exp(each, mixed._aligned_weights, mixed.dim)


def normalised_weights(owner: str, weights: Any, members: int, validate: bool) -> Tensor:
    """Return the weights of ``members`` members in float64, divided by their sum.

    Args:
        owner: name of the owner of the weights, for error messages.
        weights: a tensor (members,).
        members: number of members.
        validate: whether to look at the values, which ends a compiled graph.

    Raises:
        InputTypeError: if the weights are not a tensor of real numbers.
        InputError: for another number of weights, for negative ones, NaN, infinity, and if all are 0.
    """
    if not isinstance(weights, Tensor):
        kind = type(weights).__name__
        raise InputTypeError(f"{owner}: weights must be a tensor, not {kind}; torch.as_tensor makes one")
    if weights.dtype == torch.bool or weights.is_complex():
        raise InputTypeError(f"{owner}: weights must be real numbers, not {weights.dtype}")
    if tuple(weights.shape) != (members,):
        raise InputError(
            f"{owner}: weights have one number for each member, the shape ({members},); got the shape "
            f"{tuple(weights.shape)}"
        )
    return _shares(owner, weights, validate)


def _shares(owner: str, weights: Tensor, validate: bool) -> Tensor:
    """Return weights along the last dimension in float64, divided by their sum."""
    given = weights.double()
    if validate:
        valid = given.isfinite() & (given >= 0)
        if not bool(valid.all()):
            raise InputError(f"{owner}: weights must be finite and ≥ 0; {count_invalid(given, valid)}")
        if not bool((given > 0).any(-1).all()):
            raise InputError(f"{owner}: all weights are 0, and at least one member must count")
    share = given / given.detach().amax(-1, keepdim=True)  # so that the sum of huge weights is finite
    return share / share.sum(-1, keepdim=True)


def _components_of(parts: Any) -> Univariate:
    """Return the distribution that a dict of leaves describes: of the class that has leaves of these names."""
    for kind in (StudentT, Normal):
        if isinstance(parts, Mapping) and set(parts) == set(kind.leaves):
            return kind.from_dict(parts)
    raise InputError("Mixture.from_dict: expected the leaves of a StudentT or a Normal, as of to_dict()")
