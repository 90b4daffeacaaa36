"""Groups of options: a command takes a group as one argument, and typer sees the options in it.

A group is a frozen dataclass whose fields are annotated as typer's options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


class OptionGroup:
    """The base of groups."""

    def given(self, names: Collection[str]) -> dict[str, Any]:
        """Returns the values of those fields whose options are among `names` (see `options_given`)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}  # type: ignore[arg-type]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of its groups, in place of the parameters that are annotated with a group."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    groups = {one.name: one.annotation for one in own if _is_group(one.annotation)}

    @wraps(command)
    def with_groups(**given: Any) -> None:
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**given, **made)

    parameters: list[inspect.Parameter] = []
    for one in own:
        options = _options(one.annotation) if one.name in groups else [one]
        parameters += [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_groups


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup) and is_dataclass(annotation)


def _options(group: type[Any]) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, annotation=kinds[f.name],
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
        )
        for f in fields(group)
    ]  # fmt: skip
