"""What comes with fsd-calib: story problems, and a tiny pair of models that solves them.

Knows where the pair lies. Importing this loads no model.
"""

from __future__ import annotations

from pathlib import Path


def pair_paths() -> tuple[Path, Path]:
    """Folders of the bundled target and draft, in transformers format."""
    pair = Path(__file__).parent / "pair"
    return pair / "target", pair / "draft"
