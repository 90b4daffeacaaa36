"""Checks of requests in vLLM's front end, which answers those that fail with HTTP 400."""

from __future__ import annotations

import functools
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

from fsd_calib.vllm_plugin import KEY
from fsd_calib.vllm_plugin.engine_checks import sampling_fault
from fsd_calib.vllm_plugin.own_rules import followed_threshold, own_rule
from fsd_calib.vllm_plugin.settings import hidden_noise, requested_threshold
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_MARK = "_checks_fsd_options"


def install() -> None:
    """Lets this process check the options of requests to engines that follow a profile."""
    original = InputProcessor._validate_params
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def validate(self: Any, params: Any, *args: Any, **keywords: Any) -> Any:
        additional = self.vllm_config.additional_config  # of other engines maybe no dict
        if isinstance(additional, dict) and KEY in additional and isinstance(params, SamplingParams):
            _check(self.vllm_config, params)
        return original(self, params, *args, **keywords)

    setattr(validate, _MARK, True)
    InputProcessor._validate_params = validate


def _check(config: Any, params: SamplingParams) -> None:
    try:
        exact = requested_threshold(params.extra_args, default=0.0) < 0
    except UsageError as error:
        raise VLLMValidationError(str(error)) from error
    greedy = params.temperature == 0
    if obstacle := _to_own_rule(config, params):
        raise VLLMValidationError(obstacle)
    if not greedy and (obstacle := _to_sampling(config, exact)):
        raise VLLMValidationError(obstacle)
    if not exact and (obstacle := _to_score(config, greedy)):
        raise VLLMValidationError(obstacle)


def _to_score(config: Any, greedy: bool) -> str | None:
    """Returns why a request cannot be decoded by the profile's score; None: it can."""
    content = config.additional_config[KEY].get("content")
    if not content or own_rule(config) is not None:  # of a calibration's engine the requests are its own
        return None
    hidden = hidden_noise(_profile_of(content).score, greedy, not config.use_v2_model_runner)
    way_out = "a temperature above 0" if greedy else "temperature 0"
    return hidden and f'{hidden}; send {way_out}, or "vllm_xargs": {{"fsd": "off"}}'


def _to_own_rule(config: Any, params: SamplingParams) -> str | None:
    """Returns why a rule of vLLM's own cannot decode a request as it asks; None: it can, or none decides."""
    if (own := own_rule(config)) is None:
        return None
    followed = followed_threshold(_profile_of(config.additional_config[KEY]["content"]))
    asked = requested_threshold(params.extra_args, followed)
    if asked == followed or max(asked, followed) < 0:
        return None
    return (
        f"vllm_xargs asks for T = {asked:g}, and the server decodes every request by vLLM's own {own!r}; leave it out"
    )


@functools.lru_cache(maxsize=8)
def _profile_of(content: str) -> ThresholdProfile:
    """The profile with this content."""
    return ThresholdProfile.from_content(content)


def _to_sampling(config: Any, exact: bool) -> str | None:
    """Returns why a sampled request cannot be decoded; None: it can."""
    if fault := sampling_fault(config):
        return fault
    if not exact and config.speculative_config.draft_sample_method != "probabilistic":
        return (
            "sampled requests need the server's draft_sample_method to be 'probabilistic' in --speculative-config; "
            'send temperature 0, or "vllm_xargs": {"fsd": "off"}'
        )
    return None
