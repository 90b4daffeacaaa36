"""What makes the commands one family: how typer reads them, prints their help and completes their words.

A command takes groups of options as one argument each. Options are those of a model's fields (`Options`), or of the
fields of a dataclass (`OptionGroup`); what `fsd_common.settings.Option` says of a field is turned into typer's here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from fsd_calib.cli.console import called_as
from fsd_calib.cli.help import help_text
from fsd_common.addons import looking_in
from fsd_common.argument_checks import as_options
from fsd_common.errors import UsageError
from fsd_common.option import Option, numbers, of_annotation, options_in, several, several_each, whole_numbers

_MAY_BE_EMPTY = {"system", "answer_after", "prompt", "prompts"}  # their empty value means something
_CONTEXT = "context_of_family"
_HELP, _ALL_OF_HELP = ({"help_option_names": ["-h", "--help", *more]} for more in ((), ("--help-all",)))
_ALL = "help_all"
_COMPLETION = {"install_completion", "show_completion"}
_WHOLE = "fsd_calib.whole_help"  # in a context: all of the help is asked for
_WIDEST = 60  # characters of the words that an option takes, beside its name
_TYPES = {"<str>": "TEXT", "<int>": "N", "<float>": "X", "<path>": "PATH", "<list[int]>": "N", "<list[float]>": "X",
          "<list[str]>": "TEXT", "<list[Path]>": "PATH", "<int range>": "N"}  # fmt: skip
_LISTS = {several: "NAME,…", several_each: "NAME,…", whole_numbers: "N,…", numbers: "X,…"}

Given = dict[str, Any]
"""The options that are on the command line, by the names of their fields."""


def _print_version(asked: bool) -> None:
    if asked:
        from fsd_calib import __version__

        print(f"fsd-calib {__version__}")
        raise typer.Exit


def _print_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[_WHOLE] = True
        typer.echo(context.get_help())
        raise typer.Exit


_HelpAllOption = Annotated[
    bool, typer.Option("--help-all", callback=_print_all, is_eager=True, help="Show all options and exit.")
]
VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]
AllowEditedOption = Annotated[
    bool,
    typer.Option(
        "--allow-edited", help="Follow a profile that was changed after its calibration, without a certificate."
    ),
]


class Family(typer.Typer):
    """An app of typer's, with the settings that all commands share."""

    def __init__(self, **settings: Any) -> None:
        usual: dict[str, Any] = {"cls": Group, "context_settings": _ALL_OF_HELP}
        super().__init__(rich_markup_mode=None, pretty_exceptions_enable=False, **usual | settings)

    def command(self, name: str | None = None, everyday: str = "", **settings: Any) -> Callable[[Any], Any]:
        """Registers a command, as typer does; its function may take groups of options.

        Args:
            everyday: the parameters that `--help` shows, where `--help-all` shows the rest; by default all.
        """
        kind = type("_Command", (_Command,), {"everyday": tuple(everyday.split())})
        register = super().command(name, cls=kind, context_settings=_HELP if everyday else _ALL_OF_HELP, **settings)
        return lambda command: register(_with_options(command, has_more=bool(everyday)))


def ending(last: str, *examples: str) -> str:
    """Returns the end of a help text: commands to be copied, and what is said last, such as exit codes."""
    return "\n".join(["Examples:", "", *(f"    {command}" for command in examples), "", last])


class OptionGroup:
    """The base of groups: frozen dataclasses with fields that are annotated as options."""

    @classmethod
    def parameters(cls) -> Iterator[inspect.Parameter]:
        """Yields what typer makes options of."""
        kinds = get_type_hints(cls, include_extras=True)
        return (_parameter(each.name, kinds[each.name], each.default) for each in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def made(cls, values: dict[str, Any], given: set[str]) -> Any:
        """Returns what the command is given."""
        return cls(**values)


class Options:
    """The options of models: the command is given those that are on the command line, by the names of fields.

    Args:
        only: the fields that the command has options for; by default all.
    """

    def __init__(self, *models: Any, only: Collection[str] | None = None) -> None:
        self._fields = {
            name: (option, model.model_fields[name])
            for model in models for name, option in options_in(model).items()
            if option.command and (only is None or name in only)
        }  # fmt: skip

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yields what typer makes options of."""
        for name, (option, field) in self._fields.items():
            yield _parameter(name, Annotated[field.annotation, option], field.default)

    def made(self, values: dict[str, Any], given: set[str]) -> Given:
        """Returns what the command is given. UsageError: an option cannot be read."""
        return {name: _read(name, option, values[name]) for name, (option, _) in self._fields.items() if name in given}


def _with_options(command: Callable[..., None], has_more: bool) -> Callable[..., None]:
    """A function with all options as parameters, which typer can read.

    Args:
        has_more: whether `--help` leaves some of them to `--help-all`.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    groups = {one.name: group for one in own if (group := _group(one.annotation)) is not None}
    taken = {name: list(group.parameters()) for name, group in groups.items()}

    @wraps(command)
    def with_groups(**values: Any) -> None:
        context = values.pop(_CONTEXT)
        values.pop(_ALL, None)
        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        with as_options(), looking_in(Path.cwd()):
            for name, group in groups.items():
                values[name] = group.made({one.name: values.pop(one.name) for one in taken[name]}, given)
            for one in own:
                option = of_annotation(Option, one.annotation) if one.name not in groups else None
                if option is not None and values[one.name] is not None:
                    values[one.name] = _read(one.name, option, values[one.name])
            command(**values)

    parameters = [inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for one in own:
        parameters += taken.get(one.name) or [_parameter(one.name, one.annotation, one.default)]
    if has_more:
        parameters.append(_parameter(_ALL, _HelpAllOption, False))
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_groups


def _group(annotation: Any) -> Any:
    """What makes an argument of several options, where an annotation says so."""
    return next(
        (each for each in (annotation, *getattr(annotation, "__metadata__", ())) if hasattr(each, "made")), None
    )


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter, of whose `Option` typer's is made."""
    option = of_annotation(Option, annotation)
    if option is not None:
        annotation, default = _of_typer(name, option, annotation, default)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _of_typer(name: str, option: Option, annotation: Any, default: Any) -> tuple[Any, Any]:
    """The type that typer reads, with typer's option, and the default that help shows."""
    leaves = set(_leaves(annotation))
    kind: Any = next((each for each in (bool, float, int) if each in leaves), str)
    if {os.PathLike, Path} & leaves:
        kind = Path
    words: Any = option.words
    metavar = _LISTS.get(option.read, "NAME" if callable(words) else None)  # type: ignore[arg-type]
    if not callable(words):
        literal = sorted((each for each in leaves if isinstance(each, str)), key=str(annotation).index)
        known = tuple(words) or tuple(literal)
        words = None if not known else one_of(known) if option.read is None else several_of(one_of(known))
        if known and option.read is None:
            metavar = "|".join(known) if len("|".join(known)) <= _WIDEST else "NAME"
    elif option.read in _LISTS:
        words = several_of(words)
    settings: dict[str, Any] = {
        "help": option.help, "rich_help_panel": option.panel, "autocompletion": words, "metavar": metavar,
    }  # fmt: skip
    flags = [f"--{each.replace('_', '-')}" for each in (name, option.also) if each is not None]
    if option.read is not None:
        kind = str
    if kind is bool and default is None:  # what is right follows from more, unless it is said
        flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
    if option.repeated:
        return Annotated[list[kind] | None, typer.Option(*flags, **settings)], None
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    if default is None:
        kind = kind | None
    return Annotated[kind, typer.Option(*flags, **settings)], default


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types and words that an annotation is made of."""
    if get_origin(annotation) is Annotated:
        yield from _leaves(get_args(annotation)[0])
    elif get_origin(annotation) is None:
        yield annotation
    else:
        yield get_origin(annotation)
        for inner in get_args(annotation):
            yield from _leaves(inner)


def _read(name: str, option: Option, value: Any) -> Any:
    return value if option.read is None else option.read(f"--{name.replace('_', '-')}", value)


def one_of(values: tuple[str, ...] | list[str]) -> Callable[[str], list[str]]:
    """Returns a completion of one of the values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def several_of(complete_one: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Returns a completion of several values, with commas between them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in complete_one(last)]

    return complete


class _Command(TyperCommand):
    everyday: tuple[str, ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_types(super().get_params(ctx), ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx, () if _WHOLE in ctx.meta else self.everyday))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, parameters = self.make_parser(ctx).parse_args(list(args))
        for each in parameters:
            if each.opts and each.name not in _MAY_BE_EMPTY:
                value = given.get(each.name)
                if "" in (value if isinstance(value, list | tuple) else [value]):  # as a path the current folder
                    shown = each.opts[0] if each.param_type_name == "option" else str(each.metavar)
                    raise UsageError(
                        f"{shown} is empty, perhaps from a variable that is not set; give it a value, or leave it out"
                    )
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns what it takes itself."""
        return _with_types(super().get_params(ctx), ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes what `--help` prints."""
        formatter.write(help_text(self, ctx))


def group_of(modules: Mapping[str, str]) -> type[Group]:
    """Returns a group whose commands are those of this package's modules, each imported when it is asked for.

    Args:
        modules: by the commands' names.
    """

    class _OfModules(Group):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = dict.fromkeys(modules)  # type: ignore[assignment]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in modules:
                return None
            command = typer.main.get_command(import_module(f"fsd_calib.cli.{modules[cmd_name]}").app)
            command.params = [each for each in command.params if each.name not in _COMPLETION]
            return command

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            found = super().resolve_command(ctx, args)
            called_as(f"{ctx.command_path} {found[0]}")
            return found

    return _OfModules


def _with_types(parameters: list[Any], context: Any) -> list[Any]:
    """Writes what options take as other programs do; behind flags typer prints a type as if they took a value."""
    for parameter in parameters:
        if parameter.metavar is None and parameter.param_type_name == "option":
            kind = parameter.display_type(context)
            parameter.metavar = "" if parameter.is_flag else _TYPES.get(kind, kind)
    return parameters
