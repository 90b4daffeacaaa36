"""How texts are decoded, as one object: rule, divergence, threshold, draft length, sampling and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from fsd_decoding.acceptance import Logits
from fsd_decoding.config_keywords import override
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.sampling import SETTINGS, Sampling
from fsd_decoding.tree_shape import Chain, TreeShape, without_chain

StopPolicyLike = StopPolicy | Callable[[DraftState], Answer]
"""A stop policy, or a function with the return values of `StopPolicy.goes_on`."""

Threshold = float | ThresholdPolicy
"""T, or a policy that moves it."""


@dataclass(frozen=True)
class DecodingConfig:
    """Everything that determines a text besides the two models and the prompt.

    Args:
        rule: acceptance rule, a name in `acceptance.rules.RULES`.
        divergence: the divergence that T bounds, a name in `divergence.DIVERGENCES`, such as `js` or `js@50`.
            None: `js`.
        threshold: T; negative is lossless. None: 0.1. Rules without one (`target`, `sd`, `coupled`) do not read it. A
            `ThresholdPolicy` here is the same as in `threshold_policy`.
        draft_length: L, tokens drafted per round, or the depth of trees. None: 5.
        sampling: how tokens are drawn; greedy by default.
        seed: seed of the sampling noise.
        stop_policy: ends drafts early, before L tokens.
        threshold_policy: moves T while a text is decoded.
        on: the logits that the divergence is computed on: "raw", or "processed" by temperature, top-k and so on.
        within_support: reject tokens to which the target's processed distribution gives no probability.
        tree: the shape of the trees that are drafted, such as `TreeShape(top_k=4, nodes=16)`. None or "chain": chains;
            as a keyword, where None keeps what there is, "chain" replaces a tree.
    """

    rule: str = "fsd-coupled"
    divergence: str | None = None
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

        None keeps what this configuration has. A `threshold` without a `threshold_policy` replaces the policy too.
        """
        names = (*(f.name for f in fields(self)), *SETTINGS)
        given = {name: value for name in names if (value := keywords.pop(name, None)) is not None}
        config = override(self._without_replaced(given), given)
        return replace(config, sampling=config.sampling.changed(given)) if given else config

    def _without_replaced(self, given: Mapping[str, Any]) -> DecodingConfig:
        """A T alone replaces a policy, and a policy alone another, or T, as in a decoder's call."""
        if "threshold" in given and "threshold_policy" not in given:
            return replace(self, threshold_policy=None)
        replaced = isinstance(given.get("threshold_policy"), ThresholdPolicy) or (
            "threshold_policy" in given and isinstance(self.threshold, ThresholdPolicy)
        )
        return replace(self, threshold=None) if replaced else self


@dataclass(frozen=True)
class CallOverrides:
    """Settings of one call that override the decoder's `DecodingConfig`; None keeps the decoder's setting.

    Args:
        temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`. Temperature 0 turns off the decoder's
            top_k, top_p and min_p; to turn them off at another temperature, give 1.0 as top_p, or a `Sampling` to
            `with_config`.
        threshold, draft_length: one value, or one per prompt.
        tree: the shape of the trees that are drafted; "chain": chains.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    rule: str | None = None
    threshold: Threshold | Sequence[float] | None = None
    draft_length: int | Sequence[int] | None = None
    stop_policy: StopPolicyLike | None = None
    threshold_policy: ThresholdPolicy | None = None
    tree: TreeShape | Chain | None = None

    def sampling(self, usual: Sampling) -> Sampling:
        """Returns the call's sampling, where `usual` is the decoder's."""
        given = {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}
        return usual.changed(given) if given else usual


class DecodingKeywords(TypedDict, total=False):
    """The fields of `DecodingConfig` and of its sampling, as keywords; None keeps what there is."""

    rule: str
    divergence: str | None
    threshold: Threshold | None
    draft_length: int | None
    sampling: Sampling
    seed: int
    stop_policy: StopPolicyLike | None
    threshold_policy: ThresholdPolicy | None
    on: Logits
    within_support: bool
    tree: TreeShape | Chain | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float


class CallKeywords(TypedDict, total=False):
    """The fields of `CallOverrides` that have no parameter of their own, as keywords."""

    min_p: float | None
    repetition_penalty: float | None
    rule: str | None
    threshold: Threshold | Sequence[float] | None
    draft_length: int | Sequence[int] | None
    stop_policy: StopPolicyLike | None
    threshold_policy: ThresholdPolicy | None
    tree: TreeShape | Chain | None
