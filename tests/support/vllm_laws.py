"""Laws of sampled tokens: a place where those of target and draft differ much, and a test of what was drawn there.

Only tests in tests/vllm import this file: it needs vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import chisquare

from fsd_decoding.divergence import divergence, entropy
from support.vllm_engine import arithmetic, bundled_profile, logits, tokenizer


@dataclass(frozen=True)
class Context:
    """Tokens after which one token is likely, and after that one target and draft differ much."""

    tokens: list[int]
    first: int
    target: torch.Tensor  # (V,) its law after `first`
    draft: torch.Tensor
    score: float


def open_context(completions: Sequence[Sequence[int]]) -> Context:
    """The place in greedy texts of problems where target and draft differ most, of those where neither is certain."""
    best: Context | None = None
    for problem, completion in zip(arithmetic(len(completions)).problems, completions, strict=True):
        tokens = [*tokenizer()(problem.prompt)["input_ids"], *completion]
        target, draft = (logits(role, tokens) for role in ("target", "draft"))
        found = divergence(bundled_profile().score, target, draft)
        likely = torch.softmax(target, -1)[:-1].gather(1, torch.tensor(tokens[1:])[:, None]).flatten() > 0.4
        open_ = torch.minimum(entropy(target), entropy(draft))[1:] > 0.8
        found = torch.where(likely & open_, found[1:], 0.0)
        at = int(found.argmax()) + 1  # after `tokens[at]`, which is likely itself
        if best is None or found[at - 1] > best.score:
            laws = target[at].softmax(-1), draft[at].softmax(-1)
            best = Context(tokens[:at], tokens[at], *laws, found[at - 1].item())
    assert best is not None
    assert best.score > 0
    return best


def p_value(tokens: list[int], law: torch.Tensor) -> float:
    """Of the chi-squared test, over the tokens that are expected at least 8 times, the last of them with all others."""
    expected = law * len(tokens)
    often = (expected >= 8).nonzero().flatten().tolist()
    assert len(often) > 1
    counts = [tokens.count(token) for token in often]
    wanted = [expected[token].item() for token in often]
    counts[-1] += len(tokens) - sum(counts)  # the rest goes to the least of them
    wanted[-1] += len(tokens) - sum(wanted)
    return float(chisquare(counts, wanted).pvalue)
