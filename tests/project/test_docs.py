"""What the documentation shows runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsd_collectors.schema import COMPLETIONS, ROUNDS, Column, token_columns
from support.paths import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


RUNNABLE = sorted(page.name for page in DOCS.glob("*.md") if "```python" in page.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUNNABLE if page != "vllm.md"])  # that one runs in tests/vllm
def test_every_block_runs_after_the_one_before(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # pages write where a reader stands
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("columns", [token_columns([]), COMPLETIONS, ROUNDS], ids=["tokens", "completions", "rounds"])
def test_the_page_on_traces_says_what_a_column_holds(columns: Sequence[Column]) -> None:
    page = (DOCS / "traces.md").read_text(encoding="utf-8")
    rows = [f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |" for column in columns]
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in _links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_readme_links_wherever_it_is_shown() -> None:
    """It is the package's page too, where a path in the repository leads nowhere."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", readme) == []
    assert len(_links(ROOT / "README.md")) > 10


def _links(page: Path) -> list[str]:
    """Links into the repository, relative to the page's folder or to a heading of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = re.compile(re.escape(project["urls"]["Repository"]) + r"/(?:blob|tree)/main/")
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [files.sub("", link) for link in links if files.match(link) or not link.startswith("http")]


def _anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
