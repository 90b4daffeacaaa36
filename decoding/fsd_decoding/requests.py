"""Requests: prompts as token ids, each with its own length limit, threshold and draft length."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any

from fsd_common.argument_checks import check_count, check_settings, check_whole
from fsd_common.errors import UsageError
from fsd_decoding.batch import Request
from fsd_decoding.text import prompt_tokens

Prompt = str | list[int]


def requests_for(
    tokenizer: Any,
    context: int | None,
    vocabulary: int,
    prompts: Sequence[Prompt],
    ids: Sequence[int] | None,
    thresholds: float | Sequence[float],
    draft_lengths: int | Sequence[int],
    max_new_tokens: int,
    reach: int | None = None,
) -> list[Request]:
    """Makes one request per prompt.

    Args:
        context: maximum length of a text in tokens, including the prompt, which is the target's; None: no limit.
        vocabulary: size of the shared vocabulary.
        reach: the draft's context, see `Request`.

    Raises:
        UsageError: an empty prompt or batch, a prompt longer than the context, a token outside the vocabulary, or a bad
            setting.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not prompts:
        raise UsageError(f"prompts is {prompts!r:.40}; it must be a list of at least one prompt")
    check_count("max_new_tokens", max_new_tokens)
    keys = _keys(ids, prompts)
    each_threshold = _one_each("threshold", thresholds, prompts)
    each_length = _one_each("draft_length", draft_lengths, prompts)
    check_settings(each_length, each_threshold)
    if context is not None and max(each_length) >= context:
        raise UsageError(f"draft_length is {max(each_length)}; it must be less than the target's context, {context}")
    encoded = [_encode(tokenizer, vocabulary, prompt, i) for i, prompt in enumerate(prompts)]
    limits = [_limit(context, prompt, i, max_new_tokens) for i, prompt in enumerate(encoded)]
    each_length = [int(length) for length in each_length]
    rows = zip(encoded, keys, each_threshold, each_length, limits, strict=True)
    return [Request(i, *row, reach) for i, row in enumerate(rows)]


def _keys(ids: Any, prompts: Sequence[Prompt]) -> list[int]:
    """One whole number per prompt; by default its index."""
    if ids is None:
        return list(range(len(prompts)))
    if isinstance(ids, (str, Real)):
        raise UsageError(f"ids is {ids!r}; it must be a list of whole numbers, one per prompt")
    keys = _one_each("ids", ids, prompts)
    for key in keys:
        check_whole("an entry of ids", key)
    return [int(key) for key in keys]


def for_all_and_each(values: Any) -> tuple[Any, list[Any] | None]:
    """Returns what a call is given as a value for all prompts, and as a list of one for each; None: it is no list.

    Lists may be arrays and tensors. The first of a list stands for all prompts.
    """
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        return next(iter(listed), None), list(listed)
    return listed, None


def _one_each(name: str, values: Any, prompts: Sequence[Prompt]) -> list[Any]:
    one, each = for_all_and_each(values)
    if each is None:
        return [one] * len(prompts)
    if len(each) != len(prompts):
        raise UsageError(f"{name} has {len(each)} entries for {len(prompts)} prompts; give one each")
    return each


def _encode(tokenizer: Any, vocabulary: int, prompt: Prompt, index: int) -> list[int]:
    ids: Any = prompt_tokens(tokenizer, prompt) if isinstance(prompt, str) else prompt
    try:
        tokens = [operator.index(token) for token in ids]
    except TypeError as error:
        raise UsageError(f"prompt {index} is {prompt!r:.40}; it must be a text or a list of token ids") from error
    if not tokens:
        raise UsageError(f"prompt {index} is empty; it must hold at least one token")
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise UsageError(f"prompt {index} holds token {token}; the vocabulary has tokens 0 to {vocabulary - 1}")
    return tokens


def _limit(context: int | None, prompt: list[int], index: int, max_new_tokens: int) -> int:
    """Limit on new tokens for a prompt: as requested, but at most what the target's context leaves."""
    left = max_new_tokens if context is None else context - len(prompt)
    if left < 1:
        raise UsageError(
            f"prompt {index} has {len(prompt)} tokens, the target's context is {context}; shorten the prompt"
        )
    return min(int(max_new_tokens), left)
