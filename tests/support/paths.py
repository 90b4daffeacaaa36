"""Folders of the repository that tests read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
FILES = Path(__file__).with_name("files")  # written by earlier versions
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"  # the real files; not on every machine
HUMANEVAL = ROOT.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"  # likewise


def environment() -> dict[str, str]:
    """The environment of a child process that can import what the tests can."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
