import os

import pytest
import torch
from torch.distributions import Distribution

if not torch.cuda.is_available():  # then Triton's interpreter runs kernels on the CPU, where a test asks for one
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="fail if a test is skipped: everything should be here")


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--no-skips") and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    skipped = len(terminalreporter.stats.get("skipped", []))
    if config.getoption("--no-skips") and skipped:
        terminalreporter.write_line(f"FAILED: {skipped} skipped, and --no-skips was asked for; reasons are below")


@pytest.fixture(autouse=True)
def _fresh_start():
    """A fixed seed, and validation on: the first torch.compile turns torch's default off for the whole process."""
    torch.manual_seed(0)
    Distribution.set_default_validate_args(True)
