"""How exact the calculus is: worst errors against mpmath, by the same oracles as the tests.

Prints the table of docs/calculus.md: NLL and gradients over the whole domain, relative to max(1, Σ|terms|) for values
and to Σ|terms| for gradients; Student-t tails relative to themselves.

    python studies/accuracy.py
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import oracles
import test_nig
import test_student_t
from evidentia.formulas import nig, student_t
from oracles import exact


def likelihood(dtype: torch.dtype) -> tuple[float, float]:
    """(Worst error of the NLL, worst error of its gradients) over both routes, loss and predictive."""
    y, *rest = test_nig.domain(dtype)
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


def tails(dtype: torch.dtype) -> float:
    worst = 0.0
    for df in test_student_t.DF:
        n = torch.tensor(df, dtype=dtype)
        loc, scale = test_student_t.standard(dtype)
        level = torch.tensor(test_student_t.TAILS, dtype=torch.float64)
        t = student_t.isf(level, n.double(), loc.double(), scale.double()).to(dtype)
        for ti, got in zip(t, student_t.sf(t, n, loc, scale), strict=True):
            worst = max(worst, float(abs(exact(got) / oracles.t_tail(exact(ti), exact(n)) - 1)))
    return worst


def main() -> None:
    print(f"{'':10s}{'NLL':>10s}{'gradients':>12s}{'t tails':>10s}")
    for dtype in (torch.float32, torch.float64):
        value, gradient = likelihood(dtype)
        print(f"{str(dtype).removeprefix('torch.'):10s}{value:10.1e}{gradient:12.1e}{tails(dtype):10.1e}")


if __name__ == "__main__":
    main()
