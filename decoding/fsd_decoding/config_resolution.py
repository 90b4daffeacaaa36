"""Resolution of a `DecodingConfig` for a decoder: fills in defaults, looks up names, rejects contradictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from fsd_decoding.acceptance.proposal import Criterion
from fsd_decoding.acceptance.rules import Rule, rule_named
from fsd_decoding.argument_checks import check_settings, check_whole
from fsd_decoding.config import CallOverrides, DecodingConfig, StopPolicyLike
from fsd_decoding.config_keywords import check_type, override, refuse_rest, rename_former
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.stopping import StopPolicy, as_policy
from fsd_decoding.policies.threshold import ScalePolicy, ThresholdPolicy
from fsd_decoding.sampling import Sampling

_DIVERGENCE, _THRESHOLD, _DRAFT_LENGTH = "js", 0.1, 5  # defaults for fields that are None


@dataclass(frozen=True)
class ResolvedConfig:
    """The fields of a `DecodingConfig` as a decoder uses them, one value each."""

    rule: Rule
    criterion: Criterion
    sampling: Sampling
    threshold: float
    draft_length: int
    stop_policy: StopPolicy | None
    threshold_policy: ThresholdPolicy | None


def resolve(config: DecodingConfig) -> ResolvedConfig:
    """Returns the fields as a decoder uses them.

    Raises:
        UsageError: a field holds several values, or a value that a decoder cannot use, or two fields contradict each
            other.
    """
    rule = rule_named(_single("rule", config.rule))
    threshold, policy = threshold_and_policy(config.threshold, config.threshold_policy)
    threshold = _THRESHOLD if threshold is None else threshold
    draft_length = _DRAFT_LENGTH if config.draft_length is None else config.draft_length
    divergence = _DIVERGENCE if config.divergence is None else _single("divergence", config.divergence)
    criterion = Criterion(divergence, config.on, config.within_support)
    stopping = None if config.stop_policy is None else as_policy(cast(StopPolicyLike, config.stop_policy))
    check_settings([draft_length], [threshold])
    check_whole("seed", config.seed)
    return ResolvedConfig(rule, criterion, config.sampling, threshold, cast(int, draft_length), stopping, policy)


def configured(
    function: str,
    decoding: DecodingConfig | None,
    keywords: Mapping[str, Any],
    base: DecodingConfig | None = None,
) -> DecodingConfig:
    """Returns the base with what is given in its place: keywords first, then the fields of `decoding`.

    A field of `decoding` that has its default is not given; a keyword is, whatever its value. `function` is named in
    error messages.

    Raises:
        UsageError: a T is given and the rule of the base, which has none, stays; or a policy that moves T is given and
            the rule has no threshold on a divergence. A policy of the base does not apply to such a rule.
    """
    named = rename_former(keywords, stacklevel=4)
    fields_given = _fields_given(check_type("decoding", decoding, DecodingConfig) or DecodingConfig())
    given = fields_given | named
    config = (base or DecodingConfig()).override(dict(fields_given)).override(named)
    refuse_rest(function, named)
    _check_has_threshold(given, config)
    return config


def _fields_given(decoding: DecodingConfig) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    usual = DecodingConfig()
    values = {field.name: getattr(decoding, field.name) for field in fields(decoding)}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def _check_has_threshold(given: Mapping[str, Any], config: DecodingConfig) -> None:
    """UsageError: a T or a policy is given, but the rule has no such threshold."""
    if not isinstance(config.rule, str):
        return  # `resolve` says so
    rule = rule_named(config.rule)
    for policy in (given.get("threshold"), given.get("threshold_policy")):
        if isinstance(policy, ThresholdPolicy):
            check_movable(policy, rule)
    if given.get("threshold") is not None and "rule" not in given and not rule.fuzzy:
        raise UsageError(f"threshold is given, but the decoder's rule {rule.name!r} has none; give rule= too")


def call_overrides(
    function: str, keywords: Mapping[str, Any], temperature: float | None, top_k: int | None, top_p: float | None
) -> CallOverrides:
    """Returns the settings of one call that override its decoder's; `function` is named in error messages."""
    given = rename_former(keywords, stacklevel=4)
    call = override(CallOverrides(temperature, top_k, top_p), given)
    refuse_rest(function, given)
    return call


def threshold_and_policy(threshold: Any, given: object) -> tuple[Any, ThresholdPolicy | None]:
    """Splits a `threshold`, which may itself be a policy, into T (one or several) and the policy that moves it.

    Raises:
        UsageError: two policies are given, or a T together with a policy that sets T itself.
    """
    policy = _moving(given)
    if isinstance(threshold, ThresholdPolicy):
        if policy is not None:
            names = f"{type(threshold).__name__} and {type(policy).__name__}"
            raise UsageError(f"threshold and threshold_policy are {names}; only one policy can move T, give one")
        threshold, policy = None, threshold
    if policy is None:
        return threshold, None
    if threshold is not None and not isinstance(policy, ScalePolicy):
        raise UsageError(f"threshold is {threshold!r:.40}, and {type(policy).__name__} sets T itself; give one of them")
    return (policy.threshold if threshold is None else threshold), policy


def check_movable(policy: ThresholdPolicy, rule: Rule) -> None:
    """UsageError: the rule has no threshold that a policy could move."""
    if not rule.bounds_divergence:
        raise UsageError(
            f"rule {rule.name!r} has no threshold on a divergence that {type(policy).__name__} could move; give it "
            "a number, or another rule"
        )


def _single(name: str, value: str | Sequence[str]) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; a decoder takes one name (calibrate() chooses among several)")
    return value


def _moving(policy: object) -> ThresholdPolicy | None:
    if policy is None or isinstance(policy, ThresholdPolicy):
        return policy
    raise UsageError(
        f"threshold_policy is {policy!r:.60}; a decoder takes a ThresholdPolicy (calibrate() searches the families)"
    )
