"""The evidential distribution itself, as a ``torch.distributions`` object."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl
from torch.types import _size

from howsure.distributions.arguments import as_tensors, check_domain, check_floating
from howsure.distributions.base import Predictive, TreeDistribution
from howsure.distributions.student_t import StudentT
from howsure.errors import InputError, InputTypeError
from howsure.formulas import nig
from howsure.tracing import is_traced

__all__ = ["NormalInverseGamma"]


@dataclass(init=False, repr=False, eq=False, match_args=False)
class NormalInverseGamma(Predictive, TreeDistribution):
    r"""Normal Inverse-Gamma distribution of the pair :math:`(\mu, \sigma^2)`, the output of an evidential network.

    .. math:: \mu \mid \sigma^2 \sim \mathcal N(\gamma, \sigma^2/\nu), \qquad \sigma^2 \sim \Gamma^{-1}(\alpha, \beta)

    A value is such a pair, in the last dimension: ``log_prob``, ``mean``, ``mode``, ``variance`` and ``sample`` are
    about pairs. All about a new y is in :meth:`predictive`, whose ``cdf``, ``sf``, ``icdf``, ``isf``, ``crps``, ``std``
    and ``interval`` are methods of this class as well. Distributions can be indexed and joined with :meth:`cat`.
    Parameters broadcast against each other, and are float32 at least.

    Args:
        gamma: :math:`\gamma`, the prediction.
        nu: :math:`\nu > 0`.
        alpha: :math:`\alpha > 1`.
        beta: :math:`\beta > 0`.
        alpha_minus_one: :math:`\alpha - 1`, instead of ``alpha`` where that may come close to 1: float32 rounds
            1 + 1e-8 to 1. The object stores this number.
        validate_args: whether to check parameters and values. None follows torch's global switch.

    Raises:
        InputError: for parameters outside of their range, or shapes that do not broadcast.
        InputTypeError: for a missing parameter, or one that is neither a tensor nor a number.

    >>> nig = NormalInverseGamma(gamma=0.0, nu=2.0, alpha=3.0, beta=4.0)
    >>> nig.prediction.item(), nig.aleatoric_variance.item(), nig.epistemic_variance.item()
    (0.0, 2.0, 1.0)
    >>> nig.predictive()
    StudentT(df: 6.0, loc: 0.0, scale: 1.4142135381698608)
    >>> nig.interval(0.9), nig.cdf(1.0), nig.sf(1.0), nig.icdf(0.95), nig.crps(1.0)
    (tensor([-2.7481,  2.7481]), tensor(0.7470), tensor(0.2530), tensor(2.7481), tensor(0.6159))
    >>> nig.affine(10.0, 2.0).std, nig.mutual_information()
    (tensor(3.4641), tensor(0.2876))
    >>> nig.update(torch.tensor(3.0)).prediction
    tensor(1.)
    >>> NormalInverseGamma.from_raw(torch.zeros(5, 4)).batch_shape
    torch.Size([5])
    """

    arg_constraints = {
        "gamma": constraints.real,
        "nu": constraints.positive,
        "alpha_minus_one": constraints.positive,
        "beta": constraints.positive,
    }
    support = constraints.independent(constraints.stack([constraints.real, constraints.positive], dim=-1), 1)
    has_rsample = True
    leaves = nig.Parameters._fields
    event = torch.Size([2])

    gamma: Tensor
    nu: Tensor
    alpha_minus_one: Tensor
    beta: Tensor

    def __init__(
        self,
        gamma: Tensor | float,
        nu: Tensor | float,
        alpha: Tensor | float | None = None,
        beta: Tensor | float | None = None,
        *,
        alpha_minus_one: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        owner = type(self).__name__
        if (alpha is None) == (alpha_minus_one is None):
            raise InputTypeError(f"{owner}: pass either alpha or alpha_minus_one")
        if beta is None:
            raise InputTypeError(f"{owner}: beta is missing")
        third = {"alpha": alpha} if alpha_minus_one is None else {"alpha_minus_one": alpha_minus_one}
        given = as_tensors(owner, {"gamma": gamma, "nu": nu, **third, "beta": beta})
        stored = list(given.values())
        if alpha_minus_one is None:
            stored[2] = stored[2] - 1
        self._set_leaves(stored, validate_args)
        if self._validate_args:
            check_domain(owner, given, {**self.arg_constraints, "alpha": constraints.greater_than(1)})

    @classmethod
    def from_raw(cls, raw: Tensor, dim: int = -1) -> Self:
        r"""Return a distribution from four raw outputs of a network.

        :math:`\gamma` is the first output; :math:`\nu, \alpha-1, \beta` are the softplus of the others plus a small
        floor (:func:`howsure.formulas.nig.from_raw`), and so valid by construction.

        While gradients are recorded, the attribute ``raw`` holds the raw outputs, with the four in the last dimension:
        :func:`howsure.evidential_loss` computes its gradient from them in one pass. ``raw`` is None if there are no
        gradients to record, in a compiled or transformed function, and for everything made from the result: a copy,
        other units, another dtype or device, a part of it. Set it to None to send gradients through the parameters.

        Args:
            raw: floating-point outputs, of any shape.
            dim: the dimension of size 4, which is removed: (N, 4) → (N,), (N, T, 4) → (N, T).

        Raises:
            InputError: if the dimension does not have size 4.
            InputTypeError: if ``raw`` is not a floating-point tensor.
        """
        check_floating(f"{cls.__name__}.from_raw: raw", raw)
        if not -raw.ndim <= dim < raw.ndim or raw.shape[dim] != 4:
            raise InputError(
                f"{cls.__name__}.from_raw: dimension {dim} of raw must have size 4 (gamma, nu, alpha, beta), "
                f"but raw has shape {tuple(raw.shape)}"
            )
        new = cls._from_leaves(nig.from_raw(raw, dim))
        trains = raw.requires_grad and torch.is_grad_enabled()
        if trains and cls is NormalInverseGamma and not is_traced(raw):  # a subclass may have other parameters
            new.raw, new.raw_version = raw.movedim(dim, -1), raw._version
        return new

    def _set_leaves(self, values: Iterable[Any], validate_args: bool | None, context: Any = None) -> None:
        super()._set_leaves(values, validate_args, context)
        self.raw: Tensor | None = None
        self.raw_version = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.leaves:
            object.__setattr__(self, "raw", None)  # the raw outputs belong to the old parameters
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "raw": None}

    # Parameters -------------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> nig.Parameters:
        """The leaves (γ, ν, α−1, β), as the functions of ``howsure.formulas.nig`` take them."""
        return nig.Parameters(self.gamma, self.nu, self.alpha_minus_one, self.beta)

    @property
    def alpha(self) -> Tensor:
        """Shape α of the Inverse-Gamma distribution."""
        return 1 + self.alpha_minus_one

    # Prediction and uncertainty ---------------------------------------------------------------------------------------

    @property
    def prediction(self) -> Tensor:
        r"""Expected value of y, :math:`\mathbb E[\mu] = \gamma`."""
        return self.gamma

    @property
    def aleatoric_variance(self) -> Tensor:
        r"""Expected noise in the data, :math:`\mathbb E[\sigma^2] = \beta/(\alpha-1)`."""
        return nig.aleatoric_variance(self.alpha_minus_one, self.beta)

    @property
    def epistemic_variance(self) -> Tensor:
        r"""Uncertainty of the prediction, :math:`\operatorname{Var}[\mu] = \beta/(\nu(\alpha-1))`."""
        return nig.epistemic_variance(*self.parameters[1:])

    @property
    def predictive_variance(self) -> Tensor:
        """Variance of :meth:`predictive`, the sum of both. The likelihood identifies the sum, but not its two parts."""
        return nig.predictive_variance(*self.parameters[1:])

    @property
    def evidence(self) -> Tensor:
        r"""The paper's total evidence :math:`\Phi = 2\nu + \alpha`."""
        return nig.evidence(self.nu, self.alpha_minus_one)

    def predictive(self) -> StudentT:
        r"""Return the distribution of a new y, a Student t with :math:`2\alpha` degrees of freedom."""
        scale = nig.predictive_scale(*self.parameters[1:])
        return StudentT(loc=self.gamma, scale=scale, df_minus_two=2 * self.alpha_minus_one, validate_args=False)

    @property
    def std(self) -> Tensor:
        """Standard deviation of a new y."""
        return self.predictive_variance.sqrt()

    @property
    def aleatoric_std(self) -> Tensor:
        """Root of :attr:`aleatoric_variance`."""
        return self.aleatoric_variance.sqrt()

    @property
    def epistemic_std(self) -> Tensor:
        """Root of :attr:`epistemic_variance`."""
        return self.epistemic_variance.sqrt()

    def cdf(self, value: Tensor | float) -> Tensor:
        """Return P(Y ≤ value) of a new y."""
        return self.predictive().cdf(value)

    def sf(self, value: Tensor | float) -> Tensor:
        """Return P(Y > value) of a new y."""
        return self.predictive().sf(value)

    def quantile(self, value: Tensor | float, upper: bool) -> Tensor:
        """Return the quantile of a new y with probability ``value`` above it if ``upper`` is true, else below it."""
        return self.predictive().quantile(value, upper)

    def crps(self, value: Tensor | float) -> Tensor:
        """Return the continuous ranked probability score of ``value`` as a new y. Smaller is better."""
        return self.predictive().crps(value)

    def mutual_information(self) -> Tensor:
        r"""Return :math:`I(y; (\mu, \sigma^2))`, epistemic uncertainty in nats, whatever the units of y."""
        return nig.mutual_information(self.nu, self.alpha_minus_one)

    # torch's contract -------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        r"""The pair :math:`(\mathbb E[\mu], \mathbb E[\sigma^2])`."""
        return torch.stack([self.gamma, self.aleatoric_variance], dim=-1)

    @property
    def mode(self) -> Tensor:
        r"""The pair :math:`(\gamma, \beta/(\alpha+\tfrac32))`."""
        return torch.stack([self.gamma, self.beta / (2.5 + self.alpha_minus_one)], dim=-1)

    @property
    def variance(self) -> Tensor:
        r"""The pair :math:`(\operatorname{Var}[\mu], \operatorname{Var}[\sigma^2])`, the second infinite for α ≤ 2."""
        return torch.stack([self.epistemic_variance, nig.variance_of_variance(self.alpha_minus_one, self.beta)], dim=-1)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Return the log density of pairs :math:`(\mu, \sigma^2)` in the last dimension of ``value``.

        Raises:
            InputError: if the value is not pairs for the whole batch; targets y belong to ``predictive().log_prob(y)``.
        """
        if not isinstance(value, Tensor) or value.ndim <= len(self.batch_shape) or value.shape[-1] != 2:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"{type(self).__name__}.log_prob takes pairs (mu, sigma squared) of shape "
                f"{(*self.batch_shape, 2)}, got {shape}",
                hint="for the log density of targets y call predictive().log_prob(y)",
            )
        mu, sigma2 = self._checked(value).unbind(-1)
        return nig.log_prob(mu, sigma2, *self.parameters)

    def entropy(self) -> Tensor:
        """Return the differential entropy of the pair in nats."""
        return nig.entropy(*self.parameters[1:])

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:
        r"""Return draws of pairs :math:`(\mu, \sigma^2)` with gradients, of shape (*sample_shape, *batch_shape, 2)."""
        shape = torch.Size(sample_shape) + self.batch_shape
        sigma2 = self.beta / torch._standard_gamma(self.alpha.expand(shape))
        noise = torch.randn(shape, dtype=sigma2.dtype, device=sigma2.device)
        return torch.stack([self.gamma + (sigma2 / self.nu).sqrt() * noise, sigma2], dim=-1)

    def __repr__(self) -> str:
        parameters = {name: getattr(self, name) for name in ("gamma", "nu", "alpha", "beta")}
        shown = (f"{name}: {p.item() if p.numel() == 1 else tuple(p.shape)}" for name, p in parameters.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    # Maps -------------------------------------------------------------------------------------------------------------

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> Self:
        """Return the distribution for loc + scale·y: back in the units of y after training on standardised targets.

        Args:
            loc: the summand, such as the mean of the targets.
            scale: the factor, such as their standard deviation. It must not be 0.

        Raises:
            InputError: if the scale is 0 or not finite.
        """
        if isinstance(scale, int | float) and (scale == 0 or not math.isfinite(scale)):
            raise InputError(f"affine: scale must be finite and not 0, got {scale}")
        return self._from_leaves(torch.broadcast_tensors(*nig.affine(self.parameters, loc, scale)))

    def update(self, y: Tensor, dim: int | None = None) -> Self:
        """Return the posterior after observing y.

        Args:
            y: observations: one each, of the shape of the distribution, or with ``dim`` several.
            dim: the dimension of y along which the observations of one distribution lie.

        Raises:
            InputError: if the shape of y does not fit.
        """
        check_floating("update: y", y)
        observed, along = (y.unsqueeze(-1), -1) if dim is None else (y, dim)
        rest = list(observed.shape)
        del rest[along]
        if torch.Size(rest) != self.batch_shape:
            without = "" if dim is None else f" ({tuple(rest)} without dimension {dim})"
            raise InputError(
                f"update: y of shape {tuple(y.shape)}{without} does not match "
                f"the distribution's {tuple(self.batch_shape)}"
            )
        return self._from_leaves(nig.conjugate_update(observed, *self.parameters, dim=along))


@register_kl(NormalInverseGamma, NormalInverseGamma)  # type: ignore[untyped-decorator]
def _kl_nig_nig(p: NormalInverseGamma, q: NormalInverseGamma) -> Tensor:
    return nig.kl_divergence(p.parameters, q.parameters)
