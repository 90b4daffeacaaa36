"""Every token of a text that an engine of vLLM served, explained by uncached logits in fp64.

Only tests in tests/vllm import this file: it needs vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.divergence import divergence, entropy
from support.vllm_engine import Recorded, bundled_profile, logits

ROUNDING = 1e-5  # of D near T, in fp32
NEAR = 1e-4  # of logits: which of two that are nearer is the larger one is not known in fp32

Processing = Callable[[Sequence[int], Sequence[int], Tensor], Tensor]
"""What a request does to the target's logits (n, V) of its n emitted tokens, given its prompt and these tokens."""


@dataclass(frozen=True)
class Decision:
    """How a token of a text came about."""

    place: int  # in its completion
    drafted: bool  # whether a draft was decided on; if not, the token is the target's own
    accepted: bool  # whether the token is the drafted one
    recorded: float  # D as the plugin computed it; infinite where it did not, NaN where nothing was drafted
    exact: float  # D in fp64
    own: bool  # whether the token is the target's likeliest, as far as that is known in fp32
    drafts: bool  # whether it is the draft's likeliest
    agreed: bool  # whether the likeliest token of the draft is that of the target for sure
    forbidden: bool  # whether the request forbids the draft's likeliest token
    target_entropy: float

    @property
    def fuzzy(self) -> bool:
        """Whether the token would have been rejected without D <= T."""
        return self.accepted and not self.own

    @property
    def rejected(self) -> bool:
        return self.drafted and not self.accepted


def decisions(recorded: Recorded, output: Any, processing: Processing | None = None) -> Iterator[Decision]:
    """Yields how every token of a completion came about, in order, also of what vLLM cut off its end.

    Args:
        output: vLLM's, of a request with one completion.
        processing: None: the target's logits are not changed.
    """
    prompt, (text,) = list(output.prompt_token_ids), output.outputs
    rounds = recorded.of(output.request_id)
    emitted = [token for each in rounds for token in each.emitted]
    assert emitted[: len(text.token_ids)] == list(text.token_ids)
    target, draft = (logits(role, [*prompt, *emitted])[len(prompt) - 1 : -1] for role in ("target", "draft"))
    exact, entropies = divergence(bundled_profile().score, target, draft), entropy(target)
    processed = target if processing is None else processing(prompt, emitted, target)
    place = 0
    for each in rounds:
        assert each.begins == len(prompt) + place
        count = each.facts.shape[1]
        for i, token in enumerate(each.emitted):
            drafted = i < count
            own = processed[place]
            yield Decision(
                place, drafted, drafted and i < each.accepted, float(each.facts[0, i]) if drafted else math.nan,
                exact[place].item(), _likeliest(own, token), _likeliest(draft[place], token),
                _agreed(own, draft[place]), bool(own[draft[place].argmax()] == -torch.inf), entropies[place].item(),
            )  # fmt: skip
            place += 1


def _likeliest(found: Tensor, token: int) -> bool:
    return bool(found[token] >= found.max() - NEAR)


def _agreed(target: Tensor, draft: Tensor) -> bool:
    """Whether both give their largest logit to the same token, by more than rounding."""
    (first, second), (x, _) = target.topk(2)
    (drafts_first, drafts_second), (drafts_x, _) = draft.topk(2)
    return bool(x == drafts_x and first - second > NEAR and drafts_first - drafts_second > NEAR)


def agrees(decision: Decision, threshold: float) -> bool:
    """Whether the token of a greedy request follows from T, as far as |D - T| is beyond rounding."""
    if decision.accepted:
        return decision.drafts and (decision.own or decision.exact <= threshold + ROUNDING)
    if decision.drafted:
        needed = decision.forbidden or decision.exact > threshold - ROUNDING
        return decision.own and needed and not decision.agreed
    return decision.own


def agrees_sampled(decision: Decision, threshold: float) -> bool:
    """Whether no drafted token of a sampled request was rejected in spite of its D."""
    return not decision.rejected or decision.exact > threshold - ROUNDING
