"""Fuzzy speculative decoding through transformers' own `generate`.

model.generate(**inputs, custom_generate=fsd_generate, draft_model=draft, fsd_profile="profile.json")

"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from fsd_decoding.acceptance.rules import rule_named
from fsd_decoding.batch import Request
from fsd_decoding.config_resolution import configured
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import attach_finished
from fsd_decoding.engine.row import Row
from fsd_decoding.engine.settings import Settings
from fsd_decoding.hf.caller import argument_of_generate, level_of_user
from fsd_decoding.hf.checks import (
    check_clock,
    check_draft,
    check_inputs,
    check_pad,
    check_supported,
    strip_padding,
)
from fsd_decoding.hf.sampling import sampling_for, sampling_of_row
from fsd_decoding.hf.stopping import StopsOfGenerate
from fsd_decoding.profile.drift import watch
from fsd_decoding.profile.following import following
from fsd_decoding.profile.settings import profile_config
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_support import check_tree
from fsd_decoding.trees.shape import Chain, TreeShape

logger = logging.getLogger(__name__)


@dataclass
class FsdGenerateOutput(GenerateDecoderOnlyOutput):
    """`sequences` as returned by `generate`, and statistics of each row."""

    rounds: Tensor | None = None  # (B,)
    drafted: Tensor | None = None  # (B,)
    accepted: Tensor | None = None  # (B,)
    intervals: Tensor | None = None  # (B, 2) fp64: every threshold in [lo, hi) gives the same text


def fsd_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    draft_model: Any = None,
    fsd_profile: Any = None,
    fsd_rule: str | None = None,
    fsd_divergence: str | None = None,
    fsd_threshold: float | None = None,
    fsd_draft_length: int | None = None,
    fsd_tokenizer: Any = None,
    fsd_allow_edited: bool = False,
    fsd_tree: TreeShape | Chain | None = None,
    streamer: Any = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> Tensor | FsdGenerateOutput:
    """Decoding loop for `model.generate(..., custom_generate=fsd_generate, draft_model=...)`.

    The settings that `generate` prepares are respected: lengths, EOS ids, logits processors, stopping criteria,
    sampling, left padding, `num_return_sequences`, `streamer`. Sampled texts depend on `torch.manual_seed`. Criteria
    are called as in `generate`, once per length with all rows (B, n); those of transformers, which judge a row by
    itself, are called with one row. Processors receive one row (1, n) at a time, padded as in `generate`. They are also
    called on drafted tokens that may be rejected, so they must be stateless. Processors other than the usual warpers
    and a single repetition penalty make rows decode one after another. A text also ends when the models' context is
    full.

    `generate` does not pass `tokenizer=` on to a custom callable and therefore rejects `stop_strings=`; use
    `stopping_criteria=[StopStringCriteria(tokenizer, ["…"])]` instead. ZeRO-3 and FSDP are not supported.

    Args:
        draft_model: a loaded causal LM with the target's tokenizer, or another `DraftSource`.
        fsd_profile: path of a profile, or a `ThresholdProfile`; sets rule, divergence, threshold and draft length
            where they are not given, and is checked against both models at every call. Sampling remains that of
            `generate`. Where decoding then differs from what the profile certified, a warning names the difference.
            What is followed is logged once, as a warning, which Python shows on stderr by default.
        fsd_rule, fsd_divergence, fsd_threshold, fsd_draft_length: as in `SpeculativeDecoder`.
        fsd_tokenizer: checked against the profile's tokenizer. Without it the tokenizer is not checked.
        fsd_allow_edited: follow a profile that was changed after its calibration, without a certificate.
        fsd_tree: draft trees of this shape; "chain": chains, whatever the profile drafts.

    Returns:
        (B, prompt + new) token ids, including EOS, padded on the right; with `return_dict_in_generate`, an
        `FsdGenerateOutput`, which adds each row's statistics.

    Raises:
        UsageError: a feature of `generate` that is not supported here, such as beams, scores or a user-supplied cache.
        NumericalError: a model gave NaN or +inf logits.
    """
    streamer = streamer or argument_of_generate("streamer")
    check_draft(draft_model)
    check_supported(model, generation_config, synced_gpus or argument_of_generate("synced_gpus"))
    check_inputs(input_ids, model_kwargs, streamer)
    sampling = sampling_for(logits_processor, bool(generation_config.do_sample))
    given = {"rule": fsd_rule, "divergence": fsd_divergence, "threshold": fsd_threshold,
             "draft_length": fsd_draft_length, "tree": fsd_tree}  # fmt: skip
    decoder = _decoder(given, fsd_profile, model, draft_model, fsd_tokenizer, sampling, fsd_allow_edited)
    prompts = strip_padding(input_ids, model_kwargs.get("attention_mask"))
    requests = decoder.requests(prompts, (stopping_criteria.max_length or 0) - input_ids.shape[1])
    pad = generation_config._pad_token_tensor
    stops = StopsOfGenerate(stopping_criteria, input_ids, 0 if pad is None else int(pad))
    check_clock(stopping_criteria, sampling, len(requests))
    check_pad(pad, stops.may_stop, requests)
    rows = _decoded(decoder, _runs(decoder, requests, sampling, stops, input_ids), streamer)
    sequences = _sequences(input_ids, [stops.text(row.request.index, row.tokens) for row in rows], stops.pad)
    return _output(sequences, rows, stops.joint) if generation_config.return_dict_in_generate else sequences


def _decoder(
    given: Mapping[str, Any], profile: Any, model: Any, draft: Any, tokenizer: Any, sampling: Sampling,
    allow_edited: bool,
) -> SpeculativeDecoder:  # fmt: skip
    """The decoder of what is given, or else of the profile. UsageError: see `profile_config`."""
    keywords: Any = {**given, "sampling": sampling}
    if profile is None:
        return SpeculativeDecoder(model, draft, tokenizer, **keywords)
    followed = profile_config(profile, (model, draft), tokenizer, allow_edited)
    decoder = SpeculativeDecoder(model, draft, tokenizer, coverage=followed.coverage, drift=followed.drift)
    base = followed.coverage.drafts.changed(followed.config, keywords)
    decoder = decoder.reconfigured(configured("fsd_generate", None, keywords, base))
    for message in followed.warnings(decoder.setting):
        warnings.warn(message, stacklevel=level_of_user())
    _say_once(following(followed.profile, decoder))
    return decoder


@cache
def _say_once(line: str) -> None:
    """Says what is followed on stderr, or where the program's logging puts it: `generate` may be called at any rate."""
    logger.warning(line)


def _runs(
    decoder: SpeculativeDecoder, requests: list[Request], sampling: Sampling, stops: StopsOfGenerate, input_ids: Tensor
) -> Iterator[tuple[Settings, list[Request]]]:
    """Yields all rows at once, or one by one if processors need to know the row and its padding."""
    seed = 0 if sampling.greedy else int(torch.randint(2**63 - 1, ()))
    rule = rule_named(decoder.rule)
    settings = Settings(
        rule, decoder.criterion, sampling, frozenset(), seed, stops, *decoder.policies(),
        tree=decoder.tree if rule.drafts else None,
    )  # fmt: skip
    check_tree(settings)
    if not sampling.processors:
        yield settings, requests
        return
    for request in requests:
        padding = input_ids[request.index, : input_ids.shape[1] - len(request.prompt)]
        yield replace(settings, sampling=sampling_of_row(sampling, request.index, padding[None])), [request]


def _decoded(decoder: SpeculativeDecoder, runs: Iterable[tuple[Settings, list[Request]]], streamer: Any) -> list[Row]:
    """Returns the finished rows in order; new tokens go to the streamer round by round."""
    finished: dict[int, Any] = {}
    shown = 0
    for settings, requests in runs:
        with attach_finished(finished, len(requests)):
            for rows in decoder.engine(settings, requests, len(requests)).rounds(requests):
                finished |= {row.request.index: row for row in rows if row.finish_reason is not None}
                if streamer is not None:
                    streamer.put(torch.tensor([rows[0].tokens[shown:]]))
                    shown = len(rows[0].tokens)
        watch(decoder.drift, settings, requests, [finished[r.index] for r in requests], stacklevel=level_of_user() + 1)
    if streamer is not None:
        streamer.end()
    return [finished[i] for i in range(len(finished))]


def _sequences(input_ids: Tensor, texts: list[list[int]], pad: int) -> Tensor:
    """The prompts as given, followed by the new tokens: (B, P + N)."""
    longest = max(map(len, texts))
    new = torch.tensor([text + [pad] * (longest - len(text)) for text in texts])
    return torch.cat([input_ids, new.to(input_ids)], 1)


def _output(sequences: Tensor, rows: list[Row], joint: bool) -> FsdGenerateOutput:
    """The sequences with statistics. `joint`: a row's text may depend on the others', so all must stay the same."""
    own = [(row.lo, row.hi) for row in rows]
    shared = max(lo for lo, _ in own), min(hi for _, hi in own)
    return FsdGenerateOutput(
        sequences=sequences,  # type: ignore[arg-type]  # an integer tensor, whatever it is called
        rounds=torch.tensor([row.rounds for row in rows]),
        drafted=torch.tensor([row.drafted for row in rows]),
        accepted=torch.tensor([row.accepted for row in rows]),
        intervals=torch.tensor([shared] * len(rows) if joint else own, dtype=torch.float64),
    )
