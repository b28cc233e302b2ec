"""Settings of all tests, of the library and of the paper, and the Python blocks of README and docs as tests.

The blocks of a page share their names. A block ``text`` right after a Python block is its printed output. The words
must be the same, and numbers may differ by a tenth, because they depend on the processor.
``HOWSURE_WRITE_OUTPUT=1 pytest docs/page.md`` writes the output of each block that prints into the page.

A page whose first line is `<!-- test-extras: lightning torchmetrics -->` is run by `make test-extras`, which installs
the packages that the line names. `<!-- test-extras -->` stands on pages that need none, but processes or time. Where a
package is missing, the page is skipped, and the reason names it. Warnings of the packages are not errors there.
"""

import contextlib
import importlib.util
import io
import math
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from torch.distributions import Distribution

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's job in the background ignores interrupts, and so would the programs that tests interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)

if not torch.cuda.is_available():  # then Triton's interpreter runs kernels on the CPU, where a test needs one
    os.environ.setdefault("TRITON_INTERPRET", "1")

_OUTPUT = re.compile(r"```\s*\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
_OUTPUTS: dict[Path, list[tuple[int, str]]] = {}  # page: end of each block that printed, and its output


def same_output(printed: str, shown: str) -> bool:
    """Return whether two outputs have the same words, and numbers that differ by a tenth or 3% of the largest one."""

    def words(text: str) -> list[str]:
        return re.sub(r"[-─━]{2,}", "-", _NUMBER.sub(" # ", text)).split()

    def numbers(text: str) -> list[float]:
        return [float(found.replace(",", "").replace("−", "-")) for found in _NUMBER.findall(text)]

    first, second = numbers(printed), numbers(shown)
    margin = 0.03 * max(map(abs, first), default=0.0)
    close = (math.isclose(a, b, rel_tol=0.1, abs_tol=margin) for a, b in zip(first, second, strict=False))
    return words(printed) == words(shown) and all(close)


def run_block(example: Example) -> None:
    """Run a Python block, and compare its output with the block ``text`` that follows it, if there is one."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        PythonEvaluator()(example)
    end = example.document.text.index("```", example.region.end - 4)
    if printed.getvalue():
        _OUTPUTS.setdefault(Path(example.path), []).append((end, printed.getvalue()))
    shown = _OUTPUT.match(example.document.text, end)
    if shown and not os.environ.get("HOWSURE_WRITE_OUTPUT"):
        assert same_output(printed.getvalue(), shown[1]), (
            f"printed:\n{printed.getvalue()}\nbut the page shows:\n{shown[1]}"
        )


def write_outputs() -> None:
    """Write the printed outputs into the pages."""
    for page, outputs in _OUTPUTS.items():
        text = page.read_text(encoding="utf-8")
        for end, printed in sorted(outputs, reverse=True):
            shown = _OUTPUT.match(text, end)
            rest = text[shown.end() :] if shown else text[end + 3 :]
            text = f"{text[:end]}```\n```text\n{printed.rstrip()}\n```{rest}"
        page.write_text(text, encoding="utf-8")


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser("python", run_block), SkipParser()],
    patterns=[
        "README.md",
        "docs/*.md",
        "docs/recipes/*.md",
        "docs/reference/*.md",
        "paper/README.md",
        "paper/docs/*.md",
    ],
).pytest()

# modules that cannot be imported without a package; tests/test_cuda.py and make test-extras run them
_ROOT = Path(__file__).parent
_NEEDS = {
    _ROOT / "paper/src/howsure_paper/small_networks.py": "triton",
    _ROOT / "src/howsure/kernels/evidential_loss_triton.py": "triton",
    _ROOT / "src/howsure/contrib/botorch.py": "botorch",
    _ROOT / "src/howsure/contrib/skpro.py": "skpro",
    _ROOT / "src/howsure/metrics/streaming.py": "torchmetrics",
}
_POSIX = ("cli_info", "faults", "io_read", "io_write", "ray", "storage")  # need signals, fork, resource or links
collect_ignore = [str(module) for module, package in _NEEDS.items() if importlib.util.find_spec(package) is None]
if os.name == "nt":
    collect_ignore += [str(_ROOT / f"tests/test_{name}.py") for name in _POSIX]


def needed_packages(page: Path) -> list[str] | None:
    """Return the packages that the first line of a page names; None if `make test` runs the page."""
    with page.open(encoding="utf-8") as lines:
        found = re.fullmatch(r"<!-- test-extras(?:: ([\w ,]+?))? -->\n?", lines.readline())
    return re.findall(r"\w+", found[1] or "") if found else None


@pytest.hookimpl(tryfirst=True)  # before pytest looks at markers to leave tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark pages and modules for `make test-extras`, and skip pages where a package is missing."""
    extras_left_out = "not extras" in config.option.markexpr
    pages = {item.path: needed_packages(item.path) for item in items if isinstance(item, SybilItem)}
    for item in items:
        if item.path in _NEEDS:
            item.add_marker(pytest.mark.extras)
        packages = pages.get(item.path)
        if packages is None:
            continue
        if packages:  # warnings of other packages about each other are theirs; those from here stay errors
            item.add_marker(pytest.mark.filterwarnings("default", "error:::howsure"))
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}: make test-extras installs it"))
        if not (missing and extras_left_out):  # unmarked, `make test` names the page among the skipped ones
            item.add_marker(pytest.mark.extras)


@pytest.fixture(autouse=True)
def _fresh_start(request: pytest.FixtureRequest) -> None:
    """Set a fixed seed before a test of tests/ or paper/tests/, and turn validation on.

    The first torch.compile turns torch's default of validation off for the whole process.
    """
    if any(folder in request.path.parents for folder in (_ROOT / "tests", _ROOT / "paper/tests")):
        torch.manual_seed(0)
        Distribution.set_default_validate_args(True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --no-skips."""
    parser.addoption("--no-skips", action="store_true", help="fail if a test is skipped: everything should be here")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a test was skipped, with --no-skips, and write outputs into pages, if HOWSURE_WRITE_OUTPUT is set."""
    if os.environ.get("HOWSURE_WRITE_OUTPUT"):
        write_outputs()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--no-skips") and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many tests were skipped, with --no-skips."""
    skipped = len(terminalreporter.stats.get("skipped", []))
    if config.getoption("--no-skips") and skipped:
        terminalreporter.write_line(f"FAILED: {skipped} skipped, and --no-skips was asked for; reasons are below")
