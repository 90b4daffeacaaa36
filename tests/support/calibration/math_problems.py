"""Sixty problems of our own in the columns of MATH-500."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_suffix(".jsonl")

MATH_PROBLEMS: list[dict[str, Any]] = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
