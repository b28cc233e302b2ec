"""Distance of features from the features of the training set, as a score for inputs unlike the training data.

It is fitted to training features only, and costs one small matrix product in a forward pass.
"""

from typing import Self

import torch
from torch import Tensor, nn

from howsure.errors import InputError
from howsure.nn.checks import check_counts, check_features

__all__ = ["FeatureDensity"]

FLOOR = 1e-10
"""Smallest variance along any direction, as a share of the largest; keeps distances finite for constant features."""


class FeatureDensity(nn.Module):
    """Mahalanobis distance √((x − μ)ᵀ Σ⁻¹ (x − μ)) of features (…, D) from the training set, of shape (…).

    Use :meth:`fit` to make one. ``FeatureDensity(D)`` itself returns NaN until a state dict is loaded into it. The
    buffers are float64, because the directions of smallest variance contribute most.

    Args:
        features: D.

    >>> density = FeatureDensity.fit(torch.randn(500, 8))
    >>> bool(density(torch.full((8,), 9.0)) > density(torch.zeros(8)))
    True
    """

    mean: Tensor
    whiten: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        check_counts(features=features)
        self.register_buffer("mean", torch.full((features,), torch.nan, dtype=torch.float64))
        self.register_buffer("whiten", torch.full((features, features), torch.nan, dtype=torch.float64))

    @classmethod
    @torch.no_grad()
    def fit(cls, features: Tensor, shrinkage: float | None = None) -> Self:
        """Return the distance from these training features.

        The covariance is shrunk towards a multiple of the identity. With any shrinkage the distance depends on the
        units of the features: scale them alike first. Variances have a floor of 1e-10 of the largest, so that distances
        are finite for few rows or a constant column.

        Args:
            features: training features, (N, D).
            shrinkage: from 0, the plain covariance, to 1, the identity alone. None takes the estimate of Ledoit and
                Wolf (2004).
        """
        _check_training(features, shrinkage)
        mean = features.double().mean(0)
        x = features.double() - mean
        covariance = x.mT @ x / len(x)
        target = covariance.trace() / len(mean) * torch.eye(len(mean), dtype=x.dtype, device=x.device)
        share = ledoit_wolf(x, covariance, target) if shrinkage is None else shrinkage
        variances, directions = torch.linalg.eigh(torch.lerp(covariance, target, share))
        new = cls(len(mean)).to(x.device)
        new.mean.copy_(mean)
        new.whiten.copy_(directions * variances.clamp(min=FLOOR * variances[-1]).rsqrt())
        return new

    def forward(self, features: Tensor) -> Tensor:
        check_features(self, features, len(self.mean))
        with torch.autocast(features.device.type, enabled=False):
            dtype = torch.promote_types(torch.promote_types(features.dtype, self.mean.dtype), torch.float32)
            whitened = (features.to(dtype) - self.mean.to(dtype)) @ self.whiten.to(dtype)
            distance: Tensor = torch.linalg.vector_norm(whitened, dim=-1)
        return distance.to(torch.promote_types(features.dtype, torch.float32))


def _check_training(features: Tensor, shrinkage: float | None) -> None:
    if features.ndim != 2 or features.shape[0] < 2 or features.shape[1] < 1:
        raise InputError(f"features must have shape (N, D) with at least 2 rows, got {tuple(features.shape)}")
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise InputError(f"shrinkage must lie in [0, 1], got {shrinkage}; None estimates it", value=shrinkage)
    check_finite(features)
    if bool((features == features[0]).all()):
        raise InputError(f"all {len(features)} rows of features are the same; a distance needs features that vary")


def check_finite(features: Tensor) -> None:
    """Raise an error with the number of rows of features (N, …) that are not finite, and the first of them."""
    bad = ~features.isfinite().all(1)
    if bool(bad.any()):
        raise InputError(
            f"features must be finite: {int(bad.sum())} of {len(bad)} rows have NaN or infinite values",
            row=int(bad.nonzero()[0]),
            hint="leave them out, or look for the network that made them",
        )


def ledoit_wolf(x: Tensor, covariance: Tensor, target: Tensor) -> Tensor:
    """Return the share of the target that minimises the expected squared error of the covariance of centred rows x."""
    distance = (covariance - target).square().sum()
    noise = (x.square().sum(1).square().mean() - covariance.square().sum()) / len(x)
    return torch.where(distance > 0, noise / distance, torch.zeros_like(distance)).clamp(0, 1)
