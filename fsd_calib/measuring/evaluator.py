"""One part of a task's problems, decoded on demand: what was measured once is not measured again.

Knows which problems of the part a configuration was decoded on. How they are decoded is a function it is given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

from fsd_calib.measuring.cache_key import CacheKey, CacheKeys
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Decoding, Measurement, Seeds
from fsd_calib.measuring.result_cache import CachedText, CacheQuery, ResultCache
from fsd_calib.progress import Advance, Progress, Silent
from fsd_calib.tasks.base import Problem, Task
from fsd_collectors.split import Part
from fsd_decoding.acceptance.rules import rule_named
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.costs import Work

# MERGED: """Decoding that asks the cache first, and tells it what it decoded.
#
# Knows a decoder, a task's grader and the cache. Knows nothing of parts, thresholds to try or certificates.
# """


Decode = Callable[[Configuration, Sequence[Problem]], Sequence[Seeds]]
"""Decodings of problems, in their order, graded."""


class Evaluator:
    """The problems of one part, in one order."""

    def __init__(self, decode: Decode, problems: Sequence[Problem], part: Part) -> None:
        self.decode, self.problems, self.part = decode, tuple(problems), part
        self._done: dict[Configuration, list[Seeds]] = {}

    def measure(self, configuration: Configuration, first: int | None = None) -> Measurement:
        """Of the first so many problems, or all; only those that were not measured before are decoded."""
        done = self._done.setdefault(configuration, [])
        wanted = len(self.problems) if first is None else min(first, len(self.problems))
        if len(done) < wanted:
            done += self.decode(configuration, self.problems[len(done) : wanted])
        return Measurement(configuration, self.part, tuple(done[:wanted]))

    def counted(self, configuration: Configuration) -> Measurement:
        """On as many problems as it was measured on so far."""
        return Measurement(configuration, self.part, tuple(self._done[configuration]))

    def measured(self) -> list[Measurement]:
        """All that was measured so far, each on as many problems as it was."""
        return [self.counted(c) for c, done in self._done.items() if done]


class CachedDecoder:
    """A `bench.Decode`: what the cache does not answer is decoded, each result kept as soon as it is finished.

    Grades are not kept but given anew, so that a mended grader takes effect.

    Args:
        decoder: its models, sampling, seed, `on` and `within_support` hold; the rest is the configurations'.
        drafts: decoders of further drafts with the same target and settings, by the names that configurations have.
        store: may be shared with other processes.
        seeds: decodings a problem, with the decoder's seed and those after it; greedy decoding has one.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        task: Task,
        store: ResultCache,
        batch_size: int = 32,
        progress: Progress | None = None,
        seeds: int = 1,
        drafts: Mapping[str, SpeculativeDecoder] | None = None,
    ) -> None:
        self._decoders: dict[str | None, SpeculativeDecoder] = {None: decoder}
        self._decoders.update(drafts or {})
        self._task, self._store = task, store
        self._batch_size, self._progress = batch_size, progress or Silent()
        self._seeds = range(decoder.seed, decoder.seed + (1 if decoder.sampling.greedy else seeds))
        self._policies: Mapping[str, StopPolicy] = {}
        self._keys = {name: CacheKeys(one, task) for name, one in self._decoders.items()}
        self.decoded = self.decoded_tokens = 0
        self.reused = self.reused_tokens = 0

    @property
    def seeds(self) -> int:
        """Decodings a problem."""
        return len(self._seeds)

    @property
    def work(self) -> Work:
        """All so far."""
        return Work(
            decoded=self.decoded, decoded_tokens=self.decoded_tokens, reused=self.reused,
            reused_tokens=self.reused_tokens,
        )  # fmt: skip

    def stopping_early(self, policies: Mapping[str, StopPolicy]) -> CachedDecoder:
        """The same under policies, by divergence, which fuzzy rules' drafts follow; counts begin anew."""
        made = copy.copy(self)
        made._policies = policies
        made._keys = {name: CacheKeys(one, self._task, policies) for name, one in self._decoders.items()}
        made.decoded = made.decoded_tokens = made.reused = made.reused_tokens = 0
        return made

    def key(self, configuration: Configuration) -> CacheKey:
        """Of its decodings with the first seed."""
        return self._key(configuration, self._seeds[0])

    def __call__(self, configuration: Configuration, problems: Sequence[Problem]) -> list[Seeds]:
        """Decodings of the problems, in their order.

        Raises:
            UsageError: see `Keys.of`, `SpeculativeDecoder.generate` and `Store`. What was finished is kept.
        """
        asked = [CacheQuery(problem.id, problem.prompt) for problem in problems]
        keys = {seed: self._key(configuration, seed) for seed in self._seeds}
        known = {seed: self._store.find(key, asked, configuration.threshold) for seed, key in keys.items()}
        missing = {seed: [i for i in range(len(asked)) if i not in found] for seed, found in known.items()}
        self._count_reused([kept for found in known.values() for kept in found.values()])
        if total := sum(map(len, missing.values())):
            with self._progress.step(str(configuration), total) as advance:
                for seed, indices in missing.items():
                    known[seed] |= self._decode(configuration, keys[seed], seed, asked, indices, advance)
        return [
            tuple(self._graded(problem, found[i]) for found in known.values()) for i, problem in enumerate(problems)
        ]

    def emitted(self, configuration: Configuration, problems: Sequence[Problem], batch_size: int) -> int:
        """Tokens of the problems decoded anew, so many at once: for whoever holds a watch. Nothing is kept."""
        prompts = [CacheQuery(problem.id, problem.prompt) for problem in problems]
        results = self._generate(configuration, self._seeds[0], prompts, batch_size)
        return sum(result.emitted for result in results)

    def remember(self, configuration: Configuration, problem: Problem, result: Result) -> None:
        """Keeps what was decoded elsewhere with the first seed, where it is not there yet."""
        key, asked = self.key(configuration), CacheQuery(problem.id, problem.prompt)
        if not self._store.find(key, [asked], configuration.threshold):
            self._store.add(key, asked, configuration.threshold, result)

    def _key(self, configuration: Configuration, seed: int) -> CacheKey:
        return self._keys[configuration.draft].of(configuration, seed)

    def _decode(
        self,
        configuration: Configuration,
        key: CacheKey,
        seed: int,
        asked: Sequence[CacheQuery],
        indices: Sequence[int],
        advance: Advance,
    ) -> dict[int, CachedText]:
        done: dict[int, CachedText] = {}

        def keep(place: int, result: Result) -> None:
            index = indices[place]
            done[index] = self._store.add(key, asked[index], configuration.threshold, result)
            self.decoded += 1
            self.decoded_tokens += done[index].tokens
            advance(1)

        if indices:
            self._generate(configuration, seed, [asked[i] for i in indices], self._batch_size, keep)
        return done

    def _generate(
        self,
        configuration: Configuration,
        seed: int,
        asked: Sequence[CacheQuery],
        batch_size: int,
        on_finish: Callable[[int, Result], None] | None = None,
    ) -> list[Result]:
        return self._decoder_for(configuration, seed).generate(
            [one.prompt for one in asked], self._task.max_new_tokens, rule=configuration.rule,
            threshold=configuration.moved, draft_length=configuration.draft_length, batch_size=batch_size,
            ids=[one.id for one in asked], stop=self._task.stop, on_finish=on_finish,
        )  # fmt: skip

    def _decoder_for(self, configuration: Configuration, seed: int) -> SpeculativeDecoder:
        """Its draft's decoder with another noise, divergence and policy; models and compiled graphs are shared."""
        decoder, divergence = self._decoders[configuration.draft], configuration.divergence
        stopping = self._policies.get(divergence) if rule_named(configuration.rule).fuzzy else None
        return decoder.with_config(seed=seed, divergence=divergence, stop_policy=stopping)

    def _count_reused(self, found: Sequence[CachedText]) -> None:
        self.reused += len(found)
        self.reused_tokens += sum(kept.tokens for kept in found)

    def _graded(self, problem: Problem, kept: CachedText) -> Decoding:
        counts = (kept.tokens, kept.rounds, kept.drafted, kept.accepted)
        return Decoding(self._task.grade(problem, kept.text), kept.text, *counts)
