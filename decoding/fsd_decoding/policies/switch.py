"""One policy at first, another from some point of the text on. Knows the point as a function of rounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.errors import UsageError
from fsd_decoding.policies.composed import Composed, Scaled, check_no_budget, rebuilt
from fsd_decoding.policies.threshold import Array, RoundOutcome, RoundState, ThresholdPolicy
from fsd_decoding.text import per_tokenizer

# MERGED: """Whether a text's first sentence has ended. Knows token ids, on the device, and how their texts end."""


_MARKS = ".!?\u2026\u3002\uff01\uff1f"  # those of Chinese and Japanese too
_CLOSING = "'\"\u201d\u2019\u00bb)\\]*_"  # what may stand behind one
_ENDS = re.compile(rf"[{_MARKS}][{_CLOSING}]*\s*$|\n")
_MEMORY = "first sentence ended"


class FirstSentenceEnded:
    """True of every token behind the completion's first full stop, question or exclamation mark, or line break.

    Marks are looked for in tokens one by one, so the point of "3.5" is a full stop where a token ends with it. What is
    said of a drafted token follows from the text before it alone, however that was divided into rounds.
    """

    name = "first sentence ended"

    def __init__(self) -> None:
        self._ends: Tensor | None = None

    def check(self, tokenizer: Any | None) -> None:
        """Whose tokens these are; None: nobody's, so no sentence's end is known."""
        self._ends = None if tokenizer is None else _ends(tokenizer)

    def __call__(self, state: RoundState) -> Tensor:
        """(B, L) bool, of the drafted tokens."""
        ending = self._ending(state, state.proposal.drafted)
        until = ending.cumsum(1) + state.memory.column(_MEMORY)[:, None]  # ends, each token's own among them
        return until > ending

    def observe(self, outcome: RoundOutcome) -> None:
        proposal = outcome.state.proposal
        brought = proposal.tokens.gather(1, proposal.positions)  # (B, L + 1): by now what was emitted
        stays = torch.arange(brought.shape[1], device=brought.device) < outcome.kept[:, None]
        ended = (self._ending(outcome.state, brought) & stays).any(1)
        outcome.state.memory.column(_MEMORY).masked_fill_(ended, 1.0)

    def _ending(self, state: RoundState, ids: Tensor) -> Tensor:
        if self._ends is None:
            raise UsageError(
                "the first sentence's end is not known without a tokenizer; give the decoder one (fsd_generate takes "
                "it as fsd_tokenizer)"
            )
        missing = state.proposal.target_logits.shape[-1] - len(self._ends)
        if missing > 0 or self._ends.device != ids.device:  # ids that the tokenizer has not end nothing
            self._ends = pad(self._ends, (0, max(missing, 0))).to(ids.device)
        return self._ends[ids]


@per_tokenizer
def _ends(tokenizer: Any) -> Tensor:
    """A bool for each of its ids."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    return torch.tensor([_ENDS.search(text) is not None for text in texts])


When = Callable[[RoundState], Tensor]
"""Where the second policy rules: bool on the device, (B,) a row or (B, L) a drafted token. It follows from the row's
own text and logits, as scales do."""


class Switch(Composed):
    """`first`, and where `when` says so `then`. Both are asked and told all along; neither may be a budget."""

    def __init__(self, first: ThresholdPolicy, then: ThresholdPolicy, when: When) -> None:
        if not callable(when):
            raise UsageError(f"when is {when!r:.60}; it must be a function of a RoundState that gives a bool tensor")
        self.when = when
        super().__init__(first, then)
        check_no_budget(self)

    @classmethod
    def after_sentence(cls, strict: ThresholdPolicy, loose: ThresholdPolicy) -> Self:
        """`strict` for a completion's first sentence, `loose` behind it."""
        return cls(strict, loose, FirstSentenceEnded())

    def combined(self, answers: Sequence[Tensor], state: RoundState) -> Tensor:
        first, then = answers
        return torch.where(self._turned(state), then, first)

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

    def _turned(self, state: RoundState) -> Tensor:
        """(B, 1) or (B, L). UsageError: the answer is neither."""
        answer: object = self.when(state)
        rows, drafts = state.proposal.drafted.shape
        if isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.shape in ((rows,), (rows, drafts)):
            return answer.reshape(rows, -1) if answer.dim() == 1 else answer
        shown = " ".join(repr(answer).split())
        raise UsageError(
            f"a Switch's when answered {shown:.80}; it must give a bool tensor of shape ({rows},), one a row, or "
            f"({rows}, {drafts}), one a drafted token"
        )


class ScaledSwitch(Scaled, Switch):
    """`Switch` of scale policies."""

    name: ClassVar = "switch"

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        if parameters["when"] != FirstSentenceEnded.name:
            raise UsageError(f"unknown when {parameters['when']!r:.60}; known: {FirstSentenceEnded.name}")
        return cls(*rebuilt(parameters), FirstSentenceEnded())

    def traced(self, columns: Mapping[str, Array]) -> Array:
        raise UsageError("Switch cannot be replayed: traces do not tell when it switches; decode instead")

    def _is_named(self) -> bool:
        return super()._is_named() and isinstance(self.when, FirstSentenceEnded)

    def _parameters(self) -> dict[str, Any]:
        return {**super()._parameters(), "when": FirstSentenceEnded.name}


Switch.scaled = ScaledSwitch
ScaledSwitch.__name__ = "Switch"  # errors name what users wrote
