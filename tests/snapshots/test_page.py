"""Tests of a certificate's page in a browser: it loads alone, fits a phone, darkens, is for all."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import LONG, certified, discovery, ledger, run, violated
from past_sessions import SESSION, VIOLATED

from ddp_invariants.discovery.result import Probed, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.report import history
from ddp_invariants.report.certificate.certificate import Certificate
from ddp_invariants.report.certificate.from_session import make
from ddp_invariants.report.certificate.page import render, side_by_side

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
DRIVER = shutil.which("chromedriver") or ""
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no Chromium with its chromedriver here"
)

PHONE, DESK = 390, 1280
MOST_ON = {PHONE: 12_000, DESK: 6_000}
"""Pixels that a page may be high, by the width of the window."""
Opened = Callable[..., Any]


def usual() -> Certificate:
    """Return a certificate as long as one of the reference: most capabilities are right."""
    refused = ("join", "elastic", "workers", "no_samples", "in_parts", "other_methods")
    return make(
        ledger(1_500),
        discovery(
            "reference",
            tuple(
                Probed(name, Standing.REFUSED, "RuntimeError in backward: " + "not offered " * 20)
                if name in refused
                else Probed(name, Standing.RIGHT)
                for name in CAPABILITIES
            ),
        ),
        run(),
        {},
    )


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
        "usual": render(usual()),
        "violated": render(violated(LONG, "a gradient of " + "layers." * 40 + "weight is off")),
        "comparison": side_by_side([certified(), violated(LONG)]),
        "history": history.page([SESSION, replace(VIOLATED, ddp=LONG), VIOLATED, SESSION], 9),
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


@pytest.mark.parametrize("name", ["certified", "violated", "comparison", "history"])
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
    assert sorts == [None, None, None, None, None, "descending", None, None]


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


def _shown(page: Any, section: str) -> list[str]:
    """Return the first cells of the rows of a section that are visible."""
    shown: list[str] = page.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')]"
        ".filter(row => row.checkVisibility()).map(row => row.cells[0].textContent)",
        section,
    )
    return shown


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", ["usual", "violated"])
def test_a_page_is_no_longer_than_a_reader_scrolls(opened: Opened, name: str, width: int) -> None:
    """The page shows what matters, and folds the rest away."""
    page = opened(name, width)
    high = page.execute_script("return document.documentElement.scrollHeight")
    assert high < MOST_ON[width], high


def test_rules_are_filtered_by_verdict_and_words(opened: Opened) -> None:
    """The filter opens what is folded, counts what it shows, and shows all again."""
    page = opened("violated")
    assert _shown(page, "#rules") == ["GRAD-2"]
    verdict = page.find_element("css selector", "#rules select")
    verdict.send_keys("not claimed")
    assert _shown(page, "#rules") == ["INIT-4", "MEM-1"]
    count = page.find_element("css selector", "#rules output")
    assert count.text.startswith("2 of ")
    page.find_element("css selector", "#rules input").send_keys("seeds")
    assert _shown(page, "#rules") == ["INIT-4"]
    page.find_element("css selector", "#rules button[type=reset]").click()
    # The rows change in a task of their own.
    WebDriverWait(page, 5).until(lambda _: _shown(page, "#rules") == ["GRAD-2"])
    assert not count.text


def test_a_tile_shows_the_rules_of_its_invariant(opened: Opened) -> None:
    """There is a tile for each invariant with its verdict; it leads to the rules."""
    page = opened("violated")
    tiles = page.find_elements("css selector", ".tiles a")
    words = [tile.text.split("\n")[0] for tile in tiles]
    assert words[:4] == ["INIT ✓ holds", "SHARD ✓ holds", "LOSS ✓ holds", "GRAD ✗ violated"]
    tiles[3].click()
    assert {rule.split("-")[0] for rule in _shown(page, "#rules")} == {"GRAD"}


def test_a_command_is_copied_by_the_keyboard_alone(opened: Opened) -> None:
    """The button beside the command to repeat a violation copies it, and says so."""
    page = opened("violated")
    button = page.find_element("css selector", ".copy")
    assert button.accessible_name == "Copy the command"
    button.send_keys("\n")
    status = page.find_element("css selector", ".copy + [role=status]")
    WebDriverWait(page, 5).until(lambda _: status.text == "copied")
    focused = page.execute_script(
        "const style = getComputedStyle(document.activeElement);"
        "return [document.activeElement.textContent, style.outlineStyle, style.outlineWidth]"
    )
    assert focused == ["Copy", "solid", "2px"]


@pytest.mark.parametrize("name", ["violated", "comparison"])
def test_everything_can_be_reached_by_the_tab_key(opened: Opened, name: str) -> None:
    """The tab key visits each link, button, field and fold that is visible, in their order."""
    page = opened(name)
    page.find_element("tag name", "body")
    expected = page.execute_script(
        "return [...document.querySelectorAll('a, button, select, input, summary, [tabindex]')]"
        ".filter(one => one.checkVisibility()).length"
    )
    actions = webdriver.ActionChains(page)
    order = []
    for _ in range(expected):
        actions.send_keys("\ue004").perform()
        actions.reset_actions()
        order.append(
            page.execute_script(
                "return [...document.querySelectorAll('*')].indexOf(document.activeElement)"
            )
        )
    assert order == sorted(set(order))


def test_without_scripts_the_page_shows_the_same_and_no_button(
    browser: Any, opened: Opened
) -> None:
    """Filters and buttons are for scripts alone; a tile then leads to the first of its rules."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page = opened("violated")
        controls = page.find_elements("css selector", "form, button, input, select")
        assert [control for control in controls if control.is_displayed()] == []
        tile = page.find_elements("css selector", ".tiles a")[0]
        assert not page.find_element("id", "INIT-1").is_displayed()
        tile.click()
        assert page.current_url.endswith("#INIT-1")
        WebDriverWait(page, 5).until(
            lambda driver: driver.find_element("id", "INIT-1").is_displayed()
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
@pytest.mark.parametrize("name", ["usual", "violated", "comparison", "history"])
def test_axe_finds_nothing_that_is_serious(
    opened: Opened, name: str, width: int, scheme: str
) -> None:
    """The page is accessible, also with everything unfolded, as far as axe-core can tell."""
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    page = opened(name, width, scheme)
    page.execute_script((Path(axe.__file__).with_name("axe.min.js")).read_text(encoding="utf-8"))
    page.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true })")
    results = page.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    serious = [
        (each["id"], each["impact"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in results["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert len(results["passes"]) > 10
