"""Switching from one policy to another at some point of a text, such as the end of its first sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_common.errors import UsageError
from fsd_decoding.policies.composed import Composed, Scaled, check_no_budget, parts_of
from fsd_decoding.policies.rounds import RoundOutcome, RoundState
from fsd_decoding.policies.threshold import Array, ThresholdPolicy
from fsd_decoding.text import per_tokenizer

_MARKS = ".!?\u2026\u3002\uff01\uff1f"  # Latin, Chinese and Japanese
_CLOSING = "'\"\u201d\u2019\u00bb)\\]*_"  # what may follow a mark in the same token
_ENDS = re.compile(rf"[{_MARKS}][{_CLOSING}]*\s*$|\n")
_MEMORY = "first sentence ended"


class FirstSentenceEnded:
    """Condition that is True of every token after the completion's first full stop, question mark, exclamation mark or
    line break.

    Marks are looked for in single tokens, so the point of "3.5" is a full stop if a token ends with it. The value at a
    drafted token depends only on the text before it, not on how that was divided into rounds.
    """

    name = "first sentence ended"

    def __init__(self) -> None:
        self._ends: Tensor | None = None

    def check(self, tokenizer: Any | None) -> None:
        """Looks up which tokens end a sentence; without a tokenizer this remains unknown and decoding fails."""
        self._ends = None if tokenizer is None else _sentence_ends(tokenizer)

    def __call__(self, state: RoundState) -> Tensor:
        """Returns (B, L) bool, one per drafted token."""
        ending = self._is_end(state, state.proposal.drafted)
        ends_so_far = ending.cumsum(1) + state.memory.column(_MEMORY)[:, None]  # including the token itself
        return ends_so_far > ending

    def observe(self, outcome: RoundOutcome) -> None:
        proposal = outcome.state.proposal
        emitted = proposal.tokens.gather(1, proposal.positions)  # (B, L + 1): after the round `tokens` holds these
        stays = torch.arange(emitted.shape[1], device=emitted.device) < outcome.kept[:, None]
        ended = (self._is_end(outcome.state, emitted) & stays).any(1)
        outcome.state.memory.column(_MEMORY).masked_fill_(ended, 1.0)

    def _is_end(self, state: RoundState, ids: Tensor) -> Tensor:
        if self._ends is None:
            raise UsageError(
                "the end of the first sentence cannot be found without a tokenizer; pass one to the decoder "
                "(fsd_generate takes it as fsd_tokenizer)"
            )
        missing = state.proposal.target_logits.shape[-1] - len(self._ends)
        if missing > 0 or self._ends.device != ids.device:  # ids beyond the tokenizer end no sentence
            self._ends = pad(self._ends, (0, max(missing, 0))).to(ids.device)
        return self._ends[ids]


@per_tokenizer
def _sentence_ends(tokenizer: Any) -> Tensor:
    """Returns a bool for each of the tokenizer's ids: (V,)."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    return torch.tensor([_ENDS.search(text) is not None for text in texts])


When = Callable[[RoundState], Tensor]
"""Where the second policy applies: bool on the device, (B,), one per row, or (B, L), one per drafted token. Like
scales, it must follow from the row's own text and logits."""


class Switch(Composed):
    """Sets T by `first`, and by `then` where `when` is True.

    Both policies see every round throughout the text. Neither may be a budget.

    Raises:
        UsageError: `when` is not callable, or a policy is a budget.
    """

    def __init__(self, first: ThresholdPolicy, then: ThresholdPolicy, when: When) -> None:
        if not callable(when):
            raise UsageError(f"when is {when!r:.60}; it must be a function of a RoundState that returns a bool tensor")
        self.when = when
        super().__init__(first, then)
        check_no_budget(self)

    @classmethod
    def after_sentence(cls, strict: ThresholdPolicy, loose: ThresholdPolicy) -> Self:
        """Returns a switch that uses `strict` for a completion's first sentence and `loose` after it."""
        return cls(strict, loose, FirstSentenceEnded())

    def combine(self, outputs: Sequence[Tensor], state: RoundState) -> Tensor:
        first, then = outputs
        return torch.where(self._condition(state), then, first)

    @property
    def listens(self) -> bool:
        own = type(self).observe is not Switch.observe or isinstance(self.when, FirstSentenceEnded)
        return own or any(policy.listens for policy in self.policies)

    def observe(self, outcome: RoundOutcome) -> None:
        super().observe(outcome)
        if isinstance(self.when, FirstSentenceEnded):
            self.when.observe(outcome)

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        super().check(models, tokenizer, rule, divergence)
        if isinstance(self.when, FirstSentenceEnded):
            self.when.check(tokenizer)

    def _condition(self, state: RoundState) -> Tensor:
        """Returns `when` as (B, 1) or (B, L) bool. Raises UsageError if it has another shape or type."""
        output: object = self.when(state)
        rows, drafts = state.proposal.drafted.shape
        if isinstance(output, Tensor) and output.dtype == torch.bool and output.shape in ((rows,), (rows, drafts)):
            return output.reshape(rows, -1) if output.dim() == 1 else output
        shown = " ".join(repr(output).split())
        raise UsageError(
            f"the when of a Switch returned {shown:.80}; it must return a bool tensor of shape ({rows},), one per row, "
            f"or ({rows}, {drafts}), one per drafted token"
        )


class ScaledSwitch(Scaled, Switch):
    """`Switch` of scale policies."""

    name: ClassVar = "switch"

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        if parameters["when"] != FirstSentenceEnded.name:
            raise UsageError(f"unknown when {parameters['when']!r:.60}; known: {FirstSentenceEnded.name}")
        return cls(*parts_of(parameters), FirstSentenceEnded())

    def traced(self, columns: Mapping[str, Array]) -> Array:
        raise UsageError("Switch cannot be replayed: traces do not record where it switches; decode instead")

    def _has_identity(self) -> bool:
        return super()._has_identity() and isinstance(self.when, FirstSentenceEnded)

    def _parameters(self) -> dict[str, Any]:
        return {**super()._parameters(), "when": FirstSentenceEnded.name}


Switch.scaled = ScaledSwitch
ScaledSwitch.__name__ = "Switch"  # messages use the name that users wrote
