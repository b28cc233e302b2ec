"""Means and variances of predictions."""

from typing import NamedTuple, cast

from torch import Tensor

from howsure.distributions import Discrete, Normal, NormalInverseGamma, StudentT, Transformed
from howsure.formulas import mixture as mixtures
from howsure.prediction.state import State

__all__ = ["Moments", "moments_of"]


class Moments(NamedTuple):
    """Means and variances of a prediction: of the mixture, and by the paper's formula if there is one."""

    mean: Tensor
    within: Tensor
    between: Tensor
    aleatoric: Tensor | None
    epistemic: Tensor | None

    @property
    def variance(self) -> Tensor:
        return self.within + self.between


def moments_of(p: State) -> Moments:
    """Return means and variances: from the parameters alone, or in the units of y where there is a transform."""
    answer = p.answers
    if p.transform is not None:
        mixture = cast(Transformed | Discrete, p.distribution)
        within, between = mixture.within_variance, mixture.between_variance
        aleatoric = within if isinstance(answer, Normal) else None
        epistemic = between if isinstance(answer, Normal) and p.several else None
        return Moments(mixture.mean, within, between, aleatoric, epistemic)
    if isinstance(answer, NormalInverseGamma):
        noise, means = answer.aleatoric_variance, answer.gamma
        doubt: Tensor | None = noise / answer.nu
    else:
        noise, means, doubt = answer.variance, answer.mean, None
    if p.gate is not None:
        gate, distance = p.gate.to(means.dtype), means - float(p.atom or 0)
        doubt = None if doubt is None else (1 - p.gate) * doubt
        means, noise = means - gate * distance, (1 - gate) * (noise + gate * distance.square())
    within = aleatoric = p._mean_over_members(noise)
    between = mixtures.spread_of_means(means, p._weights_like(means))
    parts = [between] if p.several else []
    if doubt is not None:
        parts.insert(0, p._mean_over_members(doubt))
        within = aleatoric + parts[0]
    mean = p._mean_over_members(means)
    if isinstance(answer, StudentT):
        return Moments(mean, within, between, None, None)
    return Moments(mean, within, between, aleatoric, sum(parts[1:], parts[0]) if parts else None)
