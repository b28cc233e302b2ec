"""Networks that predict rows for servers: the moments of `Fitted.predict`, with little overhead.

In a prediction of one row, nearly all of the time goes into starting operations. So everything that does not depend on
the row is prepared once, operations are those of NumPy, which start quicker than torch's, and what a row does not need
is left out: where all evidence counts, nothing fades or settles. Many rows are divided into parts whose hidden units
stay in the processor's cache, a thread for each, and layers are computed by torch.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.data.row_trees import RowTrees
from howsure.distributions import Normal, NormalInverseGamma
from howsure.fitting.tables import Fitted
from howsure.formulas import nig, normal
from howsure.nn.mlp import ACTIVATIONS
from howsure.threads import in_threads

__all__ = ["Moments", "RowNetworks"]

Array = NDArray[np.float64]
ONE_BY_ONE = 8  # rows up to which trees are quicker row by row
FEW = 32  # rows up to which NumPy's operations are quicker than torch's
CACHED = 1 << 19  # bytes of one hidden layer of a part of many rows


class Moments(NamedTuple):
    """What a prediction states without its quantiles: (rows, targets) each, and the familiarity (rows,)."""

    mean: Array
    variance: Array
    aleatoric: Array
    epistemic: Array | None
    familiarity: Array | None


class RowNetworks:
    """Function from features (N, F) to their moments, in float64.

    It is only read after it is made, so that several threads may use it.

    Args:
        fitted: the trained model, on the CPU.
        single: whether layers are computed in float32.
    """

    def __init__(self, fitted: Fitted, single: bool = False) -> None:
        self.dtype = np.float32 if single else np.float64
        members = fitted.population.members
        some = fitted.method.networks(fitted.population, range(members)).cpu().double()
        order = [k for k in range(members) for _ in range(some.members // members)]
        self.trees = None if fitted.trees is None else RowTrees(fitted.trees)
        self.activation = ACTIVATIONS[some.activation]
        self.loc_x, self.scale_x = _arrays(fitted.scale_x.loc[order], fitted.scale_x.scale[order])
        self.loc_y, self.scale_y = _arrays(fitted.scale_y.loc[order], fitted.scale_y.scale[order])
        self.outputs = fitted.method.outputs
        self.evidential = self.outputs == 4
        self._set_layers(some)
        self._set_fading(fitted, order)
        self._set_weights(fitted, order)
        self.scale = None if fitted.scale is None else fitted.scale.numpy()

    def _set_layers(self, some: Any) -> None:
        """Keep weights and biases; of the first layer, those of bins apart, for networks that see them."""
        weights, self.biases = ([each.astype(self.dtype) for each in _arrays(*t)] for t in (some.weights, some.biases))
        embedding, inside = some._embedding, some.in_features
        self.bins = None
        if embedding is not None:
            seen = np.flatnonzero(embedding.seen)
            slope, offset, low, high = _arrays(embedding.slope, embedding.offset, embedding.low, embedding.high)
            column = embedding.column.cpu().numpy()
            own = np.ascontiguousarray(weights[0][seen, inside:])
            self.bins = seen, column, slope[seen], offset[seen], low, high, own
            weights[0] = np.ascontiguousarray(weights[0][:, :inside])
        self.weights = weights

    def _set_fading(self, fitted: Fitted, order: list[int]) -> None:
        """Keep by what evidence fades, and what networks usually say."""
        self.fading: tuple[Array, ...] | None = None
        self.usual: list[Array] | None = None
        if fitted.fading is not None:
            some = fitted.fading.select(order).cpu().double()
            origin = (some.mean.unsqueeze(-2) @ some.projection).squeeze(-2)
            parts = (origin, some.rest, some.reach, some.power)
            self.fading = (*_arrays(some.projection), *_arrays(*(p.unsqueeze(1) for p in parts)))
        if fitted.typical is not None:
            assert isinstance(fitted.typical, NormalInverseGamma | Normal)
            usual = fitted.typical.affine(0.0, fitted.scale_y.scale)
            self.usual = _arrays(*(getattr(usual, name)[order] for name in usual.leaves))

    def _set_weights(self, fitted: Fitted, order: list[int]) -> None:
        """Keep how much each network counts, (networks, 1, 1), of sum 1."""
        weights = np.ones(len(order)) if fitted.weights is None else fitted.weights.numpy()[order]
        self.mix = (weights / weights.sum())[:, None, None]
        self.several = len(order) > 1

    def __call__(self, features: Array) -> Moments:
        seen, rows = features, len(features)
        if self.trees is not None:
            few = rows <= ONE_BY_ONE
            predicted = [self.trees(row) for row in features] if few else self.trees.trees.predict(features)
            seen = np.concatenate([features, np.asarray(predicted)], 1)
        if rows <= FEW:
            return self._of_part(seen)
        widest = max(weight.shape[-1] for weight in self.weights)
        size = max(FEW, CACHED // (self.weights[0].itemsize * len(self.weights[0]) * widest))
        parts = [seen[first : first + size] for first in range(0, rows, size)]
        found = in_threads(self._of_part, parts, torch.get_num_threads())
        return Moments(*(None if each[0] is None else np.concatenate(each) for each in zip(*found, strict=True)))  # type: ignore[arg-type]

    def _of_part(self, seen: Array) -> Moments:
        """Return the moments of a part, from what networks see of its rows."""
        scaled = (seen - self.loc_x) / self.scale_x
        x = scaled.astype(self.dtype, copy=False)
        before = self._layer(x, 0)
        if self.bins is not None:
            before[self.bins[0]] += self._of_bins(scaled)
        inner = x = self._activate(before)
        for k in range(1, len(self.weights) - 1):
            x = self._activate(self._layer(x, k))
        raw = self._layer(x, len(self.weights) - 1).astype(np.float64, copy=False)
        raw = raw.reshape(*raw.shape[:2], -1, self.outputs)
        return self._moments(raw, None if self.fading is None else self._keep(inner.astype(np.float64, copy=False)))

    def _layer(self, x: Any, k: int) -> Any:
        """Return the products of layer k with inputs (networks, rows, inputs), plus its biases."""
        if x.shape[1] > FEW:
            bias, x, weight = (torch.from_numpy(each) for each in (self.biases[k], x, self.weights[k]))
            return torch.baddbmm(bias, x, weight).numpy()
        product = np.matmul(x, self.weights[k])
        product += self.biases[k]
        return product

    def _of_bins(self, scaled: Array) -> Any:
        """Return what the places of scaled numbers in bins add to the first layer of networks that see them."""
        assert self.bins is not None
        networks, column, slope, offset, low, high, weight = self.bins
        if scaled.shape[1] <= FEW:
            places = np.clip(scaled[networks][..., column] * slope + offset, low, high)
            return np.matmul(places.astype(self.dtype, copy=False), weight)
        near = torch.from_numpy(scaled[networks]).index_select(2, torch.from_numpy(column))
        near.mul_(torch.from_numpy(slope)).add_(torch.from_numpy(offset))
        torch.clamp(near, torch.from_numpy(low), torch.from_numpy(high), out=near)
        own = torch.from_numpy(weight)
        return torch.bmm(near.to(own.dtype), own).numpy()

    def _activate(self, x: Any) -> Any:
        return self.activation(torch.from_numpy(x)).numpy()

    def _keep(self, inner: Array) -> Array:
        """Return the share of the evidence of each network that counts, (networks, rows), as `FadingEvidence` does."""
        assert self.fading is not None
        projection, origin, rest, reach, power = self.fading
        along = np.matmul(inner, projection)
        along -= origin
        norm = np.einsum("mnd,mnd->mn", inner, inner)
        length = np.einsum("mnd,mnd->mn", along[..., :-1], along[..., :-1])
        size = norm - origin[..., -1] - 2 * along[..., -1]
        squared = np.where(rest > 0, np.maximum(rest * size - length, 0.0), length)
        near = np.sqrt(squared) <= reach
        if near.all():
            return np.ones_like(squared)
        ratio = np.where(near, 1.0, reach * reach) / np.where(near, 1.0, squared)
        kept: Array = np.maximum(ratio ** (power / 2), nig.KEEP_FLOOR)
        return kept

    def _moments(self, raw: Array, keep: Array | None) -> Moments:
        """Return the moments of the mixture, from raw outputs (networks, rows, targets, outputs)."""
        first = self.loc_y + self.scale_y * raw[..., 0]
        positive = _softplus(raw[..., 1:])
        share = None if keep is None or keep.min() == 1 else keep[..., None]
        noise, doubt = self._variances(positive, share)
        mix = self.mix
        mean = (mix * first).sum(0)
        distance = first - mean
        between = (mix * distance * distance).sum(0)
        own = (mix * doubt).sum(0)
        added = 0.0 if share is None else (mix * (doubt * ((1 - share) / share))).sum(0)
        aleatoric = (mix * noise).sum(0) if self.evidential else own
        within = aleatoric + own if self.evidential else own
        variance = within + between + added
        epistemic: Array | None = between + added
        if self.several:
            aleatoric = within
        elif self.evidential:
            epistemic = own + added
        elif keep is None:
            epistemic = None
        familiarity = None if keep is None else (mix[..., 0] * keep).sum(0)
        if self.scale is not None:
            factor = self.scale if familiarity is None else self.scale ** familiarity[:, None]
            square = factor * factor
            variance, aleatoric = variance * square, aleatoric * square
            epistemic = None if epistemic is None else epistemic * square
        return Moments(mean, variance, aleatoric, epistemic, familiarity)

    def _variances(self, positive: Array, share: Array | None) -> tuple[Array, Array]:
        """Return the noise and the doubt of each network, settled where a share of its evidence counts.

        Of a normal distribution both are its variance.
        """
        if not self.evidential:
            scale = self.scale_y * (positive[..., 0] + normal.SCALE_FLOOR)
            if share is not None and self.usual is not None:
                scale = np.maximum(scale, scale * (self.usual[1] / scale) ** (1 - share))
            return scale * scale, scale * scale
        nu, less = positive[..., 0] + nig.NU_FLOOR, positive[..., 1] + nig.ALPHA_MINUS_ONE_FLOOR
        beta = self.scale_y * (self.scale_y * (positive[..., 2] + nig.BETA_FLOOR))
        if share is not None and self.usual is not None:
            _, usual_nu, usual_less, usual_beta = self.usual
            size = beta / (1 + less)
            nu = np.minimum(nu, nu * (usual_nu / nu) ** (1 - share))
            size = np.maximum(size, size * (usual_beta / (1 + usual_less) / size) ** (1 - share))
            settled = less * (usual_less / less) ** (1 - share)
            beta, less = np.where(share < 1, size * (1 + settled), beta), np.where(share < 1, settled, less)
        noise = beta / less
        return noise, noise / nu


def _softplus(x: Array) -> Array:
    """Return ln(1 + eˣ)."""
    if x.shape[1] <= FEW:
        return np.logaddexp(0.0, x)
    positive: Array = torch.nn.functional.softplus(torch.from_numpy(x), threshold=40).numpy()
    return positive


def _arrays(*tensors: Any) -> list[Array]:
    """Return tensors as contiguous arrays of float64."""
    return [np.ascontiguousarray(t.detach().cpu().double().numpy()) for t in tensors]
