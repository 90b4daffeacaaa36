"""The interface of threshold policies, which set the T that every round is judged by.

`engine.threshold_control` calls it. `docs/adaptive.md` shows how to write a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.policies.rounds import NewRequests, RoundOutcome, RoundState

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
    def listens(self) -> bool:
        """Whether `observe` is called: if the class overrides it. Otherwise outcomes are not put together at all."""
        return type(self).observe is not ThresholdPolicy.observe

    def observe(self, outcome: RoundOutcome) -> None:
        """Receives the outcome of a round, if the policy `listens`."""

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        """Raises UsageError if the policy is for other models, or for another rule or divergence."""

    def departures(self, settings: Sequence[Any]) -> list[str]:
        """Returns warnings where a call decodes otherwise than the policy's profiles certified, T apart.

        Args:
            settings: the different `profile.coverage.DecodingSetting`s of the call's requests, after `check`.
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


class ScalePolicy(ThresholdPolicy):
    """Multiplies the T that a prompt was given by a scale m that does not depend on T.

    D <= T·m is the same as D/m <= T, so a text holds for an interval of T, as it does under a constant T, and T can be
    searched for as if it were constant. For this the scale must follow from the row's own text and logits only: not
    from other rows, from time, or from what was accepted in earlier texts.

    How close to the ends of an interval another T may lie depends on `least` and `steepness`.

    Attributes:
        least: a lower bound of all scales above 0.
        steepness: how much further rounding may move the logarithm of a scale than it moves square roots of
            divergences; 0 where scales follow from tokens alone.
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
