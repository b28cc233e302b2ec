"""The wheel of howsure-paper has every file of the package, and nothing of howsure."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import howsure_paper

ROOT = Path(__file__).parents[1]


def test_wheel_has_every_file_of_the_package(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sources = (ROOT / "src" / "howsure_paper").rglob("*")
    files = {path.relative_to(ROOT / "src").as_posix() for path in sources if path.is_file() and path.suffix != ".pyc"}
    assert {f"howsure_paper/{name}" for name in ("uci/page.md", "depth/page.md", "markdown.html.j2")} <= files
    (packed,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(packed) as wheel:
        names = set(wheel.namelist())
    assert sorted(files - names) == []
    metadata = f"howsure_paper-{howsure_paper.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"howsure_paper", metadata}
