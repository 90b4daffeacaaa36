"""`fsd-tasks`: lists the tasks, shows what one asks and how it grades, and checks its grader.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsd_calib.cli.console import NOT_MET, leave, quiet_libraries, say
from fsd_calib.cli.family import Family, VersionOption, ending
from fsd_calib.cli.options import SubjectsOption, check_sources, named_task
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import Data, Limit
from fsd_calib.tasks.registry import described_tasks, load_task
from fsd_collectors.split import tuning_and_certification
from fsd_common.option import Option

if TYPE_CHECKING:
    from fsd_calib.tasks.base import Task

NAME = "fsd-tasks"
_SHOWN = 20  # faults
_EPILOG = ending(
    "Exit codes: 0 done (check: every grade is as it should be) · 2 bad input · 3 a grade is not · 130 interrupted",
    "fsd tasks list",
    "fsd tasks show gsm8k --data test.jsonl",
    "fsd tasks check my.yaml",
)
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
def list_tasks(*, output: OutputOptions) -> None:
    """Lists the tasks by name, those of other packages included."""
    output.begin()
    tasks = list(described_tasks())
    width = max(len(name) for name, _ in tasks)
    listed = [{"name": name, "about": about} for name, about in tasks]
    output.reply(NAME, {"tasks": listed}, "\n".join(f"{name:{width}}  {about}" for name, about in tasks))


@app.command()
def show(
    name: _Name,
    data: Data = None,
    limit: Limit = None,
    subjects: SubjectsOption = None,
    target: _Target = None,
    *,
    output: OutputOptions,
) -> None:  # fmt: skip
    """Shows how many problems a task has, its first prompt and reference, and what ends an answer."""
    output.begin()
    quiet_libraries()
    tokenizer = None
    if target is not None:
        check_sources({"tokenizer": [target]})
        from fsd_decoding.loading import load_tokenizer

        tokenizer = load_tokenizer(target)
    task = load_task(named_task(name, subjects), 0, limit, data, tokenizer)
    output.reply(NAME, _facts(task), _about(task))


@app.command()
def check(
    name: _Name, data: Data = None, limit: Limit = None, subjects: SubjectsOption = None, *, output: OutputOptions
) -> None:
    """Grades all references, which must be right, and an altered form of each and an empty text, which must be wrong.

    Each grade that is not as it should be is a line on stderr.
    """
    output.begin()
    quiet_libraries()
    from fsd_calib.tasks.checking import faults

    task = load_task(named_task(name, subjects), 0, limit, data)
    count = len(task.problems)
    if not task.keys_are_texts:
        text = f"{task.name}: {count} problems, whose references are no answers that could be graded"
        output.reply(NAME, {"problems": count, "graded": False, "faults": []}, text)
        return
    found = list(faults(task))
    for _, fault in found[:_SHOWN]:
        say(fault)
    if len(found) > _SHOWN:
        say(f"and {len(found) - _SHOWN} others")
    wrong = Counter(wanted for wanted, _ in found)
    text = (
        f"{task.name}: {count - wrong[True]} of {count} references are graded right, and "
        f"{2 * count - wrong[False]} of {2 * count} altered and empty texts wrong"
    )
    output.reply(NAME, {"problems": count, "graded": True, "faults": [fault for _, fault in found]}, text)
    if found:
        raise typer.Exit(NOT_MET)


def main() -> None:
    leave(app, NAME)


def _facts(task: Task) -> dict[str, Any]:
    first = task.problems[0]
    return {
        "task": task.name, "source": task.source, "problems": len(task.problems), "parts": dict(_parts(task)),
        "max_new_tokens": task.max_new_tokens, "stop": list(task.stop), "first_prompt": first.prompt,
        "reference": None if task.by_agreement else first.reference,
    }  # fmt: skip


def _parts(task: Task) -> Counter[str]:
    tuning, certification = tuning_and_certification(task.problems)
    return Counter({"for tuning": len(tuning), "for certification": len(certification)})


def _about(task: Task) -> str:
    first, parts = task.problems[0], _parts(task)
    divided = ", ".join(f"{count} {part}" for part, count in parts.items())
    reference = "the target's own text" if task.by_agreement else first.reference
    return "\n".join([
        f"task: {task.name}",
        f"source: {task.source}",
        f"problems: {len(task.problems)} ({divided})",
        f"an answer ends: after {task.max_new_tokens} tokens" + "".join(f", at {text!r}" for text in task.stop),
        "", "first prompt:", first.prompt, "", "its reference:", reference,
    ])  # fmt: skip
