"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
FILES = Path(__file__).with_name("files")  # written by earlier versions
BENCHMARK_FILES = ROOT.parent / "shared" / "data"  # the real ones; not on every machine
GSM8K = BENCHMARK_FILES / "gsm8k"
HUMANEVAL = BENCHMARK_FILES / "humaneval" / "HumanEval.jsonl.gz"
