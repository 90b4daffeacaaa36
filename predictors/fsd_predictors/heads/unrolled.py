"""Training-time test: the loss of a head that drafts several tokens after one another, from every place of a text.

EAGLE-3, arXiv 2503.01840, section 3.2. In the first step a head is fed the target's features, in each later one its own
states of the step before, as in decoding; the tokens are those of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.drafters.eagle_head import Eagle3Head, Rotation

_DECAY = 0.8  # weight of each step, in terms of the one before, as in EAGLE's training code


@dataclass(frozen=True)
class Texts:
    """A batch of texts, and what the target made of them.

    Args:
        tokens: (B, S) prompts and completions, padded on the right.
        begins, ends: (B,) where completions begin, and end.
        states: (B, S, layers·H) the hidden states that the head reads, one after the other.
        logits: (B, S, V) of the token after each.
    """

    tokens: Tensor
    begins: Tensor
    ends: Tensor
    states: Tensor
    logits: Tensor

    @classmethod
    def read(cls, target: Any, layers: tuple[int, ...], tokens: Tensor, begins: Tensor, ends: Tensor) -> Texts:
        """Lets the target read texts. What is padded on the right changes nothing before it."""
        with torch.no_grad():
            mask = torch.ones_like(tokens)  # some models warn without one
            out = target(input_ids=tokens, attention_mask=mask, use_cache=False, output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer].to(tokens.device) for layer in layers], -1)
        return cls(tokens, begins, ends, states.float(), out.logits.to(tokens.device).float())


@dataclass(frozen=True)
class StepLoss:
    """One step of the unrolled head, over all places of a batch whose next token is a completion's.

    Args:
        loss: mean cross-entropy of q, in nats, under the target's distribution over the tokens that the head knows.
        agreement: share of places where q and p have the same likeliest token.
        places: how many there are.
    """

    loss: Tensor
    agreement: Tensor
    places: Tensor


def unrolled(head: Eagle3Head, texts: Texts, steps: int) -> list[StepLoss]:
    """Drafts `steps` tokens from every place of the texts, and compares q with p after each."""
    pairs = texts.tokens.shape[1] - 1
    place = torch.arange(pairs, device=texts.tokens.device)
    rotation, grown = Rotation(head.config, pairs + steps, texts.states), _Grown()
    features, found = head.fuse(texts.states)[:, :-1], list[StepLoss]()
    for step in range(steps):
        fed = texts.tokens[:, (place + 1 + step).clamp_max(pairs)]
        mask = _visible(pairs, step, features)
        features = head(fed, features, rotation((place + step)[None]), mask, grown)
        found.append(_compared(head, texts, features, place + 1 + step))
    return found


def weighted(found: list[StepLoss]) -> Tensor:
    """Returns the loss of all steps together."""
    total: Tensor = torch.stack([each.loss * _DECAY**step for step, each in enumerate(found)]).sum()
    return total


def _compared(head: Eagle3Head, texts: Texts, states: Tensor, last: Tensor) -> StepLoss:
    """Compares q with p after the text up to positions `last` (pairs,), where a completion goes on."""
    fits = (last + 1 >= texts.begins[:, None]) & (last + 1 < texts.ends[:, None])  # (B, pairs)
    logits = texts.logits[:, last.clamp_max(texts.logits.shape[1] - 1)][fits]  # (N, V)
    own = head.known_logits(states[fits])  # (N, K)
    p = torch.softmax(logits[:, head.known], -1)
    places = fits.sum()
    cross = -(p * torch.log_softmax(own, -1)).sum() / places.clamp_min(1)
    same = (head.known[own.argmax(-1)] == logits.argmax(-1)).sum() / places.clamp_min(1)
    return StepLoss(cross, same.detach(), places)


def _visible(pairs: int, step: int, like: Tensor) -> Tensor:
    """The additive mask (1, 1, pairs, (step + 1)·pairs): the text before each place, and its own later steps."""
    text = torch.ones(pairs, pairs, dtype=torch.bool, device=like.device).tril()
    own = torch.eye(pairs, dtype=torch.bool, device=like.device)
    seen = torch.cat([text, *[own] * step], 1)
    return like.new_zeros(seen.shape).masked_fill(~seen, torch.finfo(like.dtype).min)[None, None]


class _Grown:
    """Keys and values of all steps so far, through which gradients pass."""

    def __init__(self) -> None:
        self._keys, self._values = list[Tensor](), list[Tensor]()

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self._keys.append(keys)
        self._values.append(values)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)
