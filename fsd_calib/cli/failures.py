"""Failures that no program can prevent, each in one line: a full disk, too little memory, a file out of reach."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded|file too large|database or disk is full", re.I)
_NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|bad_alloc|failed to map segment|_ALLOC_FAILED"
    r"|can't start new thread",
    re.I,
)


def explanation(error: BaseException) -> str | None:
    """Returns what happened and the way out; None: the error is of another kind, a fault of the program."""
    chain = list(_chain(error))
    if full := next(filter(_is_full, chain), None):
        why = (full.strerror if isinstance(full, OSError) else None) or _NO_SPACE.search(str(full))[0]  # type: ignore[index]
        return f"{_place(full)} cannot be written: {why}; free space, and run the same command again"
    if any(map(_lacks_memory, chain)):
        return (
            f"out of memory{_detail(error)}; free memory or give less work at once (--batch-size, --limit, smaller "
            "models), and run the same command again"
        )
    if isinstance(error, OSError):
        why = error.strerror or str(error) or type(error).__name__
        return f"{_place(error)} cannot be used: {why}; repair or free it, or give another path"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the error and those that led to it; libraries wrap the system's errors in their own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_full(error: BaseException) -> bool:
    return (isinstance(error, OSError) and error.errno in _FULL) or bool(_NO_SPACE.search(str(error)))


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | ImportError | OSError) and bool(_NO_MEMORY.search(str(error)))


def _detail(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f" ({lines[0].strip()[:120]})" if lines else ""


def _place(error: BaseException) -> str:
    name = error.filename if isinstance(error, OSError) else None
    return repr(os.fsdecode(name)) if isinstance(name, str | bytes) else "a file or stdout"
