"""One-line messages that users see: on stderr, and in a `UsageError`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsd_decoding.errors import UsageError


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the only line on stderr, and checks that stdout is empty."""
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def usage_error(call: Callable[[], object]) -> str:
    """Returns the message of the `UsageError` that a call must raise, and checks that it is one line."""
    with pytest.raises(UsageError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)
