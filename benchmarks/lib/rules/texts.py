"""Every text that a rule writes of a problem, each with the interval of T for which it is written.

The texts of all rules are paths through one tree of rounds: a rule says at each round how many drafted tokens it keeps.
A path that leaves the tree asks for the round that follows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from fsd_calib import SpeculativeDecoder
from fsd_calib.tasks.base import Problem, Task
from fsd_decoding.batch import Request
from fsd_decoding.text import StopStrings, cut_before
from lib.rules.judges import Judge, Panel
from lib.rules.rounds import Round, RoundMaker

LOSSLESS = -1.0


class End(NamedTuple):
    """The end of a text."""

    correct: bool
    tokens: int  # EOS included


class Text(NamedTuple):
    """What a judge writes of a problem for every T in [lo, hi), with `Result`'s counts."""

    lo: float
    hi: float
    correct: bool
    tokens: int
    rounds: int
    drafted: int
    accepted: int


Texts = Mapping[Judge, list[Text]]
Asking = Generator[list[int], Round, Texts]
"""Asks for the round that follows the given new tokens, and returns the texts of a problem."""


class Writer:
    """Writes texts of a task's problems.

    Args:
        panel: what judges the rounds that it is given.
    """

    def __init__(self, decoder: SpeculativeDecoder, task: Task, panel: Panel) -> None:
        self._tokenizer, self._task, self._panel, self._eos = decoder.tokenizer, task, panel, decoder.eos
        self._stops = StopStrings(decoder.tokenizer, task.stop) if task.stop else None

    def texts(self, problem: Problem, most: int) -> Asking:
        """Returns the texts of a problem, of at most `most` tokens: of each judge, in the order of T."""
        root = yield []
        found = dict[Judge, list[Text]]()
        threshold: float | None
        for judge in self._panel.judges:
            found[judge], threshold = [], LOSSLESS
            while threshold is not None:
                text = yield from self._text(problem, most, root, judge, threshold)
                found[judge].append(text)
                threshold = self._panel.following(judge, text.hi)
        return found

    def _text(
        self, problem: Problem, most: int, node: Round, judge: Judge, threshold: float
    ) -> Generator[list[int], Round, Text]:
        rule, score = self._panel.place(judge)
        lo, hi, rounds, drafted, accepted, tokens = LOSSLESS, math.inf, 0, 0, 0, list[int]()
        while True:
            by_score, rejecting = [], math.inf  # the scores of kept tokens by place, and that of the one rejected
            kept, scores, count = node.kept[rule], None if score is None else node.scores[score], 0
            for token, exact in zip(node.drafted, kept, strict=False):
                if not exact:
                    if scores is None:
                        break
                    rejecting = scores[count]
                    if not (rejecting <= threshold and math.isfinite(rejecting)):
                        break
                    by_score.append((count, rejecting))
                    rejecting = math.inf
                count += 1
                if token in self._eos:
                    break
            whole = count == len(node.drafted)
            last = node.bonus if whole else node.fallback[rule][count]
            new, ended = self._cut(most, tokens, [*node.drafted[:count], last])
            lo = max([lo, *(value for place, value in by_score if place < len(new))])
            if len(new) > count:
                hi = min(hi, rejecting)
            tokens += new
            rounds, drafted, accepted = rounds + 1, drafted + len(node.drafted), accepted + min(count, len(new))
            step = count, last
            if step not in node.after:
                node.after[step] = self._end(problem, tokens) if ended else (yield list(tokens))
            following = node.after[step]
            if isinstance(following, End):
                return Text(lo, hi, *following, rounds, drafted, accepted)
            node = following

    def _cut(self, most: int, before: list[int], candidates: list[int]) -> tuple[list[int], bool]:
        """What a text keeps of a round's tokens, and whether it ends, as the engine does."""
        kept = candidates[: most - len(before)]
        ended = next((place for place, token in enumerate(kept) if token in self._eos), None)
        text = kept if ended is None else kept[:ended]
        if self._stops is not None:
            stopped = self._stops.completed_at(before + text, len(text))
            if stopped is not None:
                return kept[: stopped - len(before)], True
        if ended is not None:
            return kept[: ended + 1], True
        return kept, len(before) + len(kept) == most

    def _end(self, problem: Problem, tokens: list[int]) -> End:
        written = [token for token in tokens if token not in self._eos]
        return End(self._task.grade(problem, cut_before(self._tokenizer, written, self._task.stop)), len(tokens))


def write(
    decoder: SpeculativeDecoder,
    task: Task,
    problems: Sequence[tuple[int, Problem]],
    panel: Panel,
    rows: int,
    until: float = math.inf,
) -> Iterator[tuple[int, Texts]]:
    """Yields all texts of numbered problems, as they are finished.

    Args:
        rows: problems at once.
        until: no other problem is begun after this time, in seconds since the epoch.
    """
    requests = decoder.requests(
        [problem.prompt for _, problem in problems], task.max_new_tokens, [problem.id for _, problem in problems]
    )
    rows = min(rows, len(problems))
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    maker, writer = RoundMaker(decoder, panel, rows, longest), Writer(decoder, task, panel)
    waiting = takewhile(lambda _: time.time() < until, zip(problems, requests, strict=True))
    begun = (_Row.begin(writer, *each) for each in waiting)
    asking = [next(begun, None) for _ in range(rows)]
    while any(asking):
        for place, made in enumerate(maker.make([None if row is None else row.asked for row in asking])):
            row = asking[place]
            if row is not None and made is not None and (texts := row.answer(made)) is not None:
                yield row.number, texts
                asking[place] = next(begun, None)


@dataclass
class _Row:
    """A problem whose texts are being written. asked: the text that a round is to follow."""

    number: int
    request: Request
    asking: Asking
    asked: Request

    @classmethod
    def begin(cls, writer: Writer, numbered: tuple[int, Problem], request: Request) -> _Row:
        asking = writer.texts(numbered[1], request.max_new_tokens)
        next(asking)
        return cls(numbered[0], request, asking, request)

    def answer(self, made: Round) -> Texts | None:
        """Goes on with the round that was asked for; returns all texts when they are finished."""
        try:
            tokens = self.asking.send(made)
        except StopIteration as finished:
            texts: Texts = finished.value
            return texts
        left = self.request.max_new_tokens - len(tokens)
        prompt = self.request.prompt + tokens
        self.asked = replace(self.request, prompt=prompt, max_new_tokens=left, begun=len(tokens))
        return None
