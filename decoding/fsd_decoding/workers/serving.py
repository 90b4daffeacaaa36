"""What runs within a worker process: it is prepared, then does the work that it is sent.

No heavy import is here: what a worker prints while it imports torch and loads models must not reach a terminal.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

from fsd_common.errors import UsageError

_LOOK = 1.0  # seconds between looks at whether the process that hands out work still lives


class Served(NamedTuple):
    """The outcome of a piece of work: what it returned, or its exception."""

    returned: Any
    error: Exception | None = None


def serve(request: bytes) -> Served:
    """Does one piece of work.

    Args:
        request: a module's function and its argument, pickled. They are unpickled here, since that imports much.
    """
    try:
        work, argument = pickle.loads(request)
        return Served(work(argument))
    except UsageError as error:
        return Served(None, error)
    except Exception as error:
        sent = error if _survives_pickling(error) else RuntimeError(f"{type(error).__name__}: {error}")
        sent.add_note(f"In a worker process: {traceback.format_exc()}")
        return Served(None, sent)


def _survives_pickling(error: Exception) -> bool:
    """Whether another process can be sent an exception: one made of several arguments often cannot be made again there,
    which would look like the death of the worker."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def prepare(parent: int) -> None:
    """Prepares a process of this machine, before it has any work.

    Args:
        parent: the process that hands out work, without which this one ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches all processes of a terminal; the parent ends this one
    open_standard_streams()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from joblib.externals.loky import process_executor
    from tqdm import tqdm

    # Else loky replaces a process whose memory has grown by 300 MB, and with it the models: KV caches grow.
    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    # Else tqdm makes a semaphore of the system's: a killed process leaves it, which its parent warns of.
    tqdm.set_lock(threading.RLock())


def open_standard_streams() -> None:
    """Opens stdin, stdout and stderr on nothing where they are closed, also for processes that this one starts."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # it stays open
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _end_with(parent: int) -> None:
    """Ends this process once its parent has ended, however that ended: nobody would take its results."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
