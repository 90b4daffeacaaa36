"""One policy at first, another from some point of the text on. Knows the point as a function of rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fsd_decoding.adaptive.composing import Composed, Scaled, check_no_budget, rebuilt
from fsd_decoding.adaptive.sentence import FirstSentenceEnded
from fsd_decoding.errors import UsageError
from fsd_decoding.threshold_policy import Array, RoundOutcome, RoundState, ThresholdPolicy

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
