"""A T for one phase of a text, such as that in which a model thinks, and another one for the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_common.argument_checks import marker, number
from fsd_common.errors import UsageError
from fsd_decoding.policies.markers import Automaton, Marker, automaton
from fsd_decoding.policies.threshold import Array, NewRequests, RoundOutcome, RoundState, Shape, TracedText, share
from fsd_decoding.tensors import to_device
from fsd_decoding.trees import Tree

_MEMORY = "state between the markers"


class Phase(Shape):
    """One T inside a phase of the text, between two markers, and another one outside.

    The phase of a token is that of the text before it, the prompt included and tokens drafted in the same round too. So
    the tokens of the begin marker are outside, and those of the end marker inside. Phases may come again.

    Args:
        inside, outside: T of both; at 0 or below tokens are accepted by the exact rule alone.
        begin, end: the markers: texts, however they are divided into tokens, or ids of tokens. `thinking_markers`
            returns those of a tokenizer.
    """

    name: ClassVar = "phase"
    columns = ("problem", "position")

    def __init__(self, inside: float, outside: float, begin: Marker, end: Marker) -> None:
        given = [number("T inside", inside), number("T outside", outside)]
        self.threshold = max(given)
        if not 0 < self.threshold < math.inf:
            raise UsageError(
                f"T is {inside:g} inside and {outside:g} outside the phase; the larger one must be finite and above 0 "
                "(Constant(-1) is lossless)"
            )
        self.scale_inside, self.scale_outside = (share(max(each, 0.0), self.threshold) for each in given)
        self.least = min(scale for scale in (self.scale_inside, self.scale_outside) if scale)
        self.markers = marker("begin", begin), marker("end", end)
        self.identity = self.describe(
            inside=self.scale_inside, outside=self.scale_outside, begin=self.markers[0], end=self.markers[1]
        )
        self._automaton: Automaton | None = None
        self._inside: Mapping[int, NDArray[np.bool_]] = {}  # whether each token of a text is inside, by its problem

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(**parameters)

    @property
    def reading(self) -> Automaton:
        """Reads where a text is; known once `check` or `knowing` has seen the tokenizer."""
        assert self._automaton is not None
        return self._automaton

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        self._automaton = automaton(tokenizer, self.markers)

    def start(self, new: NewRequests) -> None:
        states = [self.reading.read(request.prompt)[-1] for request in new.requests]
        column = new.memory.column(_MEMORY)
        column[new.rows] = to_device(states, column.device, column.dtype)

    def scales(self, state: RoundState) -> Tensor:
        proposal, begun = state.proposal, _remembered(state)
        if proposal.tree is None:
            return self.scales_at(self.reading.along(begun, proposal.drafted)[:, :-1])
        return self.scales_at(_along_tree(self.reading, begun, proposal.tree))

    def scales_at(self, states: Tensor) -> Tensor:
        """Returns the scales (…) at states of `reading` (…)."""
        outside = torch.full_like(states, self.scale_outside, dtype=torch.float64)
        return outside.masked_fill_(states >= self.reading.inside, self.scale_inside)

    def observe(self, outcome: RoundOutcome) -> None:
        proposal = outcome.state.proposal
        width = proposal.positions.shape[1] if proposal.tree is None else proposal.tree.draft_length + 1
        places = proposal.positions[:, :1] + torch.arange(width, device=proposal.positions.device)
        emitted = proposal.tokens.gather(1, places)  # after the round `tokens` holds these
        along = self.reading.along(_remembered(outcome.state), emitted)
        outcome.state.memory.column(_MEMORY).copy_(along.gather(1, outcome.kept[:, None]).squeeze(1))

    def knowing(self, texts: Mapping[int, TracedText], tokenizer: Any) -> Self:
        informed = copy(self)
        informed._automaton = automaton(tokenizer, self.markers)
        informed._inside = {problem: informed._inside_of(text) for problem, text in texts.items()}
        return informed

    def traced(self, columns: Mapping[str, Array]) -> Array:
        """As `ScalePolicy.traced`. Raises UsageError if a text is unknown, see `knowing`."""
        begins = np.flatnonzero(columns["position"] == 0)
        rows = np.diff(begins, append=len(columns["position"]))
        parts = [self._known(int(problem))[-n:] for problem, n in zip(columns["problem"][begins], rows, strict=True)]
        return np.where(np.concatenate([np.zeros(0, bool), *parts]), self.scale_inside, self.scale_outside)

    def _inside_of(self, text: TracedText) -> NDArray[np.bool_]:
        states = self.reading.read([*text.prompt, *text.tokens])[len(text.prompt) : -1]
        return np.array(states, np.int64) >= self.reading.inside

    def _known(self, problem: int) -> NDArray[np.bool_]:
        if problem not in self._inside:
            raise UsageError(f"Phase does not know the text of problem {problem}; pass it to knowing()")
        return self._inside[problem]


def _remembered(state: RoundState) -> Tensor:
    """The states of texts before a round: (B,)."""
    return state.memory.column(_MEMORY).long()


def _along_tree(reading: Automaton, begun: Tensor, tree: Tree) -> Tensor:
    """The states after nodes 0 … N - 1 of trees: (B, N), those of node 0 being `begun` (B,)."""
    parents, tokens = tree.parents[:, :-1], tree.tokens[:, :-1]
    root = begun.unsqueeze(1)
    states = root.expand(-1, tree.tokens.shape[1])
    for _ in range(tree.draft_length - 1):  # so many levels have children; each pass is right for one more
        states = torch.cat([root, reading.after(states.gather(1, parents), tokens)], 1)
    return states
