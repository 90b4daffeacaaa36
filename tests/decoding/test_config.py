"""Configuration objects and the keywords that stand for their fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from fsd_common.errors import UsageError
from fsd_decoding.adaptive.divergence_budget import DivergenceBudget
from fsd_decoding.config import CallKeywords, DecodingConfig, DecodingKeywords
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.shapes import Constant, EntropyScaled, Schedule
from fsd_decoding.sampling import Sampling
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related

PROMPTS, NEW = ["w1 w2", "w3 w4 w5"], 12


def decoder(*given: DecodingConfig, **keywords: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), *given, **keywords)


def own(kind: type) -> dict[str, object]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind) if f.init and f.name != "processors"}


def test_keywords_are_the_fields_and_of_their_types() -> None:
    sampling = {name: hint for name, hint in own(Sampling).items() if name != "_warpers"}
    either: Any = own(DecodingConfig) | sampling | {"divergence": str}  # another name of `score`
    several = {"threshold": Sequence[float], "draft_length": Sequence[int]}  # of a call, for one prompt each
    expected = {name: hint | several.get(name) | None for name, hint in either.items()}
    assert get_type_hints(DecodingKeywords) == expected
    parameters = {"temperature", "top_k", "top_p"}  # of `generate` itself
    assert get_type_hints(CallKeywords) == {name: hint for name, hint in expected.items() if name not in parameters}


def test_keywords_and_an_object_decode_the_same_and_keywords_go_first() -> None:
    config = DecodingConfig("fsd", "tv", 0.3, 4, Sampling(0.9), seed=3)
    flat = decoder(rule="fsd", divergence="tv", threshold=0.3, draft_length=4, temperature=0.9, seed=3)
    assert flat.decoding == config
    assert flat.generate(PROMPTS, NEW) == decoder(config).generate(PROMPTS, NEW)
    assert decoder(config, threshold=0.1, top_k=3).decoding == DecodingConfig(
        "fsd", "tv", 0.1, 4, Sampling(0.9, top_k=3), seed=3
    )


def test_a_decoder_under_another_configuration_shares_the_models() -> None:
    one = decoder(threshold=0.3, draft_length=4)
    other = one.with_config(rule="coupled", seed=5)
    assert (other.rule, other.seed, other.draft_length, other.target) == ("coupled", 5, 4, one.target)
    assert (one.rule, one.seed) == ("fsd-coupled", 0)
    assert other.generate(PROMPTS, NEW) == one.generate(PROMPTS, NEW, rule="coupled")


def test_a_call_takes_every_setting_for_itself_alone() -> None:
    one = decoder(threshold=0.3, draft_length=4)
    given: Any = {"score": "tv", "seed": 5, "temperature": 0.9, "on": "processed", "within_support": True}
    assert one.generate(PROMPTS, NEW, **given) == one.with_config(**given).generate(PROMPTS, NEW)
    assert one.decoding == DecodingConfig(threshold=0.3, draft_length=4)


def test_a_threshold_policy_has_its_own_keyword() -> None:
    policy = Schedule(0.05, 0.5, over=8)
    expected = decoder(threshold=policy, draft_length=4).generate(PROMPTS, NEW)
    assert decoder(threshold_policy=policy, draft_length=4).generate(PROMPTS, NEW) == expected
    assert decoder(draft_length=4).generate(PROMPTS, NEW, threshold_policy=policy) == expected


def test_a_threshold_alone_replaces_the_policy_wherever_it_is_given() -> None:
    policy = EntropyScaled(0.2, 1.0)
    plain = decoder(threshold=0.2, draft_length=4)
    for moved in (decoder(threshold=policy, draft_length=4), decoder(threshold_policy=policy, draft_length=4)):
        assert moved.generate(PROMPTS, NEW, threshold=0.2) == plain.generate(PROMPTS, NEW)
        assert moved.with_config(threshold=0.2).threshold_policy is None
        other = moved.with_config(threshold_policy=Constant(0.3))
        assert (other.threshold, type(other.threshold_policy)) == (0.3, Constant)


def test_a_policy_of_a_call_must_be_one() -> None:
    with pytest.raises(UsageError, match="threshold_policy is 'entropy'; a decoder takes a ThresholdPolicy"):
        decoder().generate(PROMPTS, NEW, threshold_policy="entropy")  # type: ignore[arg-type]


def test_a_scale_policy_scales_the_threshold_beside_it() -> None:
    scaled = decoder(threshold=0.2, threshold_policy=EntropyScaled(0.7, 1.0), draft_length=4)
    assert scaled.generate(PROMPTS, NEW) == decoder(threshold=EntropyScaled(0.2, 1.0), draft_length=4).generate(
        PROMPTS, NEW
    )


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"score": ("js", "tv")}, r"score is \('js', 'tv'\); a decoder takes one name"),
        ({"rule": ("fsd", "sd")}, r"rule is \('fsd', 'sd'\); a decoder takes one name"),
        ({"draft_length": (2, 3)}, r"draft_length is \(2, 3\); it must be a whole number"),
        ({"threshold_policy": "entropy"}, "threshold_policy is 'entropy'; a decoder takes a ThresholdPolicy"),
        ({"threshold": Constant(0.1), "threshold_policy": Constant(0.2)}, "only one policy can move T"),
        (
            {"threshold": 0.1, "threshold_policy": DivergenceBudget(per_token=0.01)},
            "threshold is 0.1, and DivergenceBudget sets T itself",
        ),
        ({"stop_policy": "folder"}, "unknown stop policy 'folder'; known: your own as module:Name"),
        ({"decoding": {"rule": "fsd"}}, "decoding is .*; it must be a DecodingConfig, or give its fields as keywords"),
    ],
)
def test_what_a_decoder_cannot_follow_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decoder(**keywords)


def test_an_unknown_keyword_is_a_type_error_that_names_it() -> None:
    unknown: dict[str, Any] = {"tresholds": 0.1}
    with pytest.raises(TypeError, match=r"SpeculativeDecoder\(\) got an unexpected keyword argument 'tresholds'"):
        decoder(**unknown)
    with pytest.raises(TypeError, match=r"generate\(\) got an unexpected keyword argument 'tresholds'"):
        decoder().generate(PROMPTS, NEW, **unknown)
