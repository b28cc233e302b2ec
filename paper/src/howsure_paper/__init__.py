"""Deep Evidential Regression (Amini et al. 2020) reproduced: experiments, baselines, data sets and errata."""

__version__ = "0.1.0a1"
