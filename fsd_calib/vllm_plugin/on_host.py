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
    """The drafted tokens of a request that the exact rule rejects and D may accept."""

    tokens: Sequence[int]  # their places among all N drafted tokens of the step
    begin: int  # that of the draft's first token
    row: int  # of the request in `KeptLogits`
    threshold: float  # T

    def part(self, tokens: slice) -> Rejected:
        return self._replace(tokens=self.tokens[tokens])


Look = Callable[[Sequence[Rejected]], tuple[Sequence[float], Sequence[bool]]]
"""Returns D of all tokens of some requests, in order, and whether it is at most T."""


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
            few: number of tokens whose D takes little longer than a call.
        """
        rejected = [each for each in self._rejected(thresholds) if each.tokens]
        if sum(len(each.tokens) for each in rejected) <= few:
            self._note(rejected, look)
            return
        self._note([each.part(slice(1)) for each in rejected], look)
        passed = set(self.fuzzy)
        behind = [each.part(slice(1, None)) for each in rejected if each.tokens[0] in passed]
        self._note([each for each in behind if each.tokens], look)

    def _rejected(self, thresholds: Sequence[float]) -> list[Rejected]:
        found, begin = [], 0
        for count, row, threshold in zip(self._counts, self._rows, thresholds, strict=True):
            end = begin + count
            if row is not None and threshold >= 0:
                tokens = [token for token in range(begin, end) if not self._accepted[token]]
                found.append(Rejected(tokens, begin, row, threshold))
            begin = end
        return found

    def _note(self, rejected: Sequence[Rejected], look: Look) -> None:
        if not rejected:
            return
        tokens = list(chain.from_iterable(each.tokens for each in rejected))
        scores, fuzzy = look(rejected)
        self._scores.update(zip(tokens, scores, strict=True))
        self.fuzzy += [token for token, is_fuzzy in zip(tokens, fuzzy, strict=True) if is_fuzzy]

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
