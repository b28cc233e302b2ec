"""A fitted regressor as plain operations on tensors: the columns of a table in, named tensors out.

It computes what ``predict_distribution`` does, in operations that ONNX Runtime has for float64: all of it, or all but
the hidden layers, which are float32 with ``single=True``. What trees predict is an argument, because ONNX has an
operator of its own for them.

float32 hidden layers are right to about 1e-6 of the spread of y. That is little beside the noise of most tables, but
the spread of networks that agree is a small difference of large numbers.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.deploy import Summaries
from howsure.distributions import Normal, NormalInverseGamma
from howsure.errors import InputError
from howsure.estimators import Regressor
from howsure.export.trees import ForestUnits, baseline_of
from howsure.formulas import nig, normal
from howsure.nn import Population
from howsure.tables.model import Fitted
from howsure.tables.robust import LINEAR_RANGE, RobustScale
from howsure.tables.schema import DIGITS, PERIODS, Encoder

__all__ = ["Columns", "Networks", "TableModule"]

Answer = NormalInverseGamma | Normal


class Columns:
    """Features (rows, features) of columns (rows, columns): the encoding of a regressor, of numbers.

    A category is its code, the place of its text among the categories; any other number is one that training rows did
    not have. Dates are seconds since 1970, durations seconds. NaN is missing.
    """

    def __init__(self, encoders: tuple[Encoder, ...]) -> None:
        count = len(encoders)
        self.fill = torch.tensor([e.fill for e in encoders], dtype=torch.float64)
        # where each feature lies in: columns, whether they are missing, and what is made of categories and dates
        order: list[int] = []
        self.made: list[_Category | _Date] = []
        end = 2 * count
        for column, encoder in enumerate(encoders):
            if encoder.left_out:
                continue
            if encoder.kind in ("category", "date"):
                size = len(encoder.features) - encoder.flags_missing
                if size:  # a date that says nothing may have no parts
                    self.made.append(
                        _Category(column, encoder) if encoder.kind == "category" else _Date(column, encoder)
                    )
                order += range(end, end + size)
                end += size
            else:
                order.append(column)
            if encoder.flags_missing:
                order.append(count + column)
        self.plain = order == list(range(count))  # the columns themselves
        self.order = torch.tensor(order, dtype=torch.int64)

    def __call__(self, x: Tensor) -> Tensor:
        missing = x.isnan()
        values = torch.where(missing, self.fill, x)
        if self.plain:
            return values
        parts = [values, missing.to(x.dtype), *(made(x) for made in self.made)]
        return torch.cat(parts, 1).index_select(1, self.order)


class _Category:
    """Features of a category: means of targets, if it is encoded by those, and zeros and ones."""

    def __init__(self, column: int, encoder: Encoder) -> None:
        self.column, self.count, self.has_means = column, len(encoder.categories), bool(encoder.means)
        shown = encoder.frequent if encoder.means else encoder.categories
        place = {category: k for k, category in enumerate(encoder.categories)}
        self.codes = torch.tensor([place[c] for c in shown], dtype=torch.float64)
        if encoder.means:
            self.means = torch.tensor(encoder.means, dtype=torch.float64)

    def __call__(self, x: Tensor) -> Tensor:
        code = x[:, self.column]
        ones = (code.unsqueeze(1) == self.codes).to(x.dtype)
        if not self.has_means:
            return ones
        known = (code >= 0) & (code < self.count) & (code == code.floor())
        row = torch.where(known, code, torch.where(code.isnan(), float(self.count), self.count + 1.0))
        return torch.cat([self.means.index_select(0, row.to(torch.int64)), ones], 1)


class _Date:
    """Features of a date: its seconds, clipped to the training range, and its place in some cycles."""

    def __init__(self, column: int, encoder: Encoder) -> None:
        self.column, self.fill, self.cycles = column, encoder.fill, encoder.cycles
        self.low, self.high = encoder.low, encoder.high

    def __call__(self, x: Tensor) -> Tensor:
        given = x[:, self.column]
        seconds = torch.where(given.isnan(), self.fill, given)
        parts = [seconds.clamp(self.low, self.high)]
        for cycle in self.cycles:
            period = float(PERIODS[cycle])
            angle = (2 * math.pi) * (seconds - period * (seconds / period).floor()) / period
            parts += [(each * 10**DIGITS).round() / 10**DIGITS for each in (angle.sin(), angle.cos())]
        return torch.stack(parts, 1)


class ScaledColumns:
    """Features as networks and trees see them: encoded columns, robustly scaled and clipped."""

    def __init__(self, columns: Columns, scale: RobustScale) -> None:
        self.columns, self.fill = columns, columns.fill
        self.median, self.spread = torch.from_numpy(scale.median), torch.from_numpy(scale.spread)

    def __call__(self, x: Tensor) -> Tensor:
        z = (self.columns(x) - self.median) / self.spread
        size = z.abs()
        inside = torch.where(size > LINEAR_RANGE, 0.0, z)
        beyond = LINEAR_RANGE + torch.log1p((size - LINEAR_RANGE).clamp(min=0))
        return torch.where(size > LINEAR_RANGE, torch.where(z > 0, beyond, -beyond), inside)


class Networks:
    """Distributions (M, N, T) of the networks in the units of y, and the familiarity of rows, (M, N) or None.

    Networks that see bins come first: only for them the places in bins are computed.

    Args:
        fitted: the trained model.
        single: whether hidden layers are float32.
    """

    def __init__(self, fitted: Fitted, single: bool) -> None:
        members = fitted.population.members
        if len(fitted.population.sizes) < 3:
            raise InputError("networks without hidden layers are not exported; fit with hidden=(64,), say")
        chosen = sorted(range(members), key=lambda k: not fitted.kinds()[k][0])
        some = fitted.method.networks(fitted.population, chosen).cpu()
        draws = some.members // members
        self.order = [k for k in chosen for _ in range(draws)]
        self.binned = draws * sum(bins for bins, _ in fitted.kinds())
        self.activation, self.dtype = some.activation, torch.float32 if single else torch.float64
        self.outputs, self.evidential = fitted.method.outputs, _is_evidential(fitted)
        self.loc_x, self.scale_x = fitted.scale_x.loc[self.order], fitted.scale_x.scale[self.order]
        self.loc_y, self.scale_y = fitted.scale_y.loc[self.order], fitted.scale_y.scale[self.order]
        self._set_layers(some)
        self.width = 1.0 if fitted.width is None else fitted.width
        self.evidence = None if fitted.evidence is None else fitted.evidence.select(self.order).cpu().double()

    def _set_layers(self, some: Population) -> None:
        """Keep the weights: of the first layer those of features and those of bins apart."""
        embedding, inside = some._embedding, some.in_features
        self.embedding = None
        if embedding is not None and self.binned:
            slope, offset = (each[: self.binned].double() for each in (embedding.slope, embedding.offset))
            self.embedding = embedding.column, slope, offset, embedding.low.double(), embedding.high.double()
        weights = [w.detach().to(self.dtype) for w in some.weights]
        self.bins_weight = weights[0][: self.binned, inside:].contiguous()
        self.weights = [weights[0][:, :inside].contiguous(), *weights[1:]]
        self.biases = [b.detach().to(self.dtype) for b in some.biases]

    def __call__(self, seen: Tensor) -> tuple[Answer, Tensor | None]:
        """Return distributions and familiarity for what networks see."""
        scaled = (seen - self.loc_x) / self.scale_x
        x = scaled.to(self.dtype)
        before = torch.baddbmm(self.biases[0], x, self.weights[0])
        if self.embedding is not None:
            column, slope, offset, low, high = self.embedding
            places = scaled[: self.binned].index_select(2, column) * slope + offset
            places = torch.minimum(torch.maximum(places, low), high).to(self.dtype)
            own = before[: self.binned] + torch.bmm(places, self.bins_weight)
            before = own if self.binned == len(self.order) else torch.cat([own, before[self.binned :]])
        x = self._activate(before)
        features = [x]
        for weight, bias in zip(self.weights[1:-1], self.biases[1:-1], strict=True):
            x = self._activate(torch.baddbmm(bias, x, weight))
            features.append(x)
        raw = torch.baddbmm(self.biases[-1], x, self.weights[-1]).double()
        answer = self._answer(raw.unflatten(-1, (-1, self.outputs)))
        familiarity = None
        if self.evidence is not None:
            assert isinstance(answer, NormalInverseGamma)
            answer, familiarity = self.evidence(answer, torch.cat(features, -1).double(), self.width)
        elif isinstance(answer, NormalInverseGamma):
            gamma, nu, alpha_minus_one, beta = (getattr(answer, name) for name in answer.leaves)
            answer = NormalInverseGamma._from_leaves((gamma, nu, alpha_minus_one, beta * self.width * self.width))
        else:
            answer = Normal._from_leaves((answer.loc, answer.scale * self.width))
        return self._in_units(answer), familiarity

    def _activate(self, x: Tensor) -> Tensor:
        if self.activation == "gelu":
            return gelu(x)
        if self.activation == "silu":
            return x * torch.sigmoid(x)
        return torch.tanh(x) if self.activation == "tanh" else torch.relu(x)

    def _answer(self, raw: Tensor) -> Answer:
        """Return what raw outputs (M, N, T, outputs) stand for, for scaled targets."""
        if not self.evidential:
            return Normal._from_leaves((raw[..., 0], softplus(raw[..., 1]) + normal.SCALE_FLOOR))
        nu = softplus(raw[..., 1]) + nig.NU_FLOOR
        alpha_minus_one = softplus(raw[..., 2]) + nig.ALPHA_MINUS_ONE_FLOOR
        beta = softplus(raw[..., 3]) + nig.BETA_FLOOR
        return NormalInverseGamma._from_leaves((raw[..., 0], nu, alpha_minus_one, beta))

    def _in_units(self, answer: Answer) -> Answer:
        """Return distributions of scaled targets in the units of y."""
        if isinstance(answer, NormalInverseGamma):
            beta = self.scale_y * (self.scale_y * answer.beta)
            leaves = (self.loc_y + self.scale_y * answer.gamma, answer.nu, answer.alpha_minus_one, beta)
            return NormalInverseGamma._from_leaves(leaves)
        assert isinstance(answer, Normal)
        return Normal._from_leaves((self.loc_y + self.scale_y * answer.loc, self.scale_y * answer.scale))


def _is_evidential(fitted: Fitted) -> bool:
    """Return whether networks answer with a Normal Inverse-Gamma; the others answer with a normal distribution."""
    return isinstance(fitted.method.answer(torch.zeros(1, fitted.method.outputs)), NormalInverseGamma)


class TableModule:
    """A fitted regressor: columns (rows, columns) in float64, and what trees predict, to tensors by name.

    Args:
        model: a fitted regressor.
        coverage: of the interval; None for none.
        single: whether hidden layers are float32.
    """

    def __init__(self, model: Regressor, coverage: float | None = 0.9, single: bool = False) -> None:
        fitted = model.fitted_
        self.columns = ScaledColumns(Columns(model.encoding_.encoders), model.robust_scale_)
        self.networks = Networks(fitted, single)
        self.one_target, self.coverage = fitted.one_target, coverage
        self.units = ForestUnits(None if fitted.trees is None else fitted.trees.forest)
        self.baseline = torch.from_numpy(np.empty(0) if fitted.trees is None else baseline_of(fitted.trees))
        self.weights = None
        if fitted.weights is not None:
            draws = len(self.networks.order) // fitted.population.members
            self.weights = fitted.weights[self.networks.order] / draws
        identified = fitted.evidence is not None  # then the parameters divide the variance, and not the members
        self.summaries = Summaries(
            0.9 if coverage is None else coverage, members=0, weights=self.weights, from_parameters=identified
        )

    def outputs(self, features: Tensor, sums: Tensor | None = None) -> dict[str, Tensor]:
        """Return the outputs by name.

        Args:
            features: of the rows, as ``columns`` makes them.
            sums: what the trees of a model add up to, (rows, outputs of the trees).
        """
        seen = features if sums is None else torch.cat([features, sums + self.baseline], 1)
        answer, familiarity = self.networks(seen)
        found = self.summaries(_one_target(answer) if self.one_target else answer)
        if familiarity is not None:
            found["familiarity"] = self._over_members(familiarity)
        if self.coverage is None:
            del found["lower"], found["upper"]
        return found

    def _over_members(self, x: Tensor) -> Tensor:
        """Return the mean over networks, weighted as they are."""
        if self.weights is None:
            return x.mean(0)
        return (self.weights.view(-1, *(1,) * (x.ndim - 1)) * x).sum(0)


def _one_target(answer: Answer) -> Any:
    return answer._from_leaves(getattr(answer, name).squeeze(-1) for name in answer.leaves)


def softplus(x: Tensor) -> Tensor:
    """Return ln(1 + eˣ) in operations that ONNX Runtime has for float64; below −36 it is 0, where floors count."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def gelu(x: Tensor) -> Tensor:
    """Return x Φ(x): torch's own in float32, and in float64 by operations that ONNX Runtime has for it."""
    if x.dtype == torch.float32:
        return torch.nn.functional.gelu(x)
    size = x.abs()
    t = _TURN / (_TURN + size)
    ratio = torch.full_like(t, _RATIO[-1])
    for coefficient in _RATIO[-2::-1]:
        ratio = ratio * t + coefficient
    return x.clamp(min=0) - size * ratio * torch.exp(-0.5 * x * x)


# Φ(−x) e^(x²/2) for x ≥ 0 as a polynomial in t = 4/(4 + x), found by interpolation at Chebyshev points of [0, 9] with
# mpmath. x Φ(x) is then right to 1e-10, whatever x is.
_TURN = 4.0
_RATIO = (
    -6.530129622575598e-05,
    0.10100092404255077,
    0.08887799634828922,
    0.14776254185237953,
    -0.09342148053849356,
    0.43862636166471847,
    -0.49700413745006716,
    0.5246638498915103,
    -0.2592889624172267,
    0.05051376317515374,
    -0.0016655551297940162,
)
