"""How texts are decoded, as users say it: `DecodingConfig`, or its fields as keywords."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, TypeVar

from fsd_common.errors import UsageError
from fsd_decoding.judging.known import TakesJudge
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.rules import Rule, rule_named
from fsd_decoding.sampling import SETTINGS, Sampling
from fsd_decoding.scores import Logits
from fsd_decoding.tree_shape import Chain, TreeShape, without_chain

StopPolicyLike = StopPolicy | Callable[[DraftState], Answer] | str
"""A stop policy, a function with the return values of `StopPolicy.goes_on`, or the name of a policy: module:Name."""

Threshold = float | ThresholdPolicy
"""T, or a policy that moves it."""

_Config = TypeVar("_Config")


@dataclass(frozen=True)
class DecodingConfig(TakesJudge):
    """Everything that determines a text besides the two models and the prompt.

    Args:
        rule: acceptance rule, a name in `acceptance.RULES`.
        score: what T bounds, a name in `scores.FAMILIES`, such as `js`, `js@50` or `margin`. None: `js`.
        threshold: T; negative is lossless. None: 0.1. Rules without one (`target`, `sd`, `coupled`) do not read it. A
            `ThresholdPolicy` here is the same as in `threshold_policy`.
        draft_length: L, tokens drafted per round, or the depth of trees. None: 5.
        sampling: how tokens are drawn; greedy by default.
        seed: seed of the sampling noise.
        stop_policy: ends drafts early, before L tokens.
        threshold_policy: moves T while a text is decoded.
        on: the logits that the score is computed on: "raw", or "processed" by temperature, top-k and so on.
        within_support: reject tokens to which the target's processed distribution gives no probability.
        tree: the shape of the trees that are drafted, such as `TreeShape(top_k=4, nodes=16)`. None or "chain": chains;
            as a keyword, where None keeps what there is, "chain" replaces a tree.
    """

    rule: str = "fsd-coupled"
    score: str | None = None
    threshold: Threshold | None = None
    draft_length: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop_policy: StopPolicyLike | None = None
    threshold_policy: ThresholdPolicy | None = None
    on: Logits = "raw"
    within_support: bool = False
    tree: TreeShape | Chain | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", without_chain(self.tree))

    def override(self, keywords: dict[str, Any]) -> DecodingConfig:
        """Returns a copy with fields, and fields of `sampling`, replaced by `keywords`; removes those used.

        None keeps what this configuration has; `divergence` is another name of `score`. A T alone replaces a policy,
        and a policy alone another, or T.
        """
        if (score := keywords.pop("divergence", None)) is not None:
            if keywords.get("score") is not None:
                raise UsageError("score and divergence mean the same; give one of them")
            keywords["score"] = score
        names = (*(f.name for f in fields(self)), *SETTINGS)
        given = {name: value for name in names if (value := keywords.pop(name, None)) is not None}
        changes = {name: value for name, value in given.items() if name not in SETTINGS}
        if "threshold" in given:
            changes.setdefault("threshold_policy", None)
        elif "threshold_policy" in given:
            changes["threshold"] = None
        config = replace(self, **changes)
        return replace(config, sampling=config.sampling.changed({n: given[n] for n in SETTINGS if n in given}))


class CallKeywords(TypedDict, total=False):
    """The fields of `DecodingConfig` and of its sampling, as keywords beside `temperature`, `top_k` and `top_p`."""

    rule: str | None
    score: str | None
    divergence: str | None
    threshold: Threshold | Sequence[float] | None
    draft_length: int | Sequence[int] | None
    sampling: Sampling | None
    seed: int | None
    stop_policy: StopPolicyLike | None
    threshold_policy: ThresholdPolicy | None
    on: Logits | None
    within_support: bool | None
    tree: TreeShape | Chain | None
    min_p: float | None
    repetition_penalty: float | None


class DecodingKeywords(CallKeywords, total=False):
    """The fields of `DecodingConfig` and of its sampling, as keywords; None keeps what there is.

    Calls that decode take several `threshold` or `draft_length` too, one per prompt.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None


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
        UsageError: what is given means nothing under the rule: a T or a policy where it has none, trees where it drafts
            nothing, or no T where it measures T on another scale than the base's rule.
    """
    rest = dict(keywords)
    config = (check_type("decoding", decoding, DecodingConfig) or base or DecodingConfig()).override(rest)
    refuse_rest(function, rest)
    if isinstance(config.rule, str):  # else `DecodingSetting.of` says so
        _check_given(keywords, rule_named(config.rule), rule_named(config.rule if base is None else base.rule))
    return config


def _check_given(given: Mapping[str, Any], rule: Rule, own: Rule) -> None:
    """UsageError: see `configured`; `own` is the rule of the base."""
    thresholds = [value for name in ("threshold", "threshold_policy") if (value := given.get(name)) is not None]
    for policy in thresholds:
        if isinstance(policy, ThresholdPolicy) and not rule.bounds_score:
            raise UsageError(
                f"rule {rule.name!r} has no threshold on a score that {type(policy).__name__} could move; give "
                "it a number, or another rule"
            )
    if thresholds and given.get("rule") is None and not rule.fuzzy:
        raise UsageError(f"threshold is given, but the decoder's rule {own.name!r} has none; give rule= too")
    if not thresholds and rule.fuzzy and _scale(rule) != _scale(own):
        whose = "a scale of its own" if _scale(rule) else f"another scale than {own.name!r}"
        raise UsageError(f"rule {rule.name!r} measures T on {whose}; give threshold= too")
    if isinstance(given.get("tree"), TreeShape) and not rule.drafts:
        raise UsageError(f"tree is {given['tree']!r}, and rule {rule.name!r} drafts nothing; leave one of them out")


def _scale(rule: Rule) -> str | None:
    """What T is measured by, if that is the rule's own; None: it bounds the score that is given, or there is none."""
    return rule.score if rule.bounds_score else rule.name if rule.fuzzy else None


def refuse_rest(function: str, keywords: Mapping[str, Any]) -> None:
    """Raises TypeError, as Python does, if any keyword is left: no configuration object has taken it."""
    for name in keywords:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def check_type(name: str, value: Any, kind: type[_Config]) -> _Config | None:
    """Returns a configuration object, or None where none is given.

    Raises:
        UsageError: it is something else.
    """
    if value is None or isinstance(value, kind):
        return value
    raise UsageError(f"{name} is {value!r:.60}; it must be a {kind.__name__}, or give its fields as keywords")
