"""The report: bands against simulation, columns against the training rows, and the page against hostile tables."""

import errno
import html.parser
import json
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import howsure as hs
from howsure.errors import InputError, InputTypeError
from howsure.report.bands import binomial_range, curve_band, histogram_band
from howsure.report.evaluation import by_familiarity, by_group, evaluate
from howsure.report.html import MARK, script_json
from howsure.report.unusual import TrainingColumns

EVIL = "</script><script>alert(1)</script><b>%{x}&\"'"
ROWS = 240


# Bands ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [20, 400])
def test_the_curve_of_a_calibrated_model_stays_in_its_band(rows):
    rng = np.random.default_rng(0)
    draws = np.sort(rng.random((4000, rows)), axis=1)
    steps = np.arange(1, rows + 1) / rows
    distance = np.maximum(steps - draws, draws - steps + 1 / rows).max(1)  # of the empirical distribution function
    share = (distance > curve_band(rows)).mean()
    assert share < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 4000)
    assert share > 0.02  # a band that is never left would say nothing
    exact = scipy.stats.kstwo.ppf(0.95, rows)
    assert exact <= curve_band(rows) < 1.04 * exact


@pytest.mark.parametrize(("rows", "bins"), [(50, 5), (60, 10), (2000, 20)])
def test_the_histogram_of_a_calibrated_model_stays_in_its_band(rows, bins):
    rng = np.random.default_rng(1)
    counts = rng.multinomial(rows, np.full(bins, 1 / bins), size=20_000)
    band = histogram_band(rows, bins)
    share = ((counts < band.low) | (counts > band.high)).any(1).mean()
    assert share < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 20_000)
    assert share > 0.005


@pytest.mark.parametrize("rows", [1, 2, 7, 30, 1000, 99_999, 10_000_000])
@pytest.mark.parametrize("tests", [1, 7])
def test_binomial_ranges_are_those_of_scipy(rows, tests):
    for p in (0.03, 0.1, 0.5, 0.9):
        tail = 0.05 / tests / 2
        expected = scipy.stats.binom.ppf(tail, rows, p), scipy.stats.binom.isf(tail, rows, p)
        assert binomial_range(rows, p, tests) == expected


def test_bands_of_no_rows_are_refused():
    with pytest.raises(InputError, match="rows"):
        curve_band(0)
    with pytest.raises(InputError, match="between"):
        curve_band(10, level=1.0)


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
    return evaluate(model, model.predict_distribution(table), y)[0]


# Which columns are unusual --------------------------------------------------------------------------------------------


def reasons_of(model, table, row):
    known = TrainingColumns(model)
    read = model.encoding_.read(table)
    w = model.predict_distribution(table).familiarity
    return known.reasons(read, model.features_of(read), row, float(w[row]), most=10)


def test_the_range_of_the_training_rows_is_kept(model):
    table = make_table()
    known = TrainingColumns(model)
    inside = model.encoding_.read(table)
    assert not any(odd.any() for odd in known.unusual(inside))  # no training row is unlike all training rows
    values = table["size"].to_numpy()
    for value, odd in ((values.max() + 0.1, True), (values.min() - 0.1, True), (values.max(), False), (30.0, False)):
        one = table.iloc[:1].assign(size=value)
        assert known.unusual(model.encoding_.read(one))[0].tolist() == [odd]


def test_a_number_beyond_the_training_rows_is_the_first_reason(model):
    table = make_table()
    far = table.iloc[:3].copy()
    far.loc[1, "size"] = 400.0
    first, *_ = reasons_of(model, far, 1)
    assert first.column == "size"
    assert first.outside
    assert "400, above all training rows (10" in first.text
    mean = far.copy()
    mean.loc[1, "size"] = table["size"].mean()
    # the means of the networks' own rows differ a little from that of all
    assert first.otherwise == pytest.approx(float(model.predict_distribution(mean).familiarity[1]), abs=0.05)
    assert first.otherwise > 3 * float(model.predict_distribution(far).familiarity[1])


def test_what_was_not_in_training_is_a_reason(model):
    table = make_table().astype({"site": object}).iloc[:4].copy()
    table.loc[0, "site"] = "west"
    table.loc[1, "site"] = None
    table.loc[2, "size"] = np.nan
    table.loc[3, "fixed"] = 8.0
    said = [{r.column: r.text for r in reasons_of(model, table, row)} for row in range(4)]
    assert said[0]["site"] == "«west» was not in training"
    assert said[1]["site"] == "missing, which it never was in training"
    assert said[2]["size"] == "missing, which it never was in training"
    assert said[3]["fixed"] == "8; it was always 7 in training, and the model ignores it"
    assert not any("fixed" in each for each in said[:3])


def test_columns_that_moved_are_named_with_how_far(model):
    training, table = make_table(), make_table(seed=3)
    table["size"] += 20
    named = {share.column: share for share in TrainingColumns(model).shares(model.encoding_.read(table))}
    own = named["size"]
    assert own.count == int((table["size"] > training["size"].max()).sum())
    assert own.share == own.count / ROWS
    shift = (table["size"].mean() - training["size"].mean()) / training["size"].std()
    assert own.shift == pytest.approx(shift, rel=0.05)
    assert EVIL not in named or abs(named[EVIL].shift) < 0.5


def test_a_model_without_bins_keeps_the_range_too(small):
    model, x = small
    table = np.array([[0.0, 0.0], [2.8, 0.0], [3.6, 0.0], [0.0, -9.0]])
    odd = TrainingColumns(model).unusual(model.encoding_.read(table))
    assert np.array_equal(np.column_stack(odd), (table < x.min(0)) | (table > x.max(0)))


def test_the_two_values_of_a_column_are_known():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal(400), np.where(rng.random(400) < 0.03, 7.5, 2.0), rng.random(400) < 0.3])
    table = pd.DataFrame(x, columns=["x", "rare", "often"])
    model = hs.EnsembleRegressor(members=3, steps=10, random_state=0, device="cpu").fit(table, x[:, 0])
    known = TrainingColumns(model)
    odd = known.unusual(model.encoding_.read(pd.DataFrame([[0, 7.5, 1], [0, 2, 0], [0, 8, 2]], columns=table.columns)))
    assert np.column_stack(odd).tolist() == [[False, False, False], [False, False, False], [False, True, True]]
    rows = model.encoding_.read(table)
    (reason,) = known.reasons(rows, model.features_of(rows), int(x[:, 1].argmax()), None, most=1)
    assert (
        reason.text.replace("\u00a0", " ")
        == f"7.5, which {100 * np.mean(x[:, 1] == 7.5):.0f} % of the training rows had"
    )


def test_many_categories_of_which_some_were_dropped_are_never_called_new():
    rng = np.random.default_rng(0)
    codes = np.array([f"c{k}" for k in rng.integers(0, 400, 800)])
    table = pd.DataFrame({"x": rng.standard_normal(800), "code": pd.Categorical(codes)})
    model = hs.EnsembleRegressor(members=1, steps=10, random_state=0, device="cpu").fit(table, table["x"])
    odd = TrainingColumns(model).unusual(model.encoding_.read(table))
    assert not odd[1].any()  # rare ones are not kept, so nobody knows whether they are new


# Numbers of the page --------------------------------------------------------------------------------------------------


def test_scores_are_those_of_numpy(model):
    table = make_table(seed=1)
    y = make_target(table, seed=2)
    result = result_of(model, table, y)
    p = model.predict_distribution(table)
    assert result.scores.rmse == pytest.approx(np.sqrt(np.mean((p.mean - y) ** 2)))
    ends = p.interval(0.9)
    assert result.scores.coverage == pytest.approx(np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])))
    training = make_target(make_table())
    constant = scipy.stats.norm(training.mean(), training.std())
    assert result.constant.rmse == pytest.approx(np.sqrt(np.mean((y - training.mean()) ** 2)), rel=0.02)
    assert result.constant.nll == pytest.approx(-constant.logpdf(y).mean(), rel=0.02)
    assert result.constant.width == pytest.approx(np.ptp(constant.interval(0.9)), rel=0.02)
    assert result.inside.mean() == result.scores.coverage


def test_rows_with_large_doubt_are_always_shown(model):
    table = make_table(seed=1, rows=1000)
    table.loc[17, "size"] = 4000.0
    result = result_of(model, table, make_target(table))
    shown = result.sample(most=50, doubtful=5)
    assert len(shown) == 50
    assert set(result.most_doubtful(5)) <= set(shown.tolist())
    assert result.most_doubtful(1)[0] == 17
    assert np.array_equal(shown, result.sample(most=50, doubtful=5))
    assert len(result.sample(most=1000)) == 1000


def test_groups_divide_the_rows_and_tell_what_chance_explains(model):
    table = make_table(seed=1)
    y = make_target(table, seed=2)
    y[:40] += 100.0
    result = result_of(model, table, y)
    labels = np.where(np.arange(ROWS) < 40, "bad", np.where(np.arange(ROWS) < 140, "good", "fine")).astype(object)
    groups = {group.name: group for group in by_group(result, labels)}
    assert {name: group.count for name, group in groups.items()} == {"bad": 40, "good": 100, "fine": 100}
    assert groups["bad"].coverage == 0
    assert groups["bad"].verdict == "too low"
    assert groups["bad"].rmse == pytest.approx(100, rel=0.05)
    many = np.array([f"g{k % 30}" for k in range(ROWS)], dtype=object)
    found = by_group(result, many)
    assert found[-1].name == "the other 18"
    assert sum(group.count for group in found) == ROWS
    assert sum(group.count for group in by_familiarity(result, 0.5)) == ROWS


# The page -------------------------------------------------------------------------------------------------------------

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """What a browser makes of a page: elements, and the text outside of scripts; raises if tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.scripts, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())

    @property
    def figures(self):
        return json.loads(self.scripts[0])


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
    assert len(page.scripts) == 3  # the figures, plotly.js and our own
    assert "alert(1)" not in "".join(page.scripts[1:])
    assert not page.all("b")
    assert not page.all("i")
    assert EVIL in page.text  # in the title
    labels = json.dumps(page.figures)
    assert "<i>" not in labels  # plotly.js reads tags in labels
    assert "&lt;i&gt;" in labels


def test_json_in_a_page_cannot_end_its_script():
    evil = {"a": "</script><!--", "b": "\u2028&", "c": [1.5, None]}
    text = script_json(evil)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == evil
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))


def test_the_page_needs_no_network(page):
    for tag, attrs in page.elements:
        assert tag not in ("link", "iframe", "object", "base", "form")
        for name in ("src", "href", "srcset", "action"):
            assert attrs.get(name, "#").startswith("#")
        assert not any(name.startswith("on") for name in attrs)
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert page.scripts[1].count("plotly.js v") >= 1
    assert "http" not in page.scripts[2]


def test_charts_are_valid_for_plotly_and_each_has_a_text(page):
    import plotly.graph_objects as go

    figures = page.figures
    assert len(figures) == 5
    for figure in figures.values():
        go.Figure(figure)  # raises for an unknown property or value
    pictures = [attrs for attrs in page.all("div") if attrs.get("role") == "img"]
    assert {attrs["id"] for attrs in pictures} == {f"chart-{name}" for name in figures}
    assert all(len(attrs["aria-label"]) > 100 for attrs in pictures)
    assert len(page.all("figcaption")) == len(page.all("figure")) == 5
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_the_page_says_which_row_not_to_trust_and_why(page):
    assert "Do not trust 1 row of 240" in page.text
    assert "size 900, above all training rows (10" in page.text
    assert "<i>1</i>" in page.text  # the label of the row
    assert "price <b>" in page.text
    assert "nan" not in page.text.lower().split()


def test_without_a_threshold_no_row_is_flagged(model, tmp_path):
    plain = copy(model)
    plain.model_ = copy(model.model_)
    plain.model_.unfamiliar_below = None
    table = make_table(seed=1)
    text = write(plain, table, make_target(table), tmp_path).text
    assert "too few rows were held out to learn a threshold" in text
    assert "Do not trust" not in text


def test_a_law_that_changed_is_told_from_unfamiliar_rows(model, tmp_path):
    table = make_table(seed=1)
    text = write(model, table, make_target(table) + 5, tmp_path).text
    assert "Do not trust intervals here, not even those of rows that look familiar: they hold 0 %" in text
    assert "On average they are too low, by 4.9" in text or "too low, by 5" in text
    same = write(model, make_table(), make_target(make_table()), tmp_path).text
    assert "Either the target follows another law" not in same
    assert "On average they are too" not in same


def test_hover_has_row_true_predicted_interval_and_familiarity(page):
    traces = [trace for trace in page.figures["0-uncertainty"]["data"] if "customdata" in trace]
    texts = [text for trace in traces for text in trace["customdata"]]
    assert len(texts) == ROWS
    for word in ("row &lt;i&gt;", "true ", "predicted ", "interval ", "familiarity "):
        assert all(word in text for text in texts)


def test_several_targets_have_a_section_each_and_unknown_ones_are_left_out(tmp_path):
    table = make_table()[["size", "site"]]
    y = pd.DataFrame({"a": make_target(table), "b": -make_target(table, seed=9)})
    model = hs.EvidentialRegressor(members=2, steps=30, random_state=0, device="cpu").fit(table, y)
    y.loc[:99, "b"] = np.nan
    page = write(model, table, y, tmp_path)
    assert {name[:2] for name in page.figures} == {"0-", "1-"}
    assert "100 rows without a known target are left out." in page.text
    assert "a: in short" in page.text
    assert "b: in short" in page.text
    y["b"] = np.nan
    assert "b: in short" not in write(model, table, y, tmp_path).text
    with pytest.raises(InputError, match="shape"):
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
    assert "And 201 columns more" in page.text
    assert "By site" in page.text


def test_threads_can_write_the_same_page(small, tmp_path):
    model, x = small
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: hs.write_report(model, x, x[:, 0], tmp_path / "report.html"), range(8)))
    assert {path.name for path in paths} == {"report.html"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    Page(paths[0].read_text(encoding="utf-8"))


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_a_few_rows_are_enough(model, rows, tmp_path):
    table = make_table(seed=1).iloc[:rows]
    page = write(model, table, make_target(table), tmp_path)
    assert f"With {rows} row" in page.text


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
    assert ("0-uncertainty" in page.figures) is (not is_normal and not is_log)
    assert ("predicted median upwards" in page.text) is is_log
    assert ("conformal" in page.text) is is_conformal


def test_groups_by_a_column_that_the_model_does_not_know(model, tmp_path):
    import polars
    import pyarrow

    table = make_table(seed=1)
    y = make_target(table)
    more = table.assign(region=np.where(np.arange(ROWS) % 2, "east <east>", "west"))
    for given in (more, polars.from_pandas(more), pyarrow.Table.from_pandas(more, preserve_index=False)):
        text = write(model, given, y, tmp_path, by="region").text
        assert "By region" in text
        assert "east <east>" in text
    assert "By site" in write(model, table, y, tmp_path).text  # categories with few values need no asking
    assert "30 to 40" not in write(model, table, y, tmp_path, by=["same"] * ROWS).text
    quarters = write(model, table, y, tmp_path, by="size").text
    edges = np.quantile(table["size"], [0.25, 0.5])
    assert f"{edges[0]:.4g} to {edges[1]:.4g}" in quarters
    for by, match in (("nowhere", "table"), ([1, 2], "row")):
        with pytest.raises(InputError, match=match):
            write(model, table, y, tmp_path, by=by)


def test_unusable_input_is_refused_before_anything_is_written(model, small, tmp_path):
    table = make_table(seed=1)
    y = make_target(table)
    path = tmp_path / "report.html"
    with pytest.raises(InputTypeError):
        hs.write_report("model", table, y, path)
    for bad, match in (
        (np.full(ROWS, np.nan), "row"),
        (np.where(np.arange(ROWS) == 3, np.inf, y), "row"),
        (y[:10], "shape"),
        (["a"] * ROWS, "real"),
    ):
        with pytest.raises(hs.HowsureError, match=match):
            hs.write_report(model, table, bad, path)
    with pytest.raises(InputError, match="rows"):
        hs.write_report(model, table.iloc[:0], y[:0], path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_someone_else_is_left_alone_and_our_own_is_replaced(small, tmp_path):
    model, x = small
    path = tmp_path / "deep" / "report.html"
    hs.write_report(model, x, x[:, 0], path)
    first = path.read_text(encoding="utf-8")
    assert MARK in first[:2000]
    hs.write_report(model, x, x[:, 1], path)
    assert path.read_text(encoding="utf-8") != first
    path.write_text("mine")
    with pytest.raises(InputError, match="page"):
        hs.write_report(model, x, x[:, 0], path)
    assert path.read_text() == "mine"
    hs.write_report(model, x, x[:, 0], path, replace=True)
    assert path.read_text(encoding="utf-8") == first
    with pytest.raises(InputError, match="folder"):
        hs.write_report(model, x, x[:, 0], tmp_path)
    with pytest.raises(InputError, match=r"report\.html"):
        hs.write_report(model, x, x[:, 0], path / "deeper.html")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("package", ["plotly", "plotly.offline", "jinja2"])
def test_without_its_packages_a_report_says_what_to_install(small, package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises ModuleNotFoundError now
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    model, x = small
    with pytest.raises(InputError, match=r'"\.\[report\]"'):
        hs.write_report(model, x, x[:, 0], tmp_path / "never.html")
    assert not (tmp_path / "never.html").exists()


def test_thirty_thousand_rows_make_a_small_page_of_a_sample(small, tmp_path):
    model, _ = small
    x = np.random.default_rng(1).standard_normal((30_000, 2))
    path = hs.write_report(model, x, x[:, 0], tmp_path / "large.html")
    assert path.stat().st_size < 8e6
    text = Page(path.read_text(encoding="utf-8")).text
    assert "Shown are 1,500 of 30,000 rows" in text


def test_a_full_disk_is_one_sentence_with_the_file(small, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model, x = small
    monkeypatch.setattr("howsure.report.html.write_text", full)
    with pytest.raises(InputError, match=r"r\.html"):
        hs.write_report(model, x, x[:, 0], tmp_path / "r.html")


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_of_a_file(small, tmp_path, capsys):
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
    for words in ("80 test rows", "By region", "Predictions of price are off", "Wine & prices"):
        assert words in page.text
    for wrong, match in (
        ({"by": "regio", "target": ["price"]}, "'region'"),
        ({"target": ["prize"]}, "price"),
        ({}, "--target"),
    ):
        with pytest.raises(InputError, match=match):
            report(tmp_path / "model", file, tmp_path / "other.html", **wrong)
    assert not (tmp_path / "other.html").exists()
