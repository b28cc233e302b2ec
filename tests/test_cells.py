"""Log probabilities of cells against mpmath, and their gradients against differences in 50 digits."""

import math

import mpmath as mp
import pytest
import torch
from scipy import stats

import oracles
from howsure.formulas import cells
from oracles import exact

CELLS = [
    (-0.3, 0.4),
    (0.2, 5.0),
    (-40.0, -30.0),
    (1000.0, 1000.5),
    (2.0, 2.0001),
    (-1e-9, 1e-9),
    (1e5, 1e6),
    (-math.inf, -2.0),
    (-math.inf, 3.0),
    (1.5, math.inf),
    (300.0, math.inf),
    (-8.0, math.inf),
]
DF = [2 + 1e-6, 30.0, 1e8]


def student_tail(t, n):
    if mp.isinf(t):
        return mp.mpf(0) if t > 0 else mp.mpf(1)
    return oracles.t_tail(t, n) if t >= 0 else 1 - oracles.t_tail(t, n)


def student_cell(lower, upper, n, loc, scale):
    """ln P by two tails in 50 digits, both on the side of the smaller one."""
    a, b = (lower - loc) / scale, (upper - loc) / scale
    if abs(a) > abs(b):
        a, b = -b, -a
    return mp.log(student_tail(a, n) - student_tail(b, n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("df", DF)
def test_student_cells_match_mpmath(df, dtype):
    loc, scale = torch.tensor(0.1, dtype=dtype), torch.tensor(0.7, dtype=dtype)
    df = torch.tensor(df, dtype=dtype)
    for lower, upper in CELLS:
        a, b = torch.tensor(lower, dtype=dtype), torch.tensor(upper, dtype=dtype)
        if df > 1e3 and abs(a) >= 300 and dtype == torch.float32:
            continue  # the logarithm itself is below the range that a float32 cell can be checked in
        truth = student_cell(exact(a), exact(b), exact(df), exact(loc), exact(scale))
        found = cells.student_log_prob(a, b, df, loc, scale)
        assert found.dtype == dtype
        bound = 2e-6 if dtype == torch.float32 else 1e-9
        assert float(abs(exact(found) - truth)) <= bound * max(1, abs(float(truth)))


@pytest.mark.parametrize("df", [2.5, 200.0])
@pytest.mark.parametrize("cell", CELLS[::2])
def test_student_gradients_match_differences(cell, df):
    values = [*cell, df, 0.1, 0.7]
    given = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
    slopes = torch.autograd.grad(cells.student_log_prob(*given), given)
    for k, slope in enumerate(slopes):
        if math.isinf(values[k]):
            assert slope == 0
            continue
        step = mp.mpf(10) ** -18
        moved = [[exact(v) + (sign * step if i == k else 0) for i, v in enumerate(values)] for sign in (1, -1)]
        truth = float((student_cell(*moved[0]) - student_cell(*moved[1])) / (2 * step))
        assert float(slope) == pytest.approx(truth, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("cell", CELLS)
def test_normal_cells_match_mpmath(cell):
    a, b = (torch.tensor(v, dtype=torch.float64) for v in cell)
    loc, scale = torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    x, y = ((exact(v) - exact(loc)) / exact(scale) for v in (a, b))
    x, y = (-y, -x) if abs(x) > abs(y) else (x, y)

    def tail(t):
        return mp.mpf(0) if mp.isinf(t) else mp.erfc(t / mp.sqrt(2)) / 2

    with mp.workdps(60):
        truth = mp.log(tail(x) - tail(y)) if abs(x) < 1e4 else mp.mpf(0)
    found = cells.normal_log_prob(a, b, loc, scale)
    if abs(x) < 1e4:
        assert float(found) == pytest.approx(float(truth), rel=1e-9, abs=1e-12)
    else:
        assert found < -1e9


def test_normal_gradients_match_autograd_of_scipy_values():
    given = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (-0.4, 1.2, 0.3, 0.8)]
    assert torch.autograd.gradcheck(cells.normal_log_prob, given)
    truth = math.log(stats.norm.cdf(1.2, 0.3, 0.8) - stats.norm.cdf(-0.4, 0.3, 0.8))
    assert cells.normal_log_prob(*given).item() == pytest.approx(truth, rel=1e-12)


def test_many_cells_equal_single_ones():
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(40_000, generator=generator, dtype=torch.float64)
    upper = lower + torch.rand(40_000, generator=generator, dtype=torch.float64)
    df, loc, scale = torch.full_like(lower, 4.0), torch.zeros_like(lower), torch.ones_like(lower)
    whole = cells.student_log_prob(lower, upper, df, loc, scale)
    some = torch.tensor([0, 17, 39_999])
    few = cells.student_log_prob(lower[some], upper[some], df[some], loc[some], scale[some])
    assert torch.allclose(whole[some], few, rtol=1e-13)


def test_cell_without_ends_is_certain():
    endless = torch.tensor(math.inf)
    df, loc, scale = (torch.tensor(v, requires_grad=True) for v in (5.0, 1.0, 2.0))
    found = cells.student_log_prob(-endless, endless, df, loc, scale)
    assert found == 0
    assert all(slope == 0 for slope in torch.autograd.grad(found, (df, loc, scale)))


def test_vmap_equals_a_batch():
    lower, upper = torch.tensor([0.0, 1.0, -3.0]), torch.tensor([0.5, 4.0, -2.0])
    one, zero, df = torch.tensor(1.0), torch.tensor(0.0), torch.tensor(5.0)
    each = torch.func.vmap(lambda a, b: cells.student_log_prob(a, b, df, zero, one))(lower, upper)
    assert torch.allclose(each, cells.student_log_prob(lower, upper, df, zero, one))


def test_second_derivative_raises():
    loc = torch.tensor(0.0, requires_grad=True)
    found = cells.student_log_prob(*(torch.tensor(v) for v in (0.0, 1.0, 4.0)), loc, torch.tensor(1.0))
    (slope,) = torch.autograd.grad(found, loc, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(slope, loc)
