"""The pretrained network as a scikit-learn regressor."""

import functools
from pathlib import Path

from howsure.incontext.model import Network

WEIGHTS = Path(__file__).with_name("weights.safetensors")


@functools.cache
def load_network(path: Path | None = None) -> Network:
    """Return the pretrained network in float32, by default with the weights of the package."""
    from safetensors.torch import load_file

    network = Network()
    network.load_state_dict({name: value.float() for name, value in load_file(path or WEIGHTS).items()})
    return network.eval().requires_grad_(False)
