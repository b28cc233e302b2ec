import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

import howsure as hs
from howsure.images.folders import load_images, load_pairs

Image = pytest.importorskip("PIL.Image")

SIZE = (6, 8)
COLOR = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
VALUES = np.arange(48).reshape(SIZE)


def save_image(path, array=COLOR):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def save_target(path, array=VALUES):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".npy":
        with path.open("wb") as file:  # by name, NumPy would add a second suffix to .NPY
            np.save(file, array)
    else:
        Image.fromarray(array).save(path)


# Pairs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path):
    """Two pairs: targets as floats, and as integers."""
    folder = tmp_path / "pairs"
    for name, shift, dtype in (("b", 0, np.float32), ("a", 100, np.int64)):
        save_image(folder / "image" / f"{name}.png", COLOR + np.uint8(shift))
        save_target(folder / "target" / f"{name}.npy", (VALUES + shift).astype(dtype))
    return folder


def pack(folder, inside=""):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, inside + file.relative_to(folder).as_posix())
    return path


@pytest.mark.parametrize("place", ["folder", "zip", "zip of the folder", "folder of the folder"])
def test_pairs_in_the_order_of_their_names(pairs, place):
    (pairs / "image" / "notes.txt").write_text("not an image")
    (pairs / ".git").mkdir()
    path = {
        "folder": lambda: pairs,
        "zip": lambda: pack(pairs),
        "zip of the folder": lambda: pack(pairs, "pairs/"),
        "folder of the folder": lambda: pairs.parent,
    }[place]()
    found, maps, names = load_pairs(path)
    assert names == ["a", "b"]
    assert found.dtype == np.uint8
    assert np.array_equal(found, [COLOR + np.uint8(100), COLOR])
    assert maps.dtype == np.float32
    assert np.array_equal(maps, [VALUES + 100, VALUES])


def test_folders_inside_are_part_of_the_name(pairs):
    save_image(pairs / "image" / "den" / "a.png")
    save_target(pairs / "target" / "den" / "a.npy", VALUES / 2)
    _, maps, names = load_pairs(pairs)
    assert names == ["a", "b", "den/a"]
    assert np.array_equal(maps[2], (VALUES / 2).astype(np.float32))


@pytest.mark.parametrize(
    ("suffix", "array"),
    [
        (".npy", VALUES.astype(np.float64) / 7),
        (".npy", VALUES.astype(np.float16)),
        (".npy", VALUES.astype(">f4")),
        (".npy", VALUES.astype(np.uint8)),
        (".npy", -VALUES.astype(np.int32)),
        (".npy", np.asfortranarray(VALUES)),
        (".npy", VALUES[..., None].astype(np.float32)),
        (".NPY", VALUES),
        (".png", VALUES.astype(np.uint8)),
        (".png", 1000 * VALUES.astype(np.uint16)),
        (".PNG", VALUES.astype(np.uint16)),
        (".tif", VALUES.astype(np.uint8)),
        (".TIFF", 1000 * VALUES.astype(np.uint16)),
        (".tif", -100_000 * VALUES.astype(np.int32)),
        (".tiff", VALUES.astype(np.float32) / 7),
    ],
)
def test_targets_are_taken_as_they_are(tmp_path, suffix, array):
    save_image(tmp_path / "image" / "x.JPG")
    save_target(tmp_path / "target" / f"x{suffix}", array)
    _, maps, names = load_pairs(tmp_path)
    assert names == ["x"]
    assert maps.shape == (1, *SIZE)
    assert np.array_equal(maps[0], array.reshape(SIZE).astype(np.float32))


def test_unknown_targets(pairs):
    values = VALUES.astype(np.float32)
    values[2, 3] = np.nan
    save_target(pairs / "target" / "b.npy", values)
    save_target(pairs / "target" / "a.npy", VALUES % 5)
    _, maps, _ = load_pairs(pairs)
    assert np.argwhere(np.isnan(maps)).tolist() == [[1, 2, 3]]
    _, maps, _ = load_pairs(pairs, unknown=0)
    assert np.array_equal(np.isnan(maps[0]), VALUES % 5 == 0)
    assert np.argwhere(np.isnan(maps[1])).tolist() == [[0, 0], [2, 3]]
    assert np.nanmax(maps[1]) == 47


@pytest.mark.parametrize(
    ("suffix", "array", "unknown", "gaps"),
    [
        (".png", 65535 - VALUES.astype(np.uint16), 65535, [[0, 0]]),
        (".tif", 0.1 + VALUES.astype(np.float32), 0.1, [[0, 0]]),
        (".npy", 0.1 + VALUES, np.float64(0.1), [[0, 0]]),
        (".npy", np.where(VALUES == 0, np.inf, VALUES), float("inf"), [[0, 0]]),
        (".npy", VALUES.astype(np.uint8), -1, []),
        (".png", VALUES.astype(np.uint8), 300, []),
    ],
)
def test_any_value_can_mark_unknown_targets(tmp_path, suffix, array, unknown, gaps):
    save_image(tmp_path / "image" / "x.png")
    save_target(tmp_path / "target" / f"x{suffix}", array)
    _, maps, _ = load_pairs(tmp_path, unknown)
    assert np.argwhere(np.isnan(maps[0])).tolist() == gaps


def test_frame_without_known_targets_is_fine_but_a_set_is_not(pairs):
    save_target(pairs / "target" / "a.npy", np.full(SIZE, np.nan))
    assert np.isnan(load_pairs(pairs)[1][0]).all()
    save_target(pairs / "target" / "b.npy", np.zeros(SIZE))
    with pytest.raises(hs.InputError, match="NaN"):
        load_pairs(pairs, unknown=0)
    save_target(pairs / "target" / "b.npy", np.full(SIZE, np.nan))
    with pytest.raises(hs.InputError, match="NaN"):
        load_pairs(pairs)


@pytest.mark.parametrize("unknown", ["0", True, [0]])
def test_marker_of_unknown_targets_is_a_number(pairs, unknown):
    with pytest.raises(hs.InputError, match="unknown"):
        load_pairs(pairs, unknown)


def write(name, content):
    def change(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return change


def target(name, array):
    return lambda folder: save_target(folder / "target" / name, array)


def image(name, array):
    return lambda folder: save_image(folder / "image" / name, array)


def remove(*names):
    def change(folder):
        for name in names:
            for path in sorted(folder.glob(name)):
                path.unlink()

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("image/*"), r"image/0001\.png"),
        (remove("target/*"), r"target/0001\.npy"),
        (remove("*/*"), "pairs"),
        (remove("target/a.npy"), r"\ba\b"),
        (remove("image/b.png"), r"\bb\b"),
        (image("a.JPG", COLOR), r"image/a\.JPG"),
        (target("a.png", COLOR[..., 0]), r"target/a\.npy"),
        (image("b.png", COLOR[:, 1:]), r"image/b\.png"),
        (target("b.npy", VALUES[1:]), r"target/b\.npy"),
        (target("a.npy", VALUES.T), r"target/a\.npy"),
        (write("image/a.png", b"not an image"), r"image/a\.png"),
        (write("target/a.npy", b""), r"target/a\.npy"),
        (write("target/a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': 3    }"), r"target/a\.npy"),
        (target("a.npy", np.where(VALUES == 9, np.inf, VALUES)), r"target/a\.npy"),
        (target("a.npy", VALUES * 1e300), r"target/a\.npy"),
        (target("a.npy", np.stack([VALUES] * 3, -1)), r"int64 \(6, 8, 3\)"),
        (target("a.npy", VALUES[None]), r"int64 \(1, 6, 8\)"),
        (target("a.npy", VALUES.ravel()), r"int64 \(48,\)"),
        (target("a.npy", np.zeros((0, 8))), r"float64 \(0, 8\)"),
        (target("a.npy", VALUES > 3), "bool"),
        (target("a.npy", VALUES * 1j), "complex128"),
        (target("a.npy", VALUES.astype("M8[s]")), "datetime64"),
        (target("a.npy", np.array([["x"]])), "<U1"),
        (target("a.npy", np.array([[{}]], object)), "object"),
    ],
)
def test_damaged_sets_are_named(pairs, damage, message):
    damage(pairs)
    with pytest.raises(hs.InputError, match=message):
        load_pairs(pairs)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "1"])
def test_targets_are_not_colors(pairs, mode):
    (pairs / "target" / "a.npy").unlink()
    Image.fromarray(VALUES.astype(np.uint8)).convert(mode).save(pairs / "target" / "a.png")
    with pytest.raises(hs.InputError, match=r"target/a\.png"):
        load_pairs(pairs)


def test_truncated_target(pairs):
    path = pairs / "target" / "a.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(hs.InputError, match=r"target/a\.npy"):
        load_pairs(pairs)
    path.unlink()
    save_target(path.with_suffix(".tif"), np.random.default_rng(0).random(SIZE, np.float32))
    content = path.with_suffix(".tif").read_bytes()
    path.with_suffix(".tif").write_bytes(content[: len(content) // 2])
    with pytest.raises(hs.InputError, match=r"target/a\.tif"):
        load_pairs(pairs)


def test_several_sets_in_one_folder(pairs):
    pairs.rename(pairs.parent / "train")
    save_image(pairs.parent / "test" / "image" / "a.png")
    with pytest.raises(hs.InputError, match="'test/'"):
        load_pairs(pairs.parent)


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(hs.InputError, match="none"):
        load_pairs(tmp_path / "none")


def declared_npy(shape, dtype="<f4"):
    """A .npy of a few bytes that declares to be this large."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(64)


@pytest.mark.parametrize(
    "shape",
    [(10**6, 10**6), (4000, 4000)],
)
def test_array_that_declares_more_than_it_holds(pairs, shape):
    (pairs / "target" / "a.npy").write_bytes(declared_npy(shape))
    packed = pack(pairs)
    tracemalloc.start()
    with pytest.raises(hs.InputError, match=r"target/a\.npy"):
        load_pairs(packed)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_header_of_any_length_is_not_parsed(pairs):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 100_000 + b")}"
    (pairs / "target" / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header)
    with pytest.raises(hs.InputError, match=r"target/a\.npy"):
        load_pairs(pairs)


def test_files_and_sets_that_would_not_fit_into_memory(pairs, monkeypatch):
    needed = 2 * 6 * 8 * 7
    monkeypatch.setattr("howsure.images.folders.MAX_SET", needed)
    assert len(load_pairs(pairs)[2]) == 2
    monkeypatch.setattr("howsure.images.folders.MAX_SET", needed - 1)
    with pytest.raises(hs.InputError, match=f"{needed - 1:,}"):
        load_pairs(pairs)
    monkeypatch.undo()
    monkeypatch.setattr("howsure.images.folders.MAX_FILE", 100_000)
    (pairs / "target" / "a.npy").write_bytes(bytes(1_000_000))
    with pytest.raises(hs.InputError, match=r"target/a\.npy"):
        load_pairs(pairs)


# Images alone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "I;16", "1"])
def test_any_kind_of_image_becomes_rgb(pairs, mode):
    if mode == "I;16":
        picture = Image.fromarray(np.full(SIZE, 255 * 257, np.uint16))
    else:
        picture = Image.new("L", SIZE[::-1], 255).convert(mode)
    assert picture.mode == mode
    options = {"transparency": bytes(256)} if mode == "P" else {}
    picture.save(pairs / "image" / "a.png", **options)
    for found in (load_images(pairs / "image", SIZE), load_pairs(pairs)[0]):
        assert found.shape == (2, *SIZE, 3)
        assert found.dtype == np.uint8
        assert (found[0] == 255).all()


def test_sixteen_bits_become_eight(tmp_path):
    Image.fromarray(np.full((4, 5), 128 * 257, np.uint16)).save(tmp_path / "x.png")
    assert (load_images(tmp_path) == 128).all()
    Image.fromarray(np.ones((4, 5), np.float32)).save(tmp_path / "y.tif")
    with pytest.raises(hs.InputError, match=r"y\.tif"):
        load_images(tmp_path)


@pytest.mark.parametrize("axis", [0, 1])
def test_images_cover_and_are_cut_in_the_centre(tmp_path, axis):
    panels = [np.full((128, 160, 3), color, np.uint8) for color in ([255, 0, 0], [0, 255, 0], [0, 0, 255])]
    Image.fromarray(np.concatenate(panels, axis)).save(tmp_path / "three.png")
    assert (load_images(tmp_path)[0] == [0, 255, 0]).all()


def test_images_of_other_sizes_in_the_order_of_their_names(tmp_path):
    for name, value, size in (("b.png", 2, (1, 1)), ("sub/a.JPG", 3, (300, 700)), ("a.bmp", 1, (64, 80))):
        save_image(tmp_path / name, np.full((*size, 3), value, np.uint8))
    (tmp_path / "notes.txt").write_text("not an image")
    found = load_images(tmp_path, (32, 40))
    assert found.shape == (3, 32, 40, 3)
    assert found[:, 16, 20, 0].tolist() == [1, 2, 3]
    assert (found == found[:, :1, :1]).all()


def test_image_of_the_right_size_is_not_changed(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (128, 160, 3), np.uint8)
    save_image(tmp_path / "a.png", image)
    assert np.array_equal(load_images(tmp_path)[0], image)


def test_images_that_cannot_be_read(tmp_path):
    with pytest.raises(hs.InputError):
        load_images(tmp_path)
    write("x/a.txt", b"text")(tmp_path)
    with pytest.raises(hs.InputError, match=r"x\.zip"):
        load_images(pack(tmp_path / "x"))
    save_image(tmp_path / "x" / "sub" / "a.png")
    write("x/sub/a.png", (tmp_path / "x" / "sub" / "a.png").read_bytes()[:60])(tmp_path)
    with pytest.raises(hs.InputError, match=r"x\.zip"):
        load_images(pack(tmp_path / "x"))
    with pytest.raises(hs.InputError, match=r"y\.zip"):
        load_images(tmp_path / "y.zip")


@pytest.mark.parametrize("size", [(0, 4), (4,), (4.5, 4), (-1, 3), 7])
def test_sizes_of_images(tmp_path, size):
    Image.fromarray(COLOR).save(tmp_path / "a.png")
    with pytest.raises(hs.InputError, match="size"):
        load_images(tmp_path, size)
