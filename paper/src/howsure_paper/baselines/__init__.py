"""Baselines of the paper: Monte Carlo dropout, Bayes by backprop, least squares."""

from howsure_paper.baselines.bayes import BayesByBackprop
from howsure_paper.baselines.dropout import MCDropout
from howsure_paper.baselines.least_squares import LeastSquares
from howsure_paper.baselines.population import BayesPopulation, DropoutPopulation

__all__ = ["BayesByBackprop", "BayesPopulation", "DropoutPopulation", "LeastSquares", "MCDropout"]
