"""What a field is to users, beside its name, type and default. Importing this imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar, get_args

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


def options_in(model: Any) -> dict[str, Option]:
    """Returns the fields of a model that users know, by name."""
    found = {name: of_annotation(Option, field.metadata) for name, field in model.model_fields.items()}
    return {name: option for name, option in found.items() if option is not None}


def of_annotation(kind: type[_Found], annotation: Any) -> _Found | None:
    """Returns the first object of a kind among the metadata of an annotation, or of the types within it."""
    if isinstance(annotation, kind):
        return annotation
    within = annotation if isinstance(annotation, list) else get_args(annotation)
    more = getattr(annotation, "__metadata__", ())
    return next((found for each in (*more, *within) if (found := of_annotation(kind, each)) is not None), None)
