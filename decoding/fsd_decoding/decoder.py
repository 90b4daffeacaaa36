"""`SpeculativeDecoder`: turns prompts into texts with two models and an acceptance rule."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from fsd_common.argument_checks import check_count, check_flag
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.batch import Request
from fsd_decoding.beams.decode import check_beams, decode_beams
from fsd_decoding.beams.ending import TextEnds
from fsd_decoding.beams.result import BeamResult
from fsd_decoding.beams.rounds import BeamRow, BeamWork
from fsd_decoding.beams.settings import KEYWORDS as SETTINGS_OF_BEAMS
from fsd_decoding.beams.settings import BeamKeywords, BeamSettings
from fsd_decoding.config import CallKeywords, DecodingConfig, DecodingKeywords, configured
from fsd_decoding.decoding_setting import DecodingSetting, check_drafter
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.engine.cache_pool import KVCachePool, Models
from fsd_decoding.engine.engine import Engine
from fsd_decoding.engine.result import Result, attach_finished
from fsd_decoding.engine.rounds import EngineSettings
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.judging.score import Judge, reading_of
from fsd_decoding.loading import (
    as_dtype,
    check_device,
    check_loading,
    check_pair,
    default_device,
    is_source,
    load_model,
    shared_tokenizer,
)
from fsd_decoding.memory import ModelSize, Workload, check_fits
from fsd_decoding.model_options import ModelKwargs
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.models.lean import LeanModel, choose
from fsd_decoding.models.runner import context_length, vocabulary_size
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.profile.drafts import info_of
from fsd_decoding.profile.following import (
    Coverage,
    DraftsByRule,
    Drift,
    config_of,
    following,
    profile_config,
    watch,
)
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.proposal import Criterion
from fsd_decoding.requests import Prompt, for_all_and_each, requests_for
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import probe_triton
from fsd_decoding.text import StopStrings, TextStream
from fsd_decoding.tree_shape import TreeShape

logger = logging.getLogger(__name__)


class SpeculativeDecoder:
    """Decodes in batches with a causal LM and a drafter that share a tokenizer.

    Args:
        target, draft: loaded models; use `from_pretrained` to load them.
        tokenizer: the tokenizer of both models.
        decoding: how tokens are accepted and drawn.
        compile, lean: see `from_pretrained`.
        coverage: what the profile that the decoder follows certified; what differs from it brings a warning.
        drift: detector that warns when acceptance drifts from that of the profile's calibration.
        keywords: fields of `DecodingConfig`, which take precedence over `decoding`.
    """

    def __init__(
        self,
        target: Any,
        draft: Any,
        tokenizer: Any,
        decoding: DecodingConfig | None = None,
        *,
        compile: Compile = False,
        lean: bool = True,
        coverage: Coverage | None = None,
        drift: Drift | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> None:
        config = configured("SpeculativeDecoder", decoding, keywords)
        check_flag("lean", lean)
        self._pool, self.lean = KVCachePool(compile), lean
        self._sizes: dict[tuple[Any, torch.dtype], ModelSize] = {}
        check_pair(target, draft)
        self.target, self.tokenizer = target, tokenizer
        self.draft: Any = draft.load(target) if isinstance(draft, Eagle) else draft
        self.coverage, self.drift = coverage, drift
        self._followed: ThresholdProfile | None = None
        self._announced = False
        self._configure(config)

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        draft: Any,
        profile: Any = None,
        *,
        decoding: DecodingConfig | None = None,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        model_kwargs: ModelKwargs | None = None,
        draft_model_kwargs: ModelKwargs | None = None,
        tokenizer: Any = None,
        compile: Compile = False,
        lean: bool = True,
        allow_edited: bool = False,
        progress: Progress | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> SpeculativeDecoder:
        """Loads a target and a draft model.

        Args:
            target: hub id, path, or loaded model (then `tokenizer` is needed), on any device or devices.
            draft: the same, `NGram()`, which drafts from the text itself, or `Eagle(…)`, a head of the target.
            profile: path of a profile, or a `ThresholdProfile`; sets what no keyword gives. Where decoding then
                differs from what the profile certified, a warning names the difference. What is followed is logged
                once, as a warning, which Python shows on stderr by default; see `announcement`.
            decoding: how tokens are accepted and drawn; not beside a profile, which sets all of it.
            device: by default "cuda" if available, else "cpu". Loaded models are not moved.
            dtype: by default the checkpoint's own. Loaded models are not converted.
            model_kwargs: further keywords of transformers' `from_pretrained` for both models, or a `ModelOptions`. Its
                fields may be among them: `revision` (of the target alone), `device_map` (instead of `device`),
                `quantization` ("bnb-8bit", …) and `attn`. Beside a profile the quantisation, kind of attention and
                commit that it records are taken where they are not given.
            draft_model_kwargs: those of the draft, where it differs; its `revision` too.
            tokenizer: the tokenizer of loaded models.
            compile: run rounds as graphs, which are rebuilt for every batch size, draft length, rule, sampling and
                doubling of the longest text. "capture" removes Python from a round, after a few seconds of capture;
                True also compiles kernels, which takes half a minute or more. Either pays off over thousands of
                rounds. On CUDA these are CUDA graphs, captured at the second use, and memory stays allocated between
                calls; see docs/decoding.md.
            lean: run models of the Llama, Mistral, Qwen2 and Qwen3 families by a forward pass of our own, where its
                logits equal transformers' to rounding; False: by transformers' modules always. See `run_by`.
            allow_edited: follow a profile that was changed after its calibration, without a certificate.
            progress: receives the megabytes of weights that are read.
            keywords: fields of `DecodingConfig` and of its sampling (`rule`, `score`, `threshold`,
                `draft_length`, `temperature`, …), which take precedence over `decoding` and the profile; None keeps
                what those say.

        Raises:
            UsageError: a model cannot be loaded, the tokenizers differ, the profile is for other models or edited, or
                settings contradict each other or the profile, which is found before any weights are loaded.
        """
        followed = _as_profile(profile, decoding, allow_edited)
        base = None if followed is None else DraftsByRule.of(followed).changed(config_of(followed), keywords)
        config = configured("from_pretrained", decoding, keywords, base)
        DecodingSetting.of(config)
        place = device or default_device()
        check_device(place)
        as_dtype(dtype)
        loading = check_loading(target, [draft], device, model_kwargs, draft_model_kwargs, followed)
        shared = shared_tokenizer(target, draft, tokenizer, loading)  # before the weights: it may refuse the pair
        models = [
            load_model(model, place, dtype, options, progress) if is_source(model) else model
            for model, options in ((target, loading.target), (draft, loading.draft))
        ]
        if isinstance(draft, Eagle):
            models[1] = draft.load(models[0])
        if followed is None:
            return cls(models[0], models[1], shared, config, compile=compile, lean=lean)
        own = profile_config(followed, models, shared, allow_edited)
        if config.stop_policy is None:
            config = replace(config, stop_policy=own.config.stop_policy)
        decoder = cls(
            models[0], models[1], shared, config, compile=compile, lean=lean, coverage=own.coverage, drift=own.drift
        )
        decoder._followed = followed
        _warn(own.warnings(decoder.setting), stacklevel=3)
        return decoder

    def with_config(self, **keywords: Unpack[DecodingKeywords]) -> SpeculativeDecoder:
        """Returns a decoder with another configuration that shares models, caches and compiled graphs.

        A threshold policy of this decoder does not apply to a rule without a threshold on a score. Where the
        decoder follows a profile and decoding then differs from what that certified, a warning names the difference.

        Args:
            keywords: fields of `DecodingConfig` and of its sampling, in place of this decoder's; None keeps those.
        """
        other = self._changed("with_config", keywords)
        _warn([self._departure([other.setting])], stacklevel=3)
        return other

    def _changed(self, function: str, keywords: Any) -> SpeculativeDecoder:
        """A decoder with `keywords` in place of its configuration; `function` is named in errors."""
        base = self.decoding if self.coverage is None else self.coverage.drafts.changed(self.decoding, keywords)
        return self.reconfigured(configured(function, None, keywords, base))

    def reconfigured(self, config: DecodingConfig) -> SpeculativeDecoder:
        """Returns a decoder with this configuration as a whole, as `with_config` does, without a warning.

        What is None in it is not kept but has the meaning that `DecodingConfig` says; so a stop policy can be removed.
        """
        other = copy.copy(self)
        other._configure(config)
        return other

    def announcement(self) -> str | None:
        """Returns in one line what is followed, LOSSY or lossless, which the first text logs otherwise; None: nothing
        is, or it was said."""
        if self._followed is None or self._announced:
            return None
        self._announced = True
        return following(self._followed, self)

    def _configure(self, config: DecodingConfig) -> None:
        self.decoding, self.setting = config, DecodingSetting.of(config)
        self._announced = False
        if isinstance(scorer := self.criterion.scorer, Judge):
            target, draft = (info_of(model, self.target).fingerprint for model in (self.target, self.draft))
            scorer.check(target, draft, tokenizer_fingerprint(self.tokenizer), self.sampling)

    @property
    def rule(self) -> str:
        return self.setting.rule.name

    @property
    def criterion(self) -> Criterion:
        return self.setting.criterion

    @property
    def score(self) -> str:
        return self.criterion.score

    @property
    def threshold(self) -> float:
        return self.setting.threshold

    @property
    def draft_length(self) -> int:
        return self.setting.draft_length

    @property
    def sampling(self) -> Sampling:
        return self.setting.sampling

    @property
    def seed(self) -> int:
        return self.decoding.seed

    @property
    def stop_policy(self) -> StopPolicy | None:
        return self.setting.stop_policy

    @property
    def threshold_policy(self) -> ThresholdPolicy | None:
        return self.setting.threshold_policy

    @property
    def tree(self) -> TreeShape | None:
        return self.setting.tree

    @property
    def compile(self) -> Compile:
        """How rounds are called, see `from_pretrained`. It may be assigned, for all decoders that share its caches."""
        return self._pool.compile

    @compile.setter
    def compile(self, compile: Compile) -> None:
        self._pool.compile = compile

    @property
    def device(self) -> torch.device:
        return torch.device(self.target.device)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.target.dtype
        return found

    @property
    def run_by(self) -> dict[str, str]:
        """What runs target and draft: "lean", or "transformers", with the reason."""
        found = {}
        for role, model in zip(("target", "draft"), self._models(), strict=False):
            choice = choose(model) if self.lean else "lean is False"
            found[role] = "lean" if isinstance(choice, LeanModel) else f"transformers: {choice}"
        return found

    @property
    def eos(self) -> frozenset[int]:
        """The tokens that end a text: those that end it in transformers, of the generation configuration alone."""
        configured = self.target.generation_config.eos_token_id
        return frozenset() if configured is None else frozenset(torch.as_tensor(configured).flatten().tolist())

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        batch_size: int = 32,
        ids: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        on_finish: Callable[[int, Result], None] | None = None,
        begin: Callable[[int], bool] | None = None,
        observer: Observer | None = None,
        **keywords: Unpack[CallKeywords],
    ) -> list[Result]:
        """Decodes prompts and returns the results in the same order.

        Args:
            prompts: texts, or lists of token ids, which are used as given.
            max_new_tokens: maximum length of a text, including EOS; a text also ends when the target's context is full.
            temperature, top_k, top_p: see `Sampling`. Temperature 0 is greedy, and turns off the decoder's top_k, top_p
                and min_p; to turn them off at another temperature, give 1.0 as top_p.
            batch_size: prompts decoded at once.
            ids: one stable integer per prompt, the key of its noise; default: its index.
            stop: strings that end a text; the text is cut before them.
            on_finish: called with a prompt's index and result as soon as it is done.
            begin: called with a prompt's index when a row is free for it; where it returns False the prompt is left
                out, and the results are those of the others.
            observer: called once per round, see `observers.round_record.Observer`.
            keywords: fields of `DecodingConfig` and of its sampling (`rule`, `threshold`, `min_p`, …) for this call, as
                in `with_config`. `threshold` and `draft_length` may be lists, of one for each prompt.

        Raises:
            UsageError: an empty prompt or batch, a prompt longer than the context, or a bad setting.
            NumericalError: a model gave NaN or +inf logits.
            OutOfMemoryError: the batch is too large. For both errors, `error.finished` holds the results so far.
        """
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, **keywords}
        call, requests = self._asked("generate", given, prompts, max_new_tokens, ids)
        check_count("batch_size", batch_size)
        settings = call.settings(stop, observer)
        self._say(call, requests, prompts, max_new_tokens, stop)
        finished: dict[int, Result] = {}
        with attach_finished(finished, min(batch_size, len(requests))):
            begun = requests if begin is None else (request for request in requests if begin(request.index))
            for row in self.engine(settings, requests, batch_size).run(begun):
                index = row.request.index
                finished[index] = Result.of(row, self.tokenizer, stop)
                if on_finish is not None:
                    on_finish(index, finished[index])
        results = [finished[i] for i in sorted(finished)]
        _warn(() if settings.threshold_policy is None else settings.threshold_policy.doubts(), stacklevel=3)
        watch(self.drift, call.setting, [requests[i] for i in sorted(finished)], results, stacklevel=3)
        return results

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        id: int = 0,
        stop: Sequence[str] = (),
        **keywords: Unpack[CallKeywords],
    ) -> Iterator[str]:
        """Decodes one prompt and yields its text round by round; the joined pieces equal the text of `generate`.

        Arguments and errors are as for `generate`.
        """
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, **keywords}
        call, requests = self._asked("stream", given, [prompt], max_new_tokens, [id])
        settings = call.settings(stop)
        self._say(call, requests, [prompt], max_new_tokens, stop)
        with attach_finished({}, 1):
            return call._pieces(self.engine(settings, requests, 1), requests, stop)

    def _pieces(self, engine: Engine, asked: list[Request], stop: Sequence[str]) -> Iterator[str]:
        text = TextStream(self.tokenizer, stop)
        with attach_finished({}, 1):
            for (row,) in engine.rounds(asked):
                done = row.finish_reason is not None
                piece = text.rest(Result.of(row, self.tokenizer, stop).text) if done else text.push(row.tokens)
                if piece:
                    yield piece
        _warn(() if self.threshold_policy is None else self.threshold_policy.doubts(), stacklevel=3)
        watch(self.drift, self.setting, asked, [row], stacklevel=3)

    def generate_beams(
        self,
        prompts: Sequence[Prompt],
        beams: int | None = None,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        width: int | None = None,
        depth: int | None = None,
        batch_size: int = 1,
        ids: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        on_finish: Callable[[int, BeamResult], None] | None = None,
        begin: Callable[[int], bool] | None = None,
        **keywords: Unpack[BeamKeywords],
    ) -> list[BeamResult]:
        """Decodes each prompt to several texts by beams: beam search at temperature 0, else stochastic beam search.

        Args:
            prompts, max_new_tokens, temperature, top_k, top_p, ids, stop, on_finish, begin: as for `generate`.
            beams: W, how many texts; default: as the profile says that is followed.
            width: pairs of a beam and a token that the draft proposes for a layer; default: the profile's, else 2 W.
            depth: layers that are drafted in a round; default: the decoder's draft length.
            batch_size: prompts decoded at once.
            keywords: as for `generate` (`rule`, `threshold`, …), and fields of `BeamSettings` (`replacement`, …).

        Raises:
            UsageError, NumericalError, OutOfMemoryError: as `generate`.
        """
        given: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, **keywords}
        if depth is not None and given.setdefault("draft_length", depth) is not depth:
            raise UsageError("depth and draft_length mean the same; give one of them")
        own = {name: given.pop(name) for name in SETTINGS_OF_BEAMS if name in given}
        settings = BeamSettings.over(self.own_beams, beams, width, **own)
        call, requests = self._asked("generate_beams", given, prompts, max_new_tokens, ids)
        check_count("batch_size", batch_size)
        begun = requests if begin is None else (request for request in requests if begin(request.index))
        rows = call.beam_rows(settings, requests, batch_size, stop, iter(begun))
        self._say(call, requests, prompts, max_new_tokens, stop, settings)
        finished: dict[int, BeamResult] = {}
        with attach_finished(finished, min(batch_size, len(requests))):
            for row in rows:
                index = row.request.index
                finished[index] = BeamResult.of(row, self.tokenizer, tuple(stop))
                if on_finish is not None:
                    on_finish(index, finished[index])
        results = [finished[index] for index in sorted(finished)]
        if self.own_beams == settings:
            watch(self.drift, call.setting, [requests[i] for i in sorted(finished)], results, stacklevel=3)
        return results

    @property
    def own_beams(self) -> BeamSettings | None:
        """The beams of the profile that is followed; None: there is none, or it is of single texts."""
        return None if self.coverage is None else self.coverage.own_beams

    def beam_rows(
        self, settings: BeamSettings, requests: Sequence[Request], batch_size: int, stop: Sequence[str],
        begun: Iterator[Request],
    ) -> Iterator[BeamRow]:  # fmt: skip
        """Returns the rows of requests that are decoded to beams, each as it is done; see `generate_beams`.

        Args:
            begun: those of the requests that are decoded, each taken when a row is free for it.
        """
        check_beams(self.setting, settings, self.target, self.draft)
        self.settings(stop)  # raises UsageError
        ends = TextEnds(self.eos, StopStrings(self.tokenizer, stop) if stop else None)
        own, fuzzy = self.setting, self.setting.rule.fuzzy
        decoding = BeamWork(settings, fuzzy, own.criterion, own.sampling, ends, len(self.eos), self.seed)
        models = [self.target, self.draft] if own.rule.drafts else [self.target]
        longest = (max(len(r.prompt) for r in requests), max(r.max_new_tokens for r in requests))
        work = Workload.of_beams(settings, *longest, max(r.draft_length for r in requests), own.sampling.greedy)
        check_fits(models, self._sizes, work, min(batch_size, len(requests)), str(self.device))
        return decode_beams(models, self.lean, self._vocabulary, requests, decoding, batch_size, begun)

    def _asked(
        self, function: str, given: dict[str, Any], prompts: Sequence[Prompt], most: int, ids: Sequence[int] | None
    ) -> tuple[SpeculativeDecoder, list[Request]]:
        """This decoder as a call changes it, where the first of several T or L stands for all; and what it decodes."""
        if self.coverage is not None and function != "generate_beams":
            self.coverage.require_single_texts(function)
        given["threshold"], thresholds = for_all_and_each(given.get("threshold"))
        given["draft_length"], lengths = for_all_and_each(given.get("draft_length"))
        call = self._changed(function, given)
        return call, call.requests(prompts, most, ids, thresholds, lengths)

    def requests(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        ids: Sequence[int] | None = None,
        threshold: Sequence[float] | None = None,
        draft_length: Sequence[int] | None = None,
    ) -> list[Request]:
        """Returns the requests that `generate` makes from its prompts; None: T or L is the decoder's."""
        reach = None if isinstance(self.draft, DraftSource) else context_length(self.draft.config)
        return requests_for(
            self.tokenizer, context_length(self.target.config), self._vocabulary, prompts, ids,
            self.threshold if threshold is None else threshold,
            self.draft_length if draft_length is None else draft_length, max_new_tokens, reach,
        )  # fmt: skip

    def settings(self, stop: Sequence[str] = (), observer: Observer | None = None) -> EngineSettings:
        """Returns the settings of an engine for one call.

        Raises:
            UsageError: a stop string is empty, or the threshold policy is for other models, another rule or another
                score.
        """
        if isinstance(stop, str) or not isinstance(stop, Sequence) or not all(s and isinstance(s, str) for s in stop):
            raise UsageError(f"stop is {stop!r}; it must be a list of strings, none of them empty")
        strings = StopStrings(self.tokenizer, stop) if stop else None
        stops = (lambda request, tokens, new: strings.completed_at(tokens, new)) if strings else None
        own = self.setting
        if own.threshold_policy is not None:
            own.threshold_policy.check((self.target, self.draft), self.tokenizer, self.rule, self.score)
        tree = own.tree if own.rule.drafts else None
        return EngineSettings(
            own.rule, own.criterion, own.sampling, self.eos, self.seed, stops, own.stop_policy, own.threshold_policy,
            observer, tree, reading_of(own.criterion.scorer, self.tokenizer),
        )  # fmt: skip

    def _say(
        self, call: SpeculativeDecoder, requests: Sequence[Request], prompts: Sequence[Prompt], most: int,
        stop: Sequence[str], beams: BeamSettings | None = None,
    ) -> None:  # fmt: skip
        """Says what is followed, and warns where a call differs from what profiles certified.

        Args:
            call: this decoder as the call changes it.
            beams: what prompts are decoded to; None: single texts.
        """
        self._announce()
        asked, coverage = _settings_of(call, requests), self.coverage
        lossless = all(setting.lossless for setting in asked) and not (beams is not None and beams.narrows)
        if beams is not None and coverage is not None and coverage.beams is None:
            _warn([None if lossless else coverage.other_beams(beams)], stacklevel=4)
            return
        departures = [self._departure(asked)]
        if call.threshold_policy is not None:
            departures += call.threshold_policy.departures(asked)
        if coverage is not None and not lossless:
            departures.append(coverage.asked_otherwise(self.tokenizer, prompts, most, stop))
            departures.append(None if beams is None else coverage.other_beams(beams))
        _warn(departures, stacklevel=4)

    def _announce(self) -> None:
        if (line := self.announcement()) is not None:
            logger.warning(line)

    def _departure(self, settings: Sequence[DecodingSetting]) -> str | None:
        """A warning where settings differ from what the profile certified; None for this decoder's own."""
        if self.coverage is None:
            return None
        own = self.setting.values()
        return self.coverage.departure(setting for setting in settings if setting.values() != own)

    def engine(self, settings: EngineSettings, requests: list[Request], batch_size: int) -> Engine:
        """Returns an engine for these requests, with caches for `batch_size` at a time. It can run only once."""
        probe_triton(self.device)
        draft_length = max(r.draft_length for r in requests)  # every row may draft as many
        longest = max(len(r.prompt) + r.max_new_tokens for r in requests) + 1 + settings.scratch(draft_length)
        models = Models(self.target, self.draft, self._vocabulary, self.lean, draft_length)
        graphs = not settings.sampling.processors  # custom processors cannot run in graphs
        caches = self._pool.acquire(models, len(requests), batch_size, longest, settings.rule.drafts, graphs)
        if settings.tree is not None:
            check_drafter(settings.tree, self.target, self.draft, caches.drafter, self._vocabulary)
        return Engine(caches, settings)

    @property
    def _vocabulary(self) -> int:
        """Size of the shared vocabulary: the tail of the larger one is padding."""
        return min(vocabulary_size(m) for m in self._models())

    def _models(self) -> list[Any]:
        return [self.target] if isinstance(self.draft, DraftSource) else [self.target, self.draft]


def _as_profile(source: Any, decoding: DecodingConfig | None, allow_edited: bool) -> ThresholdProfile | None:
    """The profile to follow, if any. UsageError: a configuration is given too; see also `ThresholdProfile.load`."""
    if source is not None and decoding is not None:
        raise UsageError(
            "decoding= is given beside a profile, which sets all fields of the configuration; give the fields to "
            "change as keywords, such as draft_length=4"
        )
    if source is None or isinstance(source, ThresholdProfile):
        return source
    return ThresholdProfile.load(source, allow_edited=allow_edited)


def _settings_of(call: SpeculativeDecoder, requests: Sequence[Request]) -> list[DecodingSetting]:
    """The settings of a decoder's requests, each once."""
    pairs = dict.fromkeys((request.threshold, request.draft_length) for request in requests)
    return [replace(call.setting, threshold=threshold, draft_length=length) for threshold, length in pairs]


def _warn(messages: Sequence[str | None], stacklevel: int) -> None:
    for message in messages:
        if message is not None:
            warnings.warn(message, stacklevel=stacklevel)
