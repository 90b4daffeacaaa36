"""What another process needs to decode a task's prompts under a calibration's configurations, as this one does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fsd_calib.measuring.cache_key import GenerationLimits
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.tasks.base import Task
from fsd_decoding.acceptance.proposal import Criterion
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.loading import ModelSource
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.sampling import Sampling
from fsd_decoding.workers.models import decoder_of
from fsd_decoding.workers.sources import Sources


@dataclass(frozen=True)
class DecodingJob:
    """Models, and all settings of decoding that no configuration holds.

    Attributes:
        drafts: Names of the drafts that configurations name; a name is what the draft is loaded from.
        early_stop: A predictor's folder, and its costs.
    """

    sources: Sources
    drafts: tuple[str, ...]
    sampling: Sampling
    criterion: Criterion
    seed: int
    max_new_tokens: int
    stop: tuple[str, ...]
    early_stop: tuple[Path, EarlyStopInfo] | None = None

    def decoder(self, store: ResultCache) -> CachedDecoder:
        """Returns a decoder of ungraded texts, with models that are loaded once for each process."""
        decoder = self._decoder(None)
        drafts = {name: self._decoder(name) for name in self.drafts}
        task = Task("elsewhere", (), self.max_new_tokens, self.stop, "", grader=_ungraded)
        decode = CachedDecoder(decoder, task, store, drafts=drafts)
        if self.early_stop is None:
            return decode
        from fsd_predictors.from_profile import stop_policy

        folder, info = self.early_stop
        return decode.stopping_early(
            {name: stop_policy(folder, info, name, decoder.draft, decoder.tokenizer) for name in info.rates}
        )

    def _decoder(self, draft: ModelSource | None) -> SpeculativeDecoder:
        return decoder_of(self.sources, draft).with_config(
            seed=self.seed, sampling=self.sampling, on=self.criterion.on, within_support=self.criterion.within_support
        )


def job_of(
    decoder: SpeculativeDecoder,
    task: GenerationLimits,
    sources: Sources,
    drafts: Iterable[str] | None = None,
    early_stop: tuple[Path, EarlyStopInfo] | None = None,
) -> DecodingJob:
    """Returns the job of decoding a task with the settings of this process's decoder."""
    return DecodingJob(
        sources, tuple(sorted(drafts or ())), decoder.sampling, decoder.criterion, decoder.seed, task.max_new_tokens,
        tuple(task.stop), early_stop,
    )  # fmt: skip


def _ungraded(reference: str, text: str) -> bool:
    raise AssertionError("texts are graded by the process that asked for them")
