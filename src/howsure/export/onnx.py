"""Write a fitted regressor as one ONNX file, and beside it what its columns mean."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from howsure.errors import HowsureError, InputError, InputTypeError, install_hint
from howsure.estimators import Regressor
from howsure.export.columns import describe_model
from howsure.export.module import TableModule
from howsure.export.tracing import Recorder
from howsure.export.trees import Ensemble, ensemble_of
from howsure.files import write_text, write_whole
from howsure.formulas import quick_quantile
from howsure.threads import one_thread

__all__ = ["OPSET", "OPSET_ML", "columns_file", "export_onnx"]

OPSET = 20  # of ONNX's own operators
OPSET_ML = 5  # of those for machine learning, of which TreeEnsemble is one
EXAMPLE_ROWS = (89, 97, 101, 103)  # prime, so that no product of other sizes is a multiple of one
IR_VERSION = 10  # of the file: what ONNX Runtime reads from version 1.20 on


def export_onnx(
    model: Regressor, path: str | Path, *, coverage: float | None = 0.9, single: bool = False, force: bool = False
) -> Path:
    """Write a fitted regressor as one ONNX file, and beside it a JSON file that says what its columns mean.

    The graph has one input, ``x``: the columns of the table as numbers, (rows, columns) in float64, in the order of
    ``fit``, NaN where a value is missing. Texts have become codes: the JSON file, and ``columns`` in the metadata of
    the graph, say which. Its outputs are ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``lower`` and
    ``upper``, and ``familiarity`` unless the evidence is plain: float64, (rows,) or (rows, targets).

    Args:
        model: a fitted regressor.
        path: of the file to write, such as model.onnx; the other one is then model.columns.json.
        coverage: of the interval from ``lower`` to ``upper``; None leaves both out, for a quicker graph.
        single: whether the hidden layers of networks compute in float32, which takes a third of the time. The outputs
            are those of ``predict_distribution`` to 1e-6 or better; with ``single`` to about 1e-5, and worse where a
            deviation is a small share of the spread of y.
        force: whether to replace files that are there.

    Returns:
        The path of the graph.

    Raises:
        InputError: for a model that has no such graph, with a sentence that says why, and for files that are there.
    """
    if not isinstance(model, Regressor):
        hint = "; a network of your own goes through hs.Deploy" if isinstance(model, torch.nn.Module) else ""
        raise InputTypeError(f"export_onnx takes a regressor of howsure, not {type(model).__name__}{hint}")
    check_is_fitted(model, "fitted_")
    _refuse_what_has_no_graph(model)
    onnx = _import_onnx()
    path = Path(path)
    if not path.name:
        raise InputError(f"{str(path)!r} is no file; name one, such as model.onnx")
    beside = columns_file(path)
    for each in (path, beside):
        if each.exists() and not each.is_file():
            raise InputError(f"{each} is not a plain file; name another one")
        if each.exists() and not force:
            raise InputError(f"{each} exists; name another file, or replace it (force=True, in the shell --force)")
    coverage = float(coverage) if isinstance(coverage, np.floating) else coverage
    module = TableModule(model, coverage, single)
    trees = model.fitted_.trees
    graph, outputs = _graph_of(onnx, module, None if trees is None else ensemble_of(trees))
    about = describe_model(model, outputs, coverage)
    _label(onnx, graph, about)
    content = graph.SerializeToString()
    # whoever was stopped between the two files can see that they are not a pair
    about |= {"graph_sha256": hashlib.sha256(content).hexdigest()}
    write_text(beside, json.dumps(about, ensure_ascii=False, indent=1) + "\n")
    write_whole(path, lambda file: file.write(content))
    return path


def columns_file(path: Path) -> Path:
    """Return the path of the file beside a graph that says what its columns mean: model.columns.json of model.onnx."""
    return path.with_name(f"{path.stem}.columns.json")


def _refuse_what_has_no_graph(model: Regressor) -> None:
    """Raise for models whose answers are not those of one graph."""
    if model.calibration_ is not None:
        raise InputError("a calibrated model is not exported; export the model before hs.calibrate")
    if model.transform_ is not None:
        raise InputError(
            f"a model with target_transform={model.target_transform!r} is not exported, as its moments are integrals "
            "without a formula; fit without it"
        )


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise InputError(f"ONNX files need onnx, which is not installed: {install_hint('onnx')}") from error
    return onnx


def _graph_of(onnx: Any, module: TableModule, trees: Ensemble | None) -> tuple[Any, list[str]]:
    """Return the graph of a module as ONNX's own object, and the names of its outputs.

    Examples of two sizes give the same graph, unless a size of the model was taken for the number of rows.
    """
    graphs: list[Any] = []
    for rows in EXAMPLE_ROWS:
        graph, names = _record(onnx, module, trees, rows)
        if graph in graphs:
            return graph, names
        graphs.append(graph)
    raise HowsureError("the number of rows cannot be told from the sizes of the model")


def _record(onnx: Any, module: TableModule, trees: Ensemble | None, rows: int) -> tuple[Any, list[str]]:
    """Return the graph that an example of some rows gives, and the names of its outputs."""
    x = torch.zeros(rows, len(module.columns.fill), dtype=torch.float64)
    recorder = Recorder(onnx, rows)
    recorder.name_input(x, "x")
    with torch.no_grad(), one_thread(), recorder:
        features = module.columns(x)
        sums = None
        if trees is not None:
            recorder.name_output(module.units(features), "features")
            sums = torch.zeros(rows, len(module.baseline), dtype=torch.float64)
            recorder.nodes.append(_node_of(onnx, trees))
            recorder.name_input(sums, "sums")
        with _recording_loops(recorder.loop):
            found = module.outputs(features, sums)
        for name, value in found.items():
            recorder.name_output(value, name)
    helper, kind = onnx.helper, onnx.TensorProto.DOUBLE
    given = helper.make_tensor_value_info("x", kind, ["rows", x.shape[1]])
    results = [helper.make_tensor_value_info(n, kind, ["rows", *v.shape[1:]]) for n, v in found.items()]
    nodes, constants = recorder.used(list(found))
    graph = helper.make_graph(nodes, "howsure", [given], results, constants)
    opsets = [helper.make_opsetid("", OPSET)]
    if trees is not None:
        opsets.append(helper.make_opsetid("ai.onnx.ml", OPSET_ML))
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), list(found)


def _node_of(onnx: Any, trees: Ensemble) -> Any:
    """Return the node that adds up what trees say of the features."""

    def tensor(name: str, values: Any) -> Any:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(values), name)

    return onnx.helper.make_node(
        "TreeEnsemble",
        ["features"],
        ["sums"],
        name="trees",
        domain="ai.onnx.ml",
        n_targets=trees.targets,
        aggregate_function=1,  # the sum
        post_transform=0,  # none
        tree_roots=trees.roots.tolist(),
        nodes_modes=tensor(
            "nodes_modes", np.zeros(len(trees.feature), dtype=np.uint8)
        ),  # left if at most the threshold
        nodes_featureids=trees.feature.tolist(),
        nodes_splits=tensor("nodes_splits", trees.threshold),
        nodes_missing_value_tracks_true=trees.missing_left.tolist(),
        nodes_truenodeids=trees.left.tolist(),
        nodes_trueleafs=trees.left_is_leaf.tolist(),
        nodes_falsenodeids=trees.right.tolist(),
        nodes_falseleafs=trees.right_is_leaf.tolist(),
        leaf_targetids=trees.target.tolist(),
        leaf_weights=tensor("leaf_weights", trees.value),
    )


def _label(onnx: Any, model: Any, about: dict[str, Any]) -> None:
    """Write what the graph is into its metadata."""
    model.producer_name, model.producer_version = "howsure", about["howsure"]
    model.doc_string = "Predictive distribution of a regressor: x (rows, columns) to mean, deviations and interval."
    metadata = {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}
    onnx.helper.set_model_props(model, metadata)


@contextlib.contextmanager
def _recording_loops(loop: Any) -> Iterator[None]:
    """Let the search for quantiles record its rounds as one node."""
    token = quick_quantile.ROUNDS.set(loop)
    try:
        yield
    finally:
        quick_quantile.ROUNDS.reset(token)
