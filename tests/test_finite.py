"""Raw outputs anywhere in ±1e4: every loss, gradient and derived quantity is finite, in float32 and under autocast."""

import math

import pytest
import torch

import howsure as hs
from howsure.formulas.penalties import PENALTIES

EXTREMES = (-1e4, -1e3, -104.0, -88.8, -17.0, -1.0, 0.0, 1.0, 20.0, 88.8, 1e3, 1e4)
TARGETS = (-1e4, -1.0, 0.0, 1.0, 1e4)


def corners() -> tuple[torch.Tensor, torch.Tensor]:
    """Every combination of extreme raw outputs and targets."""
    raw = torch.cartesian_prod(*(torch.tensor(EXTREMES) for _ in range(4)))
    y = torch.tensor(TARGETS)
    return raw.repeat(len(y), 1), y.repeat_interleave(len(raw))


def draws(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A third uniform in ±1e4, a third log-uniform in size, a third normal, mixed by column; targets likewise."""
    g = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, (n, 5), generator=g) * 2 - 1
    uniform = (torch.rand(n, 5, generator=g) * 2 - 1) * 1e4
    logarithmic = sign * 10 ** (torch.rand(n, 5, generator=g) * 10 - 6)
    normal = torch.randn(n, 5, generator=g)
    kind = torch.randint(0, 3, (n, 5), generator=g)
    mixed = torch.where(kind == 0, uniform, torch.where(kind == 1, logarithmic, normal))
    return mixed[:, :4], mixed[:, 4]


def losses(raw: torch.Tensor, y: torch.Tensor):
    for penalty in PENALTIES:
        yield (
            penalty,
            lambda p=penalty: hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y, 1.0, p, reduction="none"),
        )


def quantities(answer: hs.NormalInverseGamma, y: torch.Tensor) -> dict[str, torch.Tensor]:
    t = answer.predictive()
    return {
        "prediction": answer.prediction,
        "aleatoric variance": answer.aleatoric_variance,
        "epistemic variance": answer.epistemic_variance,
        "predictive variance": answer.predictive_variance,
        "evidence": answer.evidence,
        "mean": answer.mean,
        "mode": answer.mode,
        "entropy": answer.entropy(),
        "mutual information": answer.mutual_information(),
        "predictive log_prob": t.log_prob(y),
        "predictive scale": t.scale,
        "predictive variance of t": t.variance,
        "predictive entropy": t.entropy(),
        "posterior variance": answer.update(y).predictive_variance,
        "other units": answer.affine(1e6, 1e6).predictive_variance,
    }


def tails(answer: hs.NormalInverseGamma, y: torch.Tensor) -> dict[str, torch.Tensor]:
    t = answer.predictive()
    level = torch.full_like(y, 0.05)
    return {"cdf": t.cdf(y), "sf": t.sf(y), "icdf": t.icdf(level), "isf": t.isf(level), "crps": t.crps(y)}


def check_finite(raw: torch.Tensor, y: torch.Tensor, mixed: bool) -> None:
    if mixed:
        # what a bfloat16 network hands over; the head's own layer stays in float32
        raw, y = raw.bfloat16(), y.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        for name, loss in losses(raw.requires_grad_(), y):
            value = loss()
            assert value.dtype == torch.float32
            assert value.isfinite().all(), name
            (gradient,) = torch.autograd.grad(value.sum(), raw)
            assert gradient.isfinite().all(), name
        with torch.no_grad():
            for name, value in quantities(hs.NormalInverseGamma.from_raw(raw), y).items():
                assert value.isfinite().all(), name


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16 autocast"])
def test_corners_are_finite(mixed):
    check_finite(*corners(), mixed)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16 autocast"])
def test_draws_are_finite(mixed):
    check_finite(*draws(200_000, seed=0), mixed)


def test_gradients_of_every_quantity_are_finite():
    raw, y = corners()
    raw, y = raw[::7].clone().requires_grad_(), y[::7]
    answer = hs.NormalInverseGamma.from_raw(raw)
    for name, value in {**quantities(answer, y), **tails(answer, y)}.items():
        (gradient,) = torch.autograd.grad(value.sum(), raw, retain_graph=True)
        assert value.isfinite().all(), name
        assert gradient.isfinite().all(), name


def test_variances_are_finite_until_they_must_be_infinite():
    shut = hs.NormalInverseGamma.from_raw(torch.full((1, 4), -1e4))
    assert shut.epistemic_variance.item() == pytest.approx(1e-9 / 1e-12)
    assert shut.variance[0, 1] == math.inf  # Var[σ²] does not exist for α ≤ 2


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16 autocast"])
def test_ten_million_draws_are_finite(mixed):
    for seed in range(20):
        check_finite(*draws(500_000, seed=seed + 1), mixed)
        if seed < 2:
            raw, y = draws(200_000, seed=seed + 101)
            for name, value in tails(hs.NormalInverseGamma.from_raw(raw), y).items():
                assert value.isfinite().all(), name
