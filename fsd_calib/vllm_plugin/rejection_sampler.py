"""vLLM's rejection sampler, made to accept drafted tokens whose divergence is at most T."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.rejection_sampler import RejectionSampler

from fsd_calib.vllm_plugin.judge import Judged

_CERTAIN = 1e30  # a logit beside which all others have probability 0 in fp32, even divided by vLLM's least temperature


class FuzzyRejectionSampler(RejectionSampler):
    """vLLM's own rejection sampler, run on logits in which the fuzzily accepted tokens are certain.

    Where D <= T the target's distribution is replaced by certainty of the drafted token, so vLLM's rule accepts it: the
    argmax is x, and u <= p(x)/q(x) holds for every u. All other positions, the noise and its order stay vLLM's. Tokens
    that the request forbids (a grammar, bad words, allowed tokens) are left to vLLM's rule, which rejects them.

    Attributes:
        judged: the step's tokens; None: vLLM's rule alone decides.
        most_likely: of the latest step that had judged tokens, which of them the exact rule would accept when greedy
            (N,).
    """

    judged: Judged | None = None
    most_likely: Tensor

    def apply_logits_processors(self, logits: Tensor, sampling_metadata: Any, metadata: Any) -> Tensor:
        """Returns the processed logits (N, V) of the drafted tokens."""
        processed: Tensor = super().apply_logits_processors(logits, sampling_metadata, metadata)
        if self.judged is not None:
            self.most_likely = accept_certainly(processed, metadata.draft_token_ids, self.judged.fuzzy)
        return processed


def accept_certainly(logits: Tensor, drafted: Tensor, fuzzy: Tensor) -> Tensor:
    """Makes drafted tokens certain where `fuzzy`, except those that have probability 0, in place.

    Args:
        logits: (N, V) the target's, processed.
        drafted: (N,) ids; negative ones are padding, which vLLM rejects.
        fuzzy: (N,) bool.

    Returns:
        Whether the drafted token is a most likely one of the target: (N,) bool.
    """
    token = (drafted >= 0).unsqueeze(1)
    x = drafted.long().clamp_min(0).unsqueeze(1)
    own = logits.gather(1, x)
    most_likely = token & (own >= logits.amax(1, keepdim=True))
    certain = fuzzy.unsqueeze(1) & token & (own > -torch.inf)
    logits.scatter_(1, x, own.masked_fill(certain, _CERTAIN))
    return most_likely.squeeze(1)
