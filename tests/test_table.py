import datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

import howsure as hs
from howsure.tables.table import read_table

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


def objects(*values):
    return pd.DataFrame({"a": pd.Series(values, dtype=object)})


@pytest.mark.parametrize(
    ("x", "word"),
    [
        (np.zeros(3), "(3,)"),
        (np.zeros((3, 0)), "(3, 0)"),
        (pd.DataFrame(index=range(3)), ""),
        (pd.Series([1, 2]), "to_frame"),
        ([[1, 2], [3]], "(2,)"),
        ([[1, "a"], [3]], "(2,)"),
    ],
)
def test_shapes_that_are_no_table_raise(x, word):
    with pytest.raises(hs.InputError) as caught:
        read_table(x)
    assert word in caught.value.message


MIXTURE = pd.DataFrame({"a": [*range(17), "low", 5, "low", "high", "?"]})


@pytest.mark.parametrize(
    ("x", "column", "row", "value"),
    [
        (np.array([[1.0], [np.inf]]), "x0", 1, np.inf),
        (MIXTURE, "a", 17, "low"),
        (pd.DataFrame({"a": ["1", "?", "2", "3", "cheap"]}), "a", 4, "cheap"),
        (objects(1, 10**400), "a", 1, 10**400),
        (objects(Fraction(10**400, 3)), "a", 0, Fraction(10**400, 3)),
        (objects(Decimal("1e400")), "a", 0, Decimal("1e400")),
        (objects(Decimal("Infinity")), "a", 0, Decimal("Infinity")),
        (pd.DataFrame({"a": np.array([np.longdouble("1e4000")])}), "a", 0, np.longdouble("1e4000")),
        (pd.DataFrame({"a": ["1", "1e999"]}), "a", 1, "1e999"),
        (objects(1, 2, "y" * 10**5), "a", 2, "y" * 10**5),
        (pd.DataFrame({"a": pd.Series(np.array([0, 2**62], dtype="M8[s]"))}), "a", 1, ...),
    ],
    ids=range(11),
)
def test_values_that_cannot_be_read_raise_with_column_row_and_value(x, column, row, value):
    with pytest.raises(hs.InputError) as caught:
        read_table(x)
    error = caught.value
    assert (error.column, error.row) == (column, row)
    assert value is ... or error.value == value
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    ("x", "word"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "'a'"),
        (objects(Decimal("sNaN")), "NaN"),
    ],
)
def test_columns_that_cannot_be_read_raise_with_their_name(x, word):
    with pytest.raises(hs.InputError, match=word) as caught:
        read_table(x)
    assert caught.value.column == "a"


@pytest.mark.parametrize(
    ("x", "word"),
    [
        (sparse.eye(3).tocsr(), "toarray"),
        (np.array([["a", "b"]]), "<U1"),
        (pl.LazyFrame({"a": [1]}), "collect"),
        (pl.Series([1]), "Series"),
        (pa.array([1]), "Int64Array"),
        (np.zeros((2, 2), dtype="M8[s]"), "datetime64"),
        (np.zeros(2, dtype=[("u", float)]), "<f8"),
    ],
)
def test_objects_that_are_no_table_raise(x, word):
    with pytest.raises(hs.InputTypeError, match=word):
        read_table(x)


@pytest.mark.parametrize(
    ("x", "row"),
    [
        (objects(1j, 2j), 0),
        (pd.DataFrame({"a": [1j]}), 0),
        (objects(None, b"x"), 1),
        (objects([1], [2]), 0),
        (objects((1, 2), (3, 4)), 0),
        (objects({"k": 1}), 0),
        (objects(np.zeros(2)), 0),
        (objects(datetime.time(1), 3), 0),
        (objects(object()), 0),
        (pd.DataFrame({"a": pd.period_range("2020", periods=2, freq="M")}), 0),
        (pd.DataFrame({"a": pd.interval_range(0, 2)}), 0),
        (pl.DataFrame({"a": [[1], [2]]}), 0),
        (pa.table({"a": [{"k": 1}]}), 0),
        (pa.table({"a": [b"x"]}), 0),
        (objects(1, datetime.date(2020, 1, 1)), 0),
    ],
    ids=range(15),
)
def test_values_of_other_types_raise_with_a_remedy(x, row):
    with pytest.raises(hs.InputTypeError) as caught:
        read_table(x)
    assert (caught.value.column, caught.value.row) == ("a", row)
    assert "astype" in caught.value.hint


def test_odd_values_that_have_a_meaning():
    frame = pd.DataFrame(
        {
            "missing": pd.Series([None, np.nan, pd.NA, Decimal("NaN")], dtype=object),
            "fraction": pd.Series([Fraction(1, 3), 10**20, np.float16(0.5), True], dtype=object),
            "wait": pd.Series([datetime.timedelta(seconds=1), None, np.timedelta64(1500, "ms"), pd.NaT], dtype=object),
            "zones": pd.Series(["2020-01-01T00:00+01:00", "2020-01-01", "2020-01-01T00:00Z", None]).map(
                lambda text: datetime.datetime.fromisoformat(text) if isinstance(text, str) else None
            ).astype(object),
        }
    )  # fmt: skip
    columns = {c.name: c for c in read_table(frame).columns}
    assert [c.kind for c in columns.values()] == ["number", "number", "number", "date"]
    assert np.isnan(columns["missing"].values).all()
    assert columns["fraction"].values.tolist() == [1 / 3, 1e20, 0.5, 1]
    assert columns["wait"].values[[0, 2]].tolist() == [1, 1.5]
    assert np.isnan(columns["wait"].values[[1, 3]]).all()
    day = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).timestamp()
    assert columns["zones"].values[:3].tolist() == [day - 3600, day, day]


def test_masked_value_is_missing():
    numbers = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    for array in (numbers, numbers.astype(float), numbers.astype(np.float16), numbers.astype(object)):
        table = read_table(array)
        assert [c.kind for c in table.columns] == ["number", "number"]
        assert np.isnan(table.columns[1].values[0])
        assert table.columns[0].values.tolist() == [1, 3]
    flags = read_table(np.ma.array([[True], [False]], mask=[[True], [False]])).columns[0]
    assert flags.kind == "boolean"
    assert np.isnan(flags.values[0])


def test_lists_may_hold_text():
    table = read_table([[1.0, "a"], [2.0, None], [3.0, "b"]])
    assert [c.kind for c in table.columns] == ["number", "category"]
    assert table.columns[1].values.tolist() == ["a", None, "b"]
    assert not table.named


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_and_durations_are_the_same_in_every_unit(unit):
    g = np.random.default_rng(0)
    values = g.integers(-9 * 10**9, 9 * 10**9, 200)
    for kind in "Mm":
        series = pd.Series(values.astype(f"{kind}8[s]").astype(f"{kind}8[{unit}]"))
        assert read_table(pd.DataFrame({"a": series})).columns[0].values.tolist() == values.tolist()
        each = read_table(pd.DataFrame({"a": series.astype(object)})).columns[0]
        assert each.values.tolist() == values.tolist()
