"""The built documentation site: every public name, page sizes, and a visit in Chromium at two widths.

`make test-docs` builds the site and runs the tests of a browser; the others need the sources only.
"""

import functools
import http.server
import importlib
import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

import howsure as hs

ROOT = Path(__file__).parents[1]
SITE = ROOT / "out" / "site"
DOCS = ROOT / "docs"
PACKAGES = {  # of modules of the reference
    "howsure.contrib.botorch": "botorch",
    "howsure.contrib.skpro": "skpro",
    "howsure.metrics.streaming": "torchmetrics",
}
MAX_PAGES, MAX_WORDS, MAX_BYTES = 22, 1200, 1_000_000
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)


def prose(page: Path) -> str:
    """Return the text of a page without code blocks, comments and generated tables."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!-- generated.*?<!-- end -->|<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def test_pages_are_few_and_short():
    pages = {page.name: len(prose(page).split()) for page in DOCS.glob("*.md")}
    results = {"results.md", "choices.md"}  # mostly generated tables
    assert len(set(pages) - results) <= MAX_PAGES
    assert {name: words for name, words in pages.items() if words > MAX_WORDS} == {}


def test_readme_has_at_most_450_words():
    assert len(prose(ROOT / "README.md").split()) <= 450


def referenced() -> set[str]:
    """Return the objects that the pages of the reference describe."""
    names = {
        name for page in (DOCS / "reference").glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
    }
    assert len(names) > 40
    return names


def test_reference_describes_every_public_name():
    missing = {f"howsure.{name}" for name in hs.__all__} - referenced()
    assert missing == set()


@pytest.mark.parametrize("name", sorted(referenced()))
def test_objects_of_the_reference_exist_and_have_a_docstring(name):
    for start, package in PACKAGES.items():
        if name.startswith(start):
            pytest.importorskip(package)
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
    assert found.__doc__


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages - listed == set()


def missing() -> str:
    """Return the reason why the site cannot be opened, or an empty text."""
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return 'selenium is not installed: pip install ".[browser]"'
    if not (CHROMIUM and DRIVER):
        return "chromium or chromedriver is not installed: apt-get install chromium-driver"
    return "" if (SITE / "index.html").exists() else "the site is not built: make docs"


browsing = [
    pytest.mark.extras,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all is installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def with_browser(test):
    """Mark a test that opens the built site."""
    for mark in browsing:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def address():
    """Address of the built site on a local server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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


def visit(browser, url, width):
    """Open a page at a width, without old messages of the console."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(url)


def wait_for(browser, script, seconds=20):
    """Return the value of a script as soon as it is true."""
    for _ in range(seconds * 10):
        if found := browser.execute_script(script):
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {script}")


def take_screenshot(browser, name):
    """Save a screenshot next to the site, for people."""
    folder = ROOT / "out" / "site-screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(os.fspath(folder / f"{name}.png"))


@with_browser
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(
    "page",
    [
        "index",
        "start-table",
        "trained",
        "model",
        "methods",
        "losses",
        "results",
        "reference/regressors",
        "reference/shell",
    ],
)
def test_page_fits_the_width_without_console_errors(browser, address, page, width):
    visit(browser, f"{address}/{page}.html", width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return [...document.images].every(image => image.naturalWidth > 0)")
    take_screenshot(browser, f"{page.replace('/', '-')}-{width}")
    assert browser.get_log("browser") == []


@with_browser
@pytest.mark.parametrize("width", [360, 1280])
def test_navigation_leads_to_another_page(browser, address, width):
    visit(browser, f"{address}/index.html", width)
    if width < 500:
        browser.execute_script("document.querySelector('label[for=__drawer]').click()")
    title = "Five minutes with a table"
    links = "[...document.querySelectorAll('.md-nav a')]"
    browser.execute_script(f"{links}.find(link => link.textContent.trim() == '{title}').click()")
    wait_for(browser, f"return document.title.startsWith('{title}')")
    assert browser.get_log("browser") == []


@with_browser
@pytest.mark.parametrize("width", [360, 1280])
def test_search_finds_calibrate(browser, address, width):
    visit(browser, f"{address}/index.html", width)
    browser.execute_script("document.querySelector('#__search').click()")
    browser.execute_script(
        "const field = document.querySelector('.md-search__input'); field.focus(); field.value = 'calibrate';"
        "for (const event of ['keyup', 'input']) field.dispatchEvent(new Event(event, {bubbles: true}))"
    )
    results = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    links = wait_for(browser, f"const found = {results}; return found.length && found")
    assert any("calibration.html" in link or "reference/prediction.html" in link for link in links)
    take_screenshot(browser, f"search-{width}")
    assert browser.get_log("browser") == []


@with_browser
def test_pages_are_below_one_megabyte_and_llms_txt_lists_them():
    sizes = {page.relative_to(SITE).as_posix(): page.stat().st_size for page in SITE.rglob("*.html")}
    assert len(sizes) > 40
    assert {name: size for name, size in sizes.items() if size >= MAX_BYTES} == {}
    text = (SITE / "llms.txt").read_text(encoding="utf-8")
    assert all(f"({page})" in text for page in ("index.html", "methods.html", "reference/regressors.html"))
    assert "EvidentialRegressor" in text
