"""The interface of stop policies, which decide how many tokens each row drafts in a round.

`engine.draft` calls it. `docs/decoding.md` shows how to write a policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsd_common.addons import OWN, Registry, addon
from fsd_common.errors import UsageError
from fsd_decoding.batch import Batch, Row
from fsd_decoding.tensors import lazy, to_device

Answer = Tensor | Sequence[bool]
"""One bool per row: a tensor (B,), on any device, or a list."""


@dataclass
class DraftState:
    """What a stop policy may use: everything except the target's logits of this round.

    The tensors are reused in the next round, so copy what you keep.
    """

    batch: Batch
    logits: list[Tensor]  # raw logits (B, 1, V) of each token drafted so far in this round
    rows: Sequence[Row | None]  # None: the row is empty
    going: list[bool]  # (B) which rows have not stopped

    @lazy
    def drafting(self) -> Tensor:
        """`going` on the batch's device: (B,) bool."""
        return to_device(self.going, self.batch.lengths.device)


@dataclass(frozen=True)
class Verified:
    """The outcome of one row's draft after verification.

    Attributes:
        drafted, accepted: numbers of tokens.
        largest_accepted: the largest score of a token that was accepted only because D <= T; None: there was none.
        smallest_rejected: the score of the token that was rejected because D > T; None: there was none.
    """

    drafted: int
    accepted: int
    largest_accepted: float | None
    smallest_rejected: float | None


class StopPolicy:
    """Decides how far rows draft. Subclass it, or pass a function with the signature of `goes_on`.

    Attributes:
        name: by which it was found, see `stop_policy_named`; None: it was made in Python.
        identity: names the policy in caches of texts; None: texts are not cached.
        reads_threshold: decisions depend on T, so a text holds for its own T only and for no interval around it.
        rules: the rules whose drafts it ends; None: all.
        looks: it reads tensors on the host, so on CUDA it is called while the next draft step is under way.
        watches: it hooks into the draft's forward passes, which then run one by one, when the policy requests them,
            and outside of CUDA graphs.
        replayed: the policy of `fsd_collectors.replay` that ends drafts in forecasts as this does; None: forecasts take
            drafts as a whole.
    """

    name: str | None = None
    identity: str | None = None
    reads_threshold: bool = False
    rules: frozenset[str] | None = None
    looks: bool = True
    watches: bool = False
    replayed: Any = None

    def goes_on(self, state: DraftState) -> Answer:
        """Returns, before each draft step, which rows draft one more token. A row that stopped remains stopped."""
        raise NotImplementedError

    def withholds(self, state: DraftState) -> Answer | None:
        """Returns, after each draft step, which rows stop and leave their last token unverified; None: no row.

        It may use the logits that the token was drawn from, but never the token itself: omitting particular tokens
        would change the distribution of the emitted text.
        """
        return None

    def remember(self, memory: Any, verified: Verified) -> Any:
        """Returns a row's new memory from its previous one (None at first) and the outcome of its latest round."""
        return None


class FunctionStopPolicy(StopPolicy):
    """A stop policy made of a function."""

    def __init__(self, goes_on: Callable[[DraftState], Answer]) -> None:
        self._function = goes_on

    def goes_on(self, state: DraftState) -> Answer:
        return self._function(state)


def _as_named(found: Any, name: str) -> StopPolicy | None:
    """A stop policy of an add-on, whose identity is that of its code too."""
    policy = found() if isinstance(found, type) and issubclass(found, StopPolicy) else copy.copy(found)
    known = addon("stop policy", name)
    if not isinstance(policy, StopPolicy) or known is None:
        return None
    policy.name, own = name, "" if policy.identity is None else f" {policy.identity}"
    policy.identity = f"{name} ({known.version or 'no version'}, {known.source[:16]}){own}"
    return policy


_POLICIES = Registry[StopPolicy](
    "stop policy", {}, _as_named, "a StopPolicy (fsd_decoding.policies.stopping), or a subclass without arguments"
)


def stop_policy_named(name: str) -> StopPolicy:
    """Returns the stop policy that is found by a name, `module:Name` or that of an entry point.

    Raises:
        UsageError: there is none.
    """
    found = _POLICIES.find(name) if isinstance(name, str) else None
    if found is None:
        known = "".join(f"{each}, " for each in _POLICIES.names)
        raise UsageError(f"unknown stop policy {name!r:.60}; known: {known}{OWN}")
    return found


def as_policy(policy: StopPolicy | Callable[[DraftState], Answer] | str) -> StopPolicy:
    """Returns a stop policy. UsageError: the argument is neither a policy nor a function, or names none."""
    if isinstance(policy, str):
        return stop_policy_named(policy)
    if isinstance(policy, StopPolicy):
        return policy
    if not callable(policy):
        raise UsageError(
            f"stop_policy is {policy!r:.80}; it must be a StopPolicy, its name, or a function of a DraftState"
        )
    return FunctionStopPolicy(policy)


def as_bools(answer: object, rows: int) -> Sequence[bool]:
    """Returns a policy's answer on the host, one bool per row. Raises UsageError if it has another shape or type."""
    if isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.shape == (rows,):
        bools: list[bool] = answer.tolist()
        return bools
    if isinstance(answer, list) and len(answer) == rows and all(isinstance(value, bool) for value in answer):
        return answer
    shown = " ".join(repr(answer).split())  # the repr of a tensor has several lines
    raise UsageError(f"the policy returned {shown:.80}; it must return a bool tensor of shape ({rows},), one per row")
