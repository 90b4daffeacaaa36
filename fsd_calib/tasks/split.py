"""The tuning and certification parts of a task: each problem once, each group on one side, and notes about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.near_duplicates import BOUND, near_duplicates
from fsd_collectors.split import CERTIFICATION_SHARE, check_ids, content_key, tuning_and_certification
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError

_TUNING_PROBLEMS = 128, 1000  # at least, where a source has so many, and at most: more hardly choose any better
_COMPARED = 3000  # certification problems, the first in the order of a hash, with each other
_ALIKE = 0.9  # similarity: questions about one long passage have it, and generated templates do not
_OFTEN = 0.05  # of the problems compared: fewer hardly change a certificate
_EXCERPT = 60  # characters of a text shown in a message


class Parts(NamedTuple):
    """Both parts, in the order of a hash of their problems' content.

    Attributes:
        notes: What a user should know about them, one line each.
    """

    tuning: tuple[Problem, ...]
    certification: tuple[Problem, ...]
    notes: tuple[str, ...]


def parts_of(task: Task, trains: bool = False) -> Parts:
    """Returns both parts of a task; problems with the same content (see `content_key`) count once.

    Args:
        trains: Whether a model is trained on the tuning part, which takes all that there are, up to a thousand.

    Raises:
        UsageError: An id belongs to two problems, problems with the same content have different answers or are in both
            parts of the source, or a part has fewer than two problems.
    """
    distinct, tuning, certification, torn = _divided(task)
    groups = len({p.group for p in distinct} - {None})
    for name, part in (("tuning", tuning), ("certification", certification)):
        if len(part) < 2:
            within = f" in {groups} group{'s' * (groups > 1)}" if groups else ""
            raise UsageError(
                f"{len(distinct)} problems{within} leave {len(part)} for {name}, and it needs at least 2; give more "
                f"{'groups' if groups else 'problems'}"
            )
    tuning = tuning[: _TUNING_PROBLEMS[1] if trains else _tuned(len(certification))]
    notes = (
        *_note_repeats(task, distinct), *_note_alone(distinct), *_note_torn(torn),
        *_note_near_duplicates(tuning, certification), *_note_alike(certification),
    )  # fmt: skip
    return Parts(tuple(tuning), tuple(certification), notes)


def _tuned(certification: int) -> int:
    """Returns how many problems tune at most: as many as where a hash divides them."""
    least, most = _TUNING_PROBLEMS
    return min(max(round(certification * (1 / CERTIFICATION_SHARE - 1)), least), most)


def tuning_of(task: Task) -> list[Problem]:
    """Returns the whole tuning part of a task, in the order of a hash, each problem once.

    Raises:
        UsageError: see `parts_of`.
    """
    return _divided(task).tuning


class _Divided(NamedTuple):
    """Each problem once, in both parts, and how many groups had problems in both parts of the source."""

    distinct: list[Problem]
    tuning: list[Problem]
    certification: list[Problem]
    torn: int


def _divided(task: Task) -> _Divided:
    """A group is on one side: where the source tears one apart, a hash of it says on which."""
    check_ids(task.problems)
    distinct = [_representative(task, group) for group in _groups_of_same_content(task.problems)]
    tuning, certification = tuning_and_certification(distinct)
    torn = {p.group for p in tuning} & {p.group for p in certification} - {None}
    if torn:
        tuning, certification = tuning_and_certification(
            [replace(p, part=None) if p.group in torn else p for p in distinct]
        )
    return _Divided(distinct, tuning, certification, len(torn))


def _groups_of_same_content(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Groups problems by content.

    Raises:
        UsageError: The source has some in both parts.
    """
    groups: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[_content(problem)].append(problem)
    both = [group for group in groups.values() if len({p.part for p in group} - {None}) > 1]
    if both:
        raise UsageError(
            f"{len(both)} questions are in the tuning and in the certification part (the first: "
            f"{_content(both[0][0])[:_EXCERPT]!r}); leave them out of one"
        )
    return list(groups.values())


def _representative(task: Task, group: Sequence[Problem]) -> Problem:
    """Returns the problem to keep: the one with the smallest id, of those that the source assigns to a part, if any.

    Raises:
        UsageError: Two of them have different answers.
    """
    kept, *others = sorted(group, key=lambda p: (p.part is None, p.id, p.reference))
    for other in others:
        same = kept.reference == other.reference  # or the same answer, whatever their working
        if not (same or (task.grade(kept, other.reference) and task.grade(other, kept.reference))):
            one, two = (p.reference[-_EXCERPT:] for p in (kept, other))
            raise UsageError(
                f"problems {kept.id} and {other.id} have the same content ({_content(kept)[:_EXCERPT]!r}) but "
                f"different answers ({one!r} and {two!r}); correct one, or leave one out"
            )
    return kept


def _note_repeats(task: Task, distinct: Sequence[Problem]) -> Iterator[str]:
    repeats = len(task.problems) - len(distinct)
    if repeats:
        yield (
            f"{repeats} of {len(task.problems)} problems repeat others, white space and the composition of characters "
            "aside, and are left out: each counts once"
        )


def _note_alone(distinct: Sequence[Problem]) -> Iterator[str]:
    alone = sum(problem.group is None for problem in distinct)
    if 0 < alone < len(distinct):
        yield f"{alone} of {len(distinct)} problems are in no group: each counts by itself"


def _note_torn(groups: int) -> Iterator[str]:
    if groups:
        yield (
            f"{groups} groups have problems in both parts of the source: a hash of each says in which one it is, and "
            "other problems stay where they are"
        )


def _note_near_duplicates(tuning: Sequence[Problem], certification: Sequence[Problem]) -> Iterator[str]:
    """Notes near-duplicates between parts given by the source.

    Where a hash divides the problems, near-duplicates fall on either side at random, as in any sample of the population
    that is claimed about.
    """
    tuning_texts, certification_texts = (
        [_content(p) for p in part if p.part is not None] for part in (tuning, certification)
    )
    duplicates = near_duplicates(certification_texts, tuning_texts)
    if duplicates is not None:
        one, other = (f"{text[:_EXCERPT]!r}" for text in duplicates.closest)
        yield (
            f"{duplicates.count} of {len(certification_texts)} certification problems closely resemble a "
            f"tuning problem (similarity of {BOUND} or more); the closest, at "
            f"{duplicates.similarity:.2f}: {one} and {other}"
        )


def _note_alike(certification: Sequence[Problem]) -> Iterator[str]:
    """Notes many near-duplicates within the certification part, unless groups say what belongs together."""
    if any(problem.group is not None for problem in certification):
        return
    texts = [_content(problem) for problem in certification[:_COMPARED]]
    found = near_duplicates(texts, bound=_ALIKE)
    if found is not None and found.count >= _OFTEN * len(texts):
        first = "the first " if len(texts) < len(certification) else ""
        yield (
            f"{found.count} of {first}{len(texts)} certification problems closely resemble another (similarity of "
            f"{_ALIKE} or more), such as {found.closest[0][:_EXCERPT]!r}. If they belong together, as questions "
            f"about one document do, name the column that says so: {named('group')}"
        )


def _content(problem: Problem) -> str:
    return content_key(problem.question, problem.choices)
