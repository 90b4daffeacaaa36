"""Our own engine over beams: a problem's text is that of one of its beams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fsd_calib.engines.base import Begin, DecodingRequest, KeyedPrompt, OnFinish
from fsd_calib.engines.cache_key import CacheKey, GenerationLimits
from fsd_calib.engines.own import COSTED_LENGTHS, OwnEngine, OwnEngineSource, synchronize, undisturbed_clock
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.grading.graders import COMPARING
from fsd_collectors.replay.cost import CostModel
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.beams.result import Beam, BeamResult
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.profile.parts import BeamAnswer, EarlyStopInfo
from fsd_decoding.profile.setting import CHAINS, Drafting, Setting
from fsd_decoding.workers.model_workers import Sources

_COSTED = 8  # batches at each depth
_LOSSLESS = -1.0  # T
_LEAST = 1e-9  # seconds


@dataclass(frozen=True)
class Beams:
    """What each prompt is decoded to, and which of the texts answers.

    Args:
        number: of beams.
        voted: the task by whose answers the majority of texts answers; None: the best-scored text does.
        replacement: see `BeamSettings`.

    Raises:
        UsageError: the task's grader does not compare answers.
    """

    number: int
    voted: Task | None = None
    replacement: bool = False

    def __post_init__(self) -> None:
        if self.voted is not None and self.voted.grader not in COMPARING:
            raise UsageError(
                f"{named('beam_answer')} is majority, and the grader of task {self.voted.name} does not compare "
                f"answers; give {named('beam_answer')} best"
            )

    @property
    def answer(self) -> BeamAnswer:
        return "best" if self.voted is None else "majority"

    def answering(self, id: int, result: BeamResult) -> Beam:
        """Returns the text that answers the problem with this id."""
        if self.voted is None:
            return result.beams[0]
        problem = next(each for each in self.voted.problems if each.id == id)
        return result.majority(partial(self.voted.agree, problem))


@dataclass(frozen=True)
class BeamText(Result):
    """The text that answers, as the result of its prompt; rounds are those of all beams, and drafted are layers."""

    layers: int

    @property
    def emitted(self) -> int:
        """Layers: all beams of one take the time of one token, whichever of them answers."""
        return self.layers


class Layers(NamedTuple):
    """What lossless decoding made of drafted layers.

    Attributes:
        emitted: layers of texts, those that the target added included.
        rounds: in which they were.
        places: (n,) in its round, of each drafted layer that ended one.
        scores: (n,) D of each; infinite where no T keeps it.
    """

    emitted: int
    rounds: int
    places: NDArray[np.int64]
    scores: NDArray[np.float64]

    def per_round(self, depth: int, threshold: float | None) -> float:
        """Returns the layers of a round of so many drafted ones at a T; None: losslessly.

        A layer ends its round as often as it did in its place, unless T keeps it, which it does in all places alike.
        """
        kept = 0.0 if threshold is None or not len(self.scores) else float(np.mean(self.scores <= threshold))
        ended = np.bincount(self.places, minlength=depth)[:depth]
        reached = np.maximum(self.rounds - np.cumsum(ended) + ended, 1)
        return 1 + float(np.cumprod(1 - (1 - kept) * ended / reached).sum())


class BeamEngine(OwnEngine):
    """Decodes each prompt to beams. A setting has their width, and their depth as its draft length.

    Args:
        decoder, limits: see `OwnEngine`.
        beams: how many, and which of them answers.
    """

    watched = False

    def __init__(self, decoder: SpeculativeDecoder, limits: GenerationLimits, beams: Beams) -> None:
        super().__init__(decoder, limits)
        self.beams = beams
        self.most_slots = 0  # behind a prompt, of those decoded so far

    def decode(
        self, request: DecodingRequest, on_finish: OnFinish | None = None, begin: Begin | None = None,
        observer: Observer | None = None,
    ) -> list[Result]:  # fmt: skip
        """See `Engine.decode`; rounds over beams have no observer."""
        texts: dict[int, Result] = {}

        def answered(place: int, result: BeamResult) -> None:
            texts[place] = self._text(request.prompts[place].id, result)
            if on_finish is not None:
                on_finish(place, texts[place])

        self._found(request, answered, begin)
        return [texts[place] for place in sorted(texts)]

    def layers(self, request: DecodingRequest, rule: str) -> Layers:
        """Decodes losslessly, and returns what a fuzzy rule would judge.

        Args:
            request: of a lossless setting.
            rule: the fuzzy one.
        """
        fuzzy = replace(request.setting, rule=rule, threshold=_LOSSLESS)
        found = self._found(request._replace(setting=fuzzy))
        rejected = [each for result in found for each in result.rejected]
        places = np.array([place for place, _ in rejected], np.int64)
        scores = np.array([score for _, score in rejected], np.float64)
        return Layers(sum(result.layers for result in found), sum(result.rounds for result in found), places, scores)

    def costs(
        self, prompts: Sequence[KeyedPrompt], batch_size: int, progress: Progress, drafting: Drafting = CHAINS
    ) -> CostModel:
        """See `Engine.costs`: by the time of whole decodings, as many prompts at once, at some depths in turn."""
        clock, rows = undisturbed_clock(self.decoder.device), list[tuple[float, int, int]]()
        with progress.step("measuring what a round costs", _COSTED) as advance:
            for number in range(-1, _COSTED):  # the first warms up
                batch = [prompts[i % len(prompts)] for i in range(number * batch_size, (number + 1) * batch_size)]
                for depth in COSTED_LENGTHS:
                    setting = Setting(self.rule, self.score, depth, _LOSSLESS, width=drafting.width)
                    began = clock()
                    found = self._found(DecodingRequest(setting, self.decoding.seed, batch, batch_size))
                    synchronize(self.decoder.device)
                    longest = max(found, key=lambda result: result.rounds)
                    rows.append((clock() - began, longest.rounds, longest.drafted))
                advance(number >= 0)
        seconds, rounds, drafted = np.array(rows[len(COSTED_LENGTHS) :]).T
        parts = np.stack([np.ones_like(rounds), rounds, drafted], 1) / seconds[:, None]  # prefill, verification, layer
        _, verify, layer = (float(x) for x in nnls(parts, np.ones_like(seconds))[0])
        return CostModel(draft_step=layer, verify=max(verify, _LEAST), position=0.0)

    def key(self, setting: Setting, seed: int) -> CacheKey:
        key, own = super().key(setting, seed), self.beams
        return replace(key, engine={**key.engine, "beams": [own.number, own.answer, own.replacement]})

    def with_limits(self, limits: GenerationLimits) -> BeamEngine:
        return BeamEngine(self.decoder, limits, self.beams)

    def source(self, sources: Sources, early_stop: tuple[Path, EarlyStopInfo] | None = None) -> BeamEngineSource:
        return BeamEngineSource(**vars(super().source(sources, early_stop)), beams=self.beams)

    @property
    def runs_draft_alone(self) -> bool:
        return False

    @property
    def lossless(self) -> str:
        return "sd" if self.beams.replacement else "coupled"

    @property
    def exact_texts(self) -> bool:
        """See `Engine.exact_texts`: draws with replacement have the target's law, and noise of their own."""
        return not self.beams.replacement

    def _found(
        self, request: DecodingRequest, on_finish: Callable[[int, BeamResult], None] | None = None,
        begin: Begin | None = None,
    ) -> list[BeamResult]:  # fmt: skip
        setting, prompts = request.setting, request.prompts
        decoder = self.decoder.with_config(seed=request.seed, score=setting.score)
        found = decoder.generate_beams(
            [prompt.prompt for prompt in prompts], self.beams.number, self.limits.max_new_tokens, width=setting.width,
            depth=setting.draft_length, rule=setting.rule, threshold=setting.threshold, stop=self.limits.stop,
            ids=[prompt.id for prompt in prompts], batch_size=request.batch_size, on_finish=on_finish, begin=begin,
            replacement=self.beams.replacement,
        )  # fmt: skip
        self.most_slots = max([self.most_slots, *(result.slots for result in found)])
        return found

    def _text(self, problem: int, result: BeamResult) -> BeamText:
        beam, counts = self.beams.answering(problem, result), (result.rounds, result.drafted, result.accepted)
        return BeamText(beam.text, beam.tokens, *counts, 0, result.interval, beam.finish_reason, result.layers)


@dataclass(frozen=True)
class BeamEngineSource(OwnEngineSource):
    """Models and decoding as in `OwnEngineSource`, and the beams. Implements `EngineSource`."""

    beams: Beams = Beams(2)

    def _made(self, draft: str | None) -> BeamEngine:
        return BeamEngine(super()._made(draft).decoder, self.limits, self.beams)
