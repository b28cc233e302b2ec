"""How much of a network's evidence counts for an input: all of it near the training data, less the farther away.

A network learns nothing about inputs that it never saw, and its evidence there means nothing. The features that it
computes on the way to its answer tell how far an input is from the training data.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from howsure.errors import InputError, InputTypeError
from howsure.formulas.nig import KEEP_FLOOR
from howsure.nn.checks import check_counts, check_features
from howsure.nn.density import FLOOR, check_finite, ledoit_wolf

__all__ = ["FadingEvidence"]


class FadingEvidence(nn.Module):
    r"""Share of the evidence to keep for features (…, D), of shape (…): :math:`w = \min(1, (r/d)^p)`.

    d is the Mahalanobis distance of the features from those of the training data, the reach r its 90 % quantile on
    validation data, and p the power. Use :meth:`fit` to make one; before, or before a state dict is loaded, it returns
    NaN. It is a part of the network like any other layer: in ``forward``, ``state_dict``, ``torch.compile`` and
    ``torch.export``. Apply it to predictions, not to what the loss sees.

    The covariance is taken along the ``rank`` directions in which the training features vary most; all other
    directions share one variance. This costs a product with a D × rank matrix, and distances that depend little on the
    noise of small variances.

    Several networks at once have a leading dimension: features (M, N, D), with a reach and a power for each.

    Args:
        features: D.
        rank: number of directions; None is D.
        members: M, or None for one network.
        device: of the buffers.

    >>> fading = FadingEvidence.fit(torch.randn(500, 8), torch.randn(100, 8), power=2.0)
    >>> near, far = fading(torch.stack([torch.zeros(8), torch.full((8,), 9.0)]))
    >>> bool(near == 1), bool(far < 0.1)
    (True, True)
    """

    mean: Tensor
    projection: Tensor
    rest: Tensor
    reach: Tensor
    power: Tensor

    def __init__(
        self,
        features: int,
        rank: int | None = 32,
        members: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        given = {"features": features, "rank": rank, "members": members}
        check_counts(**{name: count for name, count in given.items() if count is not None})
        lead = () if members is None else (members,)
        kept = features if rank is None else min(rank, features)
        shapes = {"mean": (features,), "projection": (features, kept + 1)}
        for name in ("mean", "projection", "rest", "reach", "power"):
            shape = (*lead, *shapes.get(name, ()))
            self.register_buffer(name, torch.full(shape, torch.nan, dtype=torch.float64, device=device))

    @classmethod
    @torch.inference_mode(False)  # whose tensors could not be written to later
    @torch.no_grad()
    def fit(
        cls,
        train: Tensor | Iterable[Tensor],
        validation: Tensor | Iterable[Tensor] | None = None,
        *,
        power: float | Sequence[float] = 2.0,
        rank: int | None = 32,
        ridge: float | None = 0.01,
        quantile: float = 0.9,
    ) -> Self:
        """Return what the features of training and validation data say, in one pass over each.

        Args:
            train: features (N, D) that the network computes for its training data; of several networks (M, N, D); or
                batches of these, of which only sums are kept.
            validation: likewise for data that the network did not learn from. None takes the training data, whose
                distances are a little smaller; batches are then needed as a list, because they are read twice.
            power: p, one for all networks or one each. 0 keeps all evidence everywhere.
            rank: number of directions; None is D, where all variances are estimated one by one.
            ridge: what is added to every variance, as a share of their mean. None shrinks the covariance by the
                estimate of Ledoit and Wolf (2004); this needs all features at once.
            quantile: the share of the validation data that keeps all evidence.
        """
        if not 0 < quantile <= 1:
            raise InputError(f"quantile is a share of the validation data in (0, 1], got {quantile}")
        if ridge is not None and not 0 <= ridge < math.inf:
            raise InputError(f"ridge is a share of the mean variance of at least 0, or None, got {ridge}")
        if validation is None and isinstance(train, Iterator):
            raise InputTypeError("without validation features the training features are read twice: pass a list")
        mean, covariance = _moments(train)
        size = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        target = size * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        if ridge is None:
            if not isinstance(train, Tensor) or train.ndim != 2:
                raise InputTypeError("ridge=None needs all training features of one network in one tensor, (N, D)")
            covariance = torch.lerp(covariance, target, ledoit_wolf(train.double() - mean, covariance, target))
        else:
            covariance = covariance + ridge * target
        if not bool(covariance.isfinite().all()):
            raise InputError("the features are so large that their covariance is not finite; scale them first")
        new = cls(mean.shape[-1], rank, len(mean) if mean.ndim == 2 else None, mean.device)
        new.mean.copy_(mean)
        new._set_covariance(covariance)
        known = [
            new.distance(batch.double()) for batch in _checked_batches(train if validation is None else validation)
        ]
        distances = torch.cat(known, -1) if known else new.reach.new_empty(0)
        if not distances.shape[-1]:
            raise InputError("there are no validation features; None takes the training features in their place")
        new.reach.copy_(distances.kthvalue(math.ceil(quantile * distances.shape[-1]), -1).values)
        new.set_power(power)
        return new

    def set_power(self, power: float | Sequence[float]) -> None:
        """Set the power, one for all networks or one each."""
        try:
            values = torch.as_tensor(power, dtype=self.power.dtype, device=self.power.device)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"power must be a number, or one for each network, got {power!r}") from error
        if values.shape not in ((), self.power.shape) or not bool((values.isfinite() & (values >= 0)).all()):
            raise InputError(f"power must be a number of at least 0, or one for each network, got {power!r}")
        self.power.copy_(values)

    @torch.no_grad()
    def select(self, members: Sequence[int]) -> "FadingEvidence":
        """Return the same for copies of some of several networks."""
        chosen = list(members)
        some = FadingEvidence(self.mean.shape[-1], self.projection.shape[-1] - 1, len(chosen), self.mean.device)
        for name, buffer in self.named_buffers():
            some.register_buffer(name, buffer[chosen])
        return some

    def _set_covariance(self, covariance: Tensor) -> None:
        """Set the projection by which `distance` computes distances with this covariance; the mean must be set.

        With variances v along the directions that are kept and u for all others, the squared distance is
        |x − μ|²/u − Σ zᵢ² (1/u − 1/vᵢ), and Σ zᵢ²/vᵢ if all directions are kept.
        """
        kept = self.projection.shape[-1] - 1
        variances, directions = torch.linalg.eigh(covariance)
        variances, directions = variances.flip(-1), directions.flip(-1)[..., :kept]
        least = FLOOR * variances[..., :1]
        # features that do not vary at all tell nothing: distances are 0
        precision = torch.where(least > 0, 1 / torch.maximum(variances, least), 0.0)[..., :kept]
        if kept == variances.shape[-1]:
            rest, scale = torch.zeros_like(least), precision.sqrt()
        else:
            others = variances[..., kept:].mean(-1, keepdim=True)
            rest = torch.where(least > 0, 1 / torch.maximum(others, least), 0.0)
            scale = (rest - precision).clamp(min=0).sqrt()
        self.rest.copy_(rest.squeeze(-1))
        self.projection.copy_(torch.cat([directions * scale.unsqueeze(-2), self.mean.unsqueeze(-1)], -1))

    def distance(self, features: Tensor) -> Tensor:
        """Return the distances of features (…, D) from the training data, of shape (…)."""
        return self._squared_distance(features).sqrt().to(_returned_dtype(features))

    def _squared_distance(self, features: Tensor) -> Tensor:
        """Return the squares of the distances, in the dtype in which they are computed."""
        self._check(features)
        dtype = torch.promote_types(torch.promote_types(features.dtype, self.mean.dtype), torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            x, mean, projection, rest = (t.to(dtype) for t in (features, self.mean, self.projection, self.rest))
            origin = (mean.unsqueeze(-2) @ projection).squeeze(-2)
            if self.mean.ndim == 2:
                origin, rest = origin.unsqueeze(1), rest.unsqueeze(1)
            along = x @ projection - origin
            # the last projection is that on the mean, x·μ − |μ|², and |x − μ|² = |x|² − |μ|² − 2 (x·μ − |μ|²)
            norm = torch.linalg.vector_norm(x, dim=-1).square()
            size = norm - origin[..., -1] - 2 * along[..., -1]
            length = torch.linalg.vector_norm(along[..., :-1], dim=-1).square()
            # differences of rounding errors can be negative, and those of squares that overflow are not numbers
            squared = torch.where(rest > 0, (rest * size - length).clamp(min=0), length)
            return torch.where(norm == math.inf, norm, squared)

    def _check(self, features: Tensor) -> None:
        """Raise an error if the features are not those of the networks."""
        check_features(self, features, self.mean.shape[-1])
        if self.mean.ndim == 2 and (features.ndim != 3 or len(features) != len(self.mean)):
            networks, size = self.mean.shape
            shape = tuple(features.shape)
            raise InputError(f"FadingEvidence expects features of shape ({networks}, N, {size}), got {shape}")

    def forward(self, features: Tensor) -> Tensor:
        squared = self._squared_distance(features)
        reach, power = self.reach.to(squared.dtype), self.power.to(squared.dtype)
        if self.mean.ndim == 2:
            reach, power = reach.unsqueeze(1), power.unsqueeze(1)
        # without the root of the distance, whose gradient at the mean is not finite
        near = squared.detach().sqrt() <= reach
        ratio = torch.where(near, 1.0, reach.square()) / torch.where(near, 1.0, squared)
        return ratio.pow(power / 2).clamp(min=KEEP_FLOOR).to(_returned_dtype(features))

    def extra_repr(self) -> str:
        members = f", members={len(self.mean)}" if self.mean.ndim == 2 else ""
        return f"features={self.mean.shape[-1]}, rank={self.projection.shape[-1] - 1}{members}"


def _returned_dtype(features: Tensor) -> torch.dtype:
    return torch.promote_types(features.dtype, torch.float32)


def _checked_batches(features: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield batches of features, one after the other, after checking them; those without rows are left out."""
    first = None
    for batch in [features] if isinstance(features, Tensor) else features:
        if not isinstance(batch, Tensor) or not batch.is_floating_point():
            raise InputTypeError(f"features are floating-point tensors, got {type(batch).__name__}")
        if batch.ndim not in (2, 3) or not batch.shape[-1]:
            raise InputError(f"features have the shape (N, D), or (M, N, D) of M networks, got {tuple(batch.shape)}")
        sizes = (*batch.shape[:-2], batch.shape[-1])
        first = first or sizes
        if sizes != first:
            raise InputError(
                f"batches of features differ in more than rows: networks and features are {first}, {sizes}"
            )
        if batch.shape[-2]:
            check_finite(batch.movedim(-2, 0).flatten(1))
            yield batch


def _moments(features: Tensor | Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean (…, D) and covariance (…, D, D) of features (…, N, D) in float64, from sums over batches."""
    count, shift, total, products = 0, None, None, None
    for batch in _checked_batches(features):
        x = batch.double()
        if shift is None:
            shift = x.mean(-2, keepdim=True)  # sums of squares of what is far from zero would lose their digits
        x = x - shift
        count += x.shape[-2]
        total = x.sum(-2) if total is None else total + x.sum(-2)
        products = x.mT @ x if products is None else products + x.mT @ x
    if shift is None or total is None or products is None or count < 2:
        raise InputError(f"a distance needs the features of at least 2 training rows, got {count}")
    mean = total / count
    return shift.squeeze(-2) + mean, products / count - mean.unsqueeze(-1) * mean.unsqueeze(-2)
