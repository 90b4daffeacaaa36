"""Resolution of a `DecodingConfig` for a decoder: fills in defaults, looks up names, rejects contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fsd_common.argument_checks import check_settings, check_whole
from fsd_common.errors import UsageError
from fsd_decoding.acceptance import Criterion, Rule, rule_named
from fsd_decoding.config import CallOverrides, DecodingConfig
from fsd_decoding.config_keywords import check_type, override, refuse_rest
from fsd_decoding.policies.stopping import StopPolicy, as_policy
from fsd_decoding.policies.threshold import ScalePolicy, ThresholdPolicy
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from fsd_decoding.tree_support import check_tree

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
    tree: TreeShape | None


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
    stopping = None if config.stop_policy is None else as_policy(config.stop_policy)
    check_settings([draft_length], [threshold])
    check_whole("seed", config.seed)
    tree = cast(TreeShape | None, config.tree)
    resolved = ResolvedConfig(rule, criterion, config.sampling, threshold, draft_length, stopping, policy, tree)
    check_tree(resolved)
    return resolved


def configured(
    function: str,
    decoding: DecodingConfig | None,
    keywords: Mapping[str, Any],
    base: DecodingConfig | None = None,
) -> DecodingConfig:
    """Returns `decoding`, or else the base, with the keywords in its place; a keyword that is None keeps what it has.

    Args:
        function: named in error messages.
        decoding: what a user gave as an object.
        keywords: what a user gave by name.
        base: the configuration of a decoder or a profile that is changed; not together with `decoding`.

    Raises:
        UsageError: a policy that moves T is given and the rule has no threshold on a divergence (one of the base does
            not apply to such a rule); see also `check_threshold`.
    """
    rest = dict(keywords)
    config = (check_type("decoding", decoding, DecodingConfig) or base or DecodingConfig()).override(rest)
    refuse_rest(function, rest)
    if isinstance(config.rule, str):  # else `resolve` says so
        _check_given(keywords, config.rule, config.rule if base is None else base.rule)
    return config


def _check_given(given: Mapping[str, Any], rule: str, own: str) -> None:
    """UsageError: a T or a policy is given that the rule has no use for, or none where it needs one."""
    thresholds = [value for name in ("threshold", "threshold_policy") if (value := given.get(name)) is not None]
    for policy in thresholds:
        if isinstance(policy, ThresholdPolicy):
            check_movable(policy, rule_named(rule))
    check_threshold(own, given.get("rule"), bool(thresholds))
    if isinstance(given.get("tree"), TreeShape) and not rule_named(rule).drafts:
        raise UsageError(f"tree is {given['tree']!r}, and rule {rule!r} drafts nothing; leave one of them out")


def check_threshold(own: str, rule: str | None, given: bool) -> None:
    """Checks that the T of a decoder or a profile, or one given in its place, means something under the rule.

    Args:
        own: the rule of the decoder or the profile.
        rule: the rule given in its place, if any.
        given: whether a T is given too.

    Raises:
        UsageError: a T is given and `own`, which has none, stays; or none is given and the rule measures T on another
            scale.
    """
    kept, chosen = rule_named(own), rule_named(rule or own)
    if given and rule is None and not chosen.fuzzy:
        raise UsageError(f"threshold is given, but the decoder's rule {own!r} has none; give rule= too")
    if not given and chosen.fuzzy and _scale(chosen) != _scale(kept):
        whose = "a scale of its own" if _scale(chosen) else f"another scale than {own!r}"
        raise UsageError(f"rule {chosen.name!r} measures T on {whose}; give threshold= too")


def _scale(rule: Rule) -> str | None:
    """The rule whose own scale T is on; None: T bounds a divergence, or there is none."""
    return rule.name if rule.fuzzy and not rule.bounds_divergence else None


def call_overrides(
    function: str, keywords: Mapping[str, Any], temperature: float | None, top_k: int | None, top_p: float | None
) -> CallOverrides:
    """Returns the settings of one call that override its decoder's; `function` is named in error messages."""
    given = dict(keywords)
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


def _single(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; a decoder takes one name (calibrate() chooses among several)")
    return value


def _moving(policy: object) -> ThresholdPolicy | None:
    if policy is None or isinstance(policy, ThresholdPolicy):
        return policy
    raise UsageError(
        f"threshold_policy is {policy!r:.60}; a decoder takes a ThresholdPolicy (calibrate() searches the families)"
    )
