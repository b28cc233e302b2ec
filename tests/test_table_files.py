import contextlib
import datetime
import gzip
import os
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import howsure as hs
from faults import odd_files
from howsure.data.csv_files import CsvReader
from howsure.data.table_files import ROWS, count_rows, find_spans, read_batches, read_file


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
    ids=range(13),  # a gzip file holds the time of its making, and names of tests must not
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
    assert read(tmp_path, "way driven\n10 km\n12 km\n")["way driven"].tolist() == ["10 km", "12 km"]


def test_blank_lines_of_one_column(tmp_path):
    assert read(tmp_path, '\nx\n1\n""\n \n2\n\n\n')["x"].tolist() == [1, pd.NA, pd.NA, 2]
    with pytest.raises(hs.InputError, match="line 3: it is blank; write NA if a value is missing"):
        read(tmp_path, "x\n1\n\n\n2\n")
    assert read(tmp_path, "x,y\n1,2\n\n3,4\n").to_dict("list") == {"x": [1, 3], "y": [2, 4]}
    with pytest.raises(hs.InputError, match="line 3: the line has 1 field"):
        read(tmp_path, 'x,y\n1,2\n""\n3,4\n')


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
    path = saved(tmp_path, "code\n" + "12345678\n" * 150_000 + "A\n")
    frames = list(read_batches(path))
    assert [len(frame) for frame in frames] == [65_536, 65_536, 18_929]
    assert set(pd.concat(frames)["code"]) == {"12345678", "A"}


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path, "x\n" + "1\n" * 9)
    find_types = CsvReader._types

    def change(self):
        types = find_types(self)
        path.write_text("x\n" + "a\n" * 9)
        return types

    monkeypatch.setattr(CsvReader, "_types", change)
    with pytest.raises(hs.InputError, match=r"a\.csv cannot be read as a table"):
        read_file(path)


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
        (b"x,y\n1,2\n\xff\x81,2\n", ", line 3: it is not UTF-8 text, and has bytes of no text we know; save it"),
        ("x,y\n1,2\n".encode("utf-16-le"), ", line 1: it has NUL bytes"),
        (b"x,y\n1,2\n1,\x002\n", ", line 3: it has NUL bytes"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", ", line 2: it is not UTF-8 text, and has "),
        (np.random.default_rng(0).bytes(5000), ", line 1: it is not UTF-8 text, and has "),
        (b"x y\n1 2\n3 4\n", ", line 1: its fields seem to be separated by blanks; use commas, semicolons or tabs"),
        (b" -2.3  0.56 4.7\n -2.3  0.56 4.8\n", ", line 1: its fields seem to be separated by blanks"),
        (b"x:y\n1:2\n", ", line 1: its fields seem to be separated by colons"),
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
        (b"x" * 200_000 + b",y\n1,2\n", ", line 1: it has a field of more than 131,072 characters, which is no name"),
        (gzip.compress(b"x,y\n1,2\n" * 99)[:-12], " is a damaged gzip file"),
        (gzip.compress(b"x,y\n1,2\n") + b"junk", " is a damaged gzip file"),
        (b"\x1f\x8bjunk", " is a damaged gzip file"),
        (b"BZh91AY&SY", " is compressed with bzip2"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", " is an old Excel file"),
        (b"sep=;\n", " is empty"),
        (b"sep=;\n\nx;y\n1;2\n3\n", ", line 5: the line has 1 field"),
        (b"\n\nx,x\n1,2\n", ", line 3: column names must be unique"),
        (b"x,y\n1,2\n\nx,y\n1,2\n", ", line 4: it has the names of the columns again; remove the line"),
        (b"<!DOCTYPE html>\n<p>a\n", " is a web page; download the table itself"),
        (b"PK\x03\x04junk", " is a zip archive; unpack it"),
        (b"," * 200_000 + b"\n", ", line 1: it has 200,001 columns; at most 100,000 can be read"),
    ],
    ids=range(40),
)  # fmt: skip
def test_files_that_are_no_tables(tmp_path, content, message):
    path = saved(tmp_path, content)
    for call in (read_file, lambda path: list(read_batches(path, 5))):
        with pytest.raises(hs.InputError, match=message) as caught:
            call(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)
    assert count_rows_or_refusal(path) is None


def count_rows_or_refusal(path):
    try:
        return count_rows(path)
    except hs.InputError:
        return None


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    with pytest.raises(hs.InputError, match="does not exist"):
        read_file(tmp_path / "h.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(hs.InputError, match=r"folder.csv is a folder; a table is a .csv"):
        read_file(tmp_path / "folder.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(hs.InputError, match="is not a plain file; save what it gives as a file first"):
        read_file(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for name in ("loop.csv", "zero\0.csv", "n" * 300 + ".csv"):
        with pytest.raises(hs.InputError, match=r"cannot be read|does not exist"):
            read_file(tmp_path / name)
    for name, message in (("a.xyz", r"not \.xyz"), ("a", "not one without an ending")):
        with pytest.raises(hs.InputError, match=message):
            read(tmp_path, "x\n1\n", name)
    path = saved(tmp_path, "x\n1\n")
    monkeypatch.setattr("pathlib.Path.open", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no, no")))
    with pytest.raises(hs.InputError, match=r"a\.csv cannot be read: no, no"):
        read_file(path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow"])
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, name):
    path = saved(tmp_path, "x\n1\n", name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        hs.InputError, match=r'without pyarrow; install it with pip install "\.\[cli\]" in a checkout of howsure'
    ):
        read_file(path)


# Parquet and Arrow --------------------------------------------------------------------------------------------------


def all_kinds(rows=1000):
    g = np.random.default_rng(0)
    gone = g.random(rows) < 0.2
    gone[:300] = False  # so that some batches have no missing values
    whole = g.integers(-(2**62), 2**62, rows)
    towns = np.array(["Ulm", "Bonn", "Rome", "Oslo"])[np.minimum(np.arange(rows) // 200, 3)]
    return pa.table(
        {
            "float": g.random(rows),
            "float32": pa.array(g.random(rows), pa.float32(), mask=gone),
            "int": whole,
            "int with gaps": pa.array(whole, mask=gone),
            "small": pa.array(whole % 100, pa.uint8(), mask=gone),
            "bool": whole > 0,
            "bool with gaps": pa.array(whole > 0, mask=gone),
            "text": pa.array(towns, mask=gone),
            "large text": pa.array(towns, pa.large_string()),
            "town": pa.array(towns, mask=gone).dictionary_encode(),
            "level": pa.array(whole % 3, mask=gone).dictionary_encode(),
            "decimal": pa.array([None if m else Decimal(int(v) % 1000) / 8 for v, m in zip(whole, gone, strict=True)]),
            "moment": pa.array(whole % 10**15, pa.timestamp("us", tz="Europe/Berlin"), mask=gone),
            "naive": pa.array(whole % 10**15, pa.timestamp("ns")),
            "day": pa.array(whole % 20000, pa.int32(), mask=gone, safe=False).cast(pa.date32()),
            "time": pa.array(whole % 86400, pa.int32(), safe=False).cast(pa.time32("s")),
            "duration": pa.array(whole % 10**9, pa.duration("ms"), mask=gone),
            "nothing": pa.nulls(rows),
            "dotted.name": whole,
        }
    )


def write_arrow(table, path, **options):
    if path.suffix in (".parquet", ".pq"):
        pq.write_table(table, path, **options)
        return
    make = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        writer.write_table(table.unify_dictionaries(), max_chunksize=130)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.parquet", {}),
        ("a.parquet", {"row_group_size": 77}),
        ("a.pq", {"row_group_size": 77, "write_statistics": False, "store_schema": False}),
        ("a.arrow", {}),
        ("a.feather", {}),
        ("a.arrows", {}),
    ],
)
def test_batches_have_the_types_and_values_of_the_whole_file(tmp_path, name, options):
    table, path = all_kinds(), tmp_path / name
    if not options.get("store_schema", True):
        table = table.drop(["town", "level", "duration"])  # which Parquet itself does not have
    write_arrow(table, path, **options)
    whole = read_file(path)
    assert list(whole) == table.column_names
    for column in table.column_names:  # pyarrow's own values are the reference
        expected = table[column].to_pylist()
        for got, value in zip(whole[column].tolist(), expected, strict=True):
            assert (got == value) is True or (value is None and bool(pd.isna(got))), column
    for rows in (1000, 300, 77, 999):
        pd.testing.assert_frame_equal(batched(path, rows), whole)
    if name != "a.arrows":
        assert count_rows(path) == 1000


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_part_of_a_file(tmp_path, name):
    table, path = all_kinds(), tmp_path / name
    write_arrow(table, path, **({"row_group_size": 130} if name == "a.parquet" else {}))
    whole = read_file(path)
    for start, stop in ((0, 100), (200, 400), (200, None), (800, 1000), (900, 950), (0, None)):
        frames = list(read_batches(path, 100, start=start, stop=stop))
        part = pd.concat(frames, ignore_index=True)
        pd.testing.assert_frame_equal(part, whole[start:stop].reset_index(drop=True))
    assert list(read_batches(path, 100, start=1000)) == []
    with pytest.raises(hs.InputError, match="start must be a multiple of rows"):
        read_batches(path, 100, start=50)
    with pytest.raises(hs.InputError, match="rows must be at least 1"):
        read_batches(path, 0)
    with pytest.raises(hs.InputError, match=r"can only be read from its first row on; save it as \.parquet"):
        read_batches(saved(tmp_path, "x\n1\n"), 100, start=100)


def test_row_groups_outside_of_a_part_are_not_read(tmp_path):
    path = tmp_path / "a.parquet"
    write_arrow(pa.table({"x": np.random.default_rng(0).random(1000)}), path, row_group_size=100, compression="none")
    content = bytearray(path.read_bytes())
    content[4:500] = bytes(496)  # damages the first row group
    path.write_bytes(content)
    assert sum(len(frame) for frame in read_batches(path, 100, start=300)) == 700


def test_indices_of_pandas(tmp_path):
    frame = pd.DataFrame({"x": [1, 2, 3]})
    frame[frame["x"] > 1].to_parquet(tmp_path / "a.parquet")
    assert list(read_file(tmp_path / "a.parquet")) == ["x"]
    frame.set_index(pd.Index(["a", "b", "c"], name="id")).to_parquet(tmp_path / "a.parquet")
    assert read_file(tmp_path / "a.parquet").to_dict("list") == {"x": [1, 2, 3], "id": ["a", "b", "c"]}


def test_what_a_file_is_decide_its_first_bytes(tmp_path):
    pd.DataFrame({"x": [1.5]}).to_parquet(tmp_path / "a.csv")
    pd.DataFrame({"x": [1.5]}).to_feather(tmp_path / "b.parquet2")
    assert read_file(tmp_path / "a.csv")["x"].tolist() == [1.5]
    assert read_file(tmp_path / "b.parquet2")["x"].tolist() == [1.5]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.arrows", "a.xlsx"])
def test_damaged_files(tmp_path, name):
    path = tmp_path / name
    if name == "a.xlsx":
        pd.DataFrame({"x": np.arange(1000)}).to_excel(path)
    else:
        write_arrow(pa.table({"x": np.arange(1000), "t": ["abc"] * 1000}), path)
    whole = path.read_bytes()
    words = {"a.parquet": "Parquet", "a.xlsx": "Excel"}.get(name, "Arrow")
    ends = (len(whole) // 2, 40, 9) if name == "a.arrows" else (len(whole) - 1, len(whole) // 2, 9)
    damaged = [whole[:size] for size in ends] + [whole[:4] + bytes(99), b"\x00" * 99, b"x,y\n1,2\n"]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(hs.InputError, match=rf"{name} (is not a readable {words} file|cannot be read)") as caught:
            list(read_batches(path))
        assert "\n" not in str(caught.value)
    path.write_bytes(b"")
    with pytest.raises(hs.InputError, match=f"{name} is empty"):
        read_file(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_random_damage_is_refused_or_harmless(tmp_path, name):
    path = tmp_path / name
    write_arrow(all_kinds(200), path)
    whole, g = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(whole)
        for place in g.integers(0, len(content), 5):
            content[place] = g.integers(256)
        path.write_bytes(content)
        with contextlib.suppress(hs.InputError):
            assert len(read_file(path)) >= 1  # and no other error


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables_that_are_none(tmp_path, name):
    path = tmp_path / name
    write_arrow(pa.table({"x": pa.array([], pa.int64())}), path)
    with pytest.raises(hs.InputError, match="has names of columns, but no rows"):
        read_file(path)
    write_arrow(pa.table({}), path)
    with pytest.raises(hs.InputError, match="has no columns"):
        read_file(path)
    write_arrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), path)
    with pytest.raises(hs.InputError, match="column names must be unique; 'x' stands more than once"):
        read_file(path)


def test_wide_tables_come_in_shorter_batches(tmp_path, monkeypatch):
    names = ",".join(f"a long name {k}" for k in range(10_000))
    path = saved(tmp_path, names + "\n" + (",".join(["1.5"] * 10_000) + "\n") * 6)
    frames = list(read_batches(path, 4))
    assert [frame.shape for frame in frames] == [(4, 10_000), (2, 10_000)]
    assert all((frame == 1.5).all(axis=None) for frame in frames)
    monkeypatch.setattr("howsure.data.table_files._MOST_CELLS", 40_000)
    write_arrow(pa.table({f"c{k}": np.zeros(100) for k in range(1000)}), tmp_path / "a.arrow")
    assert [len(frame) for frame in read_batches(tmp_path / "a.arrow", 64)] == [32, 32, 32, 4]


# Excel --------------------------------------------------------------------------------------------------------------


def sheet(folder, rows, others=()):
    import openpyxl

    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in others:
        book.create_sheet(name)
    book.save(folder / "a.xlsx")
    return folder / "a.xlsx"


def test_excel(tmp_path):
    day = datetime.datetime(2020, 1, 2)
    rows = [
        [],
        ["x", "n", "real", "town", "sold", "new", "mixed", None],
        [1, 1, 1, "Ulm", day, True, 1, None],
        [2, None, 2.5, None, None, None, "a", None],
        [3, 2**40, "#N/A", "Bonn", day, False, "#DIV/0!", None],
    ]
    path = sheet(tmp_path, rows)
    frame = read_file(path)
    assert list(frame) == ["x", "n", "real", "town", "sold", "new", "mixed"]
    assert [str(frame[name].dtype) for name in ("x", "n", "real", "new")] == ["int64", "Int64", "float64", "boolean"]
    assert frame["n"].tolist() == [1, pd.NA, 2**40]
    assert frame["sold"][0] == day
    assert frame["real"].isna().tolist() == [False, False, True]
    assert frame["mixed"].tolist() == [1, "a", "#DIV/0!"]  # which the encoding takes for missing, and says so
    pd.testing.assert_frame_equal(batched(path, 2), frame)
    assert count_rows(path) is None  # which would have to be read for it


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty"),
        ([["x", "y"]], "has names of columns, but no rows"),
        ([["x", "x"], [1, 2]], "row 1: column names must be unique"),
        (
            [["x", "y"], [1, "=A2+1"]],
            r"row 2: the formula '=A2\+1' has no result in the file; open and save it in Excel",
        ),
    ],
)
def test_excel_sheets_that_are_no_tables(tmp_path, rows, message):
    with pytest.raises(hs.InputError, match=message):
        read_file(sheet(tmp_path, rows))


def test_excel_says_what_it_leaves_out(tmp_path, monkeypatch):
    path = sheet(tmp_path, [["x"], [1]], others=["notes", "more"])
    with pytest.warns(UserWarning, match="the first sheet, 'Sheet', is read; not 'notes', 'more'"):
        assert len(read_file(path)) == 1
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        hs.InputError, match=r'without openpyxl; install it with pip install "\.\[excel\]" in a checkout of howsure'
    ):
        read_file(path)


# Files from a generator ---------------------------------------------------------------------------------------------


def test_odd_files_give_the_right_rows_or_one_sentence():
    tried, failures = odd_files.check(40, shell_every=8)  # `make faults` tries 300, each through the shell
    assert (tried, failures) == (40, [])


def test_spans_are_whole_batches_and_longer_where_row_groups_are_huge(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"x": np.zeros(5 * ROWS + 7)}).to_parquet(path, row_group_size=ROWS + 1000)
    assert find_spans(path, ROWS + 1) == [(0, 2 * ROWS), (2 * ROWS, 4 * ROWS), (4 * ROWS, None)]
    parts = [list(read_batches(path, start=start, stop=stop)) for start, stop in find_spans(path, ROWS + 1)]
    assert [len(frame) for part in parts for frame in part] == [ROWS] * 5 + [7]
    pd.DataFrame({"x": np.zeros(20 * ROWS)}).to_parquet(path, row_group_size=20 * ROWS)
    assert find_spans(path, 1)[:2] == [(0, 2 * ROWS), (2 * ROWS, 4 * ROWS)]
    pd.DataFrame({"x": np.zeros(2 * ROWS)}).to_parquet(path)
    assert find_spans(path, 1) == [(0, ROWS), (ROWS, None)]
    (tmp_path / "a.csv").write_text("x\n1\n")
    assert find_spans(tmp_path / "a.csv", 1) == [(0, None)]
    path.write_bytes(path.read_bytes()[:-8])
    assert find_spans(path, 1) == [(0, None)]  # reading it will say what is wrong
    with pytest.raises(hs.InputError, match="does not exist"):
        find_spans(tmp_path / "b.parquet", 1)
    with pytest.raises(hs.InputError, match="is a folder"):
        find_spans(tmp_path, 1)


def test_json_is_called_so(tmp_path):
    for text in ('[{"x": 1}]', '{"x": 1}\n{"x": 2}\n'):
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(hs.InputError, match=r"a\.csv is JSON; save it as \.csv or \.parquet"):
            read_file(tmp_path / "a.csv")
