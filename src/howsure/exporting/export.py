"""Write a fitted regressor or a network as one ONNX or pt2 file, and read the columns of such a file."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from howsure.errors import InputError, InputTypeError, import_extra
from howsure.estimators import Regressor
from howsure.exporting.modules import ExportedNetwork, ExportedRegressor
from howsure.exporting.onnx import quiet, record_trees, write_onnx
from howsure.exporting.rows import describe_column
from howsure.files import write_whole

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["columns_of", "export"]

METADATA = "howsure.json"  # a file in a pt2 archive


def export(
    model: Regressor | nn.Module,
    path: str | os.PathLike[str],
    example: Tensor | Sequence[Tensor] = (),
    *,
    coverage: float | None = 0.9,
    overwrite: bool = False,
    single: bool = False,
    dynamic: Sequence[int] = (0,),
    input_names: Sequence[str] | None = None,
) -> Path:
    """Write a fitted regressor or a network as one file for programs without howsure, and return its path.

    An exported regressor has one input ``x``: the columns of the table as numbers, (rows, columns) in float64, in the
    order of ``fit``, NaN where a value is missing. :func:`howsure.exporting.encode_row` makes a row of named values.
    Its outputs are ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``lower``, ``upper`` and ``familiarity``,
    (rows,) or (rows, targets). With a transform of the target there is a ``median`` instead of the first four.

    A network has the same outputs, without those that it does not have. A :class:`~howsure.NetworkModel` has its
    evidence and calibration in the file.

    Args:
        model: a fitted regressor, a :class:`~howsure.NetworkModel`, or a module that returns a distribution.
        path: file ending in .onnx, for ONNX Runtime (extra ``onnx``), or in .pt2, for ``torch.export.load``.
        example: the inputs of a network, one tensor or several. Only shapes and dtypes matter.
        coverage: probability of the interval, at most 0.999999; None leaves it out.
        overwrite: whether to replace a file.
        single: of a regressor: compute hidden layers in float32, which is faster, with errors of about 1e-5 of the
            spread of y.
        dynamic: of a network: dimensions whose size may change from call to call, the same for every input, such as
            (0, 2, 3) for images of any number and size.
        input_names: of a network in an ONNX file; by default "x", or "x0", "x1", … of several.

    Raises:
        InputError: for a model that cannot be exported, and for a file that exists.
        InputTypeError: for other objects.

    >>> import tempfile
    >>> from howsure.nn import NIGHead
    >>> path = export(NIGHead(8), tempfile.mkdtemp() + "/head.pt2", torch.randn(4, 8))
    >>> sorted(torch.export.load(path).module()(torch.zeros(2, 8)))
    ['aleatoric_std', 'epistemic_std', 'lower', 'mean', 'std', 'upper']
    """
    if not isinstance(model, Regressor | nn.Module):
        raise InputTypeError(f"export takes a fitted regressor or a network, not {type(model).__name__}")
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise InputError(f"the name of an exported model ends in .onnx or .pt2, got {path.name!r}")
    if path.exists() and (not overwrite or not path.is_file()):
        raise InputError(f"{path} exists", hint="name another file, or pass overwrite=True")
    module: ExportedRegressor | ExportedNetwork
    if isinstance(model, Regressor):
        check_is_fitted(model, "model_")
        module = ExportedRegressor(model, coverage, single)
        inputs: tuple[Tensor, ...] = (torch.zeros(2, module.model.columns_in, dtype=torch.float64),)
        about = _describe(model, coverage)
    else:
        module, about = ExportedNetwork(model, coverage), {}
        inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    default = ["x"] if len(inputs) == 1 else [f"x{k}" for k in range(len(inputs))]
    names = default if input_names is None else list(input_names)
    if len(names) != len(inputs) or len(set(names)) < len(names):
        raise InputError(f"expected {len(inputs)} different input names, got {names}")
    if path.suffix == ".onnx":
        trees = record_trees(module)
        metadata = {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}
        write_onnx(_program(module, inputs, dynamic), path, names, metadata, trees)
    else:
        program, extra = _program(module, inputs, dynamic), {METADATA: json.dumps(about, ensure_ascii=False)}
        with quiet():
            write_whole(path, lambda file: torch.export.save(program, file, extra_files=extra))
    return path


def columns_of(path: str | Path) -> list[dict[str, Any]]:
    """Return the columns of an exported model, from its metadata: name, kind, meaning and codes of categories."""
    path = Path(path)
    if path.suffix == ".pt2":
        extra = {METADATA: ""}
        torch.export.load(path, extra_files=extra)
        about = json.loads(extra[METADATA] or "{}")
    else:
        found = import_extra("onnx", "onnx").load(path).metadata_props
        about = {entry.key: json.loads(entry.value) for entry in found if entry.key == "columns"}
    if "columns" not in about:
        raise InputError(f"{path} is not an exported regressor of howsure")
    columns: list[dict[str, Any]] = about["columns"]
    return columns


def _describe(model: Regressor, coverage: float | None) -> dict[str, Any]:
    """Return the metadata of an exported regressor."""
    return {
        "howsure": getattr(sys.modules["howsure"], "__version__", "unknown"),
        "model": type(model).__name__,
        "targets": model.target_names_,
        "columns": [describe_column(encoder) for encoder in model.encoding_.encoders],
        "coverage": None if coverage is None else float(coverage),
        "unfamiliar_below": model.unfamiliar_below_,
    }


def _program(module: nn.Module, example: Sequence[Any], dynamic: Sequence[int]) -> "ExportedProgram":
    """Return a module as a program of ``torch.export``.

    A dynamic dimension of size 1 is doubled: torch.export takes 0 and 1 for sizes that never change.
    """
    if not example or not all(isinstance(x, Tensor) for x in example):
        raise InputTypeError("an export needs an example of the inputs: one tensor or several")
    if not isinstance(dynamic, Sequence) or isinstance(dynamic, str):
        raise InputTypeError(f"dynamic is a list of dimensions, such as (0,), not {dynamic!r}")
    inputs, shapes = [], []
    for k, x in enumerate(example):
        shape: dict[int, Any] = {}
        for d in dynamic:
            if isinstance(d, bool) or not isinstance(d, int) or not -x.ndim <= d < x.ndim:
                raise InputError(f"dynamic={dynamic!r}: input {k} of shape {tuple(x.shape)} has no dimension {d!r}")
            if x.shape[d] == 0:
                raise InputError(f"the example's input {k} of shape {tuple(x.shape)} is empty")
            x = torch.cat([x, x], d) if x.shape[d] == 1 else x
            shape[d % x.ndim] = torch.export.Dim.DYNAMIC
        inputs.append(x)
        shapes.append(shape)
    with torch.no_grad(), quiet():
        return torch.export.export(module, tuple(inputs), dynamic_shapes=(tuple(shapes),))
