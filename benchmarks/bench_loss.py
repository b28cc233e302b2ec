"""What exactness costs: the evidential loss against the paper's formula as every public implementation writes it.

Both go from raw outputs to the gradient of the mean loss, in float32, side by side in one run. The claim to check: the
stable form is right for every α and costs little more. The limit is memory: eager elementwise work reads and writes
each intermediate once, so that time follows the number of operations, not their kind.

    python benchmarks/bench_loss.py [--device cuda] [--rows 1000000] [--compile]
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import evidentia as ev

WEIGHT = 0.01


def stable(raw: Tensor, y: Tensor, weight: float = WEIGHT) -> Tensor:
    return ev.evidential_loss(ev.NormalInverseGamma.from_raw(raw), y, weight=weight)


def naive(raw: Tensor, y: Tensor, weight: float = WEIGHT) -> Tensor:
    """Eq. 8 and 9 of the paper as printed."""
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
    """Median time of one forward and backward pass."""

    def once() -> None:
        (gradient,) = torch.autograd.grad(f(raw, y), raw)
        if gradient.is_cuda:
            torch.cuda.synchronize()

    for _ in range(5):
        once()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        once()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def worst_error(f: Callable[..., Tensor], device: str) -> float:
    """Of the likelihood at α from 1 to 1e6, against the library's own float64, which the tests check by mpmath."""
    worst = 0.0
    for raw_alpha in torch.logspace(-2, 6, 33).tolist():
        raw = torch.tensor([[0.0, 0.5, raw_alpha, raw_alpha]], device=device)
        y = torch.tensor([0.7], device=device)
        worst = max(worst, abs(f(raw, y, weight=0.0).item() - stable(raw.double(), y.double(), weight=0.0).item()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="compile both")
    options = parser.parse_args()
    torch.manual_seed(0)
    raw = torch.randn(options.rows, 4, device=options.device, requires_grad=True)
    y = torch.randn(options.rows, device=options.device)
    ways = {"naive": naive, "evidentia": stable}
    if options.compile:
        ways = {name: torch.compile(f, fullgraph=True) for name, f in ways.items()}
    cuda = options.device.startswith("cuda")
    device = (
        torch.cuda.get_device_name() if cuda else f"{platform.processor() or 'cpu'}, {torch.get_num_threads()} threads"
    )
    print(f"{options.rows} rows, float32, {'compiled' if options.compile else 'eager'}, torch {torch.__version__}")
    for name, f in {"naive": naive, "evidentia": stable}.items():
        print(f"{name:10s} worst error for α up to 1e6: {worst_error(f, options.device):.1e} nat")
    times = {name: milliseconds(f, raw, y, options.repeats) for name, f in ways.items()}
    if cuda:  # absolute times mean something on that device only
        for name, ms in times.items():
            print(f"{name:10s} {ms:.3f} ms forward and backward")
    print(f"time of evidentia / naive on {device}: {times['evidentia'] / times['naive']:.2f}")


if __name__ == "__main__":
    main()
