"""vLLM's rejection sampler, made to accept drafted tokens whose divergence is at most T."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.sample.rejection_sampler import RejectionSampler

from fsd_calib.vllm_plugin.judge import Judged
from fsd_calib.vllm_plugin.rejection_rule import accept_at, accept_certainly


class FuzzyRejectionSampler(RejectionSampler):
    """vLLM's own rejection sampler, run on logits in which the fuzzily accepted tokens are certain.

    Where D <= T the target's distribution is replaced by certainty of the drafted token, so vLLM's rule accepts it: the
    argmax is x, and u <= p(x)/q(x) holds for every u. All other positions, the noise and its order stay vLLM's. Tokens
    that the request forbids (a grammar, bad words, allowed tokens) are left to vLLM's rule, which rejects them.

    Attributes:
        judged: the step's tokens; None: vLLM's rule alone decides.
        most_likely: of the latest step that had judged tokens, which of those the exact rule would accept when greedy
            (N,).
    """

    judged: Judged | None = None
    most_likely: Tensor

    def apply_logits_processors(self, logits: Tensor, sampling_metadata: Any, metadata: Any) -> Tensor:
        """Returns the processed logits (N, V) of the drafted tokens."""
        processed: Tensor = super().apply_logits_processors(logits, sampling_metadata, metadata)
        if self.judged is None:
            return processed
        at, fuzzy, drafted = self.judged.at, self.judged.spread(len(processed)), metadata.draft_token_ids
        if self.judged.likeliest is None:
            most_likely = accept_certainly(processed, drafted, fuzzy)
            self.most_likely = most_likely if at is None else most_likely[at]
        else:  # processing changed nothing, and few tokens are left
            accept_at(processed, drafted, fuzzy.nonzero().flatten())
            self.most_likely = self.judged.likeliest
        return processed
