import io
import os
import struct
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import howsure as hs
from howsure.images import folders, load_images
from howsure_paper.datasets import depth
from howsure_paper.datasets.depth import DepthSet, load_nyu, split_scenes

h5py = pytest.importorskip("h5py")
Image = pytest.importorskip("PIL.Image")

DATA = Path(os.environ.get("HOWSURE_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_nyu = pytest.mark.skipif(
    not (DATA / "nyu_v2_160x128.zip").is_file(), reason="no nyu_v2_160x128.zip; set HOWSURE_DATA"
)
needs_camvid = pytest.mark.skipif(
    not (DATA / "camvid_160x128.zip").is_file(), reason="no camvid_160x128.zip; set HOWSURE_DATA"
)


def encode(array, kind):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def grey(value, size=(6, 8)):
    return np.full((*size, 3), value, np.uint8)


@pytest.fixture
def pairs():
    """A tiny set: three frames of two scenes, each of one grey and one depth."""
    files = {"index.csv": b"file_index0,matlab_index1,official_split,scene\n0,1,test,a\n1,2,train,b\n2,3,train,b\n"}
    for k, millimetres in enumerate((500, 2000, 4000)):
        files[f"image/{k:04d}.jpg"] = encode(grey(50 * k), "JPEG")
        files[f"depth/{k:04d}.png"] = encode(np.full((6, 8), millimetres, np.uint16), "PNG")
    return files


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name or zipfile.ZipInfo(""), content)
    return path


def write_folder(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


# Pairs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "nyu/"])
@pytest.mark.parametrize("write", [write_zip, write_folder])
def test_zip_and_folder_are_read_alike(pairs, tmp_path, write, inside):
    files = {inside + name: content for name, content in pairs.items()}
    files |= {"__MACOSX/image/._0000.jpg": b"", inside + ".DS_Store": b""}
    found = load_nyu(write(tmp_path / "set.zip", files))
    assert len(found) == 3
    assert found.image.shape == (3, 6, 8, 3)
    assert found.image.dtype == np.uint8
    assert found.image[:, 0, 0, 0].tolist() == pytest.approx([0, 50, 100], abs=1)
    assert found.disparity.dtype == np.float32
    assert found.disparity[:, 3, 3].tolist() == [1, 0.5, 0.25]  # nearer than one metre is one
    assert found.scene.tolist() == ["a", "b", "b"]
    assert found.official.tolist() == ["test", "train", "train"]
    assert not found.synthetic


def test_index_of_scenes_alone_is_enough(pairs, tmp_path):
    pairs["index.csv"] = b"scene\nx\ny\nz\n"
    found = load_nyu(write_zip(tmp_path / "set.zip", pairs))
    assert found.scene.tolist() == ["x", "y", "z"]
    assert found.official is None


def test_select(pairs, tmp_path):
    found = load_nyu(write_zip(tmp_path / "set.zip", pairs)).select([2, 0])
    assert found.scene.tolist() == ["b", "a"]
    assert found.official.tolist() == ["train", "test"]
    assert found.disparity[:, 0, 0].tolist() == [0.25, 1]
    assert found.image.shape == (2, 6, 8, 3)


def test_shapes_must_belong_together():
    with pytest.raises(hs.InputError, match=r"\(2, 4, 5\)"):
        DepthSet("mine", np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 4, 5), np.float32), np.array(["a", "b"]))


def change(name, content):
    return lambda files: files.update({name: content})


def without(start):
    return lambda files: [files.pop(name) for name in list(files) if name.startswith(start)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("depth/"), r"set\.zip"),
        (without("image/"), r"set\.zip"),
        (without("depth/0001"), "frame 0001"),
        (without("image/0002"), "frame 0002"),
        (without("index"), r"index\.csv"),
        (change("index.csv", b"file_index0,place\n0,a\n"), r"index\.csv"),
        (change("index.csv", b"file_index0,scene\n0,a\n1,b\n"), r"index\.csv"),
        (change("index.csv", b"file_index0,scene\n0,a\n0,b\n"), r"index\.csv"),
        (change("index.csv", b"file_index0,scene\n0,a\n1,\n"), r"index\.csv"),
        (change("image/0001.jpg", b"not an image"), r"image/0001\.jpg"),
        (change("image/0001.jpg", encode(grey(1, (64, 64)), "JPEG")[:-80]), r"image/0001\.jpg"),
        (change("depth/0001.png", b""), r"depth/0001\.png"),
        (change("depth/0002.png", encode(np.ones((6, 8), np.uint8), "PNG")), r"depth/0002\.png"),
        (change("image/0001.jpg", encode(grey(1, (6, 9)), "JPEG")), r"image/0001\.jpg"),
        (change("depth/0001.png", encode(np.ones((3, 4), np.uint16), "PNG")), r"depth/0001\.png"),
        (change("depth/0001.png", encode(np.zeros((6, 8), np.uint16), "PNG")), r"depth/0001\.png"),
    ],
)
def test_damaged_sets_are_named(pairs, tmp_path, damage, message):
    damage(pairs)
    with pytest.raises(hs.InputError, match=message):
        load_nyu(write_zip(tmp_path / "set.zip", pairs))


def test_truncated_and_corrupt_zips(pairs, tmp_path):
    path = write_zip(tmp_path / "set.zip", pairs)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(hs.InputError, match=r"set\.zip"):
        load_nyu(path)
    path.write_bytes(content.replace(pairs["depth/0002.png"], bytes(len(pairs["depth/0002.png"]))))
    with pytest.raises(hs.InputError, match=r"depth/0002\.png"):
        load_nyu(path)


def test_paths_that_are_no_set(tmp_path):
    with pytest.raises(hs.InputError, match=r"none\.zip"):
        load_nyu(tmp_path / "none.zip")


def test_data_folder(pairs, tmp_path, monkeypatch):
    monkeypatch.delenv("HOWSURE_DATA", raising=False)
    with pytest.raises(hs.InputError, match="HOWSURE_DATA"):
        depth.nyu()
    with pytest.raises(hs.InputError, match=r"camvid_160x128\.zip"):
        depth.camvid(tmp_path)
    write_zip(tmp_path / "nyu_v2_160x128.zip", pairs)
    monkeypatch.setenv("HOWSURE_DATA", str(tmp_path))
    assert len(depth.nyu()) == 3


# Missing depth ------------------------------------------------------------------------------------------------------


def test_missing_depth_is_nan(pairs, tmp_path):
    millimetres = np.full((6, 8), 2000, np.uint16)
    millimetres[2:4, 2:5] = 0
    pairs["depth/0001.png"] = encode(millimetres, "PNG")
    found = load_nyu(write_zip(tmp_path / "set.zip", pairs))
    assert np.array_equal(np.isnan(found.disparity[1]), millimetres == 0)
    assert np.isfinite(found.disparity[[0, 2]]).all()
    assert (found.disparity[1][millimetres > 0] == 0.5).all()


# HDF5 ---------------------------------------------------------------------------------------------------------------


def write_labelled(path, images, depths, scenes):
    """MATLAB's layout: axes reversed, and a cell array of text as references to arrays of character codes."""
    with h5py.File(path, "w") as file:
        file["images"] = images.transpose(0, 3, 2, 1)
        file["depths"] = depths.transpose(0, 2, 1).astype(np.float32)
        cells = file.create_dataset("scenes", (1, len(scenes)), h5py.ref_dtype)
        for k, scene in enumerate(scenes):
            cells[0, k] = file.create_dataset(f"#refs#/{k}", data=np.array([[ord(c)] for c in scene], np.uint16)).ref
    return path


def test_official_mat(tmp_path):
    images, depths = np.zeros((2, 256, 320, 3), np.uint8), np.full((2, 256, 320), 2.0)
    images[0, :, :160, 0] = 200  # left half red
    depths[1, :128] = 4.0  # upper half far
    depths[1, 200:220, 100:120] = 0
    depths[1, 0, 0] = -1  # one of four pixels: the others count
    found = load_nyu(write_labelled(tmp_path / "n.mat", images, depths, ["kitchen_0004", "den_1"]))
    assert found.image.shape == (2, 128, 160, 3)
    assert found.image[0, 60, 20].tolist() == [200, 0, 0]
    assert found.image[0, 60, 140].tolist() == [0, 0, 0]
    assert found.scene.tolist() == ["kitchen_0004", "den_1"]
    hole = np.zeros((128, 160), bool)
    hole[100:110, 50:60] = True
    assert np.array_equal(np.isnan(found.disparity), np.stack([np.zeros_like(hole), hole]))
    assert found.disparity[0] == pytest.approx(0.5)
    assert found.disparity[1, :64] == pytest.approx(0.25)


@pytest.mark.parametrize("last", [(), (1,)])
def test_hdf5_of_the_authors(tmp_path, last):
    rng = np.random.default_rng(0)
    image, value = rng.integers(0, 256, (3, 8, 10, 3), np.uint8), rng.integers(0, 256, (3, 8, 10, *last), np.uint8)
    with h5py.File(tmp_path / "depth_test.h5", "w") as file:
        file["image"], file["depth"] = image, value
    found = load_nyu(tmp_path / "depth_test.h5")
    assert np.array_equal(found.image, image)
    assert found.disparity == pytest.approx(value.reshape(3, 8, 10) / 255)
    assert found.disparity.dtype == np.float32
    assert len(set(found.scene)) == 3
    assert found.note


def test_hdf5_that_is_something_else(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["image"] = np.zeros((1, 4, 4, 3), np.uint8)
        file["labels"] = np.zeros(3)
    with pytest.raises(hs.InputError, match=r"x\.h5"):
        load_nyu(path)
    with h5py.File(path, "a") as file:
        file["depth"] = np.zeros((1, 4, 5), np.uint8)
    with pytest.raises(hs.InputError, match=r"\(1, 4, 5\)"):
        load_nyu(path)
    with h5py.File(path, "a") as file:
        del file["depth"]
        file["depth"] = np.zeros((1, 4, 4), np.float32)
    with pytest.raises(hs.InputError):
        load_nyu(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(hs.InputError, match=r"x\.h5"):
        load_nyu(path)


def test_mat_whose_parts_differ_or_lack_depth(tmp_path):
    images, depths = np.zeros((2, 16, 20, 3), np.uint8), np.ones((2, 16, 20))
    with pytest.raises(hs.InputError, match=r"\b15\b"):
        load_nyu(write_labelled(tmp_path / "n.mat", images, depths[:, :15], ["a", "b"]))
    with pytest.raises(hs.InputError, match=r"\b1 scenes"):
        load_nyu(write_labelled(tmp_path / "n.mat", images, depths, ["a"]))
    depths[1] = np.nan
    with pytest.raises(hs.InputError, match=r"n\.mat"):
        load_nyu(write_labelled(tmp_path / "n.mat", images, depths, ["a", "b"]))


@pytest.mark.parametrize(("module", "name"), [("h5py", "x.h5"), ("PIL.ImageOps", "x.zip")])
def test_extra_is_named_when_it_is_missing(tmp_path, monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    read = load_nyu if module == "h5py" else load_images
    (tmp_path / name).touch()
    with pytest.raises(hs.InputError, match=r'"\.\[vision\]"'):
        read(tmp_path / name)


# Scenes -------------------------------------------------------------------------------------------------------------


def test_scenes_stay_whole():
    scene = np.random.default_rng(0).choice([f"s{k}" for k in range(60)], 900)
    parts = split_scenes(scene, seed=3)
    assert sorted(np.concatenate(parts)) == list(range(900))
    names = [set(scene[part]) for part in parts]
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    assert not names[1] & names[2]
    assert [len(part) / 900 for part in parts] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert all(np.array_equal(a, b) for a, b in zip(parts, split_scenes(scene, seed=3), strict=True))
    assert not np.array_equal(parts[2], split_scenes(scene, seed=4)[2])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (50, 1, 1), (1, 30, 30, 1), (1, 1, 98)])
def test_no_part_is_empty(sizes, seed):
    scene = np.repeat([f"s{k}" for k in range(len(sizes))], sizes)
    parts = split_scenes(scene, (0.5, 0.3, 0.2), seed)
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(scene)))


def test_scenes_that_cannot_be_split():
    with pytest.raises(hs.InputError, match=r"\b3\b"):
        split_scenes(["a"] * 10)
    with pytest.raises(hs.InputError, match=r"\b2\b.*\b3\b"):
        split_scenes(["a", "b"])
    with pytest.raises(hs.InputError):
        split_scenes(["a", "b", "c"], (0.8, 0.1))
    with pytest.raises(hs.InputError):
        split_scenes(["a", "b", "c"], (0.9, 0.1, 0.1))


# Hostile files ------------------------------------------------------------------------------------------------------


def declared_png(width, height, depth=8):
    """A PNG of a few bytes that declares to be this large."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(100))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("size", [(50_000, 50_000), (10_000, 12_000), (9_000, 8_000)])
def test_image_that_declares_too_many_pixels_is_not_decoded(pairs, tmp_path, size):
    """Above Pillow's limit for an error, above that for a warning, and below both."""
    with pytest.raises(hs.InputError, match=r"x\.zip"):
        load_images(write_zip(tmp_path / "x.zip", {"a.png": declared_png(*size)}))
    pairs["depth/0001.png"] = declared_png(*size, depth=16)
    with pytest.raises(hs.InputError, match=r"depth/0001\.png"):
        load_nyu(write_zip(tmp_path / "set.zip", pairs))


def test_set_of_frames_that_would_not_fit_into_memory(pairs, tmp_path, monkeypatch):
    path = write_zip(tmp_path / "set.zip", pairs)
    needed = 3 * 6 * 8 * 7
    monkeypatch.setattr(folders, "MAX_SET", needed)
    assert len(load_nyu(path)) == 3
    monkeypatch.setattr(folders, "MAX_SET", needed - 1)
    with pytest.raises(hs.InputError, match=r"set\.zip"):
        load_nyu(path)
    with pytest.raises(hs.InputError, match=r"set\.zip"):
        load_images(write_zip(tmp_path / "set.zip", {n: c for n, c in pairs.items() if n.startswith("image")}))


@pytest.mark.parametrize("name", ["index.csv", "image/0001.jpg", "depth/0001.png"])
def test_members_that_inflate_are_not_read(pairs, tmp_path, monkeypatch, name):
    monkeypatch.setattr(folders, "MAX_FILE", 100_000)
    monkeypatch.setattr(depth, "LARGEST_INDEX", 100_000)
    with zipfile.ZipFile(tmp_path / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in pairs.items():
            archive.writestr(file, bytes(1_000_000) if file == name else content)
    assert (tmp_path / "set.zip").stat().st_size < 10_000
    with pytest.raises(hs.InputError, match=name):
        load_nyu(tmp_path / "set.zip")
    folder = write_folder(tmp_path / "folder", pairs | {name: bytes(1_000_000)})
    with pytest.raises(hs.InputError, match=name):
        load_nyu(folder)


def test_member_that_inflates_to_more_than_it_declares(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(50_000_000))
    content = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(content.replace(struct.pack("<I", 50_000_000), struct.pack("<I", 1000)))
    tracemalloc.start()
    with pytest.raises(hs.InputError, match=r"a\.png"):
        load_images(tmp_path / "x.zip")
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_inflate_without_bound_raise(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.writestr("a.png", encode(grey(1), "PNG"))
    with pytest.raises(hs.InputError, match=r"a\.png"):
        load_images(tmp_path / "x.zip")


def test_encrypted_zip(pairs, tmp_path):
    path = write_zip(tmp_path / "set.zip", pairs)
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag of every local and central header
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 4)
    path.write_bytes(content)
    with pytest.raises(hs.InputError, match=r"set\.zip"):
        load_nyu(path)


def test_names_that_lead_elsewhere_are_names_only(pairs, tmp_path):
    """Nothing is unpacked, and so no name can lead out; empty, hidden and relative ones are left out."""
    odd = {"": b"x", "/": b"x", "../../image/0009.jpg": b"x", "a/../index.csv": b"scene\n", ".hidden/0.jpg": b"x"}
    found = load_nyu(write_zip(tmp_path / "set.zip", odd | pairs))
    assert len(found) == 3
    only = load_images(write_zip(tmp_path / "x.zip", {"": b"", "/abs/a.png": encode(grey(9), "PNG")}))
    assert only.shape == (1, 128, 160, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set.zip", "x.zip"]


def test_two_files_for_one_frame(pairs, tmp_path):
    for other in ("image/deeper/0001.jpg", "image/0001.png", "image/1.jpg"):
        with pytest.raises(hs.InputError, match=other):
            load_nyu(write_zip(tmp_path / "set.zip", pairs | {other: pairs["image/0001.jpg"]}))


def test_numbers_too_long_to_be_meant(pairs, tmp_path):
    found = load_nyu(write_zip(tmp_path / "set.zip", pairs | {f"image/{'9' * 5000}.jpg": b""}))
    assert len(found) == 3  # a name like any other
    pairs["index.csv"] = b"file_index0,scene\n0,a\n1,b\n" + b"9" * 5000 + b",b\n"
    with pytest.raises(hs.InputError, match=r"index\.csv"):
        load_nyu(write_zip(tmp_path / "set.zip", pairs))


@pytest.mark.parametrize(
    "index",
    [b"scene\n" + b"x" * 200_000 + b"\n", b'scene\n"a\nb\nc\n', b"\xff\xfe\x00", b"", b"scene\na\n\0\n", b"\r\r\r"],
)
def test_index_that_is_no_table(pairs, tmp_path, index):
    pairs["index.csv"] = index
    with pytest.raises(hs.InputError, match=r"index\.csv"):
        load_nyu(write_zip(tmp_path / "set.zip", pairs))


def test_other_formats_in_the_coat_of_an_image_raise(tmp_path):
    """Pillow goes by the content, and would start other programs for some (PostScript)."""
    file = io.BytesIO()
    Image.fromarray(grey(1)).save(file, "PCX")
    with pytest.raises(hs.InputError, match=r"a\.png"):
        load_images(write_zip(tmp_path / "x.zip", {"a.png": file.getvalue()}))


SECRET = np.arange(3 * 8 * 10 * 3, dtype=np.uint8).reshape(3, 8, 10, 3)


def outside(path, kind):
    """An HDF5 file whose image lies in another one, in each of the ways that the format knows."""
    secret = path.with_name("secret.h5")
    with h5py.File(secret, "w") as file:
        file["image"] = SECRET
    path.with_name("secret.bin").write_bytes(SECRET.tobytes())
    with h5py.File(path, "w") as file:
        file["depth"] = np.zeros((3, 8, 10), np.uint8)
        if kind == "external storage":
            file.create_dataset("image", SECRET.shape, np.uint8, external=[(str(secret.with_suffix(".bin")), 0, 720)])
        elif kind == "external link":
            file["image"] = h5py.ExternalLink(str(secret), "/image")
        elif kind == "soft link":
            file["way"] = h5py.ExternalLink(str(secret), "/")
            file["image"] = h5py.SoftLink("/way/image")
        else:
            layout = h5py.VirtualLayout(SECRET.shape, np.uint8)
            layout[:] = h5py.VirtualSource(str(secret), "image", SECRET.shape)
            file.create_virtual_dataset("image", layout)


@pytest.mark.parametrize("kind", ["external storage", "external link", "soft link", "virtual"])
def test_hdf5_does_not_read_other_files(tmp_path, kind):
    outside(tmp_path / "x.h5", kind)
    with h5py.File(tmp_path / "x.h5") as file:
        assert np.array_equal(file["image"][()], SECRET)  # h5py would
    with pytest.raises(hs.InputError, match=r"x\.h5"):
        load_nyu(tmp_path / "x.h5")


def labelled(path):
    return write_labelled(path, np.zeros((2, 16, 20, 3), np.uint8), np.ones((2, 16, 20)), ["a", "b"])


def test_references_of_a_mat_do_not_lead_out_either(tmp_path):
    (tmp_path / "secret.bin").write_bytes(b"s\0e\0c\0")
    with h5py.File(labelled(tmp_path / "n.mat"), "a") as file:
        outer = file.create_dataset("outer", (3,), np.uint16, external=[(str(tmp_path / "secret.bin"), 0, 6)])
        file["scenes"][0, 1] = outer.ref
    with pytest.raises(hs.InputError, match=r"n\.mat"):
        load_nyu(tmp_path / "n.mat")


@pytest.mark.parametrize("target", ["null", "group", "text", "not references"])
def test_references_of_a_mat_to_something_else(tmp_path, target):
    with h5py.File(labelled(tmp_path / "n.mat"), "a") as file:
        if target == "null":
            file["scenes"][0, 1] = h5py.Reference()
        elif target == "group":
            file["scenes"][0, 1] = file["#refs#"].ref
        elif target == "text":
            file["scenes"][0, 1] = file.create_dataset("text", data="kitchen").ref
        else:
            del file["scenes"]
            file["scenes"] = np.zeros((1, 2))
    with pytest.raises(hs.InputError, match=r"n\.mat"):
        load_nyu(tmp_path / "n.mat")


@pytest.mark.parametrize("chunks", [(1, 128, 160, 3), (1, 2000, 2000, 100)])
def test_hdf5_that_declares_more_than_it_holds(tmp_path, chunks):
    """Chunks that were never written are read as zeros, as many as the shape says."""
    path = tmp_path / "x.h5"
    shape = (40_000, 128, 160, 3) if chunks[1] == 128 else (3, 128, 160, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("image", shape, np.uint8, chunks=chunks, maxshape=(None,) * 4)
        file.create_dataset("depth", shape[:3], np.uint8, chunks=chunks[:3], maxshape=(None,) * 3)
    assert path.stat().st_size < 100_000
    with pytest.raises(hs.InputError, match=r"x\.h5"):
        load_nyu(path)
    with h5py.File(labelled(tmp_path / "n.mat"), "a") as file:
        del file["images"]
        file.create_dataset("images", (10**4, 3, 320, 240), np.uint8, chunks=(1, 3, 320, 240))
    with pytest.raises(hs.InputError, match=r"n\.mat"):
        load_nyu(tmp_path / "n.mat")


def test_hdf5_larger_than_memory_may_be(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["image"], file["depth"] = SECRET, np.zeros((3, 8, 10), np.uint8)
    monkeypatch.setattr(depth, "MAX_SET", SECRET.nbytes - 1)
    with pytest.raises(hs.InputError, match=r"x\.h5"):
        load_nyu(tmp_path / "x.h5")


def test_compressed_hdf5_is_read(tmp_path):
    """As small as deflate makes it: a thousand times smaller than what it declares."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("image", data=np.zeros((9, 128, 160, 3), np.uint8), compression="gzip", compression_opts=9)
        file.create_dataset("depth", data=np.zeros((9, 128, 160), np.uint8), compression="gzip", compression_opts=9)
    assert load_nyu(tmp_path / "x.h5").image.shape == (9, 128, 160, 3)


def test_hdf5_that_holds_groups(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_group("image")
        file.create_group("depth")
    with pytest.raises(hs.InputError, match=r"x\.h5"):
        load_nyu(tmp_path / "x.h5")


# Real data ----------------------------------------------------------------------------------------------------------


@needs_nyu
def test_real_nyu():
    found = depth.nyu(DATA)
    assert found.image.shape == (1449, 128, 160, 3)
    assert found.disparity.shape == (1449, 128, 160)
    assert len(set(found.scene)) == 464
    assert np.isfinite(found.disparity).all()
    assert 1 / found.disparity.min() == pytest.approx(9.98, abs=0.005)
    assert found.disparity.max() == 1
    assert np.median(1 / found.disparity[::10]) == pytest.approx(2.5, abs=0.1)
    assert (found.official == "train").sum() == 795  # the split of Silberman et al.
    parts = [set(found.scene[part]) for part in split_scenes(found.scene)]
    assert not parts[0] & parts[1]
    assert not parts[2] & (parts[0] | parts[1])


@needs_camvid
def test_real_camvid():
    found = depth.camvid(DATA)
    assert found.shape == (334, 128, 160, 3)
    assert found.std() > 20
