"""Write a fitted model as one ONNX or pt2 file.

Torch's own exporter to ONNX is not used for tables: see :mod:`howsure.exporting.recorder`.
"""

import json
import sys
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from howsure.deploy import export_network, export_path
from howsure.errors import HowsureError, InputError, InputTypeError, import_extra
from howsure.estimators import Regressor
from howsure.exporting.outputs import TableOutputs
from howsure.exporting.recorder import Recorder
from howsure.exporting.rows import describe_column
from howsure.files import write_whole
from howsure.formulas import quick_quantile
from howsure.tables.experts.trees import RECORDED
from howsure.threads import one_thread

__all__ = ["OPSET", "columns_of", "export"]

OPSET = 20  # of ONNX's own operators
OPSET_ML = 5  # of the operators for machine learning, such as TreeEnsemble
IR_VERSION = 10  # of the file. ONNX Runtime reads it from version 1.20 on
EXAMPLE_ROWS = (89, 97, 101, 103)  # prime, so that no product of other sizes is a multiple of one


@singledispatch
def export(model: Any, path: str | Path, example: Any = None, **options: Any) -> Path:  # noqa: ARG001
    """Write a fitted model as one file for programs without howsure, and return its path.

    For a network see :func:`howsure.deploy.export_network`.

    An exported regressor has one input ``x``: the columns of the table as numbers, (rows, columns) in float64, in the
    order of ``fit``, NaN where a value is missing. :func:`howsure.exporting.encode_row` makes a row of named values.
    Its outputs are ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``lower``, ``upper`` and ``familiarity``,
    (rows,) or (rows, targets). With a transform of the target there is a ``median`` instead of the first four.

    Args:
        model: a fitted regressor, or a network.
        path: file ending in .onnx, for ONNX Runtime, or in .pt2, for ``torch.export.load``.
        example: inputs of a network. Not used for regressors.
        **options: of a regressor: ``coverage`` of the interval, 0.9, or None for no interval. ``single=True`` computes
            hidden layers in float32, which is faster, with errors of about 1e-5 of the spread of y. ``overwrite=True``
            replaces a file.

    Returns:
        The path.

    Raises:
        InputError: for a model that cannot be exported, and for a file that exists.
        InputTypeError: for other objects.

    >>> import tempfile
    >>> from howsure.nn import NIGHead
    >>> path = export(NIGHead(8), tempfile.mkdtemp() + "/head.pt2", torch.randn(4, 8))
    >>> sorted(torch.export.load(path).module()(torch.zeros(2, 8)))
    ['aleatoric_std', 'epistemic_std', 'lower', 'mean', 'std', 'upper']
    """
    raise InputTypeError(f"export takes a fitted regressor or a network, not {type(model).__name__}")


export.register(torch.nn.Module)(export_network)


@export.register
def export_regressor(
    model: Regressor,
    path: str | Path,
    example: Any = None,  # noqa: ARG001
    *,
    coverage: float | None = 0.9,
    single: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a fitted regressor; see `export`."""
    check_is_fitted(model, "model_")
    path = export_path(path, overwrite)
    coverage = float(coverage) if isinstance(coverage, np.floating) else coverage
    module = TableOutputs(model, coverage, single).eval()
    about = _describe(model, coverage)
    if path.suffix == ".pt2":
        _write_program(module, path, about)
    else:
        content = _graph_of(module, about).SerializeToString()
        write_whole(path, lambda file: file.write(content))
    return path


def columns_of(path: str | Path) -> list[dict[str, Any]]:
    """Return the columns of an exported model, from its metadata: name, kind, meaning and codes of categories."""
    path = Path(path)
    if path.suffix == ".pt2":
        extra = {"howsure.json": ""}
        torch.export.load(path, extra_files=extra)
        found: list[dict[str, Any]] = json.loads(extra["howsure.json"])["columns"]
        return found
    metadata = {entry.key: entry.value for entry in import_extra("onnx", "onnx").load(path).metadata_props}
    if "columns" not in metadata:
        raise InputError(f"{path} is not an exported model of howsure")
    columns: list[dict[str, Any]] = json.loads(metadata["columns"])
    return columns


def _describe(model: Regressor, coverage: float | None) -> dict[str, Any]:
    """Return the metadata of an exported model."""
    return {
        "howsure": getattr(sys.modules["howsure"], "__version__", "unknown"),
        "model": type(model).__name__,
        "targets": model.target_names_,
        "columns": [describe_column(encoder) for encoder in model.encoding_.encoders],
        "coverage": coverage,
        "unfamiliar_below": model.unfamiliar_below_,
    }


def _write_program(module: TableOutputs, path: Path, about: dict[str, Any]) -> None:
    """Write a module as an exported program of torch."""
    x = torch.zeros(2, module.model.columns_in, dtype=torch.float64)
    with torch.no_grad(), one_thread():
        program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        extra = {"howsure.json": json.dumps(about, ensure_ascii=False)}
        write_whole(path, lambda file: torch.export.save(program, file, extra_files=extra))


def _graph_of(module: TableOutputs, about: dict[str, Any]) -> Any:
    """Return a module as ONNX's own object.

    Examples of two sizes give the same graph, unless a size of the model was taken for the number of rows.
    """
    onnx = import_extra("onnx", "onnx")
    graphs: list[Any] = []
    for rows in EXAMPLE_ROWS:
        graph = _record(onnx, module, rows)
        if graph in graphs:
            graph.producer_name, graph.producer_version = "howsure", about["howsure"]
            metadata = {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}
            onnx.helper.set_model_props(graph, metadata)
            return graph
        graphs.append(graph)
    raise HowsureError("the number of rows cannot be distinguished from the sizes of the model")


def _record(onnx: Any, module: TableOutputs, rows: int) -> Any:
    """Return the graph that an example of some rows gives."""
    x = torch.zeros(rows, module.model.columns_in, dtype=torch.float64)
    recorder = Recorder(onnx, rows)
    recorder.name_input(x, "x")
    # the search for quantiles records its rounds as one node, and trees record themselves as one
    tokens = quick_quantile.ROUNDS.set(recorder.loop), RECORDED.set(recorder.trees)
    try:
        with torch.no_grad(), one_thread(), recorder:
            found = module(x)
            for name, value in found.items():
                recorder.name_output(value, name)
    finally:
        quick_quantile.ROUNDS.reset(tokens[0])
        RECORDED.reset(tokens[1])
    helper, kind = onnx.helper, onnx.TensorProto.DOUBLE
    given = helper.make_tensor_value_info("x", kind, ["rows", x.shape[1]])
    results = [helper.make_tensor_value_info(n, kind, ["rows", *v.shape[1:]]) for n, v in found.items()]
    nodes, constants = recorder.used(list(found))
    graph = helper.make_graph(nodes, "howsure", [given], results, constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", OPSET_ML)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
