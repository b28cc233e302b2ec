r"""The Normal Inverse-Gamma distribution: one function per equation of the paper.

.. math:: \mu \mid \sigma^2 \sim \mathcal N(\gamma, \sigma^2/\nu), \qquad
          \sigma^2 \sim \Gamma^{-1}(\alpha, \beta), \qquad y \mid \mu, \sigma^2 \sim \mathcal N(\mu, \sigma^2)

Every function takes the parameters in the order (γ, ν, α−1, β) and works elementwise. **The argument is α−1, not α**,
because all variances divide by it: in float32 the number 1 + 1e-8 *is* 1, and β/(α−1) would be infinite.

"Eq. n" and "Eq. Sn" are equations of the paper and its supplement (Amini et al., NeurIPS 2020). Where the paper is
wrong, the docstring has a paragraph "Erratum". ``paper/docs/errata.md`` shows each case in numbers.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from howsure.formulas.cells import student_log_prob
from howsure.formulas.special import (
    LOG_2PI,
    binet,
    binet_prime,
    gap,
    rho,
    rho_excess,
    rho_excess_prime,
)
from howsure.tracing import is_traced

__all__ = [
    "ALPHA_MINUS_ONE_FLOOR",
    "BETA_FLOOR",
    "NU_FLOOR",
    "Parameters",
    "affine",
    "aleatoric_variance",
    "bounded_variance",
    "cell_nll",
    "conjugate_evidence",
    "conjugate_update",
    "entropy",
    "epistemic_variance",
    "evidence",
    "from_raw",
    "kl_divergence",
    "log_prob",
    "mutual_information",
    "nll",
    "predictive_scale",
    "predictive_variance",
    "variance_of_variance",
]


class Parameters(NamedTuple):
    """The four parameters of a Normal Inverse-Gamma, with α−1 instead of α."""

    gamma: Tensor
    nu: Tensor
    alpha_minus_one: Tensor
    beta: Tensor


# `from_raw` adds these to each softplus. A network that drives a parameter to zero (by a raw output of −1e4, for
# example) still gets finite variances, penalties and gradients in float32. The floors are far below any useful value.
NU_FLOOR = 1e-6
ALPHA_MINUS_ONE_FLOOR = 1e-6
BETA_FLOOR = 1e-9


def from_raw(raw: Tensor, dim: int = -1) -> Parameters:
    r"""Return :math:`(\gamma, \nu, \alpha - 1, \beta)` from four raw outputs of a network along ``dim``.

    The first output is :math:`\gamma`. The others go through a softplus (Sec. 3.3, "Summary and implementation
    details"), to which a floor of 1e-6, 1e-6 and 1e-9 is added. The arithmetic is at least float32.
    """
    # one copy lets all that follows read memory in order, which is twice as fast for small tables
    rows = raw.to(torch.promote_types(raw.dtype, torch.float32)).movedim(dim, 0).contiguous()
    # by default torch's softplus is the identity from 20 on, which is wrong by 2e-9
    nu, alpha_minus_one, beta = softplus(rows[1:], threshold=40).unbind(0)
    # a copy of γ: FSDP warns of views, because hooks on a view are lost if it is changed in place
    return Parameters(rows[0].clone(), nu + NU_FLOOR, alpha_minus_one + ALPHA_MINUS_ONE_FLOOR, beta + BETA_FLOOR)


# Moments ------------------------------------------------------------------------------------------------------------


def aleatoric_variance(alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return :math:`\mathbb E[\sigma^2] = \beta/(\alpha-1)` (Eq. 5)."""
    return beta / alpha_minus_one


def epistemic_variance(nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{Var}[\mu] = \beta/(\nu(\alpha-1))` (Eq. 5).

    Erratum: the derivation in the supplement (Eq. S11, S12) has the sign of :math:`\sigma^2/\nu` wrong, and
    :math:`\sigma^2` where its expectation belongs; the printed lines equal minus the result.
    """
    return beta / alpha_minus_one / nu


def predictive_variance(nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{Var}[y] = \beta(1+\nu)/(\nu(\alpha-1))`, aleatoric plus epistemic variance."""
    return beta / alpha_minus_one * (1 + 1 / nu)


def predictive_scale(nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return the scale :math:`\sqrt{\beta(1+\nu)/(\nu\alpha)}` of the Student-t predictive (Eq. 7).

    Erratum: the paper calls the square of this the scale. The square is not the predictive variance either.
    """
    return (beta * (1 + 1 / nu) / (1 + alpha_minus_one)).sqrt()


def variance_of_variance(alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{Var}[\sigma^2] = \beta^2/((\alpha-1)^2(\alpha-2))`, infinite for α ≤ 2."""
    a = alpha_minus_one
    exists = a > 1
    return torch.where(exists, (beta / a) ** 2 / torch.where(exists, a - 1, 1.0), torch.inf)


def evidence(nu: Tensor, alpha_minus_one: Tensor) -> Tensor:
    r"""Return the paper's total evidence :math:`\Phi = 2\nu + \alpha` (Sec. 3.1).

    Erratum: the paper calls it the number of virtual observations. But an observation adds 1 to :math:`\nu` and
    :math:`\tfrac12` to :math:`\alpha` (:func:`conjugate_update`), so that this number is :math:`\nu + 2\alpha`; and the
    sum of squared deviations is :math:`2\beta`, not :math:`2\nu`. The penalties use the paper's :math:`\Phi`.
    """
    return 2 * nu + 1 + alpha_minus_one


# Likelihoods --------------------------------------------------------------------------------------------------------


def nll(y: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return the negative log model evidence: the negative log of the Student-t marginal likelihood of y (Eq. 8).

    .. math:: \tfrac12\ln(2\pi\beta) + \tfrac12\ln(1 + \tfrac1\nu)
              + (\alpha+\tfrac12)\ln\Bigl(1 + \frac{(y-\gamma)^2}{2\beta(1+1/\nu)}\Bigr) - \rho(\alpha)

    It equals the paper's expression. There the terms :math:`\alpha\ln\Omega` and :math:`(\alpha+\tfrac12)\ln(\cdot)`
    cancel, so that in float32 it is wrong by 0.1 nat at :math:`\alpha = 10^5` and by 1.6 at :math:`10^6`. This form is
    written with :math:`1/\nu`, so that the derivative by :math:`\nu` does not cancel either.
    """
    r = y - gamma
    spread = 1 + 1 / nu
    fit = torch.log1p(r * (r / (2 * beta * spread)))
    return 0.5 * (LOG_2PI + beta.log() + torch.log1p(1 / nu)) + (1.5 + alpha_minus_one) * fit - rho(1 + alpha_minus_one)


def cell_nll(
    y: Tensor,
    lower: Tensor,
    upper: Tensor,
    gamma: Tensor,
    nu: Tensor,
    alpha_minus_one: Tensor,
    beta: Tensor,
) -> Tensor:
    r"""Return :math:`-\ln P(a < Y \le b)` of the marginal Student t for cells, and :func:`nll` of y where a = b.

    Cells are computed in float64 by :func:`howsure.formulas.cells.student_log_prob`.
    """
    known = lower == upper
    ends = lower.masked_fill(known, -math.inf), upper.masked_fill(known, math.inf)
    scale = predictive_scale(nu.double(), alpha_minus_one.double(), beta.double())
    cell = -student_log_prob(*ends, 2 * (1 + alpha_minus_one.double()), gamma.double(), scale).to(gamma.dtype)
    if not (is_traced(y, gamma) or y.is_cuda or bool(known.any())):
        return cell
    return torch.where(known, nll(torch.where(known, y, gamma), gamma, nu, alpha_minus_one, beta), cell)


def conjugate_update(
    y: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor, dim: int = -1
) -> Parameters:
    r"""Return the parameters of the posterior after n observations along ``dim`` of y.

    .. math:: \nu_n = \nu + n, \quad \gamma_n = \gamma + \frac{n(\bar y - \gamma)}{\nu_n}, \quad
              \alpha_n = \alpha + \tfrac n2, \quad
              \beta_n = \beta + \tfrac12\sum(y_i - \bar y)^2 + \frac{\nu n(\bar y - \gamma)^2}{2\nu_n}
    """
    n, mean = y.shape[dim], y.mean(dim)
    shift = (n / (nu + n)) * (mean - gamma)
    within = (y - mean.unsqueeze(dim)).square().sum(dim)
    added = 0.5 * within + 0.5 * n * (mean - gamma).square() / (1 + n / nu)
    return Parameters(gamma + shift, nu + n, alpha_minus_one + 0.5 * n, beta + added)


def log_prob(mu: Tensor, sigma2: Tensor, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return the log density of the pair :math:`(\mu, \sigma^2)` (Eq. 4).

    .. math:: \tfrac12\ln\frac{\nu\alpha}{4\pi^2} - \tfrac32\ln\sigma^2 - \mathrm{Binet}(\alpha)
              - \alpha\,\mathrm{gap}\Bigl(\frac{\beta}{\alpha\sigma^2}\Bigr) - \frac{\nu(\mu-\gamma)^2}{2\sigma^2}

    This is the paper's density with Stirling's formula for :math:`\Gamma(\alpha)` taken out of the power terms;
    :func:`~howsure.formulas.special.binet` and :func:`~howsure.formulas.special.gap` are small where those cancel.
    Erratum: the paper derives it from a factorised :math:`q(\mu)q(\sigma^2)` (Sec. 3.1, Eq. S3). The density is
    :math:`p(\mu\mid\sigma^2)\,p(\sigma^2)` and does not factorise.
    """
    alpha = 1 + alpha_minus_one
    location = nu * (mu - gamma) * ((mu - gamma) / (2 * sigma2))
    scale = binet(alpha) + alpha * gap(beta / (alpha * sigma2))
    return 0.5 * (nu.log() + alpha.log()) - LOG_2PI - 1.5 * sigma2.log() - scale - location


# Information --------------------------------------------------------------------------------------------------------


def entropy(nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> Tensor:
    r"""Return the differential entropy of the pair :math:`(\mu, \sigma^2)`.

    .. math:: \tfrac12\ln(2\pi e) + \alpha + \tfrac32\ln\beta + \ln\Gamma(\alpha) - (\alpha+\tfrac32)\psi(\alpha)
              - \tfrac12\ln\nu

    It is computed with Stirling's formula inserted, so that no term of order :math:`\alpha\ln\alpha` is left.
    """
    alpha = 1 + alpha_minus_one
    gamma_part = 1 + 0.75 / alpha - 2 * alpha.log() + binet(alpha) - (alpha + 1.5) * binet_prime(alpha)
    return LOG_2PI + gamma_part + 1.5 * beta.log() - 0.5 * nu.log()


def kl_divergence(p: Parameters, q: Parameters) -> Tensor:
    r"""Return :math:`\mathrm{KL}(\mathrm{NIG}_p \,\|\, \mathrm{NIG}_q)` as a sum of terms that are each at least zero.

    .. math:: \frac{\nu_q\alpha_p}{2\beta_p}(\gamma_p - \gamma_q)^2 + \tfrac12\mathrm{gap}\frac{\nu_q}{\nu_p}
              + \alpha_q\,\mathrm{gap}\frac{\alpha_p\beta_q}{\beta_p\alpha_q}
              + \tfrac12\mathrm{gap}\frac{\alpha_q}{\alpha_p}
              + \mu(\alpha_q) - \mu(\alpha_p) - (\alpha_q - \alpha_p)\mu'(\alpha_p)

    Here :math:`\mathrm{gap}(x) = x - 1 - \ln x`, and :math:`\mu` is Binet's function, which is convex.
    Erratum: the supplement (Sec. S1.3) lacks :math:`-\tfrac12\ln(\nu_q/\nu_p)`. For NIG(.3, .7, 2.5, 1.3) against
    NIG(−.2, 2, 3, 2) it gives 1.5200, while the divergence is 0.9951.
    """
    alpha_p, alpha_q = 1 + p.alpha_minus_one, 1 + q.alpha_minus_one
    location = 0.5 * q.nu * (alpha_p / p.beta) * (p.gamma - q.gamma).square() + 0.5 * gap(q.nu / p.nu)
    rate = alpha_q * gap((alpha_p / alpha_q) * (q.beta / p.beta)) + 0.5 * gap(alpha_q / alpha_p)
    bregman = binet(alpha_q) - binet(alpha_p) - (q.alpha_minus_one - p.alpha_minus_one) * binet_prime(alpha_p)
    return location + rate + bregman


def mutual_information(nu: Tensor, alpha_minus_one: Tensor) -> Tensor:
    r"""Return :math:`I(y; (\mu, \sigma^2))`, the epistemic part of the predictive entropy, in nats.

    .. math:: \tfrac12\ln(1 + \tfrac1\nu) + (\alpha+\tfrac12)\,\rho_\text{excess}'(\alpha)
              - \rho_\text{excess}(\alpha) + \tfrac12\mu'(\alpha)

    This is the entropy of the Student-t predictive minus the mean entropy of the likelihoods,
    :math:`\tfrac12\ln 2\pi e + \tfrac12(\ln\beta - \psi(\alpha))`, with Binet's function :math:`\mu`. It depends
    neither on :math:`\beta` nor on the units of y.
    """
    alpha = 1 + alpha_minus_one
    shape = (alpha + 0.5) * rho_excess_prime(alpha) - rho_excess(alpha) + 0.5 * binet_prime(alpha)
    return 0.5 * torch.log1p(1 / nu) + shape


# Maps ---------------------------------------------------------------------------------------------------------------


def affine(p: Parameters, loc: Tensor | float, scale: Tensor | float) -> Parameters:
    r"""Return the parameters for :math:`m + sy` instead of y: :math:`(s\gamma + m, \nu, \alpha, s^2\beta)`."""
    return Parameters(loc + scale * p.gamma, p.nu, p.alpha_minus_one, scale * (scale * p.beta))


def bounded_variance(variance: Tensor, prior: Tensor) -> Tensor:
    r"""Return :math:`b(v) = (1/v + 1/V_0)^{-1}`, which is at most the prior variance :math:`V_0`, also for v = 0."""
    return variance * (prior / (prior + variance))


def conjugate_evidence(
    p: Parameters, scale: Tensor, inside: Tensor, excess: Tensor, rate: Tensor, prior: Tensor, least_evidence: float
) -> Parameters:
    r"""Return the parameters with evidence by conjugacy, for targets of mean 0; see :mod:`howsure.nn.evidence`.

    With :math:`A = \kappa B` and :math:`b(v) = (1/v + 1/V_0)^{-1}`,

    .. math:: T = s^2 + b(A), \quad E = b(E_0 + A), \quad \nu = T/E - 1, \quad
              \beta = \frac{T \alpha \nu}{1 + \nu}, \quad \gamma' = \frac{\gamma V_0}{V_0 + B}.

    The predictive Student t then has the squared scale T, and its epistemic share is E/T.

    Args:
        p: γ and α−1.
        scale: s, the predictive scale that the network states.
        inside: :math:`E_0`, the variance of the mean at the training rows.
        excess: B, the variance of the mean beyond that at the training rows.
        rate: κ, the factor of B where its scale could not be learned.
        prior: :math:`V_0`, the prior variance of the mean.
        least_evidence: lower bound of ν.
    """
    added = rate * excess
    total = scale.square() + bounded_variance(added, prior)
    mean = inside + added
    mean = torch.minimum(bounded_variance(mean, prior), total / (1 + least_evidence))
    nu = (total - mean) / mean
    beta = (1 + p.alpha_minus_one) * (total - mean)
    return Parameters(p.gamma * (prior / (prior + excess)), nu, p.alpha_minus_one, beta)
