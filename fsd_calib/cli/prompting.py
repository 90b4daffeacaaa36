"""Prompts of `fsd-generate` and `fsd-inspect`: where they are read, and what is made of them.

They are arguments, standard input, or a file. They are made as a profile's calibration did, as a task does, or not at
all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fsd_calib.tasks.asking import MOST_NEW_TOKENS, Asking
from fsd_calib.tasks.base import Kind
from fsd_common.errors import UsageError
from fsd_common.files import read_regular
from fsd_common.strict_json import parse
from fsd_decoding.profile.prompt_form import QUESTION, PromptForm

if TYPE_CHECKING:
    from fsd_decoding.profile.rendering import PromptRenderer
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

STDIN = "-"
_JSON_LINES = ".jsonl"
_LARGEST = 1 << 28  # bytes of a file
_KEYS = ("prompt", "question")
_Made = TypeVar("_Made")


def prompts_of_profile(profile: ThresholdProfile, tokenizer: Any, raw: bool) -> PromptRenderer:
    """Returns what makes prompts as a profile's calibration did, or passes them as given; decoders say what differs.

    Raises:
        UsageError: prompts cannot be made as they were.
    """
    return prompts_as_given() if raw else _asked(lambda: profile.prompts(tokenizer))


def prompts_of_task(kind: Kind, tokenizer: Any) -> PromptRenderer:
    """Returns what makes prompts as a task does. UsageError: it makes them of whole documents."""
    asking = Asking(tokenizer)
    return _asked(lambda: asking.renderer(kind.prompts(asking), f"the prompts of task {kind.name}"))


def prompts_as_given() -> PromptRenderer:
    """Returns what passes prompts as they are given."""
    asking = Asking()
    return asking.renderer(asking.info(PromptForm(text=QUESTION), (), MOST_NEW_TOKENS), "prompts")


def prompt_of(renderer: PromptRenderer, text: str) -> str:
    """Returns the prompt as the models read it. UsageError: it needs more than a question."""
    return _asked(lambda: renderer.prompt(text))


def _asked(make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{error}; --raw passes prompts as given") from error


class GivenPrompt(NamedTuple):
    """A prompt as it was given, and the row of a file that holds it."""

    text: str
    row: dict[str, Any] | None = None


def gathered(arguments: Sequence[str], file: Path | None) -> list[GivenPrompt]:
    """Returns all prompts: the arguments in their order, with those of standard input in place of `-`, then the file's.

    Raises:
        UsageError: there is none, or a file is malformed.
    """
    if arguments.count(STDIN) > 1:
        raise UsageError("'-' is given twice, and standard input can be read once; give it once")
    prompts: list[GivenPrompt] = []
    for argument in arguments:
        prompts += _lines(_read_stdin()) if argument == STDIN else [GivenPrompt(argument)]
    if file is not None:
        prompts += _of_file(file)
    if not prompts:
        raise UsageError("there is no prompt; give one or more in quotes, - for standard input, or --file")
    return prompts


def _read_stdin() -> str:
    try:
        # Unlike that of files, its text keeps the line ends of Windows, which would be part of the prompts.
        return "" if sys.stdin is None else sys.stdin.read().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not text ({error}); give prompts as UTF-8, one a line") from error


def _of_file(path: Path) -> list[GivenPrompt]:
    try:
        text = read_regular(path, _LARGEST).decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--file {str(path)!r} cannot be read ({reason}); give a text file as UTF-8, with a prompt a line, or a "
            f"{_JSON_LINES} file"
        ) from error
    if path.suffix != _JSON_LINES:
        return _lines(text)
    return [_prompt_of(line, f"--file {str(path)!r}, line {number}") for number, line in _numbered(text)]


def _lines(text: str) -> list[GivenPrompt]:
    """One prompt a line; empty lines are none."""
    return [GivenPrompt(line) for _, line in _numbered(text)]


def _numbered(text: str) -> Iterable[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _prompt_of(line: str, where: str) -> GivenPrompt:
    """The prompt in a line of JSON: a string, or an object that holds one."""
    rule = f'it must hold a string, or an object such as {{"{_KEYS[0]}": "…"}}'
    try:
        content: Any = parse(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON ({error}); {rule}") from error
    row = content if isinstance(content, dict) else None
    text = content if row is None else next((row[key] for key in _KEYS if key in row), None)
    if not isinstance(text, str):
        raise UsageError(f"{where} is {line.strip()!r:.60}; {rule}")
    return GivenPrompt(text, row)
