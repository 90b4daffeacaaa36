"""Fresh processes, which share only a request and its response with this one.

Nothing heavy is imported here: how long such a process takes to start is up to what it is asked to do.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from fsd_common.errors import UsageError
from fsd_common.files import naming

Argument = TypeVar("Argument")
Returned = TypeVar("Returned")

_SERVE = f"from {__name__} import serve; serve()"


def in_fresh_process(work: Callable[[Argument], Returned], argument: Argument) -> Returned:
    """Returns `work(argument)`, computed in a new interpreter.

    `multiprocessing` is not used, since it starts a process by running the caller's script again, and with it a whole
    calibration where the script is not guarded by `if __name__ == "__main__"`.

    Args:
        work: A module's function; its argument and its result are pickled.

    Raises:
        UsageError: `work` raised an exception, or the process died.
    """
    with TemporaryDirectory() as folder:
        request, response = Path(folder, "request"), Path(folder, "response")
        with naming("the temporary file", request):
            request.write_bytes(pickle.dumps((work, argument)))
        command = [sys.executable, "-P", "-c", _SERVE, str(request), str(response)]
        process = subprocess.run(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
        if process.returncode:
            raise UsageError(_reason(process.returncode, process.stdout))
        returned: Returned = pickle.loads(response.read_bytes())
        return returned


def serve() -> None:
    """Runs in the fresh process: reads the request, and writes the response."""
    request, response = map(Path, sys.argv[1:])
    work, argument = pickle.loads(request.read_bytes())
    try:
        returned = work(argument)
    except UsageError as error:
        sys.exit(" ".join(str(error).split()))
    response.write_bytes(pickle.dumps(returned))


def _environment() -> dict[str, str]:
    """Returns an environment with this process's module path, and no other: hence `-P` too."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _reason(code: int, output: str) -> str:
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name} (out of memory, for instance)"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with exit code {code}"
