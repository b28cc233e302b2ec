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
from howsure.data.table import read_table

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
            pd.DataFrame({"price": [*range(17), "low", 5, "low", "high", "?"]}),
            r"column 'price' has 3 text values \(first: 'low' in row 17\) among 18 numbers",
        ),
        (
            pd.DataFrame({"price": ["1", "?", "2", "3", "cheap"]}),
            r"column 'price' has 1 text value \(first: 'cheap' in row 4\) among 3 numbers",
        ),
        (pd.Series([1, 2]), r"a single column is x.to_frame\(\)"),
    ],
)
def test_what_cannot_be_read(x, message):
    with pytest.raises(hs.InputError, match=message):
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
    with pytest.raises(hs.InputTypeError, match=message):
        read_table(x)


def objects(*values):
    return pd.DataFrame({"a": pd.Series(values, dtype=object)})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (objects(1j, 2j), r"column 'a' holds complex values \(first: 1j in row 0\).* the imaginary part"),
        (objects(None, b"x"), r"column 'a' holds bytes values \(first: b'x' in row 1\).*; decode bytes to text"),
        (objects([1], [2]), "column 'a' holds list values .*; give every element a column"),
        (objects((1, 2), (3, 4)), "column 'a' holds tuple values .*; give every element a column"),
        (objects({"k": 1}), "column 'a' holds dict values .*; give every key a column"),
        (objects(np.zeros(2)), "column 'a' holds ndarray values"),
        (objects(datetime.time(1), 3), "column 'a' holds number and time values"),
        (objects(object()), r"column 'a' holds object values .* with .astype\(str\)"),
        (pd.DataFrame({"a": pd.period_range("2020", periods=2, freq="M")}), "holds Period values .*to_timestamp"),
        (pd.DataFrame({"a": pd.interval_range(0, 2)}), "column 'a' holds Interval values .*astype"),
        (pl.DataFrame({"a": [[1], [2]]}), "column 'a' holds list values"),
        (pa.table({"a": [{"k": 1}]}), "column 'a' holds dict values"),
        (pa.table({"a": [b"x"]}), "column 'a' holds bytes values"),
        (objects(1, datetime.date(2020, 1, 1)), "column 'a' holds date and number values"),
        (pl.Series([1]), "x is a polars Series"),
        (pa.array([1]), "x is an Arrow Int64Array"),
        (np.zeros((2, 2), dtype="M8[s]"), "x must hold numbers, not datetime64"),
        (np.zeros(2, dtype=[("u", float)]), "x must hold numbers, not"),
    ],
    ids=range(18),
)
def test_odd_objects_are_refused_in_one_sentence(x, message):
    with pytest.raises(hs.InputTypeError, match=message):
        read_table(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (objects(1, 10**400), r"column 'a' has a number beyond the range of float64 \(first: 1000.* in row 1\)"),
        (objects(Fraction(10**400, 3)), "column 'a' has a number beyond the range of float64"),
        (objects(Decimal("sNaN")), "column 'a' has a signalling NaN"),
        (objects(Decimal("1e400")), "column 'a' has 1 infinite value"),
        (objects(Decimal("Infinity")), "column 'a' has 1 infinite value"),
        (pd.DataFrame({"a": np.array([np.longdouble("1e4000")])}), "column 'a' has 1 infinite value"),
        (pd.DataFrame({"a": ["1", "1e999"]}), "column 'a' has 1 infinite value"),
        (pd.DataFrame({"a": [1j]}), "column 'a': complex data is not supported"),
        (objects(True, "x"), r"column 'a' has 1 text value \(first: 'x' in row 1\) among 1 booleans"),
        (objects(1, 2, "y" * 10**5), r"first: 'y{10,30}\.\.\.y+' in row 2"),
        ([[1, 2], [3]], "x cannot be read as a table of rows and columns"),
        ([[1, "a"], [3]], r"x must have two dimensions|cannot be read as a table"),
    ],
    ids=range(12),
)
def test_odd_values_are_refused_in_one_sentence(x, message):
    with pytest.raises(hs.InputError, match=message) as caught:
        read_table(x)
    assert len(str(caught.value)) < 500


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


def test_a_masked_value_is_missing():
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
