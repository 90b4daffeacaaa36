"""The documentation as a site: it builds without a warning, and its pages fetch nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

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
    page = re.sub(r"<[^>]+>", "", (site / "api.html").read_text(encoding="utf-8"))
    assert "min_acc" in page
    assert "accuracy to keep" in page
    assert ":::" not in page
