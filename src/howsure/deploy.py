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

from howsure.conformal import REFERENCE_COVERAGE, ConformalCalibration
from howsure.distributions import Mixture, Normal, NormalInverseGamma, StudentT
from howsure.distributions.arguments import class_name
from howsure.errors import InputError, InputTypeError, import_extra
from howsure.files import write_whole
from howsure.formulas import quick_quantile
from howsure.network import NetworkModel

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = [
    "OPSET",
    "ExportedNetwork",
    "Summaries",
    "calibrated",
    "calibration_factors",
    "export_network",
    "export_path",
    "mixture_interval",
    "write_onnx",
]

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
        self.network = network
        factor, stretch = calibration_factors(getattr(network, "calibration", None), coverage)
        self.register_buffer("factor", None if stretch is None else factor)  # the network has its scale inside
        self.register_buffer("stretch", stretch)
        self.summaries = Summaries(coverage if stretch is None or coverage is None else REFERENCE_COVERAGE)
        self.eval()

    factor: Tensor | None
    stretch: Tensor | None

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
            if self.factor is not None and self.summaries.has_interval:
                found = calibrated(found, self.factor, self.stretch)
            return {**found, "familiarity": familiarity.detach()}

    def program(self, *example: Tensor, dynamic: Sequence[Any] = (0,)) -> "ExportedProgram":
        """Return the network as a program of ``torch.export``."""
        inputs, shapes = _dynamic(example, dynamic)
        with torch.no_grad(), _quiet():
            return torch.export.export(self, inputs, dynamic_shapes=(shapes,))


def export_network(
    network: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor | Sequence[Tensor] = (),
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
    path = export_path(path, overwrite)
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    own = ["x"] if len(inputs) == 1 else [f"x{k}" for k in range(len(inputs))]
    names = own if input_names is None else list(input_names)
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


def export_path(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Return the path of a file to write, after checking its suffix and whether it may be replaced."""
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise InputError(f"the name of an exported model ends in .onnx or .pt2, got {path.name!r}")
    if path.exists() and (not overwrite or not path.is_file()):
        raise InputError(f"{path} exists", hint="name another file, or pass overwrite=True")
    return path


def calibration_factors(calibration: Any, coverage: float | None) -> tuple[Tensor | None, Tensor | None]:
    """Return factors of all deviations, and factors of the half-widths of a conformal interval, one for each target.

    Args:
        calibration: by a scale or conformal; None: there are no factors.
        coverage: of the interval.
    """
    if isinstance(calibration, ConformalCalibration):
        if calibration.groups is not None:
            raise InputError("a calibration by groups cannot be exported", hint="calibrate without groups=")
        scale, interval = (calibration.factors(c)[-1] for c in (REFERENCE_COVERAGE, coverage or REFERENCE_COVERAGE))
        return torch.from_numpy(scale), torch.from_numpy(interval)
    if calibration is not None and calibration.method == "isotonic":
        hint = 'calibrate with method="scale" or "conformal"'
        raise InputError("an isotonic calibration cannot be exported", hint=hint)
    return None if calibration is None else torch.from_numpy(calibration.factors), None


def calibrated(found: dict[str, Tensor], factor: Tensor, stretch: Tensor | None) -> dict[str, Tensor]:
    """Return outputs stretched about the mean; with ``stretch`` the interval is stretched conformally instead.

    Args:
        found: outputs. With ``stretch`` the interval has ``REFERENCE_COVERAGE``.
        factor: of all deviations, (T,).
        stretch: of the half-widths of the interval, see :mod:`howsure.conformal`.
    """
    mean, lower, upper = (found[name] for name in ("mean", "lower", "upper"))
    factor = factor.to(mean.dtype)
    moved = {name: mean + factor * (x - mean) for name, x in found.items() if name in ("median", "lower", "upper")}
    wider = {name: factor * x for name, x in found.items() if name.endswith("std")}
    if stretch is not None:
        stretch, quarter = stretch.to(mean.dtype), 0.25 * (upper - lower)
        centre = torch.minimum(torch.maximum(mean, lower + quarter), upper - quarter)
        middle = mean + factor * (centre - mean)
        moved |= {"lower": middle - stretch * (centre - lower), "upper": middle + stretch * (upper - centre)}
    return found | wider | moved


def write_onnx(program: "ExportedProgram", path: str | os.PathLike[str], input_names: Sequence[str]) -> None:
    """Write a program whose result is a dictionary of tensors as an ONNX file.

    The logarithm of 1 + x and the softplus, which ONNX does not have or whose runtimes lose the digits of small
    results, are written so that float32 keeps them.
    """
    onnxscript = import_extra("onnxscript", "onnx")
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of torch's exporters about deprecations and missing packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


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
        from_parameters: whether ν divides the variance of several members too, as for a
            :class:`~howsure.Prediction` with a familiarity.

    >>> answer = NormalInverseGamma(gamma=torch.zeros(2), nu=2.0, alpha=3.0, beta=4.0)
    >>> found = Summaries(coverage=0.5)(answer)
    >>> {name: round(value[0].item(), 4) for name, value in found.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'mean': 0.0, 'std': 1.7321, 'aleatoric_std': 1.4142, 'epistemic_std': 1.0, 'lower': -1.0148, 'upper': 1.0148}
    """

    def __init__(self, coverage: float | None = 0.9, from_parameters: bool = False) -> None:
        real = isinstance(coverage, Real) and not isinstance(coverage, bool)
        if coverage is not None and not (real and 0 < coverage <= MAX_COVERAGE):
            raise InputError(f"coverage must be a number between 0 and {MAX_COVERAGE}, or None, got {coverage!r}")
        self.from_parameters, self.has_interval = from_parameters, coverage is not None
        # made here, because exporters do not support the exact quantiles
        self._student = None if coverage is None else quick_quantile.StudentQuantile(0.5 * (1 - float(coverage)))

    def __call__(self, answer: Any) -> dict[str, Tensor]:
        """Return the named tensors of an output distribution of one network, or of a mixture."""
        if isinstance(answer, Mixture):
            each, weights = answer.components, answer.weights
            if weights is not None:
                if weights.ndim > 1:
                    raise InputError("the members of a mixture have the same weights in all rows, and these differ")
                weights = weights.to(each.loc.dtype).view(-1, *[1] * (len(each.batch_shape) - 1))
            return self.of_members(_on_leaves(lambda p: p.movedim(answer.dim, 0), each), weights)
        if not isinstance(answer, NormalInverseGamma | Normal | StudentT):
            kinds = "a NormalInverseGamma, a Normal, a StudentT or a Mixture"
            raise InputTypeError(f"the network must output {kinds}, not {class_name(answer)}")
        return self.of_members(_on_leaves(lambda p: p.unsqueeze(0), answer))

    def of_members(self, plain: Any, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return the named tensors of a distribution with members in dimension 0 and weights that broadcast."""
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
            ends = mixture_interval(plain.predictive(), self._student.q, self._student, weights)
            result["lower"], result["upper"] = ends
        return result


def mixture_interval(
    each: StudentT | Normal, q: float, student: Callable[[Tensor], Tensor], weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the points with the probability q below and above them, of the mixture of members in dimension 0.

    Args:
        each: the members.
        q: the probability, at most ½.
        student: from df to the quantile of a standard Student t.
        weights: of the members, of a shape that broadcasts with them; None: all count the same.
    """
    if isinstance(each, StudentT):
        df, quantile = each.df, student(each.df)
    else:
        df = torch.full_like(each.loc, quick_quantile.NORMAL_DF)
        quantile = torch.full_like(each.loc, quick_quantile.normal_quantile(q))
    if each.batch_shape[0] == 1:
        loc, half = each.loc.squeeze(0), (each.scale * quantile).squeeze(0)
        return loc - half, loc + half
    return quick_quantile.mixture_ends(df, each.loc, each.scale, quantile, q, weights)


def _on_leaves(change: Any, answer: Any) -> Any:
    return _pytree.tree_map(change, answer)
