import json

import pytest
import torch

import evidentia as ev
from evidentia.persistence import load_model, save_model

TENSORS = {"weights": torch.randn(3, 4), "steps": torch.arange(5)}
SETTINGS = {"method": "evidential", "seeds": [1, 2], "scale": 1.5, "none": None}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model", TENSORS, SETTINGS)


def test_what_is_saved_is_loaded(folder):
    tensors, settings = load_model(folder)
    assert settings == SETTINGS
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)
    assert names(folder) == ["model.json", "model.safetensors"]
    assert names(folder.parent) == ["model"]


def test_a_model_is_replaced_and_anything_else_is_not(folder, tmp_path):
    save_model(folder, {"weights": torch.zeros(2)}, {})
    assert load_model(folder)[0]["weights"].tolist() == [0, 0]
    assert names(tmp_path) == ["model"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.txt").write_text("years of work")
    with pytest.raises(ev.InputError, match="exists and is not a model folder"):
        save_model(tmp_path / "thesis", TENSORS, {})
    assert (tmp_path / "thesis" / "text.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    save_model(tmp_path / "empty", TENSORS, {})


def test_a_failed_save_leaves_the_old_model(folder, tmp_path, monkeypatch):
    with pytest.raises(TypeError):
        save_model(folder, TENSORS, {"what": object()})
    with pytest.raises(ValueError, match="JSON compliant"):
        save_model(folder, TENSORS, {"what": float("nan")})

    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(folder, {}, {})
    assert load_model(folder)[1] == SETTINGS
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("file", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_damage_is_refused(folder, file, damage):
    path = folder / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(
            content.replace(b"evidential", b"evidentiaL") if file == "model.json" else content[:-1] + b"\x7f"
        )
    with pytest.raises(ev.InputError, match="missing" if damage == "missing" else "truncated|changed"):
        load_model(folder)


def test_a_newer_schema_is_refused(folder):
    body = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**body, "schema": 99}))
    with pytest.raises(ev.InputError, match=r"newer version of evidentia \(schema 99, this one knows 1\)"):
        load_model(folder)
    (folder / "model.json").write_text("[]")
    with pytest.raises(ev.InputError, match="does not describe a model"):
        load_model(folder)


def test_a_path_that_leaves_the_folder_is_refused(folder, tmp_path):
    outside = tmp_path / "outside.safetensors"
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)
    with pytest.raises(ev.InputError, match="leads out of the model folder"):
        load_model(folder)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ev.InputError, match="is not a folder"):
        load_model(tmp_path / "nothing")
