"""Code of users' own on Python's path, for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@contextmanager
def on_path(*folders: Path, **modules: str) -> Iterator[None]:
    """Inside, these folders are on the path, and modules of these names with what they contain."""
    with TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        for name, content in modules.items():
            Path(made, f"{name}.py").write_text(content, encoding="utf-8")
        patch.setattr(sys, "path", [*sys.path, *map(str, folders), made])
        yield
