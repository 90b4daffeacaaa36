"""Traces along the target: finished completions read by both models with teacher forcing, as fast as a prefill.

Every position of every completion gets p, q and the token that the draft would have drawn there with the same noise.
Positions are fed through `ModelRunner`, which is exact for every model family it supports, whatever a model does
between its last layer and its logits. Logits are computed for one chunk of positions at a time, never as (B, S, V).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_collectors.collection.measures import HiddenStates, HostCopies, Measures, Positions
from fsd_common.errors import NumericalError, UsageError
from fsd_decoding.batch import Request
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.judging.past import Past
from fsd_decoding.judging.score import reading_of
from fsd_decoding.models.runner import PREFILL_CHUNK, ModelRunner, context_length, vocabulary_size
from fsd_decoding.noise import problem_keys
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import score_named

Array = NDArray[Any]

_LOGITS = 1 << 26  # logits (positions x V) of a model held at once: 256 MB in fp32
_CPU_LOGITS = 1 << 24


class Finished(Protocol):
    """What traces need of a finished text, such as `fsd_decoding.engine.result.Result`."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def emitted(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...


@dataclass(frozen=True)
class Completion:
    """A prompt and the target's completion.

    `id` keys its noise, like the ids of `generate`; the last `begun` tokens of the prompt are the text's first.
    """

    id: int
    prompt: Sequence[int]
    tokens: Sequence[int]  # without EOS
    ended: bool  # whether an EOS follows
    begun: int = 0

    @classmethod
    def of(cls, id: int, prompt: Sequence[int], result: Finished) -> Self:
        return cls(id, prompt, result.tokens, result.finish_reason == "eos")

    @property
    def emitted(self) -> int:
        return len(self.tokens) + self.ended

    @property
    def length(self) -> int:
        return len(self.prompt) + self.emitted


@dataclass(frozen=True)
class TracedPositions:
    """N positions, ordered by completion and position."""

    owner: Array  # (N,) index of the completion
    position: Array  # (N,) position in the completion, from 0
    measured: Array  # (columns, N)
    states: Array | None  # (N, width) fp16


@torch.inference_mode()
def trace_completions(
    decoder: SpeculativeDecoder,
    completions: Sequence[Completion],
    measures: Measures,
    batch_size: int,
    states: HiddenStates | None = None,
) -> TracedPositions:
    """Measures every position of completions that the decoder's target generated.

    Args:
        decoder: its models read the completions; its seed must be that of the completions.
        completions: generated with `measures.sampling`.
        measures: columns to compute.
        batch_size: completions read at once, held in both models' KV caches.
        states: hidden states of the decoder's draft to keep; entered as a context manager.

    Raises:
        UsageError: the draft is not a model.
        NumericalError: a model returned logits that are NaN or +inf.
    """
    check_draft(decoder)
    by_length = sorted(range(len(completions)), key=lambda i: completions[i].length)
    indices: list[Array] = []
    context = context_length(decoder.draft.config)
    measured, kept = HostCopies(), HostCopies()
    for start in range(0, len(by_length), batch_size):
        group = by_length[start : start + batch_size]
        batch = TeacherForced(decoder, [completions[i] for i in group], measures.sampling, measures.reader)
        for rows, position, flat, at in batch.chunks():
            indices.append(np.stack([np.array(group)[rows], position]))
            measured.send(measures.within(context, at))
            if states is not None:
                kept.send(states.latest().to(flat.device).flatten(0, 1)[flat])
    owner, position = np.concatenate(indices, 1)
    order = np.lexsort((position, owner))
    columns = np.concatenate([part.numpy() for part in measured.wait()], 1)[:, order]
    for model in ("target", "draft"):
        check_numbers(columns[measures.columns.index(f"{model}_probability")], owner[order], completions)
    whole = [part.numpy() for part in kept.wait()]
    return TracedPositions(owner[order], position[order], columns, np.concatenate(whole)[order] if whole else None)


class TeacherForced:
    """B completions of similar length in KV caches of both models; slots beyond a row's end are padding.

    Args:
        decoder: its models read the completions; its seed must be that of the completions.
        completions: generated with `sampling`.
        reader: the score that reads the past of texts, which is that of exact decoding here; None: none does.
    """

    def __init__(
        self, decoder: SpeculativeDecoder, completions: Sequence[Completion], sampling: Sampling,
        reader: str | None = None,
    ) -> None:  # fmt: skip
        device = decoder.device
        self._sampling = sampling
        self._prompts = np.array([len(c.prompt) for c in completions])
        self._emitted = np.array([c.emitted for c in completions])
        self._begun = np.array([c.begun for c in completions])
        self._ended = np.array([c.ended for c in completions])
        self._slots = max(c.length for c in completions)
        padded = [[*c.prompt, *c.tokens, *[0] * (self._slots - len(c.prompt) - len(c.tokens))] for c in completions]
        self._tokens = torch.tensor(padded).to(device)  # (B, slots)
        self._keys = problem_keys(decoder.seed, [c.id for c in completions]).to(device)
        models = decoder.target, decoder.draft
        vocabulary = min(vocabulary_size(model) for model in models)
        self.eos = torch.tensor(sorted(i for i in decoder.eos if i < vocabulary), device=device)
        self._runners = [
            ModelRunner(model, len(completions), self._slots, vocabulary, decoder.lean) for model in models
        ]
        # Where each row is fed from, one token at a time in order: recurrent layers read all rows from the same place.
        in_order = any(runner.has_states for runner in self._runners)
        self._first = np.full_like(self._prompts, self._prompts.min() - 1) if in_order else self._prompts - 1
        logits = _CPU_LOGITS if device.type == "cpu" else _LOGITS
        self._reach = context_length(decoder.draft.config)
        self._past = None if reader is None else self._past_of(decoder, reader, completions)
        self._chunk = max(1, min(PREFILL_CHUNK, logits // (len(completions) * vocabulary)))

    def chunks(self) -> Iterator[tuple[Array, Array, Tensor, Positions]]:
        """Yields, for each chunk of C positions, the N that lie within their completions.

        Yields:
            Their rows (N,), their positions in the completion (N,), their flat indices in B x C, and their logits.
        """
        self._read_prompts()
        before = self._prompts - 1 - self._first  # fed of each row before its completion
        longest = int((before + self._emitted).max())
        for start in range(0, longest, self._chunk):
            span = np.arange(start, min(start + self._chunk, longest))
            within = span - before[:, None]
            rows, columns = np.nonzero((within >= 0) & (within < self._emitted[:, None]))
            flat = torch.from_numpy(rows * len(span) + columns).to(self._tokens.device)
            places = within[rows, columns]
            yield rows, places, flat, self._positions(span, rows, places, flat)

    def _read_prompts(self) -> None:
        """Prefills the prompts except for their last tokens, which the first chunk reads; or nothing, see `_first`."""
        until = int(self._first.max())
        for start in range(0, until, PREFILL_CHUNK):
            stop = min(start + PREFILL_CHUNK, until)
            positions = torch.arange(start, stop, device=self._tokens.device).expand(len(self._tokens), -1)
            for runner in self._runners:
                runner.logits(self._tokens[:, start:stop], positions, stop, keep=1)

    def _positions(self, span: Array, rows: Array, places_in: Array, flat: Tensor) -> Positions:
        """Feeds the tokens before `span` and collects the logits of the positions in it.

        Args:
            places_in: (N,) places in their completions.
        """
        last = (self._first[:, None] + span).clip(max=self._slots - 1)  # (B, C)
        at = torch.from_numpy(last).to(self._tokens.device)
        fed = self._tokens.gather(1, at)
        p, q = (
            runner.logits(fed, at, int(last.max()) + 1, keep=len(span)).flatten(0, 1)[flat] for runner in self._runners
        )
        places = at.flatten()[flat] + 1
        of_row = torch.from_numpy(rows).to(places.device)
        keys = self._keys[of_row]
        y = self._tokens[of_row, places.clamp_max(self._slots - 1)]
        ends = torch.from_numpy(np.flatnonzero(self._ended[rows] & (places_in == self._emitted[rows] - 1)))
        ends = ends.to(places.device)
        y[ends] = self._draw(p[ends], keys[ends], places[ends], among=self.eos)
        in_texts = torch.from_numpy(places_in + self._begun[rows]).to(places.device)
        x = self._draw(q, keys, places)
        past = None if self._past is None else self._known(self._past, len(span), flat, x, y, places)
        return Positions(p, q, x, y, places, keys, fed.flatten()[flat], in_texts, past)

    def _past_of(self, decoder: SpeculativeDecoder, reader: str, completions: Sequence[Completion]) -> Past:
        past = Past(len(completions), decoder.device, reading_of(score_named(reader), decoder.tokenizer))
        requests = [Request(0, [*c.prompt], c.id, 0.0, 0, 0, begun=c.begun) for c in completions]
        past.start(torch.arange(len(completions), device=decoder.device), requests)
        return past

    def _known(self, past: Past, columns: int, flat: Tensor, x: Tensor, y: Tensor, places: Tensor) -> Tensor:
        """What is known before N positions, at `flat` of B x C, whose mismatches the target replaces: (N, 3)."""
        spread = x.new_zeros((3, len(self._tokens) * columns))
        drafted = True if self._reach is None else places < self._reach
        spread[:, flat] = torch.stack([y, torch.ones_like(y), ((x != y) & drafted).long()])
        found = []
        for tokens, counts, replaced in spread.view(3, -1, columns, 1).unbind(2):
            found.append(past.before(tokens))
            past.add(tokens, counts.squeeze(1), replaced.squeeze(1).bool())
        return torch.cat(found, 1).flatten(0, 1)[flat]

    def _draw(self, logits: Tensor, keys: Tensor, places: Tensor, among: Tensor | None = None) -> Tensor:
        """Draws tokens (N,) from logits (N, V) with the noise at `places` (N,), where given only from `among`."""
        positions = places.unsqueeze(1)
        warped = self._sampling.warp(logits.unsqueeze(1), keys[:0], positions)
        if among is not None:  # results do not hold which EOS ended the text
            likely = warped.index_select(-1, among).clamp_min(torch.finfo(warped.dtype).min)
            warped = torch.full_like(warped, -torch.inf).index_copy_(-1, among, likely)
        return self._sampling.draw(warped, keys, positions).squeeze(1)


def check_draft(decoder: SpeculativeDecoder) -> None:
    """Raises UsageError where the draft is not a model."""
    if isinstance(decoder.draft, DraftSource):
        raise UsageError(
            f"the draft {decoder.draft!r} is not a model, so traces along the target cannot be collected; give a rule "
            "to collect on-policy"
        )


def check_numbers(measured: Array, owner: Array, completions: Sequence[Completion]) -> None:
    """Raises NumericalError where one of N measured values is NaN; `owner` are the indices of their completions."""
    bad = owner[np.isnan(measured)]
    if len(bad):
        raise NumericalError(
            f"problem {completions[bad[0]].id} has logits that are NaN or +inf; a wider dtype (bfloat16 rather than "
            "float16, or float32) usually helps"
        )
