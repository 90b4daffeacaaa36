"""What a program in the sandbox may use, and how its run ended."""

from __future__ import annotations

from typing import Literal, NamedTuple

_MIB = 1 << 20

Ending = Literal["passed", "failed", "killed", "wall limit", "output limit"]


class Limits(NamedTuple):
    """What one program may use; it is one process, with threads where their number can be limited.

    CPU time decides whether a program is too slow, so that a busy machine changes no verdict; the wall limit is far
    above it, and ends programs that wait.
    """

    wall: float = 30.0  # seconds
    cpu: int = 6  # seconds
    memory: int = 512 * _MIB  # bytes of address space
    disk: int = 16 * _MIB  # bytes in /tmp, and of its largest file
    names: int = 1024  # files, folders and links in /tmp
    output: int = _MIB // 4  # bytes of stdout and stderr together
    threads: int = 32
    files: int = 64  # open at once


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        ending: "failed": it raised or exited; "killed": by a signal, as the CPU limit and a broken stack send.
        output: Its stdout and stderr, up to the limit.
    """

    ending: Ending
    output: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether it ran to its end without an exception."""
        return self.ending == "passed"
