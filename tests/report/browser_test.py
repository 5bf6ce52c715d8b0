"""Reports in headless Chromium: tables sort and filter, figures say their values, nothing comes from a network.

The pages are opened from the file system, as readers open them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from ddrl.report import rebuild
from tests import debian

ROOT = Path(__file__).parents[2]
PAPER = "ga3c_2017"
PAGES = (PAPER, "suite", "index")
PHONE, DESKTOP = (375, 812), (1280, 900)
SIZES, SCROLLBAR = ("client", "scroll"), 20
PROGRAMS = ("chromium", "chromedriver")
NEEDED = "DDRL_NEEDS_BROWSER"
"""Environment variable, set by .ci/run: Chromium is installed where it is missing, and its absence fails."""

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def installed() -> None:
    if os.environ.get(NEEDED):
        debian.install(PROGRAMS, ("chromium", "chromium-driver"))
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found; on Debian: apt install chromium chromium-driver")


@pytest.fixture
def chrome(installed: None) -> Iterator[Chrome]:
    """A browser of each test's own: what one test emulates does not reach the next."""
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(str(shutil.which("chromedriver"))))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def folder(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of one paper's reference runs, of the suite, and their index."""
    output = tmp_path_factory.mktemp("reports")
    rebuild([PAPER], "reference", results=ROOT / "results", output=output, root=ROOT)
    return output


def opened(chrome: Chrome, path: Path, size: tuple[int, int] = DESKTOP) -> Chrome:
    """The page at this size; a phone's too, for which a window is too wide."""
    device = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    chrome.get(path.as_uri())
    return chrome


def shown(rows: list[WebElement]) -> list[str]:
    return [row.text for row in rows if row.is_displayed()]


def requested(chrome: Chrome) -> list[str]:
    """Every address that the browser has asked for since this was read last."""
    messages = (json.loads(entry["message"])["message"] for entry in chrome.get_log("performance"))
    wanted = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [str(request["request"]["url"]) for request in wanted]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_no_network_and_reports_no_error(chrome: Chrome, folder: Path, name: str) -> None:
    chrome.get_log("browser")
    requested(chrome)
    opened(chrome, folder / f"{name}.html")
    found = requested(chrome)
    assert any(address.endswith(f"{name}.html") for address in found)
    assert any(address.endswith("assets/datatables.js") for address in found)
    assert [address for address in found if not address.startswith(("file:", "data:"))] == []
    assert chrome.get_log("browser") == []


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_wide_as_its_window(chrome: Chrome, folder: Path, name: str, size: tuple[int, int]) -> None:
    opened(chrome, folder / f"{name}.html", size)
    chrome.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    inner, content = (chrome.execute_script(f"return document.documentElement.{name}Width") for name in SIZES)
    assert content <= inner <= size[0] < inner + SCROLLBAR


def test_the_answer_and_the_claims_stand_on_the_first_screens(chrome: Chrome, folder: Path) -> None:
    opened(chrome, folder / f"{PAPER}.html")
    assert chrome.find_element(By.CLASS_NAME, "answer").location["y"] < DESKTOP[1] / 2
    claims = chrome.find_elements(By.CSS_SELECTOR, ".answers tbody tr")
    data = json.loads((folder / f"evidence/reference/{PAPER}/report.json").read_text())
    assert len(claims) == sum(len(group["rows"]) for group in data["answers"]) > 5
    assert len(chrome.find_elements(By.CSS_SELECTOR, ".answers svg.effect")) == sum(
        row["plot"] is not None for group in data["answers"] for row in group["rows"]
    )


ORDERS_BY_GROUP = """
const found = [];
for (const row of arguments[0].tBodies[0].rows) {
  if (row.classList.contains("dtrg-group")) found.push([]);
  else found.at(-1).push(Number(row.cells[arguments[1].cellIndex].dataset.order));
}
return found;
"""
"""The numbers of a table's column, in the order of its rows, by group."""


def table_of_runs(chrome: Chrome, folder: Path) -> WebElement:
    opened(chrome, folder / f"{PAPER}.html").execute_script("location.hash = 'provenance'")
    return chrome.find_element(By.CSS_SELECTOR, "#provenance table.sortable")


def test_a_click_on_a_heading_sorts_by_numbers_within_groups(chrome: Chrome, folder: Path) -> None:
    table = table_of_runs(chrome, folder)
    heading = next(cell for cell in table.find_elements(By.CSS_SELECTOR, "thead th") if "Frames/s" in cell.text)
    as_written = chrome.execute_script(ORDERS_BY_GROUP, table, heading)
    assert len(as_written) > 1
    assert sum(map(len, as_written)) > 20
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", heading)
    for direction in ("asc", "desc"):
        heading.click()
        WebDriverWait(chrome, 5).until(
            lambda _, wanted=direction: f"dt-ordering-{wanted}" in str(heading.get_attribute("class"))
        )
        assert heading.get_attribute("aria-sort") == f"{direction}ending"
        found = chrome.execute_script(ORDERS_BY_GROUP, table, heading)
        assert found != as_written
        assert found == [sorted(group, reverse=direction == "desc") for group in as_written]


def test_a_group_of_rows_has_its_title_above_it_once(chrome: Chrome, folder: Path) -> None:
    table = table_of_runs(chrome, folder)
    data = json.loads((folder / f"evidence/reference/{PAPER}/report.json").read_text())
    blocks = next(section["blocks"] for section in data["sections"] if section["id"] == "provenance")
    titles = [group["title"] for block in blocks if block["type"] == "table" for group in block["groups"]]
    assert shown(table.find_elements(By.CSS_SELECTOR, "tr.dtrg-group")) == titles
    assert len(titles) > 1


def test_a_word_in_the_box_filters_the_rows(chrome: Chrome, folder: Path) -> None:
    table = table_of_runs(chrome, folder)
    every = shown(table.find_elements(By.CSS_SELECTOR, "tbody tr:not(.dtrg-group)"))
    box = chrome.find_element(By.CSS_SELECTOR, "#provenance .dt-search input")
    box.send_keys("catch")
    found = shown(table.find_elements(By.CSS_SELECTOR, "tbody tr:not(.dtrg-group)"))
    assert 0 < len(found) < len(every)
    assert found == [row for row in every if "Catch" in row]


@pytest.mark.parametrize("place", ["#claims td details", "#reference > details"])
def test_evidence_opens_on_demand(chrome: Chrome, folder: Path, place: str) -> None:
    opened(chrome, folder / f"{PAPER}.html")
    details = chrome.find_element(By.CSS_SELECTOR, place)
    closed = details.size["height"]
    summary = details.find_element(By.TAG_NAME, "summary")
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", summary)
    summary.click()
    assert details.size["height"] > closed + 10


def test_a_link_into_the_appendix_opens_what_it_leads_to(chrome: Chrome, folder: Path) -> None:
    opened(chrome, folder / f"{PAPER}.html")
    chrome.find_element(By.CSS_SELECTOR, "nav a[href='#settings']").click()
    assert chrome.find_element(By.CSS_SELECTOR, "#settings table").is_displayed()


def values_of(chrome: Chrome, figure: WebElement) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chrome.execute_script(
        "return JSON.parse(arguments[0].querySelector('metadata[id$=values]').textContent)", figure
    )
    return found


def test_a_figure_says_the_value_under_the_pointer(chrome: Chrome, folder: Path) -> None:
    opened(chrome, folder / f"{PAPER}.html")
    figure = chrome.find_element(By.TAG_NAME, "figure")
    series = max(values_of(chrome, figure), key=lambda one: len(one["points"]))
    x, y, text = series["points"][len(series["points"]) // 2]
    tip = figure.find_element(By.CLASS_NAME, "tip")
    assert not tip.is_displayed()
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    place = chrome.execute_script(
        """const drawing = arguments[0].querySelector('svg');
        const at = new DOMPoint(arguments[1], arguments[2]).matrixTransform(drawing.getScreenCTM());
        return [at.x, at.y];""",
        figure,
        x,
        y,
    )
    chrome.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": place[0], "y": place[1]})
    assert tip.is_displayed()
    assert tip.get_property("textContent").endswith(text)
    chrome.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 2, "y": 2})
    assert not tip.is_displayed()


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file(chrome: Chrome, folder: Path, name: str) -> None:
    opened(chrome, folder / f"{name}.html")
    links = [link.get_property("href") for link in chrome.find_elements(By.TAG_NAME, "a")]
    files = [
        Path(str(link).removeprefix("file://").partition("#")[0]) for link in links if str(link).startswith("file:")
    ]
    assert any(path.suffix == (".pdf" if name == "index" else ".csv") for path in files)
    assert [path for path in files if not path.exists()] == []


@pytest.mark.parametrize(("name", "table"), [(PAPER, "answers"), ("index", "index")])
def test_a_phone_shows_the_headings_by_which_a_table_sorts(chrome: Chrome, folder: Path, name: str, table: str) -> None:
    opened(chrome, folder / f"{name}.html", PHONE)
    headings = chrome.find_elements(By.CSS_SELECTOR, f"table.{table} thead th")
    assert len(headings) >= 4
    assert all(heading.is_displayed() for heading in headings)


def test_the_rows_of_the_index_have_no_rules_within_them_on_a_phone(chrome: Chrome, folder: Path) -> None:
    opened(chrome, folder / "index.html", PHONE)
    cells = chrome.find_elements(By.CSS_SELECTOR, "table.index tbody :is(td, th)")
    assert {cell.value_of_css_property(f"border-{side}-width") for cell in cells for side in ("top", "bottom")} == {
        "0px"
    }
