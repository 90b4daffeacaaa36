"""What makes the commands one family: how typer reads them and prints their help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fsd_common.errors import UsageError

_MAY_BE_EMPTY = {"system", "prompt", "prompts"}  # options and arguments whose empty value means something


class Family(typer.Typer):
    """An app of typer's, with the settings that all commands share."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, rich_markup_mode="markdown", pretty_exceptions_enable=False, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """As typer's."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, parameters = self.make_parser(ctx).parse_args(list(args))
        for each in parameters:
            if each.opts and each.name not in _MAY_BE_EMPTY:
                shown = each.opts[0] if each.param_type_name == "option" else str(each.metavar)
                _refuse_empty(shown, given.get(each.name))
        return super().parse_args(ctx, args)


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


def _refuse_empty(name: str, value: Any) -> None:
    """Raises UsageError where a value is empty, which as a path would be the current folder."""
    if "" in (value if isinstance(value, list | tuple) else [value]):
        raise UsageError(f"{name} is empty, perhaps from a variable that is not set; give it a value, or leave it out")


def _flags_without_type(parameters: list[Any]) -> list[Any]:
    """Leaves out the `<bool>` that typer prints behind flags, which reads as if they took a value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters
