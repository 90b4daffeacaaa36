"""Our own engine, `SpeculativeDecoder`, as an engine of calibrations, in this process and in workers; rounds' costs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch
import transformers

from fsd_calib.engines.base import (
    Begin,
    DecodingRequest,
    Engine,
    KeyedPrompt,
    Limits,
    OnFinish,
    Pair,
    WantedTraces,
    fit,
    short_name,
)
from fsd_calib.engines.cache_key import CacheKey, GenerationLimits, key_of
from fsd_collectors.collection.measures import HiddenStates
from fsd_collectors.collection.run import collect_traces, manifest_of
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.walks import JudgedNodes, Walked
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress, Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import DraftSource, trained_on
from fsd_decoding.engine.engine import ENGINE_VERSION
from fsd_decoding.engine.result import Result
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.models.fingerprint import family_id, model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.forward import attention_kind
from fsd_decoding.models.runner import context_length, vocabulary_size
from fsd_decoding.observers.round_record import Observer, RoundRecord
from fsd_decoding.policies.stopping import StopPolicy, stop_policy_named
from fsd_decoding.profile.drafts import info_of
from fsd_decoding.profile.parts import OWN_ENGINE, EarlyStopInfo, ModelInfo
from fsd_decoding.profile.setting import CHAINS, DRAFT_ALONE, Drafting, Setting
from fsd_decoding.proposal import Criterion
from fsd_decoding.requests import Prompt
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from fsd_decoding.workers.model_workers import ModelWorkers, Sources
from fsd_decoding.workers.models import decoder_of

_ROUNDS = 200  # timed per draft length
_FEWER, _SECONDS = 50, 15.0  # rounds that suffice after so many seconds
COSTED_LENGTHS = 2, 4, 8  # tokens drafted in the rounds that costs are of
_PREFILLS = 8  # calls
_BATCHES = 100  # batches at most
_SHORT, _SHORT_DRAFT = 4, 4  # rounds at least, unless texts end, and tokens drafted in each: to compare quickly
_RULE, _LOSSLESS = "fsd-coupled", -1.0  # accepts little, which gives many rounds and does not change their cost


@dataclass(frozen=True)
class Costs:
    """Costs of rounds with `rows` rows, in seconds."""

    model: CostModel
    rows: int


class RoundClock:
    """An observer that records the seconds of each round, for calls that start no more prompts than they have rows.

    A round lasts from one observation to the next. The first round of a call is left out, since it includes prefill,
    and so are rounds after rows have finished.

    Args:
        clock: Of the seconds. The draft phase has its share of them by the wall's clock.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: list[float] = []
        self.drafting: list[float] = []  # seconds of the same rounds spent in the draft phase
        self._device, self._clock, self._rows = device, clock, 0
        self._last, self._last_wall = 0.0, 0.0

    def restart(self) -> None:
        """Prepares for a new call."""
        self._rows = 0

    def __call__(self, record: RoundRecord) -> None:
        synchronize(self._device)
        now, wall = self._clock(), time.perf_counter()
        if len(record.requests) == self._rows:
            self.seconds.append(now - self._last)
            self.drafting.append(record.draft_seconds * (now - self._last) / (wall - self._last_wall))
        self._rows, self._last, self._last_wall = self._rows or len(record.requests), now, wall


def undisturbed_clock(device: torch.device) -> Callable[[], float]:
    """Returns the clock by which costs are the same whatever else the machine does, where there is one.

    On one CPU thread that is the thread's own seconds. By the wall's clock, other processes lengthen long rounds more
    than short ones, until a verification seems to cost nothing and no fuzzy setting to be worth a test. Of several
    threads the seconds add up, however well they share the work, so their clock is the wall's.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished; on CUDA the host's clock alone would measure kernel launches."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def round_seconds(decoder: SpeculativeDecoder, prompts: Sequence[Prompt], ids: Sequence[int]) -> float:
    """Returns the median seconds of some rounds with a row for each prompt, without the first one, which prefills.

    Where a text ends in the first round, it is what all of them took together.
    """
    clock, began = RoundClock(decoder.device), time.perf_counter()
    decoder.generate(
        prompts, _SHORT * (_SHORT_DRAFT + 1), ids=ids, rule=_RULE, threshold=_LOSSLESS, draft_length=_SHORT_DRAFT,
        batch_size=len(prompts), observer=clock,
    )  # fmt: skip
    return median(clock.seconds) if clock.seconds else time.perf_counter() - began


def measure_costs(
    decoder: SpeculativeDecoder, prompts: Sequence[Prompt], ids: Sequence[int], max_new_tokens: int,
    stop: Sequence[str] = (), *, batch_size: int, draft_lengths: Sequence[int] = COSTED_LENGTHS,
    progress: Progress | None = None,
) -> Costs:  # fmt: skip
    """Times 200 rounds at each draft length with `batch_size` rows, or 50 once 15 s have passed.

    The draft lengths take turns, so that a machine that slows down slows them all, and medians remove outliers. Prompts
    are repeated where they are few.

    Args:
        draft_lengths: At least two; a line over them separates the cost per token from the constant cost of a round.

    Raises:
        UsageError: Fewer than two lengths, or texts that end within one round.
    """
    if len(set(draft_lengths)) < 2:
        raise UsageError(
            f"draft_lengths is {list(draft_lengths)}; costs are fitted over two or more lengths; give at least two"
        )
    clocks = {length: RoundClock(decoder.device, undisturbed_clock(decoder.device)) for length in draft_lengths}

    def decode(batch: Sequence[int], length: int) -> None:
        clocks[length].restart()
        decoder.generate(
            [prompts[i] for i in batch], max_new_tokens, ids=[ids[i] for i in batch], stop=stop,
            rule=_RULE, threshold=_LOSSLESS, draft_length=length,
            batch_size=batch_size, observer=clocks[length],
        )  # fmt: skip

    with (progress or Silent()).step("measuring what a round costs", _ROUNDS) as advance:
        done, started = 0, time.perf_counter()
        for start in range(0, _BATCHES * batch_size, batch_size):
            for length in clocks:
                decode([i % len(prompts) for i in range(start, start + batch_size)], length)
            counted = min(_ROUNDS, *(len(clock.seconds) for clock in clocks.values()))
            advance(counted - done)
            done = counted
            if done >= (_FEWER if time.perf_counter() - started > _SECONDS else _ROUNDS):
                break
    return _costs(clocks, batch_size)


def prefill_seconds(
    decoder: SpeculativeDecoder, prompts: Sequence[Prompt], ids: Sequence[int], rows: int, costs: CostModel
) -> float:
    """Returns the median seconds of the prefill of `rows` prompts: of calls of one round, without that round."""
    clock, taken = undisturbed_clock(decoder.device), list[float]()
    for batch in range(1 + _PREFILLS):  # the first warms up
        chosen = [i % len(prompts) for i in range(batch * rows, (batch + 1) * rows)]
        began = clock()
        decoder.generate(
            [prompts[i] for i in chosen], 1, ids=[ids[i] for i in chosen], rule=_RULE, threshold=_LOSSLESS,
            draft_length=1, batch_size=rows,
        )  # fmt: skip
        synchronize(decoder.device)
        taken.append(clock() - began)
    return max(median(taken[1:]) - float(costs.seconds(1, 1)), 0.0)


def seconds_of_costs(of_a_round: float) -> float:
    """Returns about how long `measure_costs` takes, where a round of its lengths takes so many seconds."""
    in_time = _SECONDS / (len(COSTED_LENGTHS) * of_a_round)
    return len(COSTED_LENGTHS) * of_a_round * min(max(in_time, _FEWER), _ROUNDS)


def _costs(clocks: Mapping[int, RoundClock], rows: int) -> Costs:
    for length, clock in clocks.items():
        if not clock.seconds:
            raise UsageError(f"no text took a second round at draft length {length}; give prompts with longer answers")
    drafting = {length: median(clock.drafting) for length, clock in clocks.items()}
    seconds = {length: median(clocks[length].seconds) for length in drafting}
    return Costs(fit(seconds, sum(drafting.values()) / sum(drafting)), rows)


class OwnEngine(Engine):
    """Decodes with a `SpeculativeDecoder`, whose intervals of T hold for every text.

    Args:
        decoder: Supplies the models, and all that a `Setting` does not hold.
        limits: Where texts end.
        policies: By score, the policy that stops the drafts of fuzzy rules early.
        ending: The policy that stops them whatever the score.

    Raises:
        UsageError: The decoder's sampling has logits processors, which no key can identify.
    """

    name = OWN_ENGINE
    watched: ClassVar[bool] = True
    """Whether rounds have observers."""

    def __init__(
        self, decoder: SpeculativeDecoder, limits: GenerationLimits, policies: Mapping[str, StopPolicy] | None = None,
        ending: StopPolicy | None = None,
    ) -> None:  # fmt: skip
        if decoder.sampling.processors:
            raise UsageError(
                f"sampling has {len(decoder.sampling.processors)} custom logits processors, which the result cache "
                "cannot identify; calibrate without them"
            )
        self.decoder, self.limits, self._policies, self.ending = decoder, limits, policies or {}, ending
        self.decoding, self.tokenizer = decoder.decoding, decoder.tokenizer

    def decode(
        self, request: DecodingRequest, on_finish: OnFinish | None = None, begin: Begin | None = None,
        observer: Observer | None = None,
    ) -> list[Result]:  # fmt: skip
        """See `Engine.decode`, and `SpeculativeDecoder.generate` for the errors.

        Args:
            observer: Receives every round.
        """
        setting, prompts = request.setting, request.prompts
        if setting.rule == DRAFT_ALONE:
            alone = request._replace(setting=setting.under("target"))
            return self._draft_alone.decode(alone, on_finish, begin, observer)
        return self._decoder_for(setting, request.seed).generate(
            [prompt.prompt for prompt in prompts], self.limits.max_new_tokens, rule=setting.rule,
            threshold=setting.moved, draft_length=setting.draft_length, batch_size=request.batch_size,
            ids=[prompt.id for prompt in prompts], stop=self.limits.stop, on_finish=on_finish, begin=begin,
            observer=observer,
        )  # fmt: skip

    def key(self, setting: Setting, seed: int) -> CacheKey:
        if setting.rule == DRAFT_ALONE:
            return self._draft_alone.key(setting.under("target"), seed)
        rule = rule_named(setting.rule)
        run_by = self._run_by if rule.drafts else self._run_by | {"draft": None}
        return key_of(
            setting, seed, self.decoding, self.limits, models=self._models,
            engine=self._versions | {"run_by": run_by}, policy=self._policies.get(setting.score, self.ending),
        )  # fmt: skip

    def walked(self, request: DecodingRequest, scores: Sequence[str]) -> Walked:
        nodes = JudgedNodes(scores)
        results = self.decode(request, observer=nodes)
        return Walked(nodes.walks(), sum(each.emitted for each in results), sum(each.rounds for each in results))

    def costs(
        self, prompts: Sequence[KeyedPrompt], batch_size: int, progress: Progress, drafting: Drafting = CHAINS
    ) -> CostModel:
        decoder = self.decoder.reconfigured(replace(self.decoding, tree=drafting.tree))
        return measure_costs(
            decoder, [prompt.prompt for prompt in prompts], [prompt.id for prompt in prompts],
            self.limits.max_new_tokens, self.limits.stop, batch_size=batch_size, progress=progress,
        ).model  # fmt: skip

    def prefill(self, prompts: Sequence[KeyedPrompt], batch_size: int, costs: CostModel) -> float:
        texts, ids = [prompt.prompt for prompt in prompts], [prompt.id for prompt in prompts]
        return prefill_seconds(self.decoder, texts, ids, batch_size, costs)

    def manifest(self, wanted: WantedTraces) -> Manifest:
        task, decoder = wanted.task, self.decoder
        states = None if wanted.hidden is None else HiddenStates(decoder.draft, wanted.hidden, decoder.seed)
        return manifest_of(decoder, task, task.problems, None, wanted.scores, states, wanted.batch_size)

    def collect(
        self, wanted: WantedTraces, folder: Path, progress: Progress, workers: ModelWorkers | None = None
    ) -> Traces:
        decoder, sampling = self.decoder, self.decoder.sampling
        return collect_traces(
            wanted.task, target=decoder.target, draft=decoder.draft, tokenizer=self.tokenizer, out=folder,
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p,
            scores=wanted.scores, on=decoder.criterion.on, hidden=wanted.hidden, seed=decoder.seed,
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
    def trained_on(self) -> frozenset[int]:
        return trained_on(self.decoder.draft)

    @property
    def rule(self) -> str:
        return self.decoder.rule

    @property
    def score(self) -> str:
        return self.decoder.score

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

    def with_limits(self, limits: GenerationLimits) -> OwnEngine:
        return OwnEngine(self.decoder, limits, self._policies, self.ending)

    def source(self, sources: Sources, early_stop: tuple[Path, EarlyStopInfo] | None = None) -> OwnEngineSource:
        """Returns what another process makes an equal engine of; arguments as of `OwnEngineSource`."""
        return source_of(self.decoder, self.limits, sources, early_stop, self.stop_policy)

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

    def _decoder_for(self, setting: Setting, seed: int) -> SpeculativeDecoder:
        """A decoder with another seed, score, stop policy and tree; models and compiled graphs are shared."""
        score, tree = setting.score, setting.tree
        stopping = self._policies.get(score, self.ending) if rule_named(setting.rule).fuzzy else None
        return self.decoder.reconfigured(
            replace(self.decoder.decoding, seed=seed, score=score, stop_policy=stopping, tree=tree)
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
        """The models' part of keys. A draft model that is not used still limits the vocabulary."""
        target, draft = self.decoder.target, self.decoder.draft
        models = [target] if isinstance(draft, DraftSource) else [target, draft]
        return {
            "target": _model(target),
            "draft": repr(draft) if isinstance(draft, DraftSource) else _model(draft),
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "eos": sorted(self.decoder.eos),
            "vocabulary": min(vocabulary_size(model) for model in models),
            "contexts": [context_length(model.config) for model in models],
        }


def _model(model: Any) -> dict[str, str]:
    dtype = str(model.dtype).removeprefix("torch.")
    return {"fingerprint": model_fingerprint(model), "dtype": dtype, "attention": attention_kind(model)}


@dataclass(frozen=True)
class OwnEngineSource:
    """Models, and all of decoding that no setting holds. Implements `EngineSource`.

    Attributes:
        sources: Where the models are loaded from, which is the name of a draft.
        early_stop: A predictor's folder, and its costs.
        stop_policy: Name of a policy that ends drafts, see `stop_policy_named`.
    """

    sources: Sources
    sampling: Sampling
    criterion: Criterion
    seed: int
    limits: Limits
    early_stop: tuple[Path, EarlyStopInfo] | None = None
    stop_policy: str | None = None

    def engine(self, draft: str | None) -> OwnEngine:
        """See `EngineSource.engine`. Models stay loaded where only the settings change."""
        global _latest
        if _latest is None or _latest[0] != self:
            _latest = self, {}
        if draft not in _latest[1]:
            _latest[1][draft] = self._made(draft)
        return _latest[1][draft]

    def _made(self, draft: str | None) -> OwnEngine:
        decoder = decoder_of(self.sources, draft).with_config(
            seed=self.seed, sampling=self.sampling, on=self.criterion.on, within_support=self.criterion.within_support
        )
        ending = None if self.stop_policy is None else stop_policy_named(self.stop_policy)
        engine = OwnEngine(decoder, self.limits, ending=ending)
        if self.early_stop is None:
            return engine
        from fsd_predictors.from_profile import stop_policy

        folder, info = self.early_stop
        return engine.stopping_early(
            {name: stop_policy(folder, info, name, decoder.draft, decoder.tokenizer) for name in info.rates}
        )


_latest: tuple[OwnEngineSource, dict[str | None, OwnEngine]] | None = None  # of this process, if it is a worker


def source_of(
    decoder: SpeculativeDecoder,
    limits: GenerationLimits,
    sources: Sources,
    early_stop: tuple[Path, EarlyStopInfo] | None = None,
    stop_policy: str | None = None,
) -> OwnEngineSource:
    """Returns the source of engines with the settings of this process's decoder."""
    return OwnEngineSource(
        sources, decoder.sampling, decoder.criterion, decoder.seed, Limits.of(limits),
        early_stop, stop_policy,
    )  # fmt: skip
