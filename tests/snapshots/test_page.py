"""Tests of a certificate's page in a browser: it loads alone, fits a phone, darkens and sorts."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import LONG, certified, violated

from ddp_invariants.report.certificate.page import render, side_by_side

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
DRIVER = shutil.which("chromedriver") or ""
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no Chromium with its chromedriver here"
)

PHONE, DESK = 375, 1100
Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)) as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write one page of each kind, and return their paths by name."""
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "certified": render(certified()),
        "violated": render(violated(LONG, "a gradient of " + "layers." * 40 + "weight is off")),
        "comparison": side_by_side([certified(), violated(LONG)]),
    }
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Opened:
    """Return a function that opens a page in a window of some width, light or dark."""

    def open_page(name: str, width: int = DESK, scheme: str = "light") -> Any:
        browser.get_log("browser")
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE},
        )
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        browser.get(pages[name].as_uri())
        return browser

    return open_page


@pytest.mark.parametrize("name", ["certified", "violated", "comparison"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_opens_without_errors_loads_nothing_and_scrolls_one_way(
    opened: Opened, name: str, width: int
) -> None:
    """The page opens without console messages, loads no other file, and fits the window.

    No element is wider than the window, however long a name is.
    """
    page = opened(name, width)
    assert page.get_log("browser") == []
    assert (
        page.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
        == []
    )
    wide, window = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window == width
    outside = page.execute_script(
        "return [...document.querySelectorAll("
        "'h1, h2, h3, p, dd, td, code, summary, figcaption')]\n"
        "        .filter(one => one.checkVisibility()"
        " && one.getBoundingClientRect().right > innerWidth + 1\n"
        "                && !one.closest('.scroll')).map(one => one.textContent.slice(0, 40))"
    )
    assert outside == []


def test_every_section_is_there_and_every_picture_is_drawn(opened: Opened) -> None:
    """Every section and picture of a violation is there, and the links at the top lead to them."""
    page = opened("violated")
    sections = page.execute_script(
        "return [...document.querySelectorAll('section')].map(one => one.id)"
    )
    assert sections == [
        "violations",
        "rules",
        "capabilities",
        "pictures",
        "drawn",
        "reading",
        "who",
    ]
    links = page.execute_script(
        "return [...document.querySelectorAll('nav a')].map(one => one.hash.slice(1))"
    )
    assert links == sections
    titles = page.execute_script(
        "return [...document.querySelectorAll('figure b')].map(one => one.textContent)"
    )
    assert titles == [
        "The error of each rank.",
        "A step on every rank.",
        "Parameters in each reduction.",
        "Errors, in tenths of their bounds.",
        "Drawn cases: training.",
        "Drawn cases: samplers.",
        "Samples of each rank.",
        "A step on every rank.",
        "Parameters in each reduction.",
    ]
    sizes = page.execute_script("""return [...document.querySelectorAll('figure svg')]
        .map(one => [one.getBoundingClientRect().width, one.querySelectorAll('text').length])""")
    assert len(sizes) == len(titles)
    assert all(width > 100 and texts for width, texts in sizes)
    assert (
        page.execute_script(
            "const ids = [...document.querySelectorAll('[id]')].map(one => one.id);"
            "return ids.length - new Set(ids).size"
        )
        == 0
    )
    assert page.execute_script("return document.querySelector('h1').textContent") == (
        "CORE violated: GRAD-2; extended certified; robust certified"
    )


def test_tables_sort_by_any_column_up_and_down(opened: Opened) -> None:
    """Tables sort by any column in both directions, with numbers and rule ids in numeric order."""
    page = opened("violated")
    column = (
        "return [...document.querySelectorAll('#rules details tbody tr')]"
        ".map(row => row.cells[arguments[0]].{})"
    )
    button = "document.querySelectorAll('#rules details thead button')[arguments[0]].click()"
    for number, value, key in (
        (0, "textContent", lambda text: (text.split("-")[0], int(text.split("-")[1]))),
        (3, "dataset.value", int),
        (5, "dataset.value", float),
    ):
        page.execute_script(button, number)
        up = page.execute_script(column.format(value), number)
        assert up == sorted(up, key=key)
        page.execute_script(button, number)
        down = page.execute_script(column.format(value), number)
        assert down == sorted(down, key=key, reverse=True)
        assert down != up
    sorts = page.execute_script(
        "return [...document.querySelectorAll('#rules details th')].map(one => one.ariaSort)"
    )
    assert sorts == [None, None, None, None, None, "descending", None]


def test_in_the_dark_paper_is_dark_and_ink_is_light_in_pictures_too(opened: Opened) -> None:
    """Text has a contrast of at least 4.5 to 1 in light and dark mode, as WCAG requires.

    A sign and a word also show each verdict, so that colour alone never does.
    """
    contrast = """
        const luminance = colour => { const [r, g, b] = \
colour.match(/[\\d.]+/g).map(Number).map(one => one / 255)
            .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const paper = luminance(getComputedStyle(document.body).backgroundColor);
        const ratio = colour => { \
const [high, low] = [luminance(colour), paper].sort((a, b) => b - a);
            return (high + 0.05) / (low + 0.05); };
        const worst = (selector, property) => Math.min(...[...document.querySelectorAll(selector)]
            .map(one => ratio(getComputedStyle(one)[property])));
        return [paper, worst('h1, h2, p, td, dd, dt, .mark, .small, figcaption, a', 'color'),
                worst('[id^="errors-matplotlib.axis"] text', 'fill')];"""
    for scheme, is_dark in (("light", False), ("dark", True)):
        page = opened("violated", DESK, scheme)
        paper, text, labels = page.execute_script(contrast)
        assert (paper < 0.1) == is_dark
        assert text >= 4.5, scheme
        assert labels >= 4.5, scheme
        marks = page.execute_script(
            "return [...document.querySelectorAll('.mark')].map(one => one.textContent)"
        )
        assert all(re.fullmatch(r"\s*[^\w\s] [\w ,]+\s*", mark) for mark in marks)
