"""Profiles with a policy: their files, points chosen from them, and decoders that follow them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_calib.report.diff import differences
from fsd_calib.report.verdict import verdict
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import EntropyScaled, Min, Schedule, policy_named
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.hf import fsd_generate
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.profile.following import WINDOW
from fsd_decoding.profile.parts import ModelInfo, PolicyInfo, brief
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import TOO_SLOW, at, profile, values
from support.messages import usage_error
from support.models.profile_decoders import decoder_with_profile
from support.models.tiny_models import llama, word_tokenizer

RISING, FALLING = Schedule(0.5, 2.0, over=4), Schedule(2.0, 0.5, over=4)
ACCEPTS_ALL = 2.0  # of D at most ln 2, scaled by a quarter at least
PROMPTS = [[3 + i % 20, 4, 5 + i // 20] for i in range(WINDOW)]


def info(policy: ScalePolicy) -> dict[str, Any]:
    assert policy.identity is not None
    return PolicyInfo.of(policy.identity).model_dump()


def point(number: int, policy: ScalePolicy | None, threshold: float = 0.0625, **changes: Any) -> dict[str, Any]:
    return {**at(number, policy=policy and info(policy), rule="fsd-coupled", threshold=threshold), **changes}


@pytest.mark.parametrize(
    "policy",
    [RISING, EntropyScaled(0.1, -2.0, "draft"), Min(RISING, FALLING.at(0.3))],
    ids=["schedule", "entropy", "min"],
)
def test_a_file_keeps_a_policy_so_that_it_can_be_built_again(policy: ScalePolicy, tmp_path: Path) -> None:
    made = profile({"policy": info(policy), "curve": [*values()["curve"], point(1, policy)]})
    made.save(tmp_path / "profile.json")
    loaded = ThresholdProfile.load(tmp_path / "profile.json")
    assert loaded == made
    assert loaded.policy is not None
    assert loaded.policy.identity == policy.identity == policy_named(loaded.policy.identity).identity
    assert loaded.policy.at(0.3).threshold == 0.3
    assert type(loaded.policy.at(0.3)) is type(policy)


def test_many_numbers_are_shown_as_a_digest() -> None:
    first, second = (Schedule.through([(i, 0.1 + (i == at)) for i in range(9)]) for at in (3, 4))
    assert brief(RISING.identity or "") == "schedule (points [[0, 0.25], [4, 1.0]])"
    assert brief(first.identity or "") != brief(second.identity or "")
    assert max(len(brief(policy.identity or "")) for policy in (first, second)) < 25


# Selection


def test_shapes_are_not_mixed_up_at_equal_thresholds() -> None:
    """The rising one is certified; what the falling one lost at a smaller T says nothing about it."""
    curve = [
        point(4, RISING, lower_bound=0.98), point(4, FALLING, lower_bound=0.981, forecast=70.0),
        point(3, FALLING, 0.01, retention=0.5),
        point(1, RISING, 0.1, retention=0.995, forecast=80.0),
    ]  # fmt: skip
    made = profile({"policy": info(RISING), "curve": curve})
    chosen = made.at(min_acc=0.98)
    assert (chosen.setting.policy, chosen.certified) == (PolicyInfo.of(RISING.identity or ""), True)
    fastest = made.at(min_speed=75, certified=False)
    assert (fastest.threshold, fastest.certified) == (0.1, False)
    assert made.at(min_acc=0.99, certified=False).threshold == 0.1  # not refuted by another shape
    assert isinstance(chosen.moved, ScalePolicy)
    assert (chosen.moved.identity, chosen.moved.threshold) == (RISING.identity, 0.0625)
    assert profile().at(min_acc=0.98).moved == 0.0625


# Following


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return llama(seed=0), llama(seed=1)


@pytest.fixture(scope="module")
def own(pair: tuple[Any, Any]) -> dict[str, Any]:
    return {
        "target": ModelInfo.of(pair[0]).model_dump(), "draft": ModelInfo.of(pair[1]).model_dump(), "dtype": "float64",
        "tokenizer": tokenizer_fingerprint(word_tokenizer()), "threshold": 0.3, "policy": info(RISING),
        "acceptance": None,
    }  # fmt: skip


def test_a_decoder_gets_the_policy_with_its_threshold(pair: tuple[Any, Any], own: dict[str, Any]) -> None:
    decoder, plain = decoder_with_profile(pair, own), decoder_with_profile(pair, own | {"policy": None})
    with pytest.warns(UserWarning, match="threshold_policy is schedule .* instead of None"):
        expected = plain.generate(PROMPTS[:20], 12, threshold=RISING.at(0.3))
    assert decoder.generate(PROMPTS[:20], 12) == expected
    assert decoder.generate(PROMPTS[:20], 12) != plain.generate(PROMPTS[:20], 12)


def test_generate_of_transformers_follows_too(pair: tuple[Any, Any], own: dict[str, Any]) -> None:
    inputs = torch.tensor(PROMPTS[:12])
    rows = pair[0].generate(
        inputs, max_new_tokens=12, do_sample=False, pad_token_id=0, custom_generate=fsd_generate, draft_model=pair[1],
        fsd_profile=profile(own),
    )  # fmt: skip
    expected = decoder_with_profile(pair, own).generate(PROMPTS[:12], 12)
    for row, result in zip(rows[:, 3:].tolist(), expected, strict=True):
        assert row[: len(result.tokens)] == result.tokens


def test_without_a_threshold_nothing_is_moved(pair: tuple[Any, Any], own: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="certifies no threshold"):
        decoder = decoder_with_profile(pair, own | TOO_SLOW)
    assert (decoder.rule, decoder.threshold_policy) == ("coupled", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"policy.name": "poetry"}, "unknown policy 'poetry'; known: "), ({"policy.version": 9}, "has version 9")],
)
def test_an_unknown_policy_is_refused_rather_than_ignored(
    pair: tuple[Any, Any], own: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    assert message in usage_error(lambda: decoder_with_profile(pair, own | changes))


def test_unknown_fields_are_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(values({"unknown": info(RISING), "digest": "0" * 64})))
    with pytest.raises(UsageError, match="unknown: Extra inputs are not permitted"):
        ThresholdProfile.load(tmp_path / "profile.json")


def drifted(decoder: SpeculativeDecoder, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decoder.generate(PROMPTS, 6, batch_size=WINDOW, **settings)
    messages = [str(warning.message) for warning in caught]
    return [message for message in messages if "certificate of the profile" not in message]  # for another setting


def test_drift_counts_only_texts_of_the_policy(pair: tuple[Any, Any], own: dict[str, Any]) -> None:
    """The calibration accepted half of what was drafted, these texts nearly all."""
    unlike = own | {"threshold": ACCEPTS_ALL, "acceptance": {"texts": 700, "mean": 0.5, "deviation": 0.1}}
    decoder = decoder_with_profile(pair, unlike)
    for other in (ACCEPTS_ALL, FALLING.at(ACCEPTS_ALL), RISING.at(1.9)):
        assert drifted(decoder, threshold=other) == []
    assert len(drifted(decoder)) == 1


# Reporting


def test_the_report_and_differences_name_it() -> None:
    made, other = (profile({"policy": info(policy)}) for policy in (RISING, FALLING))
    assert "moved by schedule (points [[0, 0.25], [4, 1.0]])" in verdict(made)
    changes = differences(made, other)
    assert {change.section for change in changes} == {"settings"}
    assert {change.name for change in changes} == {"policy.parameters.points"}
