"""What a field is to users, beside its name, type and default, and how the command line reads a value that is no plain
text or number: lists of names, choices of numbers, JSON. Importing this imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar, get_args

from fsd_common.errors import UsageError
from fsd_common.strict_json import parse

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Option:
    """What a field is to users, beside its name, type and default.

    Args:
        help: its meaning.
        panel: the part of `--help` that it stands in.
        command, file: whether it is an option of commands, and a key of files.
        words: the words that it takes, or a function that completes what was typed; for completion in shells.
        read: makes a value of what the command line has; it is given the option, too.
        repeated: whether the option may be given several times.
        written: its type in files, where that is not the field's own.
        saved: makes of a value what a file has.
        within: the key of files that it stands under, beside others.
        also: another name of it, everywhere.
    """

    help: str
    panel: str | None = None
    _: KW_ONLY
    command: bool = True
    file: bool = True
    words: Iterable[str] | Callable[[str], list[str]] = ()
    read: Callable[[str, Any], Any] | None = None
    repeated: bool = False
    written: Any = None
    saved: Callable[[Any], Any] | None = None
    within: str = ""
    also: str | None = None


def options_in(model: Any) -> dict[str, Option]:
    """Returns the fields of a model that users know, by name."""
    found = {name: of_annotation(Option, field.metadata) for name, field in model.model_fields.items()}
    return {name: option for name, option in found.items() if option is not None}


def other_names(model: Any) -> dict[str, str]:
    """Returns the fields of a model that have another name, by that name."""
    return {option.also: name for name, option in options_in(model).items() if option.also is not None}


def of_annotation(kind: type[_Found], annotation: Any) -> _Found | None:
    """Returns the first object of a kind among the metadata of an annotation, or of the types within it."""
    if isinstance(annotation, kind):
        return annotation
    within = annotation if isinstance(annotation, list) else get_args(annotation)
    more = getattr(annotation, "__metadata__", ())
    return next((found for each in (*more, *within) if (found := of_annotation(kind, each)) is not None), None)


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


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Returns the numbers in a list with commas between them, without repeats; all at least 0."""
    try:
        found = tuple(dict.fromkeys(float(each) for each in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(each >= 0 for each in found):
        raise UsageError(f"{option} is {text!r}; it must be numbers of at least 0, such as 0.1,0.3,inf")
    return found


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
