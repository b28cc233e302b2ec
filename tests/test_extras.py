"""What works without the extras, and what is loaded only when it is used."""

import subprocess
import sys
import tomllib
from pathlib import Path

EXTRAS = ("matplotlib", "typer", "rich", "PIL", "h5py")
# importing a module that sys.modules maps to None raises ModuleNotFoundError, as if it were not installed
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))\n"


def run(code: str, folder: Path | None = None) -> str:
    """Return what a new interpreter prints for the code, which must succeed without a warning."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_regressor_needs_no_extra(tmp_path):
    code = """
import numpy as np
import howsure as hs

rng = np.random.default_rng(0)
x = rng.standard_normal((60, 3))
y = x[:, 0] + 0.1 * rng.standard_normal(60)
model = hs.EvidentialRegressor(members=2, steps=20, device="cpu", verbose=True, random_state=0).fit(x, y)
mean, std = model.predict(x, return_std=True)
assert np.isfinite(mean).all() and (std > 0).all()
model.save("model")
assert (hs.load("model").predict(x) == mean).all()
print("done")
"""
    assert run(WITHOUT + code, tmp_path) == "done"


def test_figure_without_matplotlib_names_the_extra():
    code = """
from howsure import plots
from howsure.errors import InputError

try:
    plots.new_figure(1, 1, (3.0, 2.0))
except InputError as error:
    print(error)
"""
    assert 'pip install ".[plot]"' in run(WITHOUT + code)


def test_command_line_without_typer_names_the_extra():
    code = "sys.argv = ['howsure', '--help']; from howsure.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install ".[cli]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_no_module_imports_large_extras():
    """Only modules that are made of a package's own classes are not imported here."""
    code = """
import importlib, pkgutil, sys
import howsure

apart = {"howsure.metrics.streaming"}  # torchmetrics
apart |= {"howsure.kernels.evidential_loss_triton"}  # Triton
apart |= {"howsure.contrib.skpro", "howsure.contrib.botorch"}  # the package of this name
names = [module.name for module in pkgutil.walk_packages(howsure.__path__, "howsure.")]
for name in names:
    if not name.endswith("__main__") and name not in apart:
        importlib.import_module(name)
large = {"matplotlib", "PIL", "h5py", "ray", "openpyxl", "torchmetrics", "onnx", "onnxruntime", "onnxscript"}
large |= {"skpro", "botorch"}
print(len(names), sorted(large & set(sys.modules)))
"""
    count, found = run(code).split(maxsplit=1)
    assert int(count) > 50
    assert found == "[]"


def test_imports_change_no_global_state():
    """Except torch's registries of classes: of safe ones to load (for `torch.load`), of pytrees and of divergences."""
    code = """
import importlib, locale, logging, multiprocessing, os, pkgutil, random, signal, sys, threading, warnings
import numpy as np, pandas as pd, sklearn, torch, torch.distributions, torch.serialization
import torch.utils.data._utils.collate as collate
from sklearn import get_config

def state():
    return {
        "torch numbers": (torch.get_default_dtype(), torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "torch random": torch.get_rng_state().tolist(),
        "torch backends": (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32,
                           torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision(),
                           torch.are_deterministic_algorithms_enabled()),
        "torch collate": dict(collate.default_collate_fn_map),
        "torch validation": torch.distributions.Distribution._validate_args,
        "numpy": (np.geterr(), repr(np.random.get_state()), np.get_printoptions()),
        "random": random.getstate(),
        "pandas": {name: pd.get_option(name) for name in ("display.max_rows", "display.precision")},
        "sklearn": get_config(),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "paths": (list(sys.path), os.getcwd()),
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, sys.gettrace()),
        "logging": (list(logging.getLogger().handlers), logging.getLogger().level),
        "signals": {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)},
        "start method": multiprocessing.get_start_method(allow_none=True),
        "locale": locale.setlocale(locale.LC_ALL),
        "threads": threading.active_count(),
    }

before, safe = state(), set(torch.serialization.get_safe_globals())
import howsure
apart = {"howsure.metrics.streaming", "howsure.kernels.evidential_loss_triton"}  # of torchmetrics' and Triton's classes
apart |= {"howsure.contrib.skpro", "howsure.contrib.botorch"}
for module in pkgutil.walk_packages(howsure.__path__, "howsure."):
    if not module.name.endswith("__main__") and module.name not in apart:
        importlib.import_module(module.name)
        after = state()
        changed = [name for name in before if before[name] != after[name]]
        assert not changed, (module.name, changed)
added = set(torch.serialization.get_safe_globals()) - safe
print(sorted(each.__name__ for each in added if each.__module__.startswith("howsure.")))
assert all(each.__module__.startswith("howsure.distributions.") for each in added)
"""
    assert run(code) == "['Mixture', 'Normal', 'NormalInverseGamma', 'StudentT']"


def test_help_imports_no_matplotlib():
    code = """
import sys
sys.argv = ["howsure", "--help"]
from howsure.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
print("loaded:", sorted({"matplotlib", "pandas", "sklearn"} & set(sys.modules)))
"""
    shown = run(code)
    assert "predict" in shown
    assert shown.endswith("loaded: []")


def test_extra_all_has_the_packages_of_the_others():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    # peers, browser and recipes are for a benchmark and for tests; the others for those who work with such a package
    apart = {"all", "dev", "peers", "browser", "recipes", "ray", "onnx", "torchmetrics", "skpro", "botorch", "docs"}
    assert everything == f"howsure[{','.join(sorted(set(extras) - apart))}]"
    assert "howsure[all]" in extras["dev"]
    needed = {text.split(">")[0] for text in project["dependencies"]}
    assert needed == {"torch", "numpy", "pandas", "safetensors", "scikit-learn", "scipy", "threadpoolctl", "tqdm"}
