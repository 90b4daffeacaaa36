"""Top-p truncation without sorting the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor

from fsd_decoding.graphs.callers import in_graph
from fsd_decoding.tensors import wide

_FEW = 1024  # tokens that a nucleus seldom exceeds
_HALVINGS = {torch.float64: 53}  # of the interval that the least log-probability is in
_HALVINGS_IN_FP32 = 24


class NucleusWarper(LogitsProcessor):
    """Keeps the fewest of the likeliest tokens that have a probability of at least p together, as transformers does.

    Tokens as likely as the last of them are kept too. transformers sorts all tokens, which takes ten times as long as
    all else at a step of a vocabulary of 150,000.

    Args:
        top_p: p, in (0, 1).
    """

    def __init__(self, top_p: float) -> None:
        self._top_p = top_p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(N, …), (N, V) -> (N, V); -inf for the tokens that are left out."""
        logits = wide(scores)
        least = self._by_few(logits)
        if least is None:
            least = self._by_halving(logits)
        return scores.masked_fill(logits < least, -torch.inf)

    def _by_few(self, logits: Tensor) -> Tensor | None:
        """The least logit that is kept (N, 1), from the likeliest tokens; None: they may be too few.

        On a CPU alone, where it costs no wait to ask. By NumPy, so that a step that is about to be captured, in another
        way, is not seen to ask.
        """
        if logits.device.type != "cpu" or in_graph():
            return None
        likeliest = logits.topk(min(_FEW, logits.shape[-1]), -1).values
        mass = (likeliest - logits.logsumexp(-1, keepdim=True)).exp_().cumsum_(-1)
        if not (mass[:, -1].detach().numpy() >= self._top_p).all():
            return None
        last = (mass < self._top_p).sum(-1, keepdim=True).clamp_max(likeliest.shape[-1] - 1)
        return likeliest.gather(-1, last)

    def _by_halving(self, logits: Tensor) -> Tensor:
        """The same for any nucleus: halves the interval that the least logit is in until rounding ends it.

        Tokens less likely than (1 - p) / V each have less than 1 - p together, so all others are enough.
        """
        probabilities = torch.softmax(logits, -1)
        log_least = torch.log_softmax(logits, -1)
        high = log_least.amax(-1, keepdim=True)
        low = torch.full_like(high, (1 - self._top_p) / logits.shape[-1]).log_()
        for _ in range(_HALVINGS.get(logits.dtype, _HALVINGS_IN_FP32)):
            middle = (low + high) / 2
            mass = torch.where(log_least >= middle, probabilities, 0.0).sum(-1, keepdim=True)
            enough = mass >= self._top_p
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
        return torch.where(log_least >= low, logits, torch.inf).amin(-1, keepdim=True)
