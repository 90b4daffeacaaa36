"""The decoding loop: draft, verify, accept, emit, refill.

Knows rows and rounds. What accepting means is in `rules.py`, what a model is in `runner.py`, text and
tokenizers are in `decoder.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.drafter import ModelDrafter
from fsd_decoding.errors import NumericalError
from fsd_decoding.rules import Proposal, Rule, Verdict
from fsd_decoding.runner import ModelRunner
from fsd_decoding.sampling import Sampling

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Request:
    """One prompt to decode. `key` names its noise; `index` is for the caller."""

    index: int
    prompt: list[int]
    key: int
    threshold: float
    max_new_tokens: int


@dataclass
class Row:
    """What the host knows of a request being decoded."""

    request: Request
    tokens: list[int] = field(default_factory=list)  # new ones, without EOS
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    lo: float = -math.inf  # every T in [lo, hi) gives this very text (DESIGN section 9)
    hi: float = math.inf
    finish_reason: FinishReason | None = None

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)


Observer = Callable[[Proposal, Tensor], None]
"""Called once a round with what was proposed and, for every row, how many of its drafted tokens were
decided on: (B,), the accepted ones and the first rejected one; 0 in rows without a request."""


@dataclass(frozen=True)
class Settings:
    """How a stream of requests is decoded."""

    rule: Rule
    divergence: str
    draft_length: int
    sampling: Sampling
    eos: frozenset[int]
    seed: int
    stops: Callable[[list[int], int], int | None] | None = None
    """(the row's new tokens, how many of them this round brought) -> how many there are up to the one
    that completes a stop string, or None where none is complete."""
    observer: Observer | None = None


@dataclass(frozen=True)
class _Round:
    """One round on the host: per row its candidate tokens and what was decided of them."""

    emitted: list[list[int]]  # L + 1 each; the first `accepted + 1` count
    accepted: list[int]
    sound: list[bool]  # no logits of the row were NaN or +inf
    spared: list[list[float]]  # largest D so far that alone accepted, by position
    refused: list[list[float]]  # D where it rejected, else inf


class Engine:
    """Decodes any number of requests in a fixed number of rows, refilling a row when it finishes."""

    def __init__(
        self, target: ModelRunner, drafter: ModelDrafter | None, rows: int, slots: int, settings: Settings
    ) -> None:
        self._target, self._drafter, self._settings = target, drafter, settings
        device = target.device
        self._tokens = torch.zeros((rows, slots), dtype=torch.int64, device=device)
        self._lengths = torch.ones(rows, dtype=torch.int64, device=device)
        self._keys = torch.zeros((rows, 2), dtype=torch.int64, device=device)
        self._thresholds = torch.zeros(rows, dtype=torch.float64, device=device)
        self._rows: list[Row | None] = [None] * rows

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> Iterator[Row]:
        """Yields rows as they finish, in whatever order they do."""
        waiting = list(reversed(requests))
        while True:
            self._refill(waiting)
            if not any(self._rows):
                return
            decided = self._round()
            for i, row in enumerate(self._rows):
                if row is not None:
                    _check_sound(row, decided.sound[i])
                    self._emit(row, decided, i)
                    if row.finish_reason is not None:
                        self._rows[i] = None
                        yield row
            self._lengths.copy_(torch.tensor([row.length if row else 1 for row in self._rows]))

    def _refill(self, waiting: list[Request]) -> None:
        """Puts waiting requests into the free rows and caches their prompts."""
        free = [i for i, row in enumerate(self._rows) if row is None][: len(waiting)]
        if not free:
            return
        new = [waiting.pop() for _ in free]
        for i, request in zip(free, new, strict=True):
            self._rows[i] = Row(request)
        rows = torch.tensor(free, device=self._tokens.device)
        longest = max(len(request.prompt) for request in new)
        padded = torch.tensor([r.prompt + [0] * (longest - len(r.prompt)) for r in new])
        self._tokens[rows, :longest] = padded.to(rows.device)
        self._lengths[rows] = torch.tensor([len(r.prompt) for r in new], device=rows.device)
        keys = noise.problem_keys(self._settings.seed, [r.key for r in new])
        self._keys[rows] = keys.to(rows.device)
        thresholds = torch.tensor([r.threshold for r in new], dtype=torch.float64)
        self._thresholds[rows] = thresholds.to(rows.device)
        prompts = self._tokens[rows]
        self._target.prefill(rows, prompts, longest - 1)
        if self._drafter is not None:
            self._drafter.prefill(rows, prompts, longest - 1)

    def _round(self) -> _Round:
        """Drafts, verifies and judges one round of all rows; one copy to the host at its end."""
        settings, lengths = self._settings, self._lengths
        longest = max(row.length for row in self._rows if row)
        drafted, draft_logits = self._draft(longest)  # (B, L), (B, L, V)
        span = torch.arange(drafted.shape[1] + 1, device=lengths.device)
        last = self._tokens.gather(1, lengths[:, None] - 1)
        verified = torch.cat([last, drafted], 1)  # (B, L + 1)
        at = lengths[:, None] - 1 + span
        target_logits = self._target.logits(verified, at, longest + drafted.shape[1], keep=len(span))
        proposal = Proposal(
            target_logits,
            draft_logits,
            drafted,
            at + 1,
            self._keys,
            self._thresholds,
            settings.divergence,
            settings.sampling,
        )
        verdict = settings.rule.judge(proposal)
        accepted = verdict.accepted.cumprod(1).sum(1)  # (B,) up to the first rejection
        if settings.observer is not None:
            active = torch.tensor([row is not None for row in self._rows], device=accepted.device)
            settings.observer(proposal, (accepted + 1).clamp_max(drafted.shape[1]) * active)
        drafts = torch.nn.functional.pad(drafted, (0, 1))
        emitted = torch.where(span < accepted[:, None], drafts, verdict.replacement)
        self._tokens.scatter_(1, at + 1, emitted)  # what lies beyond the new length is written again later
        return _to_host(emitted, accepted, verdict, proposal)

    def _draft(self, longest: int) -> tuple[Tensor, Tensor]:
        if self._drafter is None:
            empty = self._tokens.new_empty((len(self._rows), 0))
            return empty, torch.empty((*empty.shape, self._target.vocabulary), device=empty.device)
        settings = self._settings
        return self._drafter.draft(
            self._tokens, self._lengths, self._keys, settings.sampling, settings.draft_length, longest
        )

    def _emit(self, row: Row, decided: _Round, i: int) -> None:
        """Appends a round's tokens to a row, up to its end, and narrows the interval of T."""
        accepted = decided.accepted[i]
        candidates = decided.emitted[i][: accepted + 1]
        kept, row.finish_reason = self._cut(row, candidates)
        row.tokens += [t for t in candidates[:kept] if t not in self._settings.eos]
        row.rounds += 1
        row.drafted += len(decided.emitted[i]) - 1
        row.accepted += min(accepted, kept)
        # Only decisions behind a token that was kept could have changed the text.
        if spared := decided.spared[i][: min(accepted, kept)]:
            row.lo = max(row.lo, spared[-1])
        if accepted < kept and accepted < len(decided.refused[i]):
            row.hi = min(row.hi, decided.refused[i][accepted])

    def _cut(self, row: Row, candidates: list[int]) -> tuple[int, FinishReason | None]:
        """How many candidates the row keeps (an EOS counts as kept), and why it ends if it does."""
        settings = self._settings
        room = row.request.max_new_tokens - len(row.tokens)
        kept = candidates[:room]
        ended = next((n for n, token in enumerate(kept) if token in settings.eos), None)
        text = kept if ended is None else kept[:ended]
        if settings.stops is not None:
            stopped = settings.stops(row.tokens + text, len(text))
            if stopped is not None:
                return stopped - len(row.tokens), "stop"
        if ended is not None:
            return ended + 1, "eos"
        return len(kept), "length" if len(kept) == room else None


def _to_host(emitted: Tensor, accepted: Tensor, verdict: Verdict, proposal: Proposal) -> _Round:
    """One copy for the whole round; token ids are exact in fp64."""
    logits = (proposal.target_logits, proposal.draft_logits)
    sound = torch.cat([one.amax(-1).isfinite() for one in logits], 1).all(1)  # the largest is NaN where any is
    parts = [emitted.double(), accepted.double()[:, None], sound.double()[:, None]]
    if verdict.by_divergence is not None:
        decided = verdict.by_divergence
        d = proposal.divergences.double()
        spared = torch.where(decided & verdict.accepted, d, -torch.inf)
        parts += [spared.cummax(1).values, torch.where(decided & ~verdict.accepted, d, torch.inf)]
    rows = torch.cat(parts, 1).tolist()
    n, drafts = emitted.shape[1], emitted.shape[1] - 1
    return _Round(
        emitted=[[int(t) for t in row[:n]] for row in rows],
        accepted=[int(row[n]) for row in rows],
        sound=[bool(row[n + 1]) for row in rows],
        spared=[row[n + 2 : n + 2 + drafts] for row in rows],
        refused=[row[n + 2 + drafts :] for row in rows],
    )


def _check_sound(row: Row, sound: bool) -> None:
    if not sound:
        raise NumericalError(
            f"prompt {row.request.index} got logits that are NaN or +inf in round {row.rounds + 1}; "
            "a wider dtype (bfloat16 rather than float16, or float32) usually helps"
        )
