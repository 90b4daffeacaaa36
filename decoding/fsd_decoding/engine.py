"""The decoding loop: draft, verify, accept, emit, refill.

Knows rows and rounds. How tokens are drafted is in `drafting.py`, what accepting means in `rules.py`, what a
model is in `runner.py`; text and tokenizers are in `decoder.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fsd_decoding.batch import Batch, Request
from fsd_decoding.drafter import Drafter
from fsd_decoding.drafting import Draft, StopPolicy, draft_round
from fsd_decoding.errors import NumericalError
from fsd_decoding.observing import Observer, RoundRecord
from fsd_decoding.proposal import Criterion, Proposal, Verdict
from fsd_decoding.rules import Rule
from fsd_decoding.runner import ModelRunner
from fsd_decoding.sampling import Sampling

FinishReason = Literal["eos", "stop", "length"]


@dataclass
class Row:
    """What the host knows of a request being decoded."""

    request: Request
    lo: float  # every T in [lo, hi) gives this very text (DESIGN section 9)
    hi: float
    tokens: list[int] = field(default_factory=list)  # new ones, without EOS
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0  # tokens the target added to a draft accepted whole
    finish_reason: FinishReason | None = None

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)


@dataclass(frozen=True)
class Settings:
    """How a stream of requests is decoded."""

    rule: Rule
    criterion: Criterion
    sampling: Sampling
    eos: frozenset[int]
    seed: int
    stops: Callable[[Request, list[int], int], int | None] | None = None
    """(request, its new tokens, how many of them this round brought) -> how many there are up to the one
    that ends the text, or None where none does."""
    policy: StopPolicy | None = None
    observer: Observer | None = None


@dataclass(frozen=True)
class _Round:
    """One round on the host: per row its candidate tokens and what was decided of them."""

    emitted: list[list[int]]  # L + 1 each; the first `accepted + 1` count
    drafted: list[int]
    accepted: list[int]
    sound: list[bool]  # no logits of the row were NaN or +inf
    spared: list[list[float]]  # largest score so far that alone accepted, by position
    refused: list[list[float]]  # score where it rejected, else inf


class Engine:
    """Decodes any number of requests in a fixed number of rows, refilling a row when it finishes."""

    def __init__(self, target: ModelRunner, drafter: Drafter | None, rows: int, slots: int, settings: Settings) -> None:
        self._target, self._drafter, self._settings = target, drafter, settings
        self._batch = Batch(rows, slots, target.device)
        self._rows: list[Row | None] = [None] * rows

    def run(self, requests: Sequence[Request]) -> Iterator[Row]:
        """Yields rows as they finish, in whatever order they do."""
        for rows in self.rounds(requests):
            yield from (row for row in rows if row.finish_reason is not None)

    @torch.inference_mode()
    def rounds(self, requests: Sequence[Request]) -> Iterator[list[Row]]:
        """Yields, after every round, the rows that took part in it, those that finished included."""
        waiting = list(reversed(requests))
        while True:
            self._refill(waiting)
            if not any(self._rows):
                return
            decided = self._round()
            took_part = [row for row in self._rows if row is not None]
            for i, row in enumerate(self._rows):
                if row is not None:
                    _check_sound(row, decided.sound[i])
                    self._emit(row, decided, i)
                    if row.finish_reason is not None:
                        self._rows[i] = None
            self._batch.resize([row.length if row else 1 for row in self._rows])
            yield took_part

    def _refill(self, waiting: list[Request]) -> None:
        """Puts waiting requests into the free rows and caches their prompts."""
        free = [i for i, row in enumerate(self._rows) if row is None][: len(waiting)]
        if not free:
            return
        new = [waiting.pop() for _ in free]
        for i, request in zip(free, new, strict=True):
            self._rows[i] = Row(request, *self._settings.rule.widest(request.threshold))
        rows = torch.tensor(free, device=self._batch.lengths.device)
        longest = self._batch.put(rows, new, self._settings.seed)
        prompts = self._batch.tokens[rows]
        for model in (self._target, self._drafter):
            if model is not None:
                model.prefill(rows, prompts, longest - 1)

    def _round(self) -> _Round:
        """Drafts, verifies and judges one round of all rows; one copy to the host at its end."""
        batch, settings = self._batch, self._settings
        longest = max(row.length for row in self._rows if row)
        began = time.perf_counter()
        draft = self._draft(longest)
        drafted = time.perf_counter()
        span = torch.arange(draft.tokens.shape[1] + 1, device=batch.lengths.device)
        at = batch.lengths[:, None] - 1 + span  # (B, L + 1): the last token and the drafted ones
        target_logits = self._target.logits(batch.tokens.gather(1, at), at, longest + len(span) - 1, keep=len(span))
        proposal = Proposal(
            target_logits,
            torch.cat([target_logits[:, :0], *draft.logits], 1),
            draft.tokens,
            at + 1,
            batch.tokens,
            batch.keys,
            batch.thresholds,
            settings.criterion,
            settings.sampling,
        )
        verified = time.perf_counter()
        verdict = settings.rule.judge(proposal)
        agreed = verdict.accepted & (span[:-1] < draft.counts[:, None])
        accepted = agreed.cumprod(1).sum(1)  # (B,) up to the first rejection
        if settings.observer is not None:
            requests = [row.request if row else None for row in self._rows]
            seconds = drafted - began, verified - drafted
            settings.observer(RoundRecord(requests, proposal, verdict, draft.counts, accepted, *seconds))
        emitted = _emitted(proposal, verdict, draft.counts, accepted)
        batch.tokens.scatter_(1, at + 1, emitted)  # what lies beyond the new length is written again later
        return _to_host(emitted, draft.counts, accepted, verdict, proposal)

    def _draft(self, longest: int) -> Draft:
        batch, settings = self._batch, self._settings
        if self._drafter is None:
            return Draft(batch.tokens[:, :0], [], torch.zeros_like(batch.lengths))
        most = max(row.request.draft_length for row in self._rows if row)
        return draft_round(self._drafter, batch, settings.sampling, most, longest, settings.policy)

    def _emit(self, row: Row, decided: _Round, i: int) -> None:
        """Appends a round's tokens to a row, up to its end, and narrows the interval of T."""
        drafted, accepted = decided.drafted[i], decided.accepted[i]
        candidates = decided.emitted[i][: accepted + 1]
        kept, row.finish_reason = self._cut(row, candidates)
        row.tokens += [t for t in candidates[:kept] if t not in self._settings.eos]
        row.rounds += 1
        row.drafted += drafted
        row.accepted += min(accepted, kept)
        row.bonus += 0 < drafted == accepted < kept
        self._narrow(row, decided, i, kept)

    def _narrow(self, row: Row, decided: _Round, i: int, kept: int) -> None:
        """Only decisions behind a token that was kept could have changed the text."""
        drafted, accepted = decided.drafted[i], decided.accepted[i]
        if spared := decided.spared[i][: min(accepted, kept)]:
            row.lo = max(row.lo, spared[-1])
        if accepted < min(kept, drafted) and decided.refused[i]:
            row.hi = min(row.hi, decided.refused[i][accepted])

    def _cut(self, row: Row, candidates: list[int]) -> tuple[int, FinishReason | None]:
        """How many candidates the row keeps (an EOS counts as kept), and why it ends if it does."""
        settings = self._settings
        room = row.request.max_new_tokens - len(row.tokens)
        kept = candidates[:room]
        ended = next((n for n, token in enumerate(kept) if token in settings.eos), None)
        text = kept if ended is None else kept[:ended]
        if settings.stops is not None:
            stopped = settings.stops(row.request, row.tokens + text, len(text))
            if stopped is not None:
                return stopped - len(row.tokens), "stop"
        if ended is not None:
            return ended + 1, "eos"
        return len(kept), "length" if len(kept) == room else None


def _emitted(proposal: Proposal, verdict: Verdict, drafted: Tensor, accepted: Tensor) -> Tensor:
    """What every position emits if the round gets that far: (B, L + 1)."""
    pad = torch.nn.functional.pad
    span = torch.arange(proposal.positions.shape[1], device=drafted.device)
    bonus = torch.where(span < drafted[:, None], pad(verdict.fallback, (0, 1)), proposal.target_choice)
    return torch.where(span < accepted[:, None], pad(proposal.drafted, (0, 1)), bonus)


def _to_host(emitted: Tensor, drafted: Tensor, accepted: Tensor, verdict: Verdict, proposal: Proposal) -> _Round:
    """One copy for the whole round; token ids are exact in fp64."""
    logits = (proposal.target_logits, proposal.draft_logits)
    sound = torch.cat([one.amax(-1).isfinite() for one in logits], 1).all(1)  # the largest is NaN where any is
    parts = [emitted.double(), torch.stack([drafted, accepted, sound], 1).double()]
    if verdict.score is not None and verdict.by_score is not None:
        score, decided = verdict.score.double(), verdict.by_score
        spared = torch.where(decided & verdict.accepted, score, -torch.inf)
        parts += [spared.cummax(1).values, torch.where(decided & ~verdict.accepted, score, torch.inf)]
    rows = torch.cat(parts, 1).tolist()
    n, drafts = emitted.shape[1], emitted.shape[1] - 1
    return _Round(
        emitted=[[int(t) for t in row[:n]] for row in rows],
        drafted=[int(row[n]) for row in rows],
        accepted=[int(row[n + 1]) for row in rows],
        sound=[bool(row[n + 2]) for row in rows],
        spared=[row[n + 3 : n + 3 + drafts] for row in rows],
        refused=[row[n + 3 + drafts :] for row in rows],
    )


def _check_sound(row: Row, sound: bool) -> None:
    if not sound:
        raise NumericalError(
            f"prompt {row.request.index} got logits that are NaN or +inf in round {row.rounds + 1}; "
            "a wider dtype (bfloat16 rather than float16, or float32) usually helps"
        )
