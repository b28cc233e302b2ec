"""What holds for the package as a whole."""

import subprocess
import sys

import evidentia


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_for_plots_tables_or_commands():
    heavy = "{'matplotlib', 'pandas', 'sklearn', 'scipy', 'typer', 'rich', 'h5py', 'PIL', 'triton', 'onnx', 'pyarrow'}"
    loaded = run(
        f"import torch, sys; before = set(sys.modules); import evidentia; print(({heavy} & set(sys.modules)) - before)"
    )
    assert loaded == "set()"


def test_import_changes_no_global_state():
    code = """
import torch, warnings
from torch.distributions import Distribution
def state():
    return (torch.get_default_dtype(), torch.get_num_threads(), torch.random.get_rng_state().sum().item(),
            torch.is_grad_enabled(), Distribution._validate_args, torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(), list(warnings.filters), torch.is_default_dtype if False else None)
before = state()
import evidentia
print(before == state())
"""
    assert run(code) == "True"


def test_every_public_name_is_documented_and_exists():
    for name in evidentia.__all__:
        assert getattr(evidentia, name).__doc__, name
