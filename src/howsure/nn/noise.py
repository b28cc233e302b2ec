"""Noise of a network that predicts means alone, from its residuals on held-out rows."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from howsure.formulas import student_t

__all__ = ["MAX_DF", "MIN_EXCESS_DF", "fit_student", "noise_weights"]

MIN_ROWS_FOR_NOISE = 200  # from which noise that varies is learned
NOISE_FOLDS = 5
MIN_EXCESS_DF = 1.0  # df − 2
MAX_DF = 1000.0  # a Student t with more is close to a normal distribution


def noise_weights(z: Tensor, r: Tensor) -> Tensor:
    """Return the weights of features (n, D) in ln s, by a ridge on ln r²; zeros where that does not help.

    The penalty is chosen by cross-validation of the normal likelihood. An infinite penalty, which is constant noise, is
    kept unless the best one is better by more than one standard error.
    """
    n = len(r)
    if n < MIN_ROWS_FOR_NOISE:
        return torch.zeros_like(z[0])
    logs = r.square().clamp(min=1e-12 * r.square().mean()).log() / 2
    penalties = [float(p) for p in np.geomspace(1e-2, 1e2, 9)]
    fold = torch.arange(n) % NOISE_FOLDS
    score = torch.empty(len(penalties) + 1, n, dtype=z.dtype)
    for k in range(NOISE_FOLDS):
        weights = torch.stack([*_ridge(z[fold != k], logs[fold != k], penalties), torch.zeros_like(z[0])], -1)
        pattern = z @ weights
        factor = (r.unsqueeze(1) / pattern.exp())[fold != k].square().mean(0).sqrt()
        log_scale = (pattern + factor.log())[fold == k]
        score[:, fold == k] = (log_scale + (r[fold == k].unsqueeze(1) / log_scale.exp()).square() / 2).T
    best = int(score.mean(1).argmin())
    gain = score[-1] - score[best]
    if not bool(gain.mean() > gain.std() / n**0.5):
        return torch.zeros_like(z[0])
    return _ridge(z, logs, [penalties[best]])[0]


def _ridge(z: Tensor, y: Tensor, penalties: Sequence[float]) -> list[Tensor]:
    """Return ridge regressions of y on z for several penalties, given in units of the number of rows."""
    values, directions = torch.linalg.eigh(z.T @ z / len(z))
    along = directions.T @ (z.T @ (y - y.mean()) / len(z))
    return [directions @ (along / (values.clamp(min=0) + p)) for p in penalties]


def fit_student(r: Tensor) -> tuple[Tensor, float]:
    """Return the scale and the degrees of freedom of the likeliest Student t of mean 0 for residuals (n,)."""
    found = []
    for df in np.geomspace(2 + MIN_EXCESS_DF, MAX_DF, 25):
        square = r.square().mean()
        for _ in range(50):  # expectation and maximisation
            square = (r.square() * (df + 1) / (df + r.square() / square)).mean()
        n, zero = torch.full_like(r, df), torch.zeros_like(r)
        found.append(
            (float(student_t.log_prob(r, n, zero, square.sqrt().expand_as(r)).mean()), square.sqrt(), float(df))
        )
    return max(found, key=lambda each: each[0])[1:]
