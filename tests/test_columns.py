"""What columns are taken for: dates as text, absolute time, identifiers, many-valued categories, and what is said."""

import datetime
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.preprocessing import TargetEncoder

import howsure as hs
from howsure.data.choices import _prior_rows, absolute_time_helps, target_means
from howsure.data.encoding import Encoding
from howsure.data.table import read_table


def small(**changes):
    return hs.EvidentialRegressor(**{"members": 2, "steps": 500, "hidden": (64, 64), "random_state": 0, **changes})


def column_of(values, name="c"):
    return read_table(pd.DataFrame({name: values})).columns[0]


def seconds(*moments):
    return [m.replace(tzinfo=datetime.UTC).timestamp() for m in moments]


# Dates as text --------------------------------------------------------------------------------------------------------

MOMENTS = [datetime.datetime(2020, 12, 31, 18, 30), datetime.datetime(2021, 2, 3), datetime.datetime(1999, 7, 4, 9, 5)]
DAYS = [m.replace(hour=0, minute=0) for m in MOMENTS]
FORMS = {
    "%Y-%m-%d %H:%M": ("text", MOMENTS),
    "%Y-%m-%dT%H:%M:%S": ("text", MOMENTS),
    "%Y-%m-%dT%H:%M:%SZ": ("text", MOMENTS),
    "%Y-%m-%d %H:%M:%S.%f+00:00": ("text", MOMENTS),
    "%Y%m%dT%H%M%S": ("text", MOMENTS),
    "%Y-%m-%d": ("text", DAYS),
    "%Y/%m/%d": ("text", DAYS),
    "%Y.%m.%d %H:%M": ("text", MOMENTS),
    "%d.%m.%Y": ("day first", DAYS),
    "%d.%m.%Y %H:%M:%S": ("day first", MOMENTS),
    "%d/%m/%Y %H:%M": ("day first", MOMENTS),
    "%d-%m-%Y": ("day first", DAYS),
    "%m/%d/%Y": ("month first", DAYS),
    "%m/%d/%Y %I:%M %p": ("month first", MOMENTS),
    "%m/%d/%y %I:%M:%S%p": ("month first", MOMENTS),
    "%m-%d-%Y, %H:%M": ("month first", MOMENTS),
    "%d/%m/%y": ("day first", DAYS),
    "%y-%m-%d": ("year first", DAYS),
    "%d %b %Y": ("text", DAYS),
    "%d-%b-%y": ("text", DAYS),
    "%d. %B %Y %H:%M": ("text", MOMENTS),
    "%b %d, %Y": ("text", DAYS),
    "%B %d %Y %H:%M": ("text", MOMENTS),
    "%a, %d %b %Y %H:%M:%S +0000": ("text", MOMENTS),
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


def test_offsets_count():
    column = column_of(["2020-01-02T00:00:00+01:00", "02 Jan 2020 00:00 -0530", None])
    assert column.values[:2].tolist() == seconds(
        datetime.datetime(2020, 1, 1, 23), datetime.datetime(2020, 1, 2, 5, 30)
    )
    assert np.isnan(column.values[2])


AMBIGUOUS = [
    (["03/04/2021", "05/06/2021"], "such as '03/04/2021' that could be day/month/year or month/day/year; convert"),
    (["2020-01-31", "03/04/2021"], "such as '03/04/2021' that could be day/month/year or month/day/year"),
    (["11-01-30", "12-02-28"], r"such as '11-01-30' that could be day/month/year or year/month/day; .*yearfirst=True"),
    (
        ["31/12/2020", "12/31/2020"],
        r"in two orders, '31/12/2020' \(day/month/year\) and '12/31/2020' \(month/day/year\)",
    ),
]


@pytest.mark.parametrize(("values", "message"), AMBIGUOUS)
def test_dates_in_doubt_are_refused_by_name(values, message):
    with pytest.raises(hs.InputError, match=rf"column 'sold' has dates {message}"):
        small().fit(pd.DataFrame({"sold": values * 10, "z": np.arange(20.0)}), np.arange(20.0))
    converted = pd.DataFrame({"sold": pd.to_datetime(pd.Series(values), format="mixed", dayfirst=True)})
    assert read_table(converted).columns[0].kind == "date"  # as the message says


def test_points_mean_day_month_year_unless_a_value_forbids_it():
    assert column_of(["03.04.2021", "05.06.2021"]).content == "day first"
    assert column_of(["03.04.2021", "05.26.2021"]).content == "month first"


def test_orders_that_mean_the_same_are_no_doubt():
    assert column_of(["01/01/2020", "02/02/2021"]).content == "text"


def test_stray_text_among_dates_is_refused_by_name():
    with pytest.raises(hs.InputError, match=r"column 'c' has 1 text value \(first: 'soon' in row 2\) among 3 dates"):
        column_of(["2020-01-02", "2020-01-03", "soon", "2020-05-06"])
    with pytest.raises(hs.InputError, match=r"first: '2020-02-30' in row 0\) among 2 dates"):
        column_of(["2020-02-30", "2020-01-03", "2020-05-06"])


CATEGORIES = [
    ["2020-01-02"] * 3,  # constant
    ["03/04/2021"] * 3,
    ["soon", "2020-01-02", "later"],
    ["1.2.10", "1.2.11", "2.0.0"],  # versions
    ["2020-W05", "2020-W54"],
    ["Q1 2020", "Q5 2020"],
    ["2001-02", "2002-03", "2003-04"],  # seasons
    ["1999/00", "2000/01", "2011/12"],
    ["Monday", "Tuesday"],
    ["May", "June"],
    ["2:1", "3:0"],
    ["25:10", "18:30"],
    ["yes", "no"],
]


@pytest.mark.parametrize("values", CATEGORIES, ids=[v[0] for v in CATEGORIES])
def test_other_text_stays_a_category(values):
    assert column_of(values).kind == "category"


def test_later_rows_are_read_as_training_rows_were():
    encoding = Encoding.fit(read_table(pd.DataFrame({"d": ["03.04.2019", "25.06.2021"]})))

    def later(*values):
        return encoding.transform(encoding.read(pd.DataFrame({"d": list(values)}))).tolist()

    expected = later(datetime.datetime(2021, 6, 5))
    for same in ("05.06.2021", "5.6.21", "2021-06-05", "5 Jun 2021", datetime.date(2021, 6, 5)):
        assert later(same) == expected
    assert later("05.06.2021", "25.06.2021")[:1] == expected  # whatever stands beside it
    for other in ("06.25.2021", "soon", "18:30"):
        with pytest.raises(
            hs.InputError, match=f"column 'd' held dates in training, but has text now .first: '{other}'"
        ):
            later(other)
    undecided = Encoding.fit(read_table(pd.DataFrame({"d": ["2019-04-03", "2021-06-25"]})))
    with pytest.raises(hs.InputError, match="held dates in training, but has text now"):
        undecided.read(pd.DataFrame({"d": ["03/04/2021"]}))


def test_months_times_of_day_and_numbers_that_are_dates():
    assert column_of(["2020-12", "2021-01"]).values.tolist() == seconds(
        datetime.datetime(2020, 12, 1), datetime.datetime(2021, 1, 1)
    )
    assert column_of(["May 2020", "Jun 2021"]).content == "month"
    for values in (["18:30", "6:05:01"], ["6:30 PM", "6:05:01 am"], [datetime.time(18, 30), datetime.time(6, 5, 1)]):
        assert column_of(values).values.tolist() == [66600, 21901]
    assert read_table(pl.DataFrame({"t": [datetime.time(18, 30)]})).columns[0].content == "time"
    days = seconds(datetime.datetime(2020, 12, 31), datetime.datetime(2021, 1, 1))
    for values in ([20201231, 20210101], ["20201231", "20210101"], [20201231.0, 20210101.0]):
        assert column_of(values, "order_date").values.tolist() == days
        assert column_of(values, "size").kind == "number"
    assert column_of([20201231, 20201301], "date").kind == "number"


def test_codes_with_leading_zeros_stay_text():
    for codes in (["01000", "02100"], ["01", "2A", "13", "14", "15"], ["7", "007"]):
        assert column_of(codes).kind == "category"
    assert column_of(["0.5", "0", "10"]).kind == "number"
    encoding = Encoding.fit(read_table(pd.DataFrame({"zip": ["01000", "02100", "99000"]})))
    for spelling in (["02100"], [2100]):  # as pandas.read_csv gives it
        assert encoding.transform(encoding.read(pd.DataFrame({"zip": spelling}))).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%m/%d/%Y %I:%M %p"])
def test_a_daily_cycle_is_learned_from_text(form):
    g = np.random.default_rng(0)
    when = pd.Timestamp("2021-01-01") + pd.to_timedelta(g.integers(0, 365 * 24 * 60, 600), unit="min")
    y = 3 * np.sin(2 * np.pi * (when.hour + when.minute / 60) / 24) + 0.05 * g.normal(size=600)
    table = pd.DataFrame({"when": when.strftime(form), "z": g.normal(size=600)})
    model = small().fit(table[:450], y[:450])
    assert model.score(table[450:], y[450:]) >= 0.99


# Numbers with units and separators ------------------------------------------------------------------------------------

WRITTEN = [
    (["1248 CC", "796.5 CC"], "1000.0 CC", [1248, 796.5]),
    (["$1,200", "$850"], "$1,000.0", [1200, 850]),
    (["EUR 1.200,50", "EUR 3,2"], "EUR 1.000,0", [1200.5, 3.2]),
    (["1,200", "-2,300,400.5"], "1,000.0", [1200, -2300400.5]),
    (["3,5", "12,75", "4"], "1000,0", [3.5, 12.75, 4]),
    (["0,250", "1,125"], "1000,0", [0.25, 1.125]),
    (["1,234.5", "0.75"], "1,000.0", [1234.5, 0.75]),
    (["1.234,5", "0,75"], "1.000,0", [1234.5, 0.75]),
    (["1 234,5", "17", "1\u00a0000"], "1 000,0", [1234.5, 17, 1000]),
    (["12%", "3.5%"], "1000.0%", [12, 3.5]),
    (["-5 °C", "3 °C"], "1000.0 °C", [-5, 3]),
    (["85 m2", "120 m2"], "1000.0 m2", [85, 120]),
    (["36 months", "60 months", None], "1000.0 months", [36, 60]),
    (["$-3.10", "-$4.5", "($1.25)", "$7"], "$1000.0", [-3.1, -4.5, -1.25, 7]),
    (["\u22123,5", "2,25"], "1000,0", [-3.5, 2.25]),
    (["4,79,000", "12,000", "1,00,00,000"], "1,000.0", [479_000, 12_000, 10_000_000]),
    (["1.50M", "800K", "20k"], "1000.0 K/M/B", [1.5e6, 8e5, 2e4]),
    (["€0", "€1.5M", "€2B"], "€1000.0 K/M/B", [0, 1.5e6, 2e9]),
    (["₹ 48.5 Lakh", "₹ 1.25 Cr"], "₹ 1000.0 Lakh/Cr", [4.85e6, 1.25e7]),
]


@pytest.mark.parametrize(("texts", "template", "numbers"), WRITTEN, ids=[w[1] for w in WRITTEN])
def test_numbers_with_units_and_separators_are_numbers(texts, template, numbers):
    column = column_of(texts)
    assert (column.kind, column.content) == ("number", template)
    assert column.values[: len(numbers)].tolist() == numbers
    encoding = Encoding.fit(read_table(pd.DataFrame({"c": texts})))
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert encoding.to_frame()["taken for"].tolist() == [f"number (as in {template})"]
    for values in (texts, [*numbers, *texts[len(numbers) :]]):  # with the unit or without it
        found = again.transform(again.read(pd.DataFrame({"c": pd.Series(values, dtype=object)})))
        assert found[: len(numbers), 0].tolist() == numbers
    with pytest.raises(
        hs.InputError, match=r"column 'c' held numbers in training, but has text now .*; write numbers as"
    ):
        again.read(pd.DataFrame({"c": ["5 parsecs"]}))


def test_other_text_with_numbers_in_it_stays_a_category():
    for texts in (
        ["5 km", "6 mi"],
        ["A12", "A13"],
        ["10+ years", "1 year"],
        ["1-2", "3-2"],
        ["1st", "2nd"],
        ["1,2,3", "1,2"],
        ["1,200", "1200"],  # a slip, or a decimal comma
        ["2.1.3", "1.2.3"],
        ["1", "2", "3B", "G"],  # flats
        ["--5 km", "6 km"],
    ):
        assert column_of(texts).kind == "category", texts


# Columns as people have them ------------------------------------------------------------------------------------------


def learn(values, name="c"):
    frame = pd.DataFrame({name: values})
    frame["z"] = np.arange(len(frame)) / 7
    return Encoding.fit(read_table(frame))


def later(encoding, *values):
    """Return the features of later values in the first column."""
    frame = pd.DataFrame({"c": pd.Series(values, dtype=object), "z": 0.0})
    return encoding.transform(encoding.read(frame))[:, :-1].tolist()


MISSING = ["?", "-", "--", "", "  ", ".", "n/a", "NA", "nan", "NULL", "None", "nil", "Missing", "unknown", "#N/A"]


@pytest.mark.parametrize("marker", [*MISSING, "unavailable", "0000-00-00"])
def test_texts_that_stand_for_missing_values(marker):
    columns = {
        "number": ["130", "165.5", marker, "150"],
        "1,000.0 km": ["1,300 km", "2 km", marker, "3 km"],
        "text": ["2020-01-31", "2021-02-03", marker, "2022-05-06"],
        "time": ["18:30", "06:05", marker, "12:00"],
    }
    for content, values in columns.items():
        whole = column_of([v for v in values if v != marker])
        for made in (values, pd.Series(values, dtype="string"), pd.Series(values, dtype=object)):
            column = column_of(made)
            assert (column.kind, column.content) == (whole.kind, content)
            assert column.values[~np.isnan(column.values)].tolist() == whole.values.tolist()
            assert np.isnan(column.values[2])
            assert column.strays == ((marker, 1),)
        encoding = learn(values)
        assert f"missing values are written as {marker!r} in 1 row" in encoding.to_frame().loc["c", "why"]
        assert later(learn([v for v in values if v != marker]), marker) == later(
            learn([v for v in values if v != marker]), None
        )  # also where training rows had no marker
        again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
        assert later(again, " ? ", marker) == later(again, None, None)
    category = column_of(["red", marker, "blue", marker])
    assert category.values.tolist() == ["red", marker, "blue", marker]


def test_one_warning_names_column_marker_and_count():
    g = np.random.default_rng(0)
    table = pd.DataFrame({"horsepower": [str(k) for k in g.integers(50, 200, 100)], "z": g.normal(size=100)})
    table.loc[[3, 40, 77], "horsepower"] = "?"
    table.loc[5, "horsepower"] = "n/a"
    expected = "taken for missing values, in column 'horsepower': '[?]' in 3 rows, 'n/a' in 1 row"
    with pytest.warns(UserWarning, match=expected) as caught:
        model = small(steps=10).fit(table, g.normal(size=100))
    assert [w.filename for w in caught] == [__file__]
    assert model.columns_.loc["horsepower", ["taken for", "missing"]].tolist() == ["number", 4]
    assert np.isfinite(model.predict(table)).all()


def test_markers_among_values_that_are_not_text():
    for values, kind in (([1, 2.5, "?"], "number"), ([True, False, "n/a"], "boolean"), ([*DAYS, "-"], "date")):
        column = column_of(pd.Series(values, dtype=object))
        assert (column.kind, np.isnan(column.values).sum()) == (kind, 1)
    assert column_of(pd.Series([1, "2", 3.5, "?"], dtype=object)).values[:3].tolist() == [1, 2, 3.5]


def test_a_unit_without_a_number_is_missing():
    values = [f"{k % 40 + 60.5} bhp" for k in range(98)] + ["null bhp", "weak"]
    encoding = learn(values)
    assert encoding.encoders[0].content == "1000.0 bhp"
    assert "in column 'c': 'null bhp' in 1 row, 'weak' in 1 row" in encoding.notice
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    with pytest.warns(UserWarning, match="column 'c': taken for missing values: 'odd bhp' in 1 row"):
        assert later(again, "odd bhp", "7 bhp") == [*later(again, None), [7, 0]]
    clean = learn(values[:98])  # a fold without such rows
    assert later(clean, "null bhp", "- bhp", "bhp") == later(clean, None, None, None)
    with pytest.raises(hs.InputError, match=r"write numbers as in 1000\.0 bhp"):
        later(clean, "odd bhp")
    assert column_of(values[:30] + ["null bhp"] * 5).kind == "category"  # too many of them


def test_later_numbers_may_be_large_enough_for_separators_or_lack_them():
    small_prices = learn(["$850.00", "$12.50", "$3"])
    expected = later(small_prices, 1250.0)
    for same in ("$1,250.00", "$1250", "1,250", "1 250.0"):
        assert later(small_prices, same) == expected
        assert later(small_prices, same, "$7")[:1] == expected  # whatever stands beside it
    with pytest.raises(hs.InputError, match="write numbers as in"):
        later(small_prices, "$12,50")
    assert later(learn(["850.5", "3"]), "1,250.00") == later(learn([850.5, 3.0]), "1,250.00") == [[1250]]
    assert later(learn(["3,5 km", "12 km"]), "1.250,5 km", "1250 km", "1,25 km") == [[1250.5], [1250], [1.25]]
    assert later(learn(["1,200", "3,400.5"]), "1250", "1250.5") == [[1250], [1250.5]]


def test_few_numbers_and_texts_are_a_category():
    holidays = learn(["0"] * 90 + ["a"] * 5 + ["b"] * 5)
    assert holidays.encoders[0].categories == ("0", "a", "b")
    assert "numbers and text in one column" in holidays.to_frame().loc["c", "why"]
    assert later(holidays, 0, "a", 7, "7", "c") == [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    floors = learn(pd.Series([0, 1, "2", "G", "B1", 2] * 5, dtype=object))
    assert floors.encoders[0].categories == ("0", "1", "2", "B1", "G")
    assert later(floors, 2, "2", 2.0) == [[0, 0, 1, 0, 0]] * 3
    assert column_of(pd.Series([True, "maybe"] * 3, dtype=object)).values.tolist() == ["True", "maybe"] * 3
    for many in ([*map(str, range(21)), "G"] * 3, pd.Series([*range(21), "G"] * 3, dtype=object)):
        with pytest.raises(hs.InputError, match=r"has 3 text values .first: 'G' in row 21. among 63 numbers"):
            column_of(many)


def test_first_days_of_months_are_no_doubt():
    months = pd.date_range("2010-01-01", periods=30, freq="MS")
    expected = [m.timestamp() for m in months]
    for form, content in (("%m/%d/%Y", "month first"), ("%d/%m/%Y", "day first"), ("%m/%d/%y %H:%M", "month first")):
        column = column_of(months.strftime(form))
        assert column.content == content
        assert column.values.tolist() == expected
    with pytest.raises(hs.InputError, match="could be day/month/year or month/day/year"):
        column_of(["1/1/2011", "2/1/2011", "2/1/2012"])  # two values may be days as well


PERIODS = [
    (["Jan-20", "Dec-99"], "month", ["2020-01-01", "1999-12-01"]),
    (["Jan 2020", "December 1999"], "month", ["2020-01-01", "1999-12-01"]),
    (["01/2020", "12/1999"], "month", ["2020-01-01", "1999-12-01"]),
    (["2020M01", "1999M12"], "month", ["2020-01-01", "1999-12-01"]),
    (["1950Q2", "2020-Q4"], "quarter", ["1950-04-01", "2020-10-01"]),
    (["Q2 1950", "q4 2020"], "quarter", ["1950-04-01", "2020-10-01"]),
    (["2020-W01", "2020W53"], "week", ["2019-12-30", "2020-12-28"]),
    (["2020-01", "2020-02", "2021-02"], "month", ["2020-01-01", "2020-02-01", "2021-02-01"]),  # no seasons
]


@pytest.mark.parametrize(("texts", "content", "days"), PERIODS, ids=[p[0][0] for p in PERIODS])
def test_months_quarters_and_weeks_are_their_first_days(texts, content, days):
    column = column_of(texts)
    assert (column.kind, column.content) == ("date", content)
    assert column.values.tolist() == [pd.Timestamp(day).timestamp() for day in days]
    encoding = learn(texts)
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert again == encoding
    assert encoding.to_frame().loc["c", "taken for"] == content
    assert again.read(pd.DataFrame({"c": texts, "z": 0.0})).columns[0].values.tolist() == column.values.tolist()


def test_nearly_unique_numbers_and_dates_are_no_names():
    numbers = [f"{k + 0.5:.1f}" for k in range(98)]
    days = [f"{d:%Y-%m-%d}" for d in pd.date_range("2020-01-01", periods=98)]
    for values, kind in (
        ([*numbers, "abc", "12*"], "number"),
        ([f"{n} kmpl" for n in numbers] + ["3.5 km/kg", "12"], "number"),
        ([*days, "soon", "later"], "date"),
    ):
        encoding = learn(values)
        assert encoding.encoders[0].kind == kind
        assert not encoding.encoders[0].left_out
        assert "taken for missing values, in column 'c'" in encoding.notice
        with pytest.warns(UserWarning, match="taken for missing values: 'odd' in 1 row"):
            assert later(encoding, "odd") == later(encoding, None)
    assert learn([f"{n} kmpl" for n in numbers] + ["12"] * 2).encoders[0].missing == 0  # without its unit
    with pytest.raises(hs.InputError, match=r"has 2 text values .first: 'abc' in row 98. among 98 numbers"):
        learn([str(k // 2) for k in range(98)] + ["abc"] * 2)  # numbers that repeat: either may be the mistake


def test_advice_for_columns_that_are_left_out_fits_what_they_hold():
    units = [f"{k + 0.5} {'kg' if k % 2 else 'lb'}" for k in range(60)]
    assert "write them with one unit" in learn(units).notice
    assert "astype" not in learn(units).notice
    assert "astype('category')" in learn([f"name {k}" for k in range(60)]).notice
    assert "astype" not in learn(list(range(60)), "id").notice


@pytest.mark.parametrize("name", ["house_no", "floor no", "Casino", "house nr"])
def test_numbers_of_houses_and_floors_are_numbers(name):
    assert not learn(list(range(60)), name).notice


@pytest.mark.parametrize("name", ["No", "S.No", "Sr. No.", "Invoice No", "CustomerNo", "serial nr"])
def test_running_numbers_are_identifiers(name):
    assert f"left out as identifiers, names or free text: {name!r}" in learn(list(range(60)), name).notice


# Absolute time --------------------------------------------------------------------------------------------------------


def hourly(years=3, trend=0.0):
    g = np.random.default_rng(1)
    when = pd.date_range("2019-01-01", f"{2018 + years}-12-31 23:00", freq="3h")
    warmth = g.normal(size=len(when))
    noise = 0.5 * g.normal(size=len(when))
    y = 2 * np.sin(2 * np.pi * when.hour / 24) + (when.day_of_week >= 5) + warmth + noise
    y = np.asarray(y + trend * np.arange(len(when)) / len(when))
    return pd.DataFrame({"date": when.astype(str), "warmth": warmth}), y, when.year < 2018 + years


def test_intervals_hold_in_a_later_year():
    table, y, early = hourly()
    model = small().fit(table[early], y[early])
    low, high = model.predict_interval(table[~early], 0.9).T
    assert 0.85 <= ((low <= y[~early]) & (y[~early] <= high)).mean() <= 0.95
    assert model.encoding_.encoders[0].parts == ("year", "week", "day")
    assert "the time itself does not clearly help on the latest rows" in model.columns_.loc["date", "why"]


def test_a_trend_is_continued_where_the_latest_rows_show_it():
    table, y, early = hourly(trend=6.0)
    errors = {}
    for absolute_time in ("auto", True, False):
        model = small(absolute_time=absolute_time, steps=300).fit(table[early], y[early])
        errors[absolute_time] = np.mean((model.predict(table[~early]) - y[~early]) ** 2)
        assert ("date" in model.encoding_.features) is (absolute_time is not False)
    assert errors["auto"] == errors[True] < 0.2 * errors[False]
    with pytest.raises(hs.InputError, match="absolute_time must be True, False or 'auto', got 'never'"):
        small(absolute_time="never").fit(table[early], y[early])


@pytest.mark.extras
def test_time_is_taken_for_helpful_as_rarely_as_it_should():
    time, noise_found, trend_found = np.arange(500.0), [], []
    for seed in range(20):
        g = np.random.default_rng(seed)
        x, noise = g.normal(size=(500, 2)), g.normal(size=(500, 1))
        noise_found.append(absolute_time_helps(time, x, x[:, :1] + noise))
        trend_found.append(absolute_time_helps(time, x, x[:, :1] + noise + time[:, None] / 200))
    assert noise_found.count("") >= 19  # two of hundred tests of noise may be wrong
    assert trend_found == ["trend"] * 20


def test_a_date_of_birth_and_a_new_level_are_learned_but_not_continued():
    g = np.random.default_rng(0)
    born = pd.Timestamp("1950-01-01") + pd.to_timedelta(g.integers(0, 18_000, 600), unit="D")
    age = (born - pd.Timestamp("1950-01-01")).days.to_numpy() / 365
    table, y = pd.DataFrame({"born": born, "z": g.normal(size=600)}), (age - 25) ** 2 / 60 + g.normal(0, 0.5, 600)
    model = small(steps=400).fit(table[:450], y[:450])
    assert model.score(table[450:], y[450:]) > 0.8
    assert "held within that of these rows" in model.columns_.loc["born", "why"]
    far = table[:3].assign(born=pd.Timestamp("2200-06-01"))
    last = far.assign(born=far["born"].dt.tz_localize(None))
    features = model.encoding_.transform(model.encoding_.read(pd.concat([far, last])))
    assert features[0, 0] == born[:450].max().timestamp()  # no network is asked about a time that it has not seen
    again = Encoding.from_dict(json.loads(json.dumps(model.encoding_.to_dict())))
    assert again == model.encoding_


def parts_of(days):
    return Encoding.fit(read_table(pd.DataFrame({"d": days, "z": range(len(days))}))).encoders[0].parts


def test_only_cycles_that_were_seen_whole_are_features():
    assert parts_of(pd.date_range("2020-01-01", "2020-12-31", freq="D")) == ("year", "week")
    assert parts_of(pd.date_range("2020-01-01", periods=24, freq="h")) == ("day",)
    assert parts_of(pd.date_range("2020-01-01", periods=24 * 7, freq="h")) == ("week", "day")
    assert parts_of(pd.date_range("2020-01-01", periods=100, freq="D")) == ("week",)
    assert parts_of(pd.date_range("2018-01-01", periods=40, freq="MS")) == ("year",)  # the weekday is chance
    assert parts_of(pd.date_range("2018-01-01", periods=40, freq="ME")) == ("year",)
    assert parts_of(pd.date_range("2000-01-01", periods=10, freq="YS")) == ()
    assert parts_of(pd.date_range("2018-01-01", periods=200, freq="7D")) == ("year",)
    assert parts_of(pd.date_range("2018-01-01T08:00", periods=800, freq="D")) == ("year", "week")


def test_a_table_of_nothing_but_dates_has_features():
    days = pd.DataFrame({"d": pd.date_range("2020-01-01", periods=5)})
    encoding = Encoding.fit(read_table(days))
    assert len(encoding.features) == 6
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


FEW_STEPS = {"steps": 10, "hidden": (16,), "evidence": "plain"}


@pytest.fixture(scope="module")
def without_identifier():
    table, y = people()
    return small(**FEW_STEPS).fit(table[:150], y[:150]).predict(table[150:])


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_an_identifier_changes_nothing(name, without_identifier):
    table, y = people()
    plain = without_identifier
    with_identifier = table.copy()
    with_identifier.insert(1, name, np.random.default_rng(0).permutation(np.array(IDENTIFIERS[name], dtype=object)))
    with pytest.warns(UserWarning, match=f"left out as identifiers, names or free text: '{name}'") as caught:
        model = small(**FEW_STEPS).fit(with_identifier[:150], y[:150])
    assert [w.filename for w in caught] == [__file__]  # the line that called fit
    assert np.array_equal(model.predict(with_identifier[150:]), plain)
    assert np.array_equal(model.predict(with_identifier[150:].assign(**{name: None})), plain)
    assert np.array_equal(model.predict(with_identifier[150:].assign(**{name: [{}] * 50})), plain)
    assert "left out" in model.columns_.loc[name, "taken for"]


def test_what_is_no_identifier_is_kept():
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
    assert len(Encoding.fit(read_table(few)).features) == 13
    alone = pd.DataFrame({"name": [f"n{k}" for k in range(40)]})  # something must be left to learn from
    assert len(Encoding.fit(read_table(alone)).features) == 40


# Categories of many values --------------------------------------------------------------------------------------------


def towns(n, levels, noise=0.5, seed=3):
    g = np.random.default_rng(seed)
    level, z = g.integers(0, levels, n), g.normal(size=n)
    y = 2 * g.normal(size=levels)[level] + z + noise * g.normal(size=n)
    return pd.DataFrame({"town": [f"town {k}" for k in level], "z": z}), y


def test_the_mean_target_of_a_category_carries_the_signal_and_does_not_leak():
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


def test_the_prior_is_the_ratio_of_the_variances():
    g = np.random.default_rng(0)
    codes = np.repeat(np.arange(2000), g.integers(1, 9, 2000))
    y = 0.5 * g.normal(size=2000)[codes] + 2.0 * g.normal(size=len(codes))
    assert _prior_rows(codes, (y - y.mean())[:, None])[0] == pytest.approx(16, rel=0.2)


def test_a_category_without_signal_has_no_means():
    g = np.random.default_rng(0)
    for seed in range(20):
        values = np.array([f"t{k}" for k in g.integers(0, 100, 1000)], dtype=object)
        assert target_means(values, g.normal(size=(1000, 1)), seed) is None
    frame = pd.DataFrame({"t": values, "z": g.normal(size=1000)})
    assert len(Encoding.fit_transform(read_table(frame), g.normal(size=1000))[0].features) == 51
    frame["t"] = [f"t{k}" for k in g.integers(0, 700, 1000)]  # which repeats too rarely
    encoding = Encoding.fit_transform(read_table(frame), g.normal(size=1000))[0]
    assert encoding.features == ["z"]
    assert "do not explain the target" in encoding.notice


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
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
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


# What is said ---------------------------------------------------------------------------------------------------------


def test_columns_say_what_they_were_taken_for(tmp_path):
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
    with pytest.warns(UserWarning, match="'name' .120 different texts in 120 rows.*astype"):
        model = small(steps=20).fit(table, g.normal(size=n))
    said = model.columns_
    assert said["taken for"].to_dict() == {
        "size": "number",
        "sold": "date (day/month/year)",
        "town": "category, 3 values",
        "name": "names or free text, left out",
        "empty": "number",
        "same": "number",
        "new": "boolean",
    }
    assert said["features"].to_dict() == {
        "size": 2, "sold": 4, "town": 3, "name": 0, "empty": 2, "same": 1, "new": 1,
    }  # fmt: skip
    assert said["missing"].sum() == table["size"].isna().sum() + n
    assert said.loc["same", "why"] == "it does not vary, and is ignored"
    assert said.loc["empty", "why"] == "it has no values"
    assert "<table" in said._repr_html_()
    for whole in said["why"]:  # also where pandas would cut it off
        assert whole in said._repr_html_()
        assert whole in repr(said)
    again = hs.load(model.save(tmp_path / "model"))
    pd.testing.assert_frame_equal(again.columns_, said)
    assert np.array_equal(again.predict(table), model.predict(table))
    assert not hasattr(small(), "columns_")
