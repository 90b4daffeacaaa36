"""The commands are one family: the same options under the same names, output for programs, and completion."""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from fsd_calib.calibration.policy_families import FAMILIES
from fsd_calib.cli.console import reply_json, run
from fsd_calib.cli.output import LEVELS, OutputOptions
from fsd_calib.cli.prompting import gathered
from fsd_calib.options import common as choices
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.meanings import LEARNED
from fsd_decoding.rules import RULES
from fsd_decoding.scores import FAMILIES as SCORES
from lib.common.forked_programs import environment
from support.messages import error_line, usage_error
from support.paths import ROOT

LONG = ["calibrate", "collect", "generate", "inspect", "train_predictor"]
ALL = [*LONG, "check", "profile", "report", "sweep", "tasks", "traces", "train_eagle", "tune"]


def module(name: str) -> ModuleType:
    return import_module(f"fsd_calib.cli.{name}")


def options(name: str) -> dict[str, Any]:
    command = typer.main.get_command(module(name).app)
    return {option: one for one in command.params for option in one.opts}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What --log-level sets is undone."""
    level, handlers = logging.root.level, [*logging.root.handlers]
    for name in ("TRANSFORMERS_VERBOSITY", "DATASETS_VERBOSITY", "HF_HUB_VERBOSITY", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "before")
    with warnings.catch_warnings():
        yield
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers


def leaves(name: str) -> dict[str, Any]:
    """The commands of a module: itself, or those of its group."""
    command = typer.main.get_command(module(name).app)
    return getattr(command, "commands", {name: command})


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_the_same_options_of_output(name: str) -> None:
    for command in leaves(name).values():
        assert {"--quiet", "-q", "--json", "--log-level"} <= {option for one in command.params for option in one.opts}


def test_options_of_one_name_mean_the_same_everywhere() -> None:
    """But for those that say what a command does with them, or what a profile decides."""
    own = {"--task", "--out", "--seed", "--target", "--draft", "--head", "--batch-size", "--rule", "--score",
           "--divergence", "--threshold", "--draft-length", "--tree", "--revision", "--draft-revision",
           "--quantization", "--attn", "--drafter", "--judge"}  # fmt: skip
    seen: dict[str, str] = {}
    for name in LONG:
        for option, one in options(name).items():
            if option not in own:
                assert one.help == seen.setdefault(option, one.help), (option, name)


def test_words_that_options_take_are_those_of_the_registries() -> None:
    assert set(choices.RULES) == {name for name, rule in RULES.items() if name != "target"}
    assert set(choices.RULES_WITH_T) == {name for name, rule in RULES.items() if rule.bounds_score}
    assert set(choices.RULES_WITHOUT_T) == {name for name, rule in RULES.items() if rule.drafts and not rule.fuzzy}
    assert tuple(DIVERGENCES) == choices.DIVERGENCES
    assert tuple(SCORES) == choices.SCORES
    assert (*SCORES, LEARNED) == choices.CALIBRATED
    assert set(choices.POLICIES) == {*FAMILIES}


@pytest.mark.parametrize("name", ALL)
def test_help_breaks_no_word_at_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    everyday = getattr(typer.main.get_command(module(name).app), "everyday", ())
    assert run(module(name).app, module(name).NAME, ["--help-all" if everyday else "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "<" not in text.replace("<think>", "").replace("</think>", "").replace("< prompts", "")  # no <str>
    shown = " ".join(text.split())
    for one in options(name).values():
        words = [] if getattr(one, "hidden", False) else (one.help or "").split()
        assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize("name", ALL)
def test_help_shows_the_everyday_options_and_examples_that_can_be_run(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most ten of them, each with what it takes; the examples' options exist, and a line has each whole.

    There are three, or one for each command of a group.
    """
    monkeypatch.setenv("COLUMNS", "80")
    app = module(name).app
    everyday = getattr(typer.main.get_command(app), "everyday", ())
    assert len(everyday) <= 10
    assert run(app, module(name).NAME, ["-h"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 80
    for option, one in options(name).items():
        if everyday and option.startswith("--") and one.name not in (*everyday, "help_all", "help"):
            assert f"  {option} " not in text
    _, _, after = text.partition("Examples:\n\n")
    examples = [line.strip() for line in after.partition("\n\n")[0].splitlines()]
    assert len(examples) == max(3, len(leaves(name)))
    for example in examples:
        asked = shlex.split(example.partition(" - < ")[0])
        group: Any = typer.main.get_command(module("fsd").app)
        while "everyday" not in dir(group):  # down to the command itself
            group = group.get_command(group.make_context("fsd", [], resilient_parsing=True), asked.pop(1))
        group.make_context("fsd", asked[1:], resilient_parsing=True)
        known = {option for one in group.params for option in one.opts}
        assert {word for word in asked if word.startswith("--")} <= known


@pytest.mark.parametrize(("group", "name"), [("tasks", "check"), ("profile", "export"), ("traces", "describe")])
def test_a_command_of_a_group_shows_its_own_of_the_groups_examples(
    group: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fsd = module("fsd")
    assert run(fsd.app, "fsd", [group, name, "--help"]) == 0
    shown = capsys.readouterr().out
    examples = [line for line in shown.splitlines() if line.startswith("    fsd ")]
    assert [example.split()[1:3] for example in examples] == [[group, name]]
    assert "Exit codes: 0 done" in shown


def test_every_command_is_one_of_fsd(capsys: pytest.CaptureFixture[str]) -> None:
    """All scripts are; errors begin with the name that was typed, and typing errors are put right."""
    fsd = module("fsd")
    assert run(fsd.app, "fsd", ["--help"]) == 0
    shown = capsys.readouterr().out
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for script in set(scripts) - {"fsd"}:
        _, command, *inner = script.split("-")
        assert f"  {command} " in shown
        assert run(fsd.app, "fsd", [command, *inner, "--help"]) == 0
        assert f"Usage: fsd {' '.join([command, *inner])} " in capsys.readouterr().out
    assert run(fsd.app, "fsd", ["generate", "--profile", "nowhere", "x"]) == 2
    assert error_line(capsys).startswith("fsd generate: error: profile 'nowhere' cannot be read")
    assert run(fsd.app, "fsd", ["calibrat"]) == 2
    assert error_line(capsys) == "fsd: error: No such command 'calibrat'. Did you mean 'calibrate'? (see fsd --help)"
    assert run(fsd.app, "fsd", ["train"]) == 2
    captured = capsys.readouterr()
    assert "eagle" in captured.out
    assert captured.err == "fsd train: error: a command is missing\n"


def test_a_module_can_be_run_as_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fsd_calib", "--version"], env=environment(), capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("fsd-calib ")


def complete(name: str, *words: str, home: Path) -> list[str]:
    """The values that bash is offered for the last word."""
    prog = module(name).NAME
    code = f"from fsd_calib.cli.{name} import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=home,
        env=environment() | {
            f"_{prog.replace('-', '_').upper()}_COMPLETE": "complete_bash", "COMP_WORDS": " ".join([prog, *words]),
            "COMP_CWORD": str(len(words)), "HF_ENDPOINT": "http://127.0.0.1:9",
        },
    )  # fmt: skip
    return ran.stdout.split()


@pytest.mark.slow
def test_shells_complete_names(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    assert complete("calibrate", "--task", "m", home=tmp_path) == ["math", "mmlu", "mine.yaml"]
    assert complete("calibrate", "--score", "js,t", home=tmp_path) == ["js,tv", "js,typical"]
    assert complete("generate", "--qu", home=tmp_path) == ["--quantization", "--quiet"]
    assert complete("fsd", "tr", home=tmp_path) == ["traces", "train"]
    assert complete("fsd", "calibrate", "--acc", "r", home=tmp_path) == ["retention"]


def test_quiet_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        progress = OutputOptions(quiet=quiet).begin()
        with progress.step("working", 20) as advance:
            advance(20)
        progress.note("a note")
        assert bool(capsys.readouterr().err) is not quiet


@pytest.mark.usefixtures("settings")
def test_the_level_reaches_libraries_here_and_in_processes_that_are_started(capsys: pytest.CaptureFixture[str]) -> None:
    OutputOptions(log_level="error").begin()
    assert (os.environ["TRANSFORMERS_VERBOSITY"], os.environ["VLLM_LOGGING_LEVEL"]) == ("error", "ERROR")
    assert logging.root.level == logging.ERROR
    warnings.warn("not shown", stacklevel=1)
    assert capsys.readouterr().err == ""
    complaint = usage_error(OutputOptions(log_level="loud").begin)
    assert complaint == f"--log-level is 'loud'; it must be one of {', '.join(LEVELS)}"


def test_prompts_come_from_arguments_standard_input_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "piped").write_bytes(b"one\r\n\r\n  two \n")
    with (tmp_path / "piped").open(newline="\n") as piped:  # as Python opens standard input
        monkeypatch.setattr(sys, "stdin", piped)
        texts = [prompt.text for prompt in gathered(["first", "-", "last"], None)]
    assert texts == ["first", "one", "  two ", "last"]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a\\nb"}\n{"question": "c", "answer": "d"}\n\n"e"\n')
    row = {"question": "c", "answer": "d"}
    assert gathered([], lines) == [("a\nb", {"prompt": "a\nb"}), ("c", row), ("e", None)]
    (tmp_path / "prompts.txt").write_text('{"x"}\n')
    assert gathered(["z"], tmp_path / "prompts.txt") == [("z", None), ('{"x"}', None)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "line 1 is not JSON"),
        ('"a"\n{"text": "b"}', 'line 2 is \'{"text": "b"}\'; it must hold a string, or an object such as'),
        ("[1]", "line 1 is '[1]'"),
        ("", "there is no prompt"),
    ],
)
def test_a_malformed_file_of_prompts_is_one_line(
    content: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    generate = module("generate")
    assert run(generate.app, generate.NAME, ["--profile", "x", "--file", str(tmp_path / "p.jsonl")]) == 2
    assert complaint in error_line(capsys)


def test_what_json_cannot_hold_becomes_null_or_text(capsys: pytest.CaptureFixture[str]) -> None:
    reply_json("fsd-x", {"bounds": (0.5, math.inf), "folder": Path("a"), "named": {"é": math.nan}})
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert told["result"] == {"bounds": [0.5, None], "folder": "a", "named": {"é": None}}


def test_a_result_for_programs_is_all_there_is_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect = module("collect")
    small = ["--task", "arithmetic", "--limit", "8", "--out", str(tmp_path), "--workers", "1", "--quiet", "--json"]
    assert run(collect.app, collect.NAME, small) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    told = json.loads(captured.out)
    assert (told["json_version"], told["command"]) == (1, "fsd-collect")
    assert told["result"]["folder"] == str(tmp_path)
    assert told["result"]["completions"] == 8
