"""What a command said. Knows streams, and no command."""

from __future__ import annotations

import pytest


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr, with nothing on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line
