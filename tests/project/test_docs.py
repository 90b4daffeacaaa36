"""What the documentation shows runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsd_collectors.schema import COMPLETIONS, ROUNDS, Column, token_columns
from support.paths import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(p.name for p in DOCS.glob("*.md") if "```python" in p.read_text("utf-8")))
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
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
