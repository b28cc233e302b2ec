"""The fitted table model: one module from the columns of a table to the parameters of M distributions."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils import _pytree

from howsure.distributions import Normal, NormalInverseGamma
from howsure.errors import InputError
from howsure.formulas import mixture as mixtures
from howsure.likelihoods.base import Method
from howsure.nn import PiecewiseLinear, Population
from howsure.nn.evidence import ConjugateEvidence
from howsure.prediction import Answer, Prediction
from howsure.tables.encoder import ColumnEncoder, Scaling
from howsure.tables.evidence import TableEvidence
from howsure.tables.experts.linear import LinearExpert
from howsure.tables.experts.trees import TreeEnsemble, TreeFeatures
from howsure.tables.robust import RobustScale
from howsure.threads import in_threads, one_thread
from howsure.training import Training

__all__ = ["TableModel", "method_of_members"]

CHUNK = 1 << 22  # (member, row) pairs that are evaluated at once
VIEW_ROWS = 1 << 13  # rows whose trees are evaluated at once
CPU_CHUNK = 1 << 18  # numbers of a hidden layer that are evaluated at once on a CPU, in whose cache they stay


class TableModel(nn.Module):
    """A fitted table model: numbers of a table (N, C) → distributions of M networks (M, N, T), in the units of y.

    Everything learned is a parameter or buffer. On the CPU it computes in float64, so that the prediction of a row does
    not depend on the other rows.

    Args:
        method: from raw outputs to distributions.
        networks: M networks as one module.
        scale_x: features and predictions of trees as each network sees them.
        scale_y: targets as each network sees them.
        one_target: whether targets were given as (N,).
        trees: predictions that are further features of some networks; None for none.
    """

    weights: Tensor | None  # of the networks, (M,), sum 1; None: all count the same
    width: Tensor | None  # factor of the scales of the networks, (T,); None: 1
    encoder: ColumnEncoder | None  # None for a model of features
    robust: RobustScale | None
    evidence: TableEvidence | None  # None keeps the evidence that the networks output
    linear: LinearExpert | None  # one more distribution in the mixture; None for none

    def __init__(
        self,
        method: Method,
        networks: Population,
        scale_x: Scaling,
        scale_y: Scaling,
        one_target: bool,
        trees: TreeFeatures | None = None,
    ) -> None:
        super().__init__()
        self.method, self.one_target = method, one_target
        self.networks, self.trees, self.scale_x, self.scale_y = networks, trees, scale_x, scale_y
        self.encoder = self.robust = self.evidence = self.linear = None
        self.register_buffer("weights", None)
        self.register_buffer("width", None)
        self.unfamiliar_below: float | None = None  # familiarity below which a row is unlike the training rows
        self.result: Training  # of the training that made the networks

    # The forward pass -------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> tuple[Answer, Tensor | None]:
        """Return the distributions (M, N, T), and the familiarity of each row by networks; None without evidence.

        Args:
            x: numbers of the columns (N, C), as :meth:`howsure.tables.encoder.Encoding.codes` returns them; features
                (N, F) for a model without an encoder.
        """
        return self.with_linear(self.views(self.features(x)))

    def with_linear(self, views: Tensor) -> tuple[Answer, Tensor | None]:
        """Return the result of ``forward`` for views (N, V): the networks, and last the linear expert if any."""
        answer, familiarity = self.from_views(views)
        if self.linear is None:
            return answer, familiarity
        own = self.linear(views[:, : self.features_in])
        joined = _pytree.tree_map(lambda a, b: torch.cat([a, b.unsqueeze(0).to(a.dtype)]), answer, own)
        return joined, familiarity

    @property
    def mixture_weights(self) -> Tensor | None:
        """Weights of all distributions that ``forward`` returns; None: all count the same."""
        if self.linear is None:
            return self.weights
        return torch.cat([self.network_weights * (1 - self.linear.share), self.linear.share.view(1)])

    @property
    def network_weights(self) -> Tensor:
        """Weights of the networks alone, (M,)."""
        equal = torch.full((self.members,), 1 / self.members, dtype=torch.float64, device=self.device)
        return equal if self.weights is None else self.weights

    def features(self, x: Tensor) -> Tensor:
        """Return the features (N, F) of the numbers of a table."""
        if self.encoder is None or self.robust is None:
            return x
        features: Tensor = self.robust(self.encoder(x))
        return features

    def views(self, features: Tensor) -> Tensor:
        """Return features followed by the predictions of trees from them, (N, V)."""
        return features if self.trees is None else torch.cat([features, self.trees(features)], 1)

    def from_views(self, views: Tensor) -> tuple[Answer, Tensor | None]:
        """Return the result of ``forward`` for views (N, V), or (M, N, V) with other rows for each network."""
        answer, features = self.before_evidence(views)
        familiarity = None
        if self.evidence is not None:
            width = 1.0 if self.width is None else self.width.to(features.dtype)
            answer, familiarity = self.evidence(answer, features, width)
        elif self.width is not None:
            answer = _widened(answer, self.width.to(features.dtype))
        return answer.affine(self.scale_y.loc, self.scale_y.scale), familiarity

    def before_evidence(self, views: Tensor) -> tuple[Any, Tensor]:
        """Return the distributions that the networks output for scaled targets, and their hidden features (M, N, D)."""
        raw, features = self.networks.with_features(self.scale_x(views).to(self.networks.weights[0].dtype))
        raw = raw.to(self.scale_y.loc.dtype)  # the next steps are cheap
        return self.method.answer(raw.unflatten(-1, (-1, self.method.outputs))), features

    # Predictions ------------------------------------------------------------------------------------------------------

    def predict(self, x: ArrayLike | Tensor, members: Sequence[int] | None = None) -> Prediction:
        """Return the mixture of some networks (None: all) for the rows of x, which are as for ``forward``."""
        in_training = self.networks.weights[0].dtype != self._precision
        model = self.select(members) if in_training or members is not None else self
        answer, familiarity = model.evaluate(x)
        if familiarity is not None:
            weights = None if model.weights is None else model.weights.cpu().view(-1, 1)
            familiarity = mixtures.mean(familiarity, weights)
        weights = model.mixture_weights
        return Prediction(
            answer, members=0, weights=None if weights is None else weights.cpu(), familiarity=familiarity
        )

    @torch.no_grad()
    def evaluate(self, x: ArrayLike | Tensor) -> tuple[Answer, Tensor | None]:
        """Return the result of ``forward``, on the CPU and computed in parts: (M, N) for a single target."""
        rows = x.detach().cpu().double() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=float))
        if rows.ndim != 2 or rows.shape[1] != self.columns_in:
            raise InputError(f"x must have shape (N, {self.columns_in}), got {tuple(rows.shape)}")
        device = self.device

        def views_of(chunk: Tensor) -> Tensor:
            return self.views(self.features(chunk.to(device)))

        def part(views: Tensor) -> tuple[Any, ...]:
            answer, familiarity = self.with_linear(views)
            found = (answer,) if familiarity is None else (answer, familiarity)
            moved: tuple[Any, ...] = _pytree.tree_map(lambda p: p.double().cpu(), found)
            return moved

        on_cpu = device.type == "cpu"
        each = self.members * (max(self.networks.sizes) if on_cpu else 1)
        with one_thread() if on_cpu else nullcontext(1) as threads:
            views = torch.cat(in_threads(views_of, rows.split(VIEW_ROWS), threads))
            parts = in_threads(part, views.split(max(1, (CPU_CHUNK if on_cpu else CHUNK) // each)), threads)
        whole, *familiarity = _pytree.tree_map(lambda *p: torch.cat(p, 1), *parts)
        if self.one_target:
            whole = _pytree.tree_map(lambda p: p.squeeze(-1), whole)
        return whole, familiarity[0] if familiarity else None

    # Parts ------------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """Number of networks."""
        return self.networks.members

    @property
    def targets(self) -> int:
        """Number of targets."""
        return self.scale_y.loc.shape[-1]

    @property
    def device(self) -> torch.device:
        device: torch.device = self.networks.weights[0].device
        return device

    @property
    def _precision(self) -> torch.dtype:
        return torch.float64 if self.device.type == "cpu" else torch.float32

    @property
    def features_in(self) -> int:
        """Number of features of a row."""
        return self.networks.in_features - (0 if self.trees is None else self.trees.outputs)

    @property
    def columns_in(self) -> int:
        """Number of columns of the input of ``forward``."""
        return self.features_in if self.encoder is None else len(self.encoder.fill)

    def kinds(self) -> list[tuple[bool, bool]]:
        """Return for each network whether it sees bins, and whether it sees trees."""
        embedding = self.networks.embedding
        bins = [False] * self.members if embedding is None else embedding.seen
        trees = [self.trees is not None and not ignored for ignored in self.scale_x.ignored[:, 0, -1].tolist()]
        return list(zip(bins, trees, strict=True))

    def select(self, members: Sequence[int] | None = None) -> "TableModel":
        """Return a model of copies of some of the networks (None: all), in the precision of predictions."""
        chosen = list(range(self.members)) if members is None else list(members)
        networks = self.method.networks(self.networks, chosen)
        each = [i for i in chosen for _ in range(networks.members // len(chosen))]  # a method may draw several networks
        some = TableModel(
            method_of_members(self.method, chosen, self.members),
            networks,
            self.scale_x.select(each),
            self.scale_y.select(each),
            self.one_target,
            self.trees,
        )
        some.encoder, some.robust, some.width = self.encoder, self.robust, self.width
        some.unfamiliar_below = self.unfamiliar_below
        some.linear = self.linear if members is None else None
        some.weights = None if self.weights is None else self.weights[each] / self.weights[each].sum()
        some.evidence = None if self.evidence is None else self.evidence.select(each)
        if hasattr(self, "result"):
            some.result = self.result
        return some.ready()

    def ready(self) -> "TableModel":
        """Turn the networks to the precision of predictions, and return the model."""
        self.networks.to(self._precision)
        if self.evidence is not None:
            self.evidence.to(self.device, self._precision)
        return self.eval()

    # Files ------------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return the state dict, with the networks and their evidence in float32, the precision of their training."""
        state = self.state_dict()
        single = ("networks.", "evidence.")
        return {n: t.float() if n.startswith(single) and t.is_floating_point() else t for n, t in state.items()}

    @classmethod
    def from_tensors(
        cls,
        tensors: dict[str, Tensor],
        method: Method,
        activation: str,
        one_target: bool,
        encoder: ColumnEncoder | None = None,
    ) -> "TableModel":
        """Return the model with this state dict, on the CPU.

        The sizes of its parts are the sizes of its tensors, so that a file cannot make it larger than itself.

        Raises:
            InputError: if the tensors do not fit together, or are not finite.
        """
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, rest = name.rpartition(".") if name.startswith("trees.") else name.partition(".")
            groups.setdefault(part, {})[rest] = tensor
        scale_x, scale_y = (Scaling(**groups[f"scale_{side}"]) for side in "xy")
        networks = _networks_like(groups["networks"], activation)
        trees = None
        if "trees.boosted" in groups:
            trees = TreeFeatures(*(TreeEnsemble(**groups[f"trees.{name}"]) for name in ("boosted", "forest")))
        model = cls(method, networks, scale_x, scale_y, one_target, trees)
        if encoder is not None:
            model.encoder, model.robust = encoder, RobustScale(len(encoder.order))
        if "evidence" in groups:
            own = groups["evidence"]
            directions = own["leverage.directions"]
            with torch.device("cpu"):
                leverage = ConjugateEvidence(directions.shape[-2], directions.shape[-1], len(directions))
            model.evidence = TableEvidence(leverage, **{name: own[name] for name in own if "." not in name})
        if "linear" in groups:
            model.linear = LinearExpert(**groups["linear"])
        model.weights, model.width = tensors.get("weights"), tensors.get("width")
        model.load_state_dict(tensors, strict=True)
        model.check()
        return model.ready()

    @torch.no_grad()
    def check(self) -> None:
        """Raise an InputError if the parts cannot belong to one model: their sizes, or the values of their buffers."""
        if self.one_target and self.targets != 1:
            raise InputError(f"inconsistent model file: {self.targets} targets for a model of one")
        for name, tensor in self.state_dict().items():
            if tensor.is_floating_point() and name != "scale_x.scale" and not bool(tensor.isfinite().all()):
                raise InputError(f"inconsistent model file: {name} has values that are not finite")
        positive = [self.scale_x.scale, self.scale_y.scale, self.weights, self.width]
        positive += [None if self.robust is None else self.robust.spread]
        if self.linear is not None:
            positive += [self.linear.inverse, self.linear.mean_variance, self.linear.alpha - 1, self.linear.beta]
            positive += [self.linear.share, 1 - self.linear.share]
        if not all(bool((t > 0).all()) for t in positive if t is not None):
            raise InputError("inconsistent model file: a scale or weight is not greater than 0")
        if self.networks.embedding is not None:
            self.networks.embedding.prepare()
        row = torch.zeros(1, self.columns_in, dtype=torch.float64, device="cpu")
        if not np.isfinite(self.ready().predict(row).std).all():
            raise InputError("inconsistent model file: its prediction is not finite")


def _widened(answer: Any, width: Tensor) -> Answer:
    """Return distributions whose scales are multiplied by a factor for each target, about their own means."""
    if isinstance(answer, NormalInverseGamma):
        return NormalInverseGamma._from_leaves(
            (answer.gamma, answer.nu, answer.alpha_minus_one, answer.beta * width * width)
        )
    return Normal._from_leaves((answer.loc, answer.scale * width))


def method_of_members(method: Method, chosen: Sequence[int], members: int) -> Method:
    """Return a method with the numbers of some members, where it has one for each."""
    each = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    lists = {name: v for name, v in each.items() if isinstance(v, list | tuple) and len(v) == members}
    return replace(method, **{name: tuple(v[k] for k in chosen) for name, v in lists.items()})  # type: ignore[type-var]


def _networks_like(tensors: dict[str, Tensor], activation: str) -> Population:
    """Return networks of the sizes of these tensors."""
    layers = [tensors[f"weights.{k}"] for k in range(sum(name.startswith("weights.") for name in tensors))]
    members = len(layers[0])
    sizes = (layers[0].shape[1], *(layer.shape[2] for layer in layers))
    networks = Population.blank(members, sizes, activation)
    if "embedding.column" in tensors:
        bins = len(tensors["embedding.column"])
        networks.embed(PiecewiseLinear.blank(members, bins, sizes[0] - bins))
    return networks
