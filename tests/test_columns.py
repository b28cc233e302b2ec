"""What columns are taken for: numbers, dates and durations as text, identifiers, categories of many values."""

import datetime
import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.preprocessing import TargetEncoder

import howsure as hs
from howsure.errors import UnreadableCellsWarning
from howsure.storage import checked_header
from howsure.tables.choices import _prior_rows, target_means
from howsure.tables.encoder import Encoding
from howsure.tables.table import read_table


def small(**changes):
    return hs.EvidentialRegressor(**{"members": 2, "steps": 500, "hidden": (64, 64), "random_state": 0, **changes})


def column_of(values, name="c"):
    return read_table(pd.DataFrame({name: values})).columns[0]


def seconds(*moments):
    return [m.replace(tzinfo=datetime.UTC).timestamp() for m in moments]


def learn(values, name="c"):
    frame = pd.DataFrame({name: values})
    frame["z"] = np.arange(len(frame)) / 7
    return Encoding.fit_transform(read_table(frame), None)[0]


def later(encoding, *values):
    """Return the features of later values in the first column."""
    frame = pd.DataFrame({"c": pd.Series(values, dtype=object), "z": 0.0})
    return encoding.transform(encoding.read(frame))[:, :-1].tolist()


def saved(encoding):
    return checked_header(Encoding, json.loads(json.dumps(asdict(encoding))))


# Dates as text --------------------------------------------------------------------------------------------------------

MOMENTS = [datetime.datetime(2020, 12, 31, 18, 30), datetime.datetime(2021, 2, 3), datetime.datetime(1999, 7, 4, 9, 5)]
DAYS = [m.replace(hour=0, minute=0) for m in MOMENTS]
MONTHS = [m.replace(day=1) for m in DAYS]
FORMS = {
    "%Y-%m-%d": ("ISO8601", DAYS),
    "%Y-%m-%d %H:%M": ("ISO8601", MOMENTS),
    "%Y-%m-%dT%H:%M:%S": ("ISO8601", MOMENTS),
    "%Y-%m-%dT%H:%M:%SZ": ("ISO8601", MOMENTS),
    "%Y-%m-%d %H:%M:%S.%f+00:00": ("ISO8601", MOMENTS),
    "%Y-%m": ("%Y-%m", MONTHS),
    "%Y/%m/%d": ("%Y/%m/%d", DAYS),
    "%Y.%m.%d %H:%M": ("%Y.%m.%d", MOMENTS),
    "%d.%m.%Y": ("%d.%m.%Y", DAYS),
    "%d.%m.%Y %H:%M:%S": ("%d.%m.%Y", MOMENTS),
    "%d/%m/%Y %H:%M": ("%d/%m/%Y", MOMENTS),
    "%d-%m-%Y": ("%d-%m-%Y", DAYS),
    "%m/%d/%Y": ("%m/%d/%Y", DAYS),
    "%m/%d/%Y %I:%M %p": ("%m/%d/%Y", MOMENTS),
    "%m/%d/%y %I:%M:%S %p": ("%m/%d/%y", MOMENTS),
    "%d/%m/%y": ("%d/%m/%y", DAYS),
    "%d %b %Y": ("%d %b %Y", DAYS),
    "%d-%b-%y": ("%d-%b-%y", DAYS),
    "%d %B %Y %H:%M": ("%d %B %Y", MOMENTS),
    "%b %d, %Y": ("%b %d, %Y", DAYS),
    "%B %d, %Y %H:%M": ("%B %d, %Y", MOMENTS),
}


@pytest.mark.parametrize("form", FORMS)
def test_dates_are_recognised_in_their_common_forms(form):
    content, moments = FORMS[form]
    texts = [m.strftime(form) for m in MOMENTS]
    for values in (texts, pd.Series(texts, dtype=object), [f" {t} " for t in texts]):
        column = column_of(values)
        assert (column.kind, column.content) == ("date", content)
        assert column.values.tolist() == seconds(*moments)


def test_leading_zeros_of_days_may_be_absent():
    assert column_of(["1/13/11", "12/1/11"]).values.tolist() == seconds(
        datetime.datetime(2011, 1, 13), datetime.datetime(2011, 12, 1)
    )
    assert column_of(["1.2.2020", "13.2.1968"]).values.tolist() == seconds(
        datetime.datetime(2020, 2, 1), datetime.datetime(1968, 2, 13)
    )


def test_every_day_of_some_years_is_read_as_pandas_reads_it():
    days = pd.date_range("1967-12-25", "2071-01-05", freq="53h")
    for form in ("%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d %b %Y", "%Y-%m-%d"):
        expected = pd.to_datetime(days.strftime(form), format=form).astype("M8[s]").astype(np.int64)
        assert np.array_equal(column_of(days.strftime(form)).values, expected)


def test_time_of_day_and_the_offset_may_differ_between_rows():
    column = column_of(["2020-01-02T00:00:00+01:00", "2020-01-02 05:30", "2020-01-02", None])
    expected = seconds(
        datetime.datetime(2020, 1, 1, 23), datetime.datetime(2020, 1, 2, 5, 30), datetime.datetime(2020, 1, 2)
    )
    assert column.values[:3].tolist() == expected
    assert np.isnan(column.values[3])
    mixed = column_of(["31.12.2020", "31.12.2020 18:30", "2020-12-31"])
    assert np.diff(mixed.values).tolist() == [66600, -66600]


@pytest.mark.parametrize(
    ("values", "row", "value"),
    [(["03/04/2021", "05/06/2021"], 0, "03/04/2021"), (["2020-01-31", "03/04/2021"], 1, "03/04/2021")],
)
def test_dates_with_an_ambiguous_month_raise(values, row, value):
    frame = pd.DataFrame({"sold": values * 10, "z": np.arange(20.0)})
    with pytest.raises(hs.InputError) as caught:
        small().fit(frame, np.arange(20.0))
    assert (caught.value.column, caught.value.row, caught.value.value) == ("sold", row, value)
    assert "dayfirst=True" in caught.value.hint
    converted = pd.DataFrame({"sold": pd.to_datetime(pd.Series(values), format="mixed", dayfirst=True)})
    assert read_table(converted).columns[0].kind == "date"  # as the hint says


def test_points_mean_day_month_year():
    assert column_of(["03.04.2021", "05.06.2021"]).content == "%d.%m.%Y"


def test_equivalent_orders_are_not_ambiguous():
    assert column_of(["01/01/2020", "02/02/2021"]).content == "%d/%m/%Y"
    assert column_of(["5 May 2020", "6 May 2020"]).content == "%d %b %Y"


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["2020-01-02", "2020-01-03", "soon", "2020-05-06"], 2),
        (["2020-02-30", "2020-01-03", "2020-05-06"], 0),
        ([*map(str, range(21)), "G", "H"] * 3, 21),
        (pd.Series([*range(21), "G", "H"] * 3, dtype=object), 21),
        ([str(k // 2) for k in range(90)] + ["abc"] * 10, 90),
    ],
    ids=range(5),
)
def test_mixture_raises_with_its_first_text(values, row):
    with pytest.raises(hs.InputError) as caught:
        column_of(values)
    error = caught.value
    assert (error.column, error.row, error.value) == ("c", row, values[row])
    assert "astype('category')" in error.hint


CATEGORIES = [
    ["03/04/2021"] * 3,  # constant, and its month is in doubt
    ["soon", "2020-01-02", "later"],
    ["1.2.10", "1.2.11", "2.0.0"],  # versions
    ["2020-W05", "2020-W54"],
    ["2020Q1", "2020Q2"],
    ["1999/00", "2000/01", "2011/12"],
    ["Monday", "Tuesday"],
    ["May", "June"],
    ["2:1", "3:0"],
    ["yes", "no"],
]


@pytest.mark.parametrize("values", CATEGORIES, ids=[v[0] for v in CATEGORIES])
def test_other_text_stays_a_category(values):
    assert column_of(values).kind == "category"


def test_later_rows_are_read_as_training_rows_were():
    encoding = Encoding.fit_transform(read_table(pd.DataFrame({"d": ["03.04.2019", "25.06.2021"]})), None)[0]

    def later(*values):
        return encoding.transform(encoding.read(pd.DataFrame({"d": list(values)}))).tolist()

    expected = later(datetime.datetime(2021, 6, 5))
    for same in ("05.06.2021", "5.6.2021", "2021-06-05", datetime.date(2021, 6, 5)):
        assert later(same) == expected
    assert later("05.06.2021", "25.06.2021")[:1] == expected  # whatever stands beside it
    for other in ("06.25.2021", "soon", "18:30", "03/04/2021"):
        with pytest.warns(UnreadableCellsWarning) as caught:
            assert later(other) == later(None)
        warning = caught[0].message
        assert (warning.column, warning.count, warning.row, warning.value) == ("d", 1, 0, other)


def test_durations_and_times_of_day_are_seconds():
    for values in (["18:30", "6:05:01"], [datetime.time(18, 30), datetime.time(6, 5, 1)]):
        column = column_of(values)
        assert (column.kind, column.content, column.values.tolist()) == ("number", "duration", [66600, 21901])
    assert read_table(pl.DataFrame({"t": [datetime.time(18, 30)]})).columns[0].content == "duration"
    written = pd.Series(pd.to_timedelta(["1h", "2 days 00:00:01.5", "-1s"]))
    assert column_of(written.astype(str)).values.tolist() == column_of(written).values.tolist() == [3600, 172801.5, -1]
    encoding = learn(written)
    assert later(encoding, "01:00:00", "0 days 01:00:00", datetime.timedelta(hours=1)) == [[3600]] * 3


def test_codes_with_leading_zeros_stay_text():
    for codes in (["01000", "02100"], ["01", "2A", "13", "14", "15"], ["7", "007"]):
        assert column_of(codes).kind == "category"
    assert column_of(["0.5", "0", "10"]).kind == "number"
    encoding = Encoding.fit_transform(read_table(pd.DataFrame({"zip": ["01000", "02100", "99000"]})), None)[0]
    for spelling in (["02100"], [2100]):  # as pandas.read_csv gives it
        assert encoding.transform(encoding.read(pd.DataFrame({"zip": spelling}))).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%m/%d/%Y %I:%M %p"])
def test_daily_cycle_is_learned_from_text(form):
    g = np.random.default_rng(0)
    when = pd.Timestamp("2021-01-01") + pd.to_timedelta(g.integers(0, 365 * 24 * 60, 600), unit="min")
    y = 3 * np.sin(2 * np.pi * (when.hour + when.minute / 60) / 24) + 0.05 * g.normal(size=600)
    table = pd.DataFrame({"when": when.strftime(form), "z": g.normal(size=600)})
    model = small().fit(table[:450], y[:450])
    assert model.score(table[450:], y[450:]) >= 0.99


# Numbers as text ------------------------------------------------------------------------------------------------------

WRITTEN = [
    (["$1,200", "$850"], "1000.0 $", [1200, 850]),
    (["EUR 1.200,50", "EUR 3,2"], "1000,0 EUR", [1200.5, 3.2]),
    (["1.200,50 €", "3,2€"], "1000,0 €", [1200.5, 3.2]),
    (["1,200", "-2,300,400.5"], "number", [1200, -2300400.5]),
    (["1,200", "850"], "number", [1200, 850]),
    (["3,5", "12,75", "4"], "1000,0", [3.5, 12.75, 4]),
    (["0,250", "1,125"], "1000,0", [0.25, 1.125]),
    (["1,234.5", "0.75"], "number", [1234.5, 0.75]),
    (["1.234,5", "0,75"], "1000,0", [1234.5, 0.75]),
    (["1 234,5", "17", "1\u00a0000"], "1000,0", [1234.5, 17, 1000]),
    (["1'234.5", "17"], "number", [1234.5, 17]),
    (["12%", "3.5 %"], "1000.0 %", [12, 3.5]),
    (["$-3.10", "-$4.5", "$7"], "1000.0 $", [-3.1, -4.5, 7]),
    (["\u22123,5", "2,25"], "1000,0", [-3.5, 2.25]),
    (["1e3", "2.5E-1", ".5", "+4."], "number", [1000, 0.25, 0.5, 4]),
]


@pytest.mark.parametrize(("texts", "form", "numbers"), WRITTEN, ids=[w[0][0] for w in WRITTEN])
def test_numbers_with_signs_and_separators_are_numbers(texts, form, numbers):
    column = column_of(texts)
    assert (column.kind, column.content) == ("number", form)
    assert column.values.tolist() == numbers
    encoding = learn(texts)
    again = saved(encoding)
    assert again == encoding
    for values in (texts, numbers):  # with the sign or without it
        assert later(again, *values) == [[number] for number in numbers]
    with pytest.warns(UnreadableCellsWarning, match="parsecs"):
        assert later(again, "5 parsecs") == later(again, None)


@pytest.mark.parametrize(
    "texts",
    [
        ["12 kg", "0.5 kg"],
        ["5 km", "6 mi", "7 km"],
        ["1248 CC", "796.5 CC", "null CC"],
        ["36 months", "60 months", None],
        ["-5 °C", "3 °C"],
        ["85 m2", "120 m2"],
        ["100 sq ft", "20 sq ft"],
        ["1.50M", "800K", "20k"],
        ["₹ 48.5 Lakh", "₹ 1.25 Cr"],
        ["$5", "€6"],
    ],
    ids=lambda texts: texts[0],
)
def test_numbers_with_units_raise_with_the_first_one(texts):
    with pytest.raises(hs.InputError) as caught:
        column_of(texts)
    assert (caught.value.column, caught.value.row, caught.value.value) == ("c", 0, texts[0])
    assert "astype('category')" in caught.value.hint
    assert column_of(pd.Categorical(texts)).kind == "category"  # as the hint says


def test_other_text_with_numbers_in_it_stays_a_category():
    for texts in (
        ["171a", "172b"] * 2,  # few texts that repeat
        ["36 months", "60 months"] * 3,
        ["A12", "A13"],
        ["10+ years", "1 year"],
        ["1-2", "3-2"],
        ["1st", "2nd"],
        ["1,2,3", "1,2"],
        ["2.1.3", "1.2.3"],
        ["1", "2", "3B", "G"],  # flats
        [f"{row}{seat}" for row in range(1, 30) for seat in "ABCDEF"],
        ["12 Main Street", "7 Elm Road", "8 High Street"],
    ):
        assert column_of(texts).kind == "category", texts


def test_text_is_a_number_as_python_reads_it():
    numbers = np.frombuffer(np.random.default_rng(0).bytes(8 * 20_000), dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    assert np.array_equal(column_of([repr(float(number)) for number in numbers]).values, numbers)


# Columns as people have them ------------------------------------------------------------------------------------------

MISSING = ["?", "-", "--", "", "  ", ".", "n/a", "NA", "nan", "NULL", "None", "nil", "Missing", "unknown", "#N/A"]


@pytest.mark.parametrize("marker", [*MISSING, "unavailable", "0000-00-00"])
def test_texts_that_stand_for_missing_values(marker):
    columns = {
        "number": ["130", "165.5", marker, "150"],
        "1000.0 $": ["$1,300", "$2", marker, "$3"],
        "ISO8601": ["2020-01-31", "2021-02-03", marker, "2022-05-06"],
        "duration": ["18:30", "06:05", marker, "12:00"],
    }
    for content, values in columns.items():
        whole = column_of([v for v in values if v != marker])
        for made in (values, pd.Series(values, dtype="string"), pd.Series(values, dtype=object)):
            column = column_of(made)
            assert (column.kind, column.content) == (whole.kind, content)
            assert column.values[~np.isnan(column.values)].tolist() == whole.values.tolist()
            assert np.isnan(column.values[2])
            assert column.unreadable is None
        assert later(learn([v for v in values if v != marker]), marker) == later(
            learn([v for v in values if v != marker]), None
        )  # also where training rows had no marker
        again = saved(learn(values))
        assert later(again, " ? ", marker) == later(again, None, None)
    category = column_of(["red", marker, "blue", marker])
    assert category.values.tolist() == ["red", marker, "blue", marker]


def test_unreadable_cells_are_missing_and_one_warning_counts_them():
    g = np.random.default_rng(0)
    table = pd.DataFrame({"horsepower": [str(k) for k in g.integers(50, 200, 100)], "z": g.normal(size=100)})
    table.loc[[3, 40, 77], "horsepower"] = "high"
    table.loc[5, "horsepower"] = "n/a"
    with pytest.warns(UserWarning, match="'horsepower'") as caught:
        model = small(steps=10).fit(table, g.normal(size=100))
    assert [w.filename for w in caught] == [__file__]
    assert model.columns_.loc["horsepower", ["taken for", "missing"]].tolist() == ["number", 4]
    with pytest.warns(UnreadableCellsWarning) as caught:
        assert np.isfinite(model.predict(table)).all()
    assert [(w.message.column, w.message.count) for w in caught] == [("horsepower", 3)]


@pytest.mark.parametrize("kind", ["number", "date", "boolean", "duration"])
def test_few_unreadable_cells_do_not_spoil_a_column(kind):
    columns = {
        "number": [str(k) for k in range(98)],
        "date": [str(day.date()) for day in pd.date_range("2020-01-01", periods=98)],
        "boolean": ["True", "FALSE"] * 49,
        "duration": [f"{k % 24:02d}:{k % 60:02d}" for k in range(98)],
    }
    expected = column_of(columns[kind])
    column = column_of([*columns[kind], "12*", "12*"])
    assert (column.kind, column.content) == (expected.kind, expected.content)
    assert column.values[:98].tolist() == expected.values.tolist()
    assert np.isnan(column.values[98:]).all()
    assert (column.unreadable.count, column.unreadable.row, column.unreadable.value) == (2, 98, "12*")


def test_markers_among_values_that_are_not_text():
    for values, kind in (([1, 2.5, "?"], "number"), ([True, False, "n/a"], "boolean"), ([*DAYS, "-"], "date")):
        column = column_of(pd.Series(values, dtype=object))
        assert (column.kind, np.isnan(column.values).sum()) == (kind, 1)
    assert column_of(pd.Series([1, "2", 3.5, "?"], dtype=object)).values[:3].tolist() == [1, 2, 3.5]


def test_later_numbers_may_be_large_enough_for_separators_or_lack_them():
    small_prices = learn(["$850.00", "$12.50", "$3"])
    expected = later(small_prices, 1250.0)
    for same in ("$1,250.00", "$1250", "1,250", "1 250.0"):
        assert later(small_prices, same) == expected
        assert later(small_prices, same, "$7")[:1] == expected  # whatever stands beside it
    with pytest.warns(UnreadableCellsWarning):
        assert later(small_prices, "$12,50", "€12") == later(small_prices, None, None)
    assert later(learn(["850.5", "3"]), "1,250.00") == later(learn([850.5, 3.0]), "1,250.00") == [[1250]]
    assert later(learn(["3,5", "12"]), "1.250,5", "1250", "1,25") == [[1250.5], [1250], [1.25]]
    assert later(learn(["1,200", "3,400.5"]), "1250", "1250.5") == [[1250], [1250.5]]


def test_few_numbers_and_texts_are_a_category():
    holidays = learn(["0"] * 96 + ["a"] * 2 + ["b"] * 2)
    assert holidays.encoders[0].categories == ("0", "a", "b")
    assert later(holidays, 0, "a", 7, "7", "c") == [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    floors = learn(pd.Series([0, 1, "2", "G", "B1", 2] * 5, dtype=object))
    assert floors.encoders[0].categories == ("0", "1", "2", "B1", "G")
    assert later(floors, 2, "2", 2.0) == [[0, 0, 1, 0, 0]] * 3
    assert column_of(pd.Series([True, "maybe"] * 3, dtype=object)).values.tolist() == ["True", "maybe"] * 3
    assert column_of(["0", "1", "2", "3+"] * 5).kind == "category"


def test_hint_for_left_out_columns_fits_their_content():
    assert "astype('category')" in learn([f"name {k}" for k in range(60)]).notice
    assert "astype" not in learn(list(range(60)), "id").notice


@pytest.mark.parametrize("name", ["house_no", "floor no", "Casino", "house nr"])
def test_numbers_of_houses_and_floors_are_numbers(name):
    assert not learn(list(range(60)), name).notice


@pytest.mark.parametrize("name", ["No", "S.No", "Sr. No.", "Invoice No", "CustomerNo", "serial nr"])
def test_running_numbers_are_identifiers(name):
    assert repr(name) in learn(list(range(60)), name).notice


# Time -----------------------------------------------------------------------------------------------------------------


def hourly(years=3):
    g = np.random.default_rng(1)
    when = pd.date_range("2019-01-01", f"{2018 + years}-12-31 23:00", freq="3h")
    warmth = g.normal(size=len(when))
    noise = 0.5 * g.normal(size=len(when))
    y = 2 * np.sin(2 * np.pi * when.hour / 24) + (when.day_of_week >= 5) + warmth + noise
    return pd.DataFrame({"date": when.astype(str), "warmth": warmth}), np.asarray(y), when.year < 2018 + years


def test_intervals_hold_in_a_later_year():
    table, y, early = hourly()
    model = small().fit(table[early], y[early])
    low, high = model.predict_interval(table[~early], 0.9).T
    assert 0.85 <= ((low <= y[~early]) & (y[~early] <= high)).mean() <= 0.95
    assert model.encoding_.encoders[0].cycles == ("year", "week", "day")


def test_times_outside_of_the_training_range_have_wider_intervals():
    g = np.random.default_rng(0)
    born = pd.Timestamp("1950-01-01") + pd.to_timedelta(g.integers(0, 18_000, 600), unit="D")
    age = (born - pd.Timestamp("1950-01-01")).days.to_numpy() / 365
    table, y = pd.DataFrame({"born": born, "z": g.normal(size=600)}), (age - 25) ** 2 / 60 + g.normal(0, 0.5, 600)
    model = small(steps=400).fit(table[:450], y[:450])
    assert model.score(table[450:], y[450:]) > 0.8
    far = table[:2].assign(born=[pd.Timestamp("2200-06-01"), pd.Timestamp("1900-06-01")])
    inside, outside = model.predict_distribution(table[450:]), model.predict_distribution(far)
    assert np.diff(outside.interval()).min() > 2 * np.median(np.diff(inside.interval()))
    assert outside.familiarity.max() < np.median(inside.familiarity) / 2
    assert saved(model.encoding_) == model.encoding_


def cycles_of(days):
    frame = pd.DataFrame({"d": days, "z": range(len(days))})
    return Encoding.fit_transform(read_table(frame), None)[0].encoders[0].cycles


def test_only_cycles_that_were_seen_whole_are_features():
    assert cycles_of(pd.date_range("2020-01-01", "2020-12-31", freq="D")) == ("year", "week")
    assert cycles_of(pd.date_range("2020-01-01", periods=24, freq="h")) == ("day",)
    assert cycles_of(pd.date_range("2020-01-01", periods=24 * 7, freq="h")) == ("week", "day")
    assert cycles_of(pd.date_range("2020-01-01", periods=100, freq="D")) == ("week",)
    assert cycles_of(pd.date_range("2018-01-01", periods=200, freq="7D")) == ("year",)
    assert cycles_of(pd.date_range("2018-01-01T08:00", periods=800, freq="D")) == ("year", "week")
    assert cycles_of(pd.to_datetime(["2020-01-01"] * 5)) == cycles_of(pd.to_datetime([None] * 5)) == ()


def test_table_of_nothing_but_dates_has_features():
    days = pd.DataFrame({"d": pd.date_range("2020-01-01", periods=5)})
    assert Encoding.fit_transform(read_table(days), None)[0].features == ["d"]
    model = small(steps=20).fit(days, np.arange(5.0))
    assert np.isfinite(model.predict(days)).all()


# Identifiers ----------------------------------------------------------------------------------------------------------


def people(n=200):
    g = np.random.default_rng(2)
    table = pd.DataFrame({"size": g.normal(size=n), "town": g.choice(["Ulm", "Bonn"], n)})
    return table, table["size"] * 2 + (table["town"] == "Ulm") + 0.1 * g.normal(size=n)


IDENTIFIERS = {
    "name": [f"Person {k}" for k in range(200)],
    "remarks": [f"it was a long day with {k % 150} words to say" for k in range(200)],
    "id": list(range(200)),
    "customer_id": list(range(5000, 5200)),
    "PassengerId": [7 * k for k in range(200)],
    "userid": list(range(3, 203)),
    "Unnamed: 0": list(range(200)),
    "Serial No.": list(range(1, 201)),
    "index": [float(k) for k in range(200)],
}


QUICK_STEPS = {"steps": 10, "hidden": (16,), "evidence": "plain"}


@pytest.fixture(scope="module")
def without_identifier():
    table, y = people()
    return small(**QUICK_STEPS).fit(table[:150], y[:150]).predict(table[150:])


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_identifier_changes_nothing(name, without_identifier):
    table, y = people()
    plain = without_identifier
    with_identifier = table.copy()
    with_identifier.insert(1, name, np.random.default_rng(0).permutation(np.array(IDENTIFIERS[name], dtype=object)))
    with pytest.warns(UserWarning, match=f"'{name}'") as caught:
        model = small(**QUICK_STEPS).fit(with_identifier[:150], y[:150])
    assert [w.filename for w in caught] == [__file__]  # the line that called fit
    assert np.array_equal(model.predict(with_identifier[150:]), plain)
    assert np.array_equal(model.predict(with_identifier[150:].assign(**{name: None})), plain)
    assert np.array_equal(model.predict(with_identifier[150:].assign(**{name: [{}] * 50})), plain)
    assert "left out" in model.columns_.loc[name, "taken for"]


def test_other_columns_than_identifiers_are_kept():
    table, y = people()
    kept = {
        "price": list(range(200)),  # all different, but nothing says that it is an identifier
        "grid": [k + 0.5 for k in range(200)],
        "paid": list(range(7, 1407, 7)),
        "shop_id": [k // 2 for k in range(200)],
        "name": pd.Categorical([f"Person {k}" for k in range(200)]),
    }
    model = small(steps=10).fit(table.assign(**kept), y)
    assert not model.encoding_.notice
    few = pd.DataFrame({"name": [f"n{k}" for k in range(12)], "z": range(12)})
    assert len(Encoding.fit_transform(read_table(few), None)[0].features) == 13
    alone = pd.DataFrame({"name": [f"n{k}" for k in range(40)]})  # something must be left to learn from
    assert len(Encoding.fit_transform(read_table(alone), None)[0].features) == 40


# Categories of many values --------------------------------------------------------------------------------------------


def towns(n, levels, noise=0.5, seed=3):
    g = np.random.default_rng(seed)
    level, z = g.integers(0, levels, n), g.normal(size=n)
    y = 2 * g.normal(size=levels)[level] + z + noise * g.normal(size=n)
    return pd.DataFrame({"town": [f"town {k}" for k in level], "z": z}), y


def test_mean_target_of_a_category_carries_the_signal_and_does_not_leak():
    table, y = towns(3000, 200)
    model = small().fit(table[:2000], y[:2000])
    assert model.encoding_.features[0] == "town: mean target"
    assert len(model.encoding_.features) == 1 + 50 + 1
    encoding, x = Encoding.fit_transform(read_table(table[:2000]), y[:2000])
    later = encoding.transform(encoding.read(table[2000:]))
    training, test = (np.corrcoef(a[:, 0], b)[0, 1] ** 2 for a, b in ((x, y[:2000]), (later, y[2000:])))
    leaking = np.corrcoef(encoding.transform(read_table(table[:2000]))[:, 0], y[:2000])[0, 1] ** 2
    assert abs(training - test) < 0.06  # with a standard error of 0.02
    assert leaking > training + 0.03  # what the own targets of rows would add
    assert model.score(table[2000:], y[2000:]) > 0.9  # noise alone leaves 0.95


def test_target_means_are_those_of_scikit_learn():
    table, y = towns(500, 60)
    values, z = table["town"].to_numpy(object), (y - y.mean()) / y.std()
    found = target_means(values, y[:, None], 0)
    codes = np.searchsorted(found.categories, values)
    prior = _prior_rows(codes, z[:, None])[0]
    oracle = TargetEncoder(target_type="continuous", smooth=prior).fit(values[:, None], y)
    assert np.allclose(found.means[: len(found.categories), 0], oracle.encodings_[0], rtol=1e-9)
    assert np.allclose(found.means[-1], y.mean())


def test_prior_is_the_ratio_of_the_variances():
    g = np.random.default_rng(0)
    codes = np.repeat(np.arange(2000), g.integers(1, 9, 2000))
    y = 0.5 * g.normal(size=2000)[codes] + 2.0 * g.normal(size=len(codes))
    assert _prior_rows(codes, (y - y.mean())[:, None])[0] == pytest.approx(16, rel=0.2)


def test_category_without_signal_has_no_means():
    g = np.random.default_rng(0)
    for seed in range(20):
        values = np.array([f"t{k}" for k in g.integers(0, 100, 1000)], dtype=object)
        assert target_means(values, g.normal(size=(1000, 1)), seed) is None
    frame = pd.DataFrame({"t": values, "z": g.normal(size=1000)})
    assert len(Encoding.fit_transform(read_table(frame), g.normal(size=1000))[0].features) == 51
    frame["t"] = [f"t{k}" for k in g.integers(0, 700, 1000)]  # which repeats too rarely
    encoding = Encoding.fit_transform(read_table(frame), g.normal(size=1000))[0]
    assert encoding.features == ["z"]
    assert "'t'" in encoding.notice


def test_unseen_and_missing_categories_and_several_targets():
    table, y = towns(1000, 100)
    y = np.stack([y, 5 - 3 * y], 1)
    table.loc[::10, "town"] = None
    y[::10] += 100
    encoding, x = Encoding.fit_transform(read_table(table), y)
    assert encoding.features[:2] == ["town: mean target 0", "town: mean target 1"]
    assert encoding.features[-2:] == ["town missing", "z"]
    assert (x[:, 2:-2].sum(0) == [(table["town"] == f[5:]).sum() for f in encoding.features[2:-2]]).all()
    rows = encoding.transform(encoding.read(pd.DataFrame({"town": ["nowhere", None], "z": [0.0, 0.0]})))
    assert np.allclose(rows[0, :2], y.mean(0))
    assert np.allclose(rows[1, :2], y[::10].mean(0), rtol=0.05)
    again = checked_header(Encoding, json.loads(json.dumps(asdict(encoding))))
    assert again == encoding
    assert np.array_equal(again.transform(again.read(table)), encoding.transform(encoding.read(table)))
    assert x.shape == (1000, 2 + 50 + 2)


def test_rows_of_weight_zero_teach_nothing():
    table, y = towns(600, 60)
    weights = np.r_[np.ones(400), np.zeros(200)]
    spoiled = np.r_[y[:400], y[400:] + 1e6]
    model = small(steps=20).fit(table, spoiled, sample_weight=weights)
    expected = Encoding.fit_transform(read_table(table[:400]), y[:400])[0]
    assert expected.encoders[0].means
    assert model.encoding_.encoders[0].means == expected.encoders[0].means
    without = small(steps=20).fit(table[:400], y[:400], sample_weight=np.ones(400))
    assert np.array_equal(model.predict(table), without.predict(table))


# What is said ---------------------------------------------------------------------------------------------------------


def test_columns_list_their_types(tmp_path):
    n = 120
    g = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": np.where(g.random(n) < 0.1, np.nan, g.normal(size=n)),
            "sold": pd.date_range("2020-01-01", periods=n, freq="5D").strftime("%d.%m.%Y"),
            "town": g.choice(["Ulm", "Bonn", "Rome"], n),
            "name": [f"house {k}" for k in range(n)],
            "empty": [None] * n,
            "same": 3.0,
            "new": g.random(n) < 0.5,
        }
    )
    with pytest.warns(UserWarning, match="'name'"):
        model = small(steps=20).fit(table, g.normal(size=n))
    said = model.columns_
    assert said["taken for"].to_dict() == {
        "size": "number",
        "sold": "date (as in 31.12.2020)",
        "town": "category, 3 values",
        "name": "names or free text, left out",
        "empty": "number",
        "same": "number",
        "new": "boolean",
    }
    assert said["features"].to_dict() == {
        "size": 2, "sold": 5, "town": 3, "name": 0, "empty": 2, "same": 1, "new": 1,
    }  # fmt: skip
    assert said["missing"].sum() == table["size"].isna().sum() + n
    assert said.loc["same", "why"] == "it does not vary, and is ignored"
    assert said.loc["empty", "why"] == "it has no values"
    again = hs.load(model.save(tmp_path / "model"))
    pd.testing.assert_frame_equal(again.columns_, said)
    assert np.array_equal(again.predict(table), model.predict(table))
    assert not hasattr(small(), "columns_")
