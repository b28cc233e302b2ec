r"""Evidence, calibration and one file for a trained network of any architecture.

:func:`attach` leaves the network as it is. It computes the leverage h of its features
(:class:`howsure.nn.ConjugateEvidence`), and estimates the noise where the network does not state it. The total squared
scale and the evidence are computed by :mod:`howsure.nn.evidence`, relative to the edge of the training rows: with the
squared noise s² of an element, its typical value s̄² and the 90% quantile :math:`h_{90}` of h over left-out elements,

.. math:: T = s^2 + \bar s^2\,(h/h_{90} - 1)_+, \qquad \nu = T/E - 1,

where :math:`E = \bar s^2 \min(h, h_{90}) + (T - s^2)` is the variance of the mean. A prior bounds both. The predictions
of the network do not change.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils.data import DataLoader

from howsure.calibration import Calibration, calibrate, check_method
from howsure.conformal import ConformalCalibration
from howsure.distributed import count_ranks, sum_over_ranks
from howsure.distributions import NormalInverseGamma
from howsure.distributions.arguments import fit_shape
from howsure.errors import InputError, InputTypeError
from howsure.formulas import nig
from howsure.nn.evidence import PRIOR_VARIANCE, ConjugateEvidence, FeatureBasis, FeatureSums
from howsure.nn.features import FeatureReader, Outputs, device_of, fingerprint, in_dtype_of_layers
from howsure.nn.noise import MAX_DF, MIN_EXCESS_DF, fit_student, noise_weights
from howsure.prediction import Prediction
from howsure.storage import checked_header, load_model, reading_model, save_model

__all__ = ["NetworkModel", "attach", "load_network"]

RIDGE = 1e-4  # λ, as a share of the mean eigenvalue of the features' moments
MIN_RIDGE = 1e-8  # for features that do not vary
EDGE_QUANTILE = 0.9  # of the leverage of left-out elements, beyond which the variance grows
SAMPLE_SIZE = 8192  # elements that are kept to learn the noise and quantiles
SCALE_QUANTILES = (0.01, 0.99)  # of the noise in the sample, which bound it everywhere
MIN_EVIDENCE = 1e-3
MAX_LEVERAGE = 0.9  # of one training element on itself


# Evidence -------------------------------------------------------------------------------------------------------------


class NetworkEvidence(nn.Module):
    """Noise, evidence and familiarity of each element, from the outputs and features of a network.

    Args:
        features: number of features, D.
        targets: number of targets, T.
    """

    noise_weight: Tensor  # of scaled features in ln s, (D, T)
    noise_bias: Tensor  # (T,)
    typical: Tensor  # s̄, (T,)
    lowest: Tensor  # bounds of s, (T,)
    highest: Tensor
    most_excess: Tensor  # largest α − 1, (T,)
    prior: Tensor  # V₀, (T,)
    median: Tensor  # of the leverage, ()
    edge: Tensor  # h₉₀, ()

    def __init__(self, features: int, targets: int) -> None:
        super().__init__()
        self.leverage = ConjugateEvidence(features)
        self.register_buffer("noise_weight", torch.zeros(features, targets, dtype=torch.float32))
        for name in ("noise_bias", "typical", "lowest", "highest", "most_excess", "prior"):
            self.register_buffer(name, torch.full((targets,), torch.nan, dtype=torch.float32))
        for name in ("median", "edge"):
            self.register_buffer(name, torch.tensor(torch.nan, dtype=torch.float32))

    def noise(self, outputs: Outputs, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale s and α − 1 of each target, (…, T), without the evidence."""
        scale = outputs.scale
        if scale is None:
            with torch.autocast(features.device.type, enabled=False):
                scaled = (features.to(self.noise_weight.dtype) - self.leverage.offset) / self.leverage.scale
                scale = (self.noise_bias + scaled @ self.noise_weight).exp()
        excess = self.most_excess if outputs.excess is None else torch.minimum(outputs.excess, self.most_excess)
        return torch.maximum(torch.minimum(scale, self.highest), self.lowest), excess.clamp(min=MIN_EXCESS_DF / 2)

    def forward(self, outputs: Outputs, features: Tensor) -> tuple[nig.Parameters, Tensor]:
        """Return parameters (…, T) with evidence, and the familiarity (…) of each element."""
        leverage = self.leverage(features)
        scale, excess = self.noise(outputs, features)
        h, typical = leverage.unsqueeze(-1), self.typical.square()
        made = nig.conjugate_evidence(
            nig.Parameters(outputs.mean, scale, excess, scale),
            scale,
            typical * torch.minimum(h, self.edge),
            typical * (h - self.edge).clamp(min=0),
            1 / self.edge,
            self.prior,
            MIN_EVIDENCE,
        )
        parameters = torch.broadcast_tensors(outputs.mean, *made[1:])
        return nig.Parameters(*parameters), (self.median / leverage).clamp(max=1)


class _Sample(NamedTuple):
    """Elements of the training or validation rows: features (n, D), and (n, T) of the rest; missing targets are NaN."""

    key: Tensor  # random numbers, (n,): the smallest are kept
    features: Tensor
    mean: Tensor
    scale: Tensor
    excess: Tensor
    target: Tensor

    @classmethod
    def join(cls, parts: Sequence["_Sample"]) -> "_Sample":
        """Return at most ``SAMPLE_SIZE`` elements of several samples, each as likely as any other."""
        whole = [torch.cat(columns) for columns in zip(*parts, strict=True)]
        kept = whole[0].argsort()[:SAMPLE_SIZE]
        return cls(*(column[kept] for column in whole))


class _Gathered:
    """Results of one pass over a loader: sums of features, and a sample of elements."""

    def __init__(self) -> None:
        self.sums, self.layers = FeatureSums(), [0]
        self.parts: list[_Sample] = []
        self.limit = 1.0  # keys that are still small enough for the sample
        rank = torch.distributed.get_rank() if count_ranks() > 1 else 0
        self.generator = torch.Generator().manual_seed(rank)

    @property
    def sample(self) -> _Sample:
        """The sample of all elements that were added."""
        return _Sample.join(self.parts)

    def add(self, reader: FeatureReader, outputs: Outputs, features: list[Tensor], y: Tensor) -> None:
        """Add the elements of a batch that have at least one target."""
        rows = outputs.map(lambda x: reader.targets_last(x).flatten(0, -2))
        target = reader.targets_last(y).flatten(0, -2).to(rows.mean)
        known = ~target.isnan().all(-1)
        self.layers = [f.shape[-1] for f in features]
        x = torch.cat([f.flatten(0, -2) for f in features], -1)[known]
        self.sums.add(x.float())
        key = torch.rand(len(x), generator=self.generator)
        some = (key < self.limit).nonzero().squeeze(1)
        own = [torch.full_like(rows.mean, torch.nan) if c is None else c for c in rows]
        columns = (x, *(c[known] for c in own), target[known])
        self.parts.append(_Sample(key[some], *(c[some.to(c.device)].cpu().double() for c in columns)))
        if sum(len(part.key) for part in self.parts) > 2 * SAMPLE_SIZE:
            self.parts = [self.sample]
            self.limit = float(self.parts[0].key.max())

    def merge(self) -> "_Gathered":
        """Add the sums and samples of all other processes to these, and return the result."""
        if count_ranks() == 1:
            return self
        count, mean, moments = self.sums.count, self.sums.mean, self.sums.moments
        assert count is not None
        total = sum_over_ranks(count.clone())
        whole = sum_over_ranks(count * mean) / total
        step = mean - whole
        self.sums.moments = sum_over_ranks(moments + count * step.unsqueeze(-1) * step)
        self.sums.count, self.sums.mean = total, whole
        samples: list[Any] = [None] * count_ranks()
        torch.distributed.all_gather_object(samples, self.sample)
        self.parts = samples
        return self


def _learn(gathered: _Gathered, sample: _Sample, left_out: bool, ridge: float) -> NetworkEvidence:
    """Return the evidence of gathered features.

    Args:
        gathered: of the training rows.
        sample: elements from which noise and quantiles are learned.
        left_out: whether the sample is not among the training rows. Otherwise each element is left out by the formula
            of Sherman and Morrison: leverage h/(1 − h), residual r/(1 − h).
        ridge: λ, as a share of the mean eigenvalue.
    """
    basis = FeatureBasis.of(gathered.sums, layers=gathered.layers)
    penalty = (basis.values.mean() * ridge).clamp(min=MIN_RIDGE)
    device = basis.mean.device
    evidence = NetworkEvidence(basis.mean.shape[-1], sample.target.shape[-1])
    evidence.leverage = ConjugateEvidence.of(basis, penalty).cpu()
    h = evidence.leverage(sample.features)
    own = torch.zeros_like(h) if left_out else h.clamp(max=MAX_LEVERAGE)
    h, residual = h / (1 - own), (sample.target - sample.mean) / (1 - own).unsqueeze(-1)
    median, edge = h.quantile(torch.tensor([0.5, EDGE_QUANTILE], dtype=h.dtype))
    evidence.median.copy_(median)
    evidence.edge.copy_(edge)
    for t in range(sample.target.shape[-1]):
        _learn_target(evidence, sample, residual, t)
    return evidence.to(device)


def _learn_target(evidence: NetworkEvidence, sample: _Sample, residual: Tensor, t: int) -> None:
    """Learn the noise of one target from residuals (n, T), and its prior."""
    known = ~sample.target[:, t].isnan()
    r, scale, excess = residual[known, t], sample.scale[known, t], sample.excess[known, t]
    if len(r) < 2:
        raise InputError(f"target {t} has {len(r)} known values; the noise needs at least two", column=str(t))
    evidence.prior[t] = PRIOR_VARIANCE * sample.target[known, t].var(correction=0)
    if not bool((evidence.prior[t] > 0) & (r != 0).any()):
        raise InputError(f"target {t} does not vary, or the network predicts it without error", column=str(t))
    if bool(scale.isnan().any()):
        z = (sample.features[known] - evidence.leverage.offset) / evidence.leverage.scale
        weight = noise_weights(z, r)
        pattern = z @ weight
        factor, df = fit_student(r / pattern.exp())
        evidence.noise_weight[:, t], evidence.noise_bias[t] = weight, factor.log()
        scale, excess = factor * pattern.exp(), torch.full_like(r, df / 2 - 1)
    elif bool(excess.isnan().any()):
        excess = torch.full_like(r, MAX_DF / 2 - 1)
    quantiles = torch.tensor(SCALE_QUANTILES, dtype=scale.dtype)
    evidence.lowest[t], evidence.highest[t] = scale.quantile(quantiles)
    evidence.typical[t], evidence.most_excess[t] = scale.median(), excess.quantile(SCALE_QUANTILES[1])


@dataclass(frozen=True)
class NetworkHeader:
    """Everything in the file of a :class:`NetworkModel` that is not a tensor."""

    model: str
    network: str  # hash of the weights
    reader: FeatureReader
    calibration: Calibration | ConformalCalibration | None


# The model ------------------------------------------------------------------------------------------------------------


class NetworkModel(nn.Module):
    """A trained network with evidence and calibration, as :func:`attach` makes it.

    It is a module: ``model(x)`` returns a :class:`~howsure.NormalInverseGamma` of the shape of the network's output.
    It is always in evaluation mode, the network included.

    Args:
        network: a trained network, which is used and not copied.
        reader: positions of its features.
        evidence: noise and evidence.
        calibration: the result of :func:`howsure.calibrate`, or None.

    >>> import howsure as hs
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> model = hs.attach(network, [(x, x**2)])
    >>> p = model.predict([[0.0], [9.0]])
    >>> p.mean.shape, bool(p.familiarity[0] > p.familiarity[1])
    ((2, 1), True)
    >>> model(x).batch_shape, model.with_familiarity(x)[1].shape
    (torch.Size([64, 1]), torch.Size([64]))
    >>> isinstance(model.calibrated([(x, x**2)]), hs.NetworkModel)
    True
    """

    def __init__(
        self,
        network: nn.Module,
        reader: FeatureReader,
        evidence: NetworkEvidence,
        calibration: Calibration | ConformalCalibration | None = None,
    ) -> None:
        super().__init__()
        self.network, self.reader, self.evidence, self.calibration = network, reader, evidence, calibration
        self.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Return the model in evaluation mode, whatever ``mode`` is."""
        return super().train(False)

    def forward(self, *inputs: Any) -> NormalInverseGamma:
        """Return the distributions of ``inputs``, tensors as the network takes them."""
        return self.with_familiarity(*inputs)[0]

    def with_familiarity(self, *inputs: Any) -> tuple[NormalInverseGamma, Tensor]:
        """Return the distributions of inputs, and the familiarity of each row or pixel, in [0, 1].

        A calibration by ``"scale"`` is applied. The others change the intervals of :meth:`predict` only.

        Args:
            *inputs: tensors as the network takes them.
        """
        outputs, features = self.reader(self.network, inputs)
        last = outputs.map(self.reader.targets_last)
        made, familiarity = self.evidence(last, torch.cat(features, -1))
        beta = made.beta
        if isinstance(self.calibration, Calibration) and self.calibration.method == "scale":
            factors = torch.tensor(self.calibration.numbers, dtype=beta.dtype, device=beta.device)
            beta = beta * factors.square()
        gamma, nu, excess, beta = (self.reader.targets_back(p) for p in (*made[:3], beta))
        answer = NormalInverseGamma(gamma, nu, alpha_minus_one=excess, beta=beta, validate_args=False)
        return answer, familiarity

    @torch.no_grad()
    def predict(self, *inputs: Any) -> Any:
        """Return the calibrated :class:`~howsure.Prediction` of inputs.

        Args:
            *inputs: tensors or arrays, as the network takes them, or one ``DataLoader``. Its batches are inputs, or
                tuples as for :func:`attach`, whose targets are left out. Whole numbers are converted to the dtype of
                the first layer, but not positions of an embedding.

        The familiarity of a row with several elements, such as pixels, is their mean. With an isotonic calibration the
        result is a :class:`~howsure.calibration.RecalibratedPrediction`.

        Raises:
            InputError: if a loader has no batches.
        """
        is_loader = len(inputs) == 1 and isinstance(inputs[0], DataLoader)
        batches = [inputs] if not is_loader else map(_without_targets, inputs[0])
        conformal = self.calibration if isinstance(self.calibration, ConformalCalibration) else None
        parts, tables = [], []
        for batch in batches:
            tensors = _as_inputs(self.network, batch)
            with in_dtype_of_layers(self.network, tensors):
                answer, familiarity = self.with_familiarity(*tensors)
            p = Prediction(answer, familiarity=familiarity.flatten(1).mean(1) if familiarity.ndim > 1 else familiarity)
            parts.append(p.cpu() if is_loader else p)
            if conformal:  # which finds the groups in the inputs
                tables.append(tensors[0].cpu())
        if not parts:
            raise InputError("the loader has no batches")
        p = Prediction.cat(parts) if is_loader else parts[0]
        if conformal:
            return conformal.apply(p, _columns(torch.cat(tables)))
        return self.calibration.apply(p) if self.calibration and self.calibration.method == "isotonic" else p

    def calibrated(self, loader: Iterable[Any], method: str = "scale", groups: Any = None) -> "NetworkModel":
        """Return a new model with a calibration, which replaces an earlier one, as :func:`howsure.calibrate` does.

        Args:
            loader: batches (inputs, targets) that the network was not trained on.
            method: ``"scale"`` (one factor for each target), ``"isotonic"`` or ``"conformal"``.
            groups: columns of the first input whose groups are calibrated separately, for ``"conformal"``.

        Raises:
            InputError: if the method is unknown or cannot calibrate outputs of this shape, or for groups without
                ``"conformal"``.
        """
        check_method(method, groups)
        plain = self._with_calibration(None)
        parts, targets, tables = [], [], []
        for batch, (inputs, y) in enumerate(_batches(loader, self.network)):
            p = plain.predict(*inputs)
            y = _targets_like(y, p.shape)
            mean = torch.as_tensor(p.mean, device=y.device)
            _check_finite(batch, inputs[0], self.reader.targets_last(y), self.reader.targets_last(mean))
            if method == "scale":
                p, y = Prediction(_pytree.tree_map(self._rows, p.answers[0])), self._rows(y)
            parts.append(p.cpu())
            targets.append(y.cpu())
            tables.append(inputs[0].cpu() if groups is not None else y)
        p, y = Prediction.cat(parts), torch.cat(targets)
        if method == "isotonic" and self.reader.target_dim == -1 and len(p.shape) > 2:
            raise InputError(f"isotonic calibration of an output of shape {p.shape} is not possible", value=method)
        if groups is None:
            return self._with_calibration(calibrate(p, y, method=method, mask=~y.isnan()))
        known = (~y.isnan()).numpy()
        table, target = _columns(torch.cat(tables)), y.nan_to_num(0.0).double().numpy()
        found = ConformalCalibration.learn(p, target, table, groups, known)
        return self._with_calibration(found)

    def _rows(self, x: Tensor) -> Tensor:
        """Return a tensor of the output's shape as (elements, T)."""
        return self.reader.targets_last(x).flatten(0, -2)

    def _with_calibration(self, calibration: Any) -> "NetworkModel":
        return NetworkModel(self.network, self.reader, self.evidence, calibration)

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write evidence and calibration to one file, which :func:`howsure.load` reads. The network is not in it.

        Args:
            path: of the file. An older model there is replaced.
            overwrite: whether to replace a file that is not a model.
        """
        header = NetworkHeader("network", fingerprint(self.network), self.reader, self.calibration)
        return save_model(Path(path), self.evidence.state_dict(), header, overwrite)

    def extra_repr(self) -> str:
        method = None if self.calibration is None else self.calibration.method
        return f"features={', '.join(self.reader.layers) or 'gradients'}, calibration={method}"


@torch.no_grad()
def attach(
    network: nn.Module,
    loader: Iterable[Any],
    *,
    validation: Iterable[Any] | None = None,
    layers: Sequence[str] | None = None,
    features: str = "layers",
    ridge: float = RIDGE,
) -> NetworkModel:
    """Return a trained network with evidence: how well the training rows support each prediction.

    The loader is read once, and the network is called once for each batch. A batch is a tuple of the inputs and, last,
    the targets. A missing target is NaN. Several processes with a part of the rows each get the same model.

    Args:
        network: a trained network, which is left as it is, in evaluation mode. It returns a tensor of predictions, a
            :class:`~howsure.NormalInverseGamma`, a :class:`~howsure.StudentT` or a :class:`~howsure.Normal`, of shape
            (N,), (N, T), (N, L, T), or (N, H, W) and (N, T, H, W) after a convolution.
        loader: batches of the training rows.
        validation: batches of other rows. The noise and the edge of the training rows are learned from these. None:
            from training rows, each left out in closed form.
        layers: names of modules, as in ``named_modules()``, whose outputs are the features. None: the last
            two hidden layers, which are the inputs of the last two linear layers or convolutions that are called.
        features: "layers"; or "gradients", of the output by the weights along 256 random directions. Gradients
            distinguish more inputs, such as those in a gap of the training rows, and cost 256 passes.
        ridge: λ, as a share of the mean eigenvalue of the moments of the features.

    Raises:
        InputError: if there are no rows, or features and output do not fit.

    >>> import torch, howsure as hs
    >>> x = torch.linspace(-1, 1, 200).unsqueeze(1)
    >>> body = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh())
    >>> net = torch.nn.Sequential(body, torch.nn.Linear(16, 1))  # trained as you like
    >>> model = hs.attach(net, [(x, x + 0.1 * torch.randn(200, 1))])
    >>> p = model.predict([[0.0], [9.0]])
    >>> bool(p.epistemic_std[1, 0] > p.epistemic_std[0, 0])
    True
    """
    if features not in ("layers", "gradients"):
        raise InputError(f'features must be "layers" or "gradients", got {features!r}')
    if layers is not None and features == "gradients":
        raise InputError('layers requires features="layers"')
    if not isinstance(network, nn.Module):
        raise InputTypeError(f"attach takes a torch module, not {type(network).__name__}")
    network = getattr(network, "_orig_mod", network)  # hooks do not fire in a compiled module
    network.eval()
    reader, gathered = _gather(network, loader, None, layers, features == "gradients")
    sample = gathered.sample
    if validation is not None:
        sample = _gather(network, validation, reader)[1].sample
    return NetworkModel(network, reader, _learn(gathered, sample, validation is not None, ridge))


def load_network(path: str | PathLike[str], network: nn.Module) -> NetworkModel:
    """Return the model that :meth:`NetworkModel.save` wrote, for the network that it belongs to."""
    tensors, values = load_model(Path(path))
    if values.get("model") != "network":
        raise InputError(f"{path} does not hold the evidence of a network", hint="hs.load(path) loads other models")
    if values.get("network") != fingerprint(network):
        raise InputError(
            f"{path} belongs to another network, or to other weights", hint="load the weights that it was attached to"
        )
    with reading_model(path if isinstance(path, str) else Path(path)):
        header = checked_header(NetworkHeader, values)
        reader = header.reader
        if not set(reader.layers) <= set(dict(network.named_modules())) or reader.target_dim not in (None, 1, -1):
            raise InputError(f"the network has no layers {reader.layers!r:.80}")
        evidence = NetworkEvidence(*tensors["noise_weight"].shape)
        evidence.load_state_dict(tensors)
    return NetworkModel(network, reader, evidence.to(device_of(network)), header.calibration)


# Rows -----------------------------------------------------------------------------------------------------------------


def _columns(x: Tensor) -> Any:
    """Return an input (N, D) as a table whose columns are named by their positions, for the groups of a calibration."""
    wide = x.flatten(1).cpu().numpy()
    columns = tuple(SimpleNamespace(name=str(k), values=wide[:, k]) for k in range(wide.shape[1]))
    return SimpleNamespace(names=[column.name for column in columns], columns=columns)


def _gather(
    network: nn.Module,
    loader: Iterable[Any],
    reader: FeatureReader | None,
    layers: Sequence[str] | None = None,
    gradients: bool = False,
) -> tuple[FeatureReader, _Gathered]:
    """Return the reader of a network, and the results of one pass over a loader."""
    gathered = _Gathered()
    for batch, (inputs, y) in enumerate(_batches(loader, network)):
        with in_dtype_of_layers(network, inputs):
            reader = reader or FeatureReader.find(network, inputs, layers, gradients)
            outputs, features = reader(network, inputs)
        y = _targets_like(y, outputs.mean.shape)
        _check_finite(batch, inputs[0], reader.targets_last(y), reader.targets_last(outputs.mean), *features)
        gathered.add(reader, outputs, features, y)
    if reader is None or gathered.sums.count is None:
        raise InputError("the loader has no rows with targets")
    return reader, gathered.merge()


def _batches(loader: Iterable[Any], network: nn.Module) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield inputs and targets on the device of the network."""
    device = device_of(network)
    if not isinstance(loader, Iterable):
        raise InputTypeError(f"the loader must yield batches, not be a {type(loader).__name__}", hint="use [(x, y)]")
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) < 2 or not isinstance(batch[-1], Tensor):
            raise InputTypeError(
                f"the loader must yield tuples of the inputs and, last, the targets, not {type(batch).__name__}",
                hint='use [(x, y)] for one batch, and ((b["x"], b["y"]) for b in loader) for dicts',
            )
        moved = _pytree.tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, tuple(batch))
        yield moved[:-1], moved[-1]


def _targets_like(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Return targets of the shape of the predictions, after checking them."""
    y = fit_shape(y, shape)
    if tuple(y.shape) != tuple(shape):
        raise InputError(f"targets of shape {tuple(y.shape)} do not match an output of shape {tuple(shape)}")
    if bool(y.isinf().any()):
        raise InputError("targets must be finite, or NaN where they are missing")
    return y


def _check_finite(batch: int, x: Any, y: Tensor, *computed: Tensor) -> None:
    """Raise for the first row of a batch with an infinite input, or with a target and results that are not finite.

    NaN in the input counts if it reaches the results: a network may replace it.

    Args:
        batch: number of the batch.
        x: the first input.
        y: targets (*elements, T).
        *computed: outputs and features of the network, (*elements, D).
    """
    wrong = ~torch.stack([each.isfinite().all(-1) for each in computed]).all(0) & ~y.isnan().all(-1)
    bad = wrong.flatten(1).any(1) if wrong.ndim > 1 else wrong
    is_float = isinstance(x, Tensor) and x.is_floating_point() and len(x) == len(bad)
    infinite = x.isinf().reshape(len(x), -1).any(1) if is_float and x.numel() else bad & False
    if not bool((bad | infinite).any()):
        return
    row = int((bad | infinite).int().argmax())
    if not is_float or bool(x[row].isfinite().all()):
        raise InputError(f"the network returns NaN or infinite values in batch {batch} of the loader", row=row)
    problem = f"batch {batch} of the loader has NaN or infinite inputs"
    raise InputError(problem, row=row, hint="leave out these rows, or replace the values as you do in training")


def _without_targets(batch: Any) -> tuple[Any, ...]:
    """Return the inputs of a batch for :meth:`NetworkModel.predict`, without targets."""
    if not isinstance(batch, tuple | list):
        return (batch,)
    return tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)


def _as_inputs(network: nn.Module, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return inputs as tensors on the device of the network; arrays and lists of floats have its dtype."""
    parameter = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    made = []
    for x in inputs:
        tensor = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
        is_new_float = not isinstance(x, Tensor) and tensor.is_floating_point()
        made.append(tensor.to(parameter.device, parameter.dtype if is_new_float else tensor.dtype))
    return tuple(made)
