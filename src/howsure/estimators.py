"""The scikit-learn face of the methods: ``fit``, ``predict``, ``score``, and what a predictive distribution adds."""

import inspect
import textwrap
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, cast, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from howsure.data.encoding import Encoding
from howsure.data.table import Table, read_table
from howsure.data.target import check_numbers
from howsure.distributions import Transform
from howsure.errors import InputError
from howsure.fitting import Fitted, Member, Search, fit, search
from howsure.fitting.censoring import read_censored
from howsure.fitting.conformal import (
    FOLDS,
    CalibrationRows,
    CrossConformal,
    Groups,
    SplitConformal,
    column_names,
    deal_folds,
    set_apart,
)
from howsure.fitting.duration import say_how_long, training_seconds
from howsure.fitting.fading import choose_power, rows_of_a_fold, unfamiliar_below, with_fading
from howsure.fitting.inputs import Inputs
from howsure.fitting.members import hold_in_turn
from howsure.fitting.predictor import Predictor
from howsure.fitting.stacking import stacked
from howsure.fitting.targets import choose_transform, prepare_target
from howsure.fitting.width import with_scale
from howsure.formulas import penalties
from howsure.images import FittedImages
from howsure.methods import Evidential, Method, NormalLikelihood, Recipe
from howsure.persistence import load_model, refusing_misfits, save_model
from howsure.prediction import Prediction, real_numbers
from howsure.threads import one_thread
from howsure.training import resolve_device

__all__ = [
    "EnsembleRegressor",
    "EvidentialRegressor",
    "Regressor",
    "load",
]

Array = NDArray[np.float64]
KINDS = ("numbers", "bins", "trees")  # that networks of "auto" see
FEWEST = 50  # rows from which trees and bins have something to say
MANY_ROWS = 10_000  # from which a network takes long, and knows more
LARGEST = 1e140  # of targets and, inverted, their smallest spread: variances are squares, and float64 ends at 1e308


if TYPE_CHECKING:  # scikit-learn has no types: with this a wrong parameter is an error before the program runs

    class _ScikitLearn:
        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: Any) -> Self: ...
        def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float: ...  # noqa: N803
        def __sklearn_tags__(self) -> Any: ...

else:

    class _ScikitLearn(RegressorMixin, BaseEstimator):
        """scikit-learn's regressor."""


def _parameter(default: Any, text: str, **options: Any) -> Any:
    """Return a field of a regressor with the text that documents it."""
    return field(default=default, metadata={"text": text}, **options)


@dataclass(eq=False, repr=False, kw_only=True)
class Regressor(_ScikitLearn):
    """Base class of the regressors, and the type that :func:`load` returns: fit, predict, save.

    Subclasses name the parameters that they alone have, and say which method they are.
    """

    _registry: ClassVar[dict[str, type["Regressor"]]] = {}
    _auto: ClassVar[str | None] = None  # the parameter that may be "auto": what the method calls ``searched``

    hidden: tuple[int, ...] | None = _parameter(
        None, "Units of each hidden layer. None: by the method and the number of rows, from three layers of 96 on."
    )
    steps: int | None = _parameter(None, "Largest number of training steps. None: by the number of rows.")
    patience: float | None = _parameter(
        0.25,
        "Share of the steps so far without progress on held-out rows after which training stops. None takes all steps.",
    )
    batch_size: int | None = _parameter(None, "Rows that a network sees in one step. None: by the number of rows.")
    learning_rate: float | None = _parameter(
        None, "Largest learning rate of Adam, after a warm-up and before a cosine decay. None: by the method."
    )
    validation_fraction: float = _parameter(
        0.1, "Share of the rows that each network keeps to find the step at which it was best; 0 trains to the end."
    )
    device: str = _parameter("auto", 'Device to train on: "auto" (CUDA if there is one), "cpu", "cuda" or "mps".')
    random_state: Any = _parameter(  # noqa: RUF009
        None, "Seed, or generator of NumPy, that everything random follows from."
    )
    verbose: bool | None = _parameter(
        None, "Show progress. None says once how long training may take, if that is more than a minute."
    )
    target_transform: str | None = _parameter(
        None,
        'For targets that cannot be negative. "positive": logarithmic near zero and linear above; "log": the '
        'logarithm, without a mean of y; "auto": "positive" where it predicts held-out training rows better. None: '
        "targets as they are.",
    )
    conformal: str | None = _parameter(
        None,
        "Intervals with a guarantee, for new rows exchangeable with those of fit and on average over them. 'split': a "
        "fifth of the rows (at least 9, at most 10,000) is set apart before anything is learned, and the interval of "
        "coverage c, scaled as these rows ask for, holds a new target with probability at least c. 'cv+': all rows are "
        "learned from, and eight more models, each without an eighth of the rows, say how much to scale: at least "
        "1 − 2(1−c) − √(2/n), in practice c or a little more (Barber et al. 2021, Theorem 4), for nine times the cost. "
        "Means and shapes stay; the distribution is scaled as its interval of coverage 0.9 is. None: no scale at all.",
    )
    conformal_groups: Any = _parameter(  # noqa: RUF009
        None,
        "A column of X by name or position, or a list of them: rows with equal values there are calibrated on their "
        "own, so that the guarantee holds in each group. A group with too few rows for a coverage (9 for 0.9, 19 for "
        "0.95), and one not seen in fit, has the scale of all rows, without a guarantee of its own.",
    )

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        Regressor._registry.setdefault(cls.__name__, cls)  # a user's class does not take the name of one of these

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
            sample_weight: (N,), non-negative.
            censored: (N,) or of the shape of y, for targets of which only a bound is known: 0 or False where y is the
                value, 1 or True where the value is at least y, −1 where it is at most y.
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
        target = _read_target(y, table)
        rows = np.arange(table.rows)
        weights = None
        if sample_weight is not None:
            if isinstance(sample_weight, np.ma.MaskedArray | torch.Tensor):
                sample_weight = real_numbers("sample_weight", sample_weight)
            weights = _check_sample_weight(sample_weight, np.empty(table.rows), ensure_non_negative=True)
            rows = np.flatnonzero(weights)  # a row of weight 0 is not there
            if len(rows) < 2:
                raise InputError(f"only {len(rows)} rows have a positive weight; at least 2 are needed")
        known = read_censored(censored, target, rows)
        if known is not None and self.conformal is not None:
            raise InputError(
                f"conformal={self.conformal!r} compares intervals with values of y, which censored targets do not "
                "have; use conformal=None"
            )
        base = int(check_random_state(self.random_state).randint(2**31 - 1))
        named = getattr(y, "column_names", getattr(y, "columns", None))  # of an Arrow table, or any other
        self.target_names_ = None if named is None else [str(name) for name in named]
        self.conformal_: SplitConformal | CrossConformal | None = None
        self.fold_models_: list[Regressor] = []
        if self.conformal_groups is not None:
            column_names(table, self.conformal_groups)  # raises for one that is not there, before the fit
        if self.conformal == "split":
            learned, calibration = set_apart(rows, base)
            self._fit_rows(table, target, learned, weights, base)
            self._calibrate_split(table, target, calibration)
        else:
            self._fit_rows(table, target, rows, weights, base, known)
            if self.conformal == "cv+":
                self._calibrate_cross(table, target, rows, weights, base)
        return self

    def _calibrate_split(self, table: Table, target: Array, rows: NDArray[np.int64]) -> None:
        """Learn scales of intervals from rows that were set apart, which are predicted as new rows are."""
        apart = self._adopted(_rows_of(table, rows))
        groups = None if self.conformal_groups is None else Groups.learn(apart, self.conformal_groups)
        codes = None if groups is None else groups.codes(apart)
        p = self._predict_table(apart)
        self.conformal_ = SplitConformal(CalibrationRows(p, target[rows], codes), groups)
        self.conformal_.apply(p, codes)  # raises if no scale is large enough

    def _calibrate_cross(
        self, table: Table, target: Array, rows: NDArray[np.int64], weights: Array | None, base: int
    ) -> None:
        """Learn models that each leave out a fold of the rows, and keep what they predict for it."""
        whole = self._adopted(_rows_of(table, rows))
        groups = None if self.conformal_groups is None else Groups.learn(whole, self.conformal_groups)
        codes = np.full(len(rows), -1) if groups is None else groups.codes(whole)
        model = clone(self).set_params(conformal=None, conformal_groups=None, verbose=bool(self.verbose))
        model._label_like(self)
        found = Parallel()(  # one after the other, unless joblib.parallel_config says where to run them
            delayed(_fit_without)(copy(model), table, target, rows, fold, weights, codes, [base, k])
            for k, fold in enumerate(deal_folds(codes, base))
        )
        self.fold_models_ = [model for model, _ in found]
        parts = [part for _, part in found]
        self.conformal_ = CrossConformal(tuple(parts), groups)

    def _label_like(self, other: "Regressor") -> None:
        """Take over what another regressor knows about the columns and targets it was given."""
        for name in ("target_names_", "n_features_in_", "feature_names_in_"):
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))
        self.conformal_, self.fold_models_ = None, []

    def _adopted(self, table: Table) -> Table:
        """Return a table of fit with its columns read as those of new rows are."""
        encoders = self.encoding_.encoders
        chosen = () if self.conformal_groups is None else column_names(table, self.conformal_groups)
        for encoder in encoders:
            if encoder.left_out and encoder.name in chosen:
                raise InputError(
                    f"conformal_groups names the column {encoder.name!r}, which the model leaves out ({encoder.why}); "
                    "make it a pandas category to keep it"
                )
        return replace(table, index=None)

    def _fit_rows(
        self,
        table: Table,
        target: Array,
        rows: NDArray[np.int64],
        weights: Array | None,
        base: int,
        known: NDArray[np.int8] | None = None,
    ) -> None:
        """Learn from some rows of a table; the others leave no trace."""
        x = self._encode(table, target, rows, base)
        seeds = np.random.SeedSequence(base).generate_state(self._network_count(len(rows)), np.uint32)
        method = self._method()
        options: dict[str, Any] = {
            "recipe": self._recipe(method.recipe(len(rows))),
            "sample_weight": weights,
            "censored": known,
            "device": self.device,
            "progress": self.verbose,
        }
        if self.verbose is None and self._announce(method, options["recipe"], x.shape[1], target, len(rows)):
            options["progress"] = False
        target = self._prepare_target(method, x, target, rows, base, options)
        method = self._choose(method, x, target, rows, base, options)
        members: Sequence[Member] = self._members(rows, [int(s) for s in seeds], base)
        inputs = Inputs.learn(x, target, rows, base, members, weights)
        fitted = fit(method, x, target, members, inputs=inputs, **options)
        fitted, members = _usable(fitted, members, target, comparable=weights is None and known is None)
        fitted, members = stacked(fitted, inputs.x, target, members, weights, known)
        seen = inputs.x[:, : fitted.population.in_features]  # without trees, if no network is left that sees them
        fitted = self._fade(fitted, method, seen, target, rows, base, members, options)
        calibrated = getattr(self, "calibrated", False)
        self.fitted_ = with_scale(fitted, seen, target, members, known) if calibrated else fitted
        self._summarise_training()

    def _announce(self, method: Method, recipe: Recipe, features: int, y: Array, rows: int) -> bool:
        """Say how long the fit may take, if that is long; return whether it was said."""
        if resolve_device(self.device).type != "cpu":
            return False
        members, outputs = self._network_count(rows), method.outputs * (1 if y.ndim == 1 else y.shape[1])
        with one_thread() as threads:
            seconds = training_seconds(recipe, features, outputs, members, threads)
        return say_how_long(seconds * (1 + FOLDS if self.conformal == "cv+" else 1), rows)

    def _network_count(self, rows: int) -> int:
        """Return how many networks to train on so many rows."""
        members = getattr(self, "members", 1)
        return (12 if rows < MANY_ROWS else 9) if members is None else int(members)

    def _members(self, rows: NDArray[np.int64], seeds: Sequence[int], seed: int) -> list[Member]:
        """Return the networks to train: as many of each kind, that is, that see the same of a row."""
        kinds = _kinds(getattr(self, "inputs", "numbers"), len(seeds), len(rows))
        parts = hold_in_turn(rows, -(-len(seeds) // len(kinds)), seed, self.validation_fraction)
        members = []
        for k, own_seed in enumerate(seeds):
            kind, (train, validation) = kinds[k % len(kinds)], parts[k // len(kinds)]
            members.append(Member(train, validation, own_seed, "bins" in kind, "trees" in kind))
        return members

    def _fade(
        self,
        fitted: Fitted,
        method: Method,
        x: Array,
        y: Array,
        rows: NDArray[np.int64],
        seed: int,
        members: Sequence[Member],
        options: dict[str, Any],
    ) -> Fitted:
        """Return the model with evidence that fades away from its training rows, if that was asked for.

        How fast is learned by networks that see numbers alone: trees know nothing beyond the training rows.
        """
        if self._evidence == "plain":
            return fitted
        recipe = self._recipe(method.recipe(rows_of_a_fold(len(rows))))
        quiet = options | {"recipe": recipe, "progress": bool(self.verbose)}
        numbers = x[:, : fitted.features_in]
        power = choose_power(method, numbers, y, rows, seed, validation_fraction=self.validation_fraction, **quiet)
        faded = with_fading(fitted, x, members, power)
        faded.unfamiliar_below = unfamiliar_below(faded, x, members)
        return faded

    def _encode(self, table: Table, y: Array, rows: NDArray[np.int64], seed: int) -> Array:
        """Return the features of all rows, as learned from some of them; warn of columns that are left out."""
        self.encoding_, own = Encoding.fit_transform(_rows_of(table, rows), y[rows], seed)
        if self.encoding_.notice:
            warnings.warn(self.encoding_.notice, UserWarning, stacklevel=5)  # at the call of fit
        if len(rows) == table.rows:
            return own
        x = self.encoding_.transform(table)
        x[rows] = own  # where categories have means of targets, a training row's own target must not be in its own
        return x

    def _prepare_target(
        self, method: Method, x: Array, y: Array, rows: NDArray[np.int64], seed: int, options: dict[str, Any]
    ) -> Array:
        """Return the targets as networks learn them; warn of values that many rows share."""
        kind = self.target_transform
        if kind == "auto":
            kind = choose_transform(method, x, y, rows, seed, validation_fraction=self.validation_fraction, **options)
        prepared = prepare_target(y, rows, kind, seed, self.target_names_, options["censored"])
        for notice in prepared.notices:
            warnings.warn(notice, UserWarning, stacklevel=5)  # at the call of fit
        self.target_transform_, self.transform_ = kind, prepared.transform
        return prepared.values

    def _choose(
        self, method: Method, x: Array, y: Array, rows: NDArray[np.int64], seed: int, options: dict[str, Any]
    ) -> Method:
        """Return the method with "auto" replaced by what a search found; the search is kept in ``search_``."""
        self.search_: Search | None = None
        if self._auto is None or method.searched is None:
            return method
        field = method.searched[0]
        if isinstance(getattr(self, self._auto), str):
            share = self.validation_fraction
            self.search_ = search(method, x, y, [rows], seed=seed, validation_fraction=share, **options)[0]
            method = replace(method, **{field: self.search_.chosen})  # type: ignore[type-var]
        setattr(self, f"{self._auto}_", getattr(method, field))
        return method

    def _number_or_auto(self, usual: float, high: float = np.inf) -> float:
        """Return the parameter that may be "auto", or the usual value while it is."""
        assert self._auto is not None
        value = getattr(self, self._auto)
        if isinstance(value, str) and value == "auto":
            return usual
        return _number(self._auto, value, high, also="'auto' or ")

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> Array: ...  # noqa: N803

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[Array, Array]: ...  # noqa: N803

    @overload
    def predict(self, X: Any, return_std: bool) -> Array | tuple[Array, Array]: ...  # noqa: N803

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:  # noqa: N803
        """Return the predictive mean, (N,) or (N, T); with ``return_std`` also the standard deviation.

        Under the target transform "log" y has neither: then it is the median, and ``return_std`` is refused.
        """
        as_learned = not return_std and self._transform is None  # then a scale changes nothing
        p = self._predict_as_learned(X)[0] if as_learned else self.predict_distribution(X)
        if not return_std and p.transform is not None and not p.transform.has_moments:
            return p.median
        return _MeanAndStd((p.mean, p.std)) if return_std else p.mean

    def predict_distribution(self, X: Any) -> Prediction:  # noqa: N803
        """Return the predictive distribution, in the units of y; with ``conformal`` its intervals have a guarantee."""
        p, table = self._predict_as_learned(X)
        made: SplitConformal | CrossConformal | None = getattr(
            self, "conformal_", None
        )  # which pickles of earlier versions do not have
        if made is None:
            return p
        codes = None if made.groups is None else made.groups.codes(table)
        if isinstance(made, SplitConformal):
            return made.apply(p, codes)
        return made.apply(p, [model._predict_as_learned(X)[0] for model in self.fold_models_], codes)

    def _predict_as_learned(self, X: Any) -> tuple[Prediction, Table]:  # noqa: N803
        """Return the predictive distribution before conformal calibration, and X as it was read."""
        check_is_fitted(self, "fitted_")
        table = self._read(X, self.encoding_)
        return self._predict_table(table), table

    def _predict_table(self, table: Table) -> Prediction:
        p = self.fitted_.predict(self.encoding_.transform(table))
        p.transform = self._transform
        p.index, p.names = table.index, self.target_names_
        return p

    def predictor(self, coverage: float | None = None, *, single: bool = False) -> Predictor:
        """Return a plain callable from one row, or several, to mean and both deviations by name: for a server.

        It predicts a row many times as fast as ``predict_distribution``, with the same numbers, and returns a
        dictionary of floats, or of arrays for several rows; see :class:`~howsure.fitting.predictor.Predictor`.

        Args:
            coverage: of an interval, whose ends are ``lower`` and ``upper``; None for none, which is quicker.
            single: whether mean and deviations of more than 32 rows are computed in float32: quicker, to about 1e-5.
        """
        check_is_fitted(self, "fitted_")
        return Predictor(self, coverage, single)

    @property
    def _transform(self) -> Transform | None:
        """The transform of the target, which pickles of earlier versions do not have."""
        return getattr(self, "transform_", None)

    @property
    def columns_(self) -> Any:
        """A pandas frame that says what every column of X was taken for, and why."""
        check_is_fitted(self, "encoding_")
        return self.encoding_.to_frame()

    @property
    def _evidence(self) -> Any:
        """What becomes of the evidence away from the training rows, for regressors that have a choice."""
        return getattr(self, "evidence", "plain")

    @property
    def inputs_(self) -> dict[str, float]:
        """How much networks count by what they see of a row: numbers alone, also bins, or also trees."""
        check_is_fitted(self, "fitted_")
        fitted = self.fitted_
        kinds = [
            ("bins+trees" if bins else "trees") if trees else "bins" if bins else "numbers"
            for bins, trees in fitted.kinds()
        ]
        if fitted.weights is None:
            return {kind: kinds.count(kind) / len(kinds) for kind in dict.fromkeys(kinds)}
        weights = fitted.weights.tolist()
        return {kind: sum(w for w, k in zip(weights, kinds, strict=True) if k == kind) for kind in dict.fromkeys(kinds)}

    @property
    def scale_(self) -> Array | None:
        """The factor for each target by which the mixture is stretched about its mean; None if it is not."""
        check_is_fitted(self, "fitted_")
        scale = self.fitted_.scale
        return None if scale is None else scale.numpy().copy()

    @property
    def fading_power_(self) -> float | None:
        """The power by which evidence fades with the distance from the training rows, or None where it does not."""
        check_is_fitted(self, "fitted_")
        fading = self.fitted_.fading
        return None if fading is None else float(fading.power[0])

    @property
    def unfamiliar_below_(self) -> float | None:
        """The familiarity below which about 1 % of rows like the training rows are; None if nothing fades."""
        check_is_fitted(self, "fitted_")
        return self.fitted_.unfamiliar_below

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:  # noqa: N803
        """Return the central interval that holds a new y with this probability: its ends in the last dimension."""
        return self.predict_distribution(X).interval(coverage)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """Return R² of ``predict``, as scikit-learn's regressors do: 1 is perfect, 0 as good as the mean of y.

        It says nothing about the uncertainty. `howsure.metrics` scores the predictive distribution, and
        `howsure.scorers` does so in ``cross_val_score`` and ``GridSearchCV``. Of several targets it is the mean.
        """
        return super().score(X, y, sample_weight)

    # Settings ---------------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Raise for a parameter that cannot be used, before anything is learned with the others."""
        if getattr(self, "members", None) is not None:
            _whole("members", self.members, most=10_000)  # type: ignore[attr-defined]
        for name in ("steps", "batch_size"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), most=100_000_000, also="None or ")
        if self.learning_rate is not None and _number("learning_rate", self.learning_rate, also="None or ") == 0:
            raise InputError("learning_rate must be greater than 0, got 0")
        _number("validation_fraction", self.validation_fraction, high=1)
        if self.patience is not None and _number("patience", self.patience, high=1, also="None or ") == 0:
            raise InputError("patience must be greater than 0, or None to take all steps, got 0")
        if self.target_transform is not None and self.target_transform not in ("positive", "log", "auto"):
            known = "'positive', 'log', 'auto' or None"
            raise InputError(f"target_transform must be {known}, got {self.target_transform!r}")
        if not isinstance(self._evidence, str) or self._evidence not in ("fading", "plain"):
            raise InputError(f"evidence must be 'fading' or 'plain', got {self._evidence!r}")
        _kinds(getattr(self, "inputs", "numbers"), 1, 0)
        if not isinstance(getattr(self, "calibrated", False), bool | np.bool_):
            raise InputError(f"calibrated must be True or False, got {self.calibrated!r}")  # type: ignore[attr-defined]
        if self.conformal is not None and self.conformal not in ("split", "cv+"):
            raise InputError(f"conformal must be 'split', 'cv+' or None, got {self.conformal!r}")
        if self.conformal_groups is not None and self.conformal is None:
            raise InputError("conformal_groups says which rows are calibrated together; say with conformal= how")
        _layers(self.hidden)
        resolve_device(self.device)
        self._method()

    def _recipe(self, suggested: Recipe) -> Recipe:
        """Return the suggested recipe with the parameters that the user gave."""
        settings, network = suggested.settings, suggested.network
        if self.steps is not None:
            every = max(1, min(settings.evaluate_every, int(self.steps) // 20))
            settings = replace(settings, steps=int(self.steps), evaluate_every=every)
        if settings.plateau:  # a method that trains to the end has none
            settings = replace(settings, plateau=float(self.patience or 0))
        if self.learning_rate is not None:
            settings = replace(settings, learning_rate=float(self.learning_rate))
        if self.hidden is not None:
            network = replace(network, hidden=_layers(self.hidden))
        return Recipe(network, settings, suggested.batch_size if self.batch_size is None else int(self.batch_size))

    def _read(self, X: Any, encoding: Encoding | None = None) -> Table:  # noqa: N803
        """Return X as a table, after scikit-learn's checks; with an encoding, its columns are read as in training."""
        reset = encoding is None
        read = read_table if encoding is None else encoding.read
        if hasattr(X, "columns") or hasattr(X, "column_names"):
            table = read(X) if reset else None
            names = list(getattr(X, "column_names", getattr(X, "columns", ())))
            if len({str(name) for name in names}) < len(names):
                raise InputError("column names must be unique, as they were in training")
            try:
                validate_data(self, X, reset=reset, skip_check_array=True)
            except ValueError as error:
                if "same order" in str(error):
                    raise InputError(f"{error}Pass them as they were: X[model.feature_names_in_].") from error
                raise
            table = read(X) if table is None else table
            if reset and table.rows < 2:
                raise InputError(f"Found array with {table.rows} sample(s) while a minimum of 2 is required.")
            return table
        array = validate_data(
            self,
            _unmasked(X),
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

    def save(self, folder: str | Path) -> Path:
        """Write a model folder, to be read by :func:`load`, on any device. Nothing in it is ever executed."""
        return save_model(folder, *self._state())

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return all that the regressor knows: tensors by name, and plain values."""
        check_is_fitted(self, "fitted_")
        tensors, settings = self.fitted_.state()
        parameters = self.get_params()
        state = parameters["random_state"]
        parameters["random_state"] = int(state) if isinstance(state, int | np.integer) else None
        parameters["device"] = str(self.device)  # which may be given as a torch.device
        settings |= {
            "estimator": type(self).__name__,
            "parameters": parameters,
            "encoding": self.encoding_.to_dict(),
            "chosen": None if self._auto is None else getattr(self, f"{self._auto}_"),
            "search": None if self.search_ is None else self.search_.to_dict(),
            "target_names": self.target_names_,
            "target_transform": None if self._transform is None else self._transform.to_dict(),
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": list(map(str, self.feature_names_in_)) if hasattr(self, "feature_names_in_") else None,
        }
        made = getattr(self, "conformal_", None)
        if made is not None:
            own, settings["conformal"] = made.state()
            tensors |= own
        settings["folds"] = []
        for k, model in enumerate(getattr(self, "fold_models_", [])):
            own, values = model._state()
            tensors |= {f"folds.{k}.{name}": t for name, t in own.items()}
            settings["folds"].append(values)
        return tensors, settings

    def _restore(self, tensors: dict[str, torch.Tensor], settings: dict[str, Any]) -> Self:
        """Take over what :meth:`save` wrote, after checking that its parts fit together."""
        self._check_parameters()
        method = self._method()
        if self._auto is not None and method.searched is not None:
            chosen = _number(self._auto, settings["chosen"])
            method = replace(method, **{method.searched[0]: chosen})  # type: ignore[type-var]
            setattr(self, f"{self._auto}_", chosen)
        found = settings.get("search")
        self.search_ = None if found is None else Search.from_dict(found)
        self.encoding_ = Encoding.from_dict(settings["encoding"])
        self.fitted_ = Fitted.from_state(tensors, settings, method)
        self._summarise_training()
        self.target_names_ = settings["target_names"]
        saved = settings.get("target_transform")  # models of earlier versions have none
        self.transform_ = None if saved is None else Transform.from_dict(saved)
        self.target_transform_ = None if self.transform_ is None else self.transform_.kind
        self.n_features_in_ = settings["n_features_in"]
        names = settings["feature_names_in"]
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        first, targets = self.fitted_.features_in, self.fitted_.scale_y.loc.shape[-1]
        for what, holds in (
            ("the method is that of the regressor", type(self.fitted_.method) is type(method)),
            ("the encoding has as many features as the networks", len(self.encoding_.features) == first),
            ("there are as many columns as were fitted", len(self.encoding_.names) == self.n_features_in_),
            ("the columns have the names that were fitted", names is None or names == self.encoding_.names),
            ("the transform is for as many targets", self.transform_ is None or self.transform_.fits(targets)),
            ("each target has a name", self.target_names_ is None or _are_texts(self.target_names_, targets)),
        ):
            if not holds:
                raise InputError(f"it is not so that {what}")
        self._restore_conformal(tensors, settings, None if self.fitted_.one_target else targets)
        return self

    def _restore_conformal(
        self, tensors: dict[str, torch.Tensor], settings: dict[str, Any], targets: int | None
    ) -> None:
        """Take over how intervals were calibrated; models of earlier versions were not."""
        self.conformal_, self.fold_models_ = None, []
        saved, folds = settings.get("conformal"), settings.get("folds", [])
        expected = FOLDS if self.conformal == "cv+" else 0
        if (saved is None) is not (self.conformal is None) or not isinstance(folds, list) or len(folds) != expected:
            raise InputError("the parts of conformal intervals are there, or missing, against what the parameters say")
        for k, values in enumerate(folds):
            own = {n.removeprefix(f"folds.{k}."): t for n, t in tensors.items() if n.startswith(f"folds.{k}.")}
            model = clone(self).set_params(conformal=None, conformal_groups=None)._restore(own, values)
            if model.fitted_.one_target is not self.fitted_.one_target or model.encoding_.names != self.encoding_.names:
                raise InputError(f"the model of fold {k} is not of the same table")
            self.fold_models_.append(model)
        if self.conformal == "split":
            self.conformal_ = SplitConformal.from_state(tensors, saved, self.transform_, targets)
        elif self.conformal == "cv+":
            transforms = [model.transform_ for model in self.fold_models_]
            self.conformal_ = CrossConformal.from_state(tensors, saved, transforms, targets)
        groups = None if self.conformal_ is None else self.conformal_.groups
        if (groups is None) is not (self.conformal_groups is None):
            raise InputError("groups are there, or missing, against what the parameters say")
        if groups is not None and not set(groups.columns) <= set(self.encoding_.names):
            raise InputError("the groups are of columns that the table does not have")

    def _summarise_training(self) -> None:
        training = self.fitted_.training
        self.training_ = {
            "steps": training.steps,
            "seconds": training.seconds,
            "best_step": training.best_step.tolist(),
            "diverged": training.diverged.tolist(),
        }


class _MeanAndStd(tuple[Array, Array]):
    """Means and standard deviations; scikit-learn's wrapper around targets takes them for one array."""

    @property
    def ndim(self) -> int:
        raise AttributeError(
            "predict(return_std=True) returns two arrays, which TransformedTargetRegressor cannot transform back; use "
            'target_transform="positive" or "log" of the regressor itself'
        )


def load(folder: str | Path) -> Regressor:
    """Return the model that ``save`` wrote to this folder.

    A model of images is read as well, though type checkers take the result for a regressor; ``FittedImages.load`` has
    its type.
    """
    tensors, settings = load_model(folder)
    if settings.get("model") == "images":
        return cast(Regressor, FittedImages.restore(folder, tensors, settings))
    return restore(folder, tensors, settings)


def restore(folder: str | Path, tensors: dict[str, torch.Tensor], settings: dict[str, Any]) -> Regressor:
    """Return the regressor that a folder holds, from what was read of it."""
    name = settings.get("estimator")
    if not isinstance(name, str) or name not in Regressor._registry:
        known = ", ".join(Regressor._registry)
        raise InputError(f"{folder} holds a model of the unknown kind {name!r}; known are {known}")
    with refusing_misfits(folder):
        given = settings["parameters"].items()
        parameters: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given}
        for parameter, before in (("evidence", "plain"), ("inputs", "numbers"), ("calibrated", False)):
            if any(f.name == parameter for f in fields(Regressor._registry[name])):
                parameters.setdefault(parameter, before)  # of earlier versions, which had no choice
        return Regressor._registry[name](**parameters)._restore(tensors, settings)


def _are_texts(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(v, str) for v in value)


def _usable(fitted: Fitted, members: Sequence[Member], y: Array, comparable: bool) -> tuple[Fitted, Sequence[Member]]:
    """Return the model without the networks that learned nothing, and the rows of those that are left.

    A warning says how many there were; it is an error if none is left. Validation scores are compared with those of a
    constant only where they are ``comparable``: not if rows are weighted or targets censored.
    """
    training, count = fitted.training, len(members)
    diverged = int(training.diverged.sum())
    advice = "lower learning_rate, and look for outliers in X and y"
    if diverged == count:
        raise InputError(f"training diverged: all {count} networks reached values that are not finite; {advice}")
    if diverged:
        _warn(f"training of {diverged} of {count} networks diverged; {advice}")
    poor = 0 if not comparable else _worse_than_a_constant(fitted, members, y)
    if poor:
        _warn(f"{poor} of {count} networks do far worse on held-out rows than a constant would; {advice}")
    kept = training.best_score.isfinite().nonzero().flatten().tolist()
    return (fitted, members) if len(kept) == count else (fitted.select(kept), [members[i] for i in kept])


def _warn(message: str) -> None:
    warnings.warn(message, ConvergenceWarning, stacklevel=6)


def _worse_than_a_constant(fitted: Fitted, members: Sequence[Member], y: Array) -> int:
    """Count networks whose validation score is five nats above that of a standard normal for scaled targets."""
    if len(members[0].validation) < 5:  # a row or two say little about a network
        return 0
    scaled = fitted.scale_y(torch.from_numpy(np.array(y).reshape(len(y), -1)))
    rows = zip(scaled, members, strict=True)
    constant = torch.stack([0.5 * (np.log(2 * np.pi) + each[m.validation].square().mean()) for each, m in rows])
    best = fitted.training.best_score.cpu()
    return int((best.isfinite() & (best > constant + 5)).sum())


def _number(name: str, value: Any, high: float = np.inf, also: str = "") -> float:
    """Return the value as a float in [0, high), or raise."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or not 0 <= value < high:
        span = "of at least 0" if high == np.inf else f"in [0, {high})"
        raise InputError(f"{name} must be {also}a number {span}, got {value!r}")
    return float(value)


def _whole(name: str, value: Any, least: int = 1, most: int = 2**63, also: str = "") -> int:
    """Return the value as an int from ``least`` to ``most``, or raise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be {also}a whole number of at least {least}, got {value!r}")
    if value > most:
        raise InputError(f"{name} must be at most {most:,}, got {value!r}")
    return int(value)


def _layers(hidden: Any) -> tuple[int, ...]:
    """Return the sizes of the hidden layers as a tuple; one number is one layer, as for scikit-learn's networks."""
    if hidden is None:
        return ()
    each = list(hidden) if isinstance(hidden, Sequence | np.ndarray) and not isinstance(hidden, str) else [hidden]
    for size in each:
        if isinstance(size, bool | np.bool_ | str) or not isinstance(size, int | np.integer) or not 0 < size <= 100_000:
            raise InputError(f"hidden must be a tuple of layer sizes, as in (128, 128), got {hidden!r}")
    return tuple(int(size) for size in each)


def _kinds(inputs: Any, members: int, rows: int) -> list[str]:
    """Return the kinds of networks, by what they see, after checking that they are known."""
    kinds = list(KINDS) if isinstance(inputs, str) and inputs == "auto" else [inputs]
    if isinstance(inputs, list | tuple):
        kinds = list(inputs)
    known = ("numbers", "bins", "trees", "bins+trees")
    for kind in kinds or [None]:
        if not isinstance(kind, str) or kind not in known:
            raise InputError(f"inputs must be 'auto', or one or several of {', '.join(known)}, got {inputs!r}")
    if isinstance(inputs, str) and inputs == "auto" and (members < len(KINDS) or rows < FEWEST):
        return ["numbers"]
    return kinds[:members]


def _unmasked(x: Any) -> Any:
    """Return a masked array as a plain one, with NaN or None where it is masked."""
    if not isinstance(x, np.ma.MaskedArray):
        return x
    number = x.dtype.kind in "biuf"
    shown = np.array(x.data, dtype=float if number else object)
    shown[np.ma.getmaskarray(x)] = np.nan if number else None
    return shown


def _rows_of(table: Table, rows: NDArray[np.int64]) -> Table:
    return replace(table, columns=tuple(replace(c, values=c.values[rows]) for c in table.columns), rows=len(rows))


def _fit_without(
    model: Regressor,
    table: Table,
    target: Array,
    rows: NDArray[np.int64],
    fold: NDArray[np.int64],
    weights: Array | None,
    codes: NDArray[np.int64],
    seed: Sequence[int],
) -> tuple[Regressor, CalibrationRows]:
    """Fit a model to the rows that are not in a fold; return it, and what it predicts for those that are."""
    with one_thread(), warnings.catch_warnings():  # what there is to say was said of all rows
        warnings.simplefilter("ignore", UserWarning)
        drawn = int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)
        model._fit_rows(table, target, np.delete(rows, fold), weights, drawn)
        p = model._predict_table(model._adopted(_rows_of(table, rows[fold])))
    return model, CalibrationRows(p, target[rows[fold]], codes[fold])


def _read_target(y: ArrayLike, table: Table) -> Array:
    if y is None:
        raise InputError("this regressor requires y to be passed, but the target y is None")
    if isinstance(y, torch.Tensor) and y.dtype is torch.bool:
        y = y.numpy(force=True)
    if isinstance(y, np.ma.MaskedArray | torch.Tensor):
        y = real_numbers("y", y)
    y = check_numbers(y)
    target: Array = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim > 2:
        raise InputError(f"y must have shape (rows,) or (rows, targets), got {target.shape}")
    check_consistent_length(target, np.empty(table.rows))
    size, spread = np.abs(target).max(), np.ptp(target, axis=0)
    if size > LARGEST or ((spread > 0) & (spread < 1 / LARGEST)).any():
        why = f"has values of {size:.3g}" if size > LARGEST else f"varies by {spread[spread > 0].min():.3g} only"
        raise InputError(f"y {why}: float64 cannot hold its variance; pass y in other units")
    return target


_Class = TypeVar("_Class", bound=type[Regressor])
_ATTRIBUTES = {
    "fitted_": "The trained networks, :class:`howsure.fitting.Fitted`.",
    "encoding_": "How columns become features, :class:`howsure.data.encoding.Encoding`; learned from training rows.",
    "columns_": "A pandas frame that says what every column of X was taken for, how many features it became, how many "
    "training rows lacked it, and why.",
    "training_": "Steps and seconds of the training, and for each network the step whose weights were kept and whether "
    "it diverged.",
    "search_": 'What "auto" tried and how it scored, :class:`howsure.fitting.Search`; None if nothing was searched.',
    "inputs_": "How much networks count by what they see, :class:`dict` of weights whose sum is 1.",
    "scale_": "The factor for each target by which the mixture is stretched about its mean, (T,); None: not at all.",
    "fading_power_": "The power by which evidence fades with the distance from the training rows; None if it does not.",
    "unfamiliar_below_": "The familiarity below which 1 % of rows like the training rows are; None if nothing fades.",
    "conformal_": "How intervals were calibrated, :class:`howsure.fitting.conformal.SplitConformal` or "
    ":class:`~howsure.fitting.conformal.CrossConformal`; None without ``conformal``.",
    "fold_models_": 'With ``conformal="cv+"`` the models that each learned without a fold; else empty.',
    "target_names_": "Names of the targets, if y had any, else None.",
    "target_transform_": 'The transform of the target that was used: "positive", "log" or None.',
    "transform_": "Its numbers, :class:`howsure.distributions.Transform`, or None.",
    "n_features_in_": "Number of columns of X.",
    "feature_names_in_": "Names of the columns of X, if all of them are text.",
}


def _documented(cls: _Class) -> _Class:
    """Add to a regressor's docstring its parameters, from their fields, and the attributes that a fit sets."""
    own, *example = (cls.__doc__ or "").split("\n\n    >>>")
    entries: dict[str, dict[str, str]] = {"Parameters": {}, "Attributes": {}}
    for f in sorted(fields(cls), key=lambda f: bool(f.kw_only)):  # as in the signature: keyword-only ones last
        kind = inspect.formatannotation(f.type)
        entries["Parameters"][f"{f.name} : {kind}, default={f.default!r}"] = f.metadata["text"]
    entries["Attributes"] = dict(_ATTRIBUTES)
    if cls._auto is not None:
        entries["Attributes"][f"{cls._auto}_"] = f'The {cls._auto} that was used, or that "auto" chose.'
    lines = [own.rstrip()]
    for title, texts in entries.items():
        lines += ["", f"    {title}", f"    {'-' * len(title)}"]
        for name, text in texts.items():
            lines += [f"    {name}", textwrap.fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 8)]
    cls.__doc__ = "\n".join(lines) + "".join(f"\n\n    >>>{text}" for text in example)
    return cls


@_documented
@dataclass(eq=False, repr=False)
class EvidentialRegressor(Regressor):
    """Deep evidential regression for tables: a mixture of networks that each answer with an evidential distribution.

    >>> X, y = np.random.default_rng(0).random((50, 3)), np.arange(50.0)
    >>> model = EvidentialRegressor(members=2, steps=20, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    >>> model.predict_interval(X, coverage=0.9).shape
    (50, 2)
    """

    _auto = "evidence_weight"

    members: int | None = _parameter(
        None,
        "Networks in the mixture. None: 12, or 9 from 10,000 rows on. One is the paper's method; several identify how "
        "the variance divides into noise and doubt.",
    )
    evidence_weight: float | str = _parameter(
        0.01, 'λ of the evidence penalty, for standardised targets. "auto" chooses it by cross-validation.'
    )
    penalty: str = _parameter("error", "Name of the evidence penalty, see :mod:`howsure.formulas.penalties`.")
    evidence: str = _parameter(
        "fading",
        'What becomes of the evidence away from the training rows. "fading": less of it counts the farther away, so '
        'that intervals widen; how fast is learned from the training rows. "plain": all of it counts, as in the paper.',
    )
    inputs: str | tuple[str, ...] = _parameter(
        "auto",
        'What networks see of a row. "numbers": its features. "bins": also the place of each number in 16 bins of the '
        'training rows. "trees": also what boosted trees predict, learned out of fold. Several of these divide the '
        'networks among them, and held-out rows decide how much each kind counts. "auto": all three, or "numbers" for '
        "fewer than three networks or 50 rows.",
    )

    calibrated: bool = _parameter(
        True,
        "Whether a mixture is stretched about its mean by one factor for each target, learned from held-out rows: a "
        "mixture counts the disagreement of its networks twice. A single network stays as it is.",
    )

    def _method(self) -> Method:
        if not isinstance(self.penalty, str):
            raise InputError(f"penalty must be one of the names {', '.join(penalties.PENALTIES)}, got {self.penalty!r}")
        penalties.lookup(self.penalty)
        return Evidential(self._number_or_auto(0.01), self.penalty)


@_documented
@dataclass(eq=False, repr=False)
class EnsembleRegressor(Regressor):
    """A deep ensemble: networks with a Gaussian likelihood, trained together (Lakshminarayanan et al. 2017).

    >>> X, y = np.random.default_rng(0).random((50, 3)), np.arange(50.0)
    >>> model = EnsembleRegressor(members=3, steps=20, random_state=0).fit(X, y)
    >>> model.predict_distribution(X).epistemic_std.shape
    (50,)
    """

    members: int = _parameter(5, "Networks in the ensemble.")
    evidence: str = _parameter(
        "plain",
        '"fading": predictions widen away from the training rows, by a variance that is divided by the share of the '
        'evidence that counts there; how fast is learned from the training rows. "plain": the usual ensemble.',
    )
    inputs: str | tuple[str, ...] = _parameter(
        "numbers",
        'What networks see of a row. "numbers": its features. "bins": also the place of each number in 16 bins of the '
        'training rows. "trees": also what boosted trees predict, learned out of fold. Several of these divide the '
        'networks among them, and held-out rows decide how much each kind counts. "auto": all three, or "numbers" for '
        "fewer than three networks or 50 rows.",
    )

    def _method(self) -> Method:
        return NormalLikelihood()
