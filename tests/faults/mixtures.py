"""Compare random mixtures, from needles far apart to members that coincide, with scipy's quadrature on a fine grid."""

import math

import numpy as np
import torch
from scipy import special

import howsure as hs

BATCH = 16  # mixtures of one kind and number of members are evaluated together
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_STEPS = np.concatenate([np.arange(17) * 0.5, 8 * 1.5 ** np.arange(1, 31)])  # up to 1.5e6 scales away
_CUTS = np.concatenate([-_STEPS[:0:-1], _STEPS])
_LEVELS = np.array([1e-12, 1e-4, 0.025, 0.25, 0.5, 0.75, 0.95])


def check(count: int = 1000, seed: int = 0, weighted: bool = False) -> tuple[int, list[str]]:
    """Compare ``count`` random mixtures with brute force; return how many comparisons were made, and what failed.

    Members count the same, or have weights from 1e-9 to 1, some of them 0.
    """
    random = np.random.default_rng(seed)
    tried, failed = 0, []
    while count > 0:
        members, normal = int(random.integers(1, 33)), bool(random.random() < 0.4)
        batch = [_draw(random, members) for _ in range(min(BATCH, count))]
        count -= len(batch)
        df, loc, scale, y = (np.stack(part) for part in zip(*batch, strict=True))
        flat = random.integers(1, max(2, members)) / max(2, members)  # lies in the gap between members far apart
        weights = _draw_weights(random, members) if weighted else None
        levels = np.unique(np.append(_LEVELS, [flat, random.random()]))
        answers = _answers(None if normal else df, loc, scale, y, levels, weights)
        share = np.full(members, 1 / members) if weights is None else weights / weights.sum()
        counts = share > 0
        for k in range(len(batch)):
            row = (None if normal else df[k][counts], loc[k][counts], scale[k][counts], share[counts])
            problems = _compare(row, y[k], levels, *(part[k] for part in answers))
            tried += 3 + 2 * len(levels)
            where = f"df={None if normal else df[k].tolist()}, loc={loc[k].tolist()}, scale={scale[k].tolist()}"
            where += "" if weights is None else f", weights={weights.tolist()}"
            failed += [f"{problem} (Mixture with y={y[k]!r}, {where})" for problem in problems]
    return tried, failed


def _draw(random: np.random.Generator, members: int) -> tuple[np.ndarray, ...]:
    """Return a mixture (df, loc, scale) and a value, drawn over the whole ranges of scales, distances and df."""
    scale = 10 ** (random.random(members) * random.uniform(0, 6) * random.integers(0, 2))
    apart = 10 ** random.uniform(-3, 6) * random.choice([scale.min(), np.median(scale)])
    loc = apart * random.choice([random.standard_normal(members), random.integers(0, 4, members)])
    shared = 2 + 10 ** random.uniform(-6, 8)
    df = np.where(random.random() < 0.5, 2 + 10 ** random.uniform(-6, 8, members), shared)
    unit = 10 ** random.uniform(-3, 3)
    chosen = int(random.integers(members))
    y = loc[chosen] + scale[chosen] * random.choice([0, random.standard_normal(), 10 * random.standard_normal()])
    return df, loc * unit, scale * unit, y * unit


def _draw_weights(random: np.random.Generator, members: int) -> np.ndarray:
    """Return weights of which one at least is positive."""
    weights = 10 ** (-9 * random.random(members) * random.random())
    weights[random.random(members) < 0.2] = 0
    weights[random.integers(members)] = 1
    return weights


def _answers(
    df: np.ndarray | None,
    loc: np.ndarray,
    scale: np.ndarray,
    y: np.ndarray,
    levels: np.ndarray,
    weights: np.ndarray | None,
) -> list:
    """Return the library's (lower quantiles, upper quantiles, CRPS, entropy) of a batch, one row per mixture."""
    m, s = torch.as_tensor(loc), torch.as_tensor(scale)
    each = hs.Normal(m, s) if df is None else hs.StudentT(torch.as_tensor(df), m, s)
    mixture = hs.Mixture(each, dim=1, weights=None if weights is None else torch.as_tensor(weights))
    p = torch.as_tensor(levels).unsqueeze(1)
    answers = [mixture.icdf(p).T, mixture.isf(p).T, mixture.crps(torch.as_tensor(y)), mixture.entropy()]
    return [answer.numpy() for answer in answers]


def _compare(row, y, levels, lower, upper, crps, entropy) -> list[str]:
    """Return what is wrong with the library's answers for one mixture."""
    _, loc, scale, share = row
    width = math.sqrt(share @ scale**2 + share @ (loc - share @ loc) ** 2)
    right_crps, right_entropy = _integrals(*row, y)
    problems = []
    if not abs(crps - right_crps) <= 1e-4 * width:
        problems.append(f"CRPS {crps!r}, not {right_crps!r}; the mixture's width is {width!r}")
    if not abs(entropy - right_entropy) <= 1e-3:
        problems.append(f"entropy {entropy!r}, not {right_entropy!r}")
    if not (np.all(np.diff(lower) >= 0) and np.all(np.diff(upper) <= 0)):
        problems.append(f"quantiles are not monotone: {lower.tolist()}, {upper.tolist()}")
    for sign, quantiles in ((1, lower), (-1, upper)):
        for level, quantile in zip(levels, quantiles, strict=True):
            # the smaller tail, which is the one on the other side for levels above one half
            side, wanted = (sign, level) if level <= 0.5 else (-sign, 1 - level)
            tail = _tail(*row, quantile, side)
            # how much of the mass lies between the neighbours of the quantile among the float64 numbers
            jump = np.ptp(_tail(*row, np.nextafter(quantile, [-math.inf, math.inf]), side))
            if not abs(tail - wanted) <= 1e-6 * wanted + 2 * jump:
                problems.append(f"{'icdf' if sign > 0 else 'isf'}({level!r}) = {quantile!r} has the tail {tail!r}")
    return problems


def _tail(df, loc, scale, share, x, side) -> np.ndarray:
    """Return the mixture's mass below x where side is 1, above x where it is −1."""
    z = (np.asarray(x)[..., None] - loc) / scale * np.asarray(side)[..., None]
    return (special.ndtr(z) if df is None else special.stdtr(df, z)) @ share


def _integrals(df, loc, scale, share, y) -> tuple[float, float]:
    """Return the CRPS ∫(F − 1[x ≥ y])² dx and the entropy −∫ p ln p dx.

    Panels are cut at fixed multiples of every member's scale.
    """
    edges = np.unique(np.append((loc[:, None] + scale[:, None] * _CUTS).ravel(), y))
    x = edges[:-1, None] + np.diff(edges)[:, None] * (_NODES + 1) / 2
    weights = (np.diff(edges)[:, None] * _WEIGHTS / 2).ravel()
    crps = weights @ _tail(df, loc, scale, share, x.ravel(), np.where(x.ravel() < y, 1, -1)) ** 2
    z = (x.reshape(-1, 1) - loc) / scale
    if df is None:
        log_p = -0.5 * z * z - 0.5 * math.log(2 * math.pi) - np.log(scale)
    else:
        constant = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * np.log(df * math.pi) - np.log(scale)
        log_p = constant - (df + 1) / 2 * np.log1p(z * z / df)
    log_p = special.logsumexp(log_p, b=share, axis=1)
    return float(crps), float(-weights @ (log_p * np.exp(log_p)))
