"""Student's t with both tails, both quantiles and the CRPS, which torch's own class does not have."""

from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from howsure.distributions.arguments import as_tensors, check_domain
from howsure.distributions.base import Univariate
from howsure.errors import InputError, InputTypeError
from howsure.formulas import student_t

__all__ = ["StudentT"]


@dataclass(init=False, repr=False, eq=False, match_args=False)
class StudentT(Univariate):
    r"""Student's t distribution, the predictive distribution of an evidential network.

    ``cdf`` and ``icdf`` are exact in the lower tail, ``sf`` and ``isf`` in the upper one. These, ``log_prob`` and
    ``crps`` (which needs df > 1) are accurate for df ≥ 1 and tails down to 1e-300, and have gradients with respect to
    value, df, loc and scale.

    Args:
        df: degrees of freedom, > 0.
        loc: location, the mean for df > 1.
        scale: scale, > 0. The variance is :math:`s^2 n/(n-2)`.
        df_minus_two: instead of ``df``, where that may come so close to 2 that the variance loses digits. Both may
            be given, as the leaves of another distribution.
        validate_args: whether to check parameters and values. None follows torch's global switch.

    Raises:
        InputError: for parameters outside of their range, or shapes that do not broadcast.
        InputTypeError: for a missing parameter, or one that is neither a tensor nor a number.

    >>> t = StudentT(df=5.0, loc=1.0, scale=2.0)
    >>> t.isf(t.sf(torch.tensor(40.0)))
    tensor(40.)
    >>> t.mean, t.variance, t.interval(0.9)
    (tensor(1.), tensor(6.6667), tensor([-3.0301,  5.0301]))
    >>> value = torch.tensor([1.0, 2.0])
    >>> t.log_prob(value), t.cdf(value), t.crps(value)
    (tensor([-1.6618, -1.8081]), tensor([0.5000, 0.6809]), tensor([0.5141, 0.6993]))
    >>> t.icdf(torch.tensor(0.5)), t.mean_distance(1.0), t.half_spread(), t.entropy(), t.rsample((3,)).shape
    (tensor(1.), tensor(1.8980), tensor(1.3840), tensor(2.3206), torch.Size([3]))
    """

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    leaves = ("df", "loc", "scale", "df_minus_two")
    arguments = ("df", "loc", "scale")
    formulas: ClassVar[ModuleType] = student_t

    df: Tensor
    loc: Tensor
    scale: Tensor
    df_minus_two: Tensor

    def __init__(
        self,
        df: Tensor | float | None = None,
        loc: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
        *,
        df_minus_two: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        owner = type(self).__name__
        if df is None and df_minus_two is None:
            raise InputTypeError(f"{owner}: pass df or df_minus_two")
        degrees = {name: n for name, n in {"df": df, "df_minus_two": df_minus_two}.items() if n is not None}
        given = as_tensors(owner, {**degrees, "loc": loc, "scale": scale})
        n = given["df"] if "df" in given else given["df_minus_two"] + 2
        excess = given["df_minus_two"] if "df_minus_two" in given else n - 2
        self._set_leaves((n, given["loc"], given["scale"], excess), validate_args)
        if self._validate_args:
            check_domain(owner, given, {**self.arg_constraints, "df_minus_two": constraints.greater_than(-2)})
            # leaves that went through bfloat16 may differ that much
            if len(degrees) == 2 and not bool(((n - 2 - excess).abs() <= 0.01 * n.clamp(min=2)).all()):
                raise InputError(f"{owner}: df and df_minus_two contradict each other; pass one of them")

    @property
    def mean(self) -> Tensor:
        """``loc``, or NaN (undefined) for df ≤ 1."""
        return torch.where(self.df > 1, self.loc, torch.nan)

    @property
    def mode(self) -> Tensor:
        """``loc``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """s² df/(df−2), infinite for 1 < df ≤ 2, and NaN (undefined) below."""
        return student_t.variance(self.df_minus_two, self.scale)

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:
        """Return draws with gradients, of shape (*sample_shape, *batch_shape)."""
        shape = torch.Size(sample_shape) + self.batch_shape
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        # a chi-square over its degrees of freedom is a Gamma(df/2) over df/2
        half = 0.5 * self.df.expand(shape)
        return self.loc + self.scale * noise * torch.rsqrt(torch._standard_gamma(half) / half)

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats."""
        return student_t.entropy(self.df, self.scale)
