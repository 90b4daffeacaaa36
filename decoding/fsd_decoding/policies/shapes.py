"""The shapes of T: constant, by a token's position, by entropies, and by the prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from fsd_common.argument_checks import amount, check_count, number
from fsd_common.errors import UsageError
from fsd_decoding.divergence import entropy, log_softmax
from fsd_decoding.policies.threshold import (
    Array,
    NewRequests,
    RoundOutcome,
    RoundState,
    Shape,
    TracedText,
    share,
)
from fsd_decoding.text import per_tokenizer


class Constant(Shape):
    """One T for every token. Gives the same texts, rounds and intervals as the plain number."""

    name: ClassVar = "constant"
    columns = ("position",)

    def __init__(self, threshold: float) -> None:
        self.threshold = number("threshold", threshold)
        self.identity = self.describe()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def scales(self, state: RoundState) -> Tensor:
        return torch.ones_like(state.proposal.thresholds)

    def traced(self, columns: Mapping[str, Array]) -> Array:
        return np.ones(len(columns["position"]))


class Schedule(Shape):
    """Moves T linearly from `start` at a completion's first token to `end` after `over` tokens, and keeps it there.

    `threshold` is the largest T of the schedule; `at` scales the whole schedule to another one. Where T is 0, no
    score is accepted.
    """

    name: ClassVar = "schedule"
    columns = ("position",)

    def __init__(self, start: float, end: float, over: int) -> None:
        check_count("over", over)
        self._set_points([(0, amount("start", start)), (int(over), amount("end", end))])

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Self:
        """Returns a schedule that is linear between points (position, T), and constant before the first and after the
        last. Positions count from 0 and must rise."""
        schedule = cls.__new__(cls)
        schedule._set_points(_check_points(points))
        return schedule

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        (points,) = parameters.values()
        return cls.through(points)

    def _set_points(self, points: list[tuple[int, float]]) -> None:
        self.threshold = max(t for _, t in points)
        if not self.threshold:
            raise UsageError("the schedule is 0 everywhere; one T must be above 0 (Constant(-1) is lossless)")
        self.points = [(position, share(t, self.threshold)) for position, t in points]  # (position, scale)
        near = [max(position + step, 0) for position, _ in points for step in (-1, 0, 1)]
        self.least = float(min(scale for scale in self._scale_at(torch.tensor(near)).tolist() if scale > 0))
        self.identity = self.describe(points=self.points)

    def scales(self, state: RoundState) -> Tensor:
        return self._scale_at(state.places)

    def traced(self, columns: Mapping[str, Array]) -> Array:
        scales: Array = self._scale_at(torch.from_numpy(columns["position"])).numpy()
        return scales

    def _scale_at(self, positions: Tensor) -> Tensor:
        """Returns the scales at positions (…), as (…) float64. Uses Python numbers only: nothing has to be copied to
        the device."""
        positions = positions.double()
        scales = torch.full_like(positions, self.points[0][1])
        for (a, low), (b, high) in pairwise(self.points):
            weight = ((positions - a) / (b - a)).clamp(0.0, 1.0)
            scales = torch.where(positions > a, low * (1.0 - weight) + high * weight, scales)
        return scales


def _check_points(points: object) -> list[tuple[int, float]]:
    if not isinstance(points, Sequence) or isinstance(points, str) or not points:
        raise UsageError(f"points is {points!r:.60}; it must be a list of (position, T) with at least one entry")
    checked = [_check_point(point) for point in points]
    for (a, _), (b, _) in pairwise(checked):
        if b <= a:
            raise UsageError(f"position {b} follows position {a} in the schedule; positions must rise")
    return checked


def _check_point(point: object) -> tuple[int, float]:
    if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
        raise UsageError(f"a point of the schedule is {point!r:.60}; it must be (position, T)")
    position, threshold = point
    if isinstance(position, bool) or not isinstance(position, Integral) or position < 0:
        raise UsageError(f"a position of the schedule is {position!r:.60}; it must be a whole number of 0 or more")
    return int(position), amount(f"T at position {position}", threshold)


Signal = Literal["target", "draft", "last"]

STEEPEST = 8.0
_MEMORY = "recent doubt"
_DECAY = 0.5  # weight that each round leaves to the average of the rounds before it


class EntropyScaled(Shape):
    """T times exp(slope · doubt), where doubt lies in [0, 1). A positive slope makes T larger where doubt is large.

    Args:
        threshold: T where there is no doubt.
        slope: within ±8.
        of: what doubt is:

            - "target", "draft": 1 - exp(-H) of that model at the drafted token, where H is the entropy of its raw
              logits in nats. exp(H) is the perplexity, so doubt is 0 for a certain token, 1/2 for two equally likely
              ones, 1 - 1/n for n, whatever the vocabulary. The scale lies between 1 and exp(slope) without clamping.
            - "last": sqrt(1 - exp(-D)) of the tokens decided in the row's rounds so far, averaged over each round; each
              round's mean counts half as much as the next one's. 0 before the first round. For D = KL it is an upper
              bound of tv (Bretagnolle and Huber, 1979). It cannot be replayed from traces, as it depends on how a text
              was divided into rounds.
    """

    name: ClassVar = "entropy"

    def __init__(self, threshold: float, slope: float, of: Signal = "target") -> None:
        self.threshold = number("threshold", threshold)
        rule = f"it must lie within ±{STEEPEST:g}"
        self.slope = number("slope", slope, rule)
        if abs(self.slope) > STEEPEST:
            raise UsageError(f"slope is {slope}; {rule}")
        if of not in get_args(Signal):
            raise UsageError(f"of is {of!r:.60}; it must be one of {', '.join(get_args(Signal))}")
        self.signal = of
        self.columns = () if of == "last" else (f"{of}_entropy",)
        self.least = float(np.exp(min(self.slope, 0.0)))
        self.steepness = abs(self.slope)  # rounding moves doubt at most half as much as sqrt(D), measured in bfloat16
        self.identity = self.describe(slope=self.slope, of=of)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def scales(self, state: RoundState) -> Tensor:
        if self.signal == "last":
            return (self.slope * state.memory.column(_MEMORY)).exp()
        entropy = state.target_entropy if self.signal == "target" else state.draft_entropy
        return self._scale_of(entropy)

    @property
    def reads_outcomes(self) -> bool:
        return self.signal == "last" or type(self).observe is not EntropyScaled.observe

    def observe(self, outcome: RoundOutcome) -> None:
        if self.signal != "last":
            return
        doubt = (-(-outcome.scores.double()).expm1()).sqrt()
        count = outcome.decided.sum(1)
        mean = torch.where(outcome.decided, doubt, 0.0).sum(1) / count.clamp_min(1)
        column = outcome.state.memory.column(_MEMORY)
        column.copy_(torch.where(count > 0, column.lerp(mean, 1.0 - _DECAY), column))

    def traced(self, columns: Mapping[str, Array]) -> Array:
        if self.signal == "last":
            raise UsageError("EntropyScaled(of='last') cannot be replayed: it depends on the rounds; decode instead")
        scales: Array = self._scale_of(torch.from_numpy(columns[self.columns[0]])).numpy()
        return scales

    def _scale_of(self, entropy: Tensor) -> Tensor:
        """Returns scales (…) float64 of entropies (…) in nats. An entropy that rounding made negative counts as 0."""
        return (-self.slope * (-entropy.double().clamp_min(0.0)).expm1()).exp()


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
        self._prompts: Mapping[int, Sequence[float]] = {}  # `PROMPT_FACTS` by problem id
        self._facts = PromptFacts()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def knowing(self, texts: Mapping[int, TracedText], tokenizer: Any) -> Self:
        informed = copy(self)
        informed._facts = PromptFacts()
        informed._facts.check(tokenizer)
        informed._prompts = {problem: informed._facts(text.prompt) for problem, text in texts.items()}
        return informed

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        self._facts.check(tokenizer)

    def start(self, new: NewRequests) -> None:
        terms = torch.tensor([self._prompt_terms(self._facts(r.prompt)) for r in new.requests], dtype=torch.float64)
        new.memory.column(_PROMPT)[new.rows] = terms.to(new.rows.device)

    def scales(self, state: RoundState) -> Tensor:
        scale = state.memory.column(_SCALE, math.nan)
        if state.proposal.drafted.shape[1]:
            first, begins = state.proposal.draft_logits[:, 0], scale.isnan() & state.proposed[:, 0]
            terms = state.memory.column(_PROMPT)
            scale.copy_(
                torch.where(begins, self._scale(terms, entropy(first), log_softmax(first).amax(-1).exp()), scale)
            )
        return scale.nan_to_num(1.0)  # texts for which nothing was drafted so far

    def traced(self, columns: Mapping[str, Array]) -> Array:
        """As `ScalePolicy.traced`. Raises UsageError if the facts of a problem's prompt are unknown, see `knowing`."""
        begins = np.flatnonzero(columns["position"] == 0)
        prompts = [self._prompt_terms(self._prompt_facts(int(problem))) for problem in columns["problem"][begins]]
        drafts = (torch.from_numpy(columns[name][begins]) for name in ("draft_entropy", "draft_top1"))
        scales = self._scale(torch.tensor(prompts, dtype=torch.float64), *drafts).numpy()
        return np.asarray(np.repeat(scales, np.diff(begins, append=len(columns["position"]))))

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
        if problem not in self._prompts:
            raise UsageError(
                f"PerPrompt has no facts of the prompt of problem {problem}, and traces hold no prompts; pass them to "
                "knowing()"
            )
        return self._prompts[problem]


def _numbers(thing: str, values: object) -> list[float]:
    rule = f"it must be {len(FACTS)} finite numbers, for {', '.join(FACTS)}"
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(FACTS):
        raise UsageError(f"{thing} is {values!r:.80}; {rule}")
    numbers = [number(thing, value, rule) for value in values]
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"{thing} is {values!r:.80}; {rule}")
    return numbers
