"""Code blocks of the documentation, and how a test runs them.

Python blocks of a page run one after the other, with one set of names. Commands run in this process, made small: a
calibration takes few problems, so what it finds means nothing. A block whose first line is `# needs …` is not run,
since what it needs is not there; its Python must compile, its commands must take their options, and its JSON be valid.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
import yaml

from fsd_calib.cli.console import run
from support.paths import ROOT

NEEDS = ("a cluster", "a GPU", "a hub", "a server", "minutes", "vLLM")
SHOWN = ("text", "mermaid")  # results and pictures: nothing to run
DATA = ("json", "yaml")  # with a title, a file that is written; without, an excerpt that is read

# What makes commands quick; a later option goes before an earlier one.
_SMALL = {
    "fsd-calibrate": ["--limit", "100", "--min-acc", "0.8", "--score", "doubt", "--draft-length", "12",
                      "--workers", "1", "--timing", "none"],
    "fsd-train-eagle": ["--limit", "60", "--epochs", "1"],
    "fsd-train-predictor": ["--trials", "2"],
}  # fmt: skip
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page. `title`, shown on the site, is the name of the file that it is."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs(self) -> str | None:
        found = re.match(r"# needs (.+)\n", self.text)
        return found[1] if found else None


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    blocks = re.finditer(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', text, flags=re.DOTALL | re.MULTILINE)
    return [Snippet(page, text.count("\n", 0, b.start()) + 1, b[1], b[2], b[3]) for b in blocks]


def run_page(page: Path) -> None:
    """Runs a page's blocks in the current folder."""
    names: dict[str, object] = {}
    for snippet in snippets(page):
        if snippet.title is not None:
            Path(snippet.title).write_text(snippet.text, encoding="utf-8")
        elif snippet.language in DATA:
            yaml.safe_load(snippet.text)  # JSON is YAML, too
        elif snippet.language == "python":
            code = compile(snippet.text, str(snippet), "exec")
            if snippet.needs is None:
                exec(code, names)
        elif snippet.language == "sh":
            for words in commands(snippet.text):
                (_run if snippet.needs is None and "|" not in words else check)(words, snippet)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, without comments and without the variables set for it."""
    for words in _lines(text.replace("\\\n", " ")):
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            yield [word for word in words[:end] if not re.match(r"[A-Z_0-9]+=", word)]
            words = words[end + 1 :]


def _lines(text: str) -> Iterator[list[str]]:
    """The words of each line; a quoted word may go over several."""
    begun = ""
    for line in text.splitlines(keepends=True):
        begun += line
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # no closing quotation yet
            continue
        yield words
        begun = ""
    assert not begun, f"no closing quotation: {begun}"


def _run(words: list[str], snippet: Snippet) -> None:
    if ">" in words:
        words = words[: words.index(">")]
    name, words = _by_alias(words)
    if name in _PROJECT["scripts"]:
        code = run(_module(name).app, name, [*words[1:], *_SMALL.get(name, []), *_few_trials(words)])
        assert code == 0, f"{snippet}: {shlex.join(words)} ended with {code}"
    else:
        check(words, snippet)


def _by_alias(words: list[str]) -> tuple[str, list[str]]:
    """The name of a command, and its words: `fsd train eagle …` as `fsd-train-eagle …`, where that is a script."""
    if Path(words[0]).name == "fsd":
        for count in (3, 2):
            if (script := "-".join(["fsd", *words[1:count]])) in _PROJECT["scripts"]:
                return script, [script, *words[count:]]
    return Path(words[0]).name, words


def _few_trials(words: list[str]) -> list[str]:
    """For a calibration without a file of its own."""
    if Path(words[0]).name != "fsd-calibrate" or "--config" in words:
        return []
    Path("few-trials.yaml").write_text("run: {trials: 3}\n", encoding="utf-8")
    return ["--config", "few-trials.yaml"]


def check(words: list[str], snippet: Snippet) -> None:
    """Fails where a command could not be meant so, whatever it needs."""
    if "|" in words:  # the command that reads what the others say
        words = words[len(words) - words[::-1].index("|") :]
    name, (_, *rest) = _by_alias(words)
    if name in _PROJECT["scripts"]:
        _check_options(name, rest)
    elif name == "sh":
        assert rest[0] == "install.sh"
        assert rest[1:] in ([], ["test"], ["dev"], ["vllm"]), snippet
    elif words[0] == ".":
        assert rest == [".venv/bin/activate"], snippet
    elif name == "pip":
        extras = [extra for word in rest for extra in re.findall(r"fsd-calib\[([\w-]+)\]", word)]
        assert set(extras) <= set(_PROJECT["optional-dependencies"]), snippet
    elif name == "python":
        if rest[0] != "-m":
            known = (ROOT / rest[0]).exists()
        else:
            needed = (snippet.needs or "").lower()
            known = rest[1].partition(".")[0] == needed or find_spec(rest[1]) is not None
        assert known, f"{snippet}: {shlex.join(words)}"
    else:
        assert snippet.needs is not None, f"{snippet}: {name} cannot be run here; say what it needs"
    for word in words:
        if word.startswith("{"):
            json.loads(word)


def _check_options(name: str, words: list[str]) -> None:
    """Reads the options as the command does, without running it."""
    command: Any = typer.main.get_command(_module(name).app)
    while hasattr(command, "list_commands"):
        context = command.make_context(name, [], resilient_parsing=True)
        command, words = command.get_command(context, words[0]), words[1:]
    command.make_context(name, words)


def _module(name: str) -> Any:
    place, _, command = _PROJECT["scripts"][name].partition(":")
    module, _ = getattr(import_module(place), command).args  # see `fsd_calib.cli.entry`
    return import_module(f"fsd_calib.cli.{module}")
