"""What every stop policy must do, as functions of its name that raise AssertionError where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fsd_calib.testing.promises import HOW, bundled, intervals_hold, promise
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy, Verified, as_bools, stop_policy_named

_SAMPLED: tuple[dict[str, float], ...] = ({}, {"temperature": 0.9})


def texts_stay_the_targets(name: str) -> None:
    """Under `coupled` the bundled target writes its own texts, wherever drafts end."""
    for sampling in _SAMPLED:
        alone = bundled().decoded({"rule": "target", **sampling})
        found = bundled().decoded({"rule": "coupled", **sampling}, stop_policy=name)
        for place, (was, now) in enumerate(zip(alone, found, strict=True)):
            promise(
                now.tokens == was.tokens, f"text {place} is {now.text!r:.60}, and the target's own {was.text!r:.60}"
            )
        promise(sum(result.drafted for result in found) > 0, "it ends every draft before its first token")


def batches_do_not_matter(name: str) -> None:
    """A text is drafted as it is alone, whatever rows there are beside it, and twice in the same way."""
    setting = {"rule": "coupled", "temperature": 0.9, "stop_policy": name}
    together, again = (bundled().decoded(setting) for _ in range(2))
    few = bundled().decoded(setting, batch_size=3)
    for what, others in (("decoded again", again), ("in another batch", few)):
        for place, (one, other) in enumerate(zip(together, others, strict=True)):
            same = (one.rounds, one.drafted) == (other.rounds, other.drafted)
            promise(
                same, f"text {place} has {other.drafted} drafted tokens in {other.rounds} rounds {what}, and "
                f"{one.drafted} in {one.rounds} before",
            )  # fmt: skip


def what_is_withheld_does_not_depend_on_the_token(name: str) -> None:
    """`withholds` may read what a token was drawn from, but not the token: that would change what is sampled."""
    bundled().decoded({"rule": "sd", "temperature": 0.9}, stop_policy=_Watched(stop_policy_named(name)))


def intervals_decode_equal(name: str) -> None:
    """Decoded again at another T of its interval, a text of the bundled pair is the same; where the policy reads T, its
    interval is T alone."""
    bench, policy = bundled(), stop_policy_named(name)
    for setting in HOW.values():
        if policy.rules is not None and setting["rule"] not in policy.rules:
            continue
        given, thresholds = {**setting, "stop_policy": name}, bench.thresholds("js", setting)
        intervals_hold(bench, given, thresholds)
        for result, threshold in zip(bench.decoded(given, threshold=thresholds), thresholds, strict=True):
            alone = result.interval == (threshold, math.nextafter(threshold, math.inf))
            promise(alone or not policy.reads_threshold, "it reads T, and texts hold for more than their own")


CHECKS: tuple[Callable[[str], None], ...] = (
    texts_stay_the_targets,
    batches_do_not_matter,
    what_is_withheld_does_not_depend_on_the_token,
    intervals_decode_equal,
)


class _Watched(StopPolicy):
    """A policy that is asked twice what it withholds, with another token drawn in between."""

    def __init__(self, policy: StopPolicy) -> None:
        self._policy = policy
        self.rules, self.looks, self.watches = policy.rules, policy.looks, policy.watches

    def goes_on(self, state: DraftState) -> Answer:
        return self._policy.goes_on(state)

    def withholds(self, state: DraftState) -> Answer | None:
        answer = self._policy.withholds(state)
        if answer is None:
            return None
        place = (state.batch.lengths + len(state.logits) - 1)[:, None]
        drawn = state.batch.tokens.gather(1, place)
        state.batch.tokens.scatter_(1, place, (drawn + 1) % state.logits[-1].shape[-1])
        other = self._policy.withholds(state)
        state.batch.tokens.scatter_(1, place, drawn)
        rows = len(drawn)
        same = other is not None and torch.equal(*(torch.tensor(as_bools(each, rows)) for each in (answer, other)))
        promise(same, "withholds depends on the token that was drawn, not only on what it was drawn from")
        return answer

    def remember(self, memory: Any, verified: Verified) -> Any:
        return self._policy.remember(memory, verified)
