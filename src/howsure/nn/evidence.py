r"""Evidence by conjugacy: how many training rows stand behind a prediction, from the features of a trained network.

The Normal Inverse-Gamma distribution is the conjugate prior of Bayesian linear regression. In the features ψ of a
trained network, with the weight :math:`w_i` of training row i, the posterior variance of the mean at x is
:math:`\bar s^2 h(x)` with the leverage

.. math:: h(x) = \psi^\top (G + \lambda I)^{-1} \psi, \qquad G = \sum_i w_i \psi_i \psi_i^\top.

With the network's own predictive scale s(x) and the prior variance :math:`V_0` of the mean, let
:math:`b(v) = (1/v + 1/V_0)^{-1}`. The variance A that is added away from the training rows, the total squared scale T,
the variance E of the mean, the evidence and the mean are

.. math::
    B = \bar s^2 (h - h_0)_+, \quad A = \kappa B, \quad T = s^2 + b(A), \quad
    E = b\bigl(\bar s^2 \min(h, h_0) + A\bigr), \quad \nu = T/E - 1, \\
    \gamma' = \bar y + (\gamma - \bar y)\, \frac{V_0}{V_0 + B}.

The epistemic share of a Normal Inverse-Gamma distribution is 1/(1 + ν), which is E/T. λ is learned from left-out ends
of the training rows, with κ = 1 and :math:`h_0` the median of held-out rows. Where that is impossible, the scale is
relative to the edge of the training rows: κ is 1/h₉₀ and :math:`h_0 = h_{90}`, the 90% quantile of held-out rows.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from howsure.errors import InputError, InputTypeError
from howsure.nn.checks import check_features

__all__ = ["PRIOR_VARIANCE", "ConjugateEvidence", "FeatureBasis", "FeatureSums"]

PRIOR_VARIANCE = 50.0  # V₀ of tables and networks, in variances of the target
UNIT_FLOOR = 0.1  # of a unit's variance, as a share of the mean variance of its layer: silent units may wake up
MIN_VARIANCE = 1e-12  # of features that do not vary at all


class FeatureSums:
    """Weighted count, mean and second moments of features (…, N, D), summed over batches in float64."""

    def __init__(self) -> None:
        self.count: Tensor | None = None
        self.mean = self.moments = torch.zeros(())

    def add(self, features: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch of features (…, N, D) with weights (…, N), by default 1."""
        _check_batch(features)
        if not features.shape[-2]:
            return
        x = features.double()
        w = torch.ones_like(x[..., 0]) if weights is None else weights.double()
        count = w.sum(-1)
        mean = (w.unsqueeze(-1) * x).sum(-2) / count.unsqueeze(-1)
        centred = x - mean.unsqueeze(-2)
        moments = (w.unsqueeze(-1) * centred).mT @ centred
        if self.count is None:
            self.count, self.mean, self.moments = count, mean, moments
            return
        total, step = self.count + count, mean - self.mean
        between = (self.count * count / total)[..., None, None] * step.unsqueeze(-1) * step.unsqueeze(-2)
        self.moments = self.moments + moments + between
        self.mean = self.mean + step * (count / total).unsqueeze(-1)
        self.count = total


class FeatureBasis(NamedTuple):
    """Eigenbasis of the weighted moments of scaled training features, largest first, for any ridge.

    Args:
        mean, scale: shift and divisor of each feature, (…, D).
        values, directions: eigenvalues (…, D) and eigenvectors (…, D, D).
        rows: weighted number of training rows, (…).
    """

    mean: Tensor
    scale: Tensor
    values: Tensor
    directions: Tensor
    rows: Tensor

    @classmethod
    def fit(
        cls,
        batches: Iterable[tuple[Tensor, Tensor | None]],
        *,
        layers: Sequence[int] | None = None,
        rows: float | Tensor | None = None,
    ) -> "FeatureBasis":
        """Return the basis of batches of features with their weights; see :meth:`ConjugateEvidence.fit`."""
        sums, seen = FeatureSums(), 0
        for features, weights in batches:
            sums.add(features, weights)
            seen += features.shape[-2]
        growth = 1.0 if rows is None else torch.as_tensor(rows, dtype=torch.float64, device=sums.mean.device) / seen
        return cls.of(sums, layers=layers, growth=growth)

    @classmethod
    def of(
        cls, sums: FeatureSums, *, layers: Sequence[int] | None = None, growth: float | Tensor = 1.0
    ) -> "FeatureBasis":
        """Return the basis of sums of features; ``growth`` is the number of rows for each row that was added."""
        if sums.count is None:
            raise InputError("there are no training features")
        scale = _unit_scale(sums, [sums.mean.shape[-1]] if layers is None else layers)
        values, directions = torch.linalg.eigh(sums.moments / (scale.unsqueeze(-1) * scale.unsqueeze(-2)))
        factor = torch.as_tensor(growth, dtype=torch.float64, device=scale.device)
        values = values.clamp(min=0).flip(-1) * factor[..., None]
        return cls(sums.mean, scale, values, directions.flip(-1), sums.count * factor)


class ConjugateEvidence(nn.Module):
    """Leverage h(x) of features (…, D), of shape (…): the variance of the mean in units of the squared noise.

    Use :meth:`fit` to make one; before that, or before a state dict is loaded, it returns NaN. It is a module like any
    other in ``state_dict``, ``torch.compile`` and ``torch.export``. Several networks at once have a leading dimension:
    features (M, N, D).

    The inverse is exact along the ``rank`` directions in which the training features vary most. All other directions
    count as if the features varied along them by their mean.

    Args:
        features: D.
        rank: number of directions; None is D.
        members: M, or None for one network.

    >>> evidence = ConjugateEvidence.fit(torch.randn(500, 8), ridge=1.0)
    >>> near, far = evidence(torch.stack([torch.zeros(8), torch.full((8,), 9.0)]))
    >>> bool(near < 0.01), bool(far > 0.5)
    (True, True)
    """

    offset: Tensor
    scale: Tensor
    directions: Tensor
    inverse: Tensor
    rest: Tensor
    constant: Tensor

    def __init__(self, features: int, rank: int | None = None, members: int | None = None) -> None:
        super().__init__()
        lead = () if members is None else (members,)
        kept = features if rank is None else min(rank, features)
        shapes = {"offset": (features,), "scale": (features,), "directions": (features, kept), "inverse": (kept,)}
        shapes |= {"rest": (), "constant": ()}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.full((*lead, *shape), torch.nan, dtype=torch.float32))

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        features: Tensor | Iterable[tuple[Tensor, Tensor | None]],
        ridge: float | Tensor,
        *,
        layers: Sequence[int] | None = None,
        rank: int | None = None,
        rows: float | Tensor | None = None,
    ) -> Self:
        """Return the leverage of these training features.

        Args:
            features: (N, D), or (M, N, D) of several networks; or batches of these, each with its weights or None.
            ridge: λ, one number or one for each network.
            layers: number of features of each layer, which add up to D. None: all features are one layer.
            rank: number of directions; None is D.
            rows: number of training rows, if the features belong to only some of them.

        Raises:
            InputError: if there are no features, or some are not finite.
        """
        batches = [(features, None)] if isinstance(features, Tensor) else features
        return cls.of(FeatureBasis.fit(batches, layers=layers, rows=rows), ridge, rank=rank)

    @classmethod
    @torch.no_grad()
    def of(cls, basis: "FeatureBasis", ridge: float | Tensor, *, rank: int | None = None) -> Self:
        """Return the leverage in a basis of features. The arguments are as for :meth:`fit`."""
        size = basis.mean.shape[-1]
        penalty = torch.as_tensor(ridge, dtype=torch.float64, device=basis.mean.device)[..., None]
        inverse = 1 / (basis.values + penalty)
        with basis.mean.device:  # not the default device
            new = cls(size, rank, len(basis.mean) if basis.mean.ndim == 2 else None)
        kept = new.inverse.shape[-1]
        new.offset.copy_(basis.mean)
        new.scale.copy_(basis.scale)
        new.directions.copy_(basis.directions[..., :kept])
        new.inverse.copy_(inverse[..., :kept])
        # no other directions: they count for nothing, also without a ridge
        rest = 1 / (basis.values[..., kept:].mean(-1) + penalty.squeeze(-1)) if kept < size else 0 * basis.rows
        new.rest.copy_(rest)
        new.constant.copy_(1 / (basis.rows + penalty.squeeze(-1)))
        return new

    def forward(self, features: Tensor) -> Tensor:
        return self.of_squares(*self.squares(features))

    def squares(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the terms whose weighted sum is the leverage of features (…, N, D), for any ridge.

        These are the squares along each direction, (…, N, R), and the sum of the squares along all others, (…, N).
        """
        check_features(self, features, self.offset.shape[-1])
        dtype = torch.promote_types(torch.promote_types(features.dtype, self.offset.dtype), torch.float32)
        lead = (slice(None), None) if self.offset.ndim == 2 else ()
        with torch.autocast(features.device.type, enabled=False):
            z = (features.to(dtype) - self.offset.to(dtype)[lead]) / self.scale.to(dtype)[lead]
            directions = self.directions.to(dtype)
            along = z @ directions
            if directions.shape[-1] == directions.shape[-2]:
                return along.square(), torch.zeros_like(along[..., 0])
            # a difference of squares would lose its digits: rest may be a thousand times the leverage
            return along.square(), (z - along @ directions.mT).square().sum(-1)

    def of_squares(self, along: Tensor, others: Tensor) -> Tensor:
        """Return the leverage with these :meth:`squares`."""
        lead = (slice(None), None) if self.offset.ndim == 2 else ()
        inverse, rest, constant = (b.to(along.dtype)[lead] for b in (self.inverse, self.rest, self.constant))
        return (along * inverse).sum(-1) + rest * others + constant

    def whitened(self, features: Tensor) -> Tensor:
        """Return vectors (…, R) whose inner products are the posterior covariances of the mean.

        They are in units of the squared noise, so that the squared length of the vector of x is the leverage h(x).

        Args:
            features: (N, D), or (M, N, D) of several networks.

        >>> evidence = ConjugateEvidence.fit(torch.randn(500, 8), ridge=1.0)
        >>> x = torch.randn(3, 8)
        >>> torch.allclose(evidence.whitened(x).square().sum(-1), evidence(x))
        True
        """
        lead = (slice(None), None) if self.offset.ndim == 2 else ()
        dtype = torch.promote_types(features.dtype, self.offset.dtype)
        offset, scale, inverse, rest, constant = (
            b.to(dtype)[lead] for b in (self.offset, self.scale, self.inverse, self.rest, self.constant)
        )
        directions = self.directions.to(dtype)
        z = (features.to(dtype) - offset) / scale
        along = z @ directions
        parts = [along * inverse.sqrt(), constant.sqrt().unsqueeze(-1).expand(*z.shape[:-1], 1)]
        if directions.shape[-1] < directions.shape[-2]:
            parts.append((z - along @ directions.mT) * rest.sqrt().unsqueeze(-1))
        return torch.cat(parts, -1)

    @torch.no_grad()
    def select(self, members: Sequence[int]) -> "ConjugateEvidence":
        """Return the same for copies of some of several networks."""
        chosen = list(members)
        with self.offset.device:
            some = ConjugateEvidence(self.offset.shape[-1], self.inverse.shape[-1], len(chosen))
        for name, buffer in self.named_buffers():
            some.register_buffer(name, buffer[chosen])
        return some


def _unit_scale(sums: FeatureSums, layers: Sequence[int]) -> Tensor:
    """Return the divisor of each unit: its deviation, with a floor relative to its layer's mean variance."""
    if sum(layers) != sums.mean.shape[-1]:
        raise InputError(f"layers of {sum(layers)} features do not match {sums.mean.shape[-1]} features")
    assert sums.count is not None
    variance = sums.moments.diagonal(dim1=-2, dim2=-1) / sums.count.unsqueeze(-1)
    parts = [part + UNIT_FLOOR * part.mean(-1, keepdim=True) for part in variance.split(list(layers), -1)]
    return torch.cat(parts, -1).clamp(min=MIN_VARIANCE).sqrt()


def _check_batch(features: Tensor) -> None:
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise InputTypeError(f"features must be floating-point tensors, got {type(features).__name__}")
    if features.ndim not in (2, 3) or not features.shape[-1]:
        raise InputError(f"features must have shape (N, D), or (M, N, D), got {tuple(features.shape)}")
    if not bool(features.isfinite().all()):
        raise InputError("features must be finite; look for the layer that made values that are not")
