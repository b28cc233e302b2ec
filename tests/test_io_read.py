import contextlib
import datetime
import gzip
import os
import resource
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import howsure as hs
from faults import odd_files
from howsure.errors import InputError
from howsure.io import BATCH_ROWS, CsvOptions, count_rows, find_spans, read_batches, read_file


def saved(folder, content, name="a.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def read(folder, content, name="a.csv"):
    return read_file(saved(folder, content, name))


def batched(path, rows, **more):
    frames = list(read_batches(path, rows=rows, **more))
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
        "\n\nx,y\n\n1,2\n\n",
        '"x","y"\n"1","2"\n',
        " x , y\n 1, 2 \n",
        "x,y\n1,2\n".encode("utf-16"),
        gzip.compress(b"x,y\n1,2\n"),
        gzip.compress("x;y\n1;2\n".encode("utf-16")),
    ],
    ids=range(11),  # a gzip file holds the time of its making, and names of tests must not
)
def test_formats_of_one_table(tmp_path, content):
    frame = read(tmp_path, content)
    assert frame.to_dict("list") == {"x": [1], "y": [2]}
    assert [str(dtype) for dtype in frame.dtypes] == ["Int64", "Int64"]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("x:y\n1:2\n", CsvOptions(separator=":")),
        ("x;y\n1;2\n", CsvOptions(separator=";", encoding="ascii")),
        ("x,y\n1,2\n".encode("utf-16-le"), CsvOptions(encoding="utf-16-le")),
        ("x,y\n1,2\n".encode("cp037"), CsvOptions(encoding="cp037")),
    ],
)
def test_separator_and_encoding_by_option(tmp_path, content, options):
    path = saved(tmp_path, content)
    assert read_file(path, csv=options).to_dict("list") == {"x": [1], "y": [2]}
    assert next(read_batches(path, ["x"], csv=options)).to_dict("list") == {"x": [1.0], "y": ["2"]}


def test_unusable_options_raise():
    for options in ({"separator": ""}, {"separator": "::"}, {"separator": '"'}, {"encoding": "utf-77"}):
        with pytest.raises(hs.InputError) as caught:
            CsvOptions(**options)
        assert caught.value.value in options.values()


def test_rest_of_a_file_need_not_be_like_its_sample(tmp_path):
    """Quotes, letters and line ends behind the first 64 KB."""
    path = saved(tmp_path, "x,town\n" + "1,Ulm\n" * 20_000 + '2,"größe,\n""m"""\n')
    assert read_file(path)["town"].iloc[-1] == 'größe,\n"m"'
    path = saved(tmp_path, b"x,town\n" + b"1,Ulm\n" * 20_000 + b"2,\xff\n")
    with pytest.raises(hs.InputError, match="0xff"):
        read_file(path)
    assert len(read_file(path, csv=CsvOptions(encoding="cp1252"))) == 20_001


def test_quotes(tmp_path):
    assert list(read(tmp_path, '"a;b;c","größe\nin m"\n"1;2",3\n')) == ["a;b;c", "größe\nin m"]
    frame = read(tmp_path, 'a,b\n"x, ""y""\r\nz",1\n5" pipe,2\n"",3\n')
    assert frame["a"][:2].tolist() == ['x, "y"\r\nz', '5" pipe']
    assert frame["a"].isna().tolist() == [False, False, True]
    assert len(read(tmp_path, "a,b\n1," + "z" * 100_000 + "\n")["b"][0]) == 100_000


def test_colons_and_blanks_do_not_separate(tmp_path):
    assert read(tmp_path, "start time\n12:30\n12:45\n")["start time"].tolist() == ["12:30", "12:45"]
    assert read(tmp_path, "way driven\n10 km\n12 km\n")["way driven"].tolist() == ["10 km", "12 km"]


def test_blank_line_of_a_single_column_is_missing(tmp_path):
    assert read(tmp_path, '\nx\n1\n""\n\n2\n')["x"].tolist() == [1, pd.NA, pd.NA, 2]
    assert read(tmp_path, "x,y\n1,2\n\n3,4\n").to_dict("list") == {"x": [1, 3], "y": [2, 4]}


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
        "truth": "boolean",
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
def test_batches_are_numbers_or_the_text_itself(tmp_path, odd):
    """A cell that is not a number leaves its batch as text; others are numbers. Text columns are text."""
    for at in (0, 50, 99):
        values = [str(k) for k in range(1, 100)]
        values.insert(at, odd)
        path = saved(tmp_path, "x,y\n" + "".join(f"{v},{k}\n" for k, v in enumerate(values)))
        for frame, start in zip(read_batches(path, ["x"], rows=7), range(0, 100, 7), strict=True):
            expected = values[start : start + 7]
            assert frame["y"].tolist() == [str(k) for k in range(start, start + len(expected))]
            if frame["x"].dtype == float:
                assert frame["x"].tolist() == pytest.approx([float(v or "nan") for v in expected], nan_ok=True)
            else:
                assert frame["x"].tolist() == expected
                assert odd in ("A", "True", "0x1f")


def test_codes_of_a_long_file_stay_text(tmp_path):
    path = saved(tmp_path, "code\n" + "12345678\n" * 150_000 + "01234567\n")
    assert read_file(path)["code"].iloc[-1] == "01234567"
    assert [len(frame) for frame in read_batches(path, [])] == [65_536, 65_536, 18_929]


def test_decimal_comma_with_semicolons(tmp_path):
    frame = read(tmp_path, "size, m;price, EUR\n1,5;2,5\n3,5;4,5\n")
    assert list(frame) == ["size, m", "price, EUR"]
    assert frame["price, EUR"].tolist() == ["2,5", "4,5"]  # which the encoding reads as numbers


def test_windows_text_is_read_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="cp1252"):
        frame = read(tmp_path, "größe;preis €\n1;2\n".encode("cp1252"))
    assert list(frame) == ["größe", "preis €"]


def test_columns_without_names_are_those_of_pandas(tmp_path):
    assert list(read(tmp_path, ",a\n0,1\n1,1\n")) == ["Unnamed: 0", "a"]
    assert list(read(tmp_path, "a,,\n1,2,\n")) == ["a", "Unnamed: 1", "Unnamed: 2"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"", ""),
        (b"\n \n\n", ""),
        (b"\xef\xbb\xbf", ""),
        (gzip.compress(b""), ""),
        (b"x,y\n", ""),
        ("x,y\n1,2\n".encode("utf-16-le"), "line 1"),
        (b"x,y\n1,2\n1,\x002\n", "line 3"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "line 2"),
        (b'x,y\n1,2\n1,"2\n3,4\n', "line 3"),
        (b'x,y\n1,"2\n3,"4"\n', "line 2"),
        (gzip.compress(b"x,y\n1,2\n" * 99)[:-12], ""),
        (gzip.compress(b"x,y\n1,2\n") + b"junk", ""),
        (b"\x1f\x8bjunk", ""),
        (b"x,y\n1,2\n" * 40_000 + b"1,\xff2\n", "0xff"),
    ],
    ids=range(14),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*cp1252")
def test_damaged_text_raises(tmp_path, content, place):
    path = saved(tmp_path, content)
    for call in (read_file, lambda path: list(read_batches(path, ["x"], rows=5))):
        with pytest.raises(hs.InputError) as caught:
            call(path)
        assert caught.value.message.startswith(str(path))
        assert place in caught.value.message


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (b"x,y\n \n", 0),
        (b"x,y\n" + b"1,2\n" * 900 + b"4,5,6\n", 900),
        (b"x,y\n\n1,2\n4\n", 1),
        (b'x,y\n1,"a\nb"\n4\n', 1),
    ],
    ids=range(4),
)
def test_rows_with_other_numbers_of_fields_raise(tmp_path, content, row):
    path = saved(tmp_path, content)
    for call in (read_file, lambda path: list(read_batches(path, ["x"], rows=5))):
        with pytest.raises(hs.InputError, match=r"a\.csv") as caught:
            call(path)
        assert caught.value.row == row
        assert caught.value.value is not None
        assert caught.value.hint is not None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_random_bytes_raise(tmp_path):
    for seed in range(20):
        with pytest.raises(hs.InputError):
            read(tmp_path, np.random.default_rng(seed).bytes(500))


def test_row_of_another_length_is_named(tmp_path):
    with pytest.raises(hs.InputError) as caught:
        read(tmp_path, "x,y\n" + "1,2\n" * 200_000 + "3\n")
    assert (caught.value.row, caught.value.value) == (200_000, "3")
    with pytest.raises(hs.InputError) as caught:
        read(tmp_path, "x,y\n1,2,3\n4,5,6\n")
    assert (caught.value.row, caught.value.value) == (0, "1,2,3")


def test_repeated_names_raise(tmp_path):
    for content in (b"x,y,x\n1,2,3\n", b"x, x\n1,2\n", b"\n\nx,x\n1,2\n"):
        with pytest.raises(hs.InputError) as caught:
            read(tmp_path, content)
        assert caught.value.column == "x"


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for name in ("folder.csv", "pipe.csv", "loop.csv", "absent.csv", "zero\0.csv", "n" * 300 + ".csv"):
        with pytest.raises(hs.InputError):
            read_file(tmp_path / name)
        with pytest.raises(hs.InputError):
            next(read_batches(tmp_path / name))
    for name in ("a.xyz", "a"):
        with pytest.raises(hs.InputError) as caught:
            read(tmp_path, "x\n1\n", name)
        assert ".parquet" in caught.value.hint
    path = saved(tmp_path, "x\n1\n")
    monkeypatch.setattr("pathlib.Path.open", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no, no")))
    with pytest.raises(hs.InputError, match="no, no"):
        read_file(path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow"])
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, name):
    path = saved(tmp_path, "x\n1\n", name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(hs.InputError) as caught:
        read_file(path)
    assert "[cli]" in caught.value.hint


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
    with pa.ipc.new_file(
        str(path), table.schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    ) as writer:
        writer.write_table(table.unify_dictionaries(), max_chunksize=130)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.parquet", {}),
        ("a.parquet", {"row_group_size": 77}),
        ("a.pq", {"row_group_size": 77, "write_statistics": False, "store_schema": False}),
        ("a.arrow", {}),
        ("a.feather", {}),
    ],
)
def test_batches_have_the_values_of_the_whole_file(tmp_path, name, options):
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
        frames = list(read_batches(path, rows=rows))
        assert all(len(frame) == rows for frame in frames[:-1])
        joined = pd.concat(frames, ignore_index=True)
        for column in whole:
            kinds = {type(frame[column].dtype) for frame in frames}
            assert len(kinds) == 1
            pd.testing.assert_series_equal(joined[column].astype(object), whole[column].astype(object))
    assert count_rows(path) == (1000 if path.suffix in (".parquet", ".pq") else None)


def test_span_of_a_file(tmp_path):
    table, path = all_kinds(), tmp_path / "a.parquet"
    write_arrow(table, path, row_group_size=130)
    whole = read_file(path).astype(object)
    for start, stop in ((0, 100), (200, 400), (200, None), (800, 1000), (900, 950), (0, None), (300, 301)):
        frames = list(read_batches(path, rows=100, span=(start, stop)))
        part = pd.concat(frames, ignore_index=True).astype(object)
        pd.testing.assert_frame_equal(part, whole[start:stop].reset_index(drop=True))
    assert list(read_batches(path, rows=100, span=(1000, None))) == []


def test_row_groups_outside_of_a_part_are_not_read(tmp_path):
    path = tmp_path / "a.parquet"
    write_arrow(pa.table({"x": np.random.default_rng(0).random(1000)}), path, row_group_size=100, compression="none")
    content = bytearray(path.read_bytes())
    content[4:500] = bytes(496)  # damages the first row group
    path.write_bytes(content)
    assert sum(len(frame) for frame in read_batches(path, rows=100, span=(300, None))) == 700


def test_indices_of_pandas(tmp_path):
    frame = pd.DataFrame({"x": [1, 2, 3]})
    frame[frame["x"] > 1].to_parquet(tmp_path / "a.parquet")
    assert list(read_file(tmp_path / "a.parquet")) == ["x"]
    frame.set_index(pd.Index(["a", "b", "c"], name="id")).to_parquet(tmp_path / "a.parquet")
    assert read_file(tmp_path / "a.parquet").to_dict("list") == {"x": [1, 2, 3], "id": ["a", "b", "c"]}


def test_first_bytes_decide_the_format(tmp_path):
    pd.DataFrame({"x": [1.5]}).to_parquet(tmp_path / "a.csv")
    pd.DataFrame({"x": [1.5]}).to_feather(tmp_path / "b.parquet2")
    assert read_file(tmp_path / "a.csv")["x"].tolist() == [1.5]
    assert read_file(tmp_path / "b.parquet2")["x"].tolist() == [1.5]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.xlsx"])
def test_damaged_files(tmp_path, name):
    path = tmp_path / name
    if name == "a.xlsx":
        pd.DataFrame({"x": np.arange(1000)}).to_excel(path)
    else:
        write_arrow(pa.table({"x": np.arange(1000), "t": ["abc"] * 1000}), path)
    whole = path.read_bytes()
    damaged = [whole[:size] for size in (len(whole) - 1, len(whole) // 2, 9)] + [whole[:4] + bytes(99), b"\x00" * 99]
    for content in (*damaged, b"x,y\n1,2\n", b""):
        path.write_bytes(content)
        with pytest.raises(hs.InputError, match=name):
            list(read_batches(path))
        with pytest.raises(hs.InputError, match=name):
            read_file(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_random_damage_raises_or_harmless(tmp_path, name):
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
    with pytest.raises(hs.InputError, match=name):
        read_file(path)
    write_arrow(pa.table({}), path)
    with pytest.raises(hs.InputError, match=name):
        read_file(path)
    write_arrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), path)
    with pytest.raises(hs.InputError, match="'x'"):
        read_file(path)


def test_wide_tables_come_in_shorter_batches(tmp_path, monkeypatch):
    names = ",".join(f"a long name {k}" for k in range(10_000))
    path = saved(tmp_path, names + "\n" + (",".join(["1.5"] * 10_000) + "\n") * 6)
    frames = list(read_batches(path, names.split(","), rows=4))
    assert [frame.shape for frame in frames] == [(4, 10_000), (2, 10_000)]
    assert all((frame == 1.5).all(axis=None) for frame in frames)
    monkeypatch.setattr("howsure.io.read.MAX_BATCH_CELLS", 40_000)
    write_arrow(pa.table({f"c{k}": np.zeros(100) for k in range(1000)}), tmp_path / "a.arrow")
    assert [len(frame) for frame in read_batches(tmp_path / "a.arrow", rows=64)] == [32, 32, 32, 4]


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
        ["x", "n", "real", " town ", "sold", "new", "mixed", None],
        [1, 1, 1, "Ulm", day, True, 1, None],
        [2, None, 2.5, None, None, None, "a", None],
        [3, 2**40, "#N/A", "Bonn", day, False, "#DIV/0!", None],
    ]
    path = sheet(tmp_path, rows)
    frame = read_file(path)
    assert list(frame) == ["x", "n", "real", "town", "sold", "new", "mixed"]
    assert [frame[name].dtype.kind for name in ("x", "n", "real", "new")] == ["i", "f", "f", "O"]
    assert frame["sold"][0] == day
    assert frame["real"].isna().tolist() == [False, False, True]
    assert frame["mixed"].tolist()[:2] == [1, "a"]
    assert pd.isna(frame["mixed"][2])
    pd.testing.assert_frame_equal(pd.concat(list(read_batches(path, rows=2)), ignore_index=True), frame)
    assert count_rows(path) is None  # which would have to be read for it


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], r"a\.xlsx"), ([["x", "y"]], r"a\.xlsx"), ([["x", "x"], [1, 2]], "'x'")],
)
def test_excel_sheets_without_a_table_raise(tmp_path, rows, message):
    with pytest.raises(hs.InputError, match=message):
        read_file(sheet(tmp_path, rows))


def test_excel_with_one_far_cell_is_not_read(tmp_path):
    """4 KB that would take 10 GB: 1,048,576 rows of 16,384 columns."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active["XFD1048576"] = 1
    book.save(tmp_path / "a.xlsx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(hs.InputError, match="10,000,000") as caught:
        read_file(tmp_path / "a.xlsx")
    assert caught.value.hint
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_excel_names_the_sheet_that_is_read(tmp_path, monkeypatch):
    path = sheet(tmp_path, [["x"], [1]], others=["notes", "more"])
    with pytest.warns(UserWarning, match="'Sheet'"):
        assert len(read_file(path)) == 1
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(hs.InputError) as caught:
        read_file(path)
    assert "[excel]" in caught.value.hint


# Files from a generator ---------------------------------------------------------------------------------------------


def test_odd_files_give_the_right_rows_or_one_sentence():
    tried, failures = odd_files.check(40, shell_every=8)  # `make faults` tries 300, each through the shell
    assert (tried, failures) == (40, [])


def test_spans_are_whole_batches_and_longer_where_row_groups_are_huge(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"x": np.zeros(5 * BATCH_ROWS + 7)}).to_parquet(path, row_group_size=BATCH_ROWS + 1000)
    assert find_spans(path, BATCH_ROWS + 1) == [
        (0, 2 * BATCH_ROWS),
        (2 * BATCH_ROWS, 4 * BATCH_ROWS),
        (4 * BATCH_ROWS, None),
    ]
    parts = [list(read_batches(path, span=span)) for span in find_spans(path, BATCH_ROWS + 1)]
    assert [len(frame) for part in parts for frame in part] == [BATCH_ROWS] * 5 + [7]
    pd.DataFrame({"x": np.zeros(20 * BATCH_ROWS)}).to_parquet(path, row_group_size=20 * BATCH_ROWS)
    assert find_spans(path, 1)[:2] == [(0, 2 * BATCH_ROWS), (2 * BATCH_ROWS, 4 * BATCH_ROWS)]
    pd.DataFrame({"x": np.zeros(2 * BATCH_ROWS)}).to_parquet(path)
    assert find_spans(path, 1) == [(0, BATCH_ROWS), (BATCH_ROWS, None)]
    (tmp_path / "a.csv").write_text("x\n1\n")
    assert find_spans(tmp_path / "a.csv", 1) == [(0, None)]
    path.write_bytes(path.read_bytes()[:-8])
    for damaged in (path, tmp_path / "b.parquet", tmp_path):
        with pytest.raises(hs.InputError):
            find_spans(damaged, 1)


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_row_names_of_r_become_a_column(tmp_path, separator):
    path = tmp_path / "t.csv"
    lines = ['"a" "b"', *(f'"{k}" {k}.5 "x"' for k in range(1, 4))]
    path.write_text("\n".join(lines).replace(" ", separator))
    expected = {"row names": [1, 2, 3], "a": [1.5, 2.5, 3.5], "b": ["x"] * 3}
    assert read_file(path).to_dict("list") == expected
    assert pd.concat(read_batches(path, rows=2)).to_dict("list") == expected


@pytest.mark.parametrize("rows", ["1,3,50\n2,4,60", "r1,1,2\nr2,3,4"])
def test_one_name_fewer_without_quotes_raises_with_advice(tmp_path, rows):
    """An unquoted record may as well have a decimal comma."""
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n{rows}\n")
    with pytest.raises(InputError) as caught:
        read_file(path)
    assert caught.value.row == 0
    assert caught.value.hint is not None
