"""Guards: other tasks on which it is estimated what the chosen setting keeps, beside the one that is certified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsd_calib.calibration.memory import usable
from fsd_calib.calibration.session import TextSession
from fsd_calib.certification.outcomes import Paired
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.split import tuning_of
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.profile.setting import Setting

GUARDED = 500
"""Problems of a guard that are decoded, at most."""


def read_guard(
    name: str, load: Callable[[str], Task], tokenizer: Any, context: int | None, note: Callable[[str], None]
) -> Task:
    """Returns a guard with the problems that are decoded: the first of its tuning part.

    Its certification part stays closed, so that it can be certified later.

    Args:
        load: returns a task by its name.
        context, note: see `usable`.

    Raises:
        UsageError: it cannot be loaded, or has no tuning problems.
    """
    if name.partition(":")[0] == "agreement":
        raise UsageError(
            f"{named('guard')} {name!r} has no prompts of its own, and guards take no file; describe problems with "
            "answers in YAML, and give that (my.yaml)"
        )
    try:
        task = load(name)
    except UsageError as error:
        raise UsageError(f"{named('guard')} {name!r}: {error}") from error
    problems = tuning_of(task)[:GUARDED]
    if not problems:
        raise UsageError(f"{named('guard')} {name!r} has no tuning problems; give a task with more problems")
    return usable(replace(task, problems=tuple(problems)), tokenizer, context, lambda line: note(f"{name}: {line}"))


def check_guards(task: Task, guards: Sequence[Task]) -> None:
    """Raises UsageError where a guard asks about problems of the task that is certified, or of another guard."""
    known: list[tuple[str, frozenset[int]]] = [("the task that is certified", _keys(task))]
    for guard in guards:
        for whose, keys in known:
            shared = sum(not {problem.key, problem.row_key}.isdisjoint(keys) for problem in guard.problems)
            if shared:
                raise UsageError(
                    f"{named('guard')} {guard.name!r} shares {shared} of {len(guard.problems)} problems with {whose}; "
                    "leave it out"
                )
        known.append((f"guard {guard.name!r}", _keys(guard)))


def _keys(task: Task) -> frozenset[int]:
    return frozenset(key for problem in task.problems for key in (problem.key, problem.row_key))


@dataclass(frozen=True)
class Guarded:
    """Grades on a guard's problems."""

    task: Task
    paired: Paired


def measure_guards(session: TextSession, setting: Setting, alone: Setting) -> tuple[Guarded, ...]:
    """Decodes the guards' problems with the chosen setting and with the target alone.

    What is seen of them may guide what is certified next, so the ledger has them as tuned on.
    """
    return tuple(_measured(session, task, setting, alone) for task in session.guards)


def _measured(session: TextSession, task: Task, setting: Setting, alone: Setting) -> Guarded:
    decode = session.tuned.before(session.decode.for_task(task))
    problems = Evaluator(decode, task.problems, "tuning")
    return Guarded(task, Paired.of(problems.measure(alone), problems.measure(setting)))
