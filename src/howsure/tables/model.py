"""A trained population with all it needs to predict."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from howsure.distributions import Normal, NormalInverseGamma
from howsure.errors import InputError
from howsure.likelihoods.base import Method, Network
from howsure.nn import PiecewiseLinear, Population
from howsure.nn.evidence import ConjugateEvidence
from howsure.prediction import Answer, Prediction
from howsure.tables.encoder import Scaling
from howsure.tables.evidence import TableEvidence
from howsure.tables.experts.trees import Trees
from howsure.tables.members import Member
from howsure.tables.state import method_from_state, method_state, training_from_state, training_state
from howsure.threads import in_threads, one_thread
from howsure.training import Training
from howsure.training.batches import pad_rows

__all__ = ["Fitted", "method_of_members"]

Array = NDArray[np.float64]
CHUNK = 1 << 22  # how many (member, row) pairs to evaluate at once
VALIDATED = 1000  # rows of each member whose densities are computed at once
CPU_CHUNK = 1 << 18  # how many numbers of a hidden layer to evaluate at once on a CPU, in whose cache they stay


@dataclass
class Fitted:
    """A trained population with all it needs to predict.

    Args:
        method: how raw outputs become an answer.
        population: the networks.
        scale_x: how each network sees features.
        scale_y: how each network sees targets.
        one_target: whether targets were given as (N,).
        trees: what some networks see too: predictions from the features; None if none does.
        weights: how much each network counts, (M,); None: all alike.
        width: factor of the scales of the networks, (T,); None: 1.
        evidence: of each network by conjugacy; None keeps the evidence that the networks output.
        unfamiliar_below: the familiarity below which a row is unlike the training rows; None where it is unknown.
        training: the result of the training that made the networks.
    """

    method: Method
    population: Population
    scale_x: Scaling
    scale_y: Scaling
    one_target: bool
    trees: Trees | None = None
    weights: Tensor | None = None
    width: Tensor | None = None
    evidence: TableEvidence | None = None
    unfamiliar_below: float | None = None
    training: Training = field(init=False)

    def scaled_answer(self, module: nn.Module, x: Tensor) -> Answer:
        """Return the answer to scaled features (M, N, F), of shape (M, N, T), for scaled targets."""
        return self.method.answer(module(x).unflatten(-1, (-1, self.method.outputs)))

    def predict(self, x: ArrayLike, members: Sequence[int] | None = None) -> Prediction:
        """Return the mixture of these members (default: all) on features (N, F), in the units of y."""
        answer, familiarity = self.ask(x, members)
        weights = self._weights_of(members, answer.batch_shape[0])
        return Prediction(answer, members=0, weights=weights, familiarity=familiarity)

    def _weights_of(self, members: Sequence[int] | None, networks: int) -> Tensor | None:
        """Return the weights of so many networks, equally many for each of these members."""
        if self.weights is None:
            return None
        each = self.weights if members is None else self.weights[list(members)]
        return each.repeat_interleave(networks // len(each))

    def kinds(self) -> list[tuple[bool, bool]]:
        """Return for each network whether it sees bins, and whether it sees trees."""
        embedding = self.population._embedding
        bins = [False] * self.population.members if embedding is None else embedding.seen
        trees = [self.trees is not None and not ignored for ignored in self.scale_x.ignored[:, 0, -1].tolist()]
        return list(zip(bins, trees, strict=True))

    def with_trees(self, x: ArrayLike) -> Array:
        """Return features (N, F) followed by what trees predict from them, if networks see that; as a new array."""
        features = np.array(x, dtype=float)
        if features.ndim != 2 or features.shape[1] != self.features_in:
            raise InputError(f"x must have shape (N, {self.features_in}), got {tuple(features.shape)}")
        return features if self.trees is None else np.concatenate([features, self.trees.predict(features)], 1)

    @property
    def features_in(self) -> int:
        """Number of features of a row."""
        return self.population.in_features - (0 if self.trees is None else self.trees.outputs)

    def select(self, members: Sequence[int]) -> "Fitted":
        """Return a model of some of the networks."""
        chosen = list(members)
        some = replace(
            self,
            method=method_of_members(self.method, chosen, self.population.members),
            population=self.population.select(chosen),
            scale_x=self.scale_x.select(chosen),
            scale_y=self.scale_y.select(chosen),
            weights=None if self.weights is None else self.weights[chosen] / self.weights[chosen].sum(),
            evidence=None if self.evidence is None else self.evidence.select(chosen),
        )
        some.training = self.training
        return some

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all that the model knows: tensors by name, and plain values."""
        tensors = {f"population.{name}": p for name, p in self.population.state_dict().items()}
        for side, scaling in (("x", self.scale_x), ("y", self.scale_y)):
            tensors |= {f"{side}.{name}": t for name, t in scaling.tensors().items()}
        if self.trees is not None:
            tensors |= {f"trees.{name}": t for name, t in self.trees.tensors().items()}
        if self.weights is not None:
            tensors["weights"] = self.weights
        if self.width is not None:
            tensors["width"] = self.width
        if self.evidence is not None:
            tensors |= {f"evidence.{name}": t.contiguous() for name, t in self.evidence.state_dict().items()}
        population = self.population
        network = {
            "seeds": list(population.seeds),
            "sizes": list(population.sizes),
            "activation": population.activation,
        }
        return tensors, {
            "method": method_state(self.method),
            "network": network,
            "one_target": self.one_target,
            "evidence": self.evidence is not None,
            "unfamiliar_below": self.unfamiliar_below,
            "features": self.features_in,
            "training": training_state(self.training),
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any], method: Method | None = None) -> "Fitted":
        """Return the model that :meth:`state` described, on the CPU; raise if its parts do not fit together.

        Models of earlier versions do not name their method: then it is the one given.
        """
        if "method" in settings or method is None:
            method = method_from_state(settings["method"])
        saved = settings["network"]
        sizes, seeds = (
            _whole_numbers("sizes", saved["sizes"], least=1),
            _whole_numbers("seeds", saved["seeds"], least=0),
        )
        weights = {k.removeprefix("population."): t for k, t in tensors.items() if k.startswith("population.")}
        bins = {k: weights.pop(k) for k in list(weights) if k.startswith("embedding.")}
        _check_weights(weights, len(seeds), sizes)  # before memory is taken for networks of this size
        first, *hidden, last = sizes
        population = method.build(seeds, first, last, Network(tuple(hidden), saved["activation"]))
        population.load_state_dict(weights)
        if bins:
            population.embed(_embedding(bins, len(seeds), first))
        if last % method.outputs or type(settings["one_target"]) is not bool:
            raise InputError("the outputs are not those of the method")
        targets = last // method.outputs
        if settings["one_target"] and targets != 1:
            raise InputError(f"the networks have {targets} targets, not one")
        first = population.in_features
        trees = _trees(tensors, settings.get("features", first), targets)
        if first != settings.get("features", first) + (0 if trees is None else trees.outputs):
            raise InputError("the networks have another number of inputs than there are features and trees")
        scalings = (_scaling(tensors, "x", (len(seeds), 1, first)), _scaling(tensors, "y", (len(seeds), 1, targets)))
        counts, width = _mixture_weights(tensors, len(seeds)), _width(tensors, targets)
        fitted = cls(method, population.eval(), *scalings, settings["one_target"], trees, counts, width)
        if settings["evidence"]:
            fitted.evidence = _evidence(tensors, population, targets)
            fitted.unfamiliar_below = _threshold(settings["unfamiliar_below"])
        fitted.training = training_from_state(settings["training"])
        return fitted

    def _networks(self, chosen: Sequence[int], dtype: torch.dtype) -> tuple[Population, TableEvidence | None]:
        """Return the networks that predict for these members, and their evidence, in this dtype.

        A trained model keeps the last ones, because to copy them takes longer than to predict a row. They are made anew
        when the weights have moved or were written to; writing through ``.data`` is not noticed, as in autograd.
        """
        weights = [*self.population.parameters(), *(() if self.evidence is None else self.evidence.buffers())]
        fixed = hasattr(self, "training") and not any(p.is_inference() for p in weights)
        state = [chosen, dtype, *((p.data_ptr(), p._version) for p in weights)] if fixed else None
        parts, known, kept = self.__dict__.get("_kept", ((None,) * 3, None, None))
        same = self.population is parts[0] and self.method is parts[1] and self.evidence is parts[2]
        if fixed and same and known == state:
            networks: tuple[Population, TableEvidence | None] = kept
            return networks
        some = self.method.networks(self.population, chosen).to(dtype).eval()
        evidence = None
        if self.evidence is not None:
            evidence = self.evidence.select(chosen).to(some.weights[0].device, dtype)
        if fixed:
            self.__dict__["_kept"] = (self.population, self.method, self.evidence), state, (some, evidence)
        return some, evidence

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the networks that are kept for predictions."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def answers(self, x: ArrayLike, members: Sequence[int] | None = None) -> Answer:
        """Return the distribution of each network, (networks, N) or (networks, N, T), as it outputs them."""
        return self._ask(x, members, plain=True)[0]

    def ask(self, x: ArrayLike, members: Sequence[int] | None = None) -> tuple[Answer, Tensor | None]:
        """Return the distribution of each network with its width and evidence, and the familiarity (networks, N)."""
        return self._ask(x, members, plain=False)

    @torch.no_grad()
    def _ask(self, x: ArrayLike, members: Sequence[int] | None, plain: bool) -> tuple[Answer, Tensor | None]:
        chosen = list(range(self.population.members)) if members is None else list(members)
        features = torch.from_numpy(self.with_trees(x))
        target_device, dtype = self._computed_in
        some, evidence = self._networks(chosen, dtype)
        scaled_as = [i for i in chosen for _ in range(some.members // len(chosen))]
        scale_x, scale_y = self.scale_x.select(scaled_as), self.scale_y.select(scaled_as)

        def ask_about(chunk: Tensor) -> tuple[Any, ...]:
            scaled = scale_x(chunk).to(target_device, dtype)
            found: tuple[Any, ...]
            found = (self.scaled_answer(some, scaled),) if plain else self._with_evidence(some, evidence, scaled)
            moved: tuple[Any, ...] = torch.utils._pytree.tree_map(lambda p: p.double().cpu(), found)
            return moved

        on_cpu = target_device.type == "cpu"
        each = some.members * (max(some.sizes) if on_cpu else 1)
        chunks = features.split(max(1, (CPU_CHUNK if on_cpu else CHUNK) // each))
        with one_thread() if on_cpu else nullcontext(1) as threads:
            parts = in_threads(ask_about, chunks, threads)
        whole, *familiarity = torch.utils._pytree.tree_map(lambda *p: torch.cat(p, 1), *parts)
        whole = whole.affine(scale_y.loc, scale_y.scale)
        if self.one_target:
            whole = torch.utils._pytree.tree_map(lambda p: p.squeeze(-1), whole)
        return whole, familiarity[0] if familiarity else None

    def _with_evidence(self, some: Population, evidence: TableEvidence | None, scaled: Tensor) -> tuple[Any, ...]:
        """Return distributions with width and evidence, and the familiarity if there is evidence."""
        width = 1.0 if self.width is None else self.width.to(scaled.device, scaled.dtype)
        if evidence is None:
            answer: Any = self.scaled_answer(some, scaled)
            return (answer if self.width is None else _widened(answer, width),)
        raw, features = some.with_features(scaled)
        given: Any = self.method.answer(raw.unflatten(-1, (-1, self.method.outputs)))
        found: tuple[Any, Tensor] = evidence(given, features, width)
        return found

    @property
    def _computed_in(self) -> tuple[torch.device, torch.dtype]:
        """Device and dtype of predictions: float64 on the CPU, so that an answer does not depend on the other rows."""
        device = self.population.weights[0].device
        return device, torch.float64 if device.type == "cpu" else torch.float32

    @torch.no_grad()
    def own_with_features(self, x: Tensor) -> tuple[Any, Tensor]:
        """Return the distributions of each member for its own rows (M, N, F), and the features of its hidden layers.

        The rows are what networks see, with predictions of trees. Targets are scaled as each member has them.
        """
        device, dtype = self._computed_in
        some, _ = self._networks(list(range(self.population.members)), dtype)
        raw, features = some.with_features(self.scale_x(x).to(device, dtype))
        answer: Answer = self.method.answer(raw.unflatten(-1, (-1, self.method.outputs)))
        return torch.utils._pytree.tree_map(lambda p: p.double().cpu(), answer), features.double().cpu()

    @torch.no_grad()
    def own_with_evidence(self, x: Tensor) -> Answer:
        """Return the distributions, in the units of y, of each member for its own rows (M, N, F): (M, N, T)."""
        device, dtype = self._computed_in
        some, evidence = self._networks(list(range(self.population.members)), dtype)
        found = self._with_evidence(some, evidence, self.scale_x(x).to(device, dtype))[0]
        answer = torch.utils._pytree.tree_map(lambda p: p.double().cpu(), found)
        moved: Answer = answer.affine(self.scale_y.loc, self.scale_y.scale)
        return moved

    def validation_log_densities(
        self, x: Array, y: Array, members: Sequence[Member], censored: NDArray[np.int8] | None = None
    ) -> list[Tensor]:
        """Return the log density, in the units of y, that each member gives its validation rows: mean over targets.

        Of bounds it is the log probability.

        Args:
            x: all rows as networks see them, with predictions of trees.
            y: their targets.
            members: the rows of each network.
            censored: of the shape of y, as for :func:`fit`.
        """
        known = None if censored is None else torch.from_numpy(censored).reshape(len(y), -1)
        rows, counts = pad_rows([m.validation for m in members])
        table, targets = torch.from_numpy(x), torch.from_numpy(np.asarray(y, dtype=float)).reshape(len(y), -1)
        parts = []
        for some in rows.split(VALIDATED, 1):
            answer, _ = self.own_with_features(table[some])
            own = None if known is None else known[some]
            likelihood = -self.method.nll(answer, self.scale_y(targets[some]), own)
            change = self.scale_y.scale.log()  # of a density by the units of y
            likelihood = likelihood - (change if own is None else torch.where(own == 0, change, 0.0))
            parts.append(likelihood.mean(-1))
        whole = torch.cat(parts, 1)
        return [each[:count] for each, count in zip(whole, counts.tolist(), strict=True)]


def _widened(answer: Any, width: Tensor | float) -> Answer:
    """Return distributions whose scales are multiplied by a factor for each target, about their own means."""
    if isinstance(answer, NormalInverseGamma):
        beta = answer.beta * width * width
        return NormalInverseGamma(
            answer.gamma, answer.nu, alpha_minus_one=answer.alpha_minus_one, beta=beta, validate_args=False
        )
    return Normal(answer.loc, answer.scale * width, validate_args=False)


def method_of_members(method: Method, chosen: Sequence[int], members: int) -> Method:
    """Return a method with the numbers of some members, where it has one for each."""
    each = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    lists = {name: v for name, v in each.items() if isinstance(v, list | tuple) and len(v) == members}
    return replace(method, **{name: tuple(v[k] for k in chosen) for name, v in lists.items()})  # type: ignore[type-var]


def _whole_numbers(name: str, values: Any, least: int) -> list[int]:
    if not isinstance(values, list) or not values or not all(type(v) is int and v >= least for v in values):
        raise InputError(f"{name} must be a list of whole numbers of at least {least}, got {values!r}")
    return values


def _check_weights(weights: dict[str, Tensor], members: int, sizes: Sequence[int]) -> None:
    """Raise unless the tensors of a population have the shapes that its sizes give them."""
    for name, tensor in weights.items():
        found = re.fullmatch(r"(weights|biases|raw_weight_stds|raw_bias_stds)\.(\d+)", name)
        layer = int(found[2]) if found else len(sizes)
        if found is None or layer >= len(sizes) - 1:
            raise InputError(f"there is no place for the tensor {name!r}")
        shape = (members, sizes[layer] if "weight" in name else 1, sizes[layer + 1])
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            raise InputError(f"the tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, not float32 {shape}")
    if len(weights) not in (2 * (len(sizes) - 1), 4 * (len(sizes) - 1)):
        raise InputError(f"{len(sizes) - 1} layers have {len(weights)} tensors")


def _scaling(tensors: dict[str, Tensor], side: str, shape: tuple[int, int, int]) -> Scaling:
    """Return the scaling of x or y that a model was saved with."""
    loc, scale, ignored = (tensors[f"{side}.{name}"] for name in ("loc", "scale", "ignored"))
    for tensor in (loc, scale):
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float64:
            raise InputError(f"the scaling of {side} is {tensor.dtype} {tuple(tensor.shape)}, not float64 {shape}")
    if not bool((scale > 0).all()):
        raise InputError(f"the scaling of {side} has a scale that is not greater than 0")
    if tuple(ignored.shape) != shape or ignored.dtype != torch.bool:
        raise InputError(f"the ignored columns of {side} are {ignored.dtype} {tuple(ignored.shape)}, not bool {shape}")
    return Scaling(loc, scale.masked_fill(ignored, torch.inf))


def _embedding(tensors: dict[str, Tensor], members: int, first: int) -> PiecewiseLinear:
    """Return the bins of a saved model, whose first layer has so many inputs."""
    found = {name.removeprefix("embedding."): t for name, t in tensors.items()}
    column = found.get("column", torch.empty(0, device="cpu"))
    bins = column.numel()
    each = torch.Size((members, 1, bins))
    shapes = {"column": column.shape, "low": column.shape, "high": column.shape, "slope": each, "offset": each}
    for name, shape in shapes.items():
        dtype = torch.int64 if name == "column" else torch.float32
        tensor = found.pop(name, None)
        if tensor is None or tensor.shape != shape or tensor.dtype != dtype:
            raise InputError(f"embedding.{name} of the model is not {dtype} {tuple(shape)}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"embedding.{name} of the model has values that are not finite")
    if found or column.ndim != 1 or not 0 < bins < first or not bool(((column >= 0) & (column < first - bins)).all()):
        raise InputError("the bins of the model are not those of its features")
    slope, offset, low, high = (tensors[f"embedding.{name}"] for name in ("slope", "offset", "low", "high"))
    return PiecewiseLinear(column, slope, offset, low, high, first - bins)


def _trees(tensors: dict[str, Tensor], features: Any, targets: int) -> Trees | None:
    """Return the trees of a saved model; None if it has none, as models of earlier versions."""
    if type(features) is not int or features < 1:
        raise InputError(f"the number of features must be a whole number of at least 1, got {features!r}")
    found = {name.removeprefix("trees."): t for name, t in tensors.items() if name.startswith("trees.")}
    return Trees.from_tensors(found, features, targets) if found else None


def _mixture_weights(tensors: dict[str, Tensor], members: int) -> Tensor | None:
    """Return how much the networks of a saved model count; None if it does not tell."""
    weights = tensors.get("weights")
    if weights is None:
        return None
    if tuple(weights.shape) != (members,) or weights.dtype != torch.float64:
        raise InputError(f"the weights of the networks are {weights.dtype} {tuple(weights.shape)}, not ({members},)")
    if not bool((weights > 0).all()) or abs(float(weights.sum()) - 1) > 1e-6:
        raise InputError("the weights of the networks are not positive numbers whose sum is 1")
    return weights


def _width(tensors: dict[str, Tensor], targets: int) -> Tensor | None:
    """Return what predictions of a saved model are stretched by; None if they are not."""
    scale = tensors.get("width")
    if scale is None:
        return None
    if tuple(scale.shape) != (targets,) or scale.dtype != torch.float64:
        raise InputError(f"the scale of the model is {scale.dtype} {tuple(scale.shape)}, not float64 ({targets},)")
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise InputError("the scale of the model has values that are not greater than 0")
    return scale


def _evidence(tensors: dict[str, Tensor], population: Population, targets: int) -> TableEvidence:
    """Return the evidence of a saved model."""
    found = {name.removeprefix("evidence."): t for name, t in tensors.items() if name.startswith("evidence.")}
    kept = found.get("leverage.directions", torch.empty(0, device="cpu"))
    units = sum(population.sizes[1:-1]) or population.sizes[0]
    rank = kept.shape[-1] if kept.ndim == 3 else 0
    if not 0 < rank <= units:
        raise InputError("inconsistent model file: the evidence has no directions")
    with torch.device("cpu"):
        evidence = TableEvidence(ConjugateEvidence(units, rank, population.members), targets)
    shapes = {name: (buffer.shape, buffer.dtype) for name, buffer in evidence.state_dict().items()}
    if shapes != {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()}:
        raise InputError("inconsistent model file: the evidence does not fit the networks")
    if not all(bool(tensor.isfinite().all()) for tensor in found.values()):
        raise InputError("inconsistent model file: the evidence has values that are not finite")
    evidence.load_state_dict(found)
    return evidence


def _threshold(saved: Any) -> float | None:
    """Return the familiarity below which rows are unfamiliar, after checking that it is one."""
    if saved is None:
        return None
    if isinstance(saved, bool) or not isinstance(saved, int | float) or not 0 <= saved <= 1:
        raise InputError(f"rows are unfamiliar below {saved!r}, which is no familiarity")
    return float(saved)
