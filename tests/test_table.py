import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

import evidentia as ev
from evidentia.data.encoding import MOST_CATEGORIES, Encoding
from evidentia.data.table import read_file, read_table

MIXED = {
    "size": [1.5, None, 3.0],
    "rooms": [1, 2, 3],
    "new": [True, False, True],
    "town": ["Ulm", None, "Bonn"],
    "sold": [datetime.datetime(2020, 1, 1), None, datetime.datetime(2020, 1, 2)],
}
KINDS = {"size": "number", "rooms": "number", "new": "boolean", "town": "category", "sold": "date"}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_every_library_gives_the_same_table(make):
    table = read_table(make(MIXED))
    assert {c.name: c.kind for c in table.columns} == KINDS
    values = {c.name: c.values for c in table.columns}
    assert np.isnan(values["size"][1])
    assert values["size"][2] == 3
    assert values["new"].tolist() == [1, 0, 1]
    assert values["town"].tolist() == ["Ulm", None, "Bonn"]
    assert values["sold"][2] - values["sold"][0] == 86_400
    assert np.isnan(values["sold"][1])
    assert table.rows == 3


def test_arrays():
    table = read_table(np.array([[1, 2], [3, 4]]))
    assert table.names == ["x0", "x1"]
    assert not table.named
    assert table.columns[1].values.tolist() == [2, 4]
    assert read_table([[1.0], [2.0]]).rows == 2
    assert read_table(np.array([[True], [False]])).columns[0].kind == "boolean"
    mixed = read_table(np.array([[1.0, "a"], [2.0, "b"]], dtype=object))
    assert [c.kind for c in mixed.columns] == ["number", "category"]


def test_pandas_types():
    frame = pd.DataFrame(
        {
            "nullable": pd.array([1, None], dtype="Int64"),
            "flag": pd.array([True, None], dtype="boolean"),
            "kind": pd.Categorical(["a", None]),
            "zone": pd.to_datetime(["2020-01-01T01:00+01:00", None]),
            "wait": pd.to_timedelta(["1h", "2h"]),
            "empty": [None, None],
            "texts": ["1.5", "2"],
        },
        index=["u", "v"],
    )
    table = read_table(frame)
    values = {c.name: (c.kind, c.values) for c in table.columns}
    assert [kind for kind, _ in values.values()] == [
        "number", "boolean", "category", "date", "number", "number", "number",
    ]  # fmt: skip
    assert values["zone"][1][0] == datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).timestamp()
    assert values["wait"][1].tolist() == [3600, 7200]
    assert np.isnan(values["empty"][1]).all()
    assert values["texts"][1].tolist() == [1.5, 2]
    assert list(table.index) == ["u", "v"]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), r"two dimensions \(rows, columns\), got shape \(3,\); a single column is x.reshape\(-1, 1\)"),
        (np.zeros((3, 0)), r"the table has no columns: shape \(3, 0\)"),
        (pd.DataFrame(index=range(3)), "the table has no columns"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column names must be unique; 'a' stands more than once"),
        (np.array([[1.0], [np.inf]]), r"column 'x0' has 1 infinite value \(first in row 1\)"),
        (
            pd.DataFrame({"price": [*range(17), "n/a", 5, "n/a", "?"]}),
            r"column 'price' has 3 text values \(first: 'n/a' in row 17\) among 18 numbers",
        ),
        (
            pd.DataFrame({"price": ["1", "2", "3", "unknown"]}),
            r"column 'price' has 1 text value \(first: 'unknown' in row 3\) among 3 numbers",
        ),
        (pd.Series([1, 2]), r"a single column is x.to_frame\(\)"),
    ],
)
def test_what_cannot_be_read(x, message):
    with pytest.raises(ev.InputError, match=message):
        read_table(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (sparse.eye(3).tocsr(), r"sparse tables are not supported; pass a dense one, as in x.toarray\(\)"),
        (np.array([["a", "b"]]), "x must hold numbers, not <U1"),
        (pd.DataFrame({"a": [{}, {}]}), "column 'a' holds dict values"),
        (pl.LazyFrame({"a": [1]}), r"collect\(\) it first"),
    ],
)
def test_what_has_the_wrong_kind(x, message):
    with pytest.raises(ev.InputTypeError, match=message):
        read_table(x)


def test_files(tmp_path):
    for name, text in {"a.csv": "x,y\n1,2\n", "b.csv": "x;y\n1;2\n", "c.tsv": "x\ty\n1\t2\n"}.items():
        (tmp_path / name).write_text(text)
        assert read_file(tmp_path / name).to_dict("list") == {"x": [1], "y": [2]}
    pd.DataFrame({"x": [1.5]}).to_parquet(tmp_path / "d.parquet")
    assert read_file(tmp_path / "d.parquet")["x"].tolist() == [1.5]
    (tmp_path / "e.csv").write_text("")
    (tmp_path / "f.xyz").write_text("x")
    (tmp_path / "g.csv").write_bytes(b"x,y\n\xff\xfe\n")
    for name, message in {
        "e.csv": "is empty",
        "f.xyz": "not .xyz",
        "g.csv": "cannot be read",
        "h.csv": "does not exist",
    }.items():
        with pytest.raises(ev.InputError, match=message):
            read_file(tmp_path / name)


# Encoding -----------------------------------------------------------------------------------------------------------


def test_missing_values_are_filled_and_flagged():
    encoding = Encoding.fit(read_table(pd.DataFrame({"a": [1.0, None, 5.0, 9.0], "b": [1.0, 2.0, 3.0, 4.0]})))
    assert encoding.features == ["a", "a missing", "b"]
    assert encoding.transform(read_table(pd.DataFrame({"a": [None, 2.0], "b": [None, 7.0]}))).tolist() == [
        [5, 1, 2.5],  # the median of training, in b without a flag: none was missing there
        [2, 0, 7],
    ]


def test_categories():
    encoding = Encoding.fit(read_table(pd.DataFrame({"town": ["Ulm", "Bonn", None, "Ulm"]})))
    assert encoding.features == ["town=Bonn", "town=Ulm", "town missing"]
    new = pd.DataFrame({"town": ["Bonn", "Rome", None]})
    assert encoding.transform(read_table(new)).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_rare_categories_beyond_the_limit_count_as_unseen():
    values = [f"c{k:03d}" for k in range(MOST_CATEGORIES + 20)] + ["c069"] * 5
    encoding = Encoding.fit(read_table(pd.DataFrame({"c": values})))
    assert len(encoding.features) == MOST_CATEGORIES
    assert "c=c069" in encoding.features


def test_numbers_where_categories_were():
    encoding = Encoding.fit(read_table(pd.DataFrame({"zone": pd.Categorical(["1", "2", "x"])})))
    assert encoding.transform(read_table(pd.DataFrame({"zone": [2, 1]}))).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_dates_have_cycles():
    days = pd.DataFrame({"d": pd.to_datetime(["2020-01-06", "2020-01-13", "2020-01-07"])})
    encoded = Encoding.fit(read_table(days)).transform(read_table(days))
    week = encoded[:, 3:5]
    assert np.allclose(week[0], week[1])  # both are Mondays
    assert not np.allclose(week[0], week[2])
    assert np.allclose(np.hypot(week[:, 0], week[:, 1]), 1)


def test_columns_are_found_by_name():
    train = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    encoding = Encoding.fit(read_table(train))
    assert encoding.transform(read_table(train[["b", "a"]])).tolist() == [[1, 3], [2, 4]]
    assert encoding.transform(read_table(train.to_numpy())).tolist() == [[1, 3], [2, 4]]
    assert encoding.transform(read_table(train[:0])).shape == (0, 2)
    for frame, message in (
        (train[["a"]], "the table lacks the column 'b'"),
        (train.assign(c=1, d=2), "the table has, beyond those of training, the columns 'c', 'd'"),
        (train.to_numpy()[:, :1], "the table has 1 columns, but 2 were there in training"),
        (train.assign(a=["x", "y"]), r"column 'a' held numbers in training, but has text now \(first: 'x' in row 0\)"),
    ):
        with pytest.raises(ev.InputError, match=message):
            encoding.transform(read_table(frame))
    with pytest.raises(ev.InputError, match="no rows to learn from"):
        Encoding.fit(read_table(train[:0]))


def test_a_column_that_is_missing_altogether():
    encoding = Encoding.fit(read_table(pd.DataFrame({"a": [1.0, 2.0], "t": ["u", "v"]})))
    gone = pd.DataFrame({"a": [None], "t": [None]})
    assert encoding.transform(read_table(gone)).tolist() == [[1.5, 0, 0]]


def test_an_encoding_can_be_written_down():
    import json

    encoding = Encoding.fit(read_table(pd.DataFrame(MIXED)))
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert again == encoding
    table = read_table(pd.DataFrame(MIXED))
    assert np.array_equal(again.transform(table), encoding.transform(table))
