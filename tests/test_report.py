"""The report: bands against simulation, columns against the training rows, and the page against hostile tables."""

import errno
import html.parser
import os
import re
import sys
import warnings
import xml.etree.ElementTree
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import howsure as hs
from howsure.errors import InputError, InputTypeError
from howsure.report.bands import binomial_range, curve_band
from howsure.report.evaluation import by_familiarity, by_group, evaluate
from howsure.report.explained import explain
from howsure.report.html import MARK
from howsure.report.svg import HEIGHT, LEFT, PLOT_HEIGHT, PLOT_WIDTH, TOP, WIDTH, Axis, Chart
from howsure.report.unusual import reasons, unusual_columns

EVIL = "</script><script>alert(1)</script><b>%{x}&\"'"
ROWS = 240


# Bands ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [20, 400])
def test_curve_of_a_calibrated_model_stays_in_its_band(rows):
    rng = np.random.default_rng(0)
    draws = np.sort(rng.random((4000, rows)), axis=1)
    steps = np.arange(1, rows + 1) / rows
    distance = np.maximum(steps - draws, draws - steps + 1 / rows).max(1)  # of the empirical distribution function
    share = (distance > curve_band(rows)).mean()
    assert share < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 4000)
    assert share > 0.02  # a band that is never left would say nothing
    exact = scipy.stats.kstwo.ppf(0.95, rows)
    assert exact <= curve_band(rows) < 1.04 * exact


@pytest.mark.parametrize(("rows", "tests"), [(1, 1), (50, 5), (2000, 20)])
def test_counts_of_a_calibrated_model_stay_in_their_ranges(rows, tests):
    counts = np.random.default_rng(1).binomial(rows, 0.9, size=(20_000, tests))
    low, high = binomial_range(rows, 0.9, tests)
    share = ((counts < low) | (counts > high)).any(1).mean()
    assert share < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 20_000)
    narrower = ((counts <= low) | (counts >= high)).any(1).mean()
    assert narrower > 0.05  # a range that could be narrower would say less


# A model and a table --------------------------------------------------------------------------------------------------


def make_table(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": rng.uniform(10, 50, rows),
            EVIL: rng.standard_normal(rows),
            "site": rng.choice(["north", "south", EVIL], rows),
            "open": rng.random(rows) > 0.5,
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D"),
            "fixed": 7.0,
        }
    )


def make_target(table, seed=5):
    return table["size"].to_numpy() / 10 + 0.3 * np.random.default_rng(seed).standard_normal(len(table))


@pytest.fixture(scope="module")
def model():
    table = make_table()
    y = pd.DataFrame({"price <b>": make_target(table)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = hs.EvidentialRegressor(members=3, steps=60, random_state=0, device="cpu").fit(table, y)
    model.model_.unfamiliar_below = 0.02  # these rows are too few to learn it
    return model


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((150, 2))
    y = x[:, 0] + rng.standard_normal(150)
    return hs.EnsembleRegressor(members=1, steps=30, random_state=0, device="cpu").fit(x, y), x


def result_of(model, table, y):
    return evaluate(model.predict_distribution(table), y, model.unfamiliar_below_)[0]


# Which columns are unusual --------------------------------------------------------------------------------------------


def reasons_of(model, table, row):
    return dict(reasons(model.encoding_.encoders, model.encoding_.read(table), row))


def unusual_of(model, table):
    return {column.name: column for column in unusual_columns(model.encoding_.encoders, model.encoding_.read(table))}


def test_training_rows_have_no_unusual_values(model):
    assert unusual_of(model, make_table()) == {}


def test_numbers_beyond_the_training_rows_are_counted(model):
    table = make_table()
    ends = table["size"].min(), table["size"].max()
    for value, odd in ((ends[1] + 0.1, True), (ends[0] - 0.1, True), (ends[1], False), (30.0, False)):
        found = unusual_of(model, table.assign(size=np.where(np.arange(ROWS) < 3, value, table["size"])))
        assert found.get("size") is None if not odd else found["size"].rows == 3


def test_values_that_were_not_in_training_are_reasons(model):
    table = make_table().astype({"site": object}).iloc[:5].copy()
    table.loc[0, "site"] = "west"
    table.loc[1, "site"] = None
    table.loc[2, "size"] = np.nan
    table.loc[3, "fixed"] = 8.0
    table.loc[4, "size"] = 400.0
    said = [reasons_of(model, table, row) for row in range(5)]
    assert said[0]["site"].startswith('"west" (3 ')
    assert said[1]["site"].startswith("missing (3 ")
    assert said[2]["size"].startswith("missing (10")
    assert re.findall(r"\d+", said[3]["fixed"]) == ["8", "7"]
    assert said[4]["size"].startswith("400 (10")
    assert not any("fixed" in each for each in said[:3])


def test_far_numbers_inside_the_range_are_reasons_after_new_values():
    table = pd.DataFrame({"x": [*np.random.default_rng(0).standard_normal(300), 30.0], "z": np.arange(301.0)})
    model = hs.EnsembleRegressor(members=1, steps=5, random_state=0, device="cpu").fit(table, table["z"])
    found = reasons_of(model, pd.DataFrame({"x": [29.0], "z": [-1.0]}), 0)
    assert list(found) == ["z", "x"]
    assert found["x"].startswith("29, far above")


def test_many_categories_of_which_some_were_dropped_are_never_called_new():
    rng = np.random.default_rng(0)
    codes = np.array([f"c{k}" for k in rng.integers(0, 400, 800)])
    table = pd.DataFrame({"x": rng.standard_normal(800), "code": pd.Categorical(codes)})
    model = hs.EnsembleRegressor(members=1, steps=10, random_state=0, device="cpu").fit(table, table["x"])
    assert unusual_of(model, table) == {}  # rare ones are not kept, so nobody knows whether they are new


# Charts ---------------------------------------------------------------------------------------------------------------


def test_axes_place_values_and_ticks_between_their_ends():
    for axis in (Axis("", -3.7, 1200), Axis("", 1e-9, 2e-9), Axis("", 0.002, 90, logarithmic=True)):
        ticks = axis.ticks()
        assert 3 <= len(ticks) <= 12
        assert all(axis.low <= tick <= axis.high for tick in ticks)
        places = axis.place(np.array([axis.low, *ticks, axis.high]))
        assert places[0] == pytest.approx(0, abs=1e-9)
        assert places[-1] == pytest.approx(1)
        assert (np.diff(places) >= -1e-9).all()
    assert Axis("", 1, 100, logarithmic=True).place(np.array([10.0])) == pytest.approx([0.5])


def test_marks_lie_where_their_values_are_and_carry_escaped_texts():
    chart = Chart("c", "A & B", "", "<seen>", Axis("x", 0, 10), Axis("y", -1, 1))
    chart.marks(np.array([0.0, 5.0]), np.array([1.0, 0.0]), ["<one>", "two"], "dot", "good", "key")
    root = xml.etree.ElementTree.fromstring(chart.svg())
    assert root.attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"
    plot = root.find("svg")
    assert (plot.attrib["x"], plot.attrib["y"]) == (str(LEFT), str(TOP))
    circles = plot.findall("circle")
    found = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles]
    assert found == [(0.0, 0.0), (PLOT_WIDTH / 2, PLOT_HEIGHT / 2)]
    assert [c.find("title").text for c in circles] == ["<one>", "two"]
    assert root.find("title").text == "A & B"
    assert root.find("desc").text == "<seen>"
    assert [text for _, text in chart.keys] == ["key"]


# Numbers of the page --------------------------------------------------------------------------------------------------


def test_scores_are_those_of_numpy(model):
    table = make_table(seed=1)
    y = make_target(table, seed=2)
    result = result_of(model, table, y)
    p = model.predict_distribution(table)
    assert result.rmse == pytest.approx(np.sqrt(np.mean((p.mean - y) ** 2)))
    ends = p.interval(0.9)
    assert result.coverage == pytest.approx(np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])))
    assert result.coverage == result.inside.mean()
    share, kept = result.kept()
    half = np.argsort(ends[:, 1] - ends[:, 0])[: ROWS // 2]
    assert kept[0] == pytest.approx(result.rmse)
    assert kept[share.tolist().index(0.5)] == pytest.approx(np.sqrt(np.mean((p.mean - y)[half] ** 2)))


def test_rows_with_wide_intervals_are_always_shown(model):
    table = make_table(seed=1, rows=1000)
    table.loc[17, "size"] = 4000.0
    result = result_of(model, table, make_target(table))
    shown = result.sample(50, widest=5)
    assert len(shown) == 50
    assert set(result.widest[:5]) <= set(shown.tolist())
    assert result.widest[0] == 17
    assert np.array_equal(shown, result.sample(50, widest=5))
    assert len(result.sample(1000)) == 1000


def test_groups_divide_the_rows_and_have_ranges_of_chance(model):
    table = make_table(seed=1)
    y = make_target(table, seed=2)
    y[:40] += 100.0
    result = result_of(model, table, y)
    labels = np.where(np.arange(ROWS) < 40, "bad", np.where(np.arange(ROWS) < 140, "good", "fine")).astype(object)
    groups = {group.name: group for group in by_group(result, labels)}
    assert {name: group.count for name, group in groups.items()} == {"bad": 40, "good": 100, "fine": 100}
    assert groups["bad"].coverage == 0
    assert groups["bad"].verdict == "too low"
    assert groups["good"].verdict == ""
    assert groups["bad"].rmse == pytest.approx(100, rel=0.05)
    many = np.array([f"g{k % 30}" for k in range(ROWS)], dtype=object)
    found = by_group(result, many)
    assert found[-1].name == "the other 18"
    assert sum(group.count for group in found) == ROWS
    assert sum(group.count for group in by_familiarity(result)) == ROWS


# The page -------------------------------------------------------------------------------------------------------------

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """What a browser makes of a page: elements, and the text outside of scripts; raises if tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.scripts, self.titles, self.words = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "title":
            self.titles.append("")

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "title":
            self.titles[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())

    def charts(self):
        return [attrs["aria-labelledby"].split("-title")[0] for attrs in self.all("svg") if "aria-labelledby" in attrs]


def write(model, table, y, folder, **options):
    path = hs.write_report(model, table, y, folder / "report.html", **options)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    table = make_table(seed=1).astype({"site": object})
    table.loc[0, "site"] = EVIL + "new"
    table.loc[1, "size"] = 900.0
    table.index = [f"<i>{k}</i>" for k in range(ROWS)]
    y = make_target(table, seed=2)
    return write(model, table, y, tmp_path_factory.mktemp("report"), title=f"{EVIL} </title>")


def test_text_of_the_table_never_becomes_markup(page):
    assert page.scripts == []
    assert not page.all("b")
    assert not page.all("i")
    assert EVIL in page.text  # in the heading


def test_page_needs_neither_network_nor_scripts(page):
    for tag, attrs in page.elements:
        assert tag not in ("link", "iframe", "object", "base", "form", "img")
        for name in ("src", "href", "srcset", "action"):
            assert attrs.get(name, "#").startswith("#")
        assert not any(name.startswith("on") for name in attrs)
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy


def test_page_opens_with_a_picture_and_three_sentences(page):
    tags = [tag for tag, _ in page.elements]
    assert tags.index("figure") < tags.index("table")
    first = page.charts()[0]
    assert first == "predicted-0"
    place = page.elements.index(("div", {"class": "short"}))
    assert [tag for tag, _ in page.elements[place + 1 : place + 4]] == ["p"] * 3
    assert place < tags.index("table")


def test_every_chart_has_a_title_and_a_text(page):
    assert page.charts() == ["predicted-0", "parts-0", "calibration-0", "retention-0"]
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for attrs in page.all("svg"):
        if "aria-labelledby" in attrs:
            assert attrs["role"] == "img"
            assert set(attrs["aria-labelledby"].split()) <= set(ids)
    assert len(page.all("figcaption")) == len(page.all("figure")) == 4


def test_page_names_the_least_reliable_row_and_the_reason(page):
    assert "Check 1 row of 240" in page.text
    assert "size 900 (10" in page.text
    assert "<i>1</i>" in page.text  # the label of the row
    assert "price <b>" in page.text
    assert "nan" not in page.text.lower().split()


def test_page_explains_importance_and_unfamiliar_rows(page, model):
    """The target depends on the size only, and row 1 has an unheard-of size."""
    bars = [float(attrs["width"]) for tag, attrs in page.elements if tag == "rect" and attrs.get("height") == "8"]
    assert bars[0] == 100.0
    assert len(bars) == len(model.encoding_.names)
    assert max(bars[1:]) < 50
    assert re.search(r"Columns that matter .* Growth of the CRPS size \d+% ± [\d.]+%", page.text)
    assert re.search(r"Columns that make rows unfamiliar .* With a typical value <i>1</i> 0\S* size \S+", page.text)


def test_explanation_agrees_with_the_functions(model):
    table, y = make_table(seed=1), make_target(make_table(seed=1), seed=2)
    table.loc[1, "size"] = 900.0
    result = result_of(model, table, y)
    found = explain(model, table, result, [f"row {k}" for k in range(ROWS)])
    expected = hs.importance(model, table, y, repeats=3) / hs.metrics.crps(model.predict_distribution(table), y)
    assert found["rows"] == ROWS
    for (name, growth, error), (column, values) in zip(found["columns"], expected[::-1].iterrows(), strict=True):
        assert name == column
        assert [growth, error] == pytest.approx(values.tolist())
    label, position, causes = found["odd"][0]
    assert (label, position, causes[0][0]) == ("row 1", 1, "size")
    familiarity = model.predict_distribution(table.assign(size=model.encoding_.encoders[0].fill)).familiarity[1]
    assert causes[0][1] + result.familiarity[1] == pytest.approx(familiarity, rel=1e-4)
    assert all(result.familiarity[k] < 0.5 for _, k, _ in found["odd"])


def test_explanation_of_a_large_table_is_of_a_sample(small):
    model, _ = small
    x = np.random.default_rng(1).standard_normal((2000, 2))
    found = explain(model, x, result_of(model, x, x[:, 0]), [str(k) for k in range(2000)])
    assert found["rows"] <= 305
    assert found["columns"][0][0] == "x0"
    assert found["odd"] == []  # this model has no familiarity
    assert explain(model, x[:1], result_of(model, x[:1], x[:1, 0]), ["0"]) == {}


def test_without_a_threshold_no_row_is_flagged(model, tmp_path):
    plain = copy(model)
    plain.model_ = copy(model.model_)
    plain.model_.unfamiliar_below = None
    table = make_table(seed=1)
    text = write(plain, table, make_target(table), tmp_path).text
    assert not re.search(r"Check \d+ row", text)


def test_changed_law_is_separated_from_unfamiliar_rows(model, tmp_path):
    table = make_table(seed=1)
    text = write(model, table, make_target(table) + 5, tmp_path).text
    assert re.search(r" (4\.9\d|5) too low", text)
    same = write(model, make_table(), make_target(make_table()), tmp_path).text
    assert not re.search(r"\d too (low|high)", same)


def test_every_mark_has_row_true_predicted_interval_and_familiarity(page):
    texts = [text for text in page.titles if text.startswith("row ")]
    assert len(texts) >= 2 * ROWS
    for word in ("row <i>", "true ", "predicted ", " to ", "familiarity "):
        assert all(word in text for text in texts)


def test_several_targets_have_a_section_each_and_unknown_ones_are_left_out(tmp_path):
    table = make_table()[["size", "site"]]
    y = pd.DataFrame({"a": make_target(table), "b": -make_target(table, seed=9)})
    model = hs.EvidentialRegressor(members=2, steps=30, random_state=0, device="cpu").fit(table, y)
    y.loc[:99, "b"] = np.nan
    page = write(model, table, y, tmp_path)
    assert {name[-2:] for name in page.charts()} == {"-0", "-1"}
    assert "100 rows" in page.text
    y["b"] = np.nan
    assert {name[-2:] for name in write(model, table, y, tmp_path).charts()} == {"-0"}
    with pytest.raises(InputError, match=r"\(240, 2\)"):
        write(model, table, y["a"], tmp_path)


def test_endless_texts_and_many_columns_do_not_fill_the_page(tmp_path):
    rng = np.random.default_rng(0)
    long = "long " * 20_000
    table = pd.DataFrame(rng.standard_normal((60, 400)), columns=[f"c{k}" for k in range(400)])
    table = table.assign(site=rng.choice([long, "b"], 60)).rename(columns={"c0": "a name " + long})
    model = hs.EnsembleRegressor(members=1, steps=5, random_state=0, device="cpu").fit(table, table["c1"])
    rows = table.assign(site=[*table["site"][:-1], "new" + long])
    path = hs.write_report(
        model, rows, pd.Series(table["c1"], name=long), tmp_path / "report.html", title="half \ud800 of one"
    )
    page = Page(path.read_text(encoding="utf-8"))
    assert len(page.text) < 60_000
    assert "half ? of one" in page.text
    assert "201 columns" in page.text


def test_threads_can_write_the_same_page(small, tmp_path):
    model, x = small
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: hs.write_report(model, x, x[:, 0], tmp_path / "report.html"), range(8)))
    assert {path.name for path in paths} == {"report.html"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    Page(paths[0].read_text(encoding="utf-8"))


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_few_rows_are_enough(model, rows, tmp_path):
    table = make_table(seed=1).iloc[:rows]
    page = write(model, table, make_target(table), tmp_path)
    assert f" {rows} row" in page.text


@pytest.mark.parametrize(
    "kind",
    [
        hs.EnsembleRegressor(members=1),
        hs.EvidentialRegressor(members=1),
        hs.EvidentialRegressor(members=2, target_transform="log"),
        hs.EvidentialRegressor(members=2, target_transform="positive"),
        hs.EvidentialRegressor(members=3),
        hs.EnsembleRegressor(members=3),
    ],
    ids=["one normal", "one", "log", "positive", "conformal", "ensemble"],
)
def test_every_kind_of_model_has_a_page(kind, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 2))
    y = np.exp(x[:, 0])
    model = kind.set_params(steps=20, random_state=0, device="cpu").fit(x, y)
    is_conformal = kind.members == 3 and isinstance(kind, hs.EvidentialRegressor)
    model = hs.calibrate(model, x, y, method="conformal") if is_conformal else model
    is_log = model.target_transform == "log"
    is_normal = isinstance(kind, hs.EnsembleRegressor) and kind.members == 1
    x[0] = 1e6  # far away, where some have infinite variances
    page = write(model, x, y, tmp_path)
    assert ("parts-0" in page.charts()) is (not is_normal and not is_log)
    assert ("median" in page.text) is is_log
    assert ("conformal" in page.text) is is_conformal


def test_groups_by_a_column_that_the_model_does_not_know(model, tmp_path):
    import polars
    import pyarrow

    table = make_table(seed=1)
    y = make_target(table)
    more = table.assign(region=np.where(np.arange(ROWS) % 2, "east <east>", "west"))
    for given in (more, polars.from_pandas(more), pyarrow.Table.from_pandas(more, preserve_index=False)):
        text = write(model, given, y, tmp_path, by="region").text
        assert "region" in text
        assert "east <east>" in text
    assert "same" in write(model, table, y, tmp_path, by=["same"] * ROWS).text
    quarters = write(model, table, y, tmp_path, by="size").text
    edges = np.quantile(table["size"], [0.25, 0.5])
    assert f"{edges[0]:.4g} to {edges[1]:.4g}" in quarters
    for by, match in (("nowhere", "'nowhere'"), ([1, 2], r"\b2\b.*\b240\b")):
        with pytest.raises(InputError, match=match):
            write(model, table, y, tmp_path, by=by)


def test_unusable_input_raises_before_anything_is_written(model, small, tmp_path):
    table = make_table(seed=1)
    y = make_target(table)
    path = tmp_path / "report.html"
    with pytest.raises(InputTypeError):
        hs.write_report("model", table, y, path)
    for bad, row, token in (
        (np.full(ROWS, np.nan), None, ""),
        (np.where(np.arange(ROWS) == 3, np.inf, y), 3, ""),
        (y[:10], None, "(10,)"),
        (["a"] * ROWS, None, "<U1"),
    ):
        with pytest.raises(hs.HowsureError) as caught:
            hs.write_report(model, table, bad, path)
        assert caught.value.row == row
        assert token in caught.value.message
    with pytest.raises(InputError):
        hs.write_report(model, table.iloc[:0], y[:0], path)
    assert list(tmp_path.iterdir()) == []


def test_file_of_someone_else_is_left_alone_and_our_own_is_replaced(small, tmp_path):
    model, x = small
    path = tmp_path / "deep" / "report.html"
    hs.write_report(model, x, x[:, 0], path)
    first = path.read_text(encoding="utf-8")
    assert MARK in first[:2000]
    hs.write_report(model, x, x[:, 1], path)
    assert path.read_text(encoding="utf-8") != first
    path.write_text("mine")
    with pytest.raises(InputError, match="replace=True"):
        hs.write_report(model, x, x[:, 0], path)
    assert path.read_text() == "mine"
    hs.write_report(model, x, x[:, 0], path, replace=True)
    assert path.read_text(encoding="utf-8") == first
    with pytest.raises(InputError, match=r"report\.html"):
        hs.write_report(model, x, x[:, 0], tmp_path)
    with pytest.raises(InputError, match=r"report\.html"):
        hs.write_report(model, x, x[:, 0], path / "deeper.html")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_without_jinja2_a_report_names_the_extra(small, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)  # importing it raises ModuleNotFoundError now
    for name in [name for name in sys.modules if name.startswith("jinja2.")]:
        monkeypatch.delitem(sys.modules, name)
    model, x = small
    with pytest.raises(InputError, match=r'"\.\[report\]"'):
        hs.write_report(model, x, x[:, 0], tmp_path / "never.html")
    assert not (tmp_path / "never.html").exists()


def test_thirty_thousand_rows_make_a_small_page_of_a_sample(small, tmp_path):
    model, _ = small
    x = np.random.default_rng(1).standard_normal((30_000, 2))
    path = hs.write_report(model, x, x[:, 0], tmp_path / "large.html")
    assert path.stat().st_size < 2e6
    text = Page(path.read_text(encoding="utf-8")).text
    assert "1,000 of 30,000 rows" in text


def test_full_disk_is_one_sentence_with_the_file(small, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model, x = small
    monkeypatch.setattr("howsure.report.html.write_text", full)
    with pytest.raises(InputError, match=r"r\.html"):
        hs.write_report(model, x, x[:, 0], tmp_path / "r.html")


# The command ----------------------------------------------------------------------------------------------------------


def test_command_writes_the_page_of_a_file(small, tmp_path, capsys):
    from howsure.cli.report import report

    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.random(80), "site": rng.choice(["a", "b"], 80)})
    model = hs.EnsembleRegressor(members=1, steps=10, random_state=0, device="cpu").fit(table, table["size"])
    model.save(tmp_path / "model")
    file, out = tmp_path / "test.csv", tmp_path / "page.html"
    table.assign(price=table["size"], region=np.where(table["size"] > 0.5, "up", "down")).to_csv(file, index=False)
    report(tmp_path / "model", file, out, by="region", target=["price"], title="Wine & prices")
    assert capsys.readouterr().out.startswith(f"wrote {out} (")
    page = Page(out.read_text(encoding="utf-8"))
    for token in ("80 rows", "region", "price", "Wine & prices"):
        assert token in page.text
    for wrong, match in (
        ({"by": "regio", "target": ["price"]}, "'region'"),
        ({"target": ["prize"]}, "price"),
        ({}, "--target"),
    ):
        with pytest.raises(InputError, match=match):
            report(tmp_path / "model", file, tmp_path / "other.html", **wrong)
    assert not (tmp_path / "other.html").exists()
