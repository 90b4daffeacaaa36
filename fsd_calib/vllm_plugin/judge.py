"""Fuzzy acceptance of a step's drafted tokens: D of every token, its T, and whether D <= T."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import KeptLogits, Layout
from fsd_calib.vllm_plugin.judged import JudgedOnHost, JudgedTokens
from fsd_calib.vllm_plugin.rejected_tokens import look_at_rejected
from fsd_calib.vllm_plugin.thresholds import StepTokens, scaled
from fsd_collectors.collection.measures import Measures, Positions, chunk_size
from fsd_decoding.divergence import chunk_elements, entropy, is_fused, unchecked_divergences
from fsd_decoding.policies.shapes import EntropyScaled, Schedule
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.tensors import to_device

_MEASURED = 1 << 22  # logits of a model that are measured for records at once, in about ten temporaries of that size

Piece = tuple[Tensor, Tensor]  # target and draft logits of some tokens, (…, V) each


class Verification(NamedTuple):
    """A step of vLLM in which the target's logits of B requests' drafted tokens are known, before they are judged."""

    requests: Sequence[str]  # B ids
    counts: Sequence[int]  # B numbers of drafted tokens
    logits: Tensor  # (rows, V) the target's raw logits; if all have n drafts, request b's begin at row b · (n + 1)
    rows: Tensor  # (N,) row of `logits` for each drafted token
    places: Tensor | None  # (N,) positions of the tokens in their completions, from 0; None where no policy needs them
    drafted: Tensor | None = None  # (N,) the tokens; needed where something is recorded

    def only(self, known: Sequence[bool]) -> tuple[Verification, Tensor]:
        """Returns the step without the drafts of some requests, and the places of the other tokens among all: (n,)."""
        kept = np.flatnonzero(np.repeat(known, self.counts))
        at = to_device(kept.tolist(), self.rows.device, torch.int64)
        places, drafted = (None if each is None else each[at] for each in (self.places, self.drafted))
        counts = [count if is_known else 0 for count, is_known in zip(self.counts, known, strict=True)]
        return self._replace(counts=counts, rows=self.rows[at], places=places, drafted=drafted), at


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

    @property
    def needs_all(self) -> bool:
        """Whether tokens that the exact rule accepts are looked at, too: the policies do."""
        return self._policy is not None

    def __call__(
        self, step: Verification, thresholds: Sequence[float], measures: Measures | None = None
    ) -> JudgedTokens | None:
        """Judges a step; None where nothing can be accepted by divergence and nothing is measured.

        Drafts whose logits are not known are left to the exact rule.

        Args:
            thresholds: T of each request; below 0, it is decoded exactly.
            measures: columns of traces to compute, too.
        """
        step, layout, at = self._known(step)
        drafting = [t for t, count in zip(thresholds, step.counts, strict=True) if count]
        if not drafting or (max(drafting) < 0 and measures is None):
            return None
        parts = list(self._parts(step, layout, measures))
        found, entropies, measured = (_joined(each) for each in zip(*parts, strict=True))
        assert found is not None
        limits = to_device(np.repeat(thresholds, step.counts).tolist(), found.device, torch.float64)
        if self._policy is not None:
            limits = scaled(limits, self._policy, self._tokens(step, entropies))
        fuzzy = (found <= limits) & (found < torch.inf)
        return JudgedTokens(layout, found, fuzzy, measured, at)

    def of_rejected(
        self, step: Verification, accepted: Sequence[bool], thresholds: Sequence[float]
    ) -> JudgedOnHost | None:
        """Judges a step on the host, if it is known which of the N tokens the exact rule accepts: few others are left.

        Args, Returns: as for a call.
        """
        step, layout, at = self._known(step)
        if at is not None:
            accepted = [accepted[token] for token in at.tolist()]
        if not any(count and threshold >= 0 for count, threshold in zip(step.counts, thresholds, strict=True)):
            return None

        rows = step.rows.tolist()

        def divergences(tokens: list[int]) -> list[float]:
            size = _chunk_rows(step.logits)
            parts = (tokens[i : i + size] for i in range(0, len(tokens), size))
            copies = (self._copy(step.logits, layout, [rows[token] for token in part], part) for part in parts)
            return [each for piece in copies for each in self._divergences(*piece).tolist()]

        looked = look_at_rejected(accepted, step.counts, thresholds, divergences)
        return JudgedOnHost.of(layout, accepted, looked, at)

    def _known(self, step: Verification) -> tuple[Verification, Layout, Tensor | None]:
        """Returns the step without the drafts whose logits are not known, and the places of the others, if some are."""
        rows, at = self._drafts.rows_of(step.requests, step.counts), None
        if any(row is None and count for row, count in zip(rows, step.counts, strict=True)):
            step, at = step.only([row is not None for row in rows])
        return step, Layout(step.counts, [row or 0 for row in rows]), at

    def _divergences(self, target: Tensor, draft: Tensor) -> Tensor:
        return unchecked_divergences([self._divergence], target, draft)[self._divergence]

    def _parts(
        self, step: Verification, layout: Layout, measures: Measures | None
    ) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """Yields of some tokens at a time, in order: D (n,), the entropy (n,) that T depends on, columns (…, n)."""
        begin = 0
        for target, draft in self._pieces(step, layout):
            end = begin + target.shape[:-1].numel()
            drafted = None if step.drafted is None else step.drafted[begin:end]
            yield (
                self._divergences(target, draft).reshape(-1), self._entropy(target, draft),
                None if measures is None or drafted is None else _measured(measures, target, draft, drafted),
            )  # fmt: skip
            begin = end

    def _entropy(self, target: Tensor, draft: Tensor) -> Tensor | None:
        if not isinstance(self._policy, EntropyScaled):
            return None
        return entropy(target if self._policy.signal == "target" else draft).reshape(-1)

    def _tokens(self, step: Verification, entropies: Tensor | None) -> StepTokens:
        of_target = isinstance(self._policy, EntropyScaled) and self._policy.signal == "target"
        return StepTokens(step.places, entropies if of_target else None, None if of_target else entropies)

    def _pieces(self, step: Verification, layout: Layout) -> Iterator[Piece]:
        """Yields the logits of the drafted tokens, in order.

        Kernels read them in place, if requests are in the order of their drafts and all have equally many. If not, some
        rows are copied at a time, whose memory is bounded.
        """
        if layout.in_order:
            requests, count = len(layout.counts), int(layout.counts[0])
            target = step.logits.view(requests, count + 1, -1)[:, :count]
            draft = self._drafts.block(requests, count)
            if draft is not None and is_fused([self._divergence], target, draft):
                yield target, draft
                return
        size = _chunk_rows(step.logits)
        for begin in range(0, layout.count, size):
            part = slice(begin, begin + size)
            yield self._copy(step.logits, layout, step.rows[part], part)

    def _copy(self, logits: Tensor, layout: Layout, rows: Tensor | list[int], tokens: slice | list[int]) -> Piece:
        """Returns the logits of some tokens, whose rows of the target's are `rows`."""
        return logits[rows], self._drafts.at(layout.rows[layout.owner[tokens]], layout.place[tokens])


def _chunk_rows(logits: Tensor) -> int:
    """Rows of logits (…, V) that are copied at a time."""
    vocabulary = logits.shape[-1]
    return chunk_elements(logits.device.type, vocabulary) // vocabulary


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Returns parts (…, n) as one; None if there are none."""
    there = [part for part in parts if part is not None]
    return torch.cat(there, -1) if there else None


def _measured(measures: Measures, target: Tensor, draft: Tensor, drafted: Tensor) -> Tensor:
    """Returns the columns of traces (columns, n), computed for few enough tokens at a time for the memory vLLM leaves.

    Args:
        target, draft: (…, V) logits of n tokens.
        drafted: (n,) the tokens; negative ones are padding.
    """
    size = max(1, min(chunk_size(target), _MEASURED) // target[:1].numel())
    columns, begin = [], 0
    for p, q in zip(target.split(size), draft.split(size), strict=True):
        p, q = p.flatten(0, -2).float(), q.flatten(0, -2).float()
        x = drafted[begin : begin + len(p)].long().clamp_min(0)
        keys = x.unsqueeze(1).expand(-1, 2)  # of no noise: vLLM's own is not known
        columns.append(measures(Positions(p, q, x, p.argmax(-1), x, keys)))
        begin += len(p)
    return torch.cat(columns, 1)
