"""Steps of greedy requests on a CPU: D only of tokens that the exact rule rejects, and what a step emits.

It is known at once there which drafted tokens are the target's argmax, and few are not. A GPU would have to wait for
that. All is plain Python: there are few tokens, and arrays would take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_calib.vllm_plugin.certain import accept_certainly
from fsd_calib.vllm_plugin.draft_logits import Layout
from fsd_decoding.scores import window_kept

Array = NDArray[Any]


class Rejected(NamedTuple):
    """A drafted token that the exact rule rejects and D may accept."""

    token: int  # its place among all N drafted tokens of the step
    place: int  # its place in its draft
    row: int  # of its request in `KeptLogits`
    threshold: float  # T


Look = Callable[[Sequence[Rejected]], tuple[Sequence[float], Sequence[bool]]]
"""Returns D of tokens, and whether it is at most T."""


class JudgedOnHost:
    """Tokens of greedy requests, judged on the host.

    Args:
        counts: B numbers of drafted tokens.
        rows: of the B requests in `KeptLogits`; None: the logits of their drafts are not known.
        accepted: whether the exact rule accepts a token: N.
    """

    def __init__(self, counts: Sequence[int], rows: Sequence[int | None], accepted: Sequence[bool]) -> None:
        self._counts, self._rows, self._accepted = counts, rows, accepted
        self._scores: dict[int, float] = {}
        self.fuzzy: list[int] = []  # the tokens with D <= T

    def look(self, thresholds: Sequence[float], look: Look, few: int) -> None:
        """Compares D with T for tokens that the exact rule rejects: each request's first, then those behind it.

        A request whose first one is rejected by D, too, reaches no other. Few tokens are looked at all together, since
        a call takes longer than a token.

        Args:
            thresholds: T of the B requests; below 0: it is decoded exactly.
            few: number of tokens whose D takes little longer than a call, and which memory allows at once.
        """
        rejected = self._rejected(thresholds)
        every = list(chain.from_iterable(rejected))
        if len(every) <= few:
            self._note(every, look, few)
            return
        self._note([first for first, *_ in rejected], look, few)
        passed = set(self.fuzzy)
        behind = (others for first, *others in rejected if first.token in passed)
        self._note(list(chain.from_iterable(behind)), look, few)

    def _rejected(self, thresholds: Sequence[float]) -> list[list[Rejected]]:
        """Returns the tokens of each request that has some."""
        found, begin = [], 0
        for count, row, threshold in zip(self._counts, self._rows, thresholds, strict=True):
            end = begin + count
            if row is not None and threshold >= 0 and not all(self._accepted[begin:end]):
                found.append([
                    Rejected(token, token - begin, row, threshold)
                    for token in range(begin, end) if not self._accepted[token]
                ])  # fmt: skip
            begin = end
        return found

    def _note(self, tokens: Sequence[Rejected], look: Look, few: int) -> None:
        for begin in range(0, len(tokens), few):
            part = tokens[begin : begin + few]
            for each, score, fuzzy in zip(part, *look(part), strict=True):
                self._scores[each.token] = score
                if fuzzy:
                    self.fuzzy.append(each.token)

    def accept(self, logits: Tensor, drafted: Tensor) -> None:
        """As of `Judged`."""
        if self.fuzzy:
            at = torch.tensor(self.fuzzy)
            rows = logits[at]
            accept_certainly(rows, drafted[at], torch.ones(len(at), dtype=torch.bool))
            logits[at] = rows

    @cached_property
    def layout(self) -> Layout:
        """As of `Judged`."""
        return Layout(*zip(*(
            (0, 0) if row is None else (count, row) for count, row in zip(self._counts, self._rows, strict=True)
        ), strict=True))  # fmt: skip

    @cached_property
    def facts(self) -> Array:
        """As of `Judged`. D is infinite where it was not needed."""
        facts = np.zeros((3, len(self._accepted)))
        facts[0] = np.inf
        facts[0, list(self._scores)] = list(self._scores.values())
        facts[1, self.fuzzy] = 1
        facts[2] = self._accepted
        return facts if self.layout.count == len(self._accepted) else facts[:, self._known]

    @property
    def _known(self) -> Array:
        """Which tokens' drafts' logits are known: (N,) bool."""
        return np.repeat([row is not None for row in self._rows], self._counts)


def window_fails(accepted: Sequence[bool], counts: Sequence[int], window: int) -> list[bool]:
    """Returns after which tokens the exact rule does not accept as many as a score needs: N."""
    kept = window_kept(torch.tensor(accepted), window).numpy() & (Layout(counts).after >= window)
    return [*~kept]


def emit(counts: Sequence[int], drafted: Sequence[int], kept: Sequence[bool], chosen: Sequence[int]) -> list[list[int]]:
    """Returns what vLLM's rejection sampler does for greedy requests: B rows of L + 1 ids, padded with -1.

    These are the tokens before a draft's first one that is not kept, and the target's own at that place.

    Args:
        counts: B numbers of drafted tokens.
        drafted: N ids.
        kept: which are accepted where all before them are: N.
        chosen: the target's tokens at the drafted ones and behind the last one of each request: N + B.
    """
    most, begin, found = max(counts), 0, []
    for request, count in enumerate(counts):
        end = begin + count
        first = next((token for token in range(begin, end) if not kept[token]), end)
        found.append([*drafted[begin:first], chosen[first + request], *[-1] * (most - first + begin)])
        begin = end
    return found
