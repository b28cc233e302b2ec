"""Programs of ``torch.export`` as ONNX files, in which small results keep their digits and trees are one node."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from howsure.errors import InputError, import_extra
from howsure.files import write_whole
from howsure.tables.experts.trees import PLACE_BITS, PLACES, TreeEnsemble

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["OPSET", "quiet", "record_trees", "write_onnx"]

OPSET = 18  # of ONNX: the one for which torch writes its operators
OPSET_ML = 5  # of the operators for machine learning, such as TreeEnsemble
DOUBLE = 11  # ONNX's number for float64

# Φ(−x) e^(x²/2) for x ≥ 0 as a polynomial in t = 4/(4 + x), found by interpolation at Chebyshev points of [0, 9] with
# mpmath. x Φ(x) is then right to 1e-10, whatever x is.
_TURN = 4.0
_RATIO = (
    -6.530129622575598e-05, 0.10100092404255077, 0.08887799634828922, 0.14776254185237953, -0.09342148053849356,
    0.43862636166471847, -0.49700413745006716, 0.5246638498915103, -0.2592889624172267, 0.05051376317515374,
    -0.0016655551297940162,
)  # fmt: skip


def write_onnx(
    program: "ExportedProgram", path: Path, input_names: Sequence[str], metadata: Mapping[str, str], trees: list[Any]
) -> None:
    """Write a program whose result is a dictionary of tensors as an ONNX file.

    Args:
        program: to be written.
        path: of the file.
        input_names: one for each input.
        metadata: texts by name.
        trees: the ensembles that `record_trees` returned.
    """
    onnxscript = import_extra("onnxscript", "onnx")
    result = program.call_spec.out_spec
    assert result is not None
    places: dict[str, int] = _pytree.tree_unflatten(list(range(result.num_leaves)), result)
    names = sorted(places, key=lambda name: places[name])
    if both := sorted(set(names) & set(input_names)):
        raise InputError(f"{', '.join(both)} are names of outputs and cannot be names of inputs")
    double = any(x.dtype == torch.float64 for x in program.example_inputs[0])
    with torch.no_grad(), quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(input_names),
            verbose=False,
            optimize=not double,  # onnxscript 0.7 loses a constant where it fuses minima
            custom_translation_table=_translations(onnxscript, double, trees),
        )
        assert made is not None
        _name_outputs(made.model.graph, names)
        made.model.metadata_props.update(metadata)
        data = made.model_proto.SerializeToString()
    write_whole(path, lambda file: file.write(data))


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Give the outputs of an ONNX graph these names, and rename other values that have them, also inside loops."""
    for node in graph.all_nodes():
        for value in (*node.outputs, *node.graph.inputs):
            if value.name in names:
                value.name = f"{value.name}_inside"
    for name, value in zip(names, graph.outputs, strict=True):
        value.name = name


# Operators ------------------------------------------------------------------------------------------------------------


def _translations(onnxscript: Any, double: bool, trees: list[Any]) -> dict[Any, Callable[..., Any]]:
    """Return operators of torch as ONNX operators that keep the digits of small results.

    For float64 these are also the operators that ONNX Runtime has for float32 only, or that torch's exporter rounds.
    """
    op = onnxscript.opset18

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

    def number(value: float, dtype: int = DOUBLE, **_: Any) -> Any:
        return op.Constant(value=onnxscript.ir.tensor(value, onnxscript.ir.DataType(dtype)))

    def gelu(x: Any, approximate: str = "none") -> Any:  # noqa: ARG001
        constant = [op.CastLike(number(value), x) for value in (_TURN, -0.5, *_RATIO)]
        size, ratio = op.Abs(x), constant[-1]
        t = op.Div(constant[0], op.Add(size, constant[0]))
        for coefficient in constant[-2:1:-1]:
            ratio = op.Add(op.Mul(ratio, t), coefficient)
        bell = op.Exp(op.Mul(constant[1], op.Mul(x, x)))
        return op.Sub(op.Relu(x), op.Mul(op.Mul(size, ratio), bell))

    def sums(z: Any, index: int, targets: int) -> Any:  # noqa: ARG001
        return onnxscript.values.Opset("ai.onnx.ml", OPSET_ML).TreeEnsemble(
            op.Cast(z, to=DOUBLE), **_tree_attributes(onnxscript.ir.tensor, trees[index])
        )

    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = {aten.log1p.default: log1p, aten.softplus.default: softplus}
    if double:
        found |= {aten.gelu.default: gelu, aten.scalar_tensor.default: number, _TREES: sums}
    return found


# Trees ----------------------------------------------------------------------------------------------------------------


def _no_sums(z: Tensor, index: int, targets: int) -> Tensor:  # noqa: ARG001
    """Return a tensor of the shape of the sums of trees: only its shape counts in a traced program."""
    return z.new_empty(z.shape[0], targets, dtype=torch.float64)


torch.library.custom_op("howsure::trees", _no_sums, mutates_args=()).register_fake(_no_sums)
_TREES = torch.ops.howsure.trees.default


def record_trees(module: nn.Module) -> list[TreeEnsemble]:
    """Make each tree ensemble of a module one operator when it is traced, and return the ensembles."""
    found = [part for part in module.modules() if isinstance(part, TreeEnsemble)]
    for index, ensemble in enumerate(found):
        ensemble.sums = partial(_recorded, ensemble, index)  # type: ignore[method-assign]
    return found


def _recorded(ensemble: TreeEnsemble, index: int, x: Tensor) -> Tensor:
    sums: Tensor = _TREES(ensemble.units(x), index, len(ensemble.start))
    return ensemble.start + sums


def _tree_attributes(tensor: Callable[..., Any], ensemble: Any) -> dict[str, Any]:
    """Return the nodes and leaves of an ensemble as attributes of ``TreeEnsemble``."""
    leaf = ensemble.feature.numpy() < 0
    step, roots = ensemble.step.numpy(), ensemble.roots.numpy()
    number, sizes = ensemble.number.double().numpy(), 2 * ensemble.leaves.flatten().numpy().astype(np.int64) - 1
    place = np.where(leaf, np.cumsum(leaf) - 1, np.cumsum(~leaf) - 1)  # among leaves, or among splits
    splits = np.flatnonzero(~leaf)
    left, right = splits + 1, splits + 1 + (step[splits] >> PLACE_BITS)
    # a tree of one leaf gets a split whose branches both end there
    single = roots[leaf[roots]]
    first = len(splits) + np.arange(len(single))
    children = [np.concatenate([place[each], place[single]]) for each in (left, right)]
    are_leaves = [np.concatenate([leaf[each], np.ones(len(single), dtype=bool)]) for each in (left, right)]
    start = place[roots]
    start[leaf[roots]] = first
    target = np.repeat(np.arange(len(roots)) // ensemble.trees, sizes)
    zero = np.zeros(len(single))
    return {
        "n_targets": len(ensemble.start),
        "aggregate_function": 1,  # the sum
        "post_transform": 0,  # none
        "tree_roots": start.tolist(),
        "nodes_modes": tensor(np.zeros(len(splits) + len(single), dtype=np.uint8)),  # left if at most the threshold
        "nodes_featureids": np.concatenate([step[splits] & PLACES, zero.astype(np.int64)]).tolist(),
        "nodes_splits": tensor(np.concatenate([number[splits], zero])),
        "nodes_truenodeids": children[0].tolist(),
        "nodes_trueleafs": are_leaves[0].astype(int).tolist(),
        "nodes_falsenodeids": children[1].tolist(),
        "nodes_falseleafs": are_leaves[1].astype(int).tolist(),
        "leaf_targetids": target[leaf].tolist(),
        "leaf_weights": tensor(number[leaf]),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages of torch's exporters about deprecations and missing packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
