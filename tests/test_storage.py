"""Model files: what is saved is loaded; damaged, forged and foreign files raise one clear error."""

import errno
import json
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import howsure as hs
from howsure.errors import InputError
from howsure.storage import DIGEST, FORMAT, HEADER, _digest, checked_header, is_model, load_model, save_model

TENSORS = {"weights": torch.randn(3, 4), "steps": torch.arange(5)}


@dataclass(frozen=True)
class Header:
    method: str = "evidential"
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    scale: float | int | None = 1.5
    more: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def path(tmp_path):
    return save_model(tmp_path / "model.safetensors", TENSORS, Header())


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def forge(path, header, tensors=None):
    """A file with the right digest, whatever its header holds."""
    tensors, text = (
        TENSORS if tensors is None else tensors,
        json.dumps({"format": FORMAT, **header} if isinstance(header, dict) and header else header),
    )
    save_file(tensors, path, {HEADER: text, DIGEST: _digest(text, tensors)})
    return path


def test_saved_model_is_loaded(path):
    tensors, values = load_model(path)
    assert checked_header(Header, values) == Header()
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)
    assert names(path.parent) == ["model.safetensors"]
    assert is_model(path)


def test_model_is_replaced_without_overwrite(path):
    save_model(path, {"weights": torch.zeros(2)}, Header(method="other"))
    assert load_model(path)[0]["weights"].tolist() == [0, 0]
    assert names(path.parent) == ["model.safetensors"]


@pytest.mark.parametrize("content", [b"years of work", b"", b"\0" * 64, b"\xff" * 64, b'{"a": 1}'])
def test_foreign_file_is_replaced_only_with_overwrite(tmp_path, content):
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        save_model(path, TENSORS, Header())
    assert "overwrite" in error.value.hint
    assert path.read_bytes() == content
    with pytest.raises(InputError):
        load_model(path)
    save_model(path, TENSORS, Header(), overwrite=True)
    assert is_model(path)


def test_safetensors_file_of_others_is_foreign(tmp_path):
    save_file(TENSORS, tmp_path / "theirs.safetensors", {"format": "pt"})
    assert not is_model(tmp_path / "theirs.safetensors")
    with pytest.raises(InputError):
        save_model(tmp_path / "theirs.safetensors", TENSORS, Header())
    with pytest.raises(InputError):
        load_model(tmp_path / "theirs.safetensors")


def test_folder_is_never_replaced(tmp_path):
    (tmp_path / "model").mkdir()
    for overwrite in (False, True):
        with pytest.raises(InputError):
            save_model(tmp_path / "model", TENSORS, Header(), overwrite)
    with pytest.raises(InputError):
        load_model(tmp_path / "model")
    assert names(tmp_path / "model") == []


def test_failed_save_leaves_the_old_model(path, tmp_path, monkeypatch):
    with pytest.raises(InputError):
        save_model(path, TENSORS, Header(more={"what": object()}))

    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for each in (path, tmp_path / "new"):
        with pytest.raises(OSError) as error:
            save_model(each, {}, Header(method="new"))
        assert error.value.errno == errno.ENOSPC
    assert load_model(path)[1]["method"] == "evidential"
    assert names(tmp_path) == ["model.safetensors"]


def test_every_truncation_raises(path):
    content = path.read_bytes()
    for size in {0, 1, 7, 8, 9, len(content) // 3, len(content) // 2, len(content) - 1}:
        path.write_bytes(content[:size])
        with pytest.raises(InputError):
            load_model(path)


def test_every_changed_byte_raises(path):
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content), 150, replace=False):
        changed = content.copy()
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            tensors, values = load_model(path)
        except InputError:
            continue
        # padding of the header is not part of the model
        assert checked_header(Header, values) == Header()
        assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


@pytest.mark.parametrize("version", [FORMAT + 1, FORMAT - 1, 0, "3", None, [FORMAT]])
def test_other_format_raises(tmp_path, version):
    with pytest.raises(InputError) as error:
        load_model(forge(tmp_path / "m", {"format": version}))
    assert "format" in error.value.message


@pytest.mark.parametrize("header", [[], None, "text", 3, {}])
def test_header_without_format_raises(tmp_path, header):
    with pytest.raises(InputError):
        load_model(forge(tmp_path / "m", header))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": ' + "9" * 5000 + "}", "", '{"format": 3'])
def test_header_that_is_not_json_raises(tmp_path, text):
    save_file(TENSORS, tmp_path / "m", {HEADER: text, DIGEST: _digest(text, TENSORS)})
    with pytest.raises(InputError):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    "change",
    [
        {"method": 3},
        {"method": None},
        {"seeds": "12"},
        {"scale": True},
        {"scale": "1"},
        {"more": []},
        {"unknown": 1},
    ],
)
def test_header_of_another_type_raises(path, change):
    values = load_model(path)[1]
    with pytest.raises(InputError):
        checked_header(Header, values | change)
    del values["seeds"]
    with pytest.raises(InputError):
        checked_header(Header, values)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "missing"])
def test_path_that_is_not_a_plain_file_raises_at_once(path, kind):
    path.unlink()
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "loop": lambda p: p.symlink_to(p.name), "missing": lambda _: None}
    make[kind](path)
    with pytest.raises(InputError):
        load_model(path)
    assert not is_model(path)
    if kind != "missing":
        with pytest.raises((InputError, OSError)):
            save_model(path, TENSORS, Header())


def test_link_is_followed(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    save_model(link, TENSORS, Header(method="through"))
    assert link.is_symlink()
    assert load_model(path)[1]["method"] == "through"


def test_numbers_of_numpy_are_saved_as_plain_ones(tmp_path):
    more = {"members": np.int64(2), "rate": np.float32(0.5), "sizes": np.array([1, 2]), "yes": np.bool_(True)}
    values = load_model(save_model(tmp_path / "m", {}, Header(more=more)))[1]
    assert values["more"] == {"members": 2, "rate": 0.5, "sizes": [1, 2], "yes": True}


def test_file_has_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        path = save_model(tmp_path / "m", TENSORS, Header())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_writers_at_once_leave_one_whole_model(tmp_path):
    path = tmp_path / "m"
    each = [replace(Header(), seeds=[k]) for k in range(8)]
    threads = [threading.Thread(target=save_model, args=(path, TENSORS, header)) for header in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load_model(path)[1]["seeds"] in [header.seeds for header in each]
    assert names(tmp_path) == ["m"]


def test_folder_removed_before_it_is_opened_is_created_anew(tmp_path, monkeypatch):
    opened = os.open
    removed = []

    def remove_once(path, *args, **kwargs):
        if not removed and str(path).endswith(".scratch"):
            removed.append(path)
            Path(path).rmdir()
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", remove_once)
    save_model(tmp_path / "m", TENSORS, Header())
    assert removed
    assert names(tmp_path) == ["m"]


# Table models ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    return hs.EvidentialRegressor(members=3, hidden=(8,), steps=20, random_state=0).fit(x, x[:, 0])


@pytest.fixture
def parts(model, tmp_path):
    """The tensors and the header of a saved model."""
    return load_model(model.save(tmp_path / "whole"))


def test_every_missing_or_unknown_tensor_raises(parts, tmp_path):
    tensors, header = parts
    for name in tensors:
        if name in ("weights", "width"):  # optional
            continue
        rest = {key: t for key, t in tensors.items() if key != name}
        for changed in (rest, {**rest, name: tensors[name].flatten()[:-1]}, {**rest, name: None, "odd": tensors[name]}):
            plain = {key: t for key, t in changed.items() if t is not None}
            with pytest.raises(InputError):
                hs.load(forge(tmp_path / "m", header, plain))
    with pytest.raises(InputError):
        hs.load(forge(tmp_path / "m", header, {**tensors, "more": torch.ones(1)}))


def test_every_tensor_that_is_not_finite_raises(parts, tmp_path):
    tensors, header = parts
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or name == "scale_x.scale":
            continue
        for bad in (torch.nan, torch.inf):
            changed = tensor.clone()
            changed.view(-1)[0] = bad
            with pytest.raises(InputError):
                hs.load(forge(tmp_path / "m", header, {**tensors, name: changed}))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scale_y.scale", lambda t: -t),
        ("scale_x.scale", lambda t: t * 0),
        ("weights", lambda t: -t),
        ("width", lambda t: t * 0),
        ("robust.spread", lambda t: -t),
        ("networks.embedding.column", lambda t: t + 100),
        ("networks.embedding.column", lambda t: -1 - t),
        ("trees.boosted.columns", lambda t: t + 100),
        ("trees.boosted.columns", lambda t: t - 5),
        ("trees.boosted.leaves", lambda t: t * 0),
        ("trees.boosted.leaves", lambda t: t + 1),
        ("trees.forest.feature", lambda t: t * 0),
        ("trees.forest.feature", lambda t: t * 0 - 1),
        ("trees.forest.feature", lambda t: t + 100),
        ("trees.forest.feature", lambda t: t - 100),
    ],
)
def test_impossible_tensor_raises(parts, tmp_path, name, change):
    tensors, header = parts
    with pytest.raises(InputError):
        hs.load(forge(tmp_path / "m", header, {**tensors, name: change(tensors[name].clone())}))


@pytest.mark.parametrize(
    "change",
    [
        {"estimator": "os.system"},
        {"estimator": None},
        {"estimator": "EnsembleRegressor"},
        {"parameters": {"members": -3}},
        {"parameters": {"nonsense": 1}},
        {"activation": "exec"},
        {"one_target": 1},
        {"one_target": "yes"},
        {"method": {"name": "Laplace"}},
        {"method": {"name": "Evidential", "weight": "x"}},
        {"unfamiliar_below": 3},
        {"unfamiliar_below": True},
        {"target_names": ["a", "b"]},
        {"target_names": [3]},
        {"target_transform": {"kind": "exec"}},
        {"target_transform": {"kind": "positive", "scale": [1.0, 2.0], "shift": 0.0}},
        {"calibration": {"method": "conformal"}},
        {"calibration": {}},
        {"training": {}},
        {"columns": {"named": True, "encoders": []}},
        {"columns": {}},
        {"model": "images"},
        {"record": []},
    ],
)
def test_forged_header_raises(parts, tmp_path, change):
    tensors, header = parts
    with pytest.raises(InputError):
        hs.load(forge(tmp_path / "m", header | change, tensors))


def test_header_for_other_columns_raises(parts, tmp_path):
    tensors, header = parts
    columns = header["columns"] | {"encoders": header["columns"]["encoders"][:2]}
    with pytest.raises(InputError):
        hs.load(forge(tmp_path / "m", header | {"columns": columns}, tensors))


def test_default_model_is_small(model, tmp_path):
    assert model.save(tmp_path / "m").stat().st_size < 3e6


def test_loaded_model_is_saved_as_the_same_model(model, tmp_path):
    tensors, header = load_model(model.save(tmp_path / "a"))
    again, same = load_model(hs.load(tmp_path / "a").save(tmp_path / "b"))
    assert header == same
    assert tensors.keys() == again.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, again[name])
        assert tensor.dtype == again[name].dtype
