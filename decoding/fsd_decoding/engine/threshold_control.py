"""A threshold policy at work on a batch: told which texts begin, asked before a round is judged, told what came of it.

Knows when a policy is asked, and what the device keeps for it. Knows no policy in particular, and no rule.
"""

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
    """One policy during one stream of requests."""

    def __init__(self, policy: ThresholdPolicy, batch: Batch) -> None:
        self._policy = policy
        self._memory = RowMemory(len(batch.lengths), batch.lengths.device)
        self._begins = batch.lengths.clone()  # (B,) length of each prompt
        self._first = True
        self._state: RoundState | None = None
        self._judged: JudgedRound | None = None

    def start(self, rows: Tensor, requests: Sequence[Request]) -> None:
        """Texts begin in `rows` (R,)."""
        self._memory.forget(rows)
        self._begins[rows] = to_device([len(r.prompt) for r in requests], rows.device)
        self._policy.start(NewRequests(rows, requests, self._memory, self._first))
        self._first = False

    def adapt(self, proposal: Proposal, drafted: Tensor) -> None:
        """Puts the policy's T into the proposal. UsageError: its answer is none."""
        policy = self._policy
        state = RoundState(proposal, drafted.clone(), self._begins, self._memory)  # a row that ends drafts 0 from then
        self._state = state
        if isinstance(policy, ScalePolicy):
            proposal.scales = check_output(policy.scales(state), policy, state)
        else:
            proposal.adapted = check_output(policy.thresholds(state), policy, state)

    def judged(self, judged: JudgedRound) -> None:
        """What is shown to the policy once the round is over."""
        self._judged = judged

    def observe(self, kept: Sequence[int]) -> None:
        """The round is over; `kept`: tokens that each row's text got."""
        if not self._policy.listens:
            return
        state, judged = self._state, self._judged
        assert state is not None
        assert judged is not None
        told = to_device(kept, self._begins.device)
        bounds = judged.proposal.bounds
        self._policy.observe(RoundOutcome(state, bounds, judged.verdict, judged.accepted, told))

    def keep(self, rows: Tensor) -> None:
        """The batch gives up all rows but these (R,)."""
        self._memory.keep(rows)
        self._begins = self._begins[rows]
