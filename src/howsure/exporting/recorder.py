"""Record the operations of a module on one example as a graph of ONNX.

PyTorch's own exporter traces every operation three times and takes a minute for a graph of a thousand nodes; it needs
``onnxscript``, and writes some numbers of a float64 graph as float32. The modules of this package consist of few
operations of known kinds, without branches that look at values. So here they are run once, and the calls of torch are
recorded: the operations themselves, in their dtype. The dimension of the rows stays open.

Values that do not depend on the input are computed now and become constants of the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from howsure.errors import HowsureError
from howsure.tables.experts.trees import PLACE_BITS, PLACES

__all__ = ["Recorder"]

_UNARY = {
    "neg": "Neg",
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "relu": "Relu",
    "floor": "Floor",
    "round": "Round",
    "reciprocal": "Reciprocal",
    "isnan": "IsNaN",
}
_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "minimum": "Min",
    "maximum": "Max",
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "bitwise_and": "And",
    "bitwise_or": "Or",
}
_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin"}
_SAME = ("clone", "detach")


class Recorder(TorchDispatchMode):
    """Context in which operations on tensors that depend on an input become nodes.

    Args:
        onnx: the package.
        rows: number of rows of the example, by which the dimension of the rows is recognised. A size of the model that
            is a multiple of it would be taken for that dimension too.

    Attributes:
        nodes: in the order in which they were recorded.
        initializers: constants.
    """

    def __init__(self, onnx: Any, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.onnx = onnx
        self.rows = rows
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._names: dict[int, str] = {}  # of tensors that depend on an input
        self._alive: list[Tensor] = []  # so that no other tensor gets the identity of one that is gone
        self._constants: dict[Any, str] = {}
        self._count = 0  # of values with a name
        self._rows_of = ""  # the first input

    # Calls by users ---------------------------------------------------------------------------------------------------

    def name_input(self, tensor: Tensor, name: str) -> None:
        """Make a tensor an input of the graph. Its first dimension has the rows."""
        self._names[id(tensor)] = name
        self._alive.append(tensor)
        self._rows_of = self._rows_of or name

    def name_output(self, tensor: Tensor, name: str) -> None:
        """Make a tensor an output of the graph."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [self._value(tensor, tensor.dtype)], [name]))

    def loop(self, is_open: Callable[..., Tensor], improve: Callable[..., Any], state: tuple[Tensor, ...]) -> Any:
        """Record rounds that improve a state while it is open as one node, and return the state after one of them."""
        make = self.onnx.helper
        self._rows()  # also needed by operations after the loop
        start = [self._value(is_open(*state)), *map(self._value, state)]
        outside, self.nodes = self.nodes, []
        inside = [self._emit_input(each, f"s{len(outside)}_{k}") for k, each in enumerate(state)]
        after = improve(*inside)
        results = [self._value(is_open(*after)), *map(self._value, after)]
        names = [f"r{len(outside)}_{k}" for k in range(len(results))]  # distinct, whatever the state is made of
        self.nodes += [make.make_node("Identity", [a], [b]) for a, b in zip(results, names, strict=True)]
        kinds = [torch.bool, *(t.dtype for t in state)]
        shapes = [(), *(t.shape for t in state)]
        own = [self._info(f"i{len(outside)}", torch.int64, ()), self._info(f"o{len(outside)}", torch.bool, ())]
        own += [self._info(self._names[id(t)], t.dtype, t.shape) for t in inside]
        ends = [self._info(name, kind, shape) for name, kind, shape in zip(names, kinds, shapes, strict=True)]
        body = make.make_graph(self.nodes, "round", own, ends)
        self.nodes = outside
        finals = tuple(self._emit_input(each, f"f{len(outside)}_{k}") for k, each in enumerate(after))
        outputs = [self._names[id(t)] for t in finals]
        self.nodes.append(make.make_node("Loop", ["", *start], outputs, body=body))
        return finals

    def trees(self, ensemble: Any, z: Tensor) -> Tensor:
        """Record trees as one node ``TreeEnsemble`` in float64, and return the start of each target plus its trees."""
        known = self._value(z, torch.float64)
        sums = torch.zeros(len(z), len(ensemble.start), dtype=torch.float64)
        name = f"trees{len(self.nodes)}"
        attributes = _tree_attributes(self.onnx, ensemble)
        made = self.onnx.helper.make_node("TreeEnsemble", [known], [name], domain="ai.onnx.ml", **attributes)
        self.nodes.append(made)
        self._names[id(sums)] = name
        self._alive.append(sums)
        start: Tensor = ensemble.start
        return start + sums

    def _emit_input(self, like: Tensor, name: str) -> Tensor:
        """Return a copy of a tensor under a name, as a node that is not recorded makes it."""
        with _disable_current_modes():
            copy = like.clone()
        self._names[id(copy)] = name
        self._alive.append(copy)
        return copy

    def _info(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Any:
        sizes = ["rows" if size == self.rows else size for size in shape]
        return self.onnx.helper.make_tensor_value_info(name, self._kind(dtype), sizes)

    def used(self, outputs: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """Return the nodes and constants that outputs of these names need."""
        needed, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(_read_by(node))
        return nodes[::-1], [each for each in self.initializers if each.name in needed]

    # Calls by torch ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [t for a in (*args, *kwargs.values()) for t in (a if isinstance(a, list | tuple) else [a])]
        if any(id(t) in self._names for t in tensors if isinstance(t, Tensor)):
            self._record(func.__name__.split(".")[0], result, args, kwargs)
        return result

    def _record(self, op: str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Write down an operation, or raise for one of an unknown kind."""
        if op in _UNARY:
            self._emit(_UNARY[op], [self._value(args[0])], result)
        elif op in _BINARY:
            self._binary(_BINARY[op], args[0], args[1], result)
        elif op in _REDUCTIONS:
            axes = self._whole([args[1]] if isinstance(args[1], int) else list(args[1]))
            keep = int(len(args) > 2 and args[2])
            self._emit(_REDUCTIONS[op], [self._value(args[0]), axes], result, keepdims=keep)
        elif op in _SAME:
            self._names[id(result)] = self._value(args[0])
            self._alive.append(result)
        elif op in ("zeros_like", "full_like"):
            value = args[1] if op == "full_like" else 0.0
            self._names[id(result)] = self._constant(torch.full([1] * result.ndim, value, dtype=result.dtype))
            self._alive.append(result)
        else:
            handler: Callable[..., None] | None = getattr(self, f"_on_{op.lstrip('_')}", None)
            if handler is None:
                raise HowsureError(f"the operation {op} of torch {torch.__version__} has no place in an ONNX graph yet")
            handler(result, *args, **kwargs)

    # Operations by name -----------------------------------------------------------------------------------------------

    def _binary(self, kind: str, first: Any, second: Any, result: Tensor) -> None:
        common = torch.result_type(first, second)
        self._emit(kind, [self._value(first, common), self._value(second, common)], result)

    def _on_any(self, result: Tensor, x: Tensor) -> None:
        whole = self._emit("Cast", [self._value(x)], to=self._kind(torch.int64))
        # a sum, because there is no largest of no rows
        self._emit("Cast", [self._emit("ReduceSum", [whole], keepdims=0)], result, to=self._kind(torch.bool))

    def _on_rsub(self, result: Tensor, first: Any, second: Any, *_: Any) -> None:
        self._binary("Sub", second, first, result)

    def _on_log1p(self, result: Tensor, x: Tensor) -> None:
        """ln(1 + x) to the last digits also for small x: ln(u)·x/(u − 1) with u = 1 + x as it is rounded."""
        value, one = self._value(x), self._value(1.0, x.dtype)
        u = self._emit("Add", [value, one])
        same = self._emit("Equal", [u, one])
        distance = self._emit("Where", [same, one, self._emit("Sub", [u, one])])
        ratio = self._emit("Div", [self._emit("Mul", [self._emit("Log", [u]), value]), distance])
        self._emit("Where", [same, value, ratio], result)

    def _on_clamp(self, result: Tensor, x: Tensor, low: Any = None, high: Any = None, **more: Any) -> None:
        low, high = more.get("min", low), more.get("max", high)
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            name = self._value(x)
            for kind, bound in (("Max", low), ("Min", high)):
                name = name if bound is None else self._emit(kind, [name, self._value(bound, x.dtype)])
            self._emit("Identity", [name], result)
            return
        bounds = ["" if bound is None else self._value(float(bound), x.dtype) for bound in (low, high)]
        self._emit("Clip", [self._value(x), *bounds], result)

    def _on_gelu(self, result: Tensor, x: Tensor, **_: Any) -> None:
        if x.dtype == torch.float32:
            self._emit("Gelu", [self._value(x)], result)
        else:
            self._in_parts(gelu, result, x)

    def _on_silu(self, result: Tensor, x: Tensor) -> None:
        self._emit("Mul", [self._value(x), self._emit("Sigmoid", [self._value(x)])], result)

    def _on_softplus(self, result: Tensor, x: Tensor, *_: Any) -> None:
        self._in_parts(softplus, result, x)

    def _in_parts(self, function: Callable[[Tensor], Tensor], result: Tensor, x: Tensor) -> None:
        """Record the operations of ``function(x)`` instead of one operation with the same result."""
        with self:
            made = function(x)
        self._names[id(result)] = self._names[id(made)]
        self._alive += [made, result]

    def _on_where(self, result: Tensor, condition: Tensor, first: Any, second: Any) -> None:
        values = [self._value(each, result.dtype) for each in (first, second)]
        self._emit("Where", [self._value(condition), *values], result)

    def _on_to_copy(self, result: Tensor, x: Tensor, **_: Any) -> None:
        self._emit("Cast", [self._value(x)], result, to=self._kind(result.dtype))

    def _on_baddbmm(self, result: Tensor, bias: Tensor, first: Tensor, second: Tensor) -> None:
        product = self._emit("MatMul", [self._value(first), self._value(second)])
        self._emit("Add", [product, self._value(bias)], result)

    def _on_mm(self, result: Tensor, first: Tensor, second: Tensor) -> None:
        self._emit("MatMul", [self._value(first), self._value(second)], result)

    _on_bmm = _on_mm

    def _on_cat(self, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
        parts = [self._same_in_all_rows(t, result.dtype) for t in tensors]
        self._emit("Concat", parts, result, axis=dim % result.ndim)

    def _same_in_all_rows(self, x: Tensor, dtype: torch.dtype) -> str:
        """Return the name of a tensor, after expanding a constant to the number of rows."""
        first = x
        for d in (d for d, size in enumerate(x.shape) if size == self.rows):
            first = first.narrow(d, 0, 1)
        if id(x) in self._names or first is x or not torch.equal(first.expand_as(x), x):
            return self._value(x, dtype)
        parts = [self._rows() if size == self.rows else self._whole([size]) for size in x.shape]
        return self._emit("Expand", [self._value(first.to(dtype).clone()), self._emit("Concat", parts, axis=0)])

    def _on_stack(self, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
        axis = self._whole([dim % result.ndim])
        parts = [self._emit("Unsqueeze", [self._value(t, result.dtype), axis]) for t in tensors]
        self._emit("Concat", parts, result, axis=dim % result.ndim)

    def _on_unbind(self, results: Sequence[Tensor], x: Tensor, dim: int = 0) -> None:
        for k, each in enumerate(results):
            self._on_select(each, x, dim, k)

    def _on_select(self, result: Tensor, x: Tensor, dim: int, index: int) -> None:
        place = self._constant(torch.tensor(index, dtype=torch.int64))
        self._emit("Gather", [self._value(x), place], result, axis=dim % x.ndim)

    def _on_index_select(self, result: Tensor, x: Tensor, dim: int, index: Tensor) -> None:
        self._emit("Gather", [self._value(x), self._value(index)], result, axis=dim % x.ndim)

    def _on_slice(self, result: Tensor, x: Tensor, dim: int = 0, start: Any = None, end: Any = None) -> None:
        bounds = [self._whole([start or 0]), self._whole([2**62 if end is None else end]), self._whole([dim % x.ndim])]
        self._emit("Slice", [self._value(x), *bounds], result)

    def _on_unsqueeze(self, result: Tensor, x: Tensor, dim: int) -> None:
        self._emit("Unsqueeze", [self._value(x), self._whole([dim % result.ndim])], result)

    def _on_squeeze(self, result: Tensor, x: Tensor, dim: Any) -> None:
        axes = [d % x.ndim for d in ([dim] if isinstance(dim, int) else dim) if x.shape[d] == 1]
        self._emit("Squeeze", [self._value(x), self._whole(axes)], result)

    def _on_permute(self, result: Tensor, x: Tensor, dims: Sequence[int]) -> None:
        self._emit("Transpose", [self._value(x)], result, perm=[d % x.ndim for d in dims])

    def _on_view(self, result: Tensor, x: Tensor, *_: Any) -> None:
        sizes = [-1 if size % self.rows == 0 else size for size in result.shape]
        self._emit("Reshape", [self._value(x), self._whole(sizes)], result)

    _on_unsafe_view = _on_reshape = _on_view

    def _on_expand(self, result: Tensor, x: Tensor, *_: Any, **__: Any) -> None:
        parts = [self._rows() if size == self.rows else self._whole([size]) for size in result.shape]
        self._emit("Expand", [self._value(x), self._emit("Concat", parts, axis=0)], result)

    # Names ------------------------------------------------------------------------------------------------------------

    def _rows(self) -> str:
        """Return the name of the number of rows of the input, as a shape of one dimension."""
        if "rows" not in self._constants:
            self._constants["rows"] = self._emit("Shape", [self._rows_of], start=0, end=1)
        return self._constants["rows"]

    def _emit(self, kind: str, inputs: Sequence[str], result: Tensor | None = None, **attributes: Any) -> str:
        """Add a node, and return the name of its output: the name of the tensor, if one is given."""
        self._count += 1
        name = f"v{self._count}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        if result is not None:
            self._names[id(result)] = name
            self._alive.append(result)
        return name

    def _value(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """Return the name of a tensor or number, in the given dtype, or unchanged."""
        if not isinstance(value, Tensor):
            return self._constant(torch.tensor(value, dtype=dtype or torch.float64))
        if id(value) not in self._names:
            return self._constant(value if dtype is None else value.to(dtype))
        name = self._names[id(value)]
        if dtype is None or value.dtype == dtype:
            return name
        return self._emit("Cast", [name], to=self._kind(dtype))

    def _whole(self, numbers: Sequence[int]) -> str:
        return self._constant(torch.tensor(list(numbers), dtype=torch.int64))

    def _constant(self, value: Tensor) -> str:
        """Return the name of a constant; equal small ones are one."""
        array = value.detach().contiguous().numpy()
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 16 else id(value)
        if key not in self._constants:
            self._constants[key] = f"c{len(self._constants)}"
            self._alive.append(value)
            made = self.onnx.numpy_helper.from_array(np.array(array), self._constants[key])
            self.initializers.append(made)
        return self._constants[key]

    def _kind(self, dtype: torch.dtype) -> int:
        """Return ONNX's number for a dtype."""
        number: int = self.onnx.helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=dtype).numpy().dtype)
        return number


def _tree_attributes(onnx: Any, ensemble: Any) -> dict[str, Any]:
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

    def tensor(name: str, values: Any) -> Any:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(values), name)

    count = len(splits) + len(single)
    return {
        "n_targets": len(ensemble.start),
        "aggregate_function": 1,  # the sum
        "post_transform": 0,  # none
        "tree_roots": start.tolist(),
        "nodes_modes": tensor("nodes_modes", np.zeros(count, dtype=np.uint8)),  # left if at most the threshold
        "nodes_featureids": np.concatenate([step[splits] & PLACES, zero.astype(np.int64)]).tolist(),
        "nodes_splits": tensor("nodes_splits", np.concatenate([number[splits], zero])),
        "nodes_truenodeids": children[0].tolist(),
        "nodes_trueleafs": are_leaves[0].astype(int).tolist(),
        "nodes_falsenodeids": children[1].tolist(),
        "nodes_falseleafs": are_leaves[1].astype(int).tolist(),
        "leaf_targetids": target[leaf].tolist(),
        "leaf_weights": tensor("leaf_weights", number[leaf]),
    }


def softplus(x: Tensor) -> Tensor:
    """Return ln(1 + eˣ) in operations that ONNX Runtime has for float64; below −36 it is 0, where floors count."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def gelu(x: Tensor) -> Tensor:
    """Return x Φ(x) in operations that ONNX Runtime has for float64, right to 1e-10."""
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


def _read_by(node: Any) -> set[str]:
    """Return the names that a node reads, also from within a body of a loop."""
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _read_by(inner)
    return names
