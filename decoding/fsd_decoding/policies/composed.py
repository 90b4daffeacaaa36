"""Policies made of policies. Knows how parts are asked, told and saved; what is made of their answers is in
`extremes.py` and `switching.py`.

A part sees rounds as if it were alone: its own T as the prompts', and a memory of its own. Where all parts are scale
policies, so is the whole: the largest of their T times a scale, with all that scale policies may claim.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.policies.scale import Shape, share
from fsd_decoding.policies.threshold import (
    Array,
    Begun,
    RoundOutcome,
    RoundState,
    ScalePolicy,
    ThresholdPolicy,
    checked,
)

# MERGED: """The strictest and the loosest of several policies. Knows their answers alone."""


_OWN = "base"  # what a state computes for the policy that is asked; all else is the same for all


class Composed(ThresholdPolicy):
    """Asks its parts, and combines what they answer."""

    scaled: ClassVar[type[Scaled]]
    """What it is where all parts are scale policies."""

    def __new__(cls, *given: Any, **named: Any) -> Self:
        parts = [one for one in (*given, *named.values()) if isinstance(one, ThresholdPolicy)]
        scaled = parts and all(isinstance(p, ScalePolicy) for p in parts)
        kind = vars(cls).get("scaled", cls) if scaled else cls  # a subclass may combine as it likes: it is no shape
        return super().__new__(cast(type[Self], kind))

    def __init__(self, *policies: ThresholdPolicy) -> None:
        self.policies = _parts(type(self).__name__, policies)
        self.threshold = max(policy.threshold for policy in policies)
        self.budget = any(policy.budget for policy in policies)

    def combined(self, answers: Sequence[Tensor], state: RoundState) -> Tensor:
        """Of each part (B, 1) or (B, L) -> either."""
        raise NotImplementedError

    def thresholds(self, state: RoundState) -> Tensor:
        each = zip(self.policies, self._seen(state), strict=True)
        return self._answer(state, [checked(part.thresholds(seen), part, seen) for part, seen in each])

    def start(self, begun: Begun) -> None:
        for i, policy in enumerate(self.policies):
            policy.start(replace(begun, memory=begun.memory.part(str(i))))

    @property
    def listens(self) -> bool:
        return type(self).observe is not Composed.observe or any(policy.listens for policy in self.policies)

    def observe(self, outcome: RoundOutcome) -> None:
        if any(policy.listens for policy in self.policies):
            for policy, seen in zip(self.policies, self._seen(outcome.state), strict=True):
                policy.observe(replace(outcome, state=seen))

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        for policy in self.policies:
            policy.check(models, tokenizer, rule, divergence)

    def doubts(self) -> list[str]:
        return [doubt for policy in self.policies for doubt in policy.doubts()]

    def facts(self) -> dict[str, float | Tensor]:
        """Of all parts; a name that several of them use is told with the part's number, from 1."""
        told = [policy.facts() for policy in self.policies]
        uses = Counter(name for facts in told for name in facts)
        return {
            name if uses[name] == 1 else f"part {i} {name}": fact
            for i, facts in enumerate(told, 1)
            for name, fact in facts.items()
        }

    def state_dict(self) -> dict[str, Any]:
        states = [policy.state_dict() for policy in self.policies]
        return {"policies": states} if any(states) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states = state.get("policies", [{}] * len(self.policies))
        if state.keys() - {"policies"} or not isinstance(states, Sequence) or len(states) != len(self.policies):
            raise UsageError(
                f"{type(self).__name__} of {len(self.policies)} policies is given a state of {', '.join(state)}; it is "
                "another's"
            )
        for policy, one in zip(self.policies, states, strict=True):
            policy.load_state_dict(one)

    def _seen(self, state: RoundState) -> Iterator[RoundState]:
        """The round as each part sees it. What one part computed of it, the next ones find."""
        for i, policy in enumerate(self.policies):
            seen = object.__new__(type(state))  # as copy() makes one, which takes ten times as long
            vars(seen).update(vars(state))
            vars(seen).pop(_OWN, None)
            seen.memory, seen.own = state.memory.part(str(i)), policy.threshold
            yield seen
            for name in vars(seen).keys() - vars(state).keys() - {_OWN}:
                vars(state)[name] = vars(seen)[name]

    def _answer(self, state: RoundState, answers: Sequence[Tensor]) -> Tensor:
        found = self.combined(answers, state)
        return found.squeeze(1) if found.shape[1] == 1 else found


class Scaled(Shape, Composed):
    """Composed of scale policies. A part whose T is not above 0, so that it accepts no divergence, has the share 0."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.parts = cast(tuple[ScalePolicy, ...], self.policies)
        if not 0 < self.threshold < math.inf:
            raise UsageError(
                f"{self.name} is given policies of threshold {self.threshold:g} at most; the largest must be finite "
                "and above 0, see at()"
            )
        self.shares = [share(max(policy.threshold, 0.0), self.threshold) for policy in self.parts]
        self.least = min(part * policy.least for part, policy in zip(self.shares, self.parts, strict=True) if part)
        self.steepness = max(policy.steepness for policy in self.parts)
        self.columns = tuple(dict.fromkeys(column for policy in self.parts for column in policy.columns))
        self.identity = self.identified(**self._parameters()) if self._is_named() else None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(*rebuilt(parameters))

    def scales(self, state: RoundState) -> Tensor:
        each = zip(self.parts, self._seen(state), strict=True)
        return self._answer(state, self._shared([checked(part.scales(seen), part, seen) for part, seen in each]))

    def _shared(self, scales: Sequence[Tensor]) -> list[Tensor]:
        return [one if part == 1.0 else part * one for part, one in zip(self.shares, scales, strict=True)]

    def _is_named(self) -> bool:
        return all(policy.identity is not None for policy in self.parts)

    def _parameters(self) -> dict[str, Any]:
        """A part that cannot be rebuilt stands there by its name alone."""
        policies = [json.loads(p.identity or "") if isinstance(p, Shape) else p.identity for p in self.parts]
        return {"policies": policies, "shares": self.shares}


def rebuilt(parameters: Mapping[str, Any]) -> list[ScalePolicy]:
    """The parts, of what their whole's identity says."""
    return [policy.at(part) for policy, part in zip(parameters["policies"], parameters["shares"], strict=True)]


def check_no_budget(whole: ThresholdPolicy) -> None:
    """UsageError: there is one among policies of which another may set T, so that nothing would hold it."""
    if whole.budget:
        raise UsageError(
            f"{type(whole).__name__} is given a budget, but its other policies may set a larger T, which would break "
            "it; use Min, which only lowers T"
        )


def _parts(whole: str, given: Sequence[object]) -> tuple[ThresholdPolicy, ...]:
    """UsageError: they are no policies, none, or more than one holds a budget."""
    if not given:
        raise UsageError(f"{whole} is given no policies; it needs at least one")
    found = tuple(policy for policy in given if isinstance(policy, ThresholdPolicy))
    if len(found) < len(given):
        wrong = next(one for one in given if not isinstance(one, ThresholdPolicy))
        raise UsageError(f"{whole} is given {wrong!r:.60}; it takes threshold policies (Constant(0.1) is one)")
    budgets = [type(policy).__name__ for policy in _budgets(found)]
    if len(budgets) > 1:
        raise UsageError(f"two budgets at once: {whole} is given {' and '.join(budgets)}; keep one of them")
    return found


def _budgets(policies: Sequence[ThresholdPolicy]) -> Iterator[ThresholdPolicy]:
    for policy in policies:
        if isinstance(policy, Composed):
            yield from _budgets(policy.policies)
        elif policy.budget:
            yield policy


class _Extreme(Composed):
    def combined(self, answers: Sequence[Tensor], state: RoundState) -> Tensor:
        return self._extreme(answers)

    def _extreme(self, answers: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError


class _ScaledExtreme(Scaled, _Extreme):
    def traced(self, columns: Mapping[str, Array]) -> Array:
        scales = [torch.from_numpy(part.traced(columns)) for part in self.parts]
        found: Array = self._extreme(self._shared(scales)).numpy()
        return found


class Min(_Extreme):
    """The smallest T of its policies, row by row and token by token: what all of them accept."""

    def _extreme(self, answers: Sequence[Tensor]) -> Tensor:
        return reduce(torch.minimum, answers)


class Max(_Extreme):
    """The largest T of its policies: what any of them accepts. None of them may be a budget."""

    def __init__(self, *policies: ThresholdPolicy) -> None:
        super().__init__(*policies)
        check_no_budget(self)

    def _extreme(self, answers: Sequence[Tensor]) -> Tensor:
        return reduce(torch.maximum, answers)


class ScaledMin(_ScaledExtreme, Min):
    """`Min` of scale policies."""

    name: ClassVar = "min"


class ScaledMax(_ScaledExtreme, Max):
    """`Max` of scale policies."""

    name: ClassVar = "max"


Min.scaled, Max.scaled = ScaledMin, ScaledMax
ScaledMin.__name__, ScaledMax.__name__ = "Min", "Max"  # errors name what users wrote
