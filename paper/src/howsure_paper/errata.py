"""The paper's errors in numbers: what it prints, what is right, and a check that uses neither formula.

python -m howsure_paper.errata          all of them
python -m howsure_paper.errata E8 E10   some of them

The check is by simulation with torch's own samplers wherever one is possible. ``docs/errata.md`` has the words.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Gamma, Normal, StudentT

from howsure.distributions import NormalInverseGamma
from howsure.formulas import nig, penalties, student_t

__all__ = ["ERRATA", "Row", "main"]

DRAWS = 1_000_000


@dataclass(frozen=True)
class Row:
    """Three numbers: most often what the paper prints, what is right, and a check with its standard error."""

    what: str
    paper: float
    right: float
    check: float
    error: float = 0.0


COLUMNS = ("paper", "right", "check")


def _f64(*values: float) -> list[Tensor]:
    return [torch.tensor(v, dtype=torch.float64) for v in values]


def _nig(gamma: float, nu: float, alpha: float, beta: float) -> nig.Parameters:
    return nig.Parameters(*_f64(gamma, nu, alpha - 1, beta))


def _simulate(p: nig.Parameters) -> tuple[Tensor, Tensor, Tensor]:
    """Draws of μ, σ² and y by the definition of the model."""
    torch.manual_seed(0)
    sigma2 = 1 / Gamma(1 + p.alpha_minus_one, p.beta).sample((DRAWS,))
    mu = Normal(p.gamma, (sigma2 / p.nu).sqrt()).sample()
    return mu, sigma2, Normal(mu, sigma2.sqrt()).sample()


def _log_density(p: nig.Parameters, mu: Tensor, sigma2: Tensor) -> Tensor:
    """ln p(μ|σ²) + ln p(σ²) from torch's normal and gamma densities (with the Jacobian of 1/σ²)."""
    precision = Gamma(1 + p.alpha_minus_one, p.beta).log_prob(1 / sigma2) - 2 * sigma2.log()
    total: Tensor = Normal(p.gamma, (sigma2 / p.nu).sqrt()).log_prob(mu) + precision
    return total


def _row(what: str, paper: float, right: float | Tensor, samples: Tensor) -> Row:
    error = float(samples.std() / len(samples) ** 0.5)
    return Row(what, paper, float(right), float(samples.mean()), error)


def factorisation() -> list[Row]:
    """I(μ; σ²) > 0, where a factorised density would have 0."""
    rows = []
    for alpha in _f64(1.6, 2.5, 6.0):
        p = _nig(0.0, 1.0, float(alpha), 1.0)
        mu, sigma2, _ = _simulate(p)
        scale = (p.beta / (p.nu * alpha)).sqrt()
        gain = Normal(p.gamma, (sigma2 / p.nu).sqrt()).log_prob(mu) - StudentT(2 * alpha, p.gamma, scale).log_prob(mu)
        # H(μ) − E[H(μ|σ²)], with E[ln σ²] = ln β − ψ(α)
        conditional = 0.5 * (math.log(2 * math.pi * math.e) + p.beta.log() - torch.digamma(alpha) - p.nu.log())
        right = student_t.entropy(2 * alpha, scale) - conditional
        rows.append(_row(f"I(μ; σ²) at α = {alpha:g}", 0.0, right, gain))
    return rows


def variance_of_the_mean() -> list[Row]:
    """The lines before the result of Var[μ]."""
    gamma, nu, alpha, beta = 0.3, 0.7, 4.5, 1.3
    mu, _, _ = _simulate(_nig(gamma, nu, alpha, beta))
    inner = beta / (alpha - 1) / nu
    return [
        _row("E[μ²]", gamma**2 - inner, gamma**2 + inner, mu**2),
        _row("Var[μ]", -inner, inner, (mu - gamma) ** 2),
    ]


def virtual_observations() -> list[Row]:
    """A posterior from 37 observations and no prior: which parameter counts what."""
    torch.manual_seed(0)
    y = 2 * torch.randn(37, dtype=torch.float64)
    squares = float(((y - y.mean()) ** 2).sum())
    q = nig.conjugate_update(y, *_nig(0.0, 1e-9, 1e-9, 1e-9))
    alpha = 1 + float(q.alpha_minus_one)
    return [
        Row("observations behind the variance", alpha, 2 * alpha, 37),
        Row("sum of squared deviations", 2 * float(q.nu), 2 * float(q.beta), squares),
    ]


def total_evidence() -> list[Row]:
    """By how much one observation raises Φ, which is called a count of observations."""
    before = _nig(0.0, 2.0, 3.0, 1.0)
    after = nig.conjugate_update(torch.zeros(1, dtype=torch.float64), *before)
    paper, right = (float(f(after) - f(before)) for f in (lambda p: 2 * p.nu + p.alpha_minus_one, _natural_count))
    return [Row("an observation adds to Φ", paper, right / 2, 1)]


def _natural_count(p: nig.Parameters) -> Tensor:
    return p.nu + 2 * (1 + p.alpha_minus_one)


def scale_and_variance() -> list[Row]:
    """β(1+ν)/(να) is called the scale; it is its square, and neither is the variance."""
    p = _nig(0.3, 0.7, 4.5, 1.3)
    _, _, y = _simulate(p)
    scale = nig.predictive_scale(*p[1:])
    quantile = float(StudentT(9.0).sample((DRAWS,)).abs().median())
    printed = float(scale) ** 2
    return [
        _row("Var[y] if the printed quantity were it", printed, nig.predictive_variance(*p[1:]), (y - p.gamma) ** 2),
        Row(
            "median of |y − γ|", printed * quantile, float(scale) * quantile, float((y - p.gamma).abs().median()), 1e-3
        ),
    ]


def kl_divergence() -> list[Row]:
    """KL(NIG(.3, .7, 2.5, 1.3) ‖ NIG(−.2, 2, 3, 2)) and the authors' other test point."""
    rows = []
    for first, second in (((0.3, 0.7, 2.5, 1.3), (-0.2, 2.0, 3.0, 2.0)), ((0.3, 2.0, 3.0, 1.5), (-0.4, 0.7, 2.0, 1.1))):
        p, q = _nig(*first), _nig(*second)
        mu, sigma2, _ = _simulate(p)
        gain = _log_density(p, mu, sigma2) - _log_density(q, mu, sigma2)
        missing = -0.5 * math.log(second[1] / first[1])
        right = float(nig.kl_divergence(p, q))
        rows.append(_row(f"NIG{first} ‖ NIG{second}", right - missing, right, gain))
    return rows


def released_kl_divergence() -> list[Row]:
    """The released code has the missing term, but (α−1)/β where E[1/σ²] = α/β belongs."""
    first, second = (0.3, 0.7, 2.5, 1.3), (-0.2, 2.0, 3.0, 2.0)
    p, q = _nig(*first), _nig(*second)
    mu, sigma2, _ = _simulate(p)
    right = float(nig.kl_divergence(p, q))
    released = right - 0.5 * second[1] * (first[0] - second[0]) ** 2 / first[3]
    return [_row("KL as released", released, right, _log_density(p, mu, sigma2) - _log_density(q, mu, sigma2))]


def _printed_soft_kl(nu: float, alpha: float, epsilon: float) -> float:
    digamma = float(torch.digamma(_f64(alpha)[0]))
    logs = math.lgamma(alpha) - math.lgamma(1 + epsilon)
    return 0.5 * (1 + epsilon) / nu - 0.5 - logs + (alpha - 1 - epsilon) * digamma


def soft_kl() -> list[Row]:
    """The divergence from ε evidence; as printed it can be negative, which no divergence is."""
    rows = []
    for nu, alpha, epsilon in ((4.0, 3.0, 0.01), (100.0, 1.01, 0.01)):
        p, q = _nig(0.0, nu, alpha, 1.0), _nig(0.0, epsilon, 1 + epsilon, 1.0)
        mu, sigma2, _ = _simulate(p)
        gain = _log_density(p, mu, sigma2) - _log_density(q, mu, sigma2)
        right = penalties.kl(p.gamma, *p, epsilon=epsilon)
        rows.append(
            _row(f"ν = {nu:g}, α = {alpha:g}, ε = {epsilon:g}", _printed_soft_kl(nu, alpha, epsilon), right, gain)
        )
    return rows


def soft_kl_limit() -> list[Row]:
    """That KL → ∞ as ε → 0 is true, but not of the printed formula."""
    rows = []
    for epsilon in (1e-2, 1e-4, 1e-8):
        p, q = _nig(0.0, 4.0, 3.0, 1.0), _nig(0.0, epsilon, 1 + epsilon, 1.0)
        mu, sigma2, _ = _simulate(p)
        gain = _log_density(p, mu, sigma2) - _log_density(q, mu, sigma2)
        printed = _printed_soft_kl(4.0, 3.0, epsilon)
        rows.append(_row(f"ε = {epsilon:g}", printed, penalties.kl(p.gamma, *p, epsilon=epsilon), gain))
    return rows


def noise_of_the_cubic() -> list[Row]:
    """N(0, 3) in the paper's notation has variance 3; the problem it repeats, and the code, have deviation 3."""
    torch.manual_seed(0)
    noise = 3 * torch.randn(DRAWS, dtype=torch.float64)
    return [_row("variance of the noise", 3.0, 9.0, noise**2)]


def best_of_table() -> list[Row]:
    """Table 1's own NLL: the best competitor where the text says that the evidential column leads on all sets."""
    return [
        Row("Energy: 'best', against ensembles", 1.39, 1.38, 1.38),
        Row("Power: 'best', against ensembles", 2.81, 2.79, 2.79),
    ]


def mixed_error_bars() -> list[Row]:
    """Dropout's ± is a standard error over 20 splits, the ensembles' a standard deviation."""
    return [Row("± of dropout on Boston as a deviation", 0.19, 0.19 * math.sqrt(20), 0.85)]


def calibration_quantiles() -> list[Row]:
    """Coverage of nominal 90 % when the law is known: Gaussian quantiles with the epistemic deviation alone."""
    p = _nig(0.0, 2.0, 3.0, 4.0)
    _, _, y = _simulate(p)
    half = 1.6448536 * float(nig.epistemic_variance(*p[1:])) ** 0.5
    as_released = float((y.abs() <= half).double().mean())
    t = NormalInverseGamma(0.0, 2.0, 3.0, 4.0).predictive()
    inside = (y.abs() <= float(t.isf(torch.tensor(0.05)))).double()
    return [_row("share of y in the 90 % interval", as_released, 0.9, inside)]


def dual_ascent() -> list[Row]:
    """λ += 1e-4·(penalty − 0.01) for 10,000 steps at the least evidence there is: it cannot stop rising."""
    torch.manual_seed(0)
    r = torch.randn(DRAWS, dtype=torch.float64)
    least = penalties.error(r, *_f64(0.0, 0.0, 0.0, 1.0))
    return [
        _row("smallest penalty a unit-variance target allows", 0.01, math.sqrt(2 / math.pi), least),
        Row("λ after 10,000 steps, at least", 0.0, math.sqrt(2 / math.pi) - 0.01, float(least.mean()) - 0.01, 1e-3),
    ]


def unidentified_split() -> list[Row]:
    """The NLL along β = Sαν/(1+ν), where the share of variance called aleatoric is ν/(1+ν)."""
    y, alpha, s2 = _f64(0.7)[0], 3.0, 2.0
    rows = []
    for nu in (1e-3, 1.0, 1e3):
        beta = s2 * alpha * nu / (1 + nu)
        p = _nig(0.0, nu, alpha, beta)
        df, loc, scale = _f64(2 * alpha, 0.0, math.sqrt(s2))
        truth = float(-StudentT(df, loc, scale).log_prob(y))
        share = float(nig.aleatoric_variance(*p[2:]) / nig.predictive_variance(*p[1:]))
        rows.append(Row(f"ν = {nu:g}", float(nig.nll(y, *p)), truth, share))
    return rows


def biased_by_the_penalty() -> list[Row]:
    """The predictive that minimises E[NLL] + λE|r|Φ for residuals of a standard normal, whose own variance is 1."""
    r = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    density = torch.exp(-0.5 * r * r)
    torch.manual_seed(0)
    drawn = torch.randn(100_000, dtype=torch.float64)
    rows = []
    for weight in (1e-3, 1e-2, 1e-1):
        alpha, inflation = _penalised_minimiser(weight, r, density / density.sum())
        _, by_draws = _penalised_minimiser(weight, drawn, torch.full_like(drawn, 1 / len(drawn)))
        rows.append(Row(f"λσ = {weight:g}", alpha, inflation, by_draws))
    return rows


def _penalised_minimiser(weight: float, residuals: Tensor, mass: Tensor) -> tuple[float, float]:
    """(α, predictive variance over that of the residuals) at the minimum, with ν → 0, where the penalty drives it."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")
    nu = torch.tensor(1e-9, dtype=torch.float64)

    def closure() -> Tensor:
        optimizer.zero_grad()
        a, s2 = x.exp()
        # β = S α ν/(1+ν) leaves the predictive as it is, whatever ν
        p = nig.Parameters(torch.zeros_like(a), nu, a, s2 * (1 + a) * nu / (1 + nu))
        loss = (mass * (nig.nll(residuals, *p) + weight * penalties.error(residuals, *p))).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    a, s2 = x.detach().exp().tolist()
    return 1 + a, s2 * (1 + a) / a / float((mass * residuals**2).sum())


def smallest_over_test_batches() -> list[Row]:
    """A fixed model whose errors have deviation 1: the least RMSE over test batches of 100, as the code reports it."""
    rows = []
    sets = (("Concrete", 103, 371, 400), ("Kin8nm", 819, 2950, 20), ("Protein", 4573, 258, 20))
    for name, test_rows, evaluations, trials in sets:
        torch.manual_seed(0)
        reported, whole = [], []
        for _ in range(trials):
            squares = torch.randn(test_rows).square()
            # the first 100 of a random order
            batches = torch.rand(evaluations, test_rows).topk(100).indices
            reported.append(squares[batches].mean(1).min().sqrt())
            whole.append(squares.mean().sqrt())
        rows.append(
            _row(f"RMSE of a model with RMSE 1, {name}", float(torch.stack(reported).mean()), 1.0, torch.stack(whole))
        )
    return rows


ERRATA: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "E1": ("Sec. 3.1, Eq. S3: q(μ, σ²) = q(μ) q(σ²)", factorisation),
    "E2": ("Eq. S11, S12: the derivation of Var[μ]", variance_of_the_mean),
    "E3": ("Sec. 3.1: α virtual observations, squared deviations 2ν", virtual_observations),
    "E4": ("Sec. 3.1: Φ = 2ν + α counts observations", total_evidence),
    "E5": ("Eq. 7: the scale of the Student t", scale_and_variance),
    "E6": ("Sec. S1.3: the KL divergence", kl_divergence),
    "E7": ("released code: the KL divergence", released_kl_divergence),
    "E8": ("Sec. S1.3: the KL divergence from ε evidence", soft_kl),
    "E9": ("Sec. 3.3: KL → ∞ as ε → 0", soft_kl_limit),
    "E10": ("Sec. S2.1.1: ε ~ N(0, 3)", noise_of_the_cubic),
    "E11": ("Table 1: best NLL on all data sets", best_of_table),
    "E12": ("Table 1: ±", mixed_error_bars),
    "E13": ("Fig. 4C: calibration", calibration_quantiles),
    "E14": ("released code: dual ascent on λ", dual_ascent),
    "E15": ("Sec. 3.3: the loss separates the two uncertainties", unidentified_split),
    "E16": ("Eq. 9: the regularizer and the predictive variance", biased_by_the_penalty),
    "E17": ("released code: the numbers of Table 1", smallest_over_test_batches),
}

# where the three numbers are something else
OTHER_COLUMNS = {
    "E15": ("NLL", "the t's", "aleatoric"),
    "E16": ("best α", "Var[y]", "by draws"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m howsure_paper.errata",
        description="Show the paper's errors in numbers. Example: python -m howsure_paper.errata E6 E8",
    )
    parser.add_argument("keys", nargs="*", metavar="KEY", help=f"which ones (default: all): {', '.join(ERRATA)}")
    keys = parser.parse_args(arguments).keys or list(ERRATA)
    unknown = [key for key in keys if key not in ERRATA]
    if unknown:
        parser.error(f"unknown erratum {unknown[0]!r}; known are {', '.join(ERRATA)}")
    for key in keys:
        title, demonstrate = ERRATA[key]
        columns = "".join(f"{name:>10s}" for name in OTHER_COLUMNS.get(key, COLUMNS))
        print(f"\n{key}  {title}\n{'':56s}{columns}")
        for row in demonstrate():
            error = f" ± {row.error:.4f}" if row.error else ""
            print(f"  {row.what:54s}{row.paper:10.4f}{row.right:10.4f}{row.check:10.4f}{error}")


if __name__ == "__main__":
    main()
