"""What is given beside a profile goes first, and a warning says where its certificate does not apply then."""

from __future__ import annotations

import warnings
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
from fsd_decoding.config import DecodingConfig
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile import following
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.sampling import SETTINGS
from fsd_decoding.tree_shape import TreeShape
from support.calibration.profiles import FAST_ENOUGH, SLOWER, UNCERTIFIED, UNTESTED
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

UNKNOWN_COST = "the profile of 'arithmetic' certifies no threshold, so nothing is known of what this costs in accuracy"
OWN: dict[str, Any] = {"rule": "fsd-coupled", "threshold": 0.0625, "draft_length": 3, "temperature": 0.8}


def by_loading(**given: Any) -> None:
    load(**given)


def by_with_config(**given: Any) -> None:
    load().with_config(**given)


def by_a_call(**given: Any) -> None:
    load().generate(PROMPTS, NEW, **given)


def by_a_stream(**given: Any) -> None:
    list(load().stream(PROMPTS[0], NEW, **given))


WAYS = [by_loading, by_with_config, by_a_call, by_a_stream]


@pytest.mark.parametrize(
    ("given", "difference"),
    [
        ({"draft_length": 4}, "draft_length is 4 instead of 3"),
        ({"threshold": 0.5}, "threshold is 0.5 instead of 0.0625"),
        ({"rule": "fsd"}, "rule is 'fsd' instead of 'fsd-coupled'"),
        ({"temperature": 0.7}, "temperature is 0.7 instead of 0.8"),
        ({"draft_length": 4, "threshold": 0.5},
         "threshold is 0.5 instead of 0.0625, draft_length is 4 instead of 3"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("way", WAYS)
def test_what_is_given_is_used_and_one_line_says_what_differs(way: Any, given: dict[str, Any], difference: str) -> None:
    assert warned(way, **given) == [f"{difference}: {DOES_NOT_APPLY}"]


@pytest.mark.parametrize("way", [by_loading, by_with_config])
def test_a_tree_is_not_what_was_certified(way: Any) -> None:
    tree = TreeShape(top_k=2, nodes=6)
    assert warned(way, tree=tree) == [f"tree is {tree!r} instead of 'chain': {DOES_NOT_APPLY}"]


@pytest.mark.parametrize("way", WAYS)
def test_the_profiles_own_values_give_no_warning(way: Any) -> None:
    assert warned(way, **OWN) == []


@pytest.mark.parametrize(
    "lossless",
    [{"rule": "sd"}, {"rule": "target"}, {"threshold": -1.0}, {"rule": "ensemble", "threshold": 0.0}],
    ids=str,
)
@pytest.mark.parametrize("way", WAYS)
def test_lossless_decoding_never_warns(way: Any, lossless: dict[str, Any]) -> None:
    assert warned(way, **lossless, draft_length=7, temperature=0.3) == []


@pytest.mark.parametrize("way", [by_loading, by_with_config])
def test_a_seed_is_no_difference(way: Any) -> None:
    assert warned(way, seed=5) == []


def test_given_values_are_used() -> None:
    with pytest.warns(UserWarning, match=DOES_NOT_APPLY):
        ours = load(draft_length=4, threshold=0.5, temperature=0.3)
    assert (ours.threshold, ours.draft_length, ours.sampling.temperature) == (0.5, 4, 0.3)
    assert (ours.rule, ours.score) == ("fsd-coupled", followed().score)
    plain = SpeculativeDecoder(*PAIR, word_tokenizer(), threshold=0.5, draft_length=4, temperature=0.3,
                               score=followed().score, seed=followed().seed)  # fmt: skip
    assert ours.generate(PROMPTS, NEW) == plain.generate(PROMPTS, NEW)


def test_a_keyword_counts_as_given_whatever_its_value_and_an_object_is_refused() -> None:
    hot = {"rule": "fsd", "seed": 7}
    message = usage_error(lambda: load(hot, decoding=DecodingConfig(rule="fsd-coupled", seed=0)))
    assert message.startswith("decoding= is given beside a profile, which sets all fields of the configuration")
    with pytest.warns(UserWarning, match="rule is 'fsd-coupled' instead of 'fsd'"):
        assert load(hot, rule="fsd-coupled").rule == "fsd-coupled"


CUT: dict[str, Any] = {"sampling": {"temperature": 0.8, "top_k": None, "top_p": 0.9}}


@pytest.mark.parametrize("given", [{"top_p": 0.5}, {"top_k": 5}, {"min_p": 0.1}, {"temperature": 0.5}], ids=str)
def test_a_part_of_the_sampling_is_given_and_the_rest_stays_the_profiles(given: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=DOES_NOT_APPLY):
        loaded = load(CUT, **given)
    values = {"temperature": 0.8, "top_p": 0.9} | given
    assert {name: getattr(loaded.sampling, name) for name in values} == values
    with pytest.warns(UserWarning, match=DOES_NOT_APPLY):
        assert load(CUT).with_config(**given).sampling == loaded.sampling
    with pytest.warns(UserWarning, match=DOES_NOT_APPLY):
        assert load(CUT).generate(PROMPTS, NEW, **given) == loaded.generate(PROMPTS, NEW)


def test_none_keeps_what_the_profile_sets_in_every_way() -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        (*SETTINGS, "rule", "threshold", "draft_length", "stop_policy", "threshold_policy")
    )
    own = load(CUT | MOVING)
    everything: Any = dict.fromkeys((*nothing, "score", "sampling", "seed", "on", "within_support"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in (load(CUT | MOVING, **everything), own.with_config(**everything)):
            assert (other.setting.values(), other.seed) == (own.setting.values(), own.seed)
        assert own.generate(PROMPTS, NEW, **nothing) == own.generate(PROMPTS, NEW)
    by_transformers(CUT, fsd_rule=None, fsd_threshold=None, fsd_draft_length=None, top_p=0.9)


def test_the_profiles_own_temperature_changes_nothing() -> None:
    own = load(CUT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own.generate(PROMPTS, NEW, temperature=0.8) == own.generate(PROMPTS, NEW)
        for other in (load(CUT, temperature=0.8), own.with_config(temperature=0.8)):
            assert other.sampling == own.sampling


def test_greedy_decoding_needs_none_of_the_profiles_truncations() -> None:
    message = f"temperature is 0.0 instead of 0.8, top_p is None instead of 0.9: {DOES_NOT_APPLY}"
    own = load(CUT)
    assert warned(lambda: load(CUT, temperature=0.0)) == [message]
    assert warned(lambda: own.with_config(temperature=0.0)) == [message]
    assert warned(lambda: own.generate(PROMPTS, NEW, temperature=0.0)) == [message]
    for way in (lambda **given: load(CUT, **given), own.with_config, lambda **given: own.generate(PROMPTS, **given)):
        assert "top_p is 0.9 at temperature 0" in usage_error(lambda: way(temperature=0.0, top_p=0.9))  # noqa: B023


def test_a_rule_with_another_scale_needs_a_threshold_in_every_way() -> None:
    message = "rule 'ensemble' measures T on a scale of its own; give threshold= too"
    for way in WAYS:
        assert usage_error(lambda: way(rule="ensemble")) == message  # noqa: B023
        (warning,) = warned(way, rule="ensemble", threshold=0.3)
        assert warning.startswith("rule is 'ensemble' instead of 'fsd-coupled'")
    assert usage_error(lambda: by_transformers(fsd_rule="ensemble")) == message
    with pytest.warns(UserWarning, match=DOES_NOT_APPLY):
        ensemble = load(rule="ensemble", threshold=0.3)
    back = "rule 'fsd' measures T on another scale than 'ensemble'; give threshold= too"
    assert usage_error(lambda: ensemble.with_config(rule="fsd")) == back
    assert usage_error(lambda: ensemble.generate(PROMPTS, NEW, rule="fsd")) == back


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0.0, "top_p": 0.9}, "top_p is 0.9 at temperature 0"),
        ({"draft_length": 0}, "draft_length is 0"),
        ({"rule": "ensemble"}, "a scale of its own"),
        ({"decoding": DecodingConfig()}, "decoding= is given beside a profile"),
    ],
    ids=str,
)
def test_what_contradicts_the_profile_is_refused_before_weights_are_loaded(given: dict[str, Any], message: str) -> None:
    refused = usage_error(
        lambda: SpeculativeDecoder.from_pretrained("no/target", "no/draft", followed(CUT), **given, device="cpu")
    )
    assert message in refused


def test_a_decoder_is_told_once_and_its_calls_only_of_what_they_change() -> None:
    with pytest.warns(UserWarning, match="draft_length is 4") as caught:
        ours = load(draft_length=4)
    assert caught[0].lineno == load.__code__.co_firstlineno + 1  # the line that called from_pretrained
    decode = ours.generate
    assert warned(decode, prompts=PROMPTS, max_new_tokens=NEW) == []
    assert warned(decode, prompts=PROMPTS, max_new_tokens=NEW, draft_length=4) == []
    assert warned(decode, prompts=PROMPTS, max_new_tokens=NEW, draft_length=3) == []  # as certified
    assert warned(ours.with_config, seed=3) == []
    (message,) = warned(decode, prompts=PROMPTS, max_new_tokens=NEW, threshold=[0.0625, -1.0, 0.5])
    assert message == f"threshold is 0.5 instead of 0.0625, draft_length is 4 instead of 3: {DOES_NOT_APPLY}"


@pytest.mark.parametrize("name", ["rule", "score", "threshold", "draft_length", "sampling", "seed", "tree"])
def test_what_is_followed_is_not_changed_by_assigning_an_attribute(name: str) -> None:
    ours = load()
    with pytest.raises(AttributeError, match="no setter"):
        setattr(ours, name, getattr(ours, name))


def test_without_a_certificate_that_is_said_instead() -> None:
    for outcome in (UNCERTIFIED, FAST_ENOUGH, SLOWER):
        (message,) = warned(lambda: load(outcome, rule="fsd", threshold=0.5))  # noqa: B023
        assert message.startswith("rule is 'fsd' instead of '")
        assert message.endswith(UNKNOWN_COST)
        assert "has none; give rule= too" in usage_error(lambda: load(outcome, threshold=0.5))  # noqa: B023


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["was never tested"]),
        ({"draft_length": 4}, ["was never tested", f"draft_length is 4 instead of 3: {UNKNOWN_COST}"]),
        ({"threshold": 0.5}, [f"threshold is 0.5 instead of 0.0625: {UNKNOWN_COST}"]),
        ({"rule": "sd", "draft_length": 4}, []),
    ],
    ids=str,
)
def test_what_is_wrong_with_the_profile_is_said_beside_what_differs_from_it(
    given: dict[str, Any], expected: list[str]
) -> None:
    """Any difference used to silence that the profile's threshold was never tested."""
    for messages in (
        warned(lambda: load(UNTESTED, **given)),
        warned(lambda: by_transformers(UNTESTED, **{f"fsd_{name}": value for name, value in given.items()})),
    ):
        assert len(messages) == len(expected)
        for message, end in zip(messages, expected, strict=True):
            assert end in message


def test_a_profile_without_a_threshold_says_so_beside_other_sampling() -> None:
    for messages in (
        warned(lambda: load(UNCERTIFIED, temperature=0.3)),
        warned(lambda: by_transformers(UNCERTIFIED, temperature=0.3)),
    ):
        assert ["certifies no threshold" in message for message in messages] == [True]


def test_doubts_of_the_models_name_the_line_of_the_user() -> None:
    """Under `fsd_generate` they used to name a line of this library."""
    changes = {"target.dtype": "float32", "device": "cuda"}
    expected = [
        "the profile was calibrated with the target in float32, this one is in float64",
        "the profile was calibrated on cuda, decoding runs on cpu",
    ]
    assert warned(lambda: load(changes)) == expected
    assert warned(lambda: by_transformers(changes)) == expected


def test_what_no_digest_binds_is_no_certificate() -> None:
    unbound = followed().model_copy(update={"digest": None})
    messages = warned(
        lambda: SpeculativeDecoder.from_pretrained(*PAIR, unbound, tokenizer=word_tokenizer(), draft_length=4)
    )
    assert "has no digest" in messages[0]
    assert messages[1].startswith("draft_length is 4 instead of 3: the profile of 'arithmetic' certifies no threshold")


@pytest.mark.parametrize(
    ("given", "differences"),
    [
        ({}, None),
        ({"fsd_threshold": 0.0625, "fsd_draft_length": 3, "fsd_rule": "fsd-coupled"}, None),
        ({"fsd_rule": "sd", "temperature": 0.3}, None),
        ({"fsd_threshold": -1.0}, None),
        ({"fsd_draft_length": 4}, "draft_length is 4 instead of 3"),
        ({"temperature": 0.3, "top_k": 9}, "temperature is 0.3 instead of 0.8, top_k is 9 instead of None"),
        ({"fsd_threshold": 0.5}, "threshold is 0.5 instead of 0.0625"),
    ],
    ids=str,
)
def test_generate_of_transformers_does_the_same(given: dict[str, Any], differences: str | None) -> None:
    expected = [f"{differences}: {DOES_NOT_APPLY}"] if differences else []
    assert warned(by_transformers, **given) == expected


def test_a_policy_does_not_apply_to_a_rule_without_a_threshold_wherever_the_rule_is_given() -> None:
    moving = load(MOVING)
    expected = moving.generate(PROMPTS, NEW, rule="sd")
    assert moving.with_config(rule="sd").generate(PROMPTS, NEW) == expected
    assert load(MOVING, rule="sd").generate(PROMPTS, NEW) == expected
    back = moving.with_config(rule="sd").with_config(rule="fsd-coupled")
    assert back.generate(PROMPTS, NEW) == moving.generate(PROMPTS, NEW)
    assert "has no threshold on a score" in usage_error(
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


@pytest.mark.parametrize("policy", OF_PROFILES, ids=["domains", "score", "speed", "composed"])
def test_a_policy_of_a_profile_says_what_differs_from_it(policy: Any) -> None:
    own = followed(LONG)
    plain = SpeculativeDecoder(*PAIR, word_tokenizer(), score=own.score)

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
    plain = SpeculativeDecoder(*PAIR, word_tokenizer(), score=followed().score)
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
