"""The site is built strictly and offline, and what its tutorial tells to type runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as conditions
from selenium.webdriver.support.ui import WebDriverWait

from ddrl.algorithms import NAMES
from docs.sitegen import evidence

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.system
RUN = re.compile(r"^<!-- run -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Page(HTMLParser):
    """The addresses that a page fetches, the links it holds, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one element names."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "link", "iframe", "source", "video"):
            self.fetched += [values[name] for name in ("src", "href") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site that was built just now."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Page]:
    """Return every page of the site."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_there_is_a_page_for_every_algorithm_and_paper(site: Path) -> None:
    wanted = [*(f"algorithms/{name}" for name in NAMES), *(f"papers/{key}" for key in evidence.keys_of_papers())]
    assert [name for name in wanted if not (site / f"{name}.html").exists()] == []


def test_no_marker_formula_or_diagram_is_left_as_it_was_written(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "generated: " not in text.replace("<!-- generated: ...", ""), path
        assert 'class="arithmatex"' not in text and 'class="mermaid"' not in text, path


def test_nothing_is_fetched_from_another_host(site: Path, read: dict[Path, Page]) -> None:
    outside = re.compile(r"(https?:)?//")
    assert [(path, one) for path, page in read.items() for one in page.fetched if outside.match(one)] == []
    for sheet in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)|@import [^;]*//", sheet.read_text(encoding="utf-8")) == []


def test_every_link_and_anchor_within_the_site_is_there(site: Path, read: dict[Path, Page]) -> None:
    broken = []
    for path, page in read.items():
        for link in [*page.links, *page.fetched] if path.name != "404.html" else []:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link) or not link:
                continue
            file = (path.parent / target).resolve() if target else path
            if not file.exists() or (anchor and file in read and anchor not in read[file].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs Chromium and its driver")
def test_a_page_that_is_opened_as_a_file_can_be_searched(site: Path) -> None:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1280,900"):
        options.add_argument(argument)
    with webdriver.Chrome(options, ChromeService(shutil.which("chromedriver"))) as browser:
        browser.get((site / "concepts.html").as_uri())
        field = WebDriverWait(browser, 30).until(
            conditions.element_to_be_clickable((By.CLASS_NAME, "md-search__input"))
        )
        field.send_keys("policy lag")
        found = conditions.presence_of_element_located((By.CSS_SELECTOR, ".md-search-result__item a"))
        assert WebDriverWait(browser, 30).until(found).get_attribute("href")


def test_what_the_tutorial_marks_to_be_run_runs(tmp_path: Path) -> None:
    found = RUN.findall((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert {language for language, _ in found} == {"sh", "python"}
    for language, text in found:
        shell = f'ddrl() {{ {sys.executable} -m ddrl.cli "$@"; }}\nset -e\n{text}'
        command = ["bash", "-c", shell] if language == "sh" else [sys.executable, "-c", text]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr[-2000:]}"
    assert (tmp_path / "catch.svg").exists() and (tmp_path / "catch.mp4").exists()
