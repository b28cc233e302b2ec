"""The evidential losses of other packages, from raw outputs (N, 4) and targets (N,), for ``bench_loss.py``.

Where a package is installed, its own functions are called. Where it is not, the same operations are written out here,
and the name says so: they are for this benchmark only.
"""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["Loss", "naive", "peers"]

Loss = Callable[[Tensor, Tensor, float], Tensor]


def naive(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    """Return the mean loss by Eq. 8 and 9 of the paper, as its authors wrote them in code."""
    gamma, *rest = raw.unbind(-1)
    nu, a, beta = (softplus(v) for v in rest)
    alpha = a + 1
    omega = 2 * beta * (1 + nu)
    nll = (
        0.5 * torch.log(torch.pi / nu)
        - alpha * torch.log(omega)
        + (alpha + 0.5) * torch.log(nu * (y - gamma) ** 2 + omega)
        + torch.lgamma(alpha)
        - torch.lgamma(alpha + 0.5)
    )
    return (nll + weight * (y - gamma).abs() * (2 * nu + alpha)).mean()


def _edl_pytorch(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    """Return the loss of edl-pytorch: two means, each of its own expression."""
    from edl_pytorch.loss import evidential_regression

    gamma, nu, a, beta = raw.split(1, -1)
    loss: Tensor = evidential_regression(
        (gamma, softplus(nu), softplus(a) + 1, softplus(beta)), y.unsqueeze(-1), weight
    )
    return loss


def _edl_pytorch_written_out(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    y = y.unsqueeze(-1)
    gamma, nu, a, beta = raw.split(1, -1)
    nu, alpha, beta = softplus(nu), softplus(a) + 1, softplus(beta)
    double = 2 * beta * (1 + nu)
    nll = (
        0.5 * (torch.pi / nu).log()
        - alpha * double.log()
        + (alpha + 0.5) * (nu * (y - gamma) ** 2 + double).log()
        + alpha.lgamma()
        - (alpha + 0.5).lgamma()
    )
    return nll.mean() + weight * ((y - gamma).abs() * (2 * nu + alpha)).mean()


def _torch_uncertainty(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    """Return the loss of torch-uncertainty, without the checks of its distribution, which make a GPU wait."""
    from torch_uncertainty.losses import DERLoss
    from torch_uncertainty.utils.distributions import NormalInverseGamma

    gamma, nu, a, beta = raw.split(1, -1)
    nu, a, beta = (softplus(v).clamp(min=1e-6) for v in (nu, a, beta))
    loss: Tensor = DERLoss(weight)(NormalInverseGamma(gamma, nu, 1 + a, beta, validate_args=False), y.unsqueeze(-1))
    return loss


def _torch_uncertainty_written_out(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    y = y.unsqueeze(-1)
    gamma, nu, a, beta = raw.split(1, -1)
    nu, a, beta = (softplus(v).clamp(min=1e-6) for v in (nu, a, beta))
    alpha = 1 + a
    double = 2 * beta * (1 + nu)
    log_prob = (
        -0.5 * torch.log(torch.pi / nu)
        + alpha * double.log()
        - (alpha + 0.5) * torch.log(double + nu * (y - gamma) ** 2)
        - torch.lgamma(alpha)
        + torch.lgamma(alpha + 0.5)
    )
    return (-log_prob + weight * torch.norm(y - gamma, 1, dim=1, keepdim=True) * (2 * nu + alpha)).mean()


def _uq_box(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    """Return the loss of lightning-uq-box: another, shorter one, without Gamma functions, in which α has no part."""
    from lightning_uq_box.uq_methods.loss_functions import DERLoss

    loss: Tensor = DERLoss(weight)(_uq_box_layer(raw), y.unsqueeze(-1))
    return loss


def _uq_box_written_out(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    gamma, nu, _, beta = _uq_box_layer(raw).split(1, 1)
    variance = beta / nu
    return (variance.log() + (1.0 + weight * nu) * (gamma - y.unsqueeze(-1)) ** 2 / variance).mean()


def _uq_box_layer(raw: Tensor) -> Tensor:
    gamma, nu, a, beta = raw.split(1, 1)
    return torch.cat((gamma, softplus(nu), softplus(a) + 1.0, softplus(beta)), dim=1)


def peers() -> dict[str, Loss]:
    """Return the losses of other packages by name."""
    found: dict[str, Loss] = {}
    for name, module, own, written in (
        ("edl-pytorch", "edl_pytorch", _edl_pytorch, _edl_pytorch_written_out),
        ("torch-uncertainty", "torch_uncertainty", _torch_uncertainty, _torch_uncertainty_written_out),
        ("lightning-uq-box", "lightning_uq_box", _uq_box, _uq_box_written_out),
    ):
        installed = importlib.util.find_spec(module) is not None
        found[name if installed else f"{name} (written out)"] = own if installed else written
    return found
