"""Policies composed of other policies (`Min`, `Max`, `Switch`), and the registry of shapes that an identity can name.

Each part sees rounds as if it were alone: with its own T as the prompts' T, and with a memory of its own. If all parts
are scale policies, so is the composed policy: its T is the largest of theirs, and all that is claimed for scale
policies holds for it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_common.errors import UsageError
from fsd_decoding.policies.phase import Phase
from fsd_decoding.policies.shapes import Constant, EntropyScaled, PerPrompt, Schedule
from fsd_decoding.policies.threshold import (
    Array,
    NewRequests,
    RoundOutcome,
    RoundState,
    ScalePolicy,
    Shape,
    ThresholdPolicy,
    TracedText,
    check_output,
    share,
)
from fsd_decoding.text import per_tokenizer

_PER_PART = "base"  # the value of a state that each part computes for itself; all others are shared by the parts


class Composed(ThresholdPolicy):
    """Combines the thresholds of its parts. Subclasses implement `combine`."""

    scaled: ClassVar[type[Scaled]]
    """The class to construct instead if all parts are scale policies."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        parts = [value for value in (*args, *kwargs.values()) if isinstance(value, ThresholdPolicy)]
        scaled = parts and all(isinstance(part, ScalePolicy) for part in parts)
        # A user's subclass inherits `scaled` but may combine differently, so only the class that defines it counts.
        kind = vars(cls).get("scaled", cls) if scaled else cls
        return super().__new__(cast(type[Self], kind))

    def __init__(self, *policies: ThresholdPolicy) -> None:
        self.policies = _check_parts(type(self).__name__, policies)
        self.threshold = max(policy.threshold for policy in policies)
        self.budget = any(policy.budget for policy in policies)

    def combine(self, outputs: Sequence[Tensor], state: RoundState) -> Tensor:
        """Returns (B, 1) or (B, L) from the parts' thresholds or scales, each (B, 1) or (B, L)."""
        raise NotImplementedError

    def thresholds(self, state: RoundState) -> Tensor:
        parts = zip(self.policies, self._part_states(state), strict=True)
        return self._combine(state, [check_output(part.thresholds(own), part, own) for part, own in parts])

    def start(self, new: NewRequests) -> None:
        for i, policy in enumerate(self.policies):
            policy.start(replace(new, memory=new.memory.part(str(i))))

    @property
    def reads_outcomes(self) -> bool:
        return type(self).observe is not Composed.observe or any(policy.reads_outcomes for policy in self.policies)

    def observe(self, outcome: RoundOutcome) -> None:
        if any(policy.reads_outcomes for policy in self.policies):
            for policy, own in zip(self.policies, self._part_states(outcome.state), strict=True):
                policy.observe(replace(outcome, state=own))

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        for policy in self.policies:
            policy.check(models, tokenizer, rule, score)

    def departures(self, settings: Sequence[Any]) -> list[str]:
        return [departure for policy in self.policies for departure in policy.departures(settings)]

    def doubts(self) -> list[str]:
        return [doubt for policy in self.policies for doubt in policy.doubts()]

    def facts(self) -> dict[str, float | Tensor]:
        """Returns the facts of all parts; a name that several of them use is prefixed with the part's number from 1."""
        by_part = [policy.facts() for policy in self.policies]
        uses = Counter(name for facts in by_part for name in facts)
        return {
            name if uses[name] == 1 else f"part {i} {name}": fact
            for i, facts in enumerate(by_part, 1)
            for name, fact in facts.items()
        }

    def state_dict(self) -> dict[str, Any]:
        states = [policy.state_dict() for policy in self.policies]
        return {"policies": states} if any(states) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states = state.get("policies", [{}] * len(self.policies))
        if state.keys() - {"policies"} or not isinstance(states, Sequence) or len(states) != len(self.policies):
            raise UsageError(
                f"the state ({', '.join(state)}) is not that of a {type(self).__name__} of {len(self.policies)} "
                "policies; load it into the policy that saved it"
            )
        for policy, part_state in zip(self.policies, states, strict=True):
            policy.load_state_dict(part_state)

    def _part_states(self, state: RoundState) -> Iterator[RoundState]:
        """Yields the round as each part sees it. Lazy values that one part computes are passed on to the next ones."""
        for i, policy in enumerate(self.policies):
            own = object.__new__(type(state))  # copy() would do the same in ten times the time
            vars(own).update(vars(state))
            vars(own).pop(_PER_PART, None)
            own.memory, own.part_threshold = state.memory.part(str(i)), policy.threshold
            yield own
            for name in vars(own).keys() - vars(state).keys() - {_PER_PART}:
                vars(state)[name] = vars(own)[name]

    def _combine(self, state: RoundState, outputs: Sequence[Tensor]) -> Tensor:
        combined = self.combine(outputs, state)
        return combined.squeeze(1) if combined.shape[1] == 1 else combined


class Scaled(Shape, Composed):
    """A composed policy of scale policies. A part with T <= 0, which accepts nothing by its score, has the share 0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts = cast(tuple[ScalePolicy, ...], self.policies)
        if not 0 < self.threshold < math.inf:
            raise UsageError(
                f"the largest threshold of the policies in {self.name} is {self.threshold:g}; it must be finite and "
                "above 0 (policy.at(0.1) sets a policy's threshold)"
            )
        self.shares = [share(max(policy.threshold, 0.0), self.threshold) for policy in self.parts]
        self.least = min(part * policy.least for part, policy in zip(self.shares, self.parts, strict=True) if part)
        self.steepness = max(policy.steepness for policy in self.parts)
        self.columns = tuple(dict.fromkeys(column for policy in self.parts for column in policy.columns))
        self.identity = self.describe(**self._parameters()) if self._has_identity() else None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(*parts_of(parameters))

    def knowing(self, texts: Mapping[int, TracedText], tokenizer: Any) -> Self:
        informed = copy(self)
        informed.policies = informed.parts = tuple(part.knowing(texts, tokenizer) for part in self.parts)
        return informed

    def scales(self, state: RoundState) -> Tensor:
        parts = zip(self.parts, self._part_states(state), strict=True)
        scales = [check_output(part.scales(own), part, own) for part, own in parts]
        return self._combine(state, self._times_shares(scales))

    def _times_shares(self, scales: Sequence[Tensor]) -> list[Tensor]:
        return [scale if part == 1.0 else part * scale for part, scale in zip(self.shares, scales, strict=True)]

    def _has_identity(self) -> bool:
        return all(policy.identity is not None for policy in self.parts)

    def _parameters(self) -> dict[str, Any]:
        """Returns the identity's parameters. A part that is no shape and cannot be rebuilt is only named in them."""
        policies = [json.loads(p.identity or "") if isinstance(p, Shape) else p.identity for p in self.parts]
        return {"policies": policies, "shares": self.shares}


def parts_of(parameters: Mapping[str, Any]) -> list[ScalePolicy]:
    """Returns the parts of a composed shape, each at its share of T, from the parameters of its identity."""
    return [policy.at(part) for policy, part in zip(parameters["policies"], parameters["shares"], strict=True)]


def check_no_budget(composed: ThresholdPolicy) -> None:
    """Raises UsageError if one of the parts is a budget, in a policy that may replace its T by a larger one."""
    if composed.budget:
        raise UsageError(
            f"{type(composed).__name__} contains a budget, but its other policies may set a larger T, which would "
            "exceed the budget; use Min, which only lowers T"
        )


def _check_parts(name: str, values: Sequence[object]) -> tuple[ThresholdPolicy, ...]:
    """Raises UsageError if there are no policies, something else than policies, or more than one budget."""
    if not values:
        raise UsageError(f"{name} needs at least one policy")
    policies = tuple(value for value in values if isinstance(value, ThresholdPolicy))
    if len(policies) < len(values):
        wrong = next(value for value in values if not isinstance(value, ThresholdPolicy))
        raise UsageError(f"{name} got {wrong!r:.60}; it takes threshold policies, for example Constant(0.1)")
    budgets = [type(policy).__name__ for policy in _budgets(policies)]
    if len(budgets) > 1:
        raise UsageError(f"{name} contains two budgets, {' and '.join(budgets)}; keep one of them")
    return policies


def _budgets(policies: Sequence[ThresholdPolicy]) -> Iterator[ThresholdPolicy]:
    for policy in policies:
        if isinstance(policy, Composed):
            yield from _budgets(policy.policies)
        elif policy.budget:
            yield policy


class _Extreme(Composed):
    def combine(self, outputs: Sequence[Tensor], state: RoundState) -> Tensor:
        return self._extreme(outputs)

    def _extreme(self, outputs: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError


class _ScaledExtreme(Scaled, _Extreme):
    def traced(self, columns: Mapping[str, Array]) -> Array:
        scales = [torch.from_numpy(part.traced(columns)) for part in self.parts]
        extreme: Array = self._extreme(self._times_shares(scales)).numpy()
        return extreme


class Min(_Extreme):
    """The smallest T of its policies, row by row and token by token: accepts what all of them accept."""

    def _extreme(self, outputs: Sequence[Tensor]) -> Tensor:
        return reduce(torch.minimum, outputs)


class Max(_Extreme):
    """The largest T of its policies: accepts what any of them accepts. None of them may be a budget."""

    def __init__(self, *policies: ThresholdPolicy) -> None:
        super().__init__(*policies)
        check_no_budget(self)

    def _extreme(self, outputs: Sequence[Tensor]) -> Tensor:
        return reduce(torch.maximum, outputs)


class ScaledMin(_ScaledExtreme, Min):
    """`Min` of scale policies."""

    name: ClassVar = "min"


class ScaledMax(_ScaledExtreme, Max):
    """`Max` of scale policies."""

    name: ClassVar = "max"


Min.scaled, Max.scaled = ScaledMin, ScaledMax
ScaledMin.__name__, ScaledMax.__name__ = "Min", "Max"  # messages use the names that users wrote


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
    def reads_outcomes(self) -> bool:
        own = type(self).observe is not Switch.observe or isinstance(self.when, FirstSentenceEnded)
        return own or any(policy.reads_outcomes for policy in self.policies)

    def observe(self, outcome: RoundOutcome) -> None:
        super().observe(outcome)
        if isinstance(self.when, FirstSentenceEnded):
            self.when.observe(outcome)

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        super().check(models, tokenizer, rule, score)
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


KNOWN: Mapping[str, type[Shape]] = {
    shape.name: shape
    for shape in (Constant, Schedule, EntropyScaled, PerPrompt, Phase, ScaledMin, ScaledMax, ScaledSwitch)
}
"""All shapes, by name. A new shape that should be calibrated, cached and stored is added here."""


def policy_named(identity: str) -> ScalePolicy:
    """Builds the shape of an identity, with T = 0: `at` sets another.

    Raises:
        UsageError: the identity is malformed, or no shape of this version has it.
    """
    try:
        description: object = json.loads(identity)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the policy is {identity!r:.80}; it must be a policy's identity, as JSON") from error
    return _build(description)


def _build(description: object) -> ScalePolicy:
    if not isinstance(description, Mapping) or not isinstance(description.get("name"), str):
        raise UsageError(f"the policy is {description!r:.80}; it must be a policy's identity, as JSON")
    name, version = description["name"], description.get("version")
    if name not in KNOWN:
        raise UsageError(f"unknown policy {name!r:.60}; known: {', '.join(KNOWN)}")
    if version != KNOWN[name].version:
        raise UsageError(
            f"policy {name!r} has version {version}, this fsd-calib has version {KNOWN[name].version}; calibrate again"
        )
    parameters = {key: _build_nested(value) for key, value in description.items() if key not in ("name", "version")}
    try:
        return KNOWN[name].of(parameters).at(0.0)
    except UsageError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UsageError(
            f"policy {name!r} has parameters {parameters!r:.80}, which do not describe one; calibrate again"
        ) from error


def _build_nested(value: Any) -> Any:
    """Returns a parameter with the policies in it built."""
    if isinstance(value, Mapping):
        return _build(value)
    return [_build_nested(item) for item in value] if isinstance(value, list) else value
