"""`fsd-tasks`: lists the tasks, shows what one asks and how it grades, and checks its grader.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from fsd_calib.cli.console import NOT_MET, leave, quiet_libraries, reply, say
from fsd_calib.cli.family import Family, VersionOption
from fsd_calib.cli.options import SubjectsOption, check_sources, named_task
from fsd_calib.common_options import Data, Limit
from fsd_calib.tasks.registry import described_tasks, load_task
from fsd_common.option import Option

if TYPE_CHECKING:
    from fsd_calib.tasks.base import Task

NAME = "fsd-tasks"
_SHOWN = 20  # faults
_EPILOG = """
Examples: fsd-tasks list · fsd-tasks show gsm8k --data test.jsonl · fsd-tasks check my.yaml

Exit codes: 0 done (check: every grade is as it should be) · 2 bad input · 3 a grade is not · 130 interrupted
"""
_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A task's name, or a file in YAML that describes one.", show_default=False)
]
_Target = Annotated[
    str | None,
    Option("Show prompts for this model: hub id or local path. By default for one without a chat template."),
]

app = Family(
    no_args_is_help=True,
    help="Lists the tasks, shows what one asks and how it grades, and checks its grader.",
    epilog=_EPILOG,
)


@app.callback()
def common(version: VersionOption = False) -> None:
    """Options before the command's name."""


@app.command("list")
def list_tasks() -> None:
    """Lists the tasks by name, those of other packages included."""
    width = max(len(name) for name, _ in described_tasks())
    reply("\n".join(f"{name:{width}}  {about}" for name, about in described_tasks()))


@app.command()
def show(
    name: _Name,
    data: Data = None,
    limit: Limit = None,
    subjects: SubjectsOption = None,
    target: _Target = None,
) -> None:  # fmt: skip
    """Shows how many problems a task has, its first prompt and reference, and what ends an answer."""
    quiet_libraries()
    tokenizer = None
    if target is not None:
        check_sources({"tokenizer": [target]})
        from fsd_decoding.loading import load_tokenizer

        tokenizer = load_tokenizer(target)
    task = load_task(named_task(name, subjects), 0, limit, data, tokenizer)
    reply(_about(task))


@app.command()
def check(name: _Name, data: Data = None, limit: Limit = None, subjects: SubjectsOption = None) -> None:
    """Grades all references, which must be right, and an altered form of each and an empty text, which must be wrong.

    Each grade that is not as it should be is a line on stderr.
    """
    quiet_libraries()
    from fsd_calib.tasks.checking import faults

    task = load_task(named_task(name, subjects), 0, limit, data)
    if not task.keys_are_texts:
        reply(f"{task.name}: {len(task.problems)} problems, whose references are no answers that could be graded")
        return
    found = list(faults(task))
    for _, fault in found[:_SHOWN]:
        say(NAME, fault)
    if len(found) > _SHOWN:
        say(NAME, f"and {len(found) - _SHOWN} others")
    wrong = Counter(wanted for wanted, _ in found)
    count = len(task.problems)
    reply(
        f"{task.name}: {count - wrong[True]} of {count} references are graded right, and "
        f"{2 * count - wrong[False]} of {2 * count} altered and empty texts wrong"
    )
    if found:
        raise typer.Exit(NOT_MET)


def main() -> None:
    leave(app, NAME)


def _about(task: Task) -> str:
    first = task.problems[0]
    parts = Counter(problem.part or "divided by a hash of their content" for problem in task.problems)
    divided = ", ".join(f"{count} {part}" for part, count in parts.items())
    reference = "the target's own text" if task.by_agreement else first.reference
    return "\n".join([
        f"task: {task.name}",
        f"source: {task.source}",
        f"problems: {len(task.problems)} ({divided})",
        f"an answer ends: after {task.max_new_tokens} tokens" + "".join(f", at {text!r}" for text in task.stop),
        "", "first prompt:", first.prompt, "", "its reference:", reference,
    ])  # fmt: skip
