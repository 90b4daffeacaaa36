"""vLLM's workers, with a profile followed by their model runner."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from fsd_calib.vllm_plugin import KEY
from fsd_calib.vllm_plugin.calibrating import CalibratingServing
from fsd_calib.vllm_plugin.engine_checks import uses_processor
from fsd_calib.vllm_plugin.own_rules import own_rule
from fsd_calib.vllm_plugin.rejection_sampler import Serving, follow_profile
from fsd_calib.vllm_plugin.settings import CALIBRATION, MeasuredSetting, ServeSettings
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile

if TYPE_CHECKING:
    from fsd_calib.vllm_plugin.serving_v2 import ServingV2


_RELOADED = "the engine follows an fsd profile of its models, so their weights cannot be reloaded; restart it"


class _FollowsProfile:
    """Lets `Serving` act before and after the steps of a worker.

    Where the worker does not sample, or a rule of vLLM's own decides, it only keeps the weights.
    """

    serving: Serving | ServingV2 | None = None

    def load_model(self, **keywords: Any) -> None:
        if self.serving is not None:
            raise UsageError(_RELOADED)
        worker: Any = super()
        worker.load_model(**keywords)
        runner, config = self.model_runner, self.vllm_config  # type: ignore[attr-defined]
        first = config.additional_config[KEY].get(CALIBRATION)
        if own_rule(config) is not None and first is None:
            return
        if config.use_v2_model_runner:
            self.serving = None if runner.rejection_sampler is None else _following(runner)
        elif hasattr(runner, "drafter") and first is None:
            self.serving = follow_profile(runner)
        elif hasattr(runner, "drafter"):
            self.serving = CalibratingServing(runner, MeasuredSetting.model_validate_json(first))

    def compile_or_warm_up_model(self) -> Any:
        worker: Any = super()
        with nullcontext() if self.serving is None else self.serving.unheard():
            return worker.compile_or_warm_up_model()

    @torch.inference_mode()
    def execute_model(self, scheduler_output: Any) -> Any:
        if self.serving is not None:
            self.serving.forget(scheduler_output.finished_req_ids)
            self.serving.admit(scheduler_output.scheduled_new_reqs)
            self.serving.resume(scheduler_output.scheduled_cached_reqs.all_token_ids)
        if isinstance(self.serving, CalibratingServing):
            self.serving.plan_drafts(scheduler_output)
        worker: Any = super()
        return worker.execute_model(scheduler_output)

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        worker: Any = super()
        if self.serving is None:
            return worker.sample_tokens(grammar_output)
        with self.serving.step():
            return worker.sample_tokens(grammar_output)

    def take_draft_token_ids(self) -> Any:
        worker: Any = super()
        drafts = worker.take_draft_token_ids()
        return self.serving.scheduled(drafts) if isinstance(self.serving, CalibratingServing) else drafts

    def fsd_follow(self, setting: str) -> None:
        """Measures another setting, a `MeasuredSetting` as JSON, from now on; see `CalibratingServing`."""
        _calibrating(self.serving).follow(MeasuredSetting.model_validate_json(setting))

    def fsd_take(self, ids: list[str]) -> list[dict[str, Any]]:
        """Returns what the texts of finished requests took; see `CalibratingServing`."""
        return _calibrating(self.serving).take(ids)

    def reload_weights(self, *_: Any, **__: Any) -> None:
        raise UsageError(_RELOADED)

    def sleep(self, level: int = 1) -> None:
        if level > 1:  # what wakes up has to be reloaded
            raise UsageError(
                f"sleep has level {level}, which discards the weights that the engine's fsd profile is of; wake it up "
                "and use level 1, which keeps them"
            )
        worker: Any = super()
        worker.sleep(level)

    def shutdown(self) -> None:
        worker: Any = super()
        try:
            if self.serving is not None:
                self.serving.close()
        finally:
            worker.shutdown()


def _following(runner: Any) -> ServingV2:
    """Lets a V2 runner follow the profile of its engine: by vLLM's extension point, where that suffices."""
    settings = ServeSettings(**runner.vllm_config.additional_config[KEY])
    profile = ThresholdProfile.from_content(settings.content)
    if uses_processor(runner.vllm_config, profile, settings.records is not None):
        from fsd_calib.vllm_plugin.target_scores import ExtendedServing

        return ExtendedServing(runner, profile)
    from fsd_calib.vllm_plugin.rejection_sampler_v2 import JudgingServing

    return JudgingServing(runner, profile)


def _calibrating(serving: Serving | ServingV2 | None) -> CalibratingServing:
    if not isinstance(serving, CalibratingServing):
        raise UsageError("this engine serves a profile; a calibration measures engines that it starts itself")
    return serving


class FuzzyCPUWorker(_FollowsProfile, CPUWorker):
    """vLLM's worker on a CPU, following a profile."""


class FuzzyGPUWorker(_FollowsProfile, Worker):
    """vLLM's worker on a GPU, following a profile."""


WORKERS = {
    "vllm.v1.worker.cpu_worker.CPUWorker": f"{__name__}.{FuzzyCPUWorker.__name__}",
    "vllm.v1.worker.gpu_worker.Worker": f"{__name__}.{FuzzyGPUWorker.__name__}",
}
"""The worker that follows a profile, by vLLM's own: full names."""
