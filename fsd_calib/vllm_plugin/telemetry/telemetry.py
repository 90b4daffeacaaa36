"""What a worker of vLLM tells of its steps: counters, drift and records."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.version import __version__ as vllm_version

from fsd_calib.vllm_plugin.judge import sampled_as
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.telemetry.counters import STEPS
from fsd_calib.vllm_plugin.telemetry.metrics import Acceptance, StepCounters
from fsd_calib.vllm_plugin.telemetry.records import Records, manifest_of
from fsd_calib.vllm_plugin.telemetry.steps import Listener, StepLog
from fsd_calib.vllm_plugin.telemetry.texts import TextListener, Texts
from fsd_collectors.collection.measures import Measures
from fsd_collectors.manifest import Manifest
from fsd_decoding.profile.following import Drift, coverage_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile

logger = init_logger("vllm.fsd")


class Telemetry:
    """The log of a worker's steps, with what listens to it.

    Of the workers that sample the same tokens only one `listens`.
    """

    def __init__(self, profile: ThresholdProfile, settings: ServeSettings, config: Any) -> None:
        parallel = config.parallel_config
        self.listens = parallel.rank % parallel.tensor_parallel_size == 0
        self._records: Records | None = None
        self._measures: Measures | None = None
        self._closing = ExitStack()
        self.log = StepLog(self._listeners(profile, settings, config) if self.listens else [])

    @property
    def measures(self) -> Measures | None:
        """Columns of traces to compute; None: nothing is recorded, or no more."""
        return self._measures if self._records is not None and self._records.active else None

    def close(self) -> None:
        """Hands on all that was added, and writes what is left to record."""
        self.log.flush()
        self._closing.close()

    def _listeners(self, profile: ThresholdProfile, settings: ServeSettings, config: Any) -> list[Listener]:
        counters = StepCounters(Path(settings.counters, STEPS.format(config.parallel_config.data_parallel_index)))
        tokenizer = cached_tokenizer_from_config(config.model_config)
        of_texts: list[TextListener] = []
        length = config.speculative_config.num_speculative_tokens
        if profile.acceptance is not None and length == profile.followed.draft_length:  # of another L it is another
            drift = Drift(profile.acceptance, coverage_of(profile, (None, None), None))
            of_texts.append(Acceptance(drift, counters, functools.partial(logger.warning, "fsd: %s")))
        if settings.records is not None:
            of_texts.append(self._recording(profile, settings, config, tokenizer))
        if not of_texts:
            return [counters]
        texts = Texts(of_texts, tokenizer)
        self._closing.callback(texts.close)
        return [counters, texts]

    def _recording(self, profile: ThresholdProfile, settings: ServeSettings, config: Any, tokenizer: Any) -> Records:
        manifest = _manifest(profile, settings, config)
        self._measures = Measures(manifest.scores, "raw", sampled_as(profile.sampling))
        self._records = Records(_folder(settings, config), manifest, self._measures.columns, tokenizer, logger)
        self._closing.callback(self._records.close)
        return self._records


def _folder(settings: ServeSettings, config: Any) -> str:
    """The folder of this engine's records: data-parallel engines have one each.

    vLLM makes those of a dense model independent: each has rank 0 of 1 then, and only its index is its own.
    """
    assert settings.records is not None
    if settings.engines == 1:
        return settings.records
    return str(Path(settings.records, f"engine-{config.parallel_config.data_parallel_index}"))


def _manifest(profile: ThresholdProfile, settings: ServeSettings, config: Any) -> Manifest:
    model = config.model_config
    ends = (model.try_get_generation_config() or {}).get("eos_token_id") or ()
    return manifest_of(
        profile, settings.record_texts, draft_length=config.speculative_config.num_speculative_tokens,
        batch_size=config.scheduler_config.max_num_seqs, context=model.max_model_len,
        eos=[ends] if isinstance(ends, int) else ends, device=config.device_config.device_type, version=vllm_version,
    )  # fmt: skip
