"""Fuzzy acceptance of a step's drafted tokens: D of every token, its T, and whether D <= T."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import KeptLogits, Layout
from fsd_calib.vllm_plugin.thresholds import StepTokens, scaled
from fsd_collectors.collection.measures import Measures, Positions, chunk_size
from fsd_decoding.divergence import chunk_elements, entropy, is_fused, unchecked_divergences
from fsd_decoding.policies.entropy_scaled import EntropyScaled
from fsd_decoding.policies.schedule import Schedule
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.tensors import to_device

_MEASURED = 1 << 22  # logits of a model that are measured for records at once, in about ten temporaries of that size

Piece = tuple[Tensor, Tensor]  # target and draft logits of some tokens, (…, V) each


@dataclass(frozen=True)
class Verification:
    """A step of vLLM in which the target's logits of B requests' drafted tokens are known, before they are judged."""

    requests: Sequence[str]  # B ids
    counts: Sequence[int]  # B numbers of drafted tokens
    logits: Tensor  # (rows, V) the target's raw logits; if all have n drafts, request b's begin at row b · (n + 1)
    rows: Tensor  # (N,) row of `logits` for each drafted token
    places: Tensor | None  # (N,) positions of the tokens in their completions, from 0; None where no policy needs them
    drafted: Tensor | None = None  # (N,) the tokens; None where nothing is recorded
    likeliest: Tensor | None = None  # (N,) bool: tokens that the exact rule accepts, so that no D is needed; None: all


@dataclass(frozen=True)
class Judged:
    """The N drafted tokens of a step, judged by their divergences."""

    requests: Sequence[str]
    layout: Layout
    divergences: Tensor  # (N,)
    thresholds: Tensor  # (N,) float64
    fuzzy: Tensor  # (N,) bool: D <= T
    likeliest: Tensor | None = None  # `Verification.likeliest`; D of these tokens is infinite, as it was not computed
    measured: Tensor | None = None  # (columns, N) of traces; None where nothing is recorded


class Judge:
    """Compares the divergences of drafted tokens with thresholds.

    Args:
        drafts: logits of the drafts.
        divergence: its name.
        policy: scales T; None: T is the request's own.
    """

    def __init__(self, drafts: KeptLogits, divergence: str, policy: ScalePolicy | None) -> None:
        self._drafts, self._divergence, self._policy = drafts, divergence, policy

    @property
    def needs_places(self) -> bool:
        """Whether T depends on where a token is in its completion."""
        return isinstance(self._policy, Schedule)

    def __call__(
        self, step: Verification, thresholds: Sequence[float], measures: Measures | None = None
    ) -> Judged | None:
        """Judges a step; None where nothing can be accepted by divergence and nothing is measured.

        Args:
            thresholds: T of each request; below 0, it is decoded exactly.
            measures: columns of traces to compute, too.
        """
        drafting = [t for t, count in zip(thresholds, step.counts, strict=True) if count]
        rows = self._drafts.rows_of(step.requests, step.counts)
        if rows is None or not drafting or (max(drafting) < 0 and measures is None):
            return None
        layout = Layout(step.counts, rows)
        bounds = to_device(np.repeat(thresholds, step.counts).tolist(), step.logits.device, torch.float64)
        if step.likeliest is not None:
            found = self._of_others(step, layout, step.likeliest)
            return Judged(step.requests, layout, found, bounds, found <= bounds, step.likeliest)
        pieces = list(self._pieces(step, layout))
        found = torch.cat([self._divergences(*piece).reshape(-1) for piece in pieces])
        if self._policy is not None:
            bounds = scaled(bounds, self._policy, self._tokens(step, pieces))
        measured = None if measures is None else self._measured(step, pieces, measures)
        fuzzy = (found <= bounds) & (found < torch.inf)
        return Judged(step.requests, layout, found, bounds, fuzzy, measured=measured)

    @property
    def needs_all(self) -> bool:
        """Whether tokens that the exact rule accepts are looked at, too: the policies do."""
        return self._policy is not None

    def _divergences(self, target: Tensor, draft: Tensor) -> Tensor:
        return unchecked_divergences([self._divergence], target, draft)[self._divergence]

    def _of_others(self, step: Verification, layout: Layout, likeliest: Tensor) -> Tensor:
        """Returns D (N,) of the tokens that are not the target's likeliest ones, and infinity for those."""
        found = torch.full(likeliest.shape, torch.inf)
        others = (~likeliest).nonzero().flatten()
        if len(others):
            rows = layout.draft_index(self._drafts.length, others.device)
            vocabulary = step.logits.shape[1]
            for some in others.split(chunk_elements(others.device.type, vocabulary) // vocabulary):
                draft = self._drafts.flat[rows[some]]
                found[some] = self._divergences(step.logits[step.rows[some]], draft).float()
        return found

    def _measured(self, step: Verification, pieces: Sequence[Piece], measures: Measures) -> Tensor:
        """Returns the columns of traces (columns, N), computed for some tokens at a time, whose memory is bounded."""
        assert step.drafted is not None
        flat = ((part.flatten(0, -2).float() for part in parts) for piece in pieces for parts in _parts(*piece))
        columns, begin = [], 0
        for target, draft in flat:
            drafted = step.drafted[begin : begin + len(target)].long().clamp_min(0)  # negative ones are padding
            keys = drafted.unsqueeze(1).expand(-1, 2)  # of no noise: vLLM's own is not known
            columns.append(measures(Positions(target, draft, drafted, target.argmax(-1), drafted, keys)))
            begin += len(target)
        return torch.cat(columns, 1)

    def _tokens(self, step: Verification, pieces: Sequence[Piece]) -> StepTokens:
        signal = self._policy.signal if isinstance(self._policy, EntropyScaled) else None
        of = {"target": 0, "draft": 1}.get(str(signal))
        found = None if of is None else torch.cat([entropy(piece[of]).reshape(-1) for piece in pieces])
        return StepTokens(step.places, found if of == 0 else None, found if of == 1 else None)

    def _pieces(self, step: Verification, layout: Layout) -> Iterator[Piece]:
        """Yields the logits of the drafted tokens, in order.

        Kernels read them in place, if requests are in the order of their drafts and all have equally many. If not, some
        rows are copied at a time, whose memory is bounded.
        """
        vocabulary = step.logits.shape[1]
        if layout.in_order:
            requests, count = len(layout.counts), int(layout.counts[0])
            target = step.logits.view(requests, count + 1, vocabulary)[:, :count]
            draft = self._drafts.first(requests, count)
            if is_fused([self._divergence], target, draft):
                yield target, draft
                return
        size = chunk_elements(step.logits.device.type, vocabulary) // vocabulary
        indices = step.rows, layout.draft_index(self._drafts.length, step.logits.device)
        for target_rows, draft_rows in zip(*(index.split(size) for index in indices), strict=True):
            yield step.logits[target_rows], self._drafts.flat[draft_rows]


def _parts(target: Tensor, draft: Tensor) -> Iterator[Piece]:
    """Yields the logits (n, …, V) of some rows at a time, few enough for the memory that vLLM leaves."""
    size = max(1, min(chunk_size(target), _MEASURED) // target[:1].numel())
    yield from zip(target.split(size), draft.split(size), strict=True)
