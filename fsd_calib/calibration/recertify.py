"""Certifying the setting of a profile anew, for instance with another engine: nothing is searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fsd_calib.engines.base import Pair
from fsd_calib.options.common import CONSTANT, Drawing
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.vllm_plugin import METHOD
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.loading import is_source
from fsd_decoding.model_options import UNQUANTISED
from fsd_decoding.profile.parts import IN_WORDS, OWN_ENGINE
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def setting_of(profile: ThresholdProfile) -> Setting:
    """Returns the setting of a profile: the certified one, even where decoders do not run it, being slower.

    Raises:
        UsageError: It has none, or one with another draft than decoders have, or ends drafts by a predictor, which is
            not part of a setting.
    """
    setting = profile.granted
    profile.require_addons(profile.rule, profile.score, profile.stop_policy or "")
    if setting is None:
        raise UsageError(
            f"the profile of {profile.task!r} has no threshold (its outcome is {profile.outcome}), so there is nothing "
            "to certify; calibrate instead"
        )
    if setting.draft is not None:
        raise UsageError(
            f"the setting of the profile of {profile.task!r} drafts with {setting.draft!r}, and decoders of the "
            f"profile with {profile.draft.id!r}; calibrate with the first alone instead"
        )
    if profile.early_stop is not None:
        raise UsageError(
            f"the profile of {profile.task!r} ends drafts by a predictor, whose costs are of its own calibration; "
            f"calibrate with {named('predictor')} instead"
        )
    return setting


def decoding_of(profile: ThresholdProfile) -> SearchSpace:
    """Returns a search space of a profile's setting alone, with its sampling."""
    setting = setting_of(profile)
    moved: Any = CONSTANT if setting.policy is None else setting.moved
    return SearchSpace(
        rule=setting.rule, score=setting.score, draft_length=setting.draft_length, seed=profile.seed,
        threshold_policy=moved, tree=setting.tree, stop_policy=profile.stop_policy,
        **profile.sampling.model_dump(include={*Drawing.model_fields}),
    )  # fmt: skip


def prompts_of(profile: ThresholdProfile, task: str) -> str | ThresholdProfile:
    """Returns what `load_task` takes: the profile, whose prompts are made again, if the task is its own."""
    return profile if profile.prompt is not None and task == profile.task else task


def as_recorded(profile: ThresholdProfile, config: RunConfig, models: tuple[Any, Any]) -> RunConfig:
    """Returns the settings of a run, and where they say nothing of the models, what the profile recorded of them.

    vLLM loads models by arguments of its own: those of a profile that vLLM certified. A dtype is one of both models;
    where the profile has two, each checkpoint's own remains. Heads and n-grams go with the target.

    Args:
        models: The target and the draft, as they are given.
    """
    of_model = profile.draft.kind == "model"
    if profile.target.dtype == profile.draft.dtype or not of_model:
        config = config.changed(dtype=config.dtype or profile.target.dtype)
    if config.engine != OWN_ENGINE:
        recorded = profile.engine.arguments if profile.engine_name == config.engine and profile.engine else None
        if recorded is not None:  # the rest follows from the scores
            recorded = {name: value for name, value in recorded.items() if name != METHOD}
        return config.changed(engine_args=recorded if config.engine_args is None else config.engine_args)
    loading = config.loading.following(profile, *models)
    draft = loading.draft
    if not (of_model and is_source(models[1])):
        return config.changed(model_kwargs=loading.target)
    if draft.quantization is None and loading.target.quantization is not None:
        draft = replace(draft, quantization=UNQUANTISED)  # or it would be loaded as the target is
    return config.changed(model_kwargs=loading.target, draft_model_kwargs=draft)


def other_models(profile: ThresholdProfile, pair: Pair) -> Iterator[str]:
    """Yields a line for each model that is not the profile's."""
    for role, then, now in (("target", profile.target, pair.target), ("draft", profile.draft, pair.draft)):
        if now.kind != then.kind:
            yield f"the draft {now.id!r} is not the {IN_WORDS[then.kind]} that the setting was found with ({then.id!r})"
        elif (now.fingerprint, now.quantization) != (then.fingerprint, then.quantization):
            yield (
                f"the {role} {now.id!r} is not the one that the setting was found with ({then.id!r}"
                f"{'' if then.quantization is None else f', {then.quantization}'}): its weights or quantisation differ"
            )
