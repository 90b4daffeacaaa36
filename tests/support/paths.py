"""Folders of the repository that tests read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BENCHMARK_FILES = ROOT.parent / "shared" / "data"  # the real ones; not on every machine
GSM8K = BENCHMARK_FILES / "gsm8k"
HUMANEVAL = BENCHMARK_FILES / "humaneval" / "HumanEval.jsonl.gz"


def page_name(page: Path) -> str:
    """Names a page in the ids of tests."""
    return page.relative_to(ROOT).as_posix()


def public_names() -> list[str]:
    """What the page on the public API lists, by full names."""
    return re.findall(r"^\| `([\w.]+)` \|", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
