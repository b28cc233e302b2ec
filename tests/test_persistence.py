import json

import pytest
import torch
from howsure.persistence import load_model, save_model

import howsure as hs

TENSORS = {"weights": torch.randn(3, 4), "steps": torch.arange(5)}
SETTINGS = {"method": "evidential", "seeds": [1, 2], "scale": 1.5, "none": None}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def tensors_of(folder):
    (path,) = folder.glob("tensors-*.safetensors")
    return path


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model", TENSORS, SETTINGS)


def test_what_is_saved_is_loaded(folder):
    tensors, settings = load_model(folder)
    assert settings == SETTINGS
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)
    assert names(folder) == ["model.json", tensors_of(folder).name]
    assert names(folder.parent) == ["model"]


def test_a_model_is_replaced_and_anything_else_is_not(folder, tmp_path):
    save_model(folder, {"weights": torch.zeros(2)}, {})
    assert load_model(folder)[0]["weights"].tolist() == [0, 0]
    assert names(tmp_path) == ["model"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.txt").write_text("years of work")
    with pytest.raises(hs.InputError, match=r"'text\.txt'"):
        save_model(tmp_path / "thesis", TENSORS, {})
    assert (tmp_path / "thesis" / "text.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    save_model(tmp_path / "empty", TENSORS, {})


def test_a_failed_save_leaves_the_old_model(folder, tmp_path, monkeypatch):
    with pytest.raises(TypeError):
        save_model(folder, TENSORS, {"what": object()})
    with pytest.raises(ValueError, match="JSON"):
        save_model(folder, TENSORS, {"what": float("nan")})

    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="space"):
        save_model(folder, {}, {})
    assert load_model(folder)[1] == SETTINGS
    assert names(folder) == ["model.json", tensors_of(folder).name]
    with pytest.raises(OSError, match="space"):
        save_model(tmp_path / "new", {}, {})
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("file", ["model.json", "tensors"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_damage_is_refused(folder, file, damage):
    path = folder / file if file == "model.json" else tensors_of(folder)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(
            content.replace(b"evidential", b"howsureL") if file == "model.json" else content[:-1] + b"\x7f"
        )
    with pytest.raises(hs.InputError, match="missing" if damage == "missing" else "changed"):
        load_model(folder)


def test_a_newer_schema_is_refused(folder):
    body = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**body, "schema": 99}))
    with pytest.raises(hs.InputError, match="schema"):
        load_model(folder)
    (folder / "model.json").write_text("[]")
    with pytest.raises(hs.InputError, match="model"):
        load_model(folder)


def test_a_path_that_leaves_the_folder_is_refused(folder, tmp_path):
    outside = tmp_path / "outside.safetensors"
    inside = tensors_of(folder)
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(hs.InputError, match="model"):
        load_model(folder)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(hs.InputError, match="folder"):
        load_model(tmp_path / "nothing")


def test_a_model_of_the_first_schema_is_read_and_replaced(tmp_path):
    """As it was written before tensors were named by their hash."""
    import hashlib

    from safetensors.torch import save_file

    folder = tmp_path / "old"
    folder.mkdir()
    save_file(TENSORS, folder / "model.safetensors")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    body = {"schema": 1, "tensors_sha256": digest, "settings": SETTINGS}
    total = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (folder / "model.json").write_text(json.dumps({**body, "sha256": total}))
    tensors, settings = load_model(folder)
    assert settings == SETTINGS
    assert torch.equal(tensors["weights"], TENSORS["weights"])
    save_model(folder, {"weights": torch.ones(1)}, {})
    assert names(folder) == ["model.json", tensors_of(folder).name]
    assert load_model(folder)[0]["weights"].tolist() == [1]


@pytest.mark.parametrize("content", ['{"schema": 7}', '{"name": "theirs"}', "[]", "not json", "", '{"schema": true}'])
def test_a_strangers_folder_is_never_touched(tmp_path, content):
    project = tmp_path / "proj"
    (project / "src").mkdir(parents=True)
    files = {"model.json": content, "thesis.txt": "years of work", "src/main.py": "print()"}
    for name, text in files.items():
        (project / name).write_text(text)
    for name in ("thesis.txt", "src"):
        with pytest.raises(hs.InputError, match=r"model\.json|thesis\.txt"):
            save_model(project, TENSORS, SETTINGS)
        assert (project / name).exists()
    assert {n: (project / n).read_text() for n in files} == files
    assert names(project) == ["model.json", "src", "thesis.txt"]


def test_files_beside_a_model_of_ours_are_in_the_way(folder):
    (folder / "notes.md").write_text("how it was made")
    (folder / "data").mkdir()
    with pytest.raises(hs.InputError, match="'data'"):
        save_model(folder, TENSORS, SETTINGS)
    assert (folder / "notes.md").read_text() == "how it was made"
    assert load_model(folder)[1] == SETTINGS  # it can still be read


def test_the_current_folder_and_links(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    save_model(".", TENSORS, {"here": 1})
    assert load_model(".")[1] == {"here": 1}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hs.InputError, match="'model'"):
        save_model(".", TENSORS, SETTINGS)
    (tmp_path / "link").symlink_to(folder)
    save_model("link", TENSORS, {"through": "link"})
    assert (tmp_path / "link").is_symlink()
    assert load_model(folder)[1] == {"through": "link"}
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.txt").write_text("years of work")
    (tmp_path / "other").symlink_to(tmp_path / "thesis")
    with pytest.raises(hs.InputError, match=r"text\.txt"):
        save_model("other", TENSORS, SETTINGS)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling", "file/below"):
        with pytest.raises(hs.InputError, match="folder"):
            save_model(name, TENSORS, SETTINGS)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_killed_save_left_is_removed_by_the_next(folder, tmp_path):
    import hashlib

    rest = hashlib.sha256(b"half").hexdigest()[:16]
    for place in (folder, tmp_path / "first"):
        place.mkdir(exist_ok=True)
        (place / f"tensors-{rest}.safetensors").write_bytes(b"half")
        (place / ".model.json.01234567.part").write_bytes(b"{")
        save_model(place, TENSORS, SETTINGS)
        assert names(place) == ["model.json", tensors_of(place).name]
    # a file that only looks like one of ours is somebody's
    (folder / "tensors-0123456789abcdef.safetensors").write_bytes(b"mine")
    with pytest.raises(hs.InputError, match="tensors-0123456789abcdef"):
        save_model(folder, TENSORS, SETTINGS)
    assert (folder / "tensors-0123456789abcdef.safetensors").read_bytes() == b"mine"


def forge(folder, body, tensors=None):
    """A folder whose checksums are right, whatever it holds."""
    import hashlib

    from safetensors.torch import save

    data = save(TENSORS if tensors is None else tensors)
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(exist_ok=True)
    (folder / f"tensors-{digest[:16]}.safetensors").write_bytes(data)
    named = {"tensors": f"tensors-{digest[:16]}.safetensors", "tensors_sha256": digest, "tensors_bytes": len(data)}
    body = {**named, "settings": {}, **body}
    total = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (folder / "model.json").write_text(json.dumps({**body, "sha256": total}))
    return folder


@pytest.mark.parametrize("schema", [0, -5, True, 1.0, "1", None])
def test_odd_schemas_are_refused(tmp_path, schema):
    with pytest.raises(hs.InputError, match="model"):
        load_model(forge(tmp_path / "m", {"schema": schema}))


def test_weights_that_are_not_finite_are_refused(tmp_path):
    for bad in (float("nan"), float("inf")):
        folder = forge(tmp_path / "m", {"schema": 2}, {"w": torch.tensor([1.0, bad])})
        with pytest.raises(hs.InputError, match="'w'"):
            load_model(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": []},
        {"settings": None},
        {"tensors": "../outside.safetensors"},
        {"tensors": 3},
        {"tensors": "tensors-0123456789abcdef.safetensors"},
        {"tensors_sha256": None},
        {"tensors_bytes": None},
        {"tensors_bytes": 3},
    ],
)
def test_forged_bodies_are_refused(tmp_path, change):
    with pytest.raises(hs.InputError):
        load_model(forge(tmp_path / "m", {"schema": 2, **change}))


def test_deep_and_huge_json_is_refused(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for text in ("[" * 100_000, '{"schema": ' + "9" * 5000 + "}", '{"schema": NaN}', "\udcff"):
        (folder / "model.json").write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(hs.InputError):
            load_model(folder)


def test_numpy_settings_are_saved_as_plain_ones(tmp_path):
    import numpy as np

    settings = {"members": np.int64(2), "rate": np.float32(0.5), "sizes": np.array([1, 2]), "yes": np.bool_(True)}
    assert load_model(save_model(tmp_path / "m", {}, settings))[1] == {
        "members": 2,
        "rate": 0.5,
        "sizes": [1, 2],
        "yes": True,
    }


def test_files_have_the_permissions_of_the_users_umask(tmp_path):
    import os

    before = os.umask(0o077)
    try:
        folder = save_model(tmp_path / "m", TENSORS, SETTINGS)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_tensors_that_are_not_what_was_saved_are_somebodys(folder, tmp_path):
    tensors = tensors_of(folder)
    tensors.write_bytes(b"my notes")
    with pytest.raises(hs.InputError, match="model"):
        save_model(folder, {"w": torch.ones(2)}, SETTINGS)
    assert tensors.read_bytes() == b"my notes"
    tensors.unlink()
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    tensors.symlink_to(precious)
    with pytest.raises(hs.InputError, match="model"):
        save_model(folder, TENSORS, SETTINGS)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("file", ["model.json", "tensors"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "sparse"])
def test_what_is_no_plain_file_is_refused_at_once(folder, file, kind):
    import os

    path = folder / file if file == "model.json" else tensors_of(folder)
    if kind == "sparse":
        os.truncate(path, 1 << 30)
    else:
        path.unlink()
        {"pipe": os.mkfifo, "folder": os.mkdir, "loop": lambda p: p.symlink_to(p.name)}[kind](path)
    with pytest.raises((hs.InputError, OSError)) as caught:
        load_model(folder)
    assert isinstance(caught.value, hs.InputError)
    with pytest.raises(hs.InputError):
        save_model(folder, {"w": torch.ones(2)}, SETTINGS)


def test_a_number_that_json_reads_as_infinite_is_refused(folder):
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"scale": 1.5', '"scale": 1e400'))
    with pytest.raises(hs.InputError, match="JSON"):
        load_model(folder)


def test_a_waiting_writer_notices_that_its_folder_was_removed(tmp_path):
    """Another process made the folder, failed, and removed it again."""
    import threading

    from howsure.files import locked

    folder = tmp_path / "model"
    done = []
    with locked(folder):
        waiting = threading.Thread(target=lambda: done.append(save_model(folder, TENSORS, SETTINGS)))
        waiting.start()
        waiting.join(0.3)
        folder.rmdir()
    waiting.join(10)
    assert done
    assert load_model(folder)[1] == SETTINGS


def test_names_of_any_legal_length_are_written(tmp_path):
    from howsure.files import write_text

    for name in ("n" * 255, "ü" * 120):
        write_text(tmp_path / name, "text")
        assert (tmp_path / name).read_text(encoding="utf-8") == "text"
    with pytest.raises(hs.InputError, match="folder"):
        save_model("a\0b", TENSORS, SETTINGS)
