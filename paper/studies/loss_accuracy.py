"""How exact the evidential loss and its gradients are on a device, against mpmath with 50 digits.

Raw outputs are drawn from everyday ones to the ends of float32: α−1 from 1e-6 to 1e8, ν and β from their floors to 1e6,
errors from 0 to 1e6. An error is relative to the sizes of the terms that a number adds up, as in the tests, whose bars
are 2e-6 for the loss and 8e-6 for gradients in float32.

    python paper/studies/loss_accuracy.py [--device cuda] [--points 2000] [--out paper/docs/results/loss_accuracy]
"""

import argparse
from pathlib import Path
from typing import Any

import mpmath as mp
import torch
from torch import Tensor

from howsure.formulas import nig
from howsure.kernels.evidential_loss import evidential_loss_from_raw, uses_triton
from howsure.training import resolve_device
from howsure_paper.record import environment, write_record

WEIGHT = 0.25
NAMES = ("loss", "by γ", "by ν", "by α", "by β")


def draw(points: int) -> tuple[Tensor, Tensor]:
    """Return raw outputs and targets, half of them everyday ones and half from end to end."""
    g = torch.Generator().manual_seed(0)
    raw = torch.empty(points, 4).uniform_(-6, 6, generator=g)
    raw[:, 2] = torch.empty(points).uniform_(-14, 20, generator=g)
    wide = points // 2
    for k, (low, high) in enumerate(((-14.0, 6.0), (-14.0, 8.0), (-20.0, 9.0)), start=1):
        u = torch.empty(wide).uniform_(low, high, generator=g)
        raw[:wide, k] = torch.where(u > 0, 10**u, u)
    y = 3 * torch.randn(points, generator=g)
    y[:wide] = raw[:wide, 0] + 10 ** torch.empty(wide).uniform_(-6, 6, generator=g)
    return raw, y


def exact_terms(y: mp.mpf, gamma: mp.mpf, nu: mp.mpf, a: mp.mpf, beta: mp.mpf) -> list[list[mp.mpf]]:
    """Return the terms of the loss and of its derivatives by the four parameters, from their definitions."""
    half = mp.mpf(1) / 2
    r, alpha, lam = y - gamma, 1 + a, mp.mpf(WEIGHT)
    z = nu * r**2 / (2 * beta * (1 + nu))
    pull, evidence, size = (alpha + half) * z / (1 + z), 2 * nu + alpha, abs(r)
    rho = mp.loggamma(alpha + half) - mp.loggamma(alpha)
    return [
        [half * mp.log(2 * beta * (1 + nu) / nu), half * mp.log(mp.pi), (alpha + half) * mp.log1p(z), -rho,
         lam * size * evidence],
        [-(alpha + half) * nu * r / (beta * (1 + nu)) / (1 + z), -lam * mp.sign(r) * evidence],
        [-half / (nu * (1 + nu)), pull / (nu * (1 + nu)), 2 * lam * size],
        [mp.log1p(z), -(mp.psi(0, alpha + half) - mp.psi(0, alpha)), lam * size],
        [half / beta, -pull / beta],
    ]  # fmt: skip


def worst_errors(raw: Tensor, y: Tensor, device: torch.device) -> dict[str, float]:
    """Return the largest error of the loss and of each gradient, relative to the size of its terms."""
    mine = raw.clone().to(device).requires_grad_()
    loss = evidential_loss_from_raw(mine, y.to(device), WEIGHT, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), mine)
    parameters = nig.from_raw(raw.double())
    slopes = torch.sigmoid(raw.double())
    slopes[:, 0] = 1.0
    worst = dict.fromkeys(NAMES, 0.0)
    for k in range(len(y)):
        terms = exact_terms(*(mp.mpf(float(t[k])) for t in (y, *parameters)))
        found = [loss[k].item(), *gradient[k].tolist()]
        for name, got, own, chain in zip(NAMES, found, terms, [1.0, *slopes[k].tolist()], strict=True):
            size = chain * sum(abs(t) for t in own)
            if size > 1e-30:  # below, float32 has no digits left
                worst[name] = max(worst[name], float(abs(got - chain * sum(own)) / size))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="folder for a record")
    options = parser.parse_args()
    mp.mp.dps = 50
    device = resolve_device(options.device)
    raw, y = draw(options.points)
    results: dict[str, Any] = {}
    for place in {torch.device("cpu"), device}:
        there = raw.to(place)
        kernel = "triton" if uses_triton(there, there) else f"tensors on {place.type}"
        results[kernel] = worst_errors(raw, y, place)
        print(kernel, ", ".join(f"{name} {error:.1e}" for name, error in results[kernel].items()))
    if options.out:
        record = {"run": "loss_accuracy", "environment": environment(device), "points": options.points}
        write_record(options.out, record | {"largest errors": results})
    print(f"largest error of the loss, float32, {device}: {max(each['loss'] for each in results.values()):.1e}")


if __name__ == "__main__":
    main()
