"""vLLM as an engine of calibrations: loaded once for all settings, which the plugin changes between calls."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import count, cycle
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

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
)
from fsd_calib.engines.cache_key import CacheKey, GenerationLimits, key_of
from fsd_calib.engines.vllm.loading import Checkpoints, EngineArguments, Room, load, read_checkpoints, versions
from fsd_calib.engines.vllm.traces import Traced, collect, manifest_of, walked
from fsd_calib.vllm_plugin import METHOD, RULES
from fsd_calib.vllm_plugin.settings import MeasuredSetting
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.walks import Walked
from fsd_collectors.store.reading import Traces
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.batch import FinishReason, Request
from fsd_decoding.config import DecodingConfig
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.parts import EngineInfo, ModelInfo, SamplingInfo
from fsd_decoding.profile.setting import CHAINS, Drafting, Setting
from fsd_decoding.requests import requests_for
from fsd_decoding.rules import rule_named
from fsd_decoding.workers.model_workers import ModelWorkers

_numbers = count()  # of requests: vLLM and the plugin tell them apart by their names


class Finished(NamedTuple):
    """A finished request.

    Attributes:
        place: Its place among the requests.
        output: vLLM's `CompletionOutput`.
        facts: What the plugin counted; see `fsd_calib.vllm_plugin.calibrating`.
    """

    place: int
    output: Any
    facts: dict[str, Any]


class Requests:
    """Feeds an engine with requests, `rows` at a time.

    Args:
        llm: The engine, in which no other request is running.
        requests: With their prompts as token ids.
        parameters: `SamplingParams` of each.
    """

    def __init__(self, llm: Any, requests: Sequence[Request], parameters: Sequence[Any], rows: int) -> None:
        self._engine, self._requests, self._parameters, self._rows = llm.llm_engine, requests, parameters, rows
        self._running: dict[str, int] = {}

    def results(self, begin: Begin | None = None) -> Iterator[Finished]:
        """Yields the requests that are begun, by default all, as they finish; if the caller leaves, they are aborted.

        Raises:
            UsageError: The plugin has not seen a whole text, so that its rounds are not known.
        """
        places = (i for i in range(len(self._requests)) if begin is None or begin(i))
        with self.aborting():
            while self.fill(places) or self._running:
                yield from self.step()

    def fill(self, places: Iterator[int]) -> int:
        """Adds requests while there is room, and returns how many."""
        added = 0
        while len(self._running) < self._rows and (index := next(places, None)) is not None:
            name = f"fsd{next(_numbers)}"
            prompt = {"prompt_token_ids": list(self._requests[index].prompt)}
            self._engine.add_request(name, prompt, self._parameters[index])
            self._running[name] = index
            added += 1
        return added

    def step(self) -> list[Finished]:
        """Runs one step of the engine, and returns what finished in it."""
        ended = {output.request_id: output.outputs[0] for output in self._engine.step() if output.finished}
        if not ended:
            return []
        answers = self._engine.collective_rpc("fsd_take", args=(list(ended),))
        facts = {each["id"]: each for of_worker in answers for each in of_worker}
        if missing := [name for name in ended if name not in facts or not facts[name]["whole"]]:
            raise UsageError(f"the plugin has not seen all of request {missing[0]!r}; run the same command again")
        return [Finished(self._running.pop(name), output, facts[name]) for name, output in ended.items()]

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """Aborts, at the end, what is still running."""
        try:
            yield
        finally:
            if self._running:
                self._engine.abort_request(list(self._running))
                self._running.clear()


_STEPS = 200  # timed per draft length
_FEWER, _SECONDS = 50, 15.0  # steps that suffice after so many seconds
_TURN = 40  # steps of a length before the next one takes its turn
_TURNS = 40  # at most


def measure_costs(requests: Callable[[int], Requests], prompts: int, longest: int, progress: Progress) -> CostModel:
    """Times steps in which all rows decode, at two or three draft lengths that take turns.

    The step that reads a prompt is left out, and so is one in which a text ends. The time of drafting and that of
    verifying a longer draft are not told apart: all is in `draft_step`.

    Args:
        requests: Starts decoding exactly at a draft length, with a row for each stream.
        prompts: How many each start has; they are repeated.
        longest: The largest draft length that the engine was loaded for.

    Raises:
        UsageError: No text took a second round.
    """
    lengths = sorted({max(1, longest // 4), max(1, longest // 2), longest})
    lengths = [0, 1] if lengths == [1] else lengths
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    with progress.step("measuring what a round costs", _STEPS) as advance:
        began, done = time.perf_counter(), 0
        for _ in range(_TURNS):
            for length in lengths:
                seconds[length] += _steady_steps(requests(length), prompts)
            counted = min(_STEPS, *map(len, seconds.values()))
            advance(counted - done)
            done = counted
            if done >= (_FEWER if time.perf_counter() - began > _SECONDS else _STEPS):
                break
    if short := [length for length, taken in seconds.items() if not taken]:
        raise UsageError(f"no text took a second round at draft length {short[0]}; give prompts with longer answers")
    medians = {length: median(taken) for length, taken in seconds.items()}
    slope = (medians[lengths[-1]] - medians[lengths[0]]) / (lengths[-1] - lengths[0])
    return fit(medians, max(slope, 0.0))  # a length that has a graph may take less time than a shorter one without


def _steady_steps(requests: Requests, prompts: int) -> list[float]:
    """Returns the seconds of some steps in which every row decodes: nothing is read, and nothing ends."""
    places, seconds = cycle(range(prompts)), []
    with requests.aborting():
        for _ in range(_TURN):
            added = requests.fill(places)
            began = time.perf_counter()
            ended = requests.step()
            taken = time.perf_counter() - began
            if not added and not ended:
                seconds.append(taken)
    return seconds


PLUGIN_VERSION = 3  # raised when the plugin's texts or counts change

_RULES = ("target", "sd", "coupled", *RULES)
_CHECKED_AT = 0.2  # the threshold of texts that show whether batches matter
_CHECKED, _FEW = 32, 3  # such texts, decoded in usual batches and so many at a time


@dataclass
class _Loaded:
    """vLLM's engine, and the setting that it follows."""

    llm: Any
    follows: MeasuredSetting | None = None


class VllmEngine(Engine):
    """Decodes in vLLM, in this process.

    An engine that was loaded for L drafted tokens drafts fewer, or none, where a setting says so. `sd` and
    `coupled` are vLLM's own exact rule. The step that reads a prompt emits a token, but is no round.

    Args:
        checkpoints: The models.
        decoding: Sampling and seed.
        limits: Where texts end.
        arguments: Of the engine, as the user gave them.
        room: What the engine has room for.
        task: The task's name, for messages.
        by_fly: Whether vLLM's own FLy decides; then all thresholds are of scores of that.
        note: Receives a line where results cannot be reused for other thresholds.

    Attributes:
        intervals_hold: Whether a text at a threshold is the text at every threshold of its interval; see
            `check_intervals`. False: every text holds for its own threshold.
    """

    name = "vllm"

    def __init__(
        self, checkpoints: Checkpoints, decoding: DecodingConfig, limits: GenerationLimits, arguments: EngineArguments,
        room: Room, task: str, by_fly: bool = False, note: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.decoding, self.limits, self.tokenizer = decoding, limits, checkpoints.tokenizer
        self._checkpoints, self._arguments, self._room = checkpoints, arguments, room
        self._task, self._by_fly, self._note = task, by_fly, note
        self.intervals_hold = False

    def decode(
        self, request: DecodingRequest, on_finish: OnFinish | None = None, begin: Begin | None = None
    ) -> list[Result]:
        """See `Engine.decode`."""
        setting = request.setting
        self.follow(self._setting_of(setting))
        results: dict[int, Result] = {}
        for done in self._requests(request.prompts, request.seed, request.batch_size).results(begin):
            results[done.place] = self._result(done, setting)
            if on_finish is not None:
                on_finish(done.place, results[done.place])
        return [results[index] for index in sorted(results)]

    def key(self, setting: Setting, seed: int) -> CacheKey:
        checkpoints, pair = self._checkpoints, self.pair
        models = {
            "target": _keyed(pair.target), "draft": _keyed(pair.draft), "tokenizer": pair.tokenizer,
            "vocabulary": checkpoints.vocabulary, "context": checkpoints.context,
        }  # fmt: skip
        engine = {
            **self._versions, "fsd_plugin": PLUGIN_VERSION, "device": self.device, "args": self.info.arguments,
            "intervals": self.intervals_hold and setting.threshold is not None,
        }  # fmt: skip
        return key_of(setting, seed, self.decoding, self.limits, models=models, engine=engine)

    def costs(
        self, prompts: Sequence[KeyedPrompt], batch_size: int, progress: Progress, drafting: Drafting = CHAINS
    ) -> CostModel:
        if drafting.tree is not None:
            raise UsageError(f"engine 'vllm' drafts no trees; leave {named('tree')} out")

        def requests(length: int) -> Requests:
            self.follow(self._exact(length))
            return self._requests(prompts, self.decoding.seed, batch_size)

        return measure_costs(requests, len(prompts), self._room.longest, progress)

    def manifest(self, wanted: WantedTraces) -> Manifest:
        arguments = json.dumps(self._arguments.decisive, sort_keys=True)
        return manifest_of(wanted, self, f"vllm {self._versions['vllm']} {arguments}")

    def collect(
        self, wanted: WantedTraces, folder: Path, progress: Progress, workers: ModelWorkers | None = None
    ) -> Traces:
        def trace(prompts: Sequence[KeyedPrompt]) -> list[Traced]:
            self.follow(self._exact(1).model_copy(update={"traced": tuple(wanted.scores), "each_token": True}))
            alone = Setting("target", self.score, 1)
            return self._traced(DecodingRequest(alone, self.decoding.seed, prompts, wanted.batch_size))

        return collect(wanted, self.manifest(wanted), trace, folder, progress)

    def walked(self, request: DecodingRequest, scores: Sequence[str]) -> Walked:
        self.follow(self._setting_of(request.setting).model_copy(update={"traced": tuple(scores)}))
        return walked(self._traced(request), scores)

    def _traced(self, request: DecodingRequest) -> list[Traced]:
        """Decodes prompts under what the engine follows, with what is measured along them."""
        done = sorted(self._requests(request.prompts, request.seed, request.batch_size).results(), key=_index)
        return [Traced(self._result(one, request.setting), one.facts) for one in done]

    def check_intervals(self, prompts: Sequence[KeyedPrompt]) -> None:
        """Finds out whether `intervals_hold`: greedy texts that do not depend on what else is in the batch.

        The first prompts are decoded in large and in small batches. If rounding changes 3 % of the texts, that is seen
        in 62 % of runs, if 10 %, in 97 %. Where it is not, texts of a few thresholds are those that rounding in another
        batch would have given.
        """
        if not self.decoding.sampling.greedy or self._by_fly:  # FLy's texts have no interval that the plugin knows
            return
        checked, rows = prompts[:_CHECKED], min(_CHECKED, self._room.rows)
        self.follow(self._setting_of(Setting(self.rule, self.score, self._room.longest, _CHECKED_AT)))
        large, small = (self._counted(checked, size) for size in (rows, min(_FEW, max(rows - 1, 1))))
        changed = sum(large[place] != small[place] for place in large)
        self.intervals_hold = not changed
        if changed:
            self._note(
                f"vLLM's texts depend on their batch ({changed} of {len(large)} changed), so a text is reused for its "
                "own threshold only, and the search decodes more"
            )

    def _counted(self, prompts: Sequence[KeyedPrompt], rows: int) -> dict[int, Any]:
        """The tokens and rounds of some prompts, so many at a time."""
        done = self._requests(prompts, self.decoding.seed, rows).results()
        return {one.place: (one.facts["tokens"], one.facts["rounds"]) for one in done}

    def follow(self, setting: MeasuredSetting) -> None:
        """Lets the engine decode under another setting from now on."""
        loaded = self._loaded
        if setting != loaded.follows:
            loaded.llm.llm_engine.collective_rpc("fsd_follow", args=(setting.model_dump_json(),))
            loaded.follows = setting

    def with_limits(self, limits: GenerationLimits) -> VllmEngine:
        assert self._loaded  # before the copy is made, which shares it
        copied = copy.copy(self)
        copied.limits = limits
        return copied

    @property
    def pair(self) -> Pair:
        pair, quantized = self._checkpoints.pair, self._arguments.values.get("quantization")
        if quantized is None:
            return pair
        return Pair(pair.target.model_copy(update={"quantization": str(quantized)}), pair.draft, pair.tokenizer)

    @property
    def info(self) -> EngineInfo:
        by_fly = {METHOD: "fly"} if self._by_fly else {}
        return EngineInfo(name=self.name, version=self._versions["vllm"], arguments=self._arguments.decisive | by_fly)

    @property
    def short_names(self) -> tuple[str, str]:
        return self._checkpoints.short_names

    @property
    def family(self) -> str:
        return self._checkpoints.family

    @property
    def rule(self) -> str:
        return str(self.decoding.rule)

    @property
    def score(self) -> str:
        return str(self.decoding.score)

    @property
    def exact_texts(self) -> bool:
        """See `Engine.exact_texts`: sampled, vLLM's rejection draws noise of its own."""
        return self.decoding.sampling.greedy

    @property
    def longest_draft(self) -> int:
        return self._room.longest

    @property
    def devices(self) -> int:
        """How many devices it is spread over."""
        return int(self._loaded.llm.llm_engine.vllm_config.parallel_config.world_size)

    @property
    def device(self) -> str:
        return str(self._loaded.llm.llm_engine.vllm_config.device_config.device_type)

    @property
    def dtype(self) -> str:
        return self._checkpoints.pair.target.dtype

    @cached_property
    def _loaded(self) -> _Loaded:
        exact = self._exact(self._room.longest)
        return _Loaded(load(self._checkpoints.pair, self.dtype, self._arguments, exact, self._room, self._by_fly))

    @cached_property
    def _versions(self) -> dict[str, str]:
        return versions()

    def _exact(self, draft_length: int) -> MeasuredSetting:
        sampling = SamplingInfo.model_validate(self.decoding.sampling, from_attributes=True)
        if sampling.top_p == 1:
            sampling = sampling.model_copy(update={"top_p": None})  # which vLLM's requests say for it
        return MeasuredSetting(task=self._task, score=self.score, draft_length=draft_length, sampling=sampling)

    def _setting_of(self, setting: Setting) -> MeasuredSetting:
        if setting.rule not in _RULES:
            raise UsageError(f"rule is {setting.rule!r}; engine 'vllm' can follow {', '.join(_RULES)}")
        rule, longest = rule_named(setting.rule), self._room.longest
        if not rule.drafts:
            return self._exact(0)
        if setting.draft_length > longest:
            raise UsageError(f"draft_length is {setting.draft_length}; the engine was loaded for {longest}")
        return self._exact(setting.draft_length).model_copy(
            update={
                "score": setting.score,
                "threshold": setting.threshold,
                "policy": setting.policy,
            }
        )

    def _requests(self, prompts: Sequence[KeyedPrompt], seed: int, rows: int) -> Requests:
        """The prompts as requests, so many at a time."""
        checkpoints = self._checkpoints
        requests = requests_for(
            self.tokenizer, checkpoints.context, checkpoints.vocabulary, [prompt.prompt for prompt in prompts],
            [prompt.id for prompt in prompts], -1.0, self._room.longest, self.limits.max_new_tokens,
        )  # fmt: skip
        parameters = [self._parameters(seed, request.key, request.max_new_tokens) for request in requests]
        return Requests(self._loaded.llm, requests, parameters, min(rows, self._room.rows))

    def _parameters(self, seed: int, key: int, limit: int) -> Any:
        from vllm.sampling_params import SamplingParams

        sampling = self.decoding.sampling
        drawn = {} if sampling.greedy else {"seed": _request_seed(seed, key)}
        return SamplingParams(
            temperature=sampling.temperature, top_k=sampling.top_k or 0, top_p=sampling.top_p or 1.0,
            max_tokens=limit, stop=list(self.limits.stop), **drawn,
        )  # fmt: skip

    def _result(self, done: Finished, setting: Setting) -> Result:
        facts, output = done.facts, done.output
        stopped: FinishReason = "stop" if isinstance(output.stop_reason, str) else "eos"
        reason: FinishReason = "length" if output.finish_reason == "length" else stopped
        tokens = facts["tokens"][:-1] if reason == "eos" else facts["tokens"]
        counts = (facts["rounds"], facts["drafted"], facts["accepted"], facts["bonus"])
        return Result(output.text, tokens, *counts, self._interval(facts, setting), reason)

    def _interval(self, facts: dict[str, Any], setting: Setting) -> tuple[float, float]:
        threshold = setting.threshold
        if threshold is None:
            return -math.inf, math.inf
        if self.intervals_hold:
            return facts["lo"], facts["hi"]
        return threshold, threshold  # holds no threshold: the text is reused at its own alone


def _index(done: Finished) -> int:
    return done.place


def _keyed(info: ModelInfo) -> dict[str, str | None]:
    return {"fingerprint": info.fingerprint, "dtype": info.dtype, "quantization": info.quantization}


def _request_seed(seed: int, key: int) -> int:
    """The seed of one request's noise, other ones for every seed of the calibration and every problem."""
    digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class VllmEngineSource:
    """Checkpoints, and all of decoding that no setting holds. Implements `EngineSource`.

    Attributes:
        target, draft: Paths or hub ids; what drafts may be another drafter of vLLM.
        dtype: None: the target checkpoint's own.
        task: Its name, for messages.
        by_fly, intervals_hold: See `VllmEngine`.
    """

    target: str
    draft: str | VllmDraft
    dtype: str | None
    decoding: DecodingConfig
    limits: Limits
    arguments: EngineArguments
    room: Room
    task: str
    by_fly: bool = False
    intervals_hold: bool = False

    def engine(self, draft: str | None) -> VllmEngine:
        """See `EngineSource.engine`."""
        return _made(self)

    def noting(self, note: Callable[[str], None]) -> VllmEngine:
        """Returns an engine that says what it cannot do."""
        checkpoints, room = read_checkpoints(self.target, self.draft, self.dtype), self.room
        if checkpoints.context is not None:
            room = replace(room, context=min(room.context, checkpoints.context))
        engine = VllmEngine(checkpoints, self.decoding, self.limits, self.arguments, room, self.task, self.by_fly, note)
        engine.intervals_hold = self.intervals_hold
        return engine


@cache
def _made(source: VllmEngineSource) -> VllmEngine:
    return source.noting(lambda line: None)
