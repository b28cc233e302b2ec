"""Distributions of targets that cannot be negative: an increasing function of a mixture on the whole real line."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from howsure.distributions.arguments import short_numbers
from howsure.distributions.mapped import MappedMixture, TargetMap
from howsure.distributions.normal import Normal
from howsure.distributions.student_t import StudentT
from howsure.errors import InputError
from howsure.formulas import transforms

__all__ = ["Transform", "Transformed"]

KINDS = ("positive", "log")


class Transform(TargetMap):
    r"""How a variable z on the whole real line becomes a target y that is never negative.

    ``"positive"`` is :math:`y = \max(0,\; s\ln(1 + e^{z/s}) - \varepsilon)`: logarithmic near zero and linear above the
    scale s. ``"log"`` is :math:`y = e^z`.

    Args:
        kind: "positive" or "log".
        scale: s of "positive", > 0: a number, or one for each target.
        shift: ε of "positive", ≥ 0: a number added to targets that contain zeros.

    >>> root = Transform("positive", scale=10.0)
    >>> root.forward(root.inverse(torch.tensor([0.1, 500.0])))
    tensor([1.0000e-01, 5.0000e+02], dtype=torch.float64)
    """

    def __init__(self, kind: str, scale: Any = 1.0, shift: Any = 0.0) -> None:
        if kind not in KINDS:
            raise InputError(f"unknown transform of the target {kind!r}; known are {', '.join(KINDS)}")
        # on the CPU by name: torch's device context would decide otherwise
        numbers = (torch.as_tensor(each, dtype=torch.float64, device="cpu").detach() for each in (scale, shift))
        self.kind = kind
        self.has_moments = kind != "log"  # the exponential of a Student t has neither a mean nor a CRPS
        self.scale, self.shift = torch.broadcast_tensors(*numbers)
        good = self.scale.isfinite() & (self.scale > 0) & self.shift.isfinite() & (self.shift >= 0)
        if not bool(good.all()):
            raise InputError(f"a transform has a scale > 0 and a shift ≥ 0, got {scale!r} and {shift!r}")

    def forward(self, z: Tensor) -> Tensor:
        """Return y for z."""
        if self.kind == "log":
            return z.double().exp()
        scale, shift = self._on(z.device)
        return (transforms.softplus(z.double(), scale) - shift).clamp(min=0)

    def inverse(self, y: Tensor) -> Tensor:
        """Return z for y; −∞ where no z has a y so small."""
        if self.kind == "log":
            return y.double().clamp(min=0).log()
        scale, shift = self._on(y.device)
        value = y.double()
        return torch.where(value < 0, -torch.inf, transforms.inverse_softplus(value + shift, scale))

    lowest = inverse

    def log_slope(self, y: Tensor) -> Tensor:
        """Return the logarithm of dy/dz at y."""
        if self.kind == "log":
            return y.double().clamp(min=0).log()
        scale, shift = self._on(y.device)
        return transforms.log_slope(y.double() + shift, scale)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.scale.to(device), self.shift.to(device)

    # One transform for each row and target ----------------------------------------------------------------------------

    def at(self, shape: Sequence[int], keys: tuple[Any, ...]) -> "Transform":
        """Return the transform of a part of a prediction of this shape, chosen by these indices."""
        chosen = [t.expand(tuple(shape))[keys] for t in (self.scale, self.shift)]
        return Transform(self.kind, *_without_repeats(*chosen))

    # Plain values -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the transform as plain values."""
        return {"kind": self.kind, "scale": self.scale.tolist(), "shift": self.shift.tolist()}

    @classmethod
    def from_dict(cls, saved: Any) -> "Transform":
        """Return the transform that :meth:`to_dict` described."""
        if not isinstance(saved, dict) or set(saved) != {"kind", "scale", "shift"}:
            raise InputError(f"the transform of the target {saved!r} is unknown")
        return cls(saved["kind"], saved["scale"], saved["shift"])

    def fits(self, targets: int) -> bool:
        """Return whether the transform has one number for all ``targets`` targets, or one for each."""
        return self.scale.ndim == 0 or tuple(self.scale.shape) == (targets,)

    def __repr__(self) -> str:
        if self.kind == "log":
            return "Transform('log')"
        return f"Transform('positive', scale={short_numbers(self.scale, 4)}, shift={short_numbers(self.shift, 4)})"


class Transformed(MappedMixture):
    """Distribution of a target that cannot be negative: a transform of a mixture.

    It has the methods of :class:`~howsure.Mixture`, which compute in float64. Under "positive" with a shift, the
    target 0 has the probability ``cdf(0)``. ``log_prob`` is the density of the variable before it is cut off
    at 0. Under "log" there is no CRPS, and for Student t members there is no mean or variance. Reading one of these
    raises :class:`~howsure.errors.InputError`.

    Moments and CRPS are integrated numerically. Their errors are below 1e-7 of the target's own spread, as measured for
    df from 2 + 1e-6 to 1e8 and scales from 1e-4 to 1e4 of the transform's.

    Args:
        base: a mixture, or one distribution, of the variable on the whole real line. The weights of a mixture are those
            of its members here too.
        transform: how it becomes the target.
        validate_args: whether to raise for values below 0. None: they have the log density −∞.

    >>> from howsure.distributions import Normal
    >>> price = Transformed(Normal(torch.tensor([0.0, 10.0]), 1.0), Transform("positive"))
    >>> price.mean, price.icdf(1e-9) > 0
    (tensor([ 0.8061, 10.0001]), tensor([True, True]))
    """

    support = constraints.nonnegative

    transform: Transform

    @cached_property
    def _member_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of each member's target, and its mean before zeros are cut off, (members, *batch)."""
        flat = self.base._flat_components(self.batch_shape).double()
        if isinstance(flat, Normal) and self.transform.kind == "log":
            variance = flat.scale.square()
            mean = (flat.loc + variance / 2).exp().view(self.members, *self.batch_shape)
            return mean, mean.square() * variance.expm1().view(mean.shape), mean
        self._refuse_without_moments("mean or variance")
        df, excess = (flat.df.flatten(), flat.df_minus_two.flatten()) if isinstance(flat, StudentT) else (None, None)
        s, shift = (t.expand(self.batch_shape).reshape(-1).repeat(self.members) for t in self._numbers())
        found = transforms.moments(df, excess, flat.loc.flatten(), flat.scale.flatten(), s, shift)
        mean, variance, free = (t.view(self.members, *self.batch_shape) for t in found)
        return mean, variance, free

    def _refuse_without_moments(self, what: str) -> None:
        if not self.transform.has_moments:
            raise InputError(
                f'a target under the transform "log" has no {what}: the moments of the exponential of a Student t are '
                'infinite. Use the median, quantiles and intervals, or target_transform="positive"'
            )

    # Density and tails ------------------------------------------------------------------------------------------------

    def log_prob(self, value: Tensor | float) -> Tensor:
        """Return the log density; −∞ for values that the target cannot have."""
        y = self._observed(value)
        z = self.transform.inverse(y)
        possible = z > -torch.inf
        inside = torch.where(possible, y, 1.0)
        density = self.base.log_prob(torch.where(possible, z, 0.0)) - self.transform.log_slope(inside)
        return torch.where(possible, density, -torch.inf).to(self._result_dtype(y))

    def crps(self, value: Tensor | float) -> Tensor:
        """Return the continuous ranked probability score in the units of y; smaller is better."""
        self._refuse_without_moments("CRPS")
        y = self._observed(value)
        shape = torch.broadcast_shapes(y.shape, self.batch_shape)
        df, loc, scale, weights = self.base._parameters(shape)
        target, s, shift = (t.expand(shape).reshape(-1) for t in (y.double(), *self._numbers()))
        return transforms.crps(target, df, loc, scale, s, shift, weights).view(shape).to(self._result_dtype(y))

    def entropy(self) -> Tensor:
        r"""Return the differential entropy in nats, before zeros are cut off.

        It is the entropy of the variable before the transform plus the mean of :math:`\ln g'`. For the softplus this is
        :math:`(\mathbb E Z - \mathbb E g(Z))/s` and for the exponential function :math:`\mathbb E Z`.
        """
        before = self.base.entropy().double()
        if self.transform.kind == "log":
            return (before + self.base.mean.double()).to(self._dtype)
        free = self._mean_of(self._member_moments[2])
        return (before + (self.base.mean.double() - free) / self._numbers()[0]).to(self._dtype)

    def _numbers(self) -> tuple[Tensor, Tensor]:
        return self.transform._on(self.components.loc.device)


def _without_repeats(scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same numbers without the first dimensions while nothing changes along them."""
    while scale.ndim and len(scale) and all(bool((t == t[0]).all()) for t in (scale, shift)):
        scale, shift = scale[0], shift[0]
    return scale.clone(), shift.clone()
