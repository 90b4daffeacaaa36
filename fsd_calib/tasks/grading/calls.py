"""Calls of a function in another sandbox, by plain values: what keeps a problem's tests from the code that they test.

It is no module of the package: `python_tests` hands its text to both sandboxes. The one with the tests sends arguments,
the one with the function returns values or the name of an exception, a line of JSON each. Values are built anew of
exact built-in types, so that no object of the function's reaches the tests, and no test the function.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import sys
import types
from collections.abc import Callable
from typing import Any, TextIO


def serve(reading: int, writing: int, source: str, name: str) -> None:
    """Runs a module, and calls its function as the tests ask for."""
    with open(reading, encoding="ascii") as requests, open(writing, "w", encoding="ascii") as replies:
        module = _module("solution")
        exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
        for line in requests:
            replies.write(_reply(module.__dict__[name], *json.loads(line)) + "\n")
            replies.flush()


def run_tests(reading: int, writing: int, preamble: str, test: str, name: str) -> None:
    """Runs a module of tests, and its `check` on the function in the other sandbox.

    Args:
        preamble: What the prompt has before the function: tests use its imports and helpers.
    """
    with open(reading, encoding="ascii") as replies, open(writing, "w", encoding="ascii") as requests:
        module, candidate = _module("tests"), _remote(requests, replies, name)
        exec(compile(preamble, "prompt.py", "exec", dont_inherit=True), module.__dict__)
        module.__dict__[name] = candidate
        exec(compile(test, "tests.py", "exec", dont_inherit=True), module.__dict__)
        module.__dict__["check"](candidate)


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    return module


def _reply(function: Callable[..., Any], arguments: Any, keywords: Any) -> str:
    """Calls a function; returns its value and what became of its arguments, or its exception."""
    given, named = built(arguments), built(keywords)
    try:
        value = function(*given, **named)
    except Exception as error:
        return json.dumps(["raised", [kind.__name__ for kind in type(error).__mro__], str(error)[:1000]])
    try:
        returned = plain(value)
    except (TypeError, RecursionError):
        returned = ["foreign", type(value).__name__]
    after = None
    with contextlib.suppress(TypeError, RecursionError):
        after = plain(given)
    return json.dumps(["returned", returned, None if after == arguments else after])


def _remote(requests: TextIO, replies: TextIO, name: str) -> Callable[..., Any]:
    """A function that calls the one in the other sandbox."""

    def candidate(*arguments: Any, **keywords: Any) -> Any:
        requests.write(json.dumps([plain(arguments), plain(keywords)]) + "\n")
        requests.flush()
        what, *said = json.loads(replies.readline())
        if what == "raised":
            raise _exception(*said)
        returned, after = said
        if after is not None:
            for argument, changed in zip(arguments, built(after), strict=True):
                _change(argument, changed)
        return built(returned)

    candidate.__name__ = candidate.__qualname__ = name
    return candidate


def _exception(kinds: list[str], message: str) -> Exception:
    """An exception of the first kind that is built in."""
    for kind in kinds:
        found = getattr(builtins, str(kind), None)
        if isinstance(found, type) and issubclass(found, Exception):
            with contextlib.suppress(TypeError):  # some take other arguments
                return found(str(message))
    return Exception(str(message))


def _change(argument: Any, changed: Any) -> None:
    """Changes an argument as the function did."""
    if type(argument) is not type(changed):
        return
    if isinstance(argument, list):
        argument[:] = changed
    elif isinstance(argument, (dict, set)):
        argument.clear()
        argument.update(changed)


class Foreign:
    """Stands for a value that is not plain; it equals nothing else."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


_COLLECTIONS: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def plain(value: Any) -> Any:
    """Returns a value as JSON has it, whatever built-in type it is a subtype of. TypeError: it is of none."""
    match value:
        case None | bool():
            return value
        case str():
            return "".join(value)
        case int():
            return ["int", hex(value)]
        case float():
            return ["float", value.hex()]
        case complex():
            return ["complex", value.real.hex(), value.imag.hex()]
        case bytes():
            return ["bytes", value.hex()]
        case dict():
            return ["dict", [[plain(key), plain(each)] for key, each in dict.items(value)]]
    for name, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return [name, [plain(each) for each in value]]
    raise TypeError(f"{type(value).__name__} is not plain")


def built(said: Any) -> Any:
    """Returns the value that `plain` wrote; ValueError, TypeError: it did not write this."""
    match said:
        case None | bool() | str():
            return said
        case ["int", written]:
            return int(written, 16)
        case ["float", written]:
            return float.fromhex(written)
        case ["complex", real, imaginary]:
            return complex(float.fromhex(real), float.fromhex(imaginary))
        case ["bytes", written]:
            return bytes.fromhex(written)
        case ["dict", pairs]:
            return {built(key): built(value) for key, value in pairs}
        case ["foreign", kind]:
            return Foreign(kind)
        case [name, items]:
            return _COLLECTIONS[name](built(item) for item in items)
    raise ValueError(said)
