"""The options of `fsd-calibrate` on what is to be reached and shown."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fsd_calib.calibration.goal import Acc, Goal, Guarantee, Test
from fsd_calib.cli.completion import one_of, tasks
from fsd_calib.cli.groups import OptionGroup
from fsd_calib.cli.task_options import TASK_NAMES
from fsd_common.errors import UsageError

GOAL = "Goal"
_WAYS = ("run", "careful")
KINDS = ("min_acc", "min_speed", "pareto")
"""The fields of a goal of which there is exactly one."""


@dataclass(frozen=True)
class GoalOptions(OptionGroup):
    """What is to be reached and shown."""

    task: Annotated[
        str | None,
        typer.Option(
            help=f"Task to calibrate on: {TASK_NAMES}.", rich_help_panel=GOAL, show_default=False, autocompletion=tasks
        ),
    ] = None
    min_acc: Annotated[
        float | None,
        typer.Option(
            help="Find the fastest setting that keeps at least this share of the target's accuracy (0.98: 98 %).",
            rich_help_panel=GOAL,
        ),
    ] = None
    acc: Annotated[
        str,
        typer.Option(
            help="Meaning of --min-acc: retention (a share of the target's accuracy) or absolute (plain accuracy).",
            rich_help_panel=GOAL,
            autocompletion=one_of(get_args(Acc)),
        ),
    ] = "retention"
    min_speed: Annotated[
        float | None,
        typer.Option(
            help="Find the most accurate setting with at least this many tokens/s per stream.", rich_help_panel=GOAL
        ),
    ] = None
    serve_batch: Annotated[
        int, typer.Option(help="Streams decoded at once when speed is measured.", rich_help_panel=GOAL)
    ] = 1
    timing: Annotated[
        str,
        typer.Option(
            help="run: time speeds in this process. careful: time them in five fresh processes, so that intervals "
            "include the variation between processes.",
            rich_help_panel=GOAL,
            autocompletion=one_of(_WAYS),
        ),
    ] = "run"
    no_timing: Annotated[
        bool,
        typer.Option(
            "--no-timing",
            help="Do not time any setting; forecast speeds from the number of rounds and the cost of a round.",
            rich_help_panel=GOAL,
        ),
    ] = False
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto",
            help="Find the whole Pareto front of accuracy and speed, to choose from later.",
            rich_help_panel=GOAL,
        ),
    ] = False
    certify: Annotated[
        Path | None,
        typer.Option(
            help="Certify the setting of this profile, with its task, models and sampling: nothing is searched. For a "
            "setting that was found elsewhere, with another engine, or (--engine fsd-calib,vllm) for both. Counts as "
            "an attempt like any other.",
            rich_help_panel=GOAL,
        ),
    ] = None
    confidence: Annotated[float, typer.Option(help="Confidence level of the certificate.", rich_help_panel=GOAL)] = 0.95
    guarantee: Annotated[
        str,
        typer.Option(
            help="What the certificate covers: population (problems like these), or dataset (exactly these problems).",
            rich_help_panel=GOAL,
            autocompletion=one_of(get_args(Guarantee)),
        ),
    ] = "population"
    test: Annotated[
        str,
        typer.Option(
            help="score: decide once, on all certification problems. betting: decide as soon as the evidence suffices.",
            rich_help_panel=GOAL,
            autocompletion=one_of(get_args(Test)),
        ),
    ] = "score"
    explore: Annotated[
        bool,
        typer.Option(
            "--explore",
            help="Estimate retention and speed, with intervals, on the tuning part alone: no certificate, and no "
            "attempt is spent.",
            rich_help_panel=GOAL,
        ),
    ] = False
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print how many problems the goal needs, what the given ones can show, which attempt a run is, how "
            "long it will take and how much memory, then exit.",
            rich_help_panel=GOAL,
        ),
    ] = False

    def goal(self, given: set[str], otherwise: dict[str, Any]) -> Goal:
        """Returns the goal.

        Args:
            given: the options on the command line, which go first.
            otherwise: fields of a goal from elsewhere.
        """
        named = {f.name for f in fields(Goal)}
        own = {name: value for name, value in self.given(given).items() if name in named}
        if any(own.get(kind) not in (None, False) for kind in KINDS):
            otherwise = {name: value for name, value in otherwise.items() if name not in KINDS}
        return Goal(**{**otherwise, **own})

    def way(self, given: set[str], otherwise: str | None) -> Any:
        """Returns the `timing` of `RunConfig`. UsageError: both options are given."""
        if self.no_timing and self.timing != "run":
            raise UsageError(f"--timing {self.timing} and --no-timing contradict each other; leave one of them out")
        if self.no_timing:
            return "none"
        return self.timing if "timing" in given or otherwise is None else otherwise
