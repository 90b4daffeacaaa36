"""Whether a server is lossless: its answers beside those of a lossless reference, with its own noise as the floor.

Greedy texts are compared whole. Where tokens are sampled, texts have noise of their own, so their first tokens and
their outcomes are: each by half of the stated error rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

from fsd_calib.options.server import merged
from fsd_calib.servers.client import NoAnswerError, side_by_side
from fsd_calib.servers.exchangeable import Differing, compare, least_p_value
from fsd_calib.servers.requests import ServerEngine, prompts_of
from fsd_calib.servers.served import Way
from fsd_calib.tasks.base import Problem, Task
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress

_BEGINNING = 12  # tokens of a sampled text that are compared: later ones follow from what came before
_OF_BEGINNING = 4  # times as often as whole texts they are asked for: they take little
_TOP = 5  # likeliest tokens that a server is asked for where texts part
_EXPLAINED = 10  # texts
_BEFORE, _AFTER = 30, 40  # characters that are shown around the place where texts part


Texts = list[list[str]]
"""Of each prompt, the texts of one side."""


class Parting(NamedTuple):
    """Where a greedy text of one side parts from the other's.

    Attributes:
        before: The end of what both have.
        reference, other: How they go on.
        gap: By how many nats the reference prefers its own token there; None: the server does not tell, or the other's
            token is not among its likeliest.
    """

    problem: int
    at: int
    before: str
    reference: str
    other: str
    gap: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        found: By what was compared: "texts", or "beginnings" and "outcomes".
        level: The probability, at most, that a lossless server is called lossy.
        partings: Of texts, one for each prompt whose texts differ across the sides.
        prompts, times: How many prompts were asked, and how often from each side.
        unanswered: Prompts that are left out, since one side did not answer them.
    """

    found: dict[str, Differing]
    level: float
    partings: Sequence[Parting]
    prompts: int
    times: int
    unanswered: int

    @property
    def p_value(self) -> float:
        """The smallest one, times their number (Bonferroni)."""
        return min(min(each.p_value for each in self.found.values()) * len(self.found), 1.0)

    @property
    def lossless(self) -> bool:
        """Whether nothing shows that the server decodes by another law than the reference."""
        return self.p_value > self.level


@dataclass(frozen=True)
class Check:
    """A check of one server.

    Args:
        engine: Makes the bodies of requests.
        reference, other: Both sides.
        times: How often each prompt is asked from each side.
        level: See `Verdict`.
    """

    engine: ServerEngine
    task: Task
    reference: Way
    other: Way
    times: int
    level: float
    progress: Progress

    def run(self) -> Verdict:
        """Asks both sides and compares what they answer. UsageError: a server does not answer."""
        tests = 1 if self.engine.decoding.sampling.greedy else 2
        if (least := least_p_value(len(self.task.problems), self.times)) * tests > self.level:
            raise UsageError(
                f"{len(self.task.problems)} prompts, asked {self.times} times from each side, show p = "
                f"{least * tests:.2g} at least, and the level is {self.level:g}; ask more (prompts, times)"
            )
        problems, reference, other, left_out = self._both(self.task.problems, self.times)
        if self.engine.decoding.sampling.greedy:
            found = {"texts": compare(reference, other)}
            partings = list(self._explained(_partings(problems, reference, other)))
            return Verdict(found, self.level, partings, len(problems), self.times, left_out)
        graded, of_other = (
            [self._graded(*of) for of in zip(problems, side, strict=True)] for side in (reference, other)
        )
        _, begun, begun_by_other, _ = self._both(problems, _OF_BEGINNING * self.times, max_tokens=_BEGINNING, stop=[])
        found = {"beginnings": compare(begun, begun_by_other), "outcomes": compare(graded, of_other)}
        return Verdict(found, self.level, (), len(problems), self.times, left_out)

    def _both(
        self, problems: Sequence[Problem], times: int, **fields: Any
    ) -> tuple[Sequence[Problem], Texts, Texts, int]:
        """Asks both sides; returns the problems that both answered each time, their texts, and how many they are not.

        Each time the requests of both sides come in one order, drawn anew, and by other numbers at once: so whatever
        changes in the meantime changes both sides alike, and prompts share their batches with others.

        Args:
            fields: Further ones of requests.
        """
        sides, order = (self.reference, self.other), Random(0)
        found: list[list[list[str | None]]] = [[[] for _ in problems] for _ in sides]
        with self.progress.step("asking both sides", 2 * times * len(problems)) as advance:
            for time in range(times):
                streams = max(self.engine.served.description.at_once >> (time % 3), 1)
                jobs = [(side, place) for side in range(2) for place in range(len(problems))]
                asked = order.sample(jobs, len(jobs))
                texts = self._texts([(sides[side], problems[place]) for side, place in asked], streams, time, fields)
                for (side, place), text in zip(asked, texts, strict=True):
                    found[side][place].append(text)
                advance(len(jobs))
        kept = [place for place in range(len(problems)) if None not in (*found[0][place], *found[1][place])]
        if not kept:
            raise UsageError(f"no prompt was answered by both sides; look at the logs of {self.other.client.url}")
        reference, other = ([[text for text in side[place] if text is not None] for place in kept] for side in found)
        return [problems[place] for place in kept], reference, other, len(problems) - len(kept)

    def _graded(self, problem: Problem, texts: Sequence[str]) -> list[bool]:
        return [self.task.grade(problem, text) for text in texts]

    def _texts(
        self, jobs: Sequence[tuple[Way, Problem]], streams: int, time: int, fields: dict[str, Any]
    ) -> list[str | None]:
        """The texts of requests, so many at once; None: unanswered."""
        texts: list[str | None] = [None] * len(jobs)
        left = iter(range(len(jobs)))

        async def stream() -> None:
            for place in left:
                way, problem = jobs[place]
                body = merged(merged(self._body(problem, time), fields), way.fields)
                with suppress(NoAnswerError):
                    texts[place] = (await way.client.ask(body)).text

        self.other.client.run(side_by_side(stream() for _ in range(streams)))
        return texts

    def _body(self, problem: Problem, time: int) -> dict[str, Any]:
        """A request whose noise is its own: the sides are compared by their laws."""
        (prompt,) = prompts_of([problem])
        body = self.engine.body(prompt, time)
        return body if self.engine.decoding.sampling.greedy else body | {"seed": self._seeds.getrandbits(31)}

    @cached_property
    def _seeds(self) -> Random:
        return Random()

    def _explained(self, partings: Sequence[Parting]) -> Iterator[Parting]:
        """Yields the partings, the first ones with how near the reference was to the other token."""
        by_id = {problem.id: problem for problem in self.task.problems}
        for number, parting in enumerate(partings):
            if number >= _EXPLAINED:
                yield parting
                continue
            body = merged(self._body(by_id[parting.problem], 0), self.reference.fields)
            chat = self.engine.served.description.endpoint == "chat"
            body |= {"logprobs": True, "top_logprobs": _TOP} if chat else {"logprobs": _TOP}
            likeliest = self.reference.client.run(self.reference.client.likeliest(body, parting.at))
            yield replace_gap(parting, likeliest)


def replace_gap(parting: Parting, likeliest: dict[str, float]) -> Parting:
    """Returns a parting with its gap, where both tokens are among the likeliest, by their texts."""
    own, other = (
        max((logprob for token, logprob in likeliest.items() if token and text.startswith(token)), default=None)
        for text in (parting.reference, parting.other)
    )
    return parting if own is None or other is None else parting._replace(gap=own - other)


def _partings(problems: Sequence[Problem], reference: Texts, other: Texts) -> list[Parting]:
    """Where the other side's first text parts from the reference's, unless the reference wrote it, too."""
    found = []
    for problem, mine, theirs in zip(problems, reference, other, strict=True):
        if theirs[0] in mine:
            continue
        at = next((i for i, (a, b) in enumerate(zip(mine[0], theirs[0], strict=False)) if a != b), None)
        at = min(len(mine[0]), len(theirs[0])) if at is None else at
        before = mine[0][max(at - _BEFORE, 0) : at]
        found.append(Parting(problem.id, at, before, mine[0][at : at + _AFTER], theirs[0][at : at + _AFTER]))
    return found


def checked_task(task: Task, prompts: int) -> Task:
    """Returns a task with so many of its problems."""
    return replace(task, problems=task.problems[:prompts])
