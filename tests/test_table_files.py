import gzip
import os
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import evidentia as ev
from evidentia.data.table_files import count_rows, read_batches, read_file


def saved(folder, content, name="a.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def read(folder, content, name="a.csv"):
    return read_file(saved(folder, content, name))


def batched(path, rows, **more):
    frames = list(read_batches(path, rows, **more))
    assert all(len(frame) == rows for frame in frames[:-1])
    assert len({tuple(map(str, frame.dtypes)) for frame in frames}) == 1
    return pd.concat(frames, ignore_index=True)


# CSV ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "x,y\n1,2\n",
        "x;y\n1;2\n",
        "x\ty\n1\t2",
        "x|y\r1|2\r",
        "\ufeffx,y\r\n1,2\r\n",
        "\n\nx,y\n\n1,2\n  \n",
        "sep=;\r\nx;y\r\n1;2\r\n",
        '"x","y"\n"1","2"\n',
        " x , y\n 1, 2 \n",
        "x,y\n1,2\n".encode("utf-16"),
        "x,y\n1,2\n".encode("utf-32"),
        gzip.compress(b"x,y\n1,2\n"),
        gzip.compress("x;y\n1;2\n".encode("utf-16")),
    ],
)
def test_one_table_in_many_spellings(tmp_path, content):
    frame = read(tmp_path, content)
    assert frame.to_dict("list") == {"x": [1], "y": [2]}
    assert [str(dtype) for dtype in frame.dtypes] == ["int64", "int64"]


def test_quotes(tmp_path):
    assert list(read(tmp_path, '"a;b;c","größe\nin m"\n"1;2",3\n')) == ["a;b;c", "größe\nin m"]
    frame = read(tmp_path, 'a,b\n"x, ""y""\r\nz",1\n5" pipe,2\n"",3\n')
    assert frame["a"][:2].tolist() == ['x, "y"\r\nz', '5" pipe']
    assert frame["a"].isna().tolist() == [False, False, True]
    assert len(read(tmp_path, "a,b\n1," + "z" * 3_000_000 + "\n")["b"][0]) == 3_000_000
    assert len(read(tmp_path, 'a,b\n1,"' + "z\n" * 3_000_000 + '"\n')["b"][0]) == 6_000_000


def test_a_column_with_colons_is_one_column(tmp_path):
    assert read(tmp_path, "start time\n12:30\n12:45\n")["start time"].tolist() == ["12:30", "12:45"]


def test_types(tmp_path):
    text = (
        "whole,gaps,real,truth,unsure,code,mixed,word,none,comma\n"
        '1,1,1,True,true,01,01,NA,,"1,5"\n'
        '-2,,2.5,False,,02,A,Ulm,NA,"2,5"\n'
        "+3,9007199254740993,1e-3,TRUE,false,10,2.5,,null,3\n"
    )
    frame = read(tmp_path, text)
    kinds = {name: str(dtype) for name, dtype in frame.dtypes.items()}
    words = kinds["word"]  # object, or str of pandas 3
    assert kinds == {
        "whole": "float64",  # because of +3
        "gaps": "Int64",
        "real": "float64",
        "truth": "bool",
        "unsure": "boolean",
        "code": words,
        "mixed": words,
        "word": words,
        "none": "float64",
        "comma": words,
    }
    assert frame["gaps"].tolist() == [1, pd.NA, 9007199254740993]
    assert frame["code"].tolist() == ["01", "02", "10"]
    assert frame["truth"].tolist() == [True, False, True]
    assert frame["unsure"].tolist() == [True, pd.NA, False]
    assert frame["word"].isna().tolist() == [True, False, True]
    assert frame["comma"].tolist() == ["1,5", "2,5", "3"]


def test_numbers_are_read_to_the_last_bit(tmp_path):
    values = np.random.default_rng(0).standard_normal(1000) * 10.0 ** np.random.default_rng(1).integers(-300, 300, 1000)
    frame = read(tmp_path, "x\n" + "\n".join(map(repr, values.tolist())))
    assert frame["x"].tolist() == values.tolist()


@pytest.mark.parametrize("odd", ["A", "2.5", "", "01", "True", "-1", "99999999999999999999", " 7 ", "0x1f", "inf"])
def test_types_do_not_depend_on_the_batch(tmp_path, odd):
    for at in (0, 50, 99):
        values = [str(k) for k in range(1, 100)]
        values.insert(at, odd)
        path = saved(tmp_path, "x,y\n" + "".join(f"{v},{k}\n" for k, v in enumerate(values)))
        whole = read_file(path)
        for rows in (1, 7, 1000):
            pd.testing.assert_frame_equal(batched(path, rows), whole)
        as_text = batched(path, 30, text=("x",))["x"]
        assert [odd if value != value else value for value in as_text] == values


def test_a_long_file_has_one_type_for_a_column(tmp_path):
    path = saved(tmp_path, "code\n" + "1\n" * 300_000 + "A\n")
    assert set(read_file(path)["code"]) == {"1", "A"}
    assert sum(len(frame) for frame in read_batches(path)) == 300_001


def test_a_decimal_comma_beside_semicolons(tmp_path):
    frame = read(tmp_path, "size, m;price, EUR\n1,5;2,5\n3,5;4,5\n")
    assert list(frame) == ["size, m", "price, EUR"]
    assert frame["price, EUR"].tolist() == ["2,5", "4,5"]  # which the encoding reads as numbers


def test_windows_text_is_read_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="is not UTF-8 and was read as Windows text"):
        frame = read(tmp_path, "größe;preis €\n1;2\n".encode("cp1252"))
    assert list(frame) == ["größe", "preis €"]


def test_names_in_doubt_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="names of columns are all numbers"):
        assert list(read(tmp_path, "2019,2020\n1,2\n")) == ["2019", "2020"]
    with pytest.warns(UserWarning, match=r"a column is named '5\.1'"):
        assert len(read(tmp_path, "5.1,3.5,setosa\n1,2,a\n")) == 1
    with pytest.warns(UserWarning, match=r"2 columns have no name, called 'Unnamed: 1', 'Unnamed: 2' here"):
        assert len(read(tmp_path, "a,,\n1,2,\n")) == 1
    assert list(read(tmp_path, ",a\n0,1\n1,1\n")) == ["Unnamed: 0", "a"]  # the index of pandas


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " is empty"),
        (b"\n \n\n", " is empty"),
        (b"\xef\xbb\xbf", " is empty"),
        (gzip.compress(b""), " is empty"),
        (b"x,y\n", " has names of columns, but no rows"),
        (b"x,y\n \n", " has names of columns, but no rows"),
        (b"x,y\n1,2\n\xff\x81,2\n", ", line 3: it is not UTF-8 text, and has bytes of no text we know; save it as UTF-8"),
        ("x,y\n1,2\n".encode("utf-16-le"), ", line 1: it has NUL bytes"),
        (b"x,y\n1,2\n1,\x002\n", ", line 3: it has NUL bytes"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", ", line 2: it is not UTF-8 text, and has "),
        (np.random.default_rng(0).bytes(5000), ", line 1: it is not UTF-8 text, and has "),
        (b"x y\n1 2\n3 4\n", ", line 1: its fields seem to be separated by ' '; use commas, semicolons or tabs"),
        (b"n;a, b\nu;v, w\n", ", line 1: its fields may be separated by commas or by semicolons"),
        (b"x,y,x\n1,2,3\n", ", line 1: column names must be unique; 'x' stands more than once"),
        (b"x, x\n1,2\n", ", line 1: column names must be unique; 'x' stands more than once"),
        (b"Unnamed: 1,\n1,2\n", ", line 1: column names must be unique"),
        (b"x,y\n1,2,3\n4,5,6\n", ", line 2: the line has 3 fields, but the first line has 2 names; values that hold"),
        (b"x,y\n" + b"1,2\n" * 900 + b"4,5,6\n", ", line 902: the line has 3 fields, but the first line has 2 names"),
        (b"x,y\n\n1,2\n4\n", ", line 4: the line has 1 field, but the first line has 2 names; is the line cut off?"),
        (b'x,y\n1,"a\nb"\n4\n', ", line 4: the line has 1 field"),
        (b'x,y\n1,2\n1,"2\n3,4\n', ", line 3: a quote is opened here and never closed"),
        (b'x,y\n1,"2\n3,"4"\n', ", line 2: text follows a closing quote"),
        (b'x,y\n1, "2"\n', ", line 2: it has a blank before a quote"),
        (b"5.1,3.5\n4.9,3.0\n", r", line 1: its first line is all numbers \('5\.1', …\), not names of columns"),
        (b"comment\nhello, world\nfoo\n", ", line 2: the line has 2 fields, but the first line has 1 name"),
        (b"x" * 200_000 + b",y\n1,2\n", "field larger than field limit"),
        (gzip.compress(b"x,y\n1,2\n" * 99)[:-12], " is a damaged gzip file"),
        (gzip.compress(b"x,y\n1,2\n") + b"junk", " is a damaged gzip file"),
        (b"\x1f\x8bjunk", " is a damaged gzip file"),
        (b"BZh91AY&SY", " is compressed with bzip2"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", " is an old Excel file"),
    ],
    ids=range(31),
)  # fmt: skip
def test_files_that_are_no_tables(tmp_path, content, message):
    path = saved(tmp_path, content)
    for call in (read_file, lambda path: list(read_batches(path, 5))):
        with pytest.raises(ev.InputError, match=message) as caught:
            call(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)
    assert count_rows_or_refusal(path) is None


def count_rows_or_refusal(path):
    try:
        return count_rows(path)
    except ev.InputError:
        return None


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    with pytest.raises(ev.InputError, match="does not exist"):
        read_file(tmp_path / "h.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ev.InputError, match=r"folder.csv is a folder; a table is a .csv"):
        read_file(tmp_path / "folder.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ev.InputError, match="is not a plain file; save what it gives as a file first"):
        read_file(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for name in ("loop.csv", "zero\0.csv", "n" * 300 + ".csv"):
        with pytest.raises(ev.InputError, match="cannot be read|does not exist"):
            read_file(tmp_path / name)
    for name, message in (("a.xyz", r"not \.xyz"), ("a", "not without ending")):
        with pytest.raises(ev.InputError, match=message):
            read(tmp_path, "x\n1\n", name)
    path = saved(tmp_path, "x\n1\n")
    monkeypatch.setattr("pathlib.Path.open", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no, no")))
    with pytest.raises(ev.InputError, match=r"a\.csv cannot be read: no, no"):
        read_file(path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow"])
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, name):
    path = saved(tmp_path, "x\n1\n", name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ev.InputError, match=r"without pyarrow; install it with pip install 'evidentia\[cli\]'"):
        read_file(path)
