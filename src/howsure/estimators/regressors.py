"""The regressors by name, and ``load``."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast, overload

import torch

from howsure.errors import InputError
from howsure.estimators.base import Regressor
from howsure.images import FittedImages
from howsure.likelihoods import Evidential, Method, NormalLikelihood
from howsure.network import NetworkModel, load_network
from howsure.storage import checked_header, load_model, reading_model
from howsure.tables.state import TableHeader

__all__ = ["EnsembleRegressor", "EvidentialRegressor", "load"]


@dataclass(eq=False, repr=False)
class EvidentialRegressor(Regressor):
    """Deep evidential regression for tables: a mixture of networks that each output an evidential distribution.

    Parameters
    ----------
    members : int, default=None
        Networks in the mixture. None: 12, or 9 from 10,000 rows on. One is the paper's method; several identify how
        the variance divides into aleatoric and epistemic.
    evidence_weight : float, default=0.01
        Weight λ of the evidence penalty, for standardized targets.
    evidence : {"conjugate", "edge", "plain"}, default="conjugate"
        "conjugate": evidence is computed from the features of the networks by Bayesian linear regression, so that
        intervals widen away from the training rows, as fast as fits without the ends of the data show. "edge": the same
        without these fits: the variance grows relative to that at the edge of the training rows. "plain": the evidence
        that the networks output, as in the paper.
    inputs : {"auto", "numbers", "bins", "trees", "bins+trees"} or tuple of these, default="auto"
        Inputs of the networks. "numbers": the features. "bins": also the place of each number in 16 bins. "trees":
        also out-of-fold predictions of boosted trees and of a forest. Several of these divide the networks among them.
        "auto": all three and a linear regression; no trees for fewer than 150 rows; only "numbers" for fewer than three
        networks or 50 rows.
    calibrated : bool, default=True
        Whether a mixture is stretched about its mean by one factor for each target, learned from held-out rows.

    See :class:`Regressor` for the parameters and attributes that all regressors have.

    >>> import numpy as np
    >>> X, y = np.random.default_rng(0).random((50, 3)), np.arange(50.0)
    >>> model = EvidentialRegressor(members=2, steps=20, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    >>> model.predict_interval(X, coverage=0.9).shape
    (50, 2)
    """

    members: int | None = None
    evidence_weight: float = 0.01
    evidence: str = "conjugate"
    inputs: str | tuple[str, ...] = "auto"
    calibrated: bool = True

    def _method(self) -> Method:
        return Evidential(self.evidence_weight)


@dataclass(eq=False, repr=False)
class EnsembleRegressor(Regressor):
    """A deep ensemble: networks with a normal likelihood, trained together (Lakshminarayanan et al. 2017).

    Parameters
    ----------
    members : int, default=5
        Networks in the ensemble.
    inputs : str or tuple of str, default="numbers"
        Inputs of the networks, as in :class:`EvidentialRegressor`.

    See :class:`Regressor` for the parameters and attributes that all regressors have.

    >>> import numpy as np
    >>> X, y = np.random.default_rng(0).random((50, 3)), np.arange(50.0)
    >>> model = EnsembleRegressor(members=3, steps=20, random_state=0).fit(X, y)
    >>> model.predict_distribution(X).epistemic_std.shape
    (50,)
    """

    members: int = 5
    inputs: str | tuple[str, ...] = "numbers"

    def _method(self) -> Method:
        return NormalLikelihood()


@overload
def load(path: str | Path, network: None = None) -> Regressor: ...
@overload
def load(path: str | Path, network: torch.nn.Module) -> NetworkModel: ...
def load(path: str | Path, network: torch.nn.Module | None = None) -> Regressor | NetworkModel:
    """Return the model that ``save`` wrote to a file.

    A model of images is read as well, though the type annotation is a regressor. ``FittedImages.load`` has its type.

    Args:
        path: of the file.
        network: the trained network, for a file that :meth:`NetworkModel.save` wrote: it has evidence and calibration
            only.

    Returns:
        A regressor, a :class:`~howsure.FittedImages`, or with ``network`` a :class:`~howsure.NetworkModel`.

    Raises:
        InputError: if the file is not a model, is damaged or from a newer version, or the network has other weights.

    >>> import tempfile
    >>> import numpy as np
    >>> X, y = np.random.default_rng(0).random((50, 3)), np.arange(50.0)
    >>> model = EvidentialRegressor(members=2, steps=20, random_state=0).fit(X, y)
    >>> path = model.save(tempfile.mkdtemp() + "/model.safetensors")
    >>> bool((load(path).predict(X) == model.predict(X)).all())
    True
    """
    if network is not None:
        return load_network(path, network)
    tensors, values = load_model(path)
    if values.get("model") == "network":
        raise InputError(f"{path} has the evidence of a network", hint="pass the network: hs.load(path, network)")
    if values.get("model") == "images":
        return cast(Regressor, FittedImages.restore(path, tensors, values))
    with reading_model(path):
        if values.get("model") == "incontext":
            regressor: Regressor = import_module("howsure.incontext.regressor").restore(tensors, values)
            return regressor
        header = checked_header(TableHeader, values)
        if header.estimator not in Regressor.registry:
            known = ", ".join(Regressor.registry)
            raise InputError(f"the estimator {header.estimator!r} is unknown; known are {known}")
        given = header.parameters.items()
        parameters: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given}
        return Regressor.registry[header.estimator](**parameters).restore(tensors, header)
