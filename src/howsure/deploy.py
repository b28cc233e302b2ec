"""A network of one's own leaves Python: tensors in, plain named tensors out, intervals included.

:class:`Deploy` wraps a network whose answers are distributions. What it returns is a dictionary of tensors, computed by
few and common operations, so that ``torch.export``, ONNX and AOTInductor take it, and whoever loads the result needs no
howsure. :class:`Summaries` is the part of it that comes after the network.
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

from howsure.distributions import Mixture, Normal, NormalInverseGamma, StudentT
from howsure.distributions._base import class_name
from howsure.distributions.mixture import normalised_weights
from howsure.errors import InputError, InputTypeError, install_hint
from howsure.files import scratch_folder, write_whole
from howsure.formulas import quick_quantile

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["OPSET", "Deploy", "Summaries", "summaries", "to_onnx", "to_package"]

OPSET = 18  # of ONNX: the one for which torch writes its operators
MOST_COVERAGE = 0.999999  # the largest for which the quick quantile is right to 1e-5


class Deploy(nn.Module):
    """A network whose answers are plain named tensors, in the units of y, ready to leave Python.

    ``forward`` takes what the network takes and returns a dictionary of tensors: ``mean``, ``std``, ``aleatoric_std``,
    ``epistemic_std``, ``lower`` and ``upper``. :class:`Summaries` says what
    they are. It is always in evaluation mode, the network included, and computes no gradients.

    Args:
        network: a module that answers with a :class:`~howsure.NormalInverseGamma`, :class:`~howsure.Normal`,
            or :class:`~howsure.Mixture`; or a list or ``nn.ModuleList`` of such modules,
            whose answers are mixed.
        loc, scale: y = loc + scale · (target of the network), as in ``answer.affine``: numbers, or tensors that
            broadcast to the answer without making it larger, such as one number for each target.
        coverage: probability of the interval, at most 0.999999; None leaves out ``lower`` and ``upper``.
        members: the dimension of the network's answer along which several networks stand.
        weights: how much each of several networks counts, numbers ≥ 0, not all 0. None: all count the same.

    >>> import howsure as hs
    >>> net = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), hs.NIGHead(32))
    >>> list(Deploy(net, loc=10.0, scale=2.0)(torch.zeros(3, 5)))
    ['mean', 'std', 'aleatoric_std', 'epistemic_std', 'lower', 'upper']
    """

    def __init__(
        self,
        network: nn.Module | Sequence[nn.Module],
        *,
        loc: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
        coverage: float | None = 0.9,
        members: int | None = None,
        weights: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        several = isinstance(network, nn.ModuleList | list | tuple)
        modules: list[Any] = list(network) if isinstance(network, nn.ModuleList | list | tuple) else [network]
        if not modules or not all(isinstance(module, nn.Module) for module in modules):
            raise InputTypeError("Deploy takes a torch module, or a list of at least one")
        if several and members is not None:
            raise InputError("the networks of a list are the members; leave out members=")
        self.networks, self.several = nn.ModuleList(modules), several
        self.summaries = Summaries(coverage, 0 if several else members, weights)
        if several and self.summaries.weights is not None and len(self.summaries.weights) != len(modules):
            raise InputError(f"there are {len(self.summaries.weights)} weights and {len(modules)} networks")
        self.loc, self.scale = _checked_number("loc", loc), _checked_number("scale", scale)
        factors = torch.tensor(self.scale, device="cpu")
        if not bool((factors != 0).all()):
            raise InputError(f"scale must not be 0, got {scale!r}")
        self._mirrors = bool((factors < 0).any())
        self.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, *inputs: Any) -> dict[str, Tensor]:
        # a traced program has no gradient mode: there, what the network says is detached
        with contextlib.nullcontext() if torch.compiler.is_compiling() else torch.no_grad():
            answers = [network(*inputs) for network in self.networks]
            answer = _stacked(answers) if self.several else answers[0]
            return self._in_units_of_y(self.summaries(_on_leaves(Tensor.detach, answer)))

    def _in_units_of_y(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        mean = found["mean"]
        loc, scale = (_like(number, mean, name) for name, number in (("loc", self.loc), ("scale", self.scale)))
        size = abs(scale)
        result = {}
        for name, value in found.items():
            if name in ("mean", "lower", "upper"):
                result[name] = loc + scale * value
            else:
                result[name] = value if name == "familiarity" else size * value
        if "lower" in result and self._mirrors:
            ends = result["lower"], result["upper"]
            result["lower"], result["upper"] = torch.minimum(*ends), torch.maximum(*ends)
        return result

    def export(self, *example: Tensor, dynamic: Sequence[Any] = (0,)) -> "ExportedProgram":
        """Return the network as a program of ``torch.export``, which needs no howsure where it is loaded.

        Args:
            example: inputs as ``forward`` takes them; their values do not matter.
            dynamic: dimensions whose size may change from call to call, the same for every input, such as (0, 2, 3)
                for images of any number and size; or a list with the dimensions of each input.
        """
        inputs, shapes = _dynamic(example, dynamic)
        with torch.no_grad(), _quiet():
            return torch.export.export(self, inputs, dynamic_shapes=(shapes,))


def to_onnx(
    deploy: Deploy,
    path: str | os.PathLike[str],
    *example: Tensor,
    dynamic: Sequence[Any] = (0,),
    input_names: Sequence[str] | None = None,
) -> None:
    """Write a deployed network as an ONNX file of opset 18, whose outputs have the names of the dictionary.

    It needs the packages onnx and onnxscript. The logarithm of 1 + x and the softplus, which ONNX does not have or
    whose runtimes lose the digits of small results, are written so that float32 keeps them.

    Args:
        deploy: the network.
        path: file to write; it is replaced only when the new one is complete.
        example: inputs as ``deploy.forward`` takes them; their values do not matter.
        dynamic: dimensions whose size may change, as in :meth:`Deploy.export`.
        input_names: names of the inputs; by default "x", or "x0", "x1", … of several.
    """
    if not isinstance(deploy, Deploy):
        raise InputTypeError(f"to_onnx takes an hs.Deploy of the network, not {type(deploy).__name__}")
    names = list(input_names) if input_names is not None else _input_names(len(example))
    if len(names) != len(example) or len(set(names)) < len(names):
        raise InputError(
            f"there are {len(example)} inputs, and their names must be as many different ones, not {names}"
        )
    write_onnx(deploy.export(*example, dynamic=dynamic), path, names)


def write_onnx(program: "ExportedProgram", path: str | os.PathLike[str], input_names: Sequence[str]) -> None:
    """Write a program whose result is a dictionary of tensors as an ONNX file, as `to_onnx` does."""
    try:
        import onnxscript
    except ImportError as error:
        raise InputError(f"an ONNX file needs the packages onnx and onnxscript: {install_hint('onnx')}") from error
    result = program.call_spec.out_spec
    assert result is not None
    places: dict[str, int] = _pytree.tree_unflatten(list(range(result.num_leaves)), result)
    names = sorted(places, key=lambda name: places[name])
    if both := sorted(set(names) & set(input_names)):
        raise InputError(f"{', '.join(both)} are names of outputs, and cannot be those of inputs")
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
    """Give the outputs of an ONNX graph these names, and other names to what has them by chance, also inside loops."""
    for node in graph.all_nodes():
        for value in (*node.outputs, *node.graph.inputs):
            if value.name in names:
                value.name = f"{value.name}_inside"
    for name, value in zip(names, graph.outputs, strict=True):
        value.name = name


def to_package(deploy: Deploy, path: str | os.PathLike[str], *example: Tensor, dynamic: Sequence[Any] = (0,)) -> None:
    """Write a deployed network compiled by AOTInductor for the device of its parameters; needs a C++ compiler.

    ``torch._inductor.aoti_load_package(path)`` loads it, in Python without howsure; C++ has a class for it.

    Args:
        deploy: the network.
        path: file to write, whose name ends in .pt2.
        example: inputs as ``deploy.forward`` takes them; their values do not matter.
        dynamic: dimensions whose size may change, as in :meth:`Deploy.export`.
    """
    if not isinstance(deploy, Deploy):
        raise InputTypeError(f"to_package takes an hs.Deploy of the network, not {type(deploy).__name__}")
    if Path(path).suffix != ".pt2":
        raise InputError(f"the name of a package ends in .pt2, got {os.fspath(path)}")
    program = deploy.export(*example, dynamic=dynamic)
    with torch.no_grad(), _quiet(), scratch_folder(Path(path)) as folder:
        made = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "package.pt2"))
        data = Path(made).read_bytes()
    write_whole(Path(path), lambda file: file.write(data))


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
    """Leave out what torch's exporters say about themselves: deprecations, and packages that they do not find."""
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


def _checked_number(name: str, value: Any) -> Any:
    """Return finite numbers as a float or nested lists of floats, which no cast of the module can round."""
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"{name} must be a number or a tensor of numbers, got {value!r}") from error
    if not bool(numbers.isfinite().all()) or not numbers.numel():
        raise InputError(f"{name} must be finite, got {value!r}")
    return numbers.tolist()


def _like(number: Any, like: Tensor, name: str) -> Any:
    """Return numbers as they are, or as a tensor that broadcasts to another one."""
    if isinstance(number, float):
        return number
    tensor = torch.tensor(number, dtype=like.dtype, device=like.device)
    sizes = zip(tensor.shape[::-1], like.shape[::-1], strict=False)
    if tensor.ndim > like.ndim or any(own not in (1, other) for own, other in sizes):
        raise InputError(f"{name} of shape {tuple(tensor.shape)} does not fit an answer of shape {tuple(like.shape)}")
    return tensor


def _stacked(answers: list[Any]) -> Any:
    """Return the answers of several networks as one, with the networks in dimension 0."""
    first = answers[0]
    for answer in answers[1:]:
        if type(answer) is not type(first) or getattr(answer, "batch_shape", 0) != getattr(first, "batch_shape", 0):
            raise InputError("the networks of a list must output distributions of one kind and shape")
    if isinstance(first, Mixture):
        raise InputError("a network of a list must not answer with a Mixture; give its members one by one")
    if not isinstance(first, NormalInverseGamma | Normal | StudentT):
        raise _unknown_answer(first)
    return _pytree.tree_map(lambda *parts: torch.stack(parts), *answers)


def _unknown_answer(answer: Any) -> InputTypeError:
    return InputTypeError(
        f"the network must output a NormalInverseGamma, a Normal, a StudentT or a Mixture, not {class_name(answer)}"
    )


class Summaries:
    """What a prediction states in numbers, from an answer of one or several networks, by few and plain operations.

    Called with an answer, it returns a dictionary of tensors of the shape of the prediction:

    - ``mean``, ``std``;
    - ``aleatoric_std``, ``epistemic_std``: the default decomposition of :class:`~howsure.Prediction`. A part that
      the answer does not have is left out: a single Gaussian has no epistemic one;
    - ``lower``, ``upper``: the ends of the central interval.

    They are those of :class:`~howsure.Prediction` to a relative 1e-5, in float32; the ends of a mixture relative to
    their own size or to the mixture's deviation. Make it before a program is traced.

    Args:
        coverage: probability of the interval, at most 0.999999; None leaves it out.
        members: the dimension of the answer along which several networks stand; None: there is one, or a Mixture.
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
            isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < coverage <= MOST_COVERAGE
        ):
            raise InputError(f"coverage must be a number between 0 and {MOST_COVERAGE}, or None, got {coverage!r}")
        if members is not None and (isinstance(members, bool) or not isinstance(members, int)):
            raise InputTypeError(f"members is the dimension of the networks, a whole number or None, not {members!r}")
        if weights is not None and members is None:
            raise InputError("weights= says how much each member counts; say with members= along which dimension")
        self.coverage, self.members = None if coverage is None else float(coverage), members
        self.weights = None if weights is None else _checked_weights(weights)
        # made here, because it asks for exact quantiles, which no exporter knows
        self._student = None if coverage is None else quick_quantile.StudentQuantile(0.5 * (1 - float(coverage)))

    def __call__(self, answer: Any) -> dict[str, Tensor]:
        """Return the named tensors of an answer."""
        if isinstance(answer, Mixture):
            return self._of_mixture(answer)
        if not isinstance(answer, NormalInverseGamma | Normal | StudentT):
            raise _unknown_answer(answer)
        if self.members is None:
            return self._of_members(_on_leaves(lambda p: p.unsqueeze(0), answer), None)
        shape = tuple(answer.batch_shape)
        if not -len(shape) <= self.members < len(shape):
            raise InputError(f"members={self.members}: the answer of shape {shape} has no such dimension")
        return self._of_members(*self._counted(_on_leaves(lambda p: p.movedim(self.members, 0), answer)))

    def _of_mixture(self, answer: Mixture) -> dict[str, Tensor]:
        if self.members is not None:
            raise InputError("a Mixture knows which dimension is that of its members; leave out members=")
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
                raise InputError("the answer has no members; there must be at least one network")
            return given, None
        if len(self.weights) != members:
            raise InputError(f"there are {len(self.weights)} weights, and the answer has {members} members")
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
        """Return the summaries of answers whose members lie in dimension 0."""
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
    """Return what `Summaries` with these arguments makes of an answer."""
    return Summaries(coverage, members, weights)(answer)


def _checked_weights(weights: Any) -> tuple[float, ...]:
    """Return weights as numbers that sum to 1."""
    try:  # on the CPU by name: torch's device context would decide otherwise
        given = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"weights must be numbers, one for each member, got {weights!r}") from error
    return tuple(normalised_weights("Deploy", given.detach(), given.numel(), validate=True).tolist())


def _on_leaves(change: Any, answer: Any) -> Any:
    return _pytree.tree_map(change, answer)


def _first_leaf(answer: Any) -> Tensor:
    leaf: Tensor = _pytree.tree_leaves(answer)[0]
    return leaf
