r"""Evidence penalties by name.

The likelihood alone does not lower the evidence where the prediction is wrong; therefore the paper adds λ times a
penalty. Each function here takes ``(y, gamma, nu, alpha_minus_one, beta)`` and returns one value per target. A penalty
is *unit-free* if it stays the same when y, γ and √β are multiplied by a constant. If it is not, λ has a unit, and its
value carries over to another data set only if targets are standardised.

No penalty here makes the split into aleatoric and epistemic variance identifiable (Meinert and Lavin 2021).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from howsure.errors import InputError
from howsure.formulas import nig

__all__ = [
    "PENALTIES",
    "Penalty",
    "error",
    "kl",
    "kl_error",
    "lookup",
    "nsu",
    "standard_score",
]

Penalty = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def error(y: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return :math:`|y - \gamma|\,(2\nu + \alpha)`, the paper's regularizer (Eq. 9). Not unit-free: λ has unit 1/y.

    Gradients also flow through the error, as in the authors' code. For normal residuals of deviation
    :math:`\sigma` the minimiser inflates the predictive variance by 1.16 at :math:`\lambda\sigma = 0.01`, by 5.0 at
    0.1, and without bound from 0.1307 on (``python -m howsure_paper.errata E16``).
    """
    return (y - gamma).abs() * nig.evidence(nu, alpha_minus_one)


def standard_score(y: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return :math:`\frac{|y - \gamma|}{s}\,(2\nu + \alpha)`, with the Student-t predictive scale s. Unit-free.

    Supplement S2.1.4 names a penalty on "the standard score" and gives no formula. This is our interpretation and
    also Eq. 11 of Meinert, Gawlikowski and Lavin (AAAI 2023) with p = 1.
    """
    scale = nig.predictive_scale(nu, alpha_minus_one, beta)
    return (y - gamma).abs() / scale * nig.evidence(nu, alpha_minus_one)


def kl(y: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor, *, epsilon: float = 0.01) -> Tensor:
    r"""Return the KL divergence from a distribution with :math:`\epsilon` evidence (Sec. S1.3). Unit-free.

    .. math:: \mathrm{KL}(\mathrm{NIG}(\gamma,\nu,\alpha,\beta)\,\|\,\mathrm{NIG}(\gamma,\epsilon,1+\epsilon,\beta))

    It does not depend on y, hence not on the error. For another :math:`\epsilon` pass
    ``functools.partial(kl, epsilon=0.1)`` as the penalty. Erratum: the paper prints
    :math:`\tfrac12\frac{1+\epsilon}\nu` for :math:`\tfrac12\frac\epsilon\nu - \tfrac12\ln\frac\epsilon\nu`. The printed
    version can be negative, and this one cannot.
    """
    prior = nig.Parameters(gamma, torch.full_like(nu, epsilon), torch.full_like(nu, epsilon), beta)
    return nig.kl_divergence(nig.Parameters(gamma, nu, alpha_minus_one, beta), prior)


def kl_error(
    y: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor, *, epsilon: float = 0.01
) -> Tensor:
    r"""Return :math:`|y - \gamma|` times :func:`kl`, as in the authors' code. Not unit-free: λ has the unit 1/y."""
    return (y - gamma).abs() * kl(y, gamma, nu, alpha_minus_one, beta, epsilon=epsilon)


def nsu(y: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return squared error over predictive variance, :math:`(y-\gamma)^2\nu(\alpha-1)/(\beta(\nu+1))`. Unit-free.

    This is the non-saturating uncertainty regularizer of Wu et al. (AAAI 2024, Eq. 20). Its mean is 1 for a model whose
    predictive variance is right.
    """
    r = y - gamma
    return r * (r / (beta * (1 + 1 / nu)) * alpha_minus_one)


PENALTIES: Mapping[str, Penalty] = MappingProxyType({f.__name__: f for f in (error, standard_score, kl, kl_error, nsu)})


def lookup(name: str | Penalty) -> Penalty:
    """Return the penalty of this name. A function is returned unchanged.

    Raises:
        InputError: for a name that is not in `PENALTIES`.
    """
    if callable(name):
        return name
    if name not in PENALTIES:
        known = ", ".join(PENALTIES)
        raise InputError(f"unknown penalty {name!r}; known are {known}, or a function with their signature")
    return PENALTIES[name]
