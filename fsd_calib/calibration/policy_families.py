"""Families of threshold policies that a calibration tries beside a constant T, a handful of shapes each.

A shape scales T over a text, so how loose it is remains one number T, which is searched for like a constant one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import numpy as np

from fsd_calib.calibration.baseline import TRACED, traces_along_target
from fsd_calib.calibration.per_prompt import facts_of, per_prompt_shapes
from fsd_calib.calibration.session import Session
from fsd_calib.options.common import CONSTANT
from fsd_calib.options.search_space import moves
from fsd_calib.search.space import Space
from fsd_collectors.replay import quantiles
from fsd_collectors.replay.blocks import blocks
from fsd_collectors.store.reading import Traces
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import EntropyScaled, Phase, Schedule
from fsd_decoding.policies.composed import Composed, policy_named
from fsd_decoding.policies.threshold import ScalePolicy, ThresholdPolicy, TracedText
from fsd_decoding.text import prompt_tokens

_STRICT = 0.25  # the smaller scale of a schedule or of two phases, where the larger is 1
_SLOPES = (1.0, 2.0, 3.0)  # T times 2.7, 7.4 or 20 where the target is entirely unsure
_TRIED_SHARES = (0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.98, 0.987, 0.992, 0.995, 0.998, 0.9995)
"""Shares of drafted tokens accepted by the thresholds that `PerPrompt` is trained at: dense where most are lost."""
_TEXTS = (0.5, 1.0)  # length of a schedule, in median text lengths

PolicyChoice = str | ScalePolicy
Shaped = Mapping[str | None, ScalePolicy | None]  # policies by identity; None: T is constant
Family = Callable[[Session, Space, Traces], Sequence[ScalePolicy | None]]


def check_policies(choices: Sequence[PolicyChoice]) -> None:
    """Raises UsageError where one is neither a family's name nor a policy that a profile can hold."""
    for choice in choices:
        if isinstance(choice, ThresholdPolicy):
            _identity(choice)
            _check_replayed(choice)
        elif not isinstance(choice, str) or choice not in FAMILIES:
            raise UsageError(f"threshold_policy is {choice!r:.60}; it must be one of {', '.join(FAMILIES)}")


def shapes(choices: Sequence[PolicyChoice], session: Session, space: Space, traces: Traces) -> Shaped:
    """Returns the shapes of the chosen families, and the chosen policies themselves, by identity.

    Args:
        space: the search space, without policies.
        traces: of the tuning part, along the target.
    """
    policies: list[ScalePolicy | None] = []
    for choice in choices:
        if isinstance(choice, str):
            policies += FAMILIES[choice](session, space, traces)
        else:
            policies.append(choice if moves(choice) else None)
    texts = _texts(session, traces) if any(policies) else {}
    return {None if each is None else _identity(each): each and each.knowing(texts, session.engine.tokenizer)
            for each in policies}  # fmt: skip


def _texts(session: Session, traces: Traces) -> dict[int, TracedText]:
    """The traced texts of tuning problems, by the problems' ids."""
    tokenizer, prompts = session.engine.tokenizer, {each.id: each.prompt for each in session.tuning.problems}
    tables = traces.batches(("problem", "tokens", "emitted"), table="completions")
    return {
        problem: TracedText(
            prompt_tokens(tokenizer, prompts[problem]),
            [*tokens, *[0] * (emitted - len(tokens))],  # for the EOS, which completions leave out
        )
        for table in tables
        for problem, tokens, emitted in zip(*(column.to_pylist() for column in table.columns), strict=True)
    }


def _identity(policy: ThresholdPolicy) -> str:
    """Raises UsageError where it has none, or none that it can be built from again."""
    name = type(policy).__name__
    if not isinstance(policy, ScalePolicy):
        raise UsageError(
            f"the policy {name} does not scale T by the text alone, so results at one T say nothing about another T; "
            "calibrate without it"
        )
    if policy.identity is None:
        raise UsageError(
            f"the policy {name} has no identity, so neither a cache of results nor a profile can name it; give it "
            "one, or calibrate without it"
        )
    built = type(policy_named(policy.identity))
    if type(policy) is not built:
        raise UsageError(
            f"the policy {name} has the identity of {built.__name__}, which decoders would follow in its place; give "
            "it one of its own, or calibrate without it"
        )
    for part in _parts(policy):
        _identity(part)
    return policy.identity


def _check_replayed(policy: ThresholdPolicy) -> None:
    """Raises UsageError where its scales cannot be computed from traces, so that its speed could not be forecast."""
    for part in _parts(policy):
        _check_replayed(part)
    if isinstance(policy, ScalePolicy):
        policy.traced(dict.fromkeys(policy.columns, np.zeros(0)))


def _parts(policy: ThresholdPolicy) -> Sequence[ThresholdPolicy]:
    return policy.policies if isinstance(policy, Composed) else ()


def _constant(session: Session, space: Space, traces: Traces) -> list[None]:
    return [None]


def _schedules(session: Session, space: Space, traces: Traces) -> list[ScalePolicy]:
    """Stricter at the beginning of a text, or towards its end."""
    typical = _typical_length(traces)
    return [
        Schedule(start, end, over=max(round(share * typical), 1))
        for start, end in ((_STRICT, 1.0), (1.0, _STRICT))
        for share in _TEXTS
    ]


def _typical_length(traces: Traces) -> float:
    """Median length of the traced texts, in tokens."""
    return float(np.median(np.concatenate([block.ends - block.starts for block in blocks(traces, [])])))


def _by_entropy(session: Session, space: Space, traces: Traces) -> list[ScalePolicy]:
    """Looser where the target is unsure, since other tokens are as good there.

    Scaling by the draft's entropy, and being stricter where the target is unsure, are left out: every further shape
    costs decodings.
    """
    return [EntropyScaled(1.0, slope) for slope in _SLOPES]


def _by_prompt(session: Session, space: Space, traces: Traces) -> list[ScalePolicy]:
    """Trained on the whole tuning part, under the first rule and score of the space.

    Raises:
        UsageError: too few problems are lost at any T to learn from.
    """
    problems, arm = session.tuning.problems, space.families[0][len(space.draft_lengths) // 2]
    scale = quantiles(traces, arm.score, _TRIED_SHARES)
    traced = len(problems) <= TRACED  # all of them, in these traces, whose folder is locked by this process
    with nullcontext(traces) if traced else traces_along_target(session, space.scores, problems) as whole:
        facts = facts_of(whole, session.decoder, problems)
    thresholds = scale[np.isfinite(scale) & (scale > 0)].tolist()
    return [*per_prompt_shapes(session.tuning.decode, arm, thresholds, problems, facts)]


def _by_phase(*scales: tuple[float, float]) -> Family:
    """Returns a family of one shape for each pair of scales, inside the task's phase and outside."""

    def phases(session: Session, space: Space, traces: Traces) -> list[ScalePolicy]:
        assert session.task.phase is not None  # where a family of phases is asked for, the task has one
        begin, end = session.task.phase
        found = Phase(1.0, 0.0, begin, end).knowing(_texts(session, traces), session.engine.tokenizer)
        inside = np.concatenate([found.traced(block.columns) for block in blocks(traces, found.columns)]).mean()
        if inside in (0.0, 1.0):
            raise UsageError(
                f"no token of the traced texts is {'outside' if inside else 'inside'} the phase from {begin!r} to "
                f"{end!r}; give other markers ({named('phase_begin')}, {named('phase_end')}), or where a model is to "
                f"think, the arguments by which its chat template lets it ({named('chat_template_kwargs')})"
            )
        session.progress.note(f"phase from {begin!r} to {end!r}: {inside:.0%} of the tokens of the traced texts")
        return [Phase(*each, begin, end) for each in scales]

    return phases


FAMILIES: Mapping[str, Family] = {
    CONSTANT: _constant, "schedule": _schedules, "entropy": _by_entropy, "per-prompt": _by_prompt,
    "phase": _by_phase((1.0, 0.0), (1.0, _STRICT), (_STRICT, 1.0), (0.0, 1.0)),
    "phase-inside": _by_phase((1.0, 0.0)), "phase-outside": _by_phase((0.0, 1.0)),
}  # fmt: skip
"""By the names that `--threshold-policy` takes; a new family is added here."""
