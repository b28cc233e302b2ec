"""Compares the time of the evidential loss with that of the paper's formula as public implementations write it.

Both compute the gradient of the mean loss with respect to the raw outputs, in float32. The claim: the stable form is
exact for every α and costs little more. Eager elementwise operations are bound by memory, since each reads and writes
its whole operands; so time follows the number of operations, not their kind.

    python benchmarks/bench_loss.py [--device cuda] [--rows 1000000] [--compile]
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

import evidentia as ev
from devices import device_label
from evidentia.reproduce.timing import synchronized_time
from evidentia.training import resolve_device

WEIGHT = 0.01


def stable(raw: Tensor, y: Tensor, weight: float = WEIGHT) -> Tensor:
    """Return the mean loss as the library computes it."""
    return ev.evidential_loss(ev.NormalInverseGamma.from_raw(raw), y, weight=weight)


def naive(raw: Tensor, y: Tensor, weight: float = WEIGHT) -> Tensor:
    """Return the mean loss by Eq. 8 and 9 of the paper as printed."""
    gamma, *rest = raw.unbind(-1)
    nu, a, beta = (torch.nn.functional.softplus(v) for v in rest)
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


def milliseconds(f: Callable[[Tensor, Tensor], Tensor], raw: Tensor, y: Tensor, repeats: int) -> float:
    """Return the median time of one forward and backward pass, after five to warm up."""
    times = []
    for _ in range(5 + repeats):
        started = synchronized_time(raw.device)
        torch.autograd.grad(f(raw, y), raw)
        times.append(synchronized_time(raw.device) - started)
    return 1e3 * statistics.median(times[5:])


def worst_error(f: Callable[..., Tensor], device: torch.device) -> float:
    """Return the largest error of the likelihood for α from 1 to 1e6, in nats.

    The reference is the library's own float64, which the tests hold to mpmath.
    """
    worst = 0.0
    for raw_alpha in torch.logspace(-2, 6, 33).tolist():
        raw = torch.tensor([[0.0, 0.5, raw_alpha, raw_alpha]], device=device)
        y = torch.tensor([0.7], device=device)
        worst = max(worst, abs(f(raw, y, weight=0.0).item() - stable(raw.double(), y.double(), weight=0.0).item()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="compile both")
    options = parser.parse_args()
    device = resolve_device(options.device)
    torch.manual_seed(0)
    raw = torch.randn(options.rows, 4, device=device, requires_grad=True)
    y = torch.randn(options.rows, device=device)
    ways = {"naive": naive, "evidentia": stable}
    if options.compile:
        ways = {name: torch.compile(f, fullgraph=True) for name, f in ways.items()}
    print(f"{options.rows} rows, float32, {'compiled' if options.compile else 'eager'}, torch {torch.__version__}")
    for name, f in {"naive": naive, "evidentia": stable}.items():
        print(f"{name:10s} worst error for α up to 1e6: {worst_error(f, device):.1e} nat")
    times = {name: milliseconds(f, raw, y, options.repeats) for name, f in ways.items()}
    if device.type == "cuda":  # elsewhere only ratios mean anything
        for name, ms in times.items():
            print(f"{name:10s} {ms:.3f} ms forward and backward")
    print(f"time of evidentia / naive on {device_label(device)}: {times['evidentia'] / times['naive']:.2f}")


if __name__ == "__main__":
    main()
