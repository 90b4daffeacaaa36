"""What the command line has for a value that is no plain text or number: lists of names, choices of numbers, JSON."""

from __future__ import annotations

from typing import Any

from fsd_common.errors import UsageError
from fsd_common.strict_json import parse

_LONGEST = 1000  # more is a typing error


def several(option: str, text: str) -> tuple[str, ...]:
    """Returns the names in a list with commas between them, without repeats."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise UsageError(f"{option} is {text!r}; it must be a name, or several with commas between them")
    return names


def several_each(option: str, texts: list[str]) -> tuple[str, ...]:
    """Returns the names in all texts of an option that may be repeated."""
    return several(option, ",".join(texts))


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Returns the numbers in "5", "2-8", "4,6,8" or a mixture, sorted; all at least 1."""
    found: set[int] = set()
    for piece in text.split(","):
        low, dash, high = (end.strip() for end in piece.partition("-"))
        ends = (low, high if dash else low)
        if not all(end.isdecimal() and 1 <= int(end) <= _LONGEST for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(
                f"{option} is {text!r}; it must be a number from 1 to {_LONGEST}, or a choice such as 2-8 or 4,6,8"
            )
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def json_object(option: str, text: str, example: str = '{"trust_remote_code": true}') -> dict[str, Any]:
    """Returns the object that an option holds as JSON. UsageError: it holds none."""
    try:
        content = parse(text)
    except ValueError as error:
        raise UsageError(
            f"{option} is {text!r:.80}, which is not JSON: {error}; give an object such as '{example}'"
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"{option} is {text!r:.80}; it must be a JSON object, such as '{example}'")
    return content
