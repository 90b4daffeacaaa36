"""Traces along the target: completions that are there already, read by both models at the speed of a prompt.

Knows teacher-forcing: every position of every completion gets p and q, and what the draft would have drawn there with
the same noise. Knows nothing of files or tasks.

Positions are fed through `ModelRunner`, which is exact for every family it serves, whatever a model does between its
last layer and its logits. Logits exist of one chunk of positions at a time: (B, S, V) never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_collectors.collection.hidden_states import HiddenStates
from fsd_collectors.collection.measures import Measures, Positions, Shipment
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.engine.result import Result
from fsd_decoding.errors import NumericalError, UsageError
from fsd_decoding.models.runner import PREFILL_CHUNK, ModelRunner, vocabulary_size
from fsd_decoding.noise import problem_keys

Array = NDArray[Any]

_LOGITS = 1 << 26  # logits (positions x V) of a model at once: 256 MB in fp32
_CPU_LOGITS = 1 << 24


@dataclass(frozen=True)
class Completion:
    """A prompt and what the target made of it. `id` is the key of its noise, as `generate`'s ids are."""

    id: int
    prompt: Sequence[int]
    tokens: Sequence[int]  # without EOS
    ended: bool  # an EOS follows

    @classmethod
    def of(cls, id: int, prompt: Sequence[int], result: Result) -> Self:
        return cls(id, prompt, result.tokens, result.finish_reason == "eos")

    @property
    def emitted(self) -> int:
        return len(self.tokens) + self.ended

    @property
    def length(self) -> int:
        return len(self.prompt) + self.emitted


@dataclass(frozen=True)
class Traced:
    """N positions, completion after completion, each one's in order."""

    owner: Array  # (N,) which of the completions
    position: Array  # (N,) from the prompt's end, from 0
    measured: Array  # (columns, N)
    states: Array | None  # (N, width) fp16


@torch.inference_mode()
def trace_completions(
    decoder: SpeculativeDecoder,
    completions: Sequence[Completion],
    measures: Measures,
    batch_size: int,
    states: HiddenStates | None = None,
) -> Traced:
    """Measures every position of completions that the decoder's target made with its seed and `measures.sampling`.

    Args:
        batch_size: completions read at once, whose keys and values both models hold.
        states: entered, of the decoder's draft.

    Raises:
        UsageError: the draft is no model.
        NumericalError: a model gave logits that are NaN or +inf.
    """
    check_draft(decoder)
    by_length = sorted(range(len(completions)), key=lambda i: completions[i].length)
    places: list[Array] = []
    measured, kept = Shipment(), Shipment()
    for start in range(0, len(by_length), batch_size):
        group = by_length[start : start + batch_size]
        batch = _Batch(decoder, [completions[i] for i in group], measures)
        for rows, position, taken, at in batch.chunks():
            places.append(np.stack([np.array(group)[rows], position]))
            measured.send(measures(at))
            if states is not None:
                kept.send(states.latest().to(taken.device).flatten(0, 1)[taken])
    owner, position = np.concatenate(places, 1)
    order = np.lexsort((position, owner))
    found = np.concatenate([part.numpy() for part in measured.received()], 1)[:, order]
    for model in ("target", "draft"):
        _check_numbers(found[measures.columns.index(f"{model}_probability")], owner[order], completions)
    whole = [part.numpy() for part in kept.received()]
    return Traced(owner[order], position[order], found, np.concatenate(whole)[order] if whole else None)


class _Batch:
    """B completions of like lengths, in caches of both models. What lies beyond a row's end is rubbish."""

    def __init__(self, decoder: SpeculativeDecoder, completions: Sequence[Completion], measures: Measures) -> None:
        device = decoder.device
        self._sampling = measures.sampling
        self._prompts = np.array([len(c.prompt) for c in completions])
        self._emitted = np.array([c.emitted for c in completions])
        self._ended = np.array([c.ended for c in completions])
        self._slots = max(c.length for c in completions)
        padded = [[*c.prompt, *c.tokens, *[0] * (self._slots - len(c.prompt) - len(c.tokens))] for c in completions]
        self._tokens = torch.tensor(padded).to(device)  # (B, slots)
        self._keys = problem_keys(decoder.seed, [c.id for c in completions]).to(device)
        models = decoder.target, decoder.draft
        vocabulary = min(vocabulary_size(model) for model in models)
        self._eos = torch.tensor(sorted(i for i in decoder.eos if i < vocabulary), device=device)
        self._runners = [ModelRunner(model, len(completions), self._slots, vocabulary) for model in models]
        logits = _CPU_LOGITS if device.type == "cpu" else _LOGITS
        self._chunk = max(1, min(PREFILL_CHUNK, logits // (len(completions) * vocabulary)))

    def chunks(self) -> Iterator[tuple[Array, Array, Tensor, Positions]]:
        """Rows (N,), positions from the prompt's end (N,), where they lie in (B x C), and what is there."""
        self._read_prompts()
        longest = int(self._emitted.max())
        for start in range(0, longest, self._chunk):
            span = np.arange(start, min(start + self._chunk, longest))
            rows, columns = np.nonzero(span < self._emitted[:, None])
            taken = torch.from_numpy(rows * len(span) + columns).to(self._tokens.device)
            yield rows, span[columns], taken, self._positions(span, rows, columns, taken)

    def _read_prompts(self) -> None:
        """All but the last token, which the first chunk reads."""
        until = int(self._prompts.max()) - 1
        for start in range(0, until, PREFILL_CHUNK):
            stop = min(start + PREFILL_CHUNK, until)
            positions = torch.arange(start, stop, device=self._tokens.device).expand(len(self._tokens), -1)
            for runner in self._runners:
                runner.logits(self._tokens[:, start:stop], positions, stop, keep=1)

    def _positions(self, span: Array, rows: Array, columns: Array, taken: Tensor) -> Positions:
        """Feeds the tokens before `span` and takes what is said of those in it."""
        last = (self._prompts[:, None] - 1 + span).clip(max=self._slots - 1)  # (B, C)
        at = torch.from_numpy(last).to(self._tokens.device)
        fed = self._tokens.gather(1, at)
        p, q = (
            runner.logits(fed, at, int(last.max()) + 1, keep=len(span)).flatten(0, 1)[taken] for runner in self._runners
        )
        places = at.flatten()[taken] + 1
        of_row = torch.from_numpy(rows).to(places.device)
        keys = self._keys[of_row]
        y = self._tokens[of_row, places.clamp_max(self._slots - 1)]
        ends = torch.from_numpy(np.flatnonzero(self._ended[rows] & (span[columns] == self._emitted[rows] - 1)))
        ends = ends.to(places.device)
        y[ends] = self._drawn(p[ends], keys[ends], places[ends], among=self._eos)
        return Positions(p, q, self._drawn(q, keys, places), y, places, keys)

    def _drawn(self, logits: Tensor, keys: Tensor, places: Tensor, among: Tensor | None = None) -> Tensor:
        """The tokens that (N, V) logits give at `places` (N,), of all or `among` some: (N,)."""
        positions = places.unsqueeze(1)
        warped = self._sampling.warp(logits.unsqueeze(1), keys[:0], positions)
        if among is not None:  # a result does not say which EOS it was
            likely = warped.index_select(-1, among).clamp_min(torch.finfo(warped.dtype).min)
            warped = torch.full_like(warped, -torch.inf).index_copy_(-1, among, likely)
        return self._sampling.draw(warped, keys, positions).squeeze(1)


def check_draft(decoder: SpeculativeDecoder) -> None:
    if isinstance(decoder.draft, DraftSource):
        raise UsageError(
            f"the draft {decoder.draft!r} is no model that reads whole texts; give a rule, which collects on-policy"
        )


def _check_numbers(probabilities: Array, owner: Array, completions: Sequence[Completion]) -> None:
    bad = owner[np.isnan(probabilities)]
    if len(bad):
        raise NumericalError(
            f"problem {completions[bad[0]].id} got logits that are NaN or +inf; a wider dtype (bfloat16 rather than "
            "float16, or float32) usually helps"
        )
