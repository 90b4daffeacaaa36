"""What one position tells: from logits of p and q to the columns of a trace.

Knows the formulas behind the schema's columns of decision, divergence and shape. Knows nothing of rounds, models,
completions or files. Everything stays on the device, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Logits
from fsd_decoding.acceptance.rules import accepted_by_chance
from fsd_decoding.divergence import DistributionPair, check_name, divergences_of_pair, log_softmax
from fsd_decoding.errors import UsageError
from fsd_decoding.sampling import Sampling

# MERGED: """Results on their way from a device to the host, which nobody waits for until all are there.
#
# Knows tensors and streams. Knows nothing of what they hold.
# """


_CHUNK = 1 << 25  # logits (positions x V): bounds what the formulas allocate
_CPU_CHUNK = 1 << 17  # there few enough for the cache, and enough to pay for calling some hundred operations

_SHAPE = ("entropy", "varentropy", "top1", "top2", "margin", "rank", "probability")


def chunk_size(logits: Tensor) -> int:
    """How many logits of a model are worked on at once, where these are."""
    return _CPU_CHUNK if logits.device.type == "cpu" else _CHUNK


@dataclass(frozen=True)
class Positions:
    """N positions where a token was drafted, of whatever rows and rounds."""

    target_logits: Tensor  # (N, V) raw
    draft_logits: Tensor  # (N, V) raw
    drafted: Tensor  # (N,) x
    choice: Tensor  # (N,) y
    positions: Tensor  # (N,) absolute ones of the tokens
    keys: Tensor  # (N, 2) of the noise

    def chunks(self) -> Iterator[Positions]:
        size = max(1, chunk_size(self.target_logits) // self.target_logits.shape[-1])
        parts = (getattr(self, field.name).split(size) for field in fields(self))
        return (Positions(*chunk) for chunk in zip(*parts, strict=True))


class Measures:
    """Measures positions: one row a column, of the schema's name and meaning.

    Args:
        divergences: names, a column each. on: the logits they are computed on.
        sampling: what p and q are processed by, temperature, top-k, top-p and min-p; anything that depends on the
            text before a position is refused.
    """

    def __init__(self, divergences: Sequence[str], on: Logits, sampling: Sampling) -> None:
        for name in divergences:
            check_name(name)
        if len(set(divergences)) < len(divergences):
            raise UsageError(f"divergences are {', '.join(divergences)}; name each of them once")
        if sampling.repetition_penalty != 1.0 or sampling.processors:
            raise UsageError("traces know temperature, top_k, top_p and min_p; leave out penalties and processors")
        self._divergences, self._on, self.sampling = tuple(divergences), on, sampling
        decision = ("drafted", "target_choice", "same_argmax", "same_token", "sd_accepts", "sd_probability")
        shape = (f"{model}_{name}" for model in ("target", "draft") for name in _SHAPE)
        self.columns = (*decision, *self._divergences, *shape)

    def __call__(self, at: Positions) -> Tensor:
        """(columns, N) in fp32, which holds token ids and ranks exactly, on the logits' device."""
        return torch.cat([self._of_chunk(chunk) for chunk in at.chunks()], 1)

    def _of_chunk(self, at: Positions) -> Tensor:
        x, y = at.drafted, at.choice
        raw = DistributionPair(log_softmax(at.target_logits), log_softmax(at.draft_logits))
        processed = self._processed(at)
        p_top, p_shape = _shape(at.target_logits, raw.log_p, raw.p, x)
        q_top, q_shape = _shape(at.draft_logits, raw.log_q, raw.q, x)
        decision = (x, y, p_top == q_top, x == y, *self._exact(at, processed))
        on = DistributionPair(*map(log_softmax, processed)) if self._on == "processed" and processed else raw
        divergences = divergences_of_pair(self._divergences, on).values()
        return torch.stack([column.float() for column in (*decision, *divergences, *p_shape, *q_shape)])

    def _processed(self, at: Positions) -> tuple[Tensor, Tensor] | None:
        """Both logits as a choice sees them; None where that is the raw ones."""
        if self.sampling.greedy:
            return None
        no_text = at.keys[:0]
        target, draft = (
            self.sampling.warp(logits.unsqueeze(1), no_text, at.positions.unsqueeze(1)).squeeze(1)
            for logits in (at.target_logits, at.draft_logits)
        )
        return target, draft

    def _exact(self, at: Positions, processed: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Whether `sd` accepts x with the keyed u, and its chance to accept before x and u are drawn."""
        if processed is None:
            same = at.drafted == at.choice
            return same, same
        p, q = (torch.softmax(logits, -1) for logits in processed)
        p_x, q_x = (probabilities.gather(-1, at.drafted.unsqueeze(-1)) for probabilities in (p, q))
        accepts = accepted_by_chance(p_x, q_x, at.keys, at.positions.unsqueeze(1)).squeeze(1)
        return accepts, torch.minimum(p, q).sum(-1)


def _shape(logits: Tensor, log: Tensor, p: Tensor, drafted: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The likeliest token (N,), and the columns of `_SHAPE` (N,) each."""
    weighted = p * log  # nansum: what is impossible, 0 x -inf, counts nothing
    entropy = -weighted.nansum(-1)
    varentropy = (weighted.mul_(log).nansum(-1) - entropy.square()).clamp_min(0.0)
    first, top, second = _two_likeliest(logits)
    x = drafted.unsqueeze(-1)
    top1 = p.gather(-1, first)
    top2 = (log.gather(-1, first) + (second - top)).exp()
    rank = torch.gt(logits, logits.gather(-1, x), out=torch.empty_like(logits)).sum(-1)
    one_each = (top1, top2, top1 - top2)
    return first.squeeze(-1), (
        entropy,
        varentropy,
        *(c.squeeze(-1) for c in one_each),
        rank,
        p.gather(-1, x).squeeze(-1),
    )


def _two_likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`argmax` and the two largest logits: (N, 1) each, in two thirds of `topk`'s time on a CPU.

    Comparisons write floats, since reading and summing truth values takes several times as long there.
    """
    top = logits.amax(-1, keepdim=True)
    falling = torch.arange(logits.shape[-1], 0, -1, dtype=logits.dtype, device=logits.device)
    from_end = torch.eq(logits, top, out=torch.empty_like(logits)).mul_(falling).amax(-1, keepdim=True)
    first = logits.shape[-1] - from_end.long().clamp_min(1)  # NaN equals nothing
    return first, top, logits.scatter(-1, first, -torch.inf).amax(-1, keepdim=True)


class Shipment:
    """On CUDA copies go to pinned memory behind the work that made them; elsewhere there is nothing to gain."""

    def __init__(self) -> None:
        self._sent: list[Tensor] = []
        self._last: torch.cuda.Event | None = None

    def send(self, *tensors: Tensor) -> None:
        self._sent += [tensor.to("cpu", non_blocking=tensor.is_cuda) for tensor in tensors]
        if tensors[-1].is_cuda:
            self._last = torch.cuda.Event()
            self._last.record(torch.cuda.current_stream(tensors[-1].device))

    def received(self) -> list[Tensor]:
        """All that was sent, in order."""
        if self._last is not None:
            self._last.synchronize()  # the copies of one stream end in their order
        return self._sent
