"""Measures the largest errors of the formulas against mpmath, with the oracles of the tests.

Prints the table of docs/calculus.md. Errors of the NLL over the whole domain are relative to max(1, Σ|terms|), those of
its gradients to Σ|terms|, and those of Student-t tails to the tails themselves.

    python paper/studies/accuracy.py [--every 1]
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import oracles
import test_nig
import test_student_t
from howsure.formulas import nig, student_t
from oracles import exact


def likelihood_errors(dtype: torch.dtype, every: int) -> tuple[float, float]:
    """Return the largest error of the NLL and of its gradients, computed by the loss and by the predictive density.

    Args:
        dtype: Precision of the formulas.
        every: Distance between the points of the domain that are tried; 1 tries all.
    """
    y, *rest = (values[::every] for values in test_nig.domain(dtype))
    rows = [[exact(v) for v in row] for row in zip(y, *rest, strict=True)]
    values = [oracles.nll_terms(*row) for row in rows]
    slopes = [oracles.nll_gradient_terms(*row) for row in rows]
    value = gradient = 0.0
    for route in (test_nig.by_loss, test_nig.by_predictive):
        p = nig.Parameters(*(v.clone().requires_grad_() for v in rest))
        nll = route(y, p)
        value = max(value, test_nig.worst(nll, values))
        for k, by_k in enumerate(torch.autograd.grad(nll.sum(), p)):
            for got, terms in zip(by_k, slopes, strict=True):
                size = sum(map(abs, terms[k]))
                if size:
                    gradient = max(gradient, float(abs(exact(got) - sum(terms[k])) / size))
    return value, gradient


def tail_error(dtype: torch.dtype, every: int) -> float:
    """Return the largest relative error of Student-t tails; ``every`` is the distance between degrees of freedom."""
    worst = 0.0
    for df in test_student_t.DF[::every]:
        n = torch.tensor(df, dtype=dtype)
        loc, scale = test_student_t.standard(dtype)
        level = torch.tensor(test_student_t.TAILS, dtype=torch.float64)
        t = student_t.isf(level, n.double(), loc.double(), scale.double()).to(dtype)
        for ti, got in zip(t, student_t.sf(t, n, loc, scale), strict=True):
            worst = max(worst, float(abs(exact(got) / oracles.t_tail(exact(ti), exact(n)) - 1)))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="try only every so many points of the domain")
    options = parser.parse_args()
    print(f"{'':10s}{'NLL':>10s}{'gradients':>12s}{'t tails':>10s}")
    for dtype in (torch.float32, torch.float64):
        value, gradient = likelihood_errors(dtype, options.every)
        tail = tail_error(dtype, options.every)
        print(f"{str(dtype).removeprefix('torch.'):10s}{value:10.1e}{gradient:12.1e}{tail:10.1e}")


if __name__ == "__main__":
    main()
