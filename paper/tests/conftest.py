import os

import pytest
import torch
from torch.distributions import Distribution

if not torch.cuda.is_available():  # then the tests of kernels run in Triton's interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _fresh_start():
    """Set a fixed seed, and turn validation on: the first torch.compile turns it off for the whole process."""
    torch.manual_seed(0)
    Distribution.set_default_validate_args(True)
