"""The interface of threshold policies, which set the T that every round is judged by, and what they see of the rounds.

`engine.engine` calls it. `docs/adaptive.md` shows how to write a policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.batch import Request
from fsd_decoding.divergence import entropy
from fsd_decoding.proposal import Proposal, Verdict
from fsd_decoding.tensors import lazy


class RowMemory:
    """Named columns, (B,) float64 on the batch's device, that follow the rows of a batch.

    A row's entries are reset when a new text begins in it.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self._columns: dict[str, Tensor] = {}
        self._fills: dict[str, float] = {}
        self._parts: dict[str, RowMemory] = {}

    def column(self, name: str, fill: float = 0.0) -> Tensor:
        """Returns a column, which may be changed in place. Every text begins with `fill`, as of the first call."""
        if name not in self._columns:
            self._fills[name] = fill
            self._columns[name] = torch.full((self._rows,), fill, dtype=torch.float64, device=self._device)
        return self._columns[name]

    def part(self, name: str) -> RowMemory:
        """Returns the memory of a policy inside a composed policy: the same rows, separate columns."""
        if name not in self._parts:
            self._parts[name] = RowMemory(self._rows, self._device)
        return self._parts[name]

    def forget(self, rows: Tensor) -> None:
        """Resets `rows` (R,), in which new texts begin."""
        for name, column in self._columns.items():
            column[rows] = self._fills[name]
        for part in self._parts.values():
            part.forget(rows)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but `rows` (R,), which are renumbered in this order."""
        self._rows = len(rows)
        self._columns = {name: column[rows] for name, column in self._columns.items()}
        for part in self._parts.values():
            part.keep(rows)


@dataclass(frozen=True)
class NewRequests:
    """Requests whose decoding begins, and the rows of the batch that they get."""

    rows: Tensor  # (R,)
    requests: Sequence[Request]  # R
    memory: RowMemory
    first: bool  # the first ones of this call of the decoder


@dataclass
class RoundState:
    """A round before it is judged, on the device. Values of empty rows are uninitialised padding."""

    proposal: Proposal  # its `thresholds` (B,) are the T that each prompt was given
    drafted: Tensor  # (B,) number of tokens drafted
    begins: Tensor  # (B,) length of each prompt
    memory: RowMemory
    part_threshold: float | None = None  # T of the policy that receives this state, where it is part of another

    @lazy
    def base(self) -> Tensor:
        """The T that each prompt was given or, inside a composed policy, the part's own T: (B,) float64."""
        thresholds = self.proposal.thresholds
        return thresholds if self.part_threshold is None else torch.full_like(thresholds, self.part_threshold)

    @lazy
    def emitted(self) -> Tensor:
        """Number of new tokens of each text: (B,)."""
        return self.proposal.positions[:, 0] - self.begins

    @lazy
    def places(self) -> Tensor:
        """Positions of the drafted tokens in their completions, from 0: (B, L)."""
        return self.proposal.positions[:, :-1] - self.begins[:, None]

    @lazy
    def proposed(self) -> Tensor:
        """Which of the L draft positions hold a token: (B, L) bool."""
        span = torch.arange(self.proposal.drafted.shape[1], device=self.drafted.device)
        return span < self.drafted[:, None]

    @lazy
    def target_entropy(self) -> Tensor:
        """Entropy of the target's raw distribution p at each drafted token, in nats: (B, L)."""
        return entropy(self.proposal.target_logits[:, :-1])

    @lazy
    def draft_entropy(self) -> Tensor:
        """Entropy of the draft's raw distribution q at each drafted token, in nats: (B, L)."""
        return entropy(self.proposal.draft_logits)


@dataclass
class RoundOutcome:
    """A round after it was judged, on the device."""

    state: RoundState
    thresholds: Tensor  # (B, 1) or (B, L) T that the round was judged by
    verdict: Verdict
    accepted: Tensor  # (B,) drafted tokens up to the first rejection
    kept: Tensor  # (B,) tokens added to the texts; 0 for empty rows. A text may end before its round does

    @lazy
    def decided(self) -> Tensor:
        """The accepted drafted tokens and the first rejected one: (B, L) bool, False in empty rows."""
        first = torch.minimum(self.accepted + 1, self.state.drafted)
        return self._span < torch.where(self.kept > 0, first, 0)[:, None]

    @lazy
    def substituted(self) -> Tensor:
        """Tokens added to the texts that were accepted only because D <= T: (B, L) bool."""
        stays = self._span < torch.minimum(self.accepted, self.kept)[:, None]
        by_score = self.verdict.by_score
        return stays & self.verdict.accepted if by_score is None else stays & self.verdict.accepted & by_score

    @lazy
    def scores(self) -> Tensor:
        """D of the drafted tokens: (B, L), finite where `substituted`."""
        return self.state.proposal.scores

    @property
    def _span(self) -> Tensor:
        return torch.arange(self.state.proposal.drafted.shape[1], device=self.accepted.device)


Array = npt.NDArray[np.generic]


class ThresholdPolicy:
    """Sets the T of each round, per row or per drafted token. Subclass it and implement `thresholds`.

    State of a text is kept in `memory`, by row; state that outlives texts is the policy's own, and `state_dict` saves
    it. A policy works on device tensors and never reads one on the host, which would have to wait for the device.

    Attributes:
        threshold: the T that prompts are given under this policy.
        identity: names the policy in caches of texts and in profiles; None: neither can store it.
        budget: whether the policy holds a budget. Two budgets cannot be held at the same time.
    """

    threshold: float = 0.0
    identity: str | None = None
    budget = False

    def start(self, new: NewRequests) -> None:
        """Receives requests before their first round."""

    def thresholds(self, state: RoundState) -> Tensor:
        """Returns the T of a round: (B,), one per row, or (B, L), one per drafted token.

        Values are floats on the device, never NaN.
        """
        raise NotImplementedError

    @property
    def reads_outcomes(self) -> bool:
        """Whether `observe` is called: if the class overrides it. Otherwise outcomes are not put together at all."""
        return type(self).observe is not ThresholdPolicy.observe

    def observe(self, outcome: RoundOutcome) -> None:
        """Receives the outcome of a round, if the policy `reads_outcomes`."""

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        """Raises UsageError if the policy is for other models, or for another rule or score."""

    def departures(self, settings: Sequence[Any]) -> list[str]:
        """Returns warnings where a call decodes otherwise than the policy's profiles certified, T apart.

        Args:
            settings: the different `setting.DecodingSetting`s of the call's requests, after `check`.
        """
        return []

    def doubts(self) -> list[str]:
        """Returns what to warn the caller of, when a call of the decoder ends; each warning is shown once."""
        return []

    def facts(self) -> dict[str, float | Tensor]:
        """Returns numbers that describe the policy in this round, for observers.

        Names hold the units, as in "round (s)"; values are plain numbers or tensors () on the device. Called once a
        round, after `thresholds`, and only if there is an observer.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns what the policy has learned, as plain numbers, lists and tensors; empty if it learns nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned. Raises UsageError if the state is of another policy."""
        if state:
            raise UsageError(
                f"{type(self).__name__} keeps no state, but this one holds {', '.join(state)}; load it into the policy "
                "that saved it"
            )


@dataclass(frozen=True)
class TracedText:
    """A text of a trace.

    Args:
        prompt: token ids.
        tokens: ids of all tokens that it took, the last ones of which have a row each. Whatever stands for an EOS.
    """

    prompt: Sequence[int]
    tokens: Sequence[int] = ()


class ScalePolicy(ThresholdPolicy):
    """Multiplies the T that a prompt was given by a scale m that does not depend on T.

    D <= T·m is the same as D/m <= T, so a text holds for an interval of T, as it does under a constant T, and T can be
    searched for as if it were constant. For this the scale must follow from the row's own text and logits only: not
    from other rows, from time, or from what was accepted in earlier texts.

    How close to the ends of an interval another T may lie depends on `least` and `steepness`.

    Attributes:
        least: a lower bound of all scales above 0.
        steepness: how much further rounding may move the logarithm of a scale than it moves square roots of
            scores; 0 where scales follow from tokens alone.
        columns: columns of traces that `traced` reads.
    """

    least: float = 1.0
    steepness: float = 0.0
    columns: tuple[str, ...] = ()

    def scales(self, state: RoundState) -> Tensor:
        """Returns the scales of a round: (B,), one per row, or (B, L), one per drafted token.

        Values are floats >= 0 on the device.
        """
        raise NotImplementedError

    def traced(self, columns: Mapping[str, Array]) -> Array:
        """Returns the scales along a trace, for replay: (n,) from columns (n,), rows in order, whole completions."""
        raise NotImplementedError

    def knowing(self, texts: Mapping[int, TracedText], tokenizer: Any) -> Self:
        """Returns a policy whose `traced` knows the texts, by the ids of their problems: more than rows tell."""
        return self

    def at(self, threshold: float) -> Self:
        """Returns a copy with the same scales and this T."""
        moved = copy(self)
        object.__setattr__(moved, "threshold", threshold)  # policies may be frozen
        return moved

    def thresholds(self, state: RoundState) -> Tensor:
        scales = self.scales(state)
        return (state.base if scales.dim() == 1 else state.base[:, None]) * scales


def check_output(output: object, policy: ThresholdPolicy, state: RoundState) -> Tensor:
    """Returns a policy's thresholds or scales as (B, 1) or (B, L) float64. NaN is looked for later, when the host
    reads the round's results anyway.

    Raises:
        UsageError: the output has another shape or type.
    """
    rows, drafts = state.proposal.drafted.shape
    shapes = ((rows,), (rows, drafts))
    if isinstance(output, Tensor) and output.is_floating_point() and tuple(output.shape) in shapes:
        return output.double().reshape(rows, -1) if output.dim() == 1 else output.double()
    text = f"a {output.dtype} tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else repr(output)
    shown = " ".join(text.split())
    raise UsageError(
        f"the threshold policy {type(policy).__name__} returned {shown:.80}; it must return a float tensor of shape "
        f"({rows},), one per row, or ({rows}, {drafts}), one per drafted token"
    )


_DIGITS = 12  # of a share: the same shape at another T must not get another identity by rounding


class Shape(ScalePolicy):
    """A scale policy that can be calibrated, cached and stored in profiles. `composed.policy_named` rebuilds it.

    Attributes:
        name: the kind of shape, as identities have it.
        version: raised when the same parameters come to mean other scales.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Builds the shape from the parameters of its identity, where policies are built already. Its T is arbitrary:
        `at` sets it.

        Raises:
            UsageError, TypeError, KeyError: there is no such shape.
        """
        raise NotImplementedError

    def describe(self, **parameters: Any) -> str:
        """Returns the identity of these parameters: canonical JSON."""
        return json.dumps({"name": self.name, "version": self.version, **parameters}, sort_keys=True)


def share(part: float, whole: float) -> float:
    """Returns part / whole for two values of T, rounded as identities have it."""
    return float(f"{part / whole:.{_DIGITS}g}")
