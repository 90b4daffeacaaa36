"""How new prompts get into the caches: what a row holds already is copied, and the rest is read with the next tokens.

Prompts of one task share their beginning (a system prompt, worked examples), which may be most of them. Rows that have
gone on no longer hold the states of recurrent layers after it, so these are set aside when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.drafters.base import Drafter, ReadsTarget
from fsd_decoding.models.runner import ModelDrafter, ModelRunner
from fsd_decoding.models.state_cache import BEGINNINGS
from fsd_decoding.tensors import to_device

_LEAST = 16  # shared tokens from which copying pays
_ALIKE = 0.8  # of the longest prompt that is read with others: the share that each of them has at least

Tokens = npt.NDArray[np.int64]


@dataclass
class _New:
    """A prompt that is put into a row.

    Args:
        row, prompt: which.
        number: its own among the new ones.
        source: a row that holds its first `held` tokens.
        taken: where the states after these were set aside; None: nowhere.
        shared: number of its first tokens that are read before the others, as other prompts begin with them.
        aside: where the states after these are set aside; None: nowhere.
        followers: new prompts that begin with them.
    """

    row: int
    prompt: Tokens
    number: int
    source: int
    held: int
    taken: int | None = None
    shared: int = 0
    aside: int | None = None
    followers: list[_New] = field(default_factory=list)

    def lead(self, other: _New) -> bool:
        """Whether the other follows this one from now on."""
        common = _common(self.prompt, other.prompt, min(len(self.prompt), len(other.prompt)) - 1)
        if common < max(other.held, self.held) + _LEAST:
            return False
        self.shared = min(common, self.shared or common)
        self.followers.append(other)
        return True


class Prompts:
    """Brings prompts into the caches of target and drafter.

    Args:
        target: the target's runner.
        drafter: None: nothing is drafted.
        rows: number of rows.
        joins: whether the drafter's next step may read prompts too; a graph's may not.
    """

    def __init__(self, target: ModelRunner, drafter: Drafter | None, rows: int, joins: bool) -> None:
        self._target, self._drafter, self._joins = target, drafter, joins
        self._target_first = isinstance(drafter, ReadsTarget)
        self._draft_states = getattr(drafter, "has_states", False)
        self._states = target.has_states or self._draft_states
        # By row, tokens whose states the caches have. A row that stays empty over a round, as no request is left, loses
        # some; there are no further prompts then.
        self._held: list[Tokens] = [np.empty(0, np.int64)] * rows
        self._aside: dict[int, Tokens] = {}  # by place, beginnings whose states were set aside, the last used one last

    def put(self, rows: Sequence[int], prompts: Sequence[list[int]], tokens: Tensor) -> None:
        """Reads prompts into rows, or leaves them to the next tokens.

        Args:
            rows: R of them.
            prompts: one for each.
            tokens: (R, n) the same on the device, padded on the right.

        Raises:
            UsageError: a prompt has one token, and the draft's recurrent layers take two.
        """
        if self._draft_states and min(map(len, prompts)) < 2:
            raise UsageError(
                "a prompt has one token, and a draft with recurrent layers begins with two; give a longer prompt, or "
                "another draft"
            )
        new = [np.array(prompt, np.int64) for prompt in prompts]
        leaders = self._leaders(rows, new)
        _put(self._target, leaders, tokens, 1.0 if self._target.has_states else _ALIKE)
        if self._target_first:
            self._target.catch_up()
        if self._drafter is not None:
            _put(self._drafter, leaders, tokens, 1.0 if self._draft_states else _ALIKE)
            if not self._joins:
                self._drafter.catch_up()
        for row, prompt in zip(rows, new, strict=True):
            self._held[row] = prompt

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows except these, which are renumbered in this order."""
        self._held = [self._held[row] for row in rows]

    def _leaders(self, rows: Sequence[int], prompts: Sequence[Tokens]) -> list[_New]:
        """The new prompts, those that follow another within it."""
        leaders: list[_New] = []
        for number, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            shared = [_common(held, prompt, min(len(held), len(prompt) - 1)) for held in self._held]
            source = max(range(len(shared)), key=lambda other: (shared[other], other == row))
            held = shared[source] if shared[source] >= _LEAST else 0
            new = self._new(row, prompt, number, source, held)
            if not any(leader.lead(new) for leader in leaders):
                leaders.append(new)
        if self._states:
            for leader in leaders:
                self._set_aside(leader)
        return leaders

    def _new(self, row: int, prompt: Tokens, number: int, source: int, held: int) -> _New:
        """A prompt of whose first tokens a row holds so many; their states it holds only where they were set aside."""
        if not self._states:
            return _New(row, prompt, number, source if held else row, held)
        # A draft's next step begins with the last token but one.
        begins = {
            place: len(tokens)
            for place, tokens in self._aside.items()
            if len(tokens) <= min(held, len(prompt) - 2) and np.array_equal(tokens, prompt[: len(tokens)])
        }
        taken = max(begins, key=lambda place: begins[place], default=None)
        after = 0 if taken is None else begins[taken]
        if taken is not None:
            self._aside[taken] = self._aside.pop(taken)
        return _New(row, prompt, number, source, after, taken, held if held >= after + _LEAST else 0)

    def _set_aside(self, leader: _New) -> None:
        """Chooses the place of the states after what others begin with, too: that of what was not used for longest."""
        if leader.shared:
            places = [place for place in range(BEGINNINGS) if place not in self._aside]
            leader.aside = places[0] if places else next(iter(self._aside))
            self._aside.pop(leader.aside, None)
            self._aside[leader.aside] = leader.prompt[: leader.shared]


def _put(reader: ModelRunner | Drafter, leaders: Sequence[_New], tokens: Tensor, alike: float) -> None:
    """Reads new prompts: what some share first, once. alike: see `_by_length`."""
    runner = reader if isinstance(reader, ModelRunner | ModelDrafter) else None  # others have no states of their own
    _copy(reader, ((new.source, new.row, new.held) for new in leaders))
    taken = [(new.taken, new.row, new.held) for new in leaders if new.taken is not None]
    if runner is not None and taken:
        runner.take(*zip(*taken, strict=True))
    leading = [leader for leader in leaders if leader.shared]
    for leader in leading:
        _read(reader, [leader], leader.held, leader.shared, tokens)
        if runner is not None and leader.aside is not None:
            runner.set_aside(leader.row, leader.shared, leader.aside)
    if leading:
        reader.catch_up()
    _copy(reader, ((leader.row, new.row, leader.shared) for leader in leading for new in leader.followers))
    begun = [(max(leader.held, leader.shared), new) for leader in leaders for new in (leader, *leader.followers)]
    for start, group in groupby(sorted(begun, key=lambda each: each[0]), key=lambda each: each[0]):
        for together in _by_length([new for _, new in group], start, alike):
            _read(reader, together, start, len(together[0].prompt) - 1, tokens)


def _by_length(prompts: Sequence[_New], start: int, alike: float) -> Iterator[list[_New]]:
    """Yields prompts in groups, the longest of each first: they are read from `start` on, as long as that one.

    Args:
        alike: of the longest, the share that each has at least.
    """
    group: list[_New] = []
    for new in sorted(prompts, key=lambda each: -len(each.prompt)):
        if group and len(new.prompt) - start < alike * (len(group[0].prompt) - start):
            yield group
            group = []
        group.append(new)
    yield group


def _read(reader: ModelRunner | Drafter, prompts: Sequence[_New], start: int, until: int, tokens: Tensor) -> None:
    rows, numbers = to_device([[new.row for new in prompts], [new.number for new in prompts]], tokens.device)
    reader.prefill(rows, tokens[numbers], until, start)


def _copy(reader: ModelRunner | Drafter, copies: Iterable[tuple[int, int, int]]) -> None:
    """Copies the first tokens of rows: (source, row, how many)."""
    moved = [copy for copy in copies if copy[0] != copy[1]]
    if moved:
        sources, rows, counts = zip(*moved, strict=True)
        reader.copy(sources, rows, max(counts))  # what is copied beyond a row's own is read anew


def _common(a: Tokens, b: Tokens, most: int) -> int:
    """The number of first tokens, at most so many, that two texts have in common."""
    differs = a[:most] != b[:most]
    return int(differs.argmax()) if differs.any() else most
