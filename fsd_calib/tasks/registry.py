"""The tasks by name: those of this package, those of others (entry points `fsd_calib.tasks`), and files in YAML.

A name may have a part after a colon, which is the task's own: `mmlu:astronomy`. A new task is a module with a `Kind`,
or with a function that makes one of the part after the colon, and an entry in `_BUILT_IN`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fsd_calib.tasks.asking import Asking, PromptOptions
from fsd_calib.tasks.base import Kind, Task
from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_BUILT_IN = {  # imported when they are asked for: some need a package that others do not
    "agreement": "kinds.agreement:agreement",
    "arithmetic": "kinds.arithmetic:ARITHMETIC",
    "csqa": "kinds.csqa:CSQA",
    "gsm8k": "kinds.gsm8k:GSM8K",
    "humaneval": "kinds.humaneval:HUMANEVAL",
    "lm-eval": "harness:lm_eval",
    "math": "kinds.math:MATH",
    "mmlu": "kinds.mmlu:mmlu",
}
TASKS = tuple(_BUILT_IN)
_DESCRIPTIONS = (".yaml", ".yml")
GROUP = "fsd_calib.tasks"  # of entry points

KindOrMaker = Kind | Callable[[str], Kind]


def load_task(
    name: str | ThresholdProfile,
    seed: int = 0,
    limit: int | None = None,
    data: str | PathLike[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    group: str | None = None,
    **options: Any,
) -> Task:
    """Returns the problems of one task, with prompts for `tokenizer`'s model.

    Args:
        name: See `task_kind`. A profile stands for its task, whose prompts are made as the profile's were.
        seed: Generates the problems of a generated task; of other tasks it chooses which problems `limit` keeps.
        limit: Largest number of problems (None: all; 3000 of a generated task). Where the source has parts, they share
            it in proportion to their sizes.
        data: A file of problems, for the tasks that take one.
        tokenizer: Determines the form of the prompts: its chat template, or worked examples where it has none.
        group: Column of the data whose value problems of a group share; None: the task's own, if it has one.
        options: Fields of `PromptOptions`: `chat_template_kwargs`, `system`, `max_new_tokens`, `answer_after`.

    Raises:
        UsageError: The task is unknown, the limit is below 1, the problems cannot be read, or the chat template cannot
            render their messages.
    """
    profile = None if isinstance(name, str) else name
    recorded = None if profile is None else profile.prompt
    kind = task_kind(name if isinstance(name, str) else name.task, None if recorded is None else recorded.specification)
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit}: it must be at least 1 (leave it out for the default)")
    asking = Asking(tokenizer, PromptOptions(**options), recorded)
    task = kind.load(seed, limit, None if data is None else Path(data), asking)
    return task if group is None else task.grouped_by(group)


def task_kind(name: str, specification: str | None = None) -> Kind:
    """Returns how a task prompts and grades, without its problems.

    Args:
        name: A task's name, or the path of a file in YAML that describes one.
        specification: What that file said; None: it is read.

    Raises:
        UsageError: The task is unknown, or the part after its colon is not one that it takes.
    """
    base, colon, argument = name.partition(":")
    if base not in TASKS and name.endswith(_DESCRIPTIONS):
        from fsd_calib.tasks.yaml_task import YamlTask

        described = YamlTask(name, specification)
        described.description  # noqa: B018  read now, so that its errors come before any work
        return described
    found = _find(base)
    if found is None:
        known = ", ".join(task_names())
        raise UsageError(
            f"unknown task {name!r}: the known tasks are {known}; a file in YAML (my.yaml) describes your own, and "
            "names the file of its problems (data: my.jsonl)"
        )
    if callable(found):
        return found(argument)
    if colon:
        raise UsageError(f"task {name!r}: {base} takes nothing after a colon; write {base}")
    return found


def task_names() -> list[str]:
    """Returns the names of all tasks, without importing any."""
    return [*TASKS, *sorted({point.name for point in entry_points(group=GROUP)} - set(TASKS))]


def completed_tasks(incomplete: str) -> list[str]:
    """Returns the names that go on from what was typed, and files in YAML here."""
    files = (str(path) for path in sorted(Path().glob("*.y*ml")))
    return [name for name in (*task_names(), *files) if name.startswith(incomplete)]


def described_tasks() -> list[tuple[str, str]]:
    """Returns the names of all tasks, with the first sentence about each."""
    modules = {name: import_module(_module(name)) for name in TASKS}  # each begins so: The `csqa` task: …
    own = [(name, (module.__doc__ or "").partition("\n")[0].partition(": ")[2]) for name, module in modules.items()]
    others = [(point.name, f"from {point.value}") for point in entry_points(group=GROUP) if point.name not in TASKS]
    return [*own, *sorted(others)]


def _module(name: str) -> str:
    return f"fsd_calib.tasks.{_BUILT_IN[name].partition(':')[0]}"


def _find(name: str) -> KindOrMaker | None:
    if name in _BUILT_IN:
        return cast(KindOrMaker, getattr(import_module(_module(name)), _BUILT_IN[name].partition(":")[2]))
    point = next(iter(entry_points(group=GROUP, name=name)), None)
    if point is None:
        return None
    try:
        found = point.load()
    except Exception as error:  # it is another package's code: whatever it raises
        raise UsageError(
            f"task {point.name!r}: {point.value} of another package cannot be imported ({type(error).__name__}: "
            f"{error}); mend or remove that package"
        ) from error
    if not callable(found) and not (hasattr(found, "load") and hasattr(found, "prompts")):
        raise UsageError(
            f"task {point.name!r}: {point.value} is {found!r:.40}; it must be a Kind, or a function that makes one"
        )
    return cast(KindOrMaker, found)
