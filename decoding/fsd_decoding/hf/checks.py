"""Checks of a call of transformers' `generate`: what fuzzy decoding lacks is refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, MaxTimeCriteria, StoppingCriteriaList

from fsd_common.errors import UsageError
from fsd_decoding.batch import Request
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.eagle.loading import Eagle
from fsd_decoding.hf.caller import argument_of_generate
from fsd_decoding.models.compatibility import CACHE_ARGUMENTS
from fsd_decoding.sampling import Sampling

_MODES = ("greedy_search", "sample")
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_HANDLED = ("attention_mask", "position_ids", "use_cache", "logits_to_keep", *CACHE_ARGUMENTS)


def check_draft(draft: Any) -> None:
    """Raises UsageError if the draft is not a loaded causal LM or another `DraftSource`."""
    if draft is None and argument_of_generate("assistant_model") is not None:
        raise UsageError("assistant_model does not reach fsd_generate; pass the model as draft_model=")
    if draft is None:
        raise UsageError("draft_model is missing; pass a loaded causal LM as draft_model=")
    if isinstance(draft, Eagle):
        raise UsageError(f"draft_model is {draft!r:.80}, which is not loaded; pass {draft!r:.80}.load(model)")
    if isinstance(draft, type) or not isinstance(draft, (torch.nn.Module, DraftSource)):
        raise UsageError(f"draft_model is {draft!r:.80}; it must be a loaded causal LM, or a DraftSource")


def check_supported(model: Any, config: GenerationConfig, synced_gpus: bool) -> None:
    """Raises UsageError for generation modes, architectures and outputs that are not supported."""
    if model.config.is_encoder_decoder:
        raise UsageError(f"{type(model).__name__} is an encoder-decoder; fsd_generate supports causal LMs only")
    if (mode := config.get_generation_mode().value) not in _MODES:
        raise UsageError(
            f"generate is set to {mode.replace('_', ' ')} (num_beams is {config.num_beams}); "
            "fsd_generate supports greedy search and sampling, num_beams=1"
        )
    outputs = [name for name in _OUTPUTS if getattr(config, name)]
    if config.return_dict_in_generate and outputs:
        raise UsageError(f"{outputs[0]} is set; fsd_generate returns only sequences and statistics, leave it out")
    if synced_gpus:
        raise UsageError("synced_gpus is set; fsd_generate cannot run under ZeRO-3 or FSDP, load the whole model")


def check_inputs(input_ids: Tensor, model_kwargs: dict[str, Any], streamer: Any) -> None:
    """Raises UsageError for inputs other than token ids and an attention mask."""
    for name, value in model_kwargs.items():
        if name not in _HANDLED and value is not None:
            raise UsageError(f"{name} is given; fsd_generate takes only input_ids and attention_mask, leave it out")
    for name in CACHE_ARGUMENTS:
        cache = model_kwargs.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
            raise UsageError(f"{name} is given; fsd_generate creates its own KV caches, leave it out")
    _check_positions(model_kwargs.get("position_ids"), model_kwargs.get("attention_mask"))
    if streamer is not None and len(input_ids) > 1:
        raise UsageError(f"streamer is given with {len(input_ids)} sequences; stream one sequence at a time")


def check_clock(criteria: StoppingCriteriaList, sampling: Sampling, rows: int) -> None:
    """Raises UsageError if rows that decode one after another would share the time limit."""
    if rows > 1 and sampling.processors and any(isinstance(c, MaxTimeCriteria) for c in criteria):
        raise UsageError(
            f"max_time is given with {rows} sequences and {type(sampling.processors[0]).__name__}, with which they are "
            "decoded one after another; pass one sequence at a time"
        )


def check_pad(token: Tensor | None, may_stop: bool, requests: Sequence[Request]) -> None:
    """Raises UsageError if rows may differ in length and there is no token to pad them with."""
    ragged = may_stop or len({request.max_new_tokens for request in requests}) > 1
    if token is None and ragged and len(requests) > 1:
        raise UsageError(
            f"{len(requests)} sequences may differ in length and there is no pad token; give pad_token_id="
        )


def strip_padding(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Returns the prompts without their left padding. Raises UsageError if the mask hides other tokens."""
    if mask is None:
        return [list(row) for row in input_ids.tolist()]
    visible = mask.bool()
    if visible.shape != input_ids.shape or bool((visible[:, :-1] & ~visible[:, 1:]).any()):
        raise UsageError(
            "attention_mask hides tokens after the first visible one; pad on the left (padding_side='left'), or pass "
            "the tokenizer's mask if the pad token occurs in a prompt"
        )
    return [row[shown].tolist() for row, shown in zip(input_ids, visible, strict=True)]


def _check_positions(positions: Tensor | None, mask: Tensor | None) -> None:
    if positions is None:
        return
    expected = torch.arange(positions.shape[-1], device=positions.device) if mask is None else mask.long().cumsum(1) - 1
    if ((positions != expected) & (True if mask is None else mask.bool())).any():
        raise UsageError("position_ids do not count each prompt from 0; leave them out")
