"""Options that name a task, and the settings that published evaluations sample with."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple

import typer

from fsd_calib.cli.completion import one_of
from fsd_calib.cli.groups import OptionGroup
from fsd_calib.cli.loading_options import json_object
from fsd_calib.cli.options import (
    DATA,
    DECODING,
    MAX_NEW_TOKENS,
    DataOption,
    LimitOption,
    MinPOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
)
from fsd_calib.tasks.registry import TASKS
from fsd_common.errors import UsageError

TASK_NAMES = f"{', '.join(TASKS)}, or a file in YAML that describes your own (see fsd-tasks list)"

SubjectsOption = Annotated[
    str | None,
    typer.Option(help="Of mmlu: use these subjects alone, separated by commas.", rich_help_panel=DATA),
]


class SamplingOptions(NamedTuple):
    """How tokens are drawn."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None = None


# The settings of the evaluation code that was published with the paper, which also ends answers at 512 tokens, as the
# benchmarks here do.
PRESETS = {"fsd-paper": SamplingOptions(0.6, 50, 0.9)}

PresetOption = Annotated[
    str | None,
    typer.Option(
        help="Sample as a published evaluation did. fsd-paper: temperature 0.6, top-k 50, top-p 0.9.",
        rich_help_panel=DECODING,
        autocompletion=one_of(PRESETS),
    ),
]
GreedyOption = Annotated[
    bool, typer.Option("--greedy", help="Decode greedily, as by default, also with --preset.", rich_help_panel=DECODING)
]


@dataclass(frozen=True)
class ProblemOptions(OptionGroup):
    """Which problems of a task."""

    data: DataOption = None
    subjects: SubjectsOption = None
    limit: LimitOption = None
    seed: SeedOption = 0


@dataclass(frozen=True)
class AskingOptions(OptionGroup):
    """How a task's prompts are made, where that is not as the task has it."""

    system: Annotated[
        str | None,
        typer.Option(help="Replace the task's system message; '' leaves it out.", rich_help_panel=DATA),
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            help="Arguments of the target's chat template, as a JSON object. By default "
            "'{\"enable_thinking\": false}'; with true, what follows the thought is graded.",
            rich_help_panel=DATA,
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help=MAX_NEW_TOKENS, rich_help_panel=DATA),
    ] = None
    answer_after: Annotated[
        str | None,
        typer.Option(
            help="Grade what follows the last of these in a text, such as the end of a thought; a text without one is "
            "wrong. '' grades all of it. By default as the task and the chat template's arguments say.",
            rich_help_panel=DATA,
        ),
    ] = None

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as `load_task` takes them. UsageError: one is malformed."""
        given, flag = self.chat_template_kwargs, "--chat-template-kwargs"
        return {
            "system": self.system, "max_new_tokens": self.max_new_tokens, "answer_after": self.answer_after,
            "chat_template_kwargs": None if given is None else json_object(flag, given, '{"enable_thinking": true}'),
        }  # fmt: skip


@dataclass(frozen=True)
class DrawingOptions(OptionGroup):
    """How tokens are drawn."""

    temperature: TemperatureOption = 0.0
    top_k: TopKOption = None
    top_p: TopPOption = None
    min_p: MinPOption = None
    preset: PresetOption = None
    greedy: GreedyOption = False

    def sampling(self, given: Collection[str], otherwise: SamplingOptions | None = None) -> SamplingOptions:
        """Returns how tokens are drawn.

        Args:
            given: the options on the command line, which go first.
            otherwise: the settings from elsewhere; None: there are none.

        Raises:
            UsageError: the preset is unknown, or options contradict each other.
        """
        own = SamplingOptions(self.temperature, self.top_k, self.top_p, self.min_p)
        if otherwise is not None:
            if self.temperature == 0.0 and "temperature" in given:  # greedy, which truncates nothing
                otherwise = SamplingOptions(0.0, None, None)
            own = otherwise._replace(**{name: getattr(own, name) for name in own._fields if name in given})
        return sampling_options(given, own, self.preset, self.greedy)


def sampling_options(given: Collection[str], own: SamplingOptions, preset: str | None, greedy: bool) -> SamplingOptions:
    """Returns how tokens are drawn: by the options themselves, or as in a preset.

    Args:
        given: Names of the parameters that the user gave.

    Raises:
        UsageError: The preset is unknown, or options contradict each other.
    """
    contradicting = [f"--{name.replace('_', '-')}" for name in own._fields if name in given]
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"--preset is {preset!r}; the presets are {', '.join(PRESETS)}")
    if contradicting and (preset is not None or greedy):
        other = f"--preset {preset}" if preset is not None else "--greedy"
        raise UsageError(f"{other} and {contradicting[0]} contradict each other; leave one of them out")
    if greedy:
        return SamplingOptions(0.0, None, None)
    return own if preset is None else PRESETS[preset]


def named_task(task: str, subjects: str | None) -> str:
    """Returns the name of a task with the subjects of --subjects in it; UsageError: it takes none."""
    if subjects is None:
        return task
    if task != "mmlu":
        raise UsageError(f"--subjects is {subjects!r}, and task {task} has none of its own to choose; use --task mmlu")
    return f"{task}:{subjects}"


def folder_name(task: str) -> str:
    """Returns a task's name for a folder: that of a description without its path, others without colons and commas."""
    base = PurePath(task).stem if task.endswith((".yaml", ".yml")) else task
    return re.sub(r"[^\w.=-]+", "-", base).strip("-")
