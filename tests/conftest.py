import pytest
import torch
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def _fresh_start():
    """A fixed seed, and validation on: the first torch.compile turns torch's default off for the whole process."""
    torch.manual_seed(0)
    Distribution.set_default_validate_args(True)
