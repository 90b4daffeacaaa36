"""The documentation as a site: it builds without a warning, fetches nothing, and can be read from a folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.browsers import PHONE, Looked
from support.paths import ROOT, public_names

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytestmark = pytest.mark.slow

_LOADING = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\ssrc=[^>]*>|<link\b[^>]*\srel="?(?:stylesheet|icon|preload)[^>]*>'
)
_ELSEWHERE = re.compile(r'(?:src|href)="?(?:https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        tags = _LOADING.findall(page.read_text(encoding="utf-8"))
        assert tags
        assert [tag for tag in tags if _ELSEWHERE.search(tag)] == []
        assert not re.search(r'data-md-component="?source', page.read_text(encoding="utf-8"))  # it asks GitHub's API


def test_diagrams_are_drawn_and_links_to_the_source_lead_to_the_repository(site: Path) -> None:
    architecture = (site / "architecture.html").read_text(encoding="utf-8")
    diagrams = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").count("```mermaid\n")
    assert diagrams > 0
    assert architecture.count('<figure class="diagram">') == diagrams
    assert architecture.count('<svg id="diagram-') == diagrams
    assert "mermaid" not in re.sub(r"<style>.*?</style>", "", architecture, flags=re.DOTALL).lower()
    adaptive = (site / "adaptive.html").read_text(encoding="utf-8")
    assert "https://github.com/fsd-calib/fsd-calib/blob/main/examples/own_policy.py" in adaptive


def test_the_public_api_shows_signatures_and_what_arguments_mean(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (site / "api/calibrate.html").read_text(encoding="utf-8"))
    assert "min_acc" in page
    assert "accuracy to keep" in page
    assert ":::" not in page


def test_names_of_the_public_api_lead_to_entries_by_the_same_paths(site: Path) -> None:
    index = (site / "api.html").read_text(encoding="utf-8")
    entries = re.findall(r'<a href="(api/[\w-]+\.html)#([\w.]+)"><code>([\w.]+)</code></a>', index)
    assert [name for _, _, name in entries] == public_names()
    for page, anchor, name in entries:
        assert anchor == name
        assert f'id="{name}"' in (site / page).read_text(encoding="utf-8")


def test_the_home_has_the_readmes_figure_and_table(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'src="images/overview.svg"' in home
    assert "<th>lossless</th>" in home
    assert '<a href="quickstart.html#read-the-result">' in home


@pytest.mark.parametrize("words", ["thinking", "chat template", "GPU hours", "lossless"])
def test_the_search_works_from_a_folder(browser: Browser, site: Path, words: str) -> None:
    opened = Looked(browser, site / "index.html")
    opened.page.click(".md-search__input")
    opened.page.keyboard.type(words)
    found = opened.page.locator(".md-search-result__item", has_text=words.split()[-1])
    found.first.wait_for()
    assert any(all(word.lower() in text.lower() for word in words.split()) for text in found.all_text_contents())
    assert opened.said == []
    opened.close()


def test_on_a_phone_pages_are_no_wider_than_the_screen_and_wide_tables_scroll(browser: Browser, site: Path) -> None:
    cut = """() => [...document.querySelectorAll('.md-typeset table')].filter((table) => {
        const around = table.closest('.md-typeset__scrollwrap');
        return around ? getComputedStyle(around).overflowX !== 'auto' : table.scrollWidth > innerWidth;
    }).length"""
    opened = Looked(browser, site / "index.html", size=PHONE)
    for page in site.rglob("*.html"):
        opened.page.goto(page.as_uri())
        opened.page.wait_for_load_state()
        assert opened.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], page.name
        assert opened.page.evaluate(cut) == 0, page.name
    opened.close()
