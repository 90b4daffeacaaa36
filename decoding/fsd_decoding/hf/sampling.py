"""Conversion of the logits processors that transformers' `generate` prepared into a `Sampling`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from fsd_common.errors import UsageError
from fsd_decoding.sampling import Sampling

# Fields of `Sampling` by warper, in the order in which both `generate` and `Sampling` apply them.
_WARPERS: dict[type[LogitsProcessor], Callable[[Any], dict[str, Any]]] = {
    TemperatureLogitsWarper: lambda warper: {"temperature": warper.temperature},
    TopKLogitsWarper: lambda warper: {"top_k": warper.top_k},
    TopPLogitsWarper: lambda warper: {"top_p": warper.top_p},
    MinPLogitsWarper: lambda warper: {"min_p": warper.min_p},
}
_REFUSED = {
    UnbatchedClassifierFreeGuidanceLogitsProcessor: "remembers the texts it sees, which include rejected drafts",
    SynthIDTextWatermarkLogitsProcessor: "remembers the texts it sees, which include rejected drafts",
    EncoderRepetitionPenaltyLogitsProcessor: "works on a whole batch at once, but rows decode independently",
    EncoderNoRepeatNGramLogitsProcessor: "works on a whole batch at once, but rows decode independently",
}


def sampling_for(processors: LogitsProcessorList, do_sample: bool) -> Sampling:
    """Returns the sampling that chooses tokens as `generate` does with these processors.

    Warpers become fields, and so does a repetition penalty that is the only other processor. All others remain
    processors, in their order.

    Raises:
        UsageError: a processor cannot be applied to drafted tokens.
    """
    for processor in processors:
        if type(processor) in _REFUSED:
            raise UsageError(f"{type(processor).__name__} {_REFUSED[type(processor)]}; remove it")
    rest, warpers = _split(processors) if do_sample else (list(processors), [])
    sampling = Sampling(temperature=1.0 if do_sample else 0.0)
    for warper in warpers:
        sampling = replace(sampling, **_WARPERS[type(warper)](warper))
    if len(rest) == 1 and _penalises_whole_text(rest[0]):
        return replace(sampling, repetition_penalty=rest[0].penalty)
    return replace(sampling, processors=tuple(rest))


def sampling_of_row(sampling: Sampling, row: int, padding: Tensor) -> Sampling:
    """Returns the sampling for a row, whose processors see its text after its left padding (1, n), as in `generate`.

    Several of them count positions from there (`min_new_tokens`, `forced_eos_token_id`).
    """
    own = LogitsProcessorList(_of_row(processor, row) for processor in sampling.processors)
    return replace(sampling, processors=(_Padded(own, padding),))


class _Padded(LogitsProcessor):
    """Applies processors to texts with left padding in front."""

    def __init__(self, processors: LogitsProcessorList, padding: Tensor) -> None:
        self._processors, self._padding = processors, padding

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        device = self._padding.device  # that of the caller's input_ids, for which `generate` built the processors
        ids: Any = torch.cat([self._padding, input_ids.to(device)], 1)
        return self._processors(ids, scores.to(device)).to(scores.device)


def _split(processors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Splits off the longest tail of different warpers in the order of `_WARPERS`; returns (the rest, the tail)."""
    rest = list(processors)
    if rest and type(rest[-1]) is LogitNormalization:
        rest.pop()  # does not change what is drawn
    order, warpers = list(_WARPERS), []
    while rest and _is_plain(rest[-1]) and type(rest[-1]) in order:
        order = order[: order.index(type(rest[-1]))]
        warpers.append(rest.pop())
    return rest, warpers


def _is_plain(warper: Any) -> bool:
    """Whether a warper removes tokens by setting their probability to 0, and may leave a single one."""
    removes = getattr(warper, "filter_value", -torch.inf) == -torch.inf
    return removes and getattr(warper, "min_tokens_to_keep", 1) == 1


def _penalises_whole_text(processor: Any) -> bool:
    """Whether a processor is a repetition penalty on the whole text.

    In that of `generate` the length to ignore is a tensor, for the padding; a number is one that the user set.
    """
    is_penalty = type(processor) is RepetitionPenaltyLogitsProcessor
    return is_penalty and not isinstance(processor.prompt_ignore_length, int)


def _of_row(processor: Any, row: int) -> Any:
    """Returns the processor for one row of the batch that it was made for."""
    own = copy.copy(processor)
    if type(own) is RepetitionPenaltyLogitsProcessor and isinstance(own.prompt_ignore_length, Tensor):
        own.prompt_ignore_length = own.prompt_ignore_length[row : row + 1]
    if type(own) is PrefixConstrainedLogitsProcessor:
        allowed = own._prefix_allowed_tokens_fn
        own._prefix_allowed_tokens_fn = lambda _, ids: allowed(row, ids)
    return own
