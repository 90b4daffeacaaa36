"""The decoding loop: draft, verify, accept, emit, refill.

This is the host side: rows, and the threshold policy. The device side of a round is in `rounds.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from fsd_common.errors import NumericalError, ThresholdError, UnfinishedError
from fsd_decoding.batch import Batch, FinishReason, Request, Row
from fsd_decoding.engine.cache_pool import PooledCaches
from fsd_decoding.engine.prompts import Prompts
from fsd_decoding.engine.rounds import Decided, Draft, EngineSettings, Rounds
from fsd_decoding.judging.past import Past
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.observers.stopwatch import Stopwatch, stopwatch
from fsd_decoding.policies.threshold import (
    NewRequests,
    RoundOutcome,
    RoundState,
    RowMemory,
    ScalePolicy,
    ThresholdPolicy,
    check_output,
)
from fsd_decoding.proposal import Proposal, Verdict
from fsd_decoding.tensors import on_device, to_device
from fsd_decoding.walk import Path, as_chain, walk


class ThresholdControl:
    """Calls one threshold policy during one call of the decoder.

    Per round, `adapt` requests T before the drafts are judged, `keep_verdict` stores what the rule decided, and
    `observe` passes the outcome on.
    """

    def __init__(self, policy: ThresholdPolicy, batch: Batch) -> None:
        self._policy, self._batch = policy, batch
        self._memory = RowMemory(len(batch.lengths), batch.lengths.device)
        self._first = True
        self._state: RoundState | None = None
        self._judged: tuple[Verdict, Tensor] | None = None

    def start(self, rows: Tensor, requests: Sequence[Request]) -> None:
        """Announces requests that start in `rows` (R,)."""
        self._memory.forget(rows)
        self._policy.start(NewRequests(rows, requests, self._memory, self._first))
        self._first = False

    def adapt(self, proposal: Proposal, drafted: Tensor) -> None:
        """Sets the policy's T in the proposal.

        Raises:
            UsageError: the policy returned something else than float tensors of one entry per row or token.
        """
        policy, drafted = self._policy, drafted.clone()  # as finished rows get 0
        state = RoundState(proposal, drafted, self._batch.begins, self._memory)
        self._state = state
        if isinstance(policy, ScalePolicy):
            proposal.scales = check_output(policy.scales(state), policy, state)
        else:
            proposal.adapted = check_output(policy.thresholds(state), policy, state)

    def keep_verdict(self, verdict: Verdict, accepted: Tensor) -> None:
        """Stores for `observe` what the rule decided, and the number of tokens that each row accepted (B,)."""
        self._judged = verdict, accepted

    def observe(self, kept: Sequence[int]) -> None:
        """Reports the round to the policy, if it reads outcomes.

        Args:
            kept: number of tokens that the round added to each row's text; 0 for empty rows.
        """
        if not self._policy.reads_outcomes:
            return
        state = self._state
        assert state is not None
        assert self._judged is not None
        kept_on_device = to_device(kept, state.begins.device)
        self._policy.observe(RoundOutcome(state, state.proposal.bounds, *self._judged, kept_on_device))

    def keep(self, rows: Tensor) -> None:
        """Drops all rows except these (R,), as the batch does."""
        self._memory.keep(rows)


ENGINE_VERSION = 2
"""Incremented when a text, its rounds or its interval may differ from before; part of cache keys."""


class Engine:
    """Decodes any number of requests in a fixed number of rows, refilling each row when it finishes."""

    def __init__(self, caches: PooledCaches, settings: EngineSettings) -> None:
        self._caches, self._settings = caches, settings
        self._batch, self._target, self._call = caches.batch, caches.target, caches.call
        self._drafter = caches.drafter if settings.rule.drafts else None
        self._rows: list[Row | None] = [None] * caches.rows
        self._rounds = Rounds(caches, settings)
        self._prompts = Prompts(self._target, self._drafter, caches.rows, self._call.can_reshape)
        self._threshold_control = (
            ThresholdControl(settings.threshold_policy, self._batch) if settings.threshold_policy else None
        )
        is_read = settings.criterion.scorer.reads_past
        self._past = Past(caches.rows, self._target.device, settings.reading) if is_read else None

    def run(self, requests: Iterable[Request]) -> Iterator[Row]:
        """Yields rows as they finish; a request is drawn when a row is free for it."""
        for rows in self.rounds(requests):
            yield from (row for row in rows if row.finish_reason is not None)

    @torch.inference_mode()
    def rounds(self, requests: Iterable[Request]) -> Iterator[list[Row]]:
        """Yields, after every round, the rows that took part in it, including those that finished.

        Raises:
            NumericalError: a row's logits were NaN or +inf.
            ThresholdError: a row's T was NaN. Both are raised after the rows of the round have been yielded.
        """
        waiting = iter(requests)
        with self._caches.used():
            while True:
                with on_device(self._target.device):  # not around what the caller does with the rows
                    if not self._refill(waiting):
                        return
                    self._shrink()
                    decided = self._round()
                    took_part = [row for row in self._rows if row is not None]
                    errors = self._emit(decided)
                    if errors:
                        self._caches.discard()
                    self._batch.resize(self._rows)
                yield took_part
                for error in errors:
                    raise error

    def _refill(self, waiting: Iterator[Request]) -> bool:
        """Puts waiting requests into free rows. Returns whether any row is occupied."""
        free = [i for i, row in enumerate(self._rows) if row is None]
        new = list(islice(waiting, len(free)))
        free = free[: len(new)]
        if not free:
            return any(self._rows)
        for i, request in zip(free, new, strict=True):
            self._rows[i] = Row(request, *self._initial_interval(request.threshold))
        rows = to_device(free, self._batch.lengths.device)
        self._batch.put(rows, new, self._settings.seed)
        if self._threshold_control is not None:
            self._threshold_control.start(rows, new)
        if self._past is not None:
            self._past.start(rows, new)
        self._prompts.put(free, [request.prompt for request in new], self._batch.tokens[rows])
        return True

    def _initial_interval(self, threshold: float) -> tuple[float, float]:
        """The initial interval of T: T alone if a stop policy reads it, empty if a policy sets it."""
        stopping, moving = self._settings.stop_policy, self._settings.threshold_policy
        if not (moving is None or isinstance(moving, ScalePolicy)):
            return threshold, threshold
        if stopping is not None and stopping.reads_threshold:
            return threshold, math.nextafter(threshold, math.inf)
        return self._settings.rule.initial_interval(threshold)

    def _shrink(self) -> None:
        """Drops empty rows, which cost as much as occupied ones, once they are more than a quarter of all rows.

        The last occupied rows move to their places.
        """
        taken = [i for i, row in enumerate(self._rows) if row is not None]
        if not self._call.can_reshape or 4 * len(taken) >= 3 * len(self._rows):
            return
        last = iter(taken[::-1])
        kept = [next(last) if row is None else i for i, row in enumerate(self._rows[: len(taken)])]
        self._rows = [self._rows[i] for i in kept]
        rows = to_device(kept, self._batch.lengths.device)
        self._batch.keep(rows)
        self._target.keep(kept)
        if self._drafter is not None:
            self._drafter.keep(kept)
        self._prompts.keep(kept)
        if self._threshold_control is not None:
            self._threshold_control.keep(rows)
        if self._past is not None:
            self._past.keep(rows)

    def _round(self) -> Decided:
        """Drafts, verifies and judges one round for all rows, with one copy to the host at its end."""
        rounds = self._rounds
        draft_length = self._draft_length()
        kv_length = self._call.size(max(row.length for row in self._rows if row) + self._settings.scratch(draft_length))
        clock = stopwatch(self._target.device)
        self._batch.gumbel = rounds.gumbel_noise(draft_length)
        draft = rounds.draft(self._rows, draft_length, kv_length)
        clock.lap()
        logits = rounds.verify(draft, kv_length)
        clock.lap()
        packed = self._judge(draft, logits, clock)
        return Decided.of(packed, draft.draft_length)

    def _draft_length(self) -> int:
        """The number of tokens to draft in a round, which graphs have few of."""
        rows = [row for row in self._rows if row is not None]
        most = max(row.draft_length for row in rows) if self._drafter else 0
        return most if most == 0 or self._call.can_reshape else max(row.request.draft_length for row in rows)

    def _judge(self, draft: Draft, logits: Tensor, clock: Stopwatch) -> Tensor:
        """Accepts or rejects drafted tokens, for `Decided.of`; observers and the threshold policy get the outcome."""
        settings, control = self._settings, self._threshold_control
        if settings.observer is None and control is None and self._past is None:
            return self._rounds.judge_and_emit(draft, logits)
        own = logits if self._call.results_persist else logits.clone()  # observers may keep them
        proposal = self._rounds.propose(draft, own)
        if self._past is not None:
            proposal.past = self._past.before(proposal.drafted)
        if control is not None:
            control.adapt(proposal, draft.counts)
        verdict = settings.rule.judge(proposal)
        path = walk(proposal, verdict, draft.counts)
        if self._past is not None:
            self._past.add_round(path)
        if control is not None:
            control.keep_verdict(verdict, path.accepted)
        if settings.observer is not None:
            settings.observer(self._record(proposal, verdict, draft.counts.clone(), path, clock))
        return self._rounds.emit(draft, proposal, path)

    def _record(
        self, proposal: Proposal, verdict: Verdict, drafted: Tensor, path: Path, clock: Stopwatch
    ) -> RoundRecord:
        settings, trees = self._settings, None if proposal.tree is None else proposal
        requests = [row.request if row else None for row in self._rows]
        if trees is not None:
            proposal, verdict, drafted = as_chain(proposal, verdict, path)  # the record is of the path alone
        outcome = (proposal, verdict, drafted, path.accepted)
        return RoundRecord(requests, *outcome, clock, settings.rule, settings.threshold_policy, trees, path.nodes)

    def _emit(self, decided: Decided) -> list[UnfinishedError]:
        """Emits every row's tokens and frees finished rows. Returns the errors of rows that failed."""
        errors = []
        kept = [0] * len(self._rows)
        for i, row in enumerate(self._rows):
            if row is None:
                continue
            if not (decided.finite_logits[i] and decided.valid_bounds[i]):
                errors.append(self._error(row, decided.finite_logits[i]))
                continue
            kept[i] = self._append(row, decided, i)
            if row.finish_reason is not None:
                self._rows[i] = None
        if self._threshold_control is not None:
            self._threshold_control.observe(kept)
        return errors

    def _append(self, row: Row, decided: Decided, i: int) -> int:
        """Appends a round's tokens to a row, up to the end of its text, and narrows the interval of T.

        Returns:
            the number of tokens kept.
        """
        drafted, accepted = decided.drafted[i], decided.accepted[i]
        candidates = decided.emitted[i][: accepted + 1]
        kept, row.finish_reason = self._cut(row, candidates)
        row.tokens += [t for t in candidates[:kept] if t not in self._settings.eos]
        row.rounds += 1
        row.drafted += drafted
        row.accepted += min(accepted, kept)
        row.bonus += decided.whole[i] and 0 < accepted < kept
        accepting, rejecting = decided.interval(i, kept)  # other decisions could not have changed the text
        row.lo, row.hi = max(row.lo, accepting), min(row.hi, rejecting)
        if self._settings.stop_policy is not None and drafted:
            row.memory = self._settings.stop_policy.remember(row.memory, decided.verified(i))
        return kept

    def _cut(self, row: Row, candidates: list[int]) -> tuple[int, FinishReason | None]:
        """Returns how many candidates the row keeps (an EOS counts as kept), and why it ends, if it does."""
        settings = self._settings
        left = row.request.max_new_tokens - len(row.tokens)
        kept = candidates[:left]
        ended = next((n for n, token in enumerate(kept) if token in settings.eos), None)
        text = kept if ended is None else kept[:ended]
        if settings.stops is not None:
            stopped = settings.stops(row.request, row.tokens + text, len(text))
            if stopped is not None:
                return stopped - len(row.tokens), "stop"
        if ended is not None:
            return ended + 1, "eos"
        return len(kept), "length" if len(kept) == left else None

    def _error(self, row: Row, finite_logits: bool) -> UnfinishedError:
        where = f"prompt {row.request.index} got"
        if not finite_logits:
            return NumericalError(
                f"{where} logits that are NaN or +inf in round {row.rounds + 1}; "
                "a wider dtype (bfloat16 rather than float16, or float32) usually helps"
            )
        policy = type(self._settings.threshold_policy).__name__
        return ThresholdError(
            f"{where} a threshold that is NaN, or a negative scale, from {policy} in round {row.rounds + 1}; "
            "a threshold policy must give numbers (-1 is lossless)"
        )
