"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
FILES = Path(__file__).with_name("files")  # written by earlier versions
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"  # the real files; not on every machine
