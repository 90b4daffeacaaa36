"""What is measured at drafted tokens: columns computed from the logits of p and q, and the draft's last hidden state.

`Measures` computes the columns on the device and without waiting for it, `HostCopies` copies the results to the host
while the device goes on, and `HiddenStates` reads the input of the draft's output embeddings by a hook.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import numpy.typing as npt
import torch
from torch import Tensor

from fsd_collectors.collection.likeliest import COLUMNS as LIKELIEST
from fsd_collectors.collection.likeliest import Likeliest
from fsd_common.argument_checks import check_count
from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.divergence import DistributionPair, divergences_of_pair, log_softmax
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.graphs.callers import in_graph
from fsd_decoding.rules import accepted_by_chance
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Logits, Seen, divergences_in, score_named, scores_over

_CHUNK = 1 << 25  # logits (positions x V) of a chunk: bounds the memory of intermediate results
_CPU_CHUNK = 1 << 17  # on a CPU few enough for the cache, yet enough to outweigh the overhead of some hundred calls

Array = npt.NDArray[Any]

_SHAPE = ("entropy", "varentropy", "top1", "top2", "margin", "rank", "probability")


def chunk_size(logits: Tensor) -> int:
    """Returns the number of a model's logits that are processed at once on the device of `logits`."""
    return _CPU_CHUNK if logits.device.type == "cpu" else _CHUNK


@dataclass(frozen=True)
class Positions:
    """N positions at which a token was drafted."""

    target_logits: Tensor  # (N, V) raw
    draft_logits: Tensor  # (N, V) raw
    drafted: Tensor  # (N,) x
    choice: Tensor  # (N,) y
    positions: Tensor  # (N,) absolute positions of the tokens
    keys: Tensor  # (N, 2) keys of the noise
    before: Tensor | None = None  # (N,) the tokens before x; None: nobody knows them
    places: Tensor | None = None  # (N,) places of x in the texts, from 0; None: nobody knows them
    past: Tensor | None = None  # (N, 3) see `Past.before`; None: no score reads it

    def __getitem__(self, part: Tensor | slice) -> Positions:
        """Some of the positions."""
        of_part: Any = (None if values is None else values[part] for values in vars(self).values())
        return Positions(*of_part)

    def chunks(self) -> Iterator[Positions]:
        """Yields the positions in chunks of bounded size."""
        size = max(1, chunk_size(self.target_logits) // self.target_logits.shape[-1])
        return (self[begin : begin + size] for begin in range(0, max(len(self.drafted), 1), size))


class Measures:
    """Computes the columns of decision, score and shape; `fsd_collectors.schema` defines them.

    Args:
        scores: names of scores, one column each.
        on: logits that those are computed on which are defined on either, raw or processed.
        sampling: temperature, top-k, top-p and min-p by which p and q are processed. Settings that depend on the
            preceding text are not supported.
        log_probs: number of the likeliest tokens to keep of p and of q, see `Likeliest`.

    Attributes:
        reader: the score that reads the past of texts; None: none does.

    Raises:
        UsageError: a score is unknown or named twice, or a sampling setting is not supported.
    """

    def __init__(self, scores: Sequence[str], on: Logits, sampling: Sampling, log_probs: int = 0) -> None:
        if len(set(scores)) < len(scores):
            raise UsageError(f"scores are {', '.join(scores)}; name each of them once")
        if sampling.repetition_penalty != 1.0 or sampling.processors:
            raise UsageError("traces support temperature, top_k, top_p and min_p; leave out penalties and processors")
        self._on, self.sampling, self.log_probs = on, sampling, log_probs
        decision = ("drafted", "target_choice", "same_argmax", "same_token", "sd_accepts", "sd_probability")
        shape = (f"{model}_{name}" for model in ("target", "draft") for name in _SHAPE)
        likeliest = (name for name in LIKELIEST for _ in range(log_probs))
        self._divergences = divergences_in(scores)
        self.scored = tuple(score_named(name).written for name in scores)
        self.reader = next((name for name in self.scored if score_named(name).reads_past), None)
        self.columns = (*decision, *self.scored, *shape, *likeliest)

    def __call__(self, at: Positions) -> Tensor:
        """Returns (columns, N) on the logits' device, in fp32, which holds token ids and ranks exactly."""
        return torch.cat([self._of_chunk(chunk) for chunk in at.chunks()], 1)

    def within(self, context: int | None, at: Positions) -> Tensor:
        """Returns the same, where no rule accepts what lies beyond the draft's context, in tokens; None: it has no end.

        Decoding drafts nothing there, so that each token takes a round.
        """
        measured = self(at)
        if context is not None and bool((beyond := at.positions >= context).any()):
            never = dict.fromkeys(("same_token", "sd_accepts", "sd_probability"), 0.0)
            never |= dict.fromkeys(self.scored, math.inf)
            for name, value in never.items():
                measured[self.columns.index(name)].masked_fill_(beyond, value)
        return measured

    def scores(self, at: Positions) -> Tensor:
        """Returns the scores alone, in the order of `scored`: (scores, N), in fp32."""
        found = []
        for chunk in at.chunks():
            raw = DistributionPair(log_softmax(chunk.target_logits), log_softmax(chunk.draft_logits))
            found.append(torch.stack([score.float() for score in self._scores(chunk, self._processed(chunk), raw)]))
        return torch.cat(found, 1)

    def by_name(self, measured: Array) -> dict[str, Array]:
        """Returns the columns (columns, N) by name: (N,) each; those of the likeliest tokens are (N, k)."""
        found, k = dict(zip(self.columns, measured, strict=True)), self.log_probs
        begin = len(self.columns) - len(LIKELIEST) * k
        wide = {name: measured[begin + i * k : begin + (i + 1) * k].T for i, name in enumerate(LIKELIEST)} if k else {}
        return found | wide

    def _of_chunk(self, at: Positions) -> Tensor:
        x, y = at.drafted, at.choice
        raw = DistributionPair(log_softmax(at.target_logits), log_softmax(at.draft_logits))
        processed = self._processed(at)
        p_top, p_shape = _shape(at.target_logits, raw.log_p, raw.p, x)
        q_top, q_shape = _shape(at.draft_logits, raw.log_q, raw.q, x)
        decision = (x, y, p_top == q_top, x == y, *self._exact(at, processed))
        scores = self._scores(at, processed, raw)
        measured = torch.stack([column.float() for column in (*decision, *scores, *p_shape, *q_shape)])
        if not self.log_probs:
            return measured
        return torch.cat([measured, Likeliest.of(raw, self.log_probs).columns.float()])

    def _scores(
        self, at: Positions, processed: tuple[Tensor, Tensor] | None, raw: DistributionPair
    ) -> Iterator[Tensor]:
        on = DistributionPair(*map(log_softmax, processed)) if self._on == "processed" and processed else raw
        divergences = divergences_of_pair(self._divergences, on)
        yield from scores_over(divergences, self.scored, self._on, partial(self._seen, at, processed)).values()

    def _seen(self, at: Positions, processed: tuple[Tensor, Tensor] | None, on: Logits) -> Seen:
        target, draft = at.target_logits, at.draft_logits
        if on == "processed" and processed is not None:
            target, draft = processed
        places = at.positions.unsqueeze(1)
        uniform = partial(noise.uniform, at.keys, places, noise.Stream.ACCEPT, torch.float64)
        drawn, context = lambda: uniform().squeeze(1), map(_known, (at.before, at.places, at.past))
        return Seen(target, draft, at.drafted, drawn, self.sampling.greedy, (None, None), *context)

    def _processed(self, at: Positions) -> tuple[Tensor, Tensor] | None:
        """Returns the processed logits of both models, or None under greedy decoding, which uses the raw ones."""
        if self.sampling.greedy:
            return None
        no_text = at.keys[:0]
        target, draft = (
            self.sampling.warp(logits.unsqueeze(1), no_text, at.positions.unsqueeze(1)).squeeze(1)
            for logits in (at.target_logits, at.draft_logits)
        )
        return target, draft

    def _exact(self, at: Positions, processed: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Returns whether `sd` accepts x with the keyed u, and its acceptance rate over all x and u."""
        if processed is None:
            same = at.drafted == at.choice
            return same, same
        p, q = (torch.softmax(logits, -1) for logits in processed)
        p_x, q_x = (probabilities.gather(-1, at.drafted.unsqueeze(-1)) for probabilities in (p, q))
        accepts = accepted_by_chance(p_x, q_x, at.keys, at.positions.unsqueeze(1)).squeeze(1)
        return accepts, torch.minimum(p, q).sum(-1)


def _known(values: Tensor | None) -> Callable[[], Tensor] | None:
    return None if values is None else lambda: values


def _shape(logits: Tensor, log: Tensor, p: Tensor, drafted: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the most likely token (N,), and the columns of `_SHAPE`, (N,) each."""
    weighted = p * log  # NaN for impossible tokens, 0 x -inf, which nansum leaves out
    entropy = -weighted.nansum(-1)
    varentropy = (weighted.mul_(log).nansum(-1) - entropy.square()).clamp_min(0.0)
    first, top, second = _two_likeliest(logits)
    x = drafted.unsqueeze(-1)
    top1 = p.gather(-1, first)
    top2 = (log.gather(-1, first) + (second - top)).exp()
    rank = torch.gt(logits, logits.gather(-1, x), out=torch.empty_like(logits)).sum(-1)
    largest = (each.squeeze(-1) for each in (top1, top2, top1 - top2))
    return first.squeeze(-1), (entropy, varentropy, *largest, rank, p.gather(-1, x).squeeze(-1))


def _two_likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `argmax` and the two largest logits, (N, 1) each, in two thirds of `topk`'s time on a CPU.

    Comparisons write floats: reading and summing bools takes several times as long on a CPU.
    """
    top = logits.amax(-1, keepdim=True)
    falling = torch.arange(logits.shape[-1], 0, -1, dtype=logits.dtype, device=logits.device)
    from_end = torch.eq(logits, top, out=torch.empty_like(logits)).mul_(falling).amax(-1, keepdim=True)
    first = logits.shape[-1] - from_end.long().clamp_min(1)  # where a logit is NaN, none equals `top`
    return first, top, logits.scatter(-1, first, -torch.inf).amax(-1, keepdim=True)


class HostCopies:
    """Copies tensors to the host, on CUDA asynchronously into pinned memory."""

    def __init__(self) -> None:
        self._sent: list[Tensor] = []
        self._last: torch.cuda.Event | None = None

    def send(self, *tensors: Tensor) -> None:
        """Starts copying the tensors."""
        self._sent += [tensor.to("cpu", non_blocking=tensor.is_cuda) for tensor in tensors]
        if tensors[-1].is_cuda:
            self._last = torch.cuda.Event()
            self._last.record(torch.cuda.current_stream(tensors[-1].device))

    def wait(self) -> list[Tensor]:
        """Waits for all copies and returns them in order."""
        if self._last is not None:
            self._last.synchronize()  # the copies of a stream finish in order
        return self._sent


Width = int | Literal["whole"]


class HiddenStates:
    """Keeps the latest inputs of the output embeddings of a model; a context manager that installs the hook.

    Args:
        model: the draft, a causal LM in eager mode.
        width: "whole", or the width k of a projection by a Gaussian matrix over √k, which preserves the squared
            distances of n states within 1 ± ε for k of about 8 ln(n) / ε² (Johnson and Lindenstrauss 1984).
        seed: seed of the projection.
        calls: number of the latest forward passes to keep.

    Raises:
        UsageError: the draft is not a model in eager mode, or its state has fewer than k components.
    """

    def __init__(self, model: Any, width: Width, seed: int, calls: int = 1) -> None:
        if isinstance(model, DraftSource):
            raise UsageError(f"hidden is {width!r}, but the draft {model!r} has no hidden state; leave it out")
        if hasattr(model, "_orig_mod"):
            raise UsageError(f"hidden is {width!r}, but the draft is compiled; pass the model without compiling it")
        self._head = model.get_output_embeddings()
        # A quantised head's weight may be packed, so its shape is the second choice.
        whole: int = getattr(self._head, "in_features", None) or self._head.weight.shape[-1]
        if width != "whole":
            check_count("hidden", width, ", or 'whole'")
            if width > whole:
                raise UsageError(
                    f"hidden is {width}, but the draft's state has {whole} components; give fewer, or 'whole'"
                )
        self.width = whole if width == "whole" else width
        self.projected = width != "whole"
        self._matrix = _projection(whole, self.width, seed).to(self._head.weight.device) if self.projected else None
        self._calls: deque[Tensor] = deque(maxlen=calls)

    def __enter__(self) -> Self:
        self._hook = self._head.register_forward_pre_hook(self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()

    def latest(self, calls: int = 1) -> Tensor:
        """Returns the states of the last `calls` forward passes over n positions: (B, calls x n, width) in fp16."""
        states = torch.cat(list(self._calls)[-calls:], 1)
        if self._matrix is not None:
            states = states.to(self._matrix) @ self._matrix
        kept: Tensor = states.to(torch.float16)
        return kept

    def _keep(self, head: Any, inputs: tuple[Tensor, ...]) -> None:
        if in_graph():
            raise UsageError("hidden states can be kept of eager drafts only; decode with compile=False")
        self._calls.append(inputs[0])


def _projection(states: int, width: int, seed: int) -> Tensor:
    """Returns the projection (H, k), which is the same on every device."""
    generator = torch.Generator().manual_seed(seed % 2**63)  # seeds may be any whole number
    return torch.randn((states, width), generator=generator) / math.sqrt(width)
