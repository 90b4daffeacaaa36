"""What happens when an engine is configured with a profile: checks, then the worker that follows it is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm.logger import init_logger
from vllm.version import __version__ as vllm_version

from fsd_calib.vllm_plugin import KEY, engine_checks, model_checks, own_rules, supported_vllm
from fsd_calib.vllm_plugin.audit import grader_named
from fsd_calib.vllm_plugin.settings import CALIBRATION, MeasuredSetting, ServeSettings
from fsd_common.errors import UsageError
from fsd_decoding.profile.following import following, warning_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile

logger = init_logger("vllm.fsd")  # vLLM's own handlers take what is logged below its name


def follow(config: Any) -> None:
    """Lets the engine of a configuration follow the profile that its `additional_config` names.

    Raises:
        UsageError: the profile, this vLLM or the engine's settings do not allow it; the message names what, and the way
            out. vLLM is unchanged then.
    """
    second = getattr(config, "use_v2_model_runner", False)  # other versions, which are refused, may lack it
    supported_vllm.check_vllm(vllm_version, supported_vllm.RUNNER_V2 if second else supported_vllm.RUNNER_V1)
    # These import what was just looked up.
    from fsd_calib.vllm_plugin import request_checks
    from fsd_calib.vllm_plugin.telemetry.metrics import export_counters

    given = config.additional_config[KEY]
    if isinstance(given, Mapping) and CALIBRATION in given:
        supported_vllm.check_vllm(vllm_version, supported_vllm.CALIBRATION)
        engine_checks.check_measurable(config, MeasuredSetting.model_validate_json(given[CALIBRATION]))
        _choose_worker(config)
        return
    settings = ServeSettings.of(given)
    profile = ThresholdProfile.load(settings.profile, allow_edited=settings.allow_edited)
    engine_checks.check_engine(config, profile, settings.records is not None)
    own = own_rules.own_rule(config)
    for reason in _against(config, settings, own):
        raise UsageError(reason)
    doubts = [*filter(None, [profile.digest_doubt(), warning_of(profile)]), *engine_checks.doubts(config, profile)]
    doubts += model_checks.check_models(config, profile)
    engines = config.parallel_config.data_parallel_size
    counters = export_counters(profile) if own is None else ""
    passed_on = settings.passed_on(profile.model_dump_json(), counters, engines)
    config.additional_config = {**config.additional_config, KEY: passed_on}
    if engine_checks.uses_processor(config, profile, settings.records is not None):
        supported_vllm.check_vllm(vllm_version, supported_vllm.PROCESSOR)
        from fsd_calib.vllm_plugin.target_scores import NAME

        config.model_config.logits_processors = [*(config.model_config.logits_processors or ()), NAME]
    if settings.audit:
        _audit(config)
    _choose_worker(config)
    request_checks.install()
    logger.info("fsd: %s%s", following(profile), _by(own, profile))
    for doubt in doubts:
        logger.warning("fsd: %s", doubt)


def _against(config: Any, settings: ServeSettings, own: str | None) -> Iterator[str]:
    """Yields why an engine cannot do what the plugin is to do besides."""
    method = f'"rejection_sample_method" {own!r}'
    if own is not None and settings.records is not None:
        yield f"fsd has records, and {method} leaves the plugin no step to record; leave one out"
    if settings.audit and own is not None:
        yield f"fsd has audit, and {method} decides for all requests, so none is decoded losslessly; leave one out"
    if settings.audit and config.scheduler_config.scheduler_cls is not None:
        yield f"fsd has audit, and --scheduler-cls is {config.scheduler_config.scheduler_cls!r}; leave one out"
    if settings.audit and config.parallel_config.data_parallel_size > 1:
        yield "fsd has audit, which data-parallel engines cannot do yet: they begin and end together; leave one out"
    if settings.grader is not None:
        grader_named(settings.grader)  # raises UsageError


def _by(own: str | None, profile: ThresholdProfile) -> str:
    """What is to be known of requests and counters, if anything is."""
    if own is not None:
        return f"; vLLM's own {own!r} decides, for all requests alike, and FSD is off: it counts nothing"
    return " (unless a request sets fsd_threshold)" if profile.threshold is None else ""


def _audit(config: Any) -> None:
    """Lets an engine audit what it serves, by a scheduler of ours."""
    supported_vllm.check_vllm(vllm_version, supported_vllm.AUDIT)
    from fsd_calib.vllm_plugin.auditing_scheduler import SCHEDULERS

    config.scheduler_config.scheduler_cls = SCHEDULERS[bool(config.scheduler_config.async_scheduling)]


def _choose_worker(config: Any) -> None:
    from fsd_calib.vllm_plugin.worker import WORKERS  # it imports what was looked up before

    config.parallel_config.worker_cls = WORKERS[config.parallel_config.worker_cls]
