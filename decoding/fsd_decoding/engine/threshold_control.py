"""Connection of a threshold policy to the engine: when it is called, and what is kept for it on the device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fsd_decoding.acceptance.proposal import Proposal
from fsd_decoding.batch import Batch, Request
from fsd_decoding.engine.verify import JudgedRound
from fsd_decoding.policies.rounds import NewRequests, RoundOutcome, RoundState, RowMemory
from fsd_decoding.policies.threshold import ScalePolicy, ThresholdPolicy, check_output
from fsd_decoding.tensors import to_device


class ThresholdControl:
    """Calls one threshold policy during one call of the decoder.

    Per round, `adapt` requests T before the drafts are judged, `judged` stores the verdict, and `observe` passes the
    outcome on.
    """

    def __init__(self, policy: ThresholdPolicy, batch: Batch) -> None:
        self._policy = policy
        self._memory = RowMemory(len(batch.lengths), batch.lengths.device)
        self._begins = batch.lengths.clone()  # (B,) length of each prompt
        self._first = True
        self._state: RoundState | None = None
        self._judged: JudgedRound | None = None

    def start(self, rows: Tensor, requests: Sequence[Request]) -> None:
        """Announces requests that start in `rows` (R,)."""
        self._memory.forget(rows)
        self._begins[rows] = to_device([len(r.prompt) for r in requests], rows.device)
        self._policy.start(NewRequests(rows, requests, self._memory, self._first))
        self._first = False

    def adapt(self, proposal: Proposal, drafted: Tensor) -> None:
        """Sets the policy's T in the proposal.

        Raises:
            UsageError: the policy returned something else than float tensors of one entry per row or token.
        """
        policy = self._policy
        state = RoundState(proposal, drafted.clone(), self._begins, self._memory)  # cloned, as finished rows get 0
        self._state = state
        if isinstance(policy, ScalePolicy):
            proposal.scales = check_output(policy.scales(state), policy, state)
        else:
            proposal.adapted = check_output(policy.thresholds(state), policy, state)

    def record_verdict(self, record_verdict: JudgedRound) -> None:
        """Stores the judged round for `observe`."""
        self._judged = record_verdict

    def observe(self, kept: Sequence[int]) -> None:
        """Reports the round to the policy, if it listens.

        Args:
            kept: number of tokens that the round added to each row's text; 0 for empty rows.
        """
        if not self._policy.listens:
            return
        state, record_verdict = self._state, self._judged
        assert state is not None
        assert record_verdict is not None
        kept_on_device = to_device(kept, self._begins.device)
        bounds = record_verdict.proposal.bounds
        self._policy.observe(
            RoundOutcome(state, bounds, record_verdict.verdict, record_verdict.accepted, kept_on_device)
        )

    def keep(self, rows: Tensor) -> None:
        """Drops all rows except these (R,), as the batch does."""
        self._memory.keep(rows)
        self._begins = self._begins[rows]
