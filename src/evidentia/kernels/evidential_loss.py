r"""Loss and gradient of an evidential network in one pass from its raw outputs, without a graph of twenty operations.

The same arithmetic as ``formulas.nig.from_raw``, ``formulas.nig.nll`` and ``formulas.penalties.error`` with their
derivatives written out. With :math:`r = y - \gamma`, :math:`a = \alpha - 1`, :math:`q = r^2 / (2\beta(1 + 1/\nu))` and
:math:`k = (\alpha + \tfrac12)\,q/(1+q)`

.. math:: \frac{\partial L}{\partial\gamma} = -\frac{2k}r - \lambda\,\mathrm{sgn}(r)(2\nu+\alpha), \quad
          \frac{\partial L}{\partial\nu} = \frac{k - \frac12}{\nu(\nu+1)} + 2\lambda|r|, \quad
          \frac{\partial L}{\partial\alpha} = \ln(1+q) - \rho'(\alpha) + \lambda|r|, \quad
          \frac{\partial L}{\partial\beta} = \frac{\frac12 - k}\beta.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from evidentia.formulas.nig import ALPHA_MINUS_ONE_FLOOR, BETA_FLOOR, NU_FLOOR
from evidentia.formulas.special import LOG_2PI, rho_from_one

__all__ = ["evidential_loss"]


def evidential_loss(raw: Tensor, y: Tensor, weight: Tensor | float) -> Tensor:
    """Return the negative log likelihood plus ``weight`` times the paper's penalty, elementwise.

    The gradient is that by ``raw`` alone, and cannot be differentiated again.

    Args:
        raw: four raw outputs in the last dimension, float32 or float64.
        y: targets, of the shape of ``raw`` without its last dimension.
        weight: λ, a number or a tensor that broadcasts to y.
    """
    loss: Tensor = _EvidentialLoss.apply(raw, y, weight)
    return loss


class _EvidentialLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, y: Tensor, weight: Tensor | float) -> Tensor:
        rows = raw.movedim(-1, 0).contiguous()
        nu, a, beta = softplus(rows[1:], threshold=40).unbind(0)
        nu, a, beta = nu + NU_FLOOR, a + ALPHA_MINUS_ONE_FLOOR, beta + BETA_FLOOR
        residual, inverse, alpha = y - rows[0], nu.reciprocal(), 1 + a
        spread = 1 + inverse
        part = residual / (2 * beta * spread)
        q = residual * part
        fit, size = torch.log1p(q), weight * residual.abs()
        exponent, evidence = 0.5 + alpha, 2 * nu + alpha
        rho, rho_prime = rho_from_one(alpha)
        loss = 0.5 * (LOG_2PI + (beta * spread).log()) + exponent * fit - rho + size * evidence
        if raw.requires_grad:
            slope = exponent / (1 + q)
            excess = slope * q - 0.5
            by_gamma = -2 * slope * part - weight * residual.sign() * evidence
            by_nu = excess * inverse * inverse / spread + 2 * size
            by_alpha = fit - rho_prime + size
            by_shape = torch.stack([by_nu, by_alpha, -excess / beta]) * torch.sigmoid(rows[1:])
            ctx.save_for_backward(torch.cat([by_gamma.unsqueeze(0), by_shape]))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grad).movedim(0, -1), None, None
