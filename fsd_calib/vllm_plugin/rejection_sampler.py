"""vLLM's rejection sampler, made to accept drafted tokens whose divergence is at most T."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID, RejectionSampler

from fsd_calib.vllm_plugin.judge import Judged
from fsd_calib.vllm_plugin.rejection_rule import accept_certainly

Observe = Callable[[Judged, Tensor, Tensor], None]


class FuzzyRejectionSampler(RejectionSampler):
    """vLLM's own rejection sampler, run on logits in which the fuzzily accepted tokens are certain.

    Where D <= T the target's distribution is replaced by certainty of the drafted token, so vLLM's rule accepts it: the
    argmax is x, and u <= p(x)/q(x) holds for every u. All other positions, the noise and its order stay vLLM's. Tokens
    that the request forbids (a grammar, bad words, allowed tokens) are left to vLLM's rule, which rejects them.

    Attributes:
        judged: the step's tokens; None: vLLM's rule alone decides.
        observe: called after each step with the tokens, which of them the exact rule would accept when greedy (N,), and
            the step's output (B, L + 1), padded with -1.
    """

    judged: Judged | None = None
    observe: Observe | None = None

    def forward(self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any) -> Any:
        output = super().forward(metadata, draft_probs, logits, sampling_metadata)
        if self.judged is not None and self.observe is not None:
            self.observe(self.judged, self._most_likely, output.sampled_token_ids)
        return output

    def apply_logits_processors(self, logits: Tensor, sampling_metadata: Any, metadata: Any) -> Tensor:
        """Returns the processed logits (N, V) of the drafted tokens."""
        processed: Tensor = super().apply_logits_processors(logits, sampling_metadata, metadata)
        if self.judged is not None:
            self._most_likely = accept_certainly(processed, metadata.draft_token_ids, self.judged.fuzzy)
        return processed


def accepted_counts(sampled: Tensor) -> Tensor:
    """Returns how many drafted tokens vLLM accepted for each request (B,), from its output (B, L + 1)."""
    return (sampled != PLACEHOLDER_TOKEN_ID).sum(1) - 1
