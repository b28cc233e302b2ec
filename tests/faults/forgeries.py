"""Forge model files with right checksums: loading must refuse each in one sentence, or the model must work."""

import copy
import json
import random
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save

import howsure as hs
from howsure import storage

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**30, 1e308, "", "x", "../../etc/passwd", [], [1], [[]], {}, {"a": 1}, [None] * 3,
    [3, 200_000_000, 4], list(range(40)), "number", "\ud800", 2.5,
)  # fmt: skip


def models() -> list[Any]:
    """Return small fitted models of every kind, each with the table that it knows."""
    g = np.random.default_rng(0)
    x = pd.DataFrame({"a": g.random(40), "b": g.choice(["u", "v"], 40), "c": pd.date_range("2020", periods=40)})
    y, two = g.random(40), g.random((40, 2))
    quick = {"hidden": (4,), "steps": 10, "random_state": 0}
    return [
        (hs.EvidentialRegressor(members=2, **quick).fit(x, y), x),
        (hs.EvidentialRegressor(members=1, **quick).fit(x, two), x),
        (hs.EnsembleRegressor(members=2, **quick).fit(x, y), x),
        (hs.EnsembleRegressor(members=1, **quick).fit(x, y), x),
    ]


def write(path: Path, header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write a model file with a right checksum, whatever it holds."""
    text = json.dumps({"format": storage.FORMAT, **header})
    path.write_bytes(save(tensors, {storage.HEADER: text, storage.DIGEST: storage._digest(text, tensors)}))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each value inside nested dicts and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, inner in items for place in _places(inner, (*path, key))]


def forge_header(header: dict[str, Any], choose: random.Random) -> str:
    """Change one place of the header; return what was done."""
    place = choose.choice(_places(header))
    inner: Any = header
    for key in place[:-1]:
        inner = inner[key]
    if choose.random() < 0.25:
        del inner[place[-1]]
        return f"without {place}"
    inner[place[-1]] = choose.choice(VALUES)
    return f"{place} = {str(inner[place[-1]])[:40]!r}"


def forge_tensors(tensors: dict[str, torch.Tensor], choose: random.Random) -> str:
    """Change one tensor; return what was done."""
    name = choose.choice(sorted(tensors))
    old = tensors.pop(name)
    how = choose.choice(
        ["drop", "rename", "double", "shape", "zeros", "nan", "negative", "extra", "huge", "integers", "float8"]
    )
    new = {
        "rename": ("population.other", old),
        "double": (name, old.to(torch.float64 if old.dtype == torch.float32 else torch.float32)),
        "shape": (name, old.flatten()),
        "zeros": (name, torch.zeros_like(old)),
        "nan": (name, torch.full_like(old, float("nan"))),
        "negative": (name, -old),
        "extra": (name, torch.cat([old.flatten(), old.flatten()])),
        "huge": (name, torch.full_like(old, 1e30)),
        "integers": (name, old.long()),
        "float8": (name, old.to(torch.float8_e4m3fn)),
    }.get(how)
    if new:
        tensors[new[0]] = new[1]
    return f"{how} {name}"


def verdict(path: Path, x: Any) -> str | None:
    """Return what is wrong with how a file was loaded; None if it was refused in one sentence, or its model works."""
    tracemalloc.start()
    try:
        model = hs.load(path)
        mean, std = model.predict(x, return_std=True)
        model.predict_interval(x)
        model.predict_distribution(x).to_frame()
        if not (len(mean) == len(x) and std.shape == mean.shape and not (std < 0).any()):
            return f"answers of shape {mean.shape}"
    except (hs.InputError, hs.InputTypeError) as error:
        return None if "\n" not in str(error) else f"more than one line: {error}"
    except ValueError as error:  # scikit-learn's own words about columns
        return None if "eature" in str(error) else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return f"{peak / 1e6:.0f} MB taken" if peak > 2e8 else None


def check(count: int = 100, seed: int = 0) -> tuple[int, list[str]]:
    """Forge and load ``count`` files; return how many were tried, and what failed."""
    choose, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        known = []
        for k, (model, x) in enumerate(models()):
            tensors, header = storage.load_model(model.save(Path(scratch) / f"model{k}"))
            known.append((header, tensors, x))
        for k in range(count):
            header, tensors, x = known[k % len(known)]
            header, tensors = copy.deepcopy(header), dict(tensors)
            done = forge_tensors(tensors, choose) if k % 3 == 0 else forge_header(header, choose)
            path = Path(scratch) / f"forged{k}"
            write(path, header, tensors)
            if (wrong := verdict(path, x)) is not None:
                failed.append(f"forgery {k} ({header.get('estimator')}, {done}): {wrong}")
    return count, failed
