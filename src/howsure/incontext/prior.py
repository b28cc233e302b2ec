r"""Simulator of regression tables whose true mean and variance are known in every row.

A table is a draw of

.. math:: x \sim \text{columns}, \qquad \mu = f(x), \qquad \sigma_i^2 = s^2(x_i)\,t_i, \qquad
          y_i = \mu_i + \sigma_i e_i, \quad e_i \sim N(0, 1)

with a random function f (:data:`TRAINING`), a random noise level s(x) and, in some tables, a latent scale t that makes
the noise heavy-tailed. Missing cells are filled before f is computed, so that f is a function of the observed cells.
All tables of a batch have the same numbers of rows and columns. Random numbers come from torch's global generator.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FOREIGN", "TRAINING", "Tables", "simulate"]

Function = Callable[[Tensor, Tensor], Tensor]

GROUPS = 16  # of tables that share the discrete choices of a function: family, depth, activations
NOISE = (1e-4, 0.05, 2.0)  # smallest, usual smallest, largest; in standard deviations of the mean
SHARE_WITH_RARE_NOISE = 0.15  # of the tables, whose noise may be as small as NOISE[0]
HALF_FREEDOM = (2.0, 8.0)  # half the degrees of freedom of heavy tails: the fourth moment of the noise is finite
CELLS_OF_LOOKUP = 64  # resolution of a random function of one column
SPECTRAL_FEATURES = 128  # random Fourier features of a smooth function
MAX_LEVELS = 32  # of a discrete column
MAX_DEVIATIONS = 6.0  # standard deviations beyond which a function sees its input as constant


class Tables(NamedTuple):
    """Simulated tables: B tables of N rows and C columns."""

    x: Tensor  # (B, N, C); NaN where a cell is missing
    y: Tensor  # (B, N) observed targets
    mean: Tensor  # (B, N) true mean of every row
    variance: Tensor  # (B, N) true variance of every row


def simulate(tables: int, rows: int, columns: int, device: torch.device, functions: Sequence[Function] = ()) -> Tables:
    """Draw tables.

    Args:
        tables: B.
        rows: N.
        columns: C.
        device: where the tables are drawn.
        functions: families of functions; :data:`TRAINING` if empty.
    """
    x = _missing(_columns(tables, rows, columns, device))
    filled = _filled(x)
    parts = [_target(part, functions or TRAINING) for part in filled.chunk(GROUPS)]
    labels = [torch.cat(part) for part in zip(*parts, strict=True)]
    order = _order(filled)
    return Tables(x.gather(1, order[..., None].expand_as(x)), *(part.gather(1, order) for part in labels))


def _uniform(like: Tensor, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(*shape, device=like.device)


def _log_uniform(like: Tensor, *shape: int, low: float, high: float) -> Tensor:
    return _uniform(like, *shape, low=math.log(low), high=math.log(high)).exp()


def _chance(like: Tensor, probability: float | Tensor, *shape: int) -> Tensor:
    return torch.rand(*shape, device=like.device) < probability


def _pick(count: int) -> int:
    return int(torch.randint(count, ()))


def _standardised(values: Tensor) -> Tensor:
    """Return values with mean 0 and standard deviation 1 over rows (dimension 1)."""
    centred = values - values.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True).sqrt() + 1e-6)


# --- columns -------------------------------------------------------------------------------------------------------


def _columns(tables: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Draw x (B, N, C): correlated or nearly deterministic columns, then marginals, then repeated rows."""
    latent = max(1, round(columns * float(torch.empty(()).uniform_(0.2, 1.5))))
    z = torch.randn(tables, rows, latent, device=device)
    clusters = _chance(z, 0.4, tables, 1, 1) * torch.randn(tables, 6, latent, device=device) * 2
    member = torch.randint(6, (tables, rows, 1), device=device)
    z = z + clusters.gather(1, member.expand_as(z))
    mixed = torch.bmm(z, torch.randn(tables, latent, columns, device=device)) / math.sqrt(latent)
    curved = _layers(z, torch.ones(tables, latent, device=device), columns, ACTIVATIONS)
    shared = torch.where(_chance(z, 0.25, tables, 1, 1), _standardised(curved), _standardised(mixed))
    own = _uniform(z, tables, 1, columns) * _uniform(z, tables, 1, 1)
    own = torch.where(_chance(z, 0.25, tables, 1, 1), 1.0, own)  # columns are independent
    own = torch.where(_chance(z, 0.1, tables, 1, 1), 0.01 * own, own)  # columns are functions of the latents
    x = _standardised((1 - own).sqrt() * shared + own.sqrt() * torch.randn(tables, rows, columns, device=device))
    return _repeated(_marginals(x))


def _marginals(x: Tensor) -> Tensor:
    """Change the distribution of each column: uniform, skewed, heavy-tailed, mostly zero, ordinal or categorical."""
    tables, _, columns = x.shape
    shape = (tables, 1, columns)
    place = torch.special.ndtr(x)
    levels = _log_uniform(x, *shape, low=2, high=MAX_LEVELS).floor()
    bent = place.pow((0.5 * torch.randn(shape, device=x.device)).exp())
    ordinal = (bent * levels).floor().clamp(max=MAX_LEVELS - 1)
    codes = torch.rand(tables, MAX_LEVELS, columns, device=x.device).argsort(1).float()
    spread = torch.where(_chance(x, 0.3, *shape), (ordinal * _uniform(x, *shape, high=0.5)).exp(), ordinal)
    kinds = [
        (0.25, place),
        (0.12, (x * _uniform(x, *shape, low=0.3, high=1.2)).exp()),
        (0.06, x * x.abs() * _uniform(x, *shape, low=0.5, high=2)),
        (0.08, (x - _uniform(x, *shape, low=-0.5, high=1)).relu()),
        (0.19, spread),
        (0.05, codes.gather(1, ordinal.long())),
    ]
    mixed = _one_of(torch.rand(shape, device=x.device), x, kinds)
    return torch.where(_chance(x, 0.15, tables, 1, 1), spread, mixed)  # or all columns of the table have levels


def _one_of(dice: Tensor, otherwise: Tensor, choices: list[tuple[float, Tensor]]) -> Tensor:
    """Return one of the choices with the given probabilities, by uniform numbers ``dice``."""
    edge = 0.0
    for share, values in choices:
        otherwise = torch.where((dice >= edge) & (dice < edge + share), values, otherwise)
        edge += share
    return otherwise


def _repeated(x: Tensor) -> Tensor:
    """Let some columns of some tables repeat a few rows, as in designed experiments and joined tables."""
    tables, rows, columns = x.shape
    count = _log_uniform(x, tables, 1, low=4, high=max(8, rows / 3))
    source = (torch.rand(tables, rows, device=x.device) * count).long().clamp(max=rows - 1)
    repeated = x.gather(1, source[..., None].expand_as(x))
    joined = _chance(x, 0.2, tables, 1, 1) & _chance(x, _uniform(x, tables, 1, 1), tables, 1, columns)
    return torch.where(joined, repeated, x)


def _missing(x: Tensor) -> Tensor:
    """Set cells of some columns of some tables to NaN."""
    tables, _, columns = x.shape
    chosen = _chance(x, 0.15, tables, 1, 1) & _chance(x, 0.4, tables, 1, columns)
    rate = chosen * _uniform(x, tables, 1, columns, high=0.4)
    return torch.where(torch.rand_like(x) < rate, torch.nan, x)


def _filled(x: Tensor) -> Tensor:
    """Standardise the columns, clip them and fill missing cells with one random value per column."""
    centred = x - x.nanmean(1, keepdim=True)
    deviation = centred.square().nanmean(1, keepdim=True).sqrt() + 1e-6
    scaled = (centred / deviation).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
    return torch.where(scaled.isnan(), torch.randn(len(x), 1, x.shape[2], device=x.device), scaled)


def _order(x: Tensor) -> Tensor:
    """Return an order of the rows; in a tenth of the tables the last rows have larger values of one column."""
    tables, _, columns = x.shape
    column = torch.randint(columns, (tables, 1, 1), device=x.device).expand(tables, x.shape[1], 1)
    shift = _chance(x, 0.1, tables, 1) * _uniform(x, tables, 1, low=-3, high=3)
    return (torch.randn(x.shape[:2], device=x.device) + shift * x.gather(2, column)[..., 0]).argsort(1)


# --- functions of standardised columns x (B, N, C) with relevances w (B, C) ----------------------------------------


def _relevance(x: Tensor) -> Tensor:
    """Draw relevances (B, C): log-normal, and 0 for irrelevant columns."""
    tables, _, columns = x.shape
    kept = _chance(x, _uniform(x, tables, 1, low=0.2, high=1.2), tables, columns)
    kept = kept | (torch.arange(columns, device=x.device) == torch.randint(columns, (tables, 1), device=x.device))
    return kept * (0.7 * torch.randn(tables, columns, device=x.device)).exp()


ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    torch.tanh, torch.relu, torch.sin, torch.abs, torch.sign, lambda v: v, lambda v: (-v * v).exp(),
    lambda v: 0.5 * v.relu().square(), lambda v: (v - 0.5).sign() + (v + 0.7).sign(), lambda v: (3 * v).sin(),
]  # fmt: skip
FOREIGN_ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    lambda v: v - v.floor(), torch.sinc, lambda v: v * (-v.abs()).exp(), lambda v: (v.abs() + 0.1).log(),
]  # fmt: skip


def _layers(x: Tensor, w: Tensor, outputs: int, activations: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Random network (B, N, outputs) with sparse weights, up to four hidden layers and two activations."""
    first, second = activations[_pick(len(activations))], activations[_pick(len(activations))]
    width, gain = 2 * int(2 ** (2 + 3.5 * torch.rand(()))), float(torch.empty(()).uniform_(-0.5, 1.3).exp())
    tables, h = len(x), x * w[:, None]
    h = h / (h.square().sum(2).mean(1).sqrt()[:, None, None] + 1e-6) * math.sqrt(h.shape[2])
    density = _uniform(x, tables, 1, 1, low=0.3)
    for _ in range([0, 1, 1, 2, 2, 3, 4][_pick(7)]):
        size = h.shape[2]
        weights = torch.randn(tables, size, width, device=x.device) * _chance(x, density, tables, size, width)
        h = torch.baddbmm(torch.randn(tables, 1, width, device=x.device), h, weights * (1.2 * gain / math.sqrt(size)))
        h = torch.cat([first(h[..., : width // 2]), second(h[..., width // 2 :])], 2)
        h = h / (h.std(1, keepdim=True).mean(2, keepdim=True) + 1e-3)
    return torch.bmm(h, torch.randn(tables, h.shape[2], outputs, device=x.device) / math.sqrt(h.shape[2]))


def _network(x: Tensor, w: Tensor, activations: Sequence[Callable[[Tensor], Tensor]] = ACTIVATIONS) -> Tensor:
    """Random network."""
    return _layers(x, w, 1, activations)[..., 0]


def _some(x: Tensor, w: Tensor, count: int) -> Tensor:
    """Return random columns (B, N, count), drawn with probabilities in proportion to their relevance."""
    column = torch.multinomial(w + 1e-9, count, replacement=True)
    return x.gather(2, column[:, None].expand(-1, x.shape[1], -1))


def _trees(x: Tensor, w: Tensor) -> Tensor:
    """Sum of random oblivious trees: in each level of a tree all nodes compare one column with one value."""
    tables, rows, _ = x.shape
    count, depth = [1, 2, 4, 8, 16, 48][_pick(6)], 1 + _pick(5)
    values = _some(x, w, count * depth)
    edge = values.gather(1, torch.randint(rows, (tables, 1, count * depth), device=x.device))
    bits = (values > edge).view(tables, rows, count, depth)
    leaf = (bits * 2 ** torch.arange(depth, device=x.device)).sum(3)
    heights = torch.randn(tables, count, 2**depth, device=x.device) * _log_uniform(x, tables, count, 1, low=0.2, high=1)
    return heights.gather(2, leaf.transpose(1, 2)).sum(1)


def _waves(x: Tensor, w: Tensor, spread: Tensor | float = 1.0) -> Tensor:
    r"""Return a draw from a Gaussian process at each row of x (B, n), :math:`\sum_j a_j\cos(\omega_j^\top x + b_j)`.

    With :math:`\omega \sim N(0, w^2/\ell^2)` the process has a Gaussian kernel with random lengths ℓ. ``spread``, a
    number or (B, 1, features), multiplies the frequencies.
    """
    tables, _, columns = x.shape
    active = (w > 0).sum(1, keepdim=True).clamp(min=1).sqrt()
    scale = w / (_log_uniform(x, tables, 1, low=0.4, high=4) * active)
    frequency = torch.randn(tables, columns, SPECTRAL_FEATURES, device=x.device) * scale[..., None] * spread
    phase = _uniform(x, tables, 1, SPECTRAL_FEATURES, high=2 * math.pi)
    heights = torch.randn(tables, SPECTRAL_FEATURES, 1, device=x.device)
    return torch.bmm(torch.baddbmm(phase, x, frequency).cos(), heights)[..., 0]


def _smooth(x: Tensor, w: Tensor) -> Tensor:
    """Gaussian process with four times the length: a row has little information on the variance."""
    return _waves(x, w, 0.25)


def _periodic(x: Tensor, w: Tensor) -> Tensor:
    """Sum of three sines of one column each, whose amplitudes depend on another column."""
    tables, values = len(x), _some(x, w, 6)
    frequency = _log_uniform(x, tables, 1, 3, low=0.5, high=8)
    sines = (frequency * values[..., :3] + _uniform(x, tables, 1, 3, high=2 * math.pi)).sin()
    heights = torch.randn(tables, 1, 3, device=x.device)
    return (heights * sines * (1 + values[..., 3:] * torch.randn(tables, 1, 3, device=x.device))).sum(2)


def _linear(x: Tensor, w: Tensor) -> Tensor:
    """Linear function whose coefficients are log-normal or of equal size, with random signs."""
    size = torch.where(_chance(x, 0.3, len(x), 1), (w > 0).float(), w)
    return torch.bmm(x, (size * torch.randn_like(w))[..., None])[..., 0]


def _lookups(x: Tensor, w: Tensor) -> Tensor:
    """Random function of each column (B, N, C): white noise, a random walk or a smooth curve over the normal scale."""
    tables, _, columns = x.shape
    white = torch.randn(tables, columns, CELLS_OF_LOOKUP, device=x.device)
    walk = white.cumsum(2)
    curve = (walk - walk.mean(2, keepdim=True)).cumsum(2)
    kind = torch.rand(tables, columns, 1, device=x.device)
    table = torch.where(kind < 0.2, white, torch.where(kind < 0.6, walk, curve))
    table = (table - table.mean(2, keepdim=True)) / (table.std(2, keepdim=True) + 1e-6)
    cell = (torch.special.ndtr(x) * CELLS_OF_LOOKUP).long().clamp(max=CELLS_OF_LOOKUP - 1)
    return table.gather(2, cell.transpose(1, 2)).transpose(1, 2) * w[:, None]


def _additive(x: Tensor, w: Tensor) -> Tensor:
    """Sum of one random function per column."""
    return _lookups(x, w).sum(2)


def _products(x: Tensor, w: Tensor) -> Tensor:
    """Sum of products of random functions of two or three columns."""
    curves = _lookups(x, torch.ones_like(w)) + _uniform(x, len(x), 1, 1, high=1.5)
    factors: Tensor = _some(curves, w, 4 * (2 + _pick(2))).unflatten(2, (4, -1))
    return (factors.prod(3) * torch.randn(len(x), 1, 4, device=x.device)).sum(2)


def _rational(x: Tensor, w: Tensor) -> Tensor:
    """Gaussian process with a rational quadratic kernel: gamma-distributed squared frequencies (held out)."""
    shape = torch.full((len(x), 1, SPECTRAL_FEATURES), float(torch.empty(()).uniform_(0.3, 2)), device=x.device)
    return _waves(x, w, (torch.distributions.Gamma(shape, shape).sample() * 2).sqrt())


def _splines(x: Tensor, w: Tensor) -> Tensor:
    r"""Additive cubic splines with tensor products of neighbouring columns (held out).

    .. math:: \sum_c w_c\,g_c(x_c) + \sum_c a_c\,g_c(x_c)\,g_{c+1}(x_{c+1}), \qquad
              g(x) = \sum_k b_k\,\max(x - t_k, 0)^3
    """
    tables, _, columns = x.shape
    knots, heights = torch.randn(2, tables, 1, columns, 8, device=x.device)
    curves = _standardised(((x[..., None] - knots).relu().pow(3) * heights).sum(3))
    pairs = curves * curves.roll(1, 2) * torch.randn(tables, 1, columns, device=x.device)
    return (curves * w[:, None]).sum(2) + 0.5 * (pairs * w[:, None]).sum(2)


_foreign_network = functools.partial(_network, activations=FOREIGN_ACTIVATIONS)

TRAINING: tuple[Function, ...] = (
    _network, _network, _network, _trees, _trees, _waves, _waves, _additive, _additive, _products, _periodic, _linear,
)  # fmt: skip
FOREIGN: tuple[Function, ...] = (_rational, _splines, _foreign_network)


# --- targets -------------------------------------------------------------------------------------------------------


def _target(x: Tensor, functions: Sequence[Function]) -> tuple[Tensor, Tensor, Tensor]:
    """Draw y, the mean and the variance (B, N) of tables that share their families of functions."""
    w = _relevance(x)
    first, second = (_standardised(functions[_pick(len(functions))](x, v)) for v in (w, _relevance(x)))
    mean = _warped(_combined(x, first, second))
    scale = _noise(x, mean, w)
    half = _log_uniform(x, len(x), 1, low=HALF_FREEDOM[0], high=HALF_FREEDOM[1]).expand_as(mean)
    tail = torch.distributions.Gamma(half, half, validate_args=False).sample()
    variance = scale.square() * torch.where(_chance(x, 0.2, len(x), 1), 1 / tail.clamp(min=1e-3), 1.0)
    outlier = _chance(x, 0.05, *mean.shape) & _chance(x, 0.1, len(x), 1)
    variance = variance * torch.where(outlier, _log_uniform(x, len(x), 1, low=4, high=100), 1.0)
    y = mean + variance.sqrt() * torch.randn_like(mean)
    step = scale.mean(1, keepdim=True) * _log_uniform(x, len(x), 1, low=0.2, high=2)
    whole = _chance(x, 0.2, len(x), 1)  # rounding adds the variance of a uniform error
    return torch.where(whole, (y / step).round() * step, y), mean, variance + whole * step.square() / 12


def _combined(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return one function, a sum, a product, or one function on each side of a split; standardised."""
    tables, rows = first.shape
    share = _uniform(x, tables, 1)
    column = torch.randint(x.shape[2], (tables, 1, 1), device=x.device).expand(tables, rows, 1)
    side = x.gather(2, column)[..., 0] > torch.randn(tables, 1, device=x.device)
    kind = torch.rand(tables, 1, device=x.device)
    result = torch.where(kind < 0.8, share * first + (1 - share) * second, first * (1 + second * share))
    result = torch.where(kind < 0.45, first, torch.where(kind > 0.9, torch.where(side, first, second), result))
    return _standardised(result)


def _warped(f: Tensor) -> Tensor:
    """Pass the mean of some tables through a curve: exponential, power, limits, steps; standardised, of random sign."""
    a = _uniform(f, len(f), 1)
    curves = [
        (0.16, (f * (0.3 + 1.2 * a)).clamp(max=8).exp()),
        (0.04, f.sinh().clamp(-50, 50)),
        (0.05, f.clamp(max=0.3 + 1.5 * a)),
        (0.04, (f / (0.1 + a)).round()),
        (0.05, f.abs().pow(0.5 + 2 * a)),
        (0.05, (f * (1 + 3 * a)).tanh()),
        (0.04, (f + 2 * a - 1).relu()),
    ]
    result = _standardised(_one_of(torch.rand(len(f), 1, device=f.device), f, curves).nan_to_num(0.0))
    return torch.where(_chance(f, 0.5, len(f), 1), -result, result)


def _noise(x: Tensor, mean: Tensor, w: Tensor) -> Tensor:
    """Draw the noise level s(x) (B, N): constant, log-linear in a random function, or growing with the mean."""
    tables = len(x)
    rare, usual = (_log_uniform(x, tables, 1, low=low, high=NOISE[2]) for low in NOISE[:2])
    level = torch.where(_chance(x, SHARE_WITH_RARE_NOISE, tables, 1), rare, usual)
    shape = (_linear, _linear, _smooth, _smooth, _network)[_pick(5)]
    swing = _standardised(shape(x, w)).clamp(-3, 3) * _uniform(x, tables, 1, high=1.0)
    origin = mean.amin(1, keepdim=True) if _pick(2) else -mean.amax(1, keepdim=True)
    growth = (mean.abs() if _pick(3) == 0 else (mean - origin).abs()) + 0.05
    growth = growth / growth.mean(1, keepdim=True)
    kind = torch.rand(tables, 1, device=x.device)
    growing = growth.pow(_uniform(x, tables, 1, low=0.4, high=1.2))
    return level * torch.where(kind < 0.45, swing.exp(), torch.where(kind < 0.65, growing, 1.0))
