"""vLLM's rejection sampler, made to accept drafted tokens whose divergence is at most T."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.sample.rejection_sampler import RejectionSampler

from fsd_calib.vllm_plugin.judge import Judged


class FuzzyRejectionSampler(RejectionSampler):
    """vLLM's own rejection sampler, run on logits in which the fuzzily accepted tokens are certain.

    Where D <= T the target's distribution is replaced by certainty of the drafted token, so vLLM's rule accepts it: the
    argmax is x, and u <= p(x)/q(x) holds for every u. All other positions, the noise and its order stay vLLM's. Tokens
    that the request forbids (a grammar, bad words, allowed tokens) are left to vLLM's rule, which rejects them.

    Attributes:
        judged: the step's tokens; None: vLLM's rule alone decides.
    """

    judged: Judged | None = None

    def apply_logits_processors(self, logits: Tensor, sampling_metadata: Any, metadata: Any) -> Tensor:
        """Returns the processed logits (N, V) of the drafted tokens."""
        processed: Tensor = super().apply_logits_processors(logits, sampling_metadata, metadata)
        if self.judged is not None:
            self.judged.accept(processed, metadata.draft_token_ids)
        return processed
