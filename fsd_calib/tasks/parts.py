"""The two parts of a task that a calibration works with, each problem in them once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.near_duplicates import BOUND, near_duplicates
from fsd_collectors.split import check_ids, content_key, tuning_and_certification
from fsd_decoding.errors import UsageError

_TUNING_PROBLEMS = 1000  # at most: beyond this the certification part decides what can be shown
_SHOWN = 60  # characters of a text in a line


class Parts(NamedTuple):
    """Both in the order of a hash of what they ask. notes: what a user should know of them, a line each. repeats:
    groups of problems that ask the same, of each of which one is kept."""

    tuning: tuple[Problem, ...]
    certification: tuple[Problem, ...]
    notes: tuple[str, ...]
    repeats: tuple[tuple[Problem, ...], ...]


def parts_of(task: Task) -> Parts:
    """Both parts of a task; problems that ask the same (see `content_key`) count once.

    Raises:
        UsageError: an id names two problems, problems that ask the same have different answers or are in both parts of
            the source, or a part has fewer than two.
    """
    check_ids(task.problems)
    groups = _alike(task.problems)
    once = [_kept(task, same) for same in groups]
    tuning, certification = tuning_and_certification(once)
    for name, part in (("tuning", tuning), ("certification", certification)):
        if len(part) < 2:
            raise UsageError(f"{len(once)} problems leave {len(part)} for {name}; give more of them")
    tuning = tuning[:_TUNING_PROBLEMS]
    notes = (*_told_repeats(task, once), *_told_resemblance(tuning, certification))
    repeats = [tuple(sorted(same, key=lambda p: p.id)) for same in groups if len(same) > 1]
    repeats.sort(key=lambda same: same[0].id)
    return Parts(tuple(tuning), tuple(certification), notes, tuple(repeats))


def _alike(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Groups that ask the same. UsageError: the source has some in both parts."""
    groups: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[_content(problem)].append(problem)
    both = [same for same in groups.values() if len({p.part for p in same} - {None}) > 1]
    if both:
        raise UsageError(
            f"{len(both)} questions are in the tuning and in the certification part (the first: "
            f"{_content(both[0][0])[:_SHOWN]!r}); leave them out of one"
        )
    return list(groups.values())


def _kept(task: Task, same: Sequence[Problem]) -> Problem:
    """The one with the smallest id, so that their order does not matter; of those whose part the source names, where
    it does. UsageError: two of them have different answers."""
    kept, *others = sorted(same, key=lambda p: (p.part is None, p.id, p.reference))
    for other in others:
        if not _agree(task, kept, other):
            one, two = (p.reference[-_SHOWN:] for p in (kept, other))
            raise UsageError(
                f"problems {kept.id} and {other.id} ask the same ({_content(kept)[:_SHOWN]!r}) and have different "
                f"answers ({one!r} and {two!r}); correct one, or leave one out"
            )
    return kept


def _agree(task: Task, one: Problem, other: Problem) -> bool:
    """Whether their references come to the same, whatever their working."""
    if one.reference == other.reference:
        return True
    return task.grade(one, other.reference) and task.grade(other, one.reference)


def _told_repeats(task: Task, once: Sequence[Problem]) -> Iterator[str]:
    repeats = len(task.problems) - len(once)
    if repeats:
        yield (
            f"{repeats} of {len(task.problems)} problems repeat others, white space and the composition of characters "
            "aside, and are left out: each counts once"
        )


def _told_resemblance(tuning: Sequence[Problem], certification: Sequence[Problem]) -> Iterator[str]:
    """Of parts that the source gives. What a hash divides is on either side by chance, near-duplicates too, as in any
    sample of the problems that are claimed about."""
    tuned, asked = ([_content(p) for p in part if p.part is not None] for part in (tuning, certification))
    found = near_duplicates(asked, tuned)
    if found is not None:
        one, other = (f"{text[:_SHOWN]!r}" for text in found.closest)
        yield (
            f"{found.count} of {len(asked)} certification problems closely resemble a tuning problem (similarity of "
            f"{BOUND} or more); the closest, at {found.similarity:.2f}: {one} and {other}"
        )


def _content(problem: Problem) -> str:
    return content_key(problem.question, problem.choices)
