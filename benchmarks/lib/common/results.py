"""Writing results as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any


def write_json(results: Mapping[str, Any], out: Path, indent: int | None = 1) -> None:
    """Writes results, which may hold dataclasses; makes the folder if there is none."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=indent, default=_as_dict) + "\n")


def write_and_print(results: Mapping[str, Any], out: Path, text: str) -> None:
    """Writes results; prints the text, the seconds that the benchmark took and where its results are."""
    write_json(results, out)
    print(text)
    print(f"\n{results['seconds']:.0f} s; {out}")


def _as_dict(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"results hold {value!r}, which JSON cannot represent")
