"""The report in a real browser: four widths, paper, no errors. Part of ``make test-extras``.

Needs selenium and Debian's chromium and chromium-driver; without them the tests are skipped.
"""

import base64
import os
import re
import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import howsure as hs

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


def missing():
    """Return what is not installed, in words."""
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return 'selenium is not installed: pip install ".[browser]"'
    return "" if CHROMIUM and DRIVER else "chromium or chromedriver is not installed: apt-get install chromium-driver"


pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all is installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1100,900"
)
EVIL = "</script><script>window.evil=1</script><img src=x onerror='window.evil=1'>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def show(browser, path, width=1100):
    """Open a page at a width and return the seconds that took."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get_log("browser")
    started = time.perf_counter()
    browser.get(path.as_uri())
    return time.perf_counter() - started


def make_table(rows, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"size": rng.uniform(10, 50, rows), EVIL: rng.standard_normal(rows)})
    return table.assign(site=rng.choice(["north", "south", EVIL], rows))


def make_target(table, seed=5):
    return table["size"].to_numpy() / 10 + 0.3 * np.random.default_rng(seed).standard_normal(len(table))


@pytest.fixture(scope="module")
def model():
    table = make_table(300)
    return hs.EvidentialRegressor(members=3, steps=60, random_state=0, device="cpu").fit(table, make_target(table))


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    table = make_table(400, seed=1)
    table.loc[7, "size"] = 900.0
    y = pd.Series(make_target(table), name=EVIL)
    return hs.write_report(model, table, y, tmp_path_factory.mktemp("report") / "report.html", title=EVIL)


def test_page_has_no_errors_and_runs_nothing_of_the_table(browser, page):
    show(browser, page)
    assert browser.get_log("browser") == []  # neither errors nor requests that the policy refused
    assert browser.execute_script("return window.evil === undefined && document.title") == EVIL
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded == []
    labels = browser.execute_script(
        "return [...document.querySelectorAll('.chart text')].map(e => e.textContent).join(' ')"
    )
    assert "</script>" in labels  # shown as it is, shortened


def test_every_mark_of_a_chart_has_a_text_and_a_place(browser, page):
    show(browser, page)
    marks = browser.execute_script(
        "return [...document.querySelectorAll('.chart svg circle, .chart svg path:not(.interval)')].map(e => {"
        "const b = e.getBoundingClientRect(); return [b.width, e.querySelector('title').textContent] })"
    )
    assert len(marks) >= 2 * 400
    assert all(0 < width < 30 and text.startswith("row ") for width, text in marks)


@pytest.mark.parametrize("width", [360, 480, 768, 1280])
def test_no_width_needs_scrolling_sideways(browser, page, width):
    show(browser, page, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    outside = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => { const b = e.getBoundingClientRect();"
        "return b.width && !e.closest('.chart > svg') && (b.right > innerWidth + 1 || b.left < -1) })"
        ".map(e => e.textContent.slice(0, 80))"
    )
    assert outside == []
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].flatMap(c => [...c.querySelectorAll('text')].map(e =>"
        "parseFloat(getComputedStyle(e).fontSize) * c.getBoundingClientRect().width / 640))"
    )
    assert all(9 <= size <= 20 for size in sizes)  # of labels, in pixels
    overlapping = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].flatMap(c => {"
        "const b = [...c.querySelectorAll('text')].map(e => e.getBoundingClientRect());"
        "return b.flatMap((p, i) => b.slice(i + 1).filter(q => p.left < q.right && q.left < p.right &&"
        "p.top + 2 < q.bottom && q.top + 2 < p.bottom)) }).map(b => [b.x, b.y])"
    )
    assert overlapping == []


def test_text_is_dark_on_white(browser, page):
    show(browser, page)
    colors = browser.execute_script(
        "return [...new Set([...document.querySelectorAll('main *')].filter(e => !e.closest('.chart'))"
        ".map(e => getComputedStyle(e).color))]"
    )
    for color in colors:
        red, green, blue = (int(v) / 255 for v in re.findall(r"\d+", color)[:3])
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (red, green, blue)]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) >= 4.5  # the contrast that WCAG asks for


def test_it_prints_with_every_chart_whole(browser, page):
    show(browser, page)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    pdf = base64.b64decode(printed["data"])
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 3 <= pages <= 12
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        paper = 703  # pixels of 210 mm less two margins of 12 mm
        width = "return Math.max(...[...document.querySelectorAll('.chart')].map(e => e.getBoundingClientRect().width))"
        assert 300 < browser.execute_script(width) <= paper
        inside = "return getComputedStyle(document.querySelector('figure')).breakInside"
        assert browser.execute_script(inside) == "avoid"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


DATA = Path(os.environ.get("HOWSURE_DATA", Path(__file__).parents[2] / "shared" / "data")) / "shift"


def read_shift(case):
    """Return training rows and rows of another kind, each with its target last, of a public set."""
    if case == "wine":
        return tuple(pd.read_csv(DATA / f"winequality-{kind}.csv", sep=";") for kind in ("red", "white"))
    if case == "bikes":
        table = pd.read_csv(DATA / "bike_hour.csv").drop(columns=["instant", "dteday", "casual", "registered"])
        return tuple(table[table["yr"] == year].drop(columns="yr") for year in (0, 1))
    table = pd.read_csv(DATA / "california_housing.csv")
    table["value"] = table.pop("median_house_value")
    inland = table.pop("ocean_proximity") == "INLAND"
    return table[inland], table[~inland]


@pytest.mark.parametrize("case", ["wine", "bikes", "houses"] if DATA.is_dir() else ["synthetic"])
def test_pages_about_rows_of_another_kind(browser, case, tmp_path):
    if case == "synthetic":
        near, far = (make_table(500, seed).drop(columns=[EVIL]) for seed in (0, 1))
        near, far = (table.assign(y=make_target(table)) for table in (near, far.assign(size=far["size"] + 60)))
    else:
        near, far = (table.sample(min(len(table), 1500), random_state=0) for table in read_shift(case))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = hs.EvidentialRegressor(members=3, steps=100, random_state=0, device="cpu")
        model.fit(near.iloc[:, :-1], near.iloc[:, -1:])
        path = hs.write_report(model, far.iloc[:, :-1], far.iloc[:, -1:], tmp_path / "report.html")
    for width in (375, 1100):
        show(browser, path, width)
        assert browser.get_log("browser") == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    text = browser.find_element("tag name", "body").text
    assert re.search(
        "Do not trust|before use|as a whole is unlike", text
    )  # rows that look different, or a law that changed


def test_hundred_thousand_rows_open_quickly_enough(browser, model, tmp_path):
    table = make_table(100_000, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = hs.write_report(model, table, make_target(table), tmp_path / "large.html")
    assert path.stat().st_size < 2e6
    seconds = show(browser, path)
    assert browser.get_log("browser") == []
    nodes = browser.execute_script("return document.querySelectorAll('*').length")
    assert nodes < 20_000  # a page of as many marks as rows would have more, and be slow on every machine
    print(f"opened and drawn in {seconds:.1f} s")  # noqa: T201
