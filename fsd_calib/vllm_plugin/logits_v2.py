"""Where vLLM's V2 model runner has the logits of drafted tokens: indices and tensors, without vLLM.

A step has one row of target logits for every drafted token of a request, and one more for the token after them, whose
distribution is the bonus token's. So row i of a request verifies the token that is the input at row i + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import OneTensor
from fsd_calib.vllm_plugin.judge import accept_certainly
from fsd_decoding.tensors import to_device


class StateDraftLogits(OneTensor):
    """Draft logits as the runner keeps them: of each request at the index of its state, for as long as it runs.

    Args:
        kept: (requests, L, V).
        index_of: index of each running request's state, by its id; the runner's own.
    """

    def __init__(self, kept: Tensor, index_of: Mapping[str, int]) -> None:
        self.kept, self._index_of = kept, index_of

    def rows_of(self, requests: Sequence[str], counts: Sequence[int]) -> list[int | None]:
        return [self._index_of[request] if count else None for request, count in zip(requests, counts, strict=True)]


class StepRows:
    """The rows of a step's target logits.

    Args:
        begins: (B + 1,) first row of each request, and the number of rows: vLLM's `cu_num_logits_np`.
    """

    def __init__(self, begins: NDArray[np.integer]) -> None:
        rows = np.diff(begins)
        self._total = int(begins[-1])
        self.counts: list[int] = (rows - 1).tolist()  # numbers of drafted tokens
        verifies = np.ones(self._total, bool)
        verifies[np.asarray(begins[1:], np.int64) - 1] = False  # the rows of the bonus tokens
        self.of_tokens: NDArray[np.int64] = np.flatnonzero(verifies)  # (N,) row that verifies each drafted token

    def spread(self, fuzzy: Tensor) -> Tensor:
        """Returns values (N,) of drafted tokens as values (rows,) of the rows that verify them; the others False."""
        found = torch.zeros(self._total, dtype=torch.bool, device=fuzzy.device)
        found[to_device(self.of_tokens.tolist(), fuzzy.device, torch.int64)] = fuzzy
        return found


def with_certain(logits: Tensor, verified: Tensor, fuzzy: Tensor, own: bool) -> tuple[Tensor, Tensor]:
    """Makes the fuzzily accepted tokens certain, in a copy where the logits are needed as they are.

    Args:
        logits: (rows, V) of some requests, processed.
        verified: (rows,) input token of each row; negative ones are padding, or follow a token that a grammar forbids.
        fuzzy: (rows,) bool: whether the token that a row verifies is accepted by its divergence.
        own: whether the logits may be changed; raw ones may not, because logprobs are of them.

    Returns:
        The logits (rows, V) in fp32, and whether the verified token is a most likely one (rows,) bool.
    """
    next_input = torch.cat([verified[1:], verified.new_full((1,), -1)])
    changed = logits if own and logits.dtype == torch.float32 else logits.to(torch.float32, copy=True)
    return changed, accept_certainly(changed, next_input, fuzzy)


def padded(sampled: Tensor, counts: Tensor) -> Tensor:
    """Returns a step's output with -1 behind the tokens of each request.

    Args:
        sampled: (B, L + 1) ids, undefined behind them.
        counts: (B,) numbers of tokens.
    """
    return sampled.masked_fill(torch.arange(sampled.shape[1], device=sampled.device) >= counts.unsqueeze(1), -1)
