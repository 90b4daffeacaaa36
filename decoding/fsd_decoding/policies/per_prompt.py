"""T scaled per prompt: a linear model predicts one scale for a whole text from the prompt and from the draft's first
distribution.

`fsd_calib.calibration.per_prompt` fits the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fsd_common.argument_checks import number
from fsd_common.errors import UsageError
from fsd_decoding.divergence import entropy, log_softmax
from fsd_decoding.policies.rounds import NewRequests, RoundState
from fsd_decoding.policies.scale import Shape
from fsd_decoding.policies.threshold import Array
from fsd_decoding.text import per_tokenizer

PROMPT_FACTS = ("prompt tokens", "prompt tokens with a digit")


class PromptFacts:
    """Computes the `PROMPT_FACTS` of prompts."""

    def __init__(self) -> None:
        self._digits: frozenset[int] | None = None

    def check(self, tokenizer: Any | None) -> None:
        """Looks up which tokens hold a digit; without a tokenizer this remains unknown and calls fail."""
        self._digits = None if tokenizer is None else _tokens_with_digit(tokenizer)

    def __call__(self, prompt: Sequence[int]) -> tuple[float, ...]:
        """Returns the facts of a prompt of token ids. Raises UsageError if there is no tokenizer."""
        digits = self._digits
        if digits is None:
            raise UsageError(
                "tokens with a digit cannot be found without a tokenizer; pass one to the decoder (fsd_generate takes "
                "it as fsd_tokenizer)"
            )
        return float(len(prompt)), float(sum(token in digits for token in prompt))


@per_tokenizer
def _tokens_with_digit(tokenizer: Any) -> frozenset[int]:
    tokens = enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    return frozenset(i for i, text in tokens if any(c.isdecimal() for c in text or ""))


FACTS = (*PROMPT_FACTS, "entropy of the first q", "largest of the first q")
"""The inputs of the linear model. q is the draft's distribution, on raw logits, at a text's first drafted token."""

WIDEST = 8.0  # scales are clamped to [1/8, 8], however unusual a prompt is
_PROMPT, _SCALE = "prompt terms", "scale"


class PerPrompt(Shape):
    """T times exp(Σ weight · (fact - mean)), clamped to [1/8, 8]; the same scale for a whole text.

    Args:
        threshold: T of a text whose facts are `means`.
        weights, means: one for each of `FACTS`.
    """

    name: ClassVar = "per-prompt"
    columns = ("problem", "position", "draft_entropy", "draft_top1")
    least = 1 / WIDEST

    def __init__(self, threshold: float, weights: Sequence[float], means: Sequence[float]) -> None:
        self.threshold = number("threshold", threshold)
        self.weights, self.means = _numbers("weights", weights), _numbers("means", means)
        self.steepness = sum(map(abs, self.weights[len(PROMPT_FACTS) :]))
        self.identity = self.describe(weights=self.weights, means=self.means)
        self.prompts: Mapping[int, Sequence[float]] = {}
        self._facts = PromptFacts()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def knowing(self, prompts: Mapping[int, Sequence[float]]) -> Self:
        """Returns a copy that has the `PROMPT_FACTS` of problems, by problem id. Replay needs them, as traces hold no
        prompts."""
        informed = copy(self)
        informed.prompts = prompts
        return informed

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        self._facts.check(tokenizer)

    def start(self, new: NewRequests) -> None:
        terms = torch.tensor([self._prompt_terms(self._facts(r.prompt)) for r in new.requests], dtype=torch.float64)
        new.memory.column(_PROMPT)[new.rows] = terms.to(new.rows.device)

    def scales(self, state: RoundState) -> Tensor:
        scale = state.memory.column(_SCALE, math.nan)
        if state.proposal.drafted.shape[1]:
            begins = scale.isnan() & state.proposed[:, 0]
            scale.copy_(torch.where(begins, self._scale_of_first(state), scale))
        return scale.nan_to_num(1.0)  # texts for which nothing was drafted so far

    def traced(self, columns: Mapping[str, Array]) -> Array:
        """As `ScalePolicy.traced`. Raises UsageError if the facts of a problem's prompt are unknown, see `knowing`."""
        begins = np.flatnonzero(columns["position"] == 0)
        prompts = [self._prompt_terms(self._prompt_facts(int(problem))) for problem in columns["problem"][begins]]
        drafts = (torch.from_numpy(columns[name][begins]) for name in ("draft_entropy", "draft_top1"))
        scales = self._scale(torch.tensor(prompts, dtype=torch.float64), *drafts).numpy()
        return np.asarray(np.repeat(scales, np.diff(begins, append=len(columns["position"]))))

    def _scale_of_first(self, state: RoundState) -> Tensor:
        """Returns the scales (B,) of rows that have just drafted their first token."""
        first = state.proposal.draft_logits[:, 0]
        return self._scale(state.memory.column(_PROMPT), entropy(first), log_softmax(first).amax(-1).exp())

    def _scale(self, prompt_terms: Tensor, first_entropy: Tensor, first_top: Tensor) -> Tensor:
        total, first = prompt_terms, len(PROMPT_FACTS)
        terms = zip((first_entropy, first_top), self.weights[first:], self.means[first:], strict=True)
        for fact, weight, mean in terms:
            total = total + weight * (fact.double() - mean)
        return total.clamp(-math.log(WIDEST), math.log(WIDEST)).exp()

    def _prompt_terms(self, facts: Sequence[float]) -> float:
        """Returns the part of the sum that follows from the prompt."""
        return sum(w * (fact - mean) for w, fact, mean in zip(self.weights, facts, self.means, strict=False))

    def _prompt_facts(self, problem: int) -> Sequence[float]:
        if problem not in self.prompts:
            raise UsageError(
                f"PerPrompt has no facts of the prompt of problem {problem}, and traces hold no prompts; pass them to "
                "knowing()"
            )
        return self.prompts[problem]


def _numbers(thing: str, values: object) -> list[float]:
    rule = f"it must be {len(FACTS)} finite numbers, for {', '.join(FACTS)}"
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(FACTS):
        raise UsageError(f"{thing} is {values!r:.80}; {rule}")
    numbers = [number(thing, value, rule) for value in values]
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"{thing} is {values!r:.80}; {rule}")
    return numbers
