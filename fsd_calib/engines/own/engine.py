"""Our own engine, `SpeculativeDecoder`, as an engine of calibrations."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from fsd_calib.engines.base import Begin, DecodingRequest, Engine, KeyedPrompt, OnFinish, Pair, WantedTraces, short_name
from fsd_calib.engines.cache_key import CacheKey, GenerationLimits, key_of
from fsd_calib.engines.configuration import DRAFT_ALONE, Configuration
from fsd_calib.engines.own.round_costs import measure_costs
from fsd_collectors.collection.measures import HiddenStates
from fsd_collectors.collection.run import collect_traces, manifest_of
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.walks import JudgedNodes, Walked
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.acceptance import rule_named
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.engine.engine import ENGINE_VERSION
from fsd_decoding.engine.result import Result
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.models.fingerprint import family_id, model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.forward import attention_kind
from fsd_decoding.models.runner import context_length, vocabulary_size
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.drafts import info_of
from fsd_decoding.profile.parts import OWN_ENGINE, ModelInfo
from fsd_decoding.tree_shape import TreeShape
from fsd_decoding.workers.model_workers import ModelWorkers


class OwnEngine(Engine):
    """Decodes with a `SpeculativeDecoder`, whose intervals of T hold for every text.

    Args:
        decoder: Supplies the models, and all settings but those of configurations.
        limits: Where texts end.
        policies: By divergence, the policy that stops the drafts of fuzzy rules early.

    Raises:
        UsageError: The decoder's sampling has logits processors, which no key can identify.
    """

    name = OWN_ENGINE

    def __init__(
        self, decoder: SpeculativeDecoder, limits: GenerationLimits, policies: Mapping[str, StopPolicy] | None = None
    ) -> None:
        if decoder.sampling.processors:
            raise UsageError(
                f"sampling has {len(decoder.sampling.processors)} custom logits processors, which the result cache "
                "cannot identify; calibrate without them"
            )
        self.decoder, self.limits, self._policies = decoder, limits, policies or {}
        self.decoding, self.tokenizer = decoder.decoding, decoder.tokenizer

    def decode(
        self, request: DecodingRequest, on_finish: OnFinish | None = None, begin: Begin | None = None,
        observer: Observer | None = None,
    ) -> list[Result]:  # fmt: skip
        """See `Engine.decode`, and `SpeculativeDecoder.generate` for the errors.

        Args:
            observer: Receives every round.
        """
        configuration, prompts = request.configuration, request.prompts
        if configuration.rule == DRAFT_ALONE:
            alone = request._replace(configuration=configuration.under("target"))
            return self._draft_alone.decode(alone, on_finish, begin, observer)
        return self._decoder_for(configuration, request.seed).generate(
            [prompt.prompt for prompt in prompts], self.limits.max_new_tokens, rule=configuration.rule,
            threshold=configuration.moved, draft_length=configuration.draft_length, batch_size=request.batch_size,
            ids=[prompt.id for prompt in prompts], stop=self.limits.stop, on_finish=on_finish, begin=begin,
            observer=observer,
        )  # fmt: skip

    def key(self, configuration: Configuration, seed: int) -> CacheKey:
        if configuration.rule == DRAFT_ALONE:
            return self._draft_alone.key(configuration.under("target"), seed)
        rule = rule_named(configuration.rule)
        run_by = self._run_by if rule.drafts else self._run_by | {"draft": None}
        return key_of(
            configuration, seed, self.decoding, self.limits, models=self._models,
            engine=self._versions | {"run_by": run_by}, policy=self._policies.get(configuration.divergence),
        )  # fmt: skip

    def walked(self, request: DecodingRequest, divergences: Sequence[str]) -> Walked:
        """Decodes losslessly, and returns what was drafted; see `Walked`.

        Args:
            request: of a lossless configuration.
            divergences: to compute at every node.
        """
        nodes = JudgedNodes(divergences)
        results = self.decode(request, observer=nodes)
        return Walked(nodes.walks(), sum(each.emitted for each in results), sum(each.rounds for each in results))

    def costs(
        self, prompts: Sequence[KeyedPrompt], batch_size: int, progress: Progress, tree: TreeShape | None = None
    ) -> CostModel:
        drafting = self.decoder.reconfigured(replace(self.decoding, tree=tree))
        return measure_costs(
            drafting, [prompt.prompt for prompt in prompts], [prompt.id for prompt in prompts],
            self.limits.max_new_tokens, self.limits.stop, batch_size=batch_size, progress=progress,
        ).model  # fmt: skip

    def manifest(self, wanted: WantedTraces) -> Manifest:
        task, decoder = wanted.task, self.decoder
        states = None if wanted.hidden is None else HiddenStates(decoder.draft, wanted.hidden, decoder.seed)
        return manifest_of(decoder, task, task.problems, None, wanted.divergences, states, wanted.batch_size)

    def collect(
        self, wanted: WantedTraces, folder: Path, progress: Progress, workers: ModelWorkers | None = None
    ) -> Traces:
        decoder, sampling = self.decoder, self.decoder.sampling
        return collect_traces(
            wanted.task, target=decoder.target, draft=decoder.draft, tokenizer=self.tokenizer, out=folder,
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p,
            divergences=wanted.divergences, on=decoder.criterion.on, hidden=wanted.hidden, seed=decoder.seed,
            batch_size=wanted.batch_size, progress=progress, workers=workers or 1,
        )  # fmt: skip

    @property
    def short_names(self) -> tuple[str, str]:
        draft = self.decoder.draft
        drafting = type(draft).__name__ if isinstance(draft, DraftSource) else short_name(draft)
        return short_name(self.decoder.target), drafting

    @property
    def family(self) -> str:
        return family_id(self.decoder.target)

    @property
    def rule(self) -> str:
        return self.decoder.rule

    @property
    def divergence(self) -> str:
        return self.decoder.divergence

    @property
    def pair(self) -> Pair:
        target, draft = self.decoder.target, self.decoder.draft
        return Pair(ModelInfo.of(target), info_of(draft, target), tokenizer_fingerprint(self.tokenizer))

    @property
    def device(self) -> str:
        return str(self.decoder.device)

    @property
    def on_own_cpu(self) -> bool:
        return self.decoder.device.type == "cpu"

    @property
    def dtype(self) -> str:
        return str(self.decoder.dtype).removeprefix("torch.")

    @property
    def compile(self) -> Compile:
        return self.decoder.compile

    def call_rounds(self, compile: Compile) -> None:
        self.decoder.compile = compile

    def stopping_early(self, policies: Mapping[str, StopPolicy]) -> OwnEngine:
        copied = copy.copy(self)
        copied._policies = policies
        return copied

    @property
    def runs_draft_alone(self) -> bool:
        return not isinstance(self.decoder.draft, DraftSource)

    @cached_property
    def _draft_alone(self) -> OwnEngine:
        """The engine with the draft as its target."""
        draft, decoding = self.decoder.draft, replace(self.decoding, stop_policy=None)
        decoder = SpeculativeDecoder(
            draft, draft, self.tokenizer, decoding, compile=self.decoder.compile, lean=self.decoder.lean
        )
        return OwnEngine(decoder, self.limits)

    def _decoder_for(self, configuration: Configuration, seed: int) -> SpeculativeDecoder:
        """A decoder with another seed, divergence, stop policy and tree; models and compiled graphs are shared."""
        divergence, tree = configuration.divergence, configuration.tree
        stopping = self._policies.get(divergence) if rule_named(configuration.rule).fuzzy else None
        return self.decoder.reconfigured(
            replace(self.decoder.decoding, seed=seed, divergence=divergence, stop_policy=stopping, tree=tree)
        )

    @property
    def _versions(self) -> dict[str, Any]:
        versions = {
            "fsd_decoding": ENGINE_VERSION,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        # Graphs of PyTorch's own kernels give the same texts; compiled kernels round differently.
        kernels = {"kernels": "compiled"} if self.decoder.compile is True else {}
        return versions | {"device": self.decoder.device.type} | kernels

    @cached_property
    def _run_by(self) -> dict[str, str | None]:
        return {role: runs.partition(":")[0] for role, runs in self.decoder.run_by.items()}

    @cached_property
    def _models(self) -> dict[str, Any]:
        """The models' part of keys. A draft model that is not used still limits the vocabulary and the context."""
        target, draft = self.decoder.target, self.decoder.draft
        models = [target] if isinstance(draft, DraftSource) else [target, draft]
        return {
            "target": _model(target),
            "draft": repr(draft) if isinstance(draft, DraftSource) else _model(draft),
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "eos": sorted(self.decoder.eos),
            "vocabulary": min(vocabulary_size(model) for model in models),
            "context": min((length for m in models if (length := context_length(m)) is not None), default=None),
        }


def _model(model: Any) -> dict[str, str]:
    dtype = str(model.dtype).removeprefix("torch.")
    return {"fingerprint": model_fingerprint(model), "dtype": dtype, "attention": attention_kind(model)}
