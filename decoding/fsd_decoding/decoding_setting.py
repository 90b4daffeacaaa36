"""How texts are decoded, as decoders do it: a `DecodingConfig` with its defaults filled in and its names looked up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fsd_common.argument_checks import check_settings, check_whole
from fsd_common.errors import UsageError
from fsd_decoding.config import DecodingConfig
from fsd_decoding.drafters.base import Drafter, DraftSource
from fsd_decoding.models.forward import has_states
from fsd_decoding.policies.composed import Composed, Switch
from fsd_decoding.policies.phase import Phase
from fsd_decoding.policies.stopping import StopPolicy, as_policy
from fsd_decoding.policies.threshold import ScalePolicy, Shape, ThresholdPolicy
from fsd_decoding.proposal import Criterion
from fsd_decoding.rules import RULES, Rule, rule_named
from fsd_decoding.sampling import SETTINGS, Sampling
from fsd_decoding.tree_shape import CHAIN, TreeShape

_SCORE, _THRESHOLD, _DRAFT_LENGTH = "js", 0.1, 5  # defaults for fields that are None


@dataclass(frozen=True)
class DecodingSetting:
    """How a text is decoded: all that a certificate is for, besides the models. A seed is not part of it.

    Args:
        stop_policy, threshold_policy: None: there is none, or not for this rule.
    """

    rule: Rule
    criterion: Criterion
    sampling: Sampling
    threshold: float
    draft_length: int
    stop_policy: StopPolicy | None = None
    threshold_policy: ThresholdPolicy | None = None
    tree: TreeShape | None = None

    @classmethod
    def of(cls, config: DecodingConfig) -> DecodingSetting:
        """Returns what a configuration says.

        Raises:
            UsageError: a field holds several values, or a value that a decoder cannot use, or two fields contradict
                each other.
        """
        rule = rule_named(_single("rule", config.rule))
        threshold, moving = _threshold_and_policy(config)
        draft_length = _DRAFT_LENGTH if config.draft_length is None else config.draft_length
        given = _SCORE if config.score is None else _single("score", config.score)
        criterion = Criterion(rule.score or given, config.on, config.within_support)
        ending = None if config.stop_policy is None else as_policy(config.stop_policy)
        check_settings([draft_length], [threshold])
        check_whole("seed", config.seed)
        if not rule.bounds_score:
            moving = None
        if ending is not None and ending.rules is not None and rule.name not in ending.rules:
            ending = None
        if moving is not None and ending is not None and ending.reads_threshold:
            raise UsageError(
                f"{type(ending).__name__} ends drafts by a T that stays, and {type(moving).__name__} moves it; give T "
                "as a number, or a profile without a predictor"
            )
        tree: Any = config.tree
        if tree is not None and not isinstance(tree, TreeShape):
            raise UsageError(
                f"tree is {tree!r:.60}; write a shape as TreeShape(top_k=4, nodes=16), and chains as {CHAIN!r}"
            )
        setting = cls(rule, criterion, config.sampling, threshold, draft_length, ending, moving, tree)
        if tree is not None and rule.drafts:
            for obstacle in _obstacles_to_trees(setting):
                raise UsageError(f"tree is {tree!r}, {obstacle}; or give tree={CHAIN!r}")
        return setting

    @property
    def lossless(self) -> bool:
        """Whether decoding keeps the target's distribution, so that it costs nothing and needs no certificate."""
        return not self.rule.fuzzy or (self.threshold_policy is None and self.rule.lossless_at(self.threshold))

    def values(self) -> dict[str, Any]:
        """The setting by the names of arguments. Without a threshold, what would move or bound it does not count."""
        moving = self.threshold_policy if self.rule.fuzzy else None
        return {
            "rule": self.rule.name,
            "score": self.criterion.score if self.rule.bounds_score else None,
            "on": self.criterion.on if self.rule.bounds_score else None,
            "within_support": self.criterion.within_support and self.rule.fuzzy,
            "threshold": self.threshold if self.rule.fuzzy else None,
            "threshold_policy": _key(moving),
            "draft_length": self.draft_length if self.rule.drafts else None,
            "stop_policy": _key(self.stop_policy) if self.rule.drafts else None,
            "tree": (self.tree or CHAIN) if self.rule.drafts else None,
            **{name: getattr(self.sampling, name) for name in (*SETTINGS, "processors")},
        }


def _single(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; a decoder takes one name (calibrate() chooses among several)")
    return value


def _threshold_and_policy(config: DecodingConfig) -> tuple[float, ThresholdPolicy | None]:
    """T, and the policy that moves it. UsageError: two policies are given, or a T and a policy that sets T itself."""
    threshold, policy = config.threshold, config.threshold_policy
    if policy is not None and not isinstance(policy, ThresholdPolicy):
        raise UsageError(
            f"threshold_policy is {policy!r:.60}; a decoder takes a ThresholdPolicy (calibrate() searches the families)"
        )
    if isinstance(threshold, ThresholdPolicy):
        if policy is not None:
            names = f"{type(threshold).__name__} and {type(policy).__name__}"
            raise UsageError(f"threshold and threshold_policy are {names}; only one policy can move T, give one")
        threshold, policy = None, threshold
    if policy is None:
        return _THRESHOLD if threshold is None else threshold, None
    if threshold is not None and not isinstance(policy, ScalePolicy):
        raise UsageError(f"threshold is {threshold!r:.40}, and {type(policy).__name__} sets T itself; give one of them")
    return policy.threshold if threshold is None else threshold, policy


def _obstacles_to_trees(setting: DecodingSetting) -> Iterator[str]:
    """Yields what stands against trees, and the way out, as the rest of a sentence."""
    rule, sampling, moving = setting.rule, setting.sampling, setting.threshold_policy
    if not rule.judges_trees:
        able = ", ".join(name for name, other in RULES.items() if other.judges_trees)
        yield f"and rule {rule.name!r} judges chains alone; use one of {able}"
    if rule.bounds_score and not setting.criterion.scorer.judges_trees:
        yield f"and score {setting.criterion.score!r} judges chains alone; use another, such as js or margin"
    if setting.stop_policy is not None:
        yield f"and {type(setting.stop_policy).__name__} ends chains early; leave the stop policy out"
    if moving is not None and not _scales_nodes(moving):
        yield f"and {type(moving).__name__} moves T along a chain; give T as a number, or a scale of each token's own"
    if sampling.repetition_penalty != 1.0 or sampling.processors:
        yield (
            "and a repetition penalty or logits processors read the text before each token, of which a tree has "
            "several; leave them out"
        )


def _scales_nodes(policy: ThresholdPolicy) -> bool:
    """Whether a policy scales T for each node as for a token of a chain: by what stands before it, and its logits."""
    if isinstance(policy, Phase):
        return True
    if isinstance(policy, Composed):
        return not isinstance(policy, Switch) and all(map(_scales_nodes, policy.policies))
    return isinstance(policy, Shape) and not policy.reads_outcomes


def check_drafter(tree: TreeShape, target: Any, draft: Any, drafter: Drafter | None, vocabulary: int) -> None:
    """Checks that a draft can draft trees of this shape, and a target verify them.

    Args:
        tree: the shape.
        target: a loaded causal LM.
        draft: what the decoder was given as its draft.
        drafter: what drafts for it.
        vocabulary: V.

    Raises:
        UsageError: it cannot.
    """
    models = [model for model in (target, draft) if not isinstance(model, DraftSource)]
    if recurrent := next((model.config.model_type for model in models if has_states(model)), None):
        raise UsageError(
            f"tree is {tree!r}, and {recurrent} has recurrent layers, which go through chains alone; give "
            f"tree={CHAIN!r}"
        )
    if not hasattr(drafter, "expand"):
        raise UsageError(f"tree is {tree!r}, and {type(draft).__name__} drafts chains alone; give tree={CHAIN!r}")
    if tree.top_k > vocabulary:
        raise UsageError(f"the tree's top_k is {tree.top_k}; it must be at most the vocabulary's size, {vocabulary}")


def _key(policy: StopPolicy | ThresholdPolicy | None) -> Any:
    """Returns a value that is equal for policies that do the same."""
    return policy if policy is None or policy.identity is None else policy.identity
