"""The scikit-learn face of the methods: ``fit``, ``predict``, ``score``, and what a predictive distribution adds."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from evidentia.data.encoding import Encoding, Scaling
from evidentia.data.table import Table, read_table
from evidentia.errors import InputError
from evidentia.methods import (
    BayesByBackprop,
    Evidential,
    Fitted,
    GaussianLikelihood,
    MCDropout,
    Method,
    Network,
    Recipe,
    Search,
    fit,
    hold_out,
    search,
)
from evidentia.persistence import load_model, save_model
from evidentia.prediction import Prediction

__all__ = [
    "BayesRegressor",
    "DropoutRegressor",
    "EnsembleRegressor",
    "EvidentialRegressor",
    "GaussianRegressor",
    "load",
]

Array = NDArray[np.float64]


class _Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What the regressors share. Subclasses name their parameters and say which method they are."""

    _registry: ClassVar[dict[str, type["_Regressor"]]] = {}
    _auto: ClassVar[str | None] = None  # the parameter that may be "auto": what the method calls ``searched``

    members: int
    hidden: tuple[int, ...] | None
    steps: int | None
    batch_size: int | None
    learning_rate: float | None
    validation_share: float
    device: str
    random_state: Any
    verbose: bool

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        _Regressor._registry[cls.__name__] = cls

    def _method(self) -> Method:
        raise NotImplementedError

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Learn from a table X (array, pandas, polars or Arrow) and targets y, (N,) or (N, T).

        Columns may be numbers, booleans, text, categories or dates, with missing values. A fit that fails leaves the
        estimator as it was.
        """
        before = dict(self.__dict__)
        try:
            return self._fit(X, y, sample_weight)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> Self:  # noqa: N803
        table = self._read(X, reset=True)
        target = _read_target(y, table)
        rows = np.arange(table.rows)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, np.empty(table.rows), ensure_non_negative=True)
            rows = np.flatnonzero(weights)  # a row of weight 0 is not there
            if len(rows) < 2:
                raise InputError(f"only {len(rows)} rows have a positive weight; at least 2 are needed")
        self.encoding_ = Encoding.fit(_rows_of(table, rows))
        base = int(check_random_state(self.random_state).randint(2**31 - 1))
        seeds = np.random.SeedSequence(base).generate_state(_at_least_one("members", self.members), np.uint32)
        x = self.encoding_.transform(table)
        method = self._method()
        options: dict[str, Any] = {
            "recipe": self._recipe(method.recipe(len(rows))),
            "sample_weight": weights,
            "device": self.device,
            "progress": self.verbose,
        }
        method = self._choose(method, x, target, rows, base, options)
        members = hold_out(rows, [int(s) for s in seeds], _number("validation_share", self.validation_share, high=1))
        self.fitted_ = fit(method, x, target, members, **options)
        training = self.fitted_.training
        self.training_ = {
            "steps": training.steps,
            "seconds": training.seconds,
            "best_step": training.best_step.tolist(),
            "diverged": training.diverged.tolist(),
        }
        self.target_names_ = [str(c) for c in y.columns] if hasattr(y, "columns") else None
        return self

    def _choose(
        self, method: Method, x: Array, y: Array, rows: NDArray[np.int64], seed: int, options: dict[str, Any]
    ) -> Method:
        """The method with the number that "auto" stands for; what was tried is in ``search_``."""
        self.search_: Search | None = None
        if self._auto is None or method.searched is None:
            return method
        field = method.searched[0]
        if isinstance(getattr(self, self._auto), str):
            share = self.validation_share
            self.search_ = search(method, x, y, [rows], seed=seed, validation_share=share, **options)[0]
            method = replace(method, **{field: self.search_.chosen})  # type: ignore[type-var]
        setattr(self, f"{self._auto}_", getattr(method, field))
        return method

    def _number_or_auto(self, usual: float, high: float = np.inf) -> float:
        """The parameter that may be "auto", for which the usual value stands in until it is chosen."""
        assert self._auto is not None
        value = getattr(self, self._auto)
        if isinstance(value, str) and value == "auto":
            return usual
        return _number(self._auto, value, high, also="'auto' or ")

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:  # noqa: N803
        """The mean, (N,) or (N, T); with ``return_std`` also the standard deviation of the predictive distribution."""
        p = self.predict_distribution(X)
        return (p.mean, p.std) if return_std else p.mean

    def predict_distribution(self, X: Any) -> Prediction:  # noqa: N803
        """The whole predictive distribution, in the units of y."""
        check_is_fitted(self, "fitted_")
        table = self._read(X, reset=False)
        p = self.fitted_.predict(self.encoding_.transform(table))
        p.index, p.names = table.index, self.target_names_
        return p

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:  # noqa: N803
        """The central interval that holds a new y with this probability: lower and upper end in the last dimension."""
        return self.predict_distribution(X).interval(coverage)

    # Settings ---------------------------------------------------------------------------------------------------------

    def _recipe(self, suggested: Recipe) -> Recipe:
        """What was suggested, with the parameters that were given."""
        settings, network = suggested.settings, suggested.network
        if self.steps is not None:
            every = max(1, min(settings.evaluate_every, self.steps // 20))
            settings = replace(settings, steps=self.steps, evaluate_every=every)
        if self.learning_rate is not None:
            settings = replace(settings, learning_rate=self.learning_rate)
        if self.hidden is not None:
            network = replace(network, hidden=tuple(self.hidden))
        return Recipe(network, settings, self.batch_size or suggested.batch_size)

    def _read(self, X: Any, reset: bool) -> Table:  # noqa: N803
        """Scikit-learn's checks with its own words, then ours."""
        if hasattr(X, "columns") or hasattr(X, "column_names"):
            table = read_table(X)
            validate_data(self, X, reset=reset, skip_check_array=True)
            if reset and table.rows < 2:
                raise InputError(f"Found array with {table.rows} sample(s) while a minimum of 2 is required.")
            return table
        array = validate_data(
            self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=2 if reset else 0
        )
        return read_table(array)

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
        check_is_fitted(self, "fitted_")
        f = self.fitted_
        tensors = {f"population.{name}": p for name, p in f.population.state_dict().items()}
        for side, scaling in (("x", f.scale_x), ("y", f.scale_y)):
            tensors |= {f"{side}.loc": scaling.loc, f"{side}.scale": scaling.scale}
        parameters = self.get_params()
        state = parameters["random_state"]
        parameters["random_state"] = int(state) if isinstance(state, int | np.integer) else None
        population = f.population
        settings = {
            "estimator": type(self).__name__,
            "parameters": parameters,
            "encoding": self.encoding_.to_dict(),
            "network": {
                "seeds": list(population.seeds),
                "sizes": list(population.sizes),
                "activation": population.activation,
            },
            "chosen": None if self._auto is None else getattr(self, f"{self._auto}_"),
            "search": None if self.search_ is None else self.search_.to_dict(),
            "one_target": f.one_target,
            "target_names": self.target_names_,
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": list(map(str, self.feature_names_in_)) if hasattr(self, "feature_names_in_") else None,
            "training": self.training_,
        }
        return save_model(folder, tensors, settings)

    def _restore(self, tensors: dict[str, torch.Tensor], settings: dict[str, Any]) -> Self:
        saved = settings["network"]
        first, *hidden, last = saved["sizes"]
        network = Network(tuple(hidden), saved["activation"])
        method = self._method()
        if self._auto is not None and method.searched is not None:
            method = replace(method, **{method.searched[0]: settings["chosen"]})  # type: ignore[type-var]
            setattr(self, f"{self._auto}_", settings["chosen"])
        found = settings.get("search")
        self.search_ = None if found is None else Search.from_dict(found)
        population = method.build(saved["seeds"], first, last, network)
        prefix = "population."
        population.load_state_dict({k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)})
        self.encoding_ = Encoding.from_dict(settings["encoding"])
        self.fitted_ = Fitted(
            method,
            population.eval(),
            Scaling(tensors["x.loc"], tensors["x.scale"]),
            Scaling(tensors["y.loc"], tensors["y.scale"]),
            settings["one_target"],
        )
        self.training_ = settings["training"]
        self.target_names_ = settings["target_names"]
        self.n_features_in_ = settings["n_features_in"]
        if settings["feature_names_in"] is not None:
            self.feature_names_in_ = np.array(settings["feature_names_in"], dtype=object)
        return self


def load(folder: str | Path) -> "_Regressor":
    """The estimator that ``save`` wrote to this folder."""
    tensors, settings = load_model(folder)
    name = settings.get("estimator")
    if name not in _Regressor._registry:
        known = ", ".join(_Regressor._registry)
        raise InputError(f"{folder} holds a model of the unknown kind {name!r}; known are {known}")
    parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in settings["parameters"].items()}
    return _Regressor._registry[name](**parameters)._restore(tensors, settings)


def _number(name: str, value: Any, high: float = np.inf, also: str = "") -> float:
    """A number in [0, high)."""
    if isinstance(value, bool | str) or not isinstance(value, int | float | np.number) or not 0 <= value < high:
        span = "of at least 0" if high == np.inf else f"in [0, {high})"
        raise InputError(f"{name} must be {also}a number {span}, got {value!r}")
    return float(value)


def _at_least_one(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def _rows_of(table: Table, rows: NDArray[np.int64]) -> Table:
    return replace(table, columns=tuple(replace(c, values=c.values[rows]) for c in table.columns), rows=len(rows))


def _read_target(y: ArrayLike, table: Table) -> Array:
    if y is None:
        raise InputError("this regressor requires y to be passed, but the target y is None")
    target: Array = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim > 2:
        raise InputError(f"y must have shape (rows,) or (rows, targets), got {target.shape}")
    check_consistent_length(target, np.empty(table.rows))
    return target


class EvidentialRegressor(_Regressor):
    """Deep evidential regression for tables.

    Parameters
    ----------
        members: networks in the mixture. One is the paper's method; several identify the split of the variance.
        evidence_weight: λ of the evidence penalty, for standardised targets; "auto" chooses it by cross-validation.
        penalty: which penalty, see :mod:`evidentia.formulas.penalties`.
        hidden, steps, batch_size, learning_rate: by default from the number of rows.
        validation_share: of the rows, which each network keeps to decide when it was best; 0 trains to the end.
        device: "auto" (CUDA if there is one), "cpu", "cuda" or "mps".
        random_state: as in scikit-learn.
        verbose: show progress.

    >>> X, y = np.random.default_rng(0).random((50, 3)), np.arange(50.0)
    >>> model = EvidentialRegressor(members=2, steps=20, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    >>> model.predict_interval(X, coverage=0.9).shape
    (50, 2)
    """

    _auto = "evidence_weight"

    def __init__(
        self,
        members: int = 8,
        evidence_weight: float | str = 0.01,
        penalty: str = "error",
        hidden: tuple[int, ...] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_share: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.members = members
        self.evidence_weight = evidence_weight
        self.penalty = penalty
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_share = validation_share
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _method(self) -> Method:
        return Evidential(self._number_or_auto(0.01), self.penalty)


class EnsembleRegressor(_Regressor):
    """A deep ensemble: networks with a Gaussian likelihood, trained together (Lakshminarayanan et al. 2017).

    Parameters as for :class:`EvidentialRegressor`, without the evidence.
    """

    def __init__(
        self,
        members: int = 5,
        hidden: tuple[int, ...] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_share: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.members = members
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_share = validation_share
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _method(self) -> Method:
        return GaussianLikelihood()


class GaussianRegressor(_Regressor):
    """One network with a Gaussian likelihood: aleatoric uncertainty only.

    Parameters as for :class:`EnsembleRegressor`, without members.
    """

    members = 1

    def __init__(
        self,
        hidden: tuple[int, ...] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_share: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_share = validation_share
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _method(self) -> Method:
        return GaussianLikelihood()


class DropoutRegressor(_Regressor):
    """Monte Carlo dropout: one network with a Gaussian likelihood, ``samples`` thinned ones to predict with.

    Parameters as for :class:`GaussianRegressor`, with the number of ``samples`` and the ``dropout`` rate, which "auto"
    chooses by cross-validation.
    """

    members = 1
    _auto = "dropout"

    def __init__(
        self,
        samples: int = 5,
        dropout: float | str = 0.05,
        hidden: tuple[int, ...] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_share: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.samples = samples
        self.dropout = dropout
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_share = validation_share
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _method(self) -> Method:
        return MCDropout(_at_least_one("samples", self.samples), self._number_or_auto(0.05, high=1))


class BayesRegressor(_Regressor):
    """Bayes by backprop: a normal distribution over every weight, ``samples`` draws to predict with.

    Parameters as for :class:`GaussianRegressor`, with the number of ``samples`` and the deviation of the prior. The
    network is smaller and trains to the end on all rows: a normal distribution over every weight of a large network on
    few rows falls back to the prior, and the prior keeps it from overfitting.
    """

    members = 1

    def __init__(
        self,
        samples: int = 5,
        prior_std: float = 3.0,
        hidden: tuple[int, ...] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_share: float = 0.0,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.samples = samples
        self.prior_std = prior_std
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_share = validation_share
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _method(self) -> Method:
        if not self.prior_std > 0:
            raise InputError(f"prior_std must be greater than 0, got {self.prior_std}")
        return BayesByBackprop(_at_least_one("samples", self.samples), self.prior_std)
