"""Base class of the regressors: ``fit``, ``predict`` and ``score`` of scikit-learn, and the predictive distribution."""

import math
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from howsure.calibration import Calibration, calibrate
from howsure.conformal import ConformalCalibration
from howsure.errors import InputError
from howsure.likelihoods import Evidential, Method, Recipe
from howsure.prediction import Prediction, real_numbers
from howsure.storage import save_model
from howsure.tables.censoring import read_censored
from howsure.tables.constant import varies
from howsure.tables.copies import warn_of_copies
from howsure.tables.encoder import ColumnEncoder, Encoding
from howsure.tables.evidence import add_evidence, learn_ridge, rows_of_a_fold
from howsure.tables.members import choose_members, count_networks, kinds_of_inputs
from howsure.tables.model import TableModel
from howsure.tables.robust import RobustScale
from howsure.tables.stacking import stacked
from howsure.tables.state import TableHeader, method_from_state, method_state, training_from_state, training_state
from howsure.tables.table import Table, as_array, read_table
from howsure.tables.target import Atom, TargetTransform, prepare_target, transform_from_dict
from howsure.tables.target_values import read_target
from howsure.tables.train import train, usable
from howsure.tables.views import Views
from howsure.tables.width import with_width
from howsure.threads import one_thread
from howsure.training import resolve_device

__all__ = ["Regressor"]

Array = NDArray[np.float64]
CONSTRAINTS = {
    "members": [Interval(Integral, 1, 10_000, closed="both"), None],
    "steps": [Interval(Integral, 1, 100_000_000, closed="both"), None],
    "batch_size": [Interval(Integral, 1, 100_000_000, closed="both"), None],
    "learning_rate": [Interval(Real, 0, np.inf, closed="neither"), None],
    "validation_fraction": [Interval(Real, 0, 1, closed="left")],
    "evidence_weight": [Interval(Real, 0, np.inf, closed="left")],
    "verbose": [Integral, np.bool_, None],
    "target_transform": [StrOptions({"positive", "log"}), None],
    "evidence": [StrOptions({"conjugate", "edge", "plain"})],
    "calibrated": [bool, np.bool_],
    "random_state": ["random_state"],
}


if TYPE_CHECKING:  # scikit-learn has no types: with this a wrong parameter is an error before the program runs

    class _ScikitLearn:
        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: Any) -> Self: ...
        def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float: ...  # noqa: N803
        def __sklearn_tags__(self) -> Any: ...

else:

    class _ScikitLearn(RegressorMixin, BaseEstimator):
        """scikit-learn's regressor."""


@dataclass(eq=False, repr=False, kw_only=True)
class Regressor(_ScikitLearn):
    """Base class of the regressors and return type of :func:`load`.

    Parameters
    ----------
    hidden : tuple of int, default=None
        Units of each hidden layer. None: by the number of rows, from three layers of 96 on.
    steps : int, default=None
        Largest number of training steps. None: by the number of rows. Training stops earlier once scores on held-out
        rows no longer improve.
    batch_size : int, default=None
        Rows of one training step. None: by the number of rows.
    learning_rate : float, default=None
        Largest learning rate of Adam, after a warm-up and before a cosine decay. None: 0.005.
    validation_fraction : float, default=0.1
        Share of the rows that each network holds out to stop training; 0 trains to the end.
    device : str, default="auto"
        Device to train on: "auto" (CUDA if there is one), "cpu", "cuda" or "mps".
    random_state : int, RandomState instance or None, default=None
        Seed of everything random.
    verbose : bool, default=None
        Whether to show progress. None shows it after two seconds if standard error is a terminal.
    target_transform : {"positive", "log"}, default=None
        For targets that cannot be negative. "positive" is logarithmic near zero and linear above; "log" is the
        logarithm, for which y has no mean. None: targets as they are.

    Attributes
    ----------
    model_ : howsure.tables.model.TableModel
        The trained networks, with everything between the numbers of a table and their distributions.
    encoding_ : howsure.tables.encoder.Encoding
        The learned encoding of the columns.
    columns_ : pandas.DataFrame
        Kind of each column of X, its number of features and missing values, and the reason.
    training_ : dict
        Steps and seconds of the training; for each network the step whose weights were kept and whether it diverged.
    inputs_ : dict
        Weight of the networks by their inputs. The weights add up to 1.
    width_ : ndarray of shape (targets,) or None
        Factor of the scales of the networks.
    unfamiliar_below_ : float or None
        Familiarity below which 1% of rows like the training rows lie.
    calibration_ : Calibration, ConformalCalibration or None
        Result of :func:`howsure.calibrate`.
    target_names_ : list of str or None
        Names of the targets.
    transform_ : howsure.distributions.Transform or None
        The target transform with its scale.
    record_ : dict
        Record of ``howsure fit``; empty for a model that was fitted in Python.
    n_features_in_, feature_names_in_
        Number and names of the columns of X.

    >>> import howsure as hs
    >>> X, y = np.random.default_rng(0).random((50, 3)), np.arange(50.0)
    >>> model = hs.EvidentialRegressor(members=2, steps=20, random_state=0).fit(X, y)
    >>> isinstance(model, hs.Regressor), model.features_of(model.read(X)).shape
    (True, (50, 3))
    """

    registry: ClassVar[dict[str, type["Regressor"]]] = {}

    hidden: tuple[int, ...] | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    validation_fraction: float = 0.1
    device: str = "auto"
    random_state: Any = None
    verbose: bool | None = None
    target_transform: str | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        Regressor.registry.setdefault(cls.__name__, cls)  # a user's class does not take the name of one of these

    def _method(self) -> Method:
        raise NotImplementedError

    def fit(
        self,
        X: Any,  # noqa: N803
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        censored: ArrayLike | None = None,
    ) -> Self:
        """Learn from a table X (array, pandas, polars or Arrow) and targets y, (N,) or (N, T).

        Columns may be numbers, booleans, text, categories or dates, with missing values. A fit that fails leaves the
        estimator as it was.

        Args:
            X: the table.
            y: targets, and bounds of targets.
            sample_weight: (N,), non-negative. A row of weight 0 is left out.
            censored: (N,) or of the shape of y, for targets that are bounds: 0 or False where y is the
                value, 1 or True where the value is at least y, −1 where it is at most y.

        Returns:
            The regressor.

        Raises:
            InputError: for parameters, columns, targets or weights that cannot be used, with the column and row.
            InputTypeError: for objects that are not tables or numbers.
        """
        before = dict(self.__dict__)
        try:
            with one_thread():
                return self._fit(X, y, sample_weight, censored)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, censored: ArrayLike | None) -> Self:  # noqa: N803
        self._check_parameters()
        table = self._read(X)
        named = getattr(y, "column_names", getattr(y, "columns", None))  # of an Arrow table, or any other
        names = None if named is None else [str(name) for name in named]
        if names and (twice := sorted({name for name in names if names.count(name) > 1})):
            raise InputError(f"duplicate name of a target: {twice[0]!r}", column=twice[0])
        target = read_target(y, table.rows)
        rows = np.arange(table.rows)
        weights = None
        if sample_weight is not None:
            odd = isinstance(sample_weight, np.ma.MaskedArray | torch.Tensor)
            if odd or np.asarray(sample_weight).dtype.kind not in "biuf":
                sample_weight = real_numbers("sample_weight", sample_weight)
            weights = _check_sample_weight(sample_weight, np.empty(table.rows), ensure_non_negative=True)
            weights = weights / max(weights.max(initial=0.0), np.finfo(float).tiny)  # ratios count; sums stay finite
            rows = np.flatnonzero(weights)  # a row of weight 0 is not there
            if len(rows) < 2:
                raise InputError(f"only {len(rows)} rows have a positive weight; at least 2 are needed")
        known = read_censored(censored, target, rows)
        if weights is not None:
            table, target, weights = table.select(rows), target[rows], weights[rows]
            known = None if known is None else known[rows]
        warn_of_copies(table, target)
        base = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.target_names_ = names
        self.calibration_: Calibration | ConformalCalibration | None = None
        self.record_: dict[str, Any] = {}
        try:
            self._fit_rows(table, target, weights, base, known)
        except InputError as error:
            error.row = None if error.row is None else int(rows[error.row])
            raise
        return self

    def _calibrated(self, X: Any, y: ArrayLike, method: str, groups: Any) -> Self:  # noqa: N803
        """Return a copy of the model that is calibrated by rows that it has not learned from."""
        p, table = self._predict_uncalibrated(X)
        target = read_target(y, table.rows)
        found: Calibration | ConformalCalibration
        if method == "conformal":
            found = ConformalCalibration.learn(p, target.reshape(p.shape), table, groups)
        else:
            found = calibrate(p, target, method=method)
        model = copy(self)
        model.calibration_ = found
        return model

    def _fit_rows(
        self,
        table: Table,
        target: Array,
        weights: Array | None,
        base: int,
        known: NDArray[np.int8] | None = None,
    ) -> None:
        """Learn from the rows of a table."""
        rows = table.rows
        scale, x = self._encode(table, target, base)
        prepared = prepare_target(target, self.target_transform, self.target_names_, known, weights)
        self.transform_: TargetTransform | None = prepared.transform
        method, count = self._method(), count_networks(getattr(self, "members", 1), rows)
        kinds = kinds_of_inputs(getattr(self, "inputs", "numbers"), count, rows)
        views = Views.fit(x, prepared, choose_members(rows, kinds, count, base, self.validation_fraction), base)
        options: dict[str, Any] = {"device": self.device, "progress": self.verbose}
        recipe = self._recipe(method.recipe(rows))
        model = train(method, views, prepared, recipe, **options)
        model, views = usable(model, views, prepared)
        # the posterior of the linear expert is a Normal Inverse-Gamma distribution, so it joins evidential networks
        linear = isinstance(method, Evidential) and len(kinds) > 1 and getattr(self, "inputs", None) == "auto"
        linear = linear and varies(prepared.table)  # it would state a variance of zero
        model = stacked(model, views, prepared, linear=linear)
        evidence = getattr(self, "evidence", "plain")
        if evidence != "plain":
            recipe = self._recipe(method.recipe(rows_of_a_fold(rows)))
            options["progress"] = bool(self.verbose)
            ridge = None
            if evidence == "conjugate":
                ridge = learn_ridge(train, method, views, prepared, base, recipe, self.validation_fraction, **options)
            model = add_evidence(model, views, ridge)
        if getattr(self, "calibrated", False):
            model = with_width(model, views, prepared)
        model.encoder, model.robust = ColumnEncoder(self.encoding_.encoders), scale
        device = resolve_device(self.device)
        self.model_ = model if device.type != "cuda" else model.to(device).ready()

    def _encode(self, table: Table, y: Array, seed: int) -> tuple[RobustScale, Array]:
        """Return the scale of features and the scaled features of all rows."""
        self.encoding_, x = Encoding.fit_transform(table, y, seed)
        if self.encoding_.notice:
            warnings.warn(self.encoding_.notice, UserWarning, stacklevel=5)  # at the call of fit
        scale = RobustScale.fit(x)
        scaled: Array = scale(torch.from_numpy(x)).numpy()
        return scale, scaled

    def read(self, X: Any) -> Table:  # noqa: N803
        """Return X as a table whose columns are read as in training."""
        check_is_fitted(self, "model_")
        return self._read(X, self.encoding_)

    def features_of(self, table: Table) -> Array:
        """Return the features (N, F) of a ``table`` of :meth:`read`, the inputs of networks and trees."""
        features: Array = self.model_.features(torch.from_numpy(self.encoding_.codes(table))).cpu().numpy()
        return features

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> Array: ...  # noqa: N803

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[Array, Array]: ...  # noqa: N803

    @overload
    def predict(self, X: Any, return_std: bool) -> Array | tuple[Array, Array]: ...  # noqa: N803

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:  # noqa: N803
        """Return the predictive mean, (N,) or (N, T).

        Under the target transform "log" the mean does not exist, and the median is returned.

        Args:
            X: rows with the columns of the training table.
            return_std: whether to return (mean, std) instead, which raises for the transform "log".

        Raises:
            InputError: if columns are missing or a cell cannot be read.
        """
        if return_std:
            p = self.predict_distribution(X)
            return p.mean, p.std
        p = self._predict_uncalibrated(X)[0]  # calibration does not move the mean
        if p.transform is not None and not p.transform.has_moments:
            return p.median
        return p.mean

    def predict_distribution(self, X: Any) -> Prediction:  # noqa: N803
        """Return the predictive distribution of rows ``X``, in the units of y, with the calibration."""
        p, table = self._predict_uncalibrated(X)
        if self.calibration_ is None:
            return p
        if isinstance(self.calibration_, ConformalCalibration):
            return self.calibration_.apply(p, table)
        calibrated: Prediction = self.calibration_.apply(p)
        return calibrated

    def _predict_uncalibrated(self, X: Any) -> tuple[Prediction, Table]:  # noqa: N803
        """Return the predictive distribution without calibration, and X as it was read."""
        check_is_fitted(self, "model_")
        table = self._read(X, self.encoding_)
        self.encoding_.warn_of_new_gaps(table)
        p = self.model_.predict(self.encoding_.codes(table))
        if isinstance(self.transform_, Atom):
            p = self.transform_.split(p)
        else:
            p.transform = self.transform_
        p.index, p.names = table.index, self.target_names_
        return p, table

    @property
    def training_(self) -> dict[str, Any]:
        """Steps and seconds of the training, and for each network its best step and whether it diverged."""
        check_is_fitted(self, "model_")
        result = self.model_.result
        return {
            "steps": result.steps,
            "seconds": result.seconds,
            "best_step": result.best_step.tolist(),
            "diverged": result.diverged.tolist(),
        }

    @property
    def columns_(self) -> Any:
        """A pandas frame with the type of every column of X, and the reason."""
        check_is_fitted(self, "encoding_")
        return self.encoding_.to_frame()

    @property
    def inputs_(self) -> dict[str, float]:
        """Weights of the networks by their inputs (numbers, bins, trees), and of linear regression."""
        check_is_fitted(self, "model_")
        model = self.model_
        kinds = [
            ("bins+trees" if bins else "trees") if trees else "bins" if bins else "numbers"
            for bins, trees in model.kinds()
        ]
        kinds += [] if model.linear is None else ["linear"]
        weights = model.network_weights if model.mixture_weights is None else model.mixture_weights
        pairs = list(zip(weights.tolist(), kinds, strict=True))
        return {kind: math.fsum(weight for weight, own in pairs if own == kind) for kind in dict.fromkeys(kinds)}

    @property
    def width_(self) -> Array | None:
        """The factor of the networks' scales for each target, or None."""
        check_is_fitted(self, "model_")
        width = self.model_.width
        return None if width is None else width.cpu().numpy().copy()

    @property
    def unfamiliar_below_(self) -> float | None:
        """The familiarity below which 1% of rows like the training rows lie. None if it is unknown."""
        check_is_fitted(self, "model_")
        return self.model_.unfamiliar_below

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:  # noqa: N803
        """Return the central intervals that contain a new y with probability ``coverage``, for rows ``X``: (N, 2)."""
        return self.predict_distribution(X).interval(coverage)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """Return R² of ``predict``, as scikit-learn's regressors do: 1 is perfect, 0 as good as the mean of y.

        It ignores the uncertainty. `howsure.metrics` scores the predictive distribution, and
        `howsure.scorers` does so in ``cross_val_score`` and ``GridSearchCV``. Of several targets it is the mean.

        Args:
            X: rows.
            y: their targets.
            sample_weight: weights of the rows.
        """
        return super().score(X, y, sample_weight)

    # Settings ---------------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Raise for a parameter that cannot be used, before anything is learned with the others."""
        given = self.get_params()
        try:
            validate_parameter_constraints(CONSTRAINTS, given, type(self).__name__)
        except InvalidParameterError as error:
            raise InputError(str(error)) from None
        for name, value in given.items():
            if isinstance(value, bool | np.bool_) and name not in ("calibrated", "verbose"):
                raise InputError(f"{name} must be a number, got {value}")
        kinds_of_inputs(getattr(self, "inputs", "numbers"), 1, 0)
        _layers(self.hidden)
        resolve_device(self.device)

    def _recipe(self, suggested: Recipe) -> Recipe:
        """Return the suggested recipe with the parameters that the user gave."""
        recipe = suggested if self.steps is None else suggested.with_steps(int(self.steps))
        if self.learning_rate is not None:
            recipe = replace(recipe, settings=replace(recipe.settings, learning_rate=float(self.learning_rate)))
        if self.hidden is not None:
            recipe = replace(recipe, network=replace(recipe.network, hidden=_layers(self.hidden)))
        return recipe if self.batch_size is None else replace(recipe, batch_size=int(self.batch_size))

    def _read(self, X: Any, encoding: Encoding | None = None) -> Table:  # noqa: N803
        """Return X as a table, after scikit-learn's checks; with an encoding, its columns are read as in training."""
        reset = encoding is None
        read = read_table if encoding is None else encoding.read
        if hasattr(X, "columns") or hasattr(X, "column_names"):
            table = read(X) if reset else None
            names = list(getattr(X, "column_names", getattr(X, "columns", ())))
            if len({str(name) for name in names}) < len(names):
                raise InputError("column names must be unique, as they were in training")
            if reset or set(names) != set(getattr(self, "feature_names_in_", ())):  # another order is as good
                validate_data(self, X, reset=reset, skip_check_array=True)
            table = read(X) if table is None else table
            if reset and table.rows < 2:
                raise InputError(f"Found array with {table.rows} sample(s) while a minimum of 2 is required.")
            return table
        array = validate_data(
            self,
            as_array(X) if isinstance(X, np.ma.MaskedArray) else X,
            reset=reset,
            dtype=None,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 0,
        )
        return read(array)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.multi_output = True
        return tags

    # Files ------------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write a model file, to be read by :func:`load`, on any device. Nothing in it is ever executed.

        Args:
            path: of the file, such as house.safetensors. An older model there is replaced.
            overwrite: whether to replace a file that is not a model.
        """
        check_is_fitted(self, "model_")
        return save_model(path, self.model_.tensors(), self._header(), overwrite)

    def _header(self) -> TableHeader:
        """Return the state of the regressor without its tensors."""
        model, state = self.model_, self.random_state
        return TableHeader(
            estimator=type(self).__name__,
            parameters=self.get_params()
            | {"random_state": int(state) if isinstance(state, int | np.integer) else None, "device": str(self.device)},
            columns=self.encoding_,
            target_names=self.target_names_,
            target_transform=None if self.transform_ is None else self.transform_.to_dict(),
            calibration=self.calibration_,
            method=method_state(model.method),
            activation=model.networks.activation,
            one_target=model.one_target,
            unfamiliar_below=model.unfamiliar_below,
            training=training_state(model.result),
            record=self.record_,
        )

    def restore(self, tensors: dict[str, torch.Tensor], header: TableHeader) -> Self:
        """Restore the state that :meth:`save` wrote, after checking that its parts are consistent."""
        self._check_parameters()
        self.encoding_ = header.columns
        method = method_from_state(header.method)
        if type(method) is not type(self._method()):
            raise InputError(f"inconsistent model file: {header.estimator} with the method {header.method['name']}")
        encoder = ColumnEncoder(self.encoding_.encoders)
        self.model_ = TableModel.from_tensors(tensors, method, header.activation, header.one_target, encoder)
        below = header.unfamiliar_below
        if below is not None and not 0 <= below <= 1:
            raise InputError(f"inconsistent model file: familiarity threshold must be in [0, 1], got {below}")
        self.model_.unfamiliar_below = below
        self.model_.result = training_from_state(header.training)
        targets, saved = self.model_.targets, header.target_transform
        self.transform_ = None if saved is None else transform_from_dict(saved)
        if self.transform_ is not None and not self.transform_.fits(targets):
            raise InputError(f"inconsistent model file: the transform is not for {targets} targets")
        targets = 1 if isinstance(self.transform_, Atom) else targets
        self.record_ = header.record
        self._restore_names(header.target_names, targets, header.calibration)
        return self

    def _restore_names(
        self, names: list[str] | None, targets: int, calibration: Calibration | ConformalCalibration | None
    ) -> None:
        """Take over the names of columns and targets and a saved calibration, after checking them."""
        if names is not None and len(names) != targets:
            raise InputError(f"inconsistent model file: {names!r} are not the names of {targets} targets")
        self.target_names_, self.n_features_in_, self.calibration_ = names, len(self.encoding_.names), calibration
        if self.encoding_.named:
            self.feature_names_in_ = np.array(self.encoding_.names, dtype=object)


def _layers(hidden: Any) -> tuple[int, ...]:
    """Return the sizes of the hidden layers as a tuple; one number is one layer, as for scikit-learn's networks."""
    if hidden is None:
        return ()
    several = isinstance(hidden, Sequence | np.ndarray) and not isinstance(hidden, str | bytes) and np.ndim(hidden) > 0
    each = list(hidden) if several else [hidden]
    for size in each:
        if isinstance(size, bool | np.bool_ | str) or not isinstance(size, int | np.integer) or not 0 < size <= 100_000:
            raise InputError(f"hidden must be a tuple of layer sizes, as in (128, 128), got {hidden!r}")
    return tuple(int(size) for size in each)
