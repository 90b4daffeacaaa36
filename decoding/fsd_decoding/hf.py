"""Fuzzy speculative decoding through transformers' own `generate`.

model.generate(**inputs, custom_generate=fsd_generate, draft_model=draft, fsd_profile="profile.json")
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    StopStringCriteria,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from fsd_common.errors import UsageError
from fsd_decoding.batch import Request, Row
from fsd_decoding.beams.rounds import BeamRow
from fsd_decoding.config import configured
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.engine.result import attach_finished
from fsd_decoding.engine.rounds import EngineSettings
from fsd_decoding.hf_beams import BeamsOfGenerate
from fsd_decoding.models.forward import CACHE_ARGUMENTS
from fsd_decoding.profile.following import following, profile_config, watch
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import Chain, TreeShape

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_LIBRARIES = ("fsd_decoding", "transformers", "torch")


def argument_of_generate(name: str) -> Any:
    """Returns the argument `name` of the `generate` that called `fsd_generate`; None if it was called otherwise."""
    frames = _outwards(inspect.currentframe())
    return next((frame.f_locals.get(name) for frame in frames if frame.f_code is _GENERATE), None)


def level_of_user() -> int:
    """Returns the `stacklevel` with which a warning, in the function that calls this, names the user's line.

    It is counted, because the number of decorators around `generate` depends on the version of transformers.
    """
    packages = (frame.f_globals.get("__name__", "").partition(".")[0] for frame in _outwards(inspect.currentframe()))
    return next((level for level, package in enumerate(packages) if package not in _LIBRARIES), 1)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame, its caller's, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


_MODES = ("greedy_search", "sample", "beam_search", "beam_sample")
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
            f"generate is set to {mode.replace('_', ' ')} (num_beams is {config.num_beams}); fsd_generate supports "
            "greedy search, sampling and beams"
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
        if cache is not None and (getattr(cache, "_is_user_defined", False) or _is_used(cache)):
            raise UsageError(f"{name} is given; fsd_generate creates its own KV caches, leave it out")
    positions, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
    if positions is not None:
        span = torch.arange(positions.shape[-1], device=positions.device)
        expected, visible = (span, True) if mask is None else (mask.long().cumsum(1) - 1, mask.bool())
        if ((positions != expected) & visible).any():
            raise UsageError("position_ids do not count each prompt from 0; leave them out")
    if streamer is not None and len(input_ids) > 1:
        raise UsageError(f"streamer is given with {len(input_ids)} sequences; stream one sequence at a time")


def _is_used(cache: Any) -> bool:
    """Whether a cache of transformers holds anything; of recurrent layers alone it has no length."""
    try:
        return bool(cache.get_seq_length())
    except ValueError:
        return bool(cache.has_previous_state())


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
    penalises = len(rest) == 1 and type(rest[0]) is RepetitionPenaltyLogitsProcessor
    # In that of `generate` the length to ignore is a tensor, for the padding; a number is one that the user set.
    if penalises and not isinstance(rest[0].prompt_ignore_length, int):
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


def _of_row(processor: Any, row: int) -> Any:
    """Returns the processor for one row of the batch that it was made for."""
    own = copy.copy(processor)
    if type(own) is RepetitionPenaltyLogitsProcessor and isinstance(own.prompt_ignore_length, Tensor):
        own.prompt_ignore_length = own.prompt_ignore_length[row : row + 1]
    if type(own) is PrefixConstrainedLogitsProcessor:
        allowed = own._prefix_allowed_tokens_fn
        own._prefix_allowed_tokens_fn = lambda _, ids: allowed(row, ids)
    return own


class StopsOfGenerate:
    """The stopping criteria of `generate` in the form of `engine.Settings.stops`.

    EOS tokens count as a criterion, so that they remain in the row's tokens. Transformers' own criteria judge each row
    by itself. Others may keep a state for every row of the batch, or end all rows at once; they are called as in
    `generate`, by `LockStep`.
    """

    def __init__(self, criteria: StoppingCriteriaList, input_ids: Tensor, pad: int) -> None:
        """Takes `input_ids` (B, P) with padding, since criteria that count positions count the padding too."""
        self._input_ids, self.pad = input_ids, pad
        self._eos = {
            token
            for criterion in criteria
            if isinstance(criterion, EosTokenCriteria)
            for token in criterion.eos_token_id.tolist()
        }
        handled = (EosTokenCriteria, MaxLengthCriteria)  # by `_eos`, and by `Request.max_new_tokens`
        # Without EOS ids, rows of `generate` go on after a stop string until all rows have one.
        by_row = (MaxTimeCriteria, StopStringCriteria) if self._eos else (MaxTimeCriteria,)
        others = [c for c in criteria if not isinstance(c, handled)]
        self._by_row = StoppingCriteriaList(c for c in others if type(c) in by_row)
        together = StoppingCriteriaList(c for c in others if type(c) not in by_row)
        self._lock_step = LockStep(together, input_ids, pad, at_once=not self._eos) if together else None

    @property
    def may_stop(self) -> bool:
        """Whether a text may end before its maximum length, and before others."""
        return bool(self._eos or self._by_row)

    @property
    def joint(self) -> bool:
        """Whether the end of a row may depend on other rows."""
        return self._lock_step is not None and len(self._input_ids) > 1

    def __call__(self, request: Request, tokens: list[int], new: int) -> int | None:
        """Returns the length at which the text ends within its `new` latest tokens; None if it goes on."""
        ends = range(len(tokens) - new + 1, len(tokens) + 1)
        end = next((end for end in ends if self._ends(request.index, tokens[:end])), None)
        if self._lock_step is None:
            return end
        over = end is not None or len(tokens) == request.max_new_tokens
        self._lock_step.add(request.index, tokens[:end], over)
        end = self._lock_step.ends[request.index]
        return None if end is None else max(end, ends[0])  # the engine cannot take back tokens: see `text`

    def text(self, row: int, tokens: list[int]) -> list[int]:
        """Returns a finished row's tokens up to its end, which may lie before the round in which it became known."""
        return tokens if self._lock_step is None else tokens[: self._lock_step.ends[row]]

    def _ends(self, row: int, tokens: list[int]) -> bool:
        if tokens[-1] in self._eos:
            return True
        if not self._by_row:
            return False
        prompt = self._input_ids[row : row + 1]
        ids: Any = torch.cat([prompt, torch.tensor([tokens], dtype=prompt.dtype, device=prompt.device)], 1)
        return bool(self._by_row(ids, None).all())


class LockStep:
    """Criteria that are called once per length with all rows, as in `generate`, once every row is known that far.

    Args:
        criteria: called with (B, n) ids, in which ended rows are padded.
        input_ids: (B, P) the prompts.
        pad: token that pads ended rows.
        at_once: rows that are done go on until all are, as those of `generate` do without EOS ids.
    """

    def __init__(self, criteria: StoppingCriteriaList, input_ids: Tensor, pad: int, at_once: bool) -> None:
        self._criteria, self._ids, self._prompt = criteria, input_ids, input_ids.shape[1]
        self._pad, self._at_once = pad, at_once
        self._tokens: list[list[int]] = [[] for _ in input_ids]
        self._done = [False] * len(input_ids)
        self.ends: list[int | None] = [None] * len(input_ids)
        """Where each row ends, in new tokens; None: not known."""

    def add(self, row: int, tokens: list[int], over: bool) -> None:
        """Takes a row's new tokens so far; `over`: they end there."""
        self._tokens[row] = tokens
        if over and self.ends[row] is None:
            self.ends[row] = len(tokens)
        while (column := self._next()) is not None:
            self._ids = torch.cat([self._ids, torch.tensor(column).to(self._ids)[:, None]], 1)
            ids: Any = self._ids
            self._note(self._criteria(ids, None).tolist())

    def _next(self) -> list[int] | None:
        """The tokens of all rows at the next length; None if not all are known, or no row is left."""
        at = self._length
        over = [end is not None and end <= at for end in self.ends]
        known = all(ended or at < len(tokens) for ended, tokens in zip(over, self._tokens, strict=True))
        if all(over) or not known:
            return None
        return [self._pad if ended else tokens[at] for ended, tokens in zip(over, self._tokens, strict=True)]

    @property
    def _length(self) -> int:
        """Number of new tokens that the criteria have seen."""
        return self._ids.shape[1] - self._prompt

    def _note(self, done: list[bool]) -> None:
        """Ends rows at the current length: those that are done or, `at_once`, all rows once all are."""
        self._done = [before or now for before, now in zip(self._done, done, strict=True)]
        if self._at_once and not all(self._done):
            return
        for row, ended in enumerate(self._done):
            end = self.ends[row]
            if ended and (end is None or end > self._length):
                self.ends[row] = self._length


logger = logging.getLogger(__name__)


@dataclass
class FsdGenerateOutput(GenerateDecoderOnlyOutput):
    """`sequences` as returned by `generate`, and statistics of each row, of beams of each prompt."""

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
    fsd_score: str | None = None,
    fsd_threshold: float | None = None,
    fsd_draft_length: int | None = None,
    fsd_tokenizer: Any = None,
    fsd_allow_edited: bool = False,
    fsd_tree: TreeShape | Chain | None = None,
    fsd_beam_width: int | None = None,
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
    and a single repetition penalty make rows decode one after another. A text also ends when the target's context is
    full.

    `generate` does not pass `tokenizer=` on to a custom callable and therefore rejects `stop_strings=`; use
    `stopping_criteria=[StopStringCriteria(tokenizer, ["…"])]` instead. ZeRO-3 and FSDP are not supported.

    Args:
        draft_model: a loaded causal LM with the target's tokenizer, or another `DraftSource`.
        fsd_profile: path of a profile, or a `ThresholdProfile`; sets rule, score, threshold and draft length
            where they are not given, and is checked against both models at every call. Sampling remains that of
            `generate`. Where decoding then differs from what the profile certified, a warning names the difference.
            What is followed is logged once, as a warning, which Python shows on stderr by default.
        fsd_rule, fsd_score, fsd_threshold, fsd_draft_length: as in `SpeculativeDecoder`.
        fsd_tokenizer: checked against the profile's tokenizer. Without it the tokenizer is not checked.
        fsd_allow_edited: follow a profile that was changed after its calibration, without a certificate.
        fsd_tree: draft trees of this shape; "chain": chains, whatever the profile drafts.
        fsd_beam_width: with `num_beams`, as `width` of `SpeculativeDecoder.generate_beams`, which decodes them: with
            `do_sample` they are drawn without replacement, which is not transformers' own beam sampling, unless the
            profile's are drawn with it. They end with the model's EOS and with stop strings, for which `fsd_tokenizer`
            is needed.

    Returns:
        (B, prompt + new) token ids, including EOS, padded on the right; with `return_dict_in_generate`, an
        `FsdGenerateOutput`, which adds each row's statistics.

    Raises:
        UsageError: a feature of `generate` that is not supported here, such as scores or a user-supplied cache.
        NumericalError: a model gave NaN or +inf logits.
    """
    streamer = streamer or argument_of_generate("streamer")
    check_draft(draft_model)
    check_supported(model, generation_config, synced_gpus or argument_of_generate("synced_gpus"))
    check_inputs(input_ids, model_kwargs, streamer)
    sampling = sampling_for(logits_processor, bool(generation_config.do_sample))
    given = {"rule": fsd_rule, "score": fsd_score, "threshold": fsd_threshold,
             "draft_length": fsd_draft_length, "tree": fsd_tree}  # fmt: skip
    decoder = _decoder(given, fsd_profile, model, draft_model, fsd_tokenizer, sampling, fsd_allow_edited)
    if generation_config.num_beams > 1:
        mask = model_kwargs.get("attention_mask")
        return _beams(decoder, input_ids, mask, stopping_criteria, generation_config, fsd_beam_width)
    if fsd_beam_width is not None:
        raise UsageError("fsd_beam_width is of beams, and num_beams is 1; set num_beams, or leave it out")
    if decoder.coverage is not None:
        decoder.coverage.require_single_texts("generate(num_beams=1)")
    prompts = strip_padding(input_ids, model_kwargs.get("attention_mask"))
    requests = decoder.requests(prompts, (stopping_criteria.max_length or 0) - input_ids.shape[1])
    pad = generation_config._pad_token_tensor
    stops = StopsOfGenerate(stopping_criteria, input_ids, 0 if pad is None else int(pad))
    check_clock(stopping_criteria, sampling, len(requests))
    check_pad(pad, stops.may_stop, requests)
    rows = _decoded(decoder, _runs(decoder, requests, sampling, stops, input_ids), streamer)
    texts = [stops.text(row.request.index, row.tokens) for row in rows]
    longest = max(map(len, texts))
    new = torch.tensor([text + [stops.pad] * (longest - len(text)) for text in texts])
    sequences = torch.cat([input_ids, new.to(input_ids)], 1)  # (B, P + N)
    return _output(sequences, rows, stops.joint) if generation_config.return_dict_in_generate else sequences


def _beams(
    decoder: SpeculativeDecoder, input_ids: Tensor, mask: Tensor | None, criteria: StoppingCriteriaList,
    config: GenerationConfig, width: int | None,
) -> Tensor | FsdGenerateOutput:  # fmt: skip
    """Decodes to beams; returns the best `num_return_sequences` of each prompt. Arguments as in `fsd_generate`."""
    each = slice(None, None, config.num_beams)  # `generate` repeats prompts
    prompts, once = strip_padding(input_ids[each], None if mask is None else mask[each]), input_ids[each]
    asked = BeamsOfGenerate.of(decoder, config, criteria, width)
    if (doubt := asked.doubt) is not None:
        warnings.warn(doubt, stacklevel=level_of_user())
    rows = asked.decode(prompts, (criteria.max_length or 0) - input_ids.shape[1])
    texts = [text for row in rows for text in row.texts()[: config.num_return_sequences]]
    new = [text.tokens if text.eos is None else [*text.tokens, text.eos] for text in texts]
    longest, pad = max(map(len, new)), config._pad_token_tensor
    if pad is None and any(len(tokens) < longest for tokens in new):
        raise UsageError(f"{len(new)} sequences differ in length and there is no pad token; give pad_token_id=")
    padded = torch.tensor([tokens + [0 if pad is None else int(pad)] * (longest - len(tokens)) for tokens in new])
    begun = once.repeat_interleave(len(new) // len(once), 0)
    sequences = torch.cat([begun, padded.to(begun)], 1)  # (B R, P + N)
    return _output(sequences, rows, joint=False) if config.return_dict_in_generate else sequences


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
) -> Iterator[tuple[EngineSettings, list[Request]]]:
    """Yields all rows at once, or one by one if processors need to know the row and its padding."""
    seed = 0 if sampling.greedy else int(torch.randint(2**63 - 1, ()))
    settings = replace(decoder.settings(), eos=frozenset(), seed=seed, stops=stops)
    if not sampling.processors:
        yield settings, requests
        return
    for request in requests:
        padding = input_ids[request.index, : input_ids.shape[1] - len(request.prompt)]
        yield replace(settings, sampling=sampling_of_row(sampling, request.index, padding[None])), [request]


def _decoded(
    decoder: SpeculativeDecoder, runs: Iterable[tuple[EngineSettings, list[Request]]], streamer: Any
) -> list[Row]:
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
        done = [finished[request.index] for request in requests]
        watch(decoder.drift, decoder.setting, requests, done, stacklevel=level_of_user() + 1)
    if streamer is not None:
        streamer.end()
    return [finished[i] for i in range(len(finished))]


def _output(sequences: Tensor, rows: Sequence[Row | BeamRow], joint: bool) -> FsdGenerateOutput:
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
