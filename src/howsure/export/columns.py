"""What the columns of an exported graph mean: plain values, for a file beside the graph and for its metadata."""

import sys
from typing import Any

from howsure.estimators import Regressor
from howsure.tables.numbers import PLAIN
from howsure.tables.schema import Encoder

__all__ = ["describe_columns", "describe_model"]

MEANINGS = {
    "number": "a number",
    "duration": "seconds",
    "boolean": "1 for true, 0 for false",
    "date": "seconds since 1970-01-01 00:00 UTC",
    "category": "the code of its text in codes; any other number for one that is not there",
    "ignored": "any number: the model leaves this column out",
}


def describe_columns(encoders: tuple[Encoder, ...]) -> list[dict[str, Any]]:
    """Return for every column its name, what its number means, and for a category the code of each of its texts."""
    return [_describe(encoder) for encoder in encoders]


def _describe(encoder: Encoder) -> dict[str, Any]:
    kind: str = encoder.kind
    if encoder.left_out:
        kind = "ignored"
    elif encoder.content == "duration":
        kind = "duration"
    found: dict[str, Any] = {"name": encoder.name, "kind": kind, "number": MEANINGS[kind]}
    if kind in ("number", "date", "category") and encoder.content != PLAIN:
        found["written"] = encoder.content  # how texts of the column were read: "1000,0", "%d.%m.%Y", "ISO8601"
    if kind == "category":
        found["codes"] = {category: code for code, category in enumerate(encoder.categories)}
    return found


def describe_model(model: Regressor, outputs: list[str], coverage: float | None) -> dict[str, Any]:
    """Return what a program needs to use the graph of a model: its input, its outputs and its columns."""
    targets = model.fitted_.scale_y.loc.shape[-1]
    found: dict[str, Any] = {
        "howsure": getattr(sys.modules["howsure"], "__version__", "unknown"),
        "model": type(model).__name__,
        "input": {
            "name": "x",
            "type": "float64",
            "shape": ["rows", len(model.encoding_.encoders)],
            "missing": "NaN",
        },
        "outputs": outputs,
        "shape": ["rows"] if model.fitted_.one_target else ["rows", targets],
        "targets": model.target_names_,
        "columns": describe_columns(model.encoding_.encoders),
    }
    if "lower" in outputs:
        found["coverage"] = coverage
    if "familiarity" in outputs:
        found["unfamiliar_below"] = model.unfamiliar_below_
    return found
