"""What a calibration tries beside a constant T: policies by the name of their family, a handful of shapes each.

Knows families, and how long this task's texts are. Each shape scales T over a text, so how loose it is stays one
number, searched for like a constant T.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import numpy as np

from fsd_calib.calibration.baseline import TRACED, traces_along_target
from fsd_calib.calibration.per_prompt import facts_of, per_prompt_shapes
from fsd_calib.calibration.session import Session
from fsd_calib.search.space import Space
from fsd_collectors.replay import quantiles
from fsd_collectors.replay.blocks import Traces, blocks
from fsd_decoding.adaptive import Constant, EntropyScaled, PerPrompt, Schedule
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.composed import Composed
from fsd_decoding.policies.registry import policy_named
from fsd_decoding.policies.threshold import ScalePolicy, ThresholdPolicy

CONSTANT = "constant"
_STRICT = 0.25  # the smaller scale of a schedule, where the larger is 1
_SLOPES = (1.0, 2.0, 3.0)  # T times 2.7, 7.4 or 20 where the target knows nothing
_LOOKED_AT = (0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.98, 0.987, 0.992, 0.995, 0.998, 0.9995)
"""Shares of drafted tokens accepted where it is asked which problems a T loses: close where most are lost."""
_TEXTS = (0.5, 1.0)  # typical texts that a schedule takes from one to the other

PolicyChoice = str | ScalePolicy
Shaped = Mapping[str | None, ScalePolicy | None]  # by identity, what moves T; None: nothing does
Family = Callable[[Session, Space, Traces], Sequence[ScalePolicy | None]]


def check_policies(asked: Sequence[PolicyChoice]) -> None:
    """UsageError: one is neither a family's name nor a policy that a profile can hold."""
    if not asked:
        raise UsageError(f"policy is empty; give one or more of {', '.join(FAMILIES)}")
    for one in asked:
        if isinstance(one, ThresholdPolicy):
            _identity(one)
            _check_replayed(one)
        elif not isinstance(one, str) or one not in FAMILIES:
            raise UsageError(f"policy is {one!r:.60}; it must be one of {', '.join(FAMILIES)}")


def moves(asked: PolicyChoice) -> bool:
    """Whether T differs from the one searched for."""
    return asked != CONSTANT and not isinstance(asked, Constant)


def shapes(asked: Sequence[PolicyChoice], session: Session, space: Space, traces: Traces) -> Shaped:
    """All that is to be tried.

    Args:
        space: without them.
        traces: of the tuning part, along the target.
    """
    made: list[ScalePolicy | None] = []
    for one in asked:
        made += FAMILIES[one](session, space, traces) if isinstance(one, str) else [one if moves(one) else None]
    return {None if policy is None else _identity(policy): policy for policy in made}


def _identity(policy: ThresholdPolicy) -> str:
    """UsageError: it has none, or none of which it can be built again."""
    name = type(policy).__name__
    if not isinstance(policy, ScalePolicy):
        raise UsageError(
            f"the policy {name} does not scale T by the text alone, so no result of it holds for another T; calibrate "
            "without it"
        )
    if policy.identity is None:
        raise UsageError(
            f"the policy {name} has no identity, so neither a cache of results nor a profile can name it; give it "
            "one, or calibrate without it"
        )
    known = type(policy_named(policy.identity))
    if type(policy) is not known:
        raise UsageError(
            f"the policy {name} has the identity of {known.__name__}, which decoders would follow in its place; give "
            "it one of its own, or calibrate without it"
        )
    for part in _parts(policy):
        _identity(part)
    return policy.identity


def _check_replayed(policy: ThresholdPolicy) -> None:
    """UsageError: traces cannot tell its scales, so that no speed could be foretold."""
    for part in _parts(policy):
        _check_replayed(part)
    if isinstance(policy, PerPrompt) and not policy.prompts:
        raise UsageError(
            "PerPrompt does not know this task's prompts, and traces do not hold them; see knowing(), or give "
            "'per-prompt', which learns weights of its own"
        )
    if isinstance(policy, ScalePolicy):
        policy.traced(dict.fromkeys(policy.columns, np.zeros(0)))


def _parts(policy: ThresholdPolicy) -> Sequence[ThresholdPolicy]:
    return policy.policies if isinstance(policy, Composed) else ()


def _constant(session: Session, space: Space, traces: Traces) -> list[None]:
    return [None]


def _schedules(session: Session, space: Space, traces: Traces) -> list[ScalePolicy]:
    """Strict at first or strict at last."""
    typical = _typical_length(traces)
    return [
        Schedule(start, end, over=max(round(share * typical), 1))
        for start, end in ((_STRICT, 1.0), (1.0, _STRICT))
        for share in _TEXTS
    ]


def _typical_length(traces: Traces) -> float:
    """Tokens of the median text."""
    return float(np.median(np.concatenate([block.ends - block.starts for block in blocks(traces, [])])))


def _by_entropy(session: Session, space: Space, traces: Traces) -> list[ScalePolicy]:
    """Looser where the target is unsure, since there other tokens would do as well. The draft's doubt is left out, and
    being stricter where there is doubt: every further shape costs decodings."""
    return [EntropyScaled(1.0, slope) for slope in _SLOPES]


def _by_prompt(session: Session, space: Space, traces: Traces) -> list[ScalePolicy]:
    """Trained on the whole tuning part, under the space's first rule and divergence.

    UsageError: too few problems are lost at any T to learn from.
    """
    problems, arm = session.tuning.problems, space.families[0][len(space.draft_lengths) // 2]
    scale = quantiles(traces, arm.divergence, _LOOKED_AT)
    few = len(problems) <= TRACED  # then they are all in these traces, which nobody may open twice
    with nullcontext(traces) if few else traces_along_target(session, space.divergences, problems) as whole:
        facts = facts_of(whole, session.decoder, problems)
    thresholds = scale[np.isfinite(scale) & (scale > 0)].tolist()
    return [*per_prompt_shapes(session.tuning.decode, arm, thresholds, problems, facts)]


FAMILIES: Mapping[str, Family] = {
    CONSTANT: _constant, "schedule": _schedules, "entropy": _by_entropy, "per-prompt": _by_prompt,
}  # fmt: skip
"""Where a family is added that `--policy` may name."""
