"""Writes one page for every command, from what its `--help` is made of: python docs/tools/command_pages.py

Pages are in `docs/commands`. A test compares them with the commands, so run this after changing an option. Like
`--help`, it imports nothing heavy.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "commands"
_OTHERS = "Options"  # the panel of options that name none
_EVERYWHERE = {"--help", "--install-completion", "--show-completion"}
_COMMON = "What all commands have in common is [on a page of its own](../commands.md)."


def pages() -> dict[str, str]:
    """Returns the text of every page by its file's name."""
    return {f"{name}.md": _page(name, _app(entry)) for name, entry in _scripts().items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for stale in set(FOLDER.glob("*.md")) - {FOLDER / name for name in texts}:
        stale.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _scripts() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(sorted(project["scripts"].items()))


def _app(entry: str) -> Any:
    """The command, or group of commands, of an entry point; see `fsd_calib.cli.entry`."""
    place, _, name = entry.partition(":")
    module = getattr(import_module(place), name).args[0]
    return typer.main.get_command(import_module(f"fsd_calib.cli.{module}").app)


def _page(name: str, app: Any) -> str:
    parts = [f"# {name}", *_body(name, app, 2), _COMMON]
    return "\n\n".join(parts) + "\n"


def _body(name: str, command: Any, level: int) -> Iterator[str]:
    """Description, usage, arguments, options, commands, and the epilog, in this order."""
    yield _text(command.help)
    commands = getattr(command, "commands", {})
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"```text\n{name} {_usage(command)}\n```"
    for panel, rows in _panels(command, context).items():
        yield f"{'#' * level} {panel}"
        yield "\n".join(["| name | meaning |", "| --- | --- |", *rows])
    for inner_name, inner in commands.items():
        yield f"{'#' * level} {name} {inner_name}"
        yield from _body(f"{name} {inner_name}", inner, level + 1)
    if command.epilog:
        yield from _text(command.epilog).split("\n\n")


def _usage(command: Any) -> str:
    arguments = [_argument(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    rest = ["COMMAND …"] if getattr(command, "commands", {}) else []
    return " ".join(["[OPTIONS]", *arguments, *rest])


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    shown = name if parameter.nargs == 1 else f"{name}…"
    return shown if parameter.required else f"[{shown}]"


def _panels(command: Any, context: Any) -> dict[str, list[str]]:
    """Rows of the tables, by panel, in the order in which `--help` has them."""
    panels: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False) or not _EVERYWHERE.isdisjoint(parameter.opts):
            continue
        is_argument = parameter.param_type_name == "argument"
        panel = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else _OTHERS)
        panels.setdefault(panel, []).append(_row(parameter, is_argument))
    return panels


def _row(parameter: Any, is_argument: bool) -> str:
    names = [_argument(parameter)] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    value = "" if is_argument or parameter.is_flag else " …"
    shown = ", ".join(f"`{name}{value}`" for name in names)
    return f"| {shown} | {_cell(_text(parameter.help))}{_default(parameter)} |"


def _default(parameter: Any) -> str:
    """What goes behind a parameter's help; nothing where that says it."""
    if parameter.required:
        return " Required."
    default = parameter.default
    if default is None or default is False or callable(default) or default == () or not _is_plain(default):
        return ""
    return f" Default: `{default}`."


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, tuple))


def _cell(text: str) -> str:
    """For a row of a table: one line, in which `|` separates nothing and `<name>` is no tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _text(text: str | None) -> str:
    return inspect.cleandoc(text or "")


if __name__ == "__main__":
    main()
