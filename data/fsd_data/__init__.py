"""The bundled data: generated word problems, and a tiny pair of models that solves them.

Importing this package loads no model.
"""

from __future__ import annotations

from pathlib import Path


def pair_paths() -> tuple[Path, Path]:
    """Returns the folders of the bundled target and draft, in transformers format."""
    pair = Path(__file__).parent / "pair"
    return pair / "target", pair / "draft"


def recurrent_path() -> Path:
    """Returns the folder of another draft of the bundled target: of one recurrent layer, in transformers format."""
    return Path(__file__).parent / "pair" / "recurrent"


def head_path() -> Path:
    """Returns the folder of an EAGLE head for the bundled target, in EAGLE-3's format."""
    return Path(__file__).parent / "pair" / "head"
