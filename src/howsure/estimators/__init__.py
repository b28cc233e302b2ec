"""Regressors for tables, with the interface of scikit-learn."""

from howsure.estimators.base import Regressor
from howsure.estimators.regressors import EnsembleRegressor, EvidentialRegressor, load

__all__ = ["EnsembleRegressor", "EvidentialRegressor", "Regressor", "load"]
