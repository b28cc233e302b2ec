"""Properties of the package as a whole."""

import ast
import itertools
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import howsure
import typed_example

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_for_plots_tables_or_commands():
    heavy = "{'matplotlib', 'pandas', 'sklearn', 'scipy', 'typer', 'rich', 'h5py', 'PIL', 'triton', 'onnx', 'pyarrow'}"
    used = "howsure.NIGHead, howsure.evidential_loss, howsure.NormalInverseGamma"  # imported when first used
    loaded = run(
        "import torch, sys; before = set(sys.modules); import howsure; "
        f"{used}; print(({heavy} & set(sys.modules)) - before)"
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
import howsure
howsure.NIGHead, howsure.evidential_loss, howsure.Prediction  # imported now
print(before == state())
"""
    assert run(code) == "True"


def test_every_public_name_is_documented_and_exists():
    for name in howsure.__all__:
        assert getattr(howsure, name).__doc__, name


def test_top_level_has_at_most_36_names():
    assert len(howsure.__all__) == len(set(howsure.__all__)) <= 36


def test_users_program_runs_and_is_checked():
    """mypy reads the same file (see pyproject.toml), and would complain where a type is lost."""
    assert "tests/typed_example.py" in (ROOT / "pyproject.toml").read_text()
    typed_example.main(rows=60, steps=20)


def build(target: str, folder: Path) -> Path:
    """Build an sdist or a wheel of this tree, and return its file."""
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (packed,) = (path for path in folder.iterdir() if path.suffix in (".gz", ".whl"))
    return packed


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory):
    """The unpacked sdist of this tree."""
    folder = tmp_path_factory.mktemp("sdist")
    packed = build("sdist", folder)
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / packed.name.removesuffix(".tar.gz")


@pytest.mark.extras
def test_source_distribution_has_the_imports_of_its_tests(source_distribution):
    environment = os.environ | {"PYTHONPATH": str(source_distribution / "src")}
    collect = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests",
        "README.md",
        "docs",
    ]
    done = subprocess.run(
        collect, cwd=source_distribution, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    for file in ("tests/test_project.py", "README.md", "docs/losses.md"):
        assert f"{file}::" in done.stdout, file


def test_source_distribution_has_the_files_of_its_tests(source_distribution):
    """Every text in a test that is the path of something in the repository."""
    tests = sorted((source_distribution / "tests").rglob("*.py"))
    assert len(tests) > 20
    named = set()
    for test in tests:
        for node in ast.walk(ast.parse(test.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isprintable():
                named.add(node.value)
    paths = {text for text in named if text and not text.startswith(("/", ".")) and len(text) < 200}
    # "out" is the default folder of commands, and "paper" the name of a decomposition
    there = {text for text in paths - {"out", "paper"} if (ROOT / text).exists()}
    assert {"pyproject.toml", "tests/typed_example.py"} <= there
    assert sorted(text for text in there if not (source_distribution / text).exists()) == []
    assert not (source_distribution / "docs" / "results").exists()  # photographs that are not ours
    assert not (source_distribution / "paper").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, open."""
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def test_wheel_and_source_distribution_have_every_file_of_the_package(source_distribution, wheel):
    """The templates of the report lie among the modules, and must be in both."""
    sources = (ROOT / "src" / "howsure").rglob("*")
    files = {path.relative_to(ROOT / "src").as_posix() for path in sources if path.is_file() and path.suffix != ".pyc"}
    assert {"howsure/report/report.html.j2", "howsure/report/page.css.j2", "howsure/py.typed"} <= files
    assert sorted(files - set(wheel.namelist())) == []
    assert sorted(file for file in files if not (source_distribution / "src" / file).is_file()) == []


def test_wheel_contains_nothing_of_the_paper(wheel):
    names = wheel.namelist()
    assert {name.partition("/")[0] for name in names} == {"howsure", f"howsure-{howsure.__version__}.dist-info"}
    parts = {part for name in names for part in name.split("/")[1:]}
    moved = {"reproduce", "datasets", "baselines", "studies", "depth", "toy", "uci"}
    moved |= {"bayes.py", "dropout.py", "errata.py", "fused.py", "least_squares.py", "record.py", "small_networks.py"}
    assert parts & moved == set()
    modules = {name: wheel.read(name).decode() for name in names if name.endswith(".py")}
    assert len(modules) > 100
    assert [name for name, text in modules.items() if re.search(r"(from|import) howsure_paper", text)] == []
    entry_points = wheel.read(f"howsure-{howsure.__version__}.dist-info/entry_points.txt").decode()
    assert entry_points.split() == ["[console_scripts]", "howsure", "=", "howsure.cli:main"]


SEARCHES = {"startswith", "endswith", "find", "index", "replace", "partition", "rpartition", "count"}
SEARCHES |= {"match", "search", "fullmatch", "findall", "finditer", "sub"}


def searches_in_messages(handler: ast.ExceptHandler) -> list[str]:
    """Return the expressions of an except block that search the text of its exception."""
    texts = {handler.name}

    def is_text(node: ast.AST) -> bool:
        return any(
            (isinstance(part, ast.Call) and ast.unparse(part.func) in ("str", "repr") and mentions(part.args))
            or (isinstance(part, ast.Attribute) and part.attr in ("message", "args") and mentions([part.value]))
            or (isinstance(part, ast.Name) and part.id in texts - {handler.name})
            for part in ast.walk(node)
        )

    def mentions(nodes: list[ast.expr]) -> bool:
        return any(isinstance(node, ast.Name) and node.id == handler.name for node in nodes)

    found = []
    for node in ast.walk(handler):
        if isinstance(node, ast.Assign) and is_text(node.value):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Compare) and any(map(is_text, [node.left, *node.comparators])):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            found += [ast.unparse(node)] if any(map(is_text, [node.func.value, *node.args])) else []
    return found


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("if 'order' in str(error): pass", 1),
        ("text = str(error)\n    re.search('order', text)", 1),
        ("error.message.startswith('order')", 1),
        ("error.args[0] == 'order'", 1),
        ("raise ValueError(f'no: {error}')", 0),
        ("text = str(error)\n    print(text)", 0),
    ],
)
def test_search_in_a_message_is_found(code, count):
    handler = ast.parse(f"try:\n    pass\nexcept ValueError as error:\n    {code}").body[0].handlers[0]
    assert len(searches_in_messages(handler)) == count


def test_no_module_searches_in_the_message_of_an_error():
    found = [
        f"{path.relative_to(ROOT)}: {expression}"
        for path in (ROOT / "src/howsure").rglob("*.py")
        for handler in ast.walk(ast.parse(path.read_text()))
        if isinstance(handler, ast.ExceptHandler) and handler.name is not None
        for expression in searches_in_messages(handler)
    ]
    assert found == []


MAX_WORDS = 2  # of a pattern that a test compares with a message: a name, a type or a number, and not a sentence


def values_of(name: str, test: ast.FunctionDef) -> list[ast.expr]:
    """Return the values that a parameter or a variable of a loop of a test takes, where the test lists them."""
    calls = [each for each in test.decorator_list if isinstance(each, ast.Call) and len(each.args) > 1]
    tables = [(call.args[0], call.args[1]) for call in calls]
    tables += [(loop.target, loop.iter) for loop in ast.walk(test) if isinstance(loop, ast.For)]
    values = []
    for target, rows in tables:
        names = re.findall(r"\w+", ast.unparse(target))
        if name in names:
            several = [row.elts if isinstance(row, ast.Tuple) else [row] for row in getattr(rows, "elts", [])]
            values += [row[names.index(name)] for row in several if len(row) == len(names)]
    return values


def words_of(pattern: ast.expr) -> list[str]:
    """Return the words in a pattern, each a text between spaces that has a letter."""
    texts = [node.value for node in ast.walk(pattern) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parts = " ".join(texts).replace(".*", " ").replace("|", " ").split()
    return [part for part in parts if re.search("[A-Za-z]", re.sub(r"\\[a-zA-Z]", "", part))]


def sentences_in_patterns(source: str) -> list[str]:
    """Return the patterns with more than two words that the tests of a module compare with messages."""
    found = []
    for test in ast.walk(ast.parse(source)):
        calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)] if is_test(test) else []
        patterns = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "match"]
        named = [value for each in patterns if isinstance(each, ast.Name) for value in values_of(each.id, test)]
        found += [ast.unparse(each) for each in [*patterns, *named] if len(words_of(each)) > MAX_WORDS]
    return found


def is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("match='rows of y are missing'", 1),
        ("match=f'{name} has no rows'", 1),
        ("match='rows.*of.*y'", 1),
        (r"match=r'\bnu\b.*\(3, 4\)'", 0),
        (r"match=r'target/a\.npy'", 0),
        ("match=message", 1),
    ],
)
def test_sentence_in_a_pattern_is_found(code, count):
    table = "@pytest.mark.parametrize(('x', 'message'), [(1, 'x'), (2, 'x must be at least 2')])\n"
    source = f"{table}def test_x(x, message):\n    with pytest.raises(ValueError, {code}):\n        f(x)\n"
    assert len(sentences_in_patterns(source)) == count


def test_no_test_compares_sentences_of_errors():
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "paper" / "tests").rglob("*.py")]
    found = {file.name: sentences for file in files if (sentences := sentences_in_patterns(file.read_text()))}
    assert found == {}


def test_every_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    known = {re.match(r"[\w-]+", each)[0] for each in declared} | {"howsure", "sklearn"}  # scikit-learn's package
    imported = {
        name.partition(".")[0]
        for path in (ROOT / "src/howsure").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported - known - sys.stdlib_module_names == set()
