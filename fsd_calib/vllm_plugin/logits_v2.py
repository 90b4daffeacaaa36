"""Where vLLM's V2 model runner has the logits of drafted tokens: indices and tensors, without vLLM.

A step has one row of target logits for every drafted token of a request, and one more for the token after them, whose
distribution is the bonus token's. So row i of a request verifies the token that is the input at row i + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_calib.vllm_plugin.certain import accept_certainly
from fsd_calib.vllm_plugin.draft_logits import OneTensor
from fsd_calib.vllm_plugin.judge import JudgedTokens, Pending
from fsd_calib.vllm_plugin.processed import Sight
from fsd_decoding.tensors import to_device


class DraftedSteps:
    """How many tokens each request was drafted in its last step.

    vLLM pads the first step of a request with places for drafts that it never made.
    """

    def __init__(self) -> None:
        self._made: dict[str, int] = {}

    def made(self, requests: Sequence[str], count: int) -> None:
        """Notes that a step made so many draft steps for these requests."""
        self._made |= dict.fromkeys(requests, count)

    def forget(self, requests: Iterable[str]) -> None:
        """Forgets requests that have finished, or begin anew."""
        for request in requests:
            self._made.pop(request, None)

    def were_made(self, requests: Sequence[str], counts: Sequence[int]) -> list[bool]:
        """Whether the tokens that are verified for requests, so many, were drafted."""
        return [0 < count <= self._made.get(request, 0) for request, count in zip(requests, counts, strict=True)]


class StateDraftLogits(DraftedSteps, OneTensor):
    """Draft logits as the runner keeps them: of each request at the index of its state, for as long as it runs.

    Args:
        kept: (requests, L, V).
        index_of: index of each running request's state, by its id; the runner's own.
    """

    def __init__(self, kept: Tensor, index_of: Mapping[str, int]) -> None:
        super().__init__()
        self.kept, self._index_of = kept, index_of

    def rows_of(self, requests: Sequence[str], counts: Sequence[int]) -> list[int | None]:
        """See `KeptLogits`."""
        made = self.were_made(requests, counts)
        return [self._index_of[request] if there else None for request, there in zip(requests, made, strict=True)]


class StepRows:
    """The rows of a step's target logits.

    Args:
        begins: (B + 1,) first row of each request, and the number of rows: vLLM's `cu_num_logits_np`.
    """

    def __init__(self, begins: NDArray[np.integer]) -> None:
        rows = np.diff(begins)
        self.total = int(begins[-1])
        self.counts: list[int] = (rows - 1).tolist()  # numbers of drafted tokens
        verifies = np.ones(self.total, bool)
        verifies[np.asarray(begins[1:], np.int64) - 1] = False  # the rows of the bonus tokens
        self.of_tokens: NDArray[np.int64] = np.flatnonzero(verifies)  # (N,) row that verifies each drafted token

    def on(self, device: torch.device) -> Tensor:
        """`of_tokens` on a device: (N,)."""
        return to_device(self.of_tokens.tolist(), device, torch.int64)

    def spread(self, fuzzy: Tensor) -> Tensor:
        """Returns values (N,) of drafted tokens as values (rows,) of the rows that verify them; the others False."""
        found = torch.zeros(self.total, dtype=torch.bool, device=fuzzy.device)
        found[self.on(fuzzy.device)] = fuzzy
        return found


class ChunkedDecisions:
    """Makes the tokens of a step certain that are accepted by their scores, in chunks of its rows.

    Args:
        judged: the step's drafted tokens, those whose logits are known.
        rows: of the step.
    """

    def __init__(self, judged: JudgedTokens | Pending, rows: StepRows, device: torch.device) -> None:
        self._judged, self._total, self._of_tokens = judged, rows.total, rows.on(device)
        self._of_judged = self._of_tokens if judged.at is None else self._of_tokens[judged.at]
        self._fuzzy = rows.spread(judged.spread(len(rows.of_tokens))) if isinstance(judged, JudgedTokens) else None
        self._found: list[tuple[Tensor, ...]] = []  # by chunk: the most likely tokens; of `Sight.judge`
        self._end = 0  # rows that are in chunks

    def next(self, logits: Tensor, verified: Tensor, own: bool) -> Tensor:
        """Returns the logits of the next chunk with certain tokens; see `with_certain`."""
        begin, self._end = self._end, self._end + len(logits)
        if self._fuzzy is not None:
            certain, most_likely = with_certain(logits, verified, self._fuzzy[begin : self._end], own)
            self._found.append((most_likely,))
            return certain
        assert isinstance(self._judged, Pending)
        bounds = self._judged.bounds.spread(self._total, self._of_judged).part(begin, self._end)
        decided = Sight(logits, _next_inputs(verified)).judge(self._judged.score, bounds)
        certain, most_likely = with_certain(logits, verified, decided[-1], own)
        self._found.append((most_likely, *decided))
        return certain

    def judged(self) -> JudgedTokens:
        """Returns the drafted tokens judged, after the last chunk."""
        most_likely, *decided = (torch.cat(each) for each in zip(*self._found, strict=True))
        judged = self._judged
        if isinstance(judged, Pending):
            scores, compared, fuzzy = decided
            judged = judged.decided(scores, compared, fuzzy, self._of_judged)
        judged.accepted(most_likely[self._of_tokens])
        return judged


def with_certain(logits: Tensor, verified: Tensor, fuzzy: Tensor, own: bool) -> tuple[Tensor, Tensor]:
    """Makes the fuzzily accepted tokens certain, in a copy where the logits are needed as they are.

    Args:
        logits: (rows, V) of some requests, processed.
        verified: (rows,) input token of each row; negative ones are padding, or follow a token that a grammar forbids.
        fuzzy: (rows,) bool: whether the token that a row verifies is accepted by its score.
        own: whether the logits may be changed; raw ones may not, because logprobs are of them.

    Returns:
        The logits (rows, V) in fp32, and whether the verified token is a most likely one (rows,) bool.
    """
    changed = logits if own and logits.dtype == torch.float32 else logits.to(torch.float32, copy=True)
    return changed, accept_certainly(changed, _next_inputs(verified), fuzzy)


def _next_inputs(verified: Tensor) -> Tensor:
    """The token that each row verifies, which is the input of the next one: (rows,)."""
    return torch.cat([verified[1:], verified.new_full((1,), -1)])


def padded(sampled: Tensor, counts: Tensor) -> Tensor:
    """Returns a step's output with -1 behind the tokens of each request.

    Args:
        sampled: (B, L + 1) ids, undefined behind them.
        counts: (B,) numbers of tokens.
    """
    return sampled.masked_fill(torch.arange(sampled.shape[1], device=sampled.device) >= counts.unsqueeze(1), -1)
