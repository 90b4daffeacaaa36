"""What transformers' `generate` offers and fuzzy decoding does not: each refused by name, nothing ignored.

Knows what reaches a callable and what is wrong with it. Knows nothing of decoding.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, MaxTimeCriteria, StoppingCriteriaList

from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.errors import UsageError
from fsd_decoding.sampling import Sampling

# MERGED: """What transformers' `generate` was given but does not hand on to a callable it runs.
#
# Knows where `generate` keeps its arguments. Up to 5.23 `_extract_generation_mode_kwargs` throws away, without a
# word, `streamer`, `assistant_model`, `synced_gpus` and `tokenizer` when `custom_generate` is a callable. The
# first three are still in the frame of `generate`, and there is no other way to them; `tokenizer` is lost.
# """


_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def argument_of_generate(name: str) -> Any:
    """What the `generate` that called us was given as `name`; None where we were called otherwise."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get(name)


_MODES = ("greedy_search", "sample")
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_HANDLED = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")


def check_draft(draft: Any) -> None:
    if draft is None and argument_of_generate("assistant_model") is not None:
        raise UsageError("assistant_model never reaches fsd_generate; give the model as draft_model=")
    if draft is None:
        raise UsageError("draft_model is missing; give fsd_generate a loaded causal LM as draft_model=")
    if isinstance(draft, type) or not isinstance(draft, (torch.nn.Module, DraftSource)):
        raise UsageError(f"draft_model is {draft!r:.80}; it must be a loaded causal LM, or a DraftSource")


def check_asked(model: Any, config: GenerationConfig, synced_gpus: bool) -> None:
    """UsageError: another search, another architecture, or outputs that no round keeps."""
    if model.config.is_encoder_decoder:
        raise UsageError(f"{type(model).__name__} is an encoder-decoder; fsd_generate decodes with causal LMs")
    if (mode := config.get_generation_mode().value) not in _MODES:
        raise UsageError(
            f"generate is set to {mode.replace('_', ' ')} (num_beams is {config.num_beams}); "
            "fsd_generate does greedy search and sampling, num_beams=1"
        )
    asked = [name for name in _OUTPUTS if getattr(config, name)]
    if config.return_dict_in_generate and asked:
        raise UsageError(f"{asked[0]} is set; fsd_generate keeps none of these, only sequences and statistics")
    if synced_gpus:
        raise UsageError("synced_gpus is set; fsd_generate cannot run under ZeRO-3 or FSDP, load the whole model")


def check_inputs(input_ids: Tensor, model_kwargs: dict[str, Any], streamer: Any) -> None:
    """UsageError: an input that only the model's forward would know what to do with."""
    for name, value in model_kwargs.items():
        if name not in _HANDLED and value is not None:
            raise UsageError(f"{name} is given; fsd_generate decodes from input_ids and attention_mask alone")
    cache = model_kwargs.get("past_key_values")
    if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
        raise UsageError("past_key_values is given; fsd_generate keeps caches of its own, leave it out")
    _check_positions(model_kwargs.get("position_ids"), model_kwargs.get("attention_mask"))
    if streamer is not None and len(input_ids) > 1:
        raise UsageError(f"streamer is given with {len(input_ids)} sequences; it takes one at a time")


def check_clock(criteria: StoppingCriteriaList, sampling: Sampling, rows: int) -> None:
    """UsageError: rows that decode one after another would share one clock."""
    if rows > 1 and sampling.processors and any(isinstance(one, MaxTimeCriteria) for one in criteria):
        raise UsageError(
            f"max_time is given with {rows} sequences and {type(sampling.processors[0]).__name__}, which makes them "
            "decode one after another; give one sequence at a time"
        )


def unpadded(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The prompts without their left padding. UsageError: the mask hides something else."""
    if mask is None:
        return [list(row) for row in input_ids.tolist()]
    seen = mask.bool()
    if seen.shape != input_ids.shape or bool((seen[:, :-1] & ~seen[:, 1:]).any()):
        raise UsageError(
            "attention_mask hides tokens behind the first it shows; pad on the left (padding_side='left'), "
            "or give the mask if the pad token stands in a prompt"
        )
    return [row[shown].tolist() for row, shown in zip(input_ids, seen, strict=True)]


def _check_positions(positions: Tensor | None, mask: Tensor | None) -> None:
    if positions is None:
        return
    expected = torch.arange(positions.shape[-1], device=positions.device) if mask is None else mask.long().cumsum(1) - 1
    if ((positions != expected) & (True if mask is None else mask.bool())).any():
        raise UsageError("position_ids do not count the prompt from 0; leave them out")
