"""Settings that trees of drafted tokens cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsd_common.errors import UsageError
from fsd_decoding.acceptance import RULES
from fsd_decoding.drafters.base import Drafter
from fsd_decoding.policies.composed import Composed, Switch
from fsd_decoding.policies.threshold import Shape, ThresholdPolicy
from fsd_decoding.settings import Settings
from fsd_decoding.tree_shape import CHAIN, TreeShape


def check_tree(settings: Settings) -> None:
    """Checks that the settings can be combined, where they have a tree and the rule drafts.

    Raises:
        UsageError: they cannot; the message says why, and what to do instead.
    """
    if settings.tree is not None and not isinstance(settings.tree, TreeShape):
        raise UsageError(
            f"tree is {settings.tree!r:.60}; write a shape as TreeShape(top_k=4, nodes=16), and chains as {CHAIN!r}"
        )
    if settings.tree is not None and settings.rule.drafts:
        for obstacle in _obstacles(settings):
            raise UsageError(f"tree is {settings.tree!r}, {obstacle}; or give tree={CHAIN!r}")


def check_drafter(tree: TreeShape, draft: Any, drafter: Drafter | None, vocabulary: int) -> None:
    """Checks that a draft can draft trees of this shape.

    Args:
        tree: the shape.
        draft: what the decoder was given as its draft.
        drafter: what drafts for it.
        vocabulary: V.

    Raises:
        UsageError: it cannot.
    """
    if not hasattr(drafter, "expand"):
        raise UsageError(f"tree is {tree!r}, and {type(draft).__name__} drafts chains alone; give tree={CHAIN!r}")
    if tree.top_k > vocabulary:
        raise UsageError(f"the tree's top_k is {tree.top_k}; it must be at most the vocabulary's size, {vocabulary}")


def _obstacles(settings: Settings) -> Iterator[str]:
    """What stands against trees, and the way out, as the rest of a sentence."""
    rule, sampling, stop, moving = settings.rule, settings.sampling, settings.stop_policy, settings.threshold_policy
    if not rule.judges_trees:
        able = ", ".join(name for name, other in RULES.items() if other.judges_trees)
        yield f"and rule {rule.name!r} judges chains alone; use one of {able}"
    if stop is not None:
        yield f"and {type(stop).__name__} ends chains early; leave the stop policy out"
    if moving is not None and not _scales_nodes(moving):
        yield f"and {type(moving).__name__} moves T along a chain; give T as a number, or a scale of each token's own"
    if sampling.repetition_penalty != 1.0 or sampling.processors:
        yield (
            "and a repetition penalty or logits processors read the text before each token, of which a tree has "
            "several; leave them out"
        )


def _scales_nodes(policy: ThresholdPolicy) -> bool:
    """Whether a policy scales T for each token from that token's place and logits alone, so that nodes are as good."""
    if isinstance(policy, Composed):
        return not isinstance(policy, Switch) and all(map(_scales_nodes, policy.policies))
    return isinstance(policy, Shape) and not policy.reads_outcomes
