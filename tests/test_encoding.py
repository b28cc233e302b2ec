import datetime
import io
import json
import tracemalloc
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import howsure as hs
from faults.tables import check
from howsure.storage import checked_header
from howsure.tables.encoder import Encoding, Scaling
from howsure.tables.schema import MAX_CATEGORIES
from howsure.tables.table import read_table


def learn(values):
    return Encoding.fit_transform(read_table(pd.DataFrame({"c": values})), None)[0]


def encode(encoding, values):
    return encoding.transform(encoding.read(pd.DataFrame({"c": values})))


# What a column is, is decided in training ---------------------------------------------------------------------------

CODES = ["01", "02", "A", "B"]


def test_codes_stay_text_in_a_batch_of_numerals():
    encoding = learn(CODES)
    whole = encode(encoding, CODES)
    assert whole.tolist() == np.eye(4).tolist()
    for k, code in enumerate(CODES):
        assert encode(encoding, [code]).tolist() == whole[[k]].tolist()
    assert encode(encoding, ["03", "C"]).tolist() == [[0] * 4] * 2  # other texts than those of training


def test_value_means_its_text_or_the_first_text_that_spells_its_number():
    encoding = learn([*CODES, "x", "y", "7", "07.0"])  # sorted: 01 02 07.0 7 A B x y
    assert encode(encoding, [1, 2.0, Decimal(2), np.int8(1), 7]).nonzero()[1].tolist() == [0, 1, 1, 0, 3]
    assert encode(encoding, ["1", " 2.0", "7", "7.00"]).nonzero()[1].tolist() == [0, 1, 3, 2]
    assert not encode(encoding, [9, "1_0", "seven"]).any()  # categories that were not seen


DAY = datetime.datetime(2020, 1, 2)
SECONDS = DAY.replace(tzinfo=datetime.UTC).timestamp()
SPELLINGS_OF_THREE = [
    [3],
    [3.0],
    [Decimal("3.00")],
    [Fraction(3)],
    [np.float32(3)],
    ["3"],
    [" 3.0 "],
    pd.array([3], dtype="Int64"),
    pd.array([3.0], dtype="Float32"),
    pd.Series([3], dtype="int64[pyarrow]"),
    pd.Series([Decimal(3)], dtype=pd.ArrowDtype(pa.decimal128(5, 2))),
    pd.Categorical([3]),
    pd.Categorical([3.0, 4.0])[:1],
    pd.Categorical(["3"]),
    np.array([3], dtype=np.float16),
    np.array([3], dtype=object),
    pd.arrays.SparseArray([3.0]),
]
SPELLINGS_OF_TRUE = [
    [True],
    [np.True_],
    [1],
    [1.0],
    ["True"],
    ["true "],
    ["1"],
    pd.array([True], dtype="boolean"),
    pd.Series([True], dtype="bool[pyarrow]"),
    pd.Categorical([True]),
    pd.Categorical(["TRUE"]),
    np.array([True], dtype=object),
]
SPELLINGS_OF_DAY = [
    [DAY],
    [DAY.date()],
    [DAY.isoformat()],
    ["2020-01-02"],
    ["2020-01-02T01:00:00+01:00"],
    [DAY.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-5))) - datetime.timedelta(hours=5)],
    [np.datetime64("2020-01-02")],
    [pd.Timestamp(DAY)],
    np.array(["2020-01-02"], dtype="M8[D]"),
    np.array(["2020-01-02"], dtype="M8[s]").astype(object),
    pd.to_datetime(["2020-01-02T05:00:00+05:00"]),
    pd.Series([DAY], dtype="timestamp[us][pyarrow]"),
    pd.Series([DAY.date()], dtype="date32[day][pyarrow]"),
    pd.Categorical([DAY]),
    pd.Categorical(["2020-01-02"]),
    np.array([DAY], dtype=object),
]
SPELLINGS_OF_AN_HOUR = [
    [datetime.timedelta(hours=1)],
    np.array([3600], dtype="m8[s]"),
    np.array([3600 * 10**9], dtype="m8[ns]"),
    [np.timedelta64(60, "m")],
    [pd.Timedelta("1h")],
    pd.Series([datetime.timedelta(hours=1)], dtype="duration[ms][pyarrow]"),
    pd.Categorical([pd.Timedelta("1h")]),
]
BOOLEANS = [s for s in SPELLINGS_OF_TRUE if s[0] is True or s[0] is np.True_ or list(s) == ["True"]]
MOMENTS = [s for s in SPELLINGS_OF_DAY if not isinstance(s[0], str)]
ABSENT = [
    [None],
    [np.nan],
    [pd.NA],
    [pd.NaT],
    [Decimal("NaN")],
    pd.array([None], dtype="Int64"),
    pd.Categorical([None]),
]
TRAINING = {
    "number": ([1.0, 3.0, 7.0], SPELLINGS_OF_THREE, [[3.0]]),
    "boolean": ([True, False, True], SPELLINGS_OF_TRUE, [[1.0]]),
    "date": ([DAY, DAY + datetime.timedelta(days=5)], SPELLINGS_OF_DAY, None),
    "duration": (pd.to_timedelta(["1h", "2h"]), SPELLINGS_OF_AN_HOUR, [[3600.0]]),
    "ints": (pd.Categorical([1, 3, 7]), SPELLINGS_OF_THREE, [[0, 1, 0]]),
    "floats": (pd.Categorical([1.0, 3.0, 7.5]), SPELLINGS_OF_THREE, [[0, 1, 0]]),
    "decimals": (pd.Categorical([Decimal(1), Decimal(3)]), SPELLINGS_OF_THREE, [[0, 1]]),
    "texts of numbers": (pd.Categorical(["1", "3", "x"]), [s for s in SPELLINGS_OF_THREE if list(s) != [" 3.0 "]],
                         [[0, 1, 0]]),
    "booleans": (pd.Categorical([True, False]), BOOLEANS, [[0, 1]]),
    "dates": (pd.Categorical([DAY, DAY + datetime.timedelta(days=5)]), MOMENTS, [[1, 0]]),
    "zoned dates": (pd.Categorical(pd.to_datetime(["2020-01-02T05:00+05:00", "2021-01-01T00:00+05:00"])),
                    MOMENTS, [[1, 0]]),
}  # fmt: skip


@pytest.mark.parametrize("held", TRAINING)
def test_value_is_the_same_in_every_spelling(held):
    values, spellings, expected = TRAINING[held]
    encoding = learn(values)
    if expected is None:
        expected = encode(encoding, [DAY]).tolist()
        assert expected[0][0] == SECONDS
    for spelling in spellings:
        assert encode(encoding, spelling).tolist() == expected, spelling
    for absent in ABSENT:
        found = encode(encoding, absent)
        assert found.tolist() == [encode(encoding, [*values, None])[-1].tolist()], absent
    assert encode(encoding, []).shape == (0, len(encoding.features))


REFUSED = [
    ("number", [DAY], 0),
    ("number", [1, pd.Timedelta("1h")], 1),
    ("number", [10**400], 0),
    ("number", [1j], 0),
    ("number", [b"3"], 0),
    ("number", [[3]], 0),
    ("number", ["1e999"], 0),
    ("boolean", [1, 2], 1),
    ("boolean", [DAY], 0),
    ("date", [1577923200], 0),
    ("date", [1577923200.5], 0),
    ("date", [True], 0),
    ("date", np.array([2**62], dtype="M8[s]").astype(object), 0),
    ("duration", [3600], 0),
    ("duration", pd.Series([np.timedelta64(1, "M")], dtype=object), 0),
    ("texts of numbers", ["1", [3]], 1),
]


@pytest.mark.parametrize(("held", "values", "row"), REFUSED)
def test_values_of_another_type_raise_with_column_row_and_value(held, values, row):
    with pytest.raises(hs.InputError) as caught:
        encode(learn(TRAINING[held][0]), values)
    assert (caught.value.column, caught.value.row) == ("c", row)
    assert caught.value.value == list(values)[row]


UNREADABLE = [
    ("number", [None, "3", "?", "high", "high"], 3, 2),
    ("number", ["12 kg"], 0, 1),
    ("boolean", ["yes", "True"], 0, 1),
    ("date", ["next week"], 0, 1),
    ("duration", ["1 hour"], 0, 1),
]


@pytest.mark.parametrize(("held", "values", "row", "count"), UNREADABLE)
def test_text_that_cannot_be_read_is_missing_with_a_warning(held, values, row, count):
    encoding = learn(TRAINING[held][0])
    with pytest.warns(hs.errors.UnreadableCellsWarning) as caught:
        found = encode(encoding, values)
    assert np.array_equal(found[row], encode(encoding, [None])[0])
    (warning,) = (each.message for each in caught)
    assert (warning.column, warning.count, warning.row, warning.value) == ("c", count, row, values[row])
    assert values[row] in str(warning)


def test_values_of_no_category_are_unseen():
    for held, values in (("ints", ["x"]), ("ints", [DAY]), ("dates", ["soon"]), ("texts of numbers", [DAY])):
        assert not encode(learn(TRAINING[held][0]), values).any()


def test_categories_of_other_objects_are_found_again():
    cut = pd.cut([1.0, 2.0, 3.0, 9.0], [0, 2, 4, 10])
    encoding = learn(cut)
    assert encode(encoding, cut[2:]).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert encode(encoding, pd.Series(cut[2:]).astype(str)).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert encode(encoding, list(cut[2:])).tolist() == [[0, 1, 0], [0, 0, 1]]
    mixed = learn(pd.Categorical(["1", "01", "a", 2]))  # the number 2, the others are text
    assert encode(mixed, [2, "2", "01"]).nonzero()[1].tolist() == [2, 2, 0]


def test_whole_numbers_as_categories_keep_their_digits():
    big = 2**60
    encoding = learn(pd.Categorical([big, big + 1]))
    for values in ([big + 1], [str(big + 1)], [Decimal(big + 1)], pd.array([big + 1], dtype="Int64")):
        assert encode(encoding, values).tolist() == [[0, 1]]


def test_other_libraries_have_categories_too():
    for kind in (pl.Categorical, pl.Enum(["1", "2"])):
        table = read_table(pl.DataFrame({"c": pl.Series(["1", "2", None], dtype=kind)}))
        assert table.columns[0].values.tolist() == ["1", "2", None]
    encoded = pa.table({"c": pa.array([1, 2]).dictionary_encode(), "d": pa.array(["1", "2"]).dictionary_encode()})
    frame = pd.DataFrame({n: pd.Series(pd.arrays.ArrowExtensionArray(encoded[n])) for n in encoded.column_names})
    for table in (encoded, frame):
        assert [c.kind for c in read_table(table).columns] == ["category", "category"]


# A row does not depend on the others --------------------------------------------------------------------------------


def random_column(g, n):
    """One of the kinds, as a list of Python values and the container that training rows come in."""
    moments = [DAY + datetime.timedelta(seconds=int(s)) for s in g.integers(0, 10**8, n)]
    values, container = [
        (g.normal(size=n).tolist(), list),
        (g.integers(-5, 5, n).tolist(), list),
        (g.integers(0, 2, n).astype(bool).tolist(), list),
        ([["01", "02", "A", "b", "-3"][k] for k in g.integers(0, 5, n)], pd.Categorical),
        ([["0.10", "True", "2020-01-02", "x y"][k] for k in g.integers(0, 4, n)], pd.Categorical),
        (g.integers(0, 4, n).tolist(), pd.Categorical),
        ((g.integers(0, 4, n) / 2).tolist(), pd.Categorical),
        (g.integers(0, 2, n).astype(bool).tolist(), pd.Categorical),
        (moments, list),
        ([moments[int(k)] for k in g.integers(0, min(n, 4), n)], pd.Categorical),
        ([m.date() for m in moments], list),
        ([str(v) for v in g.integers(0, 9, n)], list),
        ([Decimal(int(v)) / 4 for v in g.integers(0, 9, n)], list),
        ([datetime.timedelta(seconds=int(s)) for s in g.integers(0, 10**6, n)], list),
    ][g.integers(14)]
    if g.random() < 0.4 and n > 2:
        values = [None if gone else v for v, gone in zip(values, g.random(n) < 0.3, strict=True)]
    return values, container


def batches_of(g, columns, rows):
    """The same rows in containers that infer anew what their columns are."""
    chosen = {name: [values[r] for r in rows] for name, (values, _) in columns.items()}
    yield pd.DataFrame(chosen)
    yield pd.DataFrame({n: pd.Series(v, dtype=object) for n, v in chosen.items()})
    yield pd.DataFrame({n: columns[n][1](v) for n, v in chosen.items()})
    yield pl.DataFrame(chosen, strict=False)
    yield pa.table(chosen)
    yield np.array([[v[k] for v in chosen.values()] for k in range(len(rows))], dtype=object)


def test_row_is_encoded_the_same_in_every_batch_and_container():
    g = np.random.default_rng(5)
    for _ in range(30):
        n = int(g.integers(1, 12))
        columns = {f"c{k}": random_column(g, n) for k in range(int(g.integers(1, 6)))}
        frame = pd.DataFrame({name: make(values) for name, (values, make) in columns.items()})
        encoding = Encoding.fit_transform(read_table(frame), None)[0]
        whole = encoding.transform(encoding.read(frame))
        for size in (1, 1, 2, n):
            rows = g.choice(n, min(size, n), replace=False).tolist()
            for batch in batches_of(g, columns, rows):
                found = encoding.transform(encoding.read(batch))
                assert np.array_equal(found, whole[rows]), (columns, rows, type(batch))


def test_rows_of_a_csv_file_are_encoded_the_same_one_by_one():
    frame = pd.DataFrame({"code": ["01", "02", "A", "B"] * 3, "size": np.linspace(0, 1, 12), "new": [True, False] * 6})
    encoding = Encoding.fit_transform(read_table(frame), None)[0]
    whole = encoding.transform(encoding.read(frame))
    for k in range(12):
        again = pd.read_csv(io.StringIO(frame.iloc[[k]].to_csv(index=False)))  # in which "01" is 1
        assert np.array_equal(encoding.transform(encoding.read(again)), whole[[k]])


# What was learned -----------------------------------------------------------------------------------------------------


def test_missing_values_are_filled_and_flagged():
    encoding = Encoding.fit_transform(
        read_table(pd.DataFrame({"a": [1.0, None, 5.0, 9.0], "b": [1.0, 2.0, 3.0, 4.0]})), None
    )[0]
    assert encoding.features == ["a", "a missing", "b"]
    assert encoding.transform(encoding.read(pd.DataFrame({"a": [None, 2.0], "b": [None, 7.0]}))).tolist() == [
        [5, 1, 2.5],  # the median of training, in b without a flag: none was missing there
        [2, 0, 7],
    ]


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_median_stands_in_for_missing_values(count):
    values = np.random.default_rng(count).normal(size=count)
    assert learn(values).encoders[0].fill == np.median(values)
    assert learn([1.6e308, 1.7e308]).encoders[0].fill == pytest.approx(1.65e308)  # NumPy's overflows


def test_categories():
    encoding = learn(["Ulm", "Bonn", None, "Ulm"])
    assert encoding.features == ["c=Bonn", "c=Ulm", "c missing"]
    assert encode(encoding, ["Bonn", "Rome", None]).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_rare_categories_beyond_the_limit_count_as_unseen():
    values = [f"c{k:03d}" for k in range(MAX_CATEGORIES + 20)] + ["c069"] * 5
    encoding = learn(values)
    assert len(encoding.features) == MAX_CATEGORIES
    assert "c=c069" in encoding.features
    assert encode(encoding, ["c068"]).sum() == 0


def test_one_long_text_does_not_make_every_cell_long():
    values = [f"t{k % 7}" for k in range(20_000)]
    values[11] = "x" * 100_000
    frame = pd.DataFrame({"c": values})
    rows = [[v, 1.0] for v in values]
    read_table(frame[:2])  # imports are not what is measured
    tracemalloc.start()
    encoding = Encoding.fit_transform(read_table(frame), None)[0]
    encoded = encoding.transform(encoding.read(frame))
    assert read_table(rows).columns[0].kind == "category"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert encoded.sum(0).tolist() == [(frame["c"] == name.removeprefix("c=")).sum() for name in encoding.features]


def test_dates_have_their_time_and_cycles():
    days = pd.DataFrame({"d": pd.to_datetime(["2020-01-06", "2020-01-13", "2020-01-07"])})
    encoding = Encoding.fit_transform(read_table(days), None)[0]
    assert encoding.features == ["d", "d:sin week", "d:cos week"]  # of the year and the day, too little is seen
    encoded = encoding.transform(encoding.read(days))
    assert (encoded[:, 0] - encoded[0, 0]).tolist() == [0, 7 * 86_400, 86_400]
    week = encoded[:, 1:]
    assert np.allclose(week[0], week[1])  # both are Mondays
    assert not np.allclose(week[0], week[2])
    assert np.allclose(np.hypot(week[:, 0], week[:, 1]), 1)


def test_range_of_the_training_rows_is_kept():
    days = pd.to_datetime(["1970-01-02", "1970-01-05", "1970-01-03"])
    encoding = Encoding.fit_transform(read_table(pd.DataFrame({"a": [3.0, None, -5.0], "d": days})), None)[0]
    assert [(encoder.low, encoder.high) for encoder in encoding.encoders] == [(-5, 3), (86_400, 4 * 86_400)]
    assert (encoding.encoders[0].mean, encoding.encoders[0].std) == pytest.approx((-1, 4))
    huge = learn([1e308, 1.5e308, 5e307]).encoders[0]
    assert (huge.mean, huge.std) == pytest.approx((1e308, 5e307 * (2 / 3) ** 0.5))
    assert learn([0.1] * 3).encoders[0].mean == 0.1


def test_columns_are_found_by_name():
    train = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    encoding = Encoding.fit_transform(read_table(train), None)[0]
    assert encoding.transform(encoding.read(train[["b", "a"]])).tolist() == [[1, 3], [2, 4]]
    assert encoding.transform(encoding.read(train.to_numpy())).tolist() == [[1, 3], [2, 4]]
    assert encoding.transform(encoding.read(train.to_numpy().astype(object))).tolist() == [[1, 3], [2, 4]]
    assert encoding.transform(encoding.read(train[:0])).shape == (0, 2)
    for frame, column in ((train[["a"]], "b"), (train.assign(c=1, d=2), "c")):
        with pytest.raises(hs.InputError) as caught:
            encoding.read(frame)
        assert caught.value.column == column
    with pytest.raises(hs.InputError, match=r"\b1\b.*\b2\b"):
        encoding.read(train.to_numpy()[:, :1])
    empty = read_table(train[:0])
    with pytest.raises(hs.InputError):
        Encoding.fit_transform(empty, None)


def test_column_that_is_missing_altogether():
    encoding = Encoding.fit_transform(read_table(pd.DataFrame({"a": [1.0, 2.0], "t": ["u", "v"]})), None)[0]
    gone = pd.DataFrame({"a": [None], "t": [None]})
    assert encoding.transform(encoding.read(gone)).tolist() == [[1.5, 0, 0]]


# Files ----------------------------------------------------------------------------------------------------------------


def test_encoding_can_be_written_down():
    for values, _, _ in TRAINING.values():
        encoding = learn(values)
        again = checked_header(Encoding, json.loads(json.dumps(asdict(encoding))))
        assert again == encoding
        assert np.array_equal(encode(again, values), encode(encoding, values))


COLUMN = asdict(Encoding.fit_transform(read_table(pd.DataFrame({"a": [1.0, 2.0]})), None)[0])["encoders"][0]
FORGED = [
    None,
    [],
    {},
    {"named": True},
    {"named": 1, "encoders": [COLUMN]},
    {"named": True, "encoders": [COLUMN], "more": 1},
    {"named": True, "encoders": []},
    {"named": True, "encoders": "ab"},
    {"named": True, "encoders": {"a": COLUMN}},
    {"named": True, "encoders": [None]},
    {"named": True, "encoders": [COLUMN, COLUMN]},
    *(
        {"named": True, "encoders": [{**COLUMN, **change}]}
        for change in (
            {"name": 3},
            {"name": None},
            {"kind": "vector"},
            {"kind": ["number"]},
            {"kind": "date"},  # with the content of a number
            {"content": "text"},
            {"content": []},
            {"content": "1000.0 km"},
            {"fill": float("nan")},
            {"fill": float("inf")},
            {"fill": 10**400},
            {"fill": "0"},
            {"fill": True},
            {"fill": None},
            {"low": 3.0},  # above the highest
            {"high": float("nan")},
            {"std": None},
            {"flags_missing": 1},
            {"categories": None},
            {"categories": "ab"},
            {"kind": "date", "content": "ISO8601", "cycles": ["month"]},
            {"kind": "date", "content": "ISO8601", "cycles": "day"},
            {"kind": "date", "content": "noon"},
            {"kind": "category", "content": "", "means": [[1.0]]},
            {"kind": "category", "content": "", "categories": ["a"], "means": [[1.0], [1.0]]},
            {"kind": "category", "content": "", "means": [[1.0], [1.0, 2.0]]},
            {"kind": "category", "content": "", "means": [[1.0], [float("nan")]]},
            {"kind": "category", "content": "", "means": [[], []]},
            {"kind": "category", "content": "", "means": 3},
            {"frequent": ["a"]},  # of a number
            {"kind": "category", "content": "", "means": [[1.0], [1.0]], "frequent": ["a"]},
            {"left_out": 1},
            {"missing": True},
            {"distinct": 1.5},
            {"why": None},
            {"unreadable": None},
            {"kind": "category", "content": "", "categories": [1]},
            {"kind": "category", "content": "", "categories": [["a"]]},
            {"more": 1},
        )
    ),
    *({"named": True, "encoders": [{k: v for k, v in COLUMN.items() if k != gone}]} for gone in COLUMN),
]


@pytest.mark.parametrize("state", FORGED, ids=range(len(FORGED)))
def test_forged_encoding_raises(state):
    with pytest.raises(hs.InputError):
        checked_header(Encoding, state)


# Scaling --------------------------------------------------------------------------------------------------------------


def exact(values):
    """The mean and the standard deviation, with 1200 bits."""
    with mpmath.workprec(1200):
        numbers = [mpmath.mpf(float(v)) for v in values]
        mean = mpmath.fsum(numbers) / len(numbers)
        return float(mean), float(mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in numbers) / len(numbers)))


Z = np.random.default_rng(0).normal(size=200)


@pytest.mark.parametrize(
    "column",
    [
        Z,
        5 + 3 * Z,
        np.exp(3 * Z),
        1e6 + Z,
        1e15 + 900 * Z,
        1e15 + np.arange(200) % 3,
        1e200 * Z,
        1e-200 * Z,
        8e307 * Z.clip(-2, 2),
        -1e-305 * (3 + Z),
        np.arange(200) % 2 * 1.0,
        np.r_[np.zeros(199), 1e300],
        np.r_[1e15, Z[:199]],
    ],
    ids=range(13),
)
def test_scaling_is_exact_in_every_range(column):
    scaling = Scaling.fit(torch.tensor(column).unsqueeze(1), [torch.arange(len(column))])
    mean, std = exact(column)
    assert scaling.scale.item() == pytest.approx(std, rel=1e-14)
    assert scaling.loc.item() == pytest.approx(mean, rel=1e-14, abs=1e-15 * std)


@pytest.mark.parametrize("c", [0.1, 0.0, -1e30, 1e-200])
def test_constant_column_may_be_ignored(c):
    table = torch.full((97, 1), c, dtype=torch.float64)
    scaling = Scaling.fit(table, [torch.arange(97)], ignore_constant=True)
    for later in (0.0, c, 1e6, -1e200):
        assert abs(scaling(torch.tensor([[later]], dtype=torch.float64)).float().item()) == 0


@pytest.mark.parametrize("c", [0.1, 0.0, -0.3, 5.0, 1e15 / 3, 1e30, -1e30, 1e-30, 1.7e308, 5e-324])
def test_constant_column_is_its_constant(c):
    column = torch.full((97, 1), c, dtype=torch.float64)
    scaling = Scaling.fit(column, [torch.arange(97)])
    assert scaling.loc.item() == c
    assert scaling.scale.item() == max(abs(c), 1)
    assert (scaling(column) == 0).all()
    near = column * (1 + torch.arange(97).unsqueeze(1) % 2 * 2.3e-16)  # rounding, not spread
    assert Scaling.fit(near.clamp(max=1.7e308), [torch.arange(97)]).scale.item() == pytest.approx(max(abs(c), 1))


def test_spread_of_subnormal_numbers_is_not_divided_by_zero():
    for dtype in (torch.float32, torch.float64):
        least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        column = torch.tensor([[0.0], [1.0], [0.0]], dtype=dtype) * least
        assert Scaling.fit(column, [torch.arange(3)])(column).isfinite().all()


def test_results_do_not_depend_on_the_default_dtype_of_torch():
    table = torch.tensor(np.stack([Z, 1e15 + 900 * Z, 0 * Z + 3], 1))
    rows = [torch.arange(150), torch.arange(50, 200)]
    expected = Scaling.fit(table, rows), Scaling.fit(table, rows, ignore_constant=True)
    before = torch.get_default_dtype()
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            found = Scaling.fit(table, rows), Scaling.fit(table, rows, ignore_constant=True)
        finally:
            torch.set_default_dtype(before)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one.loc, other.loc)
            assert torch.equal(one.scale, other.scale)
            assert one.scale.dtype == other.scale.dtype == torch.float64


def test_scaling_uses_each_members_own_rows():
    x = torch.tensor([[0.0, 5.0], [2.0, 5.0], [1000.0, 5.0]], dtype=torch.float64)
    scaling = Scaling.fit(x, [torch.tensor([0, 1]), torch.tensor([0, 1, 2])])
    assert scaling.loc[0, 0].tolist() == [1, 5]
    assert scaling.scale[0, 0].tolist() == [1, 5]
    assert scaling(x)[0, :, 0].tolist() == [-1, 1, 999]
    assert scaling(x)[1, :, 0].std(correction=0).item() == pytest.approx(1)
    assert torch.equal(scaling.select([1]).loc, scaling.loc[1:])


# Odd tables -----------------------------------------------------------------------------------------------------------


def test_odd_tables_are_learned_or_rejected_in_one_sentence():
    tried, failures = check(25)
    assert tried == 25
    assert not failures, "\n\n".join(failures)
