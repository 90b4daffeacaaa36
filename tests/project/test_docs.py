"""What the documentation shows runs as it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsd_collectors.schema import COMPLETIONS, ROUNDS, Column, token_columns
from support.paths import DOCS


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(p.name for p in DOCS.glob("*.md")))
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
