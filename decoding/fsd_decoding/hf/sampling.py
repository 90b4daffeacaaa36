"""Turns the logits processors that transformers' `generate` prepared into our `Sampling`.

Knows transformers' processors and warpers. Knows nothing of models, of drafts or of acceptance.
"""

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

from fsd_decoding.errors import UsageError
from fsd_decoding.sampling import Sampling

# In the order in which both `generate` and `Sampling` apply them: what each is in `Sampling`.
_WARPERS: dict[type[LogitsProcessor], Callable[[Any], dict[str, Any]]] = {
    TemperatureLogitsWarper: lambda warper: {"temperature": warper.temperature},
    TopKLogitsWarper: lambda warper: {"top_k": warper.top_k},
    TopPLogitsWarper: lambda warper: {"top_p": warper.top_p},
    MinPLogitsWarper: lambda warper: {"min_p": warper.min_p},
}
_REFUSED = {
    UnbatchedClassifierFreeGuidanceLogitsProcessor: "remembers the texts it was shown, and is shown drafts",
    SynthIDTextWatermarkLogitsProcessor: "remembers the texts it was shown, and is shown drafts",
    EncoderRepetitionPenaltyLogitsProcessor: "is made for a whole batch, and rows decode at their own pace",
    EncoderNoRepeatNGramLogitsProcessor: "is made for a whole batch, and rows decode at their own pace",
}


def sampling_for(processors: LogitsProcessorList, do_sample: bool) -> Sampling:
    """The same choice of tokens as `generate` makes with these.

    Warpers become fields, as does a repetition penalty that nothing else precedes or follows; whatever else there
    is keeps its order and stays a processor.

    Raises:
        UsageError: a processor that cannot be asked about drafts.
    """
    for processor in processors:
        if type(processor) in _REFUSED:
            raise UsageError(f"{type(processor).__name__} {_REFUSED[type(processor)]}; leave it out")
    rest, warpers = _split(processors) if do_sample else (list(processors), [])
    sampling = Sampling(temperature=1.0 if do_sample else 0.0)
    for warper in warpers:
        sampling = replace(sampling, **_WARPERS[type(warper)](warper))
    if len(rest) == 1 and _penalises_whole_text(rest[0]):
        return replace(sampling, repetition_penalty=rest[0].penalty)
    return replace(sampling, processors=tuple(rest))


def sampling_of_row(sampling: Sampling, row: int, padding: Tensor) -> Sampling:
    """Shows the processors a row's text as `generate` would: behind its left padding (1, n).

    Several count positions from there (`min_new_tokens`, `forced_eos_token_id`).
    """
    own = LogitsProcessorList(_of_row(processor, row) for processor in sampling.processors)
    return replace(sampling, processors=(_Padded(own, padding),))


class _Padded(LogitsProcessor):
    def __init__(self, processors: LogitsProcessorList, padding: Tensor) -> None:
        self._processors, self._padding = processors, padding

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        place = self._padding.device  # that of the caller's input_ids, which is where `generate` built them for
        ids: Any = torch.cat([self._padding, input_ids.to(place)], 1)
        return self._processors(ids, scores.to(place)).to(scores.device)


def _split(processors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What comes before, and the longest tail of warpers in `_WARPERS`' order, none of them twice."""
    rest = list(processors)
    if rest and type(rest[-1]) is LogitNormalization:
        rest.pop()  # what is drawn does not depend on it
    order, warpers = list(_WARPERS), []
    while rest and _is_plain(rest[-1]) and type(rest[-1]) in order:
        order = order[: order.index(type(rest[-1]))]
        warpers.append(rest.pop())
    return rest, warpers


def _is_plain(warper: Any) -> bool:
    """Removes tokens by probability zero, and may remove all but one."""
    removes = getattr(warper, "filter_value", -torch.inf) == -torch.inf
    return removes and getattr(warper, "min_tokens_to_keep", 1) == 1


def _penalises_whole_text(processor: Any) -> bool:
    """`generate` makes its own ignore the padding, as a tensor; a number is what a user wants ignored."""
    ours = type(processor) is RepetitionPenaltyLogitsProcessor
    return ours and not isinstance(processor.prompt_ignore_length, int)


def _of_row(processor: Any, row: int) -> Any:
    """The processor as it is for one row of the batch it was made for."""
    own = copy.copy(processor)
    if type(own) is RepetitionPenaltyLogitsProcessor and isinstance(own.prompt_ignore_length, Tensor):
        own.prompt_ignore_length = own.prompt_ignore_length[row : row + 1]
    if type(own) is PrefixConstrainedLogitsProcessor:
        allowed = own._prefix_allowed_tokens_fn
        own._prefix_allowed_tokens_fn = lambda _, ids: allowed(row, ids)
    return own
