r"""A transformer that reads the rows of a table as context and returns a mixture of Normal Inverse-Gamma distributions.

A prediction has three stages.

1. **Experts in closed form** (:class:`~howsure.incontext.regressions.Experts`): five kernel regressions, one of them
   linear, predict every context row from the other context rows and every query row from all of them. Their weighted
   mean is the *base*, and the mean absolute leave-one-out error of the base sets the *unit*. All targets are read and
   predicted as multiples of the unit around the base, so that a table almost without noise needs no more precision
   than any other.
2. **Cells** (:class:`CellBlock`): attention to the context rows of a column through inducing points (Lee et al. 2019)
   and weighted means over the columns of a row reduce every row to one vector.
3. **Rows** (:class:`RowBlock`): every row attends to the context rows.

Query rows do not see each other. The keys and values of the context are computed once by :meth:`Network.fit`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from howsure.incontext.regressions import EXPERTS, ROWS_FOR_RIDGE, Experts, compressed, fit_experts

Keys = tuple[Tensor, Tensor]

__all__ = ["Context", "Encoded", "Network", "Posterior", "encode", "log_posterior", "log_predictive", "loss"]

# --- features ------------------------------------------------------------------------------------------------------

CODE = 16  # length of the random code of a column
WAVES = 6  # frequencies of the rank of a cell
MIN_ERROR = 0.1  # units: smaller errors of an expert, as in tables with a constant target, count as this


class Encoded(NamedTuple):
    """Inputs of the network: the context rows, then the query rows. Odd features change sign with the target."""

    cells: Tensor  # (3, B, N, C): standardised value, rank, 1 where missing
    row_even: Tensor  # (B, N, 18): variances and errors of the experts, sizes of the table
    row_odd: Tensor  # (B, N, 11): predictions of the experts in standard deviations and in units
    offset: Tensor  # (B, N, 5): predictions of the experts in units from the base, odd
    column_even: Tensor  # (B, C, 3): log relevance, share of distinct values, share of missing values
    column_odd: Tensor  # (B, C, 2): correlation of the value and of the rank with the target
    target: Tensor  # (B, c, 9): targets of the context rows, odd
    log_share: Tensor  # (B, 1, 5): logarithm of the weights of the experts

    def mirrored(self, sign: Tensor) -> "Encoded":
        """Return the features of the target multiplied by ±1; ``sign`` has the shape (B, 1, 1)."""
        odd = {name: getattr(self, name) * sign for name in ("column_odd", "row_odd", "target", "offset")}
        return self._replace(**odd)

    def repeated(self, views: int) -> "Encoded":
        """Return every table ``views`` times in a row."""
        return Encoded(*(part.repeat_interleave(views, int(part is self.cells)) for part in self))


class Context(NamedTuple):
    """Tables in context: experts, features, and the keys and values of every layer, in several views."""

    experts: Experts
    encoded: Encoded
    codes: Tensor  # (B · views, C, CODE) codes of the columns
    sign: Tensor  # (B · views, 1, 1) sign of the target
    memory: list[Keys]


Encoding = tuple[Encoded, Experts, Tensor]


def encode(x: Tensor, y: Tensor, query: Tensor | None = None, rows_for_ridge: int = ROWS_FOR_RIDGE) -> Encoding:
    """Return features of context and query rows, the experts, and the base (B, N) in standard deviations.

    Args:
        x: (B, c, C) context rows; NaN where a cell is missing.
        y: (B, c) their targets.
        query: (B, q, C) query rows.
        rows_for_ridge: number of rows on which ridges are chosen.
    """
    x, y = x.double(), y.double()
    experts, *found = fit_experts(x, y, rows_for_ridge)
    mean, t, rows = found[0], (y - experts.centre) / experts.spread, x
    if query is not None:
        rows = torch.cat([x, query.double()], 1)
        found = [torch.cat(parts, 1) for parts in zip(found, experts.predict(query.double()), strict=True)]
    features, base = _row_features(experts, rows, *found)
    residual = (t - base[:, : t.shape[1]])[..., None] / experts.unit[..., None]
    apart = (t[..., None] - mean) / experts.unit[..., None]
    curves = [t[..., None].asinh(), residual.asinh(), residual.tanh(), (residual / 4).tanh(), apart.asinh()]
    table = (*_column_features(experts, x, t), torch.cat(curves, 2), experts.share.clamp(min=1e-12).log())
    return Encoded(*features, *(part.float() for part in table)), experts, base


def _row_features(experts: Experts, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the first four parts of :class:`Encoded` and the base of rows x with predictions of the experts."""
    z, place = experts.columns.scaled(x)
    base, unit = (mean * experts.share).sum(2), experts.unit[..., None]
    offset = (mean - base[..., None]) / unit
    odd = torch.cat([mean.asinh(), base[..., None].asinh(), offset.asinh()], 2)
    size = x.new_tensor([math.log(experts.weights[0].shape[1]) / 3 - 2, math.log(x.shape[2]) - 2])
    error = (experts.error / unit).clamp(min=MIN_ERROR).log()
    table = torch.cat([error, experts.share, unit.log() / 4, size.expand(len(x), 1, 2)], 2)
    even = torch.cat([variance.log() / 4, table.expand(-1, mean.shape[1], -1)], 2)
    cells = torch.stack([compressed(z), place, x.isnan().to(z.dtype)])
    return [part.float() for part in (cells, even, odd, offset)], base


def _column_features(experts: Experts, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return even and odd features of the columns."""
    weight, ordered = experts.factor.square().sum(2).sqrt(), experts.columns.ordered
    distinct = 1 + ((ordered[..., 1:] > ordered[..., :-1]) & ordered[..., 1:].isfinite()).sum(2)
    even = torch.stack([weight.log(), distinct.log() - math.log(x.shape[1]) / 2 - 2, x.isnan().to(x.dtype).mean(1)], 2)
    z, place = experts.columns.scaled(x)
    odd = [(part * t[..., None]).mean(1) / (part.square().mean(1).sqrt() + 1e-3) for part in (compressed(z), place)]
    return even, torch.stack(odd, 2)


# --- network -------------------------------------------------------------------------------------------------------

COMPONENTS = 6
SLOTS = 8  # weighted means of the cells of a row
USUAL_ROWS = 512  # rows at which the sharpness of attention has no effect
FIRST_SCALES = (-6.0, 0.3)  # logarithms of the noise of the first and last component before training, in units
FIRST_DOUBT = 0.5  # epistemic standard deviation before training, in units
SIZES = {  # of a row, number of row blocks, heads; of a cell, number of cell blocks, heads; inducing points
    "width": 256, "layers": 6, "heads": 8, "cell_width": 64, "cell_layers": 2, "cell_heads": 2, "points": 16,
}  # fmt: skip


def _normed(x: Tensor) -> Tensor:
    """Divide the last dimension by its root mean square."""
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class Attention(nn.Module):
    r"""Attention whose logits are multiplied by :math:`(n/512)^{s_h}` for n keys, with a learned power per head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.sharpness = nn.Parameter(torch.zeros(heads, 1, 1))
        nn.init.zeros_(self.out.weight)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-any-return]

    def keys(self, source: Tensor) -> Keys:
        """Return keys and values (B, heads, n, width / heads)."""
        return self._split(self.key(source)), self._split(self.value(source))

    def forward(self, x: Tensor, keys: Keys) -> Tensor:
        """Return the output for queries x (B, m, width)."""
        q = self._split(self.query(x))
        sharpness = (self.sharpness.new_full((), keys[0].shape[2]) / USUAL_ROWS).pow(self.sharpness)
        found = functional.scaled_dot_product_attention(q * sharpness.to(q.dtype), *keys)
        return self.out(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Sequential):
    """Hidden layer of twice the width; starts at 0."""

    def __init__(self, width: int) -> None:
        last = nn.Linear(2 * width, width, bias=False)
        nn.init.zeros_(last.weight)
        super().__init__(nn.Linear(width, 2 * width, bias=False), nn.GELU(), last)


class Pooling(nn.Module):
    r"""Linear function of weighted means of the cells of a row.

    .. math:: \sum_c \mathrm{softmax}_c(u_p^\top h_c)\,V h_c, \qquad p = 1, \dots, 8
    """

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, SLOTS)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(SLOTS * width, outputs, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """Return rows (B, N, outputs) for cells (B, C, N, width)."""
        share, value = self.score(h).softmax(1), self.value(h)
        pooled: Tensor = self.out(torch.einsum("bcnp,bcnd->bnpd", share.to(value.dtype), value).flatten(2))
        return pooled


class CellBlock(nn.Module):
    """Attention among the context rows of a column through inducing points, then pooling of the cells of a row."""

    def __init__(self, width: int, heads: int, points: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(points, width))
        self.gather, self.read = Attention(width, heads), Attention(width, heads)
        self.pool = Pooling(width, width)
        self.feed = FeedForward(width)

    def forward(self, h: Tensor, target: Tensor | None, memory: Keys | None) -> tuple[Tensor, Keys]:
        """Return cells (B, C, N, width) and the memory, which is computed from the context rows if absent."""
        n = _normed(h)
        if memory is None:
            assert target is not None
            source = (n[:, :, : target.shape[1]] + target[:, None].to(n.dtype)).flatten(0, 1)
            points = self.points.to(n.dtype).expand(len(source), -1, -1)
            memory = self.read.keys(_normed(points + self.gather(points, self.gather.keys(source))))
        h = h + self.read(n.flatten(0, 1), memory).view_as(h)
        h = h + self.pool(_normed(h))[:, None]
        return h + self.feed(_normed(h)), memory


class RowBlock(nn.Module):
    """Attention of all rows to the context rows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed = FeedForward(width)

    def forward(self, h: Tensor, context: int, memory: Keys | None) -> tuple[Tensor, Keys]:
        """Return rows (B, N, width) and the memory, which is computed from the first rows if absent."""
        n = _normed(h)
        memory = self.attention.keys(n[:, :context]) if memory is None else memory
        h = h + self.attention(n, memory)
        return h + self.feed(_normed(h)), memory


class Posterior(NamedTuple):
    r"""Mixture of Normal Inverse-Gamma distributions of (μ, σ²) for every query row; parts have the shape (B, q, K).

    .. math:: \sum_k w_k\,N(\mu;\gamma_k, \sigma^2/\nu_k)\,\mathrm{IG}(\sigma^2;\alpha_k, \beta_k), \qquad
              \beta_k = \alpha_k s_k^2
    """

    log_weight: Tensor
    loc: Tensor  # γ
    log_nu: Tensor
    alpha: Tensor
    log_scale: Tensor  # ln s

    @property
    def beta(self) -> Tensor:
        """β."""
        return self.alpha * (2 * self.log_scale).exp()

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return E[μ], Var[μ] and E[σ²] (B, q)."""
        weight, own = self.log_weight.exp(), self.beta / (self.alpha - 1)
        mean = (weight * self.loc).sum(-1)
        apart = (self.loc - mean[..., None]).square()
        return mean, (weight * (own * (-self.log_nu).exp() + apart)).sum(-1), (weight * own).sum(-1)


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))


Answer = tuple[Posterior, list[Keys]]


class Network(nn.Module):
    """The pretrained network; ``sizes`` replace entries of :data:`SIZES`."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.config = SIZES | sizes
        width, layers, heads, cell_width, cell_layers, cell_heads, points = self.config.values()
        self.cell = _two_layers(3 + 2 * WAVES, cell_width)
        self.column = nn.Linear(5 + CODE, cell_width)
        self.cell_target = nn.Linear(EXPERTS + 4, cell_width)
        self.cell_blocks = nn.ModuleList(CellBlock(cell_width, cell_heads, points) for _ in range(cell_layers))
        self.pool = Pooling(cell_width, width)
        self.row, self.target = _two_layers(5 * EXPERTS + 4, width), _two_layers(EXPERTS + 4, width)
        self.unknown = nn.Parameter(torch.zeros(width))
        self.row_blocks = nn.ModuleList(RowBlock(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 5 * COMPONENTS + EXPERTS)
        nn.init.zeros_(self.head.weight)
        scale, zero = torch.linspace(*FIRST_SCALES, COMPONENTS), torch.zeros(COMPONENTS)
        shift, log_nu = torch.linspace(-0.2, 0.2, COMPONENTS), 2 * scale - 2 * math.log(FIRST_DOUBT)
        self.head.bias.data = torch.cat([zero, shift, log_nu, zero, scale, torch.zeros(EXPERTS)])

    def forward(self, encoded: Encoded, codes: Tensor, context: int, memory: Sequence[Keys] = ()) -> Answer:
        """Return the posterior of query rows, in units around the base, and the keys and values of the context.

        Args:
            encoded: features of ``context`` context rows, followed by query rows.
            codes: (B, C, CODE) random codes of the columns.
            context: number of context rows; 0 with a memory.
            memory: keys and values of the context from an earlier call.
        """
        keys: list[Any] = list(memory) or [None] * (len(self.cell_blocks) + len(self.row_blocks))
        h = self._cells(encoded, codes)
        target = self.cell_target(encoded.target) if context else None
        for i, block in enumerate(self.cell_blocks):
            h, keys[i] = block(h, target, keys[i])
        rows = self.pool(_normed(h))
        rows = rows + self.row(torch.cat([encoded.row_even, encoded.row_odd], 2))
        queries = rows[:, context:] + self.unknown.to(rows.dtype)
        rows = torch.cat([rows[:, :context] + self.target(encoded.target), queries], 1) if context else queries
        for i, block in enumerate(self.row_blocks, len(self.cell_blocks)):
            rows, keys[i] = block(rows, context, keys[i])
        with torch.autocast(rows.device.type, enabled=False):
            raw = self.head(_normed(rows[:, context:].float()))
        return _posterior(raw, encoded.offset[:, context:], encoded.log_share), keys

    def _cells(self, encoded: Encoded, codes: Tensor) -> Tensor:
        """Embed cells (B, C, N, cell width): value, rank, waves of the rank, column."""
        cells = encoded.cells.permute(1, 3, 2, 0)
        angles = cells[..., 1:2] * (math.pi / 2 * 2.0 ** torch.arange(WAVES, device=cells.device))
        features = torch.cat([cells, angles.sin(), angles.cos()], 3)
        column = self.column(torch.cat([encoded.column_even, encoded.column_odd, codes], 2))
        return self.cell(features) + column[:, :, None]  # type: ignore[no-any-return]

    @torch.no_grad()
    def fit(self, x: Tensor, y: Tensor, views: int = 4) -> Context:
        """Read context rows x (B, c, C), NaN where a cell is missing, with targets y (B, c).

        A view is one reading of the table. Views come in pairs that share their column codes. The second view
        reads the negative targets, so that the prediction of a negative target is the negative prediction.
        """
        encoded, experts, _ = encode(x, y)
        codes = torch.randn(views, x.shape[2], CODE, generator=torch.Generator().manual_seed(0))
        codes = codes.repeat_interleave(2, 0)[:views].repeat(len(x), 1, 1).to(encoded.target)
        sign = (1.0 - 2 * (torch.arange(views, device=x.device) % 2)).repeat(len(x))[:, None, None]
        _, memory = self(encoded.repeated(views).mirrored(sign), codes, x.shape[1])
        return Context(experts, encoded, codes, sign, memory)

    @torch.no_grad()
    def predict(self, context: Context, x: Tensor) -> Posterior:
        """Return the posterior of query rows x (B, q, C) in the units of the target, in float64.

        It has the components of all views, with equal weights.
        """
        experts, views = context.experts, len(context.codes) // len(x)
        features, base = _row_features(experts, x.double(), *experts.predict(x.double()))
        encoded = Encoded(*[*features, *context.encoded[4:]]).repeated(views).mirrored(context.sign)
        found, _ = self(encoded, context.codes, 0, context.memory)
        found = found._replace(loc=found.loc * context.sign)
        found = Posterior(*(p.double().unflatten(0, (len(x), views)).transpose(1, 2).flatten(2) for p in found))
        centre, spread, unit = (part[..., None] for part in (experts.centre, experts.spread, experts.unit))
        loc = centre + spread * (base[..., None] + unit * found.loc)
        log_scale = found.log_scale + (unit * spread).log()
        return found._replace(log_weight=found.log_weight - math.log(views), loc=loc, log_scale=log_scale)


def _posterior(raw: Tensor, offset: Tensor, log_share: Tensor) -> Posterior:
    """Return the mixture of raw outputs; its locations start from a weighted mean of the experts' predictions."""
    logit, shift, log_nu, log_alpha, log_scale = raw[..., : 5 * COMPONENTS].unflatten(-1, (5, COMPONENTS)).unbind(-2)
    start = (offset * (raw[..., 5 * COMPONENTS :] + log_share).softmax(-1)).sum(-1, keepdim=True)
    log_nu, log_scale = log_nu.clamp(-18.4, 18.4), log_scale.clamp(-16, 8)
    alpha = 1 + (1 + (2 * log_alpha.clamp(-4, 6)).exp()).sqrt()  # at least 2: σ² of a component has a variance
    return Posterior(logit.log_softmax(-1), start + shift, log_nu, alpha, log_scale)


# --- loss ----------------------------------------------------------------------------------------------------------

CONTAMINATION = 1e-3  # share of the broad density that bounds the loss of one row
MIN_VARIANCE = 1e-14  # of a label, in squared units
MAX_RATIO = 100.0  # of a squared error, or of a variance, to its expectation: larger ones count as logarithms
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(5)  # the sum of the weights is √(2π)


def log_posterior(p: Posterior, mean: Tensor, variance: Tensor) -> Tensor:
    r"""Return the log density of the mixture at (μ, σ²).

    .. math:: \ln\sum_k w_k \exp\Bigl[\tfrac12\ln\frac{\nu}{2\pi\sigma^2} - \frac{\nu(\mu-\gamma)^2}{2\sigma^2}
              + \alpha\ln\frac\beta{\sigma^2} - \ln\Gamma(\alpha) - \ln\sigma^2 - \frac\beta{\sigma^2}\Bigr]
    """
    log_variance = variance.log()[..., None]
    ratio = (p.alpha.log() + 2 * p.log_scale - log_variance).clamp(max=40)  # ln β/σ²
    square = (p.log_nu - log_variance).exp() * (mean[..., None] - p.loc).square()
    normal = 0.5 * (p.log_nu - log_variance - math.log(2 * math.pi) - square)
    gamma = p.alpha * ratio - torch.lgamma(p.alpha) - ratio.exp() - log_variance
    return (p.log_weight + normal + gamma).logsumexp(-1)


def sampled(p: Posterior, count: int) -> tuple[Tensor, Tensor]:
    """Draw ``count`` values of μ and σ² (B, q, count) for every row."""
    member = torch.distributions.Categorical(logits=p.log_weight).sample(torch.Size([count])).movedim(0, -1)
    loc, log_nu, alpha, beta = (part.gather(-1, member) for part in (p.loc, p.log_nu, p.alpha, p.beta))
    variance = beta / torch.distributions.Gamma(alpha, 1.0, validate_args=False).sample().clamp(min=1e-20)
    return loc + (variance / log_nu.exp()).sqrt() * torch.randn_like(loc), variance


def log_predictive(p: Posterior, y: Tensor) -> Tensor:
    r"""Return the log density of y: a mixture of Student t with 2α degrees of freedom and scale² s²(1 + 1/ν)."""
    log_width = p.log_scale + 0.5 * functional.softplus(-p.log_nu)
    z = (y[..., None] - p.loc) * (-log_width).exp()
    constant = torch.lgamma(p.alpha + 0.5) - torch.lgamma(p.alpha) - 0.5 * (2 * math.pi * p.alpha).log() - log_width
    return (p.log_weight + constant - (p.alpha + 0.5) * torch.log1p(z.square() / (2 * p.alpha))).logsumexp(-1)


def log_moments(p: Posterior, mean: Tensor, variance: Tensor) -> Tensor:
    r"""Return a score of the moments of the mixture (B, q), whose expectation is greatest at the moments of the labels.

    .. math:: -\tfrac12\Bigl[\ln V + g\Bigl(\frac{(\mu - m)^2}{V}\Bigr)\Bigr] - \ln S - g\Bigl(\frac{\sigma^2}{S}\Bigr),
              \qquad m = \mathbb E\mu,\; V = \operatorname{Var}\mu,\; S = \mathbb E\sigma^2

    The density hardly sees a component of weight ε with M times the variance, which raises its loss by about ε, but
    raises V or S by εM. Above :data:`MAX_RATIO`, g continues as a logarithm, else it is the identity.
    """
    expected, spread, noise = p.moments()
    spread, noise = spread + MIN_VARIANCE, noise + MIN_VARIANCE
    ratios = torch.stack([(mean - expected).square() / spread, variance / noise])
    near, far = ratios.clamp(max=MAX_RATIO), (ratios / MAX_RATIO).clamp(min=1).log()
    first, second = (near + MAX_RATIO * far).unbind()
    return -0.5 * (spread.log() + first) - noise.log() - second


def loss(p: Posterior, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the three parts of the loss of every query row (B, q).

    The first is :math:`-\ln\bigl[(1-\varepsilon)\,q(\mu, \sigma^2) + \varepsilon\,b(\mu, \sigma^2)\bigr]` with a broad
    density b (Cauchy in μ and in ln σ²), which bounds the loss of a row that the mixture excludes. The second is
    :math:`\mathbb E[-\ln p(y)]` over :math:`y \sim N(\mu, \sigma^2)`, by Gauss–Hermite quadrature.
    The third is minus :func:`log_moments`.
    """
    variance = variance.clamp(min=MIN_VARIANCE)
    log_variance = variance.log()
    broad = -torch.log1p(mean.square()) - torch.log1p((log_variance / 3).square()) - log_variance
    broad = broad - 2 * math.log(math.pi) - math.log(3) + math.log(CONTAMINATION)
    posterior = -torch.logaddexp(log_posterior(p, mean, variance) + math.log1p(-CONTAMINATION), broad)
    deviation, predictive = variance.sqrt(), torch.zeros_like(mean)
    for node, weight in zip(NODES.tolist(), (NODE_WEIGHTS / math.sqrt(2 * math.pi)).tolist(), strict=True):
        predictive = predictive - weight * log_predictive(p, mean + node * deviation)
    return posterior, predictive, -log_moments(p, mean, variance)
