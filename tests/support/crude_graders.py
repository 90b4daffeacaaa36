"""Graders that a text can break, for tests of `Apart`."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable


def deeds() -> Callable[[str], str | None]:
    """Returns a grader that does what its text says."""

    def do(text: str) -> str | None:
        deed, _, argument = text.partition(" ")
        match deed:
            case "spin":
                re.match(r"(a|aa)+$", "a" * 60 + "b")
            case "power":
                return str(9**9**9)[:1]
            case "sleep":
                time.sleep(float(argument))
            case "fill":
                return str(len(bytearray(int(argument))))
            case "crash":
                ctypes.string_at(0)
            case "exit":
                os._exit(int(argument))
            case "raise":
                raise ValueError(argument)
            case "print":
                print(argument)
            case "who":
                return str(os.getpid())
        return argument

    return do
