"""Our own engine over beams: a problem's text is the best-scored of W."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from fsd_calib.engines.base import Begin, DecodingRequest, OnFinish
from fsd_calib.engines.cache_key import CacheKey, GenerationLimits
from fsd_calib.engines.own import OwnEngine
from fsd_decoding.beams.result import BeamResult
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.profile.setting import Setting
from fsd_decoding.rules import rule_named


class BeamEngine(OwnEngine):
    """Decodes each prompt to beams. The draft length of a setting is the depth.

    Args:
        decoder, limits: see `OwnEngine`.
        beams: how many beams, and how many are drafted.
    """

    def __init__(self, decoder: SpeculativeDecoder, limits: GenerationLimits, beams: BeamSettings) -> None:
        super().__init__(decoder, limits)
        self.beams = beams

    def decode(
        self, request: DecodingRequest, on_finish: OnFinish | None = None, begin: Begin | None = None,
        observer: Observer | None = None,
    ) -> list[Result]:  # fmt: skip
        """See `Engine.decode`; rounds over beams have no observer."""
        setting, prompts, beams = request.setting, request.prompts, self.beams
        decoder = self.decoder.with_config(seed=request.seed, score=setting.score)
        found = decoder.generate_beams(
            [prompt.prompt for prompt in prompts], beams.beams, self.limits.max_new_tokens, width=beams.width,
            depth=setting.draft_length, rule=setting.rule, threshold=setting.threshold, stop=self.limits.stop,
            ids=[prompt.id for prompt in prompts], batch_size=request.batch_size, on_finish=_with_best(on_finish),
            begin=begin, replacement=beams.replacement, chance=beams.chance, least_beams=beams.least_beams,
            length_penalty=beams.length_penalty, early_stopping=beams.early_stopping,
        )  # fmt: skip
        return [best_of(result) for result in found]

    def key(self, setting: Setting, seed: int) -> CacheKey:
        """See `Engine.key`. The target alone drafts nothing, and has one key whatever the width."""
        key = super().key(setting, seed)
        of_draft = () if rule_named(setting.rule).drafts else ("width", "chance", "least_beams")
        beams = {name: value for name, value in asdict(self.beams).items() if name not in of_draft}
        return replace(key, engine={**key.engine, "beams": beams})

    def with_limits(self, limits: GenerationLimits) -> BeamEngine:
        return BeamEngine(self.decoder, limits, self.beams)


def best_of(result: BeamResult) -> Result:
    """Returns the best-scored text as the result of its prompt; rounds are those of all beams, drafted are layers."""
    best = result.beams[0]
    counts = result.rounds, result.drafted, result.accepted
    return Result(best.text, best.tokens, *counts, 0, result.interval, best.finish_reason)


def _with_best(on_finish: OnFinish | None) -> Callable[[int, BeamResult], None] | None:
    return None if on_finish is None else lambda index, result: on_finish(index, best_of(result))
