"""Where a measurement goes: into a file, and onto the screen. Knows nothing of what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(found: Mapping[str, Any], out: Path, shown: str) -> None:
    """`found` as JSON, its folder made where there is none; `shown` and how long it all took."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(shown)
    print(f"\n{found['seconds']:.0f} s; {out}")
