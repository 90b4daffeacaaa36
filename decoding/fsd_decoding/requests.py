"""Turns what a caller asks into requests: prompts to token ids, and how far each may go.

Knows tokenizers and what is wrong with a prompt or a per-prompt setting. Knows nothing of decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from fsd_decoding.batch import Request
from fsd_decoding.errors import UsageError

Prompt = str | list[int]
Value = TypeVar("Value", int, float)


def requests_for(
    tokenizer: Any,
    context: int | None,
    prompts: Sequence[Prompt],
    ids: Sequence[int] | None,
    thresholds: float | Sequence[float],
    draft_lengths: int | Sequence[int],
    max_new_tokens: int,
) -> list[Request]:
    """One request a prompt; `context` is the most tokens a text may have, None: any number.

    Raises:
        UsageError: an empty prompt or batch, a prompt beyond the context, or a bad setting.
    """
    if isinstance(prompts, str) or not prompts:
        raise UsageError(f"prompts is {prompts!r:.40}; it must be a list of at least one prompt")
    if max_new_tokens < 1:
        raise UsageError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
    keys = _one_each("ids", range(len(prompts)) if ids is None else ids, prompts)
    each_threshold = [float(t) for t in _one_each("threshold", thresholds, prompts)]
    each_length = _one_each("draft_length", draft_lengths, prompts)
    check_settings(each_length, each_threshold)
    encoded = [_encode(tokenizer, prompt, i) for i, prompt in enumerate(prompts)]
    rooms = [_room(context, prompt, i, max_new_tokens) for i, prompt in enumerate(encoded)]
    rows = zip(encoded, keys, each_threshold, each_length, rooms, strict=True)
    return [Request(i, *row) for i, row in enumerate(rows)]


def check_settings(draft_lengths: Sequence[int], thresholds: Sequence[float]) -> None:
    for length in draft_lengths:
        if length < 1:
            raise UsageError(f"draft_length is {length}; it must be at least 1 (rule 'target' drafts nothing)")
    if any(math.isnan(t) for t in thresholds):
        raise UsageError("threshold is NaN; it must be a number (negative is lossless)")


def _one_each(name: str, values: Value | Sequence[Value], prompts: Sequence[Prompt]) -> list[Value]:
    if not isinstance(values, Sequence):
        return [values] * len(prompts)
    if len(values) != len(prompts):
        raise UsageError(f"{name} has {len(values)} entries for {len(prompts)} prompts; give one each")
    return list(values)


def _encode(tokenizer: Any, prompt: Prompt, index: int) -> list[int]:
    if isinstance(prompt, str):
        # A chat template has put the BOS there already.
        begun = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
        prompt = list(tokenizer(prompt, add_special_tokens=not begun)["input_ids"])
    if not prompt:
        raise UsageError(f"prompt {index} is empty; it must hold at least one token")
    return prompt


def _room(context: int | None, prompt: list[int], index: int, max_new_tokens: int) -> int:
    """How many new tokens a prompt may have: as asked, or to the end of the models' context."""
    left = max_new_tokens if context is None else context - len(prompt)
    if left < 1:
        raise UsageError(
            f"prompt {index} has {len(prompt)} tokens, the models' context is {context}; shorten the prompt"
        )
    return min(max_new_tokens, left)
