"""Threshold and stop policies beside a profile, and policies made of profiles: what leaves a certificate is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fsd_decoding.adaptive import (
    Constant,
    DivergenceBudget,
    EntropyScaled,
    Min,
    PerDomain,
    SpeedBudget,
    ThresholdPolicy,
)
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile import following
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.messages import usage_error
from support.models.followed_pair import (
    DOES_NOT_APPLY,
    MOVING,
    NEW,
    PAIR,
    PROMPTS,
    by_transformers,
    followed,
    load,
    warned,
)
from support.models.tiny_models import word_tokenizer


def test_a_policy_does_not_apply_to_a_rule_without_a_threshold_wherever_the_rule_is_given() -> None:
    moving = load(MOVING)
    expected = moving.generate(PROMPTS, NEW, rule="sd")
    assert moving.with_config(rule="sd").generate(PROMPTS, NEW) == expected
    assert load(MOVING, rule="sd").generate(PROMPTS, NEW) == expected
    back = moving.with_config(rule="sd").with_config(rule="fsd-coupled")
    assert back.generate(PROMPTS, NEW) == moving.generate(PROMPTS, NEW)
    assert "has no threshold on a divergence" in usage_error(
        lambda: moving.with_config(rule="sd", threshold_policy=EntropyScaled(0.1, 1.0))
    )
    by_transformers(MOVING, fsd_rule="sd")


def test_a_policy_or_a_number_in_place_of_the_profiles_is_named() -> None:
    (message,) = warned(lambda: load(MOVING, threshold=0.0625))
    assert message.startswith("threshold_policy is None instead of entropy (")
    (message,) = warned(lambda: load(threshold=DivergenceBudget(per_token=0.01)))
    assert (
        message
        == f"threshold is 0.0 instead of 0.0625, threshold_policy is DivergenceBudget instead of None: {DOES_NOT_APPLY}"
    )
    assert warned(lambda: load(threshold_policy=DivergenceBudget(per_token=0.01)))[0] == message


OF_PROFILES: list[Callable[[ThresholdProfile], ThresholdPolicy]] = [
    lambda own: PerDomain({"sums": own}, ["sums"] * 3),
    lambda own: DivergenceBudget(per_token=0.01, profile=own),
    lambda own: SpeedBudget(1.0, own),
    lambda own: Min(Constant(0.5), DivergenceBudget(per_token=0.01, profile=own)),
]
LONG = {"draft_length": 5}  # as the points of the curve, which a speed budget needs
CERTIFIED: dict[str, Any] = {"temperature": 0.8, "draft_length": 5}


@pytest.mark.parametrize("policy", OF_PROFILES, ids=["domains", "divergence", "speed", "composed"])
def test_a_policy_of_a_profile_says_what_differs_from_it(policy: Any) -> None:
    own = followed(LONG)
    plain = SpeculativeDecoder(*PAIR, word_tokenizer(), divergence=own.divergence)

    def told(**given: Any) -> list[str]:
        found = warned(lambda: plain.generate(PROMPTS, NEW, threshold=policy(own), **given))
        return [message for message in found if "certificate" in message]

    assert told(**CERTIFIED) == []
    (message,) = told(**CERTIFIED | {"temperature": 0.3})
    assert message.removeprefix("domain 'sums': ") == f"temperature is 0.3 instead of 0.8: {DOES_NOT_APPLY}"
    (message,) = told(**CERTIFIED, stop_policy=_OneStep())
    assert message.removeprefix("domain 'sums': ") == f"stop_policy is 'one step' instead of None: {DOES_NOT_APPLY}"


def test_the_early_stop_of_a_domain_is_part_of_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "early_stop", lambda *_: _OneStep())
    plain = SpeculativeDecoder(*PAIR, word_tokenizer(), divergence=followed().divergence)
    policy = PerDomain({"sums": followed(LONG), "tales": 0.5, "unused": followed(LONG)}, ["sums", "tales", "sums"])
    ways = {"domain 'sums': stop_policy is None instead of 'one step': " + DOES_NOT_APPLY: None, None: _OneStep()}
    for expected, stop_policy in ways.items():
        found = warned(lambda: plain.generate(PROMPTS, NEW, **CERTIFIED, threshold=policy, stop_policy=stop_policy))  # noqa: B023
        assert found == ([] if expected is None else [expected])
    cold: dict[str, Any] = CERTIFIED | {"temperature": 0.3, "stop_policy": _OneStep()}
    (message,) = warned(lambda: list(plain.stream(PROMPTS[0], NEW, **cold, threshold=policy)))
    assert message.startswith("domain 'sums': temperature is 0.3 instead of 0.8")


class _OneStep(StopPolicy):
    """Ends drafts after one token, under `fsd-coupled` alone, and counts its calls."""

    identity = "one step"
    rules = frozenset({"fsd-coupled"})

    def __init__(self) -> None:
        self.calls = 0

    def goes_on(self, state: Any) -> list[bool]:
        self.calls += 1
        return [not state.logits] * len(state.rows)


def test_a_stop_policy_is_not_used_under_rules_it_does_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile's early stop is for fuzzy rules."""
    policy = _OneStep()
    monkeypatch.setattr(following, "early_stop", lambda *_: policy)
    by_transformers(fsd_rule="sd")
    assert policy.calls == 0
    assert load(rule="sd").generate(PROMPTS, NEW)
    assert policy.calls == 0
    by_transformers()
    assert policy.calls > 0
