"""Decoding and grading the problems of one part, where what was measured or cached before is not decoded again."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt, Limits, TextEngine
from fsd_calib.engines.cache_key import CacheKey
from fsd_calib.engines.workers import EngineWorkers
from fsd_calib.measuring.measurement import Decoding, Measurement, Seeds, groups_of
from fsd_calib.measuring.result_cache import CachedText, ResultCache
from fsd_calib.tasks.base import Problem, Task
from fsd_collectors.split import Part
from fsd_common.progress.base import Advance, Progress, Silent, Waiting
from fsd_decoding.engine.result import Result
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.fields import Work
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.profile.setting import Setting


class EnoughError(Exception):
    """Raised by an observer that has seen enough of a decoding."""


_POLL = 0.2  # seconds between looks at the cache for what other processes decode

Decode = Callable[[Setting, Sequence[Problem]], Sequence[Seeds]]
"""Decodes and grades problems; returns the decodings in the order of the problems."""


class Evaluator:
    """Measures settings on the problems of one part, in a fixed order; each is decoded at most once.

    Args:
        decode: Decodes and grades problems.
    """

    def __init__(self, decode: Decode, problems: Sequence[Problem], part: Part) -> None:
        self.decode, self.problems, self.part = decode, tuple(problems), part
        self._groups = groups_of(self.problems)
        self._done: dict[Setting, list[Seeds]] = {}

    def measure(self, setting: Setting, first: int | None = None) -> Measurement:
        """Returns the measurement on the first problems, or on all; only problems not measured before are decoded."""
        done = self._done.setdefault(setting, [])
        needed = len(self.problems) if first is None else min(first, len(self.problems))
        if len(done) < needed:
            done += self.decode(setting, self.problems[len(done) : needed])
        return self._of(setting, done[:needed])

    def counted(self, setting: Setting) -> Measurement:
        """Returns the measurement on the problems decoded so far."""
        return self._of(setting, self._done[setting])

    def measured(self) -> list[Measurement]:
        """Returns all measurements so far, each on the problems decoded of it."""
        return [self.counted(c) for c, done in self._done.items() if done]

    def _of(self, setting: Setting, done: Sequence[Seeds]) -> Measurement:
        groups = None if self._groups is None else self._groups[: len(done)]
        return Measurement(setting, self.part, tuple(done), groups)


class CachedDecoder:
    """A `Decode` function with a cache: decodes what the cache does not hold, and adds each result once it is finished.

    A problem is claimed in the cache just before it is begun. What another process has claimed is left to it, unless it
    ends without a result.

    Grades are not cached but computed each time, so that a corrected grader takes effect.

    Args:
        engine: Decodes.
        store: The result cache; may be shared with other processes.
        seeds: Decodings per problem, with the engine's seed and those after it; greedy decoding has one.
        drafts: Engines with further drafts, the same target and sampling, by the names used in settings.
        workers: Processes that decode once they are due; this one alone uses the cache. None: it decodes everything.
    """

    def __init__(
        self,
        engine: TextEngine,
        task: Task,
        store: ResultCache,
        batch_size: int = 32,
        progress: Progress | None = None,
        seeds: int = 1,
        drafts: Mapping[str, TextEngine] | None = None,
        workers: EngineWorkers | None = None,
    ) -> None:
        self._engines: dict[str | None, TextEngine] = {None: engine}
        self._engines.update(drafts or {})
        self._task, self._cache = task, store
        self._batch_size, self._progress = batch_size, progress or Silent()
        first = engine.decoding.seed
        self._seeds = range(first, first + (1 if engine.decoding.sampling.greedy else seeds))
        self._workers = workers
        self._own_texts: dict[int, list[str | None]] = {}  # of the target, by problem, see `_answers`
        self._counts = Counter[str]()  # the fields of `Work`

    @property
    def seeds(self) -> int:
        """Number of decodings per problem."""
        return len(self._seeds)

    @property
    def work(self) -> Work:
        """What was decoded and reused so far."""
        return Work.model_validate(dict(self._counts))

    @property
    def decoded(self) -> int:
        """Number of decodings made so far."""
        return self._counts["decoded"]

    @property
    def reused(self) -> int:
        """Number of decodings reused so far."""
        return self._counts["reused"]

    def count(self) -> int:
        """Returns the number of decodings so far, made or reused."""
        return self.decoded + self.reused

    def stopping_early(
        self, policies: Mapping[str, StopPolicy], source: tuple[Path, EarlyStopInfo] | None = None
    ) -> CachedDecoder:
        """Returns a copy whose fuzzy rules stop drafting by these policies, by score; its counts start at 0.

        Args:
            source: The predictor's folder and costs that workers make the policies of; None: workers are not used.
        """
        copied = copy.copy(self)
        copied._workers = self._workers.with_source(early_stop=source) if self._workers and source else None
        copied._engines = {name: engine.stopping_early(policies) for name, engine in self._engines.items()}
        copied._counts = Counter()
        return copied

    def with_seeds(self, seeds: int) -> CachedDecoder:
        """Returns a copy that decodes each problem so many times, and counts together with this one."""
        copied = copy.copy(self)
        copied._seeds, copied._own_texts = range(self._seeds[0], self._seeds[0] + seeds), {}
        return copied

    def for_task(self, task: Task) -> CachedDecoder:
        """Returns a copy for the problems of another task, which counts what it decodes together with this one."""
        copied, limits = copy.copy(self), Limits.of(task)
        copied._task, copied._own_texts = task, {}
        copied._workers = self._workers and self._workers.with_source(limits=limits)
        copied._engines = {name: engine.with_limits(limits) for name, engine in self._engines.items()}
        return copied

    def call_rounds(self, compile: Compile) -> None:
        """Makes the engines of all drafts, here and in workers, call rounds this way from now on."""
        for engine in self._engines.values():
            engine.call_rounds(compile)

    def key(self, setting: Setting, seed: int | None = None) -> CacheKey:
        """Returns the cache key of a setting under a seed; None: the first one."""
        return self._engines[setting.draft].key(setting, self._seeds[0] if seed is None else seed)

    def __call__(self, setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
        """Returns the decodings of the problems, in their order.

        Raises:
            UsageError: See `Engine.key`, `Engine.decode` and `ResultCache`. Finished results stay cached.
        """
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        keys = {seed: self.key(setting, seed) for seed in self._seeds}
        known = {seed: self._cache.find(key, prompts, setting.threshold) for seed, key in keys.items()}
        missing = {seed: [i for i in range(len(prompts)) if i not in cached] for seed, cached in known.items()}
        self._count_reused([text for cached in known.values() for text in cached.values()])
        if total := sum(map(len, missing.values())):
            with self._progress.step(str(setting), total) as advance:
                for seed, indices in missing.items():
                    request = DecodingRequest(setting, seed, prompts, self._batch_size)
                    known[seed] |= self._complete(request, keys[seed], indices, advance)
        answers = self._answers(setting, problems)
        return [
            tuple(map(partial(self._graded, problem), (cached[i] for cached in known.values()), answers[i]))
            for i, problem in enumerate(problems)
        ]

    def emitted(self, setting: Setting, problems: Sequence[Problem], batch_size: int) -> int:
        """Decodes the problems anew, `batch_size` at a time, and returns the number of tokens, for timing; nothing is
        cached."""
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        request = DecodingRequest(setting, self._seeds[0], prompts, batch_size)
        return self._engines[setting.draft].emitted(request)

    def look(self, setting: Setting, problems: Sequence[Problem], batch_size: int, observer: Observer) -> None:
        """Decodes the problems anew until `observer` raises `EnoughError`; nothing is cached.

        Args:
            setting: of our own engine.
        """
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        request = DecodingRequest(setting, self._seeds[0], prompts, batch_size)
        with suppress(EnoughError):
            self._engines[setting.draft].decode(request, observer=observer)  # type: ignore[call-arg]

    def watched(self, setting: Setting, problems: Sequence[Problem], observer: Observer) -> int:
        """Decodes problems all at once, in this process, under the first seed, until `observer` raises `EnoughError`;
        those that the cache holds are left out. What is finished is cached; returns how many that are.

        Args:
            setting: of our own engine.
        """
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        key, request = self.key(setting), DecodingRequest(setting, self._seeds[0], prompts, len(prompts))
        known = self._cache.find(key, prompts, setting.threshold)
        missing, before = [i for i in range(len(prompts)) if i not in known], self.decoded
        with suppress(EnoughError):
            self._decode(request, key, missing, lambda done: None, observer)
        return self.decoded - before

    def remember(self, setting: Setting, problem: Problem, result: Result) -> None:
        """Adds a result decoded elsewhere with the first seed, where the cache does not hold it."""
        key, query = self.key(setting), KeyedPrompt(problem.id, problem.prompt)
        if not self._cache.find(key, [query], setting.threshold):
            self._cache.add(key, query, setting.threshold, result)

    def _complete(
        self, request: DecodingRequest, key: CacheKey, indices: Sequence[int], advance: Advance
    ) -> dict[int, CachedText]:
        """Returns all these texts: decodes those that no other process decodes, and waits for the others."""
        done: dict[int, CachedText] = {}
        prompts, threshold = request.prompts, request.setting.threshold
        waiting = Waiting(self._progress, f"decodes the same problems for {request.setting}")
        while missing := [i for i in indices if i not in done]:
            decoded = self._decode(request, key, missing, advance)
            left = [i for i in missing if i not in decoded]
            found = self._cache.find(key, [prompts[i] for i in left], threshold)
            self._count_reused(list(found.values()))
            advance(len(found))
            done |= decoded | {left[place]: text for place, text in found.items()}
            if not decoded and not found:
                waiting.still()
                time.sleep(_POLL)
        return done

    def _decode(
        self, request: DecodingRequest, key: CacheKey, indices: Sequence[int], advance: Advance,
        observer: Observer | None = None,
    ) -> dict[int, CachedText]:  # fmt: skip
        """Decodes, and returns, those of the problems that this process can claim."""
        done: dict[int, CachedText] = {}
        prompts, threshold = request.prompts, request.setting.threshold

        def claim(place: int) -> bool:
            return self._cache.claim(key, prompts[indices[place]], threshold)

        def add_to_cache(place: int, result: Result) -> None:
            index = indices[place]
            if result.finish_reason == "unanswered":  # a later run asks again
                done[index] = CachedText.of(result, threshold)
            else:
                done[index] = self._cache.add(key, prompts[index], threshold, result)
            self._counts.update(decoded=1, decoded_tokens=done[index].tokens)
            advance(1)

        try:
            if any(map(claim, range(len(indices)))):  # up to the first one
                chosen = request._replace(prompts=[prompts[i] for i in indices])
                self._decode_claimed(chosen, key, add_to_cache, claim, observer)
        finally:
            self._cache.drop_claims()
        return done

    def _decode_claimed(
        self, request: DecodingRequest, key: CacheKey, on_finish: Callable[[int, Result], None],
        claim: Callable[[int], bool], observer: Observer | None,
    ) -> None:  # fmt: skip
        """Decodes prompts that can be claimed: all of them, or those begun before workers are due to go on.

        Only this process has an observer, of our own engine.
        """
        engine = self._engines[request.setting.draft]
        here = partial(engine.decode, request, on_finish)
        if observer is not None:
            engine.decode(request, on_finish, claim, observer=observer)  # type: ignore[call-arg]
        elif self._workers is None:
            here(claim)
        elif self._workers.due:
            places = filter(claim, range(len(request.prompts)))
            for place, result in self._workers.results(request, key, engine.compile, places):
                on_finish(place, result)
        else:
            with self._workers.decoding_here() as due:
                here(lambda place: not due() and claim(place))

    def _answers(self, setting: Setting, problems: Sequence[Problem]) -> list[list[str | None]]:
        """Returns the target's own texts by problem and seed, where agreement with them is right, else None."""
        if not self._task.by_agreement or setting.rule == "target":
            return [[None] * self.seeds for _ in problems]
        if unknown := [problem for problem in problems if problem.id not in self._own_texts]:
            alone = self(Setting.alone(setting.score), unknown)
            for problem, seeds in zip(unknown, alone, strict=True):
                self._own_texts[problem.id] = [decoding.text for decoding in seeds]
        return [self._own_texts[problem.id] for problem in problems]

    def _count_reused(self, cached: Sequence[CachedText]) -> None:
        self._counts.update(reused=len(cached), reused_tokens=sum(cached_text.tokens for cached_text in cached))

    def _graded(self, problem: Problem, cached_text: CachedText, answer: str | None) -> Decoding:
        counts = (cached_text.tokens, cached_text.rounds, cached_text.drafted, cached_text.accepted, cached_text.lo)
        own = () if answer is None else (answer,)
        correct = cached_text.rounds > 0 and self._task.grade(problem, cached_text.text, *own)
        return Decoding(correct, cached_text.text, *counts)
