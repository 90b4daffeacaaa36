"""What labelling will cost, said before the first swap is made."""

from __future__ import annotations

from collections.abc import Callable

from fsd_collectors.judging.portion import LabelledPortion
from fsd_collectors.judging.work import Done, Piece
from fsd_common.formatting import clock


class Plan:
    """Says once what labels will cost, by the first portion's texts.

    Args:
        budget: positions that may still be labelled.
        problems: those that are left.
        workers: processes that decode.
        say: receives the line.
    """

    def __init__(self, budget: int, problems: int, workers: int, say: Callable[[str], None]) -> None:
        self._budget, self._problems, self._workers, self._say = budget, problems, workers, say
        self._seconds: dict[int, float] = {}  # that the texts of portions took
        self._said = False

    def done(self, piece: Piece, done: Done) -> None:
        """Takes the time of the first pieces."""
        self._seconds.setdefault(piece.portion, done.seconds)

    def shared(self, portion: LabelledPortion) -> None:
        """Says the plan, where this portion is the first that has its share of the budget."""
        if self._said:
            return
        self._said = True
        own = portion.own
        places = [(each, each.swappable(portion.mode).position) for each in own]
        each = sum(portion.quotas) / len(own)  # labels of a problem
        written = sum(text.text.emitted for text in own)
        behind = sum(int((text.text.emitted - position - 1).sum()) for text, position in places)
        mismatches = sum(len(position) for _, position in places)
        right = sum(text.correct for text in own)
        found = f"of the first {len(own)} texts {right} are right, with {mismatches} mismatches to label"
        if not mismatches:
            self._say(f"{found}; what labels will cost shows when there are some")
            return
        labels = min(self._budget, round(each * self._problems))
        texts = min(self._problems, round(labels / each))
        tokens = round(texts * written / len(own) + labels * behind / mismatches)
        seconds = tokens * self._seconds[portion.number] / written / self._workers
        what = "continuations" if portion.mode == "outcome" else "readings"
        self._say(
            f"{found}: {labels:,} labels take about {texts:,} texts, {labels:,} {what}, {tokens:,} tokens and "
            f"{clock(seconds)}"
        )
