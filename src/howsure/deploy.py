"""Export of a network: tensors in, plain named tensors out, with evidence, calibration and interval inside.

The numbers are computed by few and common operations, so that ``torch.export`` and ONNX take them, and the file needs
no howsure where it is loaded. :class:`Summaries` computes them from the distribution that a network returns.
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from howsure.calibration import Calibration
from howsure.conformal import REFERENCE_COVERAGE, ConformalCalibration
from howsure.distributions import Mixture, Normal, NormalInverseGamma, StudentT
from howsure.distributions._base import class_name
from howsure.distributions.mixture import normalised_weights
from howsure.errors import InputError, InputTypeError, install_hint
from howsure.files import write_whole
from howsure.formulas import quick_quantile
from howsure.network import NetworkModel

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["OPSET", "ExportedNetwork", "Summaries", "export_network", "summaries", "write_onnx"]

OPSET = 18  # of ONNX: the one for which torch writes its operators
MAX_COVERAGE = 0.999999  # the largest for which the quick quantile is right to 1e-5


class ExportedNetwork(nn.Module):
    """A network whose outputs are plain named tensors, in evaluation mode and without gradients.

    Args:
        network: a :class:`~howsure.NetworkModel`, or a module that returns a :class:`~howsure.NormalInverseGamma`, a
            :class:`~howsure.Normal`, a :class:`~howsure.StudentT` or a :class:`~howsure.Mixture`.
        coverage: probability of the interval, at most 0.999999; None leaves it out.
    """

    def __init__(self, network: nn.Module, coverage: float | None = 0.9) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise InputTypeError(f"export takes a torch module, not {type(network).__name__}")
        self.network, self.stretch = network, None if coverage is None else _conformal_factors(network, coverage)
        self.summaries = Summaries(coverage if self.stretch is None else REFERENCE_COVERAGE)
        self.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, *inputs: Any) -> dict[str, Tensor]:
        # a traced program has no gradient mode: there, the outputs of the network are detached
        with contextlib.nullcontext() if torch.compiler.is_compiling() else torch.no_grad():
            if not isinstance(self.network, NetworkModel):
                return self.summaries(_on_leaves(Tensor.detach, self.network(*inputs)))
            answer, familiarity = self.network.with_familiarity(*inputs)
            found = self.summaries(_on_leaves(Tensor.detach, answer))
            if self.stretch is not None:
                found = _stretched(found, *self.stretch)
            return {**found, "familiarity": familiarity.detach()}

    def program(self, *example: Tensor, dynamic: Sequence[Any] = (0,)) -> "ExportedProgram":
        """Return the network as a program of ``torch.export``."""
        inputs, shapes = _dynamic(example, dynamic)
        with torch.no_grad(), _quiet():
            return torch.export.export(self, inputs, dynamic_shapes=(shapes,))


def export_network(
    network: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor | Sequence[Tensor],
    *,
    coverage: float | None = 0.9,
    dynamic: Sequence[Any] = (0,),
    input_names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a network as a file that needs no howsure where it is loaded, and return its path.

    Its outputs are named tensors: ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``lower`` and ``upper``,
    without those that the network does not have. A :class:`~howsure.NetworkModel` has its evidence and calibration in
    the file, and the output ``familiarity``.

    Args:
        network: a :class:`~howsure.NetworkModel`, or a module that returns a distribution.
        path: file ending in .onnx, for ONNX Runtime (extra ``onnx``), or in .pt2, for ``torch.export.load``.
        example: the inputs of the network, one tensor or several. Only shapes and dtypes matter.
        coverage: probability of the interval, at most 0.999999; None leaves it out.
        dynamic: dimensions whose size may change from call to call, the same for every input, such as (0, 2, 3) for
            images of any number and size; or a list with the dimensions of each input.
        input_names: names of the inputs of an ONNX file; by default "x", or "x0", "x1", … of several.
        overwrite: whether to replace a file.

    Raises:
        InputError: if the calibration or the features cannot be exported, and for a file that exists.
    """
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise InputError(f"the name of an exported network ends in .onnx or .pt2, got {path.name!r}")
    if path.exists() and (not overwrite or not path.is_file()):
        raise InputError(f"{path} exists", hint="name another file, or pass overwrite=True")
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    names = list(input_names) if input_names is not None else _input_names(len(inputs))
    if len(names) != len(inputs) or len(set(names)) < len(names):
        raise InputError(f"expected {len(inputs)} different input names, got {names}")
    if isinstance(network, NetworkModel) and not network.reader.layers:
        raise InputError("gradients cannot be exported", hint='attach with features="layers"')
    program = ExportedNetwork(network, coverage).program(*inputs, dynamic=dynamic)
    if path.suffix == ".onnx":
        write_onnx(program, path, names)
    else:
        with _quiet():
            write_whole(path, lambda file: torch.export.save(program, file))
    return path


def _conformal_factors(network: nn.Module, coverage: float) -> tuple[list[float], list[float]] | None:
    """Return the conformal factors of the scales and of the interval, one for each target; None if there are none."""
    calibration = getattr(network, "calibration", None)
    if isinstance(calibration, Calibration) and calibration.method == "isotonic":
        raise InputError(
            "an isotonic calibration cannot be exported", hint='calibrate with method="scale" or "conformal"'
        )
    if not isinstance(calibration, ConformalCalibration):
        return None
    if calibration.groups is not None:
        raise InputError("a calibration by groups cannot be exported", hint="calibrate without groups=")
    factors = (calibration.factors(c)[-1].tolist() for c in (REFERENCE_COVERAGE, coverage))
    return next(factors), next(factors)


def _stretched(found: dict[str, Tensor], scales: list[float], interval: list[float]) -> dict[str, Tensor]:
    """Return named tensors with every deviation multiplied by ``scales``, and the interval stretched about the mean."""
    mean = found["mean"]
    by, width = (mean.new_tensor(factors) if len(factors) > 1 else factors[0] for factors in (scales, interval))
    ends = {name: mean + width * (found[name] - mean) for name in ("lower", "upper")}
    return {"mean": mean, **{name: by * x for name, x in found.items() if name.endswith("std")}, **ends}


def write_onnx(program: "ExportedProgram", path: str | os.PathLike[str], input_names: Sequence[str]) -> None:
    """Write a program whose result is a dictionary of tensors as an ONNX file.

    The logarithm of 1 + x and the softplus, which ONNX does not have or whose runtimes lose the digits of small
    results, are written so that float32 keeps them.
    """
    try:
        import onnxscript
    except ImportError as error:
        raise InputError(f"an ONNX file needs the packages onnx and onnxscript: {install_hint('onnx')}") from error
    result = program.call_spec.out_spec
    assert result is not None
    places: dict[str, int] = _pytree.tree_unflatten(list(range(result.num_leaves)), result)
    names = sorted(places, key=lambda name: places[name])
    if both := sorted(set(names) & set(input_names)):
        raise InputError(f"{', '.join(both)} are names of outputs and cannot be names of inputs")
    with torch.no_grad(), _quiet():
        onnx_program = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(input_names),
            verbose=False,
            custom_translation_table=_exact_operators(onnxscript.opset18),
        )
        assert onnx_program is not None
        _name_outputs(onnx_program.model.graph, names)
        data = onnx_program.model_proto.SerializeToString()
    write_whole(Path(path), lambda file: file.write(data))


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Give the outputs of an ONNX graph these names, and rename other values that have them, also inside loops."""
    for node in graph.all_nodes():
        for value in (*node.outputs, *node.graph.inputs):
            if value.name in names:
                value.name = f"{value.name}_inside"
    for name, value in zip(names, graph.outputs, strict=True):
        value.name = name


def _exact_operators(op: Any) -> dict[Any, Callable[..., Any]]:
    """Return operators of torch as ONNX operators that keep the digits of small results."""

    def log1p(x: Any) -> Any:
        # ln(1 + x) as ln(u) x/(u − 1) with u = 1 + x: the rounding error of u cancels (Kahan)
        one = op.CastLike(1.0, x)
        u = op.Add(x, one)
        same = op.Equal(u, one)
        ratio = op.Div(x, op.Where(same, one, op.Sub(u, one)))
        large = op.Greater(u, op.CastLike(1e9, x))
        return op.Where(same, x, op.Mul(op.Log(u), op.Where(large, one, ratio)))

    def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ARG001
        # max(x, 0) + ln(1 + exp(−|x|)) is exact everywhere, so that no threshold is needed
        factor = op.CastLike(float(beta), x)
        scaled = op.Mul(x, factor)
        rest = log1p(op.Exp(op.Neg(op.Abs(scaled))))
        return op.Div(op.Add(op.Relu(scaled), rest), factor)

    return {torch.ops.aten.log1p.default: log1p, torch.ops.aten.softplus.default: softplus}


def _dynamic(example: Sequence[Any], dynamic: Sequence[Any]) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """Return the example's inputs and, for each of them, which dimensions are dynamic, as torch.export takes it.

    A dynamic dimension of size 1 is doubled: torch.export takes 0 and 1 for sizes that never change.
    """
    if not example or not all(isinstance(x, Tensor) for x in example):
        raise InputTypeError("an export needs an example of the inputs: one tensor or several")
    if not isinstance(dynamic, Sequence) or isinstance(dynamic, str):
        raise InputTypeError(f"dynamic is a list of dimensions, such as (0,), not {dynamic!r}")
    each = list(dynamic) if any(isinstance(d, Sequence) for d in dynamic) else [dynamic] * len(example)
    if len(each) != len(example):
        raise InputError(f"dynamic has the dimensions of {len(each)} inputs, and the example {len(example)} inputs")
    inputs, shapes = [], []
    for k, (x, dims) in enumerate(zip(example, each, strict=True)):
        shape: dict[int, Any] = {}
        for d in dims:
            if isinstance(d, bool) or not isinstance(d, int) or not -x.ndim <= d < x.ndim:
                raise InputError(f"dynamic={dynamic!r}: input {k} of shape {tuple(x.shape)} has no dimension {d!r}")
            if x.shape[d] == 0:
                raise InputError(f"the example's input {k} of shape {tuple(x.shape)} is empty")
            x = torch.cat([x, x], d) if x.shape[d] == 1 else x
            shape[d % x.ndim] = torch.export.Dim.DYNAMIC
        inputs.append(x)
        shapes.append(shape)
    return tuple(inputs), tuple(shapes)


def _input_names(count: int) -> list[str]:
    return ["x"] if count == 1 else [f"x{k}" for k in range(count)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of torch's exporters about deprecations and missing packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _unknown_answer(answer: Any) -> InputTypeError:
    return InputTypeError(
        f"the network must output a NormalInverseGamma, a Normal, a StudentT or a Mixture, not {class_name(answer)}"
    )


class Summaries:
    """Mean, deviations and interval of an output distribution, computed with operations that exporters support.

    Called with an output distribution, it returns a dictionary of tensors of the shape of the prediction:

    - ``mean``, ``std``;
    - ``aleatoric_std``, ``epistemic_std``: the default decomposition of :class:`~howsure.Prediction`. A part that
      the distribution does not have is left out: a single Gaussian has no epistemic one;
    - ``lower``, ``upper``: the ends of the central interval.

    They equal :class:`~howsure.Prediction` to a relative 1e-5 in float32, the ends of a mixture relative to
    their own size or to the mixture's deviation. Make it before a program is traced.

    Args:
        coverage: probability of the interval, at most 0.999999; None leaves it out.
        members: the dimension of several networks in the output. None: one network, or a Mixture.
        weights: how much each of them counts, numbers ≥ 0, not all 0. None: all count the same.
        from_parameters: whether ν divides the variance of several members too, as for a
            :class:`~howsure.Prediction` with a familiarity.

    >>> answer = NormalInverseGamma(gamma=torch.zeros(2), nu=2.0, alpha=3.0, beta=4.0)
    >>> found = Summaries(coverage=0.5)(answer)
    >>> {name: round(value[0].item(), 4) for name, value in found.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'mean': 0.0, 'std': 1.7321, 'aleatoric_std': 1.4142, 'epistemic_std': 1.0, 'lower': -1.0148, 'upper': 1.0148}
    """

    coverage: float | None
    members: int | None
    weights: tuple[float, ...] | None

    def __init__(
        self,
        coverage: float | None = 0.9,
        members: int | None = None,
        weights: Tensor | Sequence[float] | None = None,
        from_parameters: bool = False,
    ) -> None:
        self.from_parameters = from_parameters
        if coverage is not None and (
            isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < coverage <= MAX_COVERAGE
        ):
            raise InputError(f"coverage must be a number between 0 and {MAX_COVERAGE}, or None, got {coverage!r}")
        if members is not None and (isinstance(members, bool) or not isinstance(members, int)):
            raise InputTypeError(f"members is the dimension of the networks, a whole number or None, not {members!r}")
        if weights is not None and members is None:
            raise InputError("weights= requires members=, the dimension of the networks")
        self.coverage, self.members = None if coverage is None else float(coverage), members
        self.weights = None if weights is None else _checked_weights(weights)
        # made here, because exporters do not support the exact quantiles
        self._student = None if coverage is None else quick_quantile.StudentQuantile(0.5 * (1 - float(coverage)))

    def __call__(self, answer: Any) -> dict[str, Tensor]:
        """Return the named tensors of an output distribution."""
        if isinstance(answer, Mixture):
            return self._of_mixture(answer)
        if not isinstance(answer, NormalInverseGamma | Normal | StudentT):
            raise _unknown_answer(answer)
        if self.members is None:
            return self._of_members(_on_leaves(lambda p: p.unsqueeze(0), answer), None)
        shape = tuple(answer.batch_shape)
        if not -len(shape) <= self.members < len(shape):
            raise InputError(f"members={self.members}: the output of shape {shape} has no such dimension")
        return self._of_members(*self._counted(_on_leaves(lambda p: p.movedim(self.members, 0), answer)))

    def _of_mixture(self, answer: Mixture) -> dict[str, Tensor]:
        if self.members is not None:
            raise InputError("a Mixture has its own dimension of members: leave out members=")
        each, weights = answer.components, answer.weights
        if weights is not None:
            if weights.ndim > 1:
                raise InputError("the members of a mixture have the same weights in all rows, and these differ")
            weights = weights.to(each.loc.dtype).view(-1, *[1] * (len(each.batch_shape) - 1))
        return self._of_members(_on_leaves(lambda p: p.movedim(answer.dim, 0), each), weights)

    def _counted(self, given: Any) -> tuple[Any, Tensor | None]:
        """Return the members that count, which lie in dimension 0, and their weights as a tensor that broadcasts."""
        members, *rest = given.batch_shape
        if self.weights is None:
            if members == 0:
                raise InputError("the output has no members: at least one network is needed")
            return given, None
        if len(self.weights) != members:
            raise InputError(f"there are {len(self.weights)} weights, and the output has {members} members")
        # members of weight 0 are left out, so that they may even be NaN
        chosen = [k for k, weight in enumerate(self.weights) if weight > 0]
        if len(chosen) < members:
            given = _on_leaves(lambda p: torch.stack([p[k] for k in chosen]), given)
        first = _first_leaf(given)
        shares = [self.weights[k] for k in chosen]
        if len(chosen) == 1:
            return given, None
        return given, torch.tensor(shares, dtype=first.dtype, device=first.device).view(-1, *[1] * len(rest))

    def _of_members(self, given: Any, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the summaries of distributions with the members in dimension 0."""
        plain = given
        several = plain.batch_shape[0] > 1

        def over_members(x: Tensor) -> Tensor:
            if not several:
                return x.squeeze(0)
            return x.mean(0) if weights is None else (weights * x).sum(0)

        noise: Tensor | None = None
        if isinstance(plain, NormalInverseGamma):
            noise, means = plain.aleatoric_variance, plain.gamma
            doubt = noise / plain.nu
            within = over_members(noise) + over_members(doubt)
        else:
            means, doubt = plain.loc, plain.variance
            within = over_members(doubt)
            noise = doubt if isinstance(plain, Normal) else None
        mean = over_members(means)
        found: list[Tensor] = []  # the parts of the epistemic variance
        by_nu = isinstance(plain, NormalInverseGamma) and (self.from_parameters or not several)
        aleatoric = within if several and not by_nu else None if noise is None else over_members(noise)
        if by_nu:
            found.append(over_members(doubt))
        added = [over_members((means - mean).square())] if several else []
        found += added
        variance = sum(added, within)
        result = {"mean": mean, "std": variance.sqrt()}
        if aleatoric is not None:
            result["aleatoric_std"] = aleatoric.sqrt()
            if found:
                result["epistemic_std"] = sum(found[1:], found[0]).sqrt()
        if self._student is not None:
            result["lower"], result["upper"] = _ends(given.predictive(), self._student, weights)
        return result


def _ends(
    each: StudentT | Normal, student: quick_quantile.StudentQuantile, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval of the mixture of all members, which lie in dimension 0."""
    if isinstance(each, StudentT):
        df, quantile = each.df, student(each.df)
    else:
        df = torch.full_like(each.loc, quick_quantile.NORMAL_DF)
        quantile = torch.full_like(each.loc, quick_quantile.normal_quantile(student.q))
    if each.batch_shape[0] == 1:
        loc, half = each.loc.squeeze(0), (each.scale * quantile).squeeze(0)
        return loc - half, loc + half
    return quick_quantile.mixture_ends(df, each.loc, each.scale, quantile, student.q, weights)


def summaries(
    answer: Any,
    *,
    coverage: float | None = 0.9,
    members: int | None = None,
    weights: Tensor | Sequence[float] | None = None,
) -> dict[str, Tensor]:
    """Return the mean, deviations and interval of an output distribution, as `Summaries` computes them."""
    return Summaries(coverage, members, weights)(answer)


def _checked_weights(weights: Any) -> tuple[float, ...]:
    """Return weights as numbers that sum to 1."""
    try:  # on the CPU by name: torch's device context would decide otherwise
        given = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"weights must be numbers, one for each member, got {weights!r}") from error
    return tuple(normalised_weights("Summaries", given.detach(), given.numel(), validate=True).tolist())


def _on_leaves(change: Any, answer: Any) -> Any:
    return _pytree.tree_map(change, answer)


def _first_leaf(answer: Any) -> Tensor:
    leaf: Tensor = _pytree.tree_leaves(answer)[0]
    return leaf
