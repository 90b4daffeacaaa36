"""What `--help` prints: how a command is called, what it does, its options with choices and defaults, and examples."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import typer

_ARGUMENTS, _OPTIONS, _HELP = "Arguments", "Options", "Help"
EVERYWHERE = ("version", "install_completion", "show_completion", "help_all", "help")
"""What all commands have in common."""
_WIDEST = 100  # columns of text that is still easy to read
_INDENT = "      "
_SENTENCE = re.compile(r"(?<=\.) ")


def help_text(command: Any, context: Any, everyday: Sequence[str] = ()) -> str:
    """Returns the help of a command or a group.

    Args:
        everyday: the options that it shows, in their first sentence; empty: all of them, with all that is said.
    """
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    blocks = [f"{_bold('Usage:')} {context.command_path} {usage(command)}"]
    blocks += map(_wrapped(width, "  "), paragraphs(command.help))
    found = command.get_params(context)
    for panel, parameters in panels(_everyday(found, everyday) if everyday else found).items():
        blocks.append("\n".join([_bold(f"{panel}:"), *(_entry(each, width) for each in parameters)]))
    if everyday:
        more = [
            next(name for name in option_names(each) if name.startswith("--"))
            for each in found
            if each.param_type_name == "option" and each.name not in (*everyday, *EVERYWHERE) and not each.hidden
        ]
        blocks.append("\n".join([_bold("More, which --help-all explains:"), _wrapped(width, "  ")(", ".join(more))]))
    if names := list_commands(command, context):
        lines = (_command(name, command.get_command(context, name), max(map(len, names)), width) for name in names)
        blocks.append("\n".join([_bold("Commands:"), *lines]))
    blocks += map(_wrapped(width), paragraphs(command.epilog or _of_group(context)))
    return "\n\n".join(blocks)


def _of_group(context: Any) -> str:
    """The end of a group's help for one of its commands: its own examples, and the exit codes of all."""
    if context.parent is None:
        return ""
    others = {*list_commands(context.parent.command, context.parent)} - {context.info_name}
    lines = (context.parent.command.epilog or "").splitlines()
    return "\n".join(line for line in lines if not (line.startswith("    ") and others & {*line.split()}))


def list_commands(command: Any, context: Any) -> list[str]:
    """Returns the names of a group's commands; of a command none."""
    return list(command.list_commands(context)) if hasattr(command, "list_commands") else []


def usage(command: Any) -> str:
    """Returns what comes behind a command's name."""
    arguments = [argument_name(each) for each in command.params if each.param_type_name == "argument"]
    rest = ["COMMAND …"] if hasattr(command, "list_commands") else []
    return " ".join(["[OPTIONS]", *arguments, *rest])


def argument_name(parameter: Any) -> str:
    """Returns an argument as usage shows it: in brackets where it may be left out."""
    name = str(parameter.metavar or parameter.name.upper())
    shown = name if parameter.nargs == 1 else f"{name}…"
    return shown if parameter.required else f"[{shown}]"


def option_names(parameter: Any) -> list[str]:
    """Returns an option's names, short ones first."""
    return sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name.startswith("--"))


def panels(parameters: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns parameters by panel: arguments first, and last what all commands have in common."""
    found: dict[str, list[Any]] = {_ARGUMENTS: [], _OPTIONS: []}
    common = [each for each in parameters if each.name in EVERYWHERE]
    for each in parameters:
        if each not in common and not getattr(each, "hidden", False):
            usual = _ARGUMENTS if each.param_type_name == "argument" else _OPTIONS
            found.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(each)
    return {panel: of for panel, of in (found | {_HELP: common}).items() if of}


def default_of(parameter: Any) -> str | None:
    """Returns a parameter's default where it is a plain value; else its help says what holds."""
    default = parameter.default
    if parameter.required or default is None or default is False or default == () or callable(default):
        return None
    return str(default) if isinstance(default, str | int | float | tuple) else None


def paragraphs(text: str | None) -> list[str]:
    """Returns the paragraphs of a text."""
    return [each for each in inspect.cleandoc(text or "").split("\n\n") if each]


def _everyday(parameters: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Returns copies of arguments and of these options, as the short help has them: in one panel, in a sentence."""
    found = {each.name: copy(each) for each in parameters}
    arguments = [each for each in found.values() if each.param_type_name == "argument"]
    options = [found[name] for name in (*names, "help_all", "help")]
    for each in options:
        each.rich_help_panel = None
        first, *others = _SENTENCE.split(each.help)
        each.help = " ".join([first, *(sentence for sentence in others if sentence.startswith("By default"))])
    return [*arguments, *options]


def _entry(parameter: Any, width: int) -> str:
    """A parameter's names, what it takes and its default, and below what it means."""
    is_argument = parameter.param_type_name == "argument"
    names = [argument_name(parameter)] if is_argument else option_names(parameter)
    takes = "" if is_argument or not parameter.metavar else f" {parameter.metavar}"
    default = default_of(parameter)
    more = "" if default is None else f" [default: {default}]"
    if parameter.required and not is_argument:
        more = " (required)"
    return "\n".join([f"  {_bold(', '.join(names))}{takes}{more}", _wrapped(width, _INDENT)(parameter.help or "")])


def _command(name: str, command: Any, wide: int, width: int) -> str:
    """A command's name, and beside it the first sentence of what it does."""
    said = _SENTENCE.split(" ".join(paragraphs(command.help)[0].split()))[0]
    indent = " " * (wide + 4)
    return _bold(f"  {name}") + _wrapped(width, indent)(said)[len(name) + 2 :]


def _wrapped(width: int, indent: str = "") -> Callable[[str], str]:
    """Returns what breaks a paragraph into lines; one that is indented stays as it is."""

    def wrap(text: str) -> str:
        if text.startswith(" "):
            return text
        words = " ".join(text.split())
        return textwrap.fill(
            words, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip

    return wrap


def _bold(text: str) -> str:
    return typer.style(text, bold=True)
