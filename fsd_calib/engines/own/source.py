"""What another process needs to decode a task's prompts with our own engine, as this process does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsd_calib.engines.base import Limits
from fsd_calib.engines.cache_key import GenerationLimits
from fsd_calib.engines.own.engine import OwnEngine
from fsd_decoding.acceptance import Criterion
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.sampling import Sampling
from fsd_decoding.workers.model_workers import Sources
from fsd_decoding.workers.models import decoder_of


@dataclass(frozen=True)
class OwnEngineSource:
    """Models, and all settings of decoding that no configuration holds. Implements `EngineSource`.

    Attributes:
        sources: Where the models are loaded from, which is the name of a draft.
        early_stop: A predictor's folder, and its costs.
    """

    sources: Sources
    sampling: Sampling
    criterion: Criterion
    seed: int
    limits: Limits
    early_stop: tuple[Path, EarlyStopInfo] | None = None

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
        engine = OwnEngine(decoder, self.limits)
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
) -> OwnEngineSource:
    """Returns the source of engines with the settings of this process's decoder."""
    return OwnEngineSource(
        sources, decoder.sampling, decoder.criterion, decoder.seed, Limits.of(limits),
        early_stop,
    )  # fmt: skip
