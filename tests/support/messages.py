"""One-line messages that users see: on stderr, and in a `UsageError`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from fsd_common.errors import UsageError


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


def usage_error_of(code: str, *arguments: object) -> str:
    """Returns the one-line message of the `UsageError` that code must raise, in a process that ends if it hangs.

    Args:
        code: the code; it finds the arguments in `sys.argv[1:]`, as strings.
    """
    command = [sys.executable, "-c", f"import sys\n{code}", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    line = ran.stderr.splitlines()[-1]
    assert line.startswith(f"{UsageError.__module__}.{UsageError.__qualname__}: ")
    return line
