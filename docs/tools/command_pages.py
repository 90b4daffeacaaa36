"""Writes one page for every command, from what its `--help` is made of: python docs/tools/command_pages.py

Pages are in `docs/commands`. A test compares them with the commands, so run this after changing an option. Like
`--help`, it imports nothing heavy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from fsd_calib.cli.fsd import COMMANDS
from fsd_calib.cli.help import EVERYWHERE, argument_name, default_of, option_names, panels, paragraphs, usage

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "commands"
_EVERYWHERE = {*EVERYWHERE, "quiet", "as_json", "log_level"}
_ALL_OF_THEM = "fsd"  # whose commands have pages of their own
_COMMON = "What all commands have in common is [on a page of its own](../commands.md)."


def pages() -> dict[str, str]:
    """Returns the text of every page by its file's name."""
    return {f"{name.replace(' ', '-')}.md": _page(name, _app(module)) for name, module in _modules().items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for stale in set(FOLDER.glob("*.md")) - {FOLDER / name for name in texts}:
        stale.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _modules() -> dict[str, str]:
    """The modules of all commands: of scripts (see `fsd_calib.cli.entry`), and of those that only `fsd` has."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    entries = {name: entry.split(":") for name, entry in sorted(scripts.items()) if name != _ALL_OF_THEM}
    found = {name: getattr(import_module(place), function).args[0] for name, (place, function) in entries.items()}
    more = {f"fsd {name}": module for name, module in COMMANDS.items() if module not in found.values()}
    return found | {name: module for name, module in more.items() if name != "fsd train"}  # which has no options


def _app(module: str) -> Any:
    """The command, or group of commands, of a module."""
    return typer.main.get_command(import_module(f"fsd_calib.cli.{module}").app)


def _page(name: str, app: Any) -> str:
    parts = [f"# {name}", *_body(name, app, 2), _COMMON]
    return "\n\n".join(parts) + "\n"


def _body(name: str, command: Any, level: int) -> Iterator[str]:
    """Description, usage, arguments, options, commands, and the epilog, in this order."""
    yield from paragraphs(command.help)
    commands = getattr(command, "commands", {})
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"```text\n{name} {usage(command)}\n```"
    own = [each for each in command.get_params(context) if each.name not in _EVERYWHERE]
    for panel, parameters in panels(own).items():
        yield f"{'#' * level} {panel}"
        yield "\n".join(["| name | meaning |", "| --- | --- |", *map(_row, parameters)])
    for inner_name, inner in commands.items():
        yield f"{'#' * level} {name} {inner_name}"
        yield from _body(f"{name} {inner_name}", inner, level + 1)
    yield from paragraphs(command.epilog)


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = [argument_name(parameter)] if is_argument else option_names(parameter)
    value = "" if is_argument or not parameter.metavar else f" {parameter.metavar}"
    shown = ", ".join(f"`{name}{value}`".replace("|", "\\|") for name in names)
    return f"| {shown} | {_cell(parameter.help or '')}{_default(parameter)} |"


def _default(parameter: Any) -> str:
    """What goes behind a parameter's help; nothing where that says it."""
    default = default_of(parameter)
    return " Required." if parameter.required else "" if default is None else f" Default: `{default}`."


def _cell(text: str) -> str:
    """For a row of a table: one line, in which `|` separates nothing and `<name>` is no tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
