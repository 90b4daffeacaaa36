"""The order in which portions are labelled: their pieces as they become due, and the budget shared in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from fsd_collectors.judging.portion import LabelledPortion
from fsd_collectors.judging.work import Done, Piece


class Schedule:
    """Hands out pieces, takes what became of them, and hands on finished portions in their order.

    A portion gets its share of the budget when those before it have theirs, so it does not depend on who is faster.

    Args:
        portions: those to label; as many are begun as the budget lasts for.
        budget: positions to label at most.
        shared: called with each portion that has its share.
        labelled: called with the number of labels that have come.
        finished: called with each finished portion, in order.
    """

    def __init__(
        self, portions: Iterator[LabelledPortion], budget: int, shared: Callable[[LabelledPortion], None],
        labelled: Callable[[int], None], finished: Callable[[LabelledPortion], None],
    ) -> None:  # fmt: skip
        self._portions, self._left = portions, budget
        self._shared, self._labelled, self._finished = shared, labelled, finished
        self._open: dict[int, LabelledPortion] = {}  # begun ones, by number
        self._due = deque[Piece]()
        self._read: dict[int, Done] = {}  # texts of portions that wait for their share
        self._complete: set[int] = set()
        self._following: int | None = None  # the portion that has the next share
        self.ahead = 1  # portions that may be open at once

    @property
    def over(self) -> bool:
        """Whether all that the budget allows is done."""
        return self._left == 0 and not self._open

    def next(self) -> Piece | None:
        """The next piece; None: there is none now."""
        if self._due:
            return self._due.popleft()
        if self._left == 0 or len(self._open) >= self.ahead or (begun := next(self._portions, None)) is None:
            return None
        self._open[begun.number] = begun
        self._following = begun.number if self._following is None else self._following
        return begun.first

    def take(self, piece: Piece, done: Done) -> None:
        """Takes what became of a piece; of a portion that the budget no longer reaches it is dropped."""
        if piece.portion not in self._open:
            return
        portion = self._open[piece.portion]
        if not portion.own:
            self._read[piece.portion] = done
            self._share()
        else:
            self._labelled(portion.take(done))
            self._go_on(portion)

    def _share(self) -> None:
        """Gives portions their share of the budget, in order, as far as their texts are there."""
        while self._following in self._read:
            assert self._following is not None
            portion = self._open[self._following]
            portion.begin(self._read.pop(self._following))
            self._left -= portion.share(self._left)
            self._shared(portion)
            self._following += 1
            if self._left == 0:
                self._read.clear()
                self._open = {number: each for number, each in self._open.items() if number < self._following}
            self._go_on(portion)

    def _go_on(self, portion: LabelledPortion) -> None:
        if (wave := portion.wave()) is not None:
            self._due.append(wave)
            return
        self._complete.add(portion.number)
        while self._open and (first := min(self._open)) in self._complete:
            self._complete.remove(first)
            self._finished(self._open.pop(first))
