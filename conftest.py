"""Runs the Python blocks of README and docs as tests: each page is one story, its blocks share their names."""

import importlib.util

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md"],
).pytest()

# written in Triton, which comes with torch where there is CUDA; tests/test_cuda.py runs them there
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/evidentia/kernels/*_networks.py"]
