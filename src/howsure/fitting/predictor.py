"""A plain callable for people who serve a model: one row, or a few, in; mean and both deviations out."""

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.data.columns import Column
from howsure.data.encoders import Encoder
from howsure.data.numbers import PLAIN
from howsure.errors import InputError, InputTypeError
from howsure.files import listed
from howsure.fitting.row_networks import FEW, Moments, RowNetworks
from howsure.prediction import Prediction

__all__ = ["Predictor"]

Array = NDArray[np.float64]
_NUMBERS = (float, int, np.floating, np.integer)


class Predictor:
    """Function from rows to what a regressor predicts of them, as plain numbers by name.

    Use ``model.predictor()`` to make one. It is a snapshot: another ``fit`` of the model does not change it. It may be
    called by several threads at once, and pickled.

    What it returns is a dictionary with ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std`` (left out where the
    model has none), with a coverage ``lower`` and ``upper``, and ``familiarity`` where evidence fades. The numbers are
    those of ``predict_distribution``: floats for one row of one target, arrays (targets,) for one row of several, and
    arrays (rows,) or (rows, targets) for several rows. Under the target transform "log", which has no moments, there is
    ``median`` in the place of mean and deviations.

    Args:
        model: a fitted regressor.
        coverage: of the interval; None for none, which is much quicker.
        single: whether the networks of more than 32 rows are computed in float32, which takes half of the time. The
            numbers are then right to about 1e-5, and worse where a deviation is a small share of the spread of y.
            Intervals, and models with a transform or a guarantee, are computed in float64 all the same.
    """

    def __init__(self, model: Any, coverage: float | None = None, single: bool = False) -> None:
        if coverage is not None:
            real = isinstance(coverage, int | float | np.floating) and not isinstance(coverage, bool)
            if not real or not 0 < coverage < 1:
                raise InputError(f"coverage must be a number between 0 and 1, or None, got {coverage!r}")
        self.model, self.coverage, self.single = copy(model), coverage, single
        self.encoders: tuple[Encoder, ...] = model.encoding_.encoders
        self.names: list[str] = model.encoding_.names
        self.features = len(model.encoding_.features)
        self.one_target = bool(model.fitted_.one_target)
        self.plain = all(_is_plain(encoder) for encoder in self.encoders)  # every feature is a column of numbers
        self.fill = np.array([encoder.fill for encoder in self.encoders])
        self.codes = [{c: k for k, c in enumerate(e.categories)} for e in self.encoders]
        self.conformal = getattr(model, "conformal_", None) is not None  # which looks at tables, not at features
        # moments under a transform need whole distributions, and networks without hidden layers have other features
        quick = not self.conformal and model._transform is None and len(model.fitted_.population.sizes) > 2
        self.networks = RowNetworks(model.fitted_) if quick else None
        self.networks_of_many = RowNetworks(model.fitted_, single=True) if quick and single else self.networks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.coverage, self.single)

    def __repr__(self) -> str:
        options = [] if self.coverage is None else [f"coverage={self.coverage}"]
        options += ["single=True"] if self.single else []
        return f"{type(self.model).__name__}.predictor({', '.join(options)})"

    def __call__(self, rows: Any) -> dict[str, Any]:
        """Return what the model predicts of one row, or of several.

        Args:
            rows: one row as a sequence or 1-D array in the order of the columns of ``fit``, or as a dictionary or
                pandas Series by their names; several as a 2-D array, a table, or a list of rows.
        """
        if isinstance(rows, np.ma.MaskedArray):
            rows = np.ma.filled(rows.astype(np.float64), np.nan) if rows.dtype.kind in "fiub" else rows.tolist()
        if isinstance(rows, np.matrix):
            rows = np.asarray(rows)
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "fiub":
            if rows.ndim == 1:
                return self._of_numbers(rows) if self.plain else self._of_one(rows.tolist())
            if rows.ndim == 2 and self.plain and not self.conformal:
                return self._of_features(self._features_of(rows))
            return self._answer(self.model.predict_distribution(rows))
        if isinstance(rows, Mapping):
            return self._of_one(self._in_order(rows))
        if hasattr(rows, "columns") or hasattr(rows, "column_names"):
            return self._answer(self.model.predict_distribution(rows))
        if hasattr(rows, "to_dict") and hasattr(rows, "index"):  # a Series of pandas
            return self._of_one(self._of_series(rows))
        return self._of_other(rows)

    def _of_numbers(self, row: NDArray[Any]) -> dict[str, Any]:
        """Return the prediction of a row of numbers, where every feature is a column."""
        if self.conformal:
            return self._of_one(row.tolist())
        return _first(self._of_features(self._features_of(row[None])))

    def _of_one(self, row: list[Any]) -> dict[str, Any]:
        return _first(self._of_rows([row]))

    def _of_rows(self, rows: list[list[Any]]) -> dict[str, Any]:
        """Return the predictions of rows of any values."""
        for k, row in enumerate(rows):
            self._check_count(len(row), k if len(rows) > 1 else None)
        if self.conformal:
            return self._answer(self.model.predict_distribution(self._table_of(rows)))
        features = []
        for k, row in enumerate(rows):
            try:
                features.append(self._encode(row))
            except InputError as error:
                error.row = k  # it was raised for a table of this row
                raise
        return self._of_features(np.concatenate(features))

    def _table_of(self, rows: list[list[Any]]) -> Any:
        """Return rows as a table, with the names of the columns if they have any."""
        if not self.model.encoding_.named:
            return np.array(rows, dtype=object)
        import pandas as pd

        return pd.DataFrame(rows, columns=self.names, dtype=object)

    def _of_other(self, rows: Any) -> dict[str, Any]:
        """Return the prediction of a list, a tuple, a tensor, or an array of objects."""
        if hasattr(rows, "tolist"):
            rows = rows.tolist()
        if hasattr(rows, "_fields") and self.model.encoding_.named:  # a row with names, as of DataFrame.itertuples
            return self._of_one(self._values_of(rows))
        if isinstance(rows, str | bytes | bytearray | memoryview) or not isinstance(rows, Sequence):
            raise InputTypeError(f"a row is an array, a list or a dictionary of values, not {type(rows).__name__}")
        if not rows:
            raise InputError("the row is empty; pass one value for each column, or several rows")
        texts = (str, bytes, bytearray)
        nested = [isinstance(each, Mapping | Sequence | np.ndarray) and not isinstance(each, texts) for each in rows]
        if not any(nested):
            return self._of_one(list(rows))
        if not all(nested):
            raise InputError("some entries are values and others are rows; pass one row, or a list of rows")
        return self._of_rows([self._values_of(each) for each in rows])

    def _values_of(self, row: Any) -> list[Any]:
        """Return the values of one of several rows, in the order of the columns."""
        if hasattr(row, "_fields") and self.model.encoding_.named:
            row = dict(zip(row._fields, row, strict=True))
        return self._in_order(row) if isinstance(row, Mapping) else list(row)

    # Rows as features -------------------------------------------------------------------------------------------------

    def _in_order(self, row: Mapping[Any, Any]) -> list[Any]:
        """Return the values of a row by name in the order of the columns."""
        if not self.model.encoding_.named:
            raise InputError(
                "the model was fitted to columns without names; pass the values of a row as a list, in their order"
            )
        if len(row) == len(self.names):
            try:
                return [row[name] for name in self.names]
            except KeyError:
                pass
        by_name = {str(name): value for name, value in row.items()}
        lacking = [name for name in self.names if name not in by_name]
        if lacking:
            raise InputError(f"the row lacks the column{'s' if len(lacking) > 1 else ''} {listed(lacking)}")
        beyond = [name for name in by_name if name not in set(self.names)]
        if beyond:
            raise InputError(f"the row has columns beyond those of training: {listed(beyond)}")
        return [by_name[name] for name in self.names]

    def _of_series(self, row: Any) -> list[Any]:
        values = row.tolist()
        if not self.model.encoding_.named:
            return list(values)
        return self._in_order(dict(zip(row.index, values, strict=True)))

    def _features_of(self, rows: NDArray[Any]) -> Array:
        """Return the features of rows of numbers (N, columns), where every feature is a column."""
        if rows.shape[1] != len(self.encoders):
            self._check_count(rows.shape[1])
        features = rows.astype(np.float64)
        finite = np.isfinite(features)
        if not finite.all():
            if np.isinf(features).any():
                row, column = np.argwhere(np.isinf(features))[0]
                raise InputError(f"column {self.names[column]!r} is infinite in row {row}; pass numbers, or NaN")
            features = np.where(finite, features, self.fill)
        return features

    def _check_count(self, found: int, number: int | None = None) -> None:
        expected = len(self.encoders)
        if found != expected:
            kind, which = type(self.model).__name__, "a row" if number is None else f"row {number}"
            raise InputError(f"{which} has {found} values, but {kind} was fitted to {expected} columns")

    def _encode(self, row: list[Any]) -> Array:
        """Return the features (1, F) of a row of any values."""
        if self.plain and all(isinstance(value, _NUMBERS) for value in row):
            try:
                return self._features_of(np.array([row], dtype=np.float64))
            except OverflowError as error:
                raise InputError(f"a value is too large: {error}") from error
        out = np.zeros((1, self.features))
        first = 0
        for encoder, codes, value in zip(self.encoders, self.codes, row, strict=True):
            last = first + len(encoder.features)
            if not encoder.left_out:
                encoder.encode(_column_of(encoder, codes, value), out[:, first:last])
            first = last
        return out

    # Features as answers ----------------------------------------------------------------------------------------------

    def _of_features(self, features: Array) -> dict[str, Any]:
        """Return the predictions of features (N, F), by the shortest way to what is asked for."""
        networks = self.networks if len(features) <= FEW else self.networks_of_many
        if networks is not None and self.coverage is None and len(features):
            with np.errstate(over="ignore", invalid="ignore"):
                found = networks(features)
            # far beyond all training rows numbers overflow; the long way knows what to say of those
            if np.isfinite(found.mean).all() and np.isfinite(found.variance).all():
                return self._named(found)
        p = self.model.fitted_.predict(features)
        p.transform = self.model._transform
        return self._answer(p)

    def _named(self, found: Moments) -> dict[str, Any]:
        """Return moments by name, as deviations."""
        named = {"mean": found.mean, "std": np.sqrt(found.variance), "aleatoric_std": np.sqrt(found.aleatoric)}
        if found.epistemic is not None:
            named["epistemic_std"] = np.sqrt(found.epistemic)
        if self.one_target:
            named = {name: values[:, 0] for name, values in named.items()}
        if found.familiarity is not None:
            named["familiarity"] = found.familiarity
        return named

    def _answer(self, p: Prediction) -> dict[str, Any]:
        """Return what a prediction states, by name."""
        if p.transform is not None and not p.transform.has_moments:
            found: dict[str, Any] = {"median": p.median}
        else:
            parts = p.decompose()
            found = {"mean": p.mean, "std": p.std}
            named = (("aleatoric_std", parts.aleatoric), ("epistemic_std", parts.epistemic))
            found |= {name: np.sqrt(part) for name, part in named if part is not None}
        if self.coverage is not None:
            ends = p.interval(self.coverage)
            found["lower"], found["upper"] = ends[..., 0], ends[..., 1]
        if p.familiarity is not None:
            found["familiarity"] = p.familiarity
        return found


def _first(found: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of the first row: floats of one target, arrays of several."""
    return {name: values[0].item() if values.ndim == 1 else values[0] for name, values in found.items()}


def _is_plain(encoder: Encoder) -> bool:
    """Return whether a column of numbers is its own feature."""
    return encoder.kind == "number" and encoder.content == PLAIN and len(encoder.features) == 1


def _is_float(value: Any) -> bool:
    """Return whether a number is one of float64, NaN included."""
    return value != value or bool(abs(value) <= sys.float_info.max)


def _column_of(encoder: Encoder, codes: dict[str, int], value: Any) -> Column:
    """Return one value as a column of a table: quickly if it is of the usual kind, else as a table is read."""
    number = encoder.kind == "number" and encoder.content == PLAIN
    if number and isinstance(value, _NUMBERS) and not isinstance(value, bool) and _is_float(value):
        return Column(encoder.name, encoder.kind, np.array([float(value)]), encoder.content)
    if encoder.kind == "category" and isinstance(value, str) and value in codes:
        return Column(encoder.name, encoder.kind, np.array([value], dtype=object), encoder.content)
    import pandas as pd

    return encoder.read(pd.Series([value], dtype=object), 1)
