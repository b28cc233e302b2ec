"""The pretrained network on arrays."""

import functools
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.distributions import NormalInverseGamma
from howsure.errors import InputError
from howsure.incontext.model import Context, Network
from howsure.prediction import Prediction
from howsure.threads import one_thread

__all__ = ["load_network", "predict", "read_context"]

Array = NDArray[np.float64]
WEIGHTS = Path(__file__).with_name("weights.safetensors")
MAX_ROWS = 2000  # in context
MAX_COLUMNS = 60
VIEWS = 2  # readings of a table that are averaged
ROWS_AT_ONCE = 1024  # of a prediction


@functools.cache
def load_network() -> Network:
    """Return the pretrained network in float32."""
    from safetensors.torch import load_file

    network = Network()
    network.load_state_dict({name: value.float() for name, value in load_file(WEIGHTS).items()})
    return network.eval().requires_grad_(False)


def read_context(x: Array, y: Array) -> Context:
    """Return the keys and values of training rows.

    Args:
        x: features (N, C); NaN where a cell is missing.
        y: targets (N,) or (N, T). Each column is a separate table.

    Raises:
        InputError: if there are more rows or columns than the network was trained for.
    """
    for size, most, name in ((x.shape[0], MAX_ROWS, "training rows"), (x.shape[1], MAX_COLUMNS, "features")):
        if size > most:
            hint = "fit EvidentialRegressor, or choose some of them"
            raise InputError(f"the in-context network reads at most {most:,} {name}, got {size:,}", hint=hint)
    targets = torch.from_numpy(y.reshape(len(y), -1).T.copy())
    table = torch.from_numpy(x).expand(len(targets), -1, -1)
    with one_thread():
        return load_network().fit(table, targets, VIEWS)


def predict(context: Context, x: Array) -> Prediction:
    """Return the predictive distributions of rows x (N, C), of the shape (N,) or (N, T) for several targets.

    Their components are Normal Inverse-Gamma distributions with a weight in each row.
    """
    network, targets = load_network(), len(context.experts.centre)
    with one_thread():
        rows = torch.from_numpy(x).expand(targets, -1, -1).split(ROWS_AT_ONCE, 1)
        parts = [network.predict(context, part) for part in rows]
    found = [torch.cat(part, 1).movedim(0, 1).movedim(2, 0) for part in zip(*parts, strict=True)]  # (K, N, T)
    weight, loc, log_nu, alpha, scale = (part[..., 0] if targets == 1 else part for part in found)
    given = NormalInverseGamma(loc, log_nu.exp(), alpha, alpha * (2 * scale).exp(), validate_args=False)
    return Prediction(given, members=0, weights=weight.exp())
