"""T by the prompt, and by how sure the draft begins: one scale a text, which a linear model predicts.

Knows the model's inputs and its formula. Where its weights come from is in `fsd_calib.calibration.per_prompt`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fsd_decoding.divergence import entropy, log_softmax
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.scale import Shape
from fsd_decoding.policies.threshold import Array, Begun, RoundState
from fsd_decoding.text import per_tokenizer
from fsd_decoding.validation import number

# MERGED: """What a prompt's tokens tell before anything is drafted. Knows token ids and how a tokenizer writes digits."""


PROMPT_FACTS = ("prompt tokens", "prompt tokens with a digit")


class PromptFacts:
    """(facts,) of a prompt, in the order of `PROMPT_FACTS`."""

    def __init__(self) -> None:
        self._digits: frozenset[int] | None = None

    def check(self, tokenizer: Any | None) -> None:
        """Whose prompts these are; None: nobody's, so there are no facts of them."""
        self._digits = None if tokenizer is None else _digits(tokenizer)

    def __call__(self, prompt: Sequence[int]) -> tuple[float, ...]:
        """UsageError: the tokenizer is not known."""
        digits = self._digits
        if digits is None:
            raise UsageError(
                "which tokens hold a digit is not known without a tokenizer; give the decoder one (fsd_generate takes "
                "it as fsd_tokenizer)"
            )
        return float(len(prompt)), float(sum(token in digits for token in prompt))


@per_tokenizer
def _digits(tokenizer: Any) -> frozenset[int]:
    written = enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    return frozenset(i for i, text in written if any(c.isdecimal() for c in text or ""))


FACTS = (*PROMPT_FACTS, "entropy of the first q", "largest of the first q")
"""What the scale follows from; q of the first drafted token, on raw logits."""

WIDEST = 8.0  # scales lie between this and its inverse, whatever a prompt is like
_PROMPT, _SCALE = "what the prompt says", "scale"


class PerPrompt(Shape):
    """T times exp(Σ weight · (fact - mean)), held to [1/8, 8]; the same for a whole text.

    Args:
        weights, means: one each of `FACTS`. A mean is a typical fact, whose scale is 1.
    """

    name: ClassVar = "per-prompt"
    columns = ("problem", "position", "draft_entropy", "draft_top1")
    least = 1 / WIDEST

    def __init__(self, threshold: float, weights: Sequence[float], means: Sequence[float]) -> None:
        self.threshold = number("threshold", threshold)
        self.weights, self.means = _numbers("weights", weights), _numbers("means", means)
        self.steepness = sum(map(abs, self._behind(len(PROMPT_FACTS))[0]))
        self.identity = self.identified(weights=self.weights, means=self.means)
        self.prompts: Mapping[int, Sequence[float]] = {}
        self._facts = PromptFacts()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def knowing(self, prompts: Mapping[int, Sequence[float]]) -> Self:
        """The same, told of problems by id what `PROMPT_FACTS` are of their prompts: replay needs that, since traces
        hold no prompts."""
        made = copy(self)
        made.prompts = prompts
        return made

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        self._facts.check(tokenizer)

    def start(self, begun: Begun) -> None:
        told = torch.tensor([self._of_prompt(self._facts(r.prompt)) for r in begun.requests], dtype=torch.float64)
        begun.memory.column(_PROMPT)[begun.rows] = told.to(begun.rows.device)

    def scales(self, state: RoundState) -> Tensor:
        scale = state.memory.column(_SCALE, math.nan)
        if state.proposal.drafted.shape[1]:
            new = scale.isnan() & state.proposed[:, 0]
            scale.copy_(torch.where(new, self._first(state), scale))
        return scale.nan_to_num(1.0)  # of a text for which nothing was drafted so far

    def traced(self, columns: Mapping[str, Array]) -> Array:
        """UsageError: it was not told of a problem's prompt, see `knowing`."""
        begins = np.flatnonzero(columns["position"] == 0)
        prompts = [self._of_prompt(self._known(int(problem))) for problem in columns["problem"][begins]]
        drafts = (torch.from_numpy(columns[name][begins]) for name in ("draft_entropy", "draft_top1"))
        scales = self._scale(torch.tensor(prompts, dtype=torch.float64), *drafts).numpy()
        return np.asarray(np.repeat(scales, np.diff(begins, append=len(columns["position"]))))

    def _first(self, state: RoundState) -> Tensor:
        """(B,) scales, as of rows that have just drafted their first token."""
        first = state.proposal.draft_logits[:, 0]
        return self._scale(state.memory.column(_PROMPT), entropy(first), log_softmax(first).amax(-1).exp())

    def _scale(self, prompt: Tensor, first_entropy: Tensor, first_top: Tensor) -> Tensor:
        told = prompt
        for fact, weight, mean in zip((first_entropy, first_top), *self._behind(len(PROMPT_FACTS)), strict=True):
            told = told + weight * (fact.double() - mean)
        return told.clamp(-math.log(WIDEST), math.log(WIDEST)).exp()

    def _of_prompt(self, facts: Sequence[float]) -> float:
        return sum(w * (fact - mean) for w, fact, mean in zip(self.weights, facts, self.means, strict=False))

    def _behind(self, first: int) -> tuple[list[float], list[float]]:
        return self.weights[first:], self.means[first:]

    def _known(self, problem: int) -> Sequence[float]:
        if problem not in self.prompts:
            raise UsageError(
                f"PerPrompt does not know the prompt of problem {problem}, and traces do not hold it; see knowing()"
            )
        return self.prompts[problem]


def _numbers(thing: str, values: object) -> list[float]:
    rule = f"it must be {len(FACTS)} finite numbers, of {', '.join(FACTS)}"
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(FACTS):
        raise UsageError(f"{thing} is {values!r:.80}; {rule}")
    found = [number(thing, value, rule) for value in values]
    if not all(map(math.isfinite, found)):
        raise UsageError(f"{thing} is {values!r:.80}; {rule}")
    return found
